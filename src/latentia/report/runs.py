"""Reading a run folder: all that is present, and the reason for all that is missing."""

from __future__ import annotations

import dataclasses
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np

from latentia import datasets, registry
from latentia.core.errors import FileFormatError, RunFolderError, UnknownNameError
from latentia.core.leaves import from_arrays
from latentia.core.run_folder import CHECKPOINT, CONFIG, EVALUATION, METRICS, MODEL, RunFolder
from latentia.datasets import columns
from latentia.estimator.fresh import outline
from latentia.estimator.saving import load

#: At most this many rows of the data are encoded and reconstructed.
MOST_ROWS = 1000
#: At most this many rows are looked through for the names nearest to a latent.
MOST_NAMED = 50_000
#: What the names of the model's arrays begin with in a checkpoint.
_MODEL = "0.model."


@dataclasses.dataclass
class Run:
    """What a run folder holds.

    ``rows`` are some that the model has not seen where there are any (``rows_are`` says which), with ``labels``
    where the data have some; ``training`` are some that it has. Labels that are all different are names (of words,
    say): ``names`` of ``named_rows`` and ``training_names`` of the training rows. ``image_shape`` says how a row
    folds into a picture, ``part_shape`` how one part of it does. ``problems`` says in one line each why something
    is missing, by what is missing: "config", "metrics", "model", "evaluation", "data".
    """

    folder: Path
    config: dict[str, Any] = dataclasses.field(default_factory=dict)
    history: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    evaluation: dict[str, Any] = dataclasses.field(default_factory=dict)
    progress: dict[str, Any] = dataclasses.field(default_factory=dict)
    estimator: Any = None
    rows: np.ndarray | None = None
    rows_are: str = ""
    labels: np.ndarray | None = None
    training: np.ndarray | None = None
    training_names: np.ndarray | None = None
    names: np.ndarray | None = None
    named_rows: np.ndarray | None = None
    image_shape: tuple[int, ...] | None = None
    part_shape: tuple[int, ...] | None = None
    description: str = ""
    problems: dict[str, str] = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """The folder's own name."""
        return self.folder.resolve().name

    @property
    def data(self) -> dict[str, Any]:
        """What the configuration says about the data; empty if nothing."""
        data: Any = self.config.get("data")
        sound = isinstance(data, dict) and isinstance(data.get("options") or {}, dict)
        return data if sound else {}

    @property
    def source(self) -> str | None:
        """What the data can be loaded by: a name or a path."""
        found = self.data.get("source") or self.data.get("name")
        return str(found) if found else None

    @property
    def params(self) -> dict[str, Any]:
        """The estimator's parameters."""
        params = self.config.get("params")
        return params if isinstance(params, dict) else {}

    @property
    def likelihood(self) -> dict[str, Any] | None:
        """The two-sided evaluation, if there is one."""
        result = self.evaluation.get("log_likelihood")
        return result if isinstance(result, dict) and "estimate" in result else None


def read_run(folder: Path, rows: Any = None, image_shape: tuple[int, ...] | None = None) -> Run:
    """Everything in a run folder; only a folder that is none raises :class:`RunFolderError`."""
    if not folder.is_dir():
        raise RunFolderError(
            f"There is no run folder at {folder}. Check the path, or fit with run_dir (--out) first."
        )
    if not RunFolder(folder).is_run:
        raise RunFolderError(
            f"{folder} is not a run folder: it holds none of {CONFIG}, {METRICS} and {MODEL}. "
            "Name a folder that fit wrote."
        )
    run = Run(folder)
    run.config = _json(run, CONFIG, "config", f"{CONFIG} is missing, so parameters, data and times are not known.")
    _name_parameters(run)
    run.evaluation = _json(
        run, EVALUATION, "evaluation", f"Not evaluated yet. To do it: latentia evaluate {shlex.quote(str(folder))}"
    )
    _read_history(run)
    _read_model(run)
    _read_progress(run)
    _read_rows(run, rows, image_shape)
    return run


