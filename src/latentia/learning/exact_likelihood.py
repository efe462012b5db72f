"""Exact maximum likelihood of small discrete models: log Z and its gradient by enumeration.

    loss = mean F(data) + log Z

is −log p of the data, in nats, and nothing about it is random. Where the latents cannot be summed out in closed
form, F(x) comes from the sum over the states of the model with x held.
"""

from __future__ import annotations

import math
from typing import Any

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import Clamps, FreeEnergy
from latentia.core.errors import ParameterError
from latentia.core.model import Scalar
from latentia.core.space import Domain
from latentia.inference.enumeration import LIMIT, log_sum, smallest_side
from latentia.ops.arrays import weighted_mean


class ExactLikelihood(AbstractObjective):
    """mean F(data) + log Z.

    Args:
        limit: how many states may be enumerated, of the smaller side for log Z and of the latents for F(x).
    """

    limit: int = eqx.field(static=True, default=LIMIT)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``, or ``Clamps`` with discrete latents."""
        return (FreeEnergy | Clamps,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Discrete data."""
        return ("binary", "spin", "categorical")

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """No state; too many states are refused here."""
        del x, key
        side = smallest_side(model)
        latents = 0.0 if isinstance(model, FreeEnergy) else space.log_count(model.z_space)
        if max(side.log_count, latents) > math.log(self.limit) + 1e-9:
            raise ParameterError(
                f"Exact maximum likelihood of this {type(model).__name__} needs {side} at every step, more than "
                f"the limit of {self.limit:,}. Use objective='pcd', or ExactLikelihood(limit=…)."
            )
        return ()

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """Nothing is drawn."""
        del model, x, key, weights
        return state

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """−mean log p(x)."""
        del state
        if isinstance(model, FreeEnergy):
            free_energies = jax.vmap(model.free_energy)(x)
        else:
            free_energies = jax.vmap(lambda x: -log_sum(model.clamped(x), "joint"))(x)
        loss = weighted_mean(free_energies, weights) + log_sum(model, smallest_side(model).name)
        return loss, {"log_likelihood": -loss}
