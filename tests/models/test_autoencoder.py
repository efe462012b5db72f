"""The autoencoder: its networks, its estimator, and what it says to bad input."""

from __future__ import annotations

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from click.testing import CliRunner
from scipy.signal import correlate2d
from sklearn.decomposition import PCA

import latentia
from latentia import Autoencoder
from latentia.core.algorithms import require
from latentia.core.errors import CapabilityError, DataError, FileFormatError, LatentiaError, ParameterError
from latentia.learning import OBJECTIVES
from latentia.learning.reconstruction import Reconstruction
from latentia.models.ppca import PPCAModel
from latentia.ops.corruption import Corruption
from latentia.ops.examples import Examples
from latentia.ops.networks import (
    MLP,
    Convolution,
    ConvolutionalDecoder,
    ConvolutionalEncoder,
    Threshold,
    activation,
)
from latentia.report.sections import linear_reconstructions

SHORT = {"n_epochs": 3, "batch_size": 20, "random_state": 0, "monitor": None}


@pytest.fixture(scope="module")
def grey():
    """Stripes: images 6 × 5 with two kinds of structure."""
    rng = np.random.default_rng(0)
    phase, kind = rng.uniform(0, 2 * np.pi, (120, 1, 1)), rng.integers(0, 2, (120, 1, 1))
    i, j = np.mgrid[:6, :5]
    waves = 0.5 + 0.4 * np.sin(np.where(kind, i, j) * 1.5 + phase)
    return np.clip(waves + 0.03 * rng.normal(size=waves.shape), 0, 1).reshape(120, 30).astype(np.float32)


@pytest.fixture(scope="module")
def real():
    rng = np.random.default_rng(1)
    return (rng.normal(size=(120, 2)) @ rng.normal(size=(2, 7)) + 4 + 0.1 * rng.normal(size=(120, 7))).astype(
        np.float32
    )


# -- networks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2])
def test_a_convolution_by_hand(stride):
    layer = Convolution.make(2, 3, key=jax.random.key(0), activation="tanh", stride=stride)
    layer = eqx.tree_at(lambda m: m.biases, layer, jnp.array([0.1, -0.2, 0.3]))
    image = np.random.default_rng(0).normal(size=(2, 7, 6))
    whole = [
        sum(correlate2d(image[c], np.asarray(layer.weights)[k, c], mode="same") for c in range(2)) for k in range(3)
    ]
    wanted = np.tanh(np.array(whole)[:, ::stride, ::stride] + np.array([0.1, -0.2, 0.3])[:, None, None])
    np.testing.assert_allclose(layer(jnp.asarray(image, jnp.float32)), wanted, atol=1e-5)


@pytest.mark.parametrize("shape", [(28, 28), (7, 5), (9, 4, 3)])
def test_convolutional_networks_keep_the_size_of_the_image(shape):
    n = int(np.prod(shape))
    encoded = lambda: ConvolutionalEncoder.make(shape, (2, 3), 4, key=jax.random.key(0))(jnp.ones(n))  # noqa: E731
    decoded = lambda: ConvolutionalDecoder.make(shape, (2, 3), 4, key=jax.random.key(1))(jnp.ones(4))  # noqa: E731
    assert jax.eval_shape(encoded).shape == (4,)
    assert jax.eval_shape(decoded).shape == (n,)


def test_colours_stay_where_they_are():
    """What one colour of one pixel says reaches its own neighbourhood in the image, and no other."""
    shape = (8, 8, 3)
    decoder = ConvolutionalDecoder.make(shape, (4,), 2, key=jax.random.key(0), activation="tanh")
    last = decoder.layers[-1]
    only_red = eqx.tree_at(
        lambda d: d.layers[-1].weights, decoder, jnp.zeros_like(last.weights).at[0].set(last.weights[0])
    )
    image = np.asarray(only_red(jnp.ones(2))).reshape(shape)
    assert np.abs(image[..., 0]).min() > 0
    assert (image[..., 1:] == 0).all()


def test_activations_by_name_and_by_function():
    u = jnp.array([-2.0, 0.0, 1.0])
    np.testing.assert_array_equal(activation("relu")(u), [0, 0, 1])
    assert activation(jnp.sin) is jnp.sin
    np.testing.assert_allclose(Threshold(0.5)(u), [-1.5, 0, 0.5])
    np.testing.assert_allclose(Threshold(0.5, "hard")(u), [-2, 0, 1])
    np.testing.assert_allclose(Threshold(1.5, "ternary")(u), [-3, 0, 0])
    with pytest.raises(LatentiaError, match="Did you mean 'sigmoid'"):
        activation("sigmoidal")
    with pytest.raises(LatentiaError, match="level must be at least 0"):
        Threshold(-1.0)
    with pytest.raises(LatentiaError, match="Unknown kind"):
        Threshold(1.0, "firm")


