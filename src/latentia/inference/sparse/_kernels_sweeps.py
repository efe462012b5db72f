"""Certificates of separable convex problems, and plain coordinate sweeps for the signals that need them.

With r = x − zD and g = rDᵀ the dual point s·r, s as large as all |s gⱼ| ≤ aⱼ allow (up to its best value), gives

    gap = ½(1 − s)²‖r‖² + Σⱼ aⱼ|zⱼ| − s Σⱼ zⱼgⱼ,

in which nothing large cancels. A ridge bⱼ counts as further features: G + diag(b) in place of G. The gap that is
returned bounds the true one: errors of rounding in g are at most (d + |S| + 6) 2⁻⁵³ (‖x‖ + Σ|zⱼ|) for atoms of norm
1, and codes that are rounded to the precision of the output lose at most Σⱼ ε|zⱼ||aⱼsⱼ − gⱼ| + ½(Σⱼ ε|zⱼ|)² more.

The sweeps leave out atoms that the gap proves idle (gap-safe screening): |s gⱼ| + √(2 gap) < aⱼ.

References:
    E. Ndiaye, O. Fercoq, A. Gramfort and J. Salmon, "Gap safe screening rules for sparsity enforcing penalties",
    Journal of Machine Learning Research 18 (2017).
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from latentia.inference.sparse.caching import njit

CONTRACT = {"contract", "nsz"}
FAST = {"contract", "nsz", "reassoc", "nnan"}

#: gram (K, K) of atoms of norm 1; single: the same in float32, its rows filled up; a, inverse: thresholds and one
#: over them; bounds: −a and a in float32 (−∞ for codes that must not be negative); norms: of the atoms as given;
#: features: d; rounding: half a unit in the last place of the output.
Problem = namedtuple("Problem", "gram single a inverse bounds norms nonnegative features rounding")

#: Sweeps between two looks at the gap.
BETWEEN = 10


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def _four(g, gram, i0, i1, i2, i3, z0, z1, z2, z3):
    for k in range(g.shape[0]):
        g[k] = g[k] - z0 * gram[i0, k] - z1 * gram[i1, k] - z2 * gram[i2, k] - z3 * gram[i3, k]


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def _one(g, gram, i, z):
    for k in range(g.shape[0]):
        g[k] = g[k] - z * gram[i, k]


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def residual_correlations(c, z, support, n, gram, g):
    """g = c − Σ z_k gram[support_k], in the precision of gram and g."""
    kind = g.dtype.type
    for k in range(c.shape[0]):
        g[k] = c[k]
    k = 0
    while k + 4 <= n:
        i0, i1, i2, i3 = support[k], support[k + 1], support[k + 2], support[k + 3]
        _four(g, gram, i0, i1, i2, i3, kind(z[k]), kind(z[k + 1]), kind(z[k + 2]), kind(z[k + 3]))
        k += 4
    while k < n:
        _one(g, gram, support[k], kind(z[k]))
        k += 1


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=FAST)
def _excess(g, inverse, error, nonnegative):
    """max over the atoms of (|g| + error) / a."""
    most = 0.0
    if nonnegative:
        for k in range(g.shape[0]):
            most = max(most, (g[k] + error) * inverse[k])
    else:
        for k in range(g.shape[0]):
            most = max(most, (abs(g[k]) + error) * inverse[k])
    return most


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def certify(problem, c, g, z, support, n, square):
    """(relative gap, s, the part of the gap that is but rounding): see the top of this file."""
    l1, zg, zc, size, slack = 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(n):
        j = support[k]
        l1 += problem.a[j] * abs(z[k])
        size += abs(z[k])
        zg += z[k] * g[j]
        zc += z[k] * c[j]
        slack += abs(problem.a[j] * abs(z[k]) - g[j] * z[k])
    error = 1.2e-16 * (problem.features + n + 6) * (np.sqrt(square) + size)
    residual = max(square - zc - zg + error * size, 0.0)
    zg -= error * size
    most = _excess(g, problem.inverse, error, problem.nonnegative)
    s = 1.0 + max(zg, 0.0) / residual if residual > 0.0 else 1.0
    if s * most > 1.0:
        s = 1.0 / most
    lost = problem.rounding * slack + 0.5 * (problem.rounding * size) ** 2
    gap = 0.5 * (1.0 - s) ** 2 * residual + max(l1 - s * zg, 0.0) + lost
    half = 0.5 * square
    return gap / half, s, (2.0 * error * size + lost) / half


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(problem, alive, n_alive, z, g):
    """One coordinate step for every atom that is alive."""
    for at in range(n_alive):
        j = alive[at]
        u = g[j] + z[j]
        new = 0.0
        if u > problem.a[j]:
            new = u - problem.a[j]
        elif u < -problem.a[j] and not problem.nonnegative:
            new = u + problem.a[j]
        if new != z[j]:
            _one(g, problem.gram, j, new - z[j])
            z[j] = new


@njit(cache=True, nogil=True, error_model="numpy")
def _gather(z, index, value):
    n = 0
    for j in range(z.shape[0]):
        if z[j] != 0.0:
            index[n], value[n] = j, z[j]
            n += 1
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def sweeps(problem, c, square, index, value, n, tol, max_iter):
    """Coordinate descent from index, value (the first n); overwrites them. Returns (atoms in use, gap, sweeps)."""
    K = c.shape[0]
    z, g = np.zeros(K), np.empty(K)
    for k in range(n):
        z[index[k]] = value[k]
    alive, n_alive = np.arange(K), K
    done = 0
    while True:
        n = _gather(z, index, value)
        residual_correlations(c, value, index, n, problem.gram, g)
        gap, s, floor = certify(problem, c, g, value, index, n, square)
        if gap <= max(tol, 2.0 * floor) or done >= max_iter:
            return n, gap, done
        radius, kept = np.sqrt(gap * square), 0
        for at in range(n_alive):
            j = alive[at]
            size = s * (g[j] if problem.nonnegative else abs(g[j]))
            if z[j] != 0.0 or size + radius >= problem.a[j]:
                alive[kept] = j
                kept += 1
        n_alive = kept
        for _ in range(BETWEEN):
            _sweep(problem, alive, n_alive, z, g)
        done += BETWEEN
