"""What a sparse solver returns: the codes, and how good they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from latentia.inference.sparse.terms import terms_of

#: Entries of a dense block of codes that :meth:`Codes.objective` holds at a time.
BLOCK_ENTRIES = 1 << 21


@dataclass(frozen=True)
class Codes:
    """Sparse codes of n signals over K atoms, with a certificate for each.

    Attributes:
        values: the codes, (n, K): a SciPy CSR array or a NumPy array.
        gaps: relative duality gap of each signal, gap / ½‖x‖², an upper bound on how far its objective lies above
            the least one; NaN where the penalty is not convex and for the pursuits.
        n_iter: iterations of each signal (coordinate steps, steps of the path, atoms chosen …).
        converged: whether each signal reached what was asked of it.
    """

    values: Any
    gaps: np.ndarray
    n_iter: np.ndarray
    converged: np.ndarray

    def toarray(self) -> np.ndarray:
        """The codes as a dense array (n, K)."""
        return self.values.toarray() if sp.issparse(self.values) else np.asarray(self.values)

    def objective(self, X: Any, D: Any, penalty: Any) -> np.ndarray:
        """½‖x − zD‖² + penalty(z) of every signal, in float64.

        Args:
            X: the signals, (n, d), dense or sparse.
            D: the dictionary, (K, d), atoms in rows.
            penalty: the penalty; None for the half squared error alone.
        """
        atoms = np.asarray(D, dtype=np.float64)
        out = np.empty(self.values.shape[0])
        for rows in _blocks(len(out), max(atoms.shape)):
            z = self.values[rows]
            z = np.asarray(z.toarray() if sp.issparse(z) else z, dtype=np.float64)
            x = X[rows]
            x = np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64)
            residual = x - z @ atoms
            out[rows] = 0.5 * np.einsum("ij,ij->i", residual, residual)
            if penalty is not None:
                out[rows] += terms_of(penalty, len(atoms)).value(z)
        return out


def _blocks(n: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK_ENTRIES // max(1, width))
    return (slice(start, min(n, start + step)) for start in range(0, n, step))
