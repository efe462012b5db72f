"""Learning encoders of sparse codes: LISTA from an exact solver's codes, PSD along with the dictionary.

LISTA has a teacher. It learns mean ‖f(x) − z*‖², where z* are the exact codes, layer by layer: a new layer begins
as a step of ISTA, learns alone, and then with all that came before it.

PSD (predictive sparse decomposition) learns from the signals alone. Over codes, encoder and, if asked, dictionary
it descends

    ½‖x − zD‖² + α‖z‖₁ + ½β‖z − f(x)‖².

For every batch, codes come first: proximal steps from z = f(x), which β keeps near (their Gram matrix is DDᵀ + βI);
then one gradient step on D, whose atoms are brought back to unit norm, and one on f. In the end f alone encodes.
"""

from __future__ import annotations

import math
from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse as sp
from jaxtyping import Array, Float

from latentia.core.errors import DataError, ParameterError
from latentia.inference.sparse.proximal import lipschitz
from latentia.inference.sparse.unrolled import LISTA, AbstractEncoder, Activation, PSDEncoder, encode_with
from latentia.ops.thresholds import soft

__all__ = ["encode_with", "learn_lista", "learn_psd"]

#: Part of a layer's steps in which it learns alone.
ALONE = 0.25
#: Steps of one compiled scan.
CHUNK = 200


def learn_lista(
    X: Any,
    Z: Any,
    D: Any,
    alpha: Any,
    n_layers: int = 3,
    *,
    nonnegative: bool = False,
    n_epochs: int = 30,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    random_state: int = 0,
) -> LISTA:
    """LISTA taught by exact codes.

    Args:
        X: signals, (n, d).
        Z: their exact codes, (n, K), dense or sparse.
        D: the dictionary, (K, d), atoms in rows.
        alpha: strength of the ℓ1 penalty that the codes were found with; a number, or one per atom.
        n_layers: layers.
        nonnegative: codes are not negative.
        n_epochs: passes over the signals for every layer that is added.
        batch_size: signals per step.
        learning_rate: of Adam, at the start of every layer's passes; it falls to zero.
        random_state: order of the signals.

    Returns:
        The encoder; :func:`encode_with` gives the codes of further signals.
    """
    x, atoms = _checked(X, D)
    codes = np.asarray(Z.toarray() if sp.issparse(Z) else Z, np.float32)
    if codes.shape != (len(x), len(atoms)):
        raise DataError(f"There must be {len(x)} codes of {len(atoms)} atoms, got shape {codes.shape}.")
    start = LISTA.make(atoms, alpha, n_layers=n_layers, nonnegative=nonnegative)
    batch_size = min(batch_size, len(x))
    n_steps = math.ceil(n_epochs * len(x) / batch_size)
    data = (jnp.asarray(x), jnp.asarray(codes))
    layers: tuple = ()
    for depth in range(n_layers):
        layers = (*layers, start.layers[depth])
        encoder = LISTA(layers, nonnegative)
        rng = np.random.default_rng([random_state, depth])
        alone = round(ALONE * n_steps) if depth else 0
        for steps, only_last in ((alone, True), (n_steps - alone, False)):
            encoder = _train(encoder, data, steps, batch_size, learning_rate, only_last, rng)
        layers = encoder.layers
    return LISTA(layers, nonnegative)


def _train(
    encoder: LISTA, data: tuple, n_steps: int, batch_size: int, rate: float, only_last: bool, rng: Any
) -> LISTA:
    """The encoder after so many steps of Adam on ‖f(x) − z*‖²."""
    if not n_steps:
        return encoder
    chosen = jax.tree.map(lambda _: not only_last, encoder)
    if only_last:
        chosen = eqx.tree_at(lambda e: e.layers[-1], chosen, jax.tree.map(lambda _: True, encoder.layers[-1]))
    params, rest = eqx.partition(encoder, chosen)
    state = optax.scale_by_adam().init(params)
    for done in range(0, n_steps, CHUNK):
        steps = np.arange(done, min(done + CHUNK, n_steps))
        rates = jnp.asarray(rate * 0.5 * (1 + np.cos(np.pi * steps / n_steps)), jnp.float32)
        rows = jnp.asarray(_order(rng, data[0].shape[0], len(steps), batch_size))
        params, state = _lista_steps(params, rest, state, data, rows, rates)
    return eqx.combine(params, rest)


