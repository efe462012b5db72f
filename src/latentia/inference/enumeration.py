"""Sums over all states of the smallest discrete side of a model.

    log Z = log Σ_x exp(−F(x)) = log Σ_z exp(−F*(z)) = log Σ_{x,z} exp(−E(x, z)),

where F sums the latents out and F* the visibles (an integral if they are continuous), so that one discrete side is
enough. States are generated from their index inside a compiled loop, chunk by chunk; memory does not grow with
their number, also for the gradient of the sum.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from latentia.core import space
from latentia.core.capabilities import FreeEnergy, LatentFreeEnergy
from latentia.core.model import AbstractModel, Scalar
from latentia.core.space import Space
from latentia.ops.arrays import float_type

#: States that are enumerated at most, unless the caller says otherwise.
LIMIT = 2**20
#: States whose energies are computed at once.
CHUNK = 2**12


@dataclasses.dataclass(frozen=True)
class Side:
    """Variables that can be enumerated, once the others are summed out."""

    name: str
    space: Any
    log_count: float

    @property
    def count(self) -> int:
        """How many states there are."""
        return math.prod(_count(leaf) for leaf in space.leaves(self.space))

    def __str__(self) -> str:
        many = f"2^{self.log_count / math.log(2):.4g}" if self.log_count > 40 else f"{self.count:,}"
        return f"{many} {self.name} states"


def smallest_side(model: AbstractModel) -> Side:
    """The side with the fewest states; its ``log_count`` is infinite if none is discrete."""
    sides = [_side("joint", (model.x_space, model.z_space))]
    if isinstance(model, FreeEnergy):
        sides.append(_side("visible", model.x_space))
    if isinstance(model, LatentFreeEnergy):
        sides.append(_side("hidden", model.z_space))
    return min(sides, key=lambda side: side.log_count)


def can_enumerate(model: AbstractModel, limit: int = LIMIT) -> bool:
    """Whether one side of the model has at most ``limit`` states."""
    return smallest_side(model).log_count <= math.log(limit) + 1e-9


def state(spaces: Any, index: Int[Array, ""], dtype: Any) -> Any:
    """The joint value number ``index`` of a pytree of discrete spaces, by mixed-radix digits."""
    parts, treedef = jax.tree.flatten(spaces)
    values = []
    for part in parts:
        count = _count(part)
        values.append(_value(part, index % count, dtype))
        index = index // count
    return jax.tree.unflatten(treedef, values)


def _value(part: Space, index: Int[Array, ""], dtype: Any) -> Float[Array, "*shape"]:
    radix = part.n_states
    powers = jnp.array([radix**i for i in range(part.n_columns)], index.dtype)
    digits = (index // powers) % radix
    if part.domain == "categorical":
        return jax.nn.one_hot(digits, radix, dtype=dtype)
    values = digits.astype(dtype).reshape(part.shape)
    return 2 * values - 1 if part.domain == "spin" else values


def log_sum(model: Any, name: str, *, chunk: int = CHUNK) -> Scalar:
    """log Σ exp(−energy) over all states of the named side, in the model's precision."""
    spaces, energy = _energy(model, name)
    dtype = float_type(model)
    total = math.prod(_count(leaf) for leaf in space.leaves(spaces))
    chunk = min(chunk, total)

    def log_weight(index: Int[Array, ""]) -> Scalar:
        found = -energy(state(spaces, jnp.minimum(index, total - 1), dtype))
        return jnp.where(index < total, found, -jnp.inf)

    @jax.checkpoint  # its gradient computes a chunk's energies again instead of keeping those of all states
    def body(log_sum: Scalar, first: Int[Array, ""]) -> tuple[Scalar, None]:
        weights = jax.vmap(log_weight)(first + jnp.arange(chunk))
        return jnp.logaddexp(log_sum, logsumexp(weights)), None

    firsts = chunk * jnp.arange(-(-total // chunk))
    return jax.lax.scan(body, jnp.array(-jnp.inf, dtype), firsts)[0]


def _energy(model: Any, name: str) -> tuple[Any, Callable[[Any], Scalar]]:
    if name == "visible":
        return model.x_space, model.free_energy
    if name == "hidden":
        return model.z_space, model.latent_free_energy
    return (model.x_space, model.z_space), lambda pair: model.energy(*pair)


def _side(name: str, spaces: Any) -> Side:
    return Side(name, spaces, space.log_count(spaces))


def _count(part: Space) -> int:
    return part.n_states**part.n_columns
