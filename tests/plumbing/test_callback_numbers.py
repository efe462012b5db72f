"""What callbacks, logs and progress are told equals the history: each row once, at its step and epoch."""

from __future__ import annotations

import json
import sys
import types

import numpy as np
import pytest

from latentia import RBM, callbacks
from latentia.callbacks.logger import Logger
from latentia.estimator import fits
from latentia.learning import progress

X = (np.random.default_rng(0).random((50, 6)) < 0.4).astype(np.float32)
# Chunks of three steps, of 20 of the 50 rows each: 1.2 epochs, so that steps, chunks and epochs are told apart.
SMALL = {"n_components": 3, "n_epochs": 6, "batch_size": 20, "random_state": 0}
STEPS = [3, 6, 9, 12, 15]


class Log(Logger):
    """Remembers what was written, at which step, over several fits."""

    kind = "log"

    def __init__(self, rows):
        super().__init__(pictures=())
        self.rows, self.last = rows, {}

    def __deepcopy__(self, memo):
        return self

    def _open(self, estimator, place):
        return place or "here"

    def _write_parameters(self, parameters):
        pass

    def _write_metrics(self, metrics, step):
        self.rows.append({"step": step, **metrics})

    def _write_picture(self, name, figure, step):
        pass

    def _close(self, numbers, outcome):
        self.last = numbers

    def _last_step(self, metric):
        return max((row["step"] for row in self.rows if metric in row), default=-1)


class Watch:
    """Copies every event; presses Ctrl-C after so many."""

    def __init__(self, most=100):
        self.events, self.most = [], most

    def __call__(self, event):
        history = [dict(row) for row in event.history]
        self.events.append((event.step, event.n_steps, event.epoch, dict(event.metrics), history, event.stage))
        if len(self.events) == self.most:
            raise KeyboardInterrupt


