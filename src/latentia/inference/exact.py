"""Exact inference: the model's own posterior, or one found by enumerating all states."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import Clamps, ExactPosterior
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel, AbstractPosterior
from latentia.inference.states import Enumerated, all_states
from latentia.ops.arrays import float_type


class Exact(AbstractInference):
    """p(z | x) if the model has it in closed form."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``ExactPosterior``."""
        return (ExactPosterior,)

    def infer(self, model: ExactPosterior, x: Any, *, key: PRNGKeyArray) -> AbstractPosterior:
        """The model's posterior; nothing random happens."""
        del key
        return model.posterior(x)


class Enumeration(AbstractInference):
    """p(z | x) ∝ exp(−E(x, z)) over all states of discrete latents.

    Args:
        limit: the most states that may be enumerated for every example.
    """

    limit: int = eqx.field(static=True, default=2**16)

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """An energy, and latents with few states."""
        return (AbstractModel,)

    def infer(self, model: AbstractModel, x: Any, *, key: PRNGKeyArray | None = None) -> Enumerated:
        """Every state with its probability; nothing random happens."""
        del key
        self.check(model.z_space)
        states = all_states(model.z_space, float_type(model))
        if isinstance(model, Clamps):  # what x has to do with z is then computed once, not for every state
            clamped = model.clamped(x)
            energies = jax.vmap(lambda z: clamped.energy((), z))(states)
        else:
            energies = jax.vmap(lambda z: model.energy(x, z))(states)
        return Enumerated(jax.nn.log_softmax(-energies), model.z_space)

    def check(self, z_space: Any) -> None:
        """Refuse latents with too many states."""
        log_count = space.log_count(z_space)
        if not log_count <= np.log(self.limit) + 1e-9:
            count = f"2^{log_count / np.log(2):.4g}" if np.isfinite(log_count) else "infinitely many"
            raise ParameterError(
                f"Exact inference by enumeration would go through {count} states of the latents for every example, "
                f"more than the limit of {self.limit:,}. Use an approximate inference (mean field, truncated) or "
                "fewer latents."
            )
