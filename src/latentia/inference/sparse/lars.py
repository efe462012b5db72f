"""The path of ℓ1 solutions by homotopy, whole for one signal or down to α for many.

The solutions z(α) of min ½‖x − zD‖² + α Σ wⱼ|zⱼ| form a broken line: between corners the atoms in use and their
signs stay the same. :func:`lars_path` walks it corner by corner from the least α whose solution is zero; see
:mod:`latentia.inference.sparse._kernels_lars` for the steps.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latentia.core.errors import DataError, ParameterError
from latentia.inference.sparse.blocks import Block, Solver, columns, correlate, gram_matrix
from latentia.inference.sparse.checks import check_dictionary, check_settings
from latentia.inference.sparse.terms import weights_of


def solver(problem: Any, *, n_free: int, tol: float, max_iter: int) -> Solver:
    """A function that solves pieces (:func:`latentia.inference.sparse.blocks.solve_all`).

    Args:
        problem: from :func:`latentia.inference.sparse.coordinate.make_problem`.
        n_free: the most atoms that can be linearly independent.
        tol: relative duality gap that counts as solved.
        max_iter: most pieces of the path.
    """
    from latentia.inference.sparse import _kernels_lars as kernels

    def solve(block: Block, rows: slice) -> None:
        kernels.solve(block.correlations, block.squares, problem, n_free, tol, max_iter, block.results)

    return solve


def lars_path(
    x: Any,
    D: Any,
    *,
    alpha_min: float = 0.0,
    nonnegative: bool = False,
    weights: Any = None,
    max_iter: int = 10_000,
) -> tuple[np.ndarray, np.ndarray]:
    """All solutions of min ½‖x − zD‖² + α Σ wⱼ|zⱼ| for α ≥ ``alpha_min``, at the corners of their path.

    Between two corners the solution is the straight line from one to the other. The codes along it are not nested:
    an atom may leave again.

    Args:
        x: one signal, (d,).
        D: the dictionary, (K, d), atoms in rows.
        alpha_min: end of the path; 0 continues to the least-squares fit.
        nonnegative: only codes z ≥ 0.
        weights: a positive factor of α for every atom; None for ones.
        max_iter: most corners.

    Returns:
        α at the corners, falling, and the codes there, (corners, K).

    Example:
        >>> alphas, codes = lars_path(np.array([3.0, 1.0]), np.eye(2))
        >>> alphas.tolist(), codes.tolist()
        ([3.0, 1.0, 0.0], [[0.0, 0.0], [2.0, 0.0], [3.0, 1.0]])
    """
    from latentia.inference.sparse import _kernels_lars as kernels

    atoms = check_dictionary(D)
    signal = np.asarray(x, np.float64)
    K, d = atoms.shape
    if signal.shape != (d,):
        raise DataError(f"x must be one signal of {d} features, as the atoms have, got shape {signal.shape}.")
    if not np.isfinite(signal).all():
        raise DataError("x holds NaN or infinite numbers.")
    if not (np.isfinite(alpha_min) and alpha_min >= 0):
        raise ParameterError(f"alpha_min must be a number of at least 0, got {alpha_min!r}.")
    check_settings(1.0, max_iter)
    norms = np.sqrt(np.einsum("kd,kd->k", atoms, atoms, dtype=np.float64))
    a = weights_of(weights, K, "atom") / norms
    scaled = atoms / norms[:, None]
    panels = columns(scaled)
    gram, c = gram_matrix(scaled, panels), np.empty((1, K))
    correlate(signal[None], panels, c, np.empty(1))
    most, corners = min(K, d), max_iter + 1
    alphas = np.empty(corners)
    path = np.empty((corners, K))
    support, state = np.empty(most, np.int64), np.empty(K, np.int64)
    _, _, found = kernels.follow(
        c[0],
        gram,
        a,
        nonnegative,
        float(alpha_min),
        max_iter,
        kernels.make_room(K, most),
        support,
        state,
        alphas,
        path,
    )
    return alphas[:found].copy(), path[:found] / norms
