"""Which rows a fit learns from, and with what weight.

Rows of weight zero are left out first: neither starting values, scales, the order of the rows nor
the split depend on them. Held-out rows are put aside next, so that only their
score depends on them. The remaining weights are normalised to a mean of one, separately for training rows and
held-out rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from sklearn.utils import _safe_indexing, check_consistent_length

from latentia.core.errors import DataError
from latentia.estimator.weighing import checked_weights, mean_one
from latentia.ops.examples import Examples

#: Most rows that starting values and surveys look at, and about the most numbers.
MOST_ROWS = 20_000
MOST_NUMBERS = 16 * 1024**2
#: Weights that are this close to multiples of their smallest one stand for repeated rows.
WHOLE = 1e-4


@dataclasses.dataclass(frozen=True)
class LearningRows:
    """Examples to train on and held-out ones, each with weights that average to one (None: all equal)."""

    training: Any
    weights: np.ndarray | None = None
    held_out: Any = None
    held_out_weights: np.ndarray | None = None

    def __post_init__(self) -> None:
        for name in ("training", "held_out"):
            given = getattr(self, name)
            if given is not None and not isinstance(given, Examples):
                object.__setattr__(self, name, Examples(given))


def normalised_weights(sample_weight: Any, n_rows: int) -> np.ndarray | None:
    """Weights that average to one, checked."""
    return mean_one(checked_weights(sample_weight, n_rows))


def weighted(X: Any, y: Any, sample_weight: Any, *, least: int = 1) -> tuple[Any, Any, np.ndarray | None]:
    """(X, y, weights) of the rows that have a weight; the weights average to one, and are None if all are equal.

    Args:
        X: checked data.
        y: labels or None, not checked yet.
        sample_weight: what the user gave.
        least: how many rows there must be.
    """
    X = X if isinstance(X, Examples) else Examples(X)
    if sample_weight is None:
        return X, y, None
    weights = checked_weights(sample_weight, X.n)
    if weights is None or weights.all():
        return X, y, _unless_alike(mean_one(weights))
    kept = np.flatnonzero(weights)
    if kept.size < least:
        raise DataError(f"Only {kept.size} of the {X.n} rows has a weight above zero: at least {least} are needed.")
    if y is not None:
        check_consistent_length(range(X.n), y)
        y = _safe_indexing(y, kept)
    return X.take(kept), y, _unless_alike(mean_one(weights[kept]))


def _unless_alike(weights: np.ndarray | None) -> np.ndarray | None:
    return None if weights is None or weights.min() == weights.max() else weights


def n_held_out(n_rows: int, fraction: float) -> int:
    """How many of so many rows are held out."""
    return max(1, round(fraction * n_rows)) if fraction else 0


def split(rows: Any, weights: np.ndarray | None, fraction: float, seed: int) -> LearningRows:
    """LearningRows to train on, and a random ``fraction`` to hold out."""
    if not fraction:
        return LearningRows(rows, weights)
    rows = Examples.of(rows)
    n = rows.n
    n_held = n_held_out(n, fraction)
    if n - n_held < 1:
        raise DataError(f"validation_fraction={fraction} of {n} rows leaves none to train on.")
    order = np.random.default_rng([seed, 1]).permutation(n)
    held_out, kept = np.sort(order[:n_held]), np.sort(order[n_held:])
    parts = (None, None) if weights is None else (weights[kept], weights[held_out])
    return LearningRows(rows.take(kept), mean_one(parts[0]), rows.take(held_out), mean_one(parts[1]))


def some_rows(rows: Any, seed: int, weights: np.ndarray | None = None, most: int = MOST_ROWS) -> Any:
    """All rows, or a random choice if there are many: enough for starting values.

    With weights, rows come as often as their weights say: exactly, if the weights are whole multiples of the
    smallest one and the result is no longer than ``most``, else as nearly as in so many rows. What is computed from
    the result needs no weights.
    """
    rows = rows if isinstance(rows, Examples) else Examples(rows)
    n = rows.n
    if weights is not None:
        most = min(most, max(n, MOST_NUMBERS // max(1, rows.n_columns)))
        return rows.read(_in_proportion(weights, most))
    if n <= most:
        return rows.read(np.arange(n))
    return rows.read(np.random.default_rng(seed).choice(n, most, replace=False))


def _in_proportion(weights: np.ndarray, most: int) -> np.ndarray:
    """Row numbers, each as often as its weight says."""
    counts = weights / weights.min().astype(np.float64)
    whole = np.round(counts)
    if np.abs(counts - whole).max() < WHOLE and whole.sum() <= most:
        return np.repeat(np.arange(weights.size), whole.astype(int))
    return spread(weights.size, most, weights)


def spread(n_rows: int, n: int, weights: np.ndarray | None = None) -> np.ndarray:
    """``n`` row numbers from the first row to the last at equal steps; with weights, at equal steps of their sum.

    >>> spread(9, 3).tolist()
    [0, 4, 8]
    >>> spread(3, 4, np.array([3.0, 0.5, 0.5])).tolist()
    [0, 0, 0, 1]
    """
    if weights is None:
        return np.linspace(0, n_rows - 1, n).astype(int)
    ends = np.cumsum(weights, dtype=np.float64)
    places = np.linspace(0, ends[-1] * (1 - 1 / max(n, n_rows)), n)
    return np.minimum(np.searchsorted(ends, places, side="right"), n_rows - 1)
