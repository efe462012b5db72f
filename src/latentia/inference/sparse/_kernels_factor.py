"""A Cholesky factor of the Gram matrix of the atoms in use, grown and shrunk one atom at a time.

With S the atoms in use, G_SS = UᵀU and y = U⁻ᵀb; the solution of G_SS t = b is then one back substitution. Adding
an atom costs one forward substitution, and removing one a row of plane rotations, with y carried along as one more
column: O(|S|²) each. Rows of U are contiguous, which is what both need.
"""

from __future__ import annotations

import numpy as np

from latentia.inference.sparse.caching import njit

CONTRACT = {"contract", "nsz"}
REORDER = {"contract", "nsz", "reassoc"}

#: A new atom whose squared distance from the span of the others is below this counts as lying in it.
DEPENDENT = 1e-12


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def add(factor, inverse, y, w, n, b):
    """Append an atom; w holds its products with the n atoms in use, and its own norm is 1. False if dependent.

    Args:
        factor: U, of which the leading (n, n) is in use.
        inverse: one over the diagonal of U.
        y: U⁻ᵀb.
        w: products with the atoms in use on entry; overwritten.
        n: atoms in use.
        b: entry of b for the new atom.
    """
    pivot = 1.0
    for k in range(n):
        t = w[k] * inverse[k]
        w[k] = t
        pivot -= t * t
        b -= t * y[k]
        for i in range(k + 1, n):
            w[i] -= t * factor[k, i]
    if not pivot > DEPENDENT:
        return False
    for k in range(n):
        factor[k, n] = w[k]
    root = np.sqrt(pivot)
    factor[n, n] = root
    inverse[n] = 1.0 / root
    y[n] = b * inverse[n]
    return True


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def remove(factor, inverse, y, w, n, at):
    """Take out the atom at a position; the leading (n − 1, n − 1) is in use afterwards."""
    for k in range(at + 1, n):
        w[k] = factor[at, k]
    carried = y[at]
    for k in range(at):
        for j in range(at, n - 1):
            factor[k, j] = factor[k, j + 1]
    for k in range(at + 1, n):
        diagonal, x = factor[k, k], w[k]
        root = np.sqrt(diagonal * diagonal + x * x)
        inverse[k - 1] = 1.0 / root
        cosine, sine = diagonal * inverse[k - 1], x * inverse[k - 1]
        factor[k - 1, k - 1] = root
        for j in range(k + 1, n):
            below, above = factor[k, j], w[j]
            factor[k - 1, j - 1] = cosine * below + sine * above
            w[j] = cosine * above - sine * below
        below = y[k]
        y[k - 1] = cosine * below + sine * carried
        carried = cosine * carried - sine * below


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=REORDER)
def solve(factor, inverse, y, n, t):
    """t = U⁻¹y, which solves G_SS t = b."""
    for k in range(n - 1, -1, -1):
        total, row = y[k], factor[k]
        for i in range(k + 1, n):
            total -= row[i] * t[i]
        t[k] = total * inverse[k]
