"""The number of bits that signals need with a dictionary: rate against distortion.

A signal's code is rounded to multiples of a step Δ, q = round(z/Δ), and an ideal coder writes, for every atom,
whether it is used and with which multiple:

    rate = Σ_k [ h(p_k) + p_k H(q_k | q_k ≠ 0) ]      bits a signal,

p_k the share of signals that use atom k, h and H entropies. These shares and tables must be transmitted too:
half of log₂ n bits for every free number that n events determine (Rissanen, 1983). One table of values serves all
atoms where that is cheaper than one for each. The atoms themselves are not counted: both sides have them.

The cosine transform, as in JPEG, and principal components of the same signals are coded in the same way for
comparison: both are orthonormal, so that their best n coefficients are the n largest.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from scipy.fft import dct

from latentia.core.errors import DataError, ParameterError
from latentia.estimator import checks
from latentia.inference.sparse import sparse_encode

#: Steps by default, as parts of the signals' root mean square.
STEPS = (2.0, 1.0, 0.5, 0.25, 0.125)
#: Numbers of atoms by default, as far as there are so many.
COUNTS = (1, 2, 4, 8, 16, 32)


def rate_distortion(
    X: np.ndarray,
    dictionaries: Mapping[str, np.ndarray],
    *,
    n_nonzero: Sequence[int] | None = None,
    steps: Sequence[float] | None = None,
    peak: float | None = None,
    n_threads: int | None = None,
) -> list[dict[str, Any]]:
    """A table of rates and distortions, one row for every dictionary, number of atoms and step.

    Args:
        X: signals (n, d).
        dictionaries: atoms (K, d) by name.
        n_nonzero: atoms in a code at most; 1, 2, 4 … 32 by default.
        steps: Δ, in units of X; by default 2 to ⅛ of the root mean square of X.
        peak: of the peak signal-to-noise ratio; the range of X by default.
        n_threads: threads; all cores by default.

    Returns:
        Rows with ``dictionary``, ``n_nonzero``, ``step``, ``nonzeros`` (a signal, after rounding),
        ``position_bits`` and ``value_bits`` (a signal, tables included), ``bits`` (an entry of X: a pixel),
        ``mse``, ``psnr`` (decibels) and ``best``: whether no other row of the dictionary has both fewer bits and
        less error.

    Example:
        >>> X = np.array([[8.0, 0.0], [-8.0, 0.0], [0.0, 8.0], [0.0, -8.0]] * 1000)
        >>> row, = rate_distortion(X, {"axes": np.eye(2)}, n_nonzero=[1], steps=[1.0])
        >>> round(row["position_bits"], 1), round(row["value_bits"], 1), row["mse"]
        (2.0, 1.0, 0.0)
    """
    rows = np.ascontiguousarray(X, np.float32)
    if rows.ndim != 2 or not len(rows) or not np.isfinite(rows).all():
        raise DataError(f"X must be a matrix of finite numbers with at least one row, got shape {rows.shape}.")
    size = float(np.sqrt(np.mean(rows**2, dtype=np.float64)))
    if size == 0:
        raise DataError("All signals are zero: they take no bits.")
    chosen = [part * size for part in STEPS] if steps is None else list(steps)
    for step in chosen:
        checks.number(0, open_low=True)("steps", step)
    peak = float(rows.max() - rows.min()) or float(abs(rows).max()) if peak is None else peak
    checks.number(0, open_low=True)("peak", peak)
    table = []
    for name, atoms in dictionaries.items():
        table += _front(_coded(name, rows, np.asarray(atoms, np.float32), n_nonzero, chosen, peak, n_threads))
    return table


def references(X: np.ndarray, patch_shape: tuple[int, int, int] | None) -> dict[str, np.ndarray]:
    """The cosine transform of patches (height, width, channels) or of plain signals, and principal components."""
    d = X.shape[1]
    if patch_shape is None:
        cosines = _cosines(d)
    else:
        height, width, channels = patch_shape
        cosines = np.kron(np.kron(_cosines(height), _cosines(width)), np.eye(channels))
    square = X.T.astype(np.float64) @ X
    return {"cosine transform": cosines, "principal components": np.linalg.eigh(square)[1].T[::-1]}


def _cosines(n: int) -> np.ndarray:
    """The cosine transform of n values, one wave a row."""
    return np.asarray(dct(np.eye(n), axis=0, norm="ortho"))


def _coded(
    name: str,
    rows: np.ndarray,
    atoms: np.ndarray,
    n_nonzero: Sequence[int] | None,
    steps: Sequence[float],
    peak: float,
    n_threads: int | None,
) -> list[dict[str, Any]]:
    """The rows of the table for one dictionary."""
    most = min(len(atoms), rows.shape[1])
    counts = [n for n in COUNTS if n <= most] if n_nonzero is None else list(n_nonzero)
    for count in counts:
        checks.integer(1)("n_nonzero", count)
        if count > len(atoms):
            raise ParameterError(f"n_nonzero={count} is more than the {len(atoms)} atoms of {name!r}.")
    table = []
    for count in counts:
        codes = sparse_encode(rows, atoms, method="omp", n_nonzero=count, n_threads=n_threads).values
        for step in steps:
            rounded = codes.copy()
            rounded.data = np.rint(codes.data / np.float32(step))
            positions, values = code_lengths(rounded)
            error = float(np.mean((rows - (rounded @ atoms) * np.float32(step)) ** 2, dtype=np.float64))
            table.append(
                {
                    "dictionary": name,
                    "n_nonzero": int(count),
                    "step": float(step),
                    "nonzeros": float(np.count_nonzero(rounded.data) / len(rows)),
                    "position_bits": positions / len(rows),
                    "value_bits": values / len(rows),
                    "bits": (positions + values) / rows.size,
                    "mse": error,
                    "psnr": 10 * math.log10(peak**2 / error) if error > 0 else math.inf,
                }
            )
    return table


def code_lengths(codes: Any) -> tuple[float, float]:
    """(bits for which atoms are used, bits for their values) of whole-numbered codes in compressed rows, in all."""
    n, n_atoms = codes.shape
    kept = codes.data != 0
    atoms, values = codes.indices[kept], codes.data[kept].astype(np.int64)
    uses = np.bincount(atoms, minlength=n_atoms)
    uses = uses[uses > 0]
    positions = _entropy_bits(uses, n) + _entropy_bits(n - uses, n) + 0.5 * math.log2(n) * len(uses)
    if not len(values):
        return positions, 0.0
    low, span = int(values.min()), int(values.max() - values.min()) + 1
    pairs, events = np.unique(atoms.astype(np.int64) * span + (values - low), return_counts=True)
    owners = np.unique(pairs // span, return_inverse=True)[1]
    own = _entropy_bits(events, uses[owners]) + 0.5 * float(np.sum((np.bincount(owners) - 1) * np.log2(uses)))
    shared = np.unique(values, return_counts=True)[1]
    common = _entropy_bits(shared, len(values)) + 0.5 * math.log2(len(values)) * (len(shared) - 1)
    return positions, min(own, common)


def _entropy_bits(events: np.ndarray, total: Any) -> float:
    """−Σ events log₂(events/total)."""
    shares = np.where(events > 0, events / total, 1.0)
    return -float(np.sum(events * np.log2(shares)))


def _front(table: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Mark rows that no other beats in both."""
    least = math.inf
    for row in sorted(table, key=lambda row: (row["bits"], row["mse"])):
        row["best"] = row["mse"] < least
        least = min(least, row["mse"])
    return table
