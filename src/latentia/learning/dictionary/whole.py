"""Updates from the whole batch, without state: gradient steps, optimal directions and K-SVD.

Gradient (Olshausen and Field, 1996): one step against the slope of the least-squares part, then back to the allowed
atoms,

    D ← Π(D + η (B − AD)),      A = ZᵀZ,  B = ZᵀX,

with η a multiple of 1/λ_max(A); up to 1 no step raises the objective for the ball, and on the sphere hardly ever.

Optimal directions (Engan, Aase and Husøy, 1999): the least-squares dictionary D = A⁻¹B at once. Where it leaves the
allowed set, the constrained minimum is found from there by passes of block coordinate descent, so that no step
raises the objective.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import scipy.linalg
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.inference.proximal_split import SparseInference
from latentia.learning.dictionary.atoms import Constraint, Statistics, pass_over_atoms, project
from latentia.learning.dictionary.base import DictionaryLearner, Usage

#: Codes of so many numbers are kept to start the next step from; more would take too much memory.
KEPT_CODES = 1 << 27
#: Most passes over the atoms that lead from the least-squares dictionary to the allowed one, and what ends them.
MOST_PASSES, SETTLED = 50, 1e-5


class WholeState(eqx.Module):
    """The codes so far (where they are kept), from which the next ones start; and how much atoms are used."""

    codes: Float[Array, "n k"] | None
    usage: Usage


class Whole(DictionaryLearner):
    """An update whose only state is the codes of a batch of all rows."""

    warm: eqx.AbstractVar[bool]

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> WholeState:
        """No codes yet."""
        del key
        atoms, shape = model.dictionary, (x.shape[0], model.dictionary.shape[0])
        kept = self.warm and math.prod(shape) <= KEPT_CODES
        return WholeState(jnp.zeros(shape, atoms.dtype) if kept else None, Usage.none(atoms))

    def find_codes(self, model: Any, x: np.ndarray, state: WholeState) -> Any:
        """From those of the last step, where they are of the same rows."""
        start: Any = state.codes if self.warm else None
        if start is None or start.shape[0] != x.shape[0]:
            return self.inference.encode(model, x)
        codes = self.inference.encode(model, x, init=start if start.any() else None)
        start[...] = codes.toarray()
        return codes

    def forget_atoms(self, state: WholeState, atoms: np.ndarray, D: np.ndarray) -> None:
        """Codes of atoms that are no more."""
        del D
        if state.codes is not None:
            codes: Any = state.codes
            codes[:, atoms] = 0


class Gradient(Whole):
    """A gradient step and back to the allowed atoms.

    Args:
        inference: how codes are found.
        constraint: "ball" (‖d‖ ≤ 1) or "sphere" (‖d‖ = 1).
        nonnegative: whether atoms must not have negative entries.
        reseed: whether unused and doubled atoms are replaced by signals that are represented badly.
        warm: whether codes start from those of the step before, for batches of all rows.
        rate: η as a multiple of 1/λ_max(A).
    """

    inference: SparseInference
    constraint: Constraint = eqx.field(static=True, default="ball")
    nonnegative: bool = eqx.field(static=True, default=False)
    reseed: bool = eqx.field(static=True, default=True)
    warm: bool = eqx.field(static=True, default=False)
    rate: float = eqx.field(static=True, default=1.0)

    def update(
        self, D: np.ndarray, X: np.ndarray, codes: Any, weights: Any, sums: Statistics, state: WholeState
    ) -> WholeState:
        """One step."""
        del X, codes, weights
        steepest = _largest_eigenvalue(sums.second)
        if steepest > 0:
            moved = D + D.dtype.type(self.rate / steepest) * (sums.cross - sums.second @ D)
            allowed = project(moved, constraint=self.constraint, nonnegative=self.nonnegative)
            D[...] = np.where(np.any(allowed != 0, axis=1, keepdims=True), allowed, D)
        return state


class OptimalDirections(Whole):
    """The best allowed dictionary for the codes of the batch.

    Args:
        inference: how codes are found.
        constraint: "ball" (‖d‖ ≤ 1) or "sphere" (‖d‖ = 1).
        nonnegative: whether atoms must not have negative entries.
        reseed: whether unused and doubled atoms are replaced by signals that are represented badly.
        warm: whether codes start from those of the step before, for batches of all rows.
    """

    inference: SparseInference
    constraint: Constraint = eqx.field(static=True, default="ball")
    nonnegative: bool = eqx.field(static=True, default=False)
    reseed: bool = eqx.field(static=True, default=True)
    warm: bool = eqx.field(static=True, default=False)

    def update(
        self, D: np.ndarray, X: np.ndarray, codes: Any, weights: Any, sums: Statistics, state: WholeState
    ) -> WholeState:
        """Least squares, then passes over the atoms until the error converges."""
        del X, codes, weights
        before = sums.error(D)
        best = project(_least_squares(sums, D), constraint=self.constraint, nonnegative=self.nonnegative)
        if sums.error(best) < before and np.any(best != 0, axis=1).all():
            D[...] = best
        error = sums.error(D)
        for _ in range(MOST_PASSES):
            pass_over_atoms(D, sums.second, sums.cross, constraint=self.constraint, nonnegative=self.nonnegative)
            last, error = error, sums.error(D)
            if last - error <= SETTLED * sums.energy:
                break
        return state


class KSVD(Whole):
    """Every atom in turn together with its coefficients: :mod:`latentia.learning.dictionary.ksvd`.

    Args:
        inference: how codes are found.
        constraint: both constraints mean ‖d‖ = 1 here.
        nonnegative: whether atoms must not have negative entries.
        reseed: whether unused and doubled atoms are replaced by signals that are represented badly.
        warm: whether codes start from those of the step before, for batches of all rows.
    """

    inference: SparseInference
    constraint: Constraint = eqx.field(static=True, default="sphere")
    nonnegative: bool = eqx.field(static=True, default=False)
    reseed: bool = eqx.field(static=True, default=True)
    warm: bool = eqx.field(static=True, default=False)
    nonnegative_codes: bool = eqx.field(static=True, default=False)

    def update(
        self, D: np.ndarray, X: np.ndarray, codes: Any, weights: Any, sums: Statistics, state: WholeState
    ) -> WholeState:
        """One pass over the atoms."""
        del sums
        from latentia.learning.dictionary.ksvd import ksvd_update

        D[...], _ = ksvd_update(
            X,
            codes,
            D,
            weights=weights,
            nonnegative_codes=self.nonnegative_codes,
            nonnegative_dictionary=self.nonnegative,
            replace=False,  # done alike for all updates
            n_threads=self.inference.n_threads,
        )
        return state


def _least_squares(sums: Statistics, D: np.ndarray) -> np.ndarray:
    """A⁻¹B over the atoms in use; the others stay as they are."""
    used = np.diagonal(sums.second) > 0
    second = sums.second[np.ix_(used, used)].astype(np.float64)
    ridge = 1e-9 * np.trace(second) / max(len(second), 1)
    found = D.copy()
    if used.any():
        solve = scipy.linalg.cho_factor(second + ridge * np.eye(len(second)))
        found[used] = scipy.linalg.cho_solve(solve, sums.cross[used].astype(np.float64))
    return found


def _largest_eigenvalue(matrix: np.ndarray) -> float:
    top = len(matrix) - 1
    return float(scipy.linalg.eigh(matrix.astype(np.float64), eigvals_only=True, subset_by_index=[top, top])[0])
