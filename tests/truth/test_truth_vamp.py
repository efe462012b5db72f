"""A prior made of posteriors: density against SciPy, bounds against quadrature and enumeration, gradients."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import perturbed, quick
from scipy.special import logsumexp
from scipy.stats import norm

from latentia.core.errors import CapabilityError
from latentia.core.parameters import trainable
from latentia.core.space import enumerate_states
from latentia.energies import vae_model
from latentia.energies.vae_parts import Bits, Reals
from latentia.inference.amortised import DiagonalGaussian
from latentia.inference.posteriors import Coins, Mixture
from latentia.learning.elbo import ELBO, IWAE, BoundState

SIGMAS = 4.5
X = np.array([[1.0, 0.0, 1.0]])


@pytest.fixture(autouse=True, scope="module")
def x64():
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def make(sizes=(1,), *, latents="gaussian", visible=None, ladder=False, n_pseudo_inputs=3, seed=0):
    hidden = ((3,),) * len(sizes)
    model = vae_model.build(
        Bits(3) if visible is None else visible,
        sizes=sizes,
        hidden=hidden,
        decoder_hidden=hidden,
        latents=latents,
        posterior="diagonal",
        ladder=ladder,
        activation="tanh",
        key=jax.random.key(seed),
        n_pseudo_inputs=n_pseudo_inputs,
    )
    # Without the standardisation's own noise, which may saturate the encoder.
    shifted = perturbed(model, 5 + seed)
    where = lambda m: (m.encoder.centre, m.encoder.spread)  # noqa: E731
    return eqx.tree_at(where, shifted, where(model))


def test_the_mixture_is_the_mean_of_its_parts():
    rng = np.random.default_rng(0)
    means, log_sigmas = rng.normal(size=(2, 4, 2))
    mixture = Mixture(DiagonalGaussian(jnp.asarray(means), jnp.asarray(log_sigmas)))
    z = rng.normal(size=(20, 2))
    parts = norm(means[None], np.exp(log_sigmas)[None]).logpdf(z[:, None]).sum(axis=2)
    np.testing.assert_allclose(jax.vmap(mixture.log_prob)(z), logsumexp(parts, axis=1) - np.log(4), rtol=1e-12)
    np.testing.assert_allclose(mixture.mean(), means.mean(0), rtol=1e-12)
    draws = np.asarray(jax.vmap(lambda k: mixture.sample(key=k))(jax.random.split(jax.random.key(0), 40_000)))
    second = np.mean(np.exp(2 * log_sigmas) + means**2, axis=0)
    np.testing.assert_allclose(draws.mean(0), means.mean(0), atol=5 * np.sqrt(second.max() / 40_000))
    np.testing.assert_allclose((draws**2).mean(0), second, rtol=0.05)
    with pytest.raises(CapabilityError, match="mixture"):
        mixture.entropy()


@pytest.mark.parametrize(("sizes", "ladder"), [((1,), False), ((2, 1), True)])
def test_the_prior_of_the_uppermost_layer_is_made_of_the_posteriors_of_the_pseudo_inputs(sizes, ladder):
    model = make(sizes, ladder=ladder)
    z = np.linspace(-3, 3, 7)[:, None]
    layers = [None] * len(sizes)
    found = jax.vmap(model.prior(len(sizes) - 1, layers).log_prob)(z)
    logs = []
    for u in model.pseudo_inputs:
        q = model.recognise(u)
        q = q.conditional(len(sizes) - 1, layers) if ladder else q  # that of the uppermost layer reads x alone
        logs.append(jax.vmap(q.log_prob)(z))
    np.testing.assert_allclose(found, logsumexp(np.stack(logs), axis=0) - np.log(3), rtol=1e-12)
    assert np.ptp(np.stack(logs)[:, 3]) > 1e-3  # the parts differ


def log_p(model, x, half=12.0, n=4001):
    """log p(x) by the trapezoid rule over one real latent."""
    z = np.linspace(-half, half, n)
    energies = np.asarray(quick(jax.vmap(lambda z: model.energy(x, z)))(z[:, None]))
    return logsumexp(-energies) + np.log(z[1] - z[0])


def test_the_model_is_normalised():
    model = make()
    every = np.asarray(enumerate_states(model.x_space), float)
    total = logsumexp([log_p(model, x) for x in every])
    assert total == pytest.approx(0, abs=1e-9)


def test_draws_follow_the_model():
    model = make()
    every = np.asarray(enumerate_states(model.x_space), float)
    wanted = np.exp([log_p(model, x) for x in every])
    drawn = np.asarray(
        quick(jax.vmap(lambda k: model.sample(key=k)[0]))(jax.random.split(jax.random.key(1), 20_000))
    )
    counts = np.array([(drawn == x).all(1).sum() for x in every])
    assert np.sum((counts - 20_000 * wanted) ** 2 / (20_000 * wanted)) < 30  # 99.99 % of χ² with 7 degrees


def over_seeds(function, n):
    blocks = np.arange(n, dtype=np.uint32).reshape(-1, 2000)
    compiled = quick(jax.vmap(function))
    return np.concatenate([np.asarray(compiled(seeds)) for seeds in blocks])


def mean_gradient(objective, model, x, n=20_000):
    params, rest = eqx.partition(model, trainable(model))

    def one(seed):
        state = BoundState(seed, jnp.ones(()))
        value = lambda p: objective.loss(eqx.combine(p, rest), x, None, state)[0]  # noqa: E731
        return jax.flatten_util.ravel_pytree(jax.grad(value)(params))[0]

    each = over_seeds(one, n)
    return each.mean(0), each.std(0) / np.sqrt(n)


def exact_elbo_gradient(model, x):
    """∇ of −E_q[log p(x, z) − log q(z | x)] by Gauss–Hermite quadrature in one latent."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = jnp.asarray(weights / weights.sum())
    params, rest = eqx.partition(model, trainable(model))

    def value(p):
        model = eqx.combine(p, rest)
        q = model.recognise(x)
        z = q.location[None] + jnp.exp(q.log_sigma)[None] * jnp.asarray(nodes)[:, None]
        return weights @ jax.vmap(lambda z: model.energy(x, z) + q.log_prob(z))(z)

    return np.asarray(jax.flatten_util.ravel_pytree(jax.grad(value)(params))[0])


