"""A fit that is refused opens no log: nothing is written before the first step is about to be taken."""

from __future__ import annotations

import types

import numpy as np
import pytest
from click.testing import CliRunner

from latentia import RBM, DictionaryLearning, callbacks
from latentia.cli import cli
from latentia.core.errors import CapabilityError, DataError, LatentiaError
from latentia.estimator import training
from latentia.estimator.callbacks import told
from latentia.estimator.rows_to_learn import LearningRows

X = (np.random.default_rng(0).random((40, 6)) < 0.4).astype(np.float32)
SMALL = {"n_epochs": 2, "batch_size": 20, "random_state": 0, "monitor": None}


class Watch(callbacks.Callback):
    """Remembers what it is told."""

    def __init__(self):
        self.seen = []

    def begin(self, estimator, *, goes_on=False):
        self.seen.append("begin")

    def __call__(self, event):
        self.seen.append(event.stage or event.step)

    def end(self, estimator, outcome):
        self.seen.append(outcome)


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ({"objective": "score_matching"}, CapabilityError),
        ({"objective": "scorematching"}, LatentiaError),
        ({"early_stopping": True, "validation_fraction": 0.999}, DataError),
        ({"visible": "gaussian", "hidden": "rectified", "weight_scale": 5.0}, LatentiaError),  # not normalisable
    ],
)
def test_a_fit_that_is_refused_begins_nothing(parameters, error):
    watch = Watch()
    with pytest.raises(error):
        RBM(3, **SMALL, callbacks=[watch], **parameters).fit(X)
    assert watch.seen == []


def test_a_pass_that_is_refused_begins_nothing_either():
    watch = Watch()
    with pytest.raises(CapabilityError):
        RBM(3, objective="score_matching", **SMALL, callbacks=[watch]).partial_fit(X)
    assert watch.seen == []
    DictionaryLearning(3, batch_size=20, random_state=0, callbacks=[watch]).partial_fit(X)
    assert watch.seen == ["begin", 2, "finished"]


def test_callbacks_begin_once_with_the_first_of_several_stages(monkeypatch):
    watch = Watch()
    with told(None, [watch, print]) as begin:
        begin()
        begin()
    assert watch.seen == ["begin", "finished"]
    with told(None, [watch]):
        assert watch.seen == ["begin", "finished"]
    assert watch.seen == ["begin", "finished"] * 2  # a fit without a single step
    made: list = []
    monkeypatch.setattr(training.stacking, "greedy", lambda rows, makers, settings, **_: made.append(settings))
    training.run_stack(RBM(3), LearningRows(X), [], training.Plan(2, 20, 2, begin=begin), 0)
    stage = types.SimpleNamespace(name="layer 1 of 2", n_steps=2, batch_size=20, chunk=2)
    assert made[0](stage, 0).begin is begin


@pytest.mark.parametrize("package", ["mlflow", "tensorboard"])
def test_the_command_leaves_nothing_behind(package, tmp_path, monkeypatch):
    pytest.importorskip(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    for wrong in (("--objective", "score_matching"), ("--objective", "cdd"), ("--visible", "spin")):
        words = ["fit", "rbm", "bars", "--data-option", "n=50", *wrong, "--out", "run", "--log", package]
        result = CliRunner().invoke(cli, words, prog_name="latentia")
        assert result.exit_code == 2, result.output
        assert list(tmp_path.iterdir()) == []
