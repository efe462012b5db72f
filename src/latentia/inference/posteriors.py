"""Approximate posteriors parametrised by a network, in closed form and one layer after another.

A layer of latents is normal (independent, or with a full covariance LLᵀ) or Bernoulli. Layers form a chain:
from the data upwards, q(z¹ | x) q(z² | z¹) …, or from the top downwards, q(z^L | x) … q(z¹ | z², x). For a normal
posterior with μ and L, and a normal prior with means m and standard deviations s,

    KL = Σ_i ½[(Σ_j L_ij² + (μ_i − m_i)²)/s_i² − 1] + log s_i − log L_ii,

and for Bernoulli variables with log-odds f against such with log-odds g, KL = Σ_i σ(f_i)(f_i − g_i) − S(f_i) +
S(g_i).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.linalg import solve_triangular
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.errors import CapabilityError
from latentia.core.model import AbstractPosterior, Scalar, SecondMoments
from latentia.inference.amortised import DiagonalGaussian
from latentia.ops.gaussian import LOG_2PI
from latentia.ops.logistic import softplus

Vector = Float[Array, " n"]

#: Largest |log σ| that a network can give: squares of values scaled by e^±10 still fit into float32.
MOST_LOG_SIGMA = 10.0


class AbstractRelaxed(AbstractPosterior):
    """Draws of discrete latents have differentiable substitutes; gradients through them are biased."""

    @abc.abstractmethod
    def relaxed(self, temperature: Any, *, key: PRNGKeyArray) -> Any:
        """A draw in the open cube that a low temperature pushes into its corners."""

    @abc.abstractmethod
    def straight_through(self, *, key: PRNGKeyArray) -> Any:
        """A draw whose derivative is taken to be that of its mean."""


class Coins(AbstractRelaxed, SecondMoments):
    """Independent binary latents with given log-odds."""

    log_odds: Vector

    def mean(self) -> Vector:
        """σ(f)."""
        return jax.nn.sigmoid(self.log_odds)

    def variance(self) -> Vector:
        """σ(f) σ(−f)."""
        return jax.nn.sigmoid(self.log_odds) * jax.nn.sigmoid(-self.log_odds)

    def second_moment(self, weights: Float[Array, " n"]) -> Float[Array, "k k"]:
        """Σ_n w_n [ẑ ẑᵀ + diag ẑ(1 − ẑ)]."""
        means = self.mean()
        return (means * weights[:, None]).T @ means + jnp.diag(weights @ self.variance())

    def sample(self, *, key: PRNGKeyArray) -> Vector:
        """One sample of every variable."""
        p = self.mean()
        return (jax.random.uniform(key, p.shape, p.dtype) < p).astype(p.dtype)

    def relaxed(self, temperature: Any, *, key: PRNGKeyArray) -> Vector:
        """σ((f + logistic noise)/τ), the concrete distribution (Maddison, Mnih and Teh, 2017)."""
        noise = jax.random.logistic(key, self.log_odds.shape, self.log_odds.dtype)
        return jax.nn.sigmoid((self.log_odds + noise) / temperature)

    def straight_through(self, *, key: PRNGKeyArray) -> Vector:
        """Thrown on the way forward, σ(f) on the way back (Bengio, Léonard and Courville, 2013)."""
        p = self.mean()
        return jax.lax.stop_gradient(self.sample(key=key) - p) + p

    def log_prob(self, z: Vector) -> Scalar:
        """Σ z f − S(f)."""
        return jnp.sum(z * self.log_odds - softplus(self.log_odds))

    def entropy(self) -> Scalar:
        """Σ S(f) − σ(f) f."""
        return jnp.sum(softplus(self.log_odds) - self.mean() * self.log_odds)


class CholeskyGaussian(AbstractPosterior):
    """Normal latents with covariance LLᵀ, L lower triangular with a positive diagonal."""

    location: Vector
    log_diagonal: Vector
    below: Float[Array, " m"]  # the entries under the diagonal, row by row

    @property
    def factor(self) -> Float[Array, "n n"]:
        """L."""
        n = self.location.shape[0]
        return jnp.diag(jnp.exp(self.log_diagonal)).at[jnp.tril_indices(n, -1)].set(self.below)

    def mean(self) -> Vector:
        """μ."""
        return self.location

    def variance(self) -> Vector:
        """The diagonal of LLᵀ."""
        return jnp.sum(self.factor**2, axis=1)

    def sample(self, *, key: PRNGKeyArray) -> Vector:
        """μ + Lε."""
        return self.place(jax.random.normal(key, self.location.shape, self.location.dtype))

    def place(self, noise: Vector) -> Vector:
        """The draw that standard normal noise stands for: μ + Lε."""
        return self.location + self.factor @ noise

    def log_prob(self, z: Vector) -> Scalar:
        """log N(z; μ, LLᵀ)."""
        white = solve_triangular(self.factor, z - self.location, lower=True)
        return -jnp.sum(0.5 * white**2 + self.log_diagonal + 0.5 * LOG_2PI)

    def entropy(self) -> Scalar:
        """Σ log L_ii + ½ log 2πe."""
        return jnp.sum(self.log_diagonal + 0.5 * (LOG_2PI + 1))


class Mixture(AbstractPosterior):
    """An even mixture of distributions of one kind.

    Args:
        parts: the distributions, stacked along a first axis of their arrays.
    """

    parts: Any

    @property
    def _n_parts(self) -> int:
        return jax.tree.leaves(self.parts)[0].shape[0]

    def mean(self) -> Any:
        """The mean of the parts' means."""
        return jnp.mean(jax.vmap(lambda part: part.mean())(self.parts), axis=0)

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """A part by lot, and a draw of it."""
        choose, draw = jax.random.split(key)
        chosen = jax.random.randint(choose, (), 0, self._n_parts)
        return jax.tree.map(lambda a: a[chosen], self.parts).sample(key=draw)

    def log_prob(self, z: Any) -> Scalar:
        """log mean_k p_k(z)."""
        logs = jax.vmap(lambda part: part.log_prob(z))(self.parts)
        return logsumexp(logs) - math.log(self._n_parts)

    def entropy(self) -> Scalar:
        """Not there."""
        raise CapabilityError("The entropy of a mixture has no closed form; draw and average.")


