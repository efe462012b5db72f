"""Learners that move a model along a group of matrices: y ↦ (I + C) y for its codes y.

With L(C) the mean of −log p after such a move (see :class:`~latentia.core.capabilities.Relative`), the relative
gradient is G = ⟨ψ(y) yᵀ⟩ − I. Both learners below use the data only through the codes, so data that are mixed by
another invertible matrix are learned along the same path: they are equivariant.

:class:`NaturalGradient` steps along −G, one mini-batch at a time (Amari, Cichocki and Yang, 1996). Written for the
matrix W itself this is W ← W + η (I − ⟨ψ(y) yᵀ⟩) W.

:class:`QuasiNewton` is L-BFGS on all rows, preconditioned by the Hessian at independent codes (Ablin, Cardoso and
Gramfort, 2018). That Hessian couples C_ij with C_ji only,

    [[h_ij, 1], [1, h_ji]],      h_ij = ⟨ψ′(y_i) y_j²⟩,      and 1 + h_ii on the diagonal,

so that regularising it (no eigenvalue below ``smallest``) and solving with it take a few operations on K×K
matrices.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, Metrics, Need
from latentia.core.capabilities import Relative, RelativeSlopes
from latentia.learning.optimizer import Optimizer

Matrix = Float[Array, "k k"]
Memory = Float[Array, "m k k"]
Scalar = Float[Array, ""]

#: Quasi-Newton iterations between two looks of the host.
PER_STEP = 10
#: Steps of the search along a direction, each half as long as the one before.
TRIES = 10
#: A mean over many rows is off by about so many units in the last place: no step is refused for less.
ROUNDING = 4.0
#: Iterations without a smaller gradient, and without a gain beyond rounding, before nothing more is expected.
IDLE = 10


class QuasiNewtonState(eqx.Module):
    """What must survive between steps: derivatives at the model as it is, past moves and past changes of G."""

    slopes: RelativeSlopes
    moves: Memory
    changes: Memory
    iterations: Int[Array, ""]
    best: Scalar  # the smallest norm of the gradient so far
    idle: Int[Array, ""]  # iterations since then
    stale: Bool[Array, ""]  # the slopes are not those of the model
    done: Bool[Array, ""]


class QuasiNewton(AbstractLearner):
    """Maximum likelihood by preconditioned L-BFGS; give it all the data.

    A step runs up to ``per_step`` iterations. Each moves the model along the quasi-Newton direction, backtracking
    until the likelihood rises (along the plain gradient, if it never does), and computes likelihood and derivatives
    at the new place in one pass over the data. Once no entry of G exceeds ``tol``, or arithmetic yields no more,
    further steps do nothing.

    Args:
        n_iterations: most iterations in all.
        tol: largest entry of the relative gradient at which to stop.
        memory: number of past moves that L-BFGS stores.
        smallest: least eigenvalue that the preconditioner may have.
        per_step: iterations of one step, between which the host is not touched.

    Reference:
        Ablin, Cardoso and Gramfort (2018), *Faster independent component analysis by preconditioning with Hessian
        approximations*.
    """

    n_iterations: Int[Array, ""]
    tol: Float[Array, ""]
    memory: int = eqx.field(static=True, default=7)
    smallest: float = eqx.field(static=True, default=0.01)
    per_step: int = eqx.field(static=True, default=PER_STEP)

    @classmethod
    def make(cls, n_iterations: int, tol: float, **options: Any) -> QuasiNewton:
        """A learner from plain numbers; changing them does not recompile."""
        return cls(jnp.asarray(n_iterations, jnp.int32), jnp.asarray(tol, jnp.float32), **options)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``Relative``."""
        return (Relative,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> QuasiNewtonState:
        """Nothing remembered, nothing known yet: the weights of the rows come with the first step."""
        del key
        shapes = jax.eval_shape(lambda: model.relative(x, None))
        slopes = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        blank = jnp.zeros((self.memory, *slopes.gradient.shape), slopes.gradient.dtype)
        zero, far = jnp.array(0, jnp.int32), jnp.array(jnp.inf, slopes.gradient.dtype)
        return QuasiNewtonState(slopes, blank, blank, zero, far, zero, jnp.array(True), jnp.array(False))

    @property
    def period(self) -> int:
        """Every step reports the likelihood."""
        return 1

    def step(
        self, model: Any, x: Any, weights: Any, state: QuasiNewtonState, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, QuasiNewtonState, Metrics]:
        """Some iterations; reports likelihood and gradient where they end."""
        del key, since
        if weights is not None:  # the volume counts once, whatever the weights of held-out rows were
            weights = weights / _some(jnp.mean(weights))
        arrays, static = eqx.partition(model, eqx.is_array)
        last = jnp.minimum(state.iterations + self.per_step, self.n_iterations)
        last = last if weights is None else jnp.where(jnp.any(weights > 0), last, state.iterations)

        def body(carry: tuple) -> tuple:
            model, state = self._iterate(eqx.combine(carry[0], static), x, weights, carry[1])
            return eqx.filter(model, eqx.is_array), state

        state = _refreshed(model, x, weights, state)
        going = lambda carry: ~carry[1].done & (carry[1].iterations < last)  # noqa: E731
        arrays, state = jax.lax.while_loop(going, body, (arrays, state))
        model = eqx.combine(arrays, static)
        metrics = {
            "log_likelihood": model.log_volume() - state.slopes.value,
            "gradient_norm": _norm(state.slopes),
            "iterations": state.iterations.astype(jnp.float32),
            "converged": state.done.astype(jnp.float32),
        }
        return model, state, metrics

    def _iterate(self, model: Any, x: Any, weights: Any, state: QuasiNewtonState) -> tuple[Any, QuasiNewtonState]:
        """One move, and what is known after it."""
        tuned = model.tuned(x, weights)
        if tuned is not model:
            state = eqx.tree_at(lambda s: s.stale, state, state.stale | _differ(tuned, model))
            model, state = tuned, _refreshed(tuned, x, weights, state)
        old, gradient = state.slopes, _gradient(state.slopes)
        newton = self._direction(old, state)
        identity = jnp.eye(gradient.shape[0], dtype=gradient.dtype)
        slack = ROUNDING * float(jnp.finfo(gradient.dtype).eps) * jnp.abs(old.value)

        def attempt(carry: tuple) -> tuple:
            tries = carry[0]
            direction = jnp.where(tries < TRIES, newton, -gradient)
            change = jnp.exp2(-(tries % TRIES).astype(gradient.dtype)) * direction
            new = model.moved(change).relative(x, weights)
            gain = old.value - new.value + jnp.linalg.slogdet(identity + change)[1]
            return tries + 1, gain, change, new

        lost = lambda carry: ~(carry[1] >= -slack)  # so is a gain that is not a number  # noqa: E731
        start = (jnp.array(0, jnp.int32), -jnp.array(jnp.inf, gradient.dtype), jnp.zeros_like(gradient), old)
        end = jax.lax.while_loop(lambda carry: lost(carry) & (carry[0] < 2 * TRIES), attempt, start)
        found, (tries, gain, change, new) = ~lost(end), end
        moves, changes = _remembered(state, change, new.gradient - old.gradient, keep=tries <= TRIES)
        change = jnp.where(found, change, 0.0)
        new = jax.tree.map(lambda a, b: jnp.where(found, a, b), new, old)
        norm = _norm(new)
        idle = jnp.where((norm < state.best) | (gain > slack), 0, state.idle + 1)
        done = ~found | (norm < self.tol.astype(gradient.dtype)) | (idle >= IDLE)
        best = jnp.minimum(norm, state.best)
        state = QuasiNewtonState(new, moves, changes, state.iterations + 1, best, idle, jnp.array(False), done)
        return model.moved(change), state

    def _direction(self, slopes: RelativeSlopes, state: QuasiNewtonState) -> Matrix:
        """−H⁻¹G by the two loops of L-BFGS, the newest move last in memory; rows of zeros are no moves."""
        h = regularised(slopes.curvature, self.smallest)
        along = jnp.sum(state.moves * state.changes, axis=(1, 2))
        rates = jnp.where(along > 0, 1 / jnp.where(along > 0, along, 1.0), 0.0)
        memory = (state.moves, state.changes, rates)

        def down(q: Matrix, past: tuple) -> tuple[Matrix, Scalar]:
            move, change, rate = past
            share = rate * jnp.sum(move * q)
            return q - share * change, share

        def up(z: Matrix, past: tuple) -> tuple[Matrix, None]:
            (move, change, rate), share = past
            return z + (share - rate * jnp.sum(change * z)) * move, None

        q, shares = jax.lax.scan(down, _gradient(slopes), memory, reverse=True)
        return -jax.lax.scan(up, solved(h, q), (memory, shares))[0]

    def halve_step(self, state: QuasiNewtonState) -> None:
        """The search along each direction finds its own step."""

    def final(self, model: Any, state: QuasiNewtonState) -> Any:
        """The model itself."""
        del state
        return model


class NaturalState(eqx.Module):
    """What must survive between steps."""

    optimizer: Any
    step: Scalar  # as of the last full step
    slowdown: Scalar


class NaturalGradient(AbstractLearner):
    """Maximum likelihood by stochastic steps along the relative gradient of a mini-batch.

    Where rows have weights, w̄ their mean in the batch, the slope of ⟨w (−log p)⟩ is ⟨w ψ(y) yᵀ⟩ − w̄ I.

    Args:
        optimizer: relative gradients → moves; plain "sgd" gives the published rule.

    Reference:
        Amari, Cichocki and Yang (1996), *A new learning algorithm for blind signal separation*.
    """

    optimizer: Optimizer

    @property
    def requires(self) -> tuple[Need, ...]:
        """``Relative``."""
        return (Relative,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> NaturalState:
        """The optimiser's state for a matrix of moves."""
        del key
        gradient = jax.eval_shape(lambda: model.relative(x, None)).gradient
        still = jnp.zeros(gradient.shape, gradient.dtype)
        return NaturalState(self.optimizer.init(still), jnp.zeros((), jnp.float32), jnp.ones((), jnp.float32))

    @property
    def period(self) -> int:
        """Metrics and schedules change slowly."""
        return 32

    def step(
        self, model: Any, x: Any, weights: Any, state: NaturalState, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, NaturalState, Metrics]:
        """One move; reports the batch's likelihood before it."""
        del key
        model = model.tuned(x, weights)
        slopes = model.relative(x, weights)
        mass = jnp.ones_like(slopes.value) if weights is None else jnp.mean(weights)
        gradient = _gradient(slopes, mass)
        change, optimizer_state = self.optimizer.update(
            gradient, state.optimizer, jnp.zeros_like(gradient), step=state.step, slowdown=state.slowdown
        )
        metrics = {
            "log_likelihood": mass * model.log_volume() - slopes.value,
            "gradient_norm": jnp.max(jnp.abs(gradient)),
        }
        return model.moved(change), NaturalState(optimizer_state, state.step + since, state.slowdown), metrics

    def halve_step(self, state: NaturalState) -> NaturalState:
        """Half the step."""
        return eqx.tree_at(lambda s: s.slowdown, state, state.slowdown / 2)

    def final(self, model: Any, state: NaturalState) -> Any:
        """The model itself."""
        del state
        return model


def regularised(h: Matrix, smallest: float) -> Matrix:
    """h with both entries of a pair raised until the pair's block [[h_ij, 1], [1, h_ji]] has no smaller eigenvalue.

    >>> h = regularised(jnp.array([[2.0, 0.5], [1.0, 2.0]]), 0.1)
    >>> round(float(jnp.linalg.eigvalsh(jnp.array([[h[0, 1], 1.0], [1.0, h[1, 0]]]))[0]), 5)
    0.1
    """
    eigenvalue = 0.5 * (h + h.T - jnp.sqrt((h - h.T) ** 2 + 4.0))
    pairs = h + jnp.maximum(smallest - eigenvalue, 0.0)
    alone = jnp.maximum(h, smallest - 1.0)  # on the diagonal the block is 1 + h_ii
    return jnp.where(jnp.eye(h.shape[0], dtype=bool), alone, pairs)


def solved(h: Matrix, g: Matrix) -> Matrix:
    """C with h_ij C_ij + C_ji = g_ij for all i and j."""
    diagonal = jnp.eye(h.shape[0], dtype=bool)
    determinant = jnp.where(diagonal, 1.0, h * h.T - 1.0)
    return jnp.where(diagonal, g / (1.0 + h), (h.T * g - g.T) / determinant)


def _gradient(slopes: RelativeSlopes, mass: Scalar | float = 1.0) -> Matrix:
    """G, the volume's part included, which counts as much as the rows do."""
    return slopes.gradient - mass * jnp.eye(slopes.gradient.shape[0], dtype=slopes.gradient.dtype)


def _some(mass: Scalar) -> Scalar:
    """A mass to divide by."""
    return jnp.where(mass > 0, mass, jnp.ones_like(mass))


def _norm(slopes: RelativeSlopes) -> Scalar:
    return jnp.max(jnp.abs(_gradient(slopes)))


def _refreshed(model: Any, x: Any, weights: Any, state: QuasiNewtonState) -> QuasiNewtonState:
    """The state with slopes of the model as it is; what was remembered of another model is forgotten."""

    def fresh() -> QuasiNewtonState:
        blank, forget = jnp.zeros_like(state.moves), lambda s: (s.slopes, s.moves, s.changes, s.stale)
        return eqx.tree_at(forget, state, (model.relative(x, weights), blank, blank, jnp.array(False)))

    return jax.lax.cond(state.stale, fresh, lambda: state)


def _remembered(
    state: QuasiNewtonState, move: Matrix, change: Matrix, keep: Bool[Array, ""]
) -> tuple[Memory, Memory]:
    """The memory with the newest move last; empty, but for that move, if the old ones led nowhere."""
    push = lambda past, new: jnp.concatenate([jnp.where(keep, past[1:], 0.0), new[None]])  # noqa: E731
    return push(state.moves, move), push(state.changes, change)


def _differ(one: Any, other: Any) -> Bool[Array, ""]:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return jnp.any(jnp.array([jnp.any(a != b) for a, b in pairs if eqx.is_array(a)]))
