"""Block Gibbs sampling: one sweep of the model's conditionals per step."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractSampler
from latentia.core.capabilities import Conditionals
from latentia.core.model import AbstractModel


class GibbsState(eqx.Module):
    """The joint state of one chain."""

    x: Any
    z: Any


class Gibbs(AbstractSampler):
    """Block Gibbs sampling; exact in the limit for any model with ``sweep``."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``Conditionals``."""
        return (Conditionals,)

    @property
    def ends_with_sweep(self) -> bool:
        """A step is a sweep."""
        return True

    def init(self, model: Conditionals, x: Any, *, key: PRNGKeyArray) -> GibbsState:
        """Start at ``x``."""
        return GibbsState(x, model.begin(x, key=key))

    def step(
        self, model: Conditionals, state: GibbsState, *, key: PRNGKeyArray, fixed: Any = None
    ) -> tuple[GibbsState, None]:
        """One sweep."""
        return GibbsState(*model.sweep(state.x, state.z, key=key, fixed=fixed)), None

    def visible(self, state: GibbsState) -> Any:
        """x."""
        return state.x

    def latent(self, state: GibbsState) -> Any:
        """z."""
        return state.z
