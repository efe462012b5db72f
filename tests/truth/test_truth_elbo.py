"""Evidence bounds against quadrature and enumeration, and every gradient estimator against the exact gradient.

Real latents are few, so that expectations under q are Gauss–Hermite sums; binary ones are enumerated. Both are
exact to rounding, and so are their derivatives by autodiff. An estimator that claims to be unbiased is averaged
over many seeds, and every entry of its mean must lie within 4.5 standard errors of the exact gradient; the standard
errors must be small enough for a lost factor to show.
"""

from __future__ import annotations

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import perturbed, quick
from jax.flatten_util import ravel_pytree
from scipy.special import logsumexp
from scipy.stats import multivariate_normal

from latentia.core.errors import ParameterError
from latentia.energies import vae_model
from latentia.energies.vae_parts import Bits, Reals
from latentia.inference.amortised import DiagonalGaussian
from latentia.inference.posteriors import MOST_LOG_SIGMA, CholeskyGaussian, Coins, TopDown, divergences, numbers_to
from latentia.learning.discrete_gradients import GRADIENTS, log_mean, others
from latentia.learning.elbo import ELBO, IWAE, BoundState
from latentia.likelihood import importance, latent_annealing

SIGMAS = 4.5
NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(60)
LOG_WEIGHTS = np.log(WEIGHTS / WEIGHTS.sum())


@pytest.fixture(autouse=True, scope="module")
def x64():
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def make(sizes=(1,), latents="gaussian", *, visible=None, posterior="diagonal", ladder=False, down=None, seed=0):
    hidden = ((3,),) * len(sizes)
    model = vae_model.build(
        Bits(3) if visible is None else visible,
        sizes=sizes,
        hidden=hidden,
        decoder_hidden=hidden if down is None else down,
        latents=latents,
        posterior=posterior,
        ladder=ladder,
        activation="tanh",
        key=jax.random.key(seed),
    )
    return perturbed(model, 5 + seed)


X = np.array([[1.0, 0.0, 1.0]])


def grid(n):
    """(standard normal nodes, log-weights) in n dimensions."""
    points = np.array(list(itertools.product(NODES, repeat=n)))
    return points, np.array([sum(w) for w in itertools.product(LOG_WEIGHTS, repeat=n)])


def prior_log_p(model, x, n=201, half=9.0):
    """log p(x) by the trapezoid rule over z, one or two real latents."""
    axis = np.linspace(-half, half, n)
    width = sum(model.sizes)
    z = np.array(list(itertools.product(axis, repeat=width)))
    parts = tuple(np.split(z, np.cumsum(model.sizes)[:-1], axis=1))
    z = parts if len(model.sizes) > 1 else z
    energies = quick(jax.vmap(lambda z: model.energy(x, z)))(z)
    return logsumexp(-np.asarray(energies)) + width * np.log(axis[1] - axis[0])


# -- closed forms ---------------------------------------------------------------------------------------------


def test_divergence_and_entropy_of_normal_posteriors_are_integrals():
    rng = np.random.default_rng(0)
    p = DiagonalGaussian(jnp.array([0.3, -0.2]), jnp.array([0.2, -0.4]))
    full = CholeskyGaussian(*(jnp.asarray(rng.normal(size=n)) for n in (2, 2, 1)))
    diagonal = DiagonalGaussian(jnp.asarray(rng.normal(size=2)), jnp.asarray(rng.normal(size=2)))
    points, log_weights = grid(2)
    for q, factor in ((full, full.factor), (diagonal, jnp.diag(jnp.exp(diagonal.log_sigma)))):
        z = np.asarray(q.mean()) + points @ np.asarray(factor).T
        reference = multivariate_normal(np.asarray(q.mean()), np.asarray(factor @ factor.T))
        np.testing.assert_allclose(jax.vmap(q.log_prob)(z), reference.logpdf(z), rtol=1e-9, atol=1e-9)
        ratio = np.asarray(jax.vmap(q.log_prob)(z) - jax.vmap(p.log_prob)(z))
        assert float(divergences(q, p).sum()) == pytest.approx(np.exp(log_weights) @ ratio, abs=1e-9)
        assert float(q.entropy()) == pytest.approx(reference.entropy(), abs=1e-9)
    standard = DiagonalGaussian(jnp.zeros(2), jnp.zeros(2))
    covariance = np.asarray(full.factor @ full.factor.T)
    closed = 0.5 * (np.trace(covariance) + full.location @ full.location - 2 - np.linalg.slogdet(covariance)[1])
    assert float(divergences(full, standard).sum()) == pytest.approx(float(closed), abs=1e-12)
    np.testing.assert_allclose(full.variance(), np.diag(covariance), rtol=1e-12)
    key = jax.random.key(0)
    draws = np.asarray(jax.vmap(lambda k: full.sample(key=k))(jax.random.split(key, 40_000)))
    np.testing.assert_allclose(np.cov(draws.T), covariance, atol=0.03 * np.trace(covariance))


