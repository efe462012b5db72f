"""The data set record that every loader returns, and the checks that all of them share.

Rows are examples. ``X`` is always two-dimensional; ``image_shape`` is the shape of the picture in
a row, and ``domain`` determines which models fit: a domain of :data:`latentia.core.domains.KINDS`, or
``"unit"`` for values between 0 and 1.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np

from latentia.core import domains
from latentia.core.errors import DataError, ParameterError
from latentia.ops.mapped import is_mapped, read_file

Domain = Literal["unit"] | domains.Domain
DOMAINS: tuple[str, ...] = ("unit", *domains.KINDS)

# Scans and conversions go through the rows in pieces of about this many values, so that a
# memory-mapped file never has to fit into memory.
_CHUNK_VALUES = 1 << 22


@dataclasses.dataclass(frozen=True)
class DatasetInfo:
    """One line of :func:`latentia.datasets.available`."""

    name: str
    description: str
    bundled: bool  # works offline, straight after installation


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples in rows, with the facts that a model or a picture needs.

    Arguments:
        name: the name it was loaded by (for a file: the file's name without its ending).
        X: training examples, shape (n, d), float32; a memory-mapped file keeps its own dtype.
        y: labels, one per row of ``X``, or None.
        X_test: held-out examples, shape (m, d), or None.
        y_test: labels of the held-out examples, or None.
        image_shape: ``(h, w)`` or ``(h, w, 3)`` when each row is a picture, in row-major order.
        domain: ``"unit"`` or one of :data:`latentia.core.domains.KINDS`.
        description: one line: source, split and scaling.
        feature_names: the names of the columns of ``X``, where the file has some.
    """

    name: str
    X: np.ndarray
    y: np.ndarray | None = None
    X_test: np.ndarray | None = None
    y_test: np.ndarray | None = None
    image_shape: tuple[int, ...] | None = None
    domain: Domain = "real"
    description: str = ""
    feature_names: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        _check_rows(self.name, "X", self.X, "y", self.y)
        if self.X_test is not None:
            _check_rows(self.name, "X_test", self.X_test, "y_test", self.y_test)
            if self.X_test.shape[1] != self.X.shape[1]:
                raise DataError(
                    f"Data set {self.name!r}: X has {self.X.shape[1]} columns but X_test has "
                    f"{self.X_test.shape[1]}. Both parts must describe the same features."
                )
        elif self.y_test is not None:
            raise DataError(f"Data set {self.name!r} has y_test without X_test. Give both or neither.")
        if self.image_shape is not None and math.prod(self.image_shape) != self.X.shape[1]:
            raise DataError(
                f"Data set {self.name!r}: image_shape {self.image_shape} needs "
                f"{math.prod(self.image_shape)} columns but X has {self.X.shape[1]}."
            )
        if self.feature_names is not None and len(self.feature_names) != self.X.shape[1]:
            raise DataError(
                f"Data set {self.name!r}: X has {self.X.shape[1]} columns but there are "
                f"{len(self.feature_names)} names. Each column needs one name."
            )
        check_domain_name(self.domain)

    def __repr__(self) -> str:
        test = "" if self.X_test is None else f", {len(self.X_test)} held out"
        image = "" if self.image_shape is None else f", images {'×'.join(map(str, self.image_shape))}"
        labels = "" if self.y is None else ", labelled"
        return f"<Dataset {self.name}: {self.X.shape[0]} × {self.X.shape[1]} {self.domain}{image}{labels}{test}>"

    def binarised(self, method: Literal["sample", "threshold"] = "sample", *, seed: int = 0) -> Dataset:
        """Return the same data with values 0 and 1; the description says how they were made.

        ``"sample"`` draws every value once as Bernoulli with its intensity as probability, from
        ``numpy.random.default_rng(seed)``, ``X`` before ``X_test``, row by row (a *fixed*
        binarisation). ``"threshold"`` checks whether the value exceeds one half. They are different
        tasks: a likelihood means nothing without the binarisation beside it.
        """
        if method not in ("sample", "threshold"):
            raise ParameterError(f"method must be 'sample' or 'threshold', got {method!r}.")
        if self.domain == "binary":
            return self
        if self.domain != "unit":
            raise DataError(
                f"Data set {self.name!r} has domain {self.domain!r}; only values between 0 and 1 "
                "can be read as probabilities. Scale them to [0, 1] first."
            )
        rng = np.random.default_rng(seed) if method == "sample" else None
        how = f"sampled once with default_rng({seed})" if method == "sample" else "thresholded at 1/2"
        return dataclasses.replace(
            self,
            X=_binarise(self.X, rng),
            X_test=None if self.X_test is None else _binarise(self.X_test, rng),
            domain="binary",
            description=f"{self.description.rstrip('.')}; binarised: {how}.",
        )


