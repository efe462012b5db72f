"""The input weights of a model: rows as wide as the data, read off the parameters without computing.

Notebooks draw them, because this is fast; reports draw them for models that cannot map a latent back to the data.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import numpy as np


def input_weights(estimator: Any) -> np.ndarray | None:
    """One row per filter, as wide as the data or as a filter; None where no parameter has such a shape.

    The estimator's own ``components_`` or ``filters_`` (which may be smaller than the data), else the first matrix
    of the model that has the data on one side.
    """
    for name in ("components_", "filters_"):
        found = getattr(estimator, name, None)
        if found is not None:
            rows = np.asarray(found, np.float32)
            return rows.reshape(len(rows), -1) if rows.ndim == 2 else rows
    n = estimator.n_features_in_
    for leaf in jax.tree.leaves(estimator.model_):
        shape = getattr(leaf, "shape", ())
        if len(shape) == 2 and n in shape and shape[0] != shape[1] and min(shape) > 0:
            array = np.asarray(leaf, np.float32)
            return array if shape[1] == n else array.T
    return None


def picture_shape(estimator: Any, n_columns: int | None = None) -> tuple[int, ...] | None:
    """How a row folds into a picture, as far as it can be known.

    What the model was built for; else a square of at least 6 × 6, unless the columns have names (no pixels).

    Args:
        estimator: a fitted estimator.
        n_columns: how wide the rows are; as wide as the data by default.
    """
    n = int(estimator.n_features_in_ if n_columns is None else n_columns)
    known = getattr(estimator, "blueprint_", {}).get("image_shape")
    if known and math.prod(known) == n and len(known) in (2, 3):
        return tuple(int(side) for side in known)
    side = math.isqrt(n)
    named = getattr(estimator, "feature_names_in_", None) is not None
    return (side, side) if side * side == n and side >= 6 and not named else None
