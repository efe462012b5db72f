"""Batch normalisation of a feed-forward network, against the batch written out as matrices."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import close, quick

from latentia.core.leaves import from_arrays, to_arrays
from latentia.core.parameters import trainable
from latentia.learning.committee import Committee, Separately
from latentia.learning.feed_forward import VARIANCE_FLOOR, FeedForward, Normalisation
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.supervised import CrossEntropy, CrossEntropyState
from latentia.likelihood.precision import double

N_IN, N_CLASSES, N_ROWS = 5, 3, 9
SHAPES = [(N_IN, 4), (4, 3), (N_IN + 3, 4)]  # the third layer reads the inputs again
ACTIVATIONS = {"sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "tanh": jnp.tanh}


@pytest.fixture
def x64():
    with double():
        yield


def plain(activation="relu", seed=0, **options) -> FeedForward:
    rng = np.random.default_rng(seed)
    shapes = [*SHAPES, (4, N_CLASSES)]
    weights = tuple(jnp.asarray(rng.normal(size=shape)) for shape in shapes)
    return FeedForward(
        weights, tuple(jnp.asarray(rng.normal(size=s[1])) for s in shapes), activation, **options, rereads=(2,)
    )


def moved(network: FeedForward, seed=1) -> FeedForward:
    """A normalised network with gains, biases and moments that belong together no longer."""
    rng = np.random.default_rng(seed)
    normalisation = jax.tree.map(lambda a: a * jnp.asarray(rng.uniform(0.5, 2.0, a.shape)), network.normalisation)
    return eqx.tree_at(lambda m: m.normalisation, network, normalisation)


def rows(n=N_ROWS, seed=2):
    rng = np.random.default_rng(seed)
    return jnp.asarray(rng.normal(size=(n, N_IN))), jnp.asarray(np.eye(N_CLASSES)[np.arange(n) % N_CLASSES])


def written_out(network: FeedForward, v, moments=None, scales=None):
    """(logits, moments) of a whole batch as matrices; with the batch's own moments unless some are given."""
    scales = [1.0] * 4 if scales is None else scales
    v = v * scales[0]
    h, found = v, []
    for layer, (weights, biases) in enumerate(zip(network.weights, network.biases, strict=True)):
        h = h * scales[layer] if layer else h
        u = (jnp.concatenate([v, h], axis=1) if layer == 2 else h) @ weights
        if layer == 3:
            return u + jnp.broadcast_to(biases, u.shape), found
        mean = jnp.broadcast_to(u.mean(0), u.shape)
        here = (u.mean(0), jnp.sqrt(((u - mean) ** 2).mean(0) + VARIANCE_FLOOR))
        found.append(here)
        mean, spread = (jnp.broadcast_to(a, u.shape) for a in (here if moments is None else moments[layer]))
        gains = jnp.broadcast_to(network.normalisation.gains[layer], u.shape)
        h = ACTIVATIONS[network.activation](gains * (u - mean) / spread + jnp.broadcast_to(biases, u.shape))
    raise AssertionError


def cross_entropies(logits, targets):
    return -jnp.sum(targets * jax.nn.log_softmax(logits), axis=1)


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.usefixtures("x64")
def test_a_network_that_is_given_it_stays_the_same_function(activation):
    before = plain(activation)
    after = before.normalised(rows()[0])
    elsewhere = 3 * rows(50, seed=7)[0]
    close(jax.vmap(after.logits)(elsewhere), jax.vmap(before.logits)(elsewhere), tolerance=1e-10)
    assert np.std(np.concatenate(after.normalisation.gains)) > 0.1  # and the fields are really measured


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.usefixtures("x64")
def test_prediction_takes_the_stored_moments_and_settling_renews_them(activation):
    network, inputs = moved(plain(activation).normalised(rows(seed=5)[0])), rows()[0]
    stored = network.normalisation.moments
    close(jax.vmap(network.logits)(inputs), written_out(network, inputs, stored)[0], tolerance=1e-10)
    settled = network.with_moments(inputs)
    close(jax.vmap(settled.logits)(inputs), written_out(network, inputs)[0], tolerance=1e-10)
    for (mean, spread), wanted in zip(settled.normalisation.moments, written_out(network, inputs)[1], strict=True):
        close(mean, wanted[0], tolerance=1e-10)
        close(spread, wanted[1], tolerance=1e-10)
    back = eqx.tree_at(lambda m: m.normalisation.moments, settled, stored)
    assert eqx.tree_equal(back, network)  # nothing else has changed
    assert plain().with_moments(inputs).normalisation is None


