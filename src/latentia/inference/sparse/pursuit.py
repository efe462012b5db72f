"""Pursuits: the best few atoms, one at a time (:mod:`latentia.inference.sparse._kernels_pursuit`)."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np

from latentia.core.errors import DataError, ParameterError
from latentia.inference.sparse.blocks import Block, Solver


def mask_of(n_atoms: int) -> int:
    """The bits of a float64 that are left when the lowest carry the number of an atom."""
    return 0x7FFFFFFFFFFFFFFF & ~((1 << max(1, (n_atoms - 1).bit_length())) - 1)


def stopping(n: int, n_atoms: int, n_features: int, n_nonzero: Any, error: Any) -> tuple[int, np.ndarray]:
    """(most atoms, ‖r‖² at which each signal has enough): the two ways to stop, checked.

    Args:
        n: signals.
        n_atoms: K.
        n_features: d.
        n_nonzero: most atoms of a signal, or None.
        error: a number, one for each signal, or None.
    """
    if n_nonzero is None and error is None:
        raise ParameterError(
            "A pursuit needs a stopping rule: give n_nonzero (how many atoms), error (the squared norm of the "
            "residual that is good enough), or both."
        )
    if error is None:
        return _most(n_nonzero, n_atoms, n_features), np.full(n, -1.0)
    errors = np.asarray(error, np.float64)
    if errors.shape not in ((), (n,)):
        raise DataError(f"error must be a number or one number for each of {n} signals, got shape {errors.shape}.")
    if not (np.isfinite(errors).all() and (errors >= 0).all()):
        raise ParameterError("error must be finite and not negative: it is a squared norm.")
    return _most(n_nonzero, n_atoms, n_features), np.array(np.broadcast_to(errors, (n,)))


def _most(n_nonzero: Any, n_atoms: int, n_features: int) -> int:
    return min(n_atoms if n_nonzero is None else int(n_nonzero), n_features)


def check_n_nonzero(n_nonzero: Any, n_atoms: int) -> None:
    """A positive integer, and no more than there are atoms."""
    if n_nonzero is None:
        return
    whole = isinstance(n_nonzero, numbers.Integral) and not isinstance(n_nonzero, bool)
    if not whole or int(n_nonzero) < 1:
        raise ParameterError(f"n_nonzero must be a positive integer, got {n_nonzero!r}.")
    if int(n_nonzero) > n_atoms:
        raise ParameterError(
            f"n_nonzero={n_nonzero} is more than the {n_atoms} atoms of the dictionary: lower it or add atoms."
        )


def solver(
    gram: np.ndarray, norms: np.ndarray, most: int, errors: np.ndarray, *, ols: bool, by_error: bool
) -> Solver:
    """A function that solves pieces (:func:`latentia.inference.sparse.blocks.solve_all`).

    Args:
        gram: products of the atoms of norm 1.
        norms: of the atoms as given.
        most: atoms at most.
        errors: ‖r‖² at which each signal has enough.
        ols: orthogonal least squares in place of matching pursuit.
        by_error: whether only a signal that reached its error counts as solved.
    """
    from latentia.inference.sparse import _kernels_pursuit as kernels

    mask = mask_of(len(gram))

    def solve(block: Block, rows: slice) -> None:
        kernels.pursue(
            block.correlations, block.squares, gram, norms, most, errors[rows], by_error, ols, mask, block.results
        )

    return solve
