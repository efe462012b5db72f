"""The Gaussian with a constrained precision: against SciPy, optimality conditions and closed forms."""

from __future__ import annotations

import functools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import latentia
from latentia import GaussianModel
from latentia.core.errors import DataError, ParameterError
from latentia.energies.gaussian_energy import FLOOR, GaussianEnergy
from latentia.learning.score_matching import DenoisingScoreMatching, ScoreMatching, hyvarinen_score
from latentia.likelihood.precision import double
from latentia.ops import graphical, whitening
from latentia.ops.derivatives import laplacian, slope_and_curvature

RNG = np.random.default_rng(0)
D = 6
SOLVERS = ("closed_form", "score_matching")


def covariance(d=D, seed=0):
    a = np.random.default_rng(seed).normal(size=(d, 2 * d))
    scale = np.random.default_rng(seed + 1).uniform(0.3, 3.0, d)
    return (a @ a.T / (2 * d)) * scale[:, None] * scale[None, :]


def grid(height=2, width=3, radius=1.0):
    return graphical.pixel_neighbours((height, width), radius)


def rows(n=400, seed=3):
    return np.random.default_rng(seed).multivariate_normal(np.arange(D) - 2.0, covariance(), n)


def model_of(precision, mean, mask=None):
    with double():
        return GaussianEnergy.make(len(mean), mask).with_precision(mean, precision)


# -- the energy -------------------------------------------------------------------------------------


def test_energy_and_log_z_are_scipys_normal():
    mean, c = RNG.normal(size=D), covariance()
    x = RNG.normal(size=(5, D))
    with double():
        model = model_of(np.linalg.inv(c), mean)
        found = -jax.vmap(model.free_energy)(x) - model.log_z()
        np.testing.assert_allclose(model.precision(), np.linalg.inv(c), rtol=1e-10, atol=1e-12)
    np.testing.assert_allclose(found, stats.multivariate_normal(mean, c).logpdf(x), rtol=1e-10)


def test_the_estimator_scores_samples_as_scipy_does():
    X = rows()
    fitted = GaussianModel(ridge=0.0).fit(X)
    wanted = stats.multivariate_normal(X.mean(0), np.cov(X.T, bias=True)).logpdf(X)
    np.testing.assert_allclose(fitted.score_samples(X), wanted, rtol=1e-4, atol=1e-4)
    assert fitted.log_z().method == "exact (closed form)"
    assert fitted.history_[-1]["log_likelihood"] == pytest.approx(wanted.mean(), abs=1e-4)


def test_samples_have_the_mean_and_the_covariance():
    fitted = GaussianModel().fit(rows())
    drawn = fitted.sample(20_000, random_state=0)
    error = np.sqrt(np.diag(fitted.covariance_) / 20_000)
    assert np.max(np.abs(drawn.mean(0) - fitted.mean_) / error) < 4.5
    np.testing.assert_allclose(np.cov(drawn.T), fitted.covariance_, atol=0.05 * fitted.covariance_.max())


def test_filling_in_is_the_conditional_distribution():
    fitted = GaussianModel().fit(rows())
    given = np.full((1, D), np.nan)
    given[0, [1, 4]] = (2.0, -1.0)
    drawn = fitted.sample(20_000, given=given, random_state=0)
    free, known = [0, 2, 3, 5], [1, 4]
    c = fitted.covariance_.astype(float)
    gain = c[np.ix_(free, known)] @ np.linalg.inv(c[np.ix_(known, known)])
    mean = fitted.mean_[free] + gain @ (given[0, known] - fitted.mean_[known])
    left = c[np.ix_(free, free)] - gain @ c[np.ix_(known, free)]
    assert np.max(np.abs(drawn[:, free].mean(0) - mean) / np.sqrt(np.diag(left) / 20_000)) < 4.5
    np.testing.assert_allclose(np.cov(drawn[:, free].T), left, atol=0.05 * left.max())
    np.testing.assert_array_equal(drawn[:, known], np.broadcast_to(given[:, known], (20_000, 2)).astype(np.float32))


def test_transform_whitens_symmetrically_and_back():
    X = rows()
    fitted = GaussianModel(ridge=0.0).fit(X)
    white = fitted.transform(X)
    np.testing.assert_allclose(np.cov(white.T, bias=True), np.eye(D), atol=2e-3)
    np.testing.assert_allclose(fitted.inverse_transform(white), X, atol=1e-3)
    values, vectors = np.linalg.eigh(np.cov(X.T, bias=True))
    zca = (X - X.mean(0)) @ (vectors / np.sqrt(values)) @ vectors.T
    np.testing.assert_allclose(white, zca, atol=5e-3)


