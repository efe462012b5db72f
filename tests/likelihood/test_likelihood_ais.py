"""Annealed importance sampling: exact in expectation in both directions, and an interval that holds."""

from __future__ import annotations

import itertools
import logging

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import double_rbm, random_rbm
from test_likelihood_enumeration import coupled

from latentia.core.errors import CapabilityError, ParameterError
from latentia.energies.rbm import RBMModel
from latentia.likelihood import ais, enumeration, free_energies, works
from latentia.likelihood.annealing import anneal, blank, path, schedule
from latentia.likelihood.equilibrium import Equilibrium, equilibrium
from latentia.likelihood.precision import double
from latentia.units import Rectified

SMALL = {"n_temperatures": 40, "n_chains": 16, "n_replicas": 3, "n_burn_in": 40, "n_steps": 20}


def near_one(weights: np.ndarray) -> None:
    """The mean is 1 within its Monte-Carlo error, and that error is small enough to mean something."""
    stderr = weights.std() / np.sqrt(weights.size)
    assert stderr < 0.02
    assert abs(weights.mean() - 1) < 4.5 * stderr


def exact_samples(model, n: int) -> np.ndarray:
    states = model.x_space.enumerate()
    energies = free_energies(model, states)
    p = np.exp(energies.min() - energies)
    return states[np.random.default_rng(0).choice(len(p), n, p=p / p.sum())].astype(np.float64)


@pytest.mark.parametrize(("visible", "hidden"), [("spin", "bernoulli"), ("categorical", "rectified")])
def test_weights_are_unbiased_in_both_directions(visible, hidden):
    """E[w] Z₀ = Z forward, E[1/w] Z = Z₀ in reverse from exact samples: true for any number of steps."""
    n = 20_000
    with double():
        model = double_rbm(visible, hidden, 3, 2, seed=6, scale=0.8)
        log_z = float(enumeration.sum_states(model, "visible"))
        keys = jax.random.split(jax.random.key(0))
        x = jnp.asarray(exact_samples(model, n))
        base, base_log_z = ais._fitted_base(model, x[:50])
        betas = jnp.asarray(path(3))
        forward, *_ = anneal(base, model, betas, *blank(model, n), key=keys[0])
        reverse, *_ = anneal(base, model, betas[::-1], x, blank(model, n)[1], key=keys[1])
    assert forward.dtype == np.float64
    near_one(np.exp(np.asarray(forward) + float(base_log_z) - log_z))
    near_one(np.exp(np.asarray(reverse) - float(base_log_z) + log_z))
    forward, reverse = np.asarray(forward), np.asarray(reverse)
    assert np.mean(forward) < log_z - float(base_log_z) < -np.mean(reverse)  # Jensen: low and high on average
    middle, stderr, overlap = works.bennett(forward, -reverse)
    assert abs(middle + float(base_log_z) - log_z) < 4.5 * stderr < 0.1
    assert 0 < overlap <= 0.51


PAIRS = {
    ("bernoulli", "bernoulli"): (16, 12, 1.0),
    ("spin", "spin"): (16, 12, 0.5),
    ("bernoulli", "spin"): (16, 12, 0.7),
    ("categorical", "bernoulli"): (16, 12, 0.7),
    ("gaussian", "bernoulli"): (16, 12, 0.7),
    ("rectified", "bernoulli"): (8, 8, 0.5),
    ("bernoulli", "rectified"): (10, 6, 0.5),
}


@pytest.mark.parametrize(("visible", "hidden"), PAIRS)
def test_interval_holds_the_exact_value(visible, hidden):
    """100 random machines with sizeable weights: at least 95 of the intervals hold log Z."""
    n_visible, n_hidden, scale = PAIRS[visible, hidden]
    hits, scores, errors, widths = 0, [], [], []
    for seed in range(100):
        model = random_rbm(visible, hidden, n_visible, n_hidden, seed=seed, scale=scale)
        exact = enumeration.log_z(model).estimate
        result = ais.log_z(model, key=jax.random.key(1000 + seed), **SMALL)
        assert result.lower <= result.estimate <= result.upper
        hits += result.lower <= exact <= result.upper
        errors.append(abs(result.estimate - exact))
        scores.append(errors[-1] / result.stderr)
        widths.append(result.width)
    medians = [float(np.median(values)) for values in (errors, widths, scores)]
    print(f"{visible}/{hidden}: {hits} of 100; medians of error, width and z: {np.round(medians, 3)}")
    assert hits >= 95
    assert medians[0] < 0.2
    assert medians[1] < 1.5  # an interval that holds because it is wide proves nothing
    assert 0.3 < medians[2] < 1.2  # the standard error is of the right size (0.67 if perfect)


