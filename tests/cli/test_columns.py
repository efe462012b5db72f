"""Columns are found by their names: in any order, and never silently in a wrong one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentia
from latentia.datasets import load

from .conftest import Shell

NAMES = ["acid", "sugar, residual", "ash", "colour"]
ROWS = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32) * [1, 3, 0.5, 2] + [5, -1, 2, 0]
LABELS = np.arange(40) % 3


def table(path: Path, names: list[str], columns: Any, labels: Any = None) -> Path:
    """A .csv or .parquet of columns, and of labels called "kind"."""
    import pandas

    frame = pandas.DataFrame(np.asarray(columns), columns=names)
    if labels is not None:
        frame.insert(1, "kind", labels)
    frame.to_csv(path, index=False) if path.suffix == ".csv" else frame.to_parquet(path)
    return path


@pytest.fixture(scope="module")
def wine(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Principal components of a table with a header and labels; tests must not change it."""
    folder = tmp_path_factory.mktemp("wine")
    table(folder / "wine.csv", NAMES, ROWS, LABELS)
    fit = ["fit", "ppca", folder / "wine.csv", "--data-option", "target=kind", "--n-components", 2]
    shell.ok(*fit, "--random-state", 0, "--out", folder / "run")
    return folder


def test_names_are_kept_with_the_model_and_the_run(wine: Path) -> None:
    model = latentia.load(wine / "run" / "model.safetensors")
    assert list(model.feature_names_in_) == NAMES
    assert json.loads((wine / "run" / "config.json").read_text())["data"]["feature_names"] == NAMES


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
@pytest.mark.parametrize("order", [[3, 2, 1, 0], [1, 0, 2, 3], [2, 3, 0, 1]])
def test_columns_in_another_order_give_the_same_answers(
    shell: Shell, wine: Path, tmp_path: Path, suffix: str, order: list[int]
) -> None:
    model = latentia.load(wine / "run" / "model.safetensors")
    other = table(tmp_path / f"more{suffix}", [NAMES[i] for i in order], ROWS[:, order])
    result = shell("encode", wine / "run", other, "--out", tmp_path / "codes.npy")
    assert (result.exit_code, result.stderr) == (0, "")
    wanted = model.transform(_frame(ROWS))
    np.testing.assert_allclose(np.load(tmp_path / "codes.npy"), wanted, rtol=1e-4, atol=1e-5)
    found = shell.json("evaluate", wine / "run", other, "--out", tmp_path / "e.json")["log_likelihood"]["estimate"]
    assert found == pytest.approx(model.score(_frame(ROWS)), abs=1e-4)


def _frame(rows: np.ndarray) -> Any:
    import pandas

    return pandas.DataFrame(rows, columns=NAMES)


def test_given_entries_and_their_mask_go_by_name(shell: Shell, wine: Path, tmp_path: Path) -> None:
    order = [2, 0, 3, 1]
    known = np.array([True, False, True, False])  # of the model's columns
    rows = np.where(known, ROWS[:3], np.nan)
    filled = {}
    for name, columns in (("same", [0, 1, 2, 3]), ("other", order)):
        names = [NAMES[i] for i in columns]
        table(tmp_path / f"{name}-holes.csv", names, rows[:, columns])
        table(tmp_path / f"{name}-whole.csv", names, ROWS[:3, columns])
        table(tmp_path / f"{name}-mask.csv", names[::-1], known[columns][None, ::-1].astype(int))
        np.save(tmp_path / f"{name}-mask.npy", known[columns][None])
        draw = ["sample", wine / "run", "--seed", 1, "--steps", 5, "--out", tmp_path / "s.csv", "--given"]
        for case in (
            [tmp_path / f"{name}-holes.csv"],
            [tmp_path / f"{name}-whole.csv", "--mask", tmp_path / f"{name}-mask.csv"],
            [tmp_path / f"{name}-whole.csv", "--mask", tmp_path / f"{name}-mask.npy"],
        ):
            shell.ok(*draw, *case)
            written = load(tmp_path / "s.csv")
            assert list(written.feature_names or ()) == NAMES  # what is written can be read again
            np.testing.assert_allclose(written.X[:, known], ROWS[:3, known], rtol=1e-5)
            filled[name, len(case), str(case[-1])[-4:]] = written.X
    first, *others = filled.values()
    for found in others:
        np.testing.assert_array_equal(found, first)


def test_the_report_goes_by_name(shell: Shell, wine: Path, tmp_path: Path) -> None:
    from latentia.report.runs import read_run

    folder = tmp_path / "again"
    table(tmp_path / "wine.csv", NAMES, ROWS)
    shell.ok("fit", "ppca", tmp_path / "wine.csv", "--n-components", 2, "--random-state", 0, "--out", folder)
    table(tmp_path / "wine.csv", NAMES[::-1], ROWS[:, ::-1])  # written anew by somebody
    np.testing.assert_allclose(read_run(folder).rows, ROWS, rtol=1e-6)
    result = shell("encode", folder, "--out", tmp_path / "c.npy")
    assert (result.exit_code, result.stderr) == (0, "")
    table(tmp_path / "wine.csv", ["acid", "ash"], ROWS[:, [0, 2]])
    assert "'sugar, residual', 'colour'" in read_run(folder).problems["data"]


