"""Capabilities of learning: starting points, closed forms, constraints, and moves that keep the distribution."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, NamedTuple, Self

from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities.density import Normalised
from latentia.core.model import AbstractModel, AbstractPosterior, Scalar


class Centred(AbstractModel):
    """Couplings act on (variable − offset); moving the offsets does not change the distribution."""

    gives: ClassVar[str] = "centred gradients"

    @abc.abstractmethod
    def centres(self, x: Any, weights: Float[Array, " n"] | None) -> Any:
        """Where the offsets should be for the batch ``x``: the means of the variables."""

    @abc.abstractmethod
    def recentred(self, centres: Any, rate: Any) -> Self:
        """The same distribution with the offsets moved by ``rate`` towards ``centres``."""


class Constrained(AbstractModel):
    """Parameters live in a set."""

    gives: ClassVar[str] = "a projection after every learning step"

    @abc.abstractmethod
    def project(self) -> Self:
        """The model with its parameters moved to the nearest allowed point."""


class Bounded(AbstractModel):
    """Normalisable only while a bound holds."""

    gives: ClassVar[str] = "a refusal when the energy stops being normalisable"

    @abc.abstractmethod
    def margin(self) -> Scalar:
        """Positive if (and as far as) the energy is safely normalisable."""

    @abc.abstractmethod
    def margin_message(self) -> str:
        """The bound, and what to do if it is violated."""


class MStep(AbstractModel):
    """The expected complete-data likelihood has a closed-form maximum.

    The expectations may be those of any posterior: the exact one, or one that an approximate inference found.
    """

    gives: ClassVar[str] = "EM"

    @abc.abstractmethod
    def m_step(self, x: Any, posterior: AbstractPosterior, weights: Float[Array, " n"]) -> Self:
        """argmax_θ Σ_n w_n E_{q_n}[log p(x_n, z)]; arguments carry a leading batch axis."""


class Heats(AbstractModel):
    """A model of the same family has the posterior at a higher temperature."""

    gives: ClassVar[str] = "EM with deterministic annealing"

    @abc.abstractmethod
    def heated(self, temperature: Any, *, prior: bool = True) -> Self:
        """A model whose p(z | x) ∝ p(z, x)^{1/temperature}; p(z) p(x | z)^{1/temperature} without the prior."""


class ClosedForm(AbstractModel):
    """The maximum-likelihood parameters are known in closed form."""

    gives: ClassVar[str] = "maximum likelihood in one step"

    @abc.abstractmethod
    def fit_closed_form(self, x: Any, weights: Float[Array, " n"]) -> Self:
        """argmax_θ Σ_n w_n log p(x_n); arguments carry a leading batch axis."""


class RelativeSlopes(NamedTuple):
    """What :meth:`Relative.relative` finds: the mean energy of the codes and its derivatives at the identity.

    ``gradient`` leaves out the volume, whose part is −I.
    """

    value: Scalar
    gradient: Float[Array, "k k"]
    curvature: Float[Array, "k k"]


class Relative(Normalised):
    """x has a code y on which any invertible matrix may act, y ↦ (I + C) y, with the volume of x following suit.

    The mean of −log p is then L(C) = ⟨e((I + C) y)⟩ − log|det(I + C)| + constant with e = Σ_i e_i(y_i), so that
    all that a learner must know are the derivatives of L at C = 0, whatever x is measured in: algorithms that move
    along C are equivariant.
    """

    gives: ClassVar[str] = "quasi-Newton and natural gradient on a matrix group"

    @abc.abstractmethod
    def relative(self, x: Any, weights: Float[Array, " n"] | None) -> RelativeSlopes:
        """⟨e(y)⟩, ⟨e_i′(y_i) y_j⟩ and ⟨e_i″(y_i) y_j²⟩ over a batch.

        To second order L changes by tr Cᵀ(gradient − I) + ½ Σ_ij (curvature_ij C_ij² + C_ij C_ji) if the codes are
        independent (Ablin, Cardoso and Gramfort, 2018).
        """

    @abc.abstractmethod
    def moved(self, change: Float[Array, "k k"]) -> Self:
        """The model whose code is (I + change) y."""

    @abc.abstractmethod
    def log_volume(self) -> Scalar:
        """log|det dy/dx|: −log p = e(y) − log_volume."""

    @abc.abstractmethod
    def tuned(self, x: Any, weights: Float[Array, " n"] | None) -> Self:
        """The model with the choices that a rule makes for a batch, without gradients; itself if there are none."""


class Initialised(AbstractModel):
    """A good starting point can be read off the data."""

    gives: ClassVar[str] = "a start from the data's statistics"

    @abc.abstractmethod
    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """The model at its starting point for the batch ``x``."""
