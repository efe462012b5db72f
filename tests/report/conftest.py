"""One tiny run, really fitted, that the tests copy and damage."""

import json
import shutil
from pathlib import Path

import pytest

from latentia import RBM
from latentia.datasets import load


def _add(path: Path, **entries) -> None:
    """Put entries into a JSON file."""
    path.write_text(json.dumps(json.loads(path.read_text()) | entries))


@pytest.fixture(scope="session")
def digits():
    return load("digits")


@pytest.fixture(scope="session")
def fitted_run(tmp_path_factory, digits) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    rbm = RBM(n_components=9, n_epochs=2, binarize="sample", random_state=0, run_dir=folder)
    rbm.fit(digits.X[:200])
    _add(
        folder / "config.json",
        data={"name": "digits", "options": {}, "image_shape": [8, 8], "description": "Digits <b>scaled</b>."},
        seconds=75.2,
        compile_seconds=1.5,
        environment={"latentia": "0.1.0", "jax": "0.10.2", "device": "1 × cpu"},
    )
    result = {
        "lower": -30.25,
        "upper": -29.75,
        "estimate": -30.0,
        "stderr": 0.1,
        "method": "AIS & reverse AIS",
    }
    details = {"n_examples": 360}
    evaluation = {"split": "test", "n_examples": 360, "log_likelihood": {**result, "details": details}}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


@pytest.fixture
def run(fitted_run, tmp_path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(fitted_run, tmp_path / "tiny"))


@pytest.fixture(scope="session")
def table_run(fitted_run, tmp_path_factory) -> Path:
    """A run on rows that have no name, are no pictures, and were not evaluated."""
    folder = Path(shutil.copytree(fitted_run, tmp_path_factory.mktemp("runs") / "table"))
    (folder / "evaluation.json").unlink()
    _add(folder / "config.json", data=None)
    return folder


@pytest.fixture
def add():
    return _add
