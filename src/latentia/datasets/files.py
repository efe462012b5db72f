"""A user's own data from one file: ``.npy``, ``.npz``, ``.safetensors``, ``.csv`` or ``.parquet``.

No code in a file is executed: numpy reads with ``allow_pickle=False``. Arrays of pictures,
(n, h, w) or (n, h, w, 3), are flattened to rows and remembered as images.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from latentia.core.errors import DataError, FileFormatError, ParameterError
from latentia.datasets.base import Dataset, Domain, check_domain_name, find_domain, row_blocks
from latentia.datasets.formats import damaged
from latentia.ops.mapped import flattened

MMAP_BYTES = 256 * 1024**2

# Accepted names of the arrays in a file of several, in order of preference.
_NAMES = {
    "X": ("X", "x", "data", "images", "train", "X_train", "x_train", "train_images"),
    "y": ("y", "labels", "target", "y_train", "train_labels"),
    "X_test": ("X_test", "x_test", "test", "test_images", "images_test"),
    "y_test": ("y_test", "test_labels", "labels_test"),
}


def open_memmap(path: str | Path) -> np.ndarray:
    """Open a ``.npy`` file as a read-only array that stays on disk until it is looked at."""
    return _read_npy(Path(path), mmap=True)


def load_npy(
    path: Path,
    *,
    mmap: bool | None = None,
    scale: float | None = None,
    domain: Domain | None = None,
    allow_nan: bool = False,
) -> Dataset:
    """One array. ``mmap=None`` leaves files above 256 MB on disk; ``domain`` saves the scan for it."""
    on_disk = _read_npy(path, mmap=True)
    factor = _scale_factor(on_disk, scale, path)
    large = on_disk.nbytes > MMAP_BYTES
    if mmap and factor != 1:
        raise ParameterError(
            f"{path}: a memory-mapped array cannot be divided by {factor:g}. Save it as float32 with values "
            "in [0, 1], pass scale=1 to take the values as they are, or pass mmap=False."
        )
    if mmap or (mmap is None and large and factor == 1):
        rows, image_shape = _as_rows(on_disk, path)
        note = f"memory-mapped, {rows.dtype}"
    else:
        rows, image_shape, note = _convert(_read_npy(path, mmap=False), factor, path)
    return Dataset(
        name=path.stem,
        X=rows,
        image_shape=image_shape,
        domain=settle_domain(rows, domain, allow_nan, path),
        description=f"{path.name}: {rows.shape[0]} rows, {note}; no split.",
    )


def load_npz(
    path: Path,
    *,
    key: str | None = None,
    scale: float | None = None,
    domain: Domain | None = None,
    allow_nan: bool = False,
) -> Dataset:
    """Several arrays: ``X`` (or ``key``), and where present ``y``, ``X_test`` and ``y_test``."""
    try:
        # numpy leaves a file open that it opened itself and then found damaged.
        with path.open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            single = isinstance(archive, np.ndarray)
            arrays = {} if single else {name: archive[name] for name in archive.files}
    # Damage shows in several ways; pickled objects arrive as ValueError.
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, NotImplementedError) as error:
        raise _unreadable(path, error) from error
    if single:
        raise FileFormatError(f"{path} is a single array under another name. Rename it to .npy.")
    return _from_arrays(path, arrays, key, scale, domain, allow_nan)


def load_safetensors(
    path: Path,
    *,
    key: str | None = None,
    scale: float | None = None,
    domain: Domain | None = None,
    allow_nan: bool = False,
) -> Dataset:
    """Several arrays, named as in ``.npz``."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        arrays = load_file(path)
    except SafetensorError as error:
        raise damaged(path, error) from error
    except (KeyError, AttributeError, TypeError) as error:  # a dtype that numpy does not have
        raise FileFormatError(
            f"{path} holds a number type that NumPy lacks ({error}). Save the tensors as float32."
        ) from error
    return _from_arrays(path, arrays, key, scale, domain, allow_nan)


