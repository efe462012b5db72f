"""Ratio matching: learn binary data from ratios of probabilities, in which log Z does not occur.

For x with bit i flipped, x^(i), the model should give the same p(x)/p(x^(i)) as the data do. With
p(x^(i))/(p(x) + p(x^(i))) = σ(F(x) − F(x^(i))), that is, up to a constant (Hyvärinen, 2007),

    J = E Σ_i σ(F(x) − F(x^(i)))².
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.flatten_util
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import space
from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import ParameterError
from latentia.core.model import Scalar
from latentia.core.space import Domain
from latentia.ops.arrays import batch_size, weighted_mean


class RatioMatching(AbstractObjective):
    """E Σ_i σ(F(x) − F(x^(i)))².

    Args:
        n_flips: bits that are flipped, one at a time, for each example: a random choice, weighted so that the sum
            is right on average; None flips all of them.

    Reference:
        Hyvärinen (2007), *Some extensions of score matching*.
    """

    n_flips: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.n_flips is not None and self.n_flips < 1:
            raise ParameterError(f"n_flips must be at least 1, got {self.n_flips}.")

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Two values a site."""
        return ("binary", "spin")

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """Which bits to flip, ``(n, n_flips)``."""
        sites = space.width(model.x_space)
        n = sites if self.n_flips is None else min(self.n_flips, sites)
        if n == sites:
            return jnp.broadcast_to(jnp.arange(sites, dtype=jnp.int32), (batch_size(x), sites))
        pick = lambda key: jax.random.choice(key, sites, (n,), replace=False).astype(jnp.int32)  # noqa: E731
        return jax.vmap(pick)(jax.random.split(key, batch_size(x)))

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """A fresh choice of bits."""
        del state, weights
        return self.init(model, x, key=key)

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """J."""
        (domain,) = {leaf.domain for leaf in space.leaves(model.x_space)}
        sites = space.width(model.x_space)

        def one(x: Any, flips: Float[Array, " k"]) -> Scalar:
            flat, unravel = jax.flatten_util.ravel_pytree(x)

            def flipped(site: Any) -> Scalar:
                other = 1 - flat if domain == "binary" else -flat
                return model.free_energy(
                    unravel(jnp.where(jnp.arange(sites, dtype=site.dtype) == site, other, flat))
                )

            energies = jax.vmap(flipped)(flips)
            return sites * jnp.mean(jax.nn.sigmoid(model.free_energy(x) - energies) ** 2)

        value = weighted_mean(jax.vmap(one)(x, state), weights)
        return value, {"ratio_matching": value}
