"""Up–down: its gradients written out in NumPy, its samples against enumeration, and the exact bound it raises."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import N_DRAWS, chi_square, close, perturbed, quick
from scipy.special import expit, logsumexp

from latentia import units
from latentia.core import parameters
from latentia.core.algorithms import require
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.parameters import trainable
from latentia.core.space import enumerate_states
from latentia.energies.belief_net import DBNModel
from latentia.energies.rbm import RBMModel
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.up_down import ContrastiveWakeSleep, up_down
from latentia.likelihood.precision import double
from latentia.ops.arrays import cast_like

N_BATCH = 16


@pytest.fixture
def x64():
    with double():
        yield


def network(sizes=(4, 3, 3, 2), *, visible="bernoulli", n_labels=None, seed=0, tied=False) -> DBNModel:
    """A network at random parameters, offsets included."""
    layers = [units.make(visible, sizes[0], 3), *(units.make("bernoulli", n) for n in sizes[1:])]
    model = perturbed(DBNModel.make(layers, key=jax.random.key(0), n_labels=n_labels), seed)
    if not tied:
        return model
    weights = tuple(layer.weights.T for layer in model.generative)
    return eqx.tree_at(lambda m: tuple(layer.weights for layer in m.recognition), model, weights)


def without_offsets(model):
    drop = lambda leaf, role: jnp.zeros_like(leaf) if role == parameters.BUFFER else leaf  # noqa: E731
    return jax.tree.map(drop, model, parameters.roles(model))


def batch(model, n=N_BATCH, seed=0):
    rng = np.random.default_rng(seed)
    dtype = model.top.weights.dtype
    x = jnp.asarray(rng.integers(0, 2, (n, model.layers[0].n_statistics)), dtype)
    if model.n_labels is None:
        return x
    return x, jnp.asarray(np.eye(model.n_labels)[rng.integers(0, model.n_labels, n)][:, None, :], dtype)


@quick
def prepared(objective, model, x, key):
    begin, step = jax.random.split(key)
    return objective.prepare(model, x, objective.init(model, x, key=begin), key=step)


@quick
def gradient(objective, model, x, weights, state):
    params, rest = eqx.partition(model, trainable(model))
    return eqx.filter_grad(lambda p: objective.loss(eqx.combine(p, rest), x, weights, state)[0])(params)


def states(space):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), enumerate_states(space))


def index_of(points, values):
    table = {np.asarray(row, np.float64).tobytes(): i for i, row in enumerate(points)}
    return np.array([table[np.asarray(row, np.float64).tobytes()] for row in values])


def arrays(*values):
    return [np.asarray(v, np.float64) for v in values]


# -- gradients ------------------------------------------------------------------------------------------


def delta_rule(layer, target, source, weights):
    """⟨(s − p) (t − λ)ᵀ⟩ and ⟨s − p⟩: what raises log p(target | source) of Bernoulli units."""
    matrix, offset, bias = arrays(layer.weights, layer.offset, layer.units.bias)
    target, source = arrays(target, source)
    error = weights[:, None] * (target - expit((source - offset) @ matrix.T + bias))
    return error.T @ (source - offset) / len(target), error.mean(0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("offsets", [False, True])
@pytest.mark.parametrize("tied", [True, False])
def test_directed_layers_learn_by_the_delta_rule(x64, tied, offsets, weighted):
    model = network(tied=tied, seed=1)
    model = model if offsets else without_offsets(model)
    objective, x = up_down(2), batch(model)
    weights = np.random.default_rng(2).dirichlet(np.ones(N_BATCH)) * N_BATCH if weighted else np.ones(N_BATCH)
    state = prepared(objective, model, x, jax.random.key(0))
    found = gradient(objective, model, x, jnp.asarray(weights) if weighted else None, state)
    path = state.climbed
    np.testing.assert_array_equal(path[0], x)
    for level, layer in enumerate(model.generative):  # ⟨s^{l+1} (s^l − p^l)⟩ on the way up
        matrix, bias = delta_rule(layer, path[level], path[level + 1], weights)
        close(found.generative[level].weights, -matrix, tolerance=1e-12)
        close(found.generative[level].units.bias, -bias, tolerance=1e-12)
        assert np.abs(matrix).max() > 1e-2
    dream = state.dreamt
    for level, layer in enumerate(model.recognition):  # ⟨s^l (s^{l+1} − q^{l+1})⟩ on the way down
        matrix, bias = delta_rule(layer, dream[level + 1], dream[level], weights)  # a dream of a row is as its row
        close(found.recognition[level].weights, -matrix, tolerance=1e-12)
        close(found.recognition[level].units.bias, -bias, tolerance=1e-12)
    assert found.generative[0].offset is None
    assert found.recognition[0].offset is None


def test_the_discriminative_term_is_the_exact_log_probability_of_the_label(x64):
    model = network(n_labels=3, seed=2)
    x, weight = batch(model), 1.75
    generative, hybrid = up_down(3), ContrastiveWakeSleep(up_down(3).top, weight)
    state = prepared(generative, model, x, jax.random.key(1))
    labels, top = np.asarray(x[1], np.float64).reshape(N_BATCH, 3), model.top
    matrix, mu, lam, hidden = arrays(top.weights, top.visible_offset, top.hidden_offset, top.hidden.bias)
    visible = np.concatenate([np.asarray(part.bias, np.float64).reshape(-1) for part in top.visible.parts])

    def wanted(lowest):  # with the given weights in the lowest recognition layer
        means = np.asarray(x[0], np.float64)
        for level, layer in enumerate(model.recognition):
            weights, offset, bias = arrays(layer.weights, layer.offset, layer.units.bias)
            means = expit((means - offset) @ (weights if level else lowest).T + bias)

        def log_weight(label):  # log Σ_h exp(−E(h^{L−1}, y, h)), every state of the hidden layer counted
            v = np.concatenate([means, np.broadcast_to(np.eye(3)[label], (N_BATCH, 3))], axis=1)
            h = states(top.z_space)
            energies = -(v @ visible)[:, None] - (h @ hidden)[None, :] - (v - mu) @ matrix @ (h - lam).T
            return np.log(np.exp(-energies).sum(axis=1))

        logs = np.stack([log_weight(label) for label in range(3)], axis=1)
        return -np.mean(np.sum(labels * (logs - np.log(np.exp(logs).sum(1, keepdims=True))), axis=1))

    lowest = np.asarray(model.recognition[0].weights, np.float64)
    plain, _ = generative.loss(model, x, None, state)
    both, metrics = hybrid.loss(model, x, None, state)
    close(metrics["label"], wanted(lowest), tolerance=1e-10)
    close(both - plain, weight * wanted(lowest), tolerance=1e-10)
    assert wanted(lowest) > 0.1
    # The way up learns from it too.
    without, with_label = (gradient(goal, model, x, None, state) for goal in (generative, hybrid))
    found = with_label.recognition[0].weights - without.recognition[0].weights
    step = 1e-5 * np.eye(lowest.size)[2].reshape(lowest.shape)
    slope = (wanted(lowest + step) - wanted(lowest - step)) / 2e-5
    close(found.reshape(-1)[2], weight * slope, tolerance=1e-7)
    assert abs(slope) > 1e-4
    close(with_label.generative[0].weights, without.generative[0].weights, tolerance=1e-12)


def test_a_discriminative_term_without_labels_is_refused(x64):
    model = network(seed=2)
    hybrid, x = ContrastiveWakeSleep(up_down(1).top, 1.0), batch(model)
    with pytest.raises(ParameterError, match="label"):
        hybrid.loss(model, x, None, prepared(hybrid, model, x, jax.random.key(1)))


@pytest.mark.parametrize("n_labels", [None, 3])
def test_the_top_learns_by_contrast_from_where_the_climb_ends(x64, n_labels):
    model = network(n_labels=n_labels, seed=2)
    objective, x = up_down(3), batch(model)
    state = prepared(objective, model, x, jax.random.key(1))
    found = gradient(objective, model, x, None, state).top
    top = model.top
    matrix, mu, lam, bias = arrays(top.weights, top.visible_offset, top.hidden_offset, top.hidden.bias)

    def statistics(visible):
        visible = [np.asarray(v, np.float64).reshape(N_BATCH, -1) for v in jax.tree.leaves(visible)]
        centred = np.concatenate(visible, axis=1) - mu
        hidden = expit(centred @ matrix + bias)
        return centred.T @ (hidden - lam) / N_BATCH, hidden.mean(0), centred.mean(0)

    reached = state.climbed[-1] if n_labels is None else (state.climbed[-1], x[1])
    data, model_ = statistics(reached), statistics(state.top.chains.x)
    close(found.weights, model_[0] - data[0], tolerance=1e-12)
    close(found.hidden.bias, model_[1] - data[1], tolerance=1e-12)
    biases = found.visible.bias if n_labels is None else [part.bias.reshape(-1) for part in found.visible.parts]
    close(np.concatenate(biases) if n_labels else biases, model_[2] - data[2], tolerance=1e-12)
    np.testing.assert_array_equal(state.dreamt[-1], jax.tree.leaves(state.top.chains.x)[0])


def test_real_visibles_learn_their_scale_awake_and_not_asleep(x64):
    model = network((3, 2, 2), visible="gaussian", seed=3)
    objective = up_down(1)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(N_BATCH, 3)))
    state = prepared(objective, model, x, jax.random.key(0))
    found = gradient(objective, model, x, None, state)
    layer = model.generative[0]
    matrix, offset, location, log_sigma, centre, scale = arrays(
        layer.weights,
        layer.offset,
        layer.units.location,
        layer.units.log_sigma,
        layer.units.data_mean,
        layer.units.data_scale,
    )
    h = np.asarray(state.climbed[1])
    residual = (np.asarray(x) - centre) / scale - location - (h - offset) @ matrix.T
    precision = np.exp(-2 * log_sigma)
    close(found.generative[0].units.location, -(residual * precision).mean(0), tolerance=1e-12)
    close(found.generative[0].units.log_sigma, (1 - residual**2 * precision).mean(0), tolerance=1e-12)
    close(found.generative[0].weights, -(residual * precision).T @ (h - offset) / N_BATCH, tolerance=1e-12)


@pytest.mark.parametrize("persistent", [False, True])
def test_the_metrics_are_the_terms_of_the_surrogate(x64, persistent):
    """Chains and dreams that began at a row count as much as it does; chains that persist all count alike."""
    model = network(seed=4)
    objective, x = up_down(1, persistent=persistent), batch(model)
    weights = jnp.asarray(np.random.default_rng(2).dirichlet(np.ones(N_BATCH)) * N_BATCH)
    state = prepared(objective, model, x, jax.random.key(0))
    loss, metrics = objective.loss(model, x, weights, state)
    gap = np.asarray(weights) @ jax.vmap(model.top.free_energy)(state.climbed[-1]) / N_BATCH
    shares = np.ones(N_BATCH) if persistent else np.asarray(weights)
    gap -= np.mean(shares * jax.vmap(model.top.free_energy)(state.top.chains.x))
    close(metrics["energy_gap"], gap, tolerance=1e-12)
    wake = np.asarray(weights) @ jax.vmap(model.generative_energy)(state.climbed) / N_BATCH
    close(metrics["wake"], wake, tolerance=1e-12)
    asleep = jax.vmap(model.recognition_energy)(state.dreamt)
    close(metrics["sleep"], np.mean(shares * np.asarray(asleep)), tolerance=1e-12)
    if not persistent:  # the others enter the loss with a block summed out, for less noise
        close(loss, metrics["energy_gap"] + metrics["wake"] + metrics["sleep"], tolerance=1e-12)


# -- samples --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
def test_climb_chains_and_dreams_have_the_exact_distributions(x64, k):
    """A batch of copies of one row: h ~ q(h | x), chains ~ q Tᵏ, dreams ~ q Tᵏ p(x | h)."""
    model = network((3, 2, 2), seed=5)
    row = np.array([1.0, 0.0, 1.0])
    x = jnp.asarray(np.repeat(row[None], N_DRAWS, 0))
    state = prepared(up_down(k), model, x, jax.random.key(3))
    low, high, hidden = (states(s) for s in (model.x_space, model.z_space[0], model.z_space[1]))
    matrix, offset, bias = arrays(
        model.recognition[0].weights, model.recognition[0].offset, model.recognition[0].units.bias
    )
    mean = expit(matrix @ (row - offset) + bias)
    q = np.prod(np.where(high == 1, mean, 1 - mean), axis=1)
    assert chi_square(np.bincount(index_of(high, state.climbed[1]), minlength=len(high)), q) > 1e-5

    joint = np.exp(-np.asarray(jax.vmap(lambda v: jax.vmap(lambda h: model.top.energy(v, h))(hidden))(high)))
    up, down = joint / joint.sum(1, keepdims=True), (joint / joint.sum(0)).T
    reached = q @ np.linalg.matrix_power(up @ down, k)
    assert chi_square(np.bincount(index_of(high, state.top.chains.x), minlength=len(high)), reached) > 1e-5
    np.testing.assert_array_equal(state.dreamt[1], state.top.chains.x)

    matrix, offset, bias = arrays(
        model.generative[0].weights, model.generative[0].offset, model.generative[0].units.bias
    )
    p = expit((high - offset) @ matrix.T + bias)
    below = np.stack([np.prod(np.where(value == 1, p, 1 - p), axis=1) for value in low], axis=1)
    pairs = index_of(high, state.dreamt[1]) * len(low) + index_of(low, state.dreamt[0])
    wanted = (reached[:, None] * below).ravel()
    assert chi_square(np.bincount(pairs, minlength=wanted.size), wanted) > 1e-5


@pytest.mark.parametrize("persistent", [False, True])
def test_climbs_chains_dreams_rows_and_steps_have_random_numbers_of_their_own(x64, persistent):
    """Without weights and biases every bit is a fair coin: any two that share a key would agree."""
    zero = lambda leaf: jnp.zeros_like(leaf) if eqx.is_inexact_array(leaf) else leaf  # noqa: E731
    model = jax.tree.map(zero, network((6, 6, 6, 6), seed=6))
    objective, x = up_down(1, persistent=persistent), jnp.ones((2000, 6))
    first = prepared(objective, model, x, jax.random.key(0))
    second = prepared(objective, model, x, jax.random.key(1))
    drawn = [
        *first.climbed[1:],
        first.top.chains.x,
        first.top.chains.z,
        *first.dreamt[:-1],
        second.climbed[1],
        second.dreamt[0],
    ]
    drawn = [np.asarray(d) for d in drawn]
    drawn.append(np.roll(drawn[0], 1, axis=0))
    drawn.append(np.roll(drawn[4], 1, axis=0))
    for i, a in enumerate(drawn):
        assert abs(a.mean() - 0.5) < 5 * 0.5 / np.sqrt(a.size)
        for b in drawn[:i]:
            assert abs((a == b).mean() - 0.5) < 5 * 0.5 / np.sqrt(a.size)


def copying(model: DBNModel) -> DBNModel:
    """The network with a top whose sweeps change nothing: hidden unit j copies visible unit j, and back."""
    n = model.top.weights.shape[0]
    layers = [units.Bernoulli(jnp.full(n, -50.0)) for _ in range(2)]
    top = RBMModel(*layers, 100.0 * jnp.eye(n), jnp.zeros(n), jnp.zeros(n))
    return eqx.tree_at(lambda m: m.top, model, top)


def test_chains_start_at_the_climbs_end_or_go_on_where_they_were(x64):
    model = copying(network(seed=7))
    x, keys = batch(model), jax.random.split(jax.random.key(0), 2)
    fresh = up_down(3)
    state = fresh.prepare(model, x, fresh.init(model, x, key=keys[0]), key=keys[1])
    np.testing.assert_array_equal(state.top.chains.x, state.climbed[-1])

    persistent = up_down(3, persistent=True, n_chains=40)
    begin = persistent.init(model, x, key=keys[0])
    assert begin.top.chains.x.shape == (40, 3)
    assert begin.dreamt[0].shape == (40, 4)
    after = persistent.prepare(model, x, begin, key=keys[1])
    np.testing.assert_array_equal(after.top.chains.x, begin.top.chains.x)
    np.testing.assert_array_equal(after.dreamt[-1], begin.top.chains.x)
    assert not np.array_equal(after.climbed[1], begin.climbed[1])
    assert np.isfinite(float(persistent.loss(model, x, None, after)[0]))


def test_models_without_the_capability_are_refused():
    machine = RBMModel.make(units.make("bernoulli", 3), units.make("bernoulli", 2), key=jax.random.key(0))
    with pytest.raises(CapabilityError, match=r"needs UpDown \(.*climb.*descend"):
        require(up_down(), machine)
    assert ContrastiveWakeSleep().top.n_steps == 1


# -- learning -------------------------------------------------------------------------------------------


def exact_bound(model, x):
    """mean_x Σ_h q(h | x) [log p(x, h) − log q(h | x)], normalised, everything enumerated."""
    directed = jax.tree.map(jnp.asarray, states(model.z_space[:-1]))
    cast = lambda a: a.astype(model.top.weights.dtype)  # noqa: E731
    directed = jax.tree.map(cast, directed)

    def one(x):
        pixels = x if model.n_labels is None else x[0]
        log_q = -jax.vmap(lambda *z: model.recognition_energy((pixels, *z)))(*directed)
        return jnp.sum(jnp.exp(log_q) * (jax.vmap(lambda *z: model.log_joint(x, z))(*directed) - log_q))

    visible = jax.tree.map(lambda a: cast(jnp.asarray(a)), states(model.top.x_space))
    log_z = jax.scipy.special.logsumexp(-jax.vmap(model.top.free_energy)(visible))
    return jnp.mean(jax.vmap(one)(x)) - log_z


@eqx.filter_jit
def learn(learner, model, x, n_steps, key):
    """(bound before, bound after)."""
    state = learner.init(model, x, key=key)
    arrays, static = eqx.partition((model, state), eqx.is_array)

    def step(arrays, key):
        model, state = eqx.combine(arrays, static)
        model, state, _ = learner.step(model, x, None, state, key=key, since=1)
        return eqx.filter((model, state), eqx.is_array), None

    arrays, _ = jax.lax.scan(step, arrays, jax.random.split(key, n_steps))
    return exact_bound(model, x), exact_bound(eqx.combine(arrays, static)[0], x)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("n_labels", [None, 2])
def test_up_down_raises_the_exact_bound(n_labels, persistent):
    rng = np.random.default_rng(0)
    patterns = np.array([[1, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]], np.float32)
    chosen = rng.integers(0, 3, 64)
    x = jnp.asarray(np.abs(patterns[chosen] - (rng.random((64, 4)) < 0.05)).astype(np.float32))
    if n_labels:
        x = (x, jnp.asarray(np.eye(2, dtype=np.float32)[(chosen == 2).astype(int)][:, None, :]))
    optimizer = Optimizer.make("sgd", learning_rate=0.1, n_steps=300)
    learner = GradientLearner(up_down(1, persistent=persistent), optimizer)
    gains = []
    for seed in range(5):
        model = network((4, 3, 3), n_labels=n_labels, seed=20 + seed)
        before, after = learn(learner, model, cast_like(x, model), 300, jax.random.key(seed))
        gains.append(float(after - before))
    assert min(gains) > 0
    assert np.mean(gains) > 5 * np.std(gains) / np.sqrt(len(gains))


def test_the_oracle_is_the_likelihood_where_the_bound_is_tight(x64):
    """An RBM unrolled once: its recognition net is its posterior."""
    layers = units.make("bernoulli", 3), units.make("bernoulli", 2)
    machine = perturbed(RBMModel.make(*layers, key=jax.random.key(0)), 0)
    other = RBMModel(
        machine.hidden, machine.visible, machine.weights.T, machine.hidden_offset, machine.visible_offset
    )
    x = states(machine.x_space)
    free = np.asarray(jax.vmap(machine.free_energy)(x))
    found = exact_bound(DBNModel.from_stack([machine, other]), jnp.asarray(x))
    close(found, np.mean(-free - logsumexp(-free)), tolerance=1e-12)