# -- the solvers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("radius", [1.0, 1.5])
def test_maximum_likelihood_matches_the_covariance_on_the_mask(radius):
    c, mask = 0.02 * covariance(9) + np.outer(np.arange(1, 10), np.arange(1, 10)), grid(3, 3, radius)
    best = graphical.likeliest_precision(c, mask, tol=1e-13)
    assert np.all(best[~mask] == 0)
    np.testing.assert_allclose(np.where(mask, np.linalg.inv(best), 0), np.where(mask, c, 0), rtol=1e-7)
    np.testing.assert_array_equal(best, best.T)
    with pytest.warns(UserWarning, match="No convergence after 10 sweeps"):
        hasty = graphical.likeliest_precision(c, mask, tol=1e-13, max_sweeps=10)
    assert np.abs(np.linalg.inv(hasty) / c - 1)[mask].max() > 2e-6  # so the sweeps above were needed


def test_score_matching_solves_its_linear_system_on_the_mask():
    c, mask = covariance(9), grid(3, 3)
    best = graphical.score_matched_precision(c, mask)
    gradient = -np.eye(9) + 0.5 * (c @ best + best @ c)
    np.testing.assert_allclose(gradient[mask], 0, atol=1e-9)
    assert np.all(best[~mask] == 0)
    assert np.abs(gradient[~mask]).max() > 1e-2  # the mask costs something
    value = lambda a: 0.5 * np.trace(a @ c @ a) - np.trace(a)  # noqa: E731
    worse = [value(best + 0.01 * np.where(mask, e + e.T, 0)) for e in RNG.normal(size=(20, 9, 9))]
    assert min(worse) > value(best)


def test_without_zeros_score_matching_is_maximum_likelihood():
    c, everywhere = covariance(), np.ones((D, D), bool)
    for solve in (graphical.score_matched_precision, graphical.likeliest_precision):
        np.testing.assert_allclose(solve(c, everywhere), np.linalg.inv(c), rtol=1e-9, atol=1e-9)
    X = rows()
    one, two = (GaussianModel(solver=s, ridge=0.0).fit(X).precision_ for s in SOLVERS)
    np.testing.assert_allclose(one, np.linalg.inv(np.cov(X.T, bias=True)), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(one, two, rtol=1e-5, atol=1e-6)


def test_an_independent_pair_and_the_large_preconditioner(monkeypatch):
    c, mask = covariance(9), grid(3, 3)
    mask[0] = mask[:, 0] = False
    mask[0, 0] = True
    for solve in (graphical.likeliest_precision, graphical.score_matched_precision):
        assert solve(c, mask)[0, 0] == pytest.approx(1 / c[0, 0])
    small = graphical.score_matched_precision(c, mask)
    monkeypatch.setattr(graphical, "MOST_BLOCKS", 0)
    np.testing.assert_allclose(graphical.score_matched_precision(c, mask), small, atol=1e-8)


@pytest.mark.parametrize("solver", [*SOLVERS, "gradient"])
def test_zeros_stay_exact(solver):
    fitted = GaussianModel("neighbours", image_shape=(2, 3), solver=solver, n_epochs=3, random_state=0).fit(rows())
    assert np.all(fitted.precision_[~grid()] == 0)
    assert np.all(fitted.precision_[grid()] != 0)
    assert np.linalg.eigvalsh(fitted.precision_.astype(float))[0] > 0


def test_diagonal_is_the_variances():
    X = rows()
    fitted = GaussianModel("diagonal", ridge=0.0).fit(X)
    np.testing.assert_allclose(fitted.precision_, np.diag(1 / X.var(0)), rtol=1e-5)
    np.testing.assert_allclose(fitted.transform(X), (X - X.mean(0)) / X.std(0), atol=1e-4)
    assert fitted.sample(3).shape == (3, D)


def test_weights_count_as_repetitions():
    X = rows(60)
    weights = np.random.default_rng(0).integers(0, 4, 60)
    weighted = GaussianModel().fit(X, sample_weight=weights)
    repeated = GaussianModel().fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.precision_, repeated.precision_, rtol=1e-5, atol=1e-6)


def test_constant_columns_have_a_finite_likelihood():
    X = rows()
    X[:, 2] = 5.0
    for precision in ("full", "diagonal"):
        assert np.isfinite(GaussianModel(precision).fit(X).score(X))


def test_a_precision_that_is_not_positive_definite_is_shrunk_and_said_so():
    place = np.stack(np.divmod(np.arange(25), 5), axis=1)
    square = ((place[:, None] - place[None, :]) ** 2).sum(-1)
    smooth = np.exp(-square / 8) + 1e-3 * np.eye(25)  # a field smoother than any that four neighbours can make
    X = np.random.default_rng(0).multivariate_normal(np.zeros(25), smooth, 500)
    with pytest.warns(UserWarning, match="not positive definite"):
        fitted = GaussianModel("neighbours", solver="score_matching").fit(X)
    assert np.linalg.eigvalsh(fitted.precision_.astype(float))[0] > 0
    assert np.all(fitted.precision_[~grid(5, 5)] == 0)


