"""Gradients, chains, tempering and optimisers against enumeration, exact kernels and Optax used directly."""

from __future__ import annotations

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from conformance_oracles import N_DRAWS, chi_square, close, perturbed, quick, toy_rows
from scipy.special import expit, logsumexp

from latentia import samplers, units
from latentia.core import parameters
from latentia.core.capabilities import Conditionals, FreeEnergy, Tempered
from latentia.core.parameters import trainable, weight
from latentia.core.space import Space
from latentia.energies.rbm import RBMModel
from latentia.learning import contrastive
from latentia.learning.contrastive import ContrastiveState
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import SCALE_RATE, Optimizer
from latentia.likelihood import enumeration
from latentia.likelihood.precision import double
from latentia.models.rbm import RBM
from latentia.samplers.gibbs import GibbsState
from latentia.samplers.tempering import ParallelTempering, SwapInfo, TemperingState

N_VISIBLE, N_HIDDEN = 5, 4
STATES = np.array(list(itertools.product((0.0, 1.0), repeat=N_VISIBLE)))
LATENT_STATES = np.array(list(itertools.product((0.0, 1.0), repeat=N_HIDDEN)))


@pytest.fixture
def x64():
    with double():
        yield


def binary_machine(n_visible: int, n_hidden: int, seed: int = 0, gain: float = 1.0) -> RBMModel:
    """A Bernoulli RBM at random parameters, offsets included."""
    layers = units.make("bernoulli", n_visible), units.make("bernoulli", n_hidden)
    model = perturbed(RBMModel.make(*layers, key=jax.random.key(0)), seed)
    return eqx.tree_at(lambda m: m.weights, model, gain * model.weights)


def data_rows(n: int = 8) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 2, (n, N_VISIBLE)).astype(float)


@quick
def _gradient(objective, model, x, state):
    """The autodiff gradient of the objective's own loss at its own chains."""
    params, rest = eqx.partition(model, trainable(model))
    return eqx.filter_grad(lambda p: objective.loss(eqx.combine(p, rest), x, None, state)[0])(params)


@quick
def _surrogates(model, x, weights):
    """The surrogate's gradient with each state in turn as every row's sample: the loss is linear in the samples."""
    latents = jnp.zeros((len(STATES), N_HIDDEN), x.dtype)
    return _gradients_at(contrastive.cd(), model, x, weights, (jnp.asarray(STATES, x.dtype), latents))


@quick
def _latent_surrogates(model, x, weights):
    """The same for persistent chains, whose latents carry the gradient."""
    latents = jnp.asarray(LATENT_STATES, x.dtype)
    return _gradients_at(contrastive.pcd(), model, x, weights, (jnp.zeros((len(latents), N_VISIBLE)), latents))


def _gradients_at(objective, model, x, weights, states):
    def one(sample, latent):
        chains = GibbsState(*(jnp.repeat(each[None], len(x), axis=0) for each in (sample, latent)))
        state = ContrastiveState(chains, samplers.Gibbs(), {})
        params, rest = eqx.partition(model, trainable(model))
        return eqx.filter_grad(lambda p: objective.loss(eqx.combine(p, rest), x, weights, state)[0])(params)

    return jax.vmap(one)(*states)


@quick
def _exact_gradient(model, x, weights):
    """−∇ mean log p(x), with log Z summed over all states inside autodiff."""
    params, rest = eqx.partition(model, trainable(model))

    def loss(params):
        model = eqx.combine(params, rest)
        log_z = jax.scipy.special.logsumexp(-jax.vmap(model.free_energy)(jnp.asarray(STATES, x.dtype)))
        return jnp.mean(weights * jax.vmap(model.free_energy)(x)) + log_z

    return eqx.filter_grad(loss)(params)


def averaged(gradients, p):
    return jax.tree.map(lambda g: np.tensordot(p, np.asarray(g), axes=1), gradients)


def vector(tree) -> np.ndarray:
    return np.concatenate([np.asarray(leaf, np.float64).ravel() for leaf in jax.tree.leaves(tree)])


def numpy_energy(model: RBMModel, x, z, beta: float = 1.0) -> np.ndarray:
    """E of a Bernoulli RBM, all pairs, written out; β multiplies the coupling (the base has none)."""
    a, b, w = (np.asarray(p, np.float64) for p in (model.visible.bias, model.hidden.bias, model.weights))
    mu, lam = np.asarray(model.visible_offset, np.float64), np.asarray(model.hidden_offset, np.float64)
    return -(x @ a)[:, None] - (z @ b)[None, :] - beta * (x - mu) @ w @ (z - lam).T


