"""sample() of estimators whose model has nothing but a free energy over real x."""

from __future__ import annotations

import types

import jax.numpy as jnp
import numpy as np
import pytest
from sampler_targets import Apart, normal

from latentia.core.capabilities import Encodes, FreeEnergy
from latentia.core.errors import CapabilityError
from latentia.core.space import Space
from latentia.estimator.base import LatentEstimator
from latentia.learning.contrastive import ContrastiveState
from latentia.samplers import HMC
from latentia.samplers.gradient import Position

SHAPE = np.array([[1.0, 0.6, 0.0], [0.6, 2.0, -0.5], [0.0, -0.5, 0.5]])


class Toy(LatentEstimator):
    """An estimator around a given model; it never learns."""

    family = "toy"
    random_state = 0

    def build(self, blueprint, *, seed=0):
        raise NotImplementedError

    def _plan(self, n_rows):
        raise NotImplementedError

    def _learner(self, plan):
        raise NotImplementedError


def around(model) -> Toy:
    return Toy().adopt(model, {"n_features": 3})


def scores(rows: np.ndarray, mean: np.ndarray, covariance: np.ndarray) -> np.ndarray:
    """Standard errors of means and second moments of independent rows."""
    d = rows - mean
    z = [d.mean(0) / np.sqrt(np.diag(covariance) / len(d))]
    product = d[:, :, None] * d[:, None]
    z.append(((product.mean(0) - covariance) / (product.std(0) / np.sqrt(len(d)))).ravel())
    return np.abs(np.concatenate(z))


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1.0), (5000.0, 300.0), (-20.0, 0.02)])
def test_data_of_any_scale_are_found_from_a_standard_normal(mean, scale):
    mean, covariance = mean * np.array([1.0, 0.5, -1.0]), scale**2 * SHAPE
    rows = around(normal(mean, covariance)).sample(600, n_steps=500)
    assert rows.shape == (600, 3)
    assert scores(rows.astype(np.float64), mean, covariance).max() < 5


def test_given_entries_stay_and_the_others_follow_their_conditional():
    mean = np.array([40.0, -2.0, 3.0])
    estimator = around(normal(mean, SHAPE))
    given = np.array([[42.0, np.nan, np.nan], [38.5, np.nan, np.nan]])
    rows = estimator.sample(300, given=given, n_steps=400).astype(np.float64).reshape(2, 300, 3)
    for row, known in zip(rows, given[:, 0], strict=True):
        assert (row[:, 0] == known).all()
        conditional = mean[1:] + SHAPE[1:, 0] / SHAPE[0, 0] * (known - mean[0])
        covariance = SHAPE[1:, 1:] - np.outer(SHAPE[1:, 0], SHAPE[1:, 0]) / SHAPE[0, 0]
        assert scores(row[:, 1:], conditional, covariance).max() < 5
    single = estimator.sample(given=given[:1], n_steps=50)
    assert single.shape == (1, 3)
    assert single[0, 0] == 42


def test_few_draws_come_from_as_many_chains_as_adaptation_needs():
    estimator = around(normal([0.0, 0.0, 0.0], SHAPE))
    one, many = estimator.sample(1, n_steps=200), estimator.sample(20, n_steps=200)
    assert one.shape == (1, 3)
    np.testing.assert_array_equal(one[0], many[0])
    assert (estimator.sample(1, n_steps=200, random_state=1) != one).all()
    assert np.isfinite(estimator.sample(3, n_steps=1)).all()


def test_chains_start_where_the_model_says():
    model = normal(np.full(3, 1000.0), SHAPE, kind=Apart)
    rows = around(model).sample(400, n_steps=400)
    sides = np.sign(rows)
    assert (np.abs(sides.sum(1)) == 3).all()
    assert 120 < (sides[:, 0] > 0).sum() < 280
    np.testing.assert_allclose(np.abs(rows).mean(0), 1000, atol=1)


def test_training_s_chains_come_first():
    model = normal(np.full(3, 1000.0), SHAPE, kind=Apart)
    estimator = around(model)
    chains = 1000 * jnp.sign(jnp.array([[1.0, -1.0, 1.0], [-1.0, -1.0, 1.0]]))  # corners that start() never names
    estimator._state = types.SimpleNamespace(objective=ContrastiveState(Position(chains), HMC(), {}))
    rows = estimator.sample(40, n_steps=100)
    assert {tuple(r) for r in np.sign(rows).astype(int)} == {(1, -1, 1), (-1, -1, 1)}
    assert len(np.unique(rows[:, 0])) == 40


class Rotated(FreeEnergy, Encodes):
    """A model with a code, but no way back."""

    @property
    def x_space(self):
        return Space("real", (3,))

    @property
    def z_space(self):
        return ()

    @property
    def code_space(self):
        return Space("real", (3,))

    def encode(self, x):
        return x[::-1]

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return 0.5 * jnp.sum(x**2)


class Switches(Rotated):
    @property
    def x_space(self):
        return Space("binary", (3,))


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(CapabilityError, match="neither ExactSampler nor Conditionals.*real data, not on binary"):
        around(Switches()).sample(2)
    with pytest.raises(CapabilityError, match="cannot fill in"):
        around(Switches()).sample(2, given=np.array([[1.0, np.nan, 0.0]]))
    with pytest.raises(CapabilityError, match="cannot return means"):
        around(Rotated()).sample(2, mean=True)


def test_the_same_seed_gives_the_same_rows():
    rows = [around(Rotated()).sample(5, n_steps=20, random_state=3) for _ in range(2)]
    np.testing.assert_array_equal(*rows)
