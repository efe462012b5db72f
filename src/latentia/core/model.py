"""Models.

A model defines the energy ``E(x, z; θ)`` of a visible ``x`` and a latent ``z``, and so the distribution
``p(x, z) = exp(−E(x, z)) / Z``. Its methods take **one example**; algorithms batch with
:func:`jax.vmap`.

Further abilities of models are in :mod:`latentia.core.capabilities`.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.moved import moved

Scalar = Float[Array, ""]

_CAPABILITIES = (
    "FreeEnergy Projections Projected Normalised KnownLogZ LatentFreeEnergy ExactPosterior Amortised "
    "ExpectedGiven Encodes ProxSplit MeanField Clamps Conditionals Settles ExactSampler Starts Decodes "
    "Reconstructs Tempered Centred Constrained Bounded MStep ClosedForm RelativeSlopes Relative Standardises "
    "Initialised"
)
__getattr__ = moved(__name__, dict.fromkeys(_CAPABILITIES.split(), "latentia.core.capabilities"))


class AbstractPosterior(eqx.Module):
    """A distribution over the latents of one example."""

    @abc.abstractmethod
    def mean(self) -> Any:
        """E[z]."""

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Any:
        """One draw of z."""

    @abc.abstractmethod
    def log_prob(self, z: Any) -> Scalar:
        """log q(z)."""

    @abc.abstractmethod
    def entropy(self) -> Scalar:
        """H(q) = −E log q(z)."""


class SecondMoments(AbstractPosterior):
    """A posterior of a vector z whose second moments are known."""

    @abc.abstractmethod
    def second_moment(self, weights: Float[Array, " n"]) -> Float[Array, "k k"]:
        """Σ_n w_n E_{q_n}[z zᵀ]; the posterior carries a leading batch axis, as in ``m_step``."""


class AbstractModel(eqx.Module):
    """An energy ``E(x, z)``; θ are its floating-point leaves (see :mod:`latentia.core.parameters`)."""

    @property
    @abc.abstractmethod
    def x_space(self) -> Any:
        """The visible variables: a pytree of :class:`~latentia.core.space.Space`."""

    @property
    @abc.abstractmethod
    def z_space(self) -> Any:
        """The latent variables: a pytree of :class:`~latentia.core.space.Space`."""

    @abc.abstractmethod
    def energy(self, x: Any, z: Any) -> Scalar:
        """E(x, z)."""