def transition_matrix(model: RBMModel) -> tuple[np.ndarray, np.ndarray]:
    """(p, T) of the visibles under one sweep z | x, x | z, from the joint energies alone."""
    joint = np.exp(-numpy_energy(model, STATES, LATENT_STATES))
    p = joint.sum(1) / joint.sum()
    return p, (joint / joint.sum(1, keepdims=True)) @ (joint / joint.sum(0, keepdims=True)).T


def latent_marginal(model: RBMModel) -> np.ndarray:
    """p(z), from the joint energies alone."""
    joint = np.exp(-numpy_energy(model, STATES, LATENT_STATES))
    return joint.sum(0) / joint.sum()


# -- the surrogate -----------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_with_exact_samples_the_surrogate_has_the_exact_gradient(weighted):
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    x = data_rows()
    weights = np.random.default_rng(2).dirichlet(np.ones(8)) * 8 if weighted else None
    p, _ = transition_matrix(model)
    found = averaged(_surrogates(model, x, weights), p)
    wanted = _exact_gradient(model, x, np.ones(8) if weights is None else weights)
    close(vector(found), vector(wanted), tolerance=1e-10)
    assert np.abs(vector(wanted)).max() > 0.05
    assert {len(np.ravel(leaf)) for leaf in jax.tree.leaves(found)} == {5, 4, 20}  # biases and weights, no offsets


@pytest.mark.usefixtures("x64")
def test_cd_tends_to_the_exact_gradient_as_k_grows():
    model = binary_machine(N_VISIBLE, N_HIDDEN, gain=1.5)
    x = data_rows()
    index = (x @ 2 ** np.arange(N_VISIBLE)[::-1]).astype(int)
    p, kernel = transition_matrix(model)
    close(p @ kernel, p, tolerance=1e-12)
    gradients = _surrogates(model, x, None)
    exact = vector(_exact_gradient(model, x, np.ones(8)))
    bias = []
    for k in (1, 3, 10, 100):
        after = np.linalg.matrix_power(kernel, k)[index].mean(0)
        bias.append(np.linalg.norm(vector(averaged(gradients, after)) - exact))
    assert bias[0] > 1e-2  # CD-1 is biased …
    assert bias == sorted(bias, reverse=True)
    assert bias[-1] < 1e-9  # … and long chains are not


@pytest.mark.parametrize("k", [1, 3])
def test_cd_samples_are_k_exact_sweeps_from_the_data(k):
    model = binary_machine(N_VISIBLE, N_HIDDEN, gain=2.0)
    _, kernel = transition_matrix(model)
    objective = contrastive.cd(k)
    start = STATES[19]
    x = np.repeat(start[None], N_DRAWS, axis=0).astype(np.float32)

    @quick
    def run(model, x, elsewhere):
        state = objective.init(model, elsewhere, key=jax.random.key(0))  # CD must forget where it was before
        return objective.prepare(model, x, state, key=jax.random.key(1))

    state = run(model, x, np.zeros_like(x))
    drawn = np.asarray(jax.vmap(state.sampler.visible)(state.chains))
    counts = np.bincount((drawn @ 2 ** np.arange(N_VISIBLE)[::-1]).astype(int), minlength=32)
    assert chi_square(counts, np.linalg.matrix_power(kernel, k)[19]) > 1e-5
    assert chi_square(counts, np.linalg.matrix_power(kernel, 4 - k)[19]) < 1e-5  # the test has the power to fail


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_with_exact_latents_the_persistent_surrogate_has_the_exact_gradient(weighted):
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    x = data_rows()
    weights = np.random.default_rng(2).dirichlet(np.ones(8)) * 8 if weighted else None
    found = averaged(_latent_surrogates(model, x, weights), latent_marginal(model))
    wanted = _exact_gradient(model, x, np.ones(8) if weights is None else weights)
    close(vector(found), vector(wanted), tolerance=1e-10)


def test_pcd_with_many_sweeps_matches_the_exact_gradient():
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    x = data_rows().astype(model.weights.dtype)
    objective = contrastive.pcd(40, n_chains=N_DRAWS)

    @quick
    def run(model, x):
        state = objective.init(model, x, key=jax.random.key(0))
        return objective.prepare(model, x, state, key=jax.random.key(1))

    state = run(model, x)
    samples = jax.vmap(state.sampler.visible)(state.chains)
    assert samples.shape == (N_DRAWS, N_VISIBLE)  # as many chains as asked for, whatever the batch
    found = vector(_gradient(objective, model, x, state))
    p = latent_marginal(model)
    parts = jax.tree.leaves(_latent_surrogates(model, x, None))
    each = np.concatenate([np.asarray(leaf).reshape(16, -1) for leaf in parts], axis=1)
    exact = p @ each
    error = np.sqrt(p @ (each - exact) ** 2 / N_DRAWS)
    close(exact, vector(_exact_gradient(model, x, np.ones(8, x.dtype))), tolerance=1e-5)
    assert np.abs((found - exact) / error).max() < 5


