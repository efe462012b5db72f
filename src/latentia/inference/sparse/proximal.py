"""Proximal gradient methods for sparse codes: ISTA, FISTA and IHT, all signals at once, each stopping for itself.

For ½‖x − Dz‖² + Ω(z), with D any linear operator (:mod:`latentia.ops.operators`; of a matrix, whose rows are atoms,
Dz is zD), one step from a point y is

    z ← prox_{Ω/L}(y + Dᵀ(x − Dy) / L),

which is the soft threshold of ISTA if Ω is the ℓ1 norm (y = z, the last iterate). FISTA (Beck and Teboulle, 2009)
takes y = z + β(z − z_before) with the momentum of Nesterov; it is restarted where a step turns back (O'Donoghue and
Candès, 2015). With step 1/L from z₀ = 0 the objective is above its minimum after k steps by at most

    L‖z*‖²/(2k)      (ISTA),            2L‖z*‖²/(k + 1)²      (FISTA).

IHT is ISTA with the hard threshold, or with "keep the k largest" (Blumensath and Davies, 2009).

Three ways to choose L: ``fixed`` is the largest eigenvalue of DᵀD. ``backtracking`` begins low and doubles where
the quadratic model is not above the objective. ``spectral`` lets it fall again: with ISTA to the curvature along
the last move, ‖DΔ‖²/‖Δ‖² (Barzilai and Borwein, 1988), doubled where the objective rises; with FISTA by a tenth
each step, doubled where the model fails. L never exceeds its fixed value, at which no step can fail.

A chunk of steps is one compiled loop. After each, every signal gets its certificate: the duality gap relative to
½‖x‖² for convex penalties, computed from a fresh residual in the full precision of the data; otherwise the relative
size of the last move. Signals that have arrived stand still, and leave the batch once half of it has: batches keep
to powers of two, so that few programs are compiled. Every signal goes its own way, whatever else is in its batch.
Inside, codes and signals are rows of numbers, whatever shapes an operator gives them.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float
from sklearn.exceptions import ConvergenceWarning

from latentia.core.errors import UnknownNameError
from latentia.inference.sparse.codes import Codes
from latentia.inference.sparse.proximal_checks import (
    KSparse,
    Method,
    check_options,
    matching,
    matching_operator,
    rule_of,
    starting,
)
from latentia.ops.compiling import jitted
from latentia.ops.operators import LinearOperator, Matrix, as_operator
from latentia.ops.penalties import AbstractConvexPenalty, AbstractPenalty

__all__ = ["KSparse", "Method", "Problem", "check_options", "lipschitz", "make_problem", "matching", "solve"]

Step = Literal["fixed", "backtracking", "spectral"]

#: Steps between two certificates.
CHUNK = 10
#: Smallest batch: below it, compiling another program costs more than it saves.
LEAST_BATCH = 64
#: An operator with large codes has smaller batches: padding with empty signals is no longer cheap beyond this.
LEAST_ENTRIES = 1 << 16
#: Entries of one array of codes on the device: larger sets of signals go through in blocks.
BLOCK_ENTRIES = 1 << 26
#: L of a search begins at this part of its upper bound.
FIRST_GUESS = 1 / 16
#: Part of L that FISTA's spectral search keeps from one step to the next.
RELAX = 0.9


class Problem(eqx.Module):
    """What all signals share."""

    operator: LinearOperator = eqx.field(converter=as_operator)
    lipschitz: Float[Array, ""]
    penalty: Any
    method: Method = eqx.field(static=True)
    step: Step = eqx.field(static=True)
    restart: bool = eqx.field(static=True)

    @property
    def D(self) -> Float[Array, "k d"]:
        """The atoms, where the operator is a matrix."""
        assert isinstance(self.operator, Matrix)
        return self.operator.atoms

    def decode(self, z: Float[Array, "n k"]) -> Float[Array, "n d"]:
        """Dz of every row, in full precision (a GPU would otherwise use TF32)."""
        return self.operator.flat_signal(jax.vmap(self.operator.synthesise)(self.operator.unflat_code(z)))

    def correlate(self, r: Float[Array, "n d"]) -> Float[Array, "n k"]:
        """Dᵀr of every row, in full precision."""
        return self.operator.flat_code(jax.vmap(self.operator.analyse)(self.operator.unflat_signal(r)))


class State(eqx.Module):
    """Where each signal is: a code and its residual, the point to step from and its residual, momentum, L."""

    z: Float[Array, "n k"]
    r: Float[Array, "n d"]
    y: Float[Array, "n k"]
    yr: Float[Array, "n d"]
    t: Float[Array, "n 1"]
    L: Float[Array, "n 1"]
    moved: Float[Array, " n"]


def solve(
    X: Any,
    D: Any,
    *,
    penalty: AbstractPenalty | None = None,
    method: Method = "fista",
    tol: float = 1e-4,
    max_iter: int = 10_000,
    init: Any = None,
    step: Step = "fixed",
    restart: bool = True,
    n_nonzero: int | None = None,
    output: Literal["dense", "csr"] = "dense",
) -> Codes:
    """Sparse codes by proximal gradient steps.

    Args:
        X: signals, (n, d), dense or sparse, float32 or float64 (which the codes then are); those of an operator may
            also have its shape, with one axis in front.
        D: dictionary, (K, d), atoms in rows; or a :class:`~latentia.ops.operators.LinearOperator`.
        penalty: Ω; not used if ``n_nonzero`` is given.
        method: "ista", "fista" (convex penalties only) or "iht" (``L0``, or ``n_nonzero`` atoms).
        tol: relative duality gap, gap/½‖x‖², at which a signal has arrived; for penalties that are not convex, the
            size of the last step relative to its code.
        max_iter: most steps.
        init: codes to start from, (n, K); zero if None.
        step: how L is chosen: "fixed", "backtracking" or "spectral".
        restart: whether FISTA drops its momentum where it turns back.
        n_nonzero: k of "iht" with k atoms.
        output: "dense" or "csr".

    Returns:
        Codes with gaps (NaN where the penalty is not convex), steps and whether each signal arrived. An operator's
        codes are flat rows too; its ``unflat_code`` gives them their shapes.

    Example:
        >>> from latentia.ops.penalties import L1
        >>> codes = solve(np.array([[2.0, 0.3]]), np.eye(2), penalty=L1(0.5))
        >>> codes.values, bool(codes.gaps[0] <= 1e-4)
        (array([[1.5, 0. ]]), True)
    """
    D = D.atoms if isinstance(D, Matrix) else D
    own = D if isinstance(D, LinearOperator) else None
    x, D = matching(X, D) if own is None else matching_operator(X, own)
    x, K = np.asarray(x), as_operator(D).n_code
    start = starting(init, x, K, own)
    rule = rule_of(penalty, method, n_nonzero, K)
    check_options(tol, max_iter)
    for name, value, known in (("step", step, get_args(Step)), ("output", output, ("dense", "csr"))):
        if value not in known:
            raise UnknownNameError(name, value, known)
    with exact(x.dtype):
        algorithm: Any = "ista" if method == "iht" else method
        problem = make_problem(D, rule, x.dtype, method=algorithm, step=step, restart=bool(restart))
        rows = max(least_batch(problem), BLOCK_ENTRIES // (K if own is None else max(K, x.shape[1])))
        parts = [
            _solve_block(problem, x[i : i + rows], None if start is None else start[i : i + rows], tol, max_iter)
            for i in range(0, max(len(x), 1), rows)
        ]
    values, gaps, n_iter, converged = (np.concatenate(each) for each in zip(*parts, strict=True))
    warn_of(converged, gaps, tol, max_iter, "steps")
    return Codes(sp.csr_array(values) if output == "csr" else values, gaps, n_iter, converged)


def warn_of(converged: np.ndarray, gaps: np.ndarray, tol: float, max_iter: int, unit: str) -> None:
    """One warning if there are signals that did not arrive."""
    missed = int((~converged).sum())
    if not missed:
        return
    worst = gaps[~converged].max()
    what = "their codes still move" if np.isnan(worst) else f"the largest relative gap is {worst:.2g}"
    warnings.warn(
        f"{missed} of {len(converged)} signals did not reach tol={tol:g} in {max_iter} {unit} ({what}). "
        "Raise max_iter or tol.",
        ConvergenceWarning,
        stacklevel=3,
    )


def make_problem(
    D: Any,
    penalty: Any,
    dtype: Any,
    *,
    method: Method = "fista",
    step: Step = "fixed",
    restart: bool = True,
    bound: float | None = None,
) -> Problem:
    """A problem on the device; changing numbers of the penalty does not recompile.

    Args:
        D: dictionary or operator.
        penalty: Ω.
        dtype: precision of the signals.
        method: "ista" or "fista".
        step: how L is chosen.
        restart: whether FISTA drops its momentum where it turns back.
        bound: the largest L; that of the dictionary or operator if None.
    """
    rule = jax.tree.map(lambda leaf: jnp.asarray(leaf, dtype), penalty)
    own = isinstance(D, LinearOperator)
    D = jax.tree.map(lambda leaf: _as_array(leaf, dtype), D) if own else jnp.asarray(D)
    if bound is None:
        bound = _largest(D) if own else lipschitz(np.asarray(D))
    return Problem(D, jnp.asarray(bound, dtype), rule, method, step, restart)


def _as_array(leaf: Any, dtype: Any) -> Array:
    """An operator's leaf on the device: numbers in the precision of the signals, masks and switches as they are."""
    leaf = jnp.asarray(leaf)
    return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf


