"""Optimisers as values: a name and numbers, so that two equal ones share one compiled training step.

The direction comes from Optax; rate, schedule and decay are arrays, so changing them does not recompile.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Float

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.parameters import SCALE, WEIGHT, roles, trainable

Schedule = Literal["constant", "linear", "cosine", "warmup"]

#: Log-scales learn at this part of the rate: the energy is much more sensitive to them than to weights.
SCALE_RATE = 0.1

_DIRECTIONS = {
    "sgd": lambda momentum: optax.trace(decay=momentum) if momentum else optax.identity(),
    "nesterov": lambda momentum: optax.trace(decay=momentum or 0.9, nesterov=True),
    "adam": lambda momentum: optax.scale_by_adam(b1=momentum or 0.9),
    "rmsprop": lambda momentum: optax.chain(optax.scale_by_rms(), optax.trace(decay=momentum)),
}


#: The part of a run during which the schedule "warmup" rises.
WARMUP = 0.05


class Optimizer(eqx.Module):
    """Turns gradients into updates.

    Args:
        direction: "sgd", "nesterov", "adam", "rmsprop", or an Optax transformation (whose updates are then
            taken as they are: it brings its own rate).
        learning_rate: step size at the start.
        n_steps: length of the run, for the schedule.
        momentum: decay of past gradients (β₁ for Adam; 0 means that optimiser's usual value).
        schedule: "constant", or falling to zero: "linear", "cosine", "warmup" (rises over the first twentieth of
            the steps, then falls linearly: for rates that would upset a fresh model).
        weight_decay: part of each *weight* (not bias, not scale) taken off per unit of rate.
        clip: largest global norm of the gradient; 0 does not clip.
    """

    direction: Any = eqx.field(static=True)
    learning_rate: Float[Array, ""]
    n_steps: Float[Array, ""]
    weight_decay: Float[Array, ""]
    momentum: float = eqx.field(static=True, default=0.0)
    schedule: Schedule = eqx.field(static=True, default="constant")
    clip: float = eqx.field(static=True, default=0.0)

    @classmethod
    def make(
        cls,
        direction: str | optax.GradientTransformation = "sgd",
        *,
        learning_rate: float,
        n_steps: int,
        momentum: float = 0.0,
        schedule: Schedule = "constant",
        weight_decay: float = 0.0,
        clip: float = 0.0,
    ) -> Optimizer:
        """An optimiser from plain numbers."""
        if isinstance(direction, str) and direction not in _DIRECTIONS:
            raise UnknownNameError("optimizer", direction, _DIRECTIONS)
        if not isinstance(direction, str) and not isinstance(direction, optax.GradientTransformation):
            raise ParameterError(f"optimizer must be a name or an Optax transformation, got {direction!r}.")
        if schedule not in get_args(Schedule):
            raise UnknownNameError("schedule", schedule, get_args(Schedule))
        rate, steps, decay = (jnp.asarray(float(v), jnp.float32) for v in (learning_rate, n_steps, weight_decay))
        return cls(direction, rate, steps, decay, float(momentum), schedule, float(clip))

    def _transform(self) -> optax.GradientTransformation:
        named = isinstance(self.direction, str)
        inner = _DIRECTIONS[self.direction](self.momentum) if named else self.direction
        return optax.chain(optax.clip_by_global_norm(self.clip), inner) if self.clip else inner

    def init(self, model: Any) -> optax.OptState:
        """State for the trainable leaves of ``model``."""
        return self._transform().init(eqx.filter(model, trainable(model)))

    def rate(self, step: Float[Array, ""]) -> Float[Array, ""]:
        """The rate at a step: constant, or zero in the end at ``n_steps``."""
        left = jnp.clip(1 - step / self.n_steps, 0.0, 1.0)
        factor = {
            "constant": jnp.ones_like(left),
            "linear": left,
            "cosine": 0.5 * (1 - jnp.cos(jnp.pi * left)),
            "warmup": jnp.minimum((1 - left) / WARMUP, left / (1 - WARMUP)),
        }
        return self.learning_rate * factor[self.schedule]

    def update(self, grads: Any, state: Any, model: Any, *, step: Any, slowdown: Any) -> tuple[Any, Any]:
        """(model, state) after one step; ``slowdown`` multiplies every change."""
        chosen = trainable(model)
        params, rest = eqx.partition(model, chosen)
        with jax.numpy_dtype_promotion("standard"):  # Optax mixes integer counts and rates
            directions, state = self._transform().update(grads, state, params)
        named = isinstance(self.direction, str)
        factor = -slowdown * self.rate(step) if named else slowdown

        def move(param: Any, direction: Any, role: str) -> Any:
            if param is None:
                return None
            change = factor.astype(direction.dtype) * direction * (SCALE_RATE if role == SCALE else 1.0)
            if role == WEIGHT:
                decay = slowdown * self.rate(step) * self.weight_decay
                change = change - decay.astype(param.dtype) * param
            return param + change.astype(param.dtype)

        params = jax.tree.map(move, params, directions, roles(params), is_leaf=lambda leaf: leaf is None)
        return eqx.combine(params, rest), state