def test_weights_are_repeated_rows():
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    rows = data_rows(4).astype(model.weights.dtype)
    repeated = rows[[0, 0, 1, 3]]
    weights = jnp.array([2.0, 1.0, 0.0, 1.0], rows.dtype)
    optimizer = Optimizer.make("sgd", learning_rate=0.3, n_steps=10)
    learner = GradientLearner(contrastive.pcd(2, n_chains=6), optimizer, centring=0.2)

    @quick
    def step(model, x, weights):
        state = learner.init(model, jnp.asarray(rows), key=jax.random.key(0))
        return learner.step(model, x, weights, state, key=jax.random.key(1), since=1)[0]

    found, wanted, plain = step(model, rows, weights), step(model, repeated, None), step(model, rows, None)
    close(vector(found), vector(wanted), tolerance=1e-6)
    assert np.abs(vector(found) - vector(plain)).max() > 1e-3


# -- centring ----------------------------------------------------------------------------------------


def flipped(model: RBMModel) -> RBMModel:
    """The machine whose visibles are the other's with 0 and 1 exchanged, centred likewise."""
    return RBMModel(
        type(model.visible)(-model.visible.bias),
        model.hidden,
        -model.weights,
        1 - model.visible_offset,
        model.hidden_offset,
    )


@pytest.mark.usefixtures("x64")
def test_a_centred_gradient_does_not_mind_which_value_is_called_one():
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    mirror = flipped(model)
    x = data_rows()
    p, q = transition_matrix(model)[0], transition_matrix(mirror)[0]
    close(q, p[::-1], tolerance=1e-12)  # the order of STATES makes flipping a reversal
    plain = averaged(_surrogates(model, x, None), p)
    other = averaged(_surrogates(mirror, 1 - x, None), q)
    close(other.weights, -plain.weights, tolerance=1e-10)
    close(other.visible.bias, -plain.visible.bias, tolerance=1e-10)
    close(other.hidden.bias, plain.hidden.bias, tolerance=1e-10)
    # Without moving the offset along, the hidden gradient does mind: that is what centring is for.
    uncentred = mirror.recentred((jnp.zeros(N_VISIBLE), mirror.hidden_offset), 1.0)
    minds = averaged(_surrogates(uncentred, 1 - x, None), q)
    assert np.abs(minds.weights + plain.weights).max() > 1e-3


def test_learning_does_not_mind_which_value_is_called_one():
    """The whole estimator, to its noise; the test above is the exact one, and the one that tells centring apart."""
    rng = np.random.default_rng(0)
    cause = rng.random((300, 1)) < 0.8  # many ones: an uncentred machine prefers few
    rows = (cause ^ (rng.random((300, N_VISIBLE)) < 0.1)).astype(np.float32)

    def fit(X):
        machine = RBM(
            3, n_epochs=40, batch_size=30, learning_rate=0.3, n_sampler_steps=2, n_chains=100, random_state=0
        )
        return machine.fit(X).log_likelihood(X, method="exact").estimate

    direct, mirrored = fit(rows), fit(1 - rows)
    independent = np.mean(rows, axis=0)
    independent = float(np.sum(independent * np.log(independent) + (1 - independent) * np.log1p(-independent)))
    assert direct > independent + 0.03  # something was learned
    assert abs(direct - mirrored) < 0.02


@pytest.mark.parametrize("since", [0, 1, 5])
def test_offsets_follow_the_data_at_the_given_rate(since):
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    x = jnp.asarray(data_rows(), model.weights.dtype)
    optimizer = Optimizer.make("sgd", learning_rate=1e-12, n_steps=10)
    learner = GradientLearner(contrastive.cd(), optimizer, centring=0.2)

    @quick
    def step(model, x):
        state = learner.init(model, x, key=jax.random.key(0))
        new, state, _ = learner.step(model, x, None, state, key=jax.random.key(1), since=since)
        return new, state.step, jax.vmap(new.free_energy)(x), jax.vmap(model.free_energy)(x)

    new, count, *free = step(model, x)
    part = 1 - 0.8**since
    mean = np.asarray(data_rows().mean(0))
    close(new.visible_offset, (1 - part) * np.asarray(model.visible_offset) + part * mean, tolerance=1e-6)
    field = (np.asarray(x) - np.asarray(model.visible_offset)) @ np.asarray(model.weights)
    hidden = expit(field + np.asarray(model.hidden.bias)).mean(0)
    close(new.hidden_offset, (1 - part) * np.asarray(model.hidden_offset) + part * hidden, tolerance=1e-6)
    free = [np.asarray(values) for values in free]
    close(free[0] - free[0][0], free[1] - free[1][0], tolerance=1e-5)
    assert float(count) == since


