"""Rows of a memory-mapped file, read from the file itself."""

from __future__ import annotations

import math
import mmap
import os
from typing import Any

import numpy as np

from latentia.core.errors import DataError


class MappedRows:
    """Some rows of a memory map, which stay in their file until they are read.

    Args:
        source: the memory map.
        rows: numbers of the rows, in increasing order.
    """

    def __init__(self, source: np.ndarray, rows: np.ndarray):
        self.source, self.rows = source, rows
        self.shape, self.ndim, self.dtype = (rows.size, *source.shape[1:]), source.ndim, source.dtype
        self.nbytes = math.prod(self.shape) * self.dtype.itemsize

    @classmethod
    def of(cls, source: Any, rows: np.ndarray) -> MappedRows:
        """Rows of a memory map, or of some rows of one."""
        return cls(source.source, source.rows[rows]) if isinstance(source, cls) else cls(source, rows)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them in memory."""
        del copy
        return np.asarray(self.source[self.rows], dtype)


def is_mapped(X: Any) -> bool:
    """Whether an array is a memory map of a whole file (a slice of one does not store where it starts), or rows of
    one."""
    if isinstance(X, MappedRows):
        return True
    return isinstance(X, np.memmap) and isinstance(X.base, mmap.mmap) and X.filename is not None


def flattened(X: np.ndarray) -> np.ndarray:
    """Each row of an array as a vector; a memory map stays one of a whole file, which a reshaped one is not."""
    shape = (len(X), int(np.prod(X.shape[1:])))
    if is_mapped(X) and X.flags.c_contiguous:
        found: Any = X
        return np.memmap(found.filename, dtype=X.dtype, mode="r", offset=found.offset, shape=shape)
    return X.reshape(shape)


def read_file(X: Any, rows: np.ndarray) -> np.ndarray:
    """Rows, sorted, straight from the file of a memory map.

    Going through the map would be simpler, but the kernel maps many pages around each row that is touched, and
    mapped pages count as the process's memory until they hold the whole file.
    """
    out = np.empty((rows.size, *X.shape[1:]), X.dtype)
    row_bytes = out.strides[0]
    runs = np.split(np.arange(rows.size), np.flatnonzero(np.diff(rows) != 1) + 1)
    target: Any = out.reshape(rows.size, -1).view(np.uint8)
    with open(X.filename, "rb", buffering=0) as file:
        for run in runs:
            if run.size == 0:
                continue
            wanted = target[run[0] : run[-1] + 1]
            got = os.preadv(file.fileno(), [wanted], X.offset + int(rows[run[0]]) * row_bytes)
            if got != run.size * row_bytes:
                raise DataError(
                    f"{X.filename} ended before row {rows[run[-1]]}: it was cut off while it was in use."
                )
    return out