def divergences(q: Any, p: Any) -> Vector:
    """Terms, one for every latent, that sum to KL(q ‖ p); p has independent latents of the same kind."""
    if isinstance(q, Coins):
        return q.mean() * (q.log_odds - p.log_odds) - softplus(q.log_odds) + softplus(p.log_odds)
    log_scale = q.log_sigma if isinstance(q, DiagonalGaussian) else q.log_diagonal
    second = variance(q) + (q.location - p.location) ** 2
    return 0.5 * (second * jnp.exp(-2 * p.log_sigma) - 1) + p.log_sigma - log_scale


def variance(q: Any) -> Vector:
    """The variance of every latent."""
    return jnp.exp(2 * q.log_sigma) if isinstance(q, DiagonalGaussian) else q.variance()


def log_ratios(q: Any, p: Any, z: Vector) -> Vector:
    """Terms that sum to log q(z) − log p(z): one for every latent, or one for all where q is not a product."""
    if isinstance(q, CholeskyGaussian):
        n = z.shape[0]
        return jnp.broadcast_to((q.log_prob(z) - p.log_prob(z)) / n, (n,))
    each = jax.vmap(lambda part, value: jax.tree.map(lambda a: a[None], part).log_prob(value[None]))
    return each(q, z) - each(p, z)


