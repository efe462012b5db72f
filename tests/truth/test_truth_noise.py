"""Noise contrast against enumeration: with uniform noise, all states once are its exact expectation."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import close, perturbed, quick, random_model
from scipy import stats
from scipy.special import expit, logsumexp

from latentia import RBM, units
from latentia.core.errors import CapabilityError, DataError, ParameterError
from latentia.core.parameters import trainable
from latentia.core.space import Space
from latentia.energies.rbm import RBMModel
from latentia.inference.amortised import Encoder
from latentia.learning import noise as noises
from latentia.learning.noise_contrast import NCE, ConditionalNCE, NoiseState
from latentia.learning.ratio_matching import RatioMatching
from latentia.learning.variational_nce import VNCE, VariationalState
from latentia.likelihood import enumeration
from latentia.likelihood.precision import double
from latentia.registry import family

D, K = 4, 3
STATES = np.array(list(itertools.product((0.0, 1.0), repeat=D)))
LATENTS = np.array(list(itertools.product((0.0, 1.0), repeat=K)))
N = len(STATES)


@pytest.fixture
def x64():
    with double():
        yield


def machine(seed: int = 0, visible: str = "bernoulli") -> RBMModel:
    layers = units.make(visible, D), units.make("bernoulli", K)
    return perturbed(RBMModel.make(*layers, key=jax.random.key(0)), seed)


def points(visible: str = "bernoulli") -> np.ndarray:
    return STATES if visible == "bernoulli" else 2 * STATES - 1


@quick
def free_energies(model, x):
    return jax.vmap(model.free_energy)(x)


@quick
def loss_and_gradient(objective, model, x, weights, state):
    params, rest = eqx.partition(model, trainable(model))
    loss = lambda p: objective.loss(eqx.combine(p, rest), x, weights, state)[0]  # noqa: E731
    return eqx.filter_value_and_grad(loss)(params)


def largest(tree) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


def exact(model, visible="bernoulli"):
    """(log Z, weights with which all states are an exact sample)."""
    minus = -np.asarray(free_energies(model, jnp.asarray(points(visible))))
    log_z = logsumexp(minus)
    return log_z, jnp.asarray(N * np.exp(minus - log_z))


def uniform(ratio: int, noise=None) -> NCE:
    """NCE whose noise is uniform over the states."""
    space = machine().x_space
    return NCE(ratio, noise or noises.Marginals().fitted(space, jnp.asarray([[0.0] * D, [1.0] * D])))


def all_states(ratio: int, log_z: float) -> NoiseState:
    return NoiseState(jnp.asarray(np.tile(STATES, (ratio, 1))), jnp.asarray(log_z), jnp.zeros(()))


@pytest.mark.parametrize("ratio", [1, 3])
@pytest.mark.usefixtures("x64")
def test_nce_is_the_formula_and_stationary_at_the_truth_only(ratio):
    model, other = machine(0), machine(1)
    log_z, weights = exact(model)
    x, objective = jnp.asarray(STATES), uniform(ratio)
    value, gradient = loss_and_gradient(objective, other, x, weights, all_states(ratio, 2.0))
    odds = -np.asarray(free_energies(other, x)) - 2.0 - np.log(ratio) + D * np.log(2)
    p = np.asarray(weights) / N
    close(value, -(p @ np.log(expit(odds))) - ratio * np.mean(np.log(expit(-odds))), tolerance=1e-10)
    assert largest(gradient) > 1e-2
    assert largest(loss_and_gradient(objective, model, x, weights, all_states(ratio, log_z))[1]) < 1e-12
    assert largest(loss_and_gradient(objective, model, x, weights, all_states(ratio, log_z + 0.5))[1]) > 1e-3


@pytest.mark.parametrize("start", [-30.0, 0.0, 40.0])
@pytest.mark.usefixtures("x64")
def test_the_learned_constant_is_log_z(start, monkeypatch):
    model = machine(2)
    log_z, weights = exact(model)
    objective, x = uniform(2), jnp.asarray(STATES)
    monkeypatch.setattr("latentia.learning.noise_contrast.draw_many", lambda *_, **__: jnp.tile(x, (2, 1)))
    prepare = quick(lambda s: objective.prepare(model, x, s, key=jax.random.key(0), weights=weights))
    state = all_states(2, start)
    for _ in range(700):
        state = prepare(state)
    close(state.log_z, log_z, tolerance=1e-6)
    begin = quick(lambda: objective.init(model, x, key=jax.random.key(0)))()
    close(begin.log_z, log_z, tolerance=1e-10)  # importance sampling over all states is exact


@pytest.mark.usefixtures("x64")
def test_conditional_nce_is_the_formula_and_stationary_at_the_truth():
    model, other = machine(0), machine(1)
    _, weights = exact(model)
    flips = np.abs(STATES[None] - np.eye(D)[:, None])  # every single flip is as likely: symmetric
    objective, x = ConditionalNCE(D), jnp.asarray(STATES)
    value, gradient = loss_and_gradient(objective, other, x, weights, jnp.asarray(flips))
    f = np.asarray(free_energies(other, x))
    flipped = np.asarray(free_energies(other, jnp.asarray(flips.reshape(-1, D)))).reshape(D, N)
    close(value, (np.asarray(weights) / N) @ np.log1p(np.exp(f[None] - flipped)).mean(0), tolerance=1e-10)
    assert largest(gradient) > 1e-2
    assert largest(loss_and_gradient(objective, model, x, weights, jnp.asarray(flips))[1]) < 1e-12


@pytest.mark.parametrize("visible", ["bernoulli", "spin"])
@pytest.mark.usefixtures("x64")
def test_ratio_matching_is_the_formula_and_stationary_at_the_truth(visible):
    model, other = machine(0, visible), machine(1, visible)
    _, weights = exact(model, visible)
    objective, x = RatioMatching(), jnp.asarray(points(visible))
    every = objective.init(model, x, key=jax.random.key(0))
    value, gradient = loss_and_gradient(objective, other, x, weights, every)
    f = np.asarray(free_energies(other, x)).reshape((2,) * D)  # flipping a bit reverses an axis
    terms = sum(expit(f - np.flip(f, axis)) ** 2 for axis in range(D))
    close(value, (np.asarray(weights) / N) @ terms.ravel(), tolerance=1e-10)
    assert largest(gradient) > 1e-2
    assert largest(loss_and_gradient(objective, model, x, weights, every)[1]) < 1e-12
    pairs = [jnp.broadcast_to(jnp.array(p), (N, 2)) for p in itertools.combinations(range(D), 2)]
    some = [loss_and_gradient(RatioMatching(2), other, x, weights, p)[0] for p in pairs]
    close(np.mean(some), value, tolerance=1e-10)  # a part of the bits is right on average
    chosen = RatioMatching(2).init(model, x, key=jax.random.key(0))
    assert chosen.shape == (N, 2)
    assert (np.asarray(chosen)[:, 0] != np.asarray(chosen)[:, 1]).all()


def variational(model, posterior="encoder", n_samples=4):
    objective = VNCE(2, uniform(1).noise, posterior, n_samples=n_samples)
    objective = objective.surveyed(model, lambda: jnp.asarray(STATES), key=jax.random.key(0))
    state = objective.init(model, jnp.asarray(STATES), key=jax.random.key(0))
    return objective, VariationalState(all_states(2, 1.5), state.inference, state.seed)


@pytest.mark.usefixtures("x64")
def test_vnce_equals_nce_at_the_true_posterior():
    model = machine(1)
    _, weights = exact(machine(0))
    x = jnp.asarray(STATES)
    objective, state = variational(model, "exact")
    value, gradient = loss_and_gradient(objective, model, x, weights, state)
    wanted, same = loss_and_gradient(uniform(2), model, x, weights, all_states(2, 1.5))
    close(value, wanted, tolerance=1e-10)  # for whatever latents were drawn
    assert largest(same) > 1e-2
    assert objective.learned(state) is None
    # −F(x) = E_q[−E] + H(q): the gradients agree on average over the latents only
    mean = jax.tree.map(lambda a: 0 * a, gradient)
    for seed in range(60):
        drawn = VariationalState(state.noise, state.inference, jax.random.key_data(jax.random.key(seed)))
        mean = jax.tree.map(
            lambda m, g: m + g / 60, mean, loss_and_gradient(objective, model, x, weights, drawn)[1]
        )
    assert largest(jax.tree.map(lambda a, b: a - b, mean, same)) < 0.05


def enumerated_data_term(model, encoder, x, log_z, weights):
    """−E_data E_q log σ(G), E_q by enumeration."""

    def one(x):
        q = encoder.infer(model, x)
        log_q = jax.vmap(q.log_prob)(jnp.asarray(LATENTS))
        log_p = -jax.vmap(lambda z: model.energy(x, z))(jnp.asarray(LATENTS)) - log_z
        odds = log_p - log_q - jnp.log(2.0) + D * jnp.log(2.0)
        return -jnp.sum(jnp.exp(log_q) * jax.nn.log_sigmoid(odds))

    return jnp.mean(weights * jax.vmap(one)(x))


@pytest.mark.usefixtures("x64")
def test_vnce_bounds_nce_and_its_gradients_are_right_on_average():
    model = machine(1)
    _, weights = exact(machine(0))
    x = jnp.asarray(STATES)
    objective, state = variational(model, n_samples=8)
    encoder = perturbed(state.inference, 3)
    start = VariationalState(state.noise, encoder, state.seed)

    def whole(pair, seed):
        found = objective.with_learned(VariationalState(start.noise, start.inference, seed), pair[1])
        return objective.loss(pair[0], x, weights, found)[0]

    seeds = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(5), 3000))
    run = quick(
        lambda pair: jax.lax.map(lambda s: eqx.filter_value_and_grad(whole)(pair, s), seeds, batch_size=100)
    )
    values, gradients = run((model, encoder))
    wanted, by_enumeration = quick(
        eqx.filter_value_and_grad(lambda encoder: enumerated_data_term(model, encoder, x, 1.5, weights))
    )(encoder)
    second = 2 * np.mean(np.log1p(np.exp(-np.asarray(free_energies(model, x)) - 1.5 - np.log(2) + D * np.log(2))))
    many = VNCE(2, objective.noise, n_samples=2000, encoder=encoder)  # few latents bias the noise term
    losses = quick(lambda s: many.loss(model, x, weights, VariationalState(start.noise, encoder, s))[0])
    found = np.array([losses(s) for s in seeds[:40]])
    assert abs(found.mean() - wanted - second) < 5 * found.std() / np.sqrt(40) + 0.01
    assert len(set(np.asarray(values))) > 2900
    nce = loss_and_gradient(uniform(2), model, x, weights, all_states(2, 1.5))[0]
    assert wanted + second > nce + 0.05
    roles = zip(jax.tree.leaves(gradients[1]), jax.tree.leaves(by_enumeration), strict=True)
    moved = 0.0
    for drawn, exactly in roles:
        drawn, exactly = np.asarray(drawn), np.asarray(exactly)
        if not exactly.any():
            continue  # centre and scale: derivatives exist, but nobody follows them
        spread = drawn.std(0) / np.sqrt(len(drawn)) + 1e-12
        assert (np.abs(drawn.mean(0) - exactly) / spread).max() < 5
        moved = max(moved, np.abs(exactly / spread).max())
    assert moved > 20  # the comparison has teeth


@pytest.mark.usefixtures("x64")
def test_differentiable_draws_give_the_gradient_for_real_latents():
    model = random_model(family("ppca"), 3)
    x = jnp.asarray(np.random.default_rng(0).normal(size=(6, 3)))
    objective = VNCE(1, noises.GaussianNoise(), n_samples=2)
    objective = objective.surveyed(model, lambda: x, key=jax.random.key(0))
    state = objective.init(model, x, key=jax.random.key(0))
    encoder = perturbed(state.inference, 1)
    assert [leaf.domain for leaf in jax.tree.leaves(encoder.z_space)] == ["real"]
    nodes, weights = np.polynomial.hermite_e.hermegauss(24)
    grid = np.array(list(itertools.product(nodes, repeat=2)))
    mass = np.array([np.prod(w) for w in itertools.product(weights / weights.sum(), repeat=2)])

    def by_quadrature(encoder):
        def one(x):
            q = encoder.infer(model, x).parts[0]
            z = q.location[None, :] + jnp.exp(q.log_sigma)[None, :] * jnp.asarray(grid)
            odds = jax.vmap(lambda z: -model.energy(x, z) - q.log_prob(z))(z) - objective.noise.log_prob(x)
            return -jnp.sum(jnp.asarray(mass) * jax.nn.log_sigmoid(odds - state.noise.log_z))

        return jnp.mean(jax.vmap(one)(x))

    def sampled(encoder, seed):
        return objective.loss(model, x, None, VariationalState(state.noise, encoder, seed))[0]

    seeds = jax.vmap(jax.random.key_data)(jax.random.split(jax.random.key(5), 3000))
    gradients = quick(lambda e: jax.lax.map(lambda s: eqx.filter_grad(sampled)(e, s), seeds, batch_size=100))(
        encoder
    )
    wanted = quick(eqx.filter_grad(by_quadrature))(encoder)
    for drawn, exactly in zip(gradients.layers + gradients.biases, wanted.layers + wanted.biases, strict=True):
        spread = np.asarray(drawn).std(0) / np.sqrt(len(seeds))
        assert (np.abs(np.asarray(drawn).mean(0) - exactly) / spread).max() < 5
        assert np.abs(exactly / spread).max() > 5


@pytest.mark.usefixtures("x64")
def test_an_encoder_s_posterior_is_what_its_numbers_say():
    rng = np.random.default_rng(0)
    z_space = (Space("real", (2,)), Space("binary", (3,)), Space("categorical", (2, 3)))
    x = jnp.asarray(rng.normal(size=(40, 4)) * [1, 10, 0.1, 1] + 5)
    for hidden in (None, 5):
        encoder = perturbed(Encoder.make(z_space, x, hidden=hidden, key=jax.random.key(0)), 1)
        q = encoder.infer(None, x[0])
        value = (np.asarray(x[0]) - np.asarray(encoder.centre)) / np.asarray(encoder.scale)
        for i, (matrix, offset) in enumerate(zip(encoder.layers, encoder.biases, strict=True)):
            value = (np.tanh(value) if i else value) @ np.asarray(matrix).T + np.asarray(offset)
        normal, p = stats.norm(value[:2], np.exp(value[2:4])), expit(value[4:7])
        dice = np.exp(value[7:].reshape(2, 3))
        dice /= dice.sum(1, keepdims=True)
        z = (jnp.asarray(rng.normal(size=2)), jnp.array([1.0, 0.0, 1.0]), jnp.eye(3)[jnp.array([2, 0])])
        wanted = normal.logpdf(z[0]).sum() + np.log([p[0], 1 - p[1], p[2], dice[0, 2], dice[1, 0]]).sum()
        close(q.log_prob(z), wanted, tolerance=1e-9)
        coins = -(p * np.log(p) + (1 - p) * np.log(1 - p)).sum()
        close(q.entropy(), normal.entropy().sum() + coins - (dice * np.log(dice)).sum(), tolerance=1e-9)
        for found, mean in zip(q.mean(), (value[:2], p, dice), strict=True):
            close(found, mean, tolerance=1e-9)
        drawn = quick(lambda q: jax.vmap(lambda k: q.sample(key=k))(jax.random.split(jax.random.key(0), 20_000)))(q)
        assert np.asarray(drawn[0]).std(0) == pytest.approx(normal.std(), rel=0.05)
        assert np.asarray(drawn[1]).mean(0) == pytest.approx(p, abs=0.02)


SPACES = {
    "binary": (Space("binary", (3,)), np.random.default_rng(0).integers(0, 2, (50, 3))),
    "spin": (Space("spin", (3,)), 2 * np.random.default_rng(0).integers(0, 2, (50, 3)) - 1),
    "categorical": (Space("categorical", (2, 3)), np.eye(3)[np.random.default_rng(0).integers(0, 3, (50, 2))]),
    "real": (Space("real", (2,)), np.random.default_rng(0).normal(size=(50, 2)) @ [[2, 1], [0, 0.5]] + 3),
    "nonnegative": (Space("nonnegative", (1,)), np.random.default_rng(0).exponential(2.0, (50, 1))),
}


@pytest.mark.parametrize("domain", SPACES)
@pytest.mark.usefixtures("x64")
def test_marginals_are_a_distribution_with_the_data_s_means(domain):
    space, rows = SPACES[domain]
    x = jnp.asarray(rows, dtype=float)
    noise = noises.Marginals().fitted(space, x)
    drawn = np.asarray(quick(lambda n: noises.draw_many(n, 20_000, key=jax.random.key(0)))(noise))
    density = quick(lambda x: jax.vmap(noise.log_prob)(x))
    assert drawn.shape[1:] == space.shape
    if space.is_discrete:
        close(logsumexp(density(jnp.asarray(space.enumerate(), dtype=float))), 0.0, tolerance=1e-9)
        error = drawn.std(0) / np.sqrt(20_000) + 1e-9
        shrunk = (rows.mean(0) - drawn.mean(0)) / error  # marginals may be smoothed a little
        assert np.abs(shrunk).max() < 5 + 0.02 / error.min()
        return
    moment = 2 if domain == "nonnegative" else 1  # the half-normal has the data's second moment
    assert (drawn**moment).mean(0) == pytest.approx((rows**moment).mean(0), rel=0.05)
    if domain == "nonnegative":
        grid = np.linspace(0, 40, 20_001)[:, None]
        close(np.trapezoid(np.exp(density(jnp.asarray(grid))), grid[:, 0]), 1.0, tolerance=1e-4)
    else:
        close(density(x), stats.norm(rows.mean(0), rows.std(0)).logpdf(rows).sum(1), tolerance=1e-8)


@pytest.mark.usefixtures("x64")
def test_gaussian_and_mixture_noise_are_what_scipy_says():
    space, rows = SPACES["real"]
    x = jnp.asarray(rows)
    wide = noises.GaussianNoise(2.0).fitted(space, x)
    ridge = 1e-6 * rows.var(0).mean()
    wanted = stats.multivariate_normal(rows.mean(0), 4 * (np.cov(rows.T, bias=True) + ridge * np.eye(2)))
    close(jax.vmap(wide.log_prob)(x), wanted.logpdf(rows), tolerance=1e-8)
    drawn = np.asarray(quick(lambda n: noises.draw_many(n, 20_000, key=jax.random.key(0)))(wide))
    assert np.cov(drawn.T) == pytest.approx(wanted.cov, rel=0.1)
    assert drawn.mean(0) == pytest.approx(rows.mean(0), abs=0.1)
    mixture = noises.MixtureNoise(2).fitted(space, x)
    covariances = [np.linalg.inv(f @ f.T) for f in np.asarray(mixture.factors)]
    parts = [stats.multivariate_normal(m, c) for m, c in zip(np.asarray(mixture.means), covariances, strict=True)]
    by_hand = np.log(sum(s * p.pdf(rows) for s, p in zip(np.asarray(mixture.shares), parts, strict=True)))
    close(jax.vmap(mixture.log_prob)(x), by_hand, tolerance=1e-8)
    drawn = np.asarray(quick(lambda n: noises.draw_many(n, 20_000, key=jax.random.key(0)))(mixture))
    assert np.cov(drawn.T) == pytest.approx(np.cov(rows.T, bias=True), rel=0.1)


@pytest.mark.usefixtures("x64")
def test_a_model_is_noise_if_it_is_normalised():
    mixture = random_model(family("gaussian-mixture"))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 3)))
    noise = noises.ModelNoise(mixture).fitted(mixture.x_space, x)
    close(jax.vmap(noise.log_prob)(x), -np.asarray(free_energies(mixture, x)), tolerance=1e-12)
    assert noises.draw_many(noise, 7, key=jax.random.key(0)).shape == (7, 3)
    with pytest.raises(CapabilityError, match="RBMModel cannot serve as noise"):
        noises.ModelNoise(machine())
    with pytest.raises(DataError, match="noise model's visibles"):
        noise.fitted(machine().x_space, STATES)


@pytest.mark.parametrize("domain", SPACES)
@pytest.mark.usefixtures("x64")
def test_disturbances_are_symmetric(domain):
    """With pairs (x, y), x uniform over a set that y may reach: swapping x and y changes no statistic."""
    space, rows = SPACES[domain]
    rng = np.random.default_rng(1)
    noise = noises.Disturbance(0.8, 0.3).fitted(space, jnp.asarray(rows, dtype=float))
    n = 40_000
    if space.is_discrete:
        states = space.enumerate().astype(float)
        start = states[rng.integers(0, len(states), n)]
    else:
        width = 20 * np.asarray(noise.spread)
        start = rng.uniform(0, 1, (n, *space.shape)) * width
    keys = jax.random.split(jax.random.key(0), n)
    end = np.asarray(quick(jax.vmap(lambda x, k: noise.disturb(x, key=k)))(jnp.asarray(start), keys))
    start, end = start.reshape(n, -1), end.reshape(n, -1)
    changed = (start != end).mean()
    assert changed == pytest.approx(
        {"categorical": 0.3 * 4 / 9, "real": 1, "nonnegative": 1}.get(domain, 0.3), abs=0.01
    )
    lopsided = start**2 * end - end**2 * start
    if not space.is_discrete:
        lopsided = np.exp(-start / width[None, :] * 20) - np.exp(-end / width[None, :] * 20)
        # Pairs near the far border leave the set; near zero they are folded back into it.
        lopsided = np.where((start > width[None, :] / 2) | (end > width[None, :] / 2), 0.0, lopsided)
        if domain == "real":
            lopsided = np.where((start < 0) | (end < 0), 0.0, lopsided)
        assert end.std() > 0
    z = lopsided.mean(0) / (lopsided.std(0) / np.sqrt(n) + 1e-12)
    assert np.abs(z).max() < 4.5


def test_names_and_numbers_are_checked():
    with pytest.raises(ParameterError, match="Did you mean 'gaussian'"):
        noises.noise("gausian", Space("real", (2,)))
    assert isinstance(noises.noise("auto", Space("real", (2,))), noises.GaussianNoise)
    assert isinstance(noises.noise("auto", (Space("real", (2,)), Space("binary", (1,)))), noises.Marginals)
    with pytest.raises(DataError, match="use 'marginals'"):
        noises.GaussianNoise().fitted(Space("binary", (2,)), jnp.zeros((3, 2)))
    for bad in (0, -1, 1.5):
        with pytest.raises(ParameterError, match="ratio"):
            NCE(bad)
    for call in (
        lambda: noises.GaussianNoise(0.0),
        lambda: noises.Disturbance(rate=1.0),
        lambda: VNCE(posterior="x"),
    ):
        with pytest.raises(ParameterError):
            call()
    with pytest.raises(CapabilityError, match="latents to infer"):
        Encoder.make((), jnp.zeros((3, 2)), hidden=None, key=jax.random.key(0))


def test_a_column_that_does_not_vary_is_disturbed_as_much_as_the_others_are_on_average():
    rows = np.random.default_rng(0).normal(size=(200, 4)) * [1, 4, 0, 0] + [0, 2, 7, -1]
    fitted = noises.Disturbance().fitted(Space("real", (4,)), jnp.asarray(rows))
    first, second = rows[:, :2].std(axis=0)
    np.testing.assert_allclose(fitted.spread, [first, second, *[(first + second) / 2] * 2], rtol=1e-5)
    still = noises.Disturbance().fitted(Space("real", (2,)), jnp.full((5, 2), 3.0))
    np.testing.assert_array_equal(still.spread, [1, 1])


@pytest.mark.parametrize("objective", ["nce", "vnce"])
def test_training_finds_log_z_along_with_the_model(objective):
    rng = np.random.default_rng(0)
    X = (rng.random((2000, 6)) < np.where(rng.random((2000, 1)) < 0.5, 0.8, 0.2)).astype(float)
    rbm = RBM(2, objective=objective, optimizer="adam", learning_rate=0.03, n_epochs=20, random_state=0).fit(X)
    log_z = enumeration.log_z(rbm.model_).estimate
    assert rbm.history_[-1]["log_z"] == pytest.approx(log_z, abs=0.1)
    assert rbm.score(X) > RBM(2, n_epochs=1, learning_rate=1e-6, random_state=0).fit(X).score(X) + 0.5
