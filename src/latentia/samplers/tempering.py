"""Parallel tempering: replicas along a temperature ladder that exchange their joint states.

Replica r runs Gibbs sweeps at inverse temperature β_r. Neighbours then propose to swap their whole states
(x, z); with E_r the joint energy at β_r the swap of a = (x, z)_r and b = (x, z)_{r+1} is accepted with
probability min(1, exp(E_r(a) + E_{r+1}(b) − E_r(b) − E_{r+1}(a))), which is detailed balance for the product
of all replicas. (Swapping x alone with the energy of the pair, as public code does, is not.)

The ladder ends at β = 1. Each gap grows while its swaps succeed more often than ``target`` and shrinks
otherwise; when the gaps together reach β = 0 they are scaled to end there exactly, so that the rates are then
at least the target. References: Swendsen and Wang (1986); Desjardins et al. (2010).
"""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import tempering
from latentia.core.algorithms import AbstractSampler, Metrics
from latentia.core.capabilities import Tempered
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel
from latentia.ops.arrays import cast, float_type


class TemperingState(eqx.Module):
    """The replicas of one chain, hottest first: leading axis β."""

    x: Any
    z: Any


class SwapInfo(eqx.Module):
    """Acceptance probability of a swap between each pair of neighbours."""

    acceptance: Float[Array, "*batch pairs"]


class ParallelTempering(AbstractSampler):
    """Replica exchange between the model and its base.

    Args:
        betas: inverse temperatures, increasing, the last one 1.
        target: swap rate that the ladder adapts to.
        rate: how fast the ladder adapts; 0 keeps it.
    """

    betas: Float[Array, " replicas"]
    target: float = eqx.field(static=True, default=0.3)
    rate: float = eqx.field(static=True, default=0.02)

    @classmethod
    def make(cls, n_replicas: int = 10, *, target: float = 0.3, rate: float = 0.02) -> Self:
        """An evenly spaced ladder from 0 to 1."""
        if n_replicas < 2:
            raise ParameterError(f"Parallel tempering needs at least 2 replicas, got {n_replicas}.")
        return cls(jnp.linspace(0.0, 1.0, n_replicas), target, rate)

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``Tempered``."""
        return (Tempered,)

    @property
    def ends_with_sweep(self) -> bool:
        """A swap hands on a joint state as its own sweep left it."""
        return True

    def sized(self, x: Any) -> Self:
        """With a ladder of the type of ``x``."""
        return cast(self, float_type(x))

    def init(self, model: Tempered, x: Any, *, key: PRNGKeyArray) -> TemperingState:
        """All replicas start at ``x``."""
        n = self.betas.shape[0]
        latents = model.begin(x, key=key)
        repeat = lambda a: jnp.broadcast_to(a, (n, *a.shape))  # noqa: E731
        return TemperingState(jax.tree.map(repeat, x), jax.tree.map(repeat, latents))

    def step(
        self, model: Tempered, state: TemperingState, *, key: PRNGKeyArray, fixed: Any = None
    ) -> tuple[TemperingState, SwapInfo]:
        """A sweep of every replica, then swaps of the even or of the odd pairs."""
        base = model.base()
        sweep_key, parity_key, swap_key = jax.random.split(key, 3)

        # A scan, not a vmap, over replicas: each is one matrix product over all chains.
        def sweep(_: None, replica: Any) -> tuple[None, Any]:
            beta, x, z, key = replica
            return None, tempering.at(base, model, beta).sweep(x, z, key=key, fixed=fixed)

        keys = jax.random.split(sweep_key, self.betas.shape[0])
        _, (x, z) = jax.lax.scan(sweep, None, (self.betas, state.x, state.z, keys))
        log_accept = self._log_acceptance(base, model, x, z)
        pairs = jnp.arange(log_accept.shape[0])
        chosen = pairs % 2 == jax.random.bernoulli(parity_key, jnp.float32(0.5)).astype(pairs.dtype)
        u = jax.random.uniform(swap_key, log_accept.shape, log_accept.dtype)
        swap = chosen & (jnp.log(u) < log_accept)
        order = jnp.arange(log_accept.shape[0] + 1)
        order = order + jnp.append(swap, False).astype(order.dtype) - jnp.append(False, swap).astype(order.dtype)
        x, z = jax.tree.map(lambda a: a[order], (x, z))
        return TemperingState(x, z), SwapInfo(jnp.exp(jnp.minimum(log_accept, 0.0)))

    def _log_acceptance(self, base: Tempered, model: Tempered, x: Any, z: Any) -> Float[Array, " pairs"]:
        """E_r(a) + E_{r+1}(b) − E_r(b) − E_{r+1}(a) for every pair of neighbours."""
        shift = lambda tree, n: jax.tree.map(lambda a: jnp.roll(a, n, axis=0), tree)  # noqa: E731

        def energies(_: None, replica: Any) -> tuple[None, Any]:
            beta, own, above, below = replica
            tempered = tempering.at(base, model, beta)
            return None, tuple(tempered.energy(*state) for state in (own, above, below))

        states = ((x, z), shift((x, z), -1), shift((x, z), 1))
        _, (own, above, below) = jax.lax.scan(energies, None, (self.betas, *states))
        return (own[:-1] - above[:-1]) + (own[1:] - below[1:])

    def visible(self, state: TemperingState) -> Any:
        """x of the replica at β = 1."""
        return jax.tree.map(lambda a: a[-1], state.x)

    def latent(self, state: TemperingState) -> Any:
        """z of the replica at β = 1."""
        return jax.tree.map(lambda a: a[-1], state.z)

    def adapt(self, info: SwapInfo) -> Self:
        """Widen gaps whose swaps succeed more often than the target, narrow the others."""
        rates = jnp.mean(info.acceptance, axis=0)
        gaps = jnp.diff(self.betas) * jnp.exp(self.rate * (rates - self.target))
        gaps = gaps / jnp.maximum(jnp.sum(gaps), 1.0)
        betas = 1 - jnp.append(jnp.cumsum(gaps[::-1])[::-1], 0.0)
        return eqx.tree_at(lambda s: s.betas, self, jnp.maximum(betas, 0.0).astype(self.betas.dtype))

    def metrics(self, info: SwapInfo) -> Metrics:
        """Lowest and mean swap rate over the pairs, and the hottest β."""
        rates = jnp.mean(info.acceptance, axis=0)
        return {
            "swap_rate_min": jnp.min(rates),
            "swap_rate_mean": jnp.mean(rates),
            "hottest_beta": self.betas[0],
        }
