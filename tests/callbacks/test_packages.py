"""Logs written by the real packages, and read back by them."""

from __future__ import annotations

import re
import shutil
import time
import types
from pathlib import Path

import numpy as np
import pytest

from latentia import RBM, callbacks
from latentia.core.errors import ParameterError

X = (np.random.default_rng(0).random((40, 36)) < 0.4).astype(np.float32)
SMALL = {"n_components": 3, "n_epochs": 6, "batch_size": 20, "random_state": 0, "monitor": None}

pytestmark = pytest.mark.filterwarnings("ignore")  # other people's packages may deprecate what they like


def interrupted(run, log, step=4):
    """A run that stops in the middle."""

    def press(event):
        if event.step >= step:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        RBM(**SMALL, run_dir=run, resume=True, callbacks=[log, press]).fit(X)


def killed(run, log):
    """A run whose log has gone on since its last checkpoint."""
    interrupted(run, log)
    shutil.copy(run / "checkpoint.safetensors", run / "kept")
    interrupted(run, log, step=8)
    (run / "kept").replace(run / "checkpoint.safetensors")


def test_tensorboard(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams import metadata

    logs = tmp_path / "logs é"
    killed(tmp_path / "run", callbacks.TensorBoard(logs))
    rbm = RBM(**SMALL, run_dir=tmp_path / "run", resume=True, callbacks=[callbacks.TensorBoard(logs)]).fit(X)
    RBM(**SMALL, callbacks=[callbacks.TensorBoard(logs, pictures=())]).fit(X)
    assert sorted(path.name for path in logs.iterdir()) == ["rbm", "rbm-2"]
    log = EventAccumulator(str(logs / "rbm")).Reload()
    for name in ("energy_gap", "epoch"):
        points = [(event.step, event.value) for event in log.Scalars(name)]
        expected = [(row["step"], row[name]) for row in rbm.history_]
        np.testing.assert_allclose(points, expected, rtol=1e-6)
    assert log.Scalars("run/n_steps")[0].value == rbm.n_steps_
    (picture,) = log.Images("filters")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert (picture.width, picture.height, picture.step) == (500, 500, rbm.n_steps_)
    content = log.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    assert metadata.parse_session_start_info_plugin_data(content).hparams["n_components"].number_value == 3
    content = log.SummaryMetadata("_hparams_/session_end_info").plugin_data.content
    assert metadata.parse_session_end_info_plugin_data(content).status == 1  # success
    assert EventAccumulator(str(logs / "rbm-2")).Reload().Tags()["images"] == []


def test_tensorboard_in_the_runs_folder(tmp_path):
    pytest.importorskip("tensorboard")
    run = tmp_path / "run"
    RBM(**SMALL, run_dir=run, callbacks=[callbacks.by_name("tensorboard", run)]).fit(X)
    assert list((run / "tensorboard" / "rbm").glob("events.out.tfevents.*"))


def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    address = (tmp_path / "mlruns").as_uri()
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "false")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    options = {"tracking_uri": address, "name": "mine"}
    if tuple(map(int, mlflow.__version__.split(".")[:2])) >= (3, 7):
        with pytest.raises(ParameterError, match="MLflow cannot write to file:"):
            RBM(**SMALL, callbacks=[callbacks.MLflow("digits", **options)]).fit(X)
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    killed(tmp_path / "run", callbacks.MLflow("digits", **options))
    client = mlflow.MlflowClient(address)
    log = callbacks.MLflow("digits", **options)
    assert log.run_id is None
    rbm = RBM(**SMALL, run_dir=tmp_path / "run", resume=True, callbacks=[log]).fit(X)
    experiment = client.get_experiment_by_name("digits").experiment_id
    (run,) = client.search_runs([experiment])
    assert run.info.run_id == log.run_id
    assert (run.info.run_name, run.info.status) == ("mine", "FINISHED")
    assert run.data.params["n_components"] == "3"
    assert run.data.tags["latentia.outcome"] == "finished"
    assert run.data.metrics["n_steps"] == rbm.n_steps_
    points = [(each.step, each.value) for each in client.get_metric_history(log.run_id, "energy_gap")]
    np.testing.assert_allclose(sorted(points), [(row["step"], row["energy_gap"]) for row in rbm.history_])
    assert [file.path for file in client.list_artifacts(log.run_id)] == ["filters.png"]
    assert mlflow.active_run() is None


def test_mlflow_knows_how_a_run_ended(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    address = (tmp_path / "mlruns").as_uri()
    log = callbacks.MLflow(tracking_uri=address)
    interrupted(tmp_path / "run", log)
    assert mlflow.MlflowClient(address).get_run(log.run_id).info.status == "KILLED"


def test_weights_and_biases_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    log = callbacks.WeightsAndBiases("digits", mode="offline", folder=tmp_path)
    RBM(**SMALL, callbacks=[log]).fit(X)
    (run,) = (tmp_path / "wandb").glob("offline-run-*")
    words, begin = (b"energy_gap", b"n_components", b"fit_seconds"), time.monotonic()
    while not all(word in next(run.glob("*.wandb")).read_bytes() for word in words):
        assert time.monotonic() - begin < 30  # the package's own process may write a moment after it said goodbye
        time.sleep(0.1)
    assert list((run / "files" / "media" / "images").glob("filters*.png"))


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "logging.md"


@pytest.mark.parametrize(("package", "number"), [("tensorboard", 0), ("mlflow", 1), ("wandb", 2)])
def test_the_documentations_examples_run(package, number, tmp_path, monkeypatch):
    """The blocks marked ``py``, which only run where their package is."""
    pytest.importorskip(package)
    if package == "mlflow":
        pytest.importorskip("sqlalchemy")
        pytest.importorskip("alembic")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 3
    assert {"tensorboard": "TensorBoard", "mlflow": "MLflow", "wandb": "WeightsAndBiases"}[package] in blocks[
        number
    ]
    digits = types.SimpleNamespace(X=np.random.default_rng(0).random((40, 36), np.float32))
    exec(compile(blocks[number], str(PAGE), "exec"), {"RBM": RBM, "callbacks": callbacks, "digits": digits})
    assert {"tensorboard": "logs", "mlflow": "mlflow.db", "wandb": "logs"}[package] in {
        p.name for p in tmp_path.iterdir()
    }
