"""Samplers that follow ∇F: what they leave invariant, what they adapt, what they hold fixed, what they refuse."""

from __future__ import annotations

import ast
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import quick
from sampler_targets import Grid, as_x, from_x, normal, wells, z_score

import latentia
from latentia import samplers
from latentia.core.algorithms import misfit, require
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import CapabilityError, ParameterError, UnknownNameError
from latentia.core.model import AbstractModel
from latentia.core.space import Space
from latentia.energies.rbm import RBMModel
from latentia.learning.contrastive import Contrastive, hybrid, pcd
from latentia.likelihood.precision import double
from latentia.models.gaussian_rbm import GaussianRBM
from latentia.samplers import HMC, MALA, NUTS, Langevin
from latentia.samplers.gradient import Position, Transition
from latentia.samplers.hamiltonian import _metric
from latentia.units import make

N = 50_000
MASS = np.array([1.5, 0.4], np.float32)
#: Far from the limit of small steps: a test of acceptance that proposes nothing bold tests nothing.
BOLD = {
    "mala": MALA(step_size=0.35, inverse_mass=jnp.asarray(MASS)),
    "hmc": HMC(n_leapfrog=4, step_size=0.45, inverse_mass=jnp.asarray(MASS)),
    "nuts": NUTS(max_doublings=4, step_size=0.5, inverse_mass=jnp.asarray(MASS)),
}
GRID = Grid()


@quick
def one_step(sampler, model, x, fixed, key, *, before=0):
    """Where chains are after one step, and how it went; after so many steps before it, if asked."""
    states = samplers.start(sampler, model, x, key=key)
    if before:
        _, states = samplers.run(sampler, model, states, before, key=jax.random.key(100), fixed=fixed)
    states, info = samplers.advance(sampler, model, states, key=key, fixed=fixed)
    return jax.vmap(sampler.visible)(states), info


@quick
def adapted_to(sampler, info):
    return sampler.adapt(info)


#: Functions of the wells' (a, y) whose means tell if a distribution has moved; smooth, as quadrature needs.
LOOKS = [
    lambda a, y: a,
    lambda a, y: y,
    lambda a, y: a**2,
    lambda a, y: y**2,
    lambda a, y: a**2 * y,
    lambda a, y: a**4,
    lambda a, y: a * y,
    lambda a, y: np.cos(3 * a),
    lambda a, y: np.sin(2 * y),
    lambda a, y: np.cos(3 * a) * np.sin(y),
]


@pytest.mark.parametrize("name", BOLD)
def test_steps_from_the_target_stay_there_and_are_balanced(name):
    a, y = GRID.draw(N, seed=1)
    before = 9 if name == "mala" else 0  # its steps are short: one would show little of a wrong target
    x, info = one_step(BOLD[name], wells(), as_x(a, y), None, jax.random.key(2), before=before)
    b, w = from_x(x)
    assert 0.4 < float(jnp.mean(info.acceptance)) < 0.93
    assert np.mean((a - b) ** 2) > 0.15  # it does move
    for look in LOOKS:
        assert abs(z_score(look(b, w), GRID.p @ look(GRID.a, GRID.y))) < 4.5
    # Detailed balance: from f to g as often as from g to f.
    for f, g in [(LOOKS[0], LOOKS[3]), (LOOKS[1], LOOKS[2]), (LOOKS[5], LOOKS[8]), (LOOKS[0], LOOKS[1])]:
        assert abs(z_score(f(a, y) * g(b, w) - g(a, y) * f(b, w), 0.0)) < 4.5


@pytest.mark.parametrize("name", BOLD)
def test_fixed_entries_stay_and_the_others_keep_their_conditional(name):
    a, y = GRID.draw(N, seed=3)
    start = as_x(a, y)
    rng = np.random.default_rng(4)
    which = rng.integers(0, 3, N)  # x fixed, y fixed, neither
    fixed = {"x": jnp.asarray((which == 0).reshape(-1, 1, 1)), "y": jnp.asarray((which == 1).reshape(-1, 1))}
    before = 9 if name == "mala" else 0
    x, info = one_step(BOLD[name], wells(), start, fixed, jax.random.key(5), before=before)
    b, w = from_x(x)
    a, y = from_x(start)
    assert (b[which == 0] == a[which == 0]).all()
    assert (w[which == 1] == y[which == 1]).all()
    for kind, old, new in [(0, y, w), (1, a, b), (2, a, b)]:
        assert np.mean((old - new)[which == kind] ** 2) > 0.05
        for look in LOOKS:  # the joint distribution is left alone, whatever is fixed
            mine = which == kind
            assert abs(z_score(look(b[mine], w[mine]), GRID.p @ look(GRID.a, GRID.y))) < 4.5
    free = np.asarray(info.free)
    assert (free[:, 0] == (which != 0)).all()
    assert (free[:, 1] == (which != 1)).all()


