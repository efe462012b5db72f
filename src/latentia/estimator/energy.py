"""The base class of estimators of energies F(x) that are learned without sampling, or with chains on F alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from latentia.estimator import checks
from latentia.estimator.gradient import GRADIENT_CHECKS, GradientEstimator

ENERGY_CHECKS: dict[str, checks.Check] = {
    **{name: check for name, check in GRADIENT_CHECKS.items() if name not in ("n_replicas", "centring")},
    "noise_ratio": checks.integer(1),
}


class EnergyEstimator(GradientEstimator):
    """Learns an energy by score matching, noise contrast or chains; families list the parameters themselves.

    A family's ``__init__`` has, beside its own parameters, those of :class:`GradientEstimator` except ``n_replicas``
    and ``centring``, and ``noise_ratio``: noise samples for each example, for the objectives that contrast the data
    with noise.
    """

    parameter_checks: ClassVar[Mapping[str, checks.Check]] = ENERGY_CHECKS

    noise_ratio: int
    centring: float = 0.0  # nothing to centre

    def _objective_numbers(self) -> dict[str, Any]:
        return {"k": self.k, "n_chains": self.n_chains, "ratio": self.noise_ratio}