@pytest.mark.parametrize("kind", ["gaussian", "full"])
def test_wild_numbers_give_wide_or_narrow_posteriors_that_float32_can_hold(kind):
    usual = jnp.array([0.5, -1.0, 3.0, -7.0, 0.2][: 4 + (kind == "full")], jnp.float32)
    wild = usual.at[2:4].set(jnp.array([400.0, -400.0], jnp.float32))
    scales = lambda q: q.log_sigma if kind == "gaussian" else q.log_diagonal  # noqa: E731
    np.testing.assert_array_equal(scales(numbers_to(kind, usual)), usual[2:4])
    q = numbers_to(kind, wild)
    np.testing.assert_array_equal(scales(q), [MOST_LOG_SIGMA, -MOST_LOG_SIGMA])
    prior = numbers_to("gaussian", jnp.array([0.0, 0.0, -400.0, 400.0], jnp.float32))
    z = q.sample(key=jax.random.key(0))
    assert z.dtype == jnp.float32
    assert np.isfinite([float(prior.log_prob(z)), float(q.log_prob(z))]).all()
    assert np.isfinite(divergences(q, prior)).all()


def test_divergence_and_entropy_of_coins_are_sums():
    q, p = Coins(jnp.array([0.7, -1.2, 3.0])), Coins(jnp.array([0.1, 0.4, -0.5]))
    z = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    log_q, log_p = np.asarray(jax.vmap(q.log_prob)(z)), np.asarray(jax.vmap(p.log_prob)(z))
    assert np.exp(log_q).sum() == pytest.approx(1, abs=1e-12)
    assert float(divergences(q, p).sum()) == pytest.approx(np.exp(log_q) @ (log_q - log_p), abs=1e-12)
    assert float(q.entropy()) == pytest.approx(-np.exp(log_q) @ log_q, abs=1e-12)
    np.testing.assert_allclose(q.variance(), q.mean() * (1 - q.mean()), rtol=1e-12)
    uniform = Coins(jnp.zeros(3))  # K log 2 − H(q)
    assert float(divergences(q, uniform).sum()) == pytest.approx(3 * np.log(2) - float(q.entropy()), abs=1e-12)


def test_a_rung_multiplies_the_evidence_with_the_prediction():
    model = make((1, 1), ladder=True)
    q = model.recognise(jnp.asarray(X[0]))
    assert isinstance(q, TopDown)
    above = jnp.array([0.7])
    z = np.linspace(-2, 2, 9)[:, None]
    own = q.conditional(0, (None, above))
    prediction = numbers_to("gaussian", model.generative[0](above))
    product = jax.vmap(q.evidence[0].log_prob)(z) + jax.vmap(prediction.log_prob)(z)
    gap = np.asarray(jax.vmap(own.log_prob)(z) - product)
    np.testing.assert_allclose(gap, gap[0], atol=1e-10)
    assert np.ptp(np.asarray(product)) > 0.1