def test_what_is_fixed_has_no_momentum():
    free = jnp.array([True, False, True])
    momentum = _metric(jnp.array([4.0, 1.0, 0.25]), free).sample_momentum(jax.random.key(0), jnp.zeros(3))
    assert momentum[1] == 0
    assert (momentum[jnp.array([0, 2])] != 0).all()


def test_small_steps_have_the_length_that_mass_and_step_size_say():
    """MALA and Langevin move by √(2εm) a step, HMC with one leapfrog step by ε√m; all of it is accepted."""
    a, y = GRID.draw(N, seed=6)
    start = as_x(a, y)
    a, y = from_x(start)
    eps, mass = 1e-4, jnp.asarray(MASS)
    cases = [
        (MALA(step_size=eps, inverse_mass=mass), 2 * eps),
        (Langevin(step_size=eps, inverse_mass=mass), 2 * eps),
        (HMC(n_leapfrog=1, step_size=eps**0.5, inverse_mass=mass, jitter=0.0), eps),
        (HMC(n_leapfrog=1, step_size=eps**0.5, inverse_mass=mass, jitter=0.5), eps * (1 + 0.5**2 / 3)),
    ]
    for sampler, variance in cases:
        x, info = one_step(sampler, wells(), start, None, jax.random.key(7))
        b, w = from_x(x)
        assert float(jnp.mean(info.acceptance)) > 0.999
        # The drift adds ε² m² ∇F² at most: a hundredth of a per cent.
        for moved, m in [(b - a, MASS[0]), (w - y, MASS[1])]:
            assert abs(z_score(moved**2, variance * m)) < 5


def test_langevin_without_a_test_has_the_bias_that_its_formula_says():
    eps, n = 0.5, 4 * N
    sampler = Langevin(step_size=eps, adaptive=False)
    model = normal([0.0], [[1.0]])
    draw = lambda sd, seed: jnp.asarray(np.random.default_rng(seed).normal(0, sd, (n, 1)), jnp.float32)  # noqa: E731
    biased = 1 / (1 - eps / 2)
    x, _ = one_step(sampler, model, draw(biased**0.5, 0), None, jax.random.key(0))
    assert abs(z_score(np.asarray(x, np.float64)[:, 0] ** 2, biased)) < 4.5  # stationary
    x, _ = one_step(sampler, model, draw(1.0, 1), None, jax.random.key(1))
    assert abs(z_score(np.asarray(x, np.float64)[:, 0] ** 2, 1 + eps**2)) < 4.5  # leaves the target at once
    heavy = eqx.tree_at(
        lambda s: s.inverse_mass, sampler, jnp.array([1.6]), is_leaf=lambda leaf: leaf is None
    )  # ε m takes the place of ε
    biased = 1 / (1 - 1.6 * eps / 2)
    x, _ = one_step(heavy, model, draw(biased**0.5, 2), None, jax.random.key(2))
    assert abs(z_score(np.asarray(x, np.float64)[:, 0] ** 2, biased)) < 4.5


def test_langevin_knows_how_often_it_would_have_been_accepted():
    start = as_x(*GRID.draw(N, seed=8))
    rates = []
    for sampler in (BOLD["mala"], Langevin(step_size=0.35, inverse_mass=jnp.asarray(MASS))):
        _, info = one_step(sampler, wells(), start, None, jax.random.key(9))
        rates.append(np.asarray(info.acceptance, np.float64))
    assert abs(rates[0].mean() - rates[1].mean()) < 5 * np.sqrt((rates[0].var() + rates[1].var()) / N)
    assert 0.4 < rates[0].mean() < 0.9


