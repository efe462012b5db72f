"""A log for TensorBoard, written by TensorBoard's own event writer: neither TensorFlow nor PyTorch is needed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from matplotlib.figure import Figure

from latentia.callbacks.logger import Logger, need, png
from latentia.estimator.callbacks import Outcome

_PACKAGE = "tensorboard"


class TensorBoard(Logger):
    """Scalars, pictures and hyper-parameters for TensorBoard. To look at them: ``tensorboard --logdir LOG_DIR``.

    Every fit gets a folder of its own in ``log_dir``, named after the family (``rbm``, ``rbm-2`` …), so that
    TensorBoard lays several fits over each other. A resumed run and further passes of ``partial_fit`` go on
    in theirs.

    Args:
        log_dir: where logs go; made if it does not exist.
        name: a name for the fit's folder instead of the family's.
        pictures: what to draw at the end: any of "filters" and "samples", as far as the model has them.
        every: also draw them after every so many rows of metrics.
        image_shape: (height, width) of a row, if rows are pictures; see :func:`latentia.plot.filters`.

    Examples:
        >>> from latentia import RBM, callbacks
        >>> RBM(n_components=64, callbacks=[callbacks.TensorBoard("logs")]).fit(X)  # doctest: +SKIP
    """

    kind: ClassVar[str] = "tensorboard"

    def __init__(
        self,
        log_dir: str | Path,
        *,
        name: str | None = None,
        pictures: Sequence[str] = ("filters",),
        every: int | None = None,
        image_shape: Sequence[int] | bool | None = None,
    ):
        need("tensorboard", _PACKAGE)
        super().__init__(pictures=pictures, every=every, image_shape=image_shape)
        self.log_dir, self.name = Path(log_dir), name
        self._writer: Any = None

    def _open(self, estimator: Any, place: str | None) -> str:
        folder = self._claimed(self.name or estimator.family) if place is None else Path(place)
        events = need("tensorboard.summary.writer.event_file_writer", _PACKAGE)
        self._writer = events.EventFileWriter(str(folder))
        return str(folder.resolve())

    def _claimed(self, name: str) -> Path:
        """A folder that no other fit has, also if several look for one at the same time."""
        self.log_dir.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = self.log_dir / (name if number == 1 else f"{name}-{number}")
            try:
                folder.mkdir()
            except FileExistsError:
                number += 1
            else:
                return folder

    def _write_parameters(self, parameters: dict[str, Any]) -> None:
        summaries = need("tensorboard.plugins.hparams.summary_v2", _PACKAGE)
        self._add(summaries.hparams_pb(parameters), 0)

    def _write_metrics(self, metrics: dict[str, float], step: int) -> None:
        summary = _protos("summary").Summary
        values = [summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
        self._add(summary(value=values), step)
        self._writer.flush()

    def _write_picture(self, name: str, figure: Figure, step: int) -> None:
        width, height = (round(side * figure.dpi) for side in figure.get_size_inches())
        summary = _protos("summary").Summary
        image = summary.Image(height=height, width=width, colorspace=4, encoded_image_string=png(figure))
        self._add(summary(value=[summary.Value(tag=name, image=image)]), step)

    def _close(self, numbers: dict[str, float], outcome: Outcome) -> None:
        writer, summary = self._writer, _protos("summary").Summary
        try:
            values = [summary.Value(tag=f"run/{name}", simple_value=value) for name, value in numbers.items()]
            self._add(summary(value=values), self._step)
            if outcome in ("finished", "diverged"):  # of a run that may go on the page must not say that it is over
                self._add(_ended(good=outcome == "finished"), self._step)
        finally:
            self._writer = None
            writer.close()

    def _last_step(self, metric: str) -> int:
        loader = need("tensorboard.backend.event_processing.event_file_loader", _PACKAGE)
        last = -1
        for path in sorted(Path(self._place or "").glob("events.out.tfevents.*")):
            for event in loader.EventFileLoader(str(path)).Load():
                if any(value.tag == metric for value in event.summary.value):
                    last = max(last, int(event.step))
        return last

    def _add(self, summary: Any, step: int) -> None:
        event = _protos("event").Event(wall_time=time.time(), step=step, summary=summary)
        self._writer.add_event(event)


def _ended(*, good: bool) -> Any:
    """The record that marks the end of a run, and its outcome, on the page of hyper-parameters."""
    metadata = need("tensorboard.plugins.hparams.metadata", _PACKAGE)
    plugin = need("tensorboard.plugins.hparams.plugin_data_pb2", _PACKAGE)
    status = need("tensorboard.plugins.hparams.api_pb2", _PACKAGE).Status
    info = plugin.SessionEndInfo(
        status=status.Value("STATUS_SUCCESS" if good else "STATUS_FAILURE"), end_time_secs=time.time()
    )
    about = metadata.create_summary_metadata(plugin.HParamsPluginData(session_end_info=info))
    summary = _protos("summary").Summary
    value = summary.Value(tag=metadata.SESSION_END_INFO_TAG, metadata=about, tensor=metadata.NULL_TENSOR)
    return summary(value=[value])


def _protos(name: str) -> Any:
    return need(f"tensorboard.compat.proto.{name}_pb2", _PACKAGE)