def test_more_temperatures_narrow_the_interval():
    model = random_rbm("spin", "spin", 16, 12, seed=7, scale=0.5)
    exact = enumeration.log_z(model).estimate
    few, many = (ais.log_z(model, key=jax.random.key(0), **{**SMALL, "n_temperatures": n}) for n in (5, 1000))
    assert many.width < 0.4 * few.width
    assert many.lower <= exact <= many.upper
    assert few.lower <= exact <= few.upper
    assert abs(many.estimate - exact) < 0.05


def test_a_second_call_does_not_compile(caplog):
    first, second = (random_rbm("bernoulli", "bernoulli", 16, 12, seed=s, scale=0.5) for s in (0, 1))
    ais.log_z(first, key=jax.random.key(0), **SMALL)
    with caplog.at_level(logging.DEBUG, logger="jax"), jax.log_compiles():
        ais.log_z(second, key=jax.random.key(1), **SMALL)
    assert not [r for r in caplog.records if "Finished XLA compilation" in r.getMessage()]


def test_same_key_same_bits_and_no_global_setting():
    model = random_rbm("bernoulli", "bernoulli", 16, 12, seed=0, scale=0.5)
    one, two = (ais.log_z(model, key=jax.random.key(5), **SMALL) for _ in range(2))
    assert (one.lower, one.upper, one.estimate) == (two.lower, two.upper, two.estimate)
    assert not jax.config.jax_enable_x64
    assert jnp.zeros(1).dtype == jnp.float32


def test_equilibrium_starts_where_it_is_told_and_stays_in_equilibrium():
    """From exact samples no drift: the mean of F stays within its error (immune to mixing time)."""
    model = random_rbm("bernoulli", "bernoulli", 16, 12, seed=6, scale=1.0)
    states = np.array(list(itertools.product((0.0, 1.0), repeat=16)), np.float32)
    energies = free_energies(model, states)
    p = np.exp(-energies - np.max(-energies))
    p /= p.sum()
    starts = states[np.random.default_rng(0).choice(len(p), (30, 16), p=p)]
    settings = {k: SMALL[k] for k in ("n_replicas", "n_burn_in", "n_steps")}
    runs = [
        equilibrium(model, 16, key=jax.random.key(i), start=start, **settings) for i, start in enumerate(starts)
    ]
    spread = np.sqrt(p @ energies**2 - (p @ energies) ** 2)
    for samples in ([r.x for r in runs], [r.earlier for r in runs]):
        drift = free_energies(model, np.concatenate(samples)).mean() - p @ energies
        assert abs(drift) < 4.5 * spread / np.sqrt(starts.shape[0] * 16)
    assert (runs[0].x != runs[0].earlier).any()
    # Chains that share their random numbers soon coalesce wherever they start; their swap rates remember.
    assert runs[0].swap_rate_min != equilibrium(model, 16, key=jax.random.key(0), **settings).swap_rate_min
    assert runs[0].x.dtype == np.float64
    assert 0 < runs[0].swap_rate_min <= runs[0].swap_rate_mean <= 1


