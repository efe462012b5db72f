"""Contrastive learning: push the energy of the data down and that of the model's own samples up.

The gradient of the log-likelihood is ∇ log p(x) = −∇F(x) + E_{x'∼p} ∇F(x'), so the surrogate

    loss = mean F(data) − mean F(stop_gradient(samples))

has the right gradient for any source of samples. Where F is out of reach, the variational energy
E_q[E(x, z)] − H(q) with q held fixed stands for it on the data, which gives the gradient of a bound, and the joint
energy on the samples. Or latents are drawn by Gibbs sampling with x held, and E(x, z) stands for it, whose gradient
is right as far as the draws are (∇F(x) = E_{z|x} ∇E). On samples any partly summed energy serves as well, since
∇ log Z = −E ∇E.

Contrastive divergence starts Gibbs chains at the data (Hinton, 2002), persistent contrastive divergence lets them
run on from step to step (Tieleman, 2008), and tempering keeps replicas at several temperatures (Desjardins et al.,
2010; Salakhutdinov, 2009). Where x is real, chains may follow the gradient of F instead, by Langevin or Hamiltonian
dynamics: no conditional distributions are needed (Hinton, Osindero, Welling and Teh, 2006).

A conditional model has a log Z for every context, so that a chain belongs to a row and keeps its context:

    −∇ log p(y | c) = ∇F(y; c) − E_{y'∼p(· | c)} ∇F(y'; c).

Such chains start at the row's y. Persistent ones would meet another context at every step, and are refused.
"""

from __future__ import annotations

from typing import Any, cast

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia import samplers
from latentia.core import space
from latentia.core.algorithms import AbstractInference, AbstractObjective, AbstractSampler, Metrics, Need, require
from latentia.core.capabilities import Clamps, FreeEnergy, Settles
from latentia.core.conditioning import kind, over_rows, parted
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.model import Scalar
from latentia.core.moved import renamed
from latentia.core.sharding import split
from latentia.core.space import Domain
from latentia.inference import MeanFieldInference, variational_energy
from latentia.ops import random
from latentia.ops.arrays import batch_size, float_type

#: How data enter where their latents cannot be summed out.
POSITIVE = ("mean_field", "sampled")


class ContrastiveState(eqx.Module):
    """Chains, the (possibly adapted) sampler, and the sampler's diagnostics."""

    chains: Any
    sampler: AbstractSampler
    metrics: Metrics
    key: Any = None  # of an inference that draws
    #: Latents of the batch, drawn with x held; None unless the positive phase is sampled.
    latents: Any = None


