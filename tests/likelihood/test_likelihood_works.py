"""Averages of weights, their errors, and Bennett's estimate on works whose answer is known."""

from __future__ import annotations

import numpy as np
import pytest

from latentia.likelihood import works


def gaussian_works(rng, n_forward: int, n_reverse: int, ell: float, spread: float):
    """Crooks: if P_F = N(ℓ − s²/2, s²) then P_R(w) = P_F(w) exp(w − ℓ) = N(ℓ + s²/2, s²)."""
    forward = rng.normal(ell - spread**2 / 2, spread, n_forward)
    return forward, rng.normal(ell + spread**2 / 2, spread, n_reverse)


@pytest.mark.parametrize(("n_forward", "n_reverse"), [(200, 200), (400, 100)])
@pytest.mark.parametrize("spread", [0.3, 2.0])
def test_bennett_is_exact_on_gaussian_works(n_forward, n_reverse, spread):
    rng = np.random.default_rng(0)
    draws = [works.bennett(*gaussian_works(rng, n_forward, n_reverse, -7.5, spread)) for _ in range(300)]
    estimates, errors, _ = np.array(draws).T
    assert abs(estimates.mean() + 7.5) < 4 * estimates.std() / np.sqrt(300)
    assert 0.85 < estimates.std() / errors.mean() < 1.15  # its own standard error is right


def test_bennett_of_constant_works():
    ell, stderr, overlap = works.bennett(np.full(10, 3.25), np.full(20, 3.25))
    assert ell == pytest.approx(3.25, abs=1e-12)
    assert stderr == pytest.approx(0.0, abs=1e-12)
    assert overlap > 0.3


def test_bennett_without_overlap_stays_between():
    ell, _, overlap = works.bennett(np.linspace(-1000, -900, 50), np.linspace(900, 1000, 50))
    assert -900 < ell < 900
    assert overlap < 1e-6


def test_log_mean_exp_and_its_error():
    rng = np.random.default_rng(1)
    estimates, errors = [], []
    for _ in range(300):
        weights = rng.normal(5000 - 0.125, 0.5, 300)  # E exp = exp(5000), far beyond the range of exp
        estimates.append(works.log_mean_exp(weights))
        errors.append(works.log_mean_exp_stderr(weights))
    assert abs(np.mean(estimates) - 5000) < 0.01
    assert 0.85 < np.std(estimates) / np.mean(errors) < 1.15


def test_a_dominating_weight_gives_a_large_error():
    weights = np.zeros(100)
    weights[17] = 50.0
    assert works.log_mean_exp_stderr(weights) > 40  # the delta method would say 1
    assert works.effective_size(weights) == pytest.approx(1.0)
    assert works.effective_size(np.zeros(100)) == pytest.approx(100.0)
    assert works.log_mean_exp_stderr(np.zeros(100)) == pytest.approx(0.0, abs=1e-9)