def _json(run: Run, file: str, key: str, missing: str) -> dict[str, Any]:
    try:
        value = json.loads((run.folder / file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        run.problems[key] = missing
        return {}
    except (OSError, ValueError) as error:
        run.problems[key] = f"{file} cannot be read ({error})."
        return {}
    if not isinstance(value, dict):
        run.problems[key] = f"{file} does not hold a JSON object."
        return {}
    return value


def _name_parameters(run: Run) -> None:
    """The parameters under their present names; the folder may be of an earlier release."""
    try:
        estimator = registry.family(str(run.config.get("family"))).estimator()
    except (UnknownNameError, ImportError, AttributeError):
        return
    if run.params:
        run.config["params"] = estimator.current_names(run.params)


def _read_history(run: Run) -> None:
    try:
        run.history = RunFolder(run.folder).read_metrics()
    except FileNotFoundError:
        run.problems["metrics"] = f"{METRICS} is missing."
        return
    except (OSError, ValueError) as error:
        run.problems["metrics"] = f"{METRICS} cannot be read ({error})."
        return
    if not run.history:
        run.problems["metrics"] = f"{METRICS} holds no rows: training stopped before its first report."


def _read_model(run: Run) -> None:
    folder = RunFolder(run.folder)
    if not folder.is_complete:
        run.problems["model"] = f"{MODEL} is missing: training has not finished, or was stopped."
        _read_checkpoint(run)
        return
    try:
        run.estimator = load(folder.model)
    except Exception as error:  # a report of a broken run is still a report
        run.problems["model"] = f"{MODEL} cannot be read: {error}"
        _read_checkpoint(run)
        return
    run.config.setdefault("family", run.estimator.family)
    run.config.setdefault("params", run.estimator.get_params(deep=False))


def _read_checkpoint(run: Run) -> None:
    """The model as the last checkpoint has it, for a run that left no model."""
    try:
        arrays, description = RunFolder(run.folder).read_checkpoint()
        entry, blueprint = registry.family(str(run.config["family"])), run.config["blueprint"]
        estimator = entry.estimator()(**{name: _tuples(value) for name, value in run.params.items()})
        shape = outline(estimator.build, blueprint)
        own = {name.removeprefix(_MODEL): array for name, array in arrays.items() if name.startswith(_MODEL)}
        run.estimator = estimator.adopt(from_arrays(shape, own, source=CHECKPOINT), blueprint)
    except Exception:  # there is none, or it is of no use: what was said about the model stands
        return
    step = (description.get("progress") or {}).get("step", "?")
    run.problems["model"] += (
        f" The page shows the checkpoint after step {step}; --resume would continue from there."
    )


def _tuples(value: Any) -> Any:
    """Sequences as tuples, as they were given: JSON only has lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read_progress(run: Run) -> None:
    """The loop's own bookkeeping (how often it rolled back) is in the checkpoint's description."""
    folder = RunFolder(run.folder)
    if not folder.has_checkpoint:
        return
    try:
        _, description = folder.read_checkpoint()
    except FileFormatError:
        return
    progress = description.get("progress")
    run.progress = progress if isinstance(progress, dict) else {}


def _read_rows(run: Run, rows: Any, image_shape: tuple[int, ...] | None) -> None:
    shape = image_shape or run.data.get("image_shape")
    run.description = str(run.data.get("description") or "")
    if rows is not None:
        run.rows, run.rows_are = _some(np.asarray(rows)), "given rows"
    elif run.source:
        try:
            data = datasets.load(run.source, **(run.data.get("options") or {}))
            data = columns.arranged(data, columns.names_of(run.estimator) or run.data.get("feature_names"))
        except Exception as error:
            run.problems["data"] = f"The data could not be loaded again: {error}"
        else:
            run.rows, run.rows_are, run.labels = _held_out(data)
            run.training = _some(data.X)
            _read_names(run, data)
            run.description = run.description or data.description
            shape = shape or data.image_shape
    else:
        run.problems["data"] = f"{CONFIG} does not name the data, so they cannot be loaded again."
    run.image_shape = tuple(int(side) for side in shape) if shape else None
    _check_columns(run)


def _check_columns(run: Run) -> None:
    wanted = None if run.estimator is None else run.estimator.n_features_in_
    if run.rows is not None and wanted is not None and (run.rows.ndim != 2 or run.rows.shape[1] != wanted):
        run.problems["data"] = f"The data have shape {run.rows.shape}, but the model takes {wanted} features."
        run.rows = None
    if run.training is not None and wanted is not None and run.training.shape[1] != wanted:
        run.training = run.training_names = run.names = run.named_rows = None
    if run.image_shape is not None and wanted is not None and int(np.prod(run.image_shape)) != wanted:
        run.image_shape, run.part_shape = None, run.image_shape


def _read_names(run: Run, data: datasets.Dataset) -> None:
    """Labels that are words, nearly all of them different, name the rows."""
    if data.y is None or np.asarray(data.y).dtype.kind not in "UO" or not len(data.y):
        return
    if len(set(map(str, data.y))) > 0.9 * len(data.y):
        run.names, run.named_rows = np.asarray(data.y)[:MOST_NAMED], np.asarray(data.X[:MOST_NAMED])
        run.training_names = _some(np.asarray(data.y))


def _held_out(data: datasets.Dataset) -> tuple[np.ndarray, str, np.ndarray | None]:
    """(rows, what they are, their labels)."""
    if data.X_test is not None:
        return _some(data.X_test), "held-out rows", None if data.y_test is None else _some(np.asarray(data.y_test))
    return _some(data.X), "training rows", None if data.y is None else _some(np.asarray(data.y))


def _some(rows: np.ndarray) -> np.ndarray:
    """At most ``MOST_ROWS`` of the rows, evenly spaced."""
    if len(rows) > MOST_ROWS:
        rows = rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(int)]
    return np.asarray(rows)
