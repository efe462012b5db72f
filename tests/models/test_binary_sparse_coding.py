"""Binary sparse coding: energies, posteriors, M-step, EM and likelihoods against enumeration; and the bars."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import linear_sum_assignment
from scipy.special import expit, logsumexp
from scipy.stats import norm

import latentia
from latentia import BinarySparseCoding, likelihood
from latentia.core import space
from latentia.core.errors import CapabilityError, ParameterError, UnknownNameError
from latentia.energies.binary_sparse_coding import BinarySparseCodingModel
from latentia.inference import (
    Enumeration,
    GibbsInference,
    MeanFieldInference,
    TruncatedInference,
    variational_energy,
)
from latentia.inference.states import Truncated
from latentia.learning.em import EM
from latentia.likelihood.precision import double

D, K = 3, 4
STATES = np.array(list(itertools.product((0.0, 1.0), repeat=K)))


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64():
    with double():
        yield


def random_model(seed=0, d=D, k=K, shared=False, inference=None, dtype=None):
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(d, k)), rng.normal(size=k) - 0.5, 0.5 * rng.normal(size=() if shared else d)
    dtype = dtype or jnp.result_type(float)
    return BinarySparseCodingModel(*(jnp.asarray(a, dtype) for a in arrays), inference or MeanFieldInference())


def rows_of(model, n=40, seed=1):
    draw = jax.vmap(lambda key: model.sample(key=key)[0])
    return draw(jax.random.split(jax.random.key(seed), n))


def log_joint(model, x, states=STATES):
    """log p(x, z) from the densities, (rows, states)."""
    W, b = np.asarray(model.weights), np.asarray(model.bias)
    sd = np.exp(-0.5 * np.broadcast_to(np.asarray(model.log_precision), len(W)))
    prior = (states * np.log(expit(b)) + (1 - states) * np.log(expit(-b))).sum(1)
    return prior + norm.logpdf(np.asarray(x)[:, None, :], (states @ W.T)[None], sd).sum(-1)


def posteriors(model, x, inference, seed=0):
    return eqx.filter_jit(lambda m, x: inference.infer_many(m, x, key=jax.random.key(seed)))(model, x)


def bounds(model, x, q):
    return -np.asarray(eqx.filter_jit(jax.vmap(lambda x, q: variational_energy(model, x, q)))(x, q))


def table(q, states=STATES):
    """q of every state, (rows, states)."""
    log_q = eqx.filter_jit(jax.vmap(lambda q: jax.vmap(q.log_prob)(jnp.asarray(states))))(q)
    return np.exp(np.asarray(log_q))


# -- the density and its posteriors ---------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shared", [False, True])
def test_energy_and_exact_posterior(shared):
    model = random_model(shared=shared)
    x = rows_of(model)
    wanted = log_joint(model, x)
    energy = jax.vmap(lambda x: jax.vmap(lambda z: model.energy(x, z))(jnp.asarray(STATES)))(x)
    np.testing.assert_allclose(-energy, wanted, rtol=1e-10)
    q = posteriors(model, x, Enumeration())
    p = np.exp(wanted - logsumexp(wanted, axis=1, keepdims=True))
    np.testing.assert_allclose(table(q), p, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(lambda q: q.mean())(q), p @ STATES, atol=1e-12)
    np.testing.assert_allclose(bounds(model, x, q), logsumexp(wanted, axis=1), rtol=1e-10)


@pytest.mark.usefixtures("x64")
def test_the_heated_models_posterior_is_a_power_of_the_posterior():
    model = random_model(3)
    x = rows_of(model, 10)
    joint = log_joint(model, x)
    b = np.asarray(model.bias)
    prior = (STATES * np.log(expit(b)) + (1 - STATES) * np.log(expit(-b))).sum(1)
    for wanted, with_prior in ((joint / 2.5, True), (prior + (joint - prior) / 2.5, False)):
        hot = posteriors(model.heated(jnp.asarray(2.5), prior=with_prior), x, Enumeration())
        np.testing.assert_allclose(
            table(hot), np.exp(wanted - logsumexp(wanted, axis=1, keepdims=True)), atol=1e-12
        )


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("parallel", [False, True])
def test_mean_field_is_at_the_fixed_point_and_its_gap_is_the_divergence(parallel):
    """ẑ_i = σ(b_i + xᵀBW_i − ½W_iᵀBW_i − Σ_{j≠i} W_iᵀBW_j ẑ_j), with coefficient one in front of the last sum."""
    model = random_model(4)
    x = rows_of(model)
    q = posteriors(model, x, MeanFieldInference(5000, 1e-12, parallel=parallel))
    means = np.asarray(jax.vmap(lambda q: q.mean())(q))
    W, beta = np.asarray(model.weights), np.exp(np.asarray(model.log_precision))
    G = W.T @ (beta[:, None] * W)
    cross = means @ G - means * np.diag(G)
    field = np.asarray(model.bias) + (np.asarray(x) * beta) @ W - 0.5 * np.diag(G) - cross
    np.testing.assert_allclose(means, expit(field), atol=1e-9)
    log_p, log_q = log_joint(model, x), np.log(table(q))
    divergence = (np.exp(log_q) * (log_q - log_p + logsumexp(log_p, axis=1, keepdims=True))).sum(1)
    np.testing.assert_allclose(logsumexp(log_p, axis=1) - bounds(model, x, q), divergence, atol=1e-9)
    assert divergence.max() > 1e-2


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("parallel", [False, True])
def test_no_round_of_mean_field_lowers_the_bound(parallel):
    model = random_model(5, d=6, k=8)
    x = rows_of(model, 60)
    infer = MeanFieldInference(1, 0.0, parallel=parallel)
    q = jax.vmap(lambda x: infer.begun(model, x))(x)
    path = [bounds(model, x, q)]
    improve = eqx.filter_jit(jax.vmap(lambda x, q: infer.improved(model, x, q)))
    for _ in range(20):
        q = improve(x, q)
        path.append(bounds(model, x, q))
    assert np.diff(path, axis=0).min() > -1e-10
    assert (path[-1] - path[0]).max() > 0.5


def test_parallel_rounds_need_a_model_that_has_them():
    model = random_model()

    class Clamped(eqx.Module):
        """Mean field, group after group only."""

        def guess(self):
            return jnp.zeros(2)

    class Odd(eqx.Module):
        """Clamps to such a model."""

        def clamped(self, x):
            del x
            return Clamped()

    with pytest.raises(CapabilityError, match="ParallelMeanField"):
        MeanFieldInference(parallel=True).infer(Odd(), rows_of(model)[0])
    with pytest.raises(ParameterError, match="step"):
        MeanFieldInference(parallel=True, step=0.0)


# -- the M-step and EM ----------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    "inference", [Enumeration(), MeanFieldInference(), TruncatedInference(5), GibbsInference(7)], ids=str
)
def test_the_m_step_is_where_the_slope_is_zero(inference, shared):
    model = random_model(6, shared=shared)
    x = rows_of(random_model(7), 50)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.full(50, 2.0)) * 50)
    q = posteriors(model, x, inference)
    share = table(q)
    np.testing.assert_allclose(share.sum(1), 1, atol=1e-10)
    new = model.m_step(x, q, weights)

    def expected(model):
        energy = jax.vmap(lambda x: jax.vmap(lambda z: model.energy(x, z))(jnp.asarray(STATES)))(x)
        return jnp.sum(weights[:, None] * jnp.asarray(share) * energy) / 50

    before, after = expected(model), expected(new)
    assert after < before
    # The ridge holds W back by 1e-5 of an example.
    assert max(float(np.abs(g).max()) for g in jax.tree.leaves(eqx.filter_grad(expected)(new))) < 1e-4
    assert max(float(np.abs(g).max()) for g in jax.tree.leaves(eqx.filter_grad(expected)(model))) > 0.1


@pytest.mark.parametrize("rate", [0.05, 0.9])
def test_more_atoms_than_features_or_examples(rate):
    """Moments of 600 atoms are singular, and those of float32 not even that: rounding makes them indefinite."""
    rng = np.random.default_rng(0)
    model = random_model(13, d=8, k=600, shared=True, dtype=jnp.float32)
    x = jnp.asarray(rng.normal(size=(40, 8)), jnp.float32)
    states = jnp.asarray(np.repeat(rng.random((1, 4, 600)) < rate, 40, axis=0), jnp.float32)
    new = model.m_step(x, Truncated(states, jnp.full((40, 4), -np.log(4), jnp.float32)), jnp.ones(40))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(new))
    # All examples have one posterior here: the best that W does is their mean.
    used = np.asarray(jnp.mean(states[0], axis=0)) @ np.asarray(new.weights).T
    np.testing.assert_allclose(used, np.asarray(x).mean(0), atol=0.05)


def climbed(model, x, learner, n, weights=None):
    state = learner.init(model, x, key=jax.random.key(0))
    step = eqx.filter_jit(lambda m, s, k: learner.step(m, x, weights, s, key=k, since=1))
    told = []
    for i in range(n):
        model, state, metrics = step(model, state, jax.random.fold_in(jax.random.key(1), i))
        told.append({name: float(value) for name, value in metrics.items()})
    return model, told


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("inference", [Enumeration(), MeanFieldInference(), TruncatedInference(4)], ids=str)
def test_em_never_lowers_its_bound(inference):
    start, x = random_model(8, inference=inference), rows_of(random_model(9), 80)
    model, told = climbed(start, x, EM(inference), 30)
    path = [row["bound"] for row in told]
    assert np.diff(path).min() > -1e-9
    assert path[-1] > path[0] + 0.1
    exact = logsumexp(log_joint(start, x), axis=1).mean()
    if isinstance(inference, Enumeration):  # the bound is the likelihood
        np.testing.assert_allclose(path[0], exact, rtol=1e-10)
    else:
        assert path[0] < exact - 1e-4
        assert path[-1] < logsumexp(log_joint(model, x), axis=1).mean()


@pytest.mark.usefixtures("x64")
def test_inference_goes_on_from_the_step_before():
    """One round a step is enough then; from the guess every time it is not."""
    x = rows_of(random_model(9, d=6, k=6), 80)
    start, one = random_model(8, d=6, k=6), MeanFieldInference(1, 0.0)
    warm = [row["bound"] for row in climbed(start, x, EM(one), 30)[1]]
    cold = [row["bound"] for row in climbed(start, x, EM(one, warm=False), 30)[1]]
    assert np.diff(warm).min() > -1e-9
    assert warm[0] == pytest.approx(cold[0], rel=1e-12)
    assert warm[-1] > cold[-1] + 0.05


def test_every_row_keeps_its_own_posterior():
    X = bar_rows(80, 2, 0.3)
    coder = BinarySparseCoding(4, inference="truncated", n_best_states=16, n_init=1, tol=1e-5, random_state=0).fit(
        X
    )
    kept = jax.vmap(lambda q: q.mean())(coder._state.posterior)
    np.testing.assert_allclose(kept, coder.transform(X), atol=0.05)


@pytest.mark.usefixtures("x64")
def test_annealing_ends_at_temperature_one():
    x = rows_of(random_model(9), 60)
    _, told = climbed(random_model(8), x, EM(Enumeration(), temperature=4.0, n_annealing=4), 6)
    np.testing.assert_allclose([row["temperature"] for row in told], [4, 4**0.75, 2, 4**0.25, 1, 1])
    assert np.diff([row["bound"] for row in told])[-1] >= 0
    cold, _ = climbed(random_model(8), x, EM(Enumeration()), 6)
    warm, _ = climbed(random_model(8), x, EM(Enumeration(), temperature=1.0, n_annealing=4), 6)
    np.testing.assert_array_equal(cold.weights, warm.weights)
    likelihood_only, _ = climbed(
        random_model(8), x, EM(Enumeration(), temperature=4.0, n_annealing=4, heat_prior=False), 1
    )
    hot = random_model(8).heated(jnp.asarray(4.0), prior=False)
    wanted = random_model(8).m_step(x, posteriors(hot, x, Enumeration()), jnp.ones(60))
    np.testing.assert_allclose(likelihood_only.weights, wanted.weights, atol=1e-10)
    with pytest.raises(ParameterError, match="temperature"):
        EM(temperature=0.5)


@pytest.mark.parametrize("inference", [Enumeration(), MeanFieldInference(), TruncatedInference(4)], ids=str)
def test_weights_are_repeated_rows_and_rows_without_weight_are_left_out(inference):
    model = random_model(10, dtype=jnp.float32)
    x = rows_of(model, 20)
    counts = np.array([0, 1, 2, 3] * 5, np.float32)
    mean_one = jnp.asarray(counts * 20 / counts.sum())
    once, told = climbed(model, x, EM(inference), 3, mean_one)
    again, heard = climbed(model, jnp.repeat(x, counts.astype(int), axis=0), EM(inference), 3)
    for a, b in zip(jax.tree.leaves(once), jax.tree.leaves(again), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-4)
    np.testing.assert_allclose(told[-1]["bound"], heard[-1]["bound"], rtol=1e-5)
    still, _ = climbed(model, x, EM(inference), 1, jnp.zeros(20))
    jax.tree.map(np.testing.assert_array_equal, still, model)


def test_an_atom_that_nobody_uses_comes_back():
    model = random_model(11, dtype=jnp.float32)
    model = eqx.tree_at(lambda m: m.bias, model, model.bias.at[2].set(-40.0))
    x = rows_of(model, 30)
    new, _ = climbed(model, x, EM(Enumeration()), 1)
    q = posteriors(model, x, Enumeration())
    means = np.asarray(jax.vmap(lambda q: q.mean())(q))
    assert means[:, 2].max() < 1e-6
    assert np.isfinite(np.asarray(new.bias)).all()
    alive = np.asarray(new.weights) @ np.diag([1, 1, 0, 1])
    residual = np.asarray(x) - means @ alive.T
    np.testing.assert_allclose(new.weights[:, 2], residual[np.argmax((residual**2).sum(1))], rtol=1e-3, atol=1e-3)


# -- likelihoods ----------------------------------------------------------------------------------------


def test_likelihoods_are_exact_where_states_are_few_and_bracketed_otherwise():
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        model = random_model(12, dtype=jnp.float32)
        x = rows_of(model, 12)
        exact = logsumexp(log_joint(model, x), axis=1).mean()
        found = likelihood.log_likelihood(model, x, key=jax.random.key(0))
        np.testing.assert_allclose([found.lower, found.upper], exact, rtol=1e-5)
        both = likelihood.log_likelihood(model, x, key=jax.random.key(0), method="ais")
    assert both.lower <= exact + 1e-4
    assert both.upper >= exact - 1e-4
    assert both.upper - both.lower < 0.5
    assert both.details["variational_bound"] < exact
    assert both.details["log_z"] == 0.0


# -- the estimator --------------------------------------------------------------------------------------


def bars(side=5, value=5.0):
    """All horizontal and vertical bars, one a row."""
    lines = np.eye(side)
    both = [np.repeat(lines[:, :, None], side, axis=2), np.repeat(lines[:, None, :], side, axis=1)]
    return value * np.concatenate(both).reshape(2 * side, side**2)


def bar_rows(n, side=5, rate=0.2, seed=0):
    rng = np.random.default_rng(seed)
    on = rng.random((n, 2 * side)) < rate
    return (on @ bars(side) + rng.normal(size=(n, side**2))).astype(np.float32)


def n_found(atoms, side=5):
    """How many bars have an atom of their own within a quarter of their value (root mean square)."""
    distance = np.sqrt(((atoms[:, None] - bars(side)[None]) ** 2).mean(-1))
    return int((distance[linear_sum_assignment(distance)] < 0.25 * 5).sum())


@pytest.mark.parametrize(("inference", "side"), [("auto", 5), ("truncated", 3), ("mean_field", 5)])
def test_bars_are_found(inference, side):
    coder = BinarySparseCoding(2 * side, inference=inference, n_best_states=8, random_state=2)
    coder.fit(bar_rows(600, side, 1 / side))
    assert n_found(coder.components_, side) == 2 * side
    np.testing.assert_allclose(coder.noise_variance_, 1, rtol=0.2)
    np.testing.assert_allclose(coder.probabilities_, 1 / side, atol=0.06)


@pytest.mark.parametrize("inference", ["auto", "truncated", "mean_field", "parallel_mean_field", "gibbs"])
def test_the_estimator_with_every_inference(inference, tmp_path):
    X = bar_rows(60, 2, 0.3)
    small = {"n_components": 4, "n_annealing": 3, "n_init": 2, "n_sweeps": 10, "n_best_states": 6}
    coder = BinarySparseCoding(
        **small, inference=inference, noise="per_feature", n_epochs=6, tol=0.0, random_state=0
    ).fit(X)
    codes = coder.transform(X)
    assert codes.shape == (60, 4)
    assert codes.min() >= 0
    assert codes.max() <= 1 + 1e-6
    np.testing.assert_allclose(coder.inverse_transform(codes), codes @ coder.components_, rtol=1e-4, atol=1e-4)
    assert coder.noise_variance_.shape == (4,)
    exact = coder.log_likelihood(X)
    assert exact.lower == exact.upper
    assert coder.score(X) <= exact.estimate + 1e-4
    coder.save(tmp_path / "m.safetensors")
    again = latentia.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(again.transform(X), codes)
    assert again.model_.inference == coder.model_.inference
    assert coder.sample(3, random_state=0).shape == (3, 4)


def test_annealing_of_the_likelihood_reaches_the_starts():
    X = bar_rows(60, 2, 0.3)
    small = {"n_annealing": 3, "n_init": 1, "n_epochs": 1, "temperature": 4.0, "random_state": 0}
    hot, sparse = (BinarySparseCoding(4, annealed=name, **small).fit(X) for name in ("posterior", "likelihood"))
    assert np.abs(hot.components_ - sparse.components_).max() > 1e-3
    with pytest.raises(UnknownNameError, match="likelihood"):
        BinarySparseCoding(4, annealed="prior").fit(X)


def test_an_interrupted_run_goes_on_with_the_same_bits(tmp_path):
    X = bar_rows(60, 2, 0.3)
    small = {"n_components": 4, "n_annealing": 2, "n_init": 1, "random_state": 0, "tol": 0.0}

    def run(**options):
        return BinarySparseCoding(**small, inference="truncated", n_best_states=6, n_epochs=8, **options)

    whole = run(run_dir=tmp_path / "a").fit(X)
    stop = lambda event: event.step == 3 and (_ for _ in ()).throw(KeyboardInterrupt)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        run(run_dir=tmp_path / "b", callbacks=[stop]).fit(X)
    resumed = run(run_dir=tmp_path / "b", resume=True).fit(X)
    assert resumed.n_steps_ == whole.n_steps_
    jax.tree.map(np.testing.assert_array_equal, resumed.model_, whole.model_)


def test_what_is_refused():
    X = bar_rows(60, 2, 0.3)
    with pytest.raises(UnknownNameError, match="mean_field"):
        BinarySparseCoding(4, inference="meanfield").fit(X)
    with pytest.raises(ParameterError, match=r"2\^40 states"):
        BinarySparseCoding(40, inference="exact", n_init=1, n_annealing=1).fit(X)
    assert space.leaves(random_model().z_space)[0].domain == "binary"
