"""PSD and LISTA: they begin as ISTA, descend what they say they descend, and end near the exact codes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp

from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.inference.sparse import proximal
from latentia.inference.sparse.proximal import solve
from latentia.inference.sparse.unrolled import LISTA, PSDEncoder, encode_with
from latentia.learning.encoders import distance, learn_lista, learn_psd
from latentia.learning.prediction import psd_codes
from latentia.ops.penalties import L1

ALPHA = 0.3


def data(n: int, seed: int = 0, *, K: int = 20, d: int = 12, nonnegative: bool = False):
    """Sparse combinations of atoms that overlap, with a little noise."""
    atoms = np.random.default_rng(100).normal(size=(K, d)) + 0.7
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    rng = np.random.default_rng(seed)
    codes = rng.normal(size=(n, K)) * (rng.random((n, K)) < 0.12) * 2
    codes = np.abs(codes) if nonnegative else codes
    X = codes @ atoms + 0.05 * rng.normal(size=(n, d))
    return X.astype(np.float32), atoms.astype(np.float32)


def ista(X, D, k, alpha, nonnegative=False):
    """k steps of ISTA from zero, in NumPy."""
    L = np.linalg.eigvalsh(D.astype(float) @ D.T.astype(float))[-1]
    z = np.zeros((len(X), len(D)))
    for _ in range(k):
        u = z + (X - z @ D) @ D.T / L
        z = np.maximum(u - alpha / L, 0) if nonnegative else np.sign(u) * np.maximum(np.abs(u) - alpha / L, 0)
    return z


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_untrained_lista_is_ista(k, nonnegative):
    X, D = data(40)
    alpha = ALPHA * np.linspace(0.5, 2, len(D)) if k == 2 else ALPHA
    found = encode_with(LISTA.make(D, alpha, n_layers=k, nonnegative=nonnegative), X)
    np.testing.assert_allclose(found, ista(X, D, k, alpha, nonnegative), atol=1e-5)
    assert (found != 0).any()
    with jax.enable_x64(True):  # and the solver's own steps
        problem = proximal.make_problem(
            D.astype(float),
            L1(1.0, weights=np.broadcast_to(alpha, len(D)), nonnegative=nonnegative),
            np.float64,
            method="ista",
        )
        state = proximal.begin(problem, jnp.asarray(X.astype(float)), jnp.zeros((40, len(D))))
        for _ in range(k):
            state = proximal.advance(problem, jnp.asarray(X.astype(float)), state)
        np.testing.assert_allclose(found, state.z, atol=1e-5)


def test_lista_learns_what_ista_and_fista_take_many_steps_for():
    X, D = data(3000)
    exact = solve(X, D, penalty=L1(ALPHA), tol=1e-6, step="spectral").values
    held, _ = data(500, seed=1)
    target = solve(held, D, penalty=L1(ALPHA), tol=1e-6, step="spectral").values
    one = learn_lista(X, sp.csr_array(exact), D, ALPHA, 1, n_epochs=15, learning_rate=5e-3)
    two = learn_lista(X, exact, D, ALPHA, 2, n_epochs=15, learning_rate=5e-3)
    errors = [np.mean(np.sum((ista(held, D, k, ALPHA) - target) ** 2, axis=1)) for k in range(40)]
    assert distance(one, held, target) < errors[8]
    assert distance(two, held, target) < errors[20]
    assert distance(two, held, target) < 0.7 * distance(one, held, target)
    assert len(two.layers) == 2
    again = learn_lista(X, exact, D, ALPHA, 1, n_epochs=15, learning_rate=5e-3)
    np.testing.assert_array_equal(again.layers[0].weights, one.layers[0].weights)  # the same seed, the same bits


def test_nonnegative_lista_gives_nonnegative_codes():
    X, D = data(1000, nonnegative=True)
    exact = solve(X, D, penalty=L1(ALPHA, nonnegative=True), tol=1e-5, step="spectral").values
    start = LISTA.make(D, ALPHA, n_layers=1, nonnegative=True)
    learned = learn_lista(X, exact, D, ALPHA, 1, nonnegative=True, n_epochs=60, learning_rate=1e-2)
    assert encode_with(learned, X).min() == 0
    assert distance(learned, X, exact) < 0.3 * distance(start, X, exact)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_codes_of_psd_solve_the_augmented_problem(nonnegative):
    """½‖x − zD‖² + α‖z‖₁ + ½β‖z − f‖² is ℓ1 coding of (x, √β f) with atoms (d_j, √β e_j), which has a gap."""
    X, D = data(30)
    beta = 0.7
    encoder = PSDEncoder.make(D, ALPHA, nonnegative=nonnegative)
    L = proximal.lipschitz(D)
    found = psd_codes(encoder, jnp.asarray(D), jnp.asarray(X), ALPHA, jnp.asarray(beta), L, 300)
    guess = encode_with(encoder, X)
    signals = np.concatenate([X, np.sqrt(beta) * guess], axis=1).astype(float)
    atoms = np.concatenate([D, np.sqrt(beta) * np.eye(len(D))], axis=1).astype(float)
    exact = solve(signals, atoms, penalty=L1(ALPHA, nonnegative=nonnegative), tol=1e-10, step="spectral")
    np.testing.assert_allclose(found, exact.values, atol=1e-4)
    assert np.abs(np.asarray(found) - guess).max() > 0.1


@pytest.mark.parametrize("nonnegative", [False, True])
def test_the_functions_of_psd_are_those_written_down(nonnegative):
    rng = np.random.default_rng(4)
    W, b, g, t = rng.normal(size=(5, 3)), rng.normal(size=5), rng.random(5) + 0.5, rng.random(5)
    x = rng.normal(size=(20, 3))
    arrays = [jnp.asarray(a.astype(np.float32)) for a in (W, b, g, t)]
    u = x @ W.T + b
    expected = {"tanh": g * np.tanh(u), "soft": np.sign(u) * np.maximum(np.abs(u) - t, 0)}
    for activation, code in expected.items():
        found = encode_with(PSDEncoder(*arrays, activation, nonnegative), x)
        np.testing.assert_allclose(found, np.maximum(code, 0) if nonnegative else code, atol=1e-5)


def psd_objective(encoder, D, X, alpha, beta) -> float:
    """The whole objective at the best codes, written out."""
    guess = encode_with(encoder, X)
    signals = np.concatenate([X, np.sqrt(beta) * guess], axis=1)
    atoms = np.concatenate([D, np.sqrt(beta) * np.eye(len(D), dtype=np.float32)], axis=1)
    z = solve(signals, atoms, penalty=L1(alpha), tol=1e-6, step="spectral").values
    parts = ((X - z @ D) ** 2).sum(1) / 2 + alpha * np.abs(z).sum(1) + beta * ((z - guess) ** 2).sum(1) / 2
    return float(parts.mean())


@pytest.mark.parametrize("activation", ["soft", "tanh"])
def test_psd_lowers_its_objective_and_then_encodes_alone(activation):
    X, D = data(2000)
    held, _ = data(300, seed=1)
    gain = 2 * float(np.std(X @ D.T)) if activation == "tanh" else 1.0
    start = PSDEncoder.make(D, ALPHA, activation=activation, gain=gain)
    encoder, same = learn_psd(X, D, ALPHA, activation=activation, n_epochs=60, learning_rate=1e-2)
    np.testing.assert_array_equal(same, D)
    assert psd_objective(encoder, D, held, ALPHA, 1.0) < psd_objective(start, D, held, ALPHA, 1.0) - 0.4
    target = solve(held, D, penalty=L1(ALPHA), tol=1e-6, step="spectral").values
    assert distance(encoder, held, target) < 0.55 * distance(start, held, target)
    if activation == "soft":
        assert 0.1 < (encode_with(encoder, held) == 0).mean() < 0.95


def test_psd_learns_the_dictionary_too():
    X, D = data(3000)
    rng = np.random.default_rng(3)
    off = D + 0.2 * rng.normal(size=D.shape).astype(np.float32)
    off /= np.linalg.norm(off, axis=1, keepdims=True)
    encoder, learned = learn_psd(
        X, off, 0.1, beta=0.2, update_dictionary=True, n_epochs=40, dictionary_rate=0.5, learning_rate=5e-3
    )
    np.testing.assert_allclose(np.linalg.norm(learned, axis=1), 1, rtol=1e-5)
    match = lambda A: np.sum(A * D, axis=1)  # noqa: E731
    assert match(learned).mean() > match(off).mean() + 0.07
    assert match(learned).mean() > 0.9
    assert encode_with(encoder, X).shape == (3000, len(D))


def test_many_signals_are_encoded_in_blocks(monkeypatch):
    from latentia.inference.sparse import unrolled

    X, D = data(50)
    encoder = LISTA.make(D, ALPHA, n_layers=2)
    whole = encode_with(encoder, X)
    monkeypatch.setattr(unrolled, "BLOCK", 16)
    np.testing.assert_allclose(encode_with(encoder, X), whole, atol=1e-6)


def test_mistakes_are_refused():
    X, D = data(10)
    with pytest.raises(ParameterError, match="n_layers"):
        LISTA.make(D, ALPHA, n_layers=0)
    with pytest.raises(UnknownNameError, match="tanh"):
        PSDEncoder.make(D, ALPHA, activation="relu")
    with pytest.raises(DataError, match="10 codes of 20 atoms"):
        learn_lista(X, np.zeros((9, 20)), D, ALPHA)
    with pytest.raises(ParameterError, match="beta"):
        learn_psd(X, D, ALPHA, beta=0)
    with pytest.raises(DataError, match="finite"):
        learn_psd(np.full_like(X, np.nan), D, ALPHA)
    with pytest.raises(DataError, match="do not fit"):
        learn_psd(X, D.T, ALPHA)
    with pytest.raises(DataError, match=r"\(n, 12\)"):
        encode_with(LISTA.make(D, ALPHA, n_layers=1), X[:, :3])
    with pytest.raises(DataError, match="NaN"):
        encode_with(LISTA.make(D, ALPHA, n_layers=1), np.full_like(X, np.nan))