def test_a_step_is_of_the_model_it_is_given_whatever_was_before():
    first, second = normal([0.0, 0.0], np.eye(2)), normal([3.0, -2.0], np.diag([0.3, 2.0]))
    x = jax.random.normal(jax.random.key(0), (64, 2))
    for sampler in (Langevin(), MALA(), HMC(), NUTS(max_doublings=4)):
        states = Position(x)
        move = quick(lambda s, m, states, k: samplers.advance(s, m, states, key=k)[0])
        states = move(sampler, first, states, jax.random.key(2))
        fresh = samplers.start(sampler, second, jax.vmap(sampler.visible)(states), key=jax.random.key(1))
        one, other = (move(sampler, second, s, jax.random.key(3)) for s in (states, fresh))
        np.testing.assert_array_equal(one.x, other.x)
        assert (one.x != move(sampler, first, states, jax.random.key(3)).x).any()


# -- adaptation --------------------------------------------------------------------------------------

CORRELATED = np.array([[4.0, 0.9, 0.0], [0.9, 0.5, 0.1], [0.0, 0.1, 0.09]])
CENTRE = np.array([10.0, -3.0, 0.5])
ALL = {"langevin": Langevin(), "mala": MALA(), "hmc": HMC(), "nuts": NUTS(max_doublings=6)}


def off(draws: np.ndarray, wanted: float) -> float:
    """Standard errors between the mean of dependent draws ``(n, chains)`` and what it should be."""
    return abs(draws.mean() - wanted) / (draws.std() / np.sqrt(samplers.effective_sample_size(draws)))


@pytest.mark.parametrize("name", ALL)
def test_adapted_chains_find_mean_covariance_and_acceptance(name):
    x = jnp.asarray(np.random.default_rng(0).normal(size=(64, 3)), jnp.float32)
    draws, chains = samplers.sample(
        ALL[name], normal(CENTRE, CORRELATED), x, 600, key=jax.random.key(1), n_warmup=600, thin=2
    )
    found = chains.diagnosis
    assert draws.shape == (300, 64, 3)
    assert abs(found["acceptance"] - ALL[name].target) < 0.03
    assert found["divergences"] == 0
    mass = np.asarray(chains.sampler.inverse_mass)
    np.testing.assert_allclose(mass / mass.mean(), np.diag(CORRELATED) / np.diag(CORRELATED).mean(), rtol=0.4)
    assert found["step_size"] == pytest.approx(float(chains.sampler.step_size))
    if name == "langevin":
        return  # biased
    assert found["r_hat"] < 1.1
    draws = np.asarray(draws, np.float64) - CENTRE
    for i in range(3):
        assert off(draws[..., i], 0.0) < 4.5
        for j in range(i + 1):
            assert off(draws[..., i] * draws[..., j], CORRELATED[i, j]) < 4.5


@pytest.mark.parametrize("bits", [32, 64])
def test_adapting_keeps_structure_and_dtypes_and_stops_when_told(bits):
    def check():
        model, x = normal(CENTRE, CORRELATED), jnp.zeros((8, 3)) + jnp.arange(8.0)[:, None]
        for sampler in (Langevin(), HMC(n_leapfrog=2)):
            sampler = sampler.sized(x)
            states = samplers.start(sampler, model, x, key=jax.random.key(0))
            run = quick(lambda s, states: samplers.run(s, model, states, 5, key=jax.random.key(1), adapt=True))
            after, _ = run(sampler, states)  # a scan, which refuses any change of structure
            assert jax.tree.structure(after) == jax.tree.structure(sampler)
            for old, new in zip(jax.tree.leaves(sampler), jax.tree.leaves(after), strict=True):
                assert old.dtype == new.dtype == np.dtype(f"float{bits}")
                assert old.shape == new.shape
                assert (old != new).all()
            still = type(sampler)(adaptive=False).sized(x)
            assert still.inverse_mass is None
            info = one_step(sampler, model, x, None, jax.random.key(2))[1]
            assert eqx.tree_equal(adapted_to(still, info), still)

    if bits == 64:
        with double():
            check()
    else:
        check()


def transition(position, free=None, acceptance=0.8):
    n = len(position)
    return Transition(jnp.full(n, acceptance), jnp.zeros(n, bool), jnp.asarray(position, jnp.float32), free)


