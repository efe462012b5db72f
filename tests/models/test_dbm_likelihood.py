"""Likelihoods of layered Boltzmann machines: exact ones by brute force, intervals that hold the exact value."""

from __future__ import annotations

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import close
from layered_machines import KINDS, exact_log_z, free, machine, some_x, states
from scipy.special import logsumexp

from latentia import likelihood
from latentia.core.errors import ParameterError
from latentia.energies.layered import label_energies
from latentia.likelihood import evidence, variational_bounds
from latentia.likelihood.evidence import _bracketed
from latentia.likelihood.precision import double

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture(autouse=True)
def _x64():
    with double():
        yield


QUICK = {"n_temperatures": 60, "n_chains": 32, "n_replicas": 3, "n_burn_in": 40, "n_steps": 40}


@pytest.mark.parametrize(
    ("kind", "n_seeds"),
    [
        ({"sizes": (6, 4, 3), "gain": 1.5}, 40),
        ({"sizes": (5, 4, 3, 2), "gain": 1.5}, 40),
        ({"sizes": (2, 3, 2), "visible": "gaussian"}, 6),
        ({"sizes": (3, 3, 2), "visible": "categorical", "n_labels": 2}, 6),
    ],
)
def test_two_sided_intervals_hold_the_exact_log_z(kind, n_seeds):
    hits, widths = 0, []
    for seed in range(n_seeds):
        model = machine(**kind, seed=seed)
        found = likelihood.log_z(model, key=jax.random.key(seed), method="ais", **QUICK)
        exact = likelihood.log_z(model, key=jax.random.key(0), method="exact").estimate
        close(exact, exact_log_z(model), tolerance=1e-7)
        hits += found.lower <= exact <= found.upper
        widths.append(found.width)
    assert hits >= 0.95 * n_seeds
    assert np.median(widths) < 0.5


#: Settings of the annealing between q and p(z | x); the same ones, so that they are compiled once.
POSTERIOR = {"n_temperatures": 10, "n_steps": 20}


@pytest.mark.parametrize("kind", ["two layers", "three layers", "labels", "gaussian"])
def test_evidence_brackets_the_exact_free_energies(kind):
    model = machine(**KINDS[kind], seed=11, gain=2.0)
    x = some_x(model, 16)
    wanted = -free(model, x)
    exact = evidence(model, x, key=None)
    close(exact.each, wanted, tolerance=1e-9)
    assert exact.lower == exact.upper == exact.estimate
    close(exact.estimate, wanted.mean(), tolerance=1e-9)
    bounds = variational_bounds(model, x)
    assert (bounds <= wanted + 1e-9).all()
    assert (wanted - bounds).max() > 0.01
    found = evidence(model, x, key=jax.random.key(0), method="ais", **POSTERIOR)
    assert found.lower <= wanted.mean() <= found.upper
    assert bounds.mean() <= found.lower
    assert found.upper - found.lower < (wanted - bounds).mean()  # annealing adds to what mean field knows
    close(found.details["variational_bound"], bounds.mean(), tolerance=1e-5)


def test_annealing_between_q_and_the_posterior_is_unbiased_in_both_directions():
    """E[w] exp(F) = 1 upwards and E[1/w] exp(−F) = 1 downwards, for any number of temperatures."""
    model = machine((3, 2, 2, 2), seed=6, gain=4.0)
    x = some_x(model, 1)
    wanted = -free(model, x)[0]
    many = jax.tree.map(lambda a: jnp.asarray(np.repeat(a, 5000, axis=0)), x)
    keys = jax.random.split(jax.random.key(0), 5000)
    bound, forward, reverse = map(np.asarray, _bracketed(model, many, keys, np.array([0.0, 0.0, 0.7, 1.0]), 50))
    for log_w in (forward.ravel() - wanted, wanted - reverse.ravel()):
        w = np.exp(log_w)
        stderr = w.std() / np.sqrt(w.size)
        assert stderr < 0.005
        assert abs(w.mean() - 1) < 4.5 * stderr
    # Jensen: low and high on average; and three temperatures are better than none.
    assert bound[0] + 0.1 < forward.mean() < wanted - 0.02
    assert wanted + 0.02 < reverse.mean()


