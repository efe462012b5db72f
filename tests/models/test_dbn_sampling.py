"""Deep belief networks with some visibles known, against the joint distribution summed out."""

from __future__ import annotations

import sys
from pathlib import Path

import equinox as eqx
import jax
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from conformance_oracles import at, chi_square, flat, index_of, perturbed

from latentia import DBN, RBM, units
from latentia.core.errors import DataError
from latentia.core.space import enumerate_states
from latentia.energies.belief_net import DBNModel
from latentia.energies.belief_sampling import sweep

N = 20_000


def states(space):
    return jax.tree.map(lambda a: np.asarray(a, np.float32), enumerate_states(space))


@eqx.filter_jit
def _joint(model, x, z):
    return jax.vmap(lambda x: jax.vmap(lambda z: -model.energy(x, z))(z))(x)


@eqx.filter_jit
def _swept(model, x, z, fixed, keys):
    return jax.vmap(lambda x, z, key: sweep(model, x, z, key=key, fixed=fixed))(x, z, keys)


@pytest.mark.parametrize(
    ("visible", "sizes", "n_labels", "known"),
    [
        ("bernoulli", (3, 2, 2), None, [1, 0, 0]),
        ("bernoulli", (3, 3, 2, 2), 3, [0, 1, 0]),
        ("spin", (2, 2, 2), 2, [0, 1]),
        ("categorical", (2, 2, 2), None, [1, 0]),
        ("bernoulli", (3, 2), 2, [0, 1, 1]),
        ("bernoulli", (3, 2, 2), 2, None),
    ],
)
def test_a_sweep_from_the_conditional_distribution_stays_there(visible, sizes, n_labels, known):
    """All joint states count, so that a wrong conditional of any layer shows, whatever the mixing time."""
    layers = [units.make(visible, sizes[0], 3), *(units.make("bernoulli", n) for n in sizes[1:])]
    # The recognition weights are as random as the rest: proposals are bad, and must not matter.
    model = perturbed(DBNModel.make(layers, key=jax.random.key(0), n_labels=n_labels), 4)
    x, z = states(model.x_space), states(model.z_space)
    logs = np.asarray(_joint(model, x, z), np.float64)
    fixed = None
    if known is not None:
        data = np.asarray(known, bool)
        data = np.repeat(data[:, None], 3, axis=1) if visible == "categorical" else data
        fixed = data if n_labels is None else (data, np.zeros((1, n_labels), bool))
        rows, held = flat(x), np.concatenate([np.ravel(f) for f in jax.tree.leaves(fixed)])
        logs[~(rows[:, held] == rows[-2][held]).all(1)] = -np.inf
    p = np.exp(logs - logsumexp(logs)).ravel()
    first = np.random.default_rng(0).choice(p.size, N, p=p)
    start = at(x, first // len(flat(z))), at(z, first % len(flat(z)))
    new_x, new_z = _swept(model, *start, fixed, jax.random.split(jax.random.key(1), N))
    found = index_of(x, new_x) * len(flat(z)) + index_of(z, new_z)
    assert (p[found] > 0).all()  # what is known was kept
    assert np.mean(found != first) > 0.3
    assert chi_square(np.bincount(found, minlength=p.size), p) > 1e-5


def network(estimator, facts, seed):
    """An estimator around a model at random parameters; nothing is fitted."""
    blueprint = {"n_features": 4, **facts}
    return estimator.adopt(perturbed(estimator.build(blueprint), seed), blueprint)


@pytest.fixture(scope="module")
def nets():
    """A network without labels, and one with."""
    return network(DBN((3, 2)), {}, 1), network(DBN((3, 2)), {"classes": [0, 1, 2]}, 2)


def exact(net, given, label=None):
    """(rows of free entries filled in, their probabilities, E[x | given])."""
    model = net.model_
    x, z = states(model.x_space), states(model.z_space)
    logs = logsumexp(np.asarray(_joint(model, x, z), np.float64), axis=1)
    rows = x if net.model_.n_labels is None else x[0]
    fits = (np.isnan(given) | (rows == given)).all(1)
    if label is not None:
        fits &= x[1][:, 0, label] == 1
    points, which = np.unique(rows, axis=0, return_inverse=True)  # the label is summed out
    p = np.bincount(which.ravel(), softmax(np.where(fits, logs, -np.inf)))
    return points, p, p @ points


@pytest.mark.parametrize(("labelled", "label"), [(False, None), (True, None), (True, 2)])
def test_missing_bits_follow_their_conditional_distribution(nets, labelled, label):
    net = nets[labelled]
    given = np.array([[1, np.nan, 0, np.nan], [np.nan, 1, np.nan, np.nan]])
    drawn = net.sample(8_000, given=given, label=label, n_steps=30, random_state=1).reshape(2, 8_000, 4)
    means = net.sample(8_000, given=given, label=label, n_steps=30, mean=True, random_state=2).reshape(2, 8_000, 4)
    for row, bits, mean in zip(given, drawn, means, strict=True):
        points, p, expected = exact(net, row, label)
        known = ~np.isnan(row)
        np.testing.assert_array_equal(bits[:, known], np.tile(row[known], (8_000, 1)))
        np.testing.assert_array_equal(mean[:, known], np.tile(row[known], (8_000, 1)))
        assert chi_square(np.bincount(index_of(points, bits), minlength=len(points)), p) > 1e-5
        assert ((mean > 0) & (mean < 1))[:, ~known].all()
        np.testing.assert_allclose(mean.mean(0), expected, atol=0.02)


def test_a_mask_says_the_same_as_gaps(nets):
    given = np.array([[1.0, 0, 0, 1]])
    mask = np.array([True, False, True, False])
    wanted = nets[0].sample(5, given=np.where(mask, given, np.nan), n_steps=3, random_state=0)
    for same in (mask, mask[None]):
        np.testing.assert_array_equal(nets[0].sample(5, given=given, mask=same, n_steps=3, random_state=0), wanted)
    assert wanted.shape == (5, 4)
    labelled = nets[1].sample(2, given=given, mask=mask, label=1, n_steps=3, random_state=0)
    assert (labelled[:, mask] == given[:, mask]).all()
    assert nets[1].sample(3, label=1, n_steps=3).shape == (3, 4)


def test_what_is_wrong_with_given_is_said_as_by_other_families(nets):
    rbm = network(RBM(n_components=2), {}, 3)
    half, ones = np.array([[1, np.nan, 0, np.nan]]), np.ones((1, 4))
    for options in (
        {"given": np.ones((2, 3))},
        {"given": np.ones(4)},
        {"given": np.full((1, 4), np.nan)},
        {"given": ones},
        {"given": half * 0.5},
        {"given": half, "mask": np.ones(4, bool)},
        {"given": ones, "mask": np.zeros(3, bool)},
        {"given": ones, "mask": np.zeros(4)},
        {"mask": np.zeros(4, bool)},
    ):
        messages = set()
        for model in (nets[0], rbm):
            with pytest.raises(DataError) as caught:
                model.sample(**options)
            messages.add(str(caught.value))
        assert len(messages) == 1, messages
    with pytest.raises(DataError, match="no label units"):
        nets[0].sample(given=half, label=1)
    with pytest.raises(DataError, match="Unknown label"):
        nets[1].sample(given=half, label=7)
