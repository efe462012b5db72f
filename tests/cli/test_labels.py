"""Labels on the command line: learned with --target, scored by evaluate, predicted by predict."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import latentia

from .conftest import Shell

RNG = np.random.default_rng(0)
KINDS = np.array(["ash", "birch", "oak"])
CODES = np.arange(60) % 3
#: Three bits tell the kind, the others are noise.
ROWS = np.concatenate([np.eye(3)[CODES], RNG.integers(0, 2, (60, 2))], axis=1).astype(int)
NAMES = ["a", "b", "c", "d", "e"]
#: Enough updates to learn something.
PARAMS = {"hidden": (8,), "n_epochs": 1000, "batch_size": 12, "learning_rate": 0.3, "random_state": 0}
LONG = ("--hidden", "8,", "--n-epochs", 1000, "--batch-size", 12, "--learning-rate", 0.3, "--random-state", 0)
#: Enough for what is not about learning.
SHORT = (*LONG[:3], 2, *LONG[4:])


def table(path: Path, rows: np.ndarray, labels: Any = None, names: list[str] = NAMES) -> Path:
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*names, *([] if labels is None else ["kind"])])
        for index, row in enumerate(rows.tolist()):
            writer.writerow([*row, *([] if labels is None else [labels[index]])])
    return path


@pytest.fixture(scope="module")
def trees(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled machine; tests must not change it."""
    folder = tmp_path_factory.mktemp("trees")
    table(folder / "trees.csv", ROWS[:48], KINDS[CODES[:48]])
    table(folder / "more.csv", ROWS[48:, ::-1], KINDS[CODES[48:]], NAMES[::-1])
    table(folder / "unlabelled.csv", ROWS[48:])
    shell.ok("fit", "dbn", folder / "trees.csv", "--target", "kind", *LONG, "--out", folder / "run")
    return folder


def model(folder: Path) -> Any:
    return latentia.load(folder / "run" / "model.safetensors")


def predicted(folder: Path) -> np.ndarray:
    """What the model itself says of the further rows."""
    import pandas

    return model(folder).predict(pandas.DataFrame(ROWS[48:], columns=NAMES))


def test_labels_are_learned_as_in_python(trees: Path) -> None:
    import pandas

    found = model(trees)
    assert found.classes_.tolist() == KINDS.tolist()
    frame = pandas.DataFrame(ROWS[:48], columns=NAMES)
    same = latentia.DBN(**PARAMS).fit(frame, KINDS[CODES[:48]])
    np.testing.assert_array_equal(found.predict_proba(frame), same.predict_proba(frame))
    assert json.loads((trees / "run" / "config.json").read_text())["data"]["target"] == "kind"


def test_evaluate_tells_the_accuracy(shell: Shell, trees: Path, tmp_path: Path) -> None:
    right = np.mean(predicted(trees) == KINDS[CODES[48:]])
    out = ["--temperatures", 20, "--chains", 8, "--out", tmp_path / "e.json"]
    result = shell.json("evaluate", trees / "run", trees / "more.csv", *out)
    assert result["accuracy"] == pytest.approx(right)
    assert json.loads((tmp_path / "e.json").read_text())["accuracy"] == result["accuracy"]
    assert f"accuracy: {right:.4g} " in shell.ok("evaluate", trees / "run", trees / "more.csv", *out)
    assert "accuracy" not in shell.json("evaluate", trees / "run", trees / "unlabelled.csv", *out)


def test_labels_that_were_not_learned_count_as_wrong(shell: Shell, trees: Path, tmp_path: Path) -> None:
    labels = KINDS[CODES[48:]].copy()
    labels[0] = "elm"
    path = table(tmp_path / "odd.csv", ROWS[48:], labels)
    right = np.mean(predicted(trees)[1:] == labels[1:]) * 11 / 12
    assert shell.json("predict", trees / "run", path)["accuracy"] == pytest.approx(right)


@pytest.mark.parametrize("kinds", [KINDS, np.array(["3", "5", "7"])], ids=["words", "numbers"])
def test_an_empty_cell_is_no_label(shell: Shell, tmp_path: Path, kinds: np.ndarray) -> None:
    """It cannot be learned, and does not count when the others are predicted."""
    labels = kinds[CODES].astype(object)
    labels[[7, 9]] = ""
    gaps = table(tmp_path / "gaps.csv", ROWS, labels)
    call = ["fit", "dbn", gaps, "--target", "kind", *SHORT, "--out", tmp_path / "run"]
    assert "no label in 2 rows, first in row 7" in shell.refused(*call)
    assert not (tmp_path / "run").exists()
    call[2] = table(tmp_path / "whole.csv", ROWS, kinds[CODES])
    shell.ok(*call)
    found = [str(label) for label in shell.json("predict", tmp_path / "run", gaps)["labels"]]
    right = np.mean([one == other for one, other in zip(found, labels, strict=True) if other])
    for command in ("predict", "evaluate"):
        assert shell.json(command, tmp_path / "run", gaps)["accuracy"] == pytest.approx(right)
    nothing = table(tmp_path / "nothing.csv", ROWS, [""] * len(ROWS))
    assert "accuracy" not in shell.json("predict", tmp_path / "run", nothing)


