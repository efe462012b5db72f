"""The variational autoencoder as an estimator: what it takes, what it refuses, and what it returns."""

from __future__ import annotations

import equinox as eqx
import jax
import numpy as np
import pytest
from conformance_oracles import perturbed
from scipy.special import logsumexp

import latentia
from latentia import PPCA, VAE
from latentia.core.errors import CapabilityError, DataError, FileFormatError, ParameterError
from latentia.energies.vae_model import LinearVAEModel
from latentia.energies.vae_parts import Reals, Sites
from latentia.estimator import directed
from latentia.ops.examples import Examples

pytestmark = pytest.mark.usefixtures("hasty")
SMALL = {"n_components": 2, "hidden": (6,), "n_epochs": 2, "batch_size": 32, "monitor": None, "random_state": 0}


def bits(n=96, width=6, seed=0):
    rng = np.random.default_rng(seed)
    return ((rng.integers(0, 2, (n, 1)) + (rng.random((n, width)) < 0.1)) % 2).astype(np.float32)


def reals(n=96, seed=0):
    rng = np.random.default_rng(seed)
    codes = rng.normal(size=(n, 2))
    mixed = codes @ rng.normal(size=(2, 5)) * np.array([1, 2, 3, 1, 1]) + 4
    return (mixed + 0.1 * rng.normal(size=(n, 5))).astype(np.float32)


@pytest.fixture(scope="module")
def fitted():
    return VAE(**{**SMALL, "n_epochs": 30, "learning_rate": 0.01, "monitor": "auto"}).fit(bits())


def test_training_raises_the_bound(fitted):
    X = bits()
    start = VAE(**SMALL).adopt(VAE(**SMALL).build(fitted.blueprint_, seed=1), fitted.blueprint_)
    assert fitted.score(X) > start.score(X) + 0.5
    path = [entry["bound"] for entry in fitted.history_ if "bound" in entry]
    assert path[-1] > path[0] + 0.3
    assert {"elbo", "log_given", "kl"} <= set(fitted.history_[-1])
    assert fitted.log_z().estimate == 0


def test_a_linear_model_reaches_probabilistic_pca():
    X = reals(400)
    vae = VAE(
        2, (), posterior="full", n_epochs=150, batch_size=50, learning_rate=0.02, monitor=None, random_state=0
    )
    Z = (X - X.mean(0)) / X.std(0)  # both models then have noise of one variance
    best = PPCA(n_components=2).fit(Z).score(Z)
    found = vae.fit(Z).log_likelihood(Z[:100], method="importance", n_samples=200).estimate
    whole = vae.score(Z)
    assert isinstance(vae.model_.visible, Reals)
    assert best - 0.6 < whole < best + 0.05
    assert abs(found - vae.score_samples(Z[:100]).mean()) < 0.2


def test_scores_of_binary_latents_are_exact():
    X = bits()
    vae = VAE(**{**SMALL, "latents": "bernoulli"}).fit(X)
    z = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], np.float32)
    energy = jax.vmap(lambda x: jax.vmap(lambda z: vae.model_.energy(x, z))(z))(X)
    np.testing.assert_allclose(vae.score_samples(X), logsumexp(-np.asarray(energy), axis=1), atol=1e-4)
    result = vae.log_likelihood(X)
    assert result.is_exact
    assert result.estimate == pytest.approx(vae.score(X), abs=1e-6)


def test_scores_do_not_depend_on_the_other_rows(fitted):
    X = bits()
    np.testing.assert_allclose(fitted.score_samples(X)[:5], fitted.score_samples(X[:5]), atol=1e-9)
    two = fitted.log_likelihood(X[:20], n_samples=300, n_temperatures=10, n_steps=10)
    assert two.lower <= two.estimate <= two.upper < np.inf
    assert two.details["n_samples"] == 300
    with pytest.raises(CapabilityError, match="infinitely many"):
        fitted.log_likelihood(X, method="exact")


