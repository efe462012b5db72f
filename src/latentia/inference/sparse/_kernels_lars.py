"""Compiled homotopy: the solutions of ½‖x − zD‖² + λ Σ aⱼ|zⱼ| for all λ at once, a broken line in z.

On a piece of the path the atoms in use S keep their signs s, and g_S = λ a_S s. When λ falls by γ,

    z_S ← z_S + γ u,   g ← g − γ v,   G_SS u = a_S s,   v = Σ_{i∈S} uᵢ G_i,

until an idle atom reaches its bound, |gⱼ| = λ aⱼ, and joins; a coefficient reaches zero, and leaves (the lasso's
change to least-angle regression); or λ reaches its lower limit. The Cholesky factor of G_SS grows and
shrinks along. At the end z_S = G_SS⁻¹(c_S − λ a_S s) is solved afresh, so that rounding does not add up over the
path.

References:
    B. Efron, T. Hastie, I. Johnstone and R. Tibshirani, "Least angle regression", Annals of Statistics 32 (2004).
    M. R. Osborne, B. Presnell and B. A. Turlach, "A new approach to variable selection in least squares problems",
    IMA Journal of Numerical Analysis 20 (2000).
"""

from __future__ import annotations

import numpy as np

from latentia.inference.sparse import _kernels_factor as factors
from latentia.inference.sparse._kernels_shared import sort_support
from latentia.inference.sparse._kernels_sweeps import certify, residual_correlations, sweeps
from latentia.inference.sparse.caching import njit

#: What an atom is doing.
IDLE, USED, BARRED = 0, 1, 2


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"contract", "nsz"})
def _joining(g, v, a, state, last, last_sign, lam, nonnegative):
    """(γ, atom, sign) of the idle atom that reaches a bound first; ``last`` has just left that of ``last_sign``."""
    least, at, sign = np.inf, -1, 1.0
    for j in range(g.shape[0]):
        if state[j] != IDLE:
            continue
        above, below = a[j] - v[j], a[j] + v[j]
        if above > 1e-13 * a[j] and not (j == last and last_sign > 0.0):
            step = max((lam * a[j] - g[j]) / above, 0.0)
            if step < least:
                least, at, sign = step, j, 1.0
        if below > 1e-13 * a[j] and not nonnegative and not (j == last and last_sign < 0.0):
            step = max((lam * a[j] + g[j]) / below, 0.0)
            if step < least:
                least, at, sign = step, j, -1.0
    return least, at, sign


@njit(cache=True, nogil=True, error_model="numpy")
def _leaving(z, u, n):
    """(γ, position) of the coefficient that reaches zero first."""
    least, at = np.inf, -1
    for k in range(n):
        if z[k] * u[k] < 0.0:
            step = -z[k] / u[k]
            if step < least:
                least, at = step, k
    return least, at


@njit(cache=True, nogil=True, error_model="numpy")
def _refine(factor, inverse, c, a, lam, support, sign, n, w, z):
    """z = G_SS⁻¹(c_S − λ a_S s), by a forward and a backward substitution."""
    for k in range(n):
        w[k] = c[support[k]] - lam * a[support[k]] * sign[k]
    for k in range(n):
        w[k] *= inverse[k]
        for i in range(k + 1, n):
            w[i] -= w[k] * factor[k, i]
    factors.solve(factor, inverse, w, n, z)


