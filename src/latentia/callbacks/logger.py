"""The base class of all logs: what is written and when, handling of errors, and resumed runs.

Steps and epochs are those of the training. Pretraining stages count their own steps and have
a prefix. In a run folder ``logs.json`` stores the location of the log, so that a resumed run
continues it. Rows that the killed run had logged after its last checkpoint are computed again, with the same
values, and not logged twice.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import io
import json
import math
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

from matplotlib.figure import Figure

from latentia import plot
from latentia.core.errors import LatentiaError, MissingPackageError, ParameterError
from latentia.core.hooks import hook
from latentia.core.run_folder import LOGS, RunFolder
from latentia.estimator.callbacks import Callback, Outcome
from latentia.learning.fit import Event

#: The file of a run folder that stores its logs.
MEMORY = LOGS
#: Parameters that say how a run is shown or stored, not what is learned.
_HOUSEKEEPING = ("callbacks", "resume", "run_dir", "verbose")
_PICTURES = ("filters", "samples")


class Logger(Callback):
    """A log somewhere else. A subclass says how to open and close it and how to write numbers and pictures.

    A log that fails during training (a full disk, a lost connection) causes a warning and the loss of the rest of
    the log, never the run. One that cannot be opened stops the fit before it begins.

    Args:
        pictures: what to draw at the end: any of "filters" and "samples", as far as the model has them.
        every: also draw them after every so many rows of metrics; None draws them at the end alone.
        image_shape: (height, width) of a row, if rows are pictures; see :func:`latentia.plot.filters`.
    """

    #: What ``logs.json`` and messages call it.
    kind: ClassVar[str]

    def __init__(
        self,
        *,
        pictures: Sequence[str] = ("filters",),
        every: int | None = None,
        image_shape: Sequence[int] | bool | None = None,
    ):
        chosen = (pictures,) if isinstance(pictures, str) else tuple(pictures or ())
        unknown = [name for name in chosen if name not in _PICTURES]
        if unknown:
            raise ParameterError(f"pictures may be {' and '.join(_PICTURES)}, got {unknown[0]!r}.")
        if every is not None and (not isinstance(every, int) or isinstance(every, bool) or every < 1):
            raise ParameterError(f"every must be a positive number of rows or None, got {every!r}.")
        self.pictures, self.every, self.image_shape = chosen, every, image_shape
        self._estimator: Any = None
        self._broken = self._resumed = False
        self._step = self._rows = 0
        self._before = self._so_far = (0, 0.0, 0.0)  # (step, epoch, seconds)
        self._reached: dict[str, int] = {}
        self._place: str | None = None

    # -- what a log implements -----------------------------------------------------------------------------

    @abc.abstractmethod
    def _open(self, estimator: Any, place: str | None) -> str:
        """Open the log at ``place``, or a new one if that is None; where it is, to find it again."""

    @abc.abstractmethod
    def _write_parameters(self, parameters: dict[str, Any]) -> None:
        """The estimator's parameters, as numbers, strings and truth values."""

    @abc.abstractmethod
    def _write_metrics(self, metrics: dict[str, float], step: int) -> None:
        """Numbers at a step."""

    @abc.abstractmethod
    def _write_picture(self, name: str, figure: Figure, step: int) -> None:
        """A picture at a step."""

    @abc.abstractmethod
    def _close(self, numbers: dict[str, float], outcome: Outcome) -> None:
        """The last numbers of the run, and the end of the log. Called once for every :meth:`_open`."""

    @hook
    def _last_step(self, metric: str) -> int:
        """The last step at which an opened log holds a metric; −1 if it does not."""
        del metric
        return -1

    # -- the life of a fit ---------------------------------------------------------------------------------

    def begin(self, estimator: Any, *, goes_on: bool = False) -> None:
        """Open the log: the old one for a run that is resumed or a further pass, else a new one."""
        folder = _folder(estimator)
        self._resumed = bool(folder and getattr(estimator, "resume", False) and folder.is_begun)
        place = self._place if goes_on else _remembered(folder, self.kind) if self._resumed else None
        self._before = self._so_far if goes_on and place else (0, 0.0, 0.0)
        self._broken, self._reached, self._rows = False, {}, 0
        self._place = self._open(estimator, place)
        self._estimator = estimator
        if folder is not None:
            _remember(folder, self.kind, self._place)
        if place is None:
            self._write_parameters(parameters(estimator))

    def __call__(self, event: Event) -> None:
        """Write a row."""
        if self._estimator is None or self._broken:
            return
        try:
            self._row(event)
        except Exception as error:
            self._broken = True
            self._complain(error, "training continues without it")

    def _row(self, event: Event) -> None:
        prefix = event.stage.replace(" ", "_") + "/" if event.stage else ""
        taken = event.history[-1].get("seconds", math.nan) if event.history else math.nan
        before = self._before
        step, epoch, seconds = int(before[0]) + event.step, before[1] + event.epoch, before[2] + taken
        if self._resumed and prefix not in self._reached:
            self._reached[prefix] = self._last_step(prefix + "epoch")
        if not event.stage:
            self._step, self._so_far = step, (step, epoch, seconds)
        if step <= self._reached.get(prefix, -1):
            return
        row = {**event.metrics, "epoch": epoch, "seconds": seconds}
        self._write_metrics({prefix + name: float(value) for name, value in row.items()}, step)
        self._rows += 1
        if self.every and not event.stage and self._rows % self.every == 0:
            self._draw(self._as_fitted(event), step)

    def end(self, estimator: Any, outcome: Outcome) -> None:
        """Write times and pictures, and close."""
        opened, self._estimator = self._estimator is not None, None
        if not opened:
            return
        numbers = _numbers(estimator) if outcome in ("finished", "diverged") else {}
        try:
            drawn = self.every and self._rows and self._rows % self.every == 0
            if not self._broken and outcome == "finished" and not drawn:
                self._draw(estimator, self._step)
        except Exception as error:
            self._complain(error, "its last pictures are missing")
        finally:
            self._close(numbers, outcome)

    # -- helpers -------------------------------------------------------------------------------------------

    def _as_fitted(self, event: Event) -> Any:
        """The estimator as it would be if the run ended now."""
        now = type(self._estimator)(**self._estimator.get_params(deep=False))
        return now.adopt(event.kept, self._estimator.blueprint_)

    def _draw(self, estimator: Any, step: int) -> None:
        for name in self.pictures:
            figure = Figure(figsize=(5, 5), dpi=100, layout="constrained")
            draw = getattr(plot, name)
            with contextlib.suppress(LatentiaError):  # a model without filters, or one that cannot be sampled
                draw(estimator, image_shape=self.image_shape, ax=figure.subplots())
                self._write_picture(name, figure, step)

    def _complain(self, error: Exception, what: str) -> None:
        message = f"The log by {type(self).__name__} failed, {what}: {type(error).__name__}: {error}"
        warnings.warn(message, RuntimeWarning, stacklevel=2)