def test_projecting_shrinks_only_what_must_be():
    model = GaussianEnergy.make(D, grid())
    inside = eqx.tree_at(lambda m: m.couplings, model, 0.1 * jnp.where(grid(), 1.0, 0.0)).project()
    np.testing.assert_array_equal(inside.couplings[0, 1], np.float32(0.1))
    outside = eqx.tree_at(lambda m: m.couplings, model, jnp.asarray(RNG.normal(size=(D, D)), jnp.float32) * 3)
    assert float(outside.margin()) < 0
    assert FLOOR / 2 < float(outside.project().margin()) < 0.1
    np.testing.assert_array_equal(outside.project().precision() == 0, ~grid())


# -- objectives -------------------------------------------------------------------------------------


def test_the_objectives_agree_on_a_gaussian():
    """½ tr(ΛCΛ) − tr Λ exactly, in directions on average, and with noise on the data smoothed by it."""
    c, mask = covariance(), grid()
    mean = np.arange(D) - 2.0
    factor = np.linalg.cholesky(c)
    # 2D points with exactly this mean and covariance: expectations of quadratics are exact
    x = mean + np.sqrt(D) * np.concatenate([factor.T, -factor.T])
    precision = np.linalg.inv(c + np.eye(D)) * np.where(mask, 1.0, 0.5)
    closed = 0.5 * np.trace(precision @ c @ precision) - np.trace(precision)
    with double():
        model = model_of(precision, mean)
        exact = ScoreMatching().loss(model, jnp.asarray(x), None, None)[0]
        every = jnp.asarray(np.array(np.meshgrid(*[[-1.0, 1.0]] * D)).reshape(D, -1).T)  # all ±1 directions
        sliced = jax.vmap(lambda x: hyvarinen_score(model, x, every))(jnp.asarray(x)).mean()
        tau = 0.3
        noise = np.sqrt(D) * np.concatenate([np.eye(D), -np.eye(D)])  # mean 0, covariance I
        pairs_x, pairs_e = np.repeat(x, 2 * D, axis=0), np.tile(noise, (2 * D, 1))
        denoising = DenoisingScoreMatching(tau, relative=False)
        noisy = denoising.loss(model, jnp.asarray(pairs_x), None, jnp.asarray(pairs_e))[0]
    assert float(exact) == pytest.approx(closed, rel=1e-10)
    assert float(sliced) == pytest.approx(closed, rel=1e-10)
    smooth = c + tau**2 * np.eye(D)  # Vincent: the objective of the smoothed data, plus ½ E‖ε/τ‖²
    wanted = 0.5 * np.trace(precision @ smooth @ precision) - np.trace(precision) + 0.5 * D / tau**2
    assert float(noisy) == pytest.approx(wanted, rel=1e-10)


def test_the_gradient_of_score_matching_is_the_corrected_one():
    """∇_Λ J = −I + ½(CΛ + ΛC)."""
    x = rows(50)
    c = np.cov(x.T, bias=True)
    precision = np.linalg.inv(covariance(seed=5))
    with double():
        centre, data = jnp.asarray(x.mean(0)), jnp.asarray(x)

        def objective(a):
            f = lambda x: 0.5 * (x - centre) @ a @ (x - centre)  # noqa: E731
            score = lambda x: 0.5 * jnp.sum(jax.grad(f)(x) ** 2) - laplacian(f, x)  # noqa: E731
            return jnp.mean(jax.vmap(score)(data))

        gradient = np.asarray(jax.jit(jax.grad(objective))(jnp.asarray(precision)))
    found = 0.5 * (gradient + gradient.T)
    np.testing.assert_allclose(found, -np.eye(D) + 0.5 * (c @ precision + precision @ c), rtol=1e-9, atol=1e-9)


def test_gradient_descent_of_score_matching_reaches_the_solution():
    X = rows()
    wanted = GaussianModel("neighbours", image_shape=(2, 3), solver="score_matching", ridge=0.0).fit(X)
    options = {"n_epochs": 300, "batch_size": 400, "learning_rate": 0.03, "monitor": None, "random_state": 0}
    found = GaussianModel("neighbours", image_shape=(2, 3), solver="gradient", **options).fit(X)
    np.testing.assert_allclose(found.precision_, wanted.precision_, atol=0.02 * np.abs(wanted.precision_).max())
    np.testing.assert_allclose(found.mean_, wanted.mean_, atol=0.05)


# -- second derivatives -----------------------------------------------------------------------------


