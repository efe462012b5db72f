"""Weights of rows: rows of weight zero are dropped, and the other weights are normalised.

Rows of weight zero are dropped first, so that giving rows no weight is equivalent to leaving them out,
to the last bit. Only the ratios of the other weights count: they are divided by
their mean over the rows to learn from, once these are known.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from latentia.core.errors import DataError


def checked_weights(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    """One weight per row as float64, as given; None if all are equal."""
    if sample_weight is None:
        return None
    weights = np.asarray(sample_weight, np.float64)
    if weights.ndim == 0:
        weights = np.full(n_rows, float(weights))
    if weights.shape != (n_rows,):
        raise DataError(f"sample_weight must have one entry per row ({n_rows}), got shape {weights.shape}.")
    if not np.isfinite(weights).all() or (weights < 0).any() or not weights.any():
        raise DataError("sample_weight must be finite, non-negative and not all zero.")
    return weights


def rows_with_weight(weights: np.ndarray | None, n_rows: int) -> np.ndarray:
    """The numbers of the rows that count, in their order."""
    return np.arange(n_rows) if weights is None else np.flatnonzero(weights)


def mean_one(weights: np.ndarray | None) -> np.ndarray | None:
    """The weights of the rows to learn from, divided by their mean."""
    if weights is None:
        return None
    shares = weights / weights.max()  # a sum of what is given could overflow
    return (shares / shares.mean()).astype(np.float32)
