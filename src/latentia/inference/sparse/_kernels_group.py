"""Compiled block coordinate descent for ½‖x − zD‖² + Σ_g a_g‖z_g‖₂, certified by the duality gap.

With L_g the largest eigenvalue of the group's Gram matrix, one step on a group is

    z_g ← (1 − a_g / (L_g‖u‖))₊ u,   u = z_g + g_g / L_g   (its positive part for non-negative codes),

which lowers the objective, g following by rows of the Gram matrix. Between two looks at the gap the groups in use
are stepped several times and all others once; groups that the gap proves idle, ‖s g_g‖ + √(2 gap L_g) < a_g, are
left out for good. The gap is that of :mod:`latentia.inference.sparse._kernels_sweeps`, with s as large as ‖s g_g‖ ≤
a_g allows.
"""

from __future__ import annotations

from collections import namedtuple

import numpy as np

from latentia.inference.sparse._kernels_sweeps import residual_correlations
from latentia.inference.sparse.caching import njit

#: gram of the atoms as they are; members: their numbers, group after group; starts: where each group begins there;
#: a: thresholds of the groups; steepness: L_g; norms: of the atoms; features: d; rounding: as for single atoms.
Groups = namedtuple("Groups", "gram members starts a steepness norms nonnegative features rounding")

#: Steps on the groups in use for one look at all of them, and such rounds between two looks at the gap.
INNER, BETWEEN = 5, 2


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"}, forceinline=True)
def _follow(g, row, delta):
    for k in range(g.shape[0]):
        g[k] = g[k] - delta * row[k]


@njit(cache=True, nogil=True, error_model="numpy")
def _step_group(problem, group, z, g, change):
    """One step on one group; returns whether it is in use afterwards."""
    begin, end = problem.starts[group], problem.starts[group + 1]
    steepness, square = problem.steepness[group], 0.0
    for at in range(begin, end):
        j = problem.members[at]
        u = z[j] + g[j] / steepness
        if u > 0.0 or not problem.nonnegative:
            square += u * u
    kept, used = 0.0, False
    if steepness * np.sqrt(square) > problem.a[group]:
        kept = 1.0 - problem.a[group] / (steepness * np.sqrt(square))
    for at in range(begin, end):  # all new values first: g must not change under the others of the group
        j = problem.members[at]
        u = z[j] + g[j] / steepness
        new = kept * u if u > 0.0 or not problem.nonnegative else 0.0
        change[j] = new - z[j]
        z[j] = new
        used = used or new != 0.0
    for at in range(begin, end):
        j = problem.members[at]
        if change[j] != 0.0:
            _follow(g, problem.gram[j], change[j])
    return used


@njit(cache=True, nogil=True, error_model="numpy")
def certify_groups(problem, c, g, z, square):
    """(relative gap, s, the part of it that is but rounding)."""
    along, cross, size, turns, n = 0.0, 0.0, 0.0, 0.0, 0
    for j in range(c.shape[0]):
        if z[j] != 0.0:
            along += z[j] * g[j]
            turns += abs(z[j] * g[j])
            cross += z[j] * c[j]
            size += abs(z[j]) * problem.norms[j]
            n += 1
    error = 1.2e-16 * (problem.features + n + 6) * (np.sqrt(square) + size)  # of g, for an atom of norm 1
    residual = max(square - cross - along + error * size, 0.0)
    along -= error * size
    value, most = 0.0, 0.0
    for group in range(problem.a.shape[0]):
        inside, outside, spread = 0.0, 0.0, 0.0
        for at in range(problem.starts[group], problem.starts[group + 1]):
            j = problem.members[at]
            inside += z[j] * z[j]
            spread += problem.norms[j] ** 2
            if g[j] > 0.0 or not problem.nonnegative:
                outside += g[j] * g[j]
        value += problem.a[group] * np.sqrt(inside)
        most = max(most, (np.sqrt(outside) + error * np.sqrt(spread)) / problem.a[group])
    s = 1.0 + max(along, 0.0) / residual if residual > 0.0 else 1.0
    if s * most > 1.0:
        s = 1.0 / most
    lost = problem.rounding * (value + turns) + (problem.rounding * size) ** 2
    gap = 0.5 * (1.0 - s) ** 2 * residual + max(value - s * along, 0.0) + lost
    return gap / (0.5 * square), s, (2.0 * error * size + lost) / (0.5 * square)


@njit(cache=True, nogil=True, error_model="numpy")
def _screen(problem, alive, n_alive, z, g, s, radius):
    """Keep the groups that the gap does not prove idle; returns how many."""
    kept = 0
    for at in range(n_alive):
        group = alive[at]
        outside, used = 0.0, False
        for place in range(problem.starts[group], problem.starts[group + 1]):
            j = problem.members[place]
            used = used or z[j] != 0.0
            if g[j] > 0.0 or not problem.nonnegative:
                outside += g[j] * g[j]
        if used or s * np.sqrt(outside) + radius * np.sqrt(problem.steepness[group]) >= problem.a[group]:
            alive[kept] = group
            kept += 1
    return kept


@njit(cache=True, nogil=True, error_model="numpy")
def _solve_one(problem, c, square, z, g, change, index, value, alive, used, tol, max_iter):
    """Codes of one signal, z holding the start on entry; (relative gap, rounds)."""
    n_alive, done = alive.shape[0], 0
    for k in range(n_alive):
        alive[k] = k
    K = c.shape[0]
    while True:
        n = 0
        for j in range(K):
            if z[j] != 0.0:
                index[n], value[n] = j, z[j]
                n += 1
        residual_correlations(c, value, index, n, problem.gram, g)
        gap, s, floor = certify_groups(problem, c, g, z, square)
        if gap <= max(tol, 2.0 * floor) or done >= max_iter:
            return gap, done
        n_alive = _screen(problem, alive, n_alive, z, g, s, np.sqrt(gap * square))
        for _ in range(BETWEEN):
            n_used = 0
            for at in range(n_alive):
                if _step_group(problem, alive[at], z, g, change):
                    used[n_used] = alive[at]
                    n_used += 1
            for _ in range(INNER):
                for at in range(n_used):
                    _step_group(problem, used[at], z, g, change)
        done += BETWEEN * (1 + INNER)


@njit(cache=True, nogil=True, error_model="numpy")
def solve_groups(correlations, squares, problem, tol, max_iter, results):
    """Codes of some signals; the results hold the starting points on entry."""
    index, value, counts, gaps, n_iter, converged = results
    K, n_groups = problem.gram.shape[0], problem.a.shape[0]
    z, g, change = np.zeros(K), np.empty(K), np.empty(K)
    alive, used = np.empty(n_groups, np.int64), np.empty(n_groups, np.int64)
    for i in range(squares.shape[0]):
        z[:] = 0.0
        gap, done = 0.0, 0
        if squares[i] > 0.0:
            for k in range(counts[i]):
                if value[i, k] > 0.0 or not problem.nonnegative:
                    z[index[i, k]] = value[i, k]
            gap, done = _solve_one(
                problem, correlations[i], squares[i], z, g, change, index[i], value[i], alive, used, tol, max_iter
            )
        n = 0
        for j in range(K):
            if z[j] != 0.0:
                index[i, n], value[i, n] = j, z[j]
                n += 1
        counts[i], gaps[i], n_iter[i], converged[i] = n, gap, done, gap <= tol
