"""What logs are told and when, whatever becomes of the run; without any of the packages that they write with."""

from __future__ import annotations

import copy
import functools
import json
import shutil
import sys
import types

import numpy as np
import pytest
from sklearn.base import clone

from latentia import DBN, RBM, callbacks
from latentia.callbacks.logger import MEMORY, Logger
from latentia.core.errors import DivergenceError, MissingPackageError, ParameterError, UnknownNameError
from latentia.estimator import training
from latentia.estimator.callbacks import Callback, told
from latentia.estimator.rows_to_learn import LearningRows
from latentia.learning.fit import Event

X = (np.random.default_rng(0).random((40, 36)) < 0.4).astype(np.float32)
SMALL = {"n_components": 3, "n_epochs": 6, "batch_size": 20, "random_state": 0, "monitor": None}


class Fake(Logger):
    """A log in a dictionary that outlives copies of the callback."""

    kind = "fake"

    def __init__(self, logs=None, fail=(), **options):
        super().__init__(**options)
        self.logs, self.fail = {} if logs is None else logs, fail

    def __deepcopy__(self, memo):
        return copy.copy(self)  # what clone makes; the log itself stays the same

    def _open(self, estimator, place):
        if "open" in self.fail:
            raise ParameterError("no such server")
        place = place or f"log {len(self.logs) + 1}"
        self.logs.setdefault(place, {"steps": [], "rows": [], "pictures": [], "closed": [], "parameters": []})
        return place

    @property
    def log(self):
        return self.logs[self._place]

    def _write_parameters(self, parameters):
        self.log["parameters"].append(parameters)

    def _write_metrics(self, metrics, step):
        if "write" in self.fail:
            raise OSError("disk full")
        self.log["steps"].append(step)
        self.log["rows"].append(metrics)

    def _write_picture(self, name, figure, step):
        self.log["pictures"].append((name, step, len(figure.axes)))

    def _close(self, numbers, outcome):
        self.log["closed"].append((numbers, outcome))
        if "close" in self.fail:
            raise OSError("connection lost")

    def _last_step(self, metric):
        steps = [s for s, row in zip(self.log["steps"], self.log["rows"], strict=True) if metric in row]
        return max(steps, default=-1)


def stop_after(n_rows):
    """A Ctrl-C after so many rows."""
    seen = []

    def press(event):
        seen.append(event.step)
        if len(seen) == n_rows:
            raise KeyboardInterrupt

    return press


def test_a_fit_is_logged_from_parameters_to_times():
    fake = Fake()
    rbm = RBM(**SMALL, optimizer="sgd", callbacks=[fake]).fit(X)
    (log,) = fake.logs.values()
    (parameters,) = log["parameters"]
    assert parameters["family"] == "rbm"
    assert parameters["n_features"] == 36
    assert parameters["n_components"] == 3
    assert not {"callbacks", "run_dir", "resume", "verbose"} & set(parameters)
    assert all(isinstance(value, bool | int | float | str) for value in parameters.values())
    assert log["steps"] == [row["step"] for row in rbm.history_]
    for logged, row in zip(log["rows"], rbm.history_, strict=True):
        assert logged == {name: value for name, value in row.items() if name != "step"}
    assert log["pictures"] == [("filters", rbm.n_steps_, 1)]
    ((numbers, outcome),) = log["closed"]
    assert outcome == "finished"
    assert numbers["n_steps"] == rbm.n_steps_
    assert set(numbers) == {"fit_seconds", "compile_seconds", "n_steps"}


def test_every_fit_and_every_copy_has_a_log_of_its_own():
    fake = Fake(pictures=())
    rbm = RBM(**SMALL, callbacks=[fake]).fit(X)
    rbm.fit(X)
    clone(rbm).fit(X)
    assert list(fake.logs) == ["log 1", "log 2", "log 3"]
    assert all(len(log["closed"]) == 1 for log in fake.logs.values())


