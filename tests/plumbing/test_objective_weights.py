"""Weights in objectives: the loss of a weighted batch is the weighted mean of its rows' losses, slopes included.

At fixed random numbers, for every objective: with weights that average to one the loss is Σ (w_i / n) l_i, where
l_i is the loss with all weight on row i, and a row of weight zero might as well be another row.
"""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.core import space
from latentia.core.algorithms import misfit
from latentia.core.parameters import trainable
from latentia.learning import OBJECTIVES, objective
from latentia.learning.standardised import Standardised
from latentia.registry import FAMILIES, Family

N = 4
RECTIFIED = Family(
    "rectified", "latentia.models.rbm:RBM", "", "", {"n_components": 2, "visible": "rectified"}, "real"
)
BY_NAME = {family.name: family for family in (*FAMILIES, RECTIFIED)}
NUMBERS = {"k": 1, "n_sampler_steps": 1, "n_chains": 3, "n_replicas": 2, "rounds": 2}
#: Objectives with the family to try them on, the first of the registry that they fit but for some.
PAIRS = [
    *(
        (name, family)
        for name, family in zip(["cd", "pcd", "tempering", "ratio_matching"], ["rbm"] * 4, strict=True)
    ),
    ("cd", "dbm"),
    ("exact", "rbm"),
    ("hybrid", "gaussian"),
    ("score_matching", "product-of-experts"),
    ("sliced_score_matching", "gaussian"),
    ("denoising_score_matching", "gaussian"),
    ("nonnegative_score_matching", "rectified"),
    ("nce", "gaussian"),
    ("conditional_nce", "gaussian"),
    ("vnce", "rbm"),
    ("reconstruction", "autoencoder"),
    ("elbo", "vae"),
    ("iwae", "vae"),
    ("standardised", "ica"),
]


def test_every_objective_is_here():
    assert {name for name, _ in PAIRS} == {*OBJECTIVES, "standardised"}


def problem(name, family):
    """(objective, model, rows, the same with other numbers in the last one)."""
    found = Standardised(objective("score_matching")) if name == "standardised" else objective(name, **NUMBERS)
    model = BY_NAME[family].tiny_model()
    assert misfit(found, model) is None
    rng = np.random.default_rng(2)
    wide = 5 if BY_NAME[family].tiny_data == "binary" else 3
    rows = rng.normal(size=(N, wide))
    rows = np.abs(rows) if family == "rectified" else rows
    rows = (rows > 0).astype(np.float32) if wide == 5 else rows.astype(np.float32)
    others = rows.copy()
    others[-1] = 1 - others[-1] if wide == 5 else np.abs(others[-1]) + 1
    x, y = (jax.tree.map(jnp.asarray, space.encode(model.x_space, each)) for each in (rows, others))
    return found.surveyed(model, lambda: x, key=jax.random.key(5)), model, x, y


@eqx.filter_jit
def slopes(found, model, start, xs, prepared, weights, plain):
    """(loss, slope) for every batch and pair of weights, and the loss without any weights."""
    params, rest = eqx.partition(model, trainable(model))
    key = jax.random.key(1)

    def one(x, prepared, weights):
        state = found.prepare(model, x, start, key=key, weights=prepared)
        loss = lambda params: found.loss(eqx.combine(params, rest), x, weights, state)[0]  # noqa: E731
        value, slope = jax.value_and_grad(loss)(params)
        return jnp.append(jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(slope)]), value)

    bare = found.loss(model, plain, None, found.prepare(model, plain, start, key=key, weights=jnp.ones(N)))[0]
    return jax.vmap(one)(xs, prepared, weights), bare


@functools.cache
def looked_at(name, family):
    found, model, x, y = problem(name, family)
    ones, uneven, none = np.ones(N), np.array([0.3, 1.9, 0.6, 1.2]), np.array([1.5, 0.7, 1.8, 0.0])
    weights = np.stack([ones, uneven, *(N * np.eye(N)), none, none]).astype(np.float32)
    prepared = np.stack([ones] * (2 + N) + [none, none]).astype(np.float32)
    xs = jax.tree.map(lambda a, b: jnp.stack([a] * (3 + N) + [b]), x, y)
    start = eqx.filter_jit(lambda f, m, x: f.init(m, x, key=jax.random.key(0)))(found, model, x)
    found, bare = slopes(found, model, start, xs, jnp.asarray(prepared), jnp.asarray(weights), x)
    return np.asarray(found), float(bare), uneven


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_the_loss_is_the_weighted_mean_over_rows(name, family):
    found, bare, uneven = looked_at(name, family)
    each = found[2 : 2 + N]
    size = float(np.abs(each).max())
    assert size > 1e-3
    assert np.ptp(each, axis=0).max() > 1e-3 * size
    np.testing.assert_allclose(found[0], each.mean(axis=0), atol=2e-5 * size)
    np.testing.assert_allclose(found[1], uneven / N @ each, atol=2e-5 * size)
    assert bare == pytest.approx(found[0, -1], abs=2e-5 * size)


@pytest.mark.parametrize(("name", "family"), PAIRS)
def test_a_row_without_weight_has_no_part(name, family):
    found, _, _ = looked_at(name, family)
    one, other = found[-2:]
    np.testing.assert_allclose(one, other, atol=1e-5 * np.abs(found).max())
    assert np.abs(found[0] - one).max() > 1e-4 * np.abs(found).max()
