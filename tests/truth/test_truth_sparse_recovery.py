"""One step of ISTA recovers the support: the theorems, over many random instances, and what happens without them.

x = hD + ε with atoms in the rows of D, non-zero entries of h of size at least τ (and at most M), step 1, λ = τ/2:

    orthogonal D, ‖ε‖ ≤ τ/4                                   the support and the signs of h, in one step from zero
    unit atoms, |⟨d_i, d_j⟩| ≤ μ, ‖h‖₀ μ M ≤ τ/8, ‖ε‖ ≤ τ/8    the same

and a threshold at τ/2 with tied weights reconstructs codes in {0, ±τ} up to ‖ε‖. The step is taken by the library's
own ``advance`` (with L = 1) on every instance.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.inference.sparse import proximal
from latentia.inference.sparse.unrolled import PSDEncoder
from latentia.ops.penalties import L1

N_INSTANCES = 60
SIGNALS = 16


def one_step(X: np.ndarray, D: np.ndarray, alpha: float) -> np.ndarray:
    """z after one step of ISTA from zero with step 1."""
    with jax.enable_x64(True):
        return np.asarray(_step(jnp.asarray(X), jnp.asarray(D), jnp.asarray(alpha)))


@jax.jit
def _step(x, D, alpha):
    problem = proximal.Problem(D, jnp.ones((), D.dtype), L1(alpha), "ista", "fixed", False)
    zeros = jnp.zeros((x.shape[0], D.shape[0]), D.dtype)
    return proximal.advance(problem, x, proximal.begin(problem, x, zeros)).z


def codes(rng, K: int, most: int, tau: float, top: float) -> np.ndarray:
    """Codes with up to ``most`` entries whose sizes lie in [τ, M], some exactly at both ends."""
    h = np.zeros((SIGNALS, K))
    for row in h:
        k = rng.integers(1, most + 1)
        sizes = rng.choice([tau, top, rng.uniform(tau, top)], size=k)
        row[rng.choice(K, k, replace=False)] = rng.choice([-1, 1], k) * sizes
    return h


def noise(rng, d: int, size: float) -> np.ndarray:
    e = rng.normal(size=(SIGNALS, d))
    return size * e / np.linalg.norm(e, axis=1, keepdims=True)


def recovered(z: np.ndarray, h: np.ndarray) -> np.ndarray:
    """Whether the signs (hence the supports) agree, for every signal."""
    return (np.sign(z) == np.sign(h)).all(axis=1)


def orthogonal(rng, d: int) -> np.ndarray:
    return np.linalg.qr(rng.normal(size=(d, d)))[0]


def incoherent(d: int) -> np.ndarray:
    """The unit vectors and the rows of a Hadamard matrix: 2d atoms with μ = 1/√d."""
    H = np.ones((1, 1))
    while len(H) < d:
        H = np.block([[H, H], [H, -H]])
    return np.concatenate([np.eye(d), H / np.sqrt(d)])


def coherence(D: np.ndarray) -> float:
    G = np.abs(D @ D.T)
    np.fill_diagonal(G, 0)
    return float(G.max())


def test_orthogonal_atoms_are_recovered_without_noise_for_any_price_below_the_least_entry():
    rng = np.random.default_rng(0)
    for _ in range(N_INSTANCES):
        d, tau = 12, float(np.exp(rng.normal()))
        D, h = orthogonal(rng, d), codes(rng, d, d, tau, 3 * tau)
        alpha = float(tau * rng.uniform(0.05, 0.99))
        z = one_step(h @ D, D, alpha)
        assert recovered(z, h).all()
        np.testing.assert_allclose(z, np.sign(h) * np.maximum(np.abs(h) - alpha, 0), atol=1e-9)
        assert not recovered(one_step(h @ D, D, 1.01 * tau), h).all()  # converse: the least entries are lost


def test_orthogonal_atoms_are_recovered_under_noise_up_to_a_quarter():
    rng = np.random.default_rng(1)
    for _ in range(N_INSTANCES):
        d, tau = 12, float(np.exp(rng.normal()))
        D, h = orthogonal(rng, d), codes(rng, d, d - 1, tau, 3 * tau)
        z = one_step(h @ D + noise(rng, d, tau / 4), D, tau / 2)
        assert recovered(z, h).all()
        assert np.abs(z - np.sign(h) * np.maximum(np.abs(h) - tau / 2, 0)).max() <= tau / 4 + 1e-9


def test_noise_above_half_along_an_atom_breaks_recovery():
    """λ = τ/2 leaves room for τ/2; noise along one atom that is a little larger is always seen."""
    rng = np.random.default_rng(2)
    for _ in range(N_INSTANCES):
        d, tau = 12, float(np.exp(rng.normal()))
        D, h = orthogonal(rng, d), codes(rng, d, d - 1, tau, tau)
        idle = np.array([rng.choice(np.flatnonzero(row == 0)) for row in h])
        busy = np.array([rng.choice(np.flatnonzero(row)) for row in h])
        signs = np.sign(h[np.arange(SIGNALS), busy])[:, None]
        added = one_step(h @ D + 0.51 * tau * D[idle], D, tau / 2)
        taken = one_step(h @ D - 0.51 * tau * signs * D[busy], D, tau / 2)
        assert not recovered(added, h).any()  # an atom too many
        assert not recovered(taken, h).any()  # one too few
        assert recovered(one_step(h @ D + 0.49 * tau * D[idle], D, tau / 2), h).all()


@pytest.mark.parametrize("d", [256, 1024])
def test_incoherent_atoms_are_recovered(d):
    rng = np.random.default_rng(3)
    D = incoherent(d)
    mu = coherence(D)
    assert mu == pytest.approx(1 / np.sqrt(d))
    for _ in range(10):
        tau = float(np.exp(rng.normal()))
        most = int(np.sqrt(d) / 8)  # ‖h‖₀ μ M ≤ τ/8 with M = τ …
        ratio = rng.uniform(1, np.sqrt(d) / 8 / most) if most < np.sqrt(d) / 8 else 1.0
        h = codes(rng, 2 * d, most, tau, tau * ratio)
        assert ((h != 0).sum(1) * mu * np.abs(h).max(1) <= tau / 8 * (1 + 1e-12)).all()
        z = one_step(h @ D + noise(rng, d, tau / 8), D, tau / 2)
        assert recovered(z, h).all()
        # The worst case that the theorem allows: noise along an atom that is off, and one that is on.
        idle = np.array([rng.choice(np.flatnonzero(row == 0)) for row in h])
        z = one_step(h @ D + tau / 8 * D[idle], D, tau / 2)
        assert recovered(z, h).all()


def test_coherent_atoms_break_recovery():
    """Atoms a fixed angle apart: with μ above ½, the correlation with a neighbour alone passes λ = τ/2."""
    rng = np.random.default_rng(4)
    for _ in range(N_INSTANCES):
        d, tau, mu = 12, float(np.exp(rng.normal())), float(rng.uniform(0.51, 0.95))
        Q = orthogonal(rng, d)
        D = np.concatenate([Q, mu * Q[:1] + np.sqrt(1 - mu**2) * Q[1:2]])
        h = np.zeros((SIGNALS, d + 1))
        h[:, 0] = tau * rng.choice([-1, 1], SIGNALS)
        assert not recovered(one_step(h @ D, D, tau / 2), h).any()
        D[-1] = 0.49 * Q[0] + np.sqrt(1 - 0.49**2) * Q[1]
        assert recovered(one_step(h @ D, D, tau / 2), h).all()


def test_many_small_coherences_add_up():
    """μ alone is small; it is ‖h‖₀ μ M that counts: enough Hadamard atoms pull a unit vector over τ/2."""
    d, tau = 256, 1.0
    D = incoherent(d)
    for k, works in ((2, True), (7, True), (9, False), (64, False)):
        h = np.zeros((1, 2 * d))
        chosen = d + np.arange(k)
        h[0, chosen] = tau * np.sign(D[chosen, 3])  # all pull on unit vector 3 with μ = 1/16 each
        assert recovered(one_step(h @ D, D, tau / 2), h).all() == works


def test_a_threshold_autoencoder_with_tied_weights_reconstructs_up_to_the_noise():
    """Codes in {0, ±τ}: thr(xDᵀ) at τ/2, times D, is off by exactly ‖ε‖ for ‖ε‖ ≤ τ/4."""
    rng = np.random.default_rng(5)
    for _ in range(N_INSTANCES):
        d, tau = 12, float(np.exp(rng.normal()))
        D, h = orthogonal(rng, d), codes(rng, d, d, tau, tau)
        e = noise(rng, d, tau / 4 * rng.uniform(0.1, 1))
        x = h @ D + e
        support = one_step(x, D, tau / 2)
        decoded = tau * np.sign(support) @ D
        np.testing.assert_allclose(np.linalg.norm(decoded - x, axis=1), np.linalg.norm(e, axis=1), rtol=1e-6)


def test_an_untrained_encoder_of_one_layer_is_that_step():
    """With orthogonal atoms L = 1, and the encoder's first guess is the theorem's one step."""
    rng = np.random.default_rng(6)
    D = orthogonal(rng, 12).astype(np.float32)
    h = codes(rng, 12, 6, 1.0, 2.0).astype(np.float32)
    encoder = PSDEncoder.make(D, 0.5)
    found = np.asarray(jax.vmap(encoder)(jnp.asarray(h @ D + noise(rng, 12, 0.25).astype(np.float32))))
    assert recovered(found, h).all()
