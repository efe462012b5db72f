"""Sparse codes of signals with gaps: orthogonal matching pursuit on the values that are known.

    x_m ≈ (Σ_k z_k d_k + Σ_c b_c 1_c)_m,

where m are the known values of this signal, different for each, and 1_c is one on channel c: levels are free, so
that atoms need not explain the brightness of a patch. An atom is judged by what is seen of it, |⟨r, d_m⟩|/‖d_m‖
with the levels projected out: without this correction atoms that happen to lie under the mask would never be
chosen. The code then says what the whole signal is.

References:
    Mairal, Elad and Sapiro (2008), *Sparse representation for color image restoration*.
"""

from __future__ import annotations

import numpy as np

from latentia.core.errors import DataError

#: Signals that one thread completes at a time.
PIECE = 512


def complete_signals(
    X: np.ndarray,
    known: np.ndarray,
    D: np.ndarray,
    *,
    n_nonzero: int,
    error: float,
    channels: int = 1,
    n_threads: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(whole signals (n, d), numbers of atoms that each uses), in single precision.

    Args:
        X: signals (n, d), finite; what unknown values hold does not matter otherwise.
        known: (n, d), True where a value is known. Every signal needs one.
        D: atoms (K, d) of length one.
        n_nonzero: most atoms of a signal; never more than one for four known values, or what is unknown is
            made up.
        error: mean squared error on the known values at which a signal has enough atoms.
        channels: values of a signal belong to so many channels in turn, each with a level of its own.
        n_threads: threads; all cores by default. The result is the same for any number.

    Example:
        >>> D = np.array([[0.5, -0.5, 0.5, -0.5], [0.5, 0.5, -0.5, -0.5]])
        >>> X = np.array([[3.0, 1.0, 3.0, 0.0]])
        >>> known = np.array([[True, True, True, False]])
        >>> complete_signals(X, known, D, n_nonzero=1, error=1e-9)[0].round(6)
        array([[3., 1., 3., 1.]], dtype=float32)
    """
    from latentia.inference.sparse import _kernels_masked as kernels
    from latentia.inference.sparse.blocks import count_threads, in_threads, pieces

    if X.ndim != 2 or known.shape != X.shape or D.ndim != 2 or D.shape[1] != X.shape[1]:
        raise DataError(f"Signals {X.shape}, mask {known.shape} and dictionary {D.shape} do not fit together.")
    if not known.any(axis=1).all():
        raise DataError("A signal has no known value, so it cannot be coded.")
    x, columns = np.ascontiguousarray(X, np.float32), np.ascontiguousarray(D.T, np.float32)
    if not (np.isfinite(x).all() and np.isfinite(columns).all()):
        raise DataError("Signals and atoms must be finite; put any number where a value is unknown.")
    level = np.arange(x.shape[1]) % channels
    out, counts = np.empty_like(x), np.empty(len(x), np.int64)
    most = min(n_nonzero, len(D), x.shape[1])
    seen = np.ascontiguousarray(known)

    def work(part: slice) -> None:
        kernels.complete(x[part], seen[part], columns, level, channels, most, float(error), out[part], counts[part])

    for _ in in_threads(work, pieces(len(x), PIECE), count_threads(n_threads)):
        pass
    return out, counts
