"""Stacked autoencoders: unrolling by hand, pretraining, fine-tuning, and what they say to bad input."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import latentia
from latentia import StackedAutoencoder
from latentia.core.errors import CapabilityError, LatentiaError
from latentia.energies.rbm import RBMModel
from latentia.likelihood.precision import double
from latentia.models.stacked_autoencoder import Both, rbm_layer, unrolled
from latentia.ops.examples import Examples
from latentia.ops.networks import Dense
from latentia.units import make

SHORT = {"pretraining_epochs": 2, "n_epochs": 2, "batch_size": 20, "random_state": 0, "monitor": None}


@pytest.fixture(scope="module")
def data():
    """Two prototypes of twelve bits with flips, and which of them it is."""
    rng = np.random.default_rng(0)
    prototypes = rng.integers(0, 2, (2, 12))
    y = rng.integers(0, 2, 200)
    return (prototypes[y] ^ (rng.random((200, 12)) < 0.1)).astype(np.float32), np.array(["left", "right"])[y]


# -- unrolling ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "hidden"), [("bernoulli", "bernoulli"), ("gaussian", "bernoulli"), ("bernoulli", "gaussian")]
)
def test_a_layer_from_an_rbm_has_its_conditional_means(visible, hidden):
    with double():
        rng = np.random.default_rng(1)
        rbm = RBMModel.make(make(visible, 5), make(hidden, 3), key=jax.random.key(0))
        rbm = jax.tree.map(lambda a: jnp.asarray(np.exp(0.4 * rng.normal(size=a.shape))) + 0.1 * a, rbm)
        layer = rbm_layer(rbm)
        x, z = jnp.asarray(rng.random(5)), jnp.asarray(rng.random(3))
        finish = {"bernoulli": jax.nn.sigmoid, "gaussian": lambda u: u}
        up = finish[hidden](layer.up @ x + layer.up_biases)
        np.testing.assert_allclose(up, rbm.posterior(x).mean(), rtol=1e-10)
        down = finish[visible](layer.down @ z + layer.down_biases)
        np.testing.assert_allclose(down, rbm.decode(z), rtol=1e-10)
        assert np.ptp(down) > 1e-3 < np.ptp(up)


def test_unrolling_is_all_the_way_up_and_down():
    rng = np.random.default_rng(2)
    sizes = [(4, 6), (3, 4), (2, 3)]
    layers = [
        Both(*(jnp.asarray(rng.normal(size=s).astype(np.float32)) for s in ((n, m), (n,), (m, n), (m,))))
        for n, m in sizes
    ]
    named = ["sigmoid", "sigmoid", "linear"]
    model = unrolled(layers, named, loss="cross_entropy", output="sigmoid")
    x = rng.random(6).astype(np.float32)
    s = lambda u: 1 / (1 + np.exp(-u))  # noqa: E731
    h = s(layers[0].up @ x + layers[0].up_biases)
    h = s(layers[1].up @ h + layers[1].up_biases)
    code = layers[2].up @ h + layers[2].up_biases
    np.testing.assert_allclose(model.encode(jnp.asarray(x)), code, rtol=1e-5)
    h = s(layers[2].down @ code + layers[2].down_biases)
    h = s(layers[1].down @ h + layers[1].down_biases)
    np.testing.assert_allclose(model.decode(code), s(layers[0].down @ h + layers[0].down_biases), rtol=1e-5)


# -- pretraining -------------------------------------------------------------------------------------


@pytest.mark.parametrize("pretraining", ["denoising", "rbm"])
def test_the_stack_s_decoder_begins_as_the_encoder_s_transpose(data, pretraining):
    X, _ = data
    stack = StackedAutoencoder(
        hidden=(8, 5, 2), code_activation="linear", pretraining=pretraining, **{**SHORT, "n_epochs": 0}
    ).fit(X)
    up, down = stack.model_.encoder.layers, stack.model_.decoder.layers
    assert [layer.weights.shape for layer in up] == [(8, 12), (5, 8), (2, 5)]
    assert [layer.activation for layer in up] == ["sigmoid", "sigmoid", "linear"]
    assert [layer.activation for layer in down] == ["sigmoid", "sigmoid", "linear"]
    for layer, back in zip(up[:2], reversed(down[1:]), strict=True):  # the scale of a real code is free
        np.testing.assert_allclose(back.weights, layer.weights.T, rtol=1e-5)
    assert len(stack.pretraining_history_) == 3
    assert stack.history_ == []
    assert stack.transform(X).shape == (200, 2)


@pytest.mark.parametrize("pretraining", ["denoising", "rbm"])
def test_pretraining_is_a_better_start_than_chance(data, pretraining):
    X, _ = data
    options = {"hidden": (10, 6), "n_epochs": 0, "batch_size": 20, "random_state": 0, "learning_rate": 0.02}
    trained = StackedAutoencoder(pretraining=pretraining, pretraining_epochs=40, **options).fit(X)
    chance = StackedAutoencoder(pretraining=None, **options).fit(X)
    assert trained.score(X) > chance.score(X) + 1.0
    whole = StackedAutoencoder(
        pretraining=pretraining, pretraining_epochs=40, **{**options, "n_epochs": 20, "monitor": None}
    ).fit(X)
    assert whole.score(X) > trained.score(X) + 0.1
    begin, end = (whole.history_[i]["loss"] for i in (0, -1))
    assert end < begin


def test_each_layer_learns_from_what_the_one_below_makes_of_the_data(data, monkeypatch):
    from latentia.learning import stacking

    seen = []
    train = stacking._train
    monkeypatch.setattr(
        stacking,
        "_train",
        lambda stage, rows, *others: seen.append((stage, rows, found := train(stage, rows, *others))) or found,
    )
    X, _ = data
    StackedAutoencoder(hidden=(8, 5), **{**SHORT, "n_epochs": 0}).fit(X)
    (first, rows, result), (second, above, _) = seen
    np.testing.assert_array_equal(rows, X)
    layer = result.model.encoder.layers[0]
    wanted = jax.vmap(Dense(layer.weights, layer.biases, "sigmoid"))(jnp.asarray(X))
    np.testing.assert_allclose(above, wanted, rtol=1e-5)
    assert (first.name, second.name) == ("layer 1 of 2", "layer 2 of 2")
    for stage in (first, second):
        objective = stage.learner.objective
        assert (objective.corruption.kind, objective.corruption.level) == ("masking", 0.25)
        assert stage.model.loss == "cross_entropy"


@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_real_data_and_other_units(activation):
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(100, 3)) @ rng.normal(size=(3, 8)) + 2).astype(np.float32)
    options = {"hidden": (16, 3), "activation": activation, "code_activation": "linear", "denoise_whole": True}
    stack = StackedAutoencoder(
        **options, **{**SHORT, "n_epochs": 40, "pretraining_epochs": 20, "learning_rate": 0.01}
    ).fit(X)
    assert stack.model_.loss == "squared"
    assert np.mean((X - stack.reconstruct(X)) ** 2) < 0.3 * X.var(axis=0).mean()
    assert stack._objective().corruption.kind == "masking"


def test_rbms_of_real_data():
    rng = np.random.default_rng(0)
    X = (rng.normal(size=(100, 2)) @ rng.normal(size=(2, 6)) * 3 + 5).astype(np.float32)
    options = {"hidden": (12, 2), "code_activation": "linear", "pretraining": "rbm"}
    stack = StackedAutoencoder(
        **options, **{**SHORT, "n_epochs": 30, "pretraining_epochs": 10, "learning_rate": 0.02}
    ).fit(X)
    assert np.mean((X - stack.reconstruct(X)) ** 2) < 0.5 * X.var(axis=0).mean()


def test_nothing_is_corrupted_as_a_whole_unless_asked(data):
    stack = StackedAutoencoder(emphasis=0.9)
    stack.blueprint_ = stack._blueprint(Examples(data[0]))
    assert stack._objective().corruption is None
    assert stack._objective().emphasis == 0.5


# -- the classifier ----------------------------------------------------------------------------------


def test_fine_tuning_makes_a_classifier_that_is_saved(data, tmp_path):
    X, y = data
    stack = StackedAutoencoder(hidden=(10, 6), **SHORT).fit(X)
    assert not hasattr(stack, "predict")
    before = stack.transform(X)
    stack.finetune(X, y, n_epochs=20, batch_size=20, learning_rate=0.01, dropout=0.1)
    assert stack.accuracy(X, y) > 0.95
    assert set(stack.predict(X)) == {"left", "right"}
    np.testing.assert_array_equal(stack.transform(X), before)  # the autoencoder stays as it is
    stack.save(tmp_path / "stack.safetensors")
    again = latentia.load(tmp_path / "stack.safetensors")
    np.testing.assert_array_equal(again.predict_proba(X), stack.predict_proba(X))
    np.testing.assert_array_equal(again.reconstruct(X), stack.reconstruct(X))


def test_the_classifier_begins_as_the_encoder(data):
    X, _ = data
    stack = StackedAutoencoder(hidden=(10, 6), activation="tanh")
    facts = stack._blueprint(Examples(X))
    stack.adopt(stack.build(facts, seed=3), facts)
    assert stack.network_activation == "tanh"
    h = stack._network_inputs(X)
    np.testing.assert_array_equal(h, X)
    for weights, biases in stack._feed_forward():
        h = np.tanh(h @ weights + biases)
    np.testing.assert_allclose(h, stack.transform(X), atol=1e-5)


def test_a_run_is_resumed_with_the_same_bits(data, tmp_path):
    X, _ = data
    options = {"hidden": (10, 6), **SHORT}
    whole = StackedAutoencoder(**options).fit(X)

    def stop(event):  # while all layers learn together, not in a layer's own training
        if len(event.model.encoder.layers) == 2 and event.epoch >= 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StackedAutoencoder(**options, run_dir=tmp_path / "run", callbacks=[stop]).fit(X)
    resumed = StackedAutoencoder(**options, run_dir=tmp_path / "run", resume=True).fit(X)
    assert (tmp_path / "run" / "pretraining" / "stage-2").is_dir()
    np.testing.assert_array_equal(resumed.energy(X), whole.energy(X))
    again = latentia.load(tmp_path / "run" / "model.safetensors")
    np.testing.assert_array_equal(again.energy(X), resumed.energy(X))


# -- bad input ---------------------------------------------------------------------------------------

WRONG = {
    "hidden must be a tuple": {"hidden": (3, 0)},
    "Unknown activation": {"activation": "silu"},
    "Unknown code_activation": {"code_activation": "softmax"},
    "Unknown pretraining": {"pretraining": "dbm"},
    "pretraining_learning_rate must be": {"pretraining_learning_rate": 0.0},
    "pretraining='rbm' makes sigmoid layers": {"pretraining": "rbm", "activation": "relu"},
    "its output is a sigmoid": {"output": "linear"},
    "a probability in [0, 1), got 1.0": {"corruption_level": 1.0},
    "Gaussian noise touches all": {"corruption": "gaussian", "emphasis": 0.9},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_parameters_are_explained(data, message):
    with pytest.raises(LatentiaError) as error:
        StackedAutoencoder(**WRONG[message]).fit(data[0])
    assert message in str(error.value)


def test_wrong_data_are_explained(data):
    X, _ = data
    with pytest.raises(LatentiaError, match="Cross-entropy needs values from 0 to 1"):
        StackedAutoencoder(loss="cross_entropy", output="sigmoid").fit(2 * X)
    with pytest.raises(LatentiaError, match=r"sigmoid output lies in \[0, 1\], but X holds 2"):
        StackedAutoencoder(loss="squared", output="sigmoid").fit(2 * X)
    stack = StackedAutoencoder(hidden=(2,), **{**SHORT, "pretraining_epochs": 0}).fit(X)
    with pytest.raises(CapabilityError, match="StackedAutoencoder has no log_likelihood"):
        stack.log_likelihood(X)


def test_layers_may_learn_at_a_rate_of_their_own(data):
    stack = StackedAutoencoder(hidden=(4, 2), pretraining_learning_rate=0.5, **SHORT)
    stack.blueprint_ = stack._blueprint(Examples(data[0]))
    stage = stack._denoiser(0, None)(Examples(data[0]), jax.random.key(0))
    assert float(stage.learner.optimizer.learning_rate) == pytest.approx(0.5)
    assert eqx.is_array(stage.model.encoder.layers[0].weights)
