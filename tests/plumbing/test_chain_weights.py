"""Contrastive divergence: a chain that started at a row counts as much as the row."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.learning.contrastive import cd
from latentia.registry import family


def test_a_weight_of_two_is_the_row_and_its_chain_twice():
    rng = np.random.default_rng(0)
    model = family("rbm").tiny_model()
    model = jax.tree.map(lambda a: a + jnp.asarray(rng.normal(size=a.shape), a.dtype), model)
    x = jnp.asarray(rng.integers(0, 2, (6, 5)), jnp.float32)
    counts = np.array([1, 3, 2, 1, 4, 1])
    state = cd(1).init(model, x, key=jax.random.key(0))
    state = cd(1).prepare(model, x, state, key=jax.random.key(1))
    twice = lambda tree: jax.tree.map(lambda a: jnp.repeat(a, counts, axis=0), tree)  # noqa: E731
    weights = jnp.asarray(counts / counts.mean(), jnp.float32)
    weighted, _ = cd(1).loss(model, x, weights, state)
    repeated, _ = cd(1).loss(model, twice(x), None, eqx.tree_at(lambda s: s.chains, state, twice(state.chains)))
    plain, _ = cd(1).loss(model, x, None, state)
    assert float(weighted) == pytest.approx(float(repeated), rel=1e-4)
    assert float(weighted) != pytest.approx(float(plain), rel=1e-2)