def _read_npy(path: Path, *, mmap: bool) -> np.ndarray:
    try:
        array = np.load(path, mmap_mode="r" if mmap else None, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise _unreadable(path, error) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise FileFormatError(f"{path} is an .npz archive under another name. Rename it to .npz.")
    return array


def _unreadable(path: Path, error: Exception) -> FileFormatError:
    objects = ("pickle", "Object arrays", "Python objects")  # numpy's three ways to say it
    if isinstance(error, ValueError) and any(word in str(error) for word in objects):
        return FileFormatError(
            f"{path} holds pickled Python objects (or is no NumPy file), and those are not loaded because "
            "they can execute code. Save plain arrays of numbers, all rows of the same length."
        )
    return damaged(path, error)


def _from_arrays(
    path: Path,
    arrays: Mapping[str, np.ndarray],
    key: str | None,
    scale: float | None,
    domain: Domain | None,
    allow_nan: bool,
) -> Dataset:
    chosen = _choose_key(path, arrays, key)
    factor = _scale_factor(arrays[chosen], scale, path)
    rows, image_shape, note = _convert(arrays[chosen], factor, path)
    settled = settle_domain(rows, domain, allow_nan, path)
    test = None
    if (test_key := _first(arrays, "X_test")) and test_key != chosen:
        test, _, _ = _convert(arrays[test_key], factor, path)
        # The held-out part decides too: a model of binary data must not meet other values there.
        settled = _wider(settled, settle_domain(test, domain, allow_nan, path))
    return Dataset(
        name=path.stem,
        X=rows,
        y=_labels(arrays, "y"),
        X_test=test,
        y_test=_labels(arrays, "y_test") if test is not None else None,
        image_shape=image_shape,
        domain=settled,
        description=f"{path.name}, array {chosen!r}: {len(rows)} rows, {note}; "
        + (f"test part {test_key!r} as stored." if test is not None else "no split."),
    )


def _first(arrays: Mapping[str, np.ndarray], role: str) -> str | None:
    return next((name for name in _NAMES[role] if name in arrays), None)


def _labels(arrays: Mapping[str, np.ndarray], role: str) -> np.ndarray | None:
    name = _first(arrays, role)
    if name is None:
        return None
    labels = arrays[name]
    return labels.ravel() if labels.ndim == 2 and labels.shape[1] == 1 else labels


def _choose_key(path: Path, arrays: Mapping[str, np.ndarray], key: str | None) -> str:
    names = ", ".join(map(repr, arrays)) or "none"
    if key is not None:
        if key not in arrays:
            raise ParameterError(f"{path} has no array {key!r}. It holds: {names}.")
        return key
    found = _first(arrays, "X")
    if found:
        return found
    if len(arrays) == 1:
        return next(iter(arrays))
    raise DataError(
        f"{path} does not say which array holds the examples. It holds: {names}. Name one of them X, or pass key=…"
    )


def _scale_factor(array: np.ndarray, scale: float | None, path: Path) -> float:
    """What to divide by: as given, else 255 for pictures of bytes, else 1."""
    if scale is None:
        pictures = array.dtype == np.uint8 and array.ndim in (3, 4) and array.size > 0
        if not pictures:
            return 1.0
        blocks = row_blocks(flattened(array))
        return 255.0 if any(int(values.max()) > 1 for _, values in blocks) else 1.0  # 0 and 1 are binary already
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale < np.inf:
        raise ParameterError(f"{path}: scale must be a positive number to divide by, got {scale!r}.")
    return float(scale)


def _as_rows(array: np.ndarray, path: Path) -> tuple[np.ndarray, tuple[int, ...] | None]:
    if array.dtype.kind not in "buif":
        raise DataError(f"{path} holds values of type {array.dtype}, not real numbers. Encode them as numbers.")
    if array.ndim == 2:
        return array, None
    if array.ndim == 3 or (array.ndim == 4 and array.shape[3] in (1, 3)):
        shape = array.shape[1:3] if array.ndim == 3 or array.shape[3] == 1 else array.shape[1:]
        return flattened(array), shape
    raise DataError(
        f"{path} holds an array of shape {array.shape}; expected rows (n, d), grey pictures (n, h, w) or "
        "colour pictures (n, h, w, 3). Reshape it before saving."
    )


def _convert(array: np.ndarray, factor: float, path: Path) -> tuple[np.ndarray, tuple[int, ...] | None, str]:
    rows, image_shape = _as_rows(array, path)
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite and is reported as such
        rows = rows.astype(np.float32, copy=False)
    if factor == 1:
        return rows, image_shape, "values as stored"
    return rows / np.float32(factor), image_shape, f"values divided by {factor:g}"


_ORDER = ("binary", "unit", "real")


def _wider(a: Domain, b: Domain) -> Domain:
    if a not in _ORDER or b not in _ORDER:
        return a
    return a if _ORDER.index(a) >= _ORDER.index(b) else b


def settle_domain(rows: np.ndarray, domain: Domain | None, allow_nan: bool, path: Path) -> Domain:
    """Return the requested domain if the values allow it, or the narrowest one that contains them."""
    if domain is not None:
        check_domain_name(domain)
        if isinstance(rows, np.memmap):
            return domain  # given by the caller; a scan would read the whole file
    if rows.size == 0:
        raise DataError(f"{path} is empty (shape {rows.shape}). Give at least one example.")
    found = find_domain(rows, source=str(path), allow_nan=allow_nan)
    if domain is None:
        return found
    if domain in _ORDER and _ORDER.index(found) > _ORDER.index(domain):
        raise DataError(
            f"{path}: domain={domain!r} was requested, but the values are {found!r}. Drop the option or "
            "transform the data (scale=… divides them)."
        )
    if domain in ("spin", "nonnegative", "count", "simplex"):
        from latentia.core.space import Space  # on use: it brings JAX

        leaf = Space(domain, (rows.shape[1],))
        for part, values in row_blocks(rows):
            leaf.check(
                np.where(np.isnan(values), leaf.filler[None], values) if domain != "simplex" else values,
                fix=f"{path}: domain={domain!r} was requested; drop the option or transform the data.",
                first=(part.start, 0),
            )
    return domain
