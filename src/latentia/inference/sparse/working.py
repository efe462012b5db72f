"""Working sets for all signals at once: ℓ1 codes on an accelerator, with a certificate for each.

A code uses a few dozen of a thousand atoms, so nearly all of a full proximal step is spent on atoms that stay at
zero. Here every signal has a working set W of m atoms with a Gram matrix of its own, and

    1. on W, proximal steps with momentum find signs and support, and conjugate gradients solve for the support:
       from z towards the minimum of the quadratic on the support, as far as no entry changes its sign (a descent,
       since the objective is that quadratic so far), or all the way with such entries put to zero if that is lower;
    2. over all atoms, the residual and its correlations give the duality gap;
    3. signals whose relative gap is at most ``tol`` are done; the others exchange idle atoms of W for those that
       break the optimality conditions most.

Signals lie on the last axis, so that all threads of a device do the same; what each stores is m² numbers, and
products with them are what the time goes to. Working sets are as large as the densest code needs. Signals that are
done leave the batch when few are left; batches are powers of two, so that few programs are compiled. The products
over all atoms use the full precision of the data (a GPU would otherwise round factors to ten bits), and nothing is
certified by anything else.

Works for ``L1`` and ``ElasticNet``, weighted or not, of either sign or non-negative.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from latentia.core.errors import ParameterError
from latentia.inference.sparse.codes import Codes
from latentia.inference.sparse.proximal import (
    BLOCK_ENTRIES,
    LEAST_BATCH,
    Problem,
    batch_size,
    check_options,
    exact,
    make_problem,
    matching,
    warn_of,
)
from latentia.ops.penalties import L1, AbstractPenalty, ElasticNet

#: Most atoms that enter a working set in a round; half as many once few signals have more at the door.
GROWTH = 16
#: What is few: this part of the signals.
MANY = 0.1
#: Sizes of working sets are multiples of this: every size is a program to compile.
STRIDE = 8
#: Bytes that the Gram matrices of a batch may take.
GRAM_BYTES = 1 << 31
#: Blocks of atoms of which each lets one in at most, where there are many atoms.
BLOCKS = 128
#: A batch shrinks when no more than one signal in so many is left: every size is a program to compile.
SHRINK = 2
#: Proximal steps before the first and after each solve on the support, and how many such solves a round has.
FIRST_STEPS, STEPS, SOLVES = 8, 2, 4
#: Steps of conjugate gradients.
CONJUGATE = 4


class Round(eqx.Module):
    """Signals between two rounds; ``index`` is K (an atom of zeros) where a place of the working set is free."""

    x: Float[Array, "n d"]
    index: Int[Array, "m n"]
    z: Float[Array, "m n"]
    correlations: Float[Array, "n k"]
    gaps: Float[Array, " n"]
    entering: Int[Array, "p n"]


class Finished(NamedTuple):
    """Signals that left together: their numbers, which of them are done, working sets and codes."""

    rows: np.ndarray
    done: np.ndarray
    index: Array
    z: Array


def solve(
    X: Any,
    D: Any,
    *,
    penalty: AbstractPenalty,
    tol: float = 1e-4,
    max_iter: int = 100,
    on_device: bool = False,
) -> Codes:
    """Codes of many signals by working sets.

    Args:
        X: signals, (n, d), float32 or float64; a JAX array stays where it is.
        D: dictionary, (K, d), atoms in rows.
        penalty: ``L1`` or ``ElasticNet``.
        tol: relative duality gap, gap/½‖x‖², at which a signal is done.
        max_iter: most rounds.
        on_device: return the codes as one dense JAX array; otherwise as CSR in the host's memory.

    Returns:
        Codes; ``n_iter`` counts rounds.

    Example:
        >>> codes = solve(np.array([[2.0, 0.3]]), np.eye(2), penalty=L1(0.5))
        >>> codes.toarray(), bool(codes.gaps[0] <= 1e-4)
        (array([[1.5, 0. ]]), True)
    """
    if not isinstance(penalty, L1 | ElasticNet):
        raise ParameterError(f"Working sets need the penalty L1 or ElasticNet, not {type(penalty).__name__}.")
    check_options(tol, max_iter)
    x, atoms = matching(X, D)
    with exact(x.dtype):
        problem = make_problem(atoms, penalty, x.dtype, bound=0.0)  # every working set has an L of its own
        fitting = min(BLOCK_ENTRIES // len(atoms), GRAM_BYTES // (x.dtype.itemsize * (4 * GROWTH) ** 2))
        rows = 1 << (max(LEAST_BATCH, fitting).bit_length() - 1)
        parts = [_solve_block(problem, x[i : i + rows], tol, max_iter) for i in range(0, max(len(x), 1), rows)]
        gaps, n_iter = np.concatenate([p[1] for p in parts]), np.concatenate([p[2] for p in parts])
        gather = _on_device if on_device else _on_host
        values = gather([(p[0], len(p[1])) for p in parts], len(atoms), x.dtype)
    converged = gaps <= tol
    warn_of(converged, gaps, tol, max_iter, "rounds")
    return Codes(values, gaps, n_iter, converged)


def _solve_block(
    problem: Problem, x: Any, tol: float, max_iter: int
) -> tuple[list[Finished], np.ndarray, np.ndarray]:
    """(codes as they were finished, gaps, rounds) of signals that fit on the device together."""
    n, size = len(x), batch_size(len(x))
    gram = _gram(problem)
    at = _begin(problem, jnp.pad(jnp.asarray(x), ((0, size - n), (0, 0))))
    rows, live = np.arange(n), np.arange(size) < n
    gaps, n_iter, finished = np.asarray(at.gaps)[:n].astype(float), np.zeros(n, int), []
    live[:n] &= ~(gaps <= tol)
    room = enter = GROWTH
    for done in range(1, max_iter + 1):
        if not live.any():
            break
        if LEAST_BATCH <= size // SHRINK >= live.sum():
            kept = np.flatnonzero(live)
            finished.append(Finished(rows, ~live[: len(rows)], at.index, at.z))
            size = batch_size(len(kept))
            at = _kept(at, jnp.asarray(np.pad(kept, (0, size - len(kept)))))
            rows, live = rows[kept], np.arange(size) < len(kept)
        at = _rounds(problem, gram, at, jnp.asarray(live), room, enter)
        found, used, waiting = jax.device_get((at.gaps, *_counts(at, problem.D.shape[0])))
        moving = rows[live[: len(rows)]]
        gaps[moving], n_iter[moving] = found[live], done
        live[: len(rows)] &= ~(gaps[rows] <= tol)
        # Later on few signals have many atoms at the door, and smaller working sets are cheaper.
        enter = GROWTH if np.sum(waiting[live] > GROWTH // 2) > MANY * live.sum() else GROWTH // 2
        # The entering atoms take the last places; those before must hold all that is in use, by signals that are
        # done too.
        room = -(-(int(used.max(initial=0)) + enter) // STRIDE) * STRIDE
    finished.append(Finished(rows, np.ones(len(rows), bool), at.index, at.z))
    return finished, gaps, n_iter


@jax.jit
def _gram(problem: Problem) -> Array:
    """DDᵀ with the quadratic part of the penalty, and a last row and column of zeros."""
    gram = problem.correlate(problem.D)
    ridge = _ridge(problem)
    return jnp.pad(gram + jnp.diag(ridge), ((0, 1), (0, 1)))


def _ridge(problem: Problem) -> Array:
    unit = jnp.ones((1, problem.D.shape[0]), problem.D.dtype)
    rule = problem.penalty
    return (rule.parts(unit)[1] * unit if isinstance(rule, ElasticNet) else jnp.zeros_like(unit))[0]


def _price(problem: Problem) -> Array:
    """The ℓ1 weight of every atom, and one for the atom of zeros."""
    unit = jnp.ones((1, problem.D.shape[0]), problem.D.dtype)
    rule = problem.penalty
    linear = rule.parts(unit)[0] if isinstance(rule, ElasticNet) else rule.strength(unit)
    return jnp.pad((linear * unit)[0], (0, 1), constant_values=1.0)


@jax.jit
def _begin(problem: Problem, x: Array) -> Round:
    """All at zero, with empty working sets and the first atoms at the door."""
    index = jnp.full((GROWTH, x.shape[0]), problem.D.shape[0], jnp.int32)
    return _look(problem, x, index, jnp.zeros((GROWTH, x.shape[0]), x.dtype))


@jax.jit
def _counts(at: Round, K: Any) -> tuple[Array, Array]:
    """For every signal, atoms in use and atoms at the door."""
    return jnp.sum(at.z != 0, axis=0), jnp.sum(at.entering < K, axis=0)


@jax.jit
def _kept(at: Round, places: Array) -> Round:
    return Round(
        at.x[places],
        at.index[:, places],
        at.z[:, places],
        at.correlations[places],
        at.gaps[places],
        at.entering[:, places],
    )


def _rounds(problem: Problem, gram: Array, at: Round, live: Array, room: int, enter: int) -> Round:
    """A round, in parts where the Gram matrices of all signals would not fit."""
    size, itemsize = live.shape[0], at.x.dtype.itemsize
    parts = 1
    while size // parts > LEAST_BATCH and size // parts * room**2 * itemsize > GRAM_BYTES:
        parts *= 2
    if parts == 1:
        return _round(problem, gram, at, live, room, enter)
    places = jnp.arange(size).reshape(parts, -1)
    done = [_round(problem, gram, _kept(at, these), live[these], room, enter) for these in places]
    axes = Round(0, 1, 1, 0, 0, 1)  # pyright: ignore[reportArgumentType]
    return jax.tree.map(lambda axis, *leaves: jnp.concatenate(leaves, axis=axis), axes, *done)


@functools.partial(jax.jit, static_argnames=("room", "enter"))
def _round(problem: Problem, gram: Array, at: Round, live: Array, room: int, enter: int) -> Round:
    """Exchange atoms, solve on the working sets, look at everything; signals that are not live stay as they are."""
    index, z = _exchanged(at, room, enter, problem.D.shape[0])
    rule = problem.penalty
    # One number for row and column: two would be laid out in memory for every entry.
    places = index[:, None, :] * gram.shape[0] + index[None, :, :]
    local = gram.ravel().at[places].get(mode="promise_in_bounds")
    padded = jnp.pad(at.correlations, ((0, 0), (0, 1)))
    ridge = jnp.pad(_ridge(problem), (0, 1))[index]
    c = jnp.take_along_axis(padded, index.T, axis=1).T - ridge * z
    solved = _solve_local(local, _price(problem)[index], z, c, rule.nonnegative)
    return _look(problem, at.x, index, jnp.where(live[None, :], solved, z))


def _exchanged(at: Round, room: int, enter: int, K: int) -> tuple[Array, Array]:
    """(index, z) with atoms in use first, idle ones next as far as there is room, and the entering ones last."""
    order = jnp.argsort(at.z == 0, axis=0, stable=True)
    index, z = (jnp.take_along_axis(a, order, axis=0) for a in (at.index, at.z))
    keep = room - enter
    more = max(0, keep - index.shape[0])
    index = jnp.pad(index, ((0, more), (0, 0)), constant_values=K)[:keep]
    z = jnp.pad(z, ((0, more), (0, 0)))[:keep]
    new = at.entering[:enter]
    return jnp.concatenate([index, new]), jnp.concatenate([z, jnp.zeros(new.shape, z.dtype)])


def _look(problem: Problem, x: Array, index: Array, z: Array) -> Round:
    """Correlations over all atoms, gaps, and the atoms outside of W that break the conditions most."""
    n, K = x.shape[0], problem.D.shape[0]
    signal = jnp.broadcast_to(jnp.arange(n)[None, :], index.shape)
    codes = jnp.zeros((n, K + 1), x.dtype).at[signal, index].set(z)[:, :K]
    r = x - problem.decode(codes)
    c = problem.correlate(r)
    gap, size = problem.penalty.gap(codes, r, c), 0.5 * jnp.sum(x**2, axis=-1)
    gaps = jnp.where(size > 0, gap / jnp.where(size > 0, size, 1.0), 0.0)
    strain = (jnp.maximum(c, 0.0) if problem.penalty.nonnegative else jnp.abs(c)) / _price(problem)[None, :K]
    outside = jnp.pad(strain, ((0, 0), (0, 1))).at[signal, index].set(0.0)[:, :K]
    worst, entering = _largest(outside, min(GROWTH, K))
    entering = jnp.where(worst > 1, entering, K)
    entering = jnp.pad(entering, ((0, 0), (0, GROWTH - entering.shape[1])), constant_values=K)
    return Round(x, index, z, c, gaps, entering.T)


def _largest(values: Array, k: int) -> tuple[Array, Array]:
    """(values, places) of k large entries of every row: the largest ones of some of :data:`BLOCKS` blocks.

    Of many columns the k largest would take a sort of them all, which costs as much as the rest of a round.
    """
    n, width = values.shape
    if width < 4 * BLOCKS:
        found, places = jax.lax.top_k(values, k)
        return found, places.astype(jnp.int32)
    rows = -(-width // BLOCKS)
    blocks = jnp.pad(values, ((0, 0), (0, rows * BLOCKS - width))).reshape(n, rows, BLOCKS)
    tops = jnp.argmax(blocks, axis=1).astype(jnp.int32) * BLOCKS + jnp.arange(BLOCKS, dtype=jnp.int32)[None, :]
    found, chosen = jax.lax.top_k(jnp.max(blocks, axis=1), k)
    return found, jnp.take_along_axis(tops, chosen, axis=1)


def _solve_local(gram: Array, price: Array, z: Array, c: Array, nonnegative: bool) -> Array:
    """min ½zᵀGz − bᵀz + Σ price |z| of every signal on its own atoms, nearly; c = b − Gz at the start."""
    # Sums of absolute values in a row bound the eigenvalues; rows of the atom of zeros are empty.
    L = jnp.maximum(jnp.max(jnp.sum(jnp.abs(gram), axis=0), axis=0, keepdims=True), jnp.finfo(z.dtype).tiny)
    z, c = _proximal_steps(gram, price, L, z, c, nonnegative, FIRST_STEPS)
    for _ in range(SOLVES):
        z, c = _support_solve(gram, price, z, c)
        z, c = _proximal_steps(gram, price, L, z, c, nonnegative, STEPS)
    return z


def _times(gram: Array, z: Array) -> Array:
    """Gz of every signal; a sum, not a matrix product, so that no factor is rounded."""
    return jnp.sum(gram * z[:, None, :], axis=0)


def _proximal_steps(
    gram: Array, price: Array, L: Array, z: Array, c: Array, nonnegative: bool, n_steps: int
) -> tuple[Array, Array]:
    """FISTA with restart; c follows z by linearity."""

    def step(_: Any, carry: tuple) -> tuple:
        z, c, y, cy, t = carry
        u = y + cy / L
        new = jnp.maximum(u - price / L, 0.0) if nonnegative else u - jnp.clip(u, -price / L, price / L)
        back = jnp.sum((y - new) * (new - z), axis=0, keepdims=True) > 0
        t = jnp.where(back, 1.0, t)
        after = (1 + jnp.sqrt(1 + 4 * t**2)) / 2
        beta = (t - 1) / after
        its = c - _times(gram, new - z)
        return new, its, new + beta * (new - z), its + beta * (its - c), after

    z, c, _, _, _ = jax.lax.fori_loop(0, n_steps, step, (z, c, z, c, jnp.ones_like(L)))
    return z, c


def _support_solve(gram: Array, price: Array, z: Array, c: Array) -> tuple[Array, Array]:
    """Conjugate gradients for the quadratic on the support, as far as no entry changes its sign."""
    on = z != 0
    diagonal = jnp.sum(gram * jnp.eye(gram.shape[0], dtype=z.dtype)[:, :, None], axis=0)
    scale = jnp.where(on & (diagonal > 0), 1 / jnp.where(diagonal > 0, diagonal, 1.0), 0.0)
    r = jnp.where(on, c - price * jnp.sign(z), 0.0)
    size = jnp.sum(r * scale * r, axis=0, keepdims=True)
    tiny = jnp.finfo(z.dtype).tiny

    def step(_: Any, carry: tuple) -> tuple:
        move, r, p, size = carry
        image = jnp.where(on, _times(gram, p), 0.0)
        curve = jnp.sum(p * image, axis=0, keepdims=True)
        a = jnp.where(curve > tiny, size / jnp.where(curve > tiny, curve, 1.0), 0.0)
        r = r - a * image
        new = jnp.sum(r * scale * r, axis=0, keepdims=True)
        b = jnp.where(size > tiny, new / jnp.where(size > tiny, size, 1.0), 0.0)
        return move + a * p, r, scale * r + b * p, new

    move, *_ = jax.lax.fori_loop(0, CONJUGATE, step, (jnp.zeros_like(z), r, scale * r, size))
    crosses = z * (z + move) < 0
    length = jnp.where(crosses, -z / jnp.where(crosses, move, 1.0), 1.0)
    least = jnp.min(length, axis=0, keepdims=True)
    safe = jnp.where(crosses & (length <= least), 0.0, z + least * move)
    bold = jnp.where(crosses, 0.0, z + move)
    safe_c, bold_c = c - _times(gram, safe - z), c - _times(gram, bold - z)
    b = c + _times(gram, z)
    value = lambda z, c: jnp.sum(price * jnp.abs(z) - 0.5 * z * (b + c), axis=0, keepdims=True)  # noqa: E731
    better = value(bold, bold_c) < value(safe, safe_c)
    return jnp.where(better, bold, safe), jnp.where(better, bold_c, safe_c)


def _on_host(parts: list, K: int, dtype: Any) -> Any:
    """All codes as one CSR matrix."""
    signals, atoms, values, before = [], [], [], 0
    for batches, n in parts:
        for batch in batches:
            index, z = (np.asarray(a)[:, : len(batch.rows)] for a in (batch.index, batch.z))
            place, which = np.nonzero((z != 0) & batch.done[None, :])
            signals.append(before + batch.rows[which])
            atoms.append(index[place, which])
            values.append(z[place, which])
        before += n
    flat = (np.concatenate(values), (np.concatenate(signals), np.concatenate(atoms)))
    codes = sp.csr_array(sp.coo_array(flat, shape=(before, K), dtype=dtype))
    codes.sort_indices()
    return codes


def _on_device(parts: list, K: int, dtype: Any) -> Array:
    """All codes as one dense array on the device."""
    out, before = jnp.zeros((sum(n for _, n in parts), K), dtype), 0
    for batches, n in parts:
        for batch in batches:
            size = batch.z.shape[1]
            rows = np.full(size, len(out))  # out of bounds: dropped
            rows[: len(batch.rows)] = np.where(batch.done, before + batch.rows, len(out))
            out = _write(out, jnp.asarray(rows), batch.index, batch.z)
        before += n
    return out


@functools.partial(jax.jit, donate_argnums=0)
def _write(out: Array, rows: Array, index: Array, z: Array) -> Array:
    return out.at[jnp.broadcast_to(rows[None, :], index.shape), index].set(z, mode="drop")
