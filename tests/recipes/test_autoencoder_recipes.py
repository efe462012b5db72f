"""The autoencoder experiments: what is compared, what is held out, how faces are cut."""

from __future__ import annotations

import json

import numpy as np
import pytest
from scipy.ndimage import map_coordinates

from latentia.recipes import RECIPES, autoencoders


@pytest.mark.parametrize("name", ["mnist-deep-autoencoder", "olivetti-deep-autoencoder"])
def test_reconstructions_are_compared_with_pca(offline, tmp_path, name):
    figures = RECIPES[name].run(tmp_path / "run", quick=True)
    error = figures["squared error per picture, test"]
    linear = figures["squared error per picture, test, 4 principal components"]
    assert 0 < linear < np.inf
    assert 0 < error < 1000
    assert figures["literature"]["PCA with 30 components"] in ("13.87", "135")
    assert (tmp_path / "run" / "reconstructions.png").stat().st_size > 1000
    written = json.loads((tmp_path / "run" / "evaluation.json").read_text())["recipe"]
    assert written["squared error per picture, test"] == error
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_errors_are_sums_over_the_picture(tmp_path):
    class Zero:
        def transform(self, X):
            return np.zeros((len(X), 2))

        def reconstruct(self, X):
            return np.zeros_like(X)

    rng = np.random.default_rng(0)
    X = rng.normal(size=(300, 2)) @ rng.normal(size=(2, 16))
    found = autoencoders.compared(Zero(), X, X[:50], (4, 4), tmp_path / "picture.png")
    assert found["squared error per picture, test"] == pytest.approx(np.mean(np.sum(X[:50] ** 2, axis=1)))
    assert (
        found["squared error per picture, test, 2 principal components"] < 1e-20
    )  # two components are all there is


def test_the_stack_reads_digits(offline, tmp_path):
    figures = RECIPES["mnist-sdae"].run(tmp_path / "run", quick=True)
    assert len(figures["test error, %, each seed"]) == 1
    assert 0 <= figures["test error, %, mean"] <= 100
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_face_patches_are_turned_and_scaled_and_standardised():
    rng = np.random.default_rng(1)
    faces, people = rng.random((40, 4096)).astype(np.float32), np.arange(40)
    train, test = autoencoders.face_patches(faces, people, 3, seed=5)
    assert train.shape == (90, 625)
    assert test.shape == (30, 625)
    np.testing.assert_allclose(train.mean(axis=0), 0, atol=1e-5)
    assert np.mean(train**2) == pytest.approx(1, rel=1e-4)
    # Hold one patch against an independent interpolation.
    draw = np.random.default_rng(5)
    angle, scale = draw.uniform(-np.pi / 2, np.pi / 2, (3, 1, 1))[0], draw.uniform(1.4, 1.8, (3, 1, 1))[0]
    y, x = np.mgrid[-12:13, -12:13]
    rows, columns = (
        31.5 + scale * (np.cos(angle) * y - np.sin(angle) * x),
        31.5 + scale * (np.sin(angle) * y + np.cos(angle) * x),
    )
    wanted = map_coordinates(faces[0].reshape(64, 64).astype(float), [rows, columns], order=1).ravel()
    found = train[0] - train[1]  # the means cancel in a difference
    angle, scale = (a[1] for a in _draws(5))
    rows, columns = (
        31.5 + scale * (np.cos(angle) * y - np.sin(angle) * x),
        31.5 + scale * (np.sin(angle) * y + np.cos(angle) * x),
    )
    other = map_coordinates(faces[0].reshape(64, 64).astype(float), [rows, columns], order=1).ravel()
    difference = wanted - other
    np.testing.assert_allclose(found / found.std(), difference / difference.std(), atol=1e-3)
    assert rows.min() >= 0
    assert rows.max() <= 63


def _draws(seed):
    draw = np.random.default_rng(seed)
    return draw.uniform(-np.pi / 2, np.pi / 2, (3, 1, 1)), draw.uniform(1.4, 1.8, (3, 1, 1))
