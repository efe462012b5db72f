"""Unpooling: the adjoint of a pooling with switches."""

from __future__ import annotations

import math

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latentia.core.errors import ParameterError
from latentia.core.parameters import buffer
from latentia.core.space import Space
from latentia.ops.operators.base import LinearOperator


class Unpooling(LinearOperator):
    """Dz has every entry of z at the place that its switch names, zeros elsewhere; the adjoint reads them there.

    Args:
        switches: the place of every entry of z in the flat signal, in the shape of z.
        shape: of a signal.

    Example:
        >>> pooled, places = Unpooling.of_largest(jnp.array([1.0, -3.0, 2.0, 0.0]), (2,))
        >>> pooled, places.synthesise(pooled)
        (Array([-3.,  2.], dtype=float32), Array([ 0., -3.,  2.,  0.], dtype=float32))
    """

    switches: Int[Array, "..."] = buffer()
    shape: tuple[int, ...] = eqx.field(static=True, converter=lambda s: tuple(int(n) for n in s), kw_only=True)

    @classmethod
    def of_largest(cls, x: Float[Array, "..."], window: tuple[int, ...]) -> tuple[Array, Unpooling]:
        """(pooled, unpooling): in every window of x the entry of largest size, and where it was.

        Args:
            x: what is pooled, with as many axes as the window (maps among them, if pooling goes over maps).
            window: its sides, which divide those of x.
        """
        if len(window) != x.ndim or any(n % a for n, a in zip(x.shape, window, strict=True)):
            raise ParameterError(f"A window of {tuple(window)} does not divide an array of shape {x.shape}.")
        n = x.ndim
        split = [side for m, a in zip(x.shape, window, strict=True) for side in (m // a, a)]
        order = (*range(0, 2 * n, 2), *range(1, 2 * n, 2))

        def windows(a: Array) -> Array:
            blocks = a.reshape(split).transpose(order)
            return blocks.reshape(*blocks.shape[:n], -1)

        places = windows(jnp.arange(x.size, dtype=jnp.int32).reshape(x.shape))
        largest = jnp.argmax(jnp.abs(windows(x)), axis=-1, keepdims=True)
        found = cls(jnp.take_along_axis(places, largest, axis=-1)[..., 0], shape=x.shape)
        return found.analyse(x), found

    @property
    def code_space(self) -> Space:
        """One number a switch."""
        return Space("real", tuple(np.shape(self.switches)))

    @property
    def signal_space(self) -> Space:
        """What was pooled."""
        return Space("real", self.shape)

    def synthesise(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """Everything in its place; what shares a place is added."""
        blank = jnp.zeros(math.prod(self.shape), z.dtype)
        return blank.at[jnp.ravel(self.switches)].add(jnp.ravel(z), mode="drop").reshape(self.shape)

    def analyse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """x at the switches' places."""
        return jnp.ravel(x).at[jnp.asarray(self.switches)].get(mode="fill", fill_value=0)

    def lipschitz(self) -> Float[Array, ""]:
        """How many entries share a place at most: 1 for the switches of separate windows."""
        ones = jnp.ones(np.shape(self.switches))
        return jnp.max(self.synthesise(ones))