def states(model):
    z = tuple(np.array(list(itertools.product((0.0, 1.0), repeat=n))) for n in model.sizes)
    if len(z) == 1:
        return z[0]
    index = np.array(list(itertools.product(*[range(len(part)) for part in z])))
    return tuple(part[column] for part, column in zip(z, index.T, strict=True))


def test_layers_of_coins_diverge_as_their_joint_distribution():
    model = make((2, 1), "bernoulli")
    q, z = model.recognise(jnp.asarray(X[0])), states(model)
    log_q = np.asarray(jax.vmap(q.log_prob)(z))
    log_prior = np.asarray(jax.vmap(model.log_prior)(z))
    assert np.exp(log_q).sum() == pytest.approx(1, abs=1e-12)
    assert np.exp(log_prior).sum() == pytest.approx(1, abs=1e-12)
    rates = np.asarray(jax.vmap(lambda z: model.divergences(q, z))(z))
    assert rates.shape == (8, 3)
    assert np.exp(log_q) @ rates.sum(1) == pytest.approx(np.exp(log_q) @ (log_q - log_prior), abs=1e-12)


@pytest.mark.parametrize("ladder", [False, True])
def test_layers_of_normal_latents_diverge_as_their_joint_distribution(ladder):
    model = make((1, 1), ladder=ladder, seed=1)
    q = model.recognise(jnp.asarray(X[0]))

    @quick
    def along(noise):
        z = [None, None]
        for level in q.order:
            own = q.conditional(level, z)
            z[level] = own.location + jnp.exp(own.log_sigma) * noise[level : level + 1]
        return model.divergences(q, tuple(z)).sum(), q.log_prob(tuple(z)) - model.log_prior(tuple(z))

    points, log_weights = grid(2)
    closed, ratio = map(np.asarray, jax.vmap(along)(points))
    assert np.exp(log_weights) @ closed == pytest.approx(np.exp(log_weights) @ ratio, abs=1e-7)
    assert np.std(closed) < np.std(ratio)


# -- exact bounds, as functions of the model ------------------------------------------------------------------


def normal_bound(model, x, k, beta=1.0):
    """E[log mean w] over k draws of one real latent by Gauss–Hermite; for k = 1 the ELBO."""
    _, log_weights = grid(k)
    q = model.recognise(x)

    def log_weight(noise):
        z = q.location + jnp.exp(q.log_sigma) * noise[None]
        given = model.log_given(x, z)
        return given + beta * (-model.energy(x, z) - given - q.log_prob(z))

    each = jax.vmap(log_weight)(jnp.asarray(NODES))
    index = np.array(list(itertools.product(range(len(NODES)), repeat=k)))
    bounds = jax.nn.logsumexp(each[index], axis=1) - np.log(k)
    return jnp.sum(jnp.exp(jnp.asarray(log_weights)) * bounds)


def coin_bound(model, x, k):
    """The same over binary latents: all k-tuples of states."""
    q, z = model.recognise(x), states(model)
    log_q = jax.vmap(q.log_prob)(z)
    each = -jax.vmap(lambda z: model.energy(x, z))(z) - log_q
    index = np.array(list(itertools.product(range(len(each)), repeat=k)))
    bounds = jax.nn.logsumexp(each[index], axis=1) - np.log(k)
    return jnp.sum(jnp.exp(jnp.sum(log_q[index], axis=1)) * bounds)


def exact_of(function, model):
    """(value, gradient) of a function of the model."""
    params, rest = eqx.partition(model, eqx.is_inexact_array)
    value, grads = quick(jax.value_and_grad(lambda p: function(eqx.combine(p, rest))))(params)
    return float(value), np.asarray(ravel_pytree(grads)[0])


def flat_gradient(function, model):
    return exact_of(function, model)[1]


@functools.cache
def normal_case(seed, k, beta=1.0):
    """(model, −bound, its gradient) with one real latent."""
    model = make(seed=seed)
    return model, *exact_of(lambda m: -normal_bound(m, jnp.asarray(X[0]), k, beta), model)