def test_the_gradient_of_the_elbo_reaches_pseudo_inputs_and_encoder():
    model, x = make(), jnp.asarray(X)
    wanted = exact_elbo_gradient(model, x[0])
    found, stderr = mean_gradient(ELBO(), model, x)
    assert np.all(np.abs(found - wanted) <= SIGMAS * stderr + 1e-12)
    assert stderr.max() < 0.05 * np.abs(wanted).max()
    # By finite differences: the pseudo-inputs themselves.
    moved = lambda by: eqx.tree_at(lambda m: m.pseudo_inputs, model, model.pseudo_inputs.at[1, 2].add(by))  # noqa: E731
    slope = (elbo(moved(1e-5), x[0]) - elbo(moved(-1e-5), x[0])) / 2e-5
    params = eqx.filter(model, trainable(model))
    _, unravel = jax.flatten_util.ravel_pytree(params)
    assert float(unravel(jnp.asarray(wanted)).pseudo_inputs[1, 2]) == pytest.approx(-slope, rel=1e-5)
    assert abs(slope) > 1e-4


def elbo(model, x):
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    q = model.recognise(x)
    z = np.asarray(q.location) + np.exp(np.asarray(q.log_sigma)) * nodes[:, None]
    logs = np.asarray(jax.vmap(lambda z: -model.energy(x, z) - q.log_prob(z))(z))
    return float(logs @ (weights / weights.sum()))