@eqx.filter_jit
def _lista_steps(params: Any, rest: Any, state: Any, data: tuple, rows: Array, rates: Array) -> tuple[Any, Any]:
    def loss(params: Any, x: Array, z: Array) -> Array:
        return jnp.mean(jnp.sum((jax.vmap(eqx.combine(params, rest))(x) - z) ** 2, axis=-1))

    def step(carry: tuple, each: tuple) -> tuple[tuple, None]:
        params, state = carry
        rows, rate = each
        grads = jax.grad(loss)(params, data[0][rows], data[1][rows])
        return _adam(params, grads, state, rate), None

    return jax.lax.scan(step, (params, state), (rows, rates))[0]


def _adam(params: Any, grads: Any, state: Any, rate: Array) -> tuple[Any, Any]:
    with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts and rates
        moves, state = optax.scale_by_adam().update(grads, state)
    return jax.tree.map(lambda p, m: p - rate * m, params, moves), state


def learn_psd(
    X: Any,
    D: Any,
    alpha: float,
    *,
    beta: float = 1.0,
    activation: Activation = "soft",
    nonnegative: bool = False,
    update_dictionary: bool = False,
    n_code_steps: int = 30,
    n_epochs: int = 30,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    dictionary_rate: float = 0.1,
    random_state: int = 0,
) -> tuple[PSDEncoder, np.ndarray]:
    """Predictive sparse decomposition: an encoder (and a dictionary) learned from the signals.

    Args:
        X: signals, (n, d).
        D: the dictionary, (K, d), atoms in rows.
        alpha: strength of the ℓ1 penalty.
        beta: how much codes must agree with the encoder.
        activation: "soft" (a soft threshold) or "tanh" (with a gain).
        nonnegative: codes are not negative.
        update_dictionary: whether the dictionary learns too.
        n_code_steps: proximal steps for the codes of a batch.
        n_epochs: passes over the signals.
        batch_size: signals per step.
        learning_rate: of Adam for the encoder; it falls to zero.
        dictionary_rate: of the gradient step on the dictionary.
        random_state: order of the signals.

    Returns:
        The encoder, and the dictionary (as it was, unless it learns too).
    """
    if not beta > 0:
        raise ParameterError(f"beta must be above 0, got {beta!r}: without it nothing ties codes to the encoder.")
    x, atoms = _checked(X, D)
    batch_size = min(batch_size, len(x))
    # tanh is flat beyond its range: begin with one that holds the codes that one threshold gives.
    gain = 2 * float(np.std(x @ atoms.T)) if activation == "tanh" else 1.0
    encoder = PSDEncoder.make(atoms, alpha, activation=activation, nonnegative=nonnegative, gain=gain)
    n_steps = math.ceil(n_epochs * len(x) / batch_size)
    rng = np.random.default_rng(random_state)
    state: Any = optax.scale_by_adam().init(cast(Any, encoder))
    dictionary, data = jnp.asarray(atoms), jnp.asarray(x)
    numbers = jnp.asarray([alpha, beta, dictionary_rate if update_dictionary else 0.0], jnp.float32)
    for done in range(0, n_steps, CHUNK):
        steps = np.arange(done, min(done + CHUNK, n_steps))
        rates = jnp.asarray(learning_rate * 0.5 * (1 + np.cos(np.pi * steps / n_steps)), jnp.float32)
        rows = jnp.asarray(_order(rng, len(x), len(steps), batch_size))
        bound = jnp.asarray(lipschitz(np.asarray(dictionary)) * (1.2 if update_dictionary else 1.0), jnp.float32)
        encoder, dictionary, state = _psd_steps(
            encoder, dictionary, state, data, rows, rates, numbers, bound, n_code_steps
        )
    return encoder, np.asarray(dictionary) if update_dictionary else np.asarray(D)


