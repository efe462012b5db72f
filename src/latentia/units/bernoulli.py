"""Units in {0, 1}: E(x) = −bᵀx, Γ(I) = Σ log(1 + exp(b + I))."""

from __future__ import annotations

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import Scalar
from latentia.core.parameters import bias
from latentia.core.space import Space
from latentia.ops.logistic import softplus
from latentia.units.base import AbstractUnits, Field


class Bernoulli(AbstractUnits):
    """Binary units with p(x_i = 1 | I) = σ(b_i + I_i)."""

    bias: Float[Array, " n"] = bias()
    unbounded: ClassVar[bool] = False

    @classmethod
    def make(cls, n: int) -> Self:
        """``n`` unbiased units."""
        return cls(jnp.zeros(n))

    @property
    def space(self) -> Space:
        """{0, 1}ⁿ."""
        return Space("binary", self.bias.shape)

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
        """Σ softplus(b + I)."""
        return jnp.sum(softplus(self.bias + field))

    def mean(self, field: Field) -> Field:
        """σ(b + I)."""
        return jax.nn.sigmoid(self.bias + field)

    def mean_statistic(self, field: Field) -> Field:
        """σ(b + I)."""
        return self.mean(field)

    def mean_energy(self, field: Field) -> Scalar:
        """−bᵀσ(b + I)."""
        return -(self.bias @ self.mean(field))

    def sample(self, field: Field, *, key: PRNGKeyArray) -> Field:
        """Independent Bernoulli samples."""
        p = self.mean(field)
        return (jax.random.uniform(key, p.shape, p.dtype) < p).astype(p.dtype)

    def fitted(self, x: Float[Array, "batch n"]) -> Self:
        """b = logit of the smoothed mean."""
        mean = (jnp.sum(x, axis=0) + 0.5) / (x.shape[0] + 1)
        return type(self)(jnp.log(mean) - jnp.log1p(-mean))

    def biased(self, field: Field) -> Self:
        """b ← b + I."""
        return type(self)(self.bias + field)
