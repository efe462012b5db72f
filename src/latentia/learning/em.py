"""Expectation–maximisation as a learner: exact posterior of the batch, then a closed-form M-step.

On the full batch no step decreases the likelihood (Dempster, Laird and Rubin, 1977).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, Metrics
from latentia.core.capabilities import MStep, Normalised
from latentia.core.model import AbstractModel
from latentia.ops.arrays import batch_size, float_type, weighted_mean


class EM(AbstractLearner):
    """EM on whatever batch it is given; give it all the data."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``MStep`` and ``Normalised``."""
        return (MStep, Normalised)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> None:
        """EM keeps no state."""

    @property
    def period(self) -> int:
        """Every step reports the likelihood."""
        return 1

    def step(
        self, model: Any, x: Any, weights: Any, state: None, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, None, Metrics]:
        """E-step and M-step; reports the log-likelihood before the step."""
        del state, key, since
        log_likelihood = -weighted_mean(jax.vmap(model.free_energy)(x), weights)
        posterior = jax.vmap(model.posterior)(x)
        ones = jnp.ones(batch_size(x), float_type(x)) if weights is None else weights
        new = taught(model, model.m_step(x, posterior, ones), weights)
        return new, None, {"log_likelihood": log_likelihood}

    def slower(self, state: None) -> None:
        """EM has no step size."""

    def final(self, model: Any, state: None) -> Any:
        """The model itself."""
        del state
        return model


def taught(old: Any, new: Any, weights: Any) -> Any:
    """What was learned from a batch; the old model where no row has any weight, which teaches nothing."""
    if weights is None:
        return new
    some = jnp.any(weights > 0)
    return jax.tree.map(lambda a, b: jnp.where(some, b, a), old, new)