@pytest.mark.parametrize("adversarial", [0.0, 0.6])
@pytest.mark.usefixtures("x64")
def test_in_training_the_batch_is_the_measure_and_gradients_go_through_it(adversarial):
    network = moved(plain("tanh", dropout=0.3, input_dropout=0.2).normalised(rows(seed=5)[0]))
    inputs, labels = rows()
    state = CrossEntropyState.of(jax.random.key(3))
    masks = jax.vmap(lambda key: network.masks(key=jax.random.split(key)[0]))(jax.random.split(state.key, N_ROWS))
    scales = [jnp.asarray(np.asarray(m) / keep) for m, keep in zip(masks, (0.8, 0.7, 0.7, 0.7), strict=True)]

    def each(network, inputs):
        return cross_entropies(written_out(network, inputs, scales=scales)[0], labels)

    def wanted(network):
        loss = each(network, inputs)
        if adversarial:
            uphill = jax.grad(lambda v: each(network, v).sum())(inputs)  # of the batch: its examples share moments
            uphill = jax.lax.stop_gradient(uphill / jnp.linalg.norm(uphill, axis=1, keepdims=True))
            loss = 0.5 * (loss + each(network, inputs + adversarial * uphill))
        return loss.mean()

    objective = CrossEntropy(adversarial=adversarial)
    loss = lambda m: objective.loss(m, (inputs, labels[:, None]), None, state)[0]  # noqa: E731
    value, slopes = quick(eqx.filter_value_and_grad(loss))(network)
    right, exact = quick(eqx.filter_value_and_grad(wanted))(network)
    assert float(value) == pytest.approx(float(right), abs=1e-10)
    for found, true in zip(jax.tree.leaves(slopes), jax.tree.leaves(exact), strict=True):
        close(found, true, tolerance=1e-9)
    gains = np.concatenate(slopes.normalisation.gains)
    assert np.abs(gains).min() > 1e-6


@pytest.mark.parametrize("options", [{}, {"adversarial": 0.6}, {"virtual": 0.6}])
@pytest.mark.usefixtures("x64")
def test_rows_without_weight_leave_the_others_alone_and_weights_are_repeated_rows(options):
    network = moved(plain("tanh").normalised(rows(seed=5)[0]))
    (inputs, labels), objective = rows(), CrossEntropy(**options)
    state = CrossEntropyState.of(jax.random.key(3))

    @quick
    def slopes(inputs, labels, weights):
        loss = lambda m: objective.loss(m, (inputs, labels[:, None]), weights, state)[0]  # noqa: E731
        return eqx.filter_value_and_grad(loss)(network)

    weights = jnp.asarray(np.r_[np.ones(6), np.zeros(3)]) * 1.5
    value, found = slopes(inputs, labels, weights)
    others = slopes(inputs.at[6:].set(50.0), labels, weights)
    assert float(others[0]) == pytest.approx(float(value), abs=1e-10)
    for one, another in zip(jax.tree.leaves(found), jax.tree.leaves(others[1]), strict=True):
        close(one, another, tolerance=1e-9)
    if "virtual" in options:  # its search begins in another direction for every row
        return
    count = np.array([3, 1, 2, 0, 1, 1, 0, 1, 0])
    twice = np.repeat(np.arange(N_ROWS), count)
    value, found = slopes(inputs, labels, jnp.asarray(count.astype(float)))
    again = slopes(inputs[twice], labels[twice], None)
    assert float(again[0]) == pytest.approx(float(value), abs=1e-10)
    for one, another in zip(jax.tree.leaves(found), jax.tree.leaves(again[1]), strict=True):
        close(one, another, tolerance=1e-9)