class Contrastive(AbstractObjective):
    """mean F(data) − mean F(samples), the samples from any sampler.

    Args:
        sampler: where the samples come from.
        n_steps: sampler steps before every update.
        persistent: chains run on from update to update; otherwise they start at the batch each time.
        n_chains: number of persistent chains, whatever the batch; the batch's size if None.
        inference: finds q(z | x) for the positive phase of models without a free energy; any that fits the model.
        positive: "mean_field" takes the variational energy of that q; "sampled" draws latents by as many Gibbs
            sweeps with x held as ``inference`` has rounds. Models with a free energy need neither.
    """

    sampler: AbstractSampler
    n_steps: int = eqx.field(static=True, default=1)
    persistent: bool = eqx.field(static=True, default=True)
    n_chains: int | None = eqx.field(static=True, default=None)
    inference: AbstractInference = MeanFieldInference(n_rounds=10, tolerance=0.0)
    positive: str = eqx.field(static=True, default="mean_field", metadata={"added": True})

    def __check_init__(self) -> None:
        if self.positive not in POSITIVE:
            raise UnknownNameError("positive phase", self.positive, POSITIVE)
        if self.positive == "sampled" and not isinstance(self.inference, MeanFieldInference):
            raise ParameterError(
                "positive='sampled' needs inference=MeanFieldInference(…), which sets the number of sweeps."
            )
        if self.n_steps < 1:
            raise ParameterError(f"A contrastive objective needs at least one sampler step, got {self.n_steps}.")
        if self.n_chains is not None and (not self.persistent or self.n_chains < 1):
            raise ParameterError(
                f"n_chains={self.n_chains} must be a positive number, and only persistent chains have a number of "
                "their own: CD starts one at every example of the batch."
            )

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``, or ``Clamps`` for the variational energy, and what the sampler needs."""
        return (FreeEnergy | Clamps, *self.sampler.requires)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The sampler's."""
        return self.sampler.domains

    @property
    def conditional(self) -> bool:
        """Where every chain belongs to a row."""
        return not self.persistent

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> ContrastiveState:
        """Chains that start at examples drawn from the batch."""
        if not isinstance(kind(model), FreeEnergy):
            require(self.inference, kind(model))
        pick_key, start_key, run_key = jax.random.split(key, 3)
        x, contexts = parted(model, x)
        if contexts is not None:
            require(self, model)
        n = batch_size(x) if self.n_chains is None else self.n_chains
        rows = jax.random.randint(pick_key, (n,), 0, batch_size(x), jnp.int32) if self.persistent else jnp.arange(n)
        sampler = self.sampler.sized(x)
        begin = jax.tree.map(lambda a: a[rows], x)
        chains = split(samplers.start(sampler, model, begin, key=start_key, contexts=contexts))
        drawn = self._drawn(model, x, contexts, run_key)
        state = ContrastiveState(chains, sampler, {}, self._inference_key(run_key), drawn)
        shape = jax.eval_shape(lambda: self._run(model, state, contexts, run_key).metrics)
        return eqx.tree_at(lambda s: s.metrics, state, jax.tree.map(lambda m: jnp.zeros(m.shape, m.dtype), shape))

    def prepare(
        self, model: Any, x: Any, state: ContrastiveState, *, key: PRNGKeyArray, weights: Any = None
    ) -> ContrastiveState:
        """Fresh samples."""
        x, contexts = parted(model, x)
        if self._draws(model):
            key, latent_key = jax.random.split(key)
            latents = self._drawn(model, x, contexts, latent_key)
            state = eqx.tree_at(lambda s: s.latents, state, latents, is_leaf=lambda a: a is None)
        if not self.persistent:
            key, start_key = jax.random.split(key)
            chains = samplers.start(state.sampler, model, x, key=start_key, contexts=contexts)
            state = eqx.tree_at(lambda s: s.chains, state, chains)
        return self._run(model, state, contexts, key)

    def _run(self, model: Any, state: ContrastiveState, contexts: Any, key: PRNGKeyArray) -> ContrastiveState:
        sampler, chains = state.sampler, state.chains
        if self.n_steps > 1:
            key, first = jax.random.split(key)
            _, chains = samplers.run(sampler, model, chains, self.n_steps - 1, key=first, contexts=contexts)
        chains, info = samplers.advance(sampler, model, chains, key=key, contexts=contexts)
        chains = split(chains)
        after = self._inference_key(key)
        return ContrastiveState(chains, sampler.adapt(info), sampler.metrics(info), after, state.latents)

    def _inference_key(self, key: PRNGKeyArray) -> Any:
        """A key for an inference that draws; None for others, so that their state needs no room for it."""
        return jax.random.key_data(jax.random.fold_in(key, 1)) if self.inference.is_random else None

    def _draws(self, model: Any) -> bool:
        return self.positive == "sampled" and not isinstance(kind(model), FreeEnergy)

    def _drawn(self, model: Any, x: Any, contexts: Any, key: PRNGKeyArray) -> Any:
        """Latents of every row after Gibbs sweeps with all of x held; None where none are wanted."""
        if not self._draws(model):
            return None
        start_key, key = jax.random.split(key)
        gibbs, held = samplers.Gibbs(), jax.tree.map(lambda a: jnp.ones(a.shape, bool), x)
        states = samplers.start(gibbs, model, x, key=start_key, contexts=contexts)
        n = cast(MeanFieldInference, self.inference).n_rounds
        _, states = samplers.run(gibbs, model, states, n, key=key, fixed=held, contexts=contexts)
        return jax.vmap(gibbs.latent)(states)

    def loss(self, model: Any, x: Any, weights: Any, state: ContrastiveState) -> tuple[Scalar, Metrics]:
        """A surrogate with the gradient of the energy gap between data and samples, and that gap as a metric."""
        x, contexts = parted(model, x)
        chains = jax.lax.stop_gradient(state.chains)
        samples, latents = jax.vmap(state.sampler.visible)(chains), jax.vmap(state.sampler.latent)(chains)
        n, m = batch_size(x), batch_size(chains)
        signs = jnp.full(n, 1 / n, float_type(x)) if weights is None else weights / n
        # A chain that started at an example counts as much as the example; persistent chains belong to none.
        alike = weights is None or self.persistent or m != n
        counts = jnp.full(m, 1 / m, signs.dtype) if alike else signs
        summed = isinstance(kind(model), FreeEnergy)
        if summed:
            # One signed sum over data and samples, so that both share their products.
            joined = lambda a, b: jax.tree.map(lambda a, b: jnp.concatenate([a, b]), a, b)  # noqa: E731
            energies = over_rows(_free_energy, model, joined(contexts, contexts))(joined(x, samples))
            gap = jnp.append(signs, -counts) @ energies
        else:
            gap = signs @ self._bound(model, x, contexts, state)
            gap = gap - counts @ over_rows(_energy, model, contexts)(samples, latents)
        metrics = {"energy_gap": gap, **state.metrics}
        if not self._sums_last_block(model):
            return gap, metrics
        positive = jax.vmap(model.free_energy)(x) if summed else self._bound(model, x, contexts, state)
        negative = jnp.mean(jax.vmap(cast(Settles, model).settled_energy)(samples, latents))
        return signs @ positive - negative, metrics

    def _bound(self, model: Any, x: Any, contexts: Any, state: ContrastiveState) -> Float[Array, " n"]:
        """What stands for F(x): E_q[E(x, z)] − H(q) with q held fixed, or E(x, z) at latents that were drawn."""
        if self._draws(model):
            return over_rows(_energy, model, contexts)(x, jax.lax.stop_gradient(state.latents))
        key = random.key(0)
        if state.key is not None:
            key = jax.random.wrap_key_data(state.key, impl=jax.random.key_impl(key))

        def one(model: Any, x: Any, key: PRNGKeyArray) -> Scalar:
            q = jax.lax.stop_gradient(self.inference.infer(jax.lax.stop_gradient(model), x, key=key))
            return variational_energy(model, x, q)

        return over_rows(one, model, contexts)(x, jax.random.split(key, batch_size(x)))

    def _sums_last_block(self, model: Any) -> bool:
        """Whether samples enter with the block summed out that their sweep drew last.

        Not where the model's F(x) sums out more, and so is less noisy; not for chains that have just left the data,
        which by their last block are half a sweep further away; and not for samplers that draw no latents.
        """
        if not (self.persistent and self.sampler.ends_with_sweep and isinstance(model, Settles)):
            return False
        return not isinstance(model, FreeEnergy) or space.width(model.z_space) <= space.width(model.x_space)