def psd_codes(
    encoder: PSDEncoder, D: Float[Array, "k d"], x: Float[Array, "n d"], alpha: Any, beta: Any, L: Any, n_steps: int
) -> Float[Array, "n k"]:
    """argmin_z ½‖x − zD‖² + α‖z‖₁ + ½β‖z − f(x)‖² by FISTA from z = f(x); L bounds the eigenvalues of DDᵀ."""
    guess = jax.vmap(encoder)(x)
    step = 1 / (L + beta)
    # With strong convexity β the best momentum is constant.
    root = jnp.sqrt(beta * step)
    momentum = (1 - root) / (1 + root)

    def advance(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, y = carry
        u = y + step * ((x - y @ D) @ D.T + beta * (guess - y))
        new = jnp.maximum(u - step * alpha, 0.0) if encoder.nonnegative else soft(u, step * alpha)
        return (new, new + momentum * (new - z)), None

    return jax.lax.scan(advance, (guess, guess), None, length=n_steps)[0][0]


@eqx.filter_jit
def _psd_steps(
    encoder: PSDEncoder,
    D: Array,
    state: Any,
    data: Array,
    rows: Array,
    rates: Array,
    numbers: Array,
    bound: Array,
    n_code_steps: int,
) -> tuple[PSDEncoder, Array, Any]:
    alpha, beta, dictionary_rate = numbers

    def loss(encoder: PSDEncoder, x: Array, z: Array) -> Array:
        return 0.5 * jnp.mean(jnp.sum((jax.vmap(encoder)(x) - z) ** 2, axis=-1))

    def step(carry: tuple, each: tuple) -> tuple[tuple, None]:
        encoder, D, state = carry
        rows, rate = each
        x = data[rows]
        z = psd_codes(encoder, D, x, alpha, beta, bound, n_code_steps)
        moved = D + dictionary_rate * z.T @ (x - z @ D) / x.shape[0]
        norms = jnp.linalg.norm(moved, axis=1, keepdims=True)
        D = jnp.where(dictionary_rate > 0, moved / jnp.maximum(norms, 1e-12), D)
        encoder, state = _adam(encoder, jax.grad(loss)(encoder, x, z), state, rate)
        return (encoder, D, state), None

    return jax.lax.scan(step, (encoder, D, state), (rows, rates))[0]


def _order(rng: Any, n: int, n_steps: int, batch_size: int) -> np.ndarray:
    """Row numbers of so many batches: permutations, one after another."""
    times = math.ceil(n_steps * batch_size / n)
    stream = np.concatenate([rng.permutation(n) for _ in range(times)])
    return stream[: n_steps * batch_size].reshape(n_steps, batch_size).astype(np.int32)


def _checked(X: Any, D: Any) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(X.toarray() if sp.issparse(X) else X, np.float32)
    atoms = np.asarray(D, np.float32)
    if x.ndim != 2 or atoms.ndim != 2 or x.shape[1] != atoms.shape[1] or not len(x):
        raise DataError(f"Signals (n, d) and atoms (K, d) do not fit: {x.shape} and {atoms.shape}.")
    if not (np.isfinite(x).all() and np.isfinite(atoms).all()):
        raise DataError("Signals and dictionary must be finite; replace or drop NaN and infinite numbers first.")
    return x, atoms


def distance(encoder: AbstractEncoder, X: Any, Z: Any) -> float:
    """mean ‖f(x) − z*‖²: what LISTA learns, on signals X with exact codes Z."""
    return float(np.mean(np.sum((encode_with(encoder, X) - np.asarray(Z)) ** 2, axis=1)))
