"""A step of dictionary learning: codes of the batch with the atoms held, then atoms with the codes held.

Both halves lower ½‖x − zD‖² + penalty(z) (alternating minimisation); how the atoms move is what the updates differ
in. Codes are found on the host, so the learners are host-side.
"""

from __future__ import annotations

import abc
import warnings
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, Metrics, Need
from latentia.core.capabilities import ProxSplit
from latentia.core.space import Domain
from latentia.inference.proximal_split import SparseInference
from latentia.learning.dictionary.atoms import Statistics, idle, replace, statistics
from latentia.ops.threads import one_blas_thread

#: Signals for every atom before the atoms are judged by how much they are used.
TRIAL = 20


class Usage(eqx.Module):
    """Σ w z_j² of every atom since the atoms were last judged, over Σ w signals; and atoms replaced so far."""

    recent: Float[Array, " k"]
    seen: Float[Array, ""]
    replaced: Int[Array, ""]

    @classmethod
    def none(cls, atoms: Any) -> Usage:
        """Nothing is known of these atoms."""
        zeros = jnp.zeros(atoms.shape[0], atoms.dtype)
        return cls(zeros, jnp.zeros((), atoms.dtype), jnp.zeros((), jnp.int32))

    def judged(self, n: float, sums: Statistics) -> np.ndarray | None:
        """The use of every atom, if there are enough signals to estimate it, a batch of n included; else None.

        A signal of weight two is two signals.

        Works in place, as host-side learners may.
        """
        recent: Any = self.recent
        seen: Any = self.seen
        recent += np.diagonal(sums.second)
        seen += n
        if seen + 0.5 < TRIAL * len(recent):  # weights add up to whole numbers but for rounding
            return None
        used = recent.copy()
        recent[:], seen[...] = 0, 0
        return used


class DictionaryLearner(AbstractLearner):
    """Codes, then atoms. Subclasses say how the atoms move, in :meth:`update`; their states have a ``usage``.

    Args:
        inference: how codes are found.
        constraint: "ball" (‖d‖ ≤ 1) or "sphere" (‖d‖ = 1).
        nonnegative: whether atoms must not have negative entries.
        reseed: whether unused and doubled atoms are replaced by signals that are represented badly.
    """

    inference: eqx.AbstractVar[SparseInference]
    constraint: eqx.AbstractVar[Any]
    nonnegative: eqx.AbstractVar[bool]
    reseed: eqx.AbstractVar[bool]

    @property
    def requires(self) -> tuple[Need, ...]:
        """``ProxSplit``."""
        return (ProxSplit,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Signals are numbers."""
        return ("real", "nonnegative")

    @property
    def host_side(self) -> bool:
        """Codes are found on the host."""
        return True

    @property
    def period(self) -> int:
        """Every step reports: the mean over an epoch is then one over all rows, and two epochs can be compared."""
        return 1

    @abc.abstractmethod
    def update(self, D: np.ndarray, X: np.ndarray, codes: Any, weights: Any, sums: Statistics, state: Any) -> Any:
        """The state after D has been moved, in place, with the codes held; ``sums`` are those of the batch."""

    @abc.abstractmethod
    def forget_atoms(self, state: Any, atoms: np.ndarray, D: np.ndarray) -> None:
        """Forget, in place, what is known of atoms that have been replaced by those of D."""

    @abc.abstractmethod
    def find_codes(self, model: Any, x: np.ndarray, state: Any) -> Any:
        """The :class:`~latentia.inference.sparse.Codes` of a batch."""

    def step(
        self, model: Any, x: Any, weights: Any, state: Any, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, Any, Metrics]:
        """Codes, atoms, and what both have come to: the objective is that of the codes at the atoms they found."""
        del key
        with one_blas_thread():
            return self._step(model, x, weights, state, since)

    def _step(self, model: Any, x: Any, weights: Any, state: Any, since: int) -> tuple[Any, Any, Metrics]:
        D, X, penalty = model.dictionary, model.signal(x), model.penalty
        taught = weights is None or bool(np.any(weights > 0))
        with warnings.catch_warnings():  # reported as a metric; a batch that is not quite solved does no harm
            warnings.simplefilter("ignore")
            codes = self.find_codes(model, x, state) if taught else self.inference.encode(model, x)
        sums = statistics(X, codes.values, weights)
        metrics: Any = measure(D, codes, sums, penalty, weights) if since else {}
        total: Any = state.usage.replaced
        if taught:  # a batch without any weight leaves everything as it was
            state = self.update(D, X, codes.values, weights, sums, state)
            mass = X.shape[0] if weights is None else float(np.sum(weights, dtype=np.float64))
            used = state.usage.judged(mass, sums) if self.reseed else None
            if used is not None:
                rows = slice(None) if weights is None else np.flatnonzero(weights > 0)
                replaced = replace(D, idle(D, used), X[rows], codes.values[rows], nonnegative=self.nonnegative)
                self.forget_atoms(state, replaced, D)
                total += len(replaced)
        metrics["reseeded"] = np.float64(total)
        return model, state, metrics

    def halve_step(self, state: Any) -> None:
        """There is no step to halve."""

    def final(self, model: Any, state: Any) -> Any:
        """The model itself."""
        del state
        return model


def measure(D: np.ndarray, codes: Any, sums: Statistics, penalty: Any, weights: Any) -> dict[str, np.float64]:
    """Means Σ w m / n over a batch: objective, squared error, atoms in use; and the worst certificate.

    Weights average to one over all rows: the mean over an epoch's batches is the weighted mean over its rows.
    """
    values = codes.values
    n = values.shape[0]
    shares = np.full(n, 1 / n) if weights is None else np.asarray(weights, np.float64) / n
    error = sums.error(D) / n
    paid = 0.0 if penalty is None else float(shares @ penalties(values, penalty))
    found: dict[str, Any] = {
        "objective": error + paid,
        "squared_error": 2 * error,
        "nonzeros": float(shares @ np.diff(values.indptr)),
    }
    solved = np.isfinite(codes.gaps)
    if solved.any():
        found["gap"] = float(codes.gaps[solved & (shares > 0)].max(initial=0.0))
    found["unsolved"] = float(shares @ ~codes.converged)
    return {name: np.float64(value) for name, value in found.items()}


def penalties(codes: Any, penalty: Any) -> np.ndarray:
    """penalty(z) of every signal, without a dense matrix of all codes where the penalty is separable."""
    from latentia.inference.sparse.terms import terms_of

    terms = terms_of(penalty, codes.shape[1])
    if terms.kind == "group":
        return terms.value(codes.toarray())
    size = np.abs(codes.data, dtype=np.float64)
    strength = terms.thresholds[codes.indices]
    if terms.kind == "l0":
        entries = strength * (size > 0)
    else:
        entries = strength * size**terms.power + 0.5 * terms.ridges[codes.indices] * size**2
    return np.bincount(np.repeat(np.arange(codes.shape[0]), np.diff(codes.indptr)), entries, codes.shape[0])
