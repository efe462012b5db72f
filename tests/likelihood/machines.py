"""Random small RBMs over all pairs of unit types; biases, scales and offsets are never zero."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from latentia import units
from latentia.energies.rbm import RBMModel
from latentia.likelihood.precision import to_double


def random_units(name: str, n: int, *, key, n_states: int = 3):
    layer = units.make(name, n, n_states)
    keys = jax.random.split(key, 8)
    leaves, treedef = jax.tree.flatten(layer)
    moved = [leaf + 0.3 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=False)]
    layer = jax.tree.unflatten(treedef, moved)
    if name in ("gaussian", "rectified"):
        layer = eqx.tree_at(lambda u: u.data_scale, layer, jnp.exp(0.3 * jax.random.normal(keys[6], (n,))))
    return layer


def random_rbm(visible: str, hidden: str, n_visible: int, n_hidden: int, *, seed: int, scale: float) -> RBMModel:
    keys = jax.random.split(jax.random.key(seed), 5)
    model = RBMModel.make(
        random_units(visible, n_visible, key=keys[0]),
        random_units(hidden, n_hidden, key=keys[1]),
        key=keys[2],
        weight_scale=scale,
    )
    offsets = tuple(
        0.3 * jax.random.normal(k, o.shape)
        for k, o in zip(keys[3:], (model.visible_offset, model.hidden_offset), strict=True)
    )
    return eqx.tree_at(lambda m: (m.visible_offset, m.hidden_offset), model, offsets)


def double_rbm(*args, **kwargs):
    """The same numbers in float64, for tests that work inside ``double()``."""
    with jax.enable_x64(False):  # random numbers depend on the precision they are drawn in
        model = random_rbm(*args, **kwargs)
    return to_double(model)


def logsumexp(values) -> float:
    values = np.asarray(values, dtype=np.float64).ravel()
    return float(values.max() + np.log(np.sum(np.exp(values - values.max()))))
