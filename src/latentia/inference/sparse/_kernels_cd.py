"""Compiled solver for separable convex penalties: greedy coordinate steps, then exact solutions on the atoms found.

All is scaled so that every atom has norm 1 (with its ridge, if there is one). For one signal, in rounds:

1. *Greedy steps*, in float32: the atom whose correlation with the residual exceeds its threshold most is put to use
   by one coordinate step, and the correlations g of all atoms follow by one row of the Gram matrix. The same pass
   over the row finds the next atom: |step| as an integer, its lowest bits replaced by the number of the atom, so
   that an integer maximum, which vectorises, is an argmax.
2. *Exact solution*, in float64: with signs s held, G_SS z = c_S − a s on the few atoms in use, by a Cholesky factor
   that grows and shrinks with them. Where a sign would turn, go only as far as the first zero, drop that atom, and
   so on.
3. g afresh from the atoms in use; back to 1 while an atom is left above its threshold.

Every part lowers the objective, so that no set of atoms with its signs comes back. The end is judged in float64: g,
the duality gap and a bound of all rounding errors in them. Signals that float32 or the factor cannot bring to the
tolerance (more atoms than dimensions, nearly dependent ones) continue with plain coordinate sweeps.
"""

from __future__ import annotations

import numpy as np

from latentia.inference.sparse import _kernels_factor as factors
from latentia.inference.sparse._kernels_bits import excess, larger, ranked_single
from latentia.inference.sparse._kernels_shared import sort_support
from latentia.inference.sparse._kernels_sweeps import certify, residual_correlations, sweeps
from latentia.inference.sparse.caching import njit

CONTRACT = {"contract", "nsz"}

#: Stands for no bound at all in float32.
UNBOUNDED = np.float32(1e37)
#: Greedy steps of the first round of a signal, and of the others.
FIRST, LATER = 6, 3
#: float32 is used where norms lie between these, relative to the thresholds.
SMALLEST, LARGEST = 1e-15, 1e15


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def _step(g, row, delta, low, high, mask):
    """g −= delta · row; returns the rank of the atom that exceeds its bounds most."""
    best = np.int32(0)
    for k in range(g.shape[0]):
        v = g[k] - delta * row[k]
        g[k] = v
        best = larger(best, ranked_single(excess(v, low[k], high[k]), k, mask))
    return best


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def _best(g, low, high, mask):
    """The rank of the atom that exceeds its bounds most."""
    best = np.int32(0)
    for k in range(g.shape[0]):
        best = larger(best, ranked_single(excess(g[k], low[k], high[k]), k, mask))
    return best


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _put_to_use(gram, a, c, low, high, support, sign, z, w, y, inverse, factor, n, j, step):
    """Add atom j with coefficient ``step`` to the n in use; False if it depends on them or there is no room."""
    if n >= support.shape[0]:
        return False
    for k in range(n):
        w[k] = gram[j, support[k]]
    direction = 1.0 if step > 0.0 else -1.0
    if not factors.add(factor, inverse, y, w, n, c[j] - a[j] * direction):
        return False
    support[n], sign[n], z[n] = j, direction, step
    low[j], high[j] = -UNBOUNDED, UNBOUNDED
    return True


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _settle(bounds, low, high, support, sign, z, t, w, y, inverse, factor, n):
    """Exact solution on the n atoms in use, dropping those whose sign would turn; returns how many are left."""
    while n > 0:
        factors.solve(factor, inverse, y, n, t)
        least, at = 2.0, -1
        for k in range(n):
            if t[k] * sign[k] <= 0.0:
                part = z[k] / (z[k] - t[k])
                if part < least:
                    least, at = part, k
        if at < 0:
            for k in range(n):
                z[k] = t[k]
            break
        for k in range(n):
            z[k] += least * (t[k] - z[k])
        j = support[at]
        low[j], high[j] = bounds[0, j], bounds[1, j]
        factors.remove(factor, inverse, y, w, n, at)
        n -= 1
        for k in range(at, n):
            support[k], sign[k], z[k] = support[k + 1], sign[k + 1], z[k + 1]
    return n


