"""Gaussian mixtures and probabilistic PCA against scikit-learn, SciPy, direct formulas and exact moments."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture

from latentia.core.algorithms import require
from latentia.learning.em import EM
from latentia.models.gaussian_mixture import MixtureModel, spread_rows
from latentia.models.ppca import PPCAModel
from latentia.ops import gaussian
from latentia.units import Categorical, Factorial

TYPES = ("full", "tied", "diag", "spherical")
D, K = 4, 3


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def spd(rng, *shape):
    a = rng.normal(size=(*shape, D, D))
    return a @ np.swapaxes(a, -1, -2) + 0.3 * np.eye(D)


def moments(kind):
    rng = np.random.default_rng(0)
    covariances = {
        "full": lambda: spd(rng, K),
        "tied": lambda: spd(rng),
        "diag": lambda: rng.uniform(0.3, 3, (K, D)),
        "spherical": lambda: rng.uniform(0.3, 3, K),
    }[kind]()
    return rng.dirichlet(np.full(K, 3.0)), 1.5 * rng.normal(size=(K, D)), covariances


def dense(kind, covariances):
    """Covariances as (K, D, D)."""
    if kind == "tied":
        return np.broadcast_to(covariances, (K, D, D))
    if kind == "spherical":
        covariances = np.tile(covariances[:, None], (1, D))
    return covariances if kind == "full" else np.array([np.diag(c) for c in covariances])


def mixture(kind, reg_covar=0.0):
    other = peer(kind)[0]
    logits = np.log(other.weights_) + 0.7  # they need not be normalised
    return MixtureModel(*map(jnp.asarray, (logits, other.means_, other.precisions_cholesky_)), kind, reg_covar)


def peer(kind):
    weights, means, covariances = moments(kind)
    other = GaussianMixture(K, covariance_type=kind)
    other.weights_, other.means_ = weights, means
    inverse = 1 / covariances if kind in ("diag", "spherical") else np.linalg.inv(covariances)
    if kind in ("diag", "spherical"):
        root = np.sqrt(inverse)
    else:
        root = np.swapaxes(np.linalg.inv(np.linalg.cholesky(covariances)), -1, -2)
    other.precisions_cholesky_ = root
    return other, inverse


def ppca(d=5, k=2, seed=0, variance=0.4):
    rng = np.random.default_rng(seed)
    return PPCAModel(
        jnp.asarray(rng.normal(size=(d, k))), jnp.asarray(rng.normal(size=d)), jnp.asarray(np.log(variance))
    )


def implied(model):
    w = np.asarray(model.weights, np.float64)
    return w @ w.T + np.exp(float(model.log_variance)) * np.eye(w.shape[0])


def data(n=200, d=D):
    rng = np.random.default_rng(1)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 2 * rng.integers(0, 2, (n, 1)) + rng.normal(size=d)


@eqx.filter_jit
def batched(model, x):
    """Free energies and posterior entropies, compiled once for all tests of a shape."""
    return jax.vmap(model.free_energy)(x), jax.vmap(lambda x: model.posterior(x).entropy())(x)


def free_energies(model, x):
    return np.asarray(batched(model, jnp.asarray(x))[0])


def one_step(model, x, weights):
    return model.m_step(x, jax.vmap(model.posterior)(x), weights)


@eqx.filter_jit
def em_step(model, x, weights):
    """(model, log-likelihood before) of one step of EM."""
    return one_step(model, x, weights), -jnp.mean(weights * jax.vmap(model.free_energy)(x))


@eqx.filter_jit
def _fitted(model, x, n_steps):
    ones = jnp.ones(x.shape[0], x.dtype)
    start = model.initialise(x, key=jax.random.key(1))
    return jax.lax.fori_loop(0, n_steps, lambda _, m: one_step(m, x, ones), start)


def fitted(model, x, n_steps=4):
    """A start and a few steps of EM."""
    return _fitted(model, x, jnp.asarray(n_steps))


def draws(f, n, *args):
    return jax.jit(jax.vmap(lambda key, *a: f(*a, key=key)))(jax.random.split(jax.random.key(0), n), *args)


def sample_and_sweep(model):
    """A draw of (x, z), and where one sweep takes it."""

    def draw(key):
        first, second = jax.random.split(key)
        x, z = model.sample(key=first)
        return x, z, *model.sweep(x, z, key=second)

    return draw


def check_means(values, expected, limit=4.5):
    """Sample means against exact expectations, in standard errors."""
    values = np.asarray(values, np.float64).reshape(len(values), -1)
    error = np.maximum(values.std(0), 1e-12) / np.sqrt(len(values))
    assert np.abs((values.mean(0) - np.ravel(expected)) / error).max() < limit


def features(x, z):
    """z, z⊗x and z⊗x⊗x: first and second moments within each component (or with each latent)."""
    x, z = np.asarray(x, np.float64), np.asarray(z, np.float64)
    zx = z[:, :, None] * x[:, None, :]
    return np.concatenate([a.reshape(len(x), -1) for a in (z, zx, zx[..., None] * x[:, None, None, :])], axis=1)


def mixture_features(weights, means, covariances):
    second = covariances + means[:, :, None] * means[:, None, :]
    return np.concatenate([weights, (weights[:, None] * means).ravel(), (weights[:, None, None] * second).ravel()])


def condition(mean, covariance, fixed, x):
    """Mean and covariance of the free entries of N(mean, covariance) given the fixed ones, densely."""
    f, o = ~fixed, fixed
    gain = covariance[np.ix_(f, o)] @ np.linalg.inv(covariance[np.ix_(o, o)])
    return mean[f] + gain @ (x - mean)[o], covariance[np.ix_(f, f)] - gain @ covariance[np.ix_(o, f)]


# --- energies ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_mixture_energy_posterior_identity(kind, x64):
    model, x = mixture(kind), jnp.asarray(data())
    states = jnp.asarray(model.z_space.enumerate(), jnp.float64)
    each = jax.vmap(lambda x: jax.vmap(lambda z: model.energy(x, z) + model.posterior(x).log_prob(z))(states))
    totals = np.asarray(jax.jit(each)(x))
    np.testing.assert_allclose(totals, np.tile(free_energies(model, x)[:, None], (1, K)), atol=1e-10)


def test_ppca_energy_posterior_identity(x64):
    model, x = ppca(), jnp.asarray(data(8, 5))
    z = jnp.asarray(3 * np.random.default_rng(3).normal(size=(8, 2)))
    totals = jax.jit(jax.vmap(lambda x, z: model.energy(x, z) + model.posterior(x).log_prob(z)))(x, z)
    np.testing.assert_allclose(totals, free_energies(model, x), atol=1e-10)


@pytest.mark.parametrize("kind", TYPES)
def test_mixture_free_energy_matches_scikit_learn(kind):
    x, (other, _) = data(), peer(kind)
    expected, responsibilities = -other.score_samples(x), other.predict_proba(x)
    np.testing.assert_allclose(free_energies(mixture(kind), np.float32(x)), expected, rtol=1e-5)
    with jax.enable_x64(True):
        model = mixture(kind)
        np.testing.assert_allclose(free_energies(model, x), expected, rtol=1e-10)
        means = jax.vmap(lambda x: model.posterior(x).mean())(jnp.asarray(x))
        np.testing.assert_allclose(means[:, 0], responsibilities, atol=1e-10)
        np.testing.assert_allclose(model.covariances(), moments(kind)[2], rtol=1e-10)
        again = model.with_moments(*map(jnp.asarray, moments(kind)))
        np.testing.assert_allclose(again.precision_cholesky, model.precision_cholesky, atol=1e-10)


@pytest.mark.parametrize("kind", TYPES)
def test_mixture_single_precision_far_from_the_origin(kind):
    model, x = mixture(kind), np.float32(data())
    moved = eqx.tree_at(lambda m: m.means, model, model.means + 1000.0)
    np.testing.assert_allclose(free_energies(moved, x + 1000), free_energies(model, x), rtol=3e-3)


@pytest.mark.parametrize("kind", ["full", "tied"])
def test_mixture_ignores_the_lower_triangle(kind, x64):
    model = mixture(kind)
    junk = jnp.tril(jnp.ones(model.precision_cholesky.shape), -1)
    other = eqx.tree_at(lambda m: m.precision_cholesky, model, model.precision_cholesky + junk)
    np.testing.assert_array_equal(free_energies(other, data()), free_energies(model, data()))


@pytest.mark.parametrize("variance", [0.4, 1e-4])
def test_ppca_free_energy_matches_the_dense_density(variance):
    x = data(30, 5)
    with jax.enable_x64(True):
        model = ppca(variance=variance)
        expected = -stats.multivariate_normal(np.asarray(model.mean), implied(model)).logpdf(x)
        np.testing.assert_allclose(free_energies(model, x), expected, rtol=1e-10)
    np.testing.assert_allclose(free_energies(ppca(variance=variance), np.float32(x)), expected, rtol=1e-4)


def test_ppca_matches_scikit_learn_at_its_parameters(x64):
    x, k = data(50, 6), 2
    pca = PCA(k).fit(x)
    loadings = pca.components_.T * np.sqrt(pca.explained_variance_ - pca.noise_variance_)
    model = PPCAModel(jnp.asarray(loadings), jnp.asarray(pca.mean_), jnp.log(jnp.asarray(pca.noise_variance_)))
    np.testing.assert_allclose(-free_energies(model, x), pca.score_samples(x), rtol=1e-10)


def test_latent_free_energies_by_quadrature(x64):
    grid = jnp.linspace(-40.0, 40.0, 20001)
    step = float(grid[1] - grid[0])
    mix = MixtureModel.make(1, 2, key=jax.random.key(1), covariance_type="diag")
    mix = mix.with_moments(jnp.array([0.3, 0.7]), mix.means, jnp.array([[0.5], [2.0]]))
    for model, states in ((mix, jnp.eye(2)[:, None, :]), (ppca(1, 1), jnp.array([[-1.3], [0.4]]))):
        for z in states:
            mass = step * jnp.sum(jnp.exp(-jax.vmap(lambda x, m=model, z=z: m.energy(x[None], z))(grid)))
            assert -np.log(float(mass)) == pytest.approx(float(model.latent_free_energy(z)), abs=1e-10)


# --- posteriors -------------------------------------------------------------------------------------------


def test_mixture_posterior_entropy_and_decode(x64):
    model, x = mixture("full"), jnp.asarray(data(1)[0])
    p = peer("full")[0].predict_proba(np.asarray(x)[None])[0]
    assert float(model.posterior(x).entropy()) == pytest.approx(-np.sum(p * np.log(p)), abs=1e-10)
    for k in range(K):
        np.testing.assert_allclose(model.decode(jnp.eye(K)[k][None, :]), model.means[k])


def test_ppca_posterior_matches_gaussian_conditioning(x64):
    model, x = ppca(), data(1, 5)[0]
    posterior, w = model.posterior(jnp.asarray(x)), np.asarray(model.weights)
    joint = np.block([[implied(model), w], [w.T, np.eye(2)]])
    seen = np.concatenate([x, np.zeros(2)])
    fixed = np.arange(7) < 5
    mean, covariance = condition(np.concatenate([model.mean, np.zeros(2)]), joint, fixed, seen)
    exact = stats.multivariate_normal(mean, covariance)
    np.testing.assert_allclose(posterior.mean(), mean, atol=1e-10)
    np.testing.assert_allclose(posterior.covariance, covariance, atol=1e-10)
    assert float(posterior.entropy()) == pytest.approx(exact.entropy(), abs=1e-10)
    for z in np.random.default_rng(0).normal(size=(4, 2)):
        assert float(posterior.log_prob(jnp.asarray(z))) == pytest.approx(exact.logpdf(z), abs=1e-10)
        np.testing.assert_allclose(model.decode(jnp.asarray(z)), w @ z + np.asarray(model.mean), atol=1e-12)
    z = np.asarray(draws(posterior.sample, 20000))
    check_means(z, mean)
    check_means((z - mean)[:, :, None] * (z - mean)[:, None, :], covariance)


# --- EM ---------------------------------------------------------------------------------------------------


@eqx.filter_jit
def closed_form(model, x, weights=None):
    return model.fit_closed_form(x, jnp.ones(x.shape[0], x.dtype) if weights is None else weights)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("kind", [*TYPES, "ppca"])
def test_em_never_decreases_the_likelihood(kind, weighted, x64):
    x = jnp.asarray(data(200))  # with few rows a full component collapses, and then only its ridge is left
    weights = jnp.asarray(np.random.default_rng(2).gamma(2.0, size=200)) if weighted else jnp.ones(200)
    model = ppca(D) if kind == "ppca" else mixture(kind)
    require(EM(), model)
    trace = []
    for _ in range(15):
        model, value = em_step(model, x, weights / jnp.mean(weights))
        trace.append(float(value))
    assert np.diff(trace).min() > -1e-10
    assert trace[-1] > trace[0] + 1e-3


@pytest.mark.parametrize("kind", [*TYPES, "ppca"])
def test_integer_weights_are_repetitions(kind, x64):
    x, counts = data(), np.random.default_rng(4).multinomial(200, np.full(200, 1 / 200))
    repeated = jnp.asarray(np.repeat(x, counts, axis=0))
    start = ppca(D) if kind == "ppca" else mixture(kind)
    weighted = em_step(start, jnp.asarray(x), jnp.asarray(3.0 * counts))[0]  # their scale does not matter
    plain = em_step(start, repeated, jnp.ones(200))[0]
    np.testing.assert_allclose(free_energies(weighted, x), free_energies(plain, x), rtol=1e-10)
    if kind == "ppca":
        weighted = closed_form(start, jnp.asarray(x), jnp.asarray(3.0 * counts))
        plain = closed_form(start, repeated, jnp.ones(200))
        np.testing.assert_allclose(weighted.weights, plain.weights, atol=1e-10)
        np.testing.assert_allclose(free_energies(weighted, x), free_energies(plain, x), rtol=1e-10)


@pytest.mark.parametrize("kind", TYPES)
def test_mixture_em_equals_scikit_learn_step_by_step(kind, x64):
    x = data()
    weights, means, _ = moments(kind)
    other = GaussianMixture(
        K,
        covariance_type=kind,
        weights_init=weights,
        means_init=means,
        precisions_init=peer(kind)[1],
        max_iter=1,
        warm_start=True,
        random_state=0,
        reg_covar=0.05,
    )
    model = mixture(kind, reg_covar=0.05)
    for _ in range(6):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            other.fit(x)
        model = em_step(model, jnp.asarray(x), jnp.ones(200))[0]
        np.testing.assert_allclose(jnp.exp(model.log_priors()), other.weights_, rtol=1e-8)
        np.testing.assert_allclose(model.means, other.means_, rtol=1e-8)
        np.testing.assert_allclose(model.covariances(), other.covariances_, rtol=1e-7, atol=1e-10)


def test_ppca_em_step_is_tipping_and_bishops(x64):
    x, model = data(40, 5), ppca()
    model = eqx.tree_at(lambda m: m.mean, model, jnp.asarray(x.mean(0)))
    s, w, variance = np.cov(x.T, bias=True), np.asarray(model.weights), 0.4
    inverse = np.linalg.inv(w.T @ w + variance * np.eye(2))
    new = s @ w @ np.linalg.inv(variance * np.eye(2) + inverse @ w.T @ s @ w)
    stepped = em_step(model, jnp.asarray(x), jnp.ones(40))[0]
    np.testing.assert_allclose(stepped.weights, new, atol=1e-10)
    assert float(stepped.variance()) == pytest.approx(np.trace(s - s @ w @ inverse @ new.T) / 5, rel=1e-10)
    np.testing.assert_allclose(stepped.mean, x.mean(0), atol=1e-10)


def test_ppca_m_step_maximises_the_expected_likelihood(x64):
    model, x = ppca(D), jnp.asarray(data())  # its mean is not the data's
    posterior = jax.vmap(model.posterior)(x)
    weights = jnp.asarray(np.random.default_rng(2).gamma(2.0, size=200))

    def expected_energy(m, x, q):  # of a Gaussian q: exact, since the energy is quadratic in z
        curvature = jax.hessian(lambda z: m.energy(x, z))(q.location)
        return m.energy(x, q.location) + 0.5 * jnp.trace(curvature @ q.covariance)

    def loss(m):
        return jnp.mean(weights * jax.vmap(lambda x, q: expected_energy(m, x, q))(x, posterior))

    gradient = jax.jit(jax.grad(loss))(model.m_step(x, posterior, weights))
    assert max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient)) < 1e-10


@pytest.mark.parametrize("weighted", [False, True])
def test_ppca_em_converges_to_the_closed_form(weighted, x64):
    x = jnp.asarray(data(80, 5))
    weights = jnp.asarray(np.random.default_rng(2).gamma(2.0, size=80)) if weighted else None
    model = PPCAModel.make(5, 2, key=jax.random.key(0))
    exact = closed_form(model, x, weights)
    unit = jnp.ones(80) if weights is None else weights / jnp.mean(weights)
    start = fitted(model, x, 0)
    model = jax.lax.fori_loop(0, 3000, lambda _, m: one_step(m, x, unit), start)
    np.testing.assert_allclose(implied(model), implied(exact), atol=1e-6)
    np.testing.assert_allclose(model.mean, exact.mean, atol=1e-6)
    scores = [-np.mean(np.asarray(unit) * free_energies(m, x)) for m in (start, model, exact)]
    assert scores[0] < scores[1]
    assert scores[1] == pytest.approx(scores[2], abs=1e-8)


def test_ppca_closed_form_is_stationary_and_agrees_with_scikit_learn(x64):
    for n, d, k in ((50, 6, 2), (8, 12, 3)):  # eigenvectors of the covariance; SVD of the rows
        x = data(n, d)
        model = closed_form(PPCAModel.make(d, k, key=jax.random.key(0)), jnp.asarray(x))
        loss = lambda m, x: jnp.mean(jax.vmap(m.free_energy)(x))  # noqa: E731
        gradient = jax.jit(jax.grad(loss))(model, jnp.asarray(x))
        assert max(float(jnp.max(jnp.abs(g))) for g in jax.tree.leaves(gradient)) < 1e-8
        pca = PCA(k).fit(x)
        spectrum = np.sort(np.linalg.eigvalsh(np.cov(x.T, bias=True)))[::-1]
        assert float(model.variance()) == pytest.approx(spectrum[k:].mean(), rel=1e-10)
        np.testing.assert_allclose(
            jnp.sum(model.weights**2, axis=0), spectrum[:k] - spectrum[k:].mean(), rtol=1e-10
        )
        if n > d:  # PCA divides by n − 1, and its noise is the mean over min(n, d) − k directions
            np.testing.assert_allclose(implied(model) * n / (n - 1), pca.get_covariance(), atol=1e-10)
            scaled = PPCAModel(
                model.weights * (n / (n - 1)) ** 0.5, model.mean, model.log_variance + np.log(n / (n - 1))
            )
            assert -free_energies(scaled, x).mean() == pytest.approx(pca.score(x), rel=1e-10)


# --- sampling ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", TYPES)
def test_mixture_samples_and_sweeps_have_the_exact_moments(kind):
    model, n = mixture(kind), 20000
    weights, means, covariances = moments(kind)
    expected = mixture_features(weights, means, dense(kind, covariances))
    x, z, moved, z_moved = draws(sample_and_sweep(model), n)
    check_means(features(x, z[:, 0]), expected)
    x, z = moved, z_moved
    check_means(features(x, z[:, 0]), expected)
    counts = np.asarray(z).sum((0, 1))
    assert stats.chisquare(counts, weights / weights.sum() * n).pvalue > 1e-4


@pytest.mark.parametrize("kind", ["full", "tied", "diag"])
def test_mixture_clamped_sweep_keeps_the_exact_conditional(kind):
    model, n, rng = mixture(kind), 20000, np.random.default_rng(5)
    weights, means, covariances = moments(kind)
    covariances = dense(kind, covariances)
    fixed, seen = np.array([True, False, True, False]), means.mean(0)
    o = np.flatnonzero(fixed)
    evidence = [
        stats.multivariate_normal(m[o], c[np.ix_(o, o)]).pdf(seen[o])
        for m, c in zip(means, covariances, strict=True)
    ]
    weights = weights * evidence / np.sum(weights * evidence)
    parts = [condition(m, c, fixed, seen) for m, c in zip(means, covariances, strict=True)]
    which = rng.choice(K, n, p=weights)
    x = np.tile(np.float32(seen), (n, 1))
    for k, (mean, covariance) in enumerate(parts):
        x[np.ix_(which == k, ~fixed)] = rng.multivariate_normal(mean, covariance, np.sum(which == k))
    z = np.eye(K, dtype=np.float32)[which][:, None, :]
    expected = mixture_features(weights, np.array([p[0] for p in parts]), np.array([p[1] for p in parts]))
    check_means(features(x[:, ~fixed], z[:, 0]), expected)
    mask = np.tile(fixed, (n, 1))
    after, z = draws(lambda x, z, f, key: model.sweep(x, z, key=key, fixed=f), n, x, z, mask)
    check_means(features(after[:, ~fixed], z[:, 0]), expected)
    np.testing.assert_array_equal(after[:, fixed], x[:, fixed])


def test_conditional_draw_is_exact_for_every_mask(x64):
    rng = np.random.default_rng(6)
    covariance, r = spd(rng), rng.normal(size=D)
    factor = gaussian.precision_factor(jnp.asarray(covariance))
    np.testing.assert_allclose(factor @ factor.T, np.linalg.inv(covariance), atol=1e-10)
    noise = jnp.concatenate([jnp.zeros((1, D)), jnp.eye(D)])
    one = lambda e, f: gaussian.colour_given(e, factor, jnp.asarray(r), f)  # noqa: E731
    draw = jax.jit(jax.vmap(one, in_axes=(0, None)))
    for bits in range(2**D):
        fixed = np.array([bits >> i & 1 == 1 for i in range(D)])
        mean, *root = np.asarray(draw(noise, jnp.asarray(fixed)))
        root = np.array(root) - mean[None, :]
        expected = condition(np.zeros(D), covariance, fixed, r)
        np.testing.assert_allclose(mean[~fixed], expected[0], atol=1e-10)
        np.testing.assert_allclose((root.T @ root)[np.ix_(~fixed, ~fixed)], expected[1], atol=1e-10)
        np.testing.assert_array_equal(mean[fixed], r[fixed])


def test_ppca_samples_and_sweeps_have_the_exact_moments():
    model, n = ppca(), 20000
    w, mean = np.asarray(model.weights), np.asarray(model.mean)

    def check(x, z):
        x, z = np.asarray(x, np.float64) - mean, np.asarray(z, np.float64)
        for values, expected in (
            (x, np.zeros(5)),
            (z, np.zeros(2)),
            (x[:, :, None] * x[:, None, :], implied(model)),
            (x[:, :, None] * z[:, None, :], w),
            (z[:, :, None] * z[:, None, :], np.eye(2)),
        ):
            check_means(values, expected)

    x, z, moved, z_moved = draws(sample_and_sweep(model), n)
    check(x, z)
    check(moved, z_moved)


def test_ppca_clamped_sweep_keeps_the_exact_conditional():
    model, n = ppca(), 20000
    fixed = np.array([True, False, True, False, False])
    seen = np.asarray(model.mean, np.float64) + np.array([1.0, 0, -2.0, 0, 0])
    mean, covariance = condition(np.asarray(model.mean, np.float64), implied(model), fixed, seen)
    x = np.tile(np.float32(seen), (n, 1))
    x[:, ~fixed] = np.random.default_rng(7).multivariate_normal(mean, covariance, n)
    sweep = lambda x, z, f, key: model.sweep(x, z, key=key, fixed=f)  # noqa: E731
    after, _ = draws(sweep, n, x, np.zeros((n, 2), np.float32), np.tile(fixed, (n, 1)))
    np.testing.assert_array_equal(after[:, fixed], x[:, fixed])
    free = np.asarray(after, np.float64)[:, ~fixed] - mean
    check_means(free, np.zeros(3))
    check_means(free[:, :, None] * free[:, None, :], covariance)


# --- starts and degenerate data ---------------------------------------------------------------------------


def degenerate():
    x = np.float32(data(30))
    flat = x.copy()
    flat[:, 1] = 7.0
    collinear = x.copy()
    collinear[:, 2] = 3 * collinear[:, 0]
    return {
        "constant column": flat,
        "collinear": 1e4 * collinear,
        "duplicates": np.repeat(x[:2], 15, axis=0),
        "one row": np.repeat(x[:1], 30, axis=0),
        "as many rows as components": x[:K],
        "outlier": np.concatenate([x[:-1], np.full((1, D), 1e4, np.float32)]),
        "zeros": np.zeros((30, D), np.float32),
    }


def check_finite(model, x):
    assert all(bool(jnp.all(jnp.isfinite(leaf))) for leaf in jax.tree.leaves(model))
    assert all(bool(jnp.all(jnp.isfinite(values))) for values in batched(model, x))


@pytest.mark.parametrize(("kind", "k"), [*((kind, K) for kind in TYPES), ("full", 1)])
def test_mixture_stays_finite(kind, k):
    for name, rows in degenerate().items():
        if name == "as many rows as components" and kind != "full":
            continue  # a shape of its own to compile for
        x = jnp.asarray(rows)
        check_finite(fitted(MixtureModel.make(D, k, key=jax.random.key(0), covariance_type=kind), x), x)


@pytest.mark.parametrize("k", [1, D])
def test_ppca_stays_finite(k):
    for rows in degenerate().values():
        x = jnp.asarray(rows)
        model = PPCAModel.make(D, k, key=jax.random.key(0))
        check_finite(fitted(model, x), x)
        check_finite(closed_form(model, x), x)


def test_ppca_with_all_components_is_the_full_gaussian(x64):
    x = data(50)
    model = closed_form(PPCAModel.make(D, D, key=jax.random.key(0)), jnp.asarray(x))
    dense_log_density = stats.multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(-free_energies(model, x), dense_log_density, rtol=1e-9)


def test_one_component_mixture_is_fitted_in_one_step(x64):
    x = data()
    model = MixtureModel.make(D, 1, key=jax.random.key(0), reg_covar=0.0)
    model = em_step(model, jnp.asarray(x), jnp.ones(200))[0]
    exact = stats.multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(-free_energies(model, x), exact, rtol=1e-10)


@pytest.mark.parametrize("kind", TYPES)
def test_empty_component_keeps_its_place(kind):
    model, x = mixture(kind, reg_covar=1e-6), jnp.asarray(np.float32(data(20)))
    fields = jnp.tile(jnp.array([[0.0, -1.0, -jnp.inf]]), (20, 1))
    posterior = Factorial(Categorical(jnp.zeros((20, 1, K))), fields)
    stepped = model.m_step(x, posterior, jnp.ones(20))
    np.testing.assert_array_equal(stepped.means[2], model.means[2])
    if kind != "tied":
        np.testing.assert_array_equal(stepped.precision_cholesky[2], model.precision_cholesky[2])
    assert np.isfinite(np.asarray(stepped.log_weights)).all()
    assert float(stepped.log_priors()[2]) < -10


def test_spread_rows_are_distinct_and_weighted_by_squared_distance():
    points = np.float32([[0, 0], [1, 0], [0, 3]])
    x = jnp.asarray(np.repeat(points, [97, 1, 2], axis=0))
    keys = jax.random.split(jax.random.key(0), 4000)
    rows, distances = jax.jit(jax.vmap(lambda key: spread_rows(x, 3, key=key)))(keys)
    assert all(len(np.unique(r, axis=0)) == 3 for r in np.asarray(rows[:200]))
    np.testing.assert_allclose(distances[0], np.sum((np.asarray(rows[0])[:, None] - np.asarray(x)[None]) ** 2, -1))
    first, second = np.asarray(rows[:, 0]), np.asarray(rows[:, 1])
    from_origin = (first == 0).all(1)  # then row (1, 0) has weight 1, and (0, 3) weight 2 · 9
    share = (second[from_origin] == [1, 0]).all(1)
    check_means(share, 1 / 19)
    again = spread_rows(x, 5, key=jax.random.key(1))[0]  # more rows than distinct ones
    assert np.isfinite(np.asarray(again)).all()


@pytest.mark.parametrize("kind", TYPES)
def test_mixture_start_and_em_find_separate_clusters(kind):
    rng = np.random.default_rng(8)
    centres = 20 * np.eye(D)[:K]
    x = jnp.asarray(np.float32(np.repeat(centres, 10, axis=0) + rng.normal(size=(30, D))))
    model = fitted(MixtureModel.make(D, K, key=jax.random.key(0), covariance_type=kind), x, 10)
    found = np.asarray(model.means)[np.argmax(np.asarray(model.means) @ centres.T, axis=0)]
    np.testing.assert_allclose(found, centres, atol=1.2)
    np.testing.assert_allclose(jnp.exp(model.log_priors()), 1 / 3, atol=1e-3)
