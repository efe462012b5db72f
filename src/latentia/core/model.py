"""What a model is, and what it may be able to do.

A model answers one question: what is the energy ``E(x, z; θ)`` of a visible ``x`` and a latent ``z``?
It defines ``p(x, z) = exp(−E(x, z)) / Z``. Everything is written **per example**; algorithms batch with
:func:`jax.vmap`.

Each capability below is an abstract class that a model inherits. The rule is "implement these methods, get
those algorithms":

====================== ================================ ==============================================
capability             implement                        get
====================== ================================ ==============================================
``FreeEnergy``         ``free_energy``                  contrastive learning, scores, pseudo-likelihood
``Projected``          ``projections``, ``potential``   score matching with fewer products
``Normalised``         ``free_energy`` with log Z = 0   exact likelihoods
``KnownLogZ``          ``log_z``                        exact likelihoods of an energy that is not normalised
``LatentFreeEnergy``   ``latent_free_energy``           exact log Z by enumerating the latents
``ExactPosterior``     ``posterior``                    transform, EM, the exact inference
``Amortised``          ``recognise``, ``log_given`` …   evidence bounds, transform, likelihoods by importance
``ExpectedGiven``      ``expected_log_given``           the evidence bound and its gradient without sampling
``Encodes``            ``code_space``, ``encode``       transform of models without latents
``ProxSplit``          ``dictionary``, ``penalty`` …    sparse inference, dictionary learning, transform
``Clamps``             ``clamped``                      inference by mean field, likelihoods without F
``MeanField``          ``guess``, ``refine`` …          the variational positive phase, transform
``Conditionals``       ``begin``, ``sweep``             Gibbs sampling, CD, PCD, clamped sampling
``Settles``            ``settled_energy``               less noise and fewer products in the negative phase
``ExactSampler``       ``sample``                       independent samples
``Starts``             ``start``                        a good start for chains on F(x)
``Decodes``            ``decode``                       inverse_transform, reconstruct
``Reconstructs``       ``losses`` …                     learning by reconstruction, denoising, sparsity, contraction
``Tempered``           ``base`` …                       AIS, reverse AIS, parallel tempering
``Centred``            ``centres``, ``recentred``       centred gradients
``Constrained``        ``project``                      a projection after every learning step
``Bounded``            ``margin``                       a refusal when the energy stops being normalisable
``MStep``              ``m_step``                       EM
``ClosedForm``         ``fit_closed_form``              maximum likelihood in one step
``Relative``           ``relative``, ``moved`` …        quasi-Newton and natural gradient on a matrix group
``Standardises``       ``standardise``, ``inner``       objectives that do not depend on the units of x
``Initialised``        ``initialise``                   a start from the data's statistics
====================== ================================ ==============================================
"""

from __future__ import annotations

import abc
from typing import Any, NamedTuple, Self

import equinox as eqx
from jaxtyping import Array, Float, PRNGKeyArray

Scalar = Float[Array, ""]


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


class FreeEnergy(AbstractModel):
    """The latents can be summed out."""

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

    @abc.abstractmethod
    def projections(self) -> Projections:
        """λ, b and V."""

    @abc.abstractmethod
    def potential(self, u: Float[Array, " k"]) -> Scalar:
        """f(u) at u = Vx."""


class Normalised(FreeEnergy):
    """log Z = 0: the free energy is −log p(x). A marker; the method is ``free_energy``."""


class KnownLogZ(FreeEnergy):
    """log Z is not zero, but known: an estimate of it can be held against the truth."""

    @abc.abstractmethod
    def log_z(self) -> Scalar:
        """log ∫ exp(−F(x)) dx."""


class LatentFreeEnergy(AbstractModel):
    """The visibles can be summed out."""

    @abc.abstractmethod
    def latent_free_energy(self, z: Any) -> Scalar:
        """−log Σ_x exp(−E(x, z)), an integral for continuous x."""


class ExactPosterior(AbstractModel):
    """p(z | x) is known in closed form."""

    @abc.abstractmethod
    def posterior(self, x: Any) -> AbstractPosterior:
        """p(z | x)."""