@functools.cache
def coin_case(sizes, seed, k):
    """The same with binary latents."""
    model = make(sizes, "bernoulli", seed=seed)
    return model, *exact_of(lambda m: -coin_bound(m, jnp.asarray(X[0]), k), model)


def estimates(objective, model, n, x=X):
    """(losses, gradients) of many seeds."""
    params, rest = eqx.partition(model, eqx.is_inexact_array)

    @quick
    def many(seeds):
        def one(seed):
            state = BoundState(seed, jnp.ones(()))
            loss = lambda p: objective.loss(eqx.combine(p, rest), jnp.asarray(x), None, state)[0]  # noqa: E731
            value, grads = jax.value_and_grad(loss)(params)
            return value, ravel_pytree(grads)[0]

        return jax.vmap(one)(seeds)

    values, grads = many(jnp.arange(n, dtype=jnp.uint32))
    return np.asarray(values), np.asarray(grads)


def deviation(grads, exact):
    """The largest number of standard errors between the mean and the exact gradient."""
    stderr = grads.std(0) / np.sqrt(len(grads))
    return float(np.max(np.abs(grads.mean(0) - exact) / (stderr + 1e-9)))


def is_unbiased(values, grads, exact_value, exact):
    stderr = grads.std(0) / np.sqrt(len(grads))
    assert np.linalg.norm(stderr) < 0.12 * np.linalg.norm(exact), "too noisy to show a lost factor"
    assert deviation(grads, exact) < SIGMAS
    assert abs(values.mean() - exact_value) < SIGMAS * values.std() / np.sqrt(len(values)) + 1e-9


REAL = [n for n, g in GRADIENTS.items() if "real" in g.latents]
COINS = [n for n, g in GRADIENTS.items() if "binary" in g.latents]


@pytest.mark.parametrize("name", [n for n in REAL if n not in ("exact", "doubly_reparametrised")])
def test_elbo_gradients_through_a_real_latent(name):
    model, *exact = normal_case(0, 1)
    is_unbiased(*estimates(ELBO(k=4, gradient=name), model, 20_000), *exact)


@pytest.mark.parametrize(
    ("name", "beta"), [(n, 1.0) for n in REAL if n != "exact"] + [("doubly_reparametrised", 0.4)]
)
def test_importance_weighted_gradients_through_a_real_latent(name, beta):
    model, *exact = normal_case(2, 2, beta)
    is_unbiased(*estimates(IWAE(k=2, gradient=name, beta=beta), model, 20_000), *exact)


@pytest.mark.parametrize("name", COINS)
def test_elbo_gradients_through_coins(name):
    model, value, exact = coin_case((2,), 0, 1)
    if name == "exact":
        values, grads = estimates(ELBO(gradient=name), model, 2)
        np.testing.assert_allclose(values, value, atol=1e-12)
        np.testing.assert_allclose(grads, np.stack([exact, exact]), atol=1e-12)
        return
    values, grads = estimates(ELBO(k=4, gradient=name), model, 20_000)
    if GRADIENTS[name].unbiased:
        is_unbiased(values, grads, value, exact)
        return
    bias = np.linalg.norm(grads.mean(0) - exact) / np.linalg.norm(exact)
    print(f"{name}: relative bias {bias:.3f}")
    assert deviation(grads, exact) > 2 * SIGMAS  # the label is right
    assert bias < 0.8  # and the direction is not lost


@pytest.mark.parametrize("name", ["score_function", "rloo"])
def test_importance_weighted_gradients_through_coins(name):
    model, *exact = coin_case((2,), 1, 3)
    is_unbiased(*estimates(IWAE(k=3, gradient=name), model, 20_000), *exact)


def test_leave_one_out_is_less_noisy_than_the_plain_score():
    model = make((2,), "bernoulli")
    noise = {n: estimates(ELBO(k=4, gradient=n), model, 1000)[1].var(0).sum() for n in ("score_function", "rloo")}
    assert noise["rloo"] < 0.5 * noise["score_function"]


