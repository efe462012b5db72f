"""From weights and works to an interval: every number by hand, with the estimate between its ends."""

from __future__ import annotations

import sys

import jax
import numpy as np
import pytest
from scipy.optimize import brentq

from latentia import likelihood
from latentia.likelihood import Equilibrium, Evidence, LogZ, ais, importance, undirected, works

evidence = sys.modules["latentia.likelihood.evidence"]
SAMPLES = Equilibrium(None, None, None, 0.5, 0.6, 0.0)
SEEDS = pytest.mark.parametrize("seed", range(6))


def log_mean_exp(a):
    return float(np.log(np.mean(np.exp(a))))


def leave_one_out(a):
    """The standard error by hand: the larger of the delta method's and the jackknife's."""
    w, n = np.exp(a), len(a)
    others = [log_mean_exp(np.delete(a, i)) for i in range(n)]
    jackknife = np.sqrt((n - 1) / n * np.sum((others - np.mean(others)) ** 2))
    return max(jackknife, w.std(ddof=1) / w.mean() / np.sqrt(n))


def acceptance(forward, reverse):
    """Bennett's estimate and its error by a root finder."""
    sigma = lambda v: 1 / (1 + np.exp(-v))  # noqa: E731
    shift = np.log(len(reverse) / len(forward))
    up, down = lambda c: sigma(forward - c + shift), lambda c: sigma(c - reverse - shift)
    c = brentq(lambda c: up(c).sum() - down(c).sum(), -50, 50, xtol=1e-13)
    spread = up(c).var() / up(c).mean() ** 2 / len(forward) + down(c).var() / down(c).mean() ** 2 / len(reverse)
    return c, np.sqrt(spread), up(c).mean()


@SEEDS
def test_log_z_from_works(seed):
    rng = np.random.default_rng(seed)
    forward = rng.normal(1.7 - (0.4, -0.5)[seed % 2], 0.5, 12)  # the two sides also cross
    reverse = rng.normal(1.7 + (0.4, -0.5)[seed % 2], 0.7, 9)
    found = ais.combine(forward, reverse, SAMPLES, "AIS", 0.25)
    below, above = log_mean_exp(forward), -log_mean_exp(-reverse)
    low, high = leave_one_out(forward), leave_one_out(-reverse)
    ends = [(below - 2 * low, below + 2 * low), (above - 2 * high, above + 2 * high)]
    crossed = above < below
    assert found.lower == pytest.approx(min(ends[0][0], ends[1][0] if crossed else np.inf))
    assert found.upper == pytest.approx(max(ends[1][1], ends[0][1] if crossed else -np.inf))
    middle, stderr, overlap = acceptance(forward, reverse)
    assert found.lower <= found.estimate <= found.upper
    assert found.estimate == pytest.approx(np.clip(middle, found.lower, found.upper), abs=1e-9)
    explained = abs(above - below) <= 2 * np.hypot(low, high)
    wanted = stderr if explained and overlap >= 0.01 else max(stderr, abs(above - below) / 2)
    assert found.stderr == pytest.approx(wanted, rel=1e-6)
    w, v = np.exp(forward), np.exp(-reverse)
    expected = {
        "forward": below,
        "forward_stderr": low,
        "forward_effective_chains": w.sum() ** 2 / (w**2).sum(),
        "reverse": above,
        "reverse_stderr": high,
        "reverse_effective_chains": v.sum() ** 2 / (v**2).sum(),
        "overlap": overlap,
        "swap_rate_min": 0.5,
        "swap_rate_mean": 0.6,
        "hottest_beta": 0.0,
        "seconds": 0.25,
    }
    shown = {name: value for name, value in found.details.items() if name != "warning"}
    assert shown == pytest.approx(expected, rel=1e-6)
    assert works.log_mean_exp_stderr(forward) == pytest.approx(low)


def test_a_likelihood_is_the_evidence_less_log_z(monkeypatch):
    normaliser = LogZ(1.0, 3.0, 2.0, 0.3, "AIS", {"forward": 1.5})
    data = Evidence(-5.0, -4.0, -4.4, 0.4, "p(z | x)", np.array([-4.0, -4.8]), {"evidence_lower": -5.0})
    monkeypatch.setattr(undirected, "log_z", lambda *_, **__: normaliser)
    monkeypatch.setattr(undirected, "evidence", lambda *_, **__: data)
    monkeypatch.setattr(likelihood, "FreeEnergy", object)
    found = likelihood.log_likelihood(None, np.zeros((2, 1)), key=jax.random.key(0))  # type: ignore[arg-type]
    assert (found.lower, found.estimate, found.upper) == pytest.approx((-8.0, -6.4, -5.0))
    assert found.stderr == pytest.approx(0.5)
    assert found.method == "AIS; p(z | x)"
    assert found.details == {
        "forward": 1.5,
        "evidence_lower": -5.0,
        "mean_free_energy": 4.4,
        "n_examples": 2,
        "log_z": 2.0,
        "log_z_lower": 1.0,
        "log_z_upper": 3.0,
    }


