"""The front door: what is chosen when, what comes back, what is refused."""

from __future__ import annotations

import json
import math
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import random_rbm
from test_likelihood_enumeration import Coupled, coupled

import latentia
from latentia import likelihood
from latentia.core.capabilities import Normalised
from latentia.core.errors import (
    CapabilityError,
    DataError,
    NotNormalisableError,
    ParameterError,
    UnknownNameError,
)
from latentia.core.model import AbstractModel
from latentia.core.space import Space
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.ops import random

KEY = jax.random.key(0)
SMALL = {"n_temperatures": 40, "n_chains": 16, "n_replicas": 3, "n_burn_in": 40, "n_steps": 20}


class Coin(Normalised):
    """One biased coin."""

    logit: jax.Array

    @property
    def x_space(self):
        return Space("real", (1,))

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return jax.nn.softplus(self.logit) - self.logit * x[0]


class Bare(AbstractModel):
    """An energy and nothing else."""

    @property
    def x_space(self):
        return Space("real", (1,))

    @property
    def z_space(self):
        return Space("real", (1,))

    def energy(self, x, z):
        return 0.5 * jnp.sum(x**2 + z**2)


def test_probabilities_sum_to_one():
    model = random_rbm("spin", "rectified", 6, 4, seed=0, scale=0.5)
    x = jnp.asarray(model.x_space.enumerate())
    log_z = likelihood.log_z(model, key=KEY).estimate
    assert np.sum(np.exp(-likelihood.free_energies(model, x) - log_z)) == pytest.approx(1.0, abs=1e-12)


def test_log_likelihood_is_minus_mean_free_energy_minus_log_z():
    model = random_rbm("bernoulli", "bernoulli", 16, 12, seed=0, scale=0.5)
    x = jnp.asarray(model.x_space.enumerate()[:50])
    exact = likelihood.log_likelihood(model, x, key=KEY)
    log_z = likelihood.log_z(model, key=KEY).estimate
    assert exact.method == "exact (enumeration of 4096 hidden states)"
    assert exact.estimate == pytest.approx(-likelihood.free_energies(model, x).mean() - log_z, abs=1e-12)
    assert exact.is_exact
    both = likelihood.log_likelihood(model, x, key=KEY, method="ais", **SMALL)
    assert both.lower <= exact.estimate <= both.upper
    assert both.lower <= both.estimate <= both.upper
    assert both.stderr > 0
    assert both.method == "AIS and reverse AIS (40 temperatures, 16 chains)"
    assert both.details["log_z_lower"] - both.details["log_z_upper"] == pytest.approx(both.lower - both.upper)
    assert {"forward", "reverse", "swap_rate_min", "hottest_beta", "seconds"} <= set(both.details)
    assert json.loads(json.dumps(both.as_dict()))["estimate"] == both.estimate


def test_a_start_can_be_given():
    model = random_rbm("bernoulli", "bernoulli", 16, 12, seed=0, scale=0.5)
    start = np.ones((3, 16), np.float32)
    exact = likelihood.log_z(model, key=KEY).estimate
    result = likelihood.log_z(model, key=KEY, method="ais", start=start, **SMALL)
    assert result.lower <= exact <= result.upper


def test_normalised_models_are_exact():
    model = Coin(jnp.array(0.3))
    x = jnp.array([[0.0], [1.0]])
    result = likelihood.log_likelihood(model, x, key=KEY)
    p = 1 / (1 + math.exp(-float(model.logit)))
    assert result.estimate == pytest.approx(0.5 * (math.log(p) + math.log(1 - p)))
    assert result.method == "exact (normalised)"


def test_free_energies_come_in_batches(monkeypatch):
    model = random_rbm("bernoulli", "spin", 5, 3, seed=1, scale=1.0)
    x = jnp.asarray(model.x_space.enumerate())
    whole = likelihood.free_energies(model, x)
    monkeypatch.setattr(sys.modules["latentia.likelihood.evidence"], "_ROWS", 7)  # the function hides the module
    np.testing.assert_allclose(likelihood.free_energies(model, x), whole, rtol=1e-14)
    assert whole.dtype == np.float64
    assert whole.shape == (32,)


def test_free_energies_are_double_even_for_a_single_precision_model():
    model = random_rbm("bernoulli", "bernoulli", 6, 5, seed=0, scale=1.0)
    model = eqx.tree_at(lambda m: m.visible.bias, model, model.visible.bias + 30000.0)
    x = jnp.ones((1, 6))
    w, mu, lam, b = (
        np.asarray(a, np.float64)
        for a in (model.weights, model.visible_offset, model.hidden_offset, model.hidden.bias)
    )
    field = (1 - mu) @ w
    by_hand = -np.asarray(model.visible.bias, np.float64).sum() + lam @ field - np.logaddexp(0, b + field).sum()
    np.testing.assert_allclose(likelihood.free_energies(model, x), by_hand, rtol=1e-13)


