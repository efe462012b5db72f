"""Inference by minimising E(x, z) over z, where E splits into least squares over a linear operator and a penalty.

The result is one point, the mode of p(z | x): the sparse code. A batch goes to the solvers of
:mod:`latentia.inference.sparse`, on the host and with a certificate for every signal; a single example, inside of
compiled code, takes proximal gradient steps with momentum and restarts (Beck and Teboulle, 2009; O'Donoghue and
Candès, 2015) until its relative duality gap is ``tol``.
"""

from __future__ import annotations

from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractInference, Need
from latentia.core.capabilities import LinearSplit, ProxSplit
from latentia.core.model import AbstractPosterior, Scalar
from latentia.ops.arrays import float_type
from latentia.ops.operators import LinearOperator, Matrix, as_operator

#: Steps of an inference inside of compiled code.
MOST_STEPS = 2000

Output = Literal["csr", "dense"]


class PointEstimate(AbstractPosterior):
    """All mass at one point: what a search for the most probable z leaves."""

    point: Any

    def mean(self) -> Any:
        """The point."""
        return self.point

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """The point again."""
        del key
        return self.point

    def log_prob(self, z: Any) -> Scalar:
        """0 at the point, −∞ elsewhere."""
        there = jax.tree.map(lambda a, b: jnp.all(a == b), z, self.point)
        return jnp.where(jnp.all(jnp.stack(jax.tree.leaves(there))), 0.0, -jnp.inf)

    def entropy(self) -> Scalar:
        """0: nothing is left open."""
        return jnp.zeros((), float_type(self.point))


