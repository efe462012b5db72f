"""The run folder: one module names its files, one process writes them, and whatever is written is whole."""

from __future__ import annotations

import ast
import contextlib
import errno
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import jax
import numpy as np
import pytest
from click.testing import CliRunner
from plumbing_tools import through_interruptions

import latentia
from latentia import RBM, callbacks
from latentia.cli import cli
from latentia.core import locks, run_folder
from latentia.core.errors import RunFolderError
from latentia.core.run_folder import RunFolder, held
from latentia.report.runs import read_run

ROOT = Path(latentia.__file__).parent
NAMES = [value for name, value in vars(run_folder).items() if name.isupper() and name[0] != "_"]
SMALL = {"n_components": 3, "n_epochs": 3, "batch_size": 10, "random_state": 0, "learning_rate": 0.01}
needs_locks = pytest.mark.skipif(locks.fcntl is None, reason="this system has no flock")


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return (np.random.default_rng(0).random((40, 6)) < 0.4).astype(np.float32)


def rows(folder: Path) -> list[dict]:
    return RunFolder(folder).read_metrics()


# -- names -----------------------------------------------------------------------------------------


def test_no_other_module_names_a_file_of_a_run_folder():
    """Docstrings may; anything that a program could use as a path may not."""
    patterns = [re.escape(name) + r"(?!\.?\w)" for name in NAMES]
    patterns += [re.escape(run_folder._STAGE), f"^{re.escape(run_folder._LOCK)}$"]
    assert len(patterns) == 11
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        if path == Path(run_folder.__file__):
            continue
        tree = ast.parse(path.read_text())
        docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
                named = any(re.search(pattern, node.value) for pattern in patterns)
                found += [f"{path.relative_to(ROOT)}:{node.lineno} {node.value!r}"] if named else []
    assert not found


def test_the_names_are_those_that_folders_have_had(tmp_path):
    folder = RunFolder.of(str(tmp_path))
    paths = [folder.config, folder.metrics, folder.checkpoint, folder.model, folder.evaluation, folder.logs]
    names = ["config.json", "metrics.jsonl", "checkpoint.safetensors", "model.safetensors", "evaluation.json"]
    assert paths == [tmp_path / name for name in [*names, "logs.json"]]
    assert (folder.report, folder.tensorboard) == (tmp_path / "report.html", tmp_path / "tensorboard")
    assert folder.stage(2).path == tmp_path / "pretraining" / "stage-2"
    folder.write_finetuning({})
    folder.write_encoder({})
    assert sorted(path.name for path in tmp_path.iterdir()) == ["encoder.json", "finetuning.json"]


def test_how_far_a_run_is(tmp_path):
    folder = RunFolder(tmp_path / "run")
    told = lambda: (folder.is_empty, folder.is_run, folder.is_begun, folder.has_checkpoint, folder.is_complete)  # noqa: E731
    assert told() == (True, False, False, False, False)
    folder.write_config({"family": "rbm"})
    assert told() == (False, True, False, False, False)
    folder.stage(1).write_checkpoint({}, {})
    assert told() == (False, True, True, False, False)
    folder.write_checkpoint({}, {})
    assert told() == (False, True, True, True, False)
    folder.write_model({}, {})
    assert told() == (False, True, True, True, True)


# -- one run at a time -----------------------------------------------------------------------------

HOLDS = """
import sys
from pathlib import Path
from latentia.core.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])).held():
    print("held", flush=True)
    sys.stdin.readline()
"""


def script(code: str, *words: object, **options) -> subprocess.Popen:
    command = [sys.executable, "-c", code, *map(str, words)]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, **options)


@contextlib.contextmanager
def held_elsewhere(folder: Path) -> Iterator[subprocess.Popen]:
    process = script(HOLDS, folder)
    try:
        assert process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.communicate()


