"""Deep energy models: a Gaussian RBM in disguise, closed forms of score matching, quadrature, modes."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import nodes, perturbed
from scipy.special import logsumexp
from sklearn.base import clone

import latentia
from latentia import DeepEnergyModel
from latentia.core.errors import FileFormatError, ParameterError
from latentia.energies.rbm import RBMModel
from latentia.learning.score_matching import hyvarinen_score
from latentia.likelihood.precision import double
from latentia.models.deep_energy import DeepEnergy, GeneralEnergy, Well
from latentia.units import Bernoulli, make

D, K = 4, 3


@pytest.fixture
def x64():
    with double():
        yield


def deep(hidden=(5, K), seed=0, **options):
    return perturbed(DeepEnergy.make(D, hidden, key=jax.random.key(seed), **options), seed)


def points(n=6, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, D)))


def toy(n=600, seed=0):
    """Two clusters with unlike spreads, in the plane."""
    rng = np.random.default_rng(seed)
    side = rng.integers(0, 2, n)[:, None]
    return np.where(side, [1.5, 0.5], [-1.5, -0.5]) + rng.normal(size=(n, 2)) * np.where(side, 0.3, 0.5)


# -- the energy -------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_energy_in_numpy():
    model, x = deep(sigma=0.7), np.asarray(points())
    v, d = np.asarray(model.layers[0].weights), np.asarray(model.layers[0].bias)
    w, c = np.asarray(model.weights), np.asarray(model.experts.bias)
    b, sigma = np.asarray(model.well.bias), np.exp(float(model.well.log_sigma))
    field = (1 / (1 + np.exp(-(x @ v.T + d)))) @ w.T + c
    wanted = (x**2).sum(1) / (2 * sigma**2) - x @ b - np.log1p(np.exp(field)).sum(1)
    np.testing.assert_allclose(jax.vmap(model.free_energy)(x), wanted, rtol=1e-12)
    found = jax.vmap(lambda x: model.posterior(x).mean())(x)
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-field)), rtol=1e-12)


@pytest.mark.usefixtures("x64")
def test_one_layer_is_a_gaussian_rbm():
    """F of weights W and width σ is that of a Gaussian RBM with weights σ²Wᵀ and centre σ²b."""
    model, x = deep((K,), sigma=0.6), points()
    variance = float(model.well.variance())
    visible = eqx.tree_at(
        lambda u: (u.location, u.log_sigma),
        make("gaussian", D),
        (variance * model.well.bias, jnp.full(D, 0.5 * np.log(variance))),
    )
    rbm = RBMModel(visible, Bernoulli(model.experts.bias), variance * model.weights.T, jnp.zeros(D), jnp.zeros(K))
    difference = jax.vmap(model.free_energy)(x) - jax.vmap(rbm.free_energy)(x)
    np.testing.assert_allclose(difference, np.full(len(x), difference[0]), rtol=1e-9)
    for z in (jnp.zeros(K), jnp.ones(K)):
        apart = jax.vmap(lambda x, z=z: model.energy(x, z) - rbm.energy(x, z))(x)
        np.testing.assert_allclose(apart, np.full(len(x), difference[0]), rtol=1e-9)
    jax.tree.map(np.testing.assert_allclose, model.posterior(x[0]).mean(), rbm.posterior(x[0]).mean())


@pytest.mark.usefixtures("x64")
def test_score_matching_of_a_gaussian_rbm_in_closed_form():
    """σ = 1: ½‖x − b − Wᵀs‖² + Σ_k ‖w_k‖² s′ − D, with coefficient one, and not ½, at the trace."""
    model, x = deep((K,)), points()
    model = eqx.tree_at(lambda m: m.well.log_sigma, model, jnp.zeros(()))
    w, c, b = (np.asarray(a) for a in (model.weights, model.experts.bias, model.well.bias))
    s = 1 / (1 + np.exp(-(np.asarray(x) @ w.T + c)))
    closed = 0.5 * ((np.asarray(x) - b - s @ w) ** 2).sum(1) + (s * (1 - s)) @ (w**2).sum(1) - D
    exact = jax.vmap(lambda x: hyvarinen_score(model, x))(x)
    np.testing.assert_allclose(exact, closed, rtol=1e-10)
    sliced = jax.vmap(lambda x: hyvarinen_score(model, x, np.sqrt(D) * jnp.eye(D)))(x)  # E vvᵀ = I
    np.testing.assert_allclose(sliced, closed, rtol=1e-10)


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "softplus", "silu"])
def test_the_trace_is_the_whole_trace_of_the_hessian(activation):
    """Not the mean over the D axes, nor one of them."""
    model, x = deep((3, 6, K), activation=activation, sigma=0.5), points(2)

    @jax.jit
    def facts(x):
        slope, hessian = jax.grad(model.free_energy)(x), jax.hessian(model.free_energy)(x)
        return hyvarinen_score(model, x), 0.5 * slope @ slope - jnp.trace(hessian), jnp.trace(hessian)

    for row in x:
        found, wanted, trace = facts(row)
        np.testing.assert_allclose(found, wanted, rtol=1e-10)
        assert abs(float(trace)) > 1.0  # a trace near zero could be divided by anything


@pytest.mark.usefixtures("x64")
def test_sigma_moves_only_if_it_is_learned():
    x = points(1)[0]
    for learned in (False, True):
        gradient = jax.grad(lambda m: m.free_energy(x))(deep(learn_sigma=learned))
        assert bool(gradient.well.log_sigma != 0) is learned


def test_the_start_is_centred_and_has_unit_fields():
    x = 7 + 3 * np.random.default_rng(0).normal(size=(500, D)).astype(np.float32)
    for hidden in ((40, K), (40,)):
        start = DeepEnergy.make(D, hidden, key=jax.random.key(0), sigma=0.5).initialise(x, key=jax.random.key(0))
        np.testing.assert_allclose(start.well.bias * 0.25, x.mean(0), rtol=1e-5)
        weights, bias = (
            (start.layers[0].weights, start.layers[0].bias) if start.layers else (start.weights, start.experts.bias)
        )
        fields = x @ np.asarray(weights).T + np.asarray(bias)
        np.testing.assert_allclose(fields.mean(0), 0, atol=1e-4)
        assert 0.7 < fields.std() < 1.4


# -- learning ---------------------------------------------------------------------------------------


def exact_log_likelihood(estimator, X):
    """Mean log p(x), with log Z by the trapezoid rule in the plane."""
    with double():
        grid = nodes(estimator.model_.x_space, X)
        log_z = logsumexp(grid.log_weights - estimator.free_energy(grid.points).astype(np.float64))
    return -estimator.free_energy(X).mean() - log_z


@pytest.mark.parametrize("objective", ["sliced_score_matching", "score_matching", "denoising_score_matching"])
def test_learning_raises_the_exact_likelihood(objective):
    X = toy()
    options = {"hidden": (16, 16), "batch_size": 100, "learning_rate": 0.02, "monitor": None, "random_state": 0}
    begun = DeepEnergyModel(n_epochs=1, objective=objective, **options).fit(X)
    done = DeepEnergyModel(n_epochs=150, objective=objective, **options).fit(X)
    gaussian = -0.5 * np.linalg.slogdet(2 * np.pi * np.e * np.cov(X.T))[1]  # the best single Gaussian
    assert exact_log_likelihood(done, X) > max(gaussian, exact_log_likelihood(begun, X)) + 0.3
    assert done.score(X) > begun.score(X)


@pytest.mark.usefixtures("x64")
def test_modes_are_stationary_and_higher_than_their_starts():
    model = deep((8, K), sigma=0.8)
    estimator = DeepEnergyModel((8, K)).adopt(model, {"n_features": D})
    starts = 3 * np.asarray(points(5))
    ends, path = estimator.modes(starts, return_path=True)
    slopes = jax.vmap(jax.grad(model.free_energy))(jnp.asarray(ends, jnp.float64))
    assert np.abs(slopes).max() < 1e-4  # the ends are rounded to single precision
    values = np.asarray(jax.vmap(jax.vmap(model.free_energy))(jnp.asarray(path, jnp.float64)))
    assert np.diff(values, axis=0).max() < 1e-5  # never uphill in F
    assert np.all(values[-1] < values[0] - 0.1)
    np.testing.assert_array_equal(path[0], starts.astype(np.float32))
    np.testing.assert_array_equal(path[-1], ends)
    curved = np.linalg.eigvalsh(jax.vmap(jax.hessian(model.free_energy))(jnp.asarray(ends, jnp.float64)))
    assert curved.min() > 0  # maxima of p, not saddles
    with pytest.warns(UserWarning, match="descents"):
        estimator.modes(starts * 100, max_steps=1, tol=1e-12)


# -- other energies ---------------------------------------------------------------------------------


def test_any_module_can_be_the_energy(tmp_path):
    X = toy(200)
    module = eqx.nn.MLP(2, "scalar", 8, 1, activation=jnp.tanh, key=jax.random.key(0))
    estimator = DeepEnergyModel(energy=module, n_epochs=20, learning_rate=0.01, random_state=0)
    fitted = clone(estimator).fit(X)
    row = jnp.asarray(X[0], jnp.float32)
    learned = fitted.model_.module
    assert float(jnp.abs(learned(row) - module(row))) > 1e-3
    bias = fitted.model_.well.bias
    np.testing.assert_allclose(fitted.free_energy(X[:1])[0], 0.5 * row @ row - bias @ row - learned(row), rtol=1e-5)
    assert fitted.score(X) > DeepEnergyModel(energy=module, n_epochs=1, learning_rate=1e-6).fit(X).score(X)
    with pytest.raises(FileFormatError, match="a module is code"):
        fitted.save(tmp_path / "no.safetensors")
    again = clone(estimator).adopt(fitted.model_, {"n_features": 2})  # the way that the message names
    np.testing.assert_array_equal(again.free_energy(X), fitted.free_energy(X))
    with pytest.raises(ParameterError, match="run_dir cannot be used"):
        clone(estimator).set_params(run_dir=tmp_path / "run").fit(X)


@pytest.mark.usefixtures("x64")
def test_the_energy_of_another_model_can_be_added():
    inner, x = deep((K,)), points(1)[0]
    model = GeneralEnergy.make(Well.make(D, 2.0), inner)
    np.testing.assert_allclose(model.free_energy(x), inner.free_energy(x) + x @ x / 8, rtol=1e-12)


def test_saving_keeps_a_learned_sigma(tmp_path):
    fitted = DeepEnergyModel((4, 3), sigma=0.5, learn_sigma=True, n_epochs=3, random_state=0).fit(toy(100))
    assert fitted.sigma_ != 0.5
    fitted.save(tmp_path / "deep.safetensors")
    loaded = latentia.load(tmp_path / "deep.safetensors")
    assert loaded.sigma_ == fitted.sigma_
    assert DeepEnergyModel((4, 3), sigma=0.5, n_epochs=3).fit(toy(100)).sigma_ == pytest.approx(0.5)


def test_mistakes_are_explained():
    X = toy(20)
    with pytest.raises(ParameterError, match="Equinox module"):
        DeepEnergyModel(energy=lambda x: 0.0).fit(X)
    with pytest.raises(ParameterError, match="to one number"):
        DeepEnergyModel(energy=eqx.nn.Linear(2, 3, key=jax.random.key(0))).fit(X)
    with pytest.raises(ParameterError, match="cannot be applied"):
        DeepEnergyModel(energy=eqx.nn.Linear(5, "scalar", key=jax.random.key(0))).fit(X)
    with pytest.raises(ParameterError, match="sigma must be"):
        DeepEnergyModel(sigma=0.0).fit(X)
    with pytest.raises(ParameterError, match="Known: sigmoid"):
        DeepEnergyModel(activation="relu").fit(X)
    fitted = DeepEnergyModel((2,), n_epochs=1).fit(X)
    with pytest.raises(AttributeError, match="log Z is not known"):
        fitted.score_samples(X)
    with pytest.raises(ParameterError, match="max_steps"):
        fitted.modes(X, max_steps=0)
