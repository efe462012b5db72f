"""Equilibrium samples: the run step by step, and the rows that its chains start at."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from machines import double_rbm

from latentia import samplers
from latentia.likelihood.equilibrium import _rows, _tempered
from latentia.likelihood.precision import double, to_double
from latentia.samplers import ParallelTempering

BURN_IN, STEPS, CHAINS = 5, 3, 6


def test_the_ladder_adapts_in_burn_in_and_what_is_told_is_of_the_steps_after_it():
    with double():
        model = double_rbm("bernoulli", "bernoulli", 7, 4, seed=2, scale=1.5)
        first, key = to_double(ParallelTempering.make(4)), jax.random.key(3)
        rows = jax.random.bernoulli(jax.random.key(1), 0.5, (CHAINS, 7)).astype(jnp.float64)
        x, z, earlier, metrics = _tempered(first, model, rows, BURN_IN, STEPS, key=key)

        start_key, key = jax.random.split(key)
        sampler, states = first, samplers.start(first, model, rows, key=start_key)
        rates, middle = [], None
        for step, step_key in enumerate(jax.random.split(key, BURN_IN + STEPS)):
            states, info = samplers.advance(sampler, model, states, key=step_key)
            if step < BURN_IN:
                sampler, middle = sampler.adapt(info), jax.vmap(sampler.visible)(states)
            else:
                rates.append(np.asarray(info.acceptance).mean(axis=0))
        np.testing.assert_array_equal(x, jax.vmap(sampler.visible)(states))
        np.testing.assert_array_equal(z, jax.vmap(sampler.latent)(states))
        np.testing.assert_array_equal(earlier, middle)
        assert (np.asarray(earlier) != np.asarray(x)).any()
        rate = np.mean(rates, axis=0)
        expected = {"swap_rate_min": rate.min(), "swap_rate_mean": rate.mean(), "hottest_beta": sampler.betas[0]}
        assert metrics.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(metrics[name], value, rtol=1e-9, err_msg=name)
        assert not np.allclose(sampler.betas, first.betas)


def test_chains_start_at_rows_drawn_at_random_each_as_often_as_the_others():
    """Rows often come in an order: the first ones are no sample of them."""
    batch = {"a": jnp.arange(10.0)[:, None], "b": 2 * jnp.arange(10.0)}
    for n in (4, 10, 25):
        draws = [_rows(batch, n, key=jax.random.key(seed)) for seed in range(40)]
        drawn = np.array([draw["a"][:, 0] for draw in draws]).astype(int)
        np.testing.assert_array_equal(2 * drawn, np.array([draw["b"] for draw in draws]))
        counts = np.array([np.bincount(each, minlength=10) for each in drawn])
        assert set(np.unique(counts)) <= {n // 10, -(-n // 10)}
        assert len({tuple(each) for each in drawn}) == 40
        assert drawn[:, 0].std() > 1.5  # of 0 … 9 in equal shares it is 2.9
