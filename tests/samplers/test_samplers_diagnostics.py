"""R̂ and effective sample size: against processes that are known and against BlackJAX's."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import quick
from sampler_targets import normal
from scipy.signal import lfilter

from latentia import samplers
from latentia.core.errors import DataError
from latentia.energies.rbm import RBMModel
from latentia.likelihood.precision import double
from latentia.samplers.diagnostics import diagnose
from latentia.units import make


def autoregressive(rho: float, n: int, chains: int, seed: int = 0) -> np.ndarray:
    """Stationary chains x_t = ρ x_{t−1} + √(1 − ρ²) ξ_t."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(size=(n, chains)) * np.sqrt(1 - rho**2)
    noise[0] /= np.sqrt(1 - rho**2)
    return lfilter([1.0], [1.0, -rho], noise, axis=0)


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9, -0.4])
def test_the_ess_of_an_autoregression_is_the_known_one(rho):
    x = autoregressive(rho, 4000, 20)
    wanted = x.size * (1 - rho) / (1 + rho)
    assert float(samplers.effective_sample_size(x)) == pytest.approx(wanted, rel=0.1)
    skewed = np.exp(x)  # ranks do not see it
    assert samplers.effective_sample_size(skewed) == pytest.approx(samplers.effective_sample_size(x))
    assert float(samplers.r_hat(x)) < 1.01


def test_r_hat_sees_chains_that_differ_in_place_or_in_width():
    x = np.random.default_rng(1).normal(size=(500, 4))
    assert samplers.r_hat(x) < 1.01
    # Chains at 0, 1, 2, 3: W = 1 and B/n = 5/3 before ranks, √(1 + 5/3) = 1.63.
    assert float(samplers.r_hat(x + np.arange(4.0))) == pytest.approx(np.sqrt(1 + 5 / 3), rel=0.1)
    assert samplers.r_hat(x * np.array([1.0, 1.0, 1.0, 4.0])) > 1.1  # same mean, wider: the folded one sees it
    assert samplers.r_hat(x + np.linspace(0, 2, 500)[:, None]) > 1.1  # all drift alike: the halves see it
    assert samplers.effective_sample_size(x + np.arange(4.0)) < 20


def test_every_entry_is_measured_by_itself_and_the_worst_is_told():
    x = np.random.default_rng(2).normal(size=(401, 5, 2, 3))
    x[..., 0, 1] = autoregressive(0.9, 401, 5)
    x[..., 1, 2] += 3 * np.arange(5)
    x[..., 1, 0] = 7.0  # held fixed
    r, ess = samplers.r_hat(x), samplers.effective_sample_size(x)
    assert r.shape == ess.shape == (2, 3)
    assert np.isnan(r[1, 0])
    assert np.isnan(ess[1, 0])
    assert ess[0, 1] == samplers.effective_sample_size(x[..., 0, 1])
    assert r[1, 2] == samplers.r_hat(x[..., 1, 2])
    found = diagnose({"a": x, "b": x[..., 0, 0]})
    assert found == {"r_hat": np.nanmax(r), "ess": np.nanmin(ess)}
    x[3, 2, 0, 0] = np.inf
    assert np.isnan(diagnose(x)["r_hat"])
    with pytest.raises(DataError, match="at least 4 draws"):
        samplers.r_hat(x[:3])


def test_blackjax_finds_the_same():
    from blackjax import diagnostics

    x = np.stack([autoregressive(0.7, 600, 4), autoregressive(0.3, 600, 4, 1) * np.array([1, 1, 2, 1])], axis=-1)
    x[:, 0] += 0.3
    with double(), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        both = quick(lambda x: (diagnostics.rhat(x, 1, 0), diagnostics.ess_bulk(x, 1, 0)))
        r, ess = map(np.asarray, both(jnp.asarray(x)))
    np.testing.assert_allclose(samplers.r_hat(x), r, rtol=1e-6)
    np.testing.assert_allclose(samplers.effective_sample_size(x), ess, rtol=0.05)  # they end the sum elsewhere


def test_a_run_is_diagnosed_and_thinned():
    model = normal([0.0], [[1.0]])
    x = jnp.asarray(np.random.default_rng(3).normal(size=(20, 1)), jnp.float32)
    langevin = samplers.Langevin(step_size=0.2, adaptive=False)
    every, chains = samplers.sample(langevin, model, x, 3000, key=jax.random.key(0), n_warmup=0)
    # x′ = (1 − ε) x + noise is an autoregression with ρ = 1 − ε.
    assert chains.diagnosis["ess"] == pytest.approx(60_000 * 0.2 / 1.8, rel=0.15)
    assert chains.diagnosis["r_hat"] < 1.01
    assert chains.diagnosis["divergences"] == 0
    assert every.shape == (3000, 20, 1)
    few, chains = samplers.sample(langevin, model, x, 3000, key=jax.random.key(0), n_warmup=0, thin=5)
    rho = 0.8**5
    assert few.shape == (600, 20, 1)
    assert chains.diagnosis["ess"] == pytest.approx(12_000 * (1 - rho) / (1 + rho), rel=0.15)
    np.testing.assert_array_equal(chains.states.x, few[-1])


def test_a_run_of_gibbs_is_diagnosed_too():
    model = RBMModel.make(make("gaussian", 2), make("bernoulli", 3), key=jax.random.key(0))
    x = jnp.zeros((8, 2))
    draws, chains = samplers.sample(samplers.Gibbs(), model, x, 200, key=jax.random.key(1), n_warmup=5)
    assert draws.shape == (200, 8, 2)
    assert set(chains.diagnosis) == {"r_hat", "ess"}
    assert 800 < chains.diagnosis["ess"] < 3000  # weights are small: sweeps are nearly independent
    short, chains = samplers.sample(samplers.Gibbs(), model, x, 3, key=jax.random.key(1))
    assert short.shape == (3, 8, 2)
    assert np.isnan(chains.diagnosis["ess"])
