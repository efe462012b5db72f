"""A learner that learns nothing and writes down everything that the loop gives it."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from latentia.core.algorithms import AbstractLearner
from latentia.core.capabilities import Bounded
from latentia.core.space import Space
from latentia.learning.compiled import AbstractPrepare

#: Steps that a record has room for.
ROOM = 64


class Clock(Bounded):
    """A model of one number, how often it was stepped; it has no normaliser from ``end`` on."""

    t: Any
    end: float = eqx.field(static=True, default=1e6)

    @property
    def x_space(self) -> Space:
        return Space("real", (2,))

    @property
    def z_space(self) -> tuple[()]:
        return ()

    def energy(self, x: Any, z: Any) -> Any:
        return jnp.sum(x**2)

    def margin(self) -> Any:
        return self.end - self.t

    def margin_message(self) -> str:
        return "The clock has run out."


class Record(eqx.Module):
    """By step: first column of the batch, weights, the prepared noise, the key, and ``since``."""

    rows: Any
    weights: Any
    noise: Any
    keys: Any
    since: Any
    t: Any
    slow: Any


class Noisy(AbstractPrepare):
    """Adds a second column of random numbers."""

    def __call__(self, rows: Any, *, key: Any) -> Any:
        return jnp.column_stack([rows[:, 0], jax.random.uniform(key, rows[:, 0].shape, rows.dtype)])


class Recorder(AbstractLearner):
    """Counts steps; goes wrong at step ``breaks`` until its step was halved ``halvings`` times."""

    breaks: int = eqx.field(static=True, default=-1)
    halvings: int = eqx.field(static=True, default=1)
    each: int = eqx.field(static=True, default=4)
    on_host: bool = eqx.field(static=True, default=False)

    @property
    def requires(self) -> tuple:
        return ()

    @property
    def host_side(self) -> bool:
        return self.on_host

    @property
    def period(self) -> int:
        return self.each

    def init(self, model: Any, x: Any, *, key: Any) -> Record:
        n = x.shape[0]
        zeros = jnp.zeros((ROOM, n), jnp.float32)
        one = jnp.zeros((), jnp.float32)
        return Record(
            zeros, zeros, zeros, jnp.zeros((ROOM, 2), jnp.uint32), jnp.zeros(ROOM, jnp.float32), one, one + 1
        )

    def step(self, model: Any, x: Any, weights: Any, state: Record, *, key: Any, since: int) -> tuple:
        at = jnp.asarray(state.t).astype(jnp.int32)
        put = lambda array, value: jnp.asarray(array).at[at].set(value)  # noqa: E731
        weights = jnp.ones(x.shape[0], jnp.float32) if weights is None else jnp.asarray(weights)
        t = jnp.asarray(state.t) + 1
        state = Record(
            put(state.rows, x[:, 0]),
            put(state.weights, weights),
            put(state.noise, x[:, 1]),
            put(state.keys, jax.random.key_data(key).astype(jnp.uint32)),
            put(state.since, float(since)),
            t,
            jnp.asarray(state.slow),
        )
        broken = (t == self.breaks) & (state.slow > 0.5**self.halvings) | jnp.isnan(model.t)
        model = eqx.tree_at(lambda m: m.t, model, jnp.where(broken, jnp.nan, t))
        if self.on_host:
            model, state = jax.tree.map(np.asarray, (model, state))
        return model, state, {"clock": t}

    def halve_step(self, state: Record) -> Record:
        return eqx.tree_at(lambda s: s.slow, state, state.slow / 2)

    def final(self, model: Any, state: Record) -> Any:
        return model
