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
from latentia.core.model import ProxSplit
from latentia.core.space import Domain
from latentia.inference.proximal_split import SparseInference
from latentia.learning.dictionary.atoms import Statistics, idle, replace, statistics
from latentia.ops.threads import one_blas_thread

#: Signals for every atom before the atoms are judged by how much they are used.
TRIAL = 20


class Usage(eqx.Module):
    """Σ z_j² of every atom since the atoms were last judged, over how many signals; and atoms replaced so far."""

    recent: Float[Array, " k"]
    seen: Int[Array, ""]
    replaced: Int[Array, ""]

    @classmethod
    def none(cls, atoms: Any) -> Usage:
        """Nothing is known of these atoms."""
        return cls(jnp.zeros(atoms.shape[0], atoms.dtype), jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    def judged(self, n: int, sums: Statistics) -> np.ndarray | None:
        """How much every atom is used, if there are enough signals to tell, a batch of n included; else None.

        Works in place, as host-side learners may.
        """
        recent: Any = self.recent
        seen: Any = self.seen
        recent += np.diagonal(sums.second)
        seen += n
        if seen < TRIAL * len(recent):
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
        with warnings.catch_warnings():  # reported as a metric; a batch that is not quite solved does no harm
            warnings.simplefilter("ignore")
            codes = self.find_codes(model, x, state)
        sums = statistics(X, codes.values, weights)
        metrics: Any = measure(D, codes, sums, penalty, weights) if since else {}
        state = self.update(D, X, codes.values, weights, sums, state)
        used = state.usage.judged(X.shape[0], sums) if self.reseed else None
        total: Any = state.usage.replaced
        if used is not None:
            replaced = replace(D, idle(D, used), X, codes.values, nonnegative=self.nonnegative)
            self.forget_atoms(state, replaced, D)
            total += len(replaced)
        metrics["reseeded"] = np.float64(total)
        return model, state, metrics

    def slower(self, state: Any) -> None:
        """There is no step to halve."""

    def final(self, model: Any, state: Any) -> Any:
        """The model itself."""
        del state
        return model


def measure(D: np.ndarray, codes: Any, sums: Statistics, penalty: Any, weights: Any) -> dict[str, np.float64]:
    """Means over a batch: objective, squared error, atoms in use, and the worst certificate."""
    values = codes.values
    n = values.shape[0]
    error = sums.error(D) / n
    paid = 0.0 if penalty is None else float(np.average(penalties(values, penalty), weights=weights))
    solved = codes.gaps[np.isfinite(codes.gaps)]
    found: dict[str, Any] = {"objective": error + paid, "squared_error": 2 * error, "nonzeros": values.nnz / n}
    if solved.size:
        found["gap"] = float(solved.max())
    found["unsolved"] = float(np.mean(~codes.converged))
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