def test_predict_prints_a_label_for_every_row(shell: Shell, trees: Path) -> None:
    wanted = predicted(trees)
    assert len(set(wanted)) > 1
    for name in ("more.csv", "unlabelled.csv"):
        result = shell("predict", trees / "run", trees / name)
        assert result.exit_code == 0, result.output
        assert result.stdout.splitlines() == wanted.tolist()
        assert ("accuracy" in result.stderr) == (name == "more.csv")
    assert shell.json("predict", trees / "run", trees / "more.csv")["labels"] == wanted.tolist()


def test_predict_writes_files(shell: Shell, trees: Path, tmp_path: Path) -> None:
    import pandas

    wanted = predicted(trees)
    shares = model(trees).predict_proba(pandas.DataFrame(ROWS[48:], columns=NAMES))
    call = ["predict", trees / "run", trees / "unlabelled.csv", "--out"]
    shell.ok(*call, tmp_path / "labels.npy")
    assert np.load(tmp_path / "labels.npy").tolist() == wanted.tolist()
    shell.ok(*call, tmp_path / "shares.npy", "--proba")
    np.testing.assert_allclose(np.load(tmp_path / "shares.npy"), shares, rtol=1e-6)
    shell.ok(*call, tmp_path / "both.npz", "--proba")
    with np.load(tmp_path / "both.npz") as both:
        assert (both["y"].tolist(), both["classes"].tolist()) == (wanted.tolist(), KINDS.tolist())
        np.testing.assert_allclose(both["P"], shares, rtol=1e-6)
    shell.ok(*call, tmp_path / "both.csv", "--proba")
    lines = list(csv.reader((tmp_path / "both.csv").read_text().splitlines()))
    assert lines[0] == ["label", "p(ash)", "p(birch)", "p(oak)"]
    assert [line[0] for line in lines[1:]] == wanted.tolist()
    np.testing.assert_allclose(np.array([line[1:] for line in lines[1:]], float), shares, rtol=1e-6)


def test_a_resumed_run_remembers_its_labels(shell: Shell, trees: Path, tmp_path: Path) -> None:
    call = ["fit", "dbn", trees / "trees.csv", *SHORT, "--out", tmp_path / "run"]
    shell.ok(*call, "--target", "kind")
    shell.ok(*call, "--resume")
    assert model(tmp_path).classes_.tolist() == KINDS.tolist()


def test_labels_that_data_bring_themselves(shell: Shell, tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=ROWS[:48], y=CODES[:48], X_test=ROWS[48:], y_test=CODES[48:])
    shell.ok("fit", "dbn", tmp_path / "rows.npz", "--target", "y", *SHORT, "--out", tmp_path / "run")
    result = shell.json("predict", tmp_path / "run")
    assert (result["split"], result["classes"]) == ("test", [0, 1, 2])
    assert result["labels"] == model(tmp_path).predict(ROWS[48:]).tolist()
    assert shell.json("predict", tmp_path / "run", "--split", "train")["n_rows"] == 48


@pytest.mark.parametrize("suffix", [".csv", ".npz"])
def test_the_command_in_a_report_learns_the_labels_again(shell: Shell, tmp_path: Path, suffix: str) -> None:
    from latentia.report import facts
    from latentia.report.runs import read_run

    path = tmp_path / f"trees{suffix}"
    if suffix == ".csv":
        table(path, ROWS, KINDS[CODES])
    else:
        np.savez(path, X=ROWS, y=KINDS[CODES])
    target = "kind" if suffix == ".csv" else "y"
    shell.ok("fit", "dbn", path, "--target", target, *SHORT, "--out", tmp_path / "run")
    told = str(facts.command(read_run(tmp_path / "run"))).replace("\\\n", " ")
    assert told.count("target") == 1
    shell.ok(*shlex.split(told)[1:])
    again, before = (load_file(tmp_path / name / "model.safetensors") for name in ("run-again", "run"))
    assert again.keys() == before.keys()
    for name, array in again.items():
        np.testing.assert_array_equal(array, before[name])


def test_what_is_refused(shell: Shell, trees: Path, run: Path, tmp_path: Path) -> None:
    out = ["--out", tmp_path / "none"]
    message = shell.refused("fit", "rbm", trees / "trees.csv", "--target", "kind", *out)
    assert "dbm" in message
    assert "--data-option target=kind" in message
    assert "no column 'sort'" in shell.refused("fit", "dbm", trees / "trees.csv", "--target", "sort", *out)
    two = ["--target", "kind", "--data-option", "target=a"]
    assert "two columns" in shell.refused("fit", "dbm", trees / "trees.csv", *two, *out)
    np.save(tmp_path / "rows.npy", ROWS)
    assert "brings no labels" in shell.refused("fit", "dbm", tmp_path / "rows.npy", "--target", "y", *out)
    assert "--target y" in shell.refused("fit", "dbm", "digits", "--target", "digit", *out)
    table(tmp_path / "one.csv", ROWS[:4], ["oak"] * 4)
    assert "two classes" in shell.refused("fit", "dbm", tmp_path / "one.csv", "--target", "kind", *out)
    assert "learned no labels" in shell.refused("predict", run)
    assert not (tmp_path / "none").exists()
