"""Objectives in standardised coordinates: the other objective of the standardised data, from survey to slope."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia import ICA
from latentia.learning import objective
from latentia.learning.standardised import Standardised

RNG = np.random.default_rng(4)
X = (RNG.laplace(size=(60, 3)) @ RNG.normal(size=(3, 3)) * [100.0, 1.0, 0.01] + [50.0, -3.0, 0.2]).astype(
    np.float32
)
OBJECTIVES = [
    "score_matching",
    "sliced_score_matching",
    "denoising_score_matching",
    "hybrid",
    "nce",
    "conditional_nce",
]


@pytest.fixture(scope="module")
def model():
    return ICA(max_iter=2, random_state=0).fit(X).model_


def loss_and_slope(found, model, x, weights):
    """Of one step: the survey, the state, its preparation and the loss."""
    keys = jax.random.split(jax.random.key(7), 3)
    found = found.surveyed(model, lambda: x, key=keys[0])

    @eqx.filter_jit
    def value(found, model, x):
        state = found.prepare(model, x, found.init(model, x, key=keys[1]), key=keys[2], weights=weights)
        slope = lambda w: found.loss(eqx.tree_at(lambda m: m.weights, model, w), x, weights, state)  # noqa: E731
        return jax.value_and_grad(slope, has_aux=True)(model.weights)

    return value(found, model, x)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_it_is_the_other_objective_of_the_standardised_data(name, model):
    x, weights = jnp.asarray(X[:8]), jnp.asarray(RNG.dirichlet(np.ones(8)) * 8, jnp.float32)
    hat = jax.vmap(model.standardise)(x)
    assert np.abs(np.asarray(hat)).max() < 10 < np.abs(X).max()
    inner = objective(name)
    (loss, metrics), slope = loss_and_slope(Standardised(inner), model, x, weights)
    (expected, their), their_slope = loss_and_slope(inner, model.inner(), hat, weights)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    np.testing.assert_allclose(slope, their_slope, rtol=1e-4, atol=1e-5 * float(jnp.abs(their_slope).max()))
    assert metrics.keys() == their.keys()
    (raw, _), _ = loss_and_slope(inner, model, x, weights)
    assert raw != pytest.approx(float(expected), rel=1e-3)
