"""K-SVD: every atom in turn together with the coefficients that go with it, on a fixed support.

    min over ‖d_k‖ = 1 and g of ‖R_k − g dᵀ_k‖²,      R_k = X_ω − Σ_{j≠k} z_ωj d_jᵀ,

where ω are the signals whose code uses atom k. The exact answer is the first pair of singular vectors of R_k; one
power step, d ← R_kᵀg/‖·‖ and g ← R_k d, is almost as good after a few rounds and far cheaper, because R_k need not
be formed. Neither can raise ‖X − ZD‖². Codes stay in compressed rows, and nothing of size signals × atoms is made.

Atoms that nobody uses, and atoms that double another one, are replaced by the signals that are represented worst.

References:
    Aharon, Elad and Bruckstein (2006), *K-SVD: an algorithm for designing overcomplete dictionaries for sparse
    representation*; Rubinstein, Zibulevsky and Elad (2008), *Efficient implementation of the K-SVD algorithm using
    batch orthogonal matching pursuit*.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from latentia.core.errors import DataError, ParameterError
from latentia.ops.threads import one_blas_thread

#: Signals whose errors one thread computes at a time.
PIECE = 4096
#: Atoms whose cosine is beyond this are doubles of one another.
ALIKE = 0.99


class Update(NamedTuple):
    """What a pass over the atoms leaves.

    Args:
        dictionary: the atoms, unit rows.
        codes: coefficients in compressed rows, on the same support (but for replaced atoms).
        error: ‖X − ZD‖² before atoms were replaced, weighted.
        n_replaced: atoms replaced.
    """

    dictionary: np.ndarray
    codes: Any
    error: float
    n_replaced: int


def ksvd_update(X: np.ndarray, codes: Any, D: np.ndarray, **options: Any) -> tuple[np.ndarray, Any]:
    """(new dictionary, new codes) after one pass over the atoms; options as in :func:`ksvd_step`.

    >>> X = np.array([[3.0, 4.0], [6.0, 8.0]])
    >>> D, codes = ksvd_update(X, sp.csr_array(np.array([[3.0], [6.0]])), np.array([[1.0, 0.0]]))
    >>> bool(np.allclose(codes @ D, X))
    True
    """
    step = ksvd_step(X, codes, D, **options)
    return step.dictionary, step.codes


def ksvd_step(
    X: np.ndarray,
    codes: Any,
    D: np.ndarray,
    *,
    exact: bool = False,
    weights: np.ndarray | None = None,
    nonnegative_codes: bool = False,
    nonnegative_dictionary: bool = False,
    replace: bool = True,
    n_threads: int | None = None,
) -> Update:
    """One pass over the atoms, each with its coefficients.

    Args:
        X: signals (n, d), float32 or float64.
        codes: sparse codes (n, K), SciPy's compressed rows; their support is kept.
        D: atoms (K, d) of length one; anything else is scaled to it, and the codes with it.
        exact: the best rank-one approximation by a singular value decomposition instead of one power step. It
            cannot be had with coefficients or atoms that must not be negative.
        weights: of the signals; equal by default.
        nonnegative_codes: keep coefficients at or above zero.
        nonnegative_dictionary: keep atoms at or above zero.
        replace: give unused and doubled atoms a new start.
        n_threads: threads; all cores by default. The result is the same for any number.

    Returns:
        dictionary, codes, squared error and the number of replaced atoms.
    """
    from latentia.inference.sparse.blocks import count_threads, in_threads, pieces
    from latentia.learning.dictionary import _kernels_ksvd as kernels

    if exact and (nonnegative_codes or nonnegative_dictionary):
        raise ParameterError("exact=True has no non-negative version. Use exact=False.")
    x, z, atoms = _checked(X, codes, D)
    shares = np.ones(len(x), x.dtype) if weights is None else np.asarray(weights, x.dtype)
    left = x.copy()

    def subtract(part: slice) -> None:
        kernels.residuals(part.start, part.stop, z.indptr, z.indices, z.data, atoms, left)

    for _ in in_threads(subtract, pieces(len(x), PIECE), count_threads(n_threads)):
        pass
    begins, rows, places = kernels.users(z.indptr, z.indices, len(atoms))
    if exact:
        _exact_sweep(left, z.data, begins, rows, places, atoms, shares)
    else:
        signs = (nonnegative_codes, nonnegative_dictionary)
        kernels.sweep(left, z.data, begins, rows, places, atoms, shares, *signs)
    errors = np.einsum("ij,ij->i", left, left, dtype=np.float64)
    replaced = 0
    if replace:
        signs = {"signed": not nonnegative_codes, "positive": nonnegative_dictionary}
        replaced = _replaced(x, z, atoms, errors, shares, **signs)
    return Update(atoms, z, float((shares * errors).sum()), replaced)


def ksvd(
    X: np.ndarray,
    D: np.ndarray,
    *,
    n_iterations: int = 10,
    n_nonzero: int | None = None,
    error: float | None = None,
    exact: bool = False,
    n_threads: int | None = None,
    watch: Callable[[int, float], None] | None = None,
) -> np.ndarray:
    """A dictionary for X by K-SVD: orthogonal matching pursuit and a pass over the atoms, in turns.

    Args:
        X: signals (n, d).
        D: atoms to start from (K, d).
        n_iterations: rounds.
        n_nonzero: most coefficients of a signal.
        error: ‖x − zD‖² at which a signal has enough of them.
        exact: singular vectors instead of one power step.
        n_threads: threads; all cores by default.
        watch: called after every round with its number and the mean squared error ‖x − zD‖².
    """
    from latentia.inference.sparse import sparse_encode

    for done in range(1, n_iterations + 1):
        options: Any = {"n_nonzero": n_nonzero, "error": error, "n_threads": n_threads}
        codes = sparse_encode(X, D, penalty=None, method="omp", output="csr", **options)
        step = ksvd_step(X, codes.values, D, exact=exact, n_threads=n_threads)
        D = step.dictionary
        if watch:
            watch(done, step.error / len(X))
    return D


def start_dictionary(X: np.ndarray, n_components: int, *, rng: np.random.Generator) -> np.ndarray:
    """Atoms (n_components, d) to begin with: different signals, scaled to length one."""
    sizes = np.linalg.norm(X, axis=1)
    able = np.flatnonzero(sizes > 1e-6 * sizes.max(initial=0))
    if not len(able):
        raise DataError("All signals are zero: there is nothing to learn atoms from.")
    chosen = X[rng.choice(able, n_components, replace=n_components > len(able))]
    if n_components > len(able):  # copies must not stay copies
        chosen = chosen + 0.1 * sizes.max() * rng.normal(size=chosen.shape).astype(X.dtype) / X.shape[1] ** 0.5
    return np.ascontiguousarray(chosen / np.linalg.norm(chosen, axis=1, keepdims=True))


def _checked(X: np.ndarray, codes: Any, D: np.ndarray) -> tuple[np.ndarray, Any, np.ndarray]:
    """Signals, a copy of the codes and a copy of the atoms with length one, all of one dtype."""
    dtype = np.result_type(X, D)
    dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float32)
    x = np.ascontiguousarray(X, dtype)
    z = sp.csr_array(codes, dtype=dtype, copy=True)
    atoms = np.array(D, dtype, order="C")
    if x.ndim != 2 or atoms.ndim != 2 or z.shape != (len(x), len(atoms)) or x.shape[1] != atoms.shape[1]:
        raise DataError(
            f"Signals {x.shape}, codes {z.shape} and dictionary {atoms.shape} do not fit together: expected "
            "(n, d), (n, K) and (K, d)."
        )
    z.sum_duplicates()
    for name, values in (("X", x), ("codes", z.data), ("D", atoms)):
        if not np.isfinite(values).all():
            raise DataError(f"{name} holds NaN or infinite values.")
    sizes = np.linalg.norm(atoms, axis=1)
    if not (sizes > 0).all():
        raise DataError(f"Atom {int(np.argmin(sizes))} is zero. Leave it out or give it a direction.")
    if np.abs(sizes - 1).max() > 1e-6:
        atoms /= sizes[:, None]
        z.data *= sizes[z.indices]
    return x, z, atoms


def _exact_sweep(left: Any, values: Any, begins: Any, rows: Any, places: Any, atoms: Any, shares: Any) -> None:
    """First singular vectors for every atom in turn, in place."""
    with one_blas_thread():  # the same bits whatever the machine has
        for k in range(len(atoms)):
            mine = slice(begins[k], begins[k + 1])
            users, spots = rows[mine], places[mine]
            if not len(users):
                continue
            whole = left[users] + values[spots][:, None] * atoms[k][None, :]
            new = _first_direction(np.sqrt(shares[users])[:, None] * whole)
            if new is None:
                continue
            atoms[k] = new if new @ atoms[k] >= 0 else -new
            values[spots] = whole @ atoms[k]
            left[users] = whole - values[spots][:, None] * atoms[k][None, :]


def _first_direction(rows: np.ndarray) -> np.ndarray | None:
    """The unit vector d with the greatest ‖rows d‖; None where all rows are zero."""
    from scipy.linalg import eigh

    wide = rows.astype(np.float64)
    few = len(wide) < wide.shape[1]
    square = wide @ wide.T if few else wide.T @ wide
    last = len(square) - 1
    value, vector = eigh(square, subset_by_index=[last, last])
    if not value[0] > 0:
        return None
    found = wide.T @ vector[:, 0] if few else vector[:, 0]
    return found / np.linalg.norm(found)


def _replaced(x: Any, z: Any, atoms: Any, errors: Any, shares: Any, *, signed: bool, positive: bool) -> int:
    """Give unused and doubled atoms, in place, the worst-represented signals; how many got one.

    A signal of weight two counts as two that use its atoms; one without weight neither uses nor becomes any.
    """
    uses = np.bincount(z.indices, np.repeat(shares, np.diff(z.indptr)), len(atoms))
    for k, (other, sign) in _doubles(atoms, uses, signed).items():
        _fold(z, k, other, sign)
        uses[k] = 0
    free = np.flatnonzero(uses == 0)
    kept = np.ones(len(atoms), bool)
    kept[free] = False
    done = 0
    squares = np.einsum("ij,ij->i", x, x, dtype=np.float64)
    floor = 1e-10 * float((shares * squares).sum()) / max(float(shares.sum(dtype=np.float64)), np.finfo(float).tiny)
    errors = np.where(shares > 0, errors, 0.0)
    for i in _worst(errors, 4 * len(free) + 16):
        if done == len(free) or errors[i] <= floor:
            break
        new = np.maximum(x[i], 0) if positive else x[i]
        size = np.linalg.norm(new)
        if size > 0 and (np.abs(atoms[kept] @ (new / size)) < ALIKE).all():
            atoms[free[done]] = new / size
            kept[free[done]] = True
            done += 1
    return done


def _worst(worth: np.ndarray, n: int) -> np.ndarray:
    """Numbers of the n largest, largest first."""
    n = min(n, len(worth))
    some = np.argpartition(-worth, n - 1)[:n]
    return some[np.argsort(-worth[some], kind="stable")]


def _doubles(atoms: np.ndarray, uses: np.ndarray, signed: bool) -> dict[int, tuple[int, float]]:
    """Atoms that double another: the less used one → (the other, the sign of their cosine)."""
    cosines = atoms @ atoms.T
    found: dict[int, tuple[int, float]] = {}
    for a, b in np.argwhere(np.triu((np.abs(cosines) if signed else cosines) > ALIKE, 1)):
        less, more = (int(a), int(b)) if uses[a] < uses[b] else (int(b), int(a))
        if less not in found and more not in found and uses[less]:
            found[less] = (more, 1.0 if cosines[a, b] > 0 else -1.0)
    return found


def _fold(z: Any, k: int, other: int, sign: float) -> None:
    """Move the coefficients of atom k to another that points the same way, in place."""
    for p in np.flatnonzero(z.indices == k):
        i = int(np.searchsorted(z.indptr, p, side="right")) - 1
        row = slice(z.indptr[i], z.indptr[i + 1])
        there = np.flatnonzero(z.indices[row] == other)
        if len(there):
            z.data[row.start + int(there[0])] += sign * z.data[p]
            z.data[p] = 0
        else:
            z.indices[p], z.data[p] = other, sign * z.data[p]
    z.eliminate_zeros()
    z.has_sorted_indices = False
    z.sort_indices()
