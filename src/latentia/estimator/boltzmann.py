"""The base class of Boltzmann machines' estimators: visible units by name, and what data they take."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import equinox as eqx
import numpy as np

from latentia.core import space
from latentia.core.errors import DataError
from latentia.estimator import checks, training
from latentia.estimator.base import Purpose
from latentia.estimator.gradient import GRADIENT_CHECKS, GradientEstimator
from latentia.units import UNITS

BOLTZMANN_CHECKS: dict[str, checks.Check] = {
    **GRADIENT_CHECKS,
    "visible": checks.one_of(*UNITS),
    "n_states": checks.integer(2, optional=True),
    "binarize": checks.one_of("sample", "threshold", None),
    "weight_scale": checks.number(0),
}

_FIX = {
    "bernoulli": "For grey values in [0, 1] pass binarize='sample' or 'threshold'; else use real units "
    "(GaussianRBM, or visible='gaussian').",
    "spin": "Map 0/1 to -1/+1 with 2 * X - 1.",
    "categorical": "Pass n_states=…, and encode the data as integers from 0.",
    "rectified": "Use visible='gaussian' for data with negative values.",
}


class BoltzmannEstimator(GradientEstimator):
    """One visible layer of a named unit type; binary ones may take grey values as probabilities."""

    parameter_checks: ClassVar[Mapping[str, checks.Check]] = BOLTZMANN_CHECKS

    visible: str
    n_states: int | None
    binarize: str | None
    weight_scale: float

    def _blueprint(self, X: np.ndarray) -> dict[str, Any]:
        facts = super()._blueprint(X)
        if self.visible == "categorical":
            largest = max(float(block.max()) for block in training.blocks(X))
            facts["n_states"] = self.n_states or max(2, int(largest) + 1)
        return facts

    def _prepare(self, model: Any) -> training.Encode:
        return training.Encode(model.x_space, sample=self.binarize == "sample")

    def _rows(self, X: np.ndarray, *, purpose: Purpose) -> np.ndarray:
        if self.visible != "bernoulli" or self.binarize is None:
            return self._in_domain(X)
        for block in training.blocks(X):
            if block.min() < 0 or block.max() > 1:
                raise DataError(
                    f"binarize={self.binarize!r} needs values from 0 to 1, got {block.min():g} to {block.max():g}. "
                    "Scale the data (divide bytes by 255), or use real units (GaussianRBM, or visible='gaussian')."
                )
        if self.binarize == "threshold":
            return (np.asarray(X) > 0.5).astype(np.float32)
        if purpose == "scoring":  # thrown once, always the same way, so that scores can be compared
            return (np.random.default_rng(0).random(X.shape) < X).astype(np.float32)
        return X

    def _in_domain(self, X: np.ndarray) -> np.ndarray:
        visibles = eqx.filter_eval_shape(lambda: self.build(self.blueprint_)).x_space
        first = space.leaves(visibles)[0]  # labels, where there are any, come after the data
        training.check_blocks(first.check, X, fix=_FIX.get(self.visible, ""))
        return X
