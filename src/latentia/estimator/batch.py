"""The base class of estimators that learn from all rows at once: EM and closed forms."""

from __future__ import annotations

from latentia.core.hooks import hook
from latentia.estimator import checks
from latentia.estimator.base import LatentEstimator
from latentia.estimator.declared import changed, param
from latentia.estimator.groups import Callbacks, Components, Epochs, RunDir
from latentia.estimator.training import Plan
from latentia.learning.fit import Event


class BatchEstimator(Components, Epochs, RunDir, Callbacks, LatentEstimator):
    """Every step uses all rows; stops when the log-likelihood (or its bound) gains less than ``tol`` per step."""

    tol: float = param(
        default=1e-4,
        check=checks.number(0),
        doc="smallest gain per step of the mean log-likelihood, or of its bound; a smaller one ends the fit.",
    )

    n_epochs = changed(default=200, doc="maximal number of EM steps.")
    callbacks = changed(doc="functions called with a ``latentia.learning.fit.Event`` after every step; True stops.")

    @hook
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
