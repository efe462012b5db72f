"""A committee against its members: what they say together, and that each learns as if it were alone."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import close, quick
from scipy.special import softmax

from latentia.core.algorithms import require
from latentia.core.errors import CapabilityError
from latentia.core.leaves import from_arrays, to_arrays
from latentia.core.parameters import trainable
from latentia.learning.committee import Committee, Separately
from latentia.learning.feed_forward import FeedForward
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.supervised import CrossEntropy

N_IN, N_CLASSES, N_MEMBERS = 5, 3, 3


def network(seed: int, **options) -> FeedForward:
    rng = np.random.default_rng(seed)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape), jnp.float32)  # noqa: E731
    return FeedForward((draw(N_IN, 4), draw(4, N_CLASSES)), (draw(4), draw(N_CLASSES)), **options)


def committee(**options) -> Committee:
    return Committee.of([network(seed, **options) for seed in range(N_MEMBERS)])


def batch(n: int = 8):
    rng = np.random.default_rng(9)
    labels = np.eye(N_CLASSES, dtype=np.float32)[np.arange(n) % N_CLASSES][:, None]
    return jnp.asarray(rng.normal(size=(n, N_IN)), jnp.float32), jnp.asarray(labels)


def test_the_committee_says_the_mean_of_its_members_probabilities():
    inputs, labels = batch()
    whole = committee()
    said = np.mean([softmax(jax.vmap(network(k).logits)(inputs), axis=1) for k in range(N_MEMBERS)], axis=0)
    close(np.exp(jax.vmap(whole.logits)(inputs)), said, tolerance=1e-6)
    energies = jax.vmap(lambda v, y: whole.energy((v, y)))(inputs, labels)
    close(energies, -np.log(np.sum(said * labels[:, 0], axis=1)), tolerance=1e-6)
    assert np.std([network(k).logits(inputs[0])[0] for k in range(N_MEMBERS)]) > 0.1  # they disagree


def test_masks_are_drawn_for_each_member_and_thin_that_member():
    whole = committee(dropout=0.5, input_dropout=0.3)
    masks = whole.masks(key=jax.random.key(4))
    assert [m.shape for m in masks] == [(N_MEMBERS, N_IN), (N_MEMBERS, 4)]
    many = jax.vmap(lambda key: whole.masks(key=key))(jax.random.split(jax.random.key(5), 200))
    close(np.mean(many[0], axis=(0, 1, 2)), 0.7, tolerance=0.05)
    assert not np.array_equal(many[0][:, 0], many[0][:, 1])
    inputs = batch()[0][0]
    each = [softmax(whole.member(k).logits(inputs, tuple(m[k] for m in masks))) for k in range(N_MEMBERS)]
    close(np.exp(whole.logits(inputs, masks)), np.mean(each, axis=0), tolerance=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_each_member_has_the_loss_and_the_gradient_that_it_would_have_alone(weighted):
    whole, (inputs, labels) = committee(dropout=0.4), batch()
    weights = jnp.asarray(np.random.default_rng(3).dirichlet(np.ones(8)) * 8, jnp.float32) if weighted else None
    alone = CrossEntropy(smoothing=0.1, noise=0.2, adversarial=0.5)
    together = Separately(alone)

    @quick
    def states(model):
        begun = together.init(model, (inputs, labels), key=jax.random.key(0))
        return together.prepare(model, (inputs, labels), begun, key=jax.random.key(1), weights=weights)

    @quick
    def losses(objective, model, state):
        def loss(model):
            return objective.loss(model, (inputs, labels), weights, state)

        return eqx.filter_value_and_grad(loss, has_aux=True)(model)

    state = states(whole)
    (total, metrics), slopes = losses(together, whole, state)
    found = [losses(alone, whole.member(k), jax.tree.map(lambda a, k=k: a[k], state)) for k in range(N_MEMBERS)]
    close(total, sum(value for (value, _), _ in found), tolerance=1e-5)
    close(metrics["loss"], np.mean([value for (value, _), _ in found]), tolerance=1e-5)
    close(metrics["accuracy"], np.mean([m["accuracy"] for (_, m), _ in found]), tolerance=1e-6)
    for k, (_, own) in enumerate(found):
        for ours, theirs in zip(jax.tree.leaves(slopes), jax.tree.leaves(own), strict=True):
            close(ours[k], theirs, tolerance=1e-5)
    words = np.asarray(jax.tree.leaves(state)[0])
    assert len(np.unique(words, axis=0)) == N_MEMBERS  # other dice for each


def test_a_step_keeps_every_member_within_its_bound():
    whole = committee(max_norm=0.7)
    learner = GradientLearner(Separately(CrossEntropy()), Optimizer.make("sgd", learning_rate=0.1, n_steps=2))
    rows = batch()

    @quick
    def stepped(model):
        state = learner.init(model, rows, key=jax.random.key(0))
        return learner.step(model, rows, None, state, key=jax.random.key(1), since=1)[0]

    after = stepped(whole)
    for weights in after.members.weights:
        assert np.sqrt(np.sum(np.square(weights), axis=1)).max() <= 0.7 + 1e-6
    assert np.sqrt(np.sum(np.square(whole.members.weights[0]), axis=1)).max() > 0.8
    assert all(jax.tree.leaves(trainable(whole)))


def test_the_blueprint_builds_committees_and_single_networks():
    whole = committee(dropout=0.4, max_norm=2.0)
    assert whole.blueprint == {"n_members": N_MEMBERS, **network(0, dropout=0.4, max_norm=2.0).blueprint}
    again = from_arrays(Committee.build(whole.blueprint), to_arrays(whole))
    assert eqx.tree_equal(again, whole)
    assert eqx.tree_equal(whole.member(1), network(1, dropout=0.4, max_norm=2.0))
    assert eqx.tree_equal(whole.member(-1), whole.member(N_MEMBERS - 1))
    with pytest.raises(IndexError):
        whole.member(N_MEMBERS)
    single = Committee.build(network(0, dropout=0.4).blueprint)
    assert isinstance(single, FeedForward)
    assert single.dropout == 0.4


def test_a_single_network_has_no_members_to_train_separately():
    with pytest.raises(CapabilityError, match="Committee"):
        require(Separately(CrossEntropy()), network(0))
