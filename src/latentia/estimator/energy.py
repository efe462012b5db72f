"""The base class of estimators of energies F(x) that are learned without sampling, or with chains on F alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from latentia.core.capabilities import FreeEnergy
from latentia.estimator import checks
from latentia.estimator.gradient import GRADIENT_CHECKS, GradientEstimator

ENERGY_CHECKS: dict[str, checks.Check] = {
    **{name: check for name, check in GRADIENT_CHECKS.items() if name not in ("n_replicas", "centring")},
    "noise_ratio": checks.integer(1),
}


class EnergyEstimator(GradientEstimator):
    """Learns an energy by score matching, noise contrast or chains; families list the parameters themselves.

    A family's ``__init__`` has, beside its own parameters, those of :class:`GradientEstimator` except
    ``n_replicas`` and ``centring``, and ``noise_ratio``: noise samples for each example, for the objectives that
    contrast the data with noise.
    """

    parameter_checks: ClassVar[Mapping[str, checks.Check]] = ENERGY_CHECKS

    noise_ratio: int
    centring: float = 0.0  # nothing to centre

    def _objective_numbers(self) -> dict[str, Any]:
        return {"k": self.k, "n_chains": self.n_chains, "ratio": self.noise_ratio}


class UnnormalisedEstimator(EnergyEstimator):
    """For families whose log Z is not known: no log p(x), and models are compared by score matching."""

    @property
    def score_samples(self) -> Any:
        """Not there: log p(x) needs log Z, which this family does not know."""
        name = type(self).__name__
        raise AttributeError(
            f"{name} has no score_samples: its log Z is not known, so neither is log p(x). free_energy(X) is "
            "−log p(x) up to that constant; score(X) compares models by score matching."
        )

    def score(self, X: Any, y: Any = None) -> float:
        """Minus the score-matching objective of the rows, in fixed directions: higher is better."""
        del y
        model = self._needs(FreeEnergy, "score")
        return self.validation_scorer(self._accept(X, reset=False))(model)
