"""Exact log Z by enumerating whichever side of the model is small enough.

    log Z = log Σ_x exp(−F(x)) = log Σ_z exp(−F*(z)) = log Σ_{x,z} exp(−E(x, z)),

where F sums the latents out and F* the visibles (an integral if they are continuous), so that one discrete
side is enough: Gaussian and rectified layers are covered by the other one. States are made from their index
inside a compiled loop, chunk by chunk, and accumulated in float64; memory does not grow with their number.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from latentia.core import space
from latentia.core.capabilities import FreeEnergy, LatentFreeEnergy
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractModel, Scalar
from latentia.core.space import Space
from latentia.likelihood.precision import double, to_double
from latentia.likelihood.result import LogZ
from latentia.ops.compiling import jitted

#: States that are enumerated at most, unless the caller says otherwise.
LIMIT = 2**20
_CHUNK = 2**12


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


def log_z(model: AbstractModel, *, limit: int = LIMIT) -> LogZ:
    """Exact log Z; an error that says what stands in the way if there are too many states."""
    side = smallest_side(model)
    if math.isinf(side.log_count):
        raise CapabilityError(
            f"{type(model).__name__} has no discrete side that could be enumerated once the other is "
            "integrated out, so there is no exact log Z. Use method='ais'."
        )
    if not can_enumerate(model, limit):
        raise ParameterError(
            f"An exact log Z of this {type(model).__name__} needs {_in_words(side)} {side.name} states, more "
            f"than the limit of {limit:,}. Use method='ais', or raise the limit."
        )
    began = time.perf_counter()
    with double():
        value = float(sum_states(to_double(model), side.name))
    details = {"states": side.count, "side": side.name, "seconds": time.perf_counter() - began}
    method = f"exact (enumeration of {side.count} {side.name} states)"
    return LogZ(value, value, value, 0.0, method, details)


def state(spaces: Any, index: Int[Array, ""]) -> Any:
    """The joint value number ``index`` of a pytree of discrete spaces, by mixed-radix digits."""
    parts, treedef = jax.tree.flatten(spaces)
    values = []
    for part in parts:
        count = _count(part)
        values.append(_value(part, index % count))
        index = index // count
    return jax.tree.unflatten(treedef, values)


def _value(part: Space, index: Int[Array, ""]) -> Float[Array, "*shape"]:
    radix = part.n_states
    powers = jnp.array([radix**i for i in range(part.n_columns)], index.dtype)
    digits = (index // powers) % radix
    if part.domain == "categorical":
        return jax.nn.one_hot(digits, radix, dtype=jnp.float64)
    values = digits.astype(jnp.float64).reshape(part.shape)
    return 2 * values - 1 if part.domain == "spin" else values


@jitted
def sum_states(model: Any, name: str) -> Scalar:
    """log Σ exp(−energy) over all states of the named side."""
    spaces, energy = _energy(model, name)
    total = math.prod(_count(leaf) for leaf in space.leaves(spaces))
    chunk = min(_CHUNK, total)

    def log_weight(index: Int[Array, ""]) -> Scalar:
        return jnp.where(index < total, -energy(state(spaces, jnp.minimum(index, total - 1))), -jnp.inf)

    def body(log_sum: Scalar, first: Int[Array, ""]) -> tuple[Scalar, None]:
        weights = jax.vmap(log_weight)(first + jnp.arange(chunk))
        return jnp.logaddexp(log_sum, logsumexp(weights)), None

    firsts = chunk * jnp.arange(-(-total // chunk))
    return jax.lax.scan(body, jnp.array(-jnp.inf), firsts)[0]


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


def _in_words(side: Side) -> str:
    return f"2^{side.log_count / math.log(2):.4g}" if side.log_count > 40 else f"{side.count:,}"