class Amortised(AbstractModel):
    """A directed model, p(x, z) = p(x | z) p(z) = exp(−E(x, z)) with log Z = 0, and a learned q(z | x).

    Every q bounds the likelihood from below: log p(x) ≥ E_q[log p(x | z)] − KL(q ‖ p(z)).
    """

    @abc.abstractmethod
    def recognise(self, x: Any) -> AbstractPosterior:
        """q(z | x); of real latents one that says by ``place`` what standard normal noise becomes."""

    @abc.abstractmethod
    def log_given(self, x: Any, z: Any) -> Scalar:
        """log p(x | z)."""

    @abc.abstractmethod
    def divergences(self, q: Any, z: Any) -> Float[Array, " latents"]:
        """Terms, one for every latent, whose sum has mean KL(q ‖ p(z)) under z ~ q.

        In closed form where that exists, and then they do not depend on z; else log q − log p at z.
        """


class ExpectedGiven(Amortised):
    """E_q[log p(x | z)] is known in closed form."""

    @abc.abstractmethod
    def expected_log_given(self, x: Any, q: Any) -> Scalar:
        """E_q[log p(x | z)]."""


class Encodes(AbstractModel):
    """x has a code that is a function of it: sources, whitened values, responses of filters.

    The code of a model without latents (``z_space`` is empty); where it also :class:`Decodes`, ``decode`` takes the
    code.
    """

    @property
    @abc.abstractmethod
    def code_space(self) -> Any:
        """The codes: a pytree of :class:`~latentia.core.space.Space`."""

    @abc.abstractmethod
    def encode(self, x: Any) -> Any:
        """The code of x."""


class ProxSplit(AbstractModel):
    """E(x, z) = ½‖s(x) − zD‖² + penalty(z): a least-squares part, and a penalty whose proximal map is known.

    The code of x is the z that minimises E; the rows of D are atoms.
    """

    @property
    @abc.abstractmethod
    def dictionary(self) -> Float[Array, "k d"]:
        """D, one atom a row."""

    @property
    @abc.abstractmethod
    def penalty(self) -> Any:
        """What sparse codes pay (see :mod:`latentia.ops.penalties`); None where only their number is limited."""

    @abc.abstractmethod
    def signal(self, x: Any) -> Any:
        """s(x), what zD is to match: x itself, or x without its mean. Takes one example or a batch of them."""

    @abc.abstractmethod
    def with_dictionary(self, dictionary: Float[Array, "k d"]) -> Self:
        """The model with other atoms."""


class MeanField(AbstractModel):
    """A model of latents alone (``x_space`` is empty) that factorial distributions q approximate.

    With F = −log Σ_z exp(−E(z)), every q has E_q[E] − H(q) ≥ F, with equality for the true distribution.
    """

    @abc.abstractmethod
    def guess(self) -> AbstractPosterior:
        """Where to start."""

    @abc.abstractmethod
    def refine(self, q: Any) -> AbstractPosterior:
        """One round of exact block updates; never raises the variational energy."""

    @abc.abstractmethod
    def variational_energy(self, q: Any) -> Scalar:
        """E_q[E(z)] − H(q), differentiable in θ with q held fixed."""

    @abc.abstractmethod
    def base_at(self, q: Any) -> Self:
        """A model of the same structure, without coupling, that *is* q (see :class:`Tempered`)."""


class Clamps(AbstractModel):
    """The visibles can be fixed, which leaves a model of the latents: log Z of that model is −F(x)."""

    @abc.abstractmethod
    def clamped(self, x: Any) -> MeanField:
        """The model of z (and of those parts of x that are None) given x."""


class Conditionals(AbstractModel):
    """Gibbs sampling over blocks."""

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

    @abc.abstractmethod
    def settled_energy(self, x: Any, z: Any) -> Scalar:
        """−log Σ exp(−E(x, z)) over the last block: as good as E for ∇ log Z, with less noise.

        Its products are those that drew the block, so a compiler shares them.
        """


class ExactSampler(AbstractModel):
    """Independent draws from the joint distribution."""

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        """One draw of (x, z)."""


