"""Labels: checks, and conversion to class numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets

from latentia.core.errors import DataError


def class_codes(y: Any, n_rows: int, kept: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """(classes, number of each row's class) of labels to learn from, checked.

    Args:
        y: one label for each of ``n_rows`` rows.
        n_rows: how many rows there are.
        kept: the numbers of the rows that are learned from; the labels of others are not looked at.
    """
    kept = np.arange(n_rows) if kept is None else kept
    y = _one_per_row(y, n_rows)[kept]
    without = np.flatnonzero(missing(y))
    if without.size:
        first = kept[without[0]]
        raise DataError(f"y has no label in {without.size} rows, first in row {first}: leave those out.")
    if y.dtype.kind == "f" and np.isinf(y).any():
        raise DataError("y has infinite values, which are no class labels.")
    try:
        check_classification_targets(y)
    except (TypeError, ValueError) as error:
        raise DataError(f"y must hold class labels, one per row, of which there are few: {error}") from error
    classes, codes = np.unique(y, return_inverse=True)
    if classes.size < 2:
        raise DataError(f"All labels are {classes[0]!r}: a classifier needs at least two classes.")
    return classes, codes


def missing(labels: np.ndarray) -> np.ndarray:
    """Which rows have no label: None, NaN, or the empty text that an empty cell of a table becomes.

    >>> missing(np.array([None, float("nan"), "", 0, "oak"], object)).tolist()
    [True, True, True, False, False]
    """
    return np.array([label is None or label != label or label == "" for label in labels.tolist()], bool)


def known_codes(y: Any, classes: np.ndarray, n_rows: int) -> np.ndarray:
    """Numbers of labels that must be among ``classes``."""
    number = {label: code for code, label in enumerate(classes.tolist())}
    labels = _one_per_row(y, n_rows).tolist()
    unseen = sorted({repr(label) for label in labels if label not in number})
    if unseen:
        known = ", ".join(repr(label) for label in list(number)[:10]) + (" …" if len(number) > 10 else "")
        raise DataError(f"y has labels that were not learned: {', '.join(unseen[:5])}. Known: {known}.")
    return np.array([number[label] for label in labels])


def _one_per_row(y: Any, n_rows: int) -> np.ndarray:
    if y is None:
        raise DataError("Labels are needed: pass y with one label per row.")
    y = column_or_1d(y, warn=True)
    if y.shape[0] != n_rows:
        raise DataError(f"y must have one label per row of X ({n_rows}), got {y.shape[0]}.")
    return y