def test_ctrl_c_closes_the_log_and_a_resumed_run_goes_on_with_it(tmp_path):
    logs, run = {}, tmp_path / "run"

    def fit(*others, resume=True):
        return RBM(**SMALL, run_dir=run, resume=resume, callbacks=[Fake(logs, pictures=()), *others]).fit(X)

    with pytest.raises(KeyboardInterrupt):
        fit(stop_after(2), resume=False)
    assert json.loads((run / MEMORY).read_text()) == {"fake": "log 1"}
    assert logs["log 1"]["closed"] == [({}, "interrupted")]
    kept = tmp_path / "checkpoint"
    shutil.copy(run / "checkpoint.safetensors", kept)
    with pytest.raises(KeyboardInterrupt):
        fit(stop_after(2))
    assert len(logs["log 1"]["steps"]) == 4
    shutil.copy(kept, run / "checkpoint.safetensors")  # as if it had been killed since its last checkpoint
    rbm = fit()
    assert list(logs) == ["log 1"]
    assert logs["log 1"]["steps"] == [row["step"] for row in rbm.history_]  # each once, none missing
    assert len(logs["log 1"]["parameters"]) == 1
    assert [outcome for _, outcome in logs["log 1"]["closed"]] == ["interrupted", "interrupted", "finished"]


@pytest.mark.parametrize("n_rows", [2, 4, 6])
def test_a_run_that_is_killed_in_any_stage_goes_on_with_its_log(n_rows, tmp_path, monkeypatch):
    """A row that was logged and not saved any more is computed again, and logged once."""
    monkeypatch.setattr(training.loop, "CHECKPOINT_SECONDS", 0.0)
    logs, seen = {}, []
    options = {"hidden": (3, 2), "n_epochs": 3, "pretraining_epochs": 2, "batch_size": 20, "random_state": 0}

    def fit(*others, resume):
        callback = [Fake(logs, pictures=()), *others]
        return DBN(**options, run_dir=tmp_path / "run", resume=resume, callbacks=callback).fit(X)

    def kill(event):
        seen.append(event.stage)
        if len(seen) == n_rows:
            raise ZeroDivisionError  # unlike Ctrl-C, which saves

    with pytest.raises(ZeroDivisionError):
        fit(kill, resume=False)
    assert seen[-1] == {2: "layer 1 of 2", 4: "layer 2 of 2", 6: ""}[n_rows]
    dbn = fit(resume=True)
    (log,) = logs.values()
    stages = [*dbn.pretraining_history_, dbn.history_]
    assert log["steps"] == [row["step"] for history in stages for row in history]
    assert [name for row in log["rows"] for name in row if name.endswith("epoch")] == [
        *["layer_1_of_2/epoch"] * 2,
        *["layer_2_of_2/epoch"] * 2,
        *["epoch"] * 3,
    ]
    assert len(log["parameters"]) == 1
    assert [outcome for _, outcome in log["closed"]] == ["failed", "finished"]


def test_a_run_that_is_begun_anew_in_a_folder_gets_a_new_log(tmp_path):
    logs = {}
    for _ in range(2):
        RBM(**SMALL, run_dir=tmp_path / "run", resume=True, callbacks=[Fake(logs, pictures=())]).fit(X)
        shutil.rmtree(tmp_path / "run")
    assert list(logs) == ["log 1", "log 2"]


def test_divergence_closes_the_log():
    fake = Fake()
    with pytest.raises(DivergenceError):
        RBM(**{**SMALL, "learning_rate": 1e30}, callbacks=[fake]).fit(X)
    ((numbers, outcome),) = fake.logs["log 1"]["closed"]
    assert outcome == "diverged"
    assert numbers["n_steps"] == 0