@jitted
def _largest(operator: LinearOperator) -> Array:
    """The largest eigenvalue; 1 for an operator that is zero, whose codes are zero with any step."""
    top = operator.lipschitz()
    return jnp.where(top > 0, top, jnp.ones_like(top))


@contextlib.contextmanager
def exact(dtype: Any) -> Iterator[None]:
    """64-bit arrays if the data are; nothing otherwise."""
    with jax.enable_x64(True) if dtype == np.float64 else contextlib.nullcontext():
        yield


def lipschitz(D: np.ndarray) -> float:
    """The largest eigenvalue of DDᵀ, not below its true value: 1/L is a safe step."""
    D = np.asarray(D, np.float64)
    small = D @ D.T if D.shape[0] <= D.shape[1] else D.T @ D
    if len(small) <= 2048:
        return float(np.linalg.eigvalsh(small)[-1]) * (1 + 1e-6)
    top = sp.linalg.eigsh(small, k=1, tol=1e-3, return_eigenvectors=False)  # pyright: ignore[reportAttributeAccessIssue]
    return float(top[0]) * 1.01


def begin(problem: Problem, x: Array, z: Array) -> State:
    """The state of signals before their first step."""
    r = x - problem.decode(z)
    ones = jnp.ones((x.shape[0], 1), x.dtype)
    L = problem.lipschitz * ones * (1.0 if problem.step == "fixed" else FIRST_GUESS)
    return State(z, r, z, r, ones, L, jnp.full(x.shape[0], jnp.inf, x.dtype))


