"""Maximum likelihood in one step, for models with a closed-form solution; an ordinary learner."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, Metrics
from latentia.core.capabilities import ClosedForm, Normalised
from latentia.core.model import AbstractModel
from latentia.learning.em import taught
from latentia.ops.arrays import batch_size, float_type, weighted_mean


class ClosedFormML(AbstractLearner):
    """The maximum-likelihood model of whatever batch it is given; give it all the data, once."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``ClosedForm`` and ``Normalised``."""
        return (ClosedForm, Normalised)

    @property
    def period(self) -> int:
        """Every step reports the likelihood."""
        return 1

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> None:
        """Nothing to keep."""

    def step(
        self, model: Any, x: Any, weights: Any, state: None, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, None, Metrics]:
        """The best model, and its log-likelihood."""
        del state, key, since
        best = model.fit_closed_form(x, jnp.ones(batch_size(x), float_type(x)) if weights is None else weights)
        best = taught(model, best, weights)
        return best, None, {"log_likelihood": -weighted_mean(jax.vmap(best.free_energy)(x), weights)}

    def halve_step(self, state: None) -> None:
        """There is no step size."""

    def final(self, model: Any, state: None) -> Any:
        """The model itself."""
        del state
        return model
