"""Likelihoods by blocks: blocks, chunks and parts of any size give every row the same answer, in its own place."""

from __future__ import annotations

import itertools
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia import DBM, DBN, RBM, VAE, likelihood, units
from latentia.energies.rbm import RBMModel
from latentia.estimator import notebook, rows
from latentia.likelihood import ais, annealing, enumeration, importance, latent_annealing, undirected
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.ops.examples import Examples

evidence = sys.modules["latentia.likelihood.evidence"]  # the function hides the module
KEY, RNG = jax.random.key(3), np.random.default_rng(5)
ROWS = np.array(list(itertools.product((0.0, 1.0), repeat=4)), np.float32)[[3, 9, 0, 14, 6, 11, 5]]  # seven of them
ORDER = np.array([4, 0, 6, 2, 5, 1, 3])


def logsumexp(values):
    values = np.asarray(values, np.float64).ravel()
    return values.max() + np.log(np.exp(values - values.max()).sum())


def machine(seed: int) -> RBMModel:
    """Four visible and three hidden units; nothing is zero."""
    draws = np.random.default_rng(seed)
    make = lambda *shape: jnp.asarray(draws.normal(size=shape), jnp.float32)  # noqa: E731
    return RBMModel(units.Bernoulli(make(4)), units.Bernoulli(make(3)), make(4, 3), make(4), make(3))


def joint(model: RBMModel, x: np.ndarray, z: np.ndarray) -> np.ndarray:
    """−E(x, z) of all pairs, by hand."""
    a, b, w, mu, lam = (
        np.asarray(leaf, np.float64)
        for leaf in (
            model.visible.bias,
            model.hidden.bias,
            model.weights,
            model.visible_offset,
            model.hidden_offset,
        )
    )
    return (x @ a)[:, None] + (z @ b)[None] + (x - mu) @ w @ (z - lam).T


def states(n: int) -> np.ndarray:
    return np.array(list(itertools.product((0.0, 1.0), repeat=n)))


def log_p(model: RBMModel, x: np.ndarray) -> np.ndarray:
    """log p(x) of every row, by hand."""
    table = joint(model, np.asarray(x, np.float64), states(3))
    return np.array([logsumexp(row) for row in table]) - logsumexp(joint(model, states(4), states(3)))


@pytest.fixture(scope="module")
def rbm():
    return machine(0)


@pytest.fixture(scope="module")
def dbm():
    draws = np.random.default_rng(1)
    drawn = lambda leaf: jnp.asarray(draws.normal(size=leaf.shape), leaf.dtype) if leaf.ndim else leaf  # noqa: E731
    return jax.tree.map(drawn, DBM((3, 2)).build({"n_features": 4}))


@pytest.fixture(scope="module")
def vae():
    estimator = VAE(n_components=3, hidden=(4,), latents="bernoulli")
    model = estimator.build(estimator._blueprint(Examples(ROWS)), seed=2)
    moved = lambda leaf: 1.5 * leaf + 0.3 if eqx.is_inexact_array(leaf) else leaf  # noqa: E731
    return jax.tree.map(moved, model)


def of_any_size(monkeypatch, module, name, function, sizes=(1, 3, 100)):
    """The same values for every size of block, one a row, all of them different; those of the last size."""
    found = []
    for size in sizes:
        monkeypatch.setattr(module, name, size)
        found.append([np.asarray(each) for each in function()])
        for each, first in zip(found[-1], found[0], strict=True):
            assert len(each) == len(ROWS)
            np.testing.assert_allclose(each, first, rtol=1e-9, atol=1e-12)
    for each in found[-1]:
        assert len(np.unique(each.round(9), axis=0)) == len(ROWS)
    return found[-1]


# -- exact values ----------------------------------------------------------------------------------------------


def test_free_energies(rbm, monkeypatch):
    (values,) = of_any_size(monkeypatch, evidence, "_ROWS", lambda: [likelihood.free_energies(rbm, ROWS)])
    by_hand = [-logsumexp(row) for row in joint(rbm, ROWS, states(3))]
    np.testing.assert_allclose(values, by_hand, rtol=1e-12)