def test_two_layers_of_coins_have_unbiased_gradients_too():
    model, *exact = coin_case((1, 1), 3, 1)
    is_unbiased(*estimates(ELBO(k=4, gradient="rloo"), model, 20_000), *exact)


# -- the two mistakes ------------------------------------------------------------------------------------------


def test_good_draws_weigh_most_and_the_bound_is_the_log_of_the_mean():
    """A softmax over the loss −log w, or Σ w̃ log w in place of log mean w: neither survives this."""
    log_w, log_q = jnp.array([-3.0, 1.0, 4.0]), jnp.zeros(3)
    value, slope = jax.value_and_grad(lambda w: log_mean("reparametrised", w, log_q))(log_w)
    weights = np.exp(log_w) / np.exp(log_w).sum()
    assert float(value) == pytest.approx(np.log(np.mean(np.exp(log_w))), abs=1e-12)
    assert abs(float(value) - float(weights @ log_w)) > 0.5
    np.testing.assert_allclose(slope, weights, atol=1e-12)
    np.testing.assert_allclose(others(log_w), [2.5, 0.5, -1.0], atol=1e-12)


def test_metrics_report_the_bound_itself():
    model = make(seed=2)
    for seed in range(8):
        state = BoundState(jnp.uint32(seed), jnp.ones(()))
        value, metrics = _loss_of(IWAE(k=2), model, state)
        assert float(metrics["iwae"]) == pytest.approx(-float(value), abs=1e-12)
        assert float(metrics["iwae"]) > float(metrics["elbo"])  # log mean w against mean log w


@quick
def _loss_of(objective, model, state):
    return objective.loss(model, jnp.asarray(X), None, state)


def test_bounds_rise_with_k_to_the_likelihood():
    model = make(seed=2)
    x = jnp.asarray(X[0])
    truth = prior_log_p(model, x)
    exact = [float(quick(lambda k=k: normal_bound(model, x, k))()) for k in (1, 2)]
    assert exact[0] < exact[1] < truth
    samples = np.repeat(X, 4000, axis=0) + 1e-9 * np.arange(4000)[:, None]  # rows that draw other numbers
    for k in (1, 2):
        found = importance.row_bounds(model, samples, key=jax.random.key(0), n_samples=k).iwae
        assert abs(found.mean() - exact[k - 1]) < SIGMAS * found.std() / np.sqrt(len(found)) + 1e-6
    few, many = (importance.row_bounds(model, X, key=jax.random.key(1), n_samples=k) for k in (200, 20_000))
    assert abs(many.iwae[0] - truth) < SIGMAS * many.stderr + 1e-6
    assert few.stderr > 5 * many.stderr > 0


def test_the_gap_of_the_elbo_is_the_divergence_from_the_true_posterior():
    model = make(seed=1)
    x = jnp.asarray(X[0])
    q = model.recognise(x)
    z = np.asarray(q.location) + np.exp(float(q.log_sigma[0])) * NODES[:, None]
    truth = prior_log_p(model, x)
    log_posterior = -np.asarray(jax.vmap(lambda z: model.energy(x, z))(z)) - truth
    gap = np.exp(LOG_WEIGHTS) @ (np.asarray(jax.vmap(q.log_prob)(z)) - log_posterior)
    assert truth - float(normal_bound(model, x, 1)) == pytest.approx(gap, abs=1e-8)
    assert gap > 0.01


# -- linear models ---------------------------------------------------------------------------------------------


def linear(latents="bernoulli", posterior="diagonal"):
    return make((2,), latents, visible=Reals.make(3, "fixed", 1.0), posterior=posterior, down=((),))