class SparseInference(AbstractInference):
    """The code of x: argmin over z of ½‖s(x) − Dz‖² + penalty(z), or the best few atoms.

    Over a dictionary all methods work; over another operator "fista", "ista" and "iht" do, and the others where the
    operator is small enough to be written as a matrix.

    Args:
        method: a method of :func:`latentia.inference.sparse.sparse_encode`.
        tol: relative duality gap at which a code is good enough, for convex penalties.
        max_iter: most iterations a signal; None for the method's own limit.
        n_nonzero: most atoms in use, for methods that count them.
        error: squared residual at which a pursuit stops.
        n_threads: threads of the compiled solvers; None for all cores.
    """

    method: str = eqx.field(static=True, default="cd")
    tol: float = eqx.field(static=True, default=1e-4)
    max_iter: int | None = eqx.field(static=True, default=None)
    n_nonzero: int | None = eqx.field(static=True, default=None)
    error: float | None = eqx.field(static=True, default=None)
    n_threads: int | None = eqx.field(static=True, default=None)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``ProxSplit`` for a dictionary, ``LinearSplit`` for any operator."""
        return (ProxSplit | LinearSplit,)

    def encode(
        self, model: Any, X: Any, *, tol: float | None = None, init: Any = None, output: Output = "csr"
    ) -> Any:
        """The :class:`~latentia.inference.sparse.Codes` of many signals, with their certificates.

        Codes over an operator are flat rows here.

        Args:
            model: a model with ``LinearSplit``.
            X: examples, (n, d), as a NumPy array or, for a model that does not subtract a mean, a sparse matrix; of
                an operator's model also in the shape of its signals.
            tol: another tolerance than the inference's own.
            init: codes to start from.
            output: "csr" or "dense".
        """
        from latentia.inference.sparse import sparse_encode  # brings the compiler

        operator = as_operator(model.operator)
        options = {"n_nonzero": self.n_nonzero, "error": self.error, "max_iter": self.max_iter, "init": init}
        return sparse_encode(
            model.signal(X),
            np.asarray(operator.atoms) if isinstance(operator, Matrix) else operator,
            penalty=model.penalty,
            method=self.method,
            tol=self.tol if tol is None else tol,
            n_threads=self.n_threads,
            output=output,
            **{name: value for name, value in options.items() if value is not None},
        )

    def infer_many(self, model: Any, x: Any, *, key: PRNGKeyArray | None = None) -> PointEstimate:
        """The codes of a batch, dense, on the host; nothing random happens."""
        del key
        codes = self.encode(model, jax.tree.map(np.asarray, x), output="dense")
        return PointEstimate(as_operator(model.operator).unflat_code(codes.toarray()))

    def infer(self, model: Any, x: Any, *, key: PRNGKeyArray | None = None) -> PointEstimate:
        """The code of one example, in compiled code; nothing random happens.

        Convex penalties are solved to ``tol``; others, and a limited number of atoms, take all steps from zero.
        """
        del key
        signal, operator, penalty = model.signal(x), as_operator(model.operator), model.penalty
        if penalty is None or not penalty.convex:
            return PointEstimate(thresholded(operator, penalty, signal, n_nonzero=self.n_nonzero))
        return PointEstimate(accelerated(operator, penalty, signal, tol=self.tol))


def accelerated(operator: LinearOperator, penalty: Any, x: Any, *, tol: float = 1e-4) -> Any:
    """argmin over z of ½‖x − Dz‖² + Ω(z) for one signal, by FISTA with restarts in compiled code.

    Under :func:`jax.vmap` every signal may have an operator of its own (another mask, other switches).

    Args:
        operator: D.
        penalty: Ω, convex.
        x: the signal.
        tol: the steps end when the certified gap is this part of ½‖x‖², or after :data:`MOST_STEPS`.
    """
    there, back, signal, step = _flat(operator, x)
    enough = 0.5 * tol * jnp.sum(signal**2)

    def gap(z: Any) -> Any:
        residual = signal - there(z)
        return penalty.gap(z, residual, back(residual))

    def unfinished(carry: Any) -> Any:
        z, _, _, n = carry
        return (n < MOST_STEPS) & (gap(z) > enough)

    def body(carry: Any) -> Any:
        z, ahead, momentum, n = carry
        new = penalty.prox(ahead + step * back(signal - there(ahead)), step)
        uphill = jnp.sum((ahead - new) * (new - z)) > 0
        momentum = jnp.where(uphill, 1.0, momentum)
        grown = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
        return new, new + (momentum - 1) / grown * (new - z), grown, n + 1

    zero = jnp.zeros(operator.n_code, signal.dtype)
    found = jax.lax.while_loop(unfinished, body, (zero, zero, jnp.ones((), signal.dtype), 0))[0]
    return operator.unflat_code(found)


def thresholded(operator: LinearOperator, penalty: Any, x: Any, *, n_nonzero: int | None = None) -> Any:
    """Gradient steps from zero, each followed by the penalty's own threshold or by keeping the largest few.

    Args:
        operator: D.
        penalty: Ω; None to keep ``n_nonzero`` entries instead.
        x: the signal.
        n_nonzero: how many; None for all.
    """
    there, back, signal, step = _flat(operator, x)
    kept = min(n_nonzero or operator.n_code, operator.n_code)

    def threshold(u: Any) -> Any:
        if penalty is not None:
            return penalty.prox(u, step)
        least = jax.lax.top_k(jnp.abs(u), kept)[0][-1]
        return jnp.where(jnp.abs(u) >= least, u, jnp.zeros_like(u))

    def body(_: Any, z: Any) -> Any:
        return threshold(z + step * back(signal - there(z)))

    found = jax.lax.fori_loop(0, MOST_STEPS // 10, body, jnp.zeros(operator.n_code, signal.dtype))
    return operator.unflat_code(found)


def _flat(operator: LinearOperator, x: Any) -> tuple[Any, Any, Any, Scalar]:
    """(z ↦ Dz, r ↦ Dᵀr, x, 1/L) on flat vectors; 1/L is 1 where D is zero."""
    top = operator.lipschitz()
    step = 1 / jnp.where(top > 0, top, jnp.ones_like(top))
    signal = operator.flat_signal(x)
    return (
        lambda z: operator.flat_signal(operator.synthesise(operator.unflat_code(z))),
        lambda r: operator.flat_code(operator.analyse(operator.unflat_signal(r))),
        signal,
        step.astype(signal.dtype),
    )
