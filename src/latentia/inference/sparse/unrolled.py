"""Encoders that guess sparse codes in a fixed number of operations.

Both approximate the minimiser of ½‖x − zD‖² + α‖z‖₁ without iterating to convergence:

    PSD      f(x) = g ⊙ tanh(xWᵀ + b),   or   soft(xWᵀ + b, θ)                (Kavukcuoglu et al., 2008)
    LISTA    z_{k+1} = soft(x W_kᵀ + z_k S_kᵀ, θ_k),   z_0 = 0                (Gregor and LeCun, 2010)

A LISTA that nobody has trained *is* ISTA: with W = D/L, S = I − DDᵀ/L and θ = α/L, its k layers are k steps.
Learned weights, one set a layer, then reach in one layer what takes many steps, on signals like those they have
seen. How they are learned is in :mod:`latentia.learning.encoders`.

References:
    K. Kavukcuoglu, M. Ranzato and Y. LeCun, "Fast inference in sparse coding algorithms with applications to object
    recognition", Technical report CBLL-TR-2008-12-01, New York University (2008).
    K. Gregor and Y. LeCun, "Learning fast approximations of sparse coding", ICML (2010).
"""

from __future__ import annotations

import abc
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.core.parameters import bias, weight
from latentia.inference.sparse.proximal import lipschitz
from latentia.ops.compiling import jitted
from latentia.ops.thresholds import soft

Activation = Literal["soft", "tanh"]

#: Signals that are encoded at a time.
BLOCK = 8192


class AbstractEncoder(eqx.Module):
    """A function from a signal to its code."""

    @abc.abstractmethod
    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """The code of one signal."""

    @property
    @abc.abstractmethod
    def shape(self) -> tuple[int, int]:
        """(K, d)."""


class PSDEncoder(AbstractEncoder):
    """One layer: g ⊙ tanh(Wx + b), or a soft threshold that is learned.

    Build one with :meth:`make`. ``gain`` belongs to tanh, whose range it gives; ``threshold`` to soft.
    """

    weights: Float[Array, "k d"] = weight()
    offset: Float[Array, " k"] = bias()
    gain: Float[Array, " k"] = bias()
    threshold: Float[Array, " k"] = bias()
    activation: Activation = eqx.field(static=True, default="soft")
    nonnegative: bool = eqx.field(static=True, default=False)

    @classmethod
    def make(
        cls, D: Any, alpha: float, *, activation: Activation = "soft", nonnegative: bool = False, gain: Any = 1.0
    ) -> PSDEncoder:
        """An encoder that starts as the first step of ISTA (or as its tanh).

        Args:
            D: dictionary, (K, d).
            alpha: strength of the ℓ1 penalty; a number, or one per atom.
            activation: "soft" or "tanh".
            nonnegative: codes are not negative.
            gain: range of the codes for tanh, a number or one per atom.
        """
        if activation not in ("soft", "tanh"):
            raise UnknownNameError("activation", activation, ("soft", "tanh"))
        D = np.asarray(D)
        K, L = len(D), lipschitz(D)
        over = lambda a: jnp.asarray(np.broadcast_to(a, (K,)), D.dtype)  # noqa: E731
        return cls(
            jnp.asarray(D / L), over(0.0), over(gain), over(np.asarray(alpha) / L), activation, bool(nonnegative)
        )

    @property
    def shape(self) -> tuple[int, int]:
        """(K, d)."""
        return self.weights.shape[0], self.weights.shape[1]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """f(x)."""
        u = self.weights @ x + self.offset
        if self.activation == "soft":
            return _shrunk(u, self.threshold, self.nonnegative)
        code = self.gain * jnp.tanh(u)
        return jnp.maximum(code, 0.0) if self.nonnegative else code


class UnrolledLayer(eqx.Module):
    """z ← soft(xWᵀ + zSᵀ, θ); the first layer has no S, since it begins at z = 0."""

    weights: Float[Array, "k d"] = weight()
    lateral: Float[Array, "k k"] | None = weight()
    threshold: Float[Array, " k"] = bias()


class LISTA(AbstractEncoder):
    """Unrolled ISTA with learned weights, one set a layer. Build one with :meth:`make`.

    Example:
        >>> lista = LISTA.make(np.eye(2, dtype=np.float32), 0.5, n_layers=3)
        >>> np.asarray(lista(jnp.array([2.0, 0.3])), float).round(3)
        array([1.5, 0. ])
    """

    layers: tuple[UnrolledLayer, ...]
    nonnegative: bool = eqx.field(static=True, default=False)

    @classmethod
    def make(cls, D: Any, alpha: Any, *, n_layers: int, nonnegative: bool = False) -> LISTA:
        """Layers that are steps of ISTA from z = 0.

        Args:
            D: dictionary, (K, d), whose precision the encoder takes.
            alpha: strength of the ℓ1 penalty; a number, or one per atom.
            n_layers: steps.
            nonnegative: codes are not negative.
        """
        if n_layers < 1:
            raise ParameterError(f"n_layers must be an integer of at least 1, got {n_layers!r}.")
        D = np.asarray(D)
        K, L = len(D), lipschitz(D)
        weights = jnp.asarray(D / L)
        lateral = jnp.asarray(np.eye(K, dtype=D.dtype) - D @ D.T / L)
        threshold = jnp.asarray(np.broadcast_to(np.asarray(alpha) / L, (K,)), D.dtype)
        layers = tuple(UnrolledLayer(weights, lateral if k else None, threshold) for k in range(n_layers))
        return cls(layers, bool(nonnegative))

    @property
    def shape(self) -> tuple[int, int]:
        """(K, d)."""
        first = self.layers[0].weights
        return first.shape[0], first.shape[1]

    def __call__(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """The code after the last layer."""
        z = jnp.zeros(self.shape[0], x.dtype)
        for layer in self.layers:
            u = layer.weights @ x
            u = u if layer.lateral is None else u + layer.lateral @ z
            z = _shrunk(u, layer.threshold, self.nonnegative)
        return z


def encode_with(encoder: AbstractEncoder, X: Any) -> np.ndarray:
    """The codes of many signals, (n, K), by an encoder; float32 unless the encoder was made otherwise.

    Args:
        encoder: a :class:`PSDEncoder` or :class:`LISTA`.
        X: signals, (n, d).
    """
    K, d = encoder.shape
    if np.ndim(X) != 2 or X.shape[1] != d:
        raise DataError(f"This encoder takes signals of shape (n, {d}), got {np.shape(X)}.")
    dtype = jax.tree.leaves(encoder)[0].dtype
    out = np.empty((len(X), K), dtype)
    for i in range(0, len(X), BLOCK):
        rows = np.asarray(X[i : i + BLOCK], dtype)
        if not np.isfinite(rows).all():
            raise DataError("The signals hold NaN or infinite numbers; replace or drop them first.")
        # One shape for every block but a small set's only one: one program.
        short = BLOCK - len(rows) if len(X) > BLOCK else 0
        out[i : i + BLOCK] = np.asarray(_encode(encoder, jnp.asarray(np.pad(rows, ((0, short), (0, 0))))))[
            : len(rows)
        ]
    return out


@jitted
def _encode(encoder: AbstractEncoder, x: Array) -> Array:
    return jax.vmap(encoder)(x)


def _shrunk(u: Array, threshold: Array, nonnegative: bool) -> Array:
    """The soft threshold; a threshold that learning made negative counts as none."""
    t = jnp.maximum(threshold, 0.0)
    return jnp.maximum(u - t, 0.0) if nonnegative else soft(u, t)