def test_clamped_models_by_enumeration_and_by_mean_field(dbm, monkeypatch):
    whole = of_any_size(
        monkeypatch,
        evidence,
        "_ROWS",
        lambda: [evidence.evidence(dbm, ROWS, key=None).each, likelihood.variational_bounds(dbm, ROWS)],
        sizes=(1, 3),
    )
    with double():
        z = (jnp.repeat(jnp.asarray(states(3)), 4, axis=0), jnp.tile(jnp.asarray(states(2)), (8, 1)))
        energies = jax.jit(jax.vmap(jax.vmap(to_double(dbm).energy, (None, 0)), (0, None)))(
            batch_to_double(ROWS), z
        )
    np.testing.assert_allclose(whole[0], [logsumexp(-row) for row in np.asarray(energies)], rtol=1e-9)
    assert (whole[1] < whole[0] + 1e-12).all()
    again = evidence.evidence(dbm, ROWS[ORDER], key=None).each
    np.testing.assert_allclose(again, whole[0][ORDER], rtol=1e-12)


@pytest.mark.parametrize(("side", "n"), [("visible", 4), ("hidden", 3), ("joint", 7)])
def test_every_state_is_counted_once_whatever_the_chunk(rbm, side, n, monkeypatch):
    wanted = logsumexp(joint(rbm, states(4), states(3)))
    for chunk in (5, 2**n):
        monkeypatch.setattr(enumeration, "_CHUNK", chunk)
        with double():
            value = jax.jit(lambda: enumeration.sum_states.__wrapped__(to_double(rbm), side))()
        assert float(value) == pytest.approx(wanted, rel=1e-12)


def test_pseudo_likelihoods_stand_alone(rbm):
    values = likelihood.pseudo_log_likelihood(rbm, ROWS)
    minus_f = lambda x: np.array([logsumexp(row) for row in joint(rbm, x, states(3))])  # noqa: E731
    for row, value in zip(ROWS, values, strict=True):
        flipped = np.abs(row[None] - np.eye(4))
        by_hand = np.sum(minus_f(row[None]) - np.logaddexp(minus_f(row[None]), minus_f(flipped)))
        assert value == pytest.approx(by_hand, rel=1e-9)
    np.testing.assert_array_equal(likelihood.pseudo_log_likelihood(rbm, ROWS[ORDER]), values[ORDER])


def test_an_estimators_rows_come_in_blocks(rbm, monkeypatch):
    estimator = RBM(n_components=3).adopt(rbm, {"n_features": 4})
    monkeypatch.setattr(rows, "BLOCK", 3)
    field = (ROWS - np.asarray(rbm.visible_offset)) @ np.asarray(rbm.weights)
    codes = 1 / (1 + np.exp(-field - np.asarray(rbm.hidden.bias)))
    np.testing.assert_allclose(estimator.transform(ROWS), codes, rtol=1e-5)
    np.testing.assert_allclose(estimator.score_samples(ROWS), log_p(rbm, ROWS), rtol=1e-5)
    assert estimator.score(ROWS) == pytest.approx(log_p(rbm, ROWS).mean(), rel=1e-5)
    assert len(estimator.inverse_transform(codes)) == 7


# -- estimates with random numbers -----------------------------------------------------------------------------


def test_annealed_rows_keep_their_own_numbers(dbm, monkeypatch):
    betas = annealing.path(4)
    call = lambda: evidence.by_rows(evidence._bracketed, dbm, ROWS, betas, 3, key=KEY)  # noqa: E731
    _, forward, reverse = of_any_size(monkeypatch, evidence, "_ROWS", call, sizes=(3, 100))
    assert forward.shape == reverse.shape == (7, evidence.N_RUNS)
    same = np.repeat(ROWS[:1], 7, axis=0)  # rows that are alike still have random numbers of their own
    _, forward, reverse = evidence.by_rows(evidence._bracketed, dbm, same, betas, 3, key=KEY)
    own_numbers(forward, reverse)


def own_numbers(forward, reverse):
    """Of rows that are alike: each row has its own numbers, and so has each run."""
    together = np.concatenate([forward, reverse], axis=1).round(9)
    assert len(np.unique(together, axis=0)) == 7
    for drawn in (forward, reverse):
        assert (drawn[:, 0] != drawn[:, 1]).sum() > 3


def test_both_ways_of_every_run_have_keys_of_their_own(dbm, monkeypatch):
    monkeypatch.setattr(
        evidence, "anneal_chain", lambda *args, key: (jax.random.uniform(key, (), jnp.float64), None, None)
    )
    monkeypatch.setattr(jax.lax, "scan", lambda body, z, xs: (z, None))  # nothing settles
    with double():
        part, keys = batch_to_double(np.repeat(ROWS[:1], 3, axis=0)), jax.random.split(KEY, 3)
        run = jax.jit(lambda: evidence._bracketed.__wrapped__(to_double(dbm), part, keys, jnp.zeros(2), 1)[1:])
        forward, reverse = map(np.asarray, run())  # offset + u and offset − u′, u and u′ drawn by the keys
    for drawn in (forward, reverse, forward + reverse):
        assert len(np.unique(drawn.round(12))) == drawn.size == 6