def test_the_exact_bound_of_a_linear_model_with_coins_is_the_formula():
    """½‖x − Wμ‖² + ½Σ μ(1 − μ)‖w‖² − Σ H(μ) + K log 2 + (D/2) log 2π, with x in place of x − b."""
    model = linear()
    neutral = lambda m: (m.log_odds, m.visible.log_sigma, m.visible.centre, m.visible.spread)  # noqa: E731
    model = eqx.tree_at(neutral, model, (jnp.zeros(2), jnp.zeros(()), jnp.zeros(3), jnp.ones(3)))
    x = np.array([0.3, -1.0, 0.8])
    w, b = (np.asarray(getattr(model.decoder.layers[0], n)) for n in ("weights", "biases"))
    mu = np.asarray(model.recognise(jnp.asarray(x)).mean())
    entropy = -np.sum(mu * np.log(mu) + (1 - mu) * np.log1p(-mu))
    formula = 0.5 * np.sum((x - b - w @ mu) ** 2) + 0.5 * np.sum(mu * (1 - mu) * np.sum(w**2, axis=0))
    formula += -entropy + 2 * np.log(2) + 1.5 * np.log(2 * np.pi)
    state = BoundState(jnp.uint32(0), jnp.ones(()))
    loss, metrics = ELBO(gradient="exact").loss(model, jnp.asarray(x[None]), None, state)
    assert float(loss) == pytest.approx(formula, abs=1e-12)
    assert float(metrics["elbo"]) == pytest.approx(-formula, abs=1e-12)


def test_the_exact_bound_of_a_linear_model_is_the_sum_over_states():
    model = linear()  # every scale and offset is moved
    x = jnp.array([0.3, -1.0, 0.8])
    bound = lambda m: -coin_bound(m, x, 1)  # noqa: E731
    values, grads = estimates(ELBO(gradient="exact"), model, 1, np.asarray(x)[None])
    fixed = flat_gradient(lambda m: jnp.sum(m.visible.log_sigma), model) == 0  # σ is not learned
    buffers = flat_gradient(lambda m: jnp.sum(m.visible.centre) + jnp.sum(m.visible.spread), model) == 0
    assert values[0] == pytest.approx(float(bound(model)), abs=1e-12)
    np.testing.assert_allclose(grads[0][fixed & buffers], flat_gradient(bound, model)[fixed & buffers], atol=1e-10)


def test_with_the_true_posterior_every_weight_is_the_likelihood():
    """A linear Gaussian model: log p(x) is a normal density, and q = p(z | x) makes the bound tight."""
    model = linear("gaussian", "full")
    visible, layer = model.visible, model.decoder.layers[0]
    w = np.asarray(visible.spread)[:, None] * np.asarray(layer.weights)
    mean = np.asarray(visible.centre + visible.spread * layer.biases)
    variance = float(np.exp(2 * visible.log_sigma))
    x = np.array([0.3, -1.0, 0.8])
    truth = multivariate_normal(mean, w @ w.T + variance * np.eye(3)).logpdf(x)
    covariance = np.linalg.inv(np.eye(2) + w.T @ w / variance)
    factor = np.linalg.cholesky(covariance)
    location = covariance @ w.T @ (x - mean) / variance
    q = CholeskyGaussian(jnp.asarray(location), jnp.log(jnp.diag(factor)), jnp.asarray(factor[1:2, 0]))
    for seed in range(4):
        z = q.sample(key=jax.random.key(seed))
        assert float(-model.energy(jnp.asarray(x), z) - q.log_prob(z)) == pytest.approx(truth, abs=1e-9)
    found = importance.row_bounds(model, x[None], key=jax.random.key(0), n_samples=50_000)
    assert abs(found.iwae[0] - truth) < SIGMAS * found.stderr + 1e-6


# -- both sides -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("sizes", "widest"), [((1,), 0.1), ((1, 1), 0.9)])
def test_annealing_brackets_the_likelihood_of_real_latents(sizes, widest):
    model = make(sizes, ladder=len(sizes) > 1, seed=len(sizes))
    rows = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    truth = np.mean([prior_log_p(model, jnp.asarray(row)) for row in rows])
    options = {"n_temperatures": 200, "n_steps": 100, "n_chains": 40, "n_samples": 2000}
    result = importance.log_likelihood(model, rows, key=jax.random.key(0), **options)
    assert result.lower <= truth <= result.upper
    assert result.upper - result.lower < widest
    assert result.details["annealed_lower"] - 0.02 < truth < result.details["annealed_upper"] + 0.02
    assert result.details["n_samples"] == 2000
    assert "k = 2000" in result.method
    assert result.warning is None
    one = importance.log_likelihood(model, rows, key=jax.random.key(0), method="importance", n_samples=2000)
    assert one.upper == np.inf
    assert one.lower <= truth


