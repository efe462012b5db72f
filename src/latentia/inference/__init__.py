"""Inference: finding z given x.

EM, contrastive learning and ``transform`` take any inference. The default one depends on the capabilities of
the model: :func:`inference_of`.
"""

from __future__ import annotations

from typing import Any

from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import Amortised, Clamps, Encodes, ExactPosterior, Infers, LinearSplit
from latentia.core.errors import CapabilityError
from latentia.core.model import AbstractModel, AbstractPosterior, Scalar
from latentia.inference.exact import Enumeration, Exact
from latentia.inference.gibbs import GibbsInference
from latentia.inference.mean_field import MeanFieldInference
from latentia.inference.proximal_split import SparseInference
from latentia.inference.states import AbstractStates
from latentia.inference.truncated import TruncatedInference
from latentia.ops import random


class Recognition(AbstractInference):
    """The q(z | x) that the model has learned."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``Amortised``."""
        return (Amortised,)

    def infer(self, model: Amortised, x: Any, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """What the model recognises; nothing random happens."""
        del key
        return model.recognise(x)


def inference_of(model: Any) -> AbstractInference:
    """The model's own choice; else exact where p(z | x) is known, the sparse code, the learned q, mean field."""
    if isinstance(model, Infers):
        return model.default_inference
    if isinstance(model, ExactPosterior):
        return Exact()
    if isinstance(model, LinearSplit):
        return SparseInference()
    return Recognition() if isinstance(model, Amortised) else MeanFieldInference()


def infer_means(
    model: Any, x: Any, *, inference: AbstractInference | None = None, key: PRNGKeyArray | None = None
) -> Any:
    """E_q[z] of one example, q by the given inference or by that of :func:`inference_of`.

    Without a key, an inference that draws always draws the same random numbers.
    """
    chosen = inference_of(model) if inference is None else inference
    means = chosen.infer(model, x, key=random.key(0) if key is None else key).mean()
    if isinstance(chosen, MeanFieldInference) and isinstance(model.z_space, tuple):
        return means[len(means) - len(model.z_space) :]  # after the visibles that were not observed
    return means


def variational_energy(model: Any, x: Any, q: AbstractPosterior) -> Scalar:
    """E_q[E(x, z)] − H(q) ≥ F(x), differentiable in θ with q held fixed.

    A sum where q has finitely many states; otherwise the clamped model's own formula for a factorial q.
    """
    if not isinstance(q, AbstractStates):
        return model.clamped(x).variational_energy(q)
    if not all(leaf.is_discrete for leaf in space.leaves(model.z_space)):
        raise CapabilityError(
            f"Draws of the real latents of {type(model).__name__} have no density, so they bound nothing. Use an "
            "inference that gives a density."
        )
    if isinstance(model, Clamps):  # what x has to do with z is then computed once, not for every state
        clamped = model.clamped(x)
        return q.expectation(lambda z: clamped.energy((), z)) - q.entropy()
    return q.expectation(lambda z: model.energy(x, z)) - q.entropy()


def code_space(model: Any) -> Any:
    """The space of what represents x: the latents', or that of the codes of a model without latents."""
    return model.code_space if isinstance(model, Encodes) else model.z_space


def code_of(model: Any, x: Any, *, inference: AbstractInference | None = None) -> Any:
    """What represents one example: the means of its latents, or the code of a model without latents."""
    return model.encode(x) if isinstance(model, Encodes) else infer_means(model, x, inference=inference)


__all__ = [
    "Enumeration",
    "Exact",
    "GibbsInference",
    "MeanFieldInference",
    "Recognition",
    "SparseInference",
    "TruncatedInference",
    "code_of",
    "code_space",
    "infer_means",
    "inference_of",
    "variational_energy",
]
