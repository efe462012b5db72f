"""Gated layers: linear values times sigmoid gates."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit

import latentia
from latentia import VAE
from latentia.ops.networks import MLP, Dense, Gated

pytestmark = pytest.mark.usefixtures("hasty")


def test_a_gated_layer_is_its_formula():
    rng = np.random.default_rng(0)
    W, V, b, c, x = (rng.normal(size=s) for s in ((3, 4), (3, 4), 3, 3, 4))
    layer = Gated(Dense(jnp.asarray(np.vstack([W, V])), jnp.asarray(np.concatenate([b, c]))))
    np.testing.assert_allclose(layer(jnp.asarray(x)), (W @ x + b) * expit(V @ x + c), rtol=1e-5)


def test_a_network_has_gates_between_its_ends_only():
    network = MLP.make((5, 7, 6, 2), key=jax.random.key(0), activation="gated", gain=0.5)
    assert [type(layer) for layer in network.layers] == [Gated, Gated, Dense]
    assert network.layers[0].both.weights.shape == (14, 5)
    assert network(jnp.ones(5)).shape == (2,)
    body = MLP.make((5, 7), key=jax.random.key(0), activation="gated", last="gated")
    assert isinstance(body.layers[0], Gated)


def test_variances_stay_about_one_on_the_way_forward():
    network = MLP.make((400,) * 4, key=jax.random.key(1), activation="gated")
    x = np.random.default_rng(0).normal(size=(200, 400)).astype(np.float32)
    for layer in network.layers[:-1]:
        x = np.asarray(jax.vmap(layer)(x))
        assert 0.5 < x.std() < 2.5


@pytest.mark.parametrize("options", [{}, {"latent": (3, 2), "ladder": True}])
def test_a_vae_takes_them_and_a_file_holds_them(tmp_path, options):
    rng = np.random.default_rng(0)
    X = ((rng.integers(0, 2, (96, 1)) + (rng.random((96, 6)) < 0.1)) % 2).astype(np.float32)
    fixed = {"n_components": 2, "hidden": (6,), "batch_size": 32, "monitor": None, "random_state": 0}
    vae = VAE(**fixed, **options, activation="gated", n_epochs=40, learning_rate=0.02).fit(X)
    start = VAE(**fixed, **options, activation="gated", n_epochs=1, learning_rate=1e-9).fit(X)
    assert vae.score(X) > start.score(X) + 0.3
    vae.save(tmp_path / "vae.safetensors")
    np.testing.assert_array_equal(latentia.load(tmp_path / "vae.safetensors").transform(X), vae.transform(X))
