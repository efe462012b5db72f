"""What a sparse solver returns: the codes, and how good they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import scipy.sparse as sp

from latentia.inference.sparse.proximal_checks import flat_rows
from latentia.inference.sparse.terms import terms_of
from latentia.ops.operators import LinearOperator, Matrix

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
        converged: whether each signal reached the required accuracy.
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
            X: the signals, (n, d), dense or sparse; those of an operator also in its shape.
            D: the dictionary, (K, d), atoms in rows; or a linear operator.
            penalty: the penalty; None for the half squared error alone.
        """
        D = D.atoms if isinstance(D, Matrix) else D
        if isinstance(D, LinearOperator):
            X, shape, synthesise = flat_rows(X, D), (D.n_code, D.n_signal), _in_double_precision(D)
        else:
            atoms = np.asarray(D, dtype=np.float64)
            shape, synthesise = atoms.shape, lambda z: z @ atoms
        out = np.empty(self.values.shape[0])
        for rows in _blocks(len(out), max(shape)):
            z = self.values[rows]
            z = np.asarray(z.toarray() if sp.issparse(z) else z, dtype=np.float64)
            x = X[rows]
            x = np.asarray(x.toarray() if sp.issparse(x) else x, dtype=np.float64)
            residual = x - synthesise(z)
            out[rows] = 0.5 * np.einsum("ij,ij->i", residual, residual)
            if penalty is not None:
                out[rows] += terms_of(penalty, shape[0]).value(z)
        return out


def _in_double_precision(operator: LinearOperator) -> Callable[[np.ndarray], np.ndarray]:
    """Dz of many flat codes in float64, whatever JAX's own default is."""
    arrays = jax.tree.map(np.asarray, operator)
    wide = jax.tree.map(lambda a: a.astype(np.float64) if np.issubdtype(a.dtype, np.floating) else a, arrays)

    def synthesise(z: np.ndarray) -> np.ndarray:
        with jax.enable_x64(True):
            made = jax.vmap(wide.synthesise)(wide.unflat_code(jax.numpy.asarray(z)))
            return np.asarray(wide.flat_signal(made))

    return synthesise


def _blocks(n: int, width: int) -> Iterator[slice]:
    step = max(1, BLOCK_ENTRIES // max(1, width))
    return (slice(start, min(n, start + step)) for start in range(0, n, step))
