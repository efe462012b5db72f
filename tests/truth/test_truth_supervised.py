"""The feed-forward network, its dropout and its cross-entropy, against NumPy written out and enumerated masks."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import close, quick
from scipy.special import expit, log_softmax, rel_entr, softmax

from latentia.core import space
from latentia.core.algorithms import require
from latentia.core.errors import CapabilityError, ParameterError, UnknownNameError
from latentia.core.leaves import from_arrays, to_arrays
from latentia.core.parameters import roles, trainable
from latentia.learning import contrastive
from latentia.learning.feed_forward import OUTPUT_SCALE, FeedForward
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.supervised import CrossEntropy, CrossEntropyState, LabelledRows
from latentia.likelihood.precision import double

SIZES = (5, 4, 3, 3)
N_ROWS = 7
ACTIVATIONS = {
    "sigmoid": (expit, lambda u: expit(u) * expit(-u)),
    "tanh": (np.tanh, lambda u: 1 - np.tanh(u) ** 2),
    "relu": (lambda u: np.maximum(u, 0), lambda u: (u > 0).astype(float)),
}


@pytest.fixture
def x64():
    with double():
        yield


def network(sizes=SIZES, dtype=np.float64, seed=0, **options) -> FeedForward:
    """A network at random parameters, biases included."""
    rng = np.random.default_rng(seed)
    weights = tuple(jnp.asarray(rng.normal(size=shape), dtype) for shape in itertools.pairwise(sizes))
    return FeedForward(weights, tuple(jnp.asarray(rng.normal(size=n), dtype) for n in sizes[1:]), **options)


def batch(n: int = N_ROWS, dtype=np.float64, seed: int = 1):
    """(inputs, one-hot labels of one site, their numbers)."""
    rng = np.random.default_rng(seed)
    codes = np.arange(n) % SIZES[-1]
    return rng.normal(size=(n, SIZES[0])).astype(dtype), np.eye(SIZES[-1], dtype=np.float32)[codes][:, None], codes


def numpy_gradient(model: FeedForward, inputs, targets, weights, scales=None):
    """(loss, [(∂W, ∂b) …]) of Σ_n w_n · −t_nᵀ log softmax(f(v_n)) / N by back-propagation, written out.

    ``scales`` are what each layer's inputs are multiplied by: one array per layer, one row per example.
    """
    act, slope = ACTIVATIONS[model.activation]
    pairs = [
        (np.asarray(w, np.float64), np.asarray(b, np.float64))
        for w, b in zip(model.weights, model.biases, strict=True)
    ]
    scales = [1.0] * len(pairs) if scales is None else scales
    seen, fields, h = [], [], np.asarray(inputs, np.float64)
    for layer, (w, b) in enumerate(pairs):
        seen.append(h * scales[layer])
        fields.append(seen[-1] @ w + b)
        h = act(fields[-1])
    loss = np.mean(weights * -np.sum(targets * log_softmax(fields[-1], axis=1), axis=1))
    delta = weights[:, None] * (softmax(fields[-1], axis=1) - targets) / len(inputs)
    gradients = []
    for layer in reversed(range(len(pairs))):
        gradients.insert(0, (seen[layer].T @ delta, delta.sum(0)))
        if layer:
            delta = (delta @ pairs[layer][0].T) * scales[layer] * slope(fields[layer - 1])
    return loss, gradients


@quick
def _gradient(objective, model, x, weights, state):
    params, rest = eqx.partition(model, trainable(model))
    return eqx.filter_value_and_grad(lambda p: objective.loss(eqx.combine(p, rest), x, weights, state)[0])(params)


def same_gradient(found, wanted) -> None:
    for layer, (w, b) in enumerate(wanted):
        close(found.weights[layer], w, tolerance=1e-10)
        close(found.biases[layer], b, tolerance=1e-10)
        assert np.abs(w).max() > 1e-3


# -- the energy and its gradient ---------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_energy_is_minus_the_log_probability_of_the_label():
    model = network()
    inputs, _, _ = batch()
    act = ACTIVATIONS["sigmoid"][0]
    h = inputs[0]
    for layer, (w, b) in enumerate(zip(model.weights, model.biases, strict=True)):
        h = h @ np.asarray(w) + np.asarray(b)
        h = act(h) if layer < 2 else h
    energies = [float(model.energy((jnp.asarray(inputs[0]), jnp.eye(3)[k][None]), ())) for k in range(3)]
    close(energies, -log_softmax(h), tolerance=1e-12)
    assert np.exp(-np.array(energies)).sum() == pytest.approx(1.0, abs=1e-12)
    assert model.z_space == ()
    assert [s.domain for s in model.x_space] == ["real", "categorical"]
    assert space.n_columns(model.x_space) == 6


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_the_gradient_is_back_propagation_written_out(activation, smoothing, weighted):
    model = network(activation=activation)
    inputs, labels, codes = batch()
    weights = np.random.default_rng(2).dirichlet(np.ones(N_ROWS)) * N_ROWS if weighted else None
    state = CrossEntropyState.of(jax.random.key(0))
    loss, found = _gradient(CrossEntropy(smoothing), model, (inputs, labels), weights, state)
    targets = (1 - smoothing) * np.eye(3)[codes] + smoothing / 3
    wanted = numpy_gradient(model, inputs, targets, np.ones(N_ROWS) if weights is None else weights)
    assert float(loss) == pytest.approx(wanted[0], abs=1e-12)
    same_gradient(found, wanted[1])


@pytest.mark.usefixtures("x64")
def test_with_dropout_the_gradient_is_that_of_the_thinned_network():
    model = network(dropout=0.5, input_dropout=0.25)
    inputs, labels, codes = batch()
    objective, state = CrossEntropy(), CrossEntropyState.of(jax.random.key(3))
    masks = jax.vmap(lambda key: model.masks(key=jax.random.split(key)[0]))(jax.random.split(state.key, N_ROWS))
    kept = np.concatenate([np.asarray(m).ravel() for m in masks])
    assert 0.3 < kept.mean() < 0.9
    scales = [np.asarray(mask) / keep for mask, keep in zip(masks, (0.75, 0.5, 0.5), strict=True)]
    loss, found = _gradient(objective, model, (inputs, labels), None, state)
    wanted = numpy_gradient(model, inputs, np.eye(3)[codes], np.ones(N_ROWS), scales)
    assert float(loss) == pytest.approx(wanted[0], abs=1e-12)
    same_gradient(found, wanted[1])


@pytest.mark.usefixtures("x64")
def test_the_batch_is_scored_as_it_should_be():
    model = network()
    inputs, labels, codes = batch()
    weights = np.random.default_rng(2).dirichlet(np.ones(N_ROWS)) * N_ROWS
    _, metrics = CrossEntropy().loss(model, (inputs, labels), weights, CrossEntropyState.of(jax.random.key(0)))
    right = np.argmax(np.asarray(jax.vmap(model.logits)(inputs)), axis=1) == codes
    assert 0 < right.sum() < N_ROWS
    assert float(metrics["accuracy"]) == pytest.approx(np.mean(weights * right), abs=1e-12)
    assert sorted(metrics) == ["accuracy", "loss"]


def test_weights_are_repeated_rows():
    model = network(dtype=np.float32)
    inputs, labels, _ = batch(4, np.float32)
    optimizer = Optimizer.make("sgd", learning_rate=0.3, n_steps=10)
    learner = GradientLearner(CrossEntropy(), optimizer)
    repeated = [0, 0, 1, 3]

    @quick
    def step(model, x, weights):
        state = learner.init(model, x, key=jax.random.key(0))
        new = learner.step(model, x, weights, state, key=jax.random.key(1), since=1)[0]
        return jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(new)])

    found = step(model, (inputs, labels), jnp.array([2.0, 1.0, 0.0, 1.0], jnp.float32))
    wanted = step(model, (inputs[repeated], labels[repeated]), None)
    plain = step(model, (inputs, labels), None)
    close(found, wanted, tolerance=1e-6)
    assert np.abs(np.asarray(found) - np.asarray(plain)).max() > 1e-3


# -- dropout -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "layer", "options"),
    [((5, 3), 0, {"input_dropout": 0.2}), ((2, 5, 3), 1, {"dropout": 0.7})],
)
@pytest.mark.usefixtures("x64")
def test_the_expected_logits_are_the_undropped_ones(sizes, layer, options):
    """Logits are linear in what the last layer reads, so the sum over all masks must be exact."""
    model = network(sizes, **options)
    inputs = jnp.asarray(np.random.default_rng(3).normal(size=sizes[0]))
    rate = next(iter(options.values()))
    every = np.array(list(itertools.product((False, True), repeat=sizes[layer])))
    p = np.prod(np.where(every, 1 - rate, rate), axis=1)
    assert p.sum() == pytest.approx(1.0)

    def thinned(mask):
        masks = [None] * len(model.weights)
        masks[layer] = jnp.asarray(mask)
        return np.asarray(model.logits(inputs, tuple(masks)))

    logits = np.array([thinned(mask) for mask in every])
    close(p @ logits, model.logits(inputs), tolerance=1e-12)
    assert logits.std(0).min() > 0.1


def test_masks_keep_what_they_should_and_differ_between_units_examples_and_steps():
    model = network((6, 5, 4, 3), np.float32, dropout=0.5, input_dropout=0.2)
    n = 4000
    masks = jax.vmap(lambda key: model.masks(key=key))(jax.random.split(jax.random.key(0), n))
    assert [m.shape for m in masks] == [(n, 6), (n, 5), (n, 4)]  # inputs and hidden layers, never the logits
    for mask, keep in zip(masks, (0.8, 0.5, 0.5), strict=True):
        count = np.asarray(mask).sum(0)
        assert np.abs(count - n * keep).max() < 5 * np.sqrt(n * keep * (1 - keep))
    together = np.concatenate([np.asarray(m, float) for m in masks], axis=1)
    correlation = np.corrcoef(together.T) - np.eye(15)
    assert np.abs(correlation).max() < 5 / np.sqrt(n)  # units are dropped independently, across layers too
    assert all(mask is None for mask in network(SIZES, np.float32).masks(key=jax.random.key(0)))


def test_examples_and_steps_have_masks_of_their_own_and_a_state_fixes_them():
    model = network(dtype=np.float32, dropout=0.5, input_dropout=0.2)
    inputs, labels = np.repeat(batch(1, np.float32)[0], 6, axis=0), np.repeat(batch(1)[1], 6, axis=0)
    objective = CrossEntropy()

    def each(state):
        return [
            float(objective.loss(model, (inputs, labels), 6 * jnp.eye(6, dtype=jnp.float32)[i], state)[0])
            for i in range(6)
        ]

    start = objective.init(model, (inputs, labels), key=jax.random.key(0))
    first = objective.prepare(model, (inputs, labels), start, key=jax.random.key(1))
    second = objective.prepare(model, (inputs, labels), first, key=jax.random.key(2))
    assert len(set(each(first))) > 4  # the same example six times, thinned in six ways
    assert each(first) == each(first)
    assert each(first) != each(second)


def test_the_state_survives_a_file():
    for key in (jax.random.key(5), jax.random.key(5, impl="rbg")):
        state = CrossEntropyState.of(key)
        back = from_arrays(CrossEntropyState.of(jax.random.clone(key)), to_arrays(state))
        assert jax.random.uniform(back.key) == jax.random.uniform(key)


def test_noise_is_added_to_the_inputs_alone():
    inputs = jnp.array([1.0, -2.0, 0.5])
    objective = CrossEntropy(noise=0.3)
    keys = jax.random.split(jax.random.key(0), 4000)
    drawn = np.asarray(jax.vmap(lambda key: objective._noisy(inputs, key))(keys)) - np.asarray(inputs)
    assert np.abs(drawn.mean(0)).max() < 5 * 0.3 / np.sqrt(4000)
    assert np.abs(drawn.std(0) / 0.3 - 1).max() < 5 / np.sqrt(2 * 4000)
    np.testing.assert_array_equal(CrossEntropy()._noisy(inputs, keys[0]), inputs)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.usefixtures("x64")
def test_half_of_an_adversarial_loss_is_taken_where_a_step_hurts_most(smoothing):
    model, radius = network(dropout=0.5, input_dropout=0.25), 0.7
    inputs, labels, codes = batch()
    state = CrossEntropyState.of(jax.random.key(3))
    masks = jax.vmap(lambda key: model.masks(key=jax.random.split(key)[0]))(jax.random.split(state.key, N_ROWS))
    scales = [np.asarray(mask) / keep for mask, keep in zip(masks, (0.75, 0.5, 0.5), strict=True)]
    targets = (1 - smoothing) * np.eye(3)[codes] + smoothing / 3

    def each(inputs):  # the losses of all examples, which share nothing
        return np.array(
            [
                numpy_gradient(
                    model, inputs[i : i + 1], targets[i : i + 1], np.ones(1), [s[i : i + 1] for s in scales]
                )[0]
                for i in range(N_ROWS)
            ]
        )

    tiny, uphill = 1e-6, np.zeros(inputs.shape)
    for j in range(inputs.shape[1]):
        step = tiny * np.eye(inputs.shape[1])[j]
        uphill[:, j] = (each(np.asarray(inputs) + step) - each(np.asarray(inputs) - step)) / (2 * tiny)
    norms = np.linalg.norm(uphill, axis=1, keepdims=True)  # zero where dropout cuts every way to the label
    moved = np.asarray(inputs) + radius * uphill / np.where(norms > 0, norms, 1)
    worse = each(moved) > each(np.asarray(inputs))
    np.testing.assert_array_equal(worse, norms[:, 0] > 0)
    assert worse.sum() > N_ROWS / 2
    loss, found = _gradient(CrossEntropy(smoothing, adversarial=radius), model, (inputs, labels), None, state)
    here = numpy_gradient(model, inputs, targets, np.ones(N_ROWS), scales)
    there = numpy_gradient(model, moved, targets, np.ones(N_ROWS), scales)
    assert float(loss) == pytest.approx(0.5 * (here[0] + there[0]), abs=1e-8)
    for layer, ((w0, b0), (w1, b1)) in enumerate(zip(here[1], there[1], strict=True)):
        close(found.weights[layer], 0.5 * (w0 + w1), tolerance=1e-7)  # the step itself is held fixed
        close(found.biases[layer], 0.5 * (b0 + b1), tolerance=1e-7)


def test_a_vanished_gradient_leaves_an_adversarial_example_where_it_is():
    model = FeedForward((jnp.zeros((3, 2)), jnp.zeros((2, 2))), (jnp.zeros(2), jnp.zeros(2)))
    inputs, labels = jnp.ones((4, 3)), jnp.tile(jnp.eye(2), (2, 1))[:, None, :]
    objective, state = CrossEntropy(adversarial=1.0, virtual=1.0), CrossEntropyState.of(jax.random.key(0))
    loss, found = _gradient(objective, model, (inputs, labels), None, state)
    assert float(loss) == pytest.approx(np.log(2), abs=1e-6)
    np.testing.assert_allclose(found.biases[1], 0.0, atol=1e-7)


@pytest.mark.usefixtures("x64")
def test_a_virtual_step_goes_where_the_prediction_changes_most():
    """Two classes read linearly: only w = w₁ − w₀ matters, so the step is ±εw/‖w‖ wherever the search began."""
    rng, radius = np.random.default_rng(0), 0.8
    W, b = rng.normal(size=(4, 2)), rng.normal(size=2)
    inputs, labels = jnp.asarray(rng.normal(size=(12, 4))), jnp.asarray(np.eye(2)[rng.integers(0, 2, 12)][:, None])
    model, state = FeedForward((jnp.asarray(W),), (jnp.asarray(b),)), CrossEntropyState.of(jax.random.key(3))
    w = W[:, 1] - W[:, 0]
    field, shift = np.asarray(inputs) @ w + b[1] - b[0], radius * np.linalg.norm(w)
    p, both = expit(field), [expit(field + sign * shift) for sign in (-1, 1)]
    changed = np.array([rel_entr(p, q) + rel_entr(1 - p, 1 - q) for q in both])
    plain = CrossEntropy().loss(model, (inputs, labels), None, state)[0]

    def one(i):  # the part that the step adds to one example
        x = (inputs, labels)
        weights = jnp.asarray(12.0 * (np.arange(12) == i))
        return [float(CrossEntropy(virtual=v).loss(model, x, weights, state)[0]) for v in (0.0, radius)]

    added = np.array([np.subtract(*one(i)[::-1]) for i in range(12)])
    taken = np.argmin(np.abs(changed - added), axis=0)
    np.testing.assert_allclose(changed[taken, np.arange(12)], added, rtol=1e-9)
    assert set(taken) == {0, 1}
    # What was said is held fixed: only the prediction one step away learns.
    loss, found = _gradient(CrossEntropy(virtual=radius), model, (inputs, labels), None, state)
    assert float(loss) == pytest.approx(float(plain) + added.mean(), rel=1e-9)
    q = np.where(taken == 1, both[1], both[0])
    moved = np.asarray(inputs) + radius * np.where(taken == 1, 1, -1)[:, None] * w / np.linalg.norm(w)
    there = ((q - p)[:, None] * moved).mean(0)
    here = ((p - np.asarray(labels)[:, 0, 1])[:, None] * np.asarray(inputs)).mean(0)
    close(found.weights[0][:, 1], here + there, tolerance=1e-9)
    close(found.weights[0][:, 0], -here - there, tolerance=1e-9)


# -- the bound on weights ----------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_bound_shortens_the_weights_into_a_unit_and_nothing_else():
    model = network((6, 4, 3), max_norm=2.0)
    bounded = model.project()
    assert [w.shape for w in bounded.weights] == [(6, 4), (4, 3)]
    shortened = 0
    for old, new in zip(model.weights, bounded.weights, strict=True):
        for unit in range(old.shape[1]):
            into = np.asarray(old[:, unit])
            norm = np.linalg.norm(into)
            shortened += norm > 2
            wanted = into if norm <= 2 else into * 2 / norm
            np.testing.assert_allclose(new[:, unit], wanted, rtol=1e-14)
    assert 0 < shortened < 7  # some are over the bound, some under
    close(bounded.project().weights[0], bounded.weights[0], tolerance=1e-14)
    np.testing.assert_array_equal(bounded.biases[0], model.biases[0])
    free = network((6, 4, 3))
    assert free.project() is free
    zero = jax.tree.map(jnp.zeros_like, model).project()
    assert all(np.isfinite(np.asarray(w)).all() for w in zero.weights)


def test_every_step_ends_inside_the_bound():
    model = network(dtype=np.float32, max_norm=1.0, dropout=0.5)
    inputs, labels, _ = batch(6, np.float32)
    learner = GradientLearner(CrossEntropy(), Optimizer.make("sgd", learning_rate=3.0, n_steps=10))

    @quick
    def step(model, x):
        state = learner.init(model, x, key=jax.random.key(0))
        return learner.step(model, x, None, state, key=jax.random.key(1), since=0)[0]

    norms = [np.linalg.norm(w, axis=0) for w in step(model, (inputs, labels)).weights]
    assert max(n.max() for n in norms) <= 1 + 1e-6
    assert max(np.linalg.norm(w, axis=0).max() for w in model.weights) > 1.5


# -- making networks, and reading rows ----------------------------------------------------------------


def test_given_layers_are_kept_and_a_small_output_layer_is_put_on_top():
    rng = np.random.default_rng(0)
    layers = [(rng.normal(size=(6, 5)), rng.normal(size=5)), (rng.normal(size=(5, 400)), rng.normal(size=400))]
    model = FeedForward.from_layers(layers, 10, key=jax.random.key(0), dropout=0.5, input_dropout=0.2, max_norm=3)
    for (w, b), weights, biases in zip(layers, model.weights, model.biases, strict=False):
        np.testing.assert_array_equal(weights, w.astype(np.float32))
        np.testing.assert_array_equal(biases, b.astype(np.float32))
    assert model.weights[-1].shape == (400, 10)
    assert np.std(model.weights[-1]) == pytest.approx(OUTPUT_SCALE, rel=0.1)
    assert not np.asarray(model.biases[-1]).any()
    assert (model.activation, model.dropout, model.input_dropout, model.max_norm) == ("sigmoid", 0.5, 0.2, 3.0)
    assert set(jax.tree.leaves(roles(model).weights)) == {"weight"}
    assert set(jax.tree.leaves(roles(model).biases)) == {"bias"}
    again = FeedForward.build(model.blueprint)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert [leaf.shape for leaf in jax.tree.leaves(again)] == [leaf.shape for leaf in jax.tree.leaves(model)]


@pytest.mark.usefixtures("x64")
def test_a_layer_can_read_the_inputs_again_beside_the_one_below():
    rng = np.random.default_rng(0)
    shapes = [(4, 3), (3, 2), (4 + 2, 3)]
    model = FeedForward.from_layers(
        [(rng.normal(size=s), rng.normal(size=s[1])) for s in shapes],
        5,
        key=jax.random.key(0),
        dropout=0.5,
        input_dropout=0.2,
    )
    assert model.rereads == (2,)
    inputs = rng.normal(size=4).astype(np.float32)
    w, b = ([np.asarray(a, np.float64) for a in part] for part in (model.weights, model.biases))
    act = ACTIVATIONS["sigmoid"][0]

    def written_out(scales):
        seen = inputs * scales[0]
        second = act(act(seen @ w[0] + b[0]) * scales[1] @ w[1] + b[1])
        third = act(seen @ w[2][:4] + (second * scales[2]) @ w[2][4:] + b[2])
        return (third * scales[3]) @ w[3] + b[3]

    np.testing.assert_allclose(model.logits(jnp.asarray(inputs)), written_out([1.0] * 4), atol=1e-6)
    masks = model.masks(key=jax.random.key(2))
    assert [m.shape for m in masks] == [(4,), (3,), (2,), (3,)]
    scales = [np.asarray(m) / keep for m, keep in zip(masks, (0.8, 0.5, 0.5, 0.5), strict=True)]
    assert min(s.min() for s in scales) == 0
    np.testing.assert_allclose(model.logits(jnp.asarray(inputs), masks), written_out(scales), atol=1e-6)
    again = FeedForward.build(model.blueprint)
    assert jax.tree.structure(again) == jax.tree.structure(model)
    assert [leaf.shape for leaf in jax.tree.leaves(again)] == [leaf.shape for leaf in jax.tree.leaves(model)]
    blueprint = network((4, 3, 2)).blueprint
    del blueprint["rereads"]  # files of networks that never do so may lack it
    assert FeedForward.build(blueprint).rereads == ()


def test_rows_end_with_the_number_of_their_class():
    model = network((2, 4), np.float32)
    rows = jnp.array([[0.5, 0.1, 0.0], [1.0, -2.0, 3.0], [0.0, 0.0, 2.0]])
    inputs, labels = LabelledRows(model.x_space)(rows, key=jax.random.key(0))
    np.testing.assert_array_equal(inputs, rows[:, :2])
    np.testing.assert_array_equal(labels, np.eye(4)[[0, 3, 2]][:, None])


def test_what_makes_no_network_is_refused():
    w, b = np.ones((4, 3)), np.zeros(3)
    key = jax.random.key(0)
    for layers in ([], [(w, np.zeros(4))], [(w, b), (np.ones((4, 2)), np.zeros(2))], [(np.ones(4), np.zeros(4))]):
        with pytest.raises(ParameterError, match="n_in, n_out"):
            FeedForward.from_layers(layers, 2, key=key)
    for wrong in ({"dropout": 1.0}, {"input_dropout": -0.1}, {"max_norm": -1.0}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            FeedForward.from_layers([(w, b)], 2, key=key, **wrong)
    with pytest.raises(UnknownNameError, match="sigmoid"):
        FeedForward.from_layers([(w, b)], 2, key=key, activation="sigmiod")
    for wrong in ({"smoothing": 1.0}, {"noise": -1.0}):
        with pytest.raises(ParameterError, match=next(iter(wrong))):
            CrossEntropy(**wrong)


def test_objectives_and_models_that_do_not_fit_say_so():
    with pytest.raises(CapabilityError, match="FreeEnergy"):
        require(contrastive.cd(), network(dtype=np.float32))
    require(CrossEntropy(), network(dtype=np.float32))
