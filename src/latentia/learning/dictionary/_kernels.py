"""Compiled loops of dictionary learning: sums over sparse codes, and one pass over a block of atoms."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def add_statistics(
    starts: Any, atoms: Any, values: Any, X: Any, weights: Any, second: Any, cross: Any
) -> None:  # pragma: no cover - compiled
    """second += Σ w zᵀz and cross += Σ w zᵀx over the signals, for codes in CSR form; no weights: all one."""
    d = X.shape[1]
    for n in range(X.shape[0]):
        for a in range(starts[n], starts[n + 1]):
            i = atoms[a]
            v = values[a]
            if weights.size:
                v *= weights[n]
            for b in range(starts[n], starts[n + 1]):
                second[i, atoms[b]] += v * values[b]
            for f in range(d):
                cross[i, f] += v * X[n, f]


@njit(cache=True, nogil=True)
def improve_block(
    D: Any, second: Any, slack: Any, first: int, least: float, sphere: bool, nonnegative: bool
) -> None:  # pragma: no cover - compiled
    """Each atom of a block in turn at its best with the others held; D and slack change in place.

    ``slack`` is B − AD for the atoms from ``first`` on. Atoms that the codes do not use (A_jj ≤ least) stay.
    """
    m, d = slack.shape
    u = np.empty(d, D.dtype)
    for r in range(m):
        j = first + r
        curvature = second[j, j]
        if not curvature > least:
            continue
        squares = 0.0
        for f in range(d):
            value = D[j, f] + slack[r, f] / curvature
            if nonnegative and value < 0:
                value = value * 0
            u[f] = value
            squares += float(value) * float(value)
        norm = math.sqrt(squares)
        if not norm > 1e-7:  # an atom of zero norm is none: keep the old one
            continue
        factor = D.dtype.type(1.0 / norm if sphere or norm > 1 else 1.0)
        for f in range(d):
            new = u[f] * factor
            u[f] = new - D[j, f]
            D[j, f] = new
        for s in range(r + 1, m):
            shared = second[first + s, j]
            if shared != 0:
                for f in range(d):
                    slack[s, f] -= shared * u[f]