def test_the_step_size_goes_towards_its_target_and_moves_keep_their_length():
    sampler = HMC(inverse_mass=jnp.ones(2))
    gain = 3.0**-0.75
    for acceptance in (0.3, 0.8, 1.0):
        adapted = adapted_to(sampler, transition(np.zeros((5, 2)), acceptance=acceptance))
        assert float(adapted.step_size) == pytest.approx(0.2 * np.exp(gain * (acceptance - 0.8) / 0.2), rel=1e-5)
    later = eqx.tree_at(lambda s: s.count, sampler, jnp.asarray(1e9))
    slow = adapted_to(later, transition(np.zeros((5, 2)), acceptance=1.0))
    assert float(slow.step_size) == pytest.approx(0.2 * np.exp(0.01), rel=1e-5)  # the floor of the gain
    # Acceptance at its target: the mass grows, and the step size makes up for it.
    rows = np.random.default_rng(0).normal(size=(50, 2)) * 20
    for kind, power in [(HMC, 0.5), (MALA, 1.0)]:
        sampler = kind(inverse_mass=jnp.ones(2)).sized(jnp.zeros((50, 2)))
        adapted = adapted_to(sampler, transition(rows, acceptance=kind().target))
        scale = np.exp(np.mean(np.log(adapted.inverse_mass)))
        assert scale > 50
        assert float(adapted.step_size) * scale**power == pytest.approx(float(sampler.step_size), rel=1e-4)


def test_the_mass_is_the_weighted_variance_of_all_positions_so_far():
    rng = np.random.default_rng(1)
    start = rng.normal(size=(40, 3)) * [1.0, 5.0, 0.2]
    sampler = HMC().sized(jnp.asarray(start, jnp.float32))
    variance = (40 * start.var(0) + 5 * start.var(0).mean()) / 45
    np.testing.assert_allclose(sampler.inverse_mass, variance, rtol=1e-4)
    # The same by hand: one big sample with weights.
    mean, square = start.mean(0), variance + start.mean(0) ** 2
    for step in range(6):
        rows = rng.normal(size=(40, 3)) * [2.0, 1.0, 1.0] + [0.0, step, 7.0]
        sampler = adapted_to(sampler, transition(rows))
        rate = min((step + 3.0) ** -0.75, 40 / 50)
        mean, square = mean + rate * (rows.mean(0) - mean), square + rate * ((rows**2).mean(0) - square)
    np.testing.assert_allclose(sampler.inverse_mass, square - mean**2, rtol=1e-3)
    np.testing.assert_allclose(sampler.mean, mean, rtol=1e-4)


def test_fixed_entries_do_not_enter_the_mass():
    start = np.random.default_rng(2).normal(size=(20, 3))
    sampler = HMC().sized(jnp.asarray(start, jnp.float32))
    rows = np.random.default_rng(3).normal(size=(20, 3)) * 9
    half = np.ones((20, 3), bool)
    half[:, 1] = False  # never free
    half[10:, 2] = False  # free in half of the chains
    adapted = adapted_to(sampler, transition(rows, jnp.asarray(half)))
    assert adapted.inverse_mass[1] == sampler.inverse_mass[1]
    assert adapted.mean[1] == sampler.mean[1]
    alone = adapted_to(sampler, transition(rows[:10]))
    np.testing.assert_allclose(adapted.inverse_mass[2], alone.inverse_mass[2], rtol=1e-5)
    growth = np.log(np.asarray(adapted.inverse_mass) / np.asarray(sampler.inverse_mass))[[0, 2]].mean()
    assert float(adapted.step_size) == pytest.approx(0.2 * np.exp(-growth / 2), rel=1e-4)
    nowhere = adapted_to(sampler, transition(rows, jnp.zeros((20, 3), bool)))
    assert eqx.tree_equal(nowhere.inverse_mass, sampler.inverse_mass)
    assert float(nowhere.step_size) == pytest.approx(0.2)


def test_chains_that_all_start_at_one_point_spread():
    draws, chains = samplers.sample(
        HMC(), normal(CENTRE, CORRELATED), jnp.zeros((64, 3)), 100, key=jax.random.key(0), n_warmup=300
    )
    spread = np.asarray(draws[-1], np.float64).var(0) / np.diag(CORRELATED)
    assert (spread > 0.5).all()
    assert (spread < 2).all()
    assert chains.diagnosis["acceptance"] > 0.7


