"""The base class of Boltzmann machines' estimators: visible units by name, and what data they take."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import numpy as np

from latentia.core import space
from latentia.core.errors import DataError
from latentia.estimator import training
from latentia.estimator.base import Purpose
from latentia.estimator.declared import attribute
from latentia.estimator.gradient import GradientEstimator
from latentia.estimator.groups import (
    Centring,
    Chains,
    GreyValues,
    InitialWeights,
    Objective,
    Replicas,
    States,
    VisibleUnits,
)

_FIX = {
    "bernoulli": "For grey values in [0, 1] pass binarize='sample' or 'threshold'; else use real units "
    "(GaussianRBM, or visible='gaussian').",
    "spin": "Map 0/1 to -1/+1 with 2 * X - 1.",
    "categorical": "Pass n_states=…, and encode the data as integers from 0.",
    "rectified": "Use visible='gaussian' for data with negative values.",
}


class Visibles(VisibleUnits, States, GreyValues):
    """The parameters of families whose user chooses the visible units; before :class:`BoltzmannEstimator`."""


class BoltzmannEstimator(Objective, Chains, Replicas, Centring, InitialWeights, GradientEstimator):
    """One visible layer of a named unit type; binary ones may take grey values as probabilities."""

    #: Parameters of families that let their user choose (see :class:`Visibles`).
    visible: str = attribute()
    n_states: int | None = attribute(default=None)
    binarize: str | None = attribute(default=None)

    n_epochs = 20
    optimizer = "sgd"

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
