"""Every command, end to end, with tiny settings."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentia
from latentia import likelihood
from latentia.commands import evaluate
from latentia.datasets import available

from .conftest import TINY, Shell


def test_version_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "latentia", "--version"], capture_output=True, text=True, check=True
    )
    assert latentia.__version__ in done.stdout


def test_datasets_lists_what_load_knows(shell: Shell) -> None:
    assert [entry["name"] for entry in shell.json("datasets")["datasets"]] == [info.name for info in available()]
    assert "digits" in shell.ok("datasets")


def test_fit_leaves_a_run_folder_that_says_where_it_came_from(run: Path) -> None:
    config = json.loads((run / "config.json").read_text())
    assert config["family"] == "rbm"
    assert config["params"]["n_components"] == 4
    assert config["data"]["name"] == "bars"
    assert config["data"]["options"] == {"n": 200}
    assert config["data"]["image_shape"] == [4, 4]
    assert config["data"]["description"]
    assert config["seconds"] > 0
    assert config["compile_seconds"] >= 0
    assert config["environment"]["jax"]
    assert latentia.load(run / "model.safetensors").n_components == 4


def test_fit_on_own_files(shell: Shell, tmp_path: Path, rows: np.ndarray) -> None:
    np.save(tmp_path / "rows.npy", rows)
    np.savetxt(tmp_path / "rows.csv", rows, delimiter=",", header="a,b,c,d,e,label", comments="", fmt="%d")
    text = shell.ok("fit", "rbm", tmp_path / "rows.npy", *TINY, "--out", tmp_path / "a")
    assert "60 × 6" in text
    assert str(tmp_path / "a" / "model.safetensors") in text
    labelled = ["--data-option", "target=label"]
    summary = shell.json("fit", "rbm", tmp_path / "rows.csv", *labelled, *TINY, "--out", tmp_path / "b")
    assert summary["n_features"] == 5
    assert shell.json("evaluate", tmp_path / "b")["n_examples"] == 60


def test_fit_draws_a_seed_and_writes_it_down(shell: Shell, tmp_path: Path) -> None:
    shell.ok("fit", "rbm", "bars", "--n-components", 2, "--n-epochs", 1, "--out", tmp_path / "a")
    assert isinstance(json.loads((tmp_path / "a" / "config.json").read_text())["params"]["random_state"], int)


def test_resume_takes_the_runs_own_parameters_and_changes_nothing_when_finished(
    shell: Shell, run: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    (copy / "model.safetensors").unlink()  # as if killed before the end
    assert "has not finished" in shell.refused("evaluate", copy)
    shell.ok("fit", "rbm", "bars", "--data-option", "n=200", "--out", copy, "--resume")
    assert (copy / "model.safetensors").is_file()
    before, after = (latentia.load(folder / "model.safetensors") for folder in (run, copy))
    np.testing.assert_array_equal(before.model_.weights, after.model_.weights)


def test_a_refused_resume_leaves_the_run_as_it_was(shell: Shell, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    before = (copy / "config.json").read_text()
    words = ["fit", "rbm", "bars", "--data-option", "n=200", "--n-components", 5, "--out", copy, "--resume"]
    assert "other parameters" in shell.refused(*words)
    assert (copy / "config.json").read_text() == before
    assert "not gaussian-rbm" in shell.refused("fit", "gaussian-rbm", "bars", "--out", copy, "--resume")


def test_encode_writes_what_transform_returns(shell: Shell, run: Path, tmp_path: Path) -> None:
    model = run / "model.safetensors"
    X = latentia.datasets.load("bars", n=200).X
    expected = latentia.load(model).transform(X)
    shell.ok("encode", run, "bars", "--out", tmp_path / "codes.npy")  # with the run's own n=200
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npy"), expected)
    shell.ok("encode", run, "--out", tmp_path / "codes.npz")
    np.testing.assert_array_equal(np.load(tmp_path / "codes.npz")["X"], expected)
    shell.ok("encode", model, "bars", "--data-option", "n=200", "--out", tmp_path / "codes.csv")
    with (tmp_path / "codes.csv").open() as file:
        header, *lines = csv.reader(file)
    assert len(header) == 4
    np.testing.assert_allclose(np.array(lines, np.float32), expected, rtol=1e-6)


def test_encode_the_test_split_with_labels(shell: Shell, tmp_path: Path) -> None:
    shell.ok("fit", "rbm", "digits", "--binarize", "sample", *TINY, "--out", tmp_path / "run")
    assert shell.json("encode", tmp_path / "run", "--split", "test", "--out", tmp_path / "c.npz")["shape"] == [
        360,
        4,
    ]
    assert np.load(tmp_path / "c.npz")["y"].shape == (360,)
    assert shell.json("evaluate", tmp_path / "run")["split"] == "test"


def test_sample_to_a_file_and_a_picture(shell: Shell, run: Path, tmp_path: Path) -> None:
    png = tmp_path / "grid.png"
    words = ["sample", run, "-n", 9, "--steps", 20, "--seed", 1, "--out", tmp_path / "s.npy", "--png", png]
    assert shell.json(*words)["shape"] == [9, 16]
    first = np.load(tmp_path / "s.npy")
    assert set(np.unique(first)) <= {0.0, 1.0}
    assert png.read_bytes().startswith(b"\x89PNG")
    shell.ok(*words)
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), first)
    shell.ok("sample", run, "--mean", "--steps", 20, "--out", tmp_path / "m.csv")
    means = np.loadtxt(tmp_path / "m.csv", delimiter=",", skiprows=1)
    assert means.shape == (64, 16)
    assert ((means > 0) & (means < 1)).any()


def test_sample_keeps_what_is_given(shell: Shell, run: Path, tmp_path: Path) -> None:
    given = np.zeros((3, 16), np.float32)
    given[:, :4] = 1
    mask = np.zeros((1, 16), np.uint8)
    mask[:, :4] = 1
    np.save(tmp_path / "mask.npy", mask)
    np.save(tmp_path / "given.npy", given)
    words = ["sample", run, "--steps", 5, "--out", tmp_path / "s.npy", "--given"]
    shell.ok(*words, tmp_path / "given.npy", "--mask", tmp_path / "mask.npy", "-n", 2)
    filled = np.load(tmp_path / "s.npy")
    assert filled.shape == (6, 16)
    assert (filled[:, :4] == 1).all()
    assert (filled[:, 4:] == 1).any()
    given[:, 4:] = np.nan
    np.save(tmp_path / "holes.npy", given)
    shell.ok(*words, tmp_path / "holes.npy")
    assert (np.load(tmp_path / "s.npy")[:, :4] == 1).all()


def test_evaluate_is_two_sided_and_kept_in_the_run(shell: Shell, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    exact = shell.json("evaluate", copy)
    assert exact["log_likelihood"]["stderr"] == 0
    kept = json.loads((copy / "evaluation.json").read_text())
    assert kept["log_likelihood"] == exact["log_likelihood"]
    words = ["--method", "ais", "--temperatures", 200, "--chains", 32]
    estimated = shell.json("evaluate", copy, "bars", *words)["log_likelihood"]
    assert estimated["lower"] <= exact["log_likelihood"]["estimate"] <= estimated["upper"]
    text = shell.ok("evaluate", copy / "model.safetensors", "bars", "--data-option", "n=50")
    assert "1000 test rows" in text
    assert "nats" in text
    assert set(evaluate.METHODS) == set(likelihood.METHODS)


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ([], {"method": "auto"}),
        (["--method", "exact"], {"method": "exact"}),
        (["--chains", 32], {"method": "auto", "n_chains": 32}),
        (["--temperatures", 200], {"method": "auto", "n_temperatures": 200}),
    ],
)
def test_every_option_of_evaluate_reaches_the_estimate(
    shell: Shell, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[Any], options: dict
) -> None:
    asked = []

    def log_likelihood(self: Any, X: Any, **options: Any) -> Any:
        asked.append(options)
        return likelihood.LogLikelihood(-2.0, -1.0, -1.5, 0.1, "stub")

    monkeypatch.setattr(latentia.RBM, "log_likelihood", log_likelihood)
    shell.ok("evaluate", run, *words, "--out", tmp_path / "e.json")
    assert asked == [options]


@pytest.mark.parametrize("seed", [0, 1, 2**32 - 1])
@pytest.mark.parametrize("mean", [False, True])
def test_draws_are_those_of_the_estimator_with_that_seed(
    shell: Shell, run: Path, tmp_path: Path, seed: int, mean: bool
) -> None:
    words = ["-n", 5, "--steps", 7, "--seed", seed, *(["--mean"] if mean else [])]
    model = latentia.load(run / "model.safetensors").set_params(random_state=17)
    model.save(tmp_path / "model.safetensors")
    shell.ok("sample", tmp_path / "model.safetensors", *words, "--out", tmp_path / "s.npy")
    wanted = model.sample(5, n_steps=7, mean=mean, random_state=seed)
    np.testing.assert_array_equal(np.load(tmp_path / "s.npy"), wanted)


def test_report_writes_one_page(shell: Shell, run: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert shell.ok("report", run, "--out", page).strip() == str(page)
    assert "<html" in page.read_text()
    assert shell.json("report", run, run, "--out", page) == {"report": str(page)}


def test_reproduce_lists_and_runs_recipes(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Fake:
        description = "a fake one"

        def run(self, out: Path, *, cpu: bool, seed: int, quick: bool) -> dict:
            return {"out": str(out), "cpu": cpu, "seed": seed, "quick": quick, "gap": 0.25}

    monkeypatch.setattr("latentia.recipes.RECIPES", {"fake": Fake()}, raising=False)
    assert shell.json("reproduce", "--list") == {"recipes": [{"name": "fake", "description": "a fake one"}]}
    assert "a fake one" in shell.ok("reproduce")
    result = shell.json("reproduce", "fake", "--out", tmp_path / "r", "--cpu", "--quick", "--seed", 3)
    assert result == {"out": str(tmp_path / "r"), "cpu": True, "seed": 3, "quick": True, "gap": 0.25}
    assert "gap: 0.25" in shell.ok("reproduce", "fake", "--out", tmp_path / "r")
    assert "Did you mean 'fake'" in shell.refused("reproduce", "fakes", "--out", tmp_path / "r")
    assert "--out" in shell.refused("reproduce", "fake")


def test_a_run_can_be_logged_elsewhere_too(shell, tmp_path):
    pytest.importorskip("tensorboard")
    out = tmp_path / "run"
    shell.ok("fit", "rbm", "bars", "--data-option", "n=200", *TINY, "--out", out, "--log", "tensorboard")
    assert list(out.glob("tensorboard/**/events.out.tfevents.*"))


def test_what_takes_no_steps_has_nothing_to_log(shell, tmp_path):
    pytest.importorskip("tensorboard")
    said = shell.refused("fit", "sparse-coder", "bars", "--out", tmp_path / "run", "--log", "tensorboard")
    assert "no steps to log" in said
    assert not (tmp_path / "run").exists()