# -- the formulas of MATH.md --------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_gaussian_rbm_is_the_one_written_down():
    """E = Σ(x−a)²/2σ² − Σ xWz/σ² − bᵀz; with l = 0, c = 1 and no offsets the code must be exactly that."""
    rng = np.random.default_rng(0)
    d, k = 3, 4
    a, log_sigma, b, w = rng.normal(size=d), 0.3 * rng.normal(size=d), rng.normal(size=k), rng.normal(size=(d, k))
    visible = units.Gaussian(*map(jnp.asarray, (a, log_sigma, np.zeros(d), np.ones(d))))
    model = RBMModel(visible, units.Bernoulli(jnp.asarray(b)), *map(jnp.asarray, (w, np.zeros(d), np.zeros(k))))
    s2 = np.exp(2 * log_sigma)
    x, z = rng.normal(size=d), np.array([1.0, 0.0, 1.0, 1.0])
    softplus = lambda u: np.logaddexp(0, u)  # noqa: E731
    close(model.energy(x, z), np.sum((x - a) ** 2 / (2 * s2)) - (x / s2) @ w @ z - b @ z, tolerance=1e-12)
    close(model.free_energy(x), np.sum((x - a) ** 2 / (2 * s2)) - softplus((x / s2) @ w + b).sum(), tolerance=1e-12)
    close(model.posterior(x).mean(), expit(w.T @ (x / s2) + b), tolerance=1e-12)
    close(model.decode(z), a + w @ z, tolerance=1e-12)
    states = np.array(list(itertools.product((0.0, 1.0), repeat=k)))
    wz = states @ w.T
    terms = states @ b + ((a * wz + 0.5 * wz**2) / s2).sum(1) + 0.5 * np.log(2 * np.pi * s2).sum()
    close(enumeration.log_z(model).estimate, logsumexp(terms), tolerance=1e-10)
    keys = jax.random.split(jax.random.key(0), N_DRAWS)
    drawn = np.asarray(quick(jax.vmap(lambda key: visible.sample(jnp.asarray(w @ z), key=key)))(keys))
    assert np.abs((drawn.mean(0) - (a + w @ z)) / np.sqrt(s2 / N_DRAWS)).max() < 5
    assert np.abs((drawn.var(0) / s2 - 1) / np.sqrt(2 / N_DRAWS)).max() < 5


@pytest.mark.usefixtures("x64")
def test_the_binary_rbm_is_the_one_written_down():
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    model = eqx.tree_at(
        lambda m: (m.visible_offset, m.hidden_offset), model, (jnp.zeros(N_VISIBLE), jnp.zeros(N_HIDDEN))
    )
    a, b, w = np.asarray(model.visible.bias), np.asarray(model.hidden.bias), np.asarray(model.weights)
    x = STATES[11]
    close(model.free_energy(x), -a @ x - np.logaddexp(0, x @ w + b).sum(), tolerance=1e-12)
    close(model.posterior(x).mean(), expit(w.T @ x + b), tolerance=1e-12)
    z = np.array([1.0, 0.0, 0.0, 1.0])
    close(model.decode(z), expit(w @ z + a), tolerance=1e-12)


# -- chains ------------------------------------------------------------------------------------------


class Counter(FreeEnergy, Conditionals):
    """A model whose sweep adds one, so that chains show where they have been."""

    slope: jax.Array = weight()

    @property
    def x_space(self):
        return Space("real", (1,))

    @property
    def z_space(self):
        return Space("real", (1,))

    def energy(self, x, z):
        return self.slope * jnp.sum(x + z)

    def free_energy(self, x):
        return self.slope * jnp.sum(x)

    def begin(self, x, *, key):
        return jnp.zeros(self.z_space.shape)

    def sweep(self, x, z, *, key, fixed=None):
        del key, fixed
        return x + 1, z + 1


@pytest.mark.parametrize("k", [1, 4])
def test_persistent_chains_go_on_and_cd_starts_again(k):
    model = Counter(jnp.array(1.0))
    rows = jnp.array([[10.0], [20.0]])
    for objective, persistent in ((contrastive.pcd(k), True), (contrastive.cd(k), False)):
        state = objective.init(model, rows, key=jax.random.key(0))
        first = np.asarray(state.chains.x)
        assert set(first.ravel()) <= {10.0, 20.0}
        for step in range(1, 4):
            batch = rows + 100.0 * step
            state = objective.prepare(model, batch, state, key=jax.random.key(step))
            wanted = first + k * step if persistent else np.asarray(batch) + k
            np.testing.assert_array_equal(state.chains.x, wanted)
            # and the loss reads these samples, not older ones: ∂/∂slope = mean data − mean samples
            gradient = eqx.filter_grad(lambda m, b=batch, s=state, o=objective: o.loss(m, b, None, s)[0])(model)
            close(gradient.slope, np.mean(batch) - np.mean(wanted), tolerance=1e-6)