@njit(cache=True, nogil=True, error_model="numpy")
def _worst(g, a, nonnegative, high):
    """The idle atom whose correlation exceeds its threshold most, and its step (0: there is none)."""
    most, at = 0.0, 0
    for k in range(g.shape[0]):
        over = (g[k] if nonnegative else abs(g[k])) - a[k]
        if over > most and high[k] < UNBOUNDED:
            most, at = over, k
    return at, most if g[at] > 0.0 else -most


@njit(cache=True, nogil=True, error_model="numpy")
def solve(correlations, squares, problem, n_free, tol, max_iter, mask, results):
    """Codes of some signals; the results hold the starting points on entry.

    Args:
        correlations: of every signal with every atom of norm 1.
        squares: ‖x‖².
        problem: see :mod:`latentia.inference.sparse._kernels_sweeps`.
        n_free: the most atoms that can be independent.
        tol: relative duality gap to reach.
        max_iter: most iterations: atoms put to use and dropped, sweeps.
        mask: the bits of a float32 that do not carry the number of an atom.
        results: (index, value, counts, gaps, n_iter, converged).
    """
    index, value, counts, gaps, n_iter, converged = results
    gram, single, a, bounds, norms = problem.gram, problem.single, problem.a, problem.bounds, problem.norms
    nonnegative = problem.nonnegative
    most = n_free + (8 if n_free % 64 == 0 else 0)  # rows a power of two apart would share cache lines
    g, g32 = np.empty(gram.shape[0]), np.zeros(single.shape[1], np.float32)
    low, high = bounds[0].copy(), bounds[1].copy()
    support, factor = np.empty(most, np.int64), np.empty((most, most))
    sign, z, t, w, y, inverse = np.empty((6, most))
    for i in range(squares.shape[0]):
        c, norm = correlations[i], np.sqrt(squares[i])
        n, n_given = 0, counts[i] if norm > 0.0 else 0
        iterations, gap = 0, 0.0
        for k in range(n_given):
            j = index[i, k]
            step = value[i, k] * norms[j]
            if step > 0.0 or (step < 0.0 and not nonnegative):
                n += _put_to_use(gram, a, c, low, high, support, sign, z, w, y, inverse, factor, n, j, step)
        n = _settle(bounds, low, high, support, sign, z, t, w, y, inverse, factor, n)
        # In float32, several atoms at a time, while one exceeds its threshold by more than rounding.
        noise = np.float32(4e-7 * norm)
        steps = FIRST
        while SMALLEST < norm < LARGEST and iterations < max_iter:
            residual_correlations(c, z, support, n, single, g32)
            best = _best(g32, low, high, mask)
            before = n
            while n - before < steps:
                j = np.int64(best) & ~mask
                step = excess(g32[j], low[j], high[j])
                if abs(step) <= noise or not _put_to_use(
                    gram, a, c, low, high, support, sign, z, w, y, inverse, factor, n, j, np.float64(step)
                ):
                    break
                n += 1
                best = _step(g32, single[j], step, low, high, mask)
            added = n - before
            n = _settle(bounds, low, high, support, sign, z, t, w, y, inverse, factor, n)
            iterations += added + (before + added - n)
            steps = LATER
            if added == 0 or iterations > 8 * most:  # done, or rounding keeps it from settling
                break
        # In float64, one at a time, until the gap says so.
        stuck = False
        while norm > 0.0 and not stuck:
            residual_correlations(c, z, support, n, gram, g)
            gap, _, floor = certify(problem, c, g, z, support, n, squares[i])
            if gap <= max(tol, 2.0 * floor) or iterations >= max_iter:
                break
            j, step = _worst(g, a, nonnegative, high)
            stuck = (
                step == 0.0
                or iterations > 16 * most
                or not _put_to_use(gram, a, c, low, high, support, sign, z, w, y, inverse, factor, n, j, step)
            )
            if not stuck:
                before = n + 1
                n = _settle(bounds, low, high, support, sign, z, t, w, y, inverse, factor, before)
                iterations += 1 + before - n
        for k in range(n):
            j = support[k]
            low[j], high[j] = bounds[0, j], bounds[1, j]
            index[i, k], value[i, k] = j, z[k]
        if stuck:
            n, gap, iterations = sweeps(problem, c, squares[i], index[i], value[i], n, tol, max_iter)
        for k in range(n):
            value[i, k] /= norms[index[i, k]]
        sort_support(index[i], value[i], n)
        counts[i], gaps[i], n_iter[i], converged[i] = n, gap, iterations, gap <= tol
