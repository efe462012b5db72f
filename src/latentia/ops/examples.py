"""Examples: the data of a fit, read row by row from memory or from files.

One example is a pytree of arrays: a vector, an image, a vector with a label, several modalities, a sequence with
its length. All examples together are the same pytree with one leading axis. A leaf may be an array in memory, a
memory map (or some rows of one), which is read from its file, or a sparse matrix, of which only the rows in use are
ever dense. A part that is None has not been observed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.sparse import issparse

from latentia.core.errors import DataError
from latentia.ops.mapped import MappedRows, is_mapped, read_file

#: Bytes per block in passes over all rows.
BLOCK_BYTES = 32 * 1024**2


#: Rows of the portions in which examples that lie in a file are scored.
PORTION = 16_384


class WithLabels(NamedTuple):
    """Parts of examples with a label each."""

    data: Any
    label: Any


def without_labels(parts: Any) -> Any:
    """The parts of examples but their labels."""
    return parts.data if isinstance(parts, WithLabels) else parts


class Examples:
    """n examples, each a pytree of arrays.

    Args:
        parts: a pytree whose leaves share their leading axis.
        item_shape: the shape that an example came with, where that was more than a vector (an image's).
    """

    def __init__(self, parts: Any, item_shape: tuple[int, ...] | None = None):
        self.parts, self.item_shape = parts, item_shape
        #: The parts that were observed, in the order of the pytree.
        self.leaves: list[Any] = jax.tree.leaves(parts)
        lengths = {int(leaf.shape[0]) for leaf in self.leaves}
        if len(lengths) != 1:
            raise DataError(
                f"All parts of the examples must have the same number of rows, got {sorted(lengths) or 'no part'}."
            )
        #: The number of examples, the numbers that each has, and the bytes that all take, dense and as float32.
        self.n = lengths.pop()
        self.n_columns = sum(math.prod(leaf.shape[1:]) for leaf in self.leaves)
        self.nbytes = 4 * self.n * self.n_columns
        #: Whether a part lies in a file, and whether one is a sparse matrix.
        self.in_file = any(isinstance(leaf, np.memmap | MappedRows) and is_mapped(leaf) for leaf in self.leaves)
        self.is_sparse = any(map(issparse, self.leaves))

    @classmethod
    def of(cls, data: Any) -> Examples:
        """Data as examples; examples stay what they are."""
        return data if isinstance(data, cls) else cls(data)

    def __len__(self) -> int:
        return self.n

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """All of them as one matrix, part after part."""
        del copy
        return np.asarray(side_by_side(self.read_all()), dtype)

    @property
    def shape(self) -> tuple[int, int]:
        """(examples, numbers of each)."""
        return self.n, self.n_columns

    def read(self, rows: np.ndarray) -> Any:
        """Some examples in memory: a pytree of dense float32 arrays; ``rows`` may have any shape."""
        return jax.tree.map(lambda leaf: read_leaf(leaf, rows), self.parts)

    def read_all(self) -> Any:
        """All examples in memory; arrays of float32 are not copied."""
        return jax.tree.map(_dense, self.parts)

    def take(self, rows: np.ndarray) -> Examples:
        """Some examples, in increasing order; those in a file stay there."""
        some = lambda leaf: MappedRows.of(leaf, rows) if is_mapped(leaf) else leaf[rows]  # noqa: E731
        return Examples(jax.tree.map(some, self.parts), self.item_shape)

    def blocks(self, n_bytes: int | None = None) -> Iterator[Any]:
        """All examples, block by block, as :meth:`read` gives them."""
        size = max(1, (n_bytes or BLOCK_BYTES) // (4 * max(1, self.n_columns)))
        for start in range(0, self.n, size):
            yield self.read(np.arange(start, min(start + size, self.n)))

    def portions(self) -> Iterator[Any]:
        """One portion after another, as :meth:`read` gives them."""
        for start in range(0, self.n, PORTION):
            yield self.read(np.arange(start, min(start + PORTION, self.n)))

    def check(self, check: Callable[..., None], **options: Any) -> None:
        """Check block by block; the check receives the position of the block as ``first``."""
        row = 0
        for block in self.blocks():
            check(block, first=(row, 0), **options)
            row += jax.tree.leaves(block)[0].shape[0]

    def map(self, function: Callable[[Any], Any]) -> Examples:
        """The examples with a function applied to every part that was observed."""
        return Examples(jax.tree.map(function, self.parts), self.item_shape)

    @property
    def data(self) -> Examples:
        """The examples without their labels."""
        return Examples(without_labels(self.parts), self.item_shape)

    def labelled(self, labels: np.ndarray) -> Examples:
        """The examples with a label each."""
        return Examples(WithLabels(self.parts, labels), self.item_shape)


def side_by_side(parts: Any) -> np.ndarray:
    """A pytree of arrays with one leading axis as one matrix, part after part.

    >>> side_by_side((np.zeros((2, 2)), np.ones(2))).tolist()
    [[0.0, 0.0, 1.0], [0.0, 0.0, 1.0]]
    """
    flat = [leaf.reshape(leaf.shape[0], -1) for leaf in jax.tree.leaves(parts)]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)


def read_leaf(leaf: Any, rows: np.ndarray) -> np.ndarray:
    """Rows of an array as float32; of a memory map they are read from its file, of a sparse matrix filled in."""
    if isinstance(leaf, MappedRows):
        return read_leaf(leaf.source, leaf.rows[rows])
    flat = rows.ravel()
    if issparse(leaf):
        out = np.asarray(leaf[flat].toarray(), np.float32)
    elif isinstance(leaf, np.memmap) and is_mapped(leaf) and leaf.flags.c_contiguous:
        order = np.argsort(flat, kind="stable")
        out = np.empty((flat.size, *leaf.shape[1:]), np.float32)
        out[order] = read_file(leaf, flat[order])
    else:
        out = np.asarray(leaf[flat], np.float32)
    return out.reshape(*rows.shape, *leaf.shape[1:])


def _dense(leaf: Any) -> np.ndarray:
    return np.asarray(leaf.toarray() if issparse(leaf) else leaf, np.float32)


def padded(sequences: Sequence[Any]) -> dict[str, np.ndarray]:
    """Sequences of unequal length as the parts "values", padded with zeros to the longest, and "length".

    >>> found = padded([np.ones((2, 1)), np.ones((3, 1))])
    >>> found["values"].shape, found["length"].tolist()
    ((2, 3, 1), [2.0, 3.0])
    """
    arrays = [np.asarray(each, np.float32) for each in sequences]
    arrays = [each[:, None] if each.ndim == 1 else each for each in arrays]
    if not arrays:
        raise DataError("There are no sequences.")
    for number, each in enumerate(arrays):
        if each.ndim != 2 or each.shape[1] != arrays[0].shape[1]:
            raise DataError(
                f"Every sequence must be a matrix (steps, features) of as many features as the first "
                f"({arrays[0].shape[-1]}); sequence {number} has shape {each.shape}."
            )
        if not len(each):
            raise DataError(f"Sequence {number} has length zero. Leave it out.")
        if not np.isfinite(each).all():
            raise DataError(f"Sequence {number} contains NaN or infinity. Clean the data before fitting.")
    values = np.zeros((len(arrays), max(map(len, arrays)), arrays[0].shape[1]), np.float32)
    for row, each in zip(values, arrays, strict=True):
        row[: len(each)] = each
    return {"values": values, "length": np.array([len(each) for each in arrays], np.float32)}