def test_another_error_closes_the_log_too():
    fake = Fake()

    def fail(event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RBM(**SMALL, callbacks=[fake, fail]).fit(X)
    assert fake.logs["log 1"]["closed"] == [({}, "failed")]


def test_a_log_that_fails_costs_a_warning_and_not_the_run():
    plain = RBM(**SMALL).fit(X)
    broken = Fake(fail=("write",))
    with pytest.warns(RuntimeWarning, match="training continues without it: OSError: disk full") as caught:
        rbm = RBM(**SMALL, callbacks=[broken]).fit(X)
    assert len(caught) == 1  # and not one for every row
    np.testing.assert_array_equal(rbm.model_.weights, plain.model_.weights)
    assert broken.logs["log 1"]["pictures"] == []
    with pytest.warns(RuntimeWarning, match="could not be ended: OSError: connection lost"):
        RBM(**SMALL, callbacks=[Fake(fail=("close",))]).fit(X)


def test_a_log_that_cannot_be_opened_stops_the_fit_and_closes_the_others():
    good, bad = Fake(), Fake(fail=("open",))
    with pytest.raises(ParameterError, match="no such server"):
        RBM(**SMALL, callbacks=[good, bad]).fit(X)
    assert good.logs["log 1"]["closed"] == [({}, "failed")]
    assert bad.logs == {}


def test_an_error_is_not_hidden_by_a_log_that_cannot_be_closed():
    with (
        pytest.warns(RuntimeWarning, match="could not be ended"),
        pytest.raises(KeyboardInterrupt),
    ):
        RBM(**SMALL, callbacks=[Fake(fail=("close",)), stop_after(1)]).fit(X)


def test_further_passes_go_on_in_the_same_log_and_count_on():
    fake = Fake(pictures=())
    rbm = RBM(**SMALL, callbacks=[fake])
    for _ in range(3):
        rbm.partial_fit(X)
    assert list(fake.logs) == ["log 1"]
    assert fake.logs["log 1"]["steps"] == [2, 4, 6]
    assert len(fake.logs["log 1"]["parameters"]) == 1


def test_pictures_now_and_then():
    fake = Fake(every=2, pictures=("filters", "samples"))
    rbm = RBM(**SMALL, callbacks=[fake]).fit(X)
    at = [step for name, step, _ in fake.logs["log 1"]["pictures"] if name == "filters"]
    assert at == [row["step"] for row in rbm.history_][1::2]  # the last of them is the end's
    assert len(fake.logs["log 1"]["pictures"]) == 2 * len(at)


def test_stages_before_the_training_have_steps_of_their_own():
    fake, rbm = Fake(), RBM(**SMALL).fit(X)
    with told(rbm, [fake, print]) as begin:
        begin()
        for step in (1, 2):
            fake(Event(step, 2, step / 2, {"loss": 0.5}, None, [{"seconds": 1.0}], "layer 1 of 2"))
        fake(Event(1, 1, 1.0, {"loss": 0.2}, None, [{"seconds": 1.0}]))
    log = fake.logs["log 1"]
    assert log["steps"] == [1, 2, 1]
    assert set(log["rows"][0]) == {"layer_1_of_2/loss", "layer_1_of_2/epoch", "layer_1_of_2/seconds"}
    assert log["rows"][2] == {"loss": 0.2, "epoch": 1.0, "seconds": 1.0}


def test_the_loop_names_its_stages(monkeypatch):
    settings = []
    monkeypatch.setattr(training.stacking, "greedy", lambda rows, makers, made, **_: settings.append(made))
    rbm, plan, seen = RBM(**SMALL), training.Plan(2, 20, 2), []
    training.run_stack(rbm, LearningRows(X), [], plan, 0)
    stage = types.SimpleNamespace(name="layer 1 of 2", n_steps=2, batch_size=20, chunk=2)
    assert settings[0](stage, 0).stage == "layer 1 of 2"
    monkeypatch.setattr(training.loop, "Settings", functools.partial(training.loop.Settings, stage="first"))
    RBM(**SMALL, callbacks=[lambda event: seen.append(event.stage) or True]).fit(X)
    assert seen == ["first"]


def test_a_callback_of_ones_own():
    class Watch(Callback):
        def __init__(self):
            self.seen = []

        def begin(self, estimator, *, goes_on=False):
            self.seen.append(("begin", goes_on, hasattr(estimator, "model_")))

        def __call__(self, event):
            self.seen.append(event.step)
            return event.step >= 4

        def end(self, estimator, outcome):
            self.seen.append((outcome, estimator.n_steps_))

    watch = Watch()
    RBM(**SMALL, callbacks=[watch]).fit(X)
    assert watch.seen == [("begin", False, False), 2, 4, ("finished", 4)]
    assert callbacks.Callback is Callback


def test_wrong_options_are_refused():
    with pytest.raises(ParameterError, match="pictures may be filters and samples, got 'weights'"):
        Fake(pictures=("weights",))
    for every in (0, -1, 1.5, True):
        with pytest.raises(ParameterError, match="every must be a positive number"):
            Fake(every=every)
    with pytest.raises(UnknownNameError, match="Did you mean 'tensorboard'"):
        callbacks.by_name("tensorbord", "runs/a")


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_missing_package_is_named(name, monkeypatch, tmp_path):
    for module in list(sys.modules):
        if module.partition(".")[0] == name:
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackageError, match=f"pip install {name}"):
        callbacks.by_name(name, tmp_path)


