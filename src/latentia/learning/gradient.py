"""The gradient learner: any objective, any optimiser, centred where the model can be."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, AbstractObjective, Metrics, Need
from latentia.core.model import Centred, Constrained
from latentia.core.parameters import trainable
from latentia.learning.optimizer import Optimizer

#: Most steps from one full step to the next: offsets, averages and metrics change slowly.
PERIOD = 32


class GradientState(eqx.Module):
    """What must survive between steps."""

    objective: Any
    optimizer: Any
    average: Any
    step: Float[Array, ""]  # as of the last full step: schedules need not know better
    slowdown: Float[Array, ""]


class GradientLearner(AbstractLearner):
    """Descends an objective's surrogate.

    Args:
        objective: the surrogate.
        optimizer: gradients → updates.
        averaging: decay per step of a running average of the parameters, kept as the final model; 0 keeps
            the last.
        centring: rate per step at which the offsets of a centred model follow the data; 0 leaves them.
    """

    objective: AbstractObjective
    optimizer: Optimizer
    averaging: float = eqx.field(static=True, default=0.0)
    centring: float = eqx.field(static=True, default=0.01)

    @property
    def requires(self) -> tuple[Need, ...]:
        """What the objective needs."""
        return self.objective.requires

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> GradientState:
        """States of objective and optimiser."""
        average = jax.tree.map(jnp.array, eqx.filter(model, eqx.is_inexact_array)) if self.averaging else None
        return GradientState(
            self.objective.init(model, x, key=key),
            self.optimizer.init(model),
            average,
            jnp.array(0.0),
            jnp.array(1.0),
        )

    @property
    def period(self) -> int:
        """See :data:`PERIOD`."""
        return PERIOD

    def step(
        self, model: Any, x: Any, weights: Any, state: GradientState, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, GradientState, Metrics]:
        """Samples, gradient, update, projection; a full step also moves offsets and average."""
        objective_state = self.objective.prepare(model, x, state.objective, key=key)
        params, rest = eqx.partition(model, trainable(model))

        def surrogate(params: Any) -> tuple[Any, Metrics]:
            return self.objective.loss(eqx.combine(params, rest), x, weights, objective_state)

        grads, metrics = eqx.filter_grad(surrogate, has_aux=True)(params)
        updated, optimizer_state = self.optimizer.update(
            grads, state.optimizer, model, step=state.step, slowdown=state.slowdown
        )
        if since and self.centring and isinstance(model, Centred):
            updated = updated.recentred(model.centres(x, weights), 1 - (1 - self.centring) ** since)
        if isinstance(updated, Constrained):
            updated = updated.project()
        average = self._average(state, updated, since) if since else state.average
        state = GradientState(objective_state, optimizer_state, average, state.step + since, state.slowdown)
        return updated, state, {**metrics, "gradient_norm": optax.tree.norm(grads)}

    def _average(self, state: GradientState, model: Any, since: int) -> Any:
        if not self.averaging:
            return None
        # Early on the average follows quickly: the start is forgotten.
        decay = jnp.minimum(self.averaging, (1 + state.step) / (10 + state.step)) ** since
        new = eqx.filter(model, eqx.is_inexact_array)
        return jax.tree.map(
            lambda old, new: (decay * old + (1 - decay) * new).astype(new.dtype), state.average, new
        )

    def slower(self, state: GradientState) -> GradientState:
        """Half the step."""
        return eqx.tree_at(lambda s: s.slowdown, state, state.slowdown / 2)

    def final(self, model: Any, state: GradientState) -> Any:
        """The averaged model, if there is one."""
        return eqx.combine(state.average, model) if self.averaging else model
