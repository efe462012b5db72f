"""The natural-patches experiment: what is held out, what is compared, and the page."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from latentia.core.errors import DataError, ParameterError
from latentia.recipes import RECIPES, natural_patches


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    patch.setenv("LATENTIA_DATA", str(tmp_path_factory.mktemp("nothing")))
    patch.setattr("latentia.datasets.load", _offline)
    out = tmp_path_factory.mktemp("patches") / "run"
    settings = {**natural_patches._SETTINGS["quick"], "side": 6, "n_train": 400, "hidden": (4, 4)}
    patch.setitem(natural_patches._SETTINGS, "quick", settings)
    figures = RECIPES["natural-patches"].run(out, quick=True)
    patch.undo()
    return out, figures


def _offline(name, **options):
    from latentia.datasets.bundled import load_digits

    if name == "mnist":
        raise DataError("no network")
    return load_digits(**options)


def test_all_comparisons_are_made(result):
    _, figures = result
    ways = figures["gaussians"]
    assert list(ways) == ["maximum likelihood", "score matching", "noise contrast", "conditional noise contrast"]
    best = ways["maximum likelihood"]
    assert best["distance"] == 0
    assert all(way["held-out log-likelihood"] <= best["held-out log-likelihood"] + 3 for way in ways.values())
    models = figures["deep energy models"]
    assert list(models) == ["whitened, σ = 1", "whitened, σ = 0.1", "plain, σ = 1", "plain, σ = 0.1"]
    for facts in models.values():
        assert set(facts["log p̃"]) == {"held-out patches", "Gaussian samples", "digits"}
        assert all(0 <= auc <= 1 for auc in facts["AUC"].values())
    assert "scikit-learn" in figures["digits"]


def test_the_page_and_the_files_tell_the_same(result):
    out, figures = result
    page = (out / "report.html").read_text(encoding="utf-8")
    for title in ("The data", "A Gaussian", "Telling patches", "Filters", "Modes", "Summary"):
        assert title in page
    assert figures["deep energy models"]["plain, σ = 1"]["log p̃"]["digits"] in page
    assert json.loads((out / "evaluation.json").read_text())["recipe"]["digits"] == figures["digits"]
    assert len(list(out.glob("deep-energy-*.safetensors"))) == 4


def test_held_out_patches_come_from_other_pictures(tmp_path):
    for i in range(10):
        level = 255 if i % 5 == 0 else 0  # every fifth is held out
        Image.fromarray(np.full((40, 50), level, np.uint8)).save(tmp_path / f"{i}.png")
    train, test, how = natural_patches.cut_patches(tmp_path, 8, 50, 20, 0)
    assert train.shape == (50, 64)
    assert train.max() < 1 / 256
    assert test.min() > 0.99
    assert "8 photographs for training, 2 others" in how
    for i in range(2, 10):
        (tmp_path / f"{i}.png").unlink()
    left = np.zeros((40, 50), np.uint8)
    left[:, :10] = 255
    for i in range(2):
        Image.fromarray(left).save(tmp_path / f"{i}.png")
    train, test, how = natural_patches.cut_patches(tmp_path, 8, 50, 20, 0)
    assert train.max() < 1 / 256 < 0.99 < test.min()
    assert "left fifth" in how


def test_wrong_folders_and_options_are_explained(tmp_path):
    with pytest.raises(DataError, match="no pictures"):
        natural_patches.cut_patches(tmp_path, 8, 5, 5, 0)
    with pytest.raises(DataError, match="not a folder"):
        natural_patches.cut_patches(tmp_path / "missing", 8, 5, 5, 0)
    Image.fromarray(np.zeros((10, 50), np.uint8)).save(tmp_path / "small.png")
    with pytest.raises(DataError, match=r"small.png is smaller than 16×16"):
        natural_patches.cut_patches(tmp_path, 8, 5, 5, 0)
    with pytest.raises(ParameterError, match="no option images"):
        RECIPES["mnist-rbm"].run(tmp_path, quick=True, images=tmp_path)
