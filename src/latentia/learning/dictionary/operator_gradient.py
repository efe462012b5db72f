"""A gradient step on the parameters of any linear operator, with the codes held.

With codes z_i of signals x_i and an operator D_θ that is linear in its parameters (filters of convolutions, atoms),

    f(θ) = ½ Σ_i w_i ‖x_i − D_θ z_i‖²,      θ ← Π(θ − (η/L) ∇f(θ)),      L = λ_max(JᵀJ),

where J: θ ↦ (√w_i D_θ z_i)_i is linear, its adjoint comes from automatic differentiation, and Π is the model's own
projection. For a matrix L is the largest eigenvalue of A = Σ w zᵀz, and this is the step of
:class:`~latentia.learning.dictionary.whole.Gradient`. Up to η = 1 it cannot raise f if the allowed set is convex
(balls). Layers one after the other are not linear in all of θ at once: there J is the derivative at θ, and the step
is halved until f does not rise.
"""

from __future__ import annotations

import warnings
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, Metrics, Need
from latentia.core.capabilities import Constrained, LinearSplit
from latentia.core.parameters import trainable
from latentia.core.space import Domain, Space
from latentia.inference.proximal_split import SparseInference
from latentia.inference.sparse.proximal_checks import flat_rows
from latentia.ops.arrays import float_type
from latentia.ops.compiling import jitted
from latentia.ops.operators import LinearOperator, as_operator, largest_eigenvalue

#: How often a step is halved at most; then the parameters stay where they are.
HALVINGS = 20
#: f may rise by this part through rounding.
ROUNDING = 1e-6


class OperatorState(eqx.Module):
    """η, which a divergence halves."""

    rate: Float[Array, ""]


class OperatorGradient(AbstractLearner):
    """Codes of the batch with the operator held, then one projected gradient step on its parameters.

    Args:
        inference: how codes are found: "fista", or any other method that the operator allows.
        rate: η, the step as a part of the largest safe one.
    """

    inference: SparseInference
    rate: float = eqx.field(static=True, default=1.0)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``LinearSplit``, and ``Constrained``: without a bound on the parameters codes could shrink at no cost."""
        return (LinearSplit, Constrained)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Signals are numbers."""
        return ("real", "nonnegative")

    @property
    def host_side(self) -> bool:
        """Codes are found signal by signal, each in its own number of steps."""
        return True

    @property
    def period(self) -> int:
        """Every step reports, as those of the other dictionary learners do."""
        return 1

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> OperatorState:
        """The full step."""
        del model, x, key
        return OperatorState(jnp.asarray(self.rate, jnp.float32))

    def step(
        self, model: Any, x: Any, weights: Any, state: OperatorState, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, OperatorState, Metrics]:
        """Codes, a step, and what the codes have come to at the operator they were found with."""
        del key
        with warnings.catch_warnings():  # reported as a metric; a batch that is not quite solved does no harm
            warnings.simplefilter("ignore")
            codes = self.inference.encode(model, x, output="dense")
        metrics: Any = measure(model, codes, x, weights) if since else {}
        if weights is None or bool(np.any(np.asarray(weights) > 0)):
            operator = as_operator(model.operator)
            dtype = float_type(operator)  # that of the parameters, whatever the signals come in
            z = operator.unflat_code(codes.toarray().astype(dtype))
            rows = np.asarray(flat_rows(model.signal(x), operator), dtype)
            shares = np.ones(len(rows), rows.dtype) if weights is None else np.asarray(weights, rows.dtype)
            model = _moved(model, rows, z, shares, np.asarray(state.rate, rows.dtype))
        return model, state, metrics

    def halve_step(self, state: OperatorState) -> OperatorState:
        """Half the step."""
        return OperatorState(0.5 * state.rate)

    def final(self, model: Any, state: Any) -> Any:
        """The model itself."""
        del state
        return model