@pytest.mark.parametrize("command", ["encode", "evaluate", "sample"])
def test_columns_that_do_not_match_are_named(shell: Shell, wine: Path, tmp_path: Path, command: str) -> None:
    out = ["--out", tmp_path / ("e.json" if command == "evaluate" else "c.npy")]

    def refused(names: list[str], columns: np.ndarray) -> str:
        file = table(tmp_path / "more.csv", names, columns)
        between = ["--given", file] if command == "sample" else [file]
        message = shell.refused(command, wine / "run", *between, *out)
        assert len(message.strip().splitlines()) == 1
        return message

    message = refused(["acid", "ash", "colour"], ROWS[:, [0, 2, 3]])
    assert "'sugar, residual'" in message
    assert "'acid'" not in message
    message = refused([*NAMES[:3], "color"], ROWS)
    assert "'colour'" in message
    assert "'color'" in message
    message = refused([*NAMES, "weight"], np.column_stack([ROWS, ROWS[:, 0]]))
    assert "'weight'" in message
    assert "target=" in message
    assert "'acid'" not in message
    message = refused([*NAMES[:3], "ash"], ROWS)
    assert "'ash'" in message
    assert "more than one" in message
    message = refused([*NAMES[:3], ""], ROWS)
    assert "no name" in message


def test_labels_of_the_run_are_no_features_of_other_files(shell: Shell, wine: Path, tmp_path: Path) -> None:
    words = np.array(["red", "white", "rosé"])[LABELS]
    other = table(tmp_path / "more.csv", NAMES[::-1], ROWS[:, ::-1], words)
    result = shell("encode", wine / "run", other, "--out", tmp_path / "c.npz")
    assert result.exit_code == 0
    assert "'kind'" in result.stderr
    assert list(np.load(tmp_path / "c.npz")["y"]) == list(words)
    shell.ok("encode", wine / "run", "--out", tmp_path / "own.npz")
    np.testing.assert_allclose(np.load(tmp_path / "c.npz")["X"], np.load(tmp_path / "own.npz")["X"], atol=1e-5)


def test_files_without_names_go_by_position(shell: Shell, wine: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "more.npy", ROWS)
    result = shell("encode", wine / "run", tmp_path / "more.npy", "--out", tmp_path / "c.npy")
    assert result.exit_code == 0
    assert "acid, sugar, residual, ash, colour" in result.stderr
    shell.ok("encode", wine / "run", "--out", tmp_path / "own.npy")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), np.load(tmp_path / "own.npy"), atol=1e-5)
    np.savetxt(tmp_path / "bare.csv", ROWS, delimiter=",")
    shell.ok("encode", wine / "run", tmp_path / "bare.csv", "--out", tmp_path / "c.npy")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), np.load(tmp_path / "own.npy"), atol=1e-5)
    # A model that was trained on an array takes a table by position, whatever it calls its columns.
    shell.ok(
        "fit", "ppca", tmp_path / "more.npy", "--n-components", 2, "--random-state", 0, "--out", tmp_path / "run"
    )
    assert not hasattr(latentia.load(tmp_path / "run" / "model.safetensors"), "feature_names_in_")
    table(tmp_path / "named.csv", ["d", "c", "b", "a"], ROWS)
    result = shell("encode", tmp_path / "run", tmp_path / "named.csv", "--out", tmp_path / "c.npy")
    assert (result.exit_code, result.stderr) == (0, "")
    np.testing.assert_allclose(np.load(tmp_path / "c.npy"), np.load(tmp_path / "own.npy"), atol=1e-5)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_header_must_tell_columns_apart(shell: Shell, tmp_path: Path, suffix: str) -> None:
    path, fit = tmp_path / f"t{suffix}", ["fit", "ppca", tmp_path / f"t{suffix}", "--out", tmp_path / "run"]
    if suffix == ".csv":
        path.write_text("a,b,a\n1,2,3\n4,5,7\n")
    else:
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table([[1.0, 2.0]] * 3, names=["a", "b", "a"]), path)
    assert "named 'a'" in shell.refused(*fit)
    if suffix == ".csv":
        path.write_text(",a,b\n0,2,3\n1,5,7\n")  # pandas' index
        assert "column 0 (counted from 0) has no name" in shell.refused(*fit)
        path.write_text("a,b\n0,2,3\n1,5,7\n")  # R's row names
        assert "2 columns in the header, but 3 in row 0" in shell.refused(*fit)
    assert not (tmp_path / "run").exists()


def test_the_runs_own_file_is_read_as_before_whatever_it_is_called(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    np.save(tmp_path / "counts.npy", 10 * ROWS)
    monkeypatch.chdir(tmp_path)
    fit = ["fit", "ppca", "counts.npy", "--data-option", "scale=10", "--n-components", 2, "--random-state", 0]
    shell.ok(*fit, "--out", "run")
    wanted = latentia.load("run/model.safetensors").transform(ROWS)
    for name in ([], ["counts.npy"], ["./counts.npy"], [tmp_path / "counts.npy"]):
        shell.ok("encode", "run", *name, "--out", "codes.npy")
        np.testing.assert_allclose(np.load("codes.npy"), wanted, rtol=1e-3, atol=1e-4)
