"""Real units cut off at zero (noisy rectified linear units), x ≥ 0.

E(x) = Σ (x̂ − m)²/2σ² + Σ log c on x ≥ 0 with x̂ = x/c; s(x) = x̂/σ². Under a field x̂ is N(m + I, σ²) given
x̂ ≥ 0, so Γ(I) is the Gaussian's plus Σ log Φ((m + I)/σ). For large positive fields the mean is m + I, for
large negative ones about zero: a rectifier. ``c`` is the data's scale, fixed when training starts.
"""

from __future__ import annotations

import math
from typing import ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, scale
from latentia.core.space import Space
from latentia.ops import truncated
from latentia.units.base import AbstractUnits, Field
from latentia.units.gaussian import MIN_SIGMA, SCALE_FLOOR, bounded_log_sigma


class Rectified(AbstractUnits):
    """Non-negative units: a normal distribution cut off at zero."""

    location: Float[Array, " n"] = bias()
    log_sigma: Float[Array, " n"] = scale()
    data_scale: Float[Array, " n"] = buffer()
    unbounded: ClassVar[bool] = True

    @classmethod
    def make(cls, n: int) -> Self:
        """``n`` standard half-normal units."""
        return cls(jnp.zeros(n), jnp.zeros(n), jnp.ones(n))

    @property
    def space(self) -> Space:
        """[0, ∞)ⁿ."""
        return Space("nonnegative", self.location.shape)

    @property
    def n_statistics(self) -> int:
        """One per unit."""
        return self.location.shape[0]

    def statistic(self, x: Field) -> Field:
        """x̂/σ²."""
        return x / self.data_scale * jnp.exp(-2 * self.log_sigma)

    def energy(self, x: Field) -> Scalar:
        """Σ (x̂ − m)²/2σ² + log c."""
        residual = (x / self.data_scale - self.location) * jnp.exp(-self.log_sigma)
        return 0.5 * jnp.sum(residual**2) + jnp.sum(jnp.log(self.data_scale))

    def log_partition(self, field: Field) -> Scalar:
        """Σ ½ log 2πσ² + (mI + ½I²)/σ² + log Φ((m + I)/σ)."""
        gain = (self.location * field + 0.5 * field**2) * jnp.exp(-2 * self.log_sigma)
        above_zero = truncated.log_cdf((self.location + field) * jnp.exp(-self.log_sigma))
        return jnp.sum(0.5 * math.log(2 * math.pi) + self.log_sigma + gain + above_zero)

    def _moments(self, field: Field) -> tuple[Field, Field]:
        return truncated.mean_and_variance(self.location + field, jnp.exp(self.log_sigma))

    def mean(self, field: Field) -> Field:
        """c times the mean of the cut-off normal."""
        return self.data_scale * self._moments(field)[0]

    def mean_statistic(self, field: Field) -> Field:
        """E[x̂]/σ²."""
        return self._moments(field)[0] * jnp.exp(-2 * self.log_sigma)

    def mean_energy(self, field: Field) -> Scalar:
        """Σ (Var x̂ + (E x̂ − m)²)/2σ² + log c."""
        mean, variance = self._moments(field)
        squares = (variance + (mean - self.location) ** 2) * jnp.exp(-2 * self.log_sigma)
        return jnp.sum(0.5 * squares + jnp.log(self.data_scale))

    def sample(self, field: Field, *, key: PRNGKeyArray) -> Field:
        """A draw of the cut-off normal."""
        return self.data_scale * truncated.sample(self.location + field, jnp.exp(self.log_sigma), key=key)

    def standardised(self, x: Float[Array, "batch n"]) -> Self:
        """c: the batch's root mean squares, floored as the Gaussian's."""
        size = jnp.sqrt(jnp.mean(x**2, axis=0))
        rms = jnp.sqrt(jnp.mean(size**2))
        size = jnp.where(rms > 0, jnp.maximum(size, SCALE_FLOOR * rms), 1.0)
        return eqx.tree_at(lambda u: u.data_scale, self, size)

    def fitted(self, x: Float[Array, "batch n"]) -> Self:
        """m = 0 and σ = root mean square of x̂: the half-normal with the batch's second moment."""
        size = jnp.sqrt(jnp.mean((x / self.data_scale[None, :]) ** 2, axis=0))
        log_sigma = jnp.log(jnp.maximum(size, MIN_SIGMA))
        return eqx.tree_at(lambda u: (u.location, u.log_sigma), self, (jnp.zeros_like(size), log_sigma))

    def biased(self, field: Field) -> Self:
        """m ← m + I."""
        return eqx.tree_at(lambda u: u.location, self, self.location + field)

    def projected(self) -> Self:
        """σ between MIN_SIGMA and its inverse."""
        return eqx.tree_at(lambda u: u.log_sigma, self, bounded_log_sigma(self.log_sigma))

    def stiffness(self) -> Field:
        """1/σ, the uncut normal's; the cut-off one varies less."""
        return jnp.exp(-self.log_sigma)
