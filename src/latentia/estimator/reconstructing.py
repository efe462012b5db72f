"""The base class of estimators that learn to reconstruct their data from a code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import numpy as np

from latentia.core.capabilities import Reconstructs
from latentia.core.errors import DataError, ParameterError
from latentia.core.hooks import hook
from latentia.estimator import checks, training
from latentia.estimator.declared import attribute, changed, param
from latentia.estimator.fits import Watched
from latentia.estimator.gradient import GradientEstimator
from latentia.estimator.groups import Layers
from latentia.estimator.rows import apply_rows
from latentia.estimator.scoring import average
from latentia.learning.reconstruction import Jacobian, Reconstruction, Sparsity
from latentia.ops.corruption import Corruption, Kind
from latentia.ops.examples import Examples

Loss = Literal["auto", "squared", "cross_entropy"]


class ReconstructionEstimator(Layers, GradientEstimator):
    """Learns by :class:`~latentia.learning.reconstruction.Reconstruction`."""

    loss: Loss = param(
        default="auto",
        check=checks.one_of(*get_args(Loss)),
        doc='"squared" (½‖x − x̂‖²), "cross_entropy", or "auto": cross-entropy if all data lie in [0, 1].',
    )
    corruption: Kind | None = param(
        default=None,
        check=checks.one_of(*get_args(Kind), None),
        doc='corruption of x before encoding, new at every step: "masking", "gaussian", "salt_and_pepper", or '
        "None.",
    )
    corruption_level: float = param(
        default=0.25,
        check=checks.number(0),
        doc="fraction of the entries that are masked or set to an extreme; for Gaussian noise its standard "
        "deviation (for real data in units of each column's standard deviation).",
    )
    emphasis: float = param(
        default=0.5,
        check=checks.number(0, 1),
        doc="e: corrupted entries weigh 2e in the loss and others 2(1 − e); 0.5 weighs all equally, 1 uses only "
        "corrupted ones.",
    )

    learning_rate = 0.001
    momentum = changed(doc="decay of past gradients; 0 means the optimiser's usual value.")
    early_stopping = changed(doc="stop when the loss of held-out rows no longer falls.")
    monitor = changed(
        doc='whether to record the loss of a few uncorrupted training rows after every epoch: "auto" and '
        '"always" do, None does not.'
    )

    #: Parameters of families that let their user choose.
    sparsity: Any = attribute(default=None)
    sparsity_weight: float = attribute(default=0.0)
    sparsity_target: float = attribute(default=0.05)
    contraction: float = attribute(default=0.0)
    jacobian: Any = attribute(default="stochastic")

    # -- data ----------------------------------------------------------------------------------------------

    @hook
    def _blueprint(self, X: Examples) -> dict[str, Any]:
        """With the loss: cross-entropy for data in [0, 1], else squared error."""
        loss = self.loss
        if loss == "auto":
            loss = "cross_entropy" if outside_unit_interval(X) is None else "squared"
        return {**super()._blueprint(X), "loss": loss}

    def _check_domain(self, X: Examples, spaces: Any) -> None:
        """Cross-entropy takes grey values too, so they need not be bits."""
        del spaces
        if self.blueprint_["loss"] == "cross_entropy":
            outside = outside_unit_interval(X)
            if outside is not None:
                raise DataError(
                    f"Cross-entropy needs values from 0 to 1, got {outside:g}. Scale the data (divide bytes by "
                    "255), or use loss='squared'."
                )

    # -- learning ------------------------------------------------------------------------------------------

    def _noise(self) -> Corruption | None:
        return None if self.corruption is None else Corruption(self.corruption, float(self.corruption_level))

    @hook
    def _objective(self) -> Reconstruction:
        priced = self.sparsity in get_args(Sparsity)
        return Reconstruction(
            self._noise(),
            float(self.emphasis),
            self.sparsity if priced else None,
            float(self.sparsity_weight) if priced else 0.0,
            float(self.sparsity_target),
            float(self.contraction),
            self._jacobian(),
            relative=self.blueprint_["loss"] != "cross_entropy",
        )

    @hook
    def _jacobian(self) -> Jacobian:
        """How the contraction is found."""
        return "exact" if self.jacobian == "exact" else "stochastic"

    def _surrogate(self, plan: training.Plan) -> Reconstruction:
        del plan
        return self._objective()

    def validation_scorer(self, rows: Any, weights: Any = None) -> Callable[[Any], float]:
        """Minus the mean energy of the rows."""
        portions = self._scored(rows)
        return lambda model: -average(portions.apply(_energy, model), weights)

    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """The energy; of independent sites nothing is known."""
        return Watched(super().watch(model, rows, weights).monitors, {})

    # -- use -----------------------------------------------------------------------------------------------

    def energy(self, X: Any) -> np.ndarray:
        """E(x), the loss of the reconstruction, of every row: high where x is unlike what was learned."""
        model = self._needs(Reconstructs, "energy")
        return apply_rows(_energy, model, self._visibles(X, purpose="scoring"))

    def _score(self, X: Any) -> float:
        """Minus the mean energy of the rows: higher is better."""
        return -float(np.mean(self.energy(X), dtype=np.float64))

    def _lacks(self, method: str) -> str | None:
        """A code has no distribution to draw from, nothing is summed out, and log Z may not exist."""
        if method == "sample":
            return (
                "it rebuilds data from codes, and its codes have no distribution to draw from. Models with one: "
                "VAE, RBM, PPCA."
            )
        if method in ("score_samples", "free_energy", "log_z", "log_likelihood"):
            return (
                "its energy is the loss of a reconstruction, whose log Z is not known (it may not even exist). "
                "energy(X) is that loss, row by row; score(X) is minus its mean, and compares models of the same "
                "data and loss. Models with a likelihood: VAE, PPCA, RBM."
            )
        return None

    def _check_noise(self) -> None:
        """Refuse levels and emphases that do not fit the corruption, before any data are looked at."""
        noise = self._noise()
        if noise is None and self.emphasis != 0.5:
            raise ParameterError("emphasis weighs corrupted entries: choose corruption='masking' first.")
        Reconstruction(noise, float(self.emphasis))


def outside_unit_interval(X: Examples) -> float | None:
    """None if all values lie in [0, 1], else one that does not."""
    for block in X.blocks():
        low, high = float(block.min()), float(block.max())
        if low < 0 or high > 1:
            return low if low < 0 else high
    return None


def _energy(model: Reconstructs, x: Any) -> Any:
    return model.energy(x, ())
