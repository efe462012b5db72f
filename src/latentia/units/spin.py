"""Units in {−1, +1}: E(x) = −bᵀx, Γ(I) = Σ log 2cosh(b + I)."""

from __future__ import annotations

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import Scalar
from latentia.core.parameters import bias
from latentia.core.space import Space
from latentia.units.base import AbstractUnits, Field


class Spin(AbstractUnits):
    """Ising units with E[x_i | I] = tanh(b_i + I_i)."""

    bias: Float[Array, " n"] = bias()
    unbounded: ClassVar[bool] = False

    @classmethod
    def make(cls, n: int) -> Self:
        """``n`` unbiased units."""
        return cls(jnp.zeros(n))

    @property
    def space(self) -> Space:
        """{−1, +1}ⁿ."""
        return Space("spin", self.bias.shape)

    @property
    def n_statistics(self) -> int:
        """One per unit."""
        return self.bias.shape[0]

    def statistic(self, x: Field) -> Field:
        """s(x) = x."""
        return x

    def energy(self, x: Field) -> Scalar:
        """−bᵀx."""
        return -(self.bias @ x)

    def log_partition(self, field: Field) -> Scalar:
        """Σ log(e^u + e^−u), u = b + I."""
        u = self.bias + field
        return jnp.sum(jnp.logaddexp(u, -u))

    def mean(self, field: Field) -> Field:
        """tanh(b + I)."""
        return jnp.tanh(self.bias + field)

    def mean_statistic(self, field: Field) -> Field:
        """tanh(b + I)."""
        return self.mean(field)

    def mean_energy(self, field: Field) -> Scalar:
        """−bᵀtanh(b + I)."""
        return -(self.bias @ self.mean(field))

    def sample(self, field: Field, *, key: PRNGKeyArray) -> Field:
        """+1 with probability σ(2(b + I))."""
        p = jax.nn.sigmoid(2 * (self.bias + field))
        return jnp.where(jax.random.uniform(key, p.shape, p.dtype) < p, 1.0, -1.0).astype(p.dtype)

    def fitted(self, x: Float[Array, "batch n"]) -> Self:
        """b = artanh of the smoothed mean."""
        mean = jnp.sum(x, axis=0) / (x.shape[0] + 1)
        return type(self)(jnp.arctanh(mean))

    def biased(self, field: Field) -> Self:
        """b ← b + I."""
        return type(self)(self.bias + field)
