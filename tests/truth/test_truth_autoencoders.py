"""Autoencoders against theorems, closed forms and brute force, in float64."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.linalg import subspace_angles
from scipy.special import rel_entr
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning

from latentia import Autoencoder
from latentia.core.errors import CapabilityError
from latentia.energies.autoencoding import AutoencoderModel
from latentia.energies.rbm import RBMModel
from latentia.inference.sparse.proximal import solve
from latentia.learning.reconstruction import Reconstruction, rate_divergence
from latentia.learning.score_matching import ScoreMatching, hyvarinen_score
from latentia.likelihood.precision import double
from latentia.ops.corruption import Corruption
from latentia.ops.networks import MLP, Dense, Threshold, Transposed, winners
from latentia.ops.penalties import L1
from latentia.units import make

D, K = 6, 4


@pytest.fixture(autouse=True)
def x64():
    with double():
        yield


def orthogonal(n, seed=0):
    return np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))[0]


def tied(W, named, *, biases=None, back=None, **options):
    """The tied autoencoder x̂ = back + W s(Wᵀx + biases)."""
    n, k = W.shape
    layer = Dense(jnp.asarray(W.T), jnp.zeros(k) if biases is None else jnp.asarray(biases), named)
    decoder = Transposed((jnp.zeros(n) if back is None else jnp.asarray(back),), ("linear",))
    return AutoencoderModel(MLP((layer,)), decoder, n, k, **options)


def random_tied(named, seed=0, n=D, k=K, **options):
    rng = np.random.default_rng(seed)
    return tied(0.7 * rng.normal(size=(n, k)), named, biases=rng.normal(size=k), back=rng.normal(size=n), **options)


def rows(n=8, d=D, seed=1):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(n, d)))


# -- the two theorems --------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_a_tied_threshold_autoencoder_rebuilds_up_to_the_noise(tau):
    rng = np.random.default_rng(0)
    W = orthogonal(12)
    model = tied(W, Threshold(tau / 2, "ternary"))
    z = tau * rng.choice([0, -1, 1], (50, 12), p=[0.6, 0.2, 0.2])
    noise = rng.normal(size=(50, 12))
    noise *= (tau / 4) * rng.random((50, 1)) / np.linalg.norm(noise, axis=1, keepdims=True)
    noise[0] = -np.sign(z[0, 0] or 1) * tau / 4 * W[:, 0]  # as much as is allowed, where it hurts most
    x = jnp.asarray(z @ W.T + noise)
    codes = jax.vmap(model.encode)(x)
    np.testing.assert_array_equal(codes, z)
    errors = np.linalg.norm(x - jax.vmap(model.decode)(codes), axis=1)
    np.testing.assert_allclose(errors, np.linalg.norm(noise, axis=1), rtol=1e-9)
    # More noise than the theorem allows, along an atom: the promise ends.
    broken = jnp.asarray(z[0] @ W.T + 0.8 * tau * W[:, np.flatnonzero(z[0] == 0)[0]])
    assert (np.asarray(model.encode(broken)) != z[0]).any()


@pytest.mark.parametrize("square", [True, False])
def test_its_encoder_is_one_step_of_ista(square):
    rng = np.random.default_rng(1)
    atoms = orthogonal(8).T if square else rng.normal(size=(14, 8))
    L, alpha = np.linalg.eigvalsh(atoms @ atoms.T).max(), 0.3
    x = rng.normal(size=(20, 8))
    encoder = Dense(jnp.asarray(atoms / L), jnp.zeros(len(atoms)), Threshold(alpha / L))
    found = jax.vmap(encoder)(jnp.asarray(x))
    u = x @ atoms.T / L
    np.testing.assert_allclose(found, np.sign(u) * np.maximum(np.abs(u) - alpha / L, 0), atol=1e-12)
    with pytest.warns(ConvergenceWarning):
        step = solve(x, atoms, penalty=L1(alpha), method="ista", max_iter=1, tol=1e-14)
    np.testing.assert_allclose(found, np.asarray(step.values), rtol=2e-6)  # its step is that much shorter than 1/L
    # Without negative codes it is a rectifier whose biases are the thresholds.
    rectifier = Dense(jnp.asarray(atoms / L), jnp.full(len(atoms), -alpha / L), "relu")
    with pytest.warns(ConvergenceWarning):
        step = solve(x, atoms, penalty=L1(alpha, nonnegative=True), method="ista", max_iter=1, tol=1e-14)
    np.testing.assert_allclose(jax.vmap(rectifier)(jnp.asarray(x)), np.asarray(step.values), rtol=2e-6)
    assert 0 < np.mean(np.asarray(found) == 0) < 1


# -- PCA ---------------------------------------------------------------------------------------------


def blob(n=200):
    rng = np.random.default_rng(3)
    return (rng.normal(size=(n, 5)) * [3.0, 2.0, 1.0, 0.5, 0.3]) @ orthogonal(5, 1) + [1.0, -2.0, 0.0, 3.0, 0.5]


def test_principal_components_are_a_stationary_point_of_a_linear_autoencoder():
    X = blob()
    pca = PCA(2).fit(X)
    W, mean = pca.components_.T, pca.mean_
    model = tied(W, "linear", biases=-W.T @ mean, back=mean)
    loss = lambda m: jnp.mean(jax.vmap(lambda x: m.energy(x, ()))(jnp.asarray(X)))  # noqa: E731
    value, gradient = eqx.filter_value_and_grad(loss)(model)
    discarded = np.linalg.eigvalsh(np.cov(X.T, bias=True))[:3].sum()
    np.testing.assert_allclose(value, 0.5 * discarded, rtol=1e-10)
    assert max(np.abs(leaf).max() for leaf in jax.tree.leaves(gradient)) < 1e-10
    moved = eqx.tree_at(lambda m: m.encoder.layers[0].weights, model, jnp.asarray(orthogonal(5, 9)[:2]))
    assert loss(moved) > value + 0.1


@pytest.mark.parametrize("weights_tied", [True, False])
def test_a_linear_autoencoder_learns_the_principal_subspace(weights_tied):
    X = blob().astype(np.float32)
    with jax.enable_x64(False):
        learned = Autoencoder(
            hidden=(2,), tied=weights_tied, loss="squared", n_epochs=600, batch_size=200, learning_rate=0.03,
            random_state=0, monitor=None,
        ).fit(X)  # fmt: skip
        decoder = learned.inverse_transform(np.eye(2)) - learned.inverse_transform(np.zeros((1, 2)))
        error = np.mean((X - learned.reconstruct(X)) ** 2)
    pca = PCA(2).fit(X)
    assert np.degrees(subspace_angles(decoder.T, pca.components_.T)).max() < 0.5
    best = np.mean((X - pca.inverse_transform(pca.transform(X))) ** 2)
    assert best * (1 - 1e-5) < error < best * 1.001


# -- score matching ----------------------------------------------------------------------------------

SLOPES = {
    "sigmoid": lambda u: jax.nn.sigmoid(u) * (1 - jax.nn.sigmoid(u)),
    "tanh": lambda u: 1 - jnp.tanh(u) ** 2,
    "linear": jnp.ones_like,
    "relu": lambda u: (u > 0).astype(u.dtype),
}


@pytest.mark.parametrize("named", SLOPES)
def test_the_loss_is_score_matching_of_the_matching_energy_up_to_the_trace(named):
    model, x = random_tied(named), rows()
    match = model.matching_energy()
    losses = jax.vmap(lambda x: model.energy(x, ()))(x)
    slopes = jax.vmap(jax.grad(match.free_energy))(x)
    np.testing.assert_allclose(0.5 * jnp.sum(slopes**2, axis=1), losses, rtol=1e-12)
    np.testing.assert_allclose(x - slopes, jax.vmap(lambda x: model.decode(model.encode(x)))(x), rtol=1e-10)
    # tr ∇²F = D − Σ_k ‖w_k‖² s′(w_kᵀx + b_k), by hand.
    layer = model.encoder.layers[0]
    norms = np.sum(np.asarray(layer.weights) ** 2, axis=1)
    trace = D - np.asarray(SLOPES[named](jax.vmap(layer.field)(x))) @ norms
    scores = jax.vmap(lambda x: hyvarinen_score(match, x))(x)
    np.testing.assert_allclose(scores, losses - trace, rtol=1e-10)
    objective = ScoreMatching().loss(match, x, None, None)[0]
    np.testing.assert_allclose(objective, np.mean(losses - trace), rtol=1e-10)
    assert np.ptp(trace) > 1e-2 or named == "linear"


def test_for_a_sigmoid_the_matching_energy_is_a_gaussian_rbm():
    model, x = random_tied("sigmoid"), rows()
    layer = model.encoder.layers[0]
    rbm = RBMModel.make(make("gaussian", D), make("bernoulli", K), key=jax.random.key(0))
    parts = lambda m: (m.weights, m.hidden.bias, m.visible.location)  # noqa: E731
    rbm = eqx.tree_at(parts, rbm, (layer.weights.T, layer.biases, model.decoder.biases[0]))
    change = jax.vmap(model.matching_energy().free_energy)(x) - jax.vmap(rbm.free_energy)(x)
    np.testing.assert_allclose(change, np.full(8, change[0]), atol=1e-10)


@pytest.mark.parametrize(
    "model",
    [
        lambda: random_tied("silu"),
        lambda: random_tied("sigmoid", n_winners=2),
        lambda: random_tied("sigmoid", loss="cross_entropy", output="sigmoid"),
        lambda: AutoencoderModel.dense((D, K), key=jax.random.key(0)),
        lambda: AutoencoderModel.dense((D, 5, K), key=jax.random.key(0), tied=True),
    ],
)
def test_other_autoencoders_have_no_matching_energy(model):
    with pytest.raises(CapabilityError, match="tied weights, squared loss"):
        model().matching_energy()


# -- losses and gradients ----------------------------------------------------------------------------


def deep(seed=0, **options):
    model = AutoencoderModel.dense((D, 5, K), key=jax.random.key(seed), activation="tanh", **options)
    rng = np.random.default_rng(seed)
    return jax.tree.map(lambda a: a + 0.3 * jnp.asarray(rng.normal(size=a.shape)), model)


def test_losses_by_hand():
    x = rows()
    model = deep()
    again = np.asarray(jax.vmap(lambda x: model.decode(model.encode(x)))(x))
    energies = jax.vmap(lambda x: model.energy(x, ()))(x)
    np.testing.assert_allclose(energies, 0.5 * np.sum((x - again) ** 2, axis=1), rtol=1e-12)
    grey = jax.nn.sigmoid(x)
    model = deep(loss="cross_entropy", output="sigmoid")
    again = np.asarray(jax.vmap(lambda x: model.decode(model.encode(x)))(grey))
    energies = jax.vmap(lambda x: model.energy(x, ()))(grey)
    wanted = -np.sum(grey * np.log(again) + (1 - grey) * np.log(1 - again), axis=1)
    np.testing.assert_allclose(energies, wanted, rtol=1e-12)
    sure = jnp.full(D, 1e4)  # far out, a logarithm of the sigmoid would be infinite
    assert np.isfinite(eqx.tree_at(lambda m: m.decoder.layers[-1].biases, model, sure).energy(grey[0], ()))


def test_tied_gradients_are_the_sum_of_both_ways():
    model = deep(tied=True)
    free = eqx.tree_at(lambda m: m.decoder, model, model.decoder.of(model.encoder))
    x = rows()
    loss = lambda m: jnp.mean(jax.vmap(lambda x: m.energy(x, ()))(x))  # noqa: E731
    np.testing.assert_allclose(loss(model), loss(free), rtol=1e-14)
    one, two = eqx.filter_grad(loss)(model), eqx.filter_grad(loss)(free)
    back = list(reversed(two.decoder.layers))
    for found, up, down in zip(one.encoder.layers, two.encoder.layers, back, strict=True):
        np.testing.assert_allclose(found.weights, up.weights + down.weights.T, rtol=1e-10)
        np.testing.assert_allclose(found.biases, up.biases, rtol=1e-10)
        assert np.abs(down.weights).max() > 1e-3
    for found, down in zip(one.decoder.biases, two.decoder.layers, strict=True):
        np.testing.assert_allclose(found, down.biases, rtol=1e-10)


# -- contraction -------------------------------------------------------------------------------------


def numerical(encode, x, step=1e-6):
    """‖J‖² by central differences."""
    moves = np.eye(x.size) * step
    columns = [(np.asarray(encode(x + m)) - np.asarray(encode(x - m))) / (2 * step) for m in moves]
    return np.sum(np.square(columns))


@pytest.mark.parametrize("named", ["sigmoid", "tanh", "relu", "silu", "linear"])
@pytest.mark.parametrize("kept", [None, 2])
def test_the_jacobian_of_one_layer_is_known(named, kept):
    model = random_tied(named, 2, n_winners=kept)
    for x in rows(3):
        found = model.squared_jacobian(x)
        np.testing.assert_allclose(found, np.sum(jax.jacfwd(model.encode)(x) ** 2), rtol=1e-10)
        np.testing.assert_allclose(found, numerical(model.encode, x), rtol=1e-6)


def test_the_jacobian_of_a_deep_encoder_and_of_one_with_a_function():
    wide = AutoencoderModel.dense((3, 5, 7), key=jax.random.key(2), activation="tanh")
    softmax = tied(np.random.default_rng(0).normal(size=(3, 4)), jax.nn.softmax)  # not one entry for itself
    for model in (deep(), wide, softmax):
        x = rows(1, model.n_features)[0]
        np.testing.assert_allclose(model.squared_jacobian(x), numerical(model.encode, x), rtol=1e-6)


def test_the_random_directions_are_unbiased():
    model, x = deep(), rows(1)
    J = np.asarray(jax.jacfwd(model.encode)(x[0]))
    exact = np.sum(J**2)
    signs = np.array(list(itertools.product([-1, 1], repeat=D)))
    np.testing.assert_allclose(np.mean(np.sum((signs @ J.T) ** 2, axis=1)), exact, rtol=1e-10)
    n, gamma = 20_000, 0.3
    objective = Reconstruction(contraction=gamma, jacobian="stochastic", n_directions=n)
    value, metrics = objective.loss(model, x, None, objective.init(model, x, key=jax.random.key(1)))
    A = J.T @ J
    spread = np.sqrt(2 * (np.sum(A**2) - np.sum(np.diag(A) ** 2)) / n)
    assert abs(metrics["squared_jacobian"] - exact) < 5 * spread
    assert spread < 0.02 * exact
    np.testing.assert_allclose(value, metrics["reconstruction"] + gamma * metrics["squared_jacobian"], rtol=1e-12)
    one = Reconstruction(contraction=gamma, jacobian="exact")
    _, metrics = one.loss(model, x, None, one.init(model, x, key=jax.random.key(1)))
    np.testing.assert_allclose(metrics["squared_jacobian"], exact, rtol=1e-10)


# -- sparsity ----------------------------------------------------------------------------------------


def test_exactly_k_winners():
    rng = np.random.default_rng(0)
    codes = rng.normal(size=(200, 9))
    codes[:50] = rng.integers(-2, 3, (50, 9))  # many of one size
    for k in (1, 4, 9):
        kept = np.asarray(jax.vmap(lambda c, k=k: winners(c, k))(jnp.asarray(codes)))
        chosen = kept != 0
        assert (chosen[50:].sum(axis=1) == k).all()
        assert (chosen.sum(axis=1) <= k).all()  # zeros may win, and stay zero
        np.testing.assert_array_equal(kept[chosen], codes[chosen])
        left = np.where(chosen, 0, np.abs(codes)).max(axis=1)
        least = np.where(chosen, np.abs(codes), np.inf).min(axis=1)
        assert (left <= least).all()
    model = random_tied("linear", n_winners=2)
    assert (np.count_nonzero(jax.vmap(model.encode)(rows()), axis=1) == 2).all()


def test_the_rate_divergence_is_that_of_two_coins():
    found = np.array([0.01, 0.1, 0.5, 0.97])
    for rate in (0.05, 0.4):
        wanted = rel_entr(rate, found) + rel_entr(1 - rate, 1 - found)
        np.testing.assert_allclose(rate_divergence(rate, jnp.asarray(found)), wanted, rtol=1e-12)
    assert np.isfinite(rate_divergence(0.05, jnp.array([0.0, 1.0]))).all()


@pytest.mark.parametrize("weighted", [False, True])
def test_prices_of_codes_by_hand(weighted):
    model, x = random_tied("sigmoid"), rows()
    weights = np.array([2.0, 0.0, 1.0, 1.0, 3.0, 0.5, 0.5, 0.0]) if weighted else np.ones(8)
    codes = np.asarray(jax.vmap(model.encode)(x))
    losses = np.asarray(jax.vmap(lambda x: model.energy(x, ()))(x))
    mean = weights @ codes / 8
    wanted = {
        "l1": weights @ np.abs(codes).sum(axis=1) / 8,
        "kl": np.sum(rel_entr(0.1, mean) + rel_entr(0.9, 1 - mean)),
    }
    for name, price in wanted.items():
        objective = Reconstruction(sparsity=name, sparsity_weight=0.7, rate=0.1)
        state = objective.init(model, x, key=jax.random.key(0))
        value, metrics = objective.loss(model, x, jnp.asarray(weights) if weighted else None, state)
        np.testing.assert_allclose(metrics["sparsity"], price, rtol=1e-10)
        np.testing.assert_allclose(metrics["reconstruction"], weights @ losses / 8, rtol=1e-10)
        np.testing.assert_allclose(value, weights @ losses / 8 + 0.7 * price, rtol=1e-10)


# -- denoising ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("emphasis", [0.5, 0.8, 1.0])
@pytest.mark.parametrize("kind", ["masking", "salt_and_pepper"])
def test_the_denoising_loss_compares_with_the_clean_data(kind, emphasis):
    model, x = deep(loss="cross_entropy", output="sigmoid"), jax.nn.sigmoid(rows(40))
    noise = Corruption(kind, 0.4)
    objective = Reconstruction(noise, emphasis)
    state = objective.prepare(model, x, objective.init(model, x, key=jax.random.key(0)), key=jax.random.key(3))
    value, _ = objective.loss(model, x, None, state)
    noisy, hit = noise(x, key=jax.random.split(jax.random.key(3))[0])
    again = np.asarray(jax.vmap(lambda x: model.decode(model.encode(x)))(noisy))
    entries = -np.asarray(x * np.log(again) + (1 - x) * np.log(1 - again))
    by_hand = np.where(hit, 2 * emphasis, 2 * (1 - emphasis)) * entries
    np.testing.assert_allclose(value, by_hand.sum(axis=1).mean(), rtol=1e-10)
    assert not np.isclose(value, jnp.mean(jax.vmap(lambda x: model.energy(x, ()))(x)))


def test_every_step_has_noise_of_its_own():
    model, x = deep(), rows()
    objective = Reconstruction(Corruption("gaussian", 0.5))
    state = objective.init(model, x, key=jax.random.key(0))
    states = [objective.prepare(model, x, state, key=jax.random.key(i)) for i in (1, 1, 2)]
    first, same, other = (float(objective.loss(model, x, None, s)[0]) for s in states)
    assert first == same != other


def test_denoising_a_gaussian_linearly_is_wiener_filtering():
    """The best linear denoiser of x ~ N(0, v) plus noise of variance τ² is x v / (v + τ²), in every direction."""
    rng = np.random.default_rng(0)
    spread = np.array([2.0, 1.0, 0.5])
    X = (rng.normal(size=(20_000, 3)) * spread) @ orthogonal(3, 4)
    X = jnp.asarray(X - X.mean(axis=0))
    C = np.cov(np.asarray(X).T, bias=True)
    tau = 0.6
    best = C @ np.linalg.inv(C + tau**2 * np.eye(3))
    weights = jnp.asarray(orthogonal(3, 5))
    noise = Corruption("gaussian", tau)
    objective = Reconstruction(noise)
    state = objective.init(None, X, key=jax.random.key(0))
    layers = [Dense(jnp.asarray(m), jnp.zeros(3)) for m in (weights, best @ weights.T)]
    model = AutoencoderModel(MLP((layers[0],)), MLP((layers[1],)), 3, 3)
    slope = eqx.filter_grad(lambda m: objective.loss(m, X, None, state)[0])(model)
    off = eqx.tree_at(lambda m: m.decoder.layers[0].weights, model, jnp.asarray(weights.T))
    away = eqx.filter_grad(lambda m: objective.loss(m, X, None, state)[0])(off)
    size = lambda g: float(np.abs(g.decoder.layers[0].weights).max())  # noqa: E731
    assert size(slope) < 0.05 < 0.2 < size(away)
