"""The gradient learner: any objective, any optimiser, with centring if the model supports it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, AbstractObjective, Metrics, Need
from latentia.core.capabilities import Centred, Constrained
from latentia.core.parameters import trainable
from latentia.core.space import Domain
from latentia.learning.optimizer import Optimizer

#: Most steps from one full step to the next: offsets, averages and metrics change slowly.
PERIOD = 32


class GradientState(eqx.Module):
    """The state between steps."""

    objective: Any
    optimizer: Any
    average: Any
    step: Float[Array, ""]  # as of the last full step: precise enough for schedules
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
        """The capabilities that the objective needs."""
        return self.objective.requires

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The objective's."""
        return self.objective.domains

    @property
    def latent_domains(self) -> tuple[Domain, ...] | None:
        """The objective's."""
        return self.objective.latent_domains

    @property
    def name(self) -> str:
        """The objective's."""
        return self.objective.name

    def surveyed(self, model: Any, look: Callable[[], Any], *, key: PRNGKeyArray) -> Self:
        """With the objective fitted to the data."""
        return eqx.tree_at(lambda s: s.objective, self, self.objective.surveyed(model, look, key=key))

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> GradientState:
        """States of objective and optimiser."""
        average = jax.tree.map(jnp.array, eqx.filter(model, eqx.is_inexact_array)) if self.averaging else None
        objective_state = self.objective.init(model, x, key=key)
        return GradientState(
            objective_state,
            self.optimizer.init(_joined(model, self.objective.learned(objective_state))),
            average,
            jnp.zeros((), jnp.float32),
            jnp.ones((), jnp.float32),
        )

    @property
    def period(self) -> int:
        """See :data:`PERIOD`."""
        return PERIOD

    def step(
        self, model: Any, x: Any, weights: Any, state: GradientState, *, key: PRNGKeyArray, since: int
    ) -> tuple[Any, GradientState, Metrics]:
        """Samples, gradient, update, projection; a full step also moves offsets and average."""
        objective_state = self.objective.prepare(model, x, state.objective, key=key, weights=weights)
        learned = self.objective.learned(objective_state)
        whole = _joined(model, learned)
        params, rest = eqx.partition(whole, trainable(whole))

        def surrogate(params: Any) -> tuple[Any, Metrics]:
            model, found = _parted(eqx.combine(params, rest), learned)
            return self.objective.loss(model, x, weights, self.objective.with_learned(objective_state, found))

        grads, metrics = eqx.filter_grad(surrogate, has_aux=True)(params)
        whole, optimizer_state = self.optimizer.update(
            grads, state.optimizer, whole, step=state.step, slowdown=state.slowdown
        )
        updated, learned = _parted(whole, learned)
        objective_state = self.objective.with_learned(objective_state, learned)
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
        blend = lambda old, new, decay: decay * old + (1 - decay) * new  # noqa: E731
        return jax.tree.map(lambda old, new: blend(old, new, decay.astype(new.dtype)), state.average, new)

    def halve_step(self, state: GradientState) -> GradientState:
        """Half the step."""
        return eqx.tree_at(lambda s: s.slowdown, state, state.slowdown / 2)

    def final(self, model: Any, state: GradientState) -> Any:
        """The averaged model, if there is one."""
        return eqx.combine(state.average, model) if self.averaging else model


def _joined(model: Any, learned: Any) -> Any:
    """What the optimiser moves: the model, and what the objective learns along with it."""
    return model if learned is None else (model, learned)


def _parted(whole: Any, learned: Any) -> tuple[Any, Any]:
    """The inverse of :func:`_joined`."""
    return (whole, None) if learned is None else whole
