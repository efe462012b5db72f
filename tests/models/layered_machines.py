"""Layered machines at random parameters, and their energies written out in NumPy."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
from conformance_oracles import Nodes, at, flat, nodes, perturbed, quick
from scipy.special import logsumexp

from latentia import units
from latentia.core.space import enumerate_states
from latentia.energies.layered import LayeredModel


def machine(sizes=(3, 3, 2), *, visible="bernoulli", n_labels=None, seed=0, gain=1.0, middle="bernoulli"):
    """x – h¹ – h² – …, labels joined to the top, at random parameters: no bias, offset or constant is zero."""
    below = [units.make(visible, sizes[0], 3)]
    below += [] if n_labels is None else [units.make("categorical", 1, n_labels)]
    above = [units.make(middle if i == 0 else "bernoulli", n, 3) for i, n in enumerate(sizes[1:])]
    first, depth = len(below), len(above)
    edges = [(0, first), *((first + i, first + i + 1) for i in range(depth - 1))]
    edges += [] if n_labels is None else [(1, first + depth - 1)]
    model = perturbed(LayeredModel.make(below, above, edges, key=jax.random.key(0), weight_scale=0.0), seed)
    return eqx.tree_at(lambda m: m.weights, model, tuple(gain * w for w in model.weights))


def states(space):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), enumerate_states(space))


# -- energies written out --------------------------------------------------------------------------------


def numpy_layer(layer, values):
    """(statistics, energies) of a batch of values of one layer."""
    if isinstance(layer, units.Gaussian):
        mean, scale, location, sigma = (
            np.asarray(a, np.float64)
            for a in (layer.data_mean, layer.data_scale, layer.location, np.exp(layer.log_sigma))
        )
        standard = (values - mean) / scale
        own = 0.5 * (((standard - location) / sigma) ** 2).sum(1) + np.log(scale).sum()
        return standard / sigma**2, own
    values = values.reshape(len(values), -1)
    return values, -values @ np.asarray(layer.bias, np.float64).ravel()


def numpy_energy(model, x, z):
    """E of a batch of pairs (x, z), from the formula at the top of the module."""
    parts = [x] if len(model.visible) == 1 else list(x)
    facts = [numpy_layer(*pair) for pair in zip((*model.visible, *model.hidden), (*parts, *z), strict=True)]
    centred = [s - np.asarray(o) for (s, _), o in zip(facts, model.offsets, strict=True)]
    couplings = [
        np.einsum("ni,ij,nj->n", centred[i], np.asarray(w), centred[j])
        for (i, j), w in zip(model.edges, model.weights, strict=True)
    ]
    return sum(own for _, own in facts) - sum(couplings) + float(model.constant)


def pairs(points, latents):
    """All pairs of two batches, as two batches."""
    n, m = len(flat(points)), len(flat(latents))
    return at(points, np.repeat(np.arange(n), m)), at(latents, np.tile(np.arange(m), n))


def numpy_table(model, x):
    """E(x, ·) at all z, a row per x."""
    z = states(model.z_space)
    return numpy_energy(model, *pairs(x, z)).reshape(len(flat(x)), -1)


def free(model, x):
    """F by enumeration."""
    return -logsumexp(-numpy_table(model, x), axis=1)


def grid(model):
    """All x, or a grid over real ones with the logarithms of its weights."""
    if all(leaf.is_discrete for leaf in jax.tree.leaves(model.x_space)):
        x = states(model.x_space)
        return Nodes(x, np.zeros(len(flat(x))))
    leaves, treedef = jax.tree.flatten(model.x_space)
    wide = [np.random.default_rng(0).normal(0, 2.0, (2000, *leaf.shape)) for leaf in leaves]
    return nodes(model.x_space, jax.tree.unflatten(treedef, wide))


def exact_log_z(model):
    x, log_weights = grid(model)
    return float(logsumexp(log_weights - free(model, x)))


def some_x(model, n=5, seed=1):
    """A few visible values."""
    rng = np.random.default_rng(seed)
    pick = lambda s: rng.choice(s.enumerate(), n) if s.is_discrete else rng.normal(0, 1.5, (n, *s.shape))  # noqa: E731
    return jax.tree.map(lambda s: np.asarray(pick(s), np.float64), model.x_space)


@quick
def energies_of(model, x, z):
    return jax.vmap(model.energy)(x, z)


KINDS = {
    "two layers": {"sizes": (3, 3, 2)},
    "three layers": {"sizes": (3, 2, 2, 2)},
    "labels": {"sizes": (3, 2, 2), "n_labels": 3},
    "three layers and labels": {"sizes": (3, 2, 2, 2), "n_labels": 3},
    "spin": {"sizes": (3, 2, 2), "visible": "spin"},
    "categorical": {"sizes": (2, 2, 2), "visible": "categorical"},
    "gaussian": {"sizes": (2, 3, 2), "visible": "gaussian"},
    "gaussian and labels": {"sizes": (2, 2, 2), "visible": "gaussian", "n_labels": 2},
}
kinds = pytest.mark.parametrize("kind", KINDS)
