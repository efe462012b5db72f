"""Inference: how to find z given x."""

from __future__ import annotations

from typing import Any

from latentia.core.model import ExactPosterior
from latentia.inference.exact import Exact
from latentia.inference.mean_field import MeanFieldInference


def infer_means(model: Any, x: Any) -> Any:
    """E[z | x] of one example: exact where the posterior is known, by mean field otherwise."""
    if isinstance(model, ExactPosterior):
        return model.posterior(x).mean()
    means = MeanFieldInference().infer(model, x).mean()
    return means[len(means) - len(model.z_space) :]  # after the visibles that were not observed


__all__ = ["Exact", "MeanFieldInference", "infer_means"]
