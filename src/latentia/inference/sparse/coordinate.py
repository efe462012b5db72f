"""Coordinate descent for ½‖x − zD‖² + penalty(z) with a convex penalty, certified by the duality gap.

For Σ aⱼ|zⱼ| + ½bⱼzⱼ² (ℓ1, elastic net, weighted, non-negative) greedy coordinate steps find the atoms, and a
Cholesky factor of the few in use gives the exact solution on them: see
:mod:`latentia.inference.sparse._kernels_cd`. For groups, Σ a_g‖z_g‖₂, blocks of coordinates take steps in turn: see
:mod:`latentia.inference.sparse._kernels_group`.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from latentia.inference.sparse.blocks import Block, Solver
from latentia.inference.sparse.terms import Terms


def make_problem(gram: np.ndarray, norms: np.ndarray, terms: Terms, *, features: int, dtype: Any) -> Any:
    """What the kernels of separable penalties read.

    Args:
        gram: products of the atoms of norm 1 (with ridges), float64.
        norms: of the atoms before they were scaled.
        terms: the penalty in numbers.
        features: d.
        dtype: of the codes that are returned.
    """
    from latentia.inference.sparse._kernels_cd import UNBOUNDED
    from latentia.inference.sparse._kernels_sweeps import Problem

    K = len(gram)
    width = -(-K // 16) * 16
    single = np.zeros((K, width), np.float32)
    single[:, :K] = gram
    a = terms.thresholds / norms
    bounds = np.full((2, width), UNBOUNDED, np.float32)
    bounds[0] *= -1
    bounds[1, :K] = np.minimum(a, 0.5 * UNBOUNDED)
    if not terms.nonnegative:
        bounds[0] = -bounds[1]
    return Problem(gram, single, a, 1 / a, bounds, norms, terms.nonnegative, features, rounding(dtype))


def rounding(dtype: Any) -> float:
    """The relative error of a coefficient that is scaled and rounded to this type."""
    return 0.5 * float(np.finfo(dtype).eps) + 2.0**-53


def mask_of(problem: Any) -> int:
    """The bits of a float32 that are left when the lowest carry the number of an atom."""
    return 0x7FFFFFFF & ~((1 << (problem.single.shape[1] - 1).bit_length()) - 1)


def solver(problem: Any, *, n_free: int, tol: float, max_iter: int, start: Solver) -> Solver:
    """A function that solves pieces (:func:`latentia.inference.sparse.blocks.solve_all`).

    Args:
        problem: from :func:`make_problem`.
        n_free: the most atoms that can be linearly independent.
        tol: relative duality gap to reach.
        max_iter: most iterations of a signal.
        start: fills in the starting points of a piece.
    """
    from latentia.inference.sparse import _kernels_cd as kernels

    mask = mask_of(problem)

    def solve(block: Block, rows: slice) -> None:
        start(block, rows)
        kernels.solve(block.correlations, block.squares, problem, n_free, tol, max_iter, mask, block.results)

    return solve


def make_groups(gram: np.ndarray, terms: Terms, *, features: int, dtype: Any) -> Any:
    """What the kernel of group penalties reads, as :func:`make_problem`; atoms are as they are given."""
    from latentia.inference.sparse._kernels_group import Groups

    assert terms.groups is not None
    members = np.argsort(terms.groups, kind="stable")
    starts = np.searchsorted(terms.groups[members], np.arange(len(terms.thresholds) + 1))
    parts = [members[begin:end] for begin, end in itertools.pairwise(starts)]
    # A little above the largest eigenvalue: a step must not overshoot for rounding.
    steepness = np.array([np.linalg.eigvalsh(gram[np.ix_(part, part)])[-1] * (1 + 1e-12) for part in parts])
    norms = np.sqrt(np.diagonal(gram))
    return Groups(
        gram, members, starts, terms.thresholds, steepness, norms, terms.nonnegative, features, rounding(dtype)
    )


def group_solver(problem: Any, *, tol: float, max_iter: int, start: Solver) -> Solver:
    """The same as :func:`solver` for :func:`make_groups`."""
    from latentia.inference.sparse import _kernels_group as kernels

    def solve(block: Block, rows: slice) -> None:
        start(block, rows)
        kernels.solve_groups(block.correlations, block.squares, problem, tol, max_iter, block.results)

    return solve