def test_a_batch_without_weight_has_a_loss_of_zero_and_no_slope():
    network, (inputs, labels) = plain().normalised(rows()[0]), rows()
    state, objective = CrossEntropyState.of(jax.random.key(3)), CrossEntropy(adversarial=0.5)
    loss = lambda m: objective.loss(m, (inputs, labels[:, None]), jnp.zeros(N_ROWS), state)[0]  # noqa: E731
    value, slopes = quick(eqx.filter_value_and_grad(loss))(network)
    assert float(value) == 0
    assert all(np.all(np.asarray(leaf) == 0) for leaf in jax.tree.leaves(slopes))


def test_gains_learn_and_moments_wait_until_the_network_settles():
    network, (inputs, labels) = plain().normalised(rows()[0]), rows(seed=4)
    learner = GradientLearner(CrossEntropy(), Optimizer.make("sgd", learning_rate=0.1, n_steps=2))
    batch = (inputs, labels[:, None])

    @quick
    def stepped(model):
        state = learner.init(model, batch, key=jax.random.key(0))
        return learner.step(model, batch, None, state, key=jax.random.key(1), since=1)[0]

    after = stepped(network)
    assert eqx.tree_equal(after.normalisation.moments, network.normalisation.moments)
    changed = [
        np.abs(a - b).max() for a, b in zip(after.normalisation.gains, network.normalisation.gains, strict=True)
    ]
    assert min(changed) > 1e-8
    flags = trainable(network).normalisation
    assert all(flags.gains)
    assert not any(jax.tree.leaves(flags.moments))


def test_a_constant_input_is_not_blown_up():
    network = plain().normalised(rows()[0])
    same = jnp.ones((6, N_IN))
    settled = network.with_moments(same)
    for _, spread in settled.normalisation.moments:
        close(spread, np.sqrt(VARIANCE_FLOOR), tolerance=1e-4)
    close(settled.logits(same[0]), written_out(network, same)[0][0], tolerance=1e-4)


def test_the_blueprint_and_the_arrays_of_a_normalised_network_make_it_anew():
    network = jax.tree.map(lambda a: a.astype(jnp.float32), moved(plain(dropout=0.2).normalised(rows()[0])))
    assert network.blueprint == {**plain(dropout=0.2).blueprint, "normalised": True}
    assert eqx.tree_equal(from_arrays(FeedForward.build(network.blueprint), to_arrays(network)), network)
    assert isinstance(network.normalisation, Normalisation)
    assert "normalised" not in plain().blueprint  # as in files of before


@pytest.mark.usefixtures("x64")
def test_members_of_a_committee_measure_themselves():
    inputs, labels = rows()
    members = [plain(seed=seed).normalised(inputs) for seed in range(2)]
    whole, batch = Committee.of(members), (inputs, labels[:, None])
    settled = whole.with_moments(rows(seed=8)[0])
    for number, member in enumerate(members):
        alone = member.with_moments(rows(seed=8)[0])
        found, wanted = settled.member(number).normalisation.moments, alone.normalisation.moments
        close(np.concatenate(jax.tree.leaves(found)), np.concatenate(jax.tree.leaves(wanted)), tolerance=1e-12)
    objective = CrossEntropy(adversarial=0.5)
    states = [CrossEntropyState.of(jax.random.key(k)) for k in range(2)]
    together = jax.tree.map(lambda *words: jnp.stack(words), *states)
    alone = sum(objective.loss(m, batch, None, s)[0] for m, s in zip(members, states, strict=True))
    assert float(Separately(objective).loss(whole, batch, None, together)[0]) == pytest.approx(
        float(alone), abs=1e-10
    )
