"""Real units. E(x) = Σ (x̂ − m)²/2σ² + Σ log c with x̂ = (x − l)/c; they couple through s(x) = x̂/σ².

``l`` and ``c`` are the data's mean and standard deviation, fixed when training starts: the machine works on
standardised values whatever the data's scale, and Σ log c, the Jacobian, keeps densities those of the raw x.
Under a field, x̂ | I ~ N(m + I, σ²) and Γ(I) = Σ ½ log 2πσ² + (mI + ½I²)/σ². With l = 0 and c = 1 this is the
parametrisation of Cho, Ilin and Raiko (2011), in which the conditional mean does not involve σ.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, scale
from latentia.core.space import Space
from latentia.units.base import AbstractUnits, Field

#: A column's scale is at least this part of the root mean square scale of all columns: constant and nearly
#: constant columns would otherwise be blown up into huge standardised values.
SCALE_FLOOR = 0.1


#: σ on the standardised scale stays above this (and below its inverse): the likelihood of a column that a
#: model can predict perfectly, a constant one say, would otherwise grow without bound as σ → 0.
MIN_SIGMA = 0.05


def bounded_log_sigma(log_sigma: Field) -> Field:
    """log σ inside the range that :data:`MIN_SIGMA` sets."""
    return jnp.clip(log_sigma, math.log(MIN_SIGMA), -math.log(MIN_SIGMA))


def standardisation(x: Float[Array, "batch n"]) -> tuple[Field, Field]:
    """Column means and standard deviations, the latter floored (see :data:`SCALE_FLOOR`)."""
    centre = jnp.mean(x, axis=0)
    spread = jnp.std(x, axis=0)
    rms = jnp.sqrt(jnp.mean(spread**2))
    return centre, jnp.where(rms > 0, jnp.maximum(spread, SCALE_FLOOR * rms), 1.0)


class Gaussian(AbstractUnits):
    """Real units with x̂ | I ~ N(m + I, σ²)."""

    location: Float[Array, " n"] = bias()
    log_sigma: Float[Array, " n"] = scale()
    data_mean: Float[Array, " n"] = buffer()
    data_scale: Float[Array, " n"] = buffer()
    unbounded: ClassVar[bool] = True

    @classmethod
    def make(cls, n: int) -> Self:
        """``n`` standard normal units."""
        return cls(jnp.zeros(n), jnp.zeros(n), jnp.zeros(n), jnp.ones(n))

    @property
    def space(self) -> Space:
        """ℝⁿ."""
        return Space("real", self.location.shape)

    @property
    def n_statistics(self) -> int:
        """One per unit."""
        return self.location.shape[0]

    def _standardise(self, x: Field) -> Field:
        return (x - self.data_mean) / self.data_scale

    def statistic(self, x: Field) -> Field:
        """x̂/σ²."""
        return self._standardise(x) * jnp.exp(-2 * self.log_sigma)

    def energy(self, x: Field) -> Scalar:
        """Σ (x̂ − m)²/2σ² + log c."""
        residual = (self._standardise(x) - self.location) * jnp.exp(-self.log_sigma)
        return 0.5 * jnp.sum(residual**2) + jnp.sum(jnp.log(self.data_scale))

    def log_partition(self, field: Field) -> Scalar:
        """Σ ½ log 2πσ² + (mI + ½I²)/σ²."""
        gain = (self.location * field + 0.5 * field**2) * jnp.exp(-2 * self.log_sigma)
        return jnp.sum(0.5 * math.log(2 * math.pi) + self.log_sigma + gain)

    def mean(self, field: Field) -> Field:
        """l + c (m + I)."""
        return self.data_mean + self.data_scale * (self.location + field)

    def mean_statistic(self, field: Field) -> Field:
        """(m + I)/σ²."""
        return (self.location + field) * jnp.exp(-2 * self.log_sigma)

    def mean_energy(self, field: Field) -> Scalar:
        """Σ ½ (1 + I²/σ²) + log c."""
        return jnp.sum(0.5 * (1 + (field * jnp.exp(-self.log_sigma)) ** 2) + jnp.log(self.data_scale))

    def sample(self, field: Field, *, key: PRNGKeyArray) -> Field:
        """A normal draw."""
        noise = jax.random.normal(key, field.shape, field.dtype)
        return self.mean(field) + self.data_scale * jnp.exp(self.log_sigma) * noise

    def standardised(self, x: Float[Array, "batch n"]) -> Self:
        """l and c from the batch."""
        return eqx.tree_at(lambda u: (u.data_mean, u.data_scale), self, standardisation(x))

    def fitted(self, x: Float[Array, "batch n"]) -> Self:
        """m and σ: mean and standard deviation of the standardised batch."""
        values = jax.vmap(self._standardise)(x)
        log_sigma = jnp.log(jnp.maximum(jnp.std(values, axis=0), MIN_SIGMA))
        return eqx.tree_at(lambda u: (u.location, u.log_sigma), self, (jnp.mean(values, axis=0), log_sigma))

    def biased(self, field: Field) -> Self:
        """m ← m + I."""
        return eqx.tree_at(lambda u: u.location, self, self.location + field)

    def projected(self) -> Self:
        """σ between MIN_SIGMA and its inverse."""
        return eqx.tree_at(lambda u: u.log_sigma, self, bounded_log_sigma(self.log_sigma))

    def stiffness(self) -> Field:
        """1/σ."""
        return jnp.exp(-self.log_sigma)
