"""Potts units: sites with q states, one-hot inside; E(x) = −Σ b·x, Γ(I) = Σ_sites logsumexp(b + I)."""

from __future__ import annotations

from typing import ClassVar, Self

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import Scalar
from latentia.core.parameters import bias
from latentia.core.space import Space
from latentia.units.base import AbstractUnits, Field

Sites = Float[Array, "sites states"]


class Categorical(AbstractUnits):
    """Sites with p(state k | I) = softmax(b + I)_k; values are one-hot rows ``(sites, states)``."""

    bias: Sites = bias()
    unbounded: ClassVar[bool] = False

    @classmethod
    def make(cls, n: int, n_states: int) -> Self:
        """``n`` unbiased sites with ``n_states`` states each."""
        return cls(jnp.zeros((n, n_states)))

    @property
    def space(self) -> Space:
        """{1 … q}ⁿ, one-hot."""
        return Space("categorical", self.bias.shape)

    @property
    def n_statistics(self) -> int:
        """One per site and state."""
        return self.bias.size

    def _logits(self, field: Field) -> Sites:
        return self.bias + field.reshape(self.bias.shape)

    def statistic(self, x: Sites) -> Field:
        """s(x): the one-hot rows, flattened."""
        return x.reshape(-1)

    def energy(self, x: Sites) -> Scalar:
        """−Σ b·x."""
        return -jnp.sum(self.bias * x)

    def log_partition(self, field: Field) -> Scalar:
        """Σ_sites logsumexp(b + I)."""
        return jnp.sum(logsumexp(self._logits(field), axis=-1))

    def mean(self, field: Field) -> Sites:
        """softmax(b + I)."""
        return jax.nn.softmax(self._logits(field), axis=-1)

    def mean_statistic(self, field: Field) -> Field:
        """softmax(b + I), flattened."""
        return self.mean(field).reshape(-1)

    def mean_energy(self, field: Field) -> Scalar:
        """−Σ b·softmax(b + I)."""
        return -jnp.sum(self.bias * self.mean(field))

    def sample(self, field: Field, *, key: PRNGKeyArray) -> Sites:
        """One state per site, one-hot."""
        logits = self._logits(field)
        return jax.nn.one_hot(jax.random.categorical(key, logits), logits.shape[-1], dtype=logits.dtype)

    def fitted(self, x: Float[Array, "batch sites states"]) -> Self:
        """b = log of the smoothed frequencies, centred over the states."""
        q = x.shape[-1]
        logp = jnp.log((jnp.sum(x, axis=0) + 1 / q) / (x.shape[0] + 1))
        return type(self)(logp - jnp.mean(logp, axis=-1, keepdims=True))

    def biased(self, field: Field) -> Self:
        """b ← b + I."""
        return type(self)(self._logits(field))
