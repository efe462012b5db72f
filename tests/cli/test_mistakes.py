"""Every mistake gives a short message and the right exit code, never a traceback."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import latentia
from latentia.commands import fit
from latentia.commands.inputs import load_data
from latentia.core.errors import DataError
from latentia.core.files import read_arrays
from latentia.learning import fit as loop
from latentia.learning.progress import display
from latentia.recipes import Recipe

from .conftest import TINY, Shell


def short(message: str) -> bool:
    return len(message.strip().splitlines()) <= 2


def test_unknown_names_are_answered_with_near_ones(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    message = shell.refused("fit", "rmb", "bars", "--out", out)
    assert "Did you mean 'rbm'" in message
    assert short(message)
    assert "Did you mean 'digits'" in shell.refused("fit", "rbm", "digit", "--out", out)
    assert "--n-components" in shell.refused("fit", "rbm", "bars", "--n-component", 3, "--out", out)
    assert "'fit'" in shell.refused("fitt")
    assert "n_patches" in shell.refused("fit", "rbm", "bars", "--data-option", "n_patches=3", "--out", out)
    assert "KEY=VALUE" in shell.refused("fit", "rbm", "bars", "--data-option", "n", "--out", out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--n-components", "0", "at least 1"),
        ("--n-components", "many", "not a valid integer"),
        ("--learning-rate", "-1", "learning_rate must be a number"),
        ("--objective", "pdc", "Did you mean 'pcd'"),
        ("--visible", "bernouli", "Did you mean 'bernoulli'"),
        ("--optimizer", "adamm", "adam"),
    ],
)
def test_wrong_parameters(shell: Shell, tmp_path: Path, option: str, value: str, expected: str) -> None:
    message = shell.refused("fit", "rbm", "bars", option, value, "--out", tmp_path / "run")
    assert expected in message
    assert not (tmp_path / "run").exists()  # the corrected command must not stumble over it


def test_an_objective_that_does_not_fit_leaves_nothing_behind(shell: Shell, run: Path, tmp_path: Path) -> None:
    words = ["fit", "rbm", "bars", "--objective", "elbo", "--out"]
    assert "Objectives that fit: cd, pcd" in shell.refused(*words, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    shell.refused(*words, copy, "--resume")
    assert {path.name for path in copy.iterdir()} == {path.name for path in run.iterdir()}


def test_wrong_data(shell: Shell, tmp_path: Path, rows: np.ndarray) -> None:
    (tmp_path / "text.csv").write_text("a,b\n1,2\n3,hello\n")
    np.save(tmp_path / "nan.npy", np.where(rows == 0, np.nan, rows))
    np.save(tmp_path / "one.npy", rows[:1])
    (tmp_path / "cut.npy").write_bytes(b"\x93NUMPY\x01")
    (tmp_path / "data.xyz").write_text("?")
    for name, expected in [
        ("missing.npy", "There is no file"),
        ("text.csv", "not a table of numbers"),
        ("nan.npy", "nan"),
        ("one.npy", "sample"),
        ("cut.npy", "cannot be read"),
        ("data.xyz", "no supported kind"),
    ]:
        message = shell.refused("fit", "rbm", tmp_path / name, *TINY, "--out", tmp_path / "run")
        assert expected in message, name
        assert short(message)
        assert not (tmp_path / "run").exists(), name


def test_grey_values_need_a_decision(shell: Shell, tmp_path: Path) -> None:
    message = shell.refused("fit", "rbm", "digits", *TINY, "--out", tmp_path / "run")
    assert "binarize" in message
    assert short(message)


def test_output_folders(shell: Shell, run: Path, tmp_path: Path) -> None:
    message = shell.refused("fit", "rbm", "bars", *TINY, "--out", run)
    assert "--resume" in message
    assert short(message)
    file = tmp_path / "file"
    file.touch()
    assert "is a file" in shell.refused("fit", "rbm", "bars", *TINY, "--out", file)
    message = shell.refused("fit", "rbm", "bars", *TINY, "--out", file / "run")
    assert str(file) in message
    assert short(message)
    assert str(file) in shell.refused("demo", "--quick", "--out", file / "run")


@pytest.mark.skipif(os.name != "posix", reason="permissions of POSIX")
def test_a_folder_without_permission(shell: Shell, run: Path, tmp_path: Path) -> None:
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o500)
    if os.access(locked, os.W_OK):  # a superuser may write anywhere but here
        locked = Path("/proc/self/fdinfo")
    for words in (
        ["fit", "rbm", "bars", *TINY, "--out", locked / "run"],
        ["encode", run, "--out", locked / "codes.npy"],
        ["sample", run, "--steps", 2, "--out", locked / "samples.npy"],
    ):
        message = shell.refused(*words)
        assert str(locked) in message
        assert short(message)


def test_broken_runs_and_models(shell: Shell, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    model = copy / "model.safetensors"
    whole = model.read_bytes()
    model.write_bytes(whole[: len(whole) // 2])
    for words in (["evaluate", copy], ["encode", model, "bars", "--out", tmp_path / "c.npy"]):
        message = shell.refused(*words)
        assert "cut off" in message
        assert short(message)
    model.write_bytes(whole)
    (copy / "config.json").write_text('{"family": ')
    assert "not JSON" in shell.refused("evaluate", copy)
    assert "no run folder" in shell.refused("evaluate", tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    assert "no run folder" in shell.refused("sample", tmp_path / "empty", "--out", tmp_path / "s.npy")


def test_data_that_do_not_fit_the_model(shell: Shell, run: Path, tmp_path: Path, rows: np.ndarray) -> None:
    np.save(tmp_path / "narrow.npy", rows)
    message = shell.refused("encode", run, tmp_path / "narrow.npy", "--out", tmp_path / "c.npy")
    assert "6 features" in message
    assert short(message)
    assert "no test rows" in shell.refused("evaluate", run, tmp_path / "narrow.npy", "--split", "test")
    alone = tmp_path / "alone.safetensors"
    shutil.copy(run / "model.safetensors", alone)
    assert "does not name the data" in shell.refused("evaluate", alone)


def test_sampling_mistakes(shell: Shell, run: Path, tmp_path: Path, rows: np.ndarray) -> None:
    np.save(tmp_path / "given.npy", rows)
    out = ["--steps", 2, "--out", tmp_path / "s.npy"]
    assert "16 columns" in shell.refused("sample", run, "--given", tmp_path / "given.npy", *out)
    assert "--given" in shell.refused("sample", run, "--mask", tmp_path / "given.npy", *out)
    assert "There is no file" in shell.refused("sample", run, "--given", tmp_path / "none.npy", *out)
    assert ".npy" in shell.refused("sample", run, "--out", tmp_path / "s.txt")
    assert "is a folder" in shell.refused("sample", run, "--out", _folder(tmp_path / "f.npy"))
    alone = tmp_path / "alone.safetensors"
    shutil.copy(run / "model.safetensors", alone)
    assert "pictures" in shell.refused("sample", alone, "--png", tmp_path / "s.png", *out)


def test_damaged_settings(shell: Shell, run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    config = json.loads((copy / "config.json").read_text())
    for data in ("bars", [1], {"name": 5}, {"name": "bars", "options": [1]}):
        (copy / "config.json").write_text(json.dumps({**config, "data": data}))
        for words in (["evaluate", copy], ["encode", copy, "--out", tmp_path / "c.npy"]):
            message = shell.refused(*words)
            assert "config.json" in message
            assert short(message)
        shell.ok("report", copy, "--out", tmp_path / "r.html")  # of what is left


def test_seeds_and_options_out_of_range(shell: Shell, run: Path, tmp_path: Path, rows: np.ndarray) -> None:
    np.save(tmp_path / "rows.npy", rows)
    for words in (
        ["sample", run, "--seed", 2**32, "--steps", 2, "--out", tmp_path / "s.npy"],
        ["fit", "rbm", "bars", "--random-state", 2**32, "--out", tmp_path / "run"],
        ["fit", "rbm", tmp_path / "rows.npy", "--data-option", "scale=abc", "--out", tmp_path / "run"],
        ["fit", "rbm", tmp_path / "rows.npy", "--data-option", "scale=true", "--out", tmp_path / "run"],
    ):
        shell.refused(*words)


def _folder(path: Path) -> Path:
    path.mkdir()
    return path


def test_report_of_nothing(shell: Shell, tmp_path: Path) -> None:
    assert short(shell.refused("report", tmp_path / "nowhere"))


def test_json_errors_are_json_too(shell: Shell, tmp_path: Path) -> None:
    for words in (
        ["fit", "rbm", "missing.npy", "--out", tmp_path / "run", "--json"],
        ["fit", "rmb", "bars", "--out", tmp_path / "run", "--json"],
        ["fit", "rbm", "bars", "--n-components", "x", "--out", tmp_path / "run", "--json"],
    ):
        result = shell(*words)
        assert result.exit_code == 2
        assert json.loads(result.stdout)["error"]
        assert "rror: " in result.stderr


def test_bugs_are_owned_up_to(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ValueError("a strange thing\nwith details")

    monkeypatch.setattr(fit, "train", broken)
    words = ["fit", "rbm", "bars", *TINY, "--out", tmp_path / "run"]
    message = shell.refused(*words, code=1)
    assert "Unexpected ValueError: a strange thing\n" in message
    assert "LATENTIA_DEBUG=1" in message
    monkeypatch.setenv("LATENTIA_DEBUG", "1")
    result = shell(*words)
    assert result.exit_code == 1
    assert "Traceback" in result.stderr


def test_ctrl_c_says_how_to_go_on(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "train", _interrupt)
    out = tmp_path / "run"
    message = shell.refused("fit", "rbm", "bars", *TINY, "--out", out, code=130)
    assert "before anything was saved" in message
    out.mkdir()
    (out / "checkpoint.safetensors").touch()
    message = shell.refused("fit", "rbm", "bars", *TINY, "--out", out, "--resume", code=130)
    assert f"latentia fit rbm bars {' '.join(TINY)} --out {out} --resume\n" in message


def _interrupt(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def test_ctrl_c_elsewhere_says_what_is_left(
    shell: Shell, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("latentia.commands.evaluate.evaluation", _interrupt)
    assert "nothing was written" in shell.refused("evaluate", run, code=130)
    recipe = Recipe("a recipe", {}, _interrupt)
    monkeypatch.setattr("latentia.recipes.RECIPES", {"mine": recipe})
    assert "nothing was written" in shell.refused("reproduce", "mine", "--out", tmp_path / "none", code=130)
    assert f"latentia report {run}" in shell.refused("reproduce", "mine", "--out", run, code=130)


def test_reproduce_is_quiet_without_a_terminal(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def function(out: Path, variant: str, seed: int) -> dict[str, object]:
        return {"display": type(display(1, "training")).__name__}

    monkeypatch.setattr("latentia.recipes.RECIPES", {"mine": Recipe("a recipe", {}, function)})
    assert shell.json("reproduce", "mine", "--out", tmp_path)["display"] == "Silent"
    assert type(display(1, "training")).__name__ != "Silent"  # and only while the command runs


def test_names_with_spaces_and_other_letters(shell: Shell, tmp_path: Path, rows: np.ndarray) -> None:
    folder = tmp_path / "меин dossier ü"
    folder.mkdir()
    np.save(folder / "Bücher & Co.npy", rows)
    run = folder / "лauf 1"
    text = shell.ok("fit", "rbm", folder / "Bücher & Co.npy", *TINY, "--out", run)
    assert f"latentia evaluate '{run}'" in text
    assert shell.json("evaluate", run)["n_examples"] == len(rows)
    assert shell.json("encode", run, "--out", folder / "Codes ü.csv")["shape"] == [len(rows), 4]


@pytest.mark.skipif(os.name != "posix", reason="signals of POSIX")
def test_a_real_ctrl_c_can_be_resumed(shell: Shell, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = ["fit", "rbm", "bars", "--data-option", "n=500", "--n-components", "3", "--n-epochs", "100000"]
    command = [sys.executable, "-m", "latentia", *words, "--out", str(out)]
    # Whoever starts tests in the background may have switched the signal off, and children inherit that.
    outer = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, outer)
    try:
        metrics = out / "metrics.jsonl"
        end = time.monotonic() + 60
        while not (metrics.is_file() and metrics.read_text()) and time.monotonic() < end:
            time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        printed, message = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130, message
    assert "Traceback" not in message
    assert "--resume" in message
    assert printed == ""
    config = json.loads((out / "config.json").read_text())
    assert config["data"]["name"] == "bars"
    assert read_arrays(out / "checkpoint.safetensors")[1]["progress"]["step"] > 0
    assert "other parameters" in shell.refused(*words[:-1], "100001", "--out", out, "--resume")


@pytest.mark.parametrize("n_chunks", [1, 3])
def test_a_ctrl_c_in_pretraining_can_be_resumed_too(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n_chunks: int
) -> None:
    out = tmp_path / "run"
    words = ["fit", "dbn", "bars", "--data-option", "n=60", "--hidden", "3,2", "--n-epochs", "2"]
    words += ["--pretraining-epochs", "2", "--batch-size", "30", "--random-state", "0", "--out"]
    advance, done = loop._Run.advance, []

    def interrupted(run: loop._Run) -> None:
        if len(done) == n_chunks:
            raise KeyboardInterrupt
        done.append(run.settings.stage)
        advance(run)

    with monkeypatch.context() as patch:
        patch.setattr(loop._Run, "advance", interrupted)
        message = shell.refused(*words, out, code=130)
    assert done == ["layer 1 of 2", "layer 1 of 2", "layer 2 of 2"][:n_chunks]
    assert "The run so far is in" in message
    assert "--resume" in message
    before = json.loads((out / "config.json").read_text())
    assert before["data"]["name"] == "bars"
    shell.ok(*words, out, "--resume")
    after = json.loads((out / "config.json").read_text())
    assert after["params"] == before["params"]
    assert latentia.load(out / "model.safetensors").get_params()["hidden"] == (3, 2)


def test_what_was_pretrained_before_a_mistake_keeps_its_description(tmp_path: Path) -> None:
    class Stopped:
        family = "dbn"

        def fit(self, X: object, y: object) -> None:
            place = tmp_path / "run" / "pretraining" / "1"
            place.mkdir(parents=True)
            (place / "checkpoint.safetensors").write_bytes(b"a layer")
            (tmp_path / "run" / "config.json").write_text("{}")
            raise DataError("The second layer cannot use these rows.")

    with pytest.raises(DataError, match="second layer"):
        fit.train(Stopped(), load_data("bars", {"n": 20}), tmp_path / "run")
    assert (tmp_path / "run" / "config.json").is_file()
