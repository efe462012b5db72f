"""Parts of variational autoencoders: networks, and distributions of the visibles given a network's outputs.

- Bernoulli: log-odds for every pixel.
- Categorical: a logit for every state of every site.
- Gaussian: x ~ N(m + s·g, σ²) with the network's numbers g and the data's mean m and scale s. σ is fixed, one
  number that is learned, one for every pixel, or predicted by the network (twice as many numbers).
"""

from __future__ import annotations

import abc
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.hooks import hook
from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer
from latentia.core.space import Space
from latentia.ops.gaussian import LOG_2PI
from latentia.ops.logistic import softplus
from latentia.ops.networks import MLP

Vector = Float[Array, " n"]
Variance = Literal["fixed", "learned", "per_pixel", "predicted"]

#: σ is at least this part of the data's scale: for a constant pixel it would go to zero.
SMALLEST = 1e-3


class Rung(eqx.Module):
    """One step of a ladder: features of what is below, and the numbers that they say about a layer of latents."""

    body: MLP
    head: MLP

    def __call__(self, x: Vector) -> tuple[Vector, Vector]:
        """(features, numbers)."""
        features = self.body(x)
        return features, self.head(features)


class Reader(eqx.Module):
    """Flattens and standardises x, then a network."""

    network: Any
    centre: Vector = buffer()
    spread: Vector = buffer()

    def __call__(self, x: Any) -> Any:
        """The network at (x − centre)/spread."""
        return self.network((x.reshape(-1) - self.centre) / self.spread)


# -- visibles ------------------------------------------------------------------------------------------------


class AbstractVisible(eqx.Module):
    """p(x | numbers of a network), independent over pixels."""

    @property
    @abc.abstractmethod
    def space(self) -> Space:
        """What x may be."""

    @property
    @abc.abstractmethod
    def n_numbers(self) -> int:
        """How many numbers the network must give."""

    @abc.abstractmethod
    def log_prob(self, numbers: Vector, x: Array) -> Scalar:
        """log p(x | numbers)."""

    @abc.abstractmethod
    def mean(self, numbers: Vector) -> Array:
        """E[x | numbers]."""

    @abc.abstractmethod
    def sample(self, numbers: Vector, *, key: PRNGKeyArray) -> Array:
        """A draw of x."""

    @abc.abstractmethod
    def fitted(self, x: Array) -> tuple[Self, Vector]:
        """(for the scale of a batch, numbers that describe its pixels one by one)."""

    @hook
    def projected(self) -> Self:
        """With its own parameters inside their range."""
        return self


class Bits(AbstractVisible):
    """Binary pixels; the numbers are their log-odds."""

    n: int = eqx.field(static=True)

    @property
    def space(self) -> Space:
        """{0, 1}ⁿ."""
        return Space("binary", (self.n,))

    @property
    def n_numbers(self) -> int:
        """One a pixel."""
        return self.n

    def log_prob(self, numbers: Vector, x: Array) -> Scalar:
        """Σ x f − S(f)."""
        return jnp.sum(x * numbers - softplus(numbers))

    def mean(self, numbers: Vector) -> Array:
        """σ(f)."""
        return jax.nn.sigmoid(numbers)

    def sample(self, numbers: Vector, *, key: PRNGKeyArray) -> Array:
        """One sample of every pixel."""
        p = jax.nn.sigmoid(numbers)
        return (jax.random.uniform(key, p.shape, p.dtype) < p).astype(p.dtype)

    def fitted(self, x: Array) -> tuple[Self, Vector]:
        """Log-odds of the smoothed means."""
        mean = (jnp.sum(x, axis=0) + 0.5) / (x.shape[0] + 1)
        return self, jnp.log(mean) - jnp.log1p(-mean)