def test_bounds_rise_with_k_to_the_likelihood():
    model, x = make(), jnp.asarray(X)
    truth, values = log_p(model, X[0]), []
    for k in (1, 16, 1024):
        loss = lambda s, k=k: IWAE(k).loss(model, x, None, BoundState(s, jnp.ones(())))[0]  # noqa: E731
        values.append(-over_seeds(loss, 4000).mean())
    assert values[0] < values[1] < values[2] < truth + 0.01
    assert truth - values[2] < 0.02
    assert values[0] == pytest.approx(elbo(model, X[0]), abs=0.03)


@pytest.mark.parametrize("gradient", ["reparametrised", "doubly_reparametrised"])
def test_both_gradients_of_the_weighted_bound_agree_down_a_ladder(gradient):
    model, x = make((2, 1), ladder=True), jnp.asarray(X)
    found, stderr = mean_gradient(IWAE(4, gradient), model, x)
    # The score-function gradient needs no derivative of the draws.
    wanted, other = mean_gradient(IWAE(4, "rloo"), model, x, 60_000)
    assert np.all(np.abs(found - wanted) <= SIGMAS * np.hypot(stderr, other) + 1e-12)


def test_binary_latents_may_have_such_a_prior_too():
    model = make((3,), latents="bernoulli")
    assert model.log_odds is None
    z = np.asarray(enumerate_states(model.z_space), float)
    parts = [np.asarray(jax.vmap(Coins(model.recognise(u).log_odds).log_prob)(z)) for u in model.pseudo_inputs]
    np.testing.assert_allclose(
        jax.vmap(model.log_prior)(z), logsumexp(np.stack(parts), axis=0) - np.log(3), rtol=1e-12
    )


def test_the_bound_of_binary_latents_is_the_sum_over_their_states():
    model, x = make((3,), latents="bernoulli"), jnp.asarray(X)
    z = np.asarray(enumerate_states(model.z_space), float)
    log_q = np.asarray(jax.vmap(model.recognise(x[0]).log_prob)(z))
    wanted = np.exp(log_q) @ (-np.asarray(jax.vmap(lambda z: model.energy(x[0], z))(z)) - log_q)
    state = BoundState(jnp.asarray(0, jnp.uint32), jnp.ones(()))
    found, metrics = ELBO(gradient="exact").loss(model, x, None, state)
    assert float(found) == pytest.approx(-wanted, abs=1e-10)
    assert float(metrics["elbo"]) == pytest.approx(wanted, abs=1e-10)
    exact, _ = mean_gradient(ELBO(gradient="exact"), model, x, 2000)
    drawn, stderr = mean_gradient(ELBO(2, "rloo"), model, x)
    assert np.all(np.abs(drawn - exact) <= SIGMAS * stderr + 1e-12)
    assert stderr.max() < 0.05 * np.abs(exact).max()


def test_pseudo_inputs_begin_at_examples_and_stay_in_their_range():
    model = make(n_pseudo_inputs=4)
    rows = jnp.asarray(np.random.default_rng(0).integers(0, 2, (30, 3)), float)
    begun = model.initialise(rows, key=jax.random.key(0)).pseudo_inputs
    assert all((np.asarray(rows) == np.asarray(u)).all(1).any() for u in begun)
    assert model.initialise(rows[:2], key=jax.random.key(0)).pseudo_inputs.shape == (4, 3)
    far = eqx.tree_at(lambda m: m.pseudo_inputs, model, 3 * model.pseudo_inputs - 1).project().pseudo_inputs
    np.testing.assert_allclose(far, np.clip(3 * np.asarray(model.pseudo_inputs) - 1, 0, 1))
    real = make(visible=Reals.make(3, "learned", 1.0))
    free = eqx.tree_at(lambda m: m.pseudo_inputs, real, 9 * real.pseudo_inputs)
    np.testing.assert_array_equal(free.project().pseudo_inputs, free.pseudo_inputs)