def test_codes_lines_and_traversals(fitted):
    X = bits()
    codes = fitted.transform(X)
    line = fitted.interpolate(X[:3], X[3:6], 5)
    assert line.shape == (3, 5, 6)
    np.testing.assert_allclose(line[:, 0], fitted.reconstruct(X[:3]), atol=1e-5)
    np.testing.assert_allclose(line[:, -1], fitted.reconstruct(X[3:6]), atol=1e-5)
    middle = 0.5 * (codes[:3] + codes[3:6])
    np.testing.assert_allclose(line[:, 2], fitted.inverse_transform(middle), atol=1e-5)
    moved = fitted.traverse(X[0], latents=[1], n_steps=3, span=2.0)
    by_hand = np.repeat(codes[:1], 3, axis=0)
    by_hand[:, 1] = [-2, 0, 2]
    np.testing.assert_allclose(moved[0], fitted.inverse_transform(by_hand), atol=1e-5)
    with pytest.raises(DataError, match="as many rows"):
        fitted.interpolate(X[:2], X[:3])
    with pytest.raises(ParameterError, match="level"):
        fitted.traverse(level=1)
    with pytest.raises(ParameterError, match="latents"):
        fitted.traverse(latents=[7])


def test_gaps_are_filled_with_the_conditional_mean():
    """Against the exact conditional distribution, over all values of the gap."""
    X = bits()
    vae = VAE(**{**SMALL, "latents": "bernoulli"}).fit(X)
    vae.adopt(perturbed(vae.model_, 3), vae.blueprint_)
    row = np.array([[1, 0, 1, 1, 0, np.nan]], np.float32)
    both = np.repeat(row, 2, axis=0)
    both[:, 5] = [0, 1]
    log_p = vae.score_samples(both)
    wanted = np.exp(log_p[1] - logsumexp(log_p))
    found = vae.impute(row, n_draws=2000, n_steps=30)
    np.testing.assert_array_equal(found[0, :5], row[0, :5])
    assert abs(found[0, 5] - wanted) < 0.05
    drawn = vae.impute(row, mean=False)
    assert drawn[0, 5] in (0, 1)
    np.testing.assert_array_equal(vae.impute(X[:3]), X[:3])
    with pytest.raises(DataError, match="Nothing is known"):
        vae.impute(np.full((1, 6), np.nan))
    for method in (vae.transform, vae.score_samples, vae.fit):
        with pytest.raises(DataError, match="impute"):
            method(row)


def test_gradient_variance_says_which_are_biased(capsys):
    X = bits()
    vae = VAE(**{**SMALL, "latents": "bernoulli", "k": 2}).fit(X)
    vae.adopt(perturbed(vae.model_, 3), vae.blueprint_)
    found = vae.gradient_variance(X[:16], n_repeats=200)
    table = capsys.readouterr().out
    assert set(found) == {"exact", "score_function", "rloo", "gumbel", "straight_through"}
    assert all(name in table for name in found)
    assert found["exact"]["variance"] < 1e-9
    assert found["rloo"]["variance"] < found["score_function"]["variance"]
    assert found["rloo"]["bias"] < 0.2
    assert not found["gumbel"]["unbiased"]
    assert found["gumbel"]["variance"] > 0
    real = VAE(**{**SMALL, "objective": "iwae", "k": 3}).fit(X)
    names = real._fitting_gradients(real.model_)
    assert set(names) == {"reparametrised", "doubly_reparametrised", "score_function", "rloo"}
    one = real.gradient_variance(X[:8], gradients=["doubly_reparametrised"], n_repeats=4, show=False)
    assert "bias" not in one["doubly_reparametrised"]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("bias", [0.0, 0.5])
def test_the_noise_of_few_repeats_is_no_bias(bias):
    rng, exact, n = np.random.default_rng(0), np.full(4000, 2.0), 20
    draws = (1 + bias) * exact + 6 * rng.normal(size=(n, 4000))
    found = directed._noise("gumbel", draws.mean(axis=0), draws.var(axis=0, ddof=1), n, exact)
    assert found["bias"] == pytest.approx(bias, abs=0.15)
    assert found["relative"] == pytest.approx(9, rel=0.05)


