"""Learners of all rows at once: weighted M-steps by hand, batches without weight, and when EM and Newton stop."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia import ICA, PPCA, GaussianMixture
from latentia.learning.closed_form import ClosedFormML
from latentia.learning.em import EM
from latentia.learning.optimizer import Optimizer
from latentia.learning.relative import NaturalGradient, QuasiNewton
from latentia.models.gaussian_mixture import MixtureModel
from latentia.models.ica import ICAModel
from latentia.models.ppca import PPCAModel
from latentia.ops import sources
from latentia.units import Categorical, Factorial

TYPES = ("full", "tied", "diag", "spherical")
N, D, K = 12, 3, 3
RNG = np.random.default_rng(4)
X = (RNG.normal(size=(N, D)) @ RNG.normal(size=(D, D)) + [1, -2, 0]).astype(np.float32)
COUNTS = np.array([2, 0, 1, 3, 1, 0, 1, 1, 2, 0, 1, 2], np.float32)
#: Few rows and one component without any: what is divided by must be the mass, and nothing beside it.
SHARES = np.column_stack([*RNG.dirichlet([2.0, 1.0], N).T, np.zeros(N)]).astype(np.float32)


def mixture(kind):
    model = MixtureModel.make(D, K, key=jax.random.key(2), covariance_type=kind, reg_covar=0.03)
    places = lambda m: (m.means, m.precision_cholesky)  # noqa: E731
    return eqx.tree_at(places, model, (jnp.asarray(X[[0, 4, 8]]), 0.7 * model.precision_cholesky))


@eqx.filter_jit
def m_step(model, x, shares, weights):
    fields = jnp.log(shares)
    posterior = Factorial(Categorical(jnp.zeros_like(fields)[:, None, :]), fields)
    new = model.m_step(x, posterior, weights)
    return new, new.covariances(), jnp.exp(new.log_priors())


@pytest.mark.parametrize("kind", TYPES)
def test_a_mixtures_m_step_is_the_one_by_hand(kind):
    """With weights, and a component that is empty: it has no part in what the others share."""
    old = mixture(kind)
    new, covariances, priors = m_step(old, jnp.asarray(X), jnp.asarray(SHARES), jnp.asarray(COUNTS))
    shares = SHARES.astype(float) * COUNTS[:, None]
    mass = shares.sum(axis=0)
    means = np.asarray(old.means, float)
    means[:2] = (shares.T @ X)[:2] / mass[:2, None]
    np.testing.assert_allclose(new.means, means, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(priors, mass / mass.sum(), atol=1e-6)
    ridge = 0.03 * np.eye(D)
    around = [(X - means[k]).T @ ((X - means[k]) * shares[:, k, None]) for k in range(2)]
    if kind == "tied":
        np.testing.assert_allclose(covariances, sum(around) / mass.sum() + ridge, rtol=2e-4, atol=1e-5)
        return
    each = np.stack([each / m for each, m in zip(around, mass, strict=False)]) + ridge
    each = each if kind == "full" else np.diagonal(each, axis1=1, axis2=2)
    each = each.mean(axis=1) if kind == "spherical" else each
    np.testing.assert_allclose(covariances[:2], each, rtol=2e-4, atol=1e-5)
    np.testing.assert_array_equal(new.precision_cholesky[2], old.precision_cholesky[2])


def step(learner, model, x, weights, state=None):
    run = eqx.filter_jit(lambda m, x, w, s: learner.step(m, x, w, s, key=jax.random.key(0), since=1))
    return run(model, jnp.asarray(x), None if weights is None else jnp.asarray(weights), state)


LEARNERS = [
    *((kind, EM(), lambda kind=kind: mixture(kind)) for kind in ("full", "tied")),
    ("ppca em", EM(), lambda: PPCAModel.make(D, 2, key=jax.random.key(3))),
    ("ppca", ClosedFormML(), lambda: PPCAModel.make(D, 2, key=jax.random.key(3))),
]


@pytest.mark.parametrize(("learner", "make"), [each[1:] for each in LEARNERS], ids=[each[0] for each in LEARNERS])
def test_weights_are_repetitions_whatever_their_scale_and_none_teach_nothing(learner, make):
    model = make()
    repeated, _, told = step(learner, model, np.repeat(X, COUNTS.astype(int), axis=0), None)
    mean_one = COUNTS * N / COUNTS.sum()
    weighted, _, heard = step(learner, model, X, mean_one)
    larger, *_ = step(learner, model, X, 50 * mean_one)
    for a, b, c in zip(*map(jax.tree.leaves, (repeated, weighted, larger)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4)
        np.testing.assert_allclose(b, c, rtol=1e-3, atol=1e-4)
    assert float(heard["log_likelihood"]) == pytest.approx(float(told["log_likelihood"]), rel=1e-4)
    same, _, metrics = step(learner, model, X, np.zeros(N, np.float32))
    for a, b in zip(*map(jax.tree.leaves, (model, same)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert float(metrics["log_likelihood"]) == 0.0


def ica():
    whole = np.random.default_rng(1).normal(size=(D, D)) + 2 * np.eye(D)
    zeros = jnp.zeros(D)
    return ICAModel(jnp.asarray(whole, jnp.float32), zeros, zeros, jnp.eye(D), sources.Logistic())


@pytest.mark.parametrize("counts", [COUNTS, np.zeros(N, np.float32), np.full(N, 0.2, np.float32)], ids=str)
def test_a_natural_step_follows_the_weighted_slope(counts):
    """Of mini-batches, whose weights need not average to one: V moves by η (w̄ I − ⟨w ψ yᵀ⟩) V."""
    model, rate = ica(), 0.05
    learner = NaturalGradient(Optimizer.make("sgd", learning_rate=rate, n_steps=10))
    state = learner.init(model, jnp.asarray(X), key=jax.random.key(0))
    moved, _, metrics = step(learner, model, X, counts, state)
    V = np.asarray(model.weights, float)
    y = X.astype(float) @ V.T
    slope = np.tanh(y / 2).T @ (y * counts[:, None]) / N - counts.mean() * np.eye(D)
    np.testing.assert_allclose(moved.weights, V - rate * slope @ V, atol=1e-4)
    log_p = (np.log(np.cosh(y / 2) ** -2) - np.log(4)).sum(axis=1) + np.linalg.slogdet(V)[1]
    assert float(metrics["log_likelihood"]) == pytest.approx(float(counts @ log_p) / N, rel=1e-4, abs=1e-5)
    assert float(metrics["gradient_norm"]) == pytest.approx(np.abs(slope).max(), rel=1e-4, abs=1e-6)


@pytest.fixture(scope="module")
def mixed():
    rng = np.random.default_rng(6)
    s = np.column_stack([rng.laplace(size=300), rng.uniform(-1.7, 1.7, 300), rng.laplace(size=300)])
    return (s @ (rng.normal(size=(3, 3)) + 2 * np.eye(3))).astype(np.float32), rng.integers(0, 3, 300)


def test_the_scale_of_weights_does_not_move_quasi_newton(mixed):
    """Weights of the rows that are left after others were held out average to anything."""
    x, counts = mixed
    learner = QuasiNewton.make(40, 1e-5, per_step=40)
    model = ica()
    found = []
    for rows, weights in (
        (np.repeat(x, counts, axis=0), None),
        (x, (counts * 300 / counts.sum()).astype(np.float32)),
        (x, (0.25 * counts).astype(np.float32)),
    ):
        state = learner.init(model, jnp.asarray(rows), key=jax.random.key(0))
        best, _, metrics = step(learner, model, rows, weights, state)
        found.append((np.asarray(best.weights), float(metrics["log_likelihood"])))
    for filters, value in found[1:]:
        np.testing.assert_allclose(np.abs(filters), np.abs(found[0][0]), rtol=5e-3, atol=5e-3)
        assert value == pytest.approx(found[0][1], abs=1e-4)


def test_quasi_newton_learns_nothing_from_nothing(mixed):
    x, learner, model = mixed[0], QuasiNewton.make(40, 1e-5, per_step=5), ica()
    state = learner.init(model, jnp.asarray(x), key=jax.random.key(0))
    same, state, metrics = step(learner, model, x, np.zeros(300, np.float32), state)
    np.testing.assert_array_equal(same.weights, model.weights)
    assert int(state.iterations) == 0
    assert all(np.isfinite(float(value)) for value in metrics.values())


def test_the_density_of_a_source_does_not_depend_on_the_scale_of_weights():
    """By the rule E[sech² u] E[u²] < E[u tanh u] for a sub-Gaussian source, with averages over the weights."""
    rng = np.random.default_rng(3)
    u = np.stack([rng.laplace(size=500), rng.uniform(-1.7, 1.7, 500), rng.normal(size=500) ** 3]).astype(np.float32)
    weights = rng.integers(0, 4, 500).astype(np.float32)
    mean = lambda values: np.average(values.astype(float), axis=1, weights=weights)  # noqa: E731
    wanted = mean(1 - np.tanh(u) ** 2) * mean(u**2) < mean(u * np.tanh(u))
    assert wanted.any()
    assert not wanted.all()
    start = sources.Extended(jnp.array([True, False, True]))
    for scale in (1.0, 0.01, 30.0):
        found = start.tuned(jnp.asarray(u), jnp.asarray(scale * weights)).sub
        np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(start.tuned(jnp.asarray(u), jnp.zeros(500)).sub, start.sub)


@pytest.mark.parametrize(
    "estimator",
    [
        GaussianMixture(3, covariance_type="tied", tol=2e-3, n_epochs=60, random_state=0),
        PPCA(1, solver="em", tol=1e-3, n_epochs=60, random_state=0),
    ],
    ids=["mixture", "ppca"],
)
def test_em_stops_after_the_first_step_that_gains_too_little(estimator):
    rng = np.random.default_rng(8)
    x = rng.normal(size=(90, 3)) * [3, 1, 0.5] + np.repeat([[0], [4], [0]], 30, axis=0)
    weights = rng.integers(1, 4, 90)
    estimator.fit(x, sample_weight=weights)
    told = np.array([row["log_likelihood"] for row in estimator.history_])
    small = np.flatnonzero(np.diff(told) < estimator.tol)
    assert 3 < len(told) < 60
    assert len(told) == small[0] + 2
    # The report is of the model before its step: by now it is better than the last one said.
    mean = np.average(estimator.score_samples(x), weights=weights)
    assert told[-1] - 1e-4 <= mean < told[-1] + estimator.tol + 1e-4


def test_quasi_newton_counts_the_iterations_that_it_made(mixed):
    x, counts = mixed
    few = ICA(max_iter=7, tol=0, random_state=0).fit(x, sample_weight=counts)
    assert few.n_iter_ == 7
    done = ICA(random_state=0).fit(x, sample_weight=counts)
    assert done.history_[-1]["converged"] == 1.0
    assert done.history_[-1]["gradient_norm"] < 1e-5
    mean = np.average(done.score_samples(x), weights=counts)
    assert done.history_[-1]["log_likelihood"] == pytest.approx(mean, abs=1e-3)
    np.testing.assert_allclose(done.model_.centre, np.average(x.astype(float), axis=0, weights=counts), atol=1e-5)
    whitened = (x - np.asarray(done.model_.centre)) @ np.asarray(done.model_.whiten).T
    np.testing.assert_allclose(np.cov(whitened.T, bias=True, fweights=counts), np.eye(3), atol=2e-3)