@njit(cache=True, nogil=True, error_model="numpy")
def follow(c, gram, a, nonnegative, lowest, max_iter, room, support, state, lambdas, path):
    """Follow the path of one signal down to ``lowest``; (atoms in use, steps).

    Args:
        c: correlations with the atoms of norm 1.
        gram: their products.
        a: thresholds at λ = 1.
        nonnegative: whether codes must not be negative.
        lowest: λ at which to stop.
        max_iter: most pieces of the path.
        room: (g, v, z, sign, u, w, y, inverse, factor) to work in; z and sign hold the result.
        support: holds the atoms in use.
        state: room for what every atom is doing.
        lambdas: filled with λ at the corners of the path, if there is room for any.
        path: (corners, K), filled with the codes at them.
    """
    g, v, z, sign, u, w, y, inverse, factor = room
    K, most = c.shape[0], support.shape[0]
    nothing = np.zeros(K)
    lam = 0.0
    for j in range(K):
        g[j], state[j], v[j] = c[j], IDLE, 0.0
        lam = max(lam, (c[j] if nonnegative else abs(c[j])) / a[j])
    n, steps, last, last_sign, corners = 0, 0, -1, 0.0, 0
    highest = lam
    if lambdas.shape[0] > 0:
        lambdas[0], corners = lam, 1
        path[0, :] = 0.0
    while lam > lowest and steps < max_iter:
        steps += 1
        join, at, new_sign = _joining(g, v, a, state, last, last_sign, lam, nonnegative)
        leave, gone = _leaving(z, u, n)
        last = -1
        if join <= 1e-15 * highest:
            join = 0.0  # several at once
        gamma = min(join, leave, lam - lowest)
        lam = lowest if gamma == lam - lowest else lam - gamma
        for k in range(n):
            z[k] += gamma * u[k]
        for j in range(K):
            g[j] -= gamma * v[j]
        if gamma == leave and gamma < join:
            last, last_sign = support[gone], sign[gone]
            state[last] = IDLE
            factors.remove(factor, inverse, y, w, n, gone)
            n -= 1
            for k in range(gone, n):
                support[k], sign[k], z[k] = support[k + 1], sign[k + 1], z[k + 1]
        elif gamma == join and lam > lowest:
            for k in range(n):
                w[k] = gram[at, support[k]]
            if n < most and factors.add(factor, inverse, y, w, n, a[at] * new_sign):
                support[n], sign[n], z[n], state[at] = at, new_sign, 0.0, USED
                n += 1
            else:
                state[at] = BARRED  # lies in the span of those in use: they say all that it could
                if gamma == 0.0:
                    continue
        if corners > 0 and gamma > 0.0 and corners < lambdas.shape[0]:
            lambdas[corners] = lam
            path[corners, :] = 0.0
            for k in range(n):
                path[corners, support[k]] = z[k]
            corners += 1
        factors.solve(factor, inverse, y, n, u)
        residual_correlations(nothing, u, support, n, gram, v)  # −Σ u G
        for j in range(K):
            v[j] = -v[j]
    _refine(factor, inverse, c, a, max(lam, lowest), support, sign, n, w, z)
    return n, steps, corners


@njit(cache=True, nogil=True, error_model="numpy")
def make_room(K, most):
    """Working arrays for :func:`follow`."""
    return (
        np.empty(K),
        np.empty(K),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.zeros(most),
        np.empty((most, most)),
    )


@njit(cache=True, nogil=True, error_model="numpy")
def solve(correlations, squares, problem, n_free, tol, max_iter, results):
    """Codes of some signals at λ = 1; the arguments are those of the other solver of this problem."""
    index, value, counts, gaps, n_iter, converged = results
    K, most = problem.gram.shape[0], n_free + (8 if n_free % 64 == 0 else 0)
    room, support, state = make_room(K, most), np.empty(most, np.int64), np.empty(K, np.int64)
    g, z = room[0], room[2]
    no_lambdas, no_path = np.empty(0), np.empty((0, 0))
    for i in range(squares.shape[0]):
        c, n, gap, steps = correlations[i], 0, 0.0, 0
        if squares[i] > 0.0:
            n, steps, _ = follow(
                c,
                problem.gram,
                problem.a,
                problem.nonnegative,
                1.0,
                max_iter,
                room,
                support,
                state,
                no_lambdas,
                no_path,
            )
            residual_correlations(c, z, support, n, problem.gram, g)
            gap, _, floor = certify(problem, c, g, z, support, n, squares[i])
        for k in range(n):
            index[i, k], value[i, k] = support[k], z[k]
        if squares[i] > 0.0 and gap > max(tol, 2.0 * floor) and steps < max_iter:
            n, gap, more = sweeps(problem, c, squares[i], index[i], value[i], n, tol, max_iter - steps)
            steps += more
        for k in range(n):
            value[i, k] /= problem.norms[index[i, k]]
        sort_support(index[i], value[i], n)
        counts[i], gaps[i], n_iter[i], converged[i] = n, gap, steps, gap <= tol