def test_refusals():
    x = jnp.zeros((2, 16))
    model = random_rbm("bernoulli", "bernoulli", 16, 12, seed=0, scale=0.5)
    with pytest.raises(UnknownNameError, match=r"'exakt'. Did you mean 'exact'\?"):
        likelihood.log_likelihood(model, x, key=KEY, method="exakt")
    with pytest.raises(ParameterError, match=r"4,096 hidden states, more than the limit of 10\. Use method='ais'"):
        likelihood.log_likelihood(model, x, key=KEY, method="exact", limit=10)
    with pytest.raises(DataError, match="no rows"):
        likelihood.log_likelihood(model, x[:0], key=KEY)
    with pytest.raises(CapabilityError, match=r"Bare needs FreeEnergy"):
        likelihood.log_likelihood(Bare(), x, key=KEY)
    with pytest.raises(CapabilityError, match=r"Bare: it is not Normalised.*lacks Tempered"):
        likelihood.log_z(Bare(), key=KEY)
    with pytest.raises(CapabilityError, match="needs Tempered"):
        likelihood.log_z(coupled(), key=KEY, method="ais")
    with pytest.raises(CapabilityError, match="lacks Tempered"):
        likelihood.log_z(Coupled(jnp.zeros((9, 2)), jnp.zeros(9)), key=KEY, limit=5)
    with pytest.raises(NotNormalisableError, match="largest singular value"):
        likelihood.log_z(random_rbm("gaussian", "gaussian", 4, 4, seed=0, scale=5.0), key=KEY)


def test_results_read_well():
    result = LogLikelihood(-83.01, -82.9, -82.95, 0.0123, "AIS (2000 temperatures)")
    assert str(result) == ("-82.95 nats (two-sided [-83.01, -82.90], stderr 0.012, AIS (2000 temperatures))")
    assert result.width == pytest.approx(0.11)
    assert result.warning is None
    exact = LogZ(1.5, 1.5, 1.5, 0.0, "exact (normalised)", {"odd": np.float64("inf"), "list": (np.int64(1), "a")})
    assert str(exact) == "1.50 nats (exact (normalised))"
    assert exact.as_dict()["details"] == {"odd": None, "list": [1.0, "a"]}
    with pytest.raises(AttributeError):
        exact.lower = 0.0  # type: ignore[misc]


def test_one_evaluator_answers_for_directed_and_partly_directed_models_too():
    rows = np.random.default_rng(0).integers(0, 2, (12, 4)).astype(np.float32)
    dbn = latentia.DBN(hidden=(3, 2), n_epochs=1, pretraining_epochs=1, random_state=0).fit(rows)
    vae = latentia.VAE(2, latents="bernoulli", hidden=(3,), n_epochs=1, random_state=0).fit(rows)
    for estimator, option in ((dbn, {"n_samples": 20}), (vae, {"method": "importance", "n_samples": 20})):
        found = likelihood.log_likelihood(estimator.model_, rows, key=random.key(0), **option)
        own = estimator.log_likelihood(rows, **option)
        assert found.as_dict()["estimate"] == own.estimate
        assert found.method == own.method
        assert likelihood.log_z(estimator.model_, key=random.key(0)).estimate == estimator.log_z().estimate
        each = likelihood.log_probabilities(
            estimator.model_, rows, key=random.key(0), log_z=estimator.log_z().estimate
        )
        np.testing.assert_allclose(each, estimator.score_samples(rows), rtol=1e-9)
    assert (
        "lower bound from 20 paths"
        in likelihood.log_likelihood(dbn.model_, rows, key=random.key(0), n_samples=20).method
    )
    known = LogZ(1.0, 3.0, 2.0, 0.5, "told")
    told = likelihood.log_likelihood(dbn.model_, rows, key=random.key(0), n_samples=20, normaliser=known)
    assert told.width == pytest.approx(2.0)
    rbm = random_rbm("bernoulli", "bernoulli", 4, 3, seed=0, scale=0.5)
    told = likelihood.log_likelihood(rbm, rows, key=KEY, normaliser=known)
    assert told.estimate == pytest.approx(-likelihood.free_energies(rbm, rows).mean() - 2.0)
    with pytest.raises(ParameterError, match=r"no option 'n_samples'. It has: method, limit, n_temperatures"):
        likelihood.log_likelihood(rbm, rows, key=KEY, n_samples=3)
    with pytest.raises(ParameterError, match="n_samples must be an integer of at least 2"):
        likelihood.log_likelihood(dbn.model_, rows, key=KEY, n_samples=1)