@SEEDS
def test_the_evidence_of_annealed_rows(seed):
    rng = np.random.default_rng(seed)
    level = rng.normal(-9, 3, 8)
    forward = level[:, None] + rng.normal((-0.3, 0.3)[seed % 2], 0.4, (8, 2))
    reverse = level[:, None] + rng.normal(0.2, 0.6, (8, 2))
    bound = level - 0.5 - 3.0 * (seed == 4)
    found = evidence._between(bound, forward, reverse, "AIS")
    below, above = forward.mean(), reverse.mean()
    noise = [np.sqrt(np.mean([row.var(ddof=1) for row in runs]) / 16) for runs in (forward, reverse)]
    assert found.lower == pytest.approx(max(bound.mean(), min(below, above) - 2 * noise[0]))
    assert found.upper == pytest.approx(max(above, below) + 2 * noise[1])
    assert found.lower <= found.estimate <= found.upper
    assert found.estimate == pytest.approx(np.clip((below + above) / 2, found.lower, found.upper))
    assert found.stderr == pytest.approx(max(*noise, abs(above - below) / 2))
    np.testing.assert_allclose(found.each, (forward.mean(axis=1) + reverse.mean(axis=1)) / 2)
    named = {"variational_bound": bound.mean(), "evidence_lower": below, "evidence_upper": above}
    assert found.details == pytest.approx(named)


@SEEDS
def test_directed_models_from_both_sides(seed):
    rng = np.random.default_rng(seed)
    iwae = rng.normal(-9, 3, 20)
    bounds = importance.RowBounds(iwae, rng.random(20) / 9, iwae - 1, 0.07)
    rows = np.arange(20) if seed % 2 else np.array([0, 3, 9, 19])  # all of them, or some that stand for the others
    up = iwae[rows, None] + rng.normal(0.5, 0.3, (len(rows), 2))
    down = iwae[rows, None] + rng.normal(0.2 if seed < 4 else 0.9, 0.3, (len(rows), 2))
    found = importance._two_sided(bounds, 50, rows, down, up, 30)
    rise, gain = up - iwae[rows, None], down - iwae[rows, None]
    if seed % 2:
        noise = [np.mean([row.var(ddof=1) for row in each]) / each.size for each in (rise, gain)]
    else:
        noise = [each.mean(axis=1).var() / len(rows) for each in (rise, gain)]
    stderr, value = np.sqrt(max(noise) + 0.07**2), iwae.mean()
    above, below = value + rise.mean(), value + gain.mean()
    assert found.lower == pytest.approx(max(value - 0.14, min(below, above) - 2 * stderr))
    assert found.upper == pytest.approx(max(value, above) + 2 * stderr)
    middle = (max(value, below) + above) / 2
    assert found.estimate == pytest.approx(np.clip(middle, found.lower, found.upper))
    assert found.lower <= found.estimate <= found.upper
    assert found.stderr == pytest.approx(max(stderr, abs(above - max(value, below)) / 2))
    assert ("warning" in found.details) == (rise.mean() < max(gain.mean(), 0) - 2 * stderr)
    expected = {"importance_bound": value, "importance_stderr": 0.07, "n_samples": 50, "elbo": value - 1}
    expected |= {"n_examples": 20, "annealed_lower": below, "annealed_upper": above}
    expected |= {"n_annealed": len(rows), "n_temperatures": 30}
    assert {k: v for k, v in found.details.items() if k != "warning"} == pytest.approx(expected)
    alone = importance._one_sided(bounds, 50)
    assert (alone.lower, alone.estimate, alone.upper) == pytest.approx((value - 0.14, value, np.inf))


def test_the_interval_of_an_exact_value_is_a_point():
    found = evidence._exact(np.array([-3.0, -4.0, -8.0]), "")
    assert (found.lower, found.estimate, found.upper, found.stderr) == (-5.0, -5.0, -5.0, 0.0)
    np.testing.assert_array_equal(found.each, [-3.0, -4.0, -8.0])
