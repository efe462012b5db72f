"""Equilibrium samples for reverse annealing: long parallel-tempering chains, in float64.

The ladder adapts during burn-in and is then kept, so that the second half of the run leaves the model's
distribution exactly invariant. Each chain gives one state, independent of the others'.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia import samplers
from latentia.core.capabilities import Tempered
from latentia.likelihood.annealing import anneal, blank, path
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.ops.arrays import batch_size
from latentia.ops.compiling import jitted
from latentia.samplers import ParallelTempering


class Equilibrium(eqx.Module):
    """States of many chains at β = 1, as NumPy arrays in float64.

    Attributes:
        x: visibles at the end of the run.
        z: latents at the end of the run.
        earlier: visibles at the end of burn-in, for fitting a base that does not depend on ``x``.
        swap_rate_min: swap rate of the worst pair of neighbouring replicas, after burn-in.
        swap_rate_mean: mean swap rate.
        hottest_beta: inverse temperature of the hottest replica; 0 if the ladder reaches the base.
    """

    x: Any
    z: Any
    earlier: Any
    swap_rate_min: float
    swap_rate_mean: float
    hottest_beta: float


def equilibrium(
    model: Tempered,
    n_chains: int,
    *,
    key: PRNGKeyArray,
    n_replicas: int = 10,
    n_burn_in: int = 500,
    n_steps: int = 500,
    start: Any = None,
) -> Equilibrium:
    """Run ``n_chains`` tempered chains for ``n_burn_in`` adapting and ``n_steps`` fixed steps.

    Args:
        model: the model.
        n_chains: how many chains, so how many states come back.
        key: random key.
        n_replicas: rungs of the temperature ladder.
        n_burn_in: steps during which the ladder adapts.
        n_steps: steps after that.
        start: a batch of visible values to start at (persistent chains, training examples); by default the
            end of ``n_burn_in`` annealing steps from the base, which reaches more modes than the base itself.
    """
    start_key, run_key = jax.random.split(key)
    with double():
        model = to_double(model)
        if start is None:
            x = _annealed(model, n_chains, n_burn_in, key=start_key)
        else:
            x = _rows(batch_to_double(start), n_chains, key=start_key)
        sampler = to_double(ParallelTempering.make(n_replicas))
        x, z, earlier, metrics = _tempered(sampler, model, x, n_burn_in, n_steps, key=run_key)
    numbers = {name: float(metrics[name]) for name in ("swap_rate_min", "swap_rate_mean", "hottest_beta")}
    # NumPy arrays, since 64-bit JAX arrays are awkward outside of the 64-bit context.
    x, z, earlier = jax.tree.map(np.asarray, (x, z, earlier))
    return Equilibrium(x, z, earlier, **numbers)


def _annealed(model: Tempered, n_chains: int, n_steps: int, *, key: PRNGKeyArray) -> Any:
    return anneal(model.base(), model, jnp.asarray(path(n_steps)), *blank(model, n_chains), key=key)[1]


def _rows(batch: Any, n: int, *, key: PRNGKeyArray) -> Any:
    """``n`` rows at random, each as often as the others (to within one)."""
    size = batch_size(batch)
    chosen = jax.random.permutation(key, size)[jnp.arange(n) % size]
    return jax.tree.map(lambda a: a[chosen], batch)


@jitted
def _tempered(sampler: Any, model: Any, x: Any, n_burn_in: int, n_steps: int, *, key: PRNGKeyArray) -> tuple:
    start_key, key = jax.random.split(key)
    states = to_double(samplers.start(sampler, model, x, key=start_key))

    # One scan for both phases, with a flag: a second scan would double the time to compile.
    def body(carry: Any, step: Any) -> tuple[Any, Any]:
        sampler, states, earlier = carry
        key, adapting = step
        choose = lambda new, old: jax.tree.map(lambda a, b: jnp.where(adapting, a, b), new, old)  # noqa: E731
        states, info = samplers.advance(sampler, model, states, key=key)
        sampler, earlier = choose((sampler.adapt(info), jax.vmap(sampler.visible)(states)), (sampler, earlier))
        return (sampler, states, earlier), jax.tree.map(lambda a: jnp.mean(a, axis=0), info)

    total = n_burn_in + n_steps
    steps = (jax.random.split(key, total), jnp.arange(total) < n_burn_in)
    (sampler, states, earlier), infos = jax.lax.scan(body, (sampler, states, x), steps)
    infos = jax.tree.map(lambda a: a[n_burn_in:], infos)
    return (
        jax.vmap(sampler.visible)(states),
        jax.vmap(sampler.latent)(states),
        earlier,
        sampler.metrics(infos),
    )