class Starts(AbstractModel):
    """There is a broad, cheap distribution from which chains on F(x) may start.

    For models that know where their data are (a mean and a scale inside them); chains of others start at a standard
    normal and must find the way.
    """

    @abc.abstractmethod
    def start(self, *, key: PRNGKeyArray) -> Any:
        """A visible from which a chain can start, different for every key."""


class Decodes(AbstractModel):
    """The visibles' mean given the latents (or the code, see :class:`Encodes`) is known."""

    @abc.abstractmethod
    def decode(self, z: Any) -> Any:
        """E[x | z]."""


class Reconstructs(Encodes, Decodes):
    """x is judged by how it is rebuilt from its code: E(x) = Σ_j losses_j(x, encode(x)).

    Such an energy need not be normalisable, and its log Z is not known: it ranks examples and models, and says
    nothing of probabilities.
    """

    @abc.abstractmethod
    def losses(self, x: Any, code: Any) -> Any:
        """What each entry of x costs if it is rebuilt from a code; decode(code) is the best guess of x by it."""

    @abc.abstractmethod
    def squared_jacobian(self, x: Any) -> Scalar:
        """‖∂encode/∂x‖²_F."""


class Tempered(Conditionals):
    """A path of models of the same family from a base whose log Z is known.

    The model at inverse temperature β is the leafwise interpolation ``(1 − β) base + β model``
    (:func:`latentia.core.tempering.at`); any such path is valid for annealing and tempering.
    """

    @abc.abstractmethod
    def base(self, x: Any = None) -> Self:
        """The same structure without coupling; visible marginals fitted to the batch ``x`` if given."""

    @abc.abstractmethod
    def base_log_z(self) -> Scalar:
        """log Z of a model that :meth:`base` returned (one sweep from anywhere then samples it exactly)."""

    @abc.abstractmethod
    def reduced_energy(self, x: Any, z: Any) -> Scalar:
        """The energy with everything summed out that a sweep draws anew before it reads it."""


class Centred(AbstractModel):
    """Couplings act on (variable − offset); moving the offsets does not change the distribution."""

    @abc.abstractmethod
    def centres(self, x: Any, weights: Float[Array, " n"] | None) -> Any:
        """Where the offsets should be for the batch ``x``: the means of the variables."""

    @abc.abstractmethod
    def recentred(self, centres: Any, rate: Any) -> Self:
        """The same distribution with the offsets moved by ``rate`` towards ``centres``."""


class Constrained(AbstractModel):
    """Parameters live in a set."""

    @abc.abstractmethod
    def project(self) -> Self:
        """The model with its parameters moved to the nearest allowed point."""


class Bounded(AbstractModel):
    """Normalisable only while a bound holds."""

    @abc.abstractmethod
    def margin(self) -> Scalar:
        """Positive if (and as far as) the energy is safely normalisable."""

    @abc.abstractmethod
    def margin_message(self) -> str:
        """What the bound is and what to do when it is broken."""


class MStep(ExactPosterior):
    """The expected complete-data likelihood has a closed-form maximum."""

    @abc.abstractmethod
    def m_step(self, x: Any, posterior: AbstractPosterior, weights: Float[Array, " n"]) -> Self:
        """argmax_θ Σ_n w_n E_{q_n}[log p(x_n, z)]; arguments carry a leading batch axis."""


class ClosedForm(AbstractModel):
    """The maximum-likelihood parameters are known in closed form."""

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
        """The model with what is chosen by rule, not by slope, chosen for a batch; itself if there is nothing."""


class Standardises(FreeEnergy):
    """The model standardises x first: F(x) = F₀(x̂) − constant, where x̂ is x shifted and multiplied by a matrix."""

    @abc.abstractmethod
    def standardise(self, x: Any) -> Any:
        """x̂."""

    @abc.abstractmethod
    def inner(self) -> Self:
        """The model of x̂, which has the same parameters."""


class Initialised(AbstractModel):
    """A good starting point can be read off the data."""

    @abc.abstractmethod
    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """The model at its starting point for the batch ``x``."""
