"""Pieces of signals on the host: memory stays bounded however many there are, and codes leave as CSR rows.

Every piece is worked on by one thread from its signals to its codes: correlations with the atoms, the solver,
packing. The kernels hold no lock of Python's, so that plain threads run them side by side; a kernel handles one
signal at a time, so that its code is the same in any piece, beside any other signal and in any thread, to the last
bit.
"""

from __future__ import annotations

import functools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from latentia.core.errors import DataError, ParameterError

#: Bytes of the working arrays of one piece, and the most signals in one.
PIECE_BYTES = 1 << 24
PIECE_ROWS = 512
#: Atoms whose columns stay in the cache while signals pass by.
PANEL = 256


@dataclass(frozen=True)
class Block:
    """Room for one piece of signals and its results; solvers fill it row by row.

    Attributes:
        x: the signals: an array or a CSR matrix.
        correlations: x with every atom (of norm 1), (rows, K), float64; solvers may overwrite it.
        squares: ‖x‖² of every signal.
        index: numbers of the atoms in use, (rows, K); the first ``counts`` of each row are filled.
        value: their coefficients.
        counts: how many atoms each signal uses.
        gaps: relative duality gaps.
        n_iter: iterations.
        converged: whether the signal is solved.
    """

    x: Any
    correlations: np.ndarray
    squares: np.ndarray
    index: np.ndarray
    value: np.ndarray
    counts: np.ndarray
    gaps: np.ndarray
    n_iter: np.ndarray
    converged: np.ndarray

    @classmethod
    def make(cls, rows: int, n_atoms: int) -> Block:
        """Room for so many signals."""
        return cls(
            None,
            np.empty((rows, n_atoms)),
            np.empty(rows),
            np.empty((rows, n_atoms), np.int64),
            np.empty((rows, n_atoms)),
            np.zeros(rows, np.int64),
            np.empty(rows),
            np.zeros(rows, np.int64),
            np.zeros(rows, np.bool_),
        )

    @property
    def results(self) -> tuple[np.ndarray, ...]:
        """(index, value, counts, gaps, n_iter, converged)."""
        return self.index, self.value, self.counts, self.gaps, self.n_iter, self.converged

    def holding(self, x: Any) -> Block:
        """The first rows, with these signals."""
        return Block(x, *(part[: x.shape[0]] for part in list(vars(self).values())[1:]))


#: What a solver is here: it fills in the results of a piece; the slice says which signals it holds.
Solver = Callable[[Block, slice], None]


def count_threads(n_threads: int | None) -> int:
    """How many threads to use; None: as many as there are cores for this process."""
    if n_threads is None:
        return len(os.sched_getaffinity(0)) if "sched_getaffinity" in dir(os) else os.cpu_count() or 1
    if not isinstance(n_threads, (int, np.integer)) or isinstance(n_threads, bool) or n_threads < 1:
        raise ParameterError(f"n_threads must be a positive integer or None, got {n_threads!r}.")
    return int(n_threads)


def columns(D: np.ndarray) -> np.ndarray:
    """The dictionary with atoms in columns, float64, as :func:`correlate` reads it: in panels of up to 256 atoms.

    (panels, features rounded up to a multiple of four, atoms of a panel), zeros beyond.
    """
    K, d = D.shape
    panels = math.ceil(K / PANEL)
    width = 8 * math.ceil(math.ceil(K / panels) / 8)
    out = np.zeros((panels, 4 * math.ceil(d / 4), width))
    for p in range(panels):
        part = D[p * width : (p + 1) * width]
        out[p, :d, : len(part)] = part.T
    return out


def correlate(x: Any, atoms: np.ndarray, out: np.ndarray, squares: np.ndarray) -> None:
    """out = x @ atoms and squares = ‖x‖² for dense or sparse signals; out has a row for each."""
    from latentia.inference.sparse import _kernels_shared as kernels

    if sp.issparse(x):
        kernels.correlate_sparse(x.data, x.indices, x.indptr, atoms, out, squares)
    else:
        kernels.correlate(np.ascontiguousarray(x), atoms, out, squares)


def gram_matrix(D: np.ndarray, atoms: np.ndarray, *, n_threads: int = 1) -> np.ndarray:
    """DDᵀ in float64, by the same arithmetic as the correlations."""
    K = len(D)
    out, squares = np.empty((K, K)), np.empty(K)

    def fill(rows: slice) -> None:
        correlate(D[rows], atoms, out[rows], squares[rows])

    for _ in in_threads(fill, pieces(K, 64), n_threads):
        pass
    return out


def pieces(n: int, rows: int) -> list[slice]:
    """n in slices of so many."""
    return [slice(start, min(n, start + rows)) for start in range(0, n, rows)]


