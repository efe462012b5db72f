"""One function for all sparse solvers: checks, the Gram matrix, dispatch, a warning if signals are left."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.sparse as sp

from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.inference.sparse import coordinate, lars, products, pursuit
from latentia.inference.sparse.blocks import (
    Block,
    Solver,
    columns,
    count_threads,
    gram_matrix,
    solve_all,
    unpack,
)
from latentia.inference.sparse.checks import (
    check_dictionary,
    check_gram,
    check_init,
    check_settings,
    check_signals,
    written_out,
)
from latentia.inference.sparse.codes import Codes
from latentia.inference.sparse.terms import Terms, terms_of
from latentia.ops.operators import LinearOperator, Matrix
from latentia.ops.penalties import L1, AbstractPenalty

#: Method → penalties that it takes (none: it counts atoms instead).
METHODS: dict[str, tuple[str, ...]] = {
    "cd": ("L1", "ElasticNet", "Group"),
    "lars": ("L1", "ElasticNet"),
    "ista": ("L1", "ElasticNet", "Group", "L0", "Lq"),
    "fista": ("L1", "ElasticNet", "Group"),
    "iht": ("L0",),
    "working": ("L1", "ElasticNet"),
    "omp": (),
    "ols": (),
}

PURSUITS = ("omp", "ols")
#: Methods of proximal steps, which use a dictionary only as a linear operator.
STEPS = ("ista", "fista", "iht")
PROXIMAL = (*STEPS, "working")

#: A Gram matrix (float64 and float32 together) may take so many bytes; above it, solvers multiply by D instead.
GRAM_BYTES = 1 << 31


def sparse_encode(
    X: Any,
    D: Any,
    *,
    penalty: Any = None,
    method: str = "cd",
    tol: float = 1e-4,
    max_iter: int = 10_000,
    init: Any = None,
    n_nonzero: int | None = None,
    error: Any = None,
    gram: Any = None,
    n_threads: int | None = None,
    output: str = "csr",
) -> Codes:
    """Sparse codes z of signals x over a dictionary D: min ½‖x − zD‖² + penalty(z), or the best few atoms.

    Args:
        X: signals, (n, d): an array (a memory map is read piece by piece) or a SciPy sparse matrix. Those of an
            operator may have its shape, with one axis in front.
        D: the dictionary, (K, d), atoms in rows, of any norm but zero; or a linear operator
            (:mod:`latentia.ops.operators`). "ista", "fista" and "iht" work with the operator itself, the other
            methods with the matrix that it stands for, if that is small.
        penalty: one of :mod:`latentia.ops.penalties`, or a number: α of ℓ1. For "omp" and "ols" none.
        method: "cd", "lars", "ista", "fista", "iht", "omp", "ols", or "working" for many signals on an accelerator
            (see :mod:`latentia.inference.sparse`).
        tol: relative duality gap, gap / ½‖x‖², at which a signal is solved (convex penalties).
        max_iter: most iterations of a signal.
        init: codes (n, K) to start from, dense or sparse ("cd", "ista", "fista", "iht").
        n_nonzero: most atoms of a signal ("omp", "ols", "iht").
        error: ‖x − zD‖² at which a signal has enough atoms, a number or one per signal ("omp", "ols"). With
            ``n_nonzero`` too, whichever comes first.
        gram: DDᵀ if it is known; None computes it if it fits into memory; False never does.
        n_threads: threads; None for all cores. The codes do not depend on it.
        output: "csr" or "dense".

    Returns:
        The codes with, for each signal, its certificate, its iterations and whether it is solved. Signals that are
        not solved are named in one ``ConvergenceWarning``. An operator's codes are flat; its ``unflat_code`` gives
        them their shapes.

    Example:
        >>> codes = sparse_encode(np.array([[3.0, 0.2]]), np.eye(2), penalty=1.0)
        >>> codes.toarray().tolist(), bool(codes.gaps[0] < 1e-12)
        ([[2.0, 0.0]], True)
        >>> sparse_encode(np.array([[3.0, 0.2]]), np.eye(2), method="omp", n_nonzero=1).toarray().tolist()
        [[3.0, 0.0]]
    """
    if isinstance(D, LinearOperator) and not isinstance(D, Matrix) and method in STEPS:
        check_settings(tol, max_iter, output)
        _check_method(method, penalty, D.n_code, n_nonzero, error)
        return _proximal(X, D, penalty, method, tol, max_iter, init, n_nonzero, output)
    X, D, init = written_out(X, D, init, method)
    x, atoms = check_signals(X), check_dictionary(D)
    if x.shape[1] != atoms.shape[1]:
        raise DataError(f"Signals have {x.shape[1]} features and atoms {atoms.shape[1]}: they must have the same.")
    check_settings(tol, max_iter, output)
    terms = _check_method(method, penalty, len(atoms), n_nonzero, error)
    start = check_init(init, x.shape[0], len(atoms))
    threads = count_threads(n_threads)
    by_products = method not in PROXIMAL and not _has_gram(gram, method, terms, len(atoms))
    if method in PROXIMAL or (by_products and terms is not None and terms.kind == "group"):
        return _proximal(x, atoms, penalty, method, tol, max_iter, init, n_nonzero, output)
    task = _Task.make(x, atoms, terms, method, tol, max_iter, start, n_nonzero, error)
    if by_products:
        solve = _without_gram(task)
    elif gram is None or gram is True:
        solve = _with_gram(task, gram_matrix(task.scaled, task.panels, n_threads=threads))
    else:
        solve = _with_gram(task, check_gram(gram, atoms) / task.norms / task.norms[:, None])
    found = solve_all(x, task.panels, len(atoms), solve, dtype=task.dtype, output=output, n_threads=threads)
    codes = Codes(*found)
    _warn(codes, "error" if method in PURSUITS else f"tol={tol:g}")
    return codes


@dataclass(frozen=True)
class _Task:
    """What the solvers on the CPU are made from: atoms scaled to norm 1, their norms, and the settings."""

    scaled: np.ndarray
    panels: np.ndarray
    norms: np.ndarray
    terms: Terms | None
    method: str
    tol: float
    max_iter: int
    start: Solver
    dtype: Any
    most: int
    errors: np.ndarray
    by_error: bool

    @classmethod
    def make(
        cls,
        x: Any,
        atoms: np.ndarray,
        terms: Terms | None,
        method: str,
        tol: float,
        max_iter: int,
        start: Any,
        n_nonzero: Any,
        error: Any,
    ) -> _Task:
        norms = np.sqrt(np.einsum("kd,kd->k", atoms, atoms, dtype=np.float64))
        if terms is not None:
            norms = np.ones(len(atoms)) if terms.kind == "group" else np.sqrt(norms**2 + terms.ridges)
        scaled = atoms / norms[:, None]
        most, errors = 0, np.empty(0)
        if method in PURSUITS:
            most, errors = pursuit.stopping(x.shape[0], len(atoms), x.shape[1], n_nonzero, error)
        dtype = np.result_type(x.dtype, atoms.dtype)
        return cls(
            scaled,
            columns(scaled),
            norms,
            terms,
            method,
            float(tol),
            int(max_iter),
            _starts(start),
            dtype,
            most,
            errors,
            n_nonzero is None,
        )


def _with_gram(task: _Task, gram: np.ndarray) -> Solver:
    """The solver of a method, with the products of all atoms."""
    terms, (K, d) = task.terms, task.scaled.shape
    if terms is None:
        return pursuit.solver(
            gram, task.norms, task.most, task.errors, ols=task.method == "ols", by_error=task.by_error
        )
    if terms.kind == "group":
        problem = coordinate.make_groups(gram, terms, features=d, dtype=task.dtype)
        return coordinate.group_solver(problem, tol=task.tol, max_iter=task.max_iter, start=task.start)
    ridged = bool(terms.ridges.any())
    products_of = gram + np.diag(terms.ridges / task.norms**2) if ridged else gram
    problem = coordinate.make_problem(products_of, task.norms, terms, features=d, dtype=task.dtype)
    n_free = K if ridged else min(K, d)
    if task.method == "lars":
        return lars.solver(problem, n_free=n_free, tol=task.tol, max_iter=task.max_iter)
    return coordinate.solver(problem, n_free=n_free, tol=task.tol, max_iter=task.max_iter, start=task.start)


def _without_gram(task: _Task) -> Solver:
    """The same by products with the dictionary."""
    if task.terms is None:
        return products.pursuit_solver(
            task.scaled,
            task.panels,
            task.norms,
            task.most,
            task.errors,
            ols=task.method == "ols",
            by_error=task.by_error,
        )
    return products.working_set_solver(
        task.scaled,
        task.panels,
        task.norms,
        task.terms,
        dtype=task.dtype,
        tol=task.tol,
        max_iter=task.max_iter,
        start=task.start,
    )


def _check_method(method: str, penalty: Any, K: int, n_nonzero: Any, error: Any) -> Terms | None:
    """The penalty in numbers, None for a pursuit; refuses combinations that do not exist."""
    if method not in METHODS:
        raise UnknownNameError("method", method, METHODS)
    pursuit.check_n_nonzero(n_nonzero, K)
    counting = [name for name, value in (("n_nonzero", n_nonzero), ("error", error)) if value is not None]
    if method in PURSUITS:
        if penalty is not None:
            raise ParameterError(
                f"{method!r} counts atoms and has no penalty: leave penalty out, or use one of "
                f"{', '.join(repr(m) for m, takes in METHODS.items() if takes)}."
            )
        return None
    if method == "iht" and n_nonzero is not None and penalty is None:
        return None
    if counting and not (method == "iht" and counting == ["n_nonzero"]):
        raise ParameterError(f"{' and '.join(counting)} belong to the pursuits 'omp' and 'ols', not to {method!r}.")
    if penalty is None:
        raise ParameterError(f"{method!r} needs a penalty: {', '.join(METHODS[method])}, or a number, α of ℓ1.")
    terms = terms_of(penalty, K)
    name = "L1" if not isinstance(penalty, AbstractPenalty) else type(penalty).__name__
    if name not in METHODS[method]:
        others = ", ".join(repr(m) for m, takes in METHODS.items() if name in takes)
        raise ParameterError(
            f"{method!r} takes {', '.join(METHODS[method])}, not {name}. Methods for {name}: {others}."
        )
    if method in ("cd", "lars") and not (terms.thresholds > 0).all():
        raise ParameterError(f"{method!r} needs an elastic net of ratio above 0: at 0 no code is sparse.")
    return terms


def _has_gram(gram: Any, method: str, terms: Terms | None, K: int) -> bool:
    """Whether the solver works with a Gram matrix; says so where one that is wanted would be too large."""
    if gram is False:
        return False
    needed = 12 * K * K
    if gram is not None or needed <= GRAM_BYTES:
        return True
    grouped = terms is not None and terms.kind == "group"
    instead = "'fista' is used" if grouped else "working sets and products with D are used"
    if method in PURSUITS:
        instead = "products with D are used"
    warnings.warn(
        f"The Gram matrix of {K} atoms would take {needed / 2**30:.3g} GiB, more than the "
        f"{GRAM_BYTES / 2**30:.3g} GiB that are allowed: {instead} instead, which is slower.",
        UserWarning,
        stacklevel=3,
    )
    return False


def _proximal(
    x: Any, atoms: Any, penalty: Any, method: str, tol: float, max_iter: int, init: Any, n_nonzero: Any, output: Any
) -> Codes:
    from latentia.inference.sparse import proximal

    if penalty is not None and not isinstance(penalty, AbstractPenalty):
        penalty = L1(penalty)
    if method == "working":
        if init is not None:
            raise ParameterError("'working' starts from zero: leave init out, or use 'cd', 'ista' or 'fista'.")
        return _working(x, atoms, penalty, tol, max_iter, output)
    chosen: Any = method if method in PROXIMAL else "fista"
    options = {"tol": tol, "max_iter": max_iter, "init": init, "n_nonzero": n_nonzero, "output": output}
    return proximal.solve(x, atoms, penalty=penalty, method=chosen, **options)


def _working(x: Any, atoms: Any, penalty: Any, tol: float, max_iter: int, output: Any) -> Codes:
    from latentia.inference.sparse import working

    dense = x.toarray() if sp.issparse(x) else x
    codes = working.solve(dense, atoms, penalty=penalty, tol=tol, max_iter=min(max_iter, 100))
    if output == "csr":
        return codes
    return Codes(codes.toarray(), codes.gaps, codes.n_iter, codes.converged)


def _starts(init: Any) -> Solver:
    """A function that fills in the starting points of a piece."""

    def start(block: Block, rows: slice) -> None:
        block.counts[:] = 0
        if init is None:
            return
        z: Any = sp.csr_array(init[rows])
        z.sum_duplicates()
        unpack(z, block)

    return start


def _warn(codes: Codes, aim: str) -> None:
    """One warning if signals did not get where they should."""
    unsolved = np.flatnonzero(~codes.converged)
    if not len(unsolved):
        return
    from sklearn.exceptions import ConvergenceWarning

    gaps = codes.gaps[unsolved]
    reached = f" (the largest relative duality gap is {gaps.max():.2g})" if np.isfinite(gaps).all() else ""
    names = ", ".join(map(str, unsolved[:5])) + (" …" if len(unsolved) > 5 else "")
    warnings.warn(
        f"{len(unsolved)} of {len(codes.converged)} signals did not reach {aim}{reached}: {names}. Raise max_iter, "
        "or lower the required accuracy.",
        ConvergenceWarning,
        stacklevel=3,
    )