@needs_locks
def test_a_second_process_is_refused_until_the_first_ends(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with held_elsewhere(folder.path) as process:
        for _ in range(2):
            said = f"Another run is writing to .*process {process.pid} .*choose another run_dir"
            with pytest.raises(RunFolderError, match=said), folder.held():
                pytest.fail("two at a time")
        for resume in (False, True):  # --resume must not be what is advised
            with pytest.raises(RunFolderError, match=said):
                folder.refuse(resume=resume)
        process.communicate("go\n", timeout=30)
    assert not folder.path.exists()  # it was made for the run, which left nothing in it
    with folder.held():
        assert folder.path.is_dir()


@needs_locks
def test_a_killed_process_holds_nothing(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with held_elsewhere(folder.path) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert [path.name for path in folder.path.iterdir()] == [".lock"]
    assert folder.is_empty
    folder.refuse(resume=False)
    with folder.held():
        folder.write_config({})
    assert [path.name for path in folder.path.iterdir()] == ["config.json"]


COUNTS = """
import sys
from pathlib import Path
from latentia.core.errors import RunFolderError
from latentia.core.run_folder import RunFolder
folder, left = RunFolder(Path(sys.argv[1])), 100
counter = folder.path.parent / "counter"
while left:
    try:
        with folder.held():
            counter.write_text(str(int(counter.read_text()) + 1))
            left -= 1
    except RunFolderError:
        pass
"""


@needs_locks
def test_processes_that_compete_never_hold_it_together(tmp_path):
    """The lock's file and its folder go and come back all the time, which must let nobody in beside another."""
    (tmp_path / "counter").write_text("0")
    processes = [script(COUNTS, tmp_path / "run") for _ in range(3)]
    for process in processes:
        process.communicate(timeout=60)
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert (tmp_path / "counter").read_text() == "300"


FORKS = """
import os, subprocess, sys
from pathlib import Path
from latentia.core.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
with folder.held():
    child = os.fork()
    if not child:
        try:
            with folder.held():
                os._exit(1)
        except OSError:
            pass
        raise SystemExit  # through the context of its parent
    assert os.waitpid(child, 0)[1] == 0
    assert (folder.path / ".lock").is_file()
    code = "from latentia.core.run_folder import *; RunFolder(Path(sys.argv[1])).refuse(resume=True)"
    assert subprocess.run([sys.executable, "-c", code, sys.argv[1]], stderr=subprocess.DEVNULL).returncode
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_fork_neither_holds_the_lock_nor_gives_it_back(tmp_path):
    process = script(FORKS, tmp_path / "run", stderr=subprocess.PIPE)
    assert process.communicate(timeout=30)[1] == ""
    assert process.returncode == 0


@pytest.mark.parametrize("system", ["with locks", "without"])
def test_one_thread_may_hold_it_twice_and_two_may_not(tmp_path, monkeypatch, system):
    if system == "without":
        monkeypatch.setattr(locks, "fcntl", None)
    folder, refused = RunFolder(tmp_path / "run"), []

    def other():
        try:
            with folder.held():
                pass
        except RunFolderError as error:
            refused.append(str(error))

    def turns() -> int:
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        return len(refused)

    with folder.held():
        with held(str(tmp_path / "else" / ".." / "run")):  # the same, by another name
            assert turns() == 1
        assert turns() == 2
        assert folder.path.is_dir()
    assert turns() == 2
    assert "another thread" in refused[0]
    assert not folder.path.exists()


def test_only_an_empty_folder_that_was_made_for_the_run_goes(tmp_path):
    RunFolder(tmp_path / "old").path.mkdir()
    for name in ("old", "new", "full"):
        folder = RunFolder(tmp_path / name)
        with pytest.raises(KeyError), folder.held():
            if name == "full":
                folder.write_config({})
            raise KeyError
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "old"]
    (tmp_path / "file").touch()
    with pytest.raises(RunFolderError, match="is a file, not a folder"), RunFolder(tmp_path / "file").held():
        pass
    with pytest.raises(RunFolderError, match="Could not write"), RunFolder(tmp_path / "file" / "run").held():
        pass


@needs_locks
def test_a_fit_is_refused_while_another_writes_and_harms_nothing(X, tmp_path):
    run = tmp_path / "run"
    RBM(**SMALL, run_dir=run).fit(X)
    before = {path.name: path.read_bytes() for path in run.iterdir()}
    np.save(tmp_path / "rows.npy", X)
    with held_elsewhere(run):
        for resume in (False, True):
            with pytest.raises(RunFolderError, match="Another run is writing"):
                RBM(**SMALL, run_dir=run, resume=resume).fit(X)
        words = ["fit", "rbm", str(tmp_path / "rows.npy"), "--out", str(run), "--resume"]
        result = CliRunner().invoke(cli, words, prog_name="latentia")
        assert (result.exit_code, "Another run is writing" in result.output) == (2, True)
        left = {path.name: path.read_bytes() for path in run.iterdir() if path.name != ".lock"}
    assert left == before


def test_the_lock_lasts_as_long_as_the_fit_and_no_longer(X, tmp_path):
    seen = []

    class Looks(callbacks.Callback):
        def look(self):
            thread = threading.Thread(target=lambda: seen.append(locks.holder(tmp_path / "run" / ".lock")))
            thread.start()
            thread.join()

        def begin(self, estimator, *, goes_on=False):
            self.look()

        def __call__(self, event):
            self.look()

        def end(self, estimator, outcome):
            self.look()
            assert outcome == "finished"

    RBM(**SMALL, run_dir=tmp_path / "run", callbacks=[Looks()]).fit(X)
    assert seen == ["another thread of this process"] * 5
    assert locks.holder(tmp_path / "run" / ".lock") is None
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == sorted(
        ["checkpoint.safetensors", "config.json", "metrics.jsonl", "model.safetensors"]
    )


# -- whole or not at all ---------------------------------------------------------------------------

VALUES = {"value": np.ones(3)}
WRITERS = {
    "config.json": lambda folder, n: folder.write_config({"n": n}),
    "evaluation.json": lambda folder, n: folder.write_evaluation({"n": n}),
    "finetuning.json": lambda folder, n: folder.write_finetuning({"n": n}),
    "encoder.json": lambda folder, n: folder.write_encoder({"n": n}),
    "logs.json": lambda folder, n: folder.write_logs({"n": str(n)}),
    "metrics.jsonl": lambda folder, n: folder.write_metrics([{"step": n}]),
    "checkpoint.safetensors": lambda folder, n: folder.write_checkpoint(VALUES, {"n": n}),
    "model.safetensors": lambda folder, n: folder.write_model(VALUES, {"n": n}),
}


@pytest.mark.parametrize("call", ["fsync", "replace"])
@pytest.mark.parametrize("name", WRITERS)
def test_a_write_that_fails_leaves_the_old_file(name, call, tmp_path, monkeypatch):
    WRITERS[name](RunFolder(tmp_path), 1)
    before = (tmp_path / name).read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, full)
        with pytest.raises(RunFolderError, match=r"disk is full.*untouched"):
            WRITERS[name](RunFolder(tmp_path), 2)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {name: before}
    WRITERS[name](RunFolder(tmp_path), 2)
    assert (tmp_path / name).read_bytes() != before


APPENDS = """
import sys
from pathlib import Path
from latentia.core.run_folder import RunFolder
folder = RunFolder(Path(sys.argv[1]))
folder.write_metrics()
for step in range(10 ** 6):
    folder.append_metrics({"step": step, "more": "x" * 200})
    print(step, flush=True)
"""


def test_rows_survive_the_kill_of_their_writer(tmp_path):
    process = script(APPENDS, tmp_path)
    told = [process.stdout.readline() for _ in range(50)]
    process.kill()
    process.communicate()
    steps = [row["step"] for row in rows(tmp_path)]
    assert steps == list(range(len(steps)))
    assert len(steps) >= len(told)


def test_half_a_line_is_passed_over_and_the_next_begins_its_own(tmp_path):
    folder = RunFolder(tmp_path)
    folder.write_metrics([{"step": 1}])
    with folder.metrics.open("a") as file:
        file.write('{"step": 2, "ene')
    assert rows(tmp_path) == [{"step": 1}]
    assert read_run(tmp_path).history == [{"step": 1}]
    folder.append_metrics({"step": 3})
    folder.append_metrics({"step": 4})
    assert rows(tmp_path) == [{"step": 1}, {"step": 3}, {"step": 4}]
    folder.write_metrics([{"step": 1}])
    assert folder.metrics.read_text() == '{"step": 1}\n'


def test_a_row_that_cannot_be_written_says_why(tmp_path):
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(RunFolderError, match="Could not write .*metrics"):
        folder.append_metrics({"step": 1})


# -- several processes that train together ---------------------------------------------------------


def test_other_processes_write_nothing(X, tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    folder = RunFolder(tmp_path / "run")
    for write in WRITERS.values():
        write(folder, 1)
    folder.append_metrics({"step": 1})
    with folder.held():
        folder.begin({}, resume=False)
    words = {"run_dir": tmp_path / "run", "callbacks": [lambda event: seen.append(event.step) and None]}
    seen: list[int] = []
    RBM(**SMALL, **words).fit(X)
    assert len(seen) == 3
    assert list(tmp_path.iterdir()) == []


def test_other_processes_join_a_run_that_the_first_has_begun(X, tmp_path, monkeypatch):
    """They do not refuse its folder, remove nothing, and may resume from its checkpoint."""
    first = RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    before = {path: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    RBM(**SMALL, run_dir=tmp_path / "run").fit(X)
    RunFolder(tmp_path / "run").remove_description()
    resumed = RBM(**SMALL, run_dir=tmp_path / "run", resume=True).fit(X)
    assert resumed.history_ == first.history_
    assert {path: path.read_bytes() for path in (tmp_path / "run").iterdir()} == before


# -- the order of a row's names --------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True], ids=["with its lines", "without them"])
def test_rows_have_their_names_in_one_order_also_after_resuming(X, tmp_path, lost):
    whole = RBM(**SMALL).fit(X)
    found = {}

    def go_on(resume: bool) -> None:
        if resume and lost:
            (tmp_path / "run" / "metrics.jsonl").unlink()
        stop = _StopsAt(2)
        found["rbm"] = RBM(**SMALL, run_dir=tmp_path / "run", resume=resume, callbacks=[stop]).fit(X)

    assert through_interruptions(go_on) == 1
    wanted = [list(row) for row in whole.history_]
    assert wanted[0][:3] == ["step", "epoch", "seconds"]
    assert [list(row) for row in rows(tmp_path / "run")] == wanted
    assert [list(row) for row in found["rbm"].history_] == wanted


class _StopsAt:
    """Interrupts after so many chunks of a run that begins."""

    def __init__(self, chunk: int):
        self.chunk = chunk

    def __call__(self, event):
        if len(event.history) == self.chunk:
            raise KeyboardInterrupt


def test_a_checkpoint_with_sorted_names_is_put_into_the_order_of_the_lines(tmp_path):
    """Earlier releases wrote such ones."""
    folder = RunFolder(tmp_path)
    lines = [{"step": 1, "seconds": 0.5, "a": 1.0}, {"step": 2, "seconds": 0.7, "a": 2.0, "c": 1.0}]
    folder.write_metrics(lines)
    past = [dict(sorted(row.items())) for row in [*lines, {"step": 3, "b": 2.0}]]
    found = folder.ordered(past)
    assert found == past
    assert [list(row) for row in found] == [*(list(line) for line in lines), ["b", "step"]]
    assert json.loads(folder.metrics.read_text().splitlines()[0]) == lines[0]
    assert RunFolder(tmp_path / "none").ordered(past) == past
