"""Accepted data, and their conversion to :class:`~latentia.ops.examples.Examples`.

Every estimator takes rows of numbers: NumPy arrays, data frames (pandas, polars), lists of lists, tensors of
PyTorch on the CPU, and memory maps, which are streamed. Other data that it takes are listed in ``accepts``: sparse
matrices, which stay sparse; images ``(n, h, w[, c])``; several parts by name or in order; sequences of unequal
length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from scipy.sparse import issparse
from sklearn.utils.validation import check_array, validate_data

from latentia.core.errors import DataError, ParameterError
from latentia.ops.examples import Examples, padded
from latentia.ops.mapped import MappedRows, flattened, is_mapped

#: What an estimator may take besides rows of numbers.
DataKind = Literal["sparse", "images", "parts", "sequences"]


def accept(estimator: Any, X: Any, *, reset: bool) -> Examples:
    """The data as examples of float32, checked; ``reset`` for data to learn from anew.

    Args:
        estimator: the estimator; its ``accepts`` lists what it takes.
        X: the user's data.
        reset: whether the number of features is learned from the data, or checked.
    """
    if isinstance(X, Examples):  # checked like anything else
        found = accept(estimator, X.data.parts, reset=reset)
        return Examples(found.parts, X.item_shape or found.item_shape)
    if isinstance(X, Mapping) and not issparse(X):
        return _parts(estimator, X, reset=reset)
    data: Any = _detached(X)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes) and len(data):
        if isinstance(data, tuple) and "parts" in estimator.accepts and all(np.ndim(part) == 2 for part in data):
            return _parts(estimator, _by_order(estimator, data), reset=reset)
        if _is_ragged(data):
            return _sequences(estimator, data)
        data = np.asarray(data)
    if not issparse(data) and getattr(data, "ndim", 2) in (3, 4):
        return _images(estimator, data, reset=reset)
    return Examples(_rows(estimator, data, reset=reset))


def _detached(X: Any) -> Any:
    """A tensor of PyTorch as an array that shares its memory; anything else as it is."""
    if type(X).__module__.partition(".")[0] != "torch":
        return X
    if X.device.type != "cpu":
        raise DataError(f"X is a tensor on {X.device}. Move it to the CPU first: X.cpu().")
    return X.detach().numpy()


def _rows(estimator: Any, X: Any, *, reset: bool) -> Any:
    """A matrix (dense or sparse) of float32, or a memory map of numbers."""
    if isinstance(X, np.memmap | MappedRows) and is_mapped(X):
        return _mapped(estimator, X, reset=reset)
    shape: Any = {
        "order": "C",
        "ensure_min_samples": 2 if reset else 1,
        "accept_sparse": "csr" if "sparse" in estimator.accepts else False,
    }
    data: Any = X
    return _single(validate_data(estimator, data, reset=reset, dtype=[np.float64, np.float32], **shape), "X")


def _single(X: Any, name: str) -> Any:
    with np.errstate(over="ignore"):
        single = X.astype(np.float32)
    if not np.isfinite(single.data if issparse(single) else single).all():
        raise DataError(f"{name} has values beyond the range of float32 (about 3.4e38). Scale the data first.")
    return single


def _mapped(estimator: Any, X: Any, *, reset: bool) -> Any:
    """A memory map, checked block by block without reading it into memory as a whole."""
    if X.ndim != 2 or X.shape[0] < 2 or X.shape[1] < 1 or X.dtype.kind not in "fiub":
        raise DataError(f"A memory map must be a numeric matrix with at least 2 rows, got {X.dtype}{X.shape}.")
    if reset:
        estimator.n_features_in_ = int(X.shape[1])
    elif X.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} expects {estimator.n_features_in_}."
        )
    for rows in Examples(X).blocks():
        if not np.isfinite(rows).all():
            raise DataError("The memory map contains NaN or infinity. Clean the data before fitting.")
    return X


# -- images --------------------------------------------------------------------------------------------------


def _images(estimator: Any, X: Any, *, reset: bool) -> Examples:
    """Images as rows of pixels, with the shape of the images."""
    if "images" not in estimator.accepts:
        raise DataError(
            f"X has {X.ndim} dimensions, but {type(estimator).__name__} takes one row of numbers for each example. "
            "Flatten the examples: X.reshape(len(X), -1)."
        )
    shape = tuple(int(side) for side in X.shape[1:])
    if 0 in X.shape:
        raise DataError(f"X has shape {X.shape}: there are no pixels in it.")
    return Examples(_rows(estimator, flattened(X), reset=reset), shape)


# -- sequences -----------------------------------------------------------------------------------------------


def _is_ragged(X: Sequence[Any]) -> bool:
    """Whether the items are arrays of unequal shapes."""
    shapes = {np.shape(each) for each in X if isinstance(each, np.ndarray | Sequence) and not isinstance(each, str)}
    return len(shapes) > 1


def _sequences(estimator: Any, X: Sequence[Any]) -> Examples:
    name = type(estimator).__name__
    if "sequences" in estimator.accepts:
        return Examples(padded(X))
    if all(np.ndim(each) in (2, 3) for each in X):
        sizes = " and ".join(str(size) for size in sorted({np.shape(each) for each in X})[:2])
        raise DataError(f"X holds arrays of unequal size ({sizes}), but {name} needs examples of equal size.")
    lengths = sorted({len(each) if np.ndim(each) else 0 for each in X})
    raise DataError(
        f"The rows of X have unequal lengths ({lengths[0]} to {lengths[-1]}), but {name} needs equal ones."
    )


# -- several parts -------------------------------------------------------------------------------------------


def _by_order(estimator: Any, X: tuple[Any, ...]) -> dict[str, Any]:
    names = list(estimator.part_sizes(None))
    if len(X) != len(names):
        raise DataError(f"X has {len(X)} parts, but {type(estimator).__name__} has {len(names)}: {_listed(names)}.")
    return dict(zip(names, X, strict=True))


def _parts(estimator: Any, X: Mapping[str, Any], *, reset: bool) -> Examples:
    """Parts by name, in the order of the estimator; a missing one is None."""
    if "parts" not in estimator.accepts:
        raise DataError(
            f"X is a mapping of {len(X)} parts, but {type(estimator).__name__} takes one matrix. Put the parts "
            "side by side: np.column_stack(list(X.values()))."
        )
    sizes = estimator.part_sizes(None if reset else estimator.n_features_in_)
    if sizes is None:
        raise ParameterError("Data given by name need modalities={name: number of columns, …}.")
    unknown = [name for name in X if name not in sizes]
    if unknown or not X:
        known = _listed(sizes)
        raise DataError(f"The data contain the parts {unknown or 'none'}; this model has {known}.")
    lacking = [name for name in sizes if name not in X]
    if lacking and reset:
        raise DataError(f"The data lack {_listed(lacking)}; only a fitted model can fill in missing parts.")
    lengths = {len(part) for part in X.values()}
    if len(lengths) > 1:
        raise DataError(f"The modalities have different numbers of rows: {sorted(lengths)}.")
    found = tuple(_part(name, X.get(name), size) for name, size in sizes.items())
    if reset:
        estimator.n_features_in_ = sum(sizes.values())
        vars(estimator).pop("feature_names_in_", None)
    return Examples(found)


def _part(name: str, values: Any, n_columns: int) -> Any:
    if values is None:
        return None
    try:
        types: Any = [np.float64, np.float32]
        matrix = check_array(_detached(values), dtype=types, order="C")
    except ValueError as error:
        shape = np.shape(values)
        raise DataError(
            f"Modality {name!r} must be a finite matrix of {n_columns} columns, got shape {shape}: {error}"
        ) from error
    if matrix.shape[1] != n_columns:
        raise DataError(
            f"Modality {name!r} must be a finite matrix of {n_columns} columns, got shape {matrix.shape}."
        )
    return _single(matrix, f"Modality {name!r}")


def _listed(names: Any) -> str:
    return ", ".join(map(repr, names))