def test_latent_annealing_has_whole_blocks_and_keys_of_its_own(vae, monkeypatch):
    options = {"key": KEY, "n_temperatures": 3, "n_steps": 2, "n_chains": 2, "n_leapfrog": 1}
    call = lambda x=ROWS: latent_annealing.bracket(vae, x, **options)  # noqa: E731
    forward, reverse = of_any_size(monkeypatch, latent_annealing, "_ROWS", call, sizes=(3, 100))
    assert forward.shape == reverse.shape == (7, 2)
    own_numbers(*call(np.repeat(ROWS[3:4], 7, axis=0)))


def test_importance_bounds_by_hand_in_any_block_and_chunk(vae, monkeypatch):
    k, codes = 5, importance.fingerprints(ROWS)

    def log_weights(x, code):
        q, key = vae64.recognise(x), jax.random.fold_in(KEY, code)
        draw = lambda i: q.sample(key=jax.random.fold_in(key, i))  # noqa: E731
        return jax.vmap(lambda i: -vae64.energy(x, draw(i)) - q.log_prob(draw(i)))(jnp.arange(k))

    with double():
        vae64 = to_double(vae)
        log_w = np.asarray(jax.jit(jax.vmap(log_weights))(batch_to_double(ROWS), jnp.asarray(codes)))
    w = np.exp(log_w)
    assert len(np.unique(log_w.round(9))) > 14  # draws differ within a row and between rows
    by_hand = np.log(w.mean(axis=1)), w.var(axis=1) / (k * w.mean(axis=1) ** 2), log_w.mean(axis=1)
    for block, draws in ((3, 100), (100, 16), (100, 1)):  # chunks of all five, of two and of one draw
        monkeypatch.setattr(importance, "_ROWS", block)
        monkeypatch.setattr(importance, "_DRAWS", draws)
        found = importance.row_bounds(vae, ROWS, key=KEY, n_samples=k)
        for value, wanted in zip(found, by_hand, strict=False):
            np.testing.assert_allclose(value, wanted, rtol=1e-9, atol=1e-12)
        assert found.stderr == pytest.approx(np.sqrt(by_hand[1].sum()) / 7, rel=1e-9)
    few = importance.row_bounds(vae, ROWS[[5, 2, 5, 5]], key=KEY, n_samples=k)  # equal rows err alike
    np.testing.assert_allclose(few.iwae, by_hand[0][[5, 2, 5, 5]], rtol=1e-9)
    assert few.stderr == pytest.approx(np.sqrt(9 * by_hand[1][5] + by_hand[1][2]) / 4, rel=1e-9)
    exact = importance.exact_rows(vae, ROWS)
    np.testing.assert_allclose(importance.exact_rows(vae, ROWS[ORDER]), exact[ORDER], rtol=1e-12)
    assert (by_hand[2] <= by_hand[0]).all()
    assert by_hand[2].mean() < exact.mean()


class Slots(eqx.Module):
    """Remembers in x the random number of every sweep."""

    def reduced_energy(self, x, z):
        return jnp.zeros(())

    def sweep(self, x, z, *, key):
        return jnp.roll(x, 1).at[0].set(jax.random.uniform(key)), z


def test_every_chain_and_every_temperature_draws_anew(monkeypatch):
    monkeypatch.setattr(annealing.tempering, "at", lambda base, model, beta: model)
    betas = jnp.linspace(0, 1, 6)
    _, x, _ = annealing.anneal(Slots(), Slots(), betas, jnp.zeros((4, 5)), jnp.zeros((4, 1)), key=KEY)
    assert len(np.unique(x)) == 20


# -- a changed model is evaluated anew -------------------------------------------------------------------------


def changed_by_adopting(estimator):
    estimator.adopt(machine(7), {"n_features": 4})


def changed_by_assignment(estimator):
    estimator.model_ = machine(8)


def changed_by_fitting(estimator):
    estimator.fit(np.repeat(ROWS[:2], 10, axis=0))


def changed_by_a_pass(estimator):
    estimator.partial_fit(np.repeat(ROWS[2:4], 10, axis=0))


