"""Every command on a run of every family: what it can do it does, what it cannot it says in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import numpy as np
import pytest

import latentia
from latentia.cli import cli
from latentia.commands import fit, parameters, signatures
from latentia.core.files import read_arrays
from latentia.registry import FAMILIES, Family

from .conftest import Shell

RNG = np.random.default_rng(0)
#: (training rows, test rows) by kind; both have entries that vary and means that differ.
DATA = {
    "binary": (RNG.random((24, 6)) < 0.6, RNG.random((8, 6)) < 0.4),
    "real": (RNG.normal([1, 2, 3], size=(24, 3)), RNG.normal([0, 2, 4], size=(8, 3))),
}
#: Short, wherever a family has the parameter.
SHORT = {"n_epochs": 2, "batch_size": 12, "monitor": "none"}
#: What a family lacks, and why, in a word of the answer; everything else must work.
LACKS: dict[str, dict[str, str]] = {
    **{
        name: dict.fromkeys(("sample", "mean", "given"), "cannot be sampled|cannot fill in|has no sample")
        for name in ("dictionary", "sparse-coder", "autoencoder", "stacked-autoencoder")
    },
    **{
        name: {"mean": "cannot return means"}
        for name in ("deep-energy", "product-of-experts", "fields-of-experts", "boltzmann-machine")
    },
    "ica": {"given": "cannot fill in"},
}
#: What is told in place of a log-likelihood.
INSTEAD = {
    **dict.fromkeys(("dictionary", "sparse-coder"), "objective"),
    **dict.fromkeys(("autoencoder", "stacked-autoencoder"), "reconstruction_loss"),
    **dict.fromkeys(("deep-energy", "product-of-experts", "fields-of-experts"), "score_matching"),
}


class Finished:
    """A run of a family, its fitted estimator and its data."""

    def __init__(self, shell: Shell, folder: Path, entry: Family):
        self.shell, self.folder, self.entry = shell, folder, entry
        self.train, self.test = (rows.astype(np.float32) for rows in DATA[entry.tiny_data])
        self.width, self.run, self.data = self.train.shape[1], folder / "run", folder / "data.npz"
        np.savez(self.data, X=self.train, X_test=self.test, y=np.arange(24) % 2, y_test=np.arange(8) % 2)
        settings = {**{k: v for k, v in SHORT.items() if k in signatures.read(entry.target)}, **entry.tiny}
        words = [
            part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", _typed(value))
        ]
        self.summary = shell.json("fit", entry.name, self.data, *words, "--random-state", 0, "--out", self.run)
        self.estimator = latentia.load(self.run / "model.safetensors")

    def does(self, ability: str, *words: Any) -> Any:
        """The JSON of a command that must work, or None where the family lacks the ability and says so."""
        why = LACKS.get(self.entry.name, {}).get(ability)
        if why is None:
            return self.shell.json(*words)
        message = self.shell.refused(*words)
        assert len(message.strip().splitlines()) == 1
        assert any(part in message for part in why.split("|")), message
        return None

    def rows(self, name: str) -> np.ndarray:
        """What a command wrote: finite numbers."""
        found = np.load(self.folder / name)
        assert np.isfinite(found).all()
        return found


def _typed(value: Any) -> str:
    """As one would type it: sizes with commas."""
    return "".join(f"{n}," for n in value) if isinstance(value, tuple) else str(value)


@pytest.fixture(scope="module", params=FAMILIES, ids=[entry.name for entry in FAMILIES])
def finished(request: pytest.FixtureRequest, shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    return Finished(shell, tmp_path_factory.mktemp("family"), request.param)


def test_no_command_is_forgotten() -> None:
    """A command that takes a run must be tried below."""
    taking = {
        name
        for name, command in cli.commands.items()
        if any(isinstance(each, click.Argument) and each.name in ("run", "runs") for each in command.params)
    }
    assert taking == {"evaluate", "sample", "encode", "predict", "report"}
    assert set(LACKS) | set(INSTEAD) <= {entry.name for entry in FAMILIES}
    assert {"data", "out", "resume"} <= set(fit.RUN_PARAMS)
    assert set(parameters.MANAGED) == {"run_dir", "resume", "verbose"}


def test_fit_and_resume(finished: Finished) -> None:
    assert finished.summary["family"] == finished.entry.name
    assert (finished.summary["n_rows"], finished.summary["n_features"]) == finished.train.shape
    config = json.loads((finished.run / "config.json").read_text())
    assert (config["family"], config["data"]["name"]) == (finished.entry.name, str(finished.data))
    before, _ = read_arrays(finished.run / "model.safetensors")
    again = finished.shell.json("fit", finished.entry.name, finished.data, "--out", finished.run, "--resume")
    assert again["n_rows"] == 24
    after, _ = read_arrays(finished.run / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(np.array_equal(after[name], before[name]) for name in before)  # there was nothing left to do


def test_evaluate(finished: Finished) -> None:
    words = ["evaluate", finished.run, "--temperatures", 20, "--chains", 8, "--out", finished.folder / "e.json"]
    answer = finished.shell(*words, "--json")
    assert answer.exit_code == 0, answer.output
    result = json.loads(answer.stdout)
    assert (result["split"], result["n_examples"]) == ("test", 8)
    assert "accuracy" not in result  # the data have labels, which nobody learned
    told = INSTEAD.get(finished.entry.name)
    assert ("change nothing" in answer.stderr) == (told is not None)
    if told is None:
        found = result["log_likelihood"]
        assert np.isfinite(found["estimate"])
        assert found["lower"] <= found["estimate"] <= found["upper"]
        return
    assert result[told] == pytest.approx(-finished.estimator.score(finished.test), rel=1e-4)
    assert "no log-likelihood" in finished.shell.ok(*words[:2], "--out", finished.folder / "e.json")


def test_encode(finished: Finished) -> None:
    for split, rows in (("train", finished.train), ("test", finished.test)):
        out = finished.folder / "codes.npy"
        result = finished.shell.json("encode", finished.run, "--split", split, "--out", out)
        codes = finished.rows("codes.npy")
        assert result["shape"] == list(codes.shape) == [len(rows), finished.estimator._n_features_out]
        np.testing.assert_allclose(codes, finished.estimator.transform(rows), rtol=1e-4, atol=1e-5)


def test_predict(finished: Finished) -> None:
    """These runs learned from rows alone; runs with labels have tests of their own."""
    words = ["predict", finished.run]
    if not hasattr(finished.estimator, "predict"):
        assert "learned no labels" in finished.shell.refused(*words)
        return
    result = finished.shell.json(*words, "--proba")
    assert result["labels"] == finished.estimator.predict(finished.test).tolist()
    expected = finished.estimator.predict_proba(finished.test)
    np.testing.assert_allclose(result["probabilities"], expected, rtol=1e-4, atol=1e-6)
    assert "accuracy" not in result  # these are components, not the labels of the data


@pytest.mark.parametrize("ability", ["sample", "mean"])
def test_sample(finished: Finished, ability: str) -> None:
    words = ["sample", finished.run, "-n", 3, "--steps", 4, "--out", finished.folder / "s.npy"]
    result = finished.does(ability, *words, *(["--mean"] if ability == "mean" else []))
    if result is None:
        return
    rows = finished.rows("s.npy")
    assert result["shape"] == list(rows.shape) == [3, finished.width]
    if finished.entry.tiny_data == "binary":
        assert ((rows == 0) | (rows == 1)).all() == (ability == "sample")
        assert ((rows >= 0) & (rows <= 1)).all()


@pytest.mark.parametrize("mean", [False, True])
def test_sample_given(finished: Finished, mean: bool) -> None:
    lacked = mean and "mean" in LACKS.get(finished.entry.name, {})
    given = finished.test[:2].copy()
    given[0, 2:], given[1, :2] = np.nan, np.nan
    np.save(finished.folder / "holes.npy", given)
    words = ["sample", finished.run, "--given", finished.folder / "holes.npy", "-n", 2, "--steps", 4]
    words += ["--out", finished.folder / "g.npy", *(["--mean"] if mean else [])]
    result = finished.does("mean" if lacked else "given", *words)
    if result is None:
        return
    rows, known = finished.rows("g.npy"), np.repeat(given, 2, axis=0)
    assert result["shape"] == list(rows.shape) == [4, finished.width]
    np.testing.assert_allclose(rows[~np.isnan(known)], known[~np.isnan(known)], rtol=1e-6)
    np.save(finished.folder / "wide.npy", np.tile(given, 2))
    message = finished.shell.refused(*words[:3], finished.folder / "wide.npy", *words[4:])
    assert f"{finished.width} columns" in message


def test_report(finished: Finished) -> None:
    page = finished.folder / "page.html"
    assert finished.shell.json("report", finished.run, "--out", page) == {"report": str(page)}
    text = page.read_text()
    assert text.rstrip().endswith("</html>")
    assert finished.entry.title in text


def test_wrong_rows_are_refused_in_a_line(finished: Finished) -> None:
    np.save(finished.folder / "wide.npy", np.tile(finished.test, 2))
    np.save(finished.folder / "gaps.npy", np.where(finished.test == finished.test[0, 0], np.nan, finished.test))
    for name in ("wide.npy", "gaps.npy"):
        for command in ("encode", "evaluate"):
            out = finished.folder / ("c.npy" if command == "encode" else "e.json")
            message = finished.shell.refused(command, finished.run, finished.folder / name, "--out", out)
            assert len(message.strip().splitlines()) == 1
