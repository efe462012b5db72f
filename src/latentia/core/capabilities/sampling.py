"""Capabilities of sampling: sweeps of conditionals, independent draws, paths to a known log Z."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Self

from jaxtyping import PRNGKeyArray

from latentia.core.model import AbstractModel, Scalar


class Conditionals(AbstractModel):
    """Gibbs sampling over blocks."""

    gives: ClassVar[str] = "Gibbs sampling, CD, PCD, clamped sampling"

    @abc.abstractmethod
    def begin(self, x: Any, *, key: PRNGKeyArray) -> Any:
        """Latents with which a chain can start at ``x``; placeholders where a sweep draws all of them first."""

    @abc.abstractmethod
    def sweep(self, x: Any, z: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Any]:
        """One sweep over all blocks.

        Leaves p(x, z) invariant. ``fixed`` is a pytree of booleans like ``x``: entries that are True keep
        their value, and the sweep then leaves p(free x, z | fixed x) invariant.
        """


class Settles(Conditionals):
    """The block that a sweep draws last can be summed out."""

    gives: ClassVar[str] = "less noise and fewer products in the negative phase"

    @abc.abstractmethod
    def settled_energy(self, x: Any, z: Any) -> Scalar:
        """−log Σ exp(−E(x, z)) over the last block: as good as E for ∇ log Z, with less noise.

        Its products are those that drew the block, so a compiler shares them.
        """


class ExactSampler(AbstractModel):
    """Independent draws from the joint distribution."""

    gives: ClassVar[str] = "independent samples"

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        """One draw of (x, z)."""


class Starts(AbstractModel):
    """There is a broad, cheap distribution from which chains on F(x) may start.

    For models that contain the location of their data (a mean and a scale); chains of others start at a standard
    normal and must find the way.
    """

    gives: ClassVar[str] = "a good start for chains on F(x)"

    @abc.abstractmethod
    def start(self, *, key: PRNGKeyArray) -> Any:
        """A visible from which a chain can start, different for every key."""


class Tempered(Conditionals):
    """A path of models of the same family from a base whose log Z is known.

    The model at inverse temperature β is the leafwise interpolation ``(1 − β) base + β model``
    (:func:`latentia.core.tempering.at`); any such path is valid for annealing and tempering.
    """

    gives: ClassVar[str] = "AIS, reverse AIS, parallel tempering"

    @abc.abstractmethod
    def base(self, x: Any = None) -> Self:
        """The same structure without coupling; visible marginals fitted to the batch ``x`` if given."""

    @abc.abstractmethod
    def base_log_z(self) -> Scalar:
        """log Z of a model that :meth:`base` returned (one sweep from anywhere then samples it exactly)."""

    @abc.abstractmethod
    def reduced_energy(self, x: Any, z: Any) -> Scalar:
        """The energy with everything summed out that a sweep draws anew before it reads it."""
