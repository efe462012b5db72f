"""The recipes of variational autoencoders, quick and on made-up digits."""

from __future__ import annotations

import json

import numpy as np
import pytest

from latentia.datasets.base import Dataset
from latentia.recipes import RECIPES, mnist_vae

NAMES = ("mnist-vae", "mnist-iwae", "mnist-ladder", "mnist-sbn")


def _digits(name, **options):
    assert name == "mnist"
    rng = np.random.default_rng(0)
    grey = np.where(rng.random((240, 1)) < 0.5, 0.9, 0.1) * rng.random((240, 16))
    grey = grey.astype(np.float32)
    return Dataset("toy", grey[:200], X_test=grey[200:], image_shape=(4, 4), domain="unit")


@pytest.mark.parametrize("name", NAMES)
def test_quick_variants_run_and_tell_their_figures(name, tmp_path, monkeypatch):
    monkeypatch.setattr("latentia.datasets.load", _digits)
    out = tmp_path / "run"
    figures = RECIPES[name].run(out, quick=True)
    parts = [figures[n] for n in ("one layer", "two layers")] if name == "mnist-iwae" else [figures]
    for part in parts:
        assert -16 < part["bound, nats"] < -1  # between coins that are thrown blindly and certainty
        assert part["bound's standard error"] > 0
        assert part["draws for each digit"] == 20
        assert part["elbo"] <= part["bound, nats"]
        assert part["test digits"] == 40
        (both,) = [value for key, value in part.items() if key.startswith("two-sided")]
        assert both["lower"] < both["upper"]
    assert figures["literature"] == RECIPES[name].literature
    assert json.loads((out / "evaluation.json").read_text())["recipe"]["variant"] == "quick"


def test_the_settings_are_those_of_the_literature():
    assert mnist_vae._VAE["full"]["n_components"] == 50
    assert mnist_vae._IWAE["two layers"]["full"]["latent"] == (100, 50)
    assert mnist_vae._IWAE["two layers"]["full"]["n_draws"] == 50
    assert mnist_vae._SBN["full"]["n_components"] == 200
    assert mnist_vae._BOUND["full"] == 5000
    assert all(mnist_vae._TESTED[v] is None for v in ("full",))