class Sites(AbstractVisible):
    """Sites with several states, one-hot; the numbers are logits."""

    n: int = eqx.field(static=True)
    states: int = eqx.field(static=True)

    @property
    def space(self) -> Space:
        """(n, states), one-hot."""
        return Space("categorical", (self.n, self.states))

    @property
    def n_numbers(self) -> int:
        """One a state of every site."""
        return self.n * self.states

    def _logits(self, numbers: Vector) -> Float[Array, "n states"]:
        return jax.nn.log_softmax(numbers.reshape(self.n, self.states))

    def log_prob(self, numbers: Vector, x: Array) -> Scalar:
        """Σ log softmax at the states taken."""
        return jnp.sum(x * self._logits(numbers))

    def mean(self, numbers: Vector) -> Array:
        """Probabilities."""
        return jnp.exp(self._logits(numbers))

    def sample(self, numbers: Vector, *, key: PRNGKeyArray) -> Array:
        """One state for every site."""
        logits = self._logits(numbers)
        return jax.nn.one_hot(jax.random.categorical(key, logits), self.states, dtype=logits.dtype)

    def fitted(self, x: Array) -> tuple[Self, Vector]:
        """Logarithms of the smoothed frequencies."""
        return self, jnp.log((jnp.sum(x, axis=0) + 0.5) / (x.shape[0] + 0.5 * self.states)).reshape(-1)


class Reals(AbstractVisible):
    """Real pixels, N(m + s·g, σ²); see the module's docstring."""

    variance: Variance = eqx.field(static=True)
    centre: Vector = buffer()
    spread: Vector = buffer()
    log_sigma: Array | None = bias()  # as fast as a bias: slower, it would be the last thing to be learned

    @classmethod
    def make(cls, n: int, variance: Variance, sigma: float) -> Self:
        """With σ at a given value."""
        log_sigma = jnp.full((n,) if variance == "per_pixel" else (), np.log(sigma), jnp.result_type(float))
        return cls(variance, jnp.zeros(n), jnp.ones(n), None if variance == "predicted" else log_sigma)

    @property
    def space(self) -> Space:
        """ℝⁿ."""
        return Space("real", self.centre.shape)

    @property
    def n_numbers(self) -> int:
        """One a pixel, or two where the network predicts σ."""
        return self.centre.shape[0] * (2 if self.variance == "predicted" else 1)

    def mean(self, numbers: Vector) -> Array:
        """m + s·g."""
        return self.centre + self.spread * numbers[: self.centre.shape[0]]

    def log_sigmas(self, numbers: Vector) -> Vector:
        """log σ of every pixel."""
        n = self.centre.shape[0]
        if self.log_sigma is None:
            least = float(np.log(SMALLEST))
            return jnp.log(self.spread) + least + softplus(numbers[n:] - least)
        log_sigma = jax.lax.stop_gradient(self.log_sigma) if self.variance == "fixed" else self.log_sigma
        return jnp.broadcast_to(log_sigma, (n,))

    def log_prob(self, numbers: Vector, x: Array) -> Scalar:
        """Σ log N(x; m + s·g, σ²)."""
        log_sigma = self.log_sigmas(numbers)
        return -jnp.sum(0.5 * ((x - self.mean(numbers)) * jnp.exp(-log_sigma)) ** 2 + log_sigma + 0.5 * LOG_2PI)

    def sample(self, numbers: Vector, *, key: PRNGKeyArray) -> Array:
        """m + s·g + σε."""
        noise = jax.random.normal(key, self.centre.shape, self.centre.dtype)
        return self.mean(numbers) + jnp.exp(self.log_sigmas(numbers)) * noise

    def fitted(self, x: Array) -> tuple[Self, Vector]:
        """m and s from the batch, and a σ that is learned starts at what explains it without latents."""
        mean, sd = jnp.mean(x, axis=0), jnp.std(x, axis=0)
        typical = jnp.sqrt(jnp.mean(sd**2))
        typical = jnp.where(typical > 0, typical, jnp.ones_like(typical))
        spread = jnp.maximum(sd, SMALLEST * typical)
        log_sigma = {"learned": jnp.log(typical), "per_pixel": jnp.log(spread)}.get(self.variance, self.log_sigma)
        return type(self)(self.variance, mean, spread, log_sigma), jnp.zeros(self.n_numbers, x.dtype)

    def projected(self) -> Self:
        """σ not below :data:`SMALLEST` of the data's scale."""
        if self.log_sigma is None or self.variance == "fixed":
            return self
        spread = self.spread if self.variance == "per_pixel" else jnp.sqrt(jnp.mean(self.spread**2))
        least = jnp.log(SMALLEST * spread)
        return eqx.tree_at(lambda v: v.log_sigma, self, jnp.maximum(self.log_sigma, least))