def test_the_learner_keeps_its_chains_between_steps():
    model = Counter(jnp.array(1.0))
    rows = jnp.array([[10.0], [20.0]])
    learner = GradientLearner(contrastive.pcd(2), Optimizer.make("sgd", learning_rate=0.1, n_steps=10))
    state = learner.init(model, rows, key=jax.random.key(0))
    start = np.asarray(state.objective.chains.x)
    for step in (1, 2, 3):
        model, state, _ = learner.step(model, rows, None, state, key=jax.random.key(step), since=1)
        np.testing.assert_array_equal(state.objective.chains.x, start + 2 * step)


# -- parallel tempering ------------------------------------------------------------------------------


class Still(Tempered):
    """A machine whose sweep does nothing, so that a tempering step is its swaps alone."""

    inner: RBMModel

    @property
    def x_space(self):
        return self.inner.x_space

    @property
    def z_space(self):
        return self.inner.z_space

    def energy(self, x, z):
        return self.inner.energy(x, z)

    def begin(self, x, *, key):
        return jnp.zeros(self.z_space.shape)

    def sweep(self, x, z, *, key, fixed=None):
        del key, fixed
        return x, z

    def base(self, x=None):
        return Still(self.inner.base(x))

    def base_log_z(self):
        return self.inner.base_log_z()

    def reduced_energy(self, x, z):
        return self.inner.reduced_energy(x, z)


BETAS = np.array([0.1, 0.6, 1.0])


def joint_states(n_visible, n_hidden):
    x = np.array(list(itertools.product((0.0, 1.0), repeat=n_visible)))
    z = np.array(list(itertools.product((0.0, 1.0), repeat=n_hidden)))
    return np.repeat(x, len(z), axis=0), np.tile(z, (len(x), 1)), x, z


@pytest.mark.usefixtures("x64")
def test_swaps_are_in_detailed_balance():
    inner = binary_machine(2, 1, gain=3.0)
    xs, zs, x, z = joint_states(2, 1)
    energy = np.array([numpy_energy(inner, x, z, beta).ravel() for beta in BETAS])  # (replica, state)
    triples = np.array(list(itertools.product(range(8), repeat=3)))
    state = TemperingState(xs[triples], zs[triples])
    sampler = ParallelTempering(jnp.asarray(BETAS))
    step = quick(lambda model, state, keys: jax.vmap(lambda s, k: sampler.step(model, s, key=k))(state, keys))
    _, info = step(Still(inner), state, jax.random.split(jax.random.key(0), len(triples)))
    acceptance = np.asarray(info.acceptance)
    log_p = -np.sum([energy[r][triples[:, r]] for r in range(3)], axis=0)
    where = {tuple(t): i for i, t in enumerate(triples)}
    kernel = np.zeros((512, 512))
    for i, triple in enumerate(triples):
        for r in (0, 1):
            swapped = triple.copy()
            swapped[[r, r + 1]] = triple[[r + 1, r]]
            j = where[tuple(swapped)]
            close(acceptance[i, r], min(1.0, math.exp(log_p[j] - log_p[i])), tolerance=1e-10)
            kernel[i, j] += 0.5 * acceptance[i, r]  # even pairs or odd pairs, each half of the time
        kernel[i, i] += 1 - kernel[i].sum()
    p = np.exp(log_p - logsumexp(log_p))
    close(p[:, None] * kernel, (p[:, None] * kernel).T, tolerance=1e-14)
    assert 0.01 < acceptance.min() < 0.9  # some swaps are refused
    # The step really does what its probabilities say: from some triples, many times.
    chosen = [i for i in np.random.default_rng(0).permutation(512) if len(set(triples[i])) == 3][:10]
    start = np.repeat(triples[chosen], 2000, axis=0)
    after, _ = step(
        Still(inner), TemperingState(xs[start], zs[start]), jax.random.split(jax.random.key(1), len(start))
    )
    index = (np.asarray(after.x) @ [4, 2] + np.asarray(after.z)[..., 0]).astype(int)
    reached = np.array([where[tuple(row)] for row in index]).reshape(len(chosen), 2000)
    for row, i in zip(reached, chosen, strict=True):
        assert chi_square(np.bincount(row, minlength=512), kernel[i]) > 1e-5


