"""Compiled parts of the K-SVD update.

Atoms are improved one after the other, each on the errors that the last one left, by one thread: a pass costs
little beside the pursuit that finds the codes, and an atom is done before a second thread would have begun.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

#: Signals that are summed in the signals' precision before the sum joins the total in double precision.
CHUNK = 256
# Sums may be reordered to use vector instructions; NaN is still NaN. A loop with a sum stores nothing: where arrays
# lie a few bytes apart the compiler takes a second, scalar version of a loop that stores, and the sum would have
# other last bits whenever memory happens to be laid out so.
_FAST = {"reassoc", "contract", "nsz", "arcp"}


@njit(cache=True, nogil=True, fastmath=_FAST)
def residuals(first: Any, last: Any, starts: Any, atoms_of: Any, values: Any, atoms: Any, left: Any) -> None:
    """Subtract ZD from rows first to last of X in place, for codes in compressed rows."""
    for i in range(first, last):
        for p in range(starts[i], starts[i + 1]):
            z, k = values[p], atoms_of[p]
            for a in range(left.shape[1]):
                left[i, a] -= z * atoms[k, a]


@njit(cache=True, nogil=True)
def users(starts: Any, atoms_of: Any, n_atoms: Any) -> Any:
    """(starts, rows, places): the signals that use each atom, and where their coefficients are stored."""
    begins = np.zeros(n_atoms + 1, np.int64)
    for p in range(atoms_of.size):
        begins[atoms_of[p] + 1] += 1
    for k in range(n_atoms):
        begins[k + 1] += begins[k]
    free = begins[:-1].copy()
    rows, places = np.empty(atoms_of.size, np.int64), np.empty(atoms_of.size, np.int64)
    for i in range(starts.size - 1):
        for p in range(starts[i], starts[i + 1]):
            k = atoms_of[p]
            rows[free[k]], places[free[k]] = i, p
            free[k] += 1
    return begins, rows, places


@njit(cache=True, nogil=True, fastmath=_FAST)
def sweep(
    left: Any,
    values: Any,
    begins: Any,
    rows: Any,
    places: Any,
    atoms: Any,
    weights: Any,
    positive_codes: Any,
    positive_atoms: Any,
) -> None:
    """One power step for every atom in turn, in place.

    With R = E + g dᵀ the part of the signals that the other atoms leave over, d ← Rᵀg/‖Rᵀg‖ and then g ← Rd: each
    is the least-squares answer for the other, so that ‖R − g dᵀ‖ cannot rise. ``left`` is E.
    """
    n_atoms, d = atoms.shape
    old, new, part = np.empty(d, atoms.dtype), np.empty(d, atoms.dtype), np.empty(d, atoms.dtype)
    total, overlap = np.empty(d), np.empty(1, atoms.dtype)
    for k in range(n_atoms):
        first, last = begins[k], begins[k + 1]
        old[:] = atoms[k]
        total[:] = 0
        square = 0.0
        for chunk in range(first, last, CHUNK):
            part[:] = 0
            for p in range(chunk, min(last, chunk + CHUNK)):
                row, g = left[rows[p]], values[places[p]]
                share = weights[rows[p]] * g
                square += share * g
                for a in range(d):
                    part[a] += share * row[a]
            for a in range(d):
                total[a] += part[a]
        size = 0.0
        for a in range(d):
            total[a] += square * old[a]
            if positive_atoms and total[a] < 0:
                total[a] = 0
        for a in range(d):
            size += total[a] * total[a]
        if size <= 0:
            continue
        size = np.sqrt(size)
        turned = 0.0
        for a in range(d):
            new[a] = total[a] / size
        for a in range(d):
            turned += new[a] * old[a]
        atoms[k] = new
        overlap[0] = turned
        for p in range(first, last):
            row, g = left[rows[p]], values[places[p]]
            now = g * overlap[0]
            for a in range(d):
                now += row[a] * new[a]
            if positive_codes and now < 0:
                now = now * 0
            values[places[p]] = now
            for a in range(d):
                row[a] += g * old[a] - now * new[a]
