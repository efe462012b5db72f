"""Amortised inference: a network maps x to q(z | x), a product over the latents.

Real latents are normal with a mean and a standard deviation for every x; binary, spin and categorical
ones have Bernoulli and categorical distributions under a field. Without a hidden layer the network is affine, which
is the exact form of the posterior of a restricted Boltzmann machine.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractInference, Need
from latentia.core.errors import CapabilityError
from latentia.core.model import AbstractPosterior, Scalar
from latentia.core.parameters import bias, buffer, weight
from latentia.core.space import Domain, Space, leaves
from latentia.ops.arrays import cast
from latentia.ops.gaussian import LOG_2PI
from latentia.units import Factorial, make

_UNITS: dict[Domain, str] = {"binary": "bernoulli", "spin": "spin", "categorical": "categorical"}
#: The latents that an encoder can infer.
DOMAINS: tuple[Domain, ...] = ("real", *_UNITS)


class DiagonalGaussian(AbstractPosterior):
    """Independent normal latents; draws are differentiable in their parameters."""

    location: Float[Array, " n"]
    log_sigma: Float[Array, " n"]

    def mean(self) -> Float[Array, " n"]:
        """μ."""
        return self.location

    def sample(self, *, key: PRNGKeyArray) -> Float[Array, " n"]:
        """μ + σε."""
        return self.place(jax.random.normal(key, self.location.shape, self.location.dtype))

    def place(self, noise: Float[Array, " n"]) -> Float[Array, " n"]:
        """The draw that standard normal noise stands for: μ + σε."""
        return self.location + jnp.exp(self.log_sigma) * noise

    def log_prob(self, z: Float[Array, " n"]) -> Scalar:
        """Σ log N(z; μ, σ²)."""
        residual = (z - self.location) * jnp.exp(-self.log_sigma)
        return -jnp.sum(0.5 * residual**2 + self.log_sigma + 0.5 * LOG_2PI)

    def entropy(self) -> Scalar:
        """Σ log σ + ½ log 2πe."""
        return jnp.sum(self.log_sigma + 0.5 * (LOG_2PI + 1))


class Independent(AbstractPosterior):
    """Independent parts, in the structure of the latents."""

    parts: tuple[AbstractPosterior, ...]
    structure: Any = eqx.field(static=True)

    def mean(self) -> Any:
        """Of every part."""
        return jax.tree.unflatten(self.structure, [q.mean() for q in self.parts])

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """Of every part."""
        keys = jax.random.split(key, len(self.parts))
        drawn = [q.sample(key=k) for q, k in zip(self.parts, keys, strict=True)]
        return jax.tree.unflatten(self.structure, drawn)

    def log_prob(self, z: Any) -> Scalar:
        """The sum over the parts."""
        terms = [q.log_prob(part) for q, part in zip(self.parts, jax.tree.leaves(z), strict=True)]
        return jnp.sum(jnp.stack(terms))

    def entropy(self) -> Scalar:
        """The sum over the parts."""
        return jnp.sum(jnp.stack([q.entropy() for q in self.parts]))


class Encoder(AbstractInference):
    """x → q(z | x): standardise, perhaps a hidden layer of tanh units, then an affine layer.

    Build one with :meth:`make`; its weights are learned by an objective that has a use for it.
    """

    z_space: Any = eqx.field(static=True)
    layers: tuple[Float[Array, "out in"], ...] = weight()
    biases: tuple[Float[Array, " out"], ...] = bias()
    centre: Float[Array, " d"] = buffer()
    scale: Float[Array, " d"] = buffer()

    @classmethod
    def make(cls, z_space: Any, x: Any, *, hidden: int | None, key: PRNGKeyArray) -> Encoder:
        """An encoder for latents of a space, with small random weights.

        Args:
            z_space: the latents.
            x: a batch of visibles, for their mean and scale.
            hidden: units of a hidden layer; None for an affine map.
            key: random key.
        """
        if not leaves(z_space):
            raise CapabilityError("An encoder needs latents to infer, and the model has none.")
        strange = [leaf.domain for leaf in leaves(z_space) if leaf.domain not in DOMAINS]
        if strange:
            known = f"{', '.join(DOMAINS[:-1])} and {DOMAINS[-1]}"
            raise CapabilityError(f"An encoder supports {known} latents, not {strange[0]}.")
        rows = jax.vmap(lambda x: ravel_pytree(x)[0])(x)
        spread = jnp.std(rows, axis=0)
        sizes = [rows.shape[1], *([] if hidden is None else [hidden]), sum(map(_outputs, leaves(z_space)))]
        keys = jax.random.split(key, len(sizes) - 1)
        shapes = list(zip(sizes[1:], sizes[:-1], strict=True))
        layers = [jax.random.normal(k, s, rows.dtype) / math.sqrt(s[1]) for k, s in zip(keys, shapes, strict=True)]
        layers[-1] = 0.1 * layers[-1]
        biases = tuple(jnp.zeros(s[0], rows.dtype) for s in shapes)
        scale = jnp.where(spread > 0, spread, jnp.ones_like(spread))
        return cls(z_space, tuple(layers), biases, jnp.mean(rows, axis=0), scale)

    @property
    def requires(self) -> tuple[Need, ...]:
        """Nothing: a network fits every model whose latents it was made for."""
        return ()

    def infer(self, model: Any, x: Any, *, key: PRNGKeyArray | None = None) -> Independent:
        """q(z | x); nothing random happens."""
        del model, key
        value = (ravel_pytree(x)[0] - self.centre) / self.scale
        for i, (matrix, offset) in enumerate(zip(self.layers, self.biases, strict=True)):
            value = (jnp.tanh(value) if i else value) @ matrix.T + offset
        flat, structure = jax.tree.flatten(self.z_space)
        ends = [sum(map(_outputs, flat[: i + 1])) for i in range(len(flat))]
        return Independent(
            tuple(_part(leaf, value[end - _outputs(leaf) : end]) for leaf, end in zip(flat, ends, strict=True)),
            structure,
        )


def _outputs(leaf: Space) -> int:
    """Numbers that a network must give: a mean and a log-scale for real latents, a field for others."""
    return math.prod(leaf.shape) * (2 if leaf.domain == "real" else 1)


def _part(leaf: Space, numbers: Float[Array, " n"]) -> AbstractPosterior:
    if leaf.domain == "real":
        return DiagonalGaussian(*jnp.split(numbers, 2))
    states = leaf.shape[1] if leaf.domain == "categorical" else None
    units = cast(make(_UNITS[leaf.domain], leaf.shape[0], states), numbers.dtype)
    return Factorial(jax.lax.stop_gradient(units), numbers)
