"""A log for Weights & Biases, online or in files on this machine."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from matplotlib.figure import Figure
from PIL import Image

from latentia.callbacks.logger import Logger, need, png
from latentia.core.errors import ParameterError
from latentia.estimator.callbacks import Outcome

_PACKAGE = "wandb"
_EXIT = {"finished": 0, "interrupted": 255, "diverged": 1, "failed": 1}
Mode = Literal["online", "offline", "disabled"]


class WeightsAndBiases(Logger):
    """Parameters, metrics and pictures of a fit as a run of Weights & Biases.

    Metrics are drawn over the training's own steps (``step``, and ``STAGE/step`` for pretraining). A resumed run
    goes on with its id. Files of a run that was resumed offline lie side by side; ``wandb sync --append`` joins
    them.

    Args:
        project: the project's name.
        mode: "online", "offline" (files to be sent later by ``wandb sync``) or "disabled"; by default what
            ``WANDB_MODE`` says.
        name: a name for the run; by default the family's.
        folder: where files go; by default the run's folder, or the working directory.
        pictures: what to draw at the end: any of "filters" and "samples", as far as the model has them.
        every: also draw them after every so many rows of metrics.
        image_shape: (height, width) of a row, if rows are pictures; see :func:`latentia.plot.filters`.

    Examples:
        >>> from latentia import RBM, callbacks
        >>> log = callbacks.WeightsAndBiases("digits", mode="offline")  # doctest: +SKIP
        >>> RBM(n_components=64, callbacks=[log]).fit(X)  # doctest: +SKIP
    """

    kind: ClassVar[str] = "wandb"

    def __init__(
        self,
        project: str = "latentia",
        *,
        mode: Mode | None = None,
        name: str | None = None,
        folder: str | Path | None = None,
        pictures: Sequence[str] = ("filters",),
        every: int | None = None,
        image_shape: Sequence[int] | bool | None = None,
    ):
        need("wandb", _PACKAGE)
        super().__init__(pictures=pictures, every=every, image_shape=image_shape)
        if mode not in ("online", "offline", "disabled", None):
            raise ParameterError(f"mode must be 'online', 'offline', 'disabled' or None, got {mode!r}.")
        self.project, self.mode, self.name, self.folder = project, mode, name, folder
        self._run: Any = None

    def _open(self, estimator: Any, place: str | None) -> str:
        wandb = need("wandb", _PACKAGE)
        folder = self.folder or getattr(estimator, "run_dir", None)
        try:
            self._run = wandb.init(
                project=self.project,
                name=self.name or estimator.family,
                id=place,
                resume="allow" if place else None,
                mode=self.mode,
                dir=None if folder is None else str(folder),
                reinit="create_new",
                settings=wandb.Settings(silent=True),
            )
        except wandb.errors.Error as error:
            raise ParameterError(
                f"Weights & Biases could not begin a run: {error} (mode='offline' needs no "
                "connection and no account.)"
            ) from error
        self._run.define_metric("*", step_metric="step")
        return self._run.id

    def _write_parameters(self, parameters: dict[str, Any]) -> None:
        self._run.config.update(parameters)

    def _write_metrics(self, metrics: dict[str, float], step: int) -> None:
        stage = next(iter(metrics)).rpartition("/")[0]
        if stage:
            self._run.define_metric(f"{stage}/*", step_metric=f"{stage}/step")
        self._run.log({**metrics, f"{stage}/step" if stage else "step": step})

    def _write_picture(self, name: str, figure: Figure, step: int) -> None:
        picture = Image.open(io.BytesIO(png(figure)))
        self._run.log({name: need("wandb", _PACKAGE).Image(picture), "step": step})

    def _close(self, numbers: dict[str, float], outcome: Outcome) -> None:
        run, self._run = self._run, None
        try:
            run.summary.update({**numbers, "outcome": outcome})
        finally:
            run.finish(exit_code=_EXIT[outcome])

    def _last_step(self, metric: str) -> int:
        stage = metric.rpartition("/")[0]
        return int(self._run.summary.get(f"{stage}/step" if stage else "step", -1))
