"""Precision matrices with given zeros, from a covariance: Gaussian graphical models.

Both estimates need the data only through their covariance C, so they cost D×D work whatever the number of rows.
With M the set of pairs that may be coupled (the diagonal is always in it), over symmetric Λ that vanish outside M:

* maximum likelihood, min tr(CΛ) − log det Λ: where (Λ⁻¹)_ij = C_ij on M;
* score matching, min ½ tr(ΛCΛ) − tr Λ: where ½(CΛ + ΛC) = I on M, which is linear.

Without zeros both are C⁻¹. Everything here is NumPy in float64 and runs on the host: the inverse of a covariance
loses as many digits as its condition number has, and single precision has none to lose.

References:
    Dempster (1972), *Covariance selection*; Hastie, Tibshirani and Friedman (2009), *The elements of statistical
    learning*, algorithm 17.1; Hyvärinen (2005).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float
from scipy.linalg import get_lapack_funcs

from latentia.core.errors import ParameterError
from latentia.ops.threads import one_blas_thread

Matrix = Float[np.ndarray, "n n"]
Mask = Bool[np.ndarray, "n n"]

#: Numbers that the blocks of the preconditioner may hold.
MOST_BLOCKS = 30_000_000
#: How far a sweep of covariance selection goes, in units of the step that is best for a variable by itself.
RELAXATION = 1.9

_solve_definite: Any = get_lapack_funcs("posv", dtype=np.float64)


def pixel_neighbours(shape: tuple[int, ...], radius: float) -> Mask:
    """Which pixels of an image lie within ``radius`` of each other; all channels of two such pixels are coupled.

    >>> pixel_neighbours((2, 2), 1.0).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 0, 1],
           [1, 0, 1, 1],
           [0, 1, 1, 1]])
    """
    height, width = shape[:2]
    channels = math.prod(shape[2:])
    row, column = np.divmod(np.repeat(np.arange(height * width), channels), width)
    square = (row[:, None] - row[None, :]) ** 2 + (column[:, None] - column[None, :]) ** 2
    return square <= radius**2 * (1 + 1e-9)


def image_shape(n: int, shape: Sequence[int] | None) -> tuple[int, ...]:
    """The shape of images of ``n`` numbers, a square if it is not given; refused where it does not fit.

    >>> image_shape(9, None)
    (3, 3)
    """
    side = math.isqrt(n)
    found = (side, side) if shape is None else tuple(int(size) for size in shape)
    if len(found) not in (2, 3) or math.prod(found) != n:
        raise ParameterError(
            f"Neighbours are those of images, and image_shape={shape} does not fit the {n} columns of the data. "
            "Pass image_shape=(height, width) or (height, width, channels)."
        )
    return found


def check_mask(name: str, value: Any) -> None:
    """Refuse what is no symmetric boolean matrix."""
    mask = np.asarray(value)
    if mask.dtype != bool or mask.ndim != 2 or mask.shape[0] != mask.shape[1] or (mask != mask.T).any():
        raise ParameterError(
            f"{name} must be a name, or a symmetric boolean matrix that is True where two variables may be "
            f"coupled, got {mask.dtype}{mask.shape}."
        )


def with_ridge(covariance: Float[np.ndarray, "*nn"], ridge: float) -> Float[np.ndarray, "*nn"]:
    """A covariance (or variances) with a part of the mean variance on every variance, at least what rounding needs.

    >>> with_ridge(np.array([1.0, 3.0]), 0.5)
    array([2., 4.])
    """
    diagonal = covariance.ndim == 1
    usual = np.mean(covariance if diagonal else np.diagonal(covariance)) or 1.0
    floor = max(ridge, 1e-12) * usual
    return covariance + (floor if diagonal else floor * np.eye(len(covariance)))


def likeliest_precision(covariance: Matrix, mask: Mask, *, tol: float = 1e-7, max_sweeps: int = 5000) -> Matrix:
    """The maximum-likelihood precision matrix that vanishes outside the mask.

    A sweep regresses each variable on its neighbours in turn, with the covariance W of the model so far among them.
    The fitted covariances maximise the likelihood's dual log det W, whose masked entries are those of C. The
    variance that is left over is a parabola along the way to them, so that going nearly twice as far never lowers
    it, and arrives ten times sooner on images (successive over-relaxation). With k neighbours a sweep costs
    D·(k³ + kD). It ends when no correlation is further than ``tol`` from its fit.

    >>> chain = np.array([[1, 1, 0], [1, 1, 1], [0, 1, 1]], bool)
    >>> C = np.array([[1.0, 0.5, 0.4], [0.5, 1.0, 0.5], [0.4, 0.5, 1.0]])
    >>> np.linalg.inv(likeliest_precision(C, chain)).round(6)  # the entry off the chain is 0.5 · 0.5
    array([[1.  , 0.5 , 0.25],
           [0.5 , 1.  , 0.5 ],
           [0.25, 0.5 , 1.  ]])
    """
    if mask.all():
        return _inverse(covariance)
    n = len(covariance)
    spread = np.sqrt(np.diagonal(covariance))
    wanted = covariance / spread[:, None] / spread[None, :]
    lists = [np.flatnonzero(row) for row in mask & ~np.eye(n, dtype=bool)]
    targets = [wanted[near, j] for j, near in enumerate(lists)]
    model, moved = wanted.copy(), math.inf
    with one_blas_thread():  # thousands of small products: starting threads would take longer than they do
        for sweep in range(max_sweeps):
            measured = sweep % 10 == 9
            off = max(_regressed(model, *each, measured) for each in zip(range(n), lists, targets, strict=True))
            moved = off if measured else moved
            if moved < tol:
                break
        else:
            warnings.warn(
                f"No convergence after {max_sweeps} sweeps; correlations are still off by {moved:.1g}.",
                stacklevel=2,
            )
    slopes = [
        np.linalg.solve(model[np.ix_(near, near)], target) for near, target in zip(lists, targets, strict=True)
    ]
    precision = np.zeros_like(wanted)
    for j, near in enumerate(lists):
        precision[j, j] = 1 / (wanted[j, j] - slopes[j] @ wanted[near, j])
        precision[j, near] = -slopes[j] * precision[j, j]
    return _symmetric(precision / spread[:, None] / spread[None, :])


def _regressed(model: Matrix, j: int, near: np.ndarray, target: np.ndarray, measured: bool) -> float:
    """Move row and column j of the model's covariance to their fit and beyond; optionally how far off they were."""
    if not near.size:
        move = -model[j]
    else:
        rows = model.take(near, axis=0)
        _, slopes, failed = _solve_definite(rows.take(near, axis=1), target)
        if failed:  # no longer definite to rounding
            slopes = np.linalg.solve(rows[:, near], target)
        move = slopes @ rows - model[j]
    move[j] = 0.0
    off = float(np.abs(move).max()) if measured else 0.0
    model[j] += RELAXATION * move
    model[:, j] = model[j]
    return off