def test_fresh_networks_pass_on_the_scale_of_their_inputs():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(300, 100)).astype(np.float32))
    for named in ("tanh", "relu", "linear"):
        network = MLP.make((100, 200, 200), key=jax.random.key(0), activation=named)
        values = np.asarray(jax.vmap(network)(x))
        assert 0.3 < values.std() < 1.5


# -- learning ----------------------------------------------------------------------------------------


def test_the_loss_follows_from_the_data(grey, real):
    fitted = Autoencoder(hidden=(3,), **SHORT).fit(grey)
    assert (fitted.model_.loss, fitted.model_.output) == ("cross_entropy", "sigmoid")
    again = fitted.reconstruct(grey)
    assert 0 < again.min() <= again.max() < 1
    wanted = -np.sum(grey * np.log(again) + (1 - grey) * np.log(1 - again), axis=1)
    np.testing.assert_allclose(fitted.energy(grey), wanted, rtol=1e-4)
    assert fitted.score(grey) == pytest.approx(-wanted.mean(), rel=1e-4)
    fitted = Autoencoder(hidden=(3,), **SHORT).fit(real)
    assert (fitted.model_.loss, fitted.model_.output) == ("squared", "linear")
    wanted = 0.5 * np.sum((real - fitted.reconstruct(real)) ** 2, axis=1)
    np.testing.assert_allclose(fitted.energy(real), wanted, rtol=1e-4)


def test_it_learns_to_rebuild_what_it_has_not_seen(grey):
    options = {"hidden": (40, 4), "activation": "tanh", "n_epochs": 80, "learning_rate": 0.01, "loss": "squared"}
    fitted = Autoencoder(**{**SHORT, **options}).fit(grey[:80])
    centre = grey[:80].mean(axis=0)
    error = np.mean((grey[80:] - fitted.reconstruct(grey[80:])) ** 2)
    assert error < 0.2 * np.mean((grey[80:] - centre) ** 2)
    noise = np.random.default_rng(0).random((40, 30)).astype(np.float32)
    assert fitted.energy(noise).min() > np.median(fitted.energy(grey[80:]))  # the energy tells what is foreign


VARIANTS = {
    "overcomplete": {"hidden": (50,), "code_activation": "sigmoid", "corruption": "masking", "emphasis": 1.0},
    "gaussian": {"hidden": (8, 3), "corruption": "gaussian", "activation": "silu"},
    "tied salt": {
        "hidden": (8, 3),
        "tied": True,
        "corruption": "salt_and_pepper",
        "loss": "squared",
        "output": "sigmoid",
    },
    "l1": {"hidden": (12,), "sparsity": "l1", "sparsity_weight": 0.01},
    "kl": {"hidden": (12,), "code_activation": "sigmoid", "sparsity": "kl"},
    "k_winners": {"hidden": (12,), "sparsity": "k_winners", "n_winners": 3},
    "contractive": {"hidden": (12,), "code_activation": "sigmoid", "contraction": 1.0},
    "deep contractive": {"hidden": (8, 3), "contraction": 0.1, "activation": jnp.tanh},
    "convolutional": {"hidden": (3, 4, 5), "convolutional": True, "image_shape": (6, 5)},
}


@pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
def test_every_variant_learns(grey, options):
    fitted = Autoencoder(**{**SHORT, "n_epochs": 30, "learning_rate": 0.01, **options}).fit(grey)
    history = [row["loss"] for row in fitted.history_]
    assert history[-1] < history[0]
    n_code = options["hidden"][-1]
    codes = fitted.transform(grey)
    assert codes.shape == (120, n_code)
    mean = grey.mean(axis=0)
    always = -grey * np.log(mean) - (1 - grey) * np.log(1 - mean)  # what the mean costs as an answer to everything
    if fitted.model_.loss == "squared":
        always = 0.5 * (grey - mean) ** 2
    assert fitted.score(grey) > -always.sum(axis=1).mean() + 0.1
    if "n_winners" in options:
        assert (np.count_nonzero(codes, axis=1) == 3).all()
    if options.get("sparsity") == "kl":  # the wanted rate is 0.05; without a price it stays near a half
        free = Autoencoder(**{**SHORT, "n_epochs": 30, "learning_rate": 0.01, **options, "sparsity_weight": 0.0})
        assert codes.mean() < free.fit(grey).transform(grey).mean() - 0.05
    if "contraction" in options:
        loose = Autoencoder(**{**SHORT, "n_epochs": 30, "learning_rate": 0.01, **options, "contraction": 0.0})
        norm = lambda e: np.mean(jax.jit(jax.vmap(e.model_.squared_jacobian))(jnp.asarray(grey)))  # noqa: E731
        assert norm(fitted) < 0.8 * norm(loose.fit(grey))