# -- packages in disguise ------------------------------------------------------------------------------------


class Recorder(types.SimpleNamespace):
    """Answers every call and remembers it."""

    def __init__(self, **known):
        super().__init__(calls=[], **known)

    def __getattr__(self, name):
        def call(*args, **options):
            self.calls.append((name, args, options))

        return call

    def called(self, name):
        return [(args, options) for n, args, options in self.calls if n == name]


def test_weights_and_biases_draws_over_the_trainings_steps_and_resumes_by_id(monkeypatch, tmp_path):
    runs = []

    def init(**options):
        run = Recorder(id="abc", config=Recorder(), summary={"step": 4} if options["resume"] else {})
        runs.append((options, run))
        return run

    errors = types.SimpleNamespace(Error=RuntimeError)
    fake = types.SimpleNamespace(init=init, errors=errors, Settings=dict, Image=lambda picture: picture.size)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    log = callbacks.WeightsAndBiases("digits", mode="offline", pictures=())
    options = {**SMALL, "run_dir": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        RBM(**options, callbacks=[log, stop_after(1)]).fit(X)
    first, run = runs[0]
    assert (first["project"], first["mode"], first["id"], first["resume"]) == ("digits", "offline", None, None)
    assert first["dir"] == str(tmp_path / "run")
    assert run.called("define_metric")[0] == (("*",), {"step_metric": "step"})
    assert [row[0][0]["step"] for row in run.called("log")] == [2]
    assert run.called("finish") == [((), {"exit_code": 255})]
    RBM(**options, resume=True, callbacks=[callbacks.WeightsAndBiases("digits")]).fit(X)
    second, run = runs[1]
    assert (second["id"], second["resume"]) == ("abc", "allow")
    logged = run.called("log")
    assert [row[0][0]["step"] for row in logged] == [6, 8, 10, 12, 12]  # 4 is there; the last one is the picture
    assert logged[-1][0][0]["filters"] == (500, 500)
    assert run.called("finish") == [((), {"exit_code": 0})]
    assert not run.config.calls  # written once
    with pytest.raises(ParameterError, match="mode must be"):
        callbacks.WeightsAndBiases(mode="on")


def test_weights_and_biases_without_an_account_says_what_to_do(monkeypatch):
    def init(**options):
        raise RuntimeError("api_key not configured")

    fake = types.SimpleNamespace(init=init, errors=types.SimpleNamespace(Error=RuntimeError), Settings=dict)
    monkeypatch.setitem(sys.modules, "wandb", fake)
    with pytest.raises(ParameterError, match=r"api_key.*mode='offline' needs no connection"):
        RBM(**SMALL, callbacks=[callbacks.WeightsAndBiases()]).fit(X)
