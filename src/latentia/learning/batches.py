"""Where batches come from: examples on the device, or streamed from a memory map.

The order is a stream without end: one permutation of the rows after another, cut into batches. It depends on
the seed and the step alone, so that an interrupted run finds its place again.
"""

from __future__ import annotations

import math
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

from latentia.core.sharding import place
from latentia.ops.examples import Examples
from latentia.ops.mapped import is_mapped as is_mapped

#: Larger arrays stay on the host and are streamed.
DEVICE_BYTES = 2 * 1024**3
#: Arrays up to this size lie on the device with room for more rows: see :func:`_roomy`.
ROOMY_BYTES = 16 * 1024**2
LEAST_ROWS = 256
#: What one streamed chunk may take.
CHUNK_BYTES = 64 * 1024**2


class RowOrder:
    """The endless stream of row numbers."""

    def __init__(self, n_rows: int, batch_size: int, seed: int):
        self.n_rows, self.batch_size, self.seed = n_rows, batch_size, seed
        self._epochs: dict[int, np.ndarray] = {}

    def _epoch(self, epoch: int) -> np.ndarray:
        if epoch not in self._epochs:
            if len(self._epochs) > 4:
                self._epochs.clear()
            self._epochs[epoch] = np.random.default_rng([self.seed, epoch]).permutation(self.n_rows)
        return self._epochs[epoch]

    def first(self, n: int) -> np.ndarray:
        """The numbers of the first ``n`` rows of the first epoch (or all)."""
        return np.random.default_rng([self.seed, 0]).permutation(self.n_rows)[:n]

    def rows(self, first_step: int, n_steps: int) -> np.ndarray:
        """Row numbers ``(n_steps, batch_size)`` of the given steps."""
        start, stop = first_step * self.batch_size, (first_step + n_steps) * self.batch_size
        epochs = range(start // self.n_rows, math.ceil(stop / self.n_rows))
        stream = np.concatenate([self._epoch(e) for e in epochs])
        offset = start - epochs[0] * self.n_rows
        return stream[offset : offset + stop - start].reshape(n_steps, self.batch_size).astype(np.int32)


def read_rows(X: Any, rows: np.ndarray) -> Any:
    """Rows of examples (or of one array of them) as float32, in memory."""
    return Examples.of(X).read(rows)


def _roomy(array: np.ndarray) -> np.ndarray:
    """The array, if it is small, with zeros after it up to a power of two rows: nobody reads them.

    A loop is compiled for the shape of its data; so one serves all the folds of a cross-validation, whose numbers
    of rows differ by one.
    """
    n_rows = array.shape[0]
    room = max(LEAST_ROWS, 1 << (n_rows - 1).bit_length()) - n_rows
    if array.nbytes > ROOMY_BYTES:
        return array
    return np.concatenate([array, np.zeros((room, *array.shape[1:]), array.dtype)])


class Batches:
    """Chunks of batches for the training loop, from the device or streamed.

    Args:
        X: the examples.
        weights: one weight per row (averaging to one), or None.
        batch_size: rows of a batch.
        seed: order of the rows.
        mesh: where batches go.
    """

    def __init__(self, X: Any, weights: np.ndarray | None, batch_size: int, seed: int, mesh: Mesh):
        self.X = X if isinstance(X, Examples) else Examples(X)
        self.weights, self.mesh = weights, mesh
        self.order = RowOrder(self.X.n, batch_size, seed)
        self.streamed = self.X.in_file or self.X.nbytes > DEVICE_BYTES
        self._pool = ThreadPoolExecutor(1) if self.streamed else None
        self._next: tuple[tuple[int, int], Future] | None = None
        #: The most steps that one chunk may hold.
        self.most_steps = max(1, CHUNK_BYTES // (4 * self.X.n_columns * batch_size)) if self.streamed else 1 << 30
        if not self.streamed:
            self._data = jax.tree.map(lambda leaf: place(_roomy(leaf), mesh), self.X.read_all())
            self._weights = None if weights is None else place(_roomy(weights), mesh)

    def chunk(self, first_step: int, n_steps: int) -> tuple[Any, Any, Any]:
        """(data, weights, rows) for the compiled loop; rows is None when data are the batches themselves."""
        if not self.streamed:
            return self._data, self._weights, place(self.order.rows(first_step, n_steps), self.mesh, 1)
        asked = (first_step, n_steps)
        ready = self._next[1] if self._next is not None and self._next[0] == asked else self._submit(asked)
        batches, weights = ready.result()
        following = (first_step + n_steps, n_steps)
        self._next = (following, self._submit(following))  # read the next chunk while this one computes
        return batches, weights, None

    def release(self, data: Any, weights: Any) -> None:
        """Free a chunk that has been used, now and not when Python's collector comes by."""
        if self.streamed:
            for leaf in jax.tree.leaves((data, weights)):
                leaf.delete()

    def _submit(self, asked: tuple[int, int]) -> Future:
        assert self._pool is not None
        return self._pool.submit(self._read, *asked)

    def _read(self, first_step: int, n_steps: int) -> tuple[Any, Any]:
        rows = self.order.rows(first_step, n_steps)
        weights = None if self.weights is None else place(self.weights[rows], self.mesh, 1)
        return jax.tree.map(lambda leaf: place(leaf, self.mesh, 1), self.X.read(rows)), weights

    def sample(self, n: int) -> Any:
        """The first rows of the order, for starting values."""
        return self.X.read(self.order.first(n))

    def close(self) -> None:
        """Stop reading ahead."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