def test_the_start_knows_the_mean_and_the_scale_of_the_data(grey, real):
    def start(X, **options):
        estimator = Autoencoder(**options)
        model = jax.jit(lambda: estimator.build(estimator._blueprint(Examples(X)), seed=1))()
        return eqx.filter_jit(lambda m, x: m.initialise(x, key=jax.random.key(0)))(model, jnp.asarray(X))

    model = start(50 * real, hidden=(200, 3))
    fields = np.asarray(jax.jit(jax.vmap(model.encoder.layers[0].field))(jnp.asarray(50 * real)))
    np.testing.assert_allclose(fields.mean(axis=0), 0, atol=1e-3)
    assert 0.5 < fields.var() / 2 < 2  # variance 2 is what rectifiers begin with
    np.testing.assert_allclose(model.decoder.layers[-1].biases, 50 * real.mean(axis=0), rtol=1e-4)
    rebuild = jax.jit(jax.vmap(lambda x: model.decode(model.encode(x))))
    again = np.asarray(rebuild(jnp.asarray(50 * real)))
    assert 0.1 < again.std(axis=0).mean() / (50 * real).std(axis=0).mean() < 10
    for options in ({"hidden": (3,)}, {"hidden": (3,), "tied": True}):
        model = start(grey, **options)
        biases = model.decoder.biases[-1] if "tied" in options else model.decoder.layers[-1].biases
        np.testing.assert_allclose(jax.nn.sigmoid(biases), grey.mean(axis=0), rtol=1e-4)
    model = start(grey, hidden=(2, 3), convolutional=True, image_shape=(6, 5), loss="squared")
    np.testing.assert_allclose(model.decoder.layers[-1].biases, [grey.mean()], rtol=1e-4)


def test_real_data_are_corrupted_by_their_columns(grey, real):
    for X, relative in ((grey, False), (real, True)):
        estimator = Autoencoder(corruption="masking", corruption_level=0.3)
        estimator.blueprint_ = estimator._blueprint(Examples(X))
        objective = estimator._objective().surveyed(None, lambda X=X: jnp.asarray(X), key=jax.random.key(0))
        assert objective.corruption.level == 0.3
        blank = np.broadcast_to(objective.corruption.blank, X.shape[1:])
        np.testing.assert_allclose(blank, X.mean(axis=0) if relative else np.zeros(30), rtol=1e-4)


def test_denoising_undoes_the_noise(grey):
    options = {**SHORT, "hidden": (40,), "n_epochs": 150, "learning_rate": 0.005, "code_activation": "tanh"}
    noise = Corruption("masking", 0.3)
    noisy = np.asarray(noise(jnp.asarray(grey[80:]), key=jax.random.key(0))[0])
    plain = Autoencoder(**options).fit(grey[:80])
    trained = Autoencoder(**options, corruption="masking", corruption_level=0.3).fit(grey[:80])
    errors = [np.mean((grey[80:] - e.reconstruct(noisy)) ** 2) for e in (plain, trained)]
    assert errors[1] < 0.7 * errors[0]


def test_the_jacobian_is_exact_for_one_layer_and_in_random_directions_for_more(grey):
    blueprint = Autoencoder()._blueprint(Examples(grey))
    for hidden, jacobian, wanted in [
        ((4,), "auto", "exact"), ((4, 3), "auto", "stochastic"), ((4, 3), "exact", "exact"),
        ((4,), "stochastic", "stochastic"),
    ]:  # fmt: skip
        estimator = Autoencoder(hidden=hidden, jacobian=jacobian, contraction=1.0)
        estimator.blueprint_ = blueprint
        assert estimator._objective().jacobian == wanted