@pytest.mark.usefixtures("x64")
def test_tempering_leaves_the_product_of_all_replicas_invariant():
    model = binary_machine(3, 2, gain=2.0)
    xs, zs, x, z = joint_states(3, 2)
    log_p = np.array([-numpy_energy(model, x, z, beta).ravel() for beta in BETAS])
    p = np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True))
    n = 2 * N_DRAWS
    rng = np.random.default_rng(0)
    start = np.stack([rng.choice(32, n, p=row) for row in p], axis=1)
    sampler = ParallelTempering(jnp.asarray(BETAS))
    advance = quick(lambda model, state: samplers.advance(sampler, model, state, key=jax.random.key(3)))
    state, info = advance(model, TemperingState(xs[start], np.full_like(zs[start], np.nan)))
    index = (np.asarray(state.x) @ [16, 8, 4] + np.asarray(state.z) @ [2, 1]).astype(int)
    for replica in range(3):
        assert chi_square(np.bincount(index[:, replica], minlength=32), p[replica]) > 1e-5
        other = (replica + 1) % 3
        pair = np.bincount(32 * index[:, replica] + index[:, other], minlength=1024)
        assert chi_square(pair, np.outer(p[replica], p[other]).ravel()) > 1e-5
    assert chi_square(np.bincount(index[:, 0], minlength=32), p[2]) < 1e-5  # the replicas do differ
    np.testing.assert_array_equal(jax.vmap(sampler.visible)(state), np.asarray(state.x)[:, -1])
    np.testing.assert_array_equal(jax.vmap(sampler.latent)(state), np.asarray(state.z)[:, -1])
    # The reported rate is the exact expectation of the acceptance probability.
    for r in (0, 1):
        ratio = log_p[r][None, :] + log_p[r + 1][:, None] - log_p[r][:, None] - log_p[r + 1][None, :]
        rate = p[r] @ np.minimum(1, np.exp(ratio)) @ p[r + 1]
        accepted = np.asarray(info.acceptance)[:, r]
        assert abs(accepted.mean() - rate) < 5 * accepted.std() / math.sqrt(n)
    metrics = sampler.metrics(info)
    rates = np.asarray(info.acceptance).mean(0)
    close(metrics["swap_rate_min"], rates.min(), tolerance=1e-9)
    close(metrics["swap_rate_mean"], rates.mean(), tolerance=1e-9)
    close(metrics["hottest_beta"], BETAS[0], tolerance=1e-9)


def test_a_gap_widens_while_its_swaps_succeed_too_often():
    sampler = ParallelTempering(jnp.array([0.2, 0.5, 1.0]), target=0.3, rate=0.1)
    adapted = sampler.adapt(SwapInfo(jnp.array([[0.9, 0.1], [0.7, 0.1]])))
    gaps = np.diff(np.asarray(adapted.betas))
    close(gaps, [0.3 * math.exp(0.1 * 0.5), 0.5 * math.exp(-0.1 * 0.2)], tolerance=1e-6)
    assert float(adapted.betas[-1]) == 1.0
    full = ParallelTempering(jnp.array([0.0, 0.5, 1.0]), rate=0.5).adapt(SwapInfo(jnp.ones((1, 2))))
    close(full.betas, [0.0, 0.5, 1.0], tolerance=1e-6)  # nowhere hotter than the base to go
    kept = ParallelTempering(jnp.array([0.2, 0.5, 1.0]), rate=0.0).adapt(SwapInfo(jnp.ones((1, 2))))
    close(kept.betas, [0.2, 0.5, 1.0], tolerance=1e-6)


def test_the_ladder_adapts_to_the_target_rate():
    model = binary_machine(8, 6, gain=8.0)  # a hard one: five even gaps are too wide
    target = 0.4
    sampler = ParallelTempering(jnp.array([0.0, 0.9, 0.93, 0.97, 1.0]), target=target, rate=0.2)
    rows = np.zeros((100, 8), np.float32)

    @quick
    def adapt(sampler, model, states, key):
        return samplers.run(sampler, model, states, 300, key=key, adapt=True)

    @quick
    def measure(sampler, model, states):
        def body(states, key):
            states, info = samplers.advance(sampler, model, states, key=key)
            return states, jnp.mean(info.acceptance, axis=0)

        return jnp.mean(jax.lax.scan(body, states, jax.random.split(jax.random.key(9), 100))[1], axis=0)

    states = samplers.start(sampler, model, rows, key=jax.random.key(0))
    before = np.asarray(measure(sampler, model, states))
    ladder = []
    for each in jax.random.split(jax.random.key(1), 3):
        sampler, states = adapt(sampler, model, states, each)
        ladder.append(np.asarray(sampler.betas))
    for betas in ladder:
        assert betas[-1] == 1.0
        assert (np.diff(betas) > 0).all()
        assert betas[0] >= 0
    after = np.asarray(measure(sampler, model, states))
    assert np.abs(before - target).max() > 0.2
    assert after.min() > target - 0.06  # at least the target everywhere, more only if β = 0 was reached
    assert after.max() < target + 0.06 or ladder[-1][0] == 0


