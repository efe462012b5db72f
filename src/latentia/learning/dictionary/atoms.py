"""What the updates of a dictionary share: sums over codes, constraints on atoms, and atoms that must be replaced.

Given codes Z of signals X, the least-squares part is a quadratic function of the dictionary D (rows are atoms),

    ½‖X − ZD‖² = ½ tr(DᵀAD) − tr(DᵀB) + ½‖X‖²,      A = ZᵀZ,  B = ZᵀX,

so that an update needs only A and B of the signals. Its minimum over one atom with the others held,

    d_j ← Π(d_j + (b_j − a_j D)/A_jj),

is exact for the ball ‖d‖ ≤ 1 and for the sphere ‖d‖ = 1, with or without d ≥ 0 (Mairal, Bach, Ponce and Sapiro,
2010, algorithm 2): a pass over the atoms never raises the objective.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np

Constraint = Literal["ball", "sphere"]

#: Atoms that are improved together, between two matrix products.
BLOCK = 32
#: An atom whose share of the codes' energy is less than this part of the average is not in use.
UNUSED = 1e-6
#: Atoms whose directions agree to this cosine are the same.
SAME = 0.999


class Statistics(NamedTuple):
    """A = Σ w zᵀz and B = Σ w zᵀx over a batch, and Σ w ½‖x‖²."""

    second: np.ndarray
    cross: np.ndarray
    energy: float

    def error(self, D: np.ndarray) -> float:
        """Σ w ½‖x − zD‖² for a dictionary, from the statistics alone."""
        quadratic = 0.5 * float(np.vdot(self.second @ D, D)) - float(np.vdot(self.cross, D))
        return max(self.energy + quadratic, 0.0)


def statistics(X: np.ndarray, codes: Any, weights: np.ndarray | None) -> Statistics:
    """The sums over a batch, in its order: the same bits for any number of threads."""
    from latentia.learning.dictionary import _kernels

    n_atoms = codes.shape[1]
    second, cross = np.zeros((n_atoms, n_atoms), X.dtype), np.zeros((n_atoms, X.shape[1]), X.dtype)
    shares = np.empty(0, X.dtype) if weights is None else np.asarray(weights, X.dtype)
    X = np.ascontiguousarray(X)
    starts, atoms = codes.indptr.astype(np.int64), codes.indices.astype(np.int32, copy=False)
    _kernels.add_statistics(starts, atoms, codes.data, X, shares, second, cross)
    squares = np.einsum("ij,ij->i", X, X, dtype=np.float64)
    return Statistics(second, cross, 0.5 * float(squares.sum() if weights is None else squares @ weights))


def pass_over_atoms(
    D: np.ndarray, second: np.ndarray, cross: np.ndarray, *, constraint: Constraint, nonnegative: bool
) -> None:
    """One pass of block coordinate descent over all atoms; ``D`` changes in place."""
    from latentia.learning.dictionary import _kernels

    least = UNUSED * float(np.mean(np.diagonal(second)))
    for first in range(0, D.shape[0], BLOCK):
        block = slice(first, min(first + BLOCK, D.shape[0]))
        slack = cross[block] - second[block] @ D
        _kernels.improve_block(D, second, slack, first, least, constraint == "sphere", nonnegative)


def project(D: Any, *, constraint: Constraint, nonnegative: bool, xp: Any = np) -> Any:
    """The nearest dictionary whose atoms are allowed; an atom without a direction on the sphere stays zero."""
    D = xp.maximum(D, 0) if nonnegative else D
    norms = xp.sqrt(xp.sum(D * D, axis=1, keepdims=True))
    if constraint == "ball":
        return D / xp.maximum(norms, xp.ones_like(norms))
    return D / xp.where(norms > 0, norms, xp.ones_like(norms))


def idle(D: np.ndarray, usage: np.ndarray) -> np.ndarray:
    """The numbers of the atoms to replace: unused ones, and of two that are the same the one that is used less."""
    dead = ~(usage > UNUSED * usage.mean())
    directions = _directions(D)
    close = np.abs(directions @ directions.T) > SAME
    rank = np.empty(len(usage), np.int64)
    rank[np.lexsort((np.arange(len(usage)), -usage))] = np.arange(len(usage))
    doubled = (close & (rank[None, :] < rank[:, None]) & ~dead[None, :]).any(axis=1)
    return np.flatnonzero(dead | doubled | ~np.any(D != 0, axis=1))


def replace(D: np.ndarray, wanted: np.ndarray, X: np.ndarray, codes: Any, *, nonnegative: bool) -> np.ndarray:
    """Put the signals that are represented worst in the place of some atoms; returns which were replaced.

    Signals that point where another atom points already are passed over, so fewer may be replaced than wanted.
    """
    if not wanted.size:
        return wanted
    residual = X - codes @ D
    worst = np.argsort(-np.einsum("ij,ij->i", residual, residual), kind="stable")[: 4 * wanted.size + 16]
    chosen = np.maximum(X[worst], 0) if nonnegative else X[worst]
    chosen = _directions(chosen[np.any(chosen != 0, axis=1)])
    kept = _directions(np.delete(D, wanted, axis=0))
    chosen = chosen[~(np.abs(chosen @ kept.T) > SAME).any(axis=1)]
    alike = np.abs(chosen @ chosen.T) > SAME
    new: list[int] = []
    for n in range(len(chosen)):
        if len(new) < wanted.size and not alike[n, new].any():
            new.append(n)
    D[wanted[: len(new)]] = chosen[new]
    return wanted[: len(new)]


def _directions(rows: np.ndarray) -> np.ndarray:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1)