def test_modules_of_your_own(grey, tmp_path):
    keys = jax.random.split(jax.random.key(0), 2)
    encoder = eqx.nn.Sequential(
        [
            eqx.nn.Conv2d(1, 2, 3, key=keys[0]),
            eqx.nn.Lambda(jax.nn.relu),
            eqx.nn.Lambda(jnp.ravel),
            eqx.nn.Linear(24, 4, key=keys[1]),
        ]
    )
    decoder = eqx.nn.MLP(4, 30, 16, 1, key=keys[1])
    options = {"encoder": encoder, "decoder": decoder, "image_shape": (1, 6, 5)}
    fitted = Autoencoder(**{**SHORT, "n_epochs": 20, "learning_rate": 0.01}, **options).fit(grey)
    assert fitted.transform(grey).shape == (120, 4)
    first, last = (row["loss"] for row in (fitted.history_[0], fitted.history_[-1]))
    assert last < first
    with pytest.raises(FileFormatError, match=r"encoder=…, decoder=… cannot be saved.*tree_serialise_leaves"):
        fitted.save(tmp_path / "model.safetensors")
    with pytest.raises(ParameterError, match="run_dir cannot be used with encoder"):
        Autoencoder(**options, run_dir=tmp_path / "run").fit(grey)
    with pytest.raises(ParameterError, match="given together"):
        Autoencoder(encoder=encoder).fit(grey)
    with pytest.raises(ParameterError, match="decoder must be an Equinox module"):
        Autoencoder(encoder=encoder, decoder=jnp.sin, image_shape=(1, 6, 5)).fit(grey)
    with pytest.raises(ParameterError, match="decoder returns 7 numbers, but a row of X has 30"):
        Autoencoder(**{**options, "decoder": eqx.nn.Linear(4, 7, key=keys[0])}).fit(grey)
    with pytest.raises(ParameterError, match="do not fit rows of 30 numbers"):
        Autoencoder(**{**options, "decoder": eqx.nn.Linear(5, 30, key=keys[0])}).fit(grey)


def test_it_is_saved_and_loaded(grey, tmp_path):
    fitted = Autoencoder(hidden=(3, 4, 5), convolutional=True, image_shape=(6, 5), **SHORT).fit(grey)
    fitted.save(tmp_path / "model.safetensors")
    again = latentia.load(tmp_path / "model.safetensors")
    np.testing.assert_array_equal(again.reconstruct(grey), fitted.reconstruct(grey))
    with pytest.raises(FileFormatError, match="activation=a function cannot be saved"):
        Autoencoder(hidden=(2,), activation=jnp.tanh, **SHORT).fit(grey).save(tmp_path / "other.safetensors")


def test_a_run_is_resumed_with_the_same_bits(grey, tmp_path):
    options = {"hidden": (4, 2), "corruption": "masking", "early_stopping": True, "patience": 50, **SHORT}

    def stop(event):
        if event.epoch >= 2:
            raise KeyboardInterrupt

    whole = Autoencoder(**options).fit(grey)
    with pytest.raises(KeyboardInterrupt):
        Autoencoder(**options, run_dir=tmp_path / "run", callbacks=[stop]).fit(grey)
    resumed = Autoencoder(**options, run_dir=tmp_path / "run", resume=True).fit(grey)
    np.testing.assert_array_equal(resumed.energy(grey), whole.energy(grey))
    assert "validation_score" in whole.history_[-1]


def test_the_monitor_is_the_loss_of_clean_rows(grey):
    fitted = Autoencoder(hidden=(3,), corruption="masking", **{**SHORT, "monitor": "auto"}).fit(grey)
    few = grey[np.linspace(0, 119, 64).astype(int)]
    assert fitted.history_[-1]["reconstruction_error"] == pytest.approx(-fitted.score(few), rel=1e-4)


def test_there_is_no_likelihood(grey):
    fitted = Autoencoder(hidden=(3,), **SHORT).fit(grey)
    assert not hasattr(fitted, "score_samples")
    with pytest.raises(AttributeError, match=r"log Z is not known.*energy\(X\)"):
        fitted.score_samples(grey)
    for method in ("log_likelihood", "free_energy"):
        with pytest.raises(CapabilityError, match=rf"Autoencoder has no {method}: .*score\(X\) is minus its mean"):
            getattr(fitted, method)(grey)
    with pytest.raises(CapabilityError, match="has no log_z"):
        fitted.log_z()
    with pytest.raises(CapabilityError, match="no distribution to draw from"):
        fitted.sample(3)
    with pytest.raises(CapabilityError, match=r"Reconstruction cannot .* it needs Reconstructs \(.*losses"):
        require(OBJECTIVES["reconstruction"](), PPCAModel.make(3, 2, key=jax.random.key(0)))


# -- bad input ---------------------------------------------------------------------------------------

