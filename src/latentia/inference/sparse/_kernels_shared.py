"""Compiled pieces that all CPU solvers share: correlations of signals with atoms, and packing into CSR.

Correlations XDᵀ are computed here and not by a BLAS: a BLAS rounds differently for another number of rows or of
threads, and then the same signal would have another code in another batch. Here every entry is one fixed sequence
of fused multiply–adds over the features, whatever stands beside it. Four signals share each load of the dictionary,
and panels of it stay in the second-level cache, which makes it as fast as a BLAS at these shapes.
"""

from __future__ import annotations

import numpy as np

from latentia.inference.sparse.caching import njit

CONTRACT = {"contract", "nsz"}

#: Signals that are held while panels of the dictionary pass by.
ROWS = 64


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def _four_rows(x, at, atoms, out):
    """out = x[at : at + 4] @ atoms."""
    o0, o1, o2, o3 = out[0], out[1], out[2], out[3]
    for j in range(out.shape[1]):
        o0[j] = 0.0
        o1[j] = 0.0
        o2[j] = 0.0
        o3[j] = 0.0
    for k in range(0, atoms.shape[0], 4):
        a0, a1, a2, a3 = x[at, k], x[at, k + 1], x[at, k + 2], x[at, k + 3]
        b0, b1, b2, b3 = x[at + 1, k], x[at + 1, k + 1], x[at + 1, k + 2], x[at + 1, k + 3]
        c0, c1, c2, c3 = x[at + 2, k], x[at + 2, k + 1], x[at + 2, k + 2], x[at + 2, k + 3]
        e0, e1, e2, e3 = x[at + 3, k], x[at + 3, k + 1], x[at + 3, k + 2], x[at + 3, k + 3]
        t0, t1, t2, t3 = atoms[k], atoms[k + 1], atoms[k + 2], atoms[k + 3]
        for j in range(out.shape[1]):
            p, q, r, s = t0[j], t1[j], t2[j], t3[j]
            o0[j] = o0[j] + a0 * p + a1 * q + a2 * r + a3 * s
            o1[j] = o1[j] + b0 * p + b1 * q + b2 * r + b3 * s
            o2[j] = o2[j] + c0 * p + c1 * q + c2 * r + c3 * s
            o3[j] = o3[j] + e0 * p + e1 * q + e2 * r + e3 * s


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _load(x, begin, end, out):
    """Copy signals into rows of out (zeros around them); returns nothing."""
    d = x.shape[1]
    for i in range(out.shape[0]):
        for k in range(out.shape[1]):
            out[i, k] = x[begin + i, k] if begin + i < end and k < d else 0.0


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _squared_norm(x):
    total = 0.0
    for k in range(x.shape[0]):
        total += x[k] * x[k]
    return total


@njit(cache=True, nogil=True, error_model="numpy")
def correlate(x, atoms, out, squares):
    """out = x @ atoms and squares = ‖x‖² for dense signals, in float64.

    Args:
        x: signals (n, d), float32 or float64.
        atoms: the dictionary with atoms in columns, in panels: (panels, d rounded up to a multiple of 4, width).
        out: (n, K).
        squares: (n,).
    """
    n, K, width = x.shape[0], out.shape[1], atoms.shape[2]
    held = np.empty((ROWS, atoms.shape[1]))
    four = np.empty((4, width))
    for begin in range(0, n, ROWS):
        end = min(n, begin + ROWS)
        _load(x, begin, end, held)
        for i in range(begin, end):
            squares[i] = _squared_norm(held[i - begin])
        for panel in range(atoms.shape[0]):
            start = panel * width
            for i in range(begin, end, 4):
                _four_rows(held, i - begin, atoms[panel], four)
                for k in range(i, min(end, i + 4)):
                    for j in range(start, min(K, start + width)):
                        out[k, j] = four[k - i, j - start]


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True, fastmath=CONTRACT)
def _add_row(out, value, atom):
    for j in range(out.shape[0]):
        out[j] += value * atom[j]


@njit(cache=True, nogil=True, error_model="numpy")
def correlate_sparse(data, indices, indptr, atoms, out, squares):
    """The same for signals in CSR form: only the features that occur are read."""
    K, width = out.shape[1], atoms.shape[2]
    for i in range(indptr.shape[0] - 1):
        out[i, :] = 0.0
        total = 0.0
        for at in range(indptr[i], indptr[i + 1]):
            total += np.float64(data[at]) * np.float64(data[at])
            for panel in range(atoms.shape[0]):
                start = panel * width
                _add_row(out[i, start : min(K, start + width)], np.float64(data[at]), atoms[panel, indices[at]])
        squares[i] = total


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def sort_support(index, value, count):
    """Order the first ``count`` entries by index (a handful: insertion is the quickest)."""
    for i in range(1, count):
        at, v = index[i], value[i]
        j = i - 1
        while j >= 0 and index[j] > at:
            index[j + 1], value[j + 1] = index[j], value[j]
            j -= 1
        index[j + 1], value[j + 1] = at, v


@njit(cache=True, nogil=True, error_model="numpy")
def pack(index, value, counts, indices, data):
    """Copy the used entries of every row, one row after the other."""
    at = 0
    for i in range(counts.shape[0]):
        for k in range(counts[i]):
            indices[at] = index[i, k]
            data[at] = value[i, k]
            at += 1


@njit(cache=True, nogil=True)
def unpack(indptr, indices, data, index, value, counts):
    """The other way: rows in CSR form into the first entries of every row."""
    for i in range(counts.shape[0]):
        counts[i] = indptr[i + 1] - indptr[i]
        for k in range(counts[i]):
            index[i, k] = indices[indptr[i] + k]
            value[i, k] = data[indptr[i] + k]