class Screen:
    """A display that remembers."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        return lambda *args: self.calls.append((name, *args))


def interrupted_and_resumed(folder, monkeypatch):
    """(estimator, events, log, displays) of a run that was interrupted after two chunks."""
    rows, screens, watches = [], [], [Watch(2), Watch()]
    monkeypatch.setattr(fits, "display", lambda *_: screens.append(Screen()) or screens[-1])
    fit = lambda watch: RBM(**SMALL, run_dir=folder, resume=True, callbacks=[Log(rows), watch]).fit(X)  # noqa: E731
    with pytest.raises(KeyboardInterrupt):
        fit(watches[0])
    return fit(watches[1]), [watch.events for watch in watches], rows, [screen.calls for screen in screens]


def test_every_chunk_is_told_once_also_after_a_resume(tmp_path, monkeypatch):
    rbm, (first, second), logged, screens = interrupted_and_resumed(tmp_path / "run", monkeypatch)
    history = rbm.history_
    assert [row["step"] for row in history] == STEPS
    assert [row["epoch"] for row in history] == pytest.approx([20 * step / 50 for step in STEPS])
    assert [each[0] for each in first] == STEPS[:2]
    for place, (step, n_steps, epoch, metrics, so_far, stage) in enumerate(first + second):
        row = dict(history[place])
        assert (row.pop("step"), row.pop("epoch")) == (step, epoch)
        assert row.pop("seconds") == so_far[-1]["seconds"]
        assert metrics == row
        assert so_far == history[: place + 1]
        assert (n_steps, stage) == (15, "")
    assert len(first + second) == len(history)
    assert logged == history
    file = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in file] == history
    updates = [call[1:] for call in screens[0] + screens[1] if call[0] == "update"]
    assert [step for step, _ in updates] == STEPS
    assert [metrics for _, metrics in updates] == [each[3] for each in first + second]
    assert [next(call for call in calls if call[0] == "start") for calls in screens] == [
        ("start", 15, 0),
        ("start", 15, 6),
    ]
    assert len(np.unique([row["energy_gap"] for row in history])) == 5


def test_further_passes_count_steps_epochs_and_seconds_on():
    rows = []
    rbm, passes = RBM(**SMALL, callbacks=[Log(rows)]), []
    for _ in range(3):
        rbm.partial_fit(X)
        passes.append([dict(row) for row in rbm.history_])
    assert [row["step"] for row in rows] == STEPS[:3]
    assert [row["epoch"] for row in rows] == pytest.approx([1.2, 2.4, 3.6])
    taken = [row["seconds"] for each in passes for row in each]
    assert [row["seconds"] for row in rows] == pytest.approx(np.cumsum(taken))
    for row, told in zip(rows, [row for each in passes for row in each], strict=True):
        assert {k: row[k] for k in row if k not in ("step", "epoch", "seconds")} == {
            k: told[k] for k in told if k not in ("step", "epoch", "seconds")
        }
    rbm.fit(X)  # a new fit begins anew
    assert rows[3:] == rbm.history_
    (log,) = rbm.callbacks
    assert log.last == {
        "fit_seconds": rbm.fit_seconds_,
        "compile_seconds": rbm.compile_seconds_,
        "n_steps": rbm.n_steps_,
    }
    assert rbm.n_steps_ == 15
    assert rbm.fit_seconds_ == rbm.history_[-1]["seconds"]


@pytest.mark.parametrize("options", [{"averaging": 0.9}, {"early_stopping": True, "learning_rate": 3.0}, {}])
def test_pictures_on_the_way_are_of_the_model_that_the_run_would_leave(options, monkeypatch):
    """The averaged model, or the best so far: the last ones are those of the fitted estimator."""
    drawn, events = [], []
    draw = lambda self, estimator, step: drawn.append(np.asarray(estimator.model_.weights))  # noqa: E731
    watch = lambda event: events.append(np.asarray(event.model.weights))  # noqa: E731
    monkeypatch.setattr(Log, "_draw", draw)
    log = Log([])
    log.every = 1
    rbm = RBM(**{**SMALL, "patience": 3, **options}, callbacks=[log, watch]).fit(X)
    np.testing.assert_array_equal(drawn[-1], rbm.model_.weights)
    assert len(drawn) == len(events) == len(rbm.history_)
    same = [np.array_equal(one, other) for one, other in zip(drawn, events, strict=True)]
    assert all(same) == (not options)


# -- packages in disguise --------------------------------------------------------------------------------------


def mlflow(monkeypatch):
    """(the callback, what was written)."""
    rows: dict = {}

    class Client:
        def __init__(self, **_):
            pass

        def create_run(self, *_, **__):
            return types.SimpleNamespace(info=types.SimpleNamespace(run_id="a"))

        def log_batch(self, place, metrics=(), params=()):
            for name, value, _, step in metrics:
                rows.setdefault(step, []).append((name, value))

        def __getattr__(self, name):
            return lambda *_, **__: types.SimpleNamespace(experiment_id="b")

    entities = types.SimpleNamespace(Metric=lambda *args: args, Param=lambda *args: args)
    fake = types.SimpleNamespace(MlflowClient=Client, MlflowException=RuntimeError, entities=entities)
    monkeypatch.setitem(sys.modules, "mlflow", fake)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return callbacks.MLflow(pictures=()), rows


def wandb(monkeypatch):
    rows, axes = {}, []

    class Run:
        id, config, summary = "a", types.SimpleNamespace(update=lambda _: None), {}

        def log(self, row):
            (axis,) = (name for name in row if name.rpartition("/")[2] == "step")
            rows.setdefault(row[axis], []).extend((k, v) for k, v in row.items() if k != axis)

        def define_metric(self, name, step_metric):
            axes.append((name, step_metric))

        def finish(self, exit_code):
            rows[15] += self.summary.items()
            rows[15].remove(("outcome", "finished"))
            assert ("*", "step") in axes

    errors = types.SimpleNamespace(Error=RuntimeError)
    fake = types.SimpleNamespace(init=lambda **_: Run(), errors=errors, Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    return callbacks.WeightsAndBiases(pictures=()), rows


@pytest.mark.parametrize("package", [mlflow, wandb])
def test_packages_get_the_history(package, monkeypatch):
    log, rows = package(monkeypatch)
    rbm = RBM(**SMALL, callbacks=[log]).fit(X)
    assert sorted(rows) == STEPS
    for row in rbm.history_:
        told = [
            entry for entry in rows[row["step"]] if entry[0] not in ("fit_seconds", "compile_seconds", "n_steps")
        ]
        assert sorted(told) == sorted((name, value) for name, value in row.items() if name != "step")
    ends = {"fit_seconds": rbm.fit_seconds_, "compile_seconds": rbm.compile_seconds_, "n_steps": 15}
    assert {name: value for name, value in rows[15] if name in ends} == ends


# -- the screen ------------------------------------------------------------------------------------------------


def test_lines_hold_the_metrics_of_their_chunk(capsys):
    rbm = RBM(**SMALL, verbose=2).fit(X)
    *lines, last = capsys.readouterr().err.splitlines()
    for line, row in zip(lines, rbm.history_, strict=True):
        shown = [f"{name} {value:.4g}" for name, value in row.items()]
        wanted = [each for each in shown if each.split()[0] not in ("step", "epoch", "seconds", "gradient_norm")]
        assert line == "  ".join([f"RBM  {row['step']:>2}/15", *wanted])
    assert last.startswith("RBM  15/15  in ")


def test_the_bar_stands_where_the_run_does():
    from rich.console import Console

    with open("/dev/null", "w") as nowhere:
        bar = progress.Bar("RBM", console=Console(file=nowhere, force_terminal=True, width=120))
        bar.start(15, 6)
        (task,) = bar._progress.tasks
        assert (task.completed, task.total) == (6, 15)
        for step in (9, 12):
            bar.update(step, {"loss": step / 8, "gradient_norm": 3.0})
            assert (task.completed, task.fields["metrics"]) == (step, f"loss {step / 8:.4g}")
        bar.stop()
