"""Corruption: how much of the data it touches, what it leaves there, and what it refuses."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.ops.corruption import Corruption

N = (400, 250)


@pytest.fixture(scope="module")
def x():
    return jnp.asarray(np.random.default_rng(0).uniform(0.2, 0.8, N).astype(np.float32))


def fraction_fits(hits, p):
    """Binomial, five standard deviations."""
    return abs(np.mean(hits) - p) < 5 * np.sqrt(p * (1 - p) / np.size(hits))


@pytest.mark.parametrize("level", [0.1, 0.5, 0.9])
@pytest.mark.parametrize("kind", ["masking", "salt_and_pepper"])
def test_as_many_entries_as_the_level_says(x, kind, level):
    noisy, hit = map(np.asarray, Corruption(kind, level)(x, key=jax.random.key(1)))
    assert fraction_fits(hit, level)
    np.testing.assert_array_equal(noisy[~hit], np.asarray(x)[~hit])
    # Every entry for itself: rows and columns have binomial counts, neighbours do not agree more than by chance.
    for axis in (0, 1):
        counts = hit.sum(axis=axis)
        wanted = hit.shape[axis] * level * (1 - level)
        assert abs(counts.var() / wanted - 1) < 5 * np.sqrt(2 / counts.size)
    both = (hit[:, 1:] & hit[:, :-1]).mean()
    assert abs(both - level**2) < 5 * np.sqrt(3 * level**2 * (1 - level**2) / hit.size)


def test_masked_entries_are_blank(x):
    noisy, hit = Corruption("masking", 0.3)(x, key=jax.random.key(2))
    assert (np.asarray(noisy)[np.asarray(hit)] == 0).all()


def test_salt_and_pepper_are_equally_many(x):
    noisy, hit = map(np.asarray, Corruption("salt_and_pepper", 0.4)(x, key=jax.random.key(3)))
    assert set(np.unique(noisy[hit])) == {0.0, 1.0}
    assert fraction_fits(noisy[hit] == 1, 0.5)


def test_gaussian_noise_has_the_standard_deviation_of_the_level(x):
    noisy, hit = Corruption("gaussian", 0.3)(x, key=jax.random.key(4))
    noise = np.asarray(noisy - x) / 0.3
    assert np.asarray(hit).all()
    assert abs(noise.mean()) < 5 / np.sqrt(noise.size)
    assert abs(noise.var() - 1) < 5 * np.sqrt(2 / noise.size)
    assert abs((noise**4).mean() - 3) < 5 * np.sqrt(96 / noise.size)


def test_real_data_are_corrupted_by_their_columns():
    rng = np.random.default_rng(1)
    X = jnp.asarray((rng.normal(size=(2000, 3)) * [1.0, 10.0, 0.0] + [5.0, -3.0, 2.0]).astype(np.float32))
    masked, hit = map(np.asarray, Corruption("masking", 0.5).fitted(X)(X, key=jax.random.key(0)))
    for j, mean in enumerate(np.asarray(X).mean(axis=0)):
        np.testing.assert_allclose(masked[hit[:, j], j], mean, rtol=1e-4)
    ends, hit = map(np.asarray, Corruption("salt_and_pepper", 0.5).fitted(X)(X, key=jax.random.key(0)))
    for j in range(2):
        assert set(np.unique(ends[hit[:, j], j])) == {float(X[:, j].min()), float(X[:, j].max())}
    noisy, _ = Corruption("gaussian", 0.2).fitted(X)(X, key=jax.random.key(0))
    np.testing.assert_allclose(np.asarray(noisy - X).std(axis=0), [0.2, 2.0, 0.0], rtol=0.08)


def test_one_example_and_double_precision(x):
    noisy, hit = Corruption("masking", 0.5)(x[0], key=jax.random.key(0))
    assert noisy.shape == hit.shape == N[1:]
    assert noisy.dtype == jnp.float32
    with jax.enable_x64(True):
        for kind in ("masking", "gaussian", "salt_and_pepper"):
            noisy, _ = Corruption(kind, 0.5)(jnp.zeros(3), key=jax.random.key(0))
            assert noisy.dtype == jnp.float64


def test_the_level_zero_changes_nothing(x):
    for kind in ("masking", "gaussian", "salt_and_pepper"):
        np.testing.assert_array_equal(Corruption(kind, 0.0)(x, key=jax.random.key(0))[0], x)


@pytest.mark.parametrize(("kind", "level"), [("masking", 1.0), ("masking", -0.1), ("salt_and_pepper", 1.5)])
def test_levels_outside_their_range_are_refused(kind, level):
    with pytest.raises(ParameterError, match=rf"{kind} corruption must be a probability in \[0, 1\), got {level}"):
        Corruption(kind, level)


def test_other_mistakes_are_refused():
    with pytest.raises(ParameterError, match="gaussian corruption must be at least 0"):
        Corruption("gaussian", -1.0)
    with pytest.raises(UnknownNameError, match="Did you mean 'masking'"):
        Corruption("mask", 0.1)
