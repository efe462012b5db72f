"""Any objective, in the coordinates in which the model standardises its data.

Score matching, noise contrast and chains depend on the scale of x: their steps, noises and squared gradients
have the units of x. Data of another scale, or nearly constant in some direction, are a different problem for them,
but not for a model that standardises x first. This objective passes the standardised data, and the model of these,
to another objective, so that the units of x have no effect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import Standardises
from latentia.core.model import Scalar
from latentia.core.space import Domain


class InnerState(eqx.Module):
    """The other objective's state, in coordinates of its own."""

    inner: Any


class Standardised(AbstractObjective):
    """Another objective, of the model's standardised data.

    Args:
        inner: the other objective.
    """

    inner: AbstractObjective

    @property
    def requires(self) -> tuple[Need, ...]:
        """``Standardises``, and what the other needs."""
        return (Standardises, *self.inner.requires)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The other's."""
        return self.inner.domains

    @property
    def latent_domains(self) -> tuple[Domain, ...] | None:
        """The other's."""
        return self.inner.latent_domains

    @property
    def name(self) -> str:
        """The other's."""
        return self.inner.name

    def surveyed(self, model: Any, look: Callable[[], Any], *, key: PRNGKeyArray) -> Self:
        """With the other after a look at the standardised data."""
        inner = self.inner.surveyed(model.inner(), lambda: _standardised(model, look()), key=key)
        return eqx.tree_at(lambda s: s.inner, self, inner)

    def learned(self, state: InnerState) -> Any:
        """What the other learns along."""
        return self.inner.learned(state.inner)

    def with_learned(self, state: InnerState, learned: Any) -> InnerState:
        """The state with that exchanged."""
        return InnerState(self.inner.with_learned(state.inner, learned))

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> InnerState:
        """The other's state."""
        return InnerState(self.inner.init(model.inner(), _standardised(model, x), key=key))

    def prepare(
        self, model: Any, x: Any, state: InnerState, *, key: PRNGKeyArray, weights: Any = None
    ) -> InnerState:
        """The other's preparation."""
        x = _standardised(model, x)
        return InnerState(self.inner.prepare(model.inner(), x, state.inner, key=key, weights=weights))

    def loss(self, model: Any, x: Any, weights: Any, state: InnerState) -> tuple[Scalar, Metrics]:
        """The other's loss."""
        return self.inner.loss(model.inner(), _standardised(model, x), weights, state.inner)


def _standardised(model: Any, x: Any) -> Any:
    return jax.vmap(model.standardise)(x)
