"""Capabilities of inference: how z is found given x, and x given z."""

from __future__ import annotations

import abc
from typing import Any, ClassVar, Self

from jaxtyping import Array, Float

from latentia.core.model import AbstractModel, AbstractPosterior, Scalar


class ExactPosterior(AbstractModel):
    """p(z | x) is known in closed form."""

    gives: ClassVar[str] = "transform, EM, the exact inference"

    @abc.abstractmethod
    def posterior(self, x: Any) -> AbstractPosterior:
        """p(z | x)."""


class Amortised(AbstractModel):
    """A directed model, p(x, z) = p(x | z) p(z) = exp(−E(x, z)) with log Z = 0, and a learned q(z | x).

    Every q bounds the likelihood from below: log p(x) ≥ E_q[log p(x | z)] − KL(q ‖ p(z)).
    """

    gives: ClassVar[str] = "evidence bounds, transform, likelihoods by importance"

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

    gives: ClassVar[str] = "the evidence bound and its gradient without sampling"

    @abc.abstractmethod
    def expected_log_given(self, x: Any, q: Any) -> Scalar:
        """E_q[log p(x | z)]."""


class Encodes(AbstractModel):
    """x has a code that is a function of it: sources, whitened values, responses of filters.

    The code of a model without latents (``z_space`` is empty); where it also :class:`Decodes`, ``decode`` takes the
    code.
    """

    gives: ClassVar[str] = "transform of models without latents"

    @property
    @abc.abstractmethod
    def code_space(self) -> Any:
        """The codes: a pytree of :class:`~latentia.core.space.Space`."""

    @abc.abstractmethod
    def encode(self, x: Any) -> Any:
        """The code of x."""


class LinearSplit(AbstractModel):
    """E(x, z) = ½‖s(x) − Dz‖² + penalty(z) with a linear operator D: least squares, and a known proximal map.

    The code of x is the z that minimises E, a value of the operator's code space. Where D is a matrix,
    :class:`ProxSplit` requires less.
    """

    gives: ClassVar[str] = "sparse inference and dictionary steps over any linear operator, transform"

    @property
    @abc.abstractmethod
    def operator(self) -> Any:
        """D: an operator (:mod:`latentia.ops.operators`), or a matrix with one atom a row."""

    @property
    @abc.abstractmethod
    def penalty(self) -> Any:
        """What sparse codes pay (see :mod:`latentia.ops.penalties`); None where only their number is limited."""

    @abc.abstractmethod
    def signal(self, x: Any) -> Any:
        """s(x), what Dz is to match: x itself, or x without its mean. Takes one example or a batch of them."""

    @abc.abstractmethod
    def with_operator(self, operator: Any) -> Self:
        """The model with another operator of the same kind, such as one with other filters."""


class ProxSplit(LinearSplit):
    """E(x, z) = ½‖s(x) − zD‖² + penalty(z) with a matrix D, whose rows are atoms."""

    gives: ClassVar[str] = "sparse inference by all solvers, dictionary learning, transform"

    @property
    @abc.abstractmethod
    def dictionary(self) -> Float[Array, "k d"]:
        """D, one atom a row."""

    @abc.abstractmethod
    def with_dictionary(self, dictionary: Float[Array, "k d"]) -> Self:
        """The model with other atoms."""

    @property
    def operator(self) -> Float[Array, "k d"]:
        """The dictionary."""
        return self.dictionary

    def with_operator(self, operator: Any) -> Self:
        """The model with the atoms of a :class:`~latentia.ops.operators.Matrix`, or with these atoms."""
        return self.with_dictionary(getattr(operator, "atoms", operator))


class MeanField(AbstractModel):
    """A model of latents alone (``x_space`` is empty) that factorial distributions q approximate.

    With F = −log Σ_z exp(−E(z)), every q has E_q[E] − H(q) ≥ F, with equality for the true distribution.
    """

    gives: ClassVar[str] = "the variational positive phase, transform"

    @abc.abstractmethod
    def guess(self) -> AbstractPosterior:
        """The starting point."""

    @abc.abstractmethod
    def refine(self, q: Any) -> AbstractPosterior:
        """One round of exact block updates; never raises the variational energy."""

    @abc.abstractmethod
    def variational_energy(self, q: Any) -> Scalar:
        """E_q[E(z)] − H(q), differentiable in θ with q held fixed."""

    @abc.abstractmethod
    def base_at(self, q: Any) -> Self:
        """A model of the same structure, without coupling, that *is* q (see :class:`Tempered`)."""


class ParallelMeanField(MeanField):
    """All groups can be updated at once; the leaves of q are natural parameters, which may be interpolated."""

    gives: ClassVar[str] = "mean field in parallel"

    @abc.abstractmethod
    def best(self, q: Any) -> AbstractPosterior:
        """Every group at q(z_S) ∝ exp(−E_q[E(z) | z_S]), the other groups as they are in ``q``."""


class BinarySites(ParallelMeanField):
    """z is a vector of binary sites."""

    gives: ClassVar[str] = "truncated posteriors"

    @abc.abstractmethod
    def site_log_odds(self, z: Float[Array, " k"]) -> Float[Array, " k"]:
        """E(z with z_i = 0) − E(z with z_i = 1) for every site i."""


class Clamps(AbstractModel):
    """The visibles can be fixed, which leaves a model of the latents: log Z of that model is −F(x)."""

    gives: ClassVar[str] = "inference by mean field, likelihoods without F"

    @abc.abstractmethod
    def clamped(self, x: Any) -> MeanField:
        """The model of z (and of those parts of x that are None) given x."""


class ClampsToSites(Clamps):
    """Clamping x leaves a model of binary sites."""

    gives: ClassVar[str] = "inference by truncated posteriors"

    @abc.abstractmethod
    def clamped(self, x: Any) -> BinarySites:
        """The model of z given x."""


class Infers(AbstractModel):
    """The model says how its latents are inferred; without this the other capabilities decide."""

    gives: ClassVar[str] = "a choice of inference for EM and transform"

    @property
    @abc.abstractmethod
    def default_inference(self) -> Any:
        """An :class:`~latentia.core.algorithms.AbstractInference`."""


class Decodes(AbstractModel):
    """The visibles' mean given the latents (or the code, see :class:`Encodes`) is known."""

    gives: ClassVar[str] = "inverse_transform, reconstruct"

    @abc.abstractmethod
    def decode(self, z: Any) -> Any:
        """E[x | z]."""


class Reconstructs(Encodes, Decodes):
    """x is judged by how it is rebuilt from its code: E(x) = Σ_j losses_j(x, encode(x)).

    Such an energy need not be normalisable, and its log Z is not known: it ranks examples and models, and says
    nothing of probabilities.
    """

    gives: ClassVar[str] = "learning by reconstruction, denoising, sparsity, contraction"

    @abc.abstractmethod
    def losses(self, x: Any, code: Any) -> Any:
        """What each entry of x costs if it is rebuilt from a code; decode(code) is the best guess of x by it."""

    @abc.abstractmethod
    def squared_jacobian(self, x: Any) -> Scalar:
        """‖∂encode/∂x‖²_F."""