def measure(model: Any, codes: Any, x: Any, weights: Any) -> dict[str, np.float64]:
    """Means over a batch: objective, squared error, entries in use; and the worst certificate."""
    n, signals = len(codes.gaps), model.signal(x)
    shares = np.full(n, 1 / n) if weights is None else np.asarray(weights, np.float64) / n
    error, total = (codes.objective(signals, model.operator, rule) for rule in (None, model.penalty))
    found: dict[str, Any] = {
        "objective": float(shares @ total),
        "squared_error": 2 * float(shares @ error),
        "nonzeros": float(shares @ np.count_nonzero(codes.toarray(), axis=1)),
    }
    solved = np.isfinite(codes.gaps)
    if solved.any():
        found["gap"] = float(codes.gaps[solved & (shares > 0)].max(initial=0.0))
    found["unsolved"] = float(shares @ ~codes.converged)
    return {name: np.float64(value) for name, value in found.items()}


class _Image(LinearOperator):
    """J at θ: a change of the parameters ↦ the change of (√w_i D_θ z_i)_i, as rows."""

    parameters: Any
    fixed: Any
    z: Any
    roots: Float[Array, " n"]

    @property
    def code_space(self) -> Any:
        """The parameters."""
        return jax.tree.map(lambda leaf: Space("real", leaf.shape), self.parameters)

    @property
    def signal_space(self) -> Space:
        """One row a signal."""
        return Space("real", (self.roots.shape[0], eqx.combine(self.parameters, self.fixed).n_signal))

    def at(self, parameters: Any) -> Float[Array, "n d"]:
        """(√w_i D_θ z_i)_i."""
        operator = eqx.combine(parameters, self.fixed)
        return self.roots[:, None] * operator.flat_signal(jax.vmap(operator.synthesise)(self.z))

    def synthesise(self, z: Any) -> Float[Array, "n d"]:
        """J times a change."""
        return jax.jvp(self.at, (self.parameters,), (z,))[1]

    def analyse(self, x: Float[Array, "n d"]) -> Any:
        """Jᵀ times rows."""
        return jax.vjp(self.at, self.parameters)[1](x)[0]

    def lipschitz(self) -> Float[Array, ""]:
        """By iteration."""
        return largest_eigenvalue(self)


@jitted
def _moved(model: Any, rows: Array, z: Any, weights: Array, rate: Array) -> Any:
    """The model after the step."""
    operator = jax.tree.map(jnp.asarray, as_operator(model.operator))
    parameters, fixed = eqx.partition(operator, trainable(operator))
    roots = jnp.sqrt(weights)
    image = _Image(parameters, fixed, jax.tree.map(jnp.asarray, z), roots)
    wanted = roots[:, None] * rows
    residual = wanted - image.at(parameters)
    before, uphill, top = jnp.sum(residual**2), image.analyse(residual), image.lipschitz()
    safe = jnp.where(top > 0, rate / jnp.where(top > 0, top, jnp.ones_like(top)), jnp.zeros_like(top))

    def attempt(step: Array) -> Any:
        moved = jax.tree.map(lambda a, b: a + step * b, parameters, uphill)
        return model.with_operator(eqx.combine(moved, fixed)).project()

    def rises(found: Any) -> Array:
        own = jax.tree.map(jnp.asarray, as_operator(found.operator))
        after = jnp.sum((wanted - image.at(eqx.partition(own, trainable(own))[0])) ** 2)
        return ~(after <= before * (1 + ROUNDING))

    def again(carry: tuple) -> tuple:
        return 0.5 * carry[0], carry[1] + 1

    step, n = jax.lax.while_loop(lambda c: (c[1] < HALVINGS) & rises(attempt(c[0])), again, (safe, 0))
    found = attempt(step)
    kept = jax.tree.map(lambda new, old: jnp.where(n < HALVINGS, new, old), *map(_arrays, (found, model)))
    return eqx.combine(kept, eqx.filter(model, eqx.is_array, inverse=True))


def _arrays(model: Any) -> Any:
    return jax.tree.map(jnp.asarray, eqx.filter(model, eqx.is_array))
