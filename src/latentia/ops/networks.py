"""Feed-forward networks: dense layers, stacks of them, convolutions down to a code and back, any Equinox module.

A dense layer is x ↦ s(Wx + b), a gated one x ↦ (Wx + b) ⊙ σ(Vx + c). A convolutional encoder halves the image with
every layer and ends in a dense one; a decoder does the same backwards, doubling by repeating pixels before each
convolution, which leaves none of the checkerboards of a transposed one (Odena, Dumoulin and Olah, 2016). Networks
map one example; batch them with :func:`jax.vmap`.

Weights start normal with variance g²/n_in, g² = 2 before rectifiers (He, Zhang, Ren and Sun, 2015) and 1 otherwise.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.parameters import bias, weight
from latentia.ops.logistic import softplus
from latentia.ops.thresholds import soft

Activation = Literal["linear", "sigmoid", "tanh", "relu", "leaky_relu", "elu", "silu", "gelu", "softplus"]
#: A name (one of ``Activation``), or any function of arrays; a function must be hashable, as all plain ones are.
AnyActivation = str | Callable[[Array], Array]

ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda u: u,
    "sigmoid": jax.nn.sigmoid,
    "tanh": jnp.tanh,
    "relu": jax.nn.relu,
    "leaky_relu": jax.nn.leaky_relu,
    "elu": jax.nn.elu,
    "silu": jax.nn.silu,
    "gelu": jax.nn.gelu,
    "softplus": softplus,
}

#: Φ with Φ′ = s, where it is known: the activation s is then the slope of an energy.
POTENTIALS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda u: 0.5 * u**2,
    "sigmoid": softplus,
    "tanh": lambda u: jnp.logaddexp(u, -u),
    "relu": lambda u: 0.5 * jax.nn.relu(u) ** 2,
}

_GAINS: dict[str, float] = dict.fromkeys(("relu", "leaky_relu", "elu", "silu", "gelu"), 2.0)


@dataclasses.dataclass(frozen=True)
class Threshold:
    """An activation that leaves only what is large.

    Args:
        level: t. "soft" is sign(u) (|u| − t)₊, one step of iterative shrinkage; "hard" keeps u where |u| > t;
            "ternary" makes 2t sign(u) of it: codes in {0, ±2t}.
        kind: which of them.

    >>> Threshold(0.5, "ternary")(jnp.array([0.4, -0.7, 3.0]))
    Array([ 0., -1.,  1.], dtype=float32)
    """

    level: float
    kind: Literal["soft", "hard", "ternary"] = "soft"

    def __post_init__(self) -> None:
        if not 0 <= self.level < math.inf:
            raise ParameterError(f"level must be at least 0, got {self.level!r}.")
        if self.kind not in ("soft", "hard", "ternary"):
            raise UnknownNameError("kind", self.kind, ("soft", "hard", "ternary"))

    def __call__(self, u: Array) -> Array:
        """Entry by entry."""
        if self.kind == "soft":
            return soft(u, jnp.full(u.shape, self.level, u.dtype))
        value = u if self.kind == "hard" else 2 * self.level * jnp.sign(u)
        return jnp.where(jnp.abs(u) > self.level, value, jnp.zeros_like(u))


def activation(named: AnyActivation) -> Callable[[Array], Array]:
    """The function that a name stands for; a function is returned as it is.

    >>> activation("relu")(jnp.array([-1.0, 2.0]))
    Array([0., 2.], dtype=float32)
    """
    if callable(named):
        return named
    if named not in ACTIVATIONS:
        raise UnknownNameError("activation", named, get_args(Activation))
    return ACTIVATIONS[named]


def winners(code: Float[Array, " k"], n: int) -> Float[Array, " k"]:
    """The ``n`` entries of a code that are largest in size; the others are zero, and of equal ones the first stay.

    >>> winners(jnp.array([1.0, -3.0, 2.0, 2.0]), 2)
    Array([ 0., -3.,  2.,  0.], dtype=float32)
    """
    _, places = jax.lax.top_k(jnp.abs(code), n)
    kept = jnp.zeros(code.shape, bool).at[places].set(True)
    return jnp.where(kept, code, jnp.zeros_like(code))


class Dense(eqx.Module):
    """x ↦ s(Wx + b)."""

    weights: Float[Array, "n_out n_in"] = weight()
    biases: Float[Array, " n_out"] = bias()
    activation: AnyActivation = eqx.field(static=True, default="linear")

    @classmethod
    def make(
        cls,
        n_in: int,
        n_out: int,
        *,
        key: PRNGKeyArray,
        activation: AnyActivation = "linear",
        scale: float | None = None,
    ) -> Self:
        """Random weights, no biases; unless ``scale`` is given, variances stay about one on the way forward."""
        scale = math.sqrt(_gain(activation) / n_in) if scale is None else scale
        return cls(scale * jax.random.normal(key, (n_out, n_in)), jnp.zeros(n_out), activation)

    def field(self, x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
        """Wx + b."""
        return self.weights @ x + self.biases

    def __call__(self, x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
        """s(Wx + b)."""
        return activation(self.activation)(self.field(x))

    def transposed(self, biases: Float[Array, " n_in"], named: AnyActivation) -> Dense:
        """The layer back: the same weights the other way."""
        return Dense(self.weights.T, biases, named)


class Gated(eqx.Module):
    """x ↦ (Wx + b) ⊙ σ(Vx + c): linear values, each let through by a gate (Dauphin et al., 2017).

    Args:
        both: the layer of all values and, after them, all gates, as one product.
    """

    both: Dense

    @classmethod
    def make(cls, n_in: int, n_out: int, *, key: PRNGKeyArray, scale: float | None = None) -> Self:
        """Random weights, no biases, twice as large as a dense layer's: gates begin half open."""
        scale = 1 / math.sqrt(n_in) if scale is None else scale
        return cls(Dense.make(n_in, 2 * n_out, key=key, scale=2 * scale))

    def __call__(self, x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
        """Values times gates."""
        values, gates = jnp.split(self.both(x), 2)
        return values * jax.nn.sigmoid(gates)


class MLP(eqx.Module):
    """Layers, one after another: dense ones, or gated ones where the activation is called "gated".

    Example:
        >>> network = MLP.make((4, 8, 2), key=jax.random.key(0), activation="relu")
        >>> network(jnp.ones(4)).shape
        (2,)
    """

    layers: tuple[Any, ...]

    @classmethod
    def make(
        cls,
        sizes: Sequence[int],
        *,
        key: PRNGKeyArray,
        activation: AnyActivation = "relu",
        last: AnyActivation = "linear",
        gain: float | None = None,
    ) -> Self:
        """Layers between neighbouring sizes; the last one's activation is ``last``.

        With a ``gain``, weights have variance 2/(n_in + n_out), a compromise between the ways forward and back
        (Glorot and Bengio, 2010), and those of the last layer are ``gain`` times as large.
        """
        pairs = list(itertools.pairwise(sizes))
        keys = jax.random.split(key, len(pairs))
        named = [activation] * (len(pairs) - 1) + [last]
        scales: Sequence[float | None] = [None] * len(pairs)
        if gain is not None:
            scales = [math.sqrt(2 / (n + m)) for n, m in pairs[:-1]] + [gain * math.sqrt(2 / sum(pairs[-1]))]
        made = zip(pairs, keys, named, scales, strict=True)
        return cls(tuple(_layer(n, m, k, a, s) for (n, m), k, a, s in made))

    def __call__(self, x: Float[Array, " n_in"]) -> Float[Array, " n_out"]:
        """The last layer's values."""
        for layer in self.layers:
            x = layer(x)
        return x


def _layer(n_in: int, n_out: int, key: PRNGKeyArray, named: AnyActivation, scale: float | None) -> Dense | Gated:
    if named == "gated":
        return Gated.make(n_in, n_out, key=key, scale=scale)
    return Dense.make(n_in, n_out, key=key, activation=named, scale=scale)


class Transposed(eqx.Module):
    """A decoder with the weights of the encoder: all it has of its own are the biases of its layers.

    Args:
        biases: of the layers on the way back, the first of them nearest to the code.
        named: their activations.
    """

    biases: tuple[Float[Array, " n"], ...] = bias()
    named: tuple[AnyActivation, ...] = eqx.field(static=True, default=())

    @classmethod
    def make(cls, encoder: MLP, *, activation: AnyActivation) -> Self:
        """No biases yet; the last layer is linear."""
        sizes = [layer.weights.shape[1] for layer in reversed(encoder.layers)]
        return cls(tuple(jnp.zeros(n) for n in sizes), (activation,) * (len(sizes) - 1) + ("linear",))

    def of(self, encoder: MLP) -> MLP:
        """The decoder for an encoder; gradients reach the weights by both ways."""
        triples = zip(reversed(encoder.layers), self.biases, self.named, strict=True)
        return MLP(tuple(layer.transposed(b, named) for layer, b, named in triples))


class Convolution(eqx.Module):
    """A convolution with 3 × 3 filters, zeros beyond the border, and an activation.

    Args:
        weights: filters (out, in, 3, 3).
        biases: one for each output channel.
        activation: what follows.
        stride: 2 halves the image (rounding up), 1 keeps its size.
    """

    weights: Float[Array, "out in 3 3"] = weight()
    biases: Float[Array, " out"] = bias()
    activation: AnyActivation = eqx.field(static=True, default="relu")
    stride: int = eqx.field(static=True, default=1)

    @classmethod
    def make(cls, n_in: int, n_out: int, *, key: PRNGKeyArray, activation: AnyActivation, stride: int = 1) -> Self:
        """Random filters."""
        scale = math.sqrt(_gain(activation) / (9 * n_in))
        return cls(scale * jax.random.normal(key, (n_out, n_in, 3, 3)), jnp.zeros(n_out), activation, stride)

    def __call__(self, x: Float[Array, "in h w"]) -> Float[Array, "out p q"]:
        """The output image."""
        strides = (self.stride, self.stride)
        out = jax.lax.conv_general_dilated(x[None], self.weights, strides, ((1, 1), (1, 1)))[0]
        return activation(self.activation)(out + jnp.broadcast_to(self.biases[:, None, None], out.shape))


class ConvolutionalEncoder(eqx.Module):
    """Flat image → code: convolutions, each halving height and width, then a dense layer."""

    layers: tuple[Convolution, ...]
    last: Dense
    image_shape: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def make(
        cls,
        image_shape: Sequence[int],
        channels: Sequence[int],
        n_code: int,
        *,
        key: PRNGKeyArray,
        activation: AnyActivation = "relu",
        last: AnyActivation = "linear",
    ) -> Self:
        """For images (h, w) or (h, w, colours), with so many channels after every convolution."""
        *keys, last_key = jax.random.split(key, len(channels) + 1)
        both = itertools.pairwise((_colours(image_shape), *channels))
        layers = [
            Convolution.make(n, m, key=k, activation=activation, stride=2)
            for (n, m), k in zip(both, keys, strict=True)
        ]
        height, width = _shrunk(image_shape, len(channels))
        dense = Dense.make(channels[-1] * height * width, n_code, key=last_key, activation=last)
        return cls(tuple(layers), dense, tuple(image_shape))

    def __call__(self, x: Float[Array, " n"]) -> Float[Array, " k"]:
        """The code."""
        image = x.reshape(*self.image_shape[:2], -1).transpose(2, 0, 1)  # colours first, as convolutions require
        for layer in self.layers:
            image = layer(image)
        return self.last(image.reshape(-1))


class ConvolutionalDecoder(eqx.Module):
    """Code → flat image: a dense layer, then convolutions, each after doubling height and width."""

    first: Dense
    layers: tuple[Convolution, ...]
    image_shape: tuple[int, ...] = eqx.field(static=True)

    @classmethod
    def make(
        cls,
        image_shape: Sequence[int],
        channels: Sequence[int],
        n_code: int,
        *,
        key: PRNGKeyArray,
        activation: AnyActivation = "relu",
    ) -> Self:
        """The way back of :meth:`ConvolutionalEncoder.make`; what comes out is linear."""
        first_key, *keys = jax.random.split(key, len(channels) + 1)
        height, width = _shrunk(image_shape, len(channels))
        dense = Dense.make(n_code, channels[-1] * height * width, key=first_key, activation=activation)
        both = itertools.pairwise((*reversed(channels), _colours(image_shape)))
        named = [activation] * (len(channels) - 1) + ["linear"]
        layers = [
            Convolution.make(n, m, key=k, activation=a) for (n, m), k, a in zip(both, keys, named, strict=True)
        ]
        return cls(dense, tuple(layers), tuple(image_shape))

    def __call__(self, code: Float[Array, " k"]) -> Float[Array, " n"]:
        """The image, one colour after another at every pixel."""
        depth = len(self.layers)
        image = self.first(code).reshape(-1, *_shrunk(self.image_shape, depth))
        for i, layer in enumerate(self.layers):
            height, width = _shrunk(self.image_shape, depth - 1 - i)
            image = jnp.repeat(jnp.repeat(image, 2, axis=1), 2, axis=2)[:, :height, :width]
            image = layer(image)
        return image.transpose(1, 2, 0).reshape(-1)


class Held(eqx.Module):
    """Any Equinox module, its arrays separate from its other fields (such as functions): training uses only arrays.

    Args:
        arrays: the module's arrays.
        rest: everything else.
        shape: what its input is reshaped to; None leaves it as it is.
    """

    arrays: Any
    rest: Any = eqx.field(static=True)
    shape: tuple[int, ...] | None = eqx.field(static=True, default=None)

    @classmethod
    def make(cls, module: Any, shape: Sequence[int] | None = None) -> Self:
        """Take a module apart."""
        arrays, rest = eqx.partition(module, eqx.is_array)
        return cls(jax.tree.map(jnp.asarray, arrays), rest, None if shape is None else tuple(shape))

    @property
    def module(self) -> Any:
        """The module as it was given, with the arrays as they are now."""
        return eqx.combine(self.arrays, self.rest)

    def __call__(self, x: Array) -> Float[Array, " n"]:
        """The module's value, as one vector."""
        return self.module(x if self.shape is None else x.reshape(self.shape)).reshape(-1)


def squared_jacobian(network: Callable[[Array], Array], x: Float[Array, " n"]) -> Float[Array, ""]:
    """‖∂network/∂x‖²_F, by columns or by rows, whichever are fewer.

    >>> squared_jacobian(lambda x: 2 * x, jnp.ones(3))
    Array(12., dtype=float32)
    """
    n_out = jax.eval_shape(network, x).size
    jacobian = jax.jacrev(network)(x) if n_out < x.size else jax.jacfwd(network)(x)
    return jnp.sum(jacobian**2)


def _gain(named: AnyActivation) -> float:
    return _GAINS.get(named, 1.0) if isinstance(named, str) else 1.0


def _colours(image_shape: Sequence[int]) -> int:
    return int(image_shape[2]) if len(image_shape) == 3 else 1


def _shrunk(image_shape: Sequence[int], times: int) -> tuple[int, int]:
    """Height and width after being halved, rounding up."""
    height, width = image_shape[:2]
    for _ in range(times):
        height, width = -(-height // 2), -(-width // 2)
    return int(height), int(width)
