"""Compiled orthogonal matching pursuit and orthogonal least squares, many signals one after the other.

Both take one atom at a time and project the signal onto all that are taken. With q₁, q₂ … the taken atoms made
orthonormal in their order (atoms have norm 1), pᵢ = qᵢDᵀ their products with all atoms, and g = rDᵀ,

    p = (G_j − Σᵢ pᵢ[j] pᵢ) / √ρ_j,   y = g_j / √ρ_j,   g ← g − y p,   ‖r‖² ← ‖r‖² − y²,   ρ ← ρ − p²,

where ρ_j = 1 − Σᵢ pᵢ[j]² is the squared distance of atom j from the span of those taken. OMP takes the atom with
the largest |g_j|; OLS the one that lowers the error most, the largest g_j²/ρ_j. No system is solved before the last
step, when one triangular one gives the coefficients: pᵢ[j] at the taken atoms is its matrix.

References:
    R. Rubinstein, M. Zibulevsky and M. Elad, "Efficient implementation of the K-SVD algorithm using batch
    orthogonal matching pursuit", Technion CS-2008-08 (2008).
    S. Chen, S. A. Billings and W. Luo, "Orthogonal least squares methods and their application to non-linear system
    identification", International Journal of Control 50 (1989).
"""

from __future__ import annotations

import numpy as np

from latentia.inference.sparse._kernels_bits import ranked_double
from latentia.inference.sparse._kernels_factor import DEPENDENT
from latentia.inference.sparse._kernels_shared import sort_support
from latentia.inference.sparse.caching import njit

CONTRACT = {"contract", "nsz"}

#: A residual below this part of ‖x‖² is nothing but rounding.
NOTHING = 1e-14


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CONTRACT, forceinline=True)
def _four(p, taken, i, w0, w1, w2, w3):
    r0, r1, r2, r3 = taken[i], taken[i + 1], taken[i + 2], taken[i + 3]
    for k in range(p.shape[0]):
        p[k] = p[k] - w0 * r0[k] - w1 * r1[k] - w2 * r2[k] - w3 * r3[k]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CONTRACT, forceinline=True)
def _one(p, row, w):
    for k in range(p.shape[0]):
        p[k] = p[k] - w * row[k]


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CONTRACT, forceinline=True)
def first_omp(g, mask):
    """The rank of the atom with the largest |g|; the first one of several."""
    best, last = np.int64(0), g.shape[0] - 1
    for k in range(g.shape[0]):
        best = max(best, ranked_double(g[k], last - k, mask))
    return best


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CONTRACT, forceinline=True)
def next_omp(g, p, scale, y, mask):
    """p ← scale · p, g ← g − y p, and the rank of the largest |g|."""
    best, last = np.int64(0), g.shape[0] - 1
    for k in range(g.shape[0]):
        p[k] = scale * p[k]
        g[k] = g[k] - y * p[k]
        best = max(best, ranked_double(g[k], last - k, mask))
    return best


@njit(cache=True, nogil=True, error_model="numpy", fastmath=CONTRACT, forceinline=True)
def next_ols(g, p, rho, scale, y, mask):
    """The same with ρ ← ρ − p², and the rank of the largest g²/ρ."""
    best, last = np.int64(0), g.shape[0] - 1
    for k in range(g.shape[0]):
        p[k] = scale * p[k]
        g[k] = g[k] - y * p[k]
        rho[k] = rho[k] - p[k] * p[k]
        gain = g[k] * g[k] / rho[k] if rho[k] > DEPENDENT else 0.0
        best = max(best, ranked_double(gain, last - k, mask))
    return best


@njit(cache=True, nogil=True, error_model="numpy")
def _pursue_one(g, square, gram, most, error, ols, mask, taken, rho, y, index, value):
    """Pursue one signal; returns (atoms taken, ‖r‖²). g is overwritten."""
    last = g.shape[0] - 1
    residual, n = square, 0
    best = first_omp(g, mask)
    if ols:
        for k in range(rho.shape[0]):
            rho[k] = 1.0
    while n < most and residual > error and residual > NOTHING * square:
        j = last - (best & ~mask)
        pivot = 1.0
        p = taken[n]
        for k in range(p.shape[0]):
            p[k] = gram[j, k]
        i = 0
        while i + 4 <= n:
            w0, w1, w2, w3 = taken[i, j], taken[i + 1, j], taken[i + 2, j], taken[i + 3, j]
            pivot -= w0 * w0 + w1 * w1 + w2 * w2 + w3 * w3
            _four(p, taken, i, w0, w1, w2, w3)
            i += 4
        while i < n:
            w = taken[i, j]
            pivot -= w * w
            _one(p, taken[i], w)
            i += 1
        if not pivot > DEPENDENT:
            break
        scale = 1.0 / np.sqrt(pivot)
        y[n] = g[j] * scale
        if y[n] * y[n] <= NOTHING * NOTHING * square:
            break
        index[n] = j
        residual -= y[n] * y[n]
        best = next_ols(g, p, rho, scale, y[n], mask) if ols else next_omp(g, p, scale, y[n], mask)
        n += 1
    for i in range(n - 1, -1, -1):
        total = y[i]
        for k in range(i + 1, n):
            total -= taken[i, index[k]] * value[k]
        value[i] = total / taken[i, index[i]]
    return n, max(residual, 0.0)


@njit(cache=True, nogil=True, error_model="numpy")
def pursue(correlations, squares, gram, norms, most, errors, by_error, ols, mask, results):
    """Codes of some signals.

    Args:
        correlations: of every signal with every atom of norm 1; overwritten.
        squares: ‖x‖².
        gram: products of the atoms of norm 1.
        norms: of the atoms as given.
        most: atoms at most.
        errors: ‖r‖² at which each signal has enough.
        by_error: whether only a signal that reached its error counts as solved.
        ols: orthogonal least squares in place of matching pursuit.
        mask: the bits of a float64 that do not carry the number of an atom.
        results: (index, value, counts, gaps, n_iter, converged).
    """
    index, value, counts, gaps, n_iter, converged = results
    K = gram.shape[0]
    taken, rho, y = np.empty((most, K)), np.empty(K if ols else 0), np.empty(most)
    for i in range(squares.shape[0]):
        n, residual = _pursue_one(
            correlations[i], squares[i], gram, most, errors[i], ols, mask, taken, rho, y, index[i], value[i]
        )
        for k in range(n):
            value[i, k] /= norms[index[i, k]]
        sort_support(index[i], value[i], n)
        counts[i], n_iter[i], gaps[i] = n, n, np.nan
        converged[i] = not by_error or residual <= max(errors[i], NOTHING * squares[i])
