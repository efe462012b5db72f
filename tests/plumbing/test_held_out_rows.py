"""Rows that early stopping holds out never reach a parameter: not by steps, starts, means, whitening or noise."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from latentia import ICA, PPCA, RBM, VAE, Autoencoder, DictionaryLearning, GaussianModel, ProductOfExperts
from latentia.estimator import gradient
from latentia.estimator.base import LatentEstimator

RNG = np.random.default_rng(3)
REAL = RNG.laplace(size=(40, 3)) @ RNG.normal(size=(3, 3))
BITS = RNG.integers(0, 2, (40, 4)).astype(float)
STOPPING = {"early_stopping": True, "validation_fraction": 0.25, "random_state": 0, "n_epochs": 1}
STEPS = {"batch_size": 15, "learning_rate": 0.01}
SEED = int(np.random.RandomState(0).randint(2**31 - 1))

CASES = [
    RBM(3, centring=0.1, monitor=None, **STEPS, **STOPPING),
    ProductOfExperts(3, monitor=None, **STEPS, **STOPPING),
    ProductOfExperts(3, objective="nce", monitor=None, **STEPS, **STOPPING),
    Autoencoder((2,), monitor=None, **STEPS, **STOPPING),
    VAE(2, hidden=(3,), monitor=None, **STEPS, **STOPPING),
    GaussianModel(solver="gradient", monitor=None, **STEPS, **STOPPING),
    ICA(max_iter=5, **{k: v for k, v in STOPPING.items() if k != "n_epochs"}),
    ICA(solver="natural_gradient", monitor=None, **STEPS, **STOPPING),
    DictionaryLearning(2, 0.3, center=True, batch_size=15, **STOPPING),
    DictionaryLearning(2, 0.3, center=True, update="mod", **STOPPING),
]


def test_the_families_that_hold_out_rows_are_here():
    """Of the kinds of starts and statistics that there are; the others learn without held-out rows."""
    assert "early_stopping" not in PPCA().get_params()
    assert all(isinstance(case, LatentEstimator) and case.early_stopping for case in CASES)


@pytest.mark.parametrize("estimator", CASES, ids=lambda e: " ".join(str(e).split())[:50])
def test_held_out_rows_never_reach_a_parameter(estimator, monkeypatch):
    """They may say when to stop and which model is best: with patience for all epochs, and one score a run."""
    monkeypatch.setattr(gradient, "LONGEST_CHUNK", 1000)
    bits = isinstance(estimator, RBM | VAE)
    X = BITS if bits else REAL
    held = np.random.default_rng([SEED, 1]).permutation(len(X))[: round(0.25 * len(X))]
    others = X.copy()
    others[held] = 1 - others[held] if bits else 30 * others[held] + 5
    models = [estimator.fit(rows).model_ for rows in (X, others)]
    for a, b in zip(*map(jax.tree.leaves, models), strict=True):
        if hasattr(a, "dtype"):
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
