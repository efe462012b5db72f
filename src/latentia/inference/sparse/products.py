"""Solvers that never hold the Gram matrix of all atoms, for dictionaries too large for it.

*Convex penalties*: working sets. The problem is solved on a few atoms of each signal (their own small Gram matrix,
the same kernel); then one product of all residuals of the piece with the whole dictionary gives every correlation,
hence the duality gap of the whole problem and the atoms that were missing. Certificates are those of the whole
problem.

*Pursuits*: the recursion of :mod:`latentia.inference.sparse._kernels_pursuit` with p = qDᵀ from a product of the
new orthonormal directions q of the piece with the dictionary, in place of rows of the Gram matrix.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp

from latentia.inference.sparse.blocks import Block, Solver, columns, correlate, gram_matrix
from latentia.inference.sparse.coordinate import make_problem, mask_of
from latentia.inference.sparse.terms import Terms

#: Atoms of the first working set of a signal.
FIRST = 64


def working_set_solver(
    scaled: np.ndarray,
    panels: np.ndarray,
    norms: np.ndarray,
    terms: Terms,
    *,
    dtype: Any,
    tol: float,
    max_iter: int,
    start: Solver,
) -> Solver:
    """A function that solves pieces (:func:`latentia.inference.sparse.blocks.solve_all`) for separable penalties.

    Args:
        scaled: the atoms with norm 1 (ridges included), (K, d), float64.
        panels: the same as :func:`latentia.inference.sparse.blocks.columns`.
        norms: of the atoms as given.
        terms: the penalty in numbers.
        dtype: of the codes that are returned.
        tol: relative duality gap to reach.
        max_iter: most rounds, and most iterations inside of one.
        start: fills in the starting points of a piece.
    """
    from latentia.inference.sparse import _kernels_sweeps as kernels

    features = scaled.shape[1]
    a, ridges = terms.thresholds / norms, terms.ridges / norms**2
    # All that a certificate reads, without any products.
    whole = make_problem(
        np.empty((0, 0)), norms[:0], terms.only(np.empty(0, np.int64)), features=features, dtype=dtype
    )
    whole = whole._replace(a=a, inverse=1 / a, norms=norms)

    def restricted(c: np.ndarray, square: float, atoms: np.ndarray, z: np.ndarray) -> tuple[np.ndarray, int]:
        if not len(atoms):  # a signal that no atom stands out in: its code is zero
            return z, 1
        part = scaled[atoms]
        gram = gram_matrix(part, columns(part)) + np.diag(ridges[atoms])
        problem = make_problem(gram, np.ones(len(atoms)), terms.only(atoms, a), features=features, dtype=dtype)
        return _solve_small(problem, c[atoms], square, z, tol, max_iter)

    def solve(block: Block, rows: slice) -> None:
        start(block, rows)
        x = _rows(block.x)
        sets = [_first_set(block, i, a, terms.nonnegative) for i in range(len(x))]
        z = [block.value[i, : block.counts[i]] * norms[s[: block.counts[i]]] for i, s in enumerate(sets)]
        z = [np.pad(v, (0, len(s) - len(v))) for v, s in zip(z, sets, strict=True)]
        block.n_iter[:] = 0
        block.gaps[:] = 0.0
        live = np.flatnonzero(block.squares > 0)
        while len(live):
            residuals = np.empty((len(live), features))
            for row, i in enumerate(live):
                c = block.correlations[i]
                z[i], steps = restricted(c, block.squares[i], sets[i], z[i])
                block.n_iter[i] += steps
                residuals[row] = x[i] - np.einsum("k,kd->d", z[i], scaled[sets[i]])
            g = np.empty((len(live), len(scaled)))
            correlate(residuals, panels, g, np.empty(len(live)))
            left = []
            for row, i in enumerate(live):
                g[row, sets[i]] -= ridges[sets[i]] * z[i]
                gap, _, floor = kernels.certify(
                    whole, block.correlations[i], g[row], z[i], sets[i], len(z[i]), block.squares[i]
                )
                block.gaps[i] = gap
                missing = _missing(g[row], a, sets[i], terms.nonnegative)
                if gap > max(tol, 2 * floor) and len(missing) and block.n_iter[i] < max_iter:
                    sets[i] = np.concatenate([sets[i], missing])
                    z[i] = np.pad(z[i], (0, len(missing)))
                    left.append(i)
            live = np.array(left, np.int64)
        for i in range(len(x)):
            used = np.flatnonzero(z[i])
            used = used[np.argsort(sets[i][used])]
            block.counts[i] = len(used)
            block.index[i, : len(used)] = sets[i][used]
            block.value[i, : len(used)] = z[i][used] / norms[sets[i][used]]
        block.converged[:] = block.gaps <= tol

    return solve


def _solve_small(
    problem: Any, c: np.ndarray, square: float, z: np.ndarray, tol: float, max_iter: int
) -> tuple[np.ndarray, int]:
    """One signal on its working set."""
    from latentia.inference.sparse import _kernels_cd as kernels

    m = len(c)
    block = Block.make(1, m)
    used = np.flatnonzero(z)
    block.index[0, : len(used)], block.value[0, : len(used)], block.counts[0] = used, z[used], len(used)
    kernels.solve(c[None], np.array([square]), problem, m, 0.1 * tol, max_iter, mask_of(problem), block.results)
    out = np.zeros(m)
    out[block.index[0, : block.counts[0]]] = block.value[0, : block.counts[0]]
    return out, max(1, int(block.n_iter[0]))


def _rows(x: Any) -> np.ndarray:
    return np.asarray(x.toarray() if sp.issparse(x) else x, np.float64)


def _first_set(block: Block, i: int, a: np.ndarray, nonnegative: bool) -> np.ndarray:
    """The atoms of the starting point, then those that the signal exceeds the thresholds of most."""
    given = block.index[i, : block.counts[i]].copy()
    return np.concatenate([given, _missing(block.correlations[i], a, given, nonnegative)])


def _missing(g: np.ndarray, a: np.ndarray, known: np.ndarray, nonnegative: bool) -> np.ndarray:
    """Atoms above their thresholds that a working set lacks: at most as many as it holds, the worst first."""
    over = (g if nonnegative else np.abs(g)) - a
    over[known] = -np.inf
    most = max(FIRST, len(known))
    found = np.flatnonzero(over > 0)
    return found[np.argsort(-over[found], kind="stable")[:most]]


def pursuit_solver(
    scaled: np.ndarray,
    panels: np.ndarray,
    norms: np.ndarray,
    most: int,
    errors: np.ndarray,
    *,
    ols: bool,
    by_error: bool,
) -> Solver:
    """A function that solves pieces by OMP or OLS; the arguments are those of the solver with a Gram matrix."""
    from latentia.inference.sparse._kernels_factor import DEPENDENT
    from latentia.inference.sparse._kernels_pursuit import NOTHING

    K, d = scaled.shape

    def solve(block: Block, rows: slice) -> None:
        n = len(block.squares)
        g, square = block.correlations, block.squares
        rho, residual = np.ones((n, K)), square.copy()
        basis, y = np.zeros((n, most, d)), np.zeros((n, most))
        block.counts[:] = 0
        enough = np.maximum(errors[rows], NOTHING * square)
        live = np.flatnonzero(residual > enough)
        while len(live):
            gain = np.abs(g[live])
            if ols:
                gain = np.where(rho[live] > DEPENDENT, gain**2 / np.maximum(rho[live], DEPENDENT), 0.0)
            best = np.argmax(gain, axis=1)
            kept, directions = [], []
            for i, j in zip(live, best, strict=True):
                m = block.counts[i]
                q = scaled[j].copy()
                for _ in range(2):  # twice is enough
                    q -= np.einsum("k,kd->d", np.einsum("kd,d->k", basis[i, :m], q), basis[i, :m])
                pivot = np.einsum("d,d->", q, q)
                if not pivot > DEPENDENT or g[i, j] ** 2 / pivot <= NOTHING**2 * square[i]:
                    continue
                basis[i, m] = q / np.sqrt(pivot)
                y[i, m] = g[i, j] / np.sqrt(pivot)
                residual[i] -= y[i, m] ** 2
                block.index[i, m] = j
                block.counts[i] += 1
                kept.append(i)
                directions.append(basis[i, m])
            live = np.array(kept, np.int64)
            if len(live):
                p = np.empty((len(live), K))
                correlate(np.array(directions), panels, p, np.empty(len(live)))
                g[live] -= y[live, block.counts[live] - 1][:, None] * p
                rho[live] -= p**2
            live = live[(residual[live] > enough[live]) & (block.counts[live] < most)]
        for i in range(n):
            m = block.counts[i]
            chosen = block.index[i, :m].copy()
            z = _coefficients(scaled[chosen], basis[i, :m], y[i, :m]) / norms[chosen]
            order = np.argsort(chosen)
            block.index[i, :m], block.value[i, :m] = chosen[order], z[order]
        block.n_iter[:] = block.counts
        block.gaps[:] = np.nan
        block.converged[:] = (residual <= enough) | (not by_error)

    return solve


def _coefficients(atoms: np.ndarray, basis: np.ndarray, y: np.ndarray) -> np.ndarray:
    """z with z @ atoms = y @ basis, where atom i lies in the span of the first i + 1 directions."""
    upper = np.einsum("id,jd->ij", basis, atoms)
    z = y.copy()
    for i in range(len(y) - 1, -1, -1):
        z[i] /= upper[i, i]
        z[:i] -= z[i] * upper[:i, i]
    return z
