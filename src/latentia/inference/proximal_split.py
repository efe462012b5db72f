"""Inference by minimising E(x, z) over z, where E splits into least squares and a penalty.

What it finds is one point, the mode of p(z | x): the sparse code. A batch goes to the solvers of
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
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractInference, Need
from latentia.core.capabilities import ProxSplit
from latentia.core.model import AbstractPosterior, Scalar
from latentia.ops.arrays import float_type

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
    """The code of x: argmin over z of ½‖s(x) − zD‖² + penalty(z), or the best few atoms.

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
        """``ProxSplit``."""
        return (ProxSplit,)

    def encode(
        self, model: Any, X: Any, *, tol: float | None = None, init: Any = None, output: Output = "csr"
    ) -> Any:
        """The :class:`~latentia.inference.sparse.Codes` of many signals, with their certificates.

        Args:
            model: a model with ``ProxSplit``.
            X: examples, (n, d), as a NumPy array or, for a model that does not subtract a mean, a sparse matrix.
            tol: another tolerance than the inference's own.
            init: codes to start from.
            output: "csr" or "dense".
        """
        from latentia.inference.sparse import sparse_encode  # brings the compiler

        options = {"n_nonzero": self.n_nonzero, "error": self.error, "max_iter": self.max_iter, "init": init}
        return sparse_encode(
            model.signal(X),
            np.asarray(model.dictionary),
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
        return PointEstimate(self.encode(model, np.asarray(x), output="dense").toarray())

    def infer(self, model: Any, x: Any, *, key: PRNGKeyArray | None = None) -> PointEstimate:
        """The code of one example, in compiled code; nothing random happens.

        Convex penalties are solved to ``tol``; others, and a limited number of atoms, take all steps from zero.
        """
        del key
        signal, atoms = model.signal(x), model.dictionary
        step = 1 / largest_eigenvalue(atoms)
        if model.penalty is None or not model.penalty.convex:
            return PointEstimate(_thresholded(model.penalty, signal, atoms, step, self.n_nonzero))
        return PointEstimate(_accelerated(model.penalty, signal, atoms, step, self.tol))


def largest_eigenvalue(atoms: Float[Array, "k d"]) -> Scalar:
    """‖D‖² in the spectral norm, a little rounded up; 1 for a dictionary of zeros."""
    gram = atoms @ atoms.T if atoms.shape[0] <= atoms.shape[1] else atoms.T @ atoms
    top = jnp.linalg.eigvalsh(gram)[-1] * (1 + 1e-5)
    return jnp.where(top > 0, top, jnp.ones_like(top))


def _accelerated(penalty: Any, x: Any, atoms: Any, step: Any, tol: float) -> Float[Array, " k"]:
    """FISTA with restarts, until the certified gap is ``tol`` of ½‖x‖²."""
    enough = 0.5 * tol * jnp.sum(x**2)

    def gap(z: Any) -> Any:
        residual = x - z @ atoms
        return penalty.gap(z, residual, residual @ atoms.T)

    def unfinished(carry: Any) -> Any:
        z, _, _, n = carry
        return (n < MOST_STEPS) & (gap(z) > enough)

    def body(carry: Any) -> Any:
        z, ahead, momentum, n = carry
        new = penalty.prox(ahead + step * ((x - ahead @ atoms) @ atoms.T), step)
        uphill = jnp.sum((ahead - new) * (new - z)) > 0
        momentum = jnp.where(uphill, 1.0, momentum)
        grown = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
        return new, new + (momentum - 1) / grown * (new - z), grown, n + 1

    zero = jnp.zeros(atoms.shape[0], x.dtype)
    return jax.lax.while_loop(unfinished, body, (zero, zero, jnp.ones((), x.dtype), 0))[0]


def _thresholded(penalty: Any, x: Any, atoms: Any, step: Any, n_nonzero: int | None) -> Float[Array, " k"]:
    """Gradient steps, each followed by the penalty's own threshold or by keeping the largest few."""
    kept = min(n_nonzero or atoms.shape[0], atoms.shape[0])

    def threshold(u: Any) -> Any:
        if penalty is not None:
            return penalty.prox(u, step)
        least = jax.lax.top_k(jnp.abs(u), kept)[0][-1]
        return jnp.where(jnp.abs(u) >= least, u, jnp.zeros_like(u))

    def body(_: Any, z: Any) -> Any:
        return threshold(z + step * ((x - z @ atoms) @ atoms.T))

    return jax.lax.fori_loop(0, MOST_STEPS // 10, body, jnp.zeros(atoms.shape[0], x.dtype))
