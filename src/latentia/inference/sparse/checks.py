"""What signals, dictionaries and settings of the sparse solvers must be, and errors that say so."""

from __future__ import annotations

import numbers
from typing import Any

import numpy as np
import scipy.sparse as sp

from latentia.core.errors import DataError, ParameterError
from latentia.ops.operators import LinearOperator, Matrix, to_matrix

#: An operator is written as a matrix of so many entries at most.
MATRIX_ENTRIES = 1 << 26


def check_signals(X: Any) -> Any:
    """Signals as an array (n, d) or a CSR matrix, float32 or float64; the numbers are checked as they are read."""
    if sp.issparse(X):
        x: Any = sp.csr_array(X)
    else:
        x = X if isinstance(X, np.ndarray) else np.asarray(X)
        if x.ndim == 1:
            raise DataError("Signals must be a matrix with one signal per row; for a single one give x[None, :].")
        if x.ndim != 2:
            raise DataError(f"Signals must be a matrix with one signal per row, got shape {x.shape}.")
    if x.dtype.kind not in "fiub":
        raise DataError(f"Signals must be numbers, got an array of type {x.dtype}.")
    return x if x.dtype in (np.float32, np.float64) else x.astype(np.float64)


def check_dictionary(D: Any) -> np.ndarray:
    """A dictionary as an array (K, d), float32 or float64, finite and without empty atoms."""
    atoms = np.asarray(D)
    if atoms.ndim != 2 or 0 in atoms.shape:
        raise DataError(f"The dictionary must be a matrix with one atom per row, got shape {atoms.shape}.")
    if atoms.dtype not in (np.float32, np.float64):
        atoms = atoms.astype(np.float64)
    if not np.isfinite(atoms).all():
        raise DataError("The dictionary holds NaN or infinite numbers.")
    empty = ~(atoms != 0).any(axis=1)
    if empty.any():
        raise DataError(
            f"{int(empty.sum())} of {len(atoms)} atoms are zero everywhere (the first is atom "
            f"{int(np.argmax(empty))}): they can represent nothing. Remove or re-seed them."
        )
    return np.ascontiguousarray(atoms)


def written_out(X: Any, D: Any, init: Any, method: str) -> tuple[Any, Any, Any]:
    """(X, D, init) with D as a matrix, for methods that need the atoms themselves; matrices stay as they are."""
    if not isinstance(D, LinearOperator):
        return X, D, init
    if isinstance(D, Matrix):
        return X, np.asarray(D.atoms), init
    from latentia.inference.sparse.proximal_checks import flat_codes, flat_rows

    size = D.n_code * D.n_signal
    if size > MATRIX_ENTRIES:
        raise ParameterError(
            f"{method!r} needs the operator's atoms as a matrix, whose {D.n_code} × {D.n_signal} entries are more "
            f"than the {MATRIX_ENTRIES} that are allowed. Use 'fista' or 'ista', which need no matrix."
        )
    x = flat_rows(X, D)
    return x, np.asarray(to_matrix(D)), None if init is None else flat_codes(init, x.shape[0], D)


def check_settings(tol: Any, max_iter: Any, output: Any = "csr") -> None:
    """The settings that all methods share."""
    if not (isinstance(tol, numbers.Real) and np.isfinite(float(tol)) and float(tol) > 0):
        raise ParameterError(
            f"tol must be a positive number, got {tol!r}: it is the relative duality gap to reach."
        )
    whole = isinstance(max_iter, numbers.Integral) and not isinstance(max_iter, bool)
    if not whole or int(max_iter) < 1:
        raise ParameterError(f"max_iter must be a positive integer, got {max_iter!r}.")
    if output not in ("csr", "dense"):
        raise ParameterError(f"output must be 'csr' or 'dense', got {output!r}.")


def check_init(init: Any, n: int, K: int) -> Any:
    """A starting point as an array or CSR matrix (n, K), or None."""
    if init is None:
        return None
    z: Any = sp.csr_array(init) if sp.issparse(init) else np.asarray(init, np.float64)
    if z.shape != (n, K):
        raise DataError(f"init must hold a code of {K} atoms for each of {n} signals, got shape {z.shape}.")
    if not np.isfinite(z.data if sp.issparse(z) else z).all():
        raise DataError("init holds NaN or infinite numbers.")
    return z


def check_gram(gram: Any, atoms: np.ndarray) -> np.ndarray:
    """DDᵀ as given, float64."""
    K, products = len(atoms), np.asarray(gram, np.float64)
    if products.shape != (K, K):
        raise DataError(f"gram must be DDᵀ, {K} by {K}, got shape {products.shape}.")
    if not np.isfinite(products).all():
        raise DataError("gram holds NaN or infinite numbers.")
    squares = np.einsum("kd,kd->k", atoms, atoms, dtype=np.float64)
    if not np.allclose(np.diagonal(products), squares, rtol=1e-4):
        raise DataError(
            "gram is not DDᵀ of this dictionary: its diagonal does not hold the squared norms of the atoms."
        )
    return products