def test_tempering_reports_its_rates_while_it_learns():
    model = binary_machine(N_VISIBLE, N_HIDDEN)
    x = jnp.asarray(data_rows(), model.weights.dtype)
    objective = contrastive.tempering(1, n_chains=16, n_replicas=4)
    optimizer = Optimizer.make("sgd", learning_rate=0.1, n_steps=10)
    learner = GradientLearner(objective, optimizer)
    state = quick(lambda m, x: learner.init(m, x, key=jax.random.key(0)))(model, x)
    step = quick(lambda m, x, s, k: learner.step(m, x, None, s, key=k, since=1))
    _, new, metrics = step(model, x, state, jax.random.key(1))
    assert 0 < float(metrics["swap_rate_min"]) <= float(metrics["swap_rate_mean"]) <= 1
    assert float(metrics["hottest_beta"]) == 0.0
    assert new.objective.chains.x.shape == (16, 4, N_VISIBLE)
    assert (np.asarray(new.objective.sampler.betas) != np.asarray(objective.sampler.betas)).any()  # it adapts


# -- optimisers --------------------------------------------------------------------------------------


def real_machine() -> RBMModel:
    """A model with all four roles."""
    layers = units.make("gaussian", 3), units.make("bernoulli", 2)
    return perturbed(RBMModel.make(*layers, key=jax.random.key(0)), 5)


def gradients_like(model, step):
    rng = np.random.default_rng([step, 3])
    draw = lambda a: jnp.asarray(rng.normal(size=a.shape), a.dtype)  # noqa: E731
    return jax.tree.map(draw, eqx.filter(model, trainable(model)))


def by_role(model, leaf_of):
    roles = parameters.roles(eqx.filter(model, trainable(model)))
    return jax.tree.map(leaf_of, roles)


N_STEPS = 8
SCHEDULES = {
    "constant": optax.constant_schedule(0.05),
    "linear": optax.linear_schedule(0.05, 0.0, N_STEPS),
    "cosine": optax.cosine_decay_schedule(0.05, N_STEPS),
}
DIRECTIONS = {
    "sgd": (0.0, optax.identity()),
    "momentum": (0.7, optax.trace(decay=0.7)),
    "nesterov": (0.7, optax.trace(decay=0.7, nesterov=True)),
    "adam": (0.0, optax.scale_by_adam()),
    "rmsprop": (0.5, optax.chain(optax.scale_by_rms(), optax.trace(decay=0.5))),
}


def test_the_warm_up_rises_then_falls_linearly():
    optimizer = Optimizer.make(learning_rate=0.3, n_steps=400, schedule="warmup")
    steps = np.array([0, 5, 10, 20, 21, 100, 399, 400, 500], np.float32)
    wanted = np.interp(steps, [0, 20, 400], [0.0, 0.3, 0.0])
    np.testing.assert_allclose(jax.vmap(optimizer.rate)(steps), wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("name", "schedule"),
    [*((name, "constant") for name in DIRECTIONS), ("momentum", "linear"), ("adam", "cosine")],
)
def test_optimizers_are_those_of_optax(name, schedule):
    """Weights, biases and buffers; decay touches weights only; log-scales learn at a tenth of the rate."""
    momentum, inner = DIRECTIONS[name]
    decay, clip = 0.3, 0.7
    direction = "sgd" if name == "momentum" else name
    optimizer = Optimizer.make(
        direction,
        learning_rate=0.05,
        n_steps=N_STEPS,
        momentum=momentum,
        schedule=schedule,
        weight_decay=decay,
        clip=clip,
    )
    start = model = real_machine()
    state = optimizer.init(model)
    params = eqx.filter(model, trainable(model))
    reference = optax.chain(
        optax.clip_by_global_norm(clip),
        inner,
        optax.masked(optax.scale(SCALE_RATE), by_role(model, lambda role: role == "scale")),
        optax.add_decayed_weights(decay, mask=by_role(model, lambda role: role == "weight")),
        optax.scale_by_learning_rate(SCHEDULES[schedule]),
    )
    reference_state = reference.init(params)
    update = quick(lambda g, s, m, step: optimizer.update(g, s, m, step=step, slowdown=1.0))
    for step in range(N_STEPS):
        gradient = gradients_like(model, step)
        model, state = update(gradient, state, model, np.float32(step))
        with jax.numpy_dtype_promotion("standard"):  # Optax counts in integers
            updates, reference_state = reference.update(gradient, reference_state, params)
        params = optax.apply_updates(params, updates)
        close(vector(eqx.filter(model, trainable(model))), vector(params), tolerance=1e-5)
    for path in (
        lambda m: m.visible.data_mean,
        lambda m: m.visible.data_scale,
        lambda m: m.visible_offset,
        lambda m: m.hidden_offset,
    ):
        np.testing.assert_array_equal(path(model), path(start))