@pytest.mark.parametrize("name", ["mala", "hmc", "nuts"])
def test_clamped_chains_draw_the_conditional_of_a_gaussian(name):
    model = normal(CENTRE, CORRELATED)
    x = np.tile(np.array([[12.0, -3.5, 0.0]]), (64, 1))
    fixed = jnp.asarray(np.tile(np.array([[True, False, False]]), (64, 1)))
    draws, chains = samplers.sample(
        ALL[name], model, jnp.asarray(x, jnp.float32), 600, key=jax.random.key(4), n_warmup=400, fixed=fixed
    )
    assert (draws[..., 0] == 12).all()
    assert abs(chains.diagnosis["acceptance"] - ALL[name].target) < 0.03
    assert chains.diagnosis["r_hat"] < 1.1
    column = CORRELATED[1:, 0]
    mean = CENTRE[1:] + column / CORRELATED[0, 0] * (12 - CENTRE[0])
    covariance = CORRELATED[1:, 1:] - np.outer(column, column) / CORRELATED[0, 0]
    rest = np.asarray(draws, np.float64)[..., 1:] - mean
    for i in range(2):
        assert off(rest[..., i], 0.0) < 4.5
        for j in range(i + 1):
            assert off(rest[..., i] * rest[..., j], covariance[i, j]) < 4.5


def test_samples_give_the_gradient_of_log_z():
    model = wells()
    start = as_x(*GRID.draw(512, seed=10))
    draws, _ = samplers.sample(HMC(n_leapfrog=5), model, start, 200, key=jax.random.key(11), n_warmup=100)
    flat = jax.tree.map(lambda a: a.reshape(-1, *a.shape[2:]), draws)
    theta_grad = jax.jit(jax.vmap(lambda x: jax.grad(lambda m: m.free_energy(x))(model).theta))
    each = np.asarray(theta_grad(flat), np.float64).reshape(200, 512, 4)
    for i, wanted in enumerate(GRID.score_derivatives()):
        assert off(each[..., i], wanted) < 4.5
    assert np.sum(np.abs(GRID.score_derivatives()) > 0.3) >= 2  # that of k is 0, of log s −½


# -- learning ----------------------------------------------------------------------------------------


def test_a_gaussian_rbm_learns_from_chains_on_its_free_energy():
    rng = np.random.default_rng(0)
    hidden = rng.integers(0, 2, (400, 1))
    X = 50 + 30 * ((2 * hidden - 1) * np.array([1.0, -1.0, 1.0, 0.5]) + 0.4 * rng.normal(size=(400, 4)))
    settings = {"n_components": 2, "batch_size": 100, "learning_rate": 0.02, "random_state": 0}
    score = {}
    for name in ("langevin", "hmc", "pcd"):
        objective = "pcd" if name == "pcd" else hybrid(n_sampler_steps=3, sampler=name)
        fitted = GaussianRBM(objective=objective, n_epochs=40, **settings).fit(X)
        score[name] = fitted.log_likelihood(X, method="exact").estimate
        if name != "pcd":
            last = fitted.history_[-1]
            assert last["step_size"] > 0
            assert last["acceptance"] > 0.4
            assert fitted._chains().shape == (100, 4)
    nothing = GaussianRBM(objective="pcd", n_epochs=1, **{**settings, "learning_rate": 1e-9}).fit(X)
    before = nothing.log_likelihood(X, method="exact").estimate
    for name in ("langevin", "hmc"):
        assert score[name] > before + 0.75 * (score["pcd"] - before)
    assert score["pcd"] > before + 1.0


def test_samples_without_latents_enter_with_their_free_energy():
    model = RBMModel.make(make("gaussian", 4), make("bernoulli", 2), key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (8, 4))
    for objective, settles in [(hybrid(n_chains=6), False), (pcd(n_chains=6), True)]:
        assert objective._sums_last_block(model) == settles
    objective = hybrid(n_chains=6)
    begin = quick(lambda o: o.prepare(model, x, o.init(model, x, key=jax.random.key(2)), key=jax.random.key(3)))
    state = begin(objective)
    assert state.sampler.count == 1
    assert state.chains.x.shape == (6, 4)
    loss, metrics = quick(lambda o, state: o.loss(model, x, None, state))(objective, state)
    free = jax.vmap(model.free_energy)
    np.testing.assert_allclose(loss, jnp.mean(free(x)) - jnp.mean(free(state.chains.x)), rtol=1e-5)
    assert {"energy_gap", "acceptance", "step_size", "divergent"} <= set(metrics)
    short = hybrid(persistent=False, sampler=Langevin(step_size=1e-12, adaptive=False))
    np.testing.assert_allclose(begin(short).chains.x, x, atol=1e-4)  # started at the batch