def advance(problem: Problem, x: Array, s: State) -> State:
    """One step of every signal."""
    c = problem.correlate(s.yr)
    z, r, L = _search(problem, x, s, c)
    t, beta = s.t, jnp.zeros_like(s.t)
    if problem.method == "fista":
        if problem.restart:
            back = jnp.sum((s.y - z) * (z - s.z), axis=-1, keepdims=True) > 0
            t = jnp.where(back, 1.0, t)
        after = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        beta, t = (t - 1) / after, after
    size = jnp.sqrt(jnp.sum(z**2, axis=-1))
    moved = jnp.sqrt(jnp.sum((z - s.z) ** 2, axis=-1)) / jnp.maximum(size, jnp.finfo(z.dtype).tiny)
    return State(z, r, z + beta * (z - s.z), r + beta * (r - s.r), t, L, moved)


def _search(problem: Problem, x: Array, s: State, c: Array) -> tuple[Array, Array, Array]:
    """(z, r, L) after a step from y whose L is large enough."""

    def attempt(L: Array) -> tuple[Array, Array]:
        z = problem.penalty.prox(s.y + c / L, 1 / L)
        return z, x - problem.decode(z)

    if problem.step == "fixed":
        return *attempt(s.L), s.L
    falling = problem.step == "spectral" and problem.method == "ista"
    before = _objective(problem, s.z, s.r) if falling else None

    def fails(z: Array, r: Array, L: Array) -> Array:
        change, image = _squares(z - s.y), _squares(r - s.yr)
        short = image > L * change * (1 + 1e-3) if before is None else _objective(problem, z, r) > before
        return short & (problem.lipschitz > L)

    def again(carry: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        z, r, L, fail = carry
        L = jnp.where(fail, jnp.minimum(2 * L, problem.lipschitz), L)
        new, its = attempt(L)
        z, r = jnp.where(fail, new, z), jnp.where(fail, its, r)
        return z, r, L, fail & fails(z, r, L)

    L = RELAX * s.L if problem.step == "spectral" and problem.method == "fista" else s.L
    z, r = attempt(L)
    z, r, L, _ = jax.lax.while_loop(lambda carry: jnp.any(carry[3]), again, (z, r, L, fails(z, r, L)))
    return z, r, _curvature(problem, s, z, r, L) if falling else L


def _curvature(problem: Problem, s: State, z: Array, r: Array, L: Array) -> Array:
    """‖DΔ‖²/‖Δ‖² along the last move, within bounds; as it was where nothing moved."""
    change, image = _squares(z - s.z), _squares(r - s.r)
    some = change > 0
    found = jnp.where(some, image / jnp.where(some, change, 1.0), L)
    return jnp.clip(found, 1e-4 * problem.lipschitz, problem.lipschitz)


def _objective(problem: Problem, z: Array, r: Array) -> Array:
    return 0.5 * _squares(r) + problem.penalty.value(z)[:, None]


def _squares(a: Array) -> Array:
    return jnp.sum(a**2, axis=-1, keepdims=True)


def certificate(problem: Problem, x: Array, z: Array) -> Array:
    """gap/½‖x‖² of every signal, from scratch; 0 for signals that are zero."""
    r = x - problem.decode(z)
    gap = problem.penalty.gap(z, r, problem.correlate(r))
    size = 0.5 * jnp.sum(x**2, axis=-1)
    return jnp.where(size > 0, gap / jnp.where(size > 0, size, 1.0), 0.0)


_begin = jitted(begin)


@jitted
def _run_chunk(problem: Problem, x: Array, state: State, live: Array, n_steps: Array) -> tuple[State, Array]:
    """(state, gaps or last moves) after so many steps; signals that are not live stand still."""
    new = jax.lax.fori_loop(0, n_steps, lambda _, s: advance(problem, x, s), state)
    pick = lambda a, b: jnp.where(live.reshape((-1,) + (1,) * (a.ndim - 1)), a, b)  # noqa: E731
    state = jax.tree.map(pick, new, state)
    convex = isinstance(problem.penalty, AbstractConvexPenalty)
    return state, certificate(problem, x, state.z) if convex else state.moved


@jitted
def _gather(tree: Any, rows: Array) -> Any:
    return jax.tree.map(lambda leaf: leaf[rows], tree)


def _solve_block(problem: Problem, x: np.ndarray, start: np.ndarray | None, tol: float, max_iter: int) -> tuple:
    """(codes, gaps, steps, converged) of signals that fit on the device together."""
    n, K, least = len(x), problem.operator.n_code, least_batch(problem)
    values, measure, n_iter = np.zeros((n, K), x.dtype), np.full(n, np.inf), np.zeros(n, int)
    rows, size = np.arange(n), batch_size(n, least)  # the signals in the batch; it is filled up with zeros
    X = _padded(x, size)
    state = _begin(problem, X, jnp.zeros((size, K), x.dtype) if start is None else _padded(start, size))
    live, done = np.arange(size) < n, 0
    convex = isinstance(problem.penalty, AbstractConvexPenalty)
    for n_steps in _chunks(max_iter, convex):
        state, found = _run_chunk(problem, X, state, jnp.asarray(live), jnp.asarray(n_steps, jnp.int32))
        done += n_steps
        moving = rows[live[: len(rows)]]
        measure[moving], n_iter[moving] = np.asarray(found)[live], done
        live[: len(rows)] &= ~(measure[rows] <= tol)
        if not live.any():
            break
        if least <= size // 2 >= live.sum():
            values[rows] = np.asarray(state.z)[: len(rows)]
            kept = np.flatnonzero(live)
            size = batch_size(len(kept), least)
            X, state = _gather((X, state), jnp.asarray(np.pad(kept, (0, size - len(kept)))))
            rows, live = rows[kept], np.arange(size) < len(kept)
    values[rows] = np.asarray(state.z)[: len(rows)]
    return values, measure if convex else np.full(n, np.nan), n_iter, measure <= tol


def _chunks(max_iter: int, look: bool) -> Iterator[int]:
    """Numbers of steps until the next certificate; with a look at the start, which may be a solution."""
    if look:
        yield 0
    for done in range(0, max_iter, CHUNK):
        yield min(CHUNK, max_iter - done)


def least_batch(problem: Problem) -> int:
    """The smallest batch that is worth a program of its own."""
    if isinstance(problem.operator, Matrix):
        return LEAST_BATCH
    fitting = max(1, LEAST_ENTRIES // problem.operator.n_code)
    return min(LEAST_BATCH, 1 << (fitting.bit_length() - 1))


def batch_size(n: int, least: int | None = None) -> int:
    """The least power of two that holds n signals, and at least :data:`LEAST_BATCH` by default."""
    return max(LEAST_BATCH if least is None else least, 1 << max(n - 1, 0).bit_length())


def _padded(a: np.ndarray, size: int) -> Array:
    return jnp.asarray(np.pad(a, ((0, size - len(a)), (0, 0))))
