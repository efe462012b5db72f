"""The softplus with its derivative in closed form."""

from __future__ import annotations

import jax
from jaxtyping import Array, Float


@jax.custom_jvp
def softplus(u: Float[Array, "..."]) -> Float[Array, "..."]:
    """S(u) = log(1 + exp(u)), safe from overflow.

    Its derivative is written as the sigmoid itself, one exponential that a compiler can share with the sampling of
    the same units; JAX's own differentiates the logarithm of a sum, which takes three transcendental functions.
    """
    return jax.nn.softplus(u)


@softplus.defjvp
def _softplus_jvp(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
    (u,), (du,) = primals, tangents
    return softplus(u), jax.nn.sigmoid(u) * du