def test_roles_say_what_is_decayed():
    roles = parameters.roles(real_machine())
    assert roles.weights == "weight"
    assert roles.hidden.bias == roles.visible.location == "bias"
    assert roles.visible.log_sigma == "scale"
    assert {roles.visible.data_mean, roles.visible.data_scale, roles.visible_offset, roles.hidden_offset} == {
        "buffer"
    }


def test_decay_alone_shrinks_the_weights_and_nothing_else():
    start = real_machine()
    optimizer = Optimizer.make("sgd", learning_rate=0.1, n_steps=1, weight_decay=0.5)
    nothing = jax.tree.map(jnp.zeros_like, eqx.filter(start, trainable(start)))
    step = {"step": jnp.array(0.0), "slowdown": jnp.array(1.0)}
    model, _ = optimizer.update(nothing, optimizer.init(start), start, **step)
    close(model.weights, (1 - 0.05) * np.asarray(start.weights), tolerance=1e-6)
    same = eqx.tree_at(lambda m: m.weights, model, start.weights)
    jax.tree.map(np.testing.assert_array_equal, same, start)


def test_a_slowdown_halves_every_change():
    start = real_machine()
    optimizer = Optimizer.make("adam", learning_rate=0.1, n_steps=1, weight_decay=0.5)
    moves = []
    for slowdown in (1.0, 0.5):
        model, _ = optimizer.update(
            gradients_like(start, 0),
            optimizer.init(start),
            start,
            step=jnp.array(0.0),
            slowdown=jnp.array(slowdown),
        )
        moves.append(vector(model) - vector(start))
    close(moves[1], 0.5 * moves[0], tolerance=1e-6)


def test_an_optax_transformation_is_taken_as_it_is():
    start = real_machine()
    optimizer = Optimizer.make(optax.sgd(0.2), learning_rate=99.0, n_steps=1)
    gradient = gradients_like(start, 0)
    model, _ = optimizer.update(
        gradient, optimizer.init(start), start, step=jnp.array(0.0), slowdown=jnp.array(1.0)
    )
    close(model.weights, np.asarray(start.weights) - 0.2 * np.asarray(gradient.weights), tolerance=1e-6)


@pytest.mark.parametrize("centring", [0.0, 0.5])
def test_a_learning_step_leaves_standardisation_alone_and_offsets_to_centring(centring):
    start = real_machine()
    x = jnp.asarray(toy_rows("real", 16), start.weights.dtype)
    optimizer = Optimizer.make("sgd", learning_rate=0.1, n_steps=10)
    learner = GradientLearner(contrastive.cd(), optimizer, centring=centring)

    @quick
    def step(model, x):
        state = learner.init(model, x, key=jax.random.key(0))
        return learner.step(model, x, None, state, key=jax.random.key(1), since=1)[0]

    model = step(start, x)
    np.testing.assert_array_equal(model.visible.data_mean, start.visible.data_mean)
    np.testing.assert_array_equal(model.visible.data_scale, start.visible.data_scale)
    moved = not np.array_equal(model.visible_offset, start.visible_offset)
    assert moved == bool(centring)
    for learned in (lambda m: m.weights, lambda m: m.visible.location, lambda m: m.visible.log_sigma):
        assert not np.array_equal(learned(model), learned(start))


def test_averaging_is_a_running_mean_that_forgets_its_start():
    learner = GradientLearner(
        contrastive.pcd(), Optimizer.make("sgd", learning_rate=0.1, n_steps=10), averaging=0.9
    )
    model = Counter(jnp.array(1.0))
    rows = jnp.array([[10.0], [20.0]])
    state = learner.init(model, rows, key=jax.random.key(0))
    average = 1.0
    for step in range(4):
        model, state, _ = learner.step(model, rows, None, state, key=jax.random.key(step), since=1)
        decay = min(0.9, (1 + step) / (10 + step))
        average = decay * average + (1 - decay) * float(model.slope)
        close(learner.final(model, state).slope, average, tolerance=1e-5)
    assert abs(average - float(model.slope)) > 1e-3