def _free_energy(model: Any, x: Any) -> Scalar:
    return model.free_energy(x)


def _energy(model: Any, x: Any, z: Any) -> Scalar:
    return model.energy(x, z)


@renamed(k="n_sampler_steps")
def cd(n_sampler_steps: int = 1, rounds: int = 10, positive: str = "mean_field") -> Contrastive:
    """CD-k: k = ``n_sampler_steps`` Gibbs sweeps from the data.

    >>> cd(5).n_steps
    5
    """
    inference = MeanFieldInference(rounds, 0.0)
    return Contrastive(samplers.Gibbs(), n_sampler_steps, False, inference=inference, positive=positive)


@renamed(k="n_sampler_steps")
def pcd(
    n_sampler_steps: int = 1, n_chains: int | None = None, rounds: int = 10, positive: str = "mean_field"
) -> Contrastive:
    """PCD-k: k = ``n_sampler_steps`` Gibbs sweeps of chains that persist.

    >>> pcd(1, n_chains=2000).persistent
    True
    """
    inference = MeanFieldInference(rounds, 0.0)
    return Contrastive(samplers.Gibbs(), n_sampler_steps, True, n_chains, inference, positive)


@renamed(k="n_sampler_steps")
def tempering(
    n_sampler_steps: int = 1,
    n_chains: int | None = None,
    n_replicas: int = 10,
    target: float = 0.3,
    rounds: int = 10,
    positive: str = "mean_field",
) -> Contrastive:
    """Persistent chains with parallel tempering; the ladder adapts to the target swap rate.

    >>> tempering(n_replicas=8).sampler.betas.shape
    (8,)
    """
    ladder = samplers.ParallelTempering.make(n_replicas, target=target)
    return Contrastive(ladder, n_sampler_steps, True, n_chains, MeanFieldInference(rounds, 0.0), positive)


@renamed(k="n_sampler_steps")
def hybrid(
    n_sampler_steps: int = 1,
    n_chains: int | None = None,
    sampler: str | AbstractSampler = "hmc",
    persistent: bool = True,
) -> Contrastive:
    """Chains that follow the gradient of F: steps of Hamiltonian Monte Carlo, or another sampler on real x.

    Args:
        n_sampler_steps: steps before every update (for "hmc" each is a trajectory).
        n_chains: number of persistent chains; the batch's size if None.
        sampler: "langevin", "mala", "hmc", "nuts", or a sampler object.
        persistent: chains run on from update to update; otherwise they start at the batch each time.

    >>> hybrid(sampler="mala").sampler.target
    0.574
    """
    return Contrastive(samplers.gradient_sampler(sampler), n_sampler_steps, persistent, n_chains)
