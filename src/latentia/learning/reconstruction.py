"""Reconstruction: learn to encode x so that it can be decoded again, with regularisation.

With x̃ a corrupted x (or x itself), z = encode(x̃) its code and ℓ_j what entry j of x costs if it is rebuilt from
z,

    J = E Σ_j w_j ℓ_j(x, z) + α Ω(z) + γ ‖∂encode/∂x̃‖²_F.

* **Denoising** (Vincent et al., 2010): the loss compares with the clean x. ``emphasis`` e weighs corrupted entries
  by 2e and the others by 2(1 − e).
* **Sparsity**: Ω = Σ_k |z_k|, or Ω = Σ_k KL(ρ ‖ ρ̂_k), the divergence of a Bernoulli distribution with the target
rate ρ from one with
  the mean activity ρ̂_k of a unit over the batch, ρ log ρ/ρ̂ + (1 − ρ) log (1 − ρ)/(1 − ρ̂) (Ng, 2011).
* **Contraction** (Rifai, Vincent, Muller, Glorot and Bengio, 2011): codes that hardly move with x. The norm is
  exact, or estimated without bias by ‖(∂encode/∂x̃) v‖² in random directions v of entries ±1.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import Reconstructs
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.model import Scalar
from latentia.learning.supervised import CrossEntropyState as StepKey
from latentia.ops.arrays import TINY, batch_size, weighted_mean
from latentia.ops.corruption import Corruption

Sparsity = Literal["l1", "kl"]
Jacobian = Literal["exact", "stochastic"]

#: Mean activities are kept this far from 0 and 1, where the divergence is infinite.
LEAST_RATE = 1e-6


class Reconstruction(AbstractObjective):
    """E Σ_j w_j ℓ_j(x, encode(x̃)) + sparsity + contraction.

    The state holds the step's key; given it, the loss is a plain function of the parameters.

    Args:
        corruption: x ↦ x̃; None for x itself.
        emphasis: e in [0, 1]: 0.5 weighs all entries equally, 1 uses only corrupted ones.
        sparsity: "l1", "kl", or None.
        sparsity_weight: α.
        rate: ρ of "kl".
        contraction: γ.
        jacobian: "exact" or "stochastic".
        n_directions: random directions for each example.
        relative: whether blank, range and scale of the corruption are those of the data's columns.

    References:
        Vincent, Larochelle, Lajoie, Bengio and Manzagol (2010), *Stacked denoising autoencoders*; Rifai et al.
        (2011), *Contractive auto-encoders*; Ng (2011), *Sparse autoencoder*.
    """

    corruption: Corruption | None = None
    emphasis: float = eqx.field(static=True, default=0.5)
    sparsity: Sparsity | None = eqx.field(static=True, default=None)
    sparsity_weight: float = eqx.field(static=True, default=0.0)
    rate: float = eqx.field(static=True, default=0.05)
    contraction: float = eqx.field(static=True, default=0.0)
    jacobian: Jacobian = eqx.field(static=True, default="stochastic")
    n_directions: int = eqx.field(static=True, default=1)
    relative: bool = eqx.field(static=True, default=False)

    def __check_init__(self) -> None:
        if not 0 <= self.emphasis <= 1:
            raise ParameterError(f"emphasis must be in [0, 1], got {self.emphasis!r}.")
        if self.emphasis != 0.5 and (self.corruption is None or self.corruption.kind == "gaussian"):
            raise ParameterError(
                "emphasis weighs corrupted entries: it needs corruption='masking' or "
                "'salt_and_pepper' (Gaussian noise touches all of them)."
            )
        if self.sparsity not in (None, *get_args(Sparsity)):
            raise UnknownNameError("sparsity", self.sparsity, get_args(Sparsity))
        if self.jacobian not in get_args(Jacobian):
            raise UnknownNameError("jacobian", self.jacobian, get_args(Jacobian))
        if not 0 < self.rate < 1:
            raise ParameterError(f"rate must be in (0, 1), got {self.rate!r}.")
        for name in ("sparsity_weight", "contraction"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ParameterError(f"{name} must be at least 0, got {getattr(self, name)!r}.")
        if self.n_directions < 1:
            raise ParameterError(f"n_directions must be at least 1, got {self.n_directions}.")

    @property
    def requires(self) -> tuple[Need, ...]:
        """``Reconstructs``."""
        return (Reconstructs,)

    def surveyed(self, model: Any, look: Any, *, key: PRNGKeyArray) -> Reconstruction:
        """With the columns' blanks, ranges and scales, where the corruption is relative to them."""
        del model, key
        if self.corruption is None or not self.relative:
            return self
        return eqx.tree_at(lambda s: s.corruption, self, self.corruption.fitted(look()))

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> StepKey:
        """A key."""
        del model, x
        return StepKey.of(key)

    def prepare(self, model: Any, x: Any, state: StepKey, *, key: PRNGKeyArray, weights: Any = None) -> StepKey:
        """The step's own key: noise and directions that no other step has."""
        del model, x, state
        return StepKey.of(key)

    def loss(self, model: Any, x: Any, weights: Any, state: StepKey) -> tuple[Scalar, Metrics]:
        """J, and its first part by itself."""
        noise_key, direction_key = jax.random.split(state.key)
        noisy, hit = (x, None) if self.corruption is None else self.corruption(x, key=noise_key)
        codes = jax.vmap(model.encode)(noisy)
        losses = jax.vmap(model.losses)(x, codes)
        if hit is not None and self.emphasis != 0.5:
            losses = losses * jnp.where(hit, 2 * self.emphasis, 2 * (1 - self.emphasis)).astype(losses.dtype)
        rebuilt = weighted_mean(jnp.sum(losses.reshape(batch_size(losses), -1), axis=1), weights)
        total, metrics = rebuilt, {"reconstruction": rebuilt}
        if self.sparsity is not None and self.sparsity_weight:
            price = self._price(codes, weights)
            total, metrics["sparsity"] = total + self.sparsity_weight * price, price
        if self.contraction:
            norm = weighted_mean(self._jacobians(model, noisy, direction_key), weights)
            total, metrics["squared_jacobian"] = total + self.contraction * norm, norm
        return total, {"loss": total, **metrics}

    def _price(self, codes: Float[Array, "n k"], weights: Any) -> Scalar:
        if self.sparsity == "l1":
            return weighted_mean(jnp.sum(jnp.abs(codes), axis=1), weights)
        if weights is None:
            return jnp.sum(rate_divergence(self.rate, jnp.mean(codes, axis=0)))
        # The weights of a batch average to one over many batches only, and a divergence is not linear in its rates.
        share = jnp.mean(weights)
        found = weighted_mean(codes, weights) / jnp.maximum(share, TINY)
        return share * jnp.sum(rate_divergence(self.rate, found))

    def _jacobians(self, model: Any, x: Float[Array, "n d"], key: PRNGKeyArray) -> Float[Array, " n"]:
        """‖∂encode/∂x‖² of every example, or an estimate."""
        if self.jacobian == "exact":
            return jax.vmap(model.squared_jacobian)(x)
        shape = (batch_size(x), self.n_directions, *x.shape[1:])
        directions = jax.random.rademacher(key, shape, x.dtype)

        def one(x: Array, directions: Array) -> Scalar:
            moves = jax.vmap(lambda v: jax.jvp(model.encode, (x,), (v,))[1])(directions)
            return jnp.sum(moves**2) / self.n_directions

        return jax.vmap(one)(x, directions)


def rate_divergence(rate: float, found: Float[Array, " k"]) -> Float[Array, " k"]:
    """KL between Bernoulli distributions of probability ρ and ρ̂, for every ρ̂.

    >>> rate_divergence(0.5, jnp.array([0.5]))
    Array([0.], dtype=float32)
    """
    found = jnp.clip(found, LEAST_RATE, 1 - LEAST_RATE)
    own = rate * math.log(rate) + (1 - rate) * math.log(1 - rate)
    return own - rate * jnp.log(found) - (1 - rate) * jnp.log1p(-found)