def test_the_exact_trace_is_that_of_the_hessian():
    rng = np.random.default_rng(4)
    with double():
        a, b, w = (jnp.asarray(rng.normal(size=s)) for s in ((4, 9), (7, 4), (12, 9)))
        x, scale = jnp.asarray(rng.normal(size=9)), jnp.asarray(rng.normal(size=9))

        def mixed(x):  # a bottleneck, a wide layer, and both meeting again
            h = jnp.tanh(a @ x)
            wide = jax.nn.softplus(w @ x)
            return jnp.sum(jnp.sin(b @ h)) * jnp.sum(x[:4] * jnp.exp(h)) + jax.nn.logsumexp(wide) ** 2 / (1 + x @ x)

        looped = lambda x: jnp.sum(jax.lax.fori_loop(0, 3, lambda i, y: jnp.sin(y) * y[0], x))  # noqa: E731
        kinked = lambda x: jnp.sum(jnp.where(x > 0, x**3, jnp.sort(x) ** 2)) + jnp.prod(x[:2])  # noqa: E731
        turned = lambda x: 2 / (3 + x @ x) + jnp.sum(jnp.linalg.inv(jnp.eye(9) + jnp.outer(x, x)))  # noqa: E731
        v = jnp.asarray(rng.normal(size=(3, 9)))

        @functools.partial(jax.jit, static_argnums=0)
        def facts(f, x):
            hessian = jax.hessian(f)(x)
            wanted = jnp.trace(hessian), jnp.sum(scale**2 * jnp.diagonal(hessian)), jax.grad(f)(x)
            found = laplacian(f, x), laplacian(f, x, scale), *slope_and_curvature(f, x, v)
            return (*wanted, jnp.sum((v @ hessian) * v, axis=1)), found

        for f in (mixed, looped, kinked, turned, lambda x: 3 * x[0], lambda x: jnp.array(2.0)):
            for wanted, found in zip(*facts(f, x), strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-10)


def test_the_trace_in_parts_is_the_same(monkeypatch):
    rng = np.random.default_rng(4)
    with double():
        w, x = jnp.asarray(rng.normal(size=(12, 9))), jnp.asarray(rng.normal(size=9))
        f = lambda w: lambda x: jnp.sum(jax.nn.softplus(jnp.sin(w @ x)))  # noqa: E731
        both = lambda w: laplacian(f(w), x, chunk=4)  # noqa: E731
        whole, slope = jax.jit(jax.value_and_grad(both))(w)
        monkeypatch.setattr("latentia.ops.derivatives.MOST_NUMBERS", 0)
        parts, slopes = jax.jit(jax.value_and_grad(lambda w: both(w)))(w)
    np.testing.assert_allclose(parts, whole, rtol=1e-10)
    np.testing.assert_allclose(slopes, slope, rtol=1e-8, atol=1e-10)


# -- the estimator ----------------------------------------------------------------------------------


def test_a_mask_given_as_a_matrix_comes_back_from_a_file(tmp_path):
    fitted = GaussianModel(grid()).fit(rows())
    fitted.save(tmp_path / "gaussian.safetensors")
    loaded = latentia.load(tmp_path / "gaussian.safetensors")
    np.testing.assert_array_equal(loaded.precision_, fitted.precision_)
    np.testing.assert_array_equal(loaded.precision, grid())
    np.testing.assert_array_equal(loaded.fit(rows()).precision_, fitted.precision_)


def test_colour_images_couple_all_channels_of_neighbours():
    mask = graphical.pixel_neighbours((1, 3, 2), 1.0)
    np.testing.assert_array_equal(mask[0], [True, True, True, True, False, False])
    fitted = GaussianModel("neighbours", image_shape=(1, 3, 2)).fit(rows())
    np.testing.assert_array_equal(fitted.precision_ != 0, mask)


def test_moments_of_blocks_are_the_moments():
    X, weights = rows(50), np.random.default_rng(0).random(50)
    mean, c = whitening.moments(lambda: [X[:20], X[20:]], weights, diagonal=False)
    np.testing.assert_allclose(mean, np.average(X, axis=0, weights=weights))
    np.testing.assert_allclose(c, np.cov(X.T, aweights=weights, bias=True))


def test_mistakes_are_explained():
    X = rows(20)
    with pytest.raises(ParameterError, match="image_shape=None does not fit the 6 columns"):
        GaussianModel("neighbours").fit(X)
    with pytest.raises(ParameterError, match="symmetric boolean matrix"):
        GaussianModel(np.triu(np.ones((D, D), bool))).fit(X)
    with pytest.raises(ParameterError, match="mask for 3 variables"):
        GaussianModel(np.ones((3, 3), bool)).fit(X)
    with pytest.raises(ParameterError, match="Did you mean 'neighbours'"):
        GaussianModel("neighbors").fit(X)
    assert not hasattr(GaussianModel(), "partial_fit")
    assert GaussianModel(solver="gradient").partial_fit(X).n_steps_ == 1
    with pytest.raises(DataError, match="everything is known"):
        GaussianModel().fit(X).sample(given=X[:1])
