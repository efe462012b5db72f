"""Several layers side by side as one: E(x) = Σ E_p(x_p), Γ(I) = Σ Γ_p(I_p).

A value is the tuple of the parts' values and the statistic is the parts' statistics end to end, so that a machine
between two layers may have several kinds of units at once: pixels or features next to a softmax group for the label
(Hinton, Osindero and Teh, 2006; Larochelle and Bengio, 2008).
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import Scalar
from latentia.units.base import AbstractUnits, Field

Values = tuple[Float[Array, "*shape"], ...]


class Joined(AbstractUnits):
    """Layers of any types next to one another; a value is the tuple of theirs."""

    parts: tuple[AbstractUnits, ...]

    @property
    def unbounded(self) -> bool:
        """Whether any part is."""
        return any(part.unbounded for part in self.parts)

    @property
    def space(self) -> Any:
        """The tuple of the parts' spaces."""
        return tuple(part.space for part in self.parts)

    @property
    def n_statistics(self) -> int:
        """The parts' statistics, end to end."""
        return sum(part.n_statistics for part in self.parts)

    def split(self, field: Any) -> list[Any]:
        """The parts' pieces of what has a row for every statistic: a field, offsets, weights."""
        ends = itertools.accumulate((part.n_statistics for part in self.parts), initial=0)
        return [field[begin:end] for begin, end in itertools.pairwise(ends)]

    def _each(self, function: Callable[[Any, Any], Any], values: Any) -> tuple:
        return tuple(function(part, value) for part, value in zip(self.parts, values, strict=True))

    def statistic(self, x: Values) -> Field:
        """(s_1(x_1), s_2(x_2) …)."""
        return jnp.concatenate(self._each(lambda part, value: part.statistic(value), x))

    def energy(self, x: Values) -> Scalar:
        """Σ E_p(x_p)."""
        return functools.reduce(operator.add, self._each(lambda part, value: part.energy(value), x))

    def log_partition(self, field: Field) -> Scalar:
        """Σ Γ_p(I_p)."""
        each = self._each(lambda part, i: part.log_partition(i), self.split(field))
        return functools.reduce(operator.add, each)

    def mean(self, field: Field) -> Values:
        """The parts' means."""
        return self._each(lambda part, i: part.mean(i), self.split(field))

    def mean_statistic(self, field: Field) -> Field:
        """The parts' mean statistics, end to end."""
        return jnp.concatenate(self._each(lambda part, i: part.mean_statistic(i), self.split(field)))

    def mean_energy(self, field: Field) -> Scalar:
        """Σ E[E_p(x_p) | I_p]."""
        return functools.reduce(operator.add, self._each(lambda part, i: part.mean_energy(i), self.split(field)))

    def sample(self, field: Field, *, key: PRNGKeyArray) -> Values:
        """Independent draws."""
        keys = jax.random.split(key, len(self.parts))
        triples = zip(self.parts, self.split(field), keys, strict=True)
        return tuple(part.sample(i, key=k) for part, i, k in triples)

    def fitted(self, x: Values) -> Self:
        """Every part fitted to its own values."""
        return type(self)(self._each(lambda part, values: part.fitted(values), x))

    def biased(self, field: Field) -> Self:
        """Every part takes up its piece of the field."""
        return type(self)(self._each(lambda part, i: part.biased(i), self.split(field)))

    def standardised(self, x: Values) -> Self:
        """Every part's scale from its own values."""
        return type(self)(self._each(lambda part, values: part.standardised(values), x))

    def projected(self) -> Self:
        """Every part inside its range."""
        return type(self)(tuple(part.projected() for part in self.parts))

    def stiffness(self) -> Field:
        """The parts' stiffnesses, end to end; bounded parts have none, since they cannot run away."""
        each = [part.stiffness() for part in self.parts]
        return jnp.concatenate(
            [s if part.unbounded else jnp.zeros_like(s) for part, s in zip(self.parts, each, strict=True)]
        )
