"""The base class of estimators that learn from all rows at once: EM and closed forms."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from latentia.estimator import checks
from latentia.estimator.base import LatentEstimator
from latentia.estimator.training import Plan
from latentia.learning.fit import Event

BATCH_CHECKS: dict[str, checks.Check] = {
    "n_components": checks.integer(1),
    "n_epochs": checks.integer(1),
    "tol": checks.number(0),
    "resume": checks.flag,
}


class BatchEstimator(LatentEstimator):
    """Every step sees all rows; stops when the log-likelihood (or bound) gains less than ``tol`` a step."""

    parameter_checks: ClassVar[Mapping[str, checks.Check]] = BATCH_CHECKS

    n_components: int
    n_epochs: int
    tol: float
    run_dir: Any
    resume: bool
    callbacks: Any

    def _steps(self) -> int:
        return self.n_epochs

    def _plan(self, n_rows: int) -> Plan:
        return Plan(
            n_steps=self._steps(),
            batch_size=n_rows,
            chunk=1,
            run_dir=self.run_dir,
            resume=self.resume,
            callbacks=(_Converged(self.tol), *(self.callbacks or ())),
        )


class _Converged:
    """Stops when the log-likelihood, or its bound, gains less than ``tol`` from one step to the next.

    Not while learning anneals: what hot posteriors give then rises and falls.

    Reads the run's history instead of remembering, so that a resumed run stops where it would have.
    """

    def __init__(self, tol: float):
        self.tol = tol

    def __call__(self, event: Event) -> bool:
        if len(event.history) < 2:
            return False
        if any(row.get("temperature", 1.0) > 1 for row in event.history[-2:]):
            return False
        name = "log_likelihood" if "log_likelihood" in event.history[-1] else "bound"
        before, now = (row[name] for row in event.history[-2:])
        return now - before < self.tol