def _check_rows(name: str, key: str, rows: np.ndarray, label_key: str, labels: np.ndarray | None) -> None:
    if not isinstance(rows, np.ndarray) or rows.ndim != 2:
        raise DataError(
            f"Data set {name!r}: {key} must be a two-dimensional array (examples × features), "
            f"got {type(rows).__name__} of shape {np.shape(rows)}."
        )
    if 0 in rows.shape:
        raise DataError(f"Data set {name!r}: {key} is empty (shape {rows.shape}). Give at least one example.")
    if labels is not None and len(labels) != len(rows):
        raise DataError(
            f"Data set {name!r}: {key} has {len(rows)} rows but {label_key} has {len(labels)} labels. "
            "Each row needs one label."
        )


def _binarise(rows: np.ndarray, rng: np.random.Generator | None) -> np.ndarray:
    out = np.empty(rows.shape, np.float32)
    for part, values in row_blocks(rows):
        level = 0.5 if rng is None else rng.random(values.shape)
        out[part] = values > level
    return out


def check_domain_name(domain: str) -> None:
    """Raise unless ``domain`` is a known one."""
    if domain not in DOMAINS:
        raise ParameterError(f"domain must be one of {', '.join(map(repr, DOMAINS))}; got {domain!r}.")


def check_count(name: str, value: int, *, least: int = 1) -> None:
    """Raise unless ``value`` is a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, got {value!r}.")


def row_chunks(rows: np.ndarray) -> list[slice]:
    """Slices over the rows that hold a few million values each."""
    step = max(1, _CHUNK_VALUES // max(1, rows.shape[1]))
    return [slice(start, start + step) for start in range(0, len(rows), step)]


def row_blocks(rows: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:
    """Those slices and what they hold; of a memory map it is read from the file, see :mod:`latentia.ops.mapped`."""
    from_file = is_mapped(rows) and rows.flags.c_contiguous
    for part in row_chunks(rows):
        if from_file:
            yield part, read_file(rows, np.arange(part.start, min(part.stop, len(rows))))
        else:
            yield part, np.asarray(rows[part])


def find_domain(rows: np.ndarray, *, source: str, allow_nan: bool = False) -> Domain:
    """Say which domain the values lie in, and refuse values that are not finite."""
    binary = unit = True
    for part, values in row_blocks(rows):
        missing = ~np.isfinite(values)
        if missing.any():
            if not allow_nan or np.isinf(values).any():
                row, column = (int(i) for i in np.argwhere(missing)[0])
                raise DataError(
                    f"{source}: row {part.start + row}, column {column} (counted from 0) is "
                    f"{values[row, column]}. Fill in or drop missing and infinite values, or pass "
                    "allow_nan=True to keep NaN as the mark of a missing value."
                )
            values = values[~missing]
        unit = unit and bool(np.all((values >= 0) & (values <= 1)))
        binary = binary and unit and bool(np.all((values == 0) | (values == 1)))
    if binary:
        return "binary"
    return "unit" if unit else "real"