def score_matched_precision(covariance: Matrix, mask: Mask, *, tol: float = 1e-10, max_steps: int = 2000) -> Matrix:
    """The precision matrix that vanishes outside the mask and minimises ½ tr(ΛCΛ) − tr Λ.

    Conjugate gradients in the space of masked symmetric matrices. Without the symmetry each row of Λ would have a
    small system of its own, with the covariance of its neighbours: those are the preconditioner. Ends when the
    residual of ½(CΛ + ΛC) = I is ``tol`` of the identity's. Nothing keeps the answer positive definite where the
    mask is wrong for the data.

    >>> C = np.array([[2.0, 1.0], [1.0, 3.0]])
    >>> bool(np.allclose(score_matched_precision(C, np.ones((2, 2), bool)), np.linalg.inv(C)))
    True
    """
    blocks = _neighbour_systems(covariance, mask)
    inside = lambda a: np.where(mask, _symmetric(a), 0.0)  # noqa: E731
    precision = np.zeros_like(covariance)
    residual = np.eye(len(covariance))
    direction = better = inside(blocks(residual))
    size = float(np.sum(residual * better))
    goal = tol * np.linalg.norm(residual)
    for _ in range(max_steps):
        applied = inside(covariance @ direction)
        step = size / float(np.sum(direction * applied))
        precision, residual = precision + step * direction, residual - step * applied
        if np.linalg.norm(residual) < goal:
            break
        better = inside(blocks(residual))
        size, before = float(np.sum(residual * better)), size
        direction = better + (size / before) * direction
    else:
        left = np.linalg.norm(residual) / math.sqrt(len(residual))
        warnings.warn(f"No convergence after {max_steps} steps; the residual is {left:.1g}.", stacklevel=2)
    return precision


def _neighbour_systems(covariance: Matrix, mask: Mask) -> Callable[[Matrix], Matrix]:
    """R ↦ the matrix whose row i solves C[N, N] y = R[i, N] for the neighbours N of i (C⁻¹R where N is large)."""
    n, most = len(mask), int(mask.sum(1).max())
    if n * most**2 > MOST_BLOCKS or most == n:
        inverse = _inverse(covariance)
        return lambda right: right @ inverse
    lists = np.argsort(~mask, axis=1, kind="stable")[:, :most]
    real = np.take_along_axis(mask, lists, axis=1)
    both = real[:, :, None] & real[:, None, :]
    systems = np.where(both, covariance[lists[:, :, None], lists[:, None, :]], np.eye(most))
    inverses = np.linalg.inv(systems)

    def solve(right: Matrix) -> Matrix:
        rows = np.where(real, np.take_along_axis(right, lists, axis=1), 0.0)
        out = np.zeros_like(right)
        np.put_along_axis(out, lists, np.einsum("nij,nj->ni", inverses, rows), axis=1)
        return out

    return solve


def _inverse(covariance: Matrix) -> Matrix:
    factor = np.linalg.cholesky(covariance)
    root = np.linalg.inv(factor)
    return root.T @ root


def _symmetric(matrix: Matrix) -> Matrix:
    return 0.5 * (matrix + matrix.T)