WRONG = {
    "hidden must be a tuple of at least 1": {"hidden": ()},
    "hidden must be": {"hidden": (5, 0)},
    "Unknown activation 'rely'. Did you mean 'relu'": {"activation": "rely"},
    "Unknown loss": {"loss": "absolute"},
    "Unknown corruption": {"corruption": "noise"},
    "corruption must be a probability": {"corruption": "masking", "corruption_level": 1.0},
    "corruption_level must be": {"corruption": "gaussian", "corruption_level": -1},
    "emphasis must be a number in": {"corruption": "masking", "emphasis": 1.5},
    "choose corruption='masking' first": {"emphasis": 1.0},
    "Gaussian noise touches all": {"corruption": "gaussian", "emphasis": 1.0},
    "pass code_activation='sigmoid'": {"sparsity": "kl"},
    "go together": {"sparsity": "k_winners"},
    "n_winners is 11, but a code has 10": {"sparsity": "k_winners", "n_winners": 11},
    "sparsity_target must be": {"sparsity_target": 1.0},
    "contraction must be": {"contraction": -1.0},
    "tied=True is for dense networks": {"convolutional": True, "image_shape": (6, 5), "tied": True},
    "convolutional=True needs image_shape": {"convolutional": True},
    r"has 42 entries, but a row of X has 30": {"image_shape": (6, 7)},
    "image_shape must be": {"image_shape": (30,)},
    "its output is a sigmoid": {"output": "linear"},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_parameters_are_explained(grey, message):
    with pytest.raises(LatentiaError) as error:
        Autoencoder(**WRONG[message]).fit(grey)
    assert message in str(error.value)


def test_wrong_data_are_explained(grey):
    with pytest.raises(DataError, match=r"Cross-entropy needs values from 0 to 1, got 2.*loss='squared'"):
        Autoencoder(loss="cross_entropy").fit(2 * np.ceil(grey))
    with pytest.raises(DataError, match=r"output='sigmoid' lies in \[0, 1\], but X holds"):
        Autoencoder(output="sigmoid").fit(grey - 1)
    with pytest.raises(ValueError, match="NaN"):
        Autoencoder().fit(np.where(grey > 0.5, np.nan, grey))
    fitted = Autoencoder(hidden=(2,), **SHORT).fit(grey)
    with pytest.raises(DataError, match="Cross-entropy needs"):
        fitted.transform(grey - 1)
    with pytest.raises(DataError, match="2 columns"):
        fitted.inverse_transform(np.zeros((3, 4)))


@pytest.mark.parametrize(
    ("message", "options"),
    {
        "emphasis must be": {"emphasis": 2.0},
        "Unknown sparsity": {"sparsity": "l2"},
        "Unknown jacobian": {"jacobian": "numerical"},
        "rate must be": {"rate": 0.0},
        "sparsity_weight must be": {"sparsity_weight": -1.0},
        "n_directions must be": {"n_directions": 0},
    }.items(),
)
def test_the_objective_refuses_what_it_does_not_know(message, options):
    with pytest.raises(ParameterError) as error:
        Reconstruction(**options)
    assert message in str(error.value)


# -- command line and report -------------------------------------------------------------------------


def test_the_report_compares_with_pca(real):
    estimators = [Autoencoder(hidden=(k,)) for k in (2, 9)]
    fitted, wide = (e.adopt(e.build(facts := e._blueprint(Examples(real))), facts) for e in estimators)
    pca = PCA(2).fit(real[:80])
    wanted = pca.inverse_transform(pca.transform(real[80:]))
    found = linear_reconstructions(fitted, real[:80], real[80:])
    np.testing.assert_allclose(found, wanted, rtol=1e-3, atol=1e-4)
    assert linear_reconstructions(fitted, None, real) is None
    assert linear_reconstructions(fitted, real[:3], real) is None
    assert linear_reconstructions(wide, real, real) is None


def test_the_command_line_and_the_report(tmp_path, monkeypatch):
    from latentia.cli import cli

    monkeypatch.chdir(tmp_path)
    words = ["fit", "autoencoder", "digits", "--hidden", "16,4", "--n-epochs", "2", "--corruption", "masking"]
    done = CliRunner().invoke(cli, [*words, "--out", "run", "--json"])
    assert done.exit_code == 0, done.output
    done = CliRunner().invoke(cli, ["evaluate", "run", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    estimator = latentia.load(tmp_path / "run" / "model.safetensors")
    rows = latentia.datasets.load("digits").X_test
    assert told["reconstruction_loss"] == pytest.approx(float(np.mean(estimator.energy(rows))), rel=1e-5)
    done = CliRunner().invoke(cli, ["evaluate", "run"])
    assert "reconstruction loss per example" in done.output
    done = CliRunner().invoke(cli, ["report", "run"])
    assert done.exit_code == 0, done.output
    page = (tmp_path / "run" / "report.html").read_text(encoding="utf-8")
    assert "principal components of the training rows" in page
    assert "Originals" in page