def _interrupt(event):
    raise KeyboardInterrupt


def test_saving_loading_and_resuming(tmp_path):
    X = reals()
    options = {**SMALL, "latent": (3, 2), "hidden": ((6,), (4,)), "ladder": True, "variance": "per_pixel"}
    whole = VAE(**options).fit(X)
    whole.save(tmp_path / "vae.safetensors")
    again = latentia.load(tmp_path / "vae.safetensors")
    assert again.get_params()["hidden"] == ((6,), (4,))
    np.testing.assert_array_equal(again.transform(X), whole.transform(X))
    assert again.transform(X).shape == (96, 5)
    assert again.traverse(level=1, n_steps=3).shape == (2, 3, 5)
    halted = {**options, "run_dir": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        VAE(**halted, callbacks=[_interrupt]).fit(X)
    steps = []
    resumed = VAE(**halted, resume=True, callbacks=[lambda event: steps.append(event.step)]).fit(X)
    assert steps == [6]  # not from the start
    np.testing.assert_array_equal(resumed.transform(X), whole.transform(X))


class Net(eqx.Module):
    inner: eqx.nn.MLP

    def __call__(self, x):
        return self.inner(x)


@pytest.mark.parametrize("options", [{}, {"latent": (3, 2), "ladder": True}, {"latents": "bernoulli"}])
def test_a_prior_of_posteriors_is_learned_saved_and_used(tmp_path, options):
    X, learn = bits(), {"n_epochs": 60, "learning_rate": 0.03}
    vae = VAE(**{**SMALL, **learn, **options}, prior="vamp", n_pseudo_inputs=5).fit(X)
    pseudo = np.asarray(vae.model_.pseudo_inputs)
    assert pseudo.shape == (5, 6)
    assert pseudo.min() >= 0
    assert pseudo.max() <= 1
    start = VAE(**SMALL, **options, prior="vamp", n_pseudo_inputs=5)
    start.adopt(start.build(vae.blueprint_, seed=1), vae.blueprint_)
    assert vae.score(X) > start.score(X) + 0.3
    vae.save(tmp_path / "vae.safetensors")
    again = latentia.load(tmp_path / "vae.safetensors")
    assert again.score(X) == vae.score(X)
    level = 1 if "latent" in options else 0
    mean = np.array(vae.model_.prior(level, ()).mean())
    walk = vae.traverse(latents=[0], n_steps=3, level=level)
    mean[0] = 0.0 if vae.latents == "gaussian" else 0.5  # the middle of the walk
    np.testing.assert_allclose(walk[0, 1], vae.model_.decode(vae.model_.descend(level, mean)), rtol=1e-5)
    both = vae.log_likelihood(X[:20], n_samples=500, n_temperatures=20, n_steps=20, n_annealed=8)
    assert both.lower <= both.estimate <= both.upper
    assert both.upper - both.lower < 2
    assert vae.sample(4, random_state=0).shape == (4, 6)


def test_modules_of_ones_own(tmp_path):
    X = bits()
    keys = jax.random.split(jax.random.key(0))
    encoder = Net(eqx.nn.MLP(6, 4, 8, 1, key=keys[0]))
    decoder = eqx.nn.MLP(2, 6, 8, 1, key=keys[1])
    vae = VAE(**{**SMALL, "encoder": encoder, "decoder": decoder, "n_epochs": 10, "learning_rate": 0.01}).fit(X)
    assert vae.transform(X).shape == (96, 2)
    first = jax.tree.leaves(eqx.filter(encoder, eqx.is_array))[0]
    assert not np.allclose(jax.tree.leaves(vae.model_.encoder)[0], first)
    with pytest.raises(FileFormatError, match="module is code"):
        vae.save(tmp_path / "m.safetensors")
    for options, why in (
        ({"encoder": eqx.nn.MLP(6, 3, 8, 1, key=keys[0])}, "6 numbers to 4"),
        ({"encoder": eqx.nn.MLP(5, 4, 8, 1, key=keys[0])}, "cannot be applied"),
        ({"decoder": lambda z: z}, "Equinox module"),
        ({"decoder": decoder, "run_dir": tmp_path / "r"}, "run_dir"),
    ):
        with pytest.raises(ParameterError, match=why):
            VAE(**{**SMALL, **options}).fit(X)


def test_visibles_follow_the_data():
    X = bits()
    assert VAE()._blueprint(Examples(X))["visible"] == "bernoulli"
    assert VAE()._blueprint(Examples(reals()))["visible"] == "gaussian"
    assert VAE(binarize="sample")._blueprint(Examples(np.full((4, 3), 0.5, np.float32)))["visible"] == "bernoulli"
    assert VAE(visible="categorical")._blueprint(Examples(2 * X))["n_states"] == 3
    assert isinstance(VAE(decoder_hidden=()).build(VAE()._blueprint(Examples(reals()))), LinearVAEModel)
    assert not isinstance(VAE(decoder_hidden=()).build(VAE()._blueprint(Examples(X))), LinearVAEModel)


def test_categorical_sites_and_grey_values():
    rng = np.random.default_rng(0)
    sites = rng.integers(0, 3, (64, 4)).astype(np.float32)
    vae = VAE(**{**SMALL, "visible": "categorical"}).fit(sites)
    assert isinstance(vae.model_.visible, Sites)
    probabilities = vae.reconstruct(sites[:5]).reshape(5, 4, 3)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)
    assert set(np.unique(vae.sample(20, random_state=0))) <= {0.0, 1.0, 2.0}
    gap = sites[:2].copy()
    gap[0, 1] = np.nan
    assert vae.impute(gap, n_steps=5)[0, 1] in (0, 1, 2)
    grey = rng.random((64, 4)).astype(np.float32)
    thrown = VAE(**{**SMALL, "binarize": "sample"}).fit(grey)
    np.testing.assert_array_equal(thrown.score_samples(grey), thrown.score_samples(grey))


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"n_components": 0}, "n_components"),
        ({"latent": (3, 0)}, "latent"),
        ({"hidden": (0,)}, "hidden"),
        ({"latent": (3, 2), "hidden": ((4,), (4,), (4,))}, "3 layers of latents"),
        ({"latents": "bernoulli", "posterior": "full"}, "covariance"),
        ({"latents": "bernoulli", "latent": (2, 2), "ladder": True}, "precisions"),
        ({"latent": (2, 2), "ladder": True, "posterior": "full"}, "diagonal"),
        ({"latent": (2, 2), "prior": "vamp"}, "ladder=True"),
        ({"prior": "vamp", "free_bits": 0.1}, "free_bits"),
        ({"prior": "uniform"}, "prior"),
        ({"prior": "vamp", "n_pseudo_inputs": 0}, "n_pseudo_inputs"),
        ({"prior": "vamp", "hidden": (), "visible": "gaussian", "gradient": "exact"}, "closed form"),
        ({"gradient": "gumbel"}, "does not fit real"),
        ({"latents": "bernoulli", "gradient": "reparametrised"}, "does not fit binary"),
        ({"gradient": "exact"}, "closed form"),
        ({"gradient": "magic"}, "gradient"),
        ({"objective": "iwae", "free_bits": 0.1}, "free_bits"),
        ({"objective": "iwae", "gradient": "rloo"}, "k ≥ 2"),
        ({"beta": -1}, "beta"),
        ({"temperature": 0}, "temperature"),
        ({"visible": "gaussian", "binarize": "sample"}, "binarize"),
        ({"sigma": 0}, "sigma"),
    ],
)
def test_bad_parameters_are_explained(options, why):
    with pytest.raises(ParameterError, match=why):
        VAE(**{**SMALL, **options}).fit(bits())


def test_bad_data_are_explained():
    with pytest.raises(DataError, match="binarize"):
        VAE(**SMALL, visible="bernoulli").fit(reals())
    with pytest.raises(DataError, match="0 to 1"):
        VAE(**SMALL, binarize="sample").fit(reals())
    with pytest.raises(DataError, match="integer"):
        VAE(**SMALL, visible="categorical").fit(reals())