def in_threads(work: Callable[[slice], Any], parts: list[slice], n_threads: int) -> Iterator[Any]:
    """The results of the parts in their order, worked on by so many threads, never far ahead of what is read."""
    if n_threads == 1 or len(parts) == 1:
        yield from map(work, parts)
        return
    pool, waiting = _pool(n_threads), deque()
    try:
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > 4 * n_threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:  # left early by an error: nothing of this call may go on in the background
        wait([task for task in waiting if not task.cancel()])


@functools.cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    """Threads that stay: to start them anew takes as long as a small batch."""
    return ThreadPoolExecutor(n_threads, thread_name_prefix="latentia-sparse")


if "register_at_fork" in dir(os):
    os.register_at_fork(after_in_child=_pool.cache_clear)  # a child has the pool, but not its threads


def solve_all(
    X: Any, atoms: np.ndarray, n_atoms: int, solve: Solver, *, dtype: Any, output: str, n_threads: int
) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray]:
    """Solve piece after piece; returns the codes, gaps, iterations and what converged.

    Args:
        X: signals, (n, d): an array or a CSR matrix.
        atoms: the scaled dictionary with atoms in columns (:func:`columns`).
        n_atoms: K.
        solve: fills in the results of a piece whose correlations are known.
        dtype: of the codes.
        output: "csr" or "dense".
        n_threads: how many threads.
    """
    n, K = X.shape[0], n_atoms
    most = max(8, min(PIECE_ROWS, PIECE_BYTES // (24 * K)))
    rows_each = min(most, max(32, -(-n // (4 * n_threads))))
    gaps, n_iter, converged = np.empty(n), np.empty(n, np.int64), np.empty(n, np.bool_)
    dense = np.zeros((n, K), dtype) if output == "dense" else None
    counts = np.zeros(n + 1, np.int64)
    own = threading.local()

    def work(rows: slice) -> tuple[slice, np.ndarray, np.ndarray]:
        if "room" not in vars(own):
            own.room = Block.make(rows_each, K)
        block = own.room.holding(X[rows])
        correlate(block.x, atoms, block.correlations, block.squares)
        _check_finite(block.squares, rows.start)
        solve(block, rows)
        counts[rows.start + 1 : rows.stop + 1] = block.counts
        gaps[rows], n_iter[rows], converged[rows] = block.gaps, block.n_iter, block.converged
        return rows, *_packed(block, dtype)

    found = []
    for rows, indices, data in in_threads(work, pieces(n, rows_each), n_threads):
        if dense is None:
            found.append((indices, data))
        else:
            dense[np.repeat(np.arange(rows.start, rows.stop), counts[rows.start + 1 : rows.stop + 1]), indices] = (
                data
            )
    codes = _csr(found, np.cumsum(counts), (n, K), dtype) if dense is None else dense
    return codes, gaps, n_iter, converged


def _check_finite(squares: np.ndarray, first: int) -> None:
    bad = ~np.isfinite(squares)
    if bad.any():
        raise DataError(
            f"Signal {first + int(np.argmax(bad))} holds NaN, infinite or enormous numbers; sparse codes need "
            "finite ones. Drop or repair such rows first."
        )


def unpack(z: Any, block: Block) -> None:
    """Put codes in CSR form into a piece, as points to start from."""
    from latentia.inference.sparse import _kernels_shared as kernels

    indptr, indices, data = z.indptr.astype(np.int64), z.indices.astype(np.int64), z.data.astype(np.float64)
    kernels.unpack(indptr, indices, data, block.index, block.value, block.counts)


def _packed(block: Block, dtype: Any) -> tuple[np.ndarray, np.ndarray]:
    """(indices, data) of the codes of a piece, one row after the other."""
    from latentia.inference.sparse import _kernels_shared as kernels

    total = int(block.counts.sum())
    indices, data = np.empty(total, np.int32), np.empty(total)
    kernels.pack(block.index, block.value, block.counts, indices, data)
    return indices, data.astype(dtype, copy=False)


def _csr(found: list[tuple[np.ndarray, np.ndarray]], indptr: np.ndarray, shape: tuple[int, int], dtype: Any) -> Any:
    kind = np.int32 if indptr[-1] < np.iinfo(np.int32).max else np.int64
    indices = np.concatenate([i for i, _ in found] or [np.empty(0, np.int32)])
    values = [v for _, v in found]
    found.clear()  # what is joined is let go before the other half is
    data = np.concatenate(values or [np.empty(0, dtype)])
    return sp.csr_array((data, indices.astype(kind, copy=False), indptr.astype(kind)), shape=shape)
