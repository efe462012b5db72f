"""A log for MLflow: a tracking server, a database file, or whatever ``MLFLOW_TRACKING_URI`` says."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar

from matplotlib.figure import Figure

from latentia.callbacks.logger import Logger, need
from latentia.core.errors import ParameterError
from latentia.estimator.callbacks import Outcome

_PACKAGE = "mlflow"
_STATUS = {"finished": "FINISHED", "interrupted": "KILLED", "diverged": "FAILED", "failed": "FAILED"}


class MLflow(Logger):
    """Parameters, metrics and pictures of a fit as a run of MLflow's. To look at them: ``mlflow ui``.

    Works through a client of its own: the caller's active run, if there is one, is left alone.

    Args:
        experiment: the experiment's name; made if there is none.
        tracking_uri: where to write: a server, or a database file such as ``sqlite:///mlflow.db``. By default what
            MLflow is set to.
        name: a name for the run; by default the family's.
        pictures: what to draw at the end: any of "filters" and "samples", as far as the model has them.
        every: also draw them after every so many rows of metrics.
        image_shape: (height, width) of a row, if rows are pictures; see :func:`latentia.plot.filters`.

    Examples:
        >>> from latentia import RBM, callbacks
        >>> log = callbacks.MLflow("digits", tracking_uri="sqlite:///mlflow.db")  # doctest: +SKIP
        >>> RBM(n_components=64, callbacks=[log]).fit(X)  # doctest: +SKIP
    """

    kind: ClassVar[str] = "mlflow"

    def __init__(
        self,
        experiment: str = "latentia",
        *,
        tracking_uri: str | None = None,
        name: str | None = None,
        pictures: Sequence[str] = ("filters",),
        every: int | None = None,
        image_shape: Sequence[int] | bool | None = None,
    ):
        need("mlflow", _PACKAGE)
        super().__init__(pictures=pictures, every=every, image_shape=image_shape)
        self.experiment, self.tracking_uri, self.name = experiment, tracking_uri, name
        self._client: Any = None

    @property
    def run_id(self) -> str | None:
        """The id of the last run; None before the first fit."""
        return self._place

    def _open(self, estimator: Any, place: str | None) -> str:
        mlflow = need("mlflow", _PACKAGE)
        try:
            self._client = mlflow.MlflowClient(tracking_uri=self.tracking_uri)
            if place is not None:
                self._client.update_run(place, status="RUNNING")
                return place
            found = self._client.get_experiment_by_name(self.experiment)
            experiment = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            run = self._client.create_run(experiment, run_name=self.name or estimator.family)
        except mlflow.MlflowException as error:
            where = self.tracking_uri or mlflow.get_tracking_uri()
            raise ParameterError(f"MLflow cannot write to {where}: {error}") from error
        self._client.set_tag(run.info.run_id, "latentia.family", estimator.family)
        return run.info.run_id

    def _write_parameters(self, parameters: dict[str, Any]) -> None:
        kind = need("mlflow.entities", _PACKAGE).Param
        self._client.log_batch(self._place, params=[kind(name, str(value)) for name, value in parameters.items()])

    def _write_metrics(self, metrics: dict[str, float], step: int) -> None:
        kind, now = need("mlflow.entities", _PACKAGE).Metric, int(1000 * time.time())
        values = [kind(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._place, metrics=values)

    def _write_picture(self, name: str, figure: Figure, step: int) -> None:
        self._client.log_figure(self._place, figure, f"{name}/step-{step:08d}.png" if self.every else f"{name}.png")

    def _close(self, numbers: dict[str, float], outcome: Outcome) -> None:
        client, self._client = self._client, None
        kind, now = need("mlflow.entities", _PACKAGE).Metric, int(1000 * time.time())
        try:
            values = [kind(name, value, now, self._step) for name, value in numbers.items()]
            client.log_batch(self._place, metrics=values)
            client.set_tag(self._place, "latentia.outcome", outcome)
        finally:
            client.set_terminated(self._place, status=_STATUS[outcome])

    def _last_step(self, metric: str) -> int:
        return max((each.step for each in self._client.get_metric_history(self._place, metric)), default=-1)
