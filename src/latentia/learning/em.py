"""Expectation–maximisation as a learner: the posterior of the batch, by any inference, then a closed-form M-step.

Both steps raise the same function of q and θ (Neal and Hinton, 1998),

    𝓕(q, θ) = Σ_n E_{q_n}[log p(x_n, z; θ)] + H(q_n) ≤ Σ_n log p(x_n; θ),

with equality for the exact posterior: on the full batch no step then decreases the likelihood (Dempster, Laird and
Rubin, 1977). An approximate inference that starts from the posteriors of the previous step never lowers 𝓕 itself.

Deterministic annealing (Ueda and Nakano, 1998) begins with the posteriors at a high temperature, p(z | x)^{1/T}:
all explanations of an example then take part, and poor local maxima are passed by. The temperature falls to one
geometrically, and what is reported is 𝓕 at temperature one throughout. Without the prior only the likelihood is
heated, p(z) p(x | z)^{1/T}: codes that are sparse a priori then stay sparse while hot.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PRNGKeyArray

from latentia.core.algorithms import AbstractInference, AbstractLearner, Metrics, Need
from latentia.core.capabilities import Heats, MStep, Normalised, NormalisedJoint
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractPosterior
from latentia.inference import Exact, variational_energy
from latentia.ops.arrays import batch_size, float_type, weighted_mean


class EMState(NamedTuple):
    """The number of steps, and the posteriors after the last one, if inference starts from them."""

    count: Int[Array, ""]
    posterior: Any


class EM(AbstractLearner):
    """EM on whatever batch it is given; give it all the data.

    Args:
        inference: finds the posteriors.
        warm: start inference from the posteriors of the previous step, if it can; needs all rows in every batch.
        temperature: that of the posteriors at the start; 1 does not anneal.
        n_annealing: steps until the temperature is one.
        heat_prior: whether the temperature is that of prior and likelihood, or of the likelihood alone.
    """

    inference: AbstractInference = Exact()
    warm: bool = eqx.field(static=True, default=True)
    temperature: float = eqx.field(static=True, default=1.0)
    n_annealing: int = eqx.field(static=True, default=0)
    heat_prior: bool = eqx.field(static=True, default=True)

    def __check_init__(self) -> None:
        if not self.temperature >= 1 or self.n_annealing < 0:
            raise ParameterError(
                f"EM needs a temperature of at least 1 and n_annealing of at least 0, got {self.temperature} and "
                f"{self.n_annealing}."
            )

    @property
    def anneals(self) -> bool:
        """Whether the first steps are hot."""
        return self.temperature > 1 and self.n_annealing > 0

    @property
    def requires(self) -> tuple[Need, ...]:
        """``MStep``, ``NormalisedJoint``, what the inference needs, and ``Heats`` for annealing."""
        return (MStep, NormalisedJoint, *self.inference.requires, *((Heats,) if self.anneals else ()))

    @property
    def keeps_rows(self) -> bool:
        """Whether the next step starts from a posterior of every row."""
        return self.warm and self.inference.goes_on

    @property
    def period(self) -> int:
        """Every step reports the likelihood or the bound."""
        return 1

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> EMState | None:
        """Nothing, or space for the posteriors from which inference starts."""
        if not (self.keeps_rows or self.anneals):
            return None
        return EMState(jnp.zeros((), jnp.int32), self._begun(model, x, key) if self.keeps_rows else None)

    def step(
        self, model: Any, x: Any, weights: Any, state: EMState | None, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, EMState | None, Metrics]:
        """E-step and M-step; reports the log-likelihood, or its bound by q, before the M-step."""
        del since
        posterior, metrics = self._e_step(model, x, weights, state, key)
        ones = jnp.ones(batch_size(x), float_type(x)) if weights is None else weights
        new = taught(model, model.m_step(x, posterior, ones), weights)
        if state is not None:
            state = EMState(state.count + 1, posterior if self.keeps_rows else None)
        return new, state, metrics

    def _e_step(
        self, model: Any, x: Any, weights: Any, state: EMState | None, key: PRNGKeyArray
    ) -> tuple[AbstractPosterior, Metrics]:
        metrics: Metrics = {}
        if isinstance(model, Normalised):
            metrics["log_likelihood"] = -weighted_mean(jax.vmap(model.free_energy)(x), weights)
        hot = model
        if isinstance(model, Heats) and self.anneals and state is not None:
            left = jnp.maximum(1 - state.count / self.n_annealing, 0.0).astype(float_type(model))
            metrics["temperature"] = self.temperature**left
            hot = model.heated(metrics["temperature"], prior=self.heat_prior)
        begin_key, key = jax.random.split(key)
        if self.keeps_rows and state is not None:
            kept = state.posterior
            start = jax.lax.cond(state.count > 0, lambda: kept, lambda: self._begun(hot, x, begin_key))
            improved = lambda x, q, key: self.inference.improved(hot, x, q, key=key)  # noqa: E731
            posterior = jax.vmap(improved)(x, start, jax.random.split(key, batch_size(x)))
        else:
            posterior = self.inference.infer_many(hot, x, key=key)
        if not isinstance(model, Normalised):
            bounds = jax.vmap(lambda x, q: variational_energy(model, x, q))(x, posterior)
            metrics["bound"] = -weighted_mean(bounds, weights)
        return posterior, metrics

    def _begun(self, model: Any, x: Any, key: PRNGKeyArray) -> AbstractPosterior:
        keys = jax.random.split(key, batch_size(x))
        return jax.vmap(lambda x, key: self.inference.begun(model, x, key=key))(x, keys)

    def halve_step(self, state: Any) -> None:
        """EM has no step size."""

    def final(self, model: Any, state: Any) -> Any:
        """The model itself."""
        del state
        return model


def taught(old: Any, new: Any, weights: Any) -> Any:
    """What was learned from a batch; the old model where no row has any weight, which teaches nothing."""
    if weights is None:
        return new
    some = jnp.any(weights > 0)
    return jax.tree.map(lambda a, b: jnp.where(some, b, a), old, new)