def parameters(estimator: Any) -> dict[str, Any]:
    """What describes a run: the family, the estimator's parameters (objects by their text) and the data's width."""
    chosen = {n: v for n, v in estimator.get_params(deep=False).items() if n not in _HOUSEKEEPING}
    facts = {"family": estimator.family, "n_features": estimator.n_features_in_}
    return {name: _plain(value) for name, value in (facts | chosen).items()}


def png(figure: Figure) -> bytes:
    """A figure as a PNG file's content."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return buffer.getvalue()


def need(module: str, package: str) -> Any:
    """An optional module, or an error that says how to get it.

    Args:
        module: its import name.
        package: what to install.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"This callback writes with {package}, which cannot be imported ({error}). Install it: "
            f"pip install {package}"
        ) from error


def _plain(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    text = json.dumps(value) if isinstance(value, list | tuple | dict | None) and _is_plain(value) else repr(value)
    return text if len(text) <= 250 else text[:249] + "…"


def _is_plain(value: Any) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _numbers(estimator: Any) -> dict[str, float]:
    names = {"fit_seconds": "fit_seconds_", "compile_seconds": "compile_seconds_", "n_steps": "n_steps_"}
    return {name: float(vars(estimator)[key]) for name, key in names.items() if key in vars(estimator)}


def _folder(estimator: Any) -> RunFolder | None:
    folder = getattr(estimator, "run_dir", None)
    return None if folder is None else RunFolder.of(folder)


def _remembered(folder: RunFolder | None, kind: str) -> str | None:
    place = None if folder is None else folder.read_logs().get(kind)
    return place if isinstance(place, str) else None


def _remember(folder: RunFolder, kind: str, place: str) -> None:
    folder.write_logs({**folder.read_logs(), kind: place})