def test_evidence_comes_in_batches_that_keep_the_order_of_the_rows(monkeypatch):
    model = machine(**KINDS["two layers"], seed=11, gain=2.0)
    x = states(model.x_space)[[3, 1, 4, 1, 5, 2, 6, 0, 7, 5]]
    monkeypatch.setattr(sys.modules["latentia.likelihood.evidence"], "_ROWS", 4)  # the function hides the module
    close(evidence(model, x, key=None).each, -free(model, x), tolerance=1e-9)
    one = [variational_bounds(model, x[i : i + 1])[0] for i in range(10)]
    close(variational_bounds(model, x), one, tolerance=1e-9)
    annealed = evidence(model, x, key=jax.random.key(0), method="ais", **POSTERIOR)
    assert np.abs(annealed.each + free(model, x)).max() < 0.2
    assert np.ptp(free(model, x)) > 2


def test_states_beyond_the_limit_are_not_enumerated():
    model = machine(**KINDS["two layers"])
    x = some_x(model, 16)
    with pytest.raises(ParameterError, match=r"needs 2\^5 states per example.*limit of 16.*method='ais'"):
        evidence(model, x, key=None, method="exact", limit=16)
    assert evidence(model, x, key=None, limit=32).method == "exact p(z | x)"
    annealed = evidence(model, x, key=jax.random.key(0), limit=31, **POSTERIOR)
    assert annealed.method == "p(z | x) by AIS both ways (10 temperatures)"
    labelled = machine((3, 3, 2), n_labels=3)
    seen = (some_x(labelled, 2)[0], None)
    assert evidence(labelled, seen, key=None, limit=96).method == "exact p(z | x)"
    with pytest.raises(ParameterError, match="limit of 95"):  # an unseen label counts
        evidence(labelled, seen, key=None, method="exact", limit=95)


@pytest.mark.parametrize("kind", ["two layers", "three layers", "labels", "gaussian", "gaussian and labels"])
def test_exact_likelihoods_are_those_of_brute_force(kind):
    model = machine(**KINDS[kind], seed=13)
    x, log_z = some_x(model, 6), exact_log_z(model)
    found = likelihood.log_likelihood(model, x, key=jax.random.key(0))
    close(found.estimate, np.mean(-free(model, x)) - log_z, tolerance=1e-7)
    assert found.is_exact
    if isinstance(x, tuple):  # the label was not observed
        classes = states(model.x_space[1])
        each = [-free(model, (x[0], np.repeat(c[None], 6, axis=0))) for c in classes]
        wanted = np.mean(logsumexp(each, axis=0)) - log_z
        found = likelihood.log_likelihood(model, (x[0], None), key=jax.random.key(0))
        close(found.estimate, wanted, tolerance=1e-7)


def test_two_sided_likelihoods_hold_the_exact_one():
    options = {f"n_posterior_{name[2:]}": value for name, value in POSTERIOR.items()}
    for seed in range(5):
        model = machine((6, 4, 3), seed=seed, gain=1.5)  # sizes of a machine above, compiled already
        x = some_x(model, 8)
        wanted = np.mean(-free(model, x)) - exact_log_z(model)
        found = likelihood.log_likelihood(model, x, key=jax.random.key(seed), method="ais", **QUICK, **options)
        assert found.lower <= wanted <= found.upper < found.lower + 1
        close(found.estimate, wanted, tolerance=0.05)


@pytest.mark.parametrize("kind", ["labels", "three layers and labels"])
def test_label_energies_bound_the_exact_ones_and_match_them_without_couplings(kind):
    model = machine(**KINDS[kind], seed=14)
    x, classes = some_x(model, 1)[0][0], states(model.x_space[1])
    exact = free(model, (np.repeat(x[None], 3, axis=0), classes))
    found = np.asarray(label_energies(model, (x,)))
    assert (found > exact).all()
    assert (found - exact).max() < 0.3
    weak = eqx.tree_at(lambda m: m.weights, model, tuple(1e-4 * w for w in model.weights))
    exact = free(weak, (np.repeat(x[None], 3, axis=0), classes))
    close(label_energies(weak, (x,)), exact, tolerance=1e-7)
