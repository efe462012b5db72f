"""Label units: y as one more visible, a categorical site after the columns of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from latentia.core.errors import DataError


class Labelled:
    """For estimators whose model has label units when ``fit`` is given y.

    The blueprint then holds ``classes``; rows carry the label's number as their last column.
    """

    blueprint_: dict[str, Any]
    n_features_in_: int

    @property
    def classes_(self) -> np.ndarray:
        """The labels, in the order of the columns of ``predict_proba``."""
        check_is_fitted(self)
        classes = self.__dict__.get("_classes")
        if classes is None:
            classes = self.blueprint_.get("classes")
        if classes is None:
            raise AttributeError(f"This {type(self).__name__} has seen no labels: fit it with y, or fine-tune it.")
        return np.asarray(classes)

    def _targets(self, X: np.ndarray, y: Any) -> np.ndarray | None:
        if y is None:
            return None
        return encode_labels(y, X.shape[0])[1]

    def _target_facts(self, y: Any) -> dict[str, Any]:
        return {} if y is None else {"classes": np.unique(column_or_1d(y)).tolist()}

    @property
    def has_labels(self) -> bool:
        """Whether the model has label units."""
        return "classes" in self.blueprint_

    def label_code(self, label: Any) -> int:
        """The number of a label, or an error that lists those there are."""
        if not self.has_labels:
            raise DataError(
                f"This {type(self).__name__} has no label units, so nothing can be drawn for label={label!r}. Fit "
                "it with fit(X, y)."
            )
        classes = self.classes_.tolist()
        if label not in classes:
            raise DataError(f"Unknown label {label!r}: this model knows {', '.join(map(repr, classes))}.")
        return classes.index(label)


def encode_labels(y: Any, n_rows: int) -> tuple[np.ndarray, np.ndarray]:
    """(classes, codes) of labels, checked against the number of rows."""
    y = column_or_1d(y, warn=True)
    check_classification_targets(y)
    if len(y) != n_rows:
        raise DataError(f"y has {len(y)} labels for {n_rows} rows of X; it must have one per row.")
    classes, codes = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise DataError(f"y holds one class only ({classes[0]!r}); label units need at least two.")
    return classes, codes.astype(np.float32)
