"""Capabilities of densities: what can be summed out, and what is known of log Z."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple, Self

from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.model import AbstractModel, Scalar


class FreeEnergy(AbstractModel):
    """The latents can be summed out."""

    gives: ClassVar[str] = "contrastive learning, scores, pseudo-likelihood"

    @abc.abstractmethod
    def free_energy(self, x: Any) -> Scalar:
        """F(x) = −log Σ_z exp(−E(x, z)), an integral for continuous z."""


class Projections(NamedTuple):
    """λ, b and V of a :class:`Projected` energy; λ is one number or one for each entry of x."""

    precision: Any
    bias: Float[Array, " n"]
    matrix: Float[Array, "k n"]


class Projected(FreeEnergy):
    """F(x) = ½ Σ_i λ_i x_i² − bᵀx + f(Vx) + constant: beside a Gaussian, x matters through projections alone."""

    gives: ClassVar[str] = "score matching with fewer products"

    @abc.abstractmethod
    def projections(self) -> Projections:
        """λ, b and V."""

    @abc.abstractmethod
    def potential(self, u: Float[Array, " k"]) -> Scalar:
        """f(u) at u = Vx."""


class Normalised(FreeEnergy):
    """log Z = 0: the free energy is −log p(x). A marker; the method is ``free_energy``."""

    gives: ClassVar[str] = "exact likelihoods"


class KnownLogZ(FreeEnergy):
    """log Z is not zero, but known: an estimate of it can be held against the truth."""

    gives: ClassVar[str] = "exact likelihoods of an energy that is not normalised"

    @abc.abstractmethod
    def log_z(self) -> Scalar:
        """log ∫ exp(−F(x)) dx."""


class PartlyDirected(AbstractModel):
    """Directed layers under an undirected model, the summit, whose log Z is that of the whole, and a q(z | x)."""

    gives: ClassVar[str] = "lower bounds on the likelihood by importance sampling"

    @property
    @abc.abstractmethod
    def summit(self) -> AbstractModel:
        """The undirected model on top, whose log Z is that of the whole."""

    @abc.abstractmethod
    def log_weights(self, x: Any, *, key: PRNGKeyArray, n_samples: int) -> Float[Array, " n_samples"]:
        """log p(x, z) + log Z − log q(z | x) at draws of z from q."""


class LatentFreeEnergy(AbstractModel):
    """The visibles can be summed out."""

    gives: ClassVar[str] = "exact log Z by enumerating the latents"

    @abc.abstractmethod
    def latent_free_energy(self, z: Any) -> Scalar:
        """−log Σ_x exp(−E(x, z)), an integral for continuous x."""


class Standardises(FreeEnergy):
    """The model standardises x first: F(x) = F₀(x̂) − constant, where x̂ is x shifted and multiplied by a matrix."""

    gives: ClassVar[str] = "objectives that do not depend on the units of x"

    @abc.abstractmethod
    def standardise(self, x: Any) -> Any:
        """x̂."""

    @abc.abstractmethod
    def inner(self) -> Self:
        """The model of x̂, which has the same parameters."""