def thin_ladder():
    """Two layers, the lower one bound closely to a bent function of the upper one: a narrow crescent in z."""
    model = make((1, 1), ladder=True, seed=2)
    numbers = lambda m: m.generative[0].layers[-1].biases  # noqa: E731
    return eqx.tree_at(numbers, model, numbers(model) + jnp.array([0.0, -6.0]))


def test_annealing_brackets_the_likelihood_of_layers_that_follow_closely():
    model, rows = thin_ladder(), np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    points, log_weights = grid(2)

    @quick
    def log_p(x):
        def given(noise):
            upper = noise[:1]
            return model.log_given(x, (model.prior(0, (None, upper)).place(noise[1:]), upper))

        return jax.nn.logsumexp(jax.vmap(given)(points) + log_weights)

    truth = np.mean([log_p(jnp.asarray(row)) for row in rows])
    options = {"n_temperatures": 200, "n_steps": 100, "n_chains": 40, "n_samples": 2000}
    result = importance.log_likelihood(model, rows, key=jax.random.key(0), **options)
    assert result.details["annealed_lower"] - 0.02 < truth < result.details["annealed_upper"] + 0.02
    assert result.lower <= truth <= result.upper
    assert result.upper - result.lower < 0.5
    assert result.warning is None


def test_chains_that_do_not_move_are_told_of(monkeypatch):
    still = lambda n_leapfrog: lambda log_density, z, step, key: (z, step * 0.0)  # noqa: E731
    monkeypatch.setattr(latent_annealing, "_hamiltonian", still)
    model, rows = make((3,), seed=3), np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    options = {"n_temperatures": 7, "n_steps": 7, "n_chains": 200, "n_samples": 2000}
    result = importance.log_likelihood(model, rows, key=jax.random.key(0), **options)
    assert "have not converged" in result.warning


def test_annealing_brackets_the_likelihood_of_coins():
    model = make((4,), "bernoulli", seed=1)
    rows = np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0], [1.0, 1.0, 1.0]])
    z = states(model)
    exact = [logsumexp(-np.asarray(jax.vmap(lambda z, r=row: model.energy(jnp.asarray(r), z))(z))) for row in rows]
    np.testing.assert_allclose(importance.exact_rows(model, rows), exact, atol=1e-12)
    auto = importance.log_likelihood(model, rows, key=jax.random.key(0))
    assert auto.is_exact
    assert auto.estimate == pytest.approx(np.mean(exact), abs=1e-12)
    options = {"n_temperatures": 20, "n_steps": 20, "n_chains": 40, "n_samples": 2000}
    both = importance.log_likelihood(model, rows, key=jax.random.key(0), method="ais", **options)
    assert both.lower <= np.mean(exact) <= both.upper
    assert both.upper - both.lower < 0.1


def test_flips_leave_their_distribution_as_it_is():
    table = jnp.asarray(np.random.default_rng(0).normal(size=8))
    log_density = lambda z: table[jnp.asarray(z @ jnp.array([4.0, 2.0, 1.0]), int)]  # noqa: E731
    n = 20_000

    @quick
    def moved(keys):
        one = lambda key: latent_annealing._flips(log_density, jnp.zeros(3), jnp.ones(()), key)[0]  # noqa: E731
        sweep = lambda z, key: (latent_annealing._flips(log_density, z, jnp.ones(()), key)[0], None)  # noqa: E731
        return jax.vmap(lambda key: jax.lax.scan(sweep, one(key), jax.random.split(key, 12))[0])(keys)

    drawn = np.asarray(moved(jax.random.split(jax.random.key(0), n))) @ [4, 2, 1]
    p = np.exp(table - logsumexp(table))
    counts = np.bincount(drawn.astype(int), minlength=8)
    assert np.max(np.abs(counts - n * p) / np.sqrt(n * p * (1 - p))) < SIGMAS


