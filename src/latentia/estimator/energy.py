"""The base class of estimators of energies F(x) that are learned without sampling, or with chains on F alone."""

from __future__ import annotations

from typing import Any

from latentia.core.capabilities import FreeEnergy
from latentia.estimator import checks
from latentia.estimator.declared import Parameters, changed, param
from latentia.estimator.gradient import GradientEstimator
from latentia.estimator.groups import Chains, Objective
from latentia.ops.experts import EXPERTS


class NoiseSamples(Parameters):
    """For objectives that contrast the data with noise."""

    noise_ratio: int = param(
        default=1,
        check=checks.integer(1),
        doc="noise samples per example, for noise-contrastive objectives.",
    )


class ExpertFunctions(Parameters):
    """For energies that are sums of functions of filters."""

    expert: str = param(
        default="student_t",
        check=checks.one_of(*EXPERTS),
        doc='φ: "student_t", "log_cosh" (also called "logistic"), "charbonnier", "gsm" (a mixture of Gaussians '
        'whose weights are learned), "gaussian".',
    )
    ridge: float = param(default=0.01, check=checks.number(0), doc="initial value of ε, which is learned too.")


class EnergyEstimator(Objective, Chains, NoiseSamples, GradientEstimator):
    """Learns an energy by score matching, noise contrast or chains."""

    objective = changed(
        default="sliced_score_matching",
        doc='"sliced_score_matching", "score_matching", "denoising_score_matching", "nce", "conditional_nce", '
        '"hybrid", or an objective object.',
    )
    learning_rate = 0.003
    monitor = changed(
        doc='whether to record the score-matching objective of a few training rows after every epoch: "auto" and '
        '"always" do, None does not.'
    )

    def _objective_numbers(self) -> dict[str, Any]:
        return {**super()._objective_numbers(), "ratio": self.noise_ratio}


class UnnormalisedEstimator(EnergyEstimator):
    """For families whose log Z is not known: no log p(x), and models are compared by score matching."""

    def _lacks(self, method: str) -> str | None:
        if method != "score_samples":
            return None
        return (
            "its log Z is not known, so neither is log p(x). free_energy(X) is −log p(x) up to that constant; "
            "score(X) compares models by score matching."
        )

    def _score(self, X: Any) -> float:
        """Minus the score-matching objective of the rows, in fixed directions: higher is better."""
        model = self._needs(FreeEnergy, "score")
        return self.validation_scorer(self._accept(X, reset=False))(model)