WAYS = [changed_by_adopting, changed_by_assignment, changed_by_fitting, changed_by_a_pass]


@pytest.mark.parametrize("change", WAYS)
def test_what_was_remembered_of_another_model_is_not_used(change):
    estimator = RBM(n_components=3, n_epochs=1, batch_size=20, random_state=0, monitor=None, learning_rate=5.0)
    estimator.fit(np.repeat(ROWS, 3, axis=0)[:20])
    for _ in range(2):
        before = estimator.log_z()
        assert estimator.log_z() is before  # remembered
        found = estimator.log_likelihood(ROWS)
        assert found.estimate == pytest.approx(log_p(estimator.model_, ROWS).mean(), rel=1e-9)
        assert f"<b>{found.estimate:.2f}".replace("-", "−") in notebook.card(estimator)
        change(estimator)
        assert "Mean log-likelihood" not in notebook.card(estimator)
        np.testing.assert_allclose(estimator.score_samples(ROWS), log_p(estimator.model_, ROWS), rtol=1e-4)
        assert estimator.log_z() is not before


@pytest.mark.parametrize("network", [RBM(3), DBN((3, 2))], ids=["rbm", "dbn"])
def test_a_normaliser_that_was_asked_for_is_the_one_that_scores_use(network, monkeypatch):
    network.adopt(network.build({"n_features": 4}), {"n_features": 4})
    found = []

    def log_z(model, **options):
        found.append(likelihood.LogZ(0.0, 2.0, options.get("n_chains", 0.0), 0.5, "stub"))
        return found[-1]

    monkeypatch.setattr(likelihood, "log_z", log_z)
    first = network.log_z(n_chains=1)
    assert network.log_z() is first
    plain = network.score_samples(ROWS)
    assert network.log_z(n_chains=2) is not first
    np.testing.assert_allclose(network.score_samples(ROWS), plain - 1)
    assert len(found) == 2


def test_a_networks_normaliser_is_that_of_its_own_top():
    network = DBN((3, 2))
    first, second = (network.build({"n_features": 4}, seed=seed) for seed in (0, 1))
    bias = second.top.hidden.bias + 1.0
    second = eqx.tree_at(lambda m: m.top.hidden.bias, second, bias)
    network.adopt(first, {"n_features": 4})
    before = network.log_z().estimate
    network.model_ = second
    assert network.log_z().estimate == pytest.approx(enumeration.log_z(second.top).estimate)
    assert abs(network.log_z().estimate - before) > 0.1


def test_all_parts_of_an_estimate_have_keys_of_their_own(rbm, vae, monkeypatch):
    keys = {"caller": KEY}

    def spy(name, result):
        return lambda *args, key, **options: keys.setdefault(name, key) is None or result(*args)

    class Reached(Exception):
        pass

    def stop(*args):
        raise Reached

    z = likelihood.LogZ(0.0, 0.0, 0.0, 0.0, "stub")
    monkeypatch.setattr(undirected, "log_z", spy("log Z", lambda *_: z))
    monkeypatch.setattr(undirected, "evidence", spy("evidence", stop))
    with pytest.raises(Reached):
        likelihood.log_likelihood(rbm, ROWS, key=KEY)
    monkeypatch.setattr(importance, "row_bounds", spy("bounds", lambda *_: None))
    monkeypatch.setattr(latent_annealing, "bracket", spy("bracket", stop))
    with pytest.raises(Reached):
        importance.log_likelihood(vae, ROWS, key=KEY, method="ais")
    blank = likelihood.Equilibrium(ROWS, ROWS[:, :3], ROWS, 1.0, 1.0, 0.0)
    monkeypatch.setattr(ais, "equilibrium", spy("equilibrium", lambda *_: blank))
    ways = iter(("forward", "reverse"))
    monkeypatch.setattr(
        ais, "anneal", lambda *args, key: (keys.setdefault(next(ways), key) is None or np.zeros(7), None, None)
    )
    ais.log_z(rbm, key=jax.random.key(99), n_chains=7)
    assert set(keys) == {"caller", "log Z", "evidence", "bounds", "bracket", "equilibrium", "forward", "reverse"}
    together = [
        {"caller", "log Z", "evidence"},
        {"caller", "bounds", "bracket"},
        {"equilibrium", "forward", "reverse"},
    ]
    for names in together:
        assert len({tuple(np.asarray(jax.random.key_data(keys[name])).ravel()) for name in names}) == 3