def test_trajectories_leave_their_distribution_as_it_is():
    precision = np.array([[2.0, 0.9], [0.9, 1.0]])
    log_density = lambda z: -0.5 * z @ jnp.asarray(precision) @ z  # noqa: E731
    covariance, n = np.linalg.inv(precision), 20_000
    start = np.random.default_rng(0).normal(size=(n, 2)) @ np.linalg.cholesky(covariance).T
    move = latent_annealing._hamiltonian(5)
    step = jnp.asarray(0.6)
    end, accepted = quick(jax.vmap(lambda z, key: move(log_density, z, step, key)))(
        start, jax.random.split(jax.random.key(0), n)
    )
    assert 0.3 < float(np.mean(accepted)) < 0.999
    end = np.asarray(end)
    assert np.abs(end - start).max() > 0.5
    error = (end**2).mean(0) - np.diag(covariance)
    assert np.max(np.abs(error) / (np.sqrt(2 / n) * np.diag(covariance))) < SIGMAS
    assert abs((end[:, 0] * end[:, 1]).mean() - covariance[0, 1]) < SIGMAS * np.std(
        end[:, 0] * end[:, 1]
    ) / np.sqrt(n)


# -- weights of the divergence ---------------------------------------------------------------------------------


def test_free_bits_and_warm_up():
    model = make((2,), "bernoulli", seed=1)
    rows = jnp.asarray(np.array([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]))
    rates = jnp.stack([model.divergences(model.recognise(row), jnp.zeros(2)) for row in rows])
    low, high = sorted(np.asarray(rates.mean(0)))
    level = float(0.5 * (low + high))
    assert high - low > 1e-3
    state = BoundState(jnp.uint32(0), jnp.array(3.0))

    def wanted(m):
        rates = jnp.stack([m.divergences(m.recognise(row), jnp.zeros(2)) for row in rows]).mean(0)
        given = jnp.mean(jnp.stack([coin_bound(m, row, 1) for row in rows])) + rates.sum()
        return -given + 0.75 * jnp.maximum(rates, level).sum()

    objective = ELBO(gradient="exact", beta=1.5, warmup=6.0, free_bits=level)
    found = flat_gradient(lambda m: objective.loss(m, rows, None, state)[0], model)
    np.testing.assert_allclose(found, flat_gradient(wanted, model), atol=1e-10)
    weights = jnp.array([2.0, 0.0])
    doubled = ELBO(gradient="exact").loss(model, rows, weights, state)[0]
    assert float(doubled) == pytest.approx(-float(coin_bound(model, rows[0], 1)), abs=1e-12)


def test_what_does_not_fit_is_refused():
    real, coins = make(), make((2,), "bernoulli")
    for model, objective, why in (
        (real, ELBO(gradient="gumbel"), "does not fit real latents"),
        (coins, ELBO(gradient="reparametrised"), "does not fit binary latents"),
        (real, ELBO(gradient="exact"), "closed form"),
        (coins, IWAE(gradient="doubly_reparametrised"), "does not fit binary"),
    ):
        with pytest.raises(ParameterError, match=why):
            objective.init(model, jnp.asarray(X), key=jax.random.key(0))
    for make_it, why in (
        (lambda: IWAE(gradient="exact"), "no exact gradient"),
        (lambda: IWAE(k=1, gradient="rloo"), "k ≥ 2"),
        (lambda: ELBO(gradient="doubly_reparametrised"), "iwae"),
        (lambda: ELBO(gradient="magic"), "Unknown gradient"),
        (lambda: ELBO(k=0), "at least 1"),
        (lambda: ELBO(beta=-1.0), "at least 0"),
        (lambda: ELBO(temperature=0.0), "greater than 0"),
    ):
        with pytest.raises(ParameterError, match=why):
            make_it()