# -- refusals ----------------------------------------------------------------------------------------


class Halfline(FreeEnergy):
    @property
    def x_space(self):
        return Space("nonnegative", (2,))

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return jnp.sum(x)

    def free_energy(self, x):
        return jnp.sum(x)


@pytest.mark.parametrize("name", ALL)
def test_what_is_not_real_is_refused(name):
    binary = RBMModel.make(make("bernoulli", 3), make("bernoulli", 2), key=jax.random.key(0))
    real = RBMModel.make(make("gaussian", 3), make("bernoulli", 2), key=jax.random.key(0))
    for algorithm in (ALL[name], Contrastive(ALL[name])):
        assert misfit(algorithm, real) is None
        with pytest.raises(CapabilityError, match="works on real data, not on binary"):
            require(algorithm, binary)
        with pytest.raises(CapabilityError, match="works on real data, not on nonnegative"):
            require(algorithm, Halfline())
    with pytest.raises(CapabilityError, match="not on binary"):
        samplers.sample(ALL[name], binary, jnp.zeros((2, 3)), 4, key=jax.random.key(0))
    assert misfit(samplers.Gibbs(), binary) is None
    assert "FreeEnergy" in str(misfit(ALL[name], Bare()))


class Bare(AbstractModel):
    @property
    def x_space(self):
        return Space("real", (2,))

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return jnp.sum(x**2)


def test_bad_settings_are_refused():
    for make_it, message in [
        (lambda: HMC(n_leapfrog=0), "n_leapfrog=0"),
        (lambda: HMC(step_size=-1.0), "step_size must be a positive"),
        (lambda: MALA(step_size="small"), "step_size must be a positive"),
        (lambda: HMC(jitter=1.0), "jitter"),
        (lambda: MALA(target=1.0), "target must lie between 0 and 1"),
        (lambda: NUTS(max_doublings=0), "max_doublings=0"),
        (lambda: hybrid(sampler=3), "sampler must be a name or a sampler"),
        (lambda: hybrid(persistent=False, n_chains=3), "n_chains=3"),
    ]:
        with pytest.raises(ParameterError, match=message):
            make_it()
    plain = HMC(step_size=np.float32(0.3), inverse_mass=[1.0, 2.0])  # numbers of any kind become arrays
    assert plain.step_size.dtype == plain.inverse_mass.dtype == np.float32
    with pytest.raises(UnknownNameError, match="Did you mean 'hmc'"):
        hybrid(sampler="hcm")
    with pytest.raises(ParameterError, match="thin"):
        samplers.sample(HMC(), wells(), as_x(np.zeros(2), np.zeros(2)), 3, key=jax.random.key(0), thin=5)


def test_a_chain_that_flies_off_is_stopped_and_says_so():
    steep = normal([0.0, 0.0], np.eye(2) * 1e-6)
    for sampler in (Langevin(step_size=1.0), MALA(step_size=1.0), HMC(step_size=1.0), NUTS(step_size=1.0)):
        x, info = one_step(sampler, steep, jnp.ones((4, 2)), None, jax.random.key(0))
        assert np.isfinite(np.asarray(x)).all()
        assert np.asarray(info.divergent).all()
        assert float(jnp.mean(info.acceptance)) < 1e-3


def test_blackjax_is_imported_by_those_who_use_it_only():
    """Inside functions: importing it takes half a second, which Gibbs sampling need not pay."""
    found = 0
    for path in Path(latentia.__file__).parent.rglob("*.py"):
        module = ast.parse(path.read_text())
        for node in ast.walk(module):
            if isinstance(node, ast.Import | ast.ImportFrom) and "blackjax" in ast.unparse(node):
                assert node not in module.body, f"{path}:{node.lineno}"
                found += 1
    assert found >= 3


def test_states_hold_x_and_nothing_that_could_go_stale():
    state = HMC().init(wells(), as_x(np.zeros(1), np.zeros(1)), key=jax.random.key(0))
    assert isinstance(state, Position)
    assert len(jax.tree.leaves(state)) == 2
    assert HMC().latent(state) == ()
