"""Posteriors that give all their mass to finitely many states.

    q(z) = Σ_s p_s δ(z − z_s).

Every expectation is a sum over the states. With the states all different and p_s ∝ exp(−E(x, z_s)), q is the best
distribution on them, and log Σ_s exp(−E(x, z_s)) never exceeds log Σ_z exp(−E(x, z)).
"""

from __future__ import annotations

import abc
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp, xlogy
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import space
from latentia.core.model import Scalar, SecondMoments
from latentia.ops.arrays import cast, float_type


class AbstractStates(SecondMoments):
    """A distribution over finitely many states."""

    @abc.abstractmethod
    def support(self) -> tuple[Any, Float[Array, " s"]]:
        """(states with one leading axis, log-probabilities); a state may come more than once."""

    def expectation(self, function: Callable[[Any], Any]) -> Any:
        """E_q of a function of z."""
        states, log_p = self.support()
        values = jax.vmap(function)(states)
        return jax.tree.map(lambda v: jnp.tensordot(jnp.exp(log_p), v, axes=1), values)

    def mean(self) -> Any:
        """Σ_s p_s z_s."""
        states, log_p = self.support()
        return jax.tree.map(lambda v: jnp.tensordot(jnp.exp(log_p), v, axes=1), states)

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """One of the states."""
        states, log_p = self.support()
        chosen = jax.random.categorical(key, log_p)
        return jax.tree.map(lambda v: v[chosen], states)

    def log_prob(self, z: Any) -> Scalar:
        """log Σ_s p_s [z = z_s]; −∞ elsewhere."""
        states, log_p = self.support()
        return logsumexp(jnp.where(_equal(states, z), log_p, -jnp.inf))


class Enumerated(AbstractStates):
    """Every state of a discrete space, which are never stored."""

    log_p: Float[Array, " s"]
    z_space: Any = eqx.field(static=True)

    def support(self) -> tuple[Any, Float[Array, " s"]]:
        """All states."""
        return all_states(self.z_space, self.log_p.dtype), self.log_p

    def entropy(self) -> Scalar:
        """−Σ p log p."""
        return _entropy(self.log_p)

    def second_moment(self, weights: Float[Array, " n"]) -> Float[Array, "k k"]:
        """Σ_s (Σ_n w_n p_ns) z_s z_sᵀ."""
        states = all_states(self.z_space, self.log_p.dtype)
        return (states * (weights @ jnp.exp(self.log_p))[:, None]).T @ states


class Truncated(AbstractStates):
    """Some binary states, all different; states of log-probability −∞ do not count.

    Args:
        states: one state a row.
        log_p: their log-probabilities.
    """

    states: Float[Array, "s k"]
    log_p: Float[Array, " s"]

    def support(self) -> tuple[Any, Float[Array, " s"]]:
        """The states."""
        return self.states, self.log_p

    def entropy(self) -> Scalar:
        """−Σ p log p."""
        return _entropy(self.log_p)

    def second_moment(self, weights: Float[Array, " n"]) -> Float[Array, "k k"]:
        """Σ_n w_n Σ_s p_ns z_ns z_nsᵀ."""
        p = jnp.exp(self.log_p) * weights[:, None]
        rows = self.states.reshape(-1, self.states.shape[-1])
        return (rows * p.reshape(-1)[:, None]).T @ rows


class Draws(AbstractStates):
    """Draws of the latents, each as probable as it was often: an average over them is one over a chain.

    Args:
        states: draws with one leading axis.
    """

    states: Any

    def support(self) -> tuple[Any, Float[Array, " s"]]:
        """The draws, all of one probability."""
        n = jax.tree.leaves(self.states)[0].shape[0]
        return self.states, jnp.full(n, -math.log(n), float_type(self.states))

    def entropy(self) -> Scalar:
        """That of the draws' frequencies."""
        return -jnp.mean(jax.vmap(self.log_prob)(self.states))

    def second_moment(self, weights: Float[Array, " n"]) -> Float[Array, "k k"]:
        """Σ_n w_n times the mean of z zᵀ over the draws."""
        n = self.states.shape[1]
        rows = self.states.reshape(-1, self.states.shape[-1])
        return (rows * jnp.repeat(weights / n, n)[:, None]).T @ rows


def all_states(spaces: Any, dtype: Any) -> Any:
    """All joint values of a pytree of discrete spaces, as constants of a type."""
    return cast(jax.tree.map(jnp.asarray, space.enumerate_states(spaces)), dtype)


def _equal(states: Any, z: Any) -> Array:
    same = lambda s, v: jnp.all((s == v[None]).reshape(s.shape[0], -1), axis=1)  # noqa: E731
    return jnp.all(jnp.stack(jax.tree.leaves(jax.tree.map(same, states, z))), axis=0)


def _entropy(log_p: Float[Array, " s"]) -> Scalar:
    p = jnp.exp(log_p)
    return -jnp.sum(xlogy(p, p))
