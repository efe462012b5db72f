"""The run folder: the names of its files, and the one place that writes and reads them.

All files of a training run are in one folder:

============================  ============================================================================
``config.json``               family, parameters, blueprint; from the command line also data, times, machine
``metrics.jsonl``             a line of JSON after every chunk of steps
``checkpoint.safetensors``    the state from which a run is resumed
``model.safetensors``         the fitted estimator, once training has ended
``evaluation.json``           the result of an evaluation
``finetuning.json``           the settings of a fine-tuning
``encoder.json``              the settings of an encoder's training
``logs.json``                 where the logs of other services are
``report.html``               the report
``pretraining/stage-N``       a folder of the same kind for each stage before the training proper
============================  ============================================================================

A file is replaced at once or not at all (:mod:`latentia.core.atomic`). Only ``metrics.jsonl`` grows: a process that
is killed leaves at most half a line at its end, which reading passes over.

Only one process writes. Of several processes that train together it is the first one; in the others the same calls
do nothing. Two runs cannot write to one folder at the same time: the second is refused (:meth:`RunFolder.held`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from latentia.core import locks
from latentia.core.atomic import explained, write_atomically, write_json
from latentia.core.errors import FileFormatError, RunFolderError

CONFIG = "config.json"
METRICS = "metrics.jsonl"
CHECKPOINT = "checkpoint.safetensors"
MODEL = "model.safetensors"
EVALUATION = "evaluation.json"
FINETUNING = "finetuning.json"
ENCODER = "encoder.json"
LOGS = "logs.json"
REPORT = "report.html"
_TENSORBOARD = "tensorboard"
_STAGES, _STAGE = "pretraining", "stage-"
_LOCK = ".lock"


@dataclasses.dataclass(frozen=True)
class RunFolder:
    """A run folder, which need not exist yet.

    Args:
        path: where it is.
    """

    path: Path

    @classmethod
    def of(cls, place: RunFolder | str | os.PathLike[str]) -> RunFolder:
        """The run folder at a path; a run folder as it is."""
        return place if isinstance(place, RunFolder) else cls(Path(place))

    # -- files ---------------------------------------------------------------------------------------------

    @property
    def config(self) -> Path:
        """The description of the run."""
        return self.path / CONFIG

    @property
    def metrics(self) -> Path:
        """The metrics, a line for every chunk."""
        return self.path / METRICS

    @property
    def checkpoint(self) -> Path:
        """The state from which a run is resumed."""
        return self.path / CHECKPOINT

    @property
    def model(self) -> Path:
        """The fitted estimator."""
        return self.path / MODEL

    @property
    def evaluation(self) -> Path:
        """The result of an evaluation."""
        return self.path / EVALUATION

    @property
    def logs(self) -> Path:
        """Where the logs of other services are."""
        return self.path / LOGS

    @property
    def tensorboard(self) -> Path:
        """The folder of the log for TensorBoard."""
        return self.path / _TENSORBOARD

    @property
    def report(self) -> Path:
        """The report."""
        return self.path / REPORT

    @property
    def pictures(self) -> list[Path]:
        """Pictures that the run left."""
        return sorted(self.path.glob("*.png"))

    def stage(self, number: int) -> RunFolder:
        """The folder of a stage before the training proper, counted from 1."""
        return RunFolder(self.path / _STAGES / f"{_STAGE}{number}")

    # -- how far the run is --------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it, or no such folder; what a killed process left of its lock is nothing."""
        return not self.path.is_dir() or all(entry.name == _LOCK for entry in self.path.iterdir())

    @property
    def is_run(self) -> bool:
        """Whether a run left something in it."""
        return any(path.is_file() for path in (self.config, self.metrics, self.model))

    @property
    def is_complete(self) -> bool:
        """Whether training has ended and written its model."""
        return self.model.is_file()

    @property
    def has_checkpoint(self) -> bool:
        """Whether there is something to resume."""
        return self.checkpoint.is_file()

    @property
    def is_begun(self) -> bool:
        """Whether there is something to resume, also of a run that never came to its last stage."""
        return self.has_checkpoint or any(self.path.glob(f"{_STAGES}/*/{CHECKPOINT}"))

    @property
    def writes(self) -> bool:
        """Whether this process writes: alone, or the first of several that train together."""
        jax = sys.modules.get("jax")  # a process without JAX is alone, and need not wait for its import
        return jax is None or jax.process_index() == 0

    # -- opening -------------------------------------------------------------------------------------------

    def refuse(self, *, resume: bool, option: str = "run_dir", resuming: str = "resume=True (--resume)") -> None:
        """Refuse what cannot become the folder of a run.

        Args:
            resume: whether to continue the run in the folder, if any.
            option: what the folder is chosen by, for the message.
            resuming: what ``resume`` is set by, for the message.
        """
        if not self.writes:  # whoever writes may have begun already, and refuses for all
            return
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file, not a folder. Choose another {option}.")
        owner = locks.holder(self.path / _LOCK)
        if owner is not None:
            raise RunFolderError(self._busy(owner))
        if not resume and not self.is_empty:
            raise RunFolderError(
                f"The run folder {self.path} exists already and is not empty. Choose another {option}, or pass "
                f"{resuming} to go on with the run in it."
            )

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Make the folder, and keep other runs out of it for as long as the context lasts.

        Contexts may lie in one another. A folder that was made here and has nothing in it at the end is removed.
        """
        if not self.writes:
            yield
            return
        if self.path.exists() and not self.path.is_dir():
            raise RunFolderError(f"{self.path} is a file, not a folder. Choose another run_dir.")
        lock, made = self.path / _LOCK, not self.path.exists()
        with contextlib.ExitStack() as stack:
            if made:
                stack.callback(self._remove_if_empty)
            with explained(lock):
                try:
                    stack.enter_context(locks.locked(lock))
                except locks.Busy as error:
                    raise RunFolderError(self._busy(str(error))) from error
            yield

    def begin(self, description: Mapping[str, Any], *, resume: bool) -> None:
        """Describe a new run, or find the one to continue, whose description is kept."""
        self.refuse(resume=resume)
        if not (resume and self.is_begun):
            self.write_config(description)

    def _busy(self, owner: str) -> str:
        return (
            f"Another run is writing to {self.path} ({owner}). Wait until it has ended, stop it, or choose another "
            "run_dir (--out)."
        )

    def _remove_if_empty(self) -> None:
        with contextlib.suppress(OSError):  # it is not empty
            self.path.rmdir()

    # -- writing -------------------------------------------------------------------------------------------

    def write_config(self, description: Mapping[str, Any]) -> None:
        """Replace the description of the run."""
        self._write_json(CONFIG, description)

    def write_evaluation(self, result: Mapping[str, Any]) -> None:
        """Replace the result of the evaluation."""
        self._write_json(EVALUATION, result)

    def write_finetuning(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the fine-tuning."""
        self._write_json(FINETUNING, settings)

    def write_encoder(self, settings: Mapping[str, Any]) -> None:
        """Replace the settings of the encoder's training."""
        self._write_json(ENCODER, settings)

    def write_logs(self, places: Mapping[str, str]) -> None:
        """Replace what is known of logs elsewhere."""
        self._write_json(LOGS, places)

    def write_model(self, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
        """Replace the fitted estimator."""
        self._write_arrays(self.model, arrays, description)

    def write_checkpoint(self, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
        """Replace the checkpoint."""
        self._write_arrays(self.checkpoint, arrays, description)

    def write_metrics(self, rows: Sequence[Mapping[str, Any]] = ()) -> None:
        """Begin the metrics anew, with the rows that there are already."""
        if self.writes:
            write_atomically(self.metrics, "".join(map(_line, rows)).encode())

    def append_metrics(self, row: Mapping[str, Any]) -> None:
        """One more row of metrics, which survives a kill of the process (and a loss of power in the checkpoint)."""
        if not self.writes:
            return
        with explained(self.metrics), self.metrics.open("ab+") as file:
            if file.tell():
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")  # the rest of a line that could not be written
            file.write(_line(row).encode())

    def remove_description(self) -> None:
        """Remove what a run that learned nothing wrote."""
        if self.writes:
            for path in (self.config, self.metrics):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)

    def _write_json(self, name: str, value: Any) -> None:
        if self.writes:
            write_json(self.path / name, value)

    def _write_arrays(self, path: Path, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
        from latentia.core.files import (
            write_arrays,  # imports NumPy, which who only looks for files need not wait for
        )

        if self.writes:
            write_arrays(path, arrays, description)

    # -- reading -------------------------------------------------------------------------------------------

    def read_config(self) -> dict[str, Any]:
        """The description of the run; empty if there is none."""
        if not self.config.is_file():
            return {}
        try:
            config = json.loads(self.config.read_text(encoding="utf-8"))
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise FileFormatError(
                f"{self.config} is not JSON ({error}). It may be cut off; restore a copy."
            ) from error
        if not isinstance(config, dict):
            raise FileFormatError(f"{self.config} does not hold settings. Restore a copy.")
        return config

    def read_metrics(self) -> list[dict[str, Any]]:
        """The rows of metrics, without lines that are not complete; an ``OSError`` where there is no such file."""
        rows = []
        for line in self.metrics.read_text(encoding="utf-8").splitlines():
            try:
                row = json.loads(line)
            except ValueError:  # a run that was killed may leave half a line
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows

    def read_checkpoint(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(arrays, description) of the checkpoint."""
        from latentia.core.files import read_arrays

        return read_arrays(self.checkpoint)

    def read_logs(self) -> dict[str, str]:
        """Where logs elsewhere are, by the kind of log; empty if that is not known."""
        try:
            found = json.loads(self.logs.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}

    def ordered(self, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
        """Rows of a checkpoint with their names in the order of the lines: earlier releases sorted them there."""
        try:
            lines = {row.get("step"): row for row in self.read_metrics()}
        except (OSError, ValueError):
            lines = {}
        found = []
        for row in rows:
            line = lines.get(row.get("step"), row)
            found.append({name: row[name] for name in line} if set(line) == set(row) else row)
        return found


@contextlib.contextmanager
def held(place: RunFolder | str | os.PathLike[str] | None) -> Iterator[RunFolder | None]:
    """:meth:`RunFolder.held` of the folder at a path; nothing for a run without one."""
    if place is None:
        yield None
        return
    folder = RunFolder.of(place)
    with folder.held():
        yield folder


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row) + "\n"