def test_both_layers_continuous():
    """Gaussian–Gaussian, where E = e₀ − cᵀs + ½ sᵀPs in standardised units s and Z is a Gaussian integral."""
    model = random_rbm("gaussian", "gaussian", 3, 2, seed=9, scale=0.2)
    v, h = model.visible, model.hidden
    w, mu, lam = (np.asarray(a, np.float64) for a in (model.weights, model.visible_offset, model.hidden_offset))
    m, k = (np.asarray(u.location, np.float64) for u in (v, h))
    pv, ph = (np.exp(-2 * np.asarray(u.log_sigma, np.float64)) for u in (v, h))
    cross = -pv[:, None] * w * ph
    precision = np.block([[np.diag(pv), cross], [cross.T, np.diag(ph)]])
    linear = np.concatenate([pv * m - pv * (w @ lam), ph * k - ph * (w.T @ mu)])
    constant = 0.5 * (pv @ m**2 + ph @ k**2) - mu @ w @ lam
    integral = 2.5 * np.log(2 * np.pi) - 0.5 * np.linalg.slogdet(precision)[1]
    exact = integral + 0.5 * linear @ np.linalg.solve(precision, linear) - constant
    result = ais.log_z(model, key=jax.random.key(0), **SMALL)
    assert result.lower <= exact <= result.upper
    assert result.width < 1


def test_a_path_that_would_leave_the_bounds_uses_the_plain_base():
    """A tiny fitted σ makes the couplings, in units of σ, too strong half-way: 0.45/0.22 > 1."""
    model = RBMModel(Rectified.make(1), Rectified.make(1), jnp.full((1, 1), 0.9), jnp.ones(1), jnp.ones(1))
    assert model.margin() > 0
    fine, fine_log_z = ais._fitted_base(model, jnp.full((10, 1), 2.0))
    narrow, narrow_log_z = ais._fitted_base(model, jnp.full((10, 1), 0.01))
    assert float(fine.visible.log_sigma[0]) == pytest.approx(np.log(2), abs=1e-6)
    assert float(narrow.visible.log_sigma[0]) == 0
    assert float(fine_log_z - narrow_log_z) == pytest.approx(np.log(2), abs=1e-5)
    assert float(narrow_log_z) == pytest.approx(np.log(np.pi / 2), abs=1e-5)


def crafted(forward, reverse, **numbers):
    samples = Equilibrium(0, 0, 0, **{"swap_rate_min": 0.5, "swap_rate_mean": 0.5, "hottest_beta": 0.0, **numbers})
    return ais.combine(np.asarray(forward), np.asarray(reverse), samples, "test", 0.0)


def test_interval_of_crafted_works():
    rng = np.random.default_rng(0)
    noise = rng.normal(size=200)
    crooks = crafted(rng.normal(2.5, 1.0, 4000), rng.normal(3.5, 1.0, 4000))  # log Z = 3
    assert crooks.details["forward"] == pytest.approx(3.0, abs=0.1)
    assert crooks.details["reverse"] == pytest.approx(3.0, abs=0.1)
    assert crooks.estimate == pytest.approx(3.0, abs=0.1)
    good = crafted(10 + 0.01 * noise, 10 + 0.01 * noise[::-1])
    assert good.warning is None
    apart = crafted(0.1 * noise, 8 + 0.1 * noise)
    assert apart.lower < 0.1
    assert apart.upper > 7.9
    assert apart.stderr > 3
    assert "nats wide" in str(apart.warning)
    crossed = crafted(8 + 0.1 * noise, 0.1 * noise)  # reverse below forward
    assert crossed.lower < 0.1
    assert crossed.upper > 7.9
    assert "below the forward one" in str(crossed.warning)
    assert "hardly mix" in str(crafted(noise, noise, swap_rate_min=0.01).warning)
    assert "β = 0.80" in str(crafted(noise, noise, hottest_beta=0.8).warning)
    with pytest.raises(ParameterError, match="not finite"):
        crafted([np.nan, 1.0], [1.0, 1.0])


def test_schedule_rises_from_zero_to_one():
    betas = schedule(50)
    assert betas[0] == 0
    assert betas[-1] == 1
    assert len(betas) == 51
    assert (np.diff(betas) > 0).all()


def test_refusals():
    with pytest.raises(CapabilityError, match=r"Coupled: it needs Tempered \(base, base_log_z, reduced_energy\)"):
        ais.log_z(coupled(), key=jax.random.key(0))
    for name in ("n_temperatures", "n_chains", "n_burn_in", "n_steps"):
        with pytest.raises(ParameterError, match=f"{name} must be at least"):
            ais.log_z(random_rbm("spin", "spin", 2, 2, seed=0, scale=0.1), key=jax.random.key(0), **{name: 0})
