"""Compiled orthogonal matching pursuit on signals of which some values are missing.

``places`` are the numbers of the known values of a signal, ``level`` says to which channel a value belongs, and
``sums`` are those of the atoms over the known values of each channel: what projects the levels out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latentia.inference.sparse.caching import njit

# Sums may be reordered to use vector instructions; NaN is still NaN. A loop with a sum stores nothing: where arrays
# lie a few bytes apart the compiler takes a second, scalar version of a loop that stores, and the sum would have
# other last bits whenever memory happens to be laid out so.
_FAST = {"reassoc", "contract", "nsz", "arcp"}
#: An atom of which less than this share of its square is seen, or left by the chosen ones, adds nothing.
_DEPENDENT = 1e-4


@njit(cache=True, nogil=True, fastmath=_FAST)
def _levels(x: Any, places: Any, level: Any, means: Any, members: Any, left: Any) -> Any:
    """Fill in means and members of the channels and what is left of the values; returns its square."""
    total = 0.0
    for p in places:
        total += x[p]
    for p in places:
        means[level[p]] += x[p]
        members[level[p]] += 1
    for c in range(means.size):  # a channel of which nothing is known takes the level of the others
        means[c] = means[c] / members[c] if members[c] > 0 else total / places.size
    for i in range(places.size):
        left[i] = x[places[i]] - means[level[places[i]]]
    return _product(left, left)


@njit(cache=True, nogil=True, fastmath=_FAST)
def _product(a: Any, b: Any) -> Any:
    """aᵀb, summed in double precision."""
    total = 0.0
    for i in range(a.size):
        total += a[i] * b[i]
    return total


@njit(cache=True, nogil=True, fastmath=_FAST)
def _seen(columns: Any, places: Any, level: Any, members: Any, sums: Any, squares: Any) -> None:
    """Fill in sums of the atoms, and the squares of what is seen of them once the levels are projected out."""
    for p in places:
        row, own = columns[p], sums[level[p]]
        for k in range(row.size):
            squares[k] += row[k] * row[k]
            own[k] += row[k]
    for c in range(members.size):
        if members[c] > 0:
            for k in range(squares.size):
                squares[k] -= sums[c, k] * sums[c, k] / members[c]


@njit(cache=True, nogil=True, fastmath=_FAST)
def _best(columns: Any, places: Any, left: Any, squares: Any, products: Any) -> Any:
    """(number of the atom that explains most of what is left, how much)."""
    products[:] = 0
    for i in range(places.size):
        row, r = columns[places[i]], left[i]
        for k in range(row.size):
            products[k] += r * row[k]
    at, most = -1, 0.0
    for k in range(squares.size):
        if squares[k] > _DEPENDENT:  # atoms have length one: hardly any of this one is seen otherwise
            gain = products[k] * products[k] / squares[k]
            if gain > most:
                at, most = k, gain
    return at, most


@njit(cache=True, nogil=True, fastmath=_FAST)
def _join(new: Any, basis: Any, triangle: Any, n: Any) -> Any:
    """Make a new direction orthogonal to the n directions of the basis, in place; returns its length."""
    for j in range(n):
        share = new[0] * 0
        for i in range(new.size):
            share += basis[j, i] * new[i]
        triangle[j, n] = share
        for i in range(new.size):
            new[i] -= share * basis[j, i]
    return np.sqrt(_product(new, new))


@njit(cache=True, nogil=True, fastmath=_FAST)
def _pursue(x: Any, known: Any, columns: Any, level: Any, n_levels: Any, most: Any, error: Any, out: Any) -> Any:
    """Fill ``out`` with the whole signal, levels and chosen atoms fitted to the known values; returns their "
    "number."""
    places, n_atoms = np.flatnonzero(known), columns.shape[1]
    m = places.size
    means, members, left = np.zeros(n_levels, x.dtype), np.zeros(n_levels, x.dtype), np.empty(m, x.dtype)
    square = _levels(x, places, level, means, members, left)
    sums, squares = np.zeros((n_levels, n_atoms), x.dtype), np.zeros(n_atoms, x.dtype)
    _seen(columns, places, level, members, sums, squares)
    most = min(most, max(1, m // 4))
    basis, triangle = np.empty((most, m), x.dtype), np.zeros((most, most), x.dtype)
    products, chosen = np.empty(n_atoms, x.dtype), np.empty(most, np.int64)
    z, n = np.empty(most, x.dtype), 0
    while n < most and square > error * m:
        at, gain = _best(columns, places, left, squares, products)
        if at < 0 or gain <= 1e-6 * square:
            break
        new, own = basis[n], squares[at]
        for i in range(m):
            c = level[places[i]]
            new[i] = columns[places[i], at] - sums[c, at] / members[c]
        size = _join(new, basis, triangle, n)
        squares[at] = 0  # never twice
        if size * size <= _DEPENDENT * own:
            continue
        for i in range(m):
            new[i] /= size
        triangle[n, n], chosen[n], z[n] = size, at, _product(new, left)
        for i in range(m):
            left[i] -= z[n] * new[i]
        square = _product(left, left)
        n += 1
    _assemble(columns, level, means, members, sums, triangle, chosen[:n], z, out)
    return n


@njit(cache=True, nogil=True, fastmath=_FAST)
def _assemble(
    columns: Any, level: Any, means: Any, members: Any, sums: Any, triangle: Any, chosen: Any, z: Any, out: Any
) -> None:
    """Coefficients of the atoms from those of the basis, in place, then the whole signal."""
    n = chosen.size
    for j in range(n - 1, -1, -1):
        z[j] = (z[j] - _product(triangle[j, j + 1 : n], z[j + 1 : n])) / triangle[j, j]
    for j in range(n):
        for c in range(means.size):
            if members[c] > 0:
                means[c] -= z[j] * sums[c, chosen[j]] / members[c]
    for p in range(out.size):
        out[p] = means[level[p]]
    for j in range(n):
        for p in range(out.size):
            out[p] += z[j] * columns[p, chosen[j]]


@njit(cache=True, nogil=True)
def complete(
    x: Any, known: Any, columns: Any, level: Any, n_levels: Any, most: Any, error: Any, out: Any, counts: Any
) -> None:
    """Whole signals for a block of signals with gaps."""
    for i in range(x.shape[0]):
        counts[i] = _pursue(x[i], known[i], columns, level, n_levels, most, error, out[i])
