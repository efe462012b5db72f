"""The random keys: the hash against JAX's own, independence of words, and every jax.random function."""

from __future__ import annotations

import jax
import jax.extend.random
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from scipy.special import expit

from latentia.likelihood.precision import double
from latentia.ops import random
from latentia.ops.logistic import softplus


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1])
def test_the_hash_is_threefry(seed):
    words = np.random.default_rng(seed).integers(0, 2**32, (2, 257), np.uint32)
    key = jnp.array([seed, seed ^ 0x5EED], jnp.uint32)
    found = jnp.concatenate(random.threefry(key, *words))
    assert np.array_equal(found, jax.extend.random.threefry_2x32(key, jnp.concatenate([*words])))


def test_keys_that_differ_give_different_numbers_and_equal_ones_the_same():
    key = random.key(3)
    keys = [key, *jax.random.split(key, 50), *(jax.random.fold_in(key, i) for i in range(50)), random.key(4)]
    drawn = np.stack([jax.random.bits(k, (4,)) for k in keys])
    assert len(np.unique(drawn)) == drawn.size
    assert np.array_equal(drawn[0], jax.random.bits(random.key(3), (4,)))


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_a_batch_of_keys_draws_as_each_would_alone(n):
    keys = jax.random.split(random.key(0), 5)
    together = jax.jit(jax.vmap(lambda k: jax.random.uniform(k, (n,))))(keys)
    assert np.array_equal(together, np.stack([jax.random.uniform(k, (n,)) for k in keys]))


def test_numbers_are_uniform_and_uncorrelated():
    u = np.asarray(jax.vmap(lambda k: jax.random.uniform(k, (500,)))(jax.random.split(random.key(1), 400)))
    assert stats.kstest(u.ravel(), "uniform").pvalue > 1e-4
    pairs = {"neighbours": (u[:, :-1], u[:, 1:]), "halves": (u[:, :250], u[:, 250:]), "rows": (u[:-1], u[1:])}
    for name, (a, b) in pairs.items():
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 5 / np.sqrt(a.size), name


@pytest.mark.parametrize("width", [8, 16, 32, 64])
def test_every_bit_is_fair(width):
    with double():
        bits = np.asarray(jax.random.bits(random.key(2), (20_001,), f"uint{width}"))
    assert bits.dtype == np.dtype(f"uint{width}")
    ones = ((bits[:, None] >> np.arange(width, dtype=bits.dtype)) & 1).mean(0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(20_001)


def test_softplus_and_both_derivatives_match_the_closed_forms():
    with double():
        u = jnp.concatenate([jnp.linspace(-40, 40, 81), jnp.array([-800.0, 800.0])])
        sigmoid = expit(np.asarray(u))
        np.testing.assert_allclose(softplus(u), np.logaddexp(0, np.asarray(u)), rtol=1e-14)
        np.testing.assert_allclose(jax.vmap(jax.grad(softplus))(u), sigmoid, rtol=1e-13)
        second = jax.vmap(jax.grad(jax.grad(softplus)))(u)
        np.testing.assert_allclose(second, sigmoid * (1 - sigmoid), rtol=1e-12, atol=1e-17)
