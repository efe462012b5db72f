"""What a layer of units is: the building block of Boltzmann machines.

A layer of units has its own energy ``E(x)`` and couples to the rest of the machine through a statistic
``s(x)``. Under a field ``I`` its conditional distribution is

    p(x | I) = exp(−E(x) + s(x)·I − Γ(I)),      Γ(I) = log ∫ exp(−E(x) + s(x)·I) dx,

so an RBM is two layers and a matrix: ``E(v, h) = E_v(v) + E_h(h) − s(v)ᵀ W s(h)``, and every quantity of the
RBM (conditionals, free energies, log Z) follows from Γ. A new unit type is one file with the abstract methods
below. (The organisation follows Cocco, Monasson, Tubiana et al.'s work on RBMs with general potentials.)
"""

from __future__ import annotations

import abc
from typing import ClassVar, Self

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.hooks import hook
from latentia.core.model import AbstractPosterior, Scalar
from latentia.core.space import Space
from latentia.ops.arrays import float_type

Value = Float[Array, "*shape"]
Field = Float[Array, " n"]


class AbstractUnits(eqx.Module):
    """A layer of independent units; all methods are per example."""

    #: Whether the units' values are unbounded, so that two such layers may fail to be normalisable.
    unbounded: ClassVar[bool]

    @property
    @abc.abstractmethod
    def space(self) -> Space:
        """The layer's values."""

    @property
    @abc.abstractmethod
    def n_statistics(self) -> int:
        """The length of the statistic, so of a field."""

    @abc.abstractmethod
    def statistic(self, x: Value) -> Field:
        """s(x): what couples to other layers."""

    @abc.abstractmethod
    def energy(self, x: Value) -> Scalar:
        """E(x): the layer's own energy."""

    @abc.abstractmethod
    def log_partition(self, field: Field) -> Scalar:
        """Γ(I) = log ∫ exp(−E(x) + s(x)·I) dx, summed over the units."""

    @abc.abstractmethod
    def mean(self, field: Field) -> Value:
        """E[x | I]."""

    @abc.abstractmethod
    def mean_statistic(self, field: Field) -> Field:
        """E[s(x) | I], the gradient of Γ."""

    @abc.abstractmethod
    def mean_energy(self, field: Field) -> Scalar:
        """E[E(x) | I]."""

    @abc.abstractmethod
    def sample(self, field: Field, *, key: PRNGKeyArray) -> Value:
        """One draw of x | I."""

    @abc.abstractmethod
    def fitted(self, x: Float[Array, "batch *shape"]) -> Self:
        """The layer alone (no field) with its marginals fitted to a batch; constant columns stay finite."""

    @abc.abstractmethod
    def biased(self, field: Field) -> Self:
        """The layer with a constant field taken into its biases: E(x) − s(x)·I, up to a constant."""

    @hook
    def standardised(self, x: Float[Array, "batch *shape"]) -> Self:
        """The layer with its fixed scale read off a batch; only real-valued units have one."""
        del x
        return self

    @hook
    def projected(self) -> Self:
        """The layer with its parameters inside their range; only scales have one."""
        return self

    @hook
    def stiffness(self) -> Field:
        """The standard deviation of s(x) under a fixed field; only unbounded units need it."""
        return jnp.ones(self.n_statistics, float_type(self))


class Factorial(AbstractPosterior):
    """The distribution of a layer under a field: a product over its units."""

    units: AbstractUnits
    field: Field

    def mean(self) -> Value:
        """E[z]."""
        return self.units.mean(self.field)

    def sample(self, *, key: PRNGKeyArray) -> Value:
        """One draw."""
        return self.units.sample(self.field, key=key)

    def log_prob(self, z: Value) -> Scalar:
        """−E(z) + s(z)·I − Γ(I)."""
        return -self.units.energy(z) + self.units.statistic(z) @ self.field - self.units.log_partition(self.field)

    def entropy(self) -> Scalar:
        """E[E(z)] − E[s(z)]·I + Γ(I)."""
        expected = self.units.mean_energy(self.field) - self.units.mean_statistic(self.field) @ self.field
        return expected + self.units.log_partition(self.field)
