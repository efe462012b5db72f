"""Label units: y as one more visible, a categorical site after the columns of the data."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn.utils.validation import column_or_1d

from latentia.abilities.labels import class_codes, known_codes
from latentia.core.errors import DataError
from latentia.ops.examples import Examples


class Labelled:
    """For estimators whose model has label units when ``fit`` is given y.

    The blueprint then holds ``classes``; examples carry the label's number beside their data.
    """

    blueprint_: dict[str, Any]
    n_features_in_: int

    #: The labels, in the order of the columns of ``predict_proba``; set once there are any.
    classes_: np.ndarray

    def _kept(self, result: Any) -> None:
        del result
        self._name_classes()

    def _adopted(self) -> None:
        self._name_classes()

    def _name_classes(self) -> None:
        if self.has_labels:
            self.classes_ = np.asarray(self.blueprint_["classes"])

    def _targets(self, X: Examples, y: Any) -> np.ndarray | None:
        if y is None:
            return None
        return class_codes(y, len(X))[1].astype(np.float32)

    def _more_targets(self, X: Examples, y: Any) -> np.ndarray | None:
        """Labels as the numbers of the model's classes."""
        if self.has_labels:
            return known_codes(y, np.asarray(self.blueprint_["classes"]), len(X)).astype(np.float32)
        if y is not None:
            raise DataError(
                f"This {type(self).__name__} has learned without labels and has no label units; leave y out, or "
                "fit it anew with fit(X, y)."
            )
        return None

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
        classes = self.blueprint_["classes"]
        if label not in classes:
            raise DataError(f"Unknown label {label!r}: this model has {', '.join(map(repr, classes))}.")
        return classes.index(label)

    def with_label(self, label: Any, given: Any, mask: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """(given, mask) with the label as one more known column."""
        code = self.label_code(label)
        if mask is not None and given is None:
            raise DataError("mask says which entries of given are known; pass given too.")
        rows = np.full((1, self.n_features_in_), np.nan) if given is None else np.asarray(given, np.float64)
        if rows.ndim != 2 or rows.shape[1] != self.n_features_in_:
            raise DataError(f"given must be a matrix with {self.n_features_in_} columns, got shape {rows.shape}.")
        rows = np.column_stack([rows, np.full(len(rows), float(code))])
        if mask is None:
            return rows, None
        shape = (len(rows), self.n_features_in_)
        if np.shape(mask) not in (shape, shape[1:]):
            raise DataError(f"mask must have shape {shape} or {shape[1:]}, got {np.shape(mask)}.")
        return rows, np.column_stack([np.broadcast_to(mask, shape), np.ones(len(rows), bool)])
