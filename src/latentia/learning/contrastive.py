"""Contrastive learning: push the energy of the data down and that of the model's own samples up.

The gradient of the log-likelihood is ∇ log p(x) = −∇F(x) + E_{x'∼p} ∇F(x'), so the surrogate

    loss = mean F(data) − mean F(stop_gradient(samples))

has the right gradient for any source of samples, on either side of the model: the free energy of the latents
serves as well for log Z. Contrastive divergence starts Gibbs chains at the data
(Hinton, 2002), persistent contrastive divergence lets them run on from step to step (Tieleman, 2008), and
tempering keeps replicas at several temperatures (Desjardins et al., 2010; Salakhutdinov, 2009).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia import samplers
from latentia.core.algorithms import AbstractObjective, AbstractSampler, Metrics
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel, FreeEnergy, LatentFreeEnergy, Scalar
from latentia.core.sharding import split
from latentia.ops.arrays import batch_size


class ContrastiveState(eqx.Module):
    """Chains, the (possibly adapted) sampler, and the sampler's diagnostics."""

    chains: Any
    sampler: AbstractSampler
    metrics: Metrics


class Contrastive(AbstractObjective):
    """mean F(data) − mean F(samples), the samples from any sampler.

    Args:
        sampler: where the samples come from.
        n_steps: sampler steps before every update.
        persistent: chains run on from update to update; otherwise they start at the batch each time.
        n_chains: number of persistent chains, whatever the batch; the batch's size if None.
    """

    sampler: AbstractSampler
    n_steps: int = eqx.field(static=True, default=1)
    persistent: bool = eqx.field(static=True, default=True)
    n_chains: int | None = eqx.field(static=True, default=None)

    def __check_init__(self) -> None:
        if self.n_steps < 1:
            raise ParameterError(f"A contrastive objective needs at least one sampler step, got {self.n_steps}.")
        if self.n_chains is not None and (not self.persistent or self.n_chains < 1):
            raise ParameterError(
                f"n_chains={self.n_chains} must be a positive number, and only persistent chains have a number of "
                "their own: CD starts one at every example of the batch."
            )

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``FreeEnergy`` and what the sampler needs."""
        return (FreeEnergy, *self.sampler.requires)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> ContrastiveState:
        """Chains that start at examples drawn from the batch."""
        pick_key, start_key, run_key = jax.random.split(key, 3)
        n = batch_size(x) if self.n_chains is None else self.n_chains
        rows = jax.random.randint(pick_key, (n,), 0, batch_size(x)) if self.persistent else jnp.arange(n)
        chains = split(samplers.start(self.sampler, model, jax.tree.map(lambda a: a[rows], x), key=start_key))
        state = ContrastiveState(chains, self.sampler, {})
        shape = jax.eval_shape(lambda: self._run(model, state, run_key).metrics)
        return eqx.tree_at(lambda s: s.metrics, state, jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), shape))

    def prepare(self, model: Any, x: Any, state: ContrastiveState, *, key: PRNGKeyArray) -> ContrastiveState:
        """Fresh samples."""
        if not self.persistent:
            key, start_key = jax.random.split(key)
            chains = samplers.start(state.sampler, model, x, key=start_key)
            state = eqx.tree_at(lambda s: s.chains, state, chains)
        return self._run(model, state, key)

    def _run(self, model: Any, state: ContrastiveState, key: PRNGKeyArray) -> ContrastiveState:
        sampler, chains = state.sampler, state.chains
        if self.n_steps > 1:
            key, first = jax.random.split(key)
            _, chains = samplers.run(sampler, model, chains, self.n_steps - 1, key=first)
        chains, info = samplers.advance(sampler, model, chains, key=key)
        chains = split(chains)
        return ContrastiveState(chains, sampler.adapt(info), sampler.metrics(info))

    def loss(self, model: Any, x: Any, weights: Any, state: ContrastiveState) -> tuple[Scalar, Metrics]:
        """A surrogate with the gradient of mean F(data) − mean F(samples), and that difference as a metric.

        Where the visibles can be summed out too, persistent chains enter through their latents: ∇ log Z is also
        −E_z ∇F(z), and the product behind F(z) is the one that drew x. (Chains that have just left the data are
        half a sweep further in x than in z, and every half counts.)
        """
        chains = jax.lax.stop_gradient(state.chains)
        samples = jax.vmap(state.sampler.visible)(chains)
        n, m = batch_size(x), batch_size(samples)
        signs = jnp.full(n, 1 / n) if weights is None else weights / n
        # One signed sum over data and samples, so that both share their products.
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), x, samples)
        gap = jnp.append(signs, jnp.full(m, -1 / m)) @ jax.vmap(model.free_energy)(both)
        metrics = {"energy_gap": gap, **state.metrics}
        if not (self.persistent and isinstance(model, LatentFreeEnergy)):
            return gap, metrics
        latents = jax.vmap(state.sampler.latent)(chains)
        negative = jnp.mean(jax.vmap(model.latent_free_energy)(latents))
        return signs @ jax.vmap(model.free_energy)(x) - negative, metrics


def cd(k: int = 1) -> Contrastive:
    """CD-k: k Gibbs sweeps from the data.

    >>> cd(5).n_steps
    5
    """
    return Contrastive(samplers.Gibbs(), k, persistent=False)


def pcd(k: int = 1, n_chains: int | None = None) -> Contrastive:
    """PCD-k: k Gibbs sweeps of chains that persist.

    >>> pcd(1, n_chains=2000).persistent
    True
    """
    return Contrastive(samplers.Gibbs(), k, persistent=True, n_chains=n_chains)


def tempering(k: int = 1, n_chains: int | None = None, n_replicas: int = 10, target: float = 0.3) -> Contrastive:
    """Persistent chains with parallel tempering; the ladder adapts to the target swap rate.

    >>> tempering(n_replicas=8).sampler.betas.shape
    (8,)
    """
    return Contrastive(
        samplers.ParallelTempering.make(n_replicas, target=target), k, persistent=True, n_chains=n_chains
    )
