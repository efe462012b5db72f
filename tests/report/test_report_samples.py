"""Chains that a report watches: they draw from the model, and it is said whether they mix."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import pytest

from latentia import PPCA, RBM, DeepEnergyModel
from latentia.core import space
from latentia.estimator import tracing
from latentia.estimator.tracing import trace
from latentia.ops import random
from latentia.report import moving
from latentia.report.runs import Run

FACTS = {"n_features": 4}


@pytest.fixture(scope="module")
def rbm():
    rbm = RBM(n_components=3, weight_scale=1.0)
    return rbm.adopt(rbm.build(FACTS, seed=1), FACTS)


def strongly(rbm, scale):
    """A machine whose units all want to agree: two states, and no way between them if ``scale`` is large."""
    model = eqx.tree_at(
        lambda m: (m.weights, m.visible.bias, m.hidden.bias),
        rbm.model_,
        (jnp.full((4, 3), scale), jnp.full(4, -1.5 * scale), jnp.full(3, -2.0 * scale)),
    )
    return RBM(n_components=3).adopt(model, FACTS)


def test_frames_have_the_means_of_the_model(rbm):
    found = trace(rbm, 3000, (0, 1, 30), key=random.key(0))
    states = np.asarray(space.enumerate_states(rbm.model_.x_space))
    p = np.exp(-rbm.free_energy(states))
    wanted = (p / p.sum()) @ states
    assert found.frames.shape == (3, 3000, 4)
    np.testing.assert_allclose(found.frames[-1].mean(axis=0), wanted, atol=0.02)
    assert np.abs(found.frames[0].mean(axis=0) - wanted).max() > 0.02  # the start is not the model
    assert found.mean
    assert found.r_hat < 1.05


def test_frames_come_after_as_many_sweeps_as_they_say(rbm, monkeypatch):
    taken, sweep = [], tracing._swept

    def counted(model, states, n_steps, key):
        taken.append(int(n_steps))
        return sweep(model, states, n_steps, key)

    monkeypatch.setattr(tracing, "_swept", counted)
    found = trace(rbm, 3, (0, 1, 5, 12), key=random.key(0))
    assert found.marks == (0, 1, 5, 12)
    assert taken[:5] == [1, 0, 1, 4, 7]  # the first of them without couplings, for a start
    assert sum(taken[5:]) == tracing._WATCHED


def test_chains_that_cannot_leave_a_mode_are_noticed(rbm):
    assert trace(strongly(rbm, 0.5), 20, (0, 100), key=random.key(0)).r_hat < 1.05
    assert trace(strongly(rbm, 3.0), 20, (0, 100), key=random.key(0)).r_hat > 1.2


def test_hamiltonian_chains_are_watched_too(tmp_path):
    deep = DeepEnergyModel(hidden=(3,))
    deep.adopt(deep.build(FACTS), FACTS)
    found = trace(deep, 8, (0, 40), key=random.key(0))
    assert found.marks == (0, 5, 10, 15, 20, 25, 30, 35, 40)
    assert found.frames.shape == (9, 8, 4)
    assert np.isfinite(found.frames).all()
    assert np.ptp(found.frames, axis=0).min() > 0


def test_models_that_are_sampled_directly_have_no_chains(tmp_path):
    ppca = PPCA(n_components=2)
    ppca.adopt(ppca.build(FACTS), FACTS)
    assert trace(ppca, 4, (0, 1), key=random.key(0)) is None
    drawn = moving.samples(Run(tmp_path, estimator=ppca, image_shape=(2, 2)))
    assert drawn.labels[0] == "set 1 of 6"
    assert len(np.unique(drawn.frames.reshape(-1, 4), axis=0)) == drawn.frames.shape[0] * drawn.frames.shape[1]


def test_a_large_model_is_swept_less(rbm, monkeypatch):
    assert moving._marks(rbm, 36)[-1] == 1000
    monkeypatch.setattr(moving, "_WORK", 36 * 26 * 200.0)
    assert moving._marks(rbm, 36)[-1] == 200