class AbstractLayered(AbstractRelaxed):
    """Layers z¹ … z^L, drawn one after another."""

    @property
    @abc.abstractmethod
    def order(self) -> tuple[int, ...]:
        """The levels (the lowest is 0) in the order in which they are drawn."""

    @abc.abstractmethod
    def conditional(self, level: int, z: Any) -> Any:
        """q of a level given those before it in the order (others in ``z`` are not read)."""

    def _filled(self, draw: Callable[[Any, int], Array]) -> tuple[Array, ...]:
        z: list[Any] = [None] * len(self.order)
        for level in self.order:
            z[level] = draw(self.conditional(level, z), level)
        return tuple(z)

    def mean(self) -> tuple[Vector, ...]:
        """The mean of each layer given the means of those before it."""
        return self._filled(lambda q, level: q.mean())

    def sample(self, *, key: PRNGKeyArray) -> tuple[Vector, ...]:
        """One draw of all layers."""
        return self._filled(lambda q, level: q.sample(key=jax.random.fold_in(key, level)))

    def place(self, noise: tuple[Vector, ...]) -> tuple[Vector, ...]:
        """The draw that standard normal noise stands for, each layer given those before it."""
        return self._filled(lambda q, level: q.place(noise[level]))

    def relaxed(self, temperature: Any, *, key: PRNGKeyArray) -> tuple[Vector, ...]:
        """Each layer relaxed, given the relaxed ones before it."""
        return self._filled(lambda q, level: q.relaxed(temperature, key=jax.random.fold_in(key, level)))

    def straight_through(self, *, key: PRNGKeyArray) -> tuple[Vector, ...]:
        """Each layer in turn."""
        return self._filled(lambda q, level: q.straight_through(key=jax.random.fold_in(key, level)))

    def log_prob(self, z: Any) -> Scalar:
        """The sum over the layers."""
        return jnp.sum(jnp.stack([self.conditional(level, z).log_prob(z[level]) for level in self.order]))

    def entropy(self) -> Scalar:
        """Not there: the means over the layers drawn first have no closed form."""
        raise CapabilityError(
            "The entropy of a posterior with several layers has no closed form; draw and average."
        )


class BottomUp(AbstractLayered):
    """q(z¹ | x) q(z² | z¹) … q(z^L | z^{L−1}).

    Args:
        lowest: q(z¹ | x).
        readers: networks from z^l to the numbers that :func:`numbers_to` makes q(z^{l+1} | z^l) of.
        kind: "gaussian", "full" or "bernoulli".
    """

    lowest: Any
    readers: tuple[Any, ...]
    kind: str = eqx.field(static=True)

    @property
    def order(self) -> tuple[int, ...]:
        """Upwards."""
        return tuple(range(len(self.readers) + 1))

    def conditional(self, level: int, z: Any) -> Any:
        """q(z^l | z^{l−1})."""
        return self.lowest if level == 0 else numbers_to(self.kind, self.readers[level - 1](z[level - 1]))


class TopDown(AbstractLayered):
    """q(z^L | x) and, below, q(z^l | z^{l+1}, x) ∝ N(z^l; what x says) p(z^l | z^{l+1}).

    Precisions add, as in the ladder of Sønderby, Raiko, Maaløe, Sønderby and Winther (2016).

    Args:
        evidence: what x says of every layer: normal, the lowest first.
        prior: the networks of p(z^l | z^{l+1}).
    """

    evidence: tuple[DiagonalGaussian, ...]
    prior: tuple[Any, ...]

    @property
    def order(self) -> tuple[int, ...]:
        """Downwards."""
        return tuple(reversed(range(len(self.evidence))))

    def conditional(self, level: int, z: Any) -> DiagonalGaussian:
        """The product of the two."""
        seen = self.evidence[level]
        if level == len(self.evidence) - 1:
            return seen
        prior = numbers_to("gaussian", self.prior[level](z[level + 1]))
        log_precision = jnp.logaddexp(-2 * seen.log_sigma, -2 * prior.log_sigma)
        share = jnp.exp(-2 * seen.log_sigma - log_precision)
        return DiagonalGaussian(prior.location + share * (seen.location - prior.location), -0.5 * log_precision)


def n_numbers(kind: str, n: int) -> int:
    """How many numbers a network must give for ``n`` latents."""
    return {"gaussian": 2 * n, "full": 2 * n + n * (n - 1) // 2, "bernoulli": n}[kind]


def numbers_to(kind: str, numbers: Vector) -> Any:
    """The distribution that a network's numbers stand for; log σ is cut at ±:data:`MOST_LOG_SIGMA`."""
    if kind == "bernoulli":
        return Coins(numbers)
    n = numbers.shape[0] // 2
    if kind == "full":
        n = next(n for n in range(numbers.shape[0] + 1) if n_numbers("full", n) == numbers.shape[0])
    location, log_sigma = numbers[:n], jnp.clip(numbers[n : 2 * n], -MOST_LOG_SIGMA, MOST_LOG_SIGMA)
    if kind == "gaussian":
        return DiagonalGaussian(location, log_sigma)
    return CholeskyGaussian(location, log_sigma, numbers[2 * n :])
