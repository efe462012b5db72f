"""The base class of Boltzmann machines' estimators: visible units by name, and what data they take."""

from __future__ import annotations

import functools
from typing import Any

from latentia.core import space
from latentia.core.errors import ParameterError
from latentia.core.hooks import hook
from latentia.estimator import grey_values
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
from latentia.ops.examples import Examples

_FIX = {
    "bernoulli": "For grey values in [0, 1] pass binarize='sample' or 'threshold'; else use real units "
    "(GaussianRBM, or visible='gaussian').",
    "spin": "Map 0/1 to -1/+1 with 2 * X - 1.",
    "categorical": "Pass n_states=…, and encode the data as integers from 0.",
    "rectified": "Use visible='gaussian' for data with negative values.",
}


class Visibles(VisibleUnits, States, GreyValues):
    """The parameters of families whose user chooses the visible units; before :class:`BoltzmannEstimator`."""


class AbstractBoltzmann(Objective, Chains, Replicas, InitialWeights, GradientEstimator):
    """One visible layer of a named unit type; binary ones may take grey values as probabilities."""

    #: Parameters of families that let their user choose (see :class:`Visibles`).
    visible: str = attribute()
    n_states: int | None = attribute(default=None)
    binarize: Any = attribute(default=None)

    n_epochs = 20
    optimizer = "sgd"

    @hook
    def _blueprint(self, X: Examples) -> dict[str, Any]:
        if self.binarize is not None and self.visible != "bernoulli":
            raise ParameterError(
                f"binarize={self.binarize!r} makes bits of grey values, for visible='bernoulli'; got "
                f"visible={self.visible!r}. Use binarize=None."
            )
        facts: dict[str, Any] = {"n_features": X.n_columns}
        if self.visible == "categorical":
            largest = max(float(block.max()) for block in X.blocks())
            facts["n_states"] = self.n_states or max(2, int(largest) + 1)
        return facts

    def _check_domain(self, X: Examples, spaces: Any) -> None:
        if self.binarize is None:
            X.check(functools.partial(space.check, spaces), fix=_FIX.get(self.visible, ""))
        else:
            grey_values.check(X, self.binarize, "real units (GaussianRBM, or visible='gaussian')")


class BoltzmannEstimator(Centring, AbstractBoltzmann):
    """One visible layer, and couplings that can be centred."""
