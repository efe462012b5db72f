"""Samplers: block Gibbs and parallel tempering. They know capabilities, never a model."""

from __future__ import annotations

from typing import Any

import jax
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractSampler
from latentia.ops.arrays import batch_size
from latentia.ops.loops import unrolled
from latentia.samplers.gibbs import Gibbs
from latentia.samplers.tempering import ParallelTempering


def start(sampler: AbstractSampler, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
    """The states of many chains, one starting at each row of ``x``."""
    keys = jax.random.split(key, batch_size(x))
    return jax.vmap(lambda x, key: sampler.init(model, x, key=key))(x, keys)


def advance(
    sampler: AbstractSampler, model: Any, states: Any, *, key: PRNGKeyArray, fixed: Any = None
) -> tuple[Any, Any]:
    """One step of many chains: (states, infos)."""
    keys = jax.random.split(key, batch_size(states))
    if fixed is None:
        return jax.vmap(lambda s, key: sampler.step(model, s, key=key))(states, keys)
    return jax.vmap(lambda s, key, fixed: sampler.step(model, s, key=key, fixed=fixed))(states, keys, fixed)


def run(
    sampler: AbstractSampler,
    model: Any,
    states: Any,
    n_steps: int,
    *,
    key: PRNGKeyArray,
    adapt: bool = False,
    fixed: Any = None,
) -> tuple[AbstractSampler, Any]:
    """``n_steps`` steps of many chains in one scan: (sampler, states); the sampler adapts if asked to."""

    def body(carry: Any, key: PRNGKeyArray) -> tuple[Any, None]:
        sampler, states = carry
        states, info = advance(sampler, model, states, key=key, fixed=fixed)
        return (sampler.adapt(info) if adapt else sampler, states), None

    keys = jax.random.split(key, n_steps)
    (sampler, states), _ = jax.lax.scan(body, (sampler, states), keys, unroll=unrolled(n_steps))
    return sampler, states


__all__ = ["Gibbs", "ParallelTempering", "advance", "run", "start"]
