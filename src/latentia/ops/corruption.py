"""Corruption of examples, for learning to undo it (Vincent, Larochelle, Lajoie, Bengio and Manzagol, 2010).

With a level ν, every entry for itself:

==================== ===========================================================================
``masking``          blank with probability ν
``salt_and_pepper``  with probability ν, with equal probability, at the lower or the upper end of its range
``gaussian``         plus normal noise whose standard deviation is ν times the entry's scale
==================== ===========================================================================

Data in [0, 1] have the blank 0, the range from 0 to 1 and the scale 1. Real data have those of their columns: mean,
least and largest value, standard deviation.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.errors import ParameterError, UnknownNameError

Kind = Literal["masking", "gaussian", "salt_and_pepper"]


class Corruption(eqx.Module):
    """x ↦ (corrupted x, where it was corrupted), one example or a batch of them.

    Args:
        kind: "masking", "gaussian" or "salt_and_pepper".
        level: ν.
        blank: what masked entries become, a number or one for every column.
        low: the lower end of the range.
        high: the upper end.
        scale: what the level of Gaussian noise is relative to.

    Example:
        >>> noisy, hit = Corruption("masking", 0.5)(jnp.ones((2, 1000)), key=jax.random.key(0))
        >>> bool(jnp.all((noisy == 0) == hit)), round(float(hit.mean()), 1)
        (True, 0.5)
    """

    kind: Kind = eqx.field(static=True)
    level: float = eqx.field(static=True)
    blank: Any = 0.0
    low: Any = 0.0
    high: Any = 1.0
    scale: Any = 1.0

    def __check_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise UnknownNameError("corruption", self.kind, get_args(Kind))
        most = math.inf if self.kind == "gaussian" else 1
        if not 0 <= self.level < most:
            what = "at least 0" if self.kind == "gaussian" else "a probability in [0, 1)"
            raise ParameterError(f"The level of {self.kind} corruption must be {what}, got {self.level!r}.")

    def fitted(self, x: Float[Array, "n d"]) -> Self:
        """Blank, range and scale from the columns of a batch of real data."""
        found = jnp.mean(x, axis=0), jnp.min(x, axis=0), jnp.max(x, axis=0), jnp.std(x, axis=0)
        return type(self)(self.kind, self.level, *found)

    def __call__(self, x: Float[Array, "*n d"], *, key: PRNGKeyArray) -> tuple[Array, Bool[Array, "*n d"]]:
        """Corrupted values, and which they are."""
        like = lambda value: jnp.broadcast_to(jnp.asarray(value, x.dtype), x.shape)  # noqa: E731
        if self.kind == "gaussian":
            noise = jax.random.normal(key, x.shape, x.dtype)
            return x + self.level * like(self.scale) * noise, jnp.ones(x.shape, bool)
        thrown = jax.random.uniform(key, x.shape, x.dtype)
        hit = thrown < self.level
        if self.kind == "masking":
            return jnp.where(hit, like(self.blank), x), hit
        ends = jnp.where(thrown < 0.5 * self.level, like(self.low), like(self.high))  # same number
        return jnp.where(hit, ends, x), hit
