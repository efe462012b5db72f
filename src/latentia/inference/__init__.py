"""Inference: how to find z given x."""

from __future__ import annotations

from typing import Any

from latentia.core.capabilities import Amortised, Encodes, ExactPosterior, LinearSplit
from latentia.inference.exact import Exact
from latentia.inference.mean_field import MeanFieldInference
from latentia.inference.proximal_split import SparseInference


def infer_means(model: Any, x: Any) -> Any:
    """E[z | x] of one example: exact where the posterior is known, the sparse code, the mean of q, mean field."""
    if isinstance(model, ExactPosterior):
        return model.posterior(x).mean()
    if isinstance(model, LinearSplit):
        return SparseInference().infer(model, x).mean()
    if isinstance(model, Amortised):
        return model.recognise(x).mean()
    means = MeanFieldInference().infer(model, x).mean()
    return means[len(means) - len(model.z_space) :]  # after the visibles that were not observed


def code_space(model: Any) -> Any:
    """The space of what represents x: the latents', or that of the codes of a model without latents."""
    return model.code_space if isinstance(model, Encodes) else model.z_space


def code_of(model: Any, x: Any) -> Any:
    """What represents one example: the means of its latents, or the code of a model without latents."""
    return model.encode(x) if isinstance(model, Encodes) else infer_means(model, x)


__all__ = ["Exact", "MeanFieldInference", "SparseInference", "code_of", "code_space", "infer_means"]
