"""The Olshausen–Field experiment: whitening, statistics of fits, the page, atoms that look like Gabor functions."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from PIL import Image

from latentia.core.errors import DataError
from latentia.ops.gabor import Gabors
from latentia.recipes import RECIPES, olshausen_field


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    patch = pytest.MonkeyPatch()
    settings = {"side": 8, "n_patches": 6000, "n_components": 32, "n_epochs": 6}
    patch.setitem(olshausen_field._SETTINGS, "quick", settings)
    out = tmp_path_factory.mktemp("field") / "run"
    figures = RECIPES["olshausen-field"].run(out, quick=True)
    patch.undo()
    return out, figures


def test_atoms_are_oriented_and_localised(result):
    _, figures = result
    assert figures["variance of an atom explained by a Gabor function, median"] > 0.85
    assert 1 < figures["atoms in a patch, mean"] < 16
    assert figures["part of the variance explained"] > 0.4
    assert figures["kurtosis of the coefficients"] > figures["kurtosis of the pixels"] > 3
    assert 0.05 < figures["frequency, median (cycles per pixel)"] < 0.45


def test_the_page_and_the_files_tell_the_same(result):
    out, figures = result
    page = (out / "report.html").read_text(encoding="utf-8")
    for title in (
        "The data",
        "Atoms",
        "Gabor functions",
        "In numbers",
        "Preferred orientation",
        "Where atoms look",
    ):
        assert title in page
    assert f"{figures['atoms in a patch, mean']:.1f} of 32 atoms" in page
    assert json.loads((out / "evaluation.json").read_text())["recipe"]["atoms"] == 32
    assert (out / "atoms.safetensors").is_file()


def test_whitening_flattens_the_spectrum_of_natural_images():
    """Pictures whose amplitude falls as 1/f get one that is flat up to the cut-off."""
    rng = np.random.default_rng(0)
    fy, fx = np.meshgrid(np.fft.fftfreq(256), np.fft.fftfreq(256), indexing="ij")
    f = np.hypot(fy, fx)
    natural = np.fft.ifft2(np.fft.fft2(rng.normal(size=(256, 256))) / np.maximum(f, 1 / 256)).real
    white = olshausen_field.whitened(natural)
    assert white.shape == (240, 240)
    assert white.std() == pytest.approx(1, abs=1e-5)
    gy, gx = np.meshgrid(np.fft.fftfreq(240), np.fft.fftfreq(240), indexing="ij")
    g, power = np.hypot(gy, gx), np.abs(np.fft.fft2(white)) ** 2

    def level(low, high):
        return np.sqrt(power[(g > low) & (g < high)].mean())

    # R(f)/f = exp(−(f/f₀)⁴)
    assert level(0.05, 0.07) / level(0.18, 0.2) == pytest.approx(1 / np.exp(-((0.19 / 0.4) ** 4)), rel=0.1)
    assert level(0.45, 0.5) / level(0.05, 0.07) == pytest.approx(np.exp(-((0.474 / 0.4) ** 4)), rel=0.15)
    with pytest.raises(DataError, match="one grey level"):
        olshausen_field.whitened(np.full((40, 40), 0.5))


def test_statistics_count_good_fits_inside_the_patch():
    def fits(**changes):
        even = {"x": 5.0, "y": 5.0, "orientation": 0.1, "frequency": 0.2, "phase": 0.0, "along": 2.0}
        values = {**even, "across": 4.0, "amplitude": 1.0, "explained": 0.9, **changes}
        return Gabors(**{name: np.resize(np.asarray(value, float), 4) for name, value in values.items()})

    found = olshausen_field.statistics(
        fits(explained=[0.9, 0.95, 0.8, 0.1], x=[5, 12, 5, 5], along=[1, 9, 2, 9]), 12
    )
    assert found["atoms explained to 70% or more"] == "3 of 4"
    assert found["of these with their centre inside the patch"] == "2 of 3"
    assert found["width of the envelope, median (pixels)"] == pytest.approx(1.5)
    turned = olshausen_field.statistics(fits(orientation=np.radians([5, 85, 100, 45])), 12)
    assert turned["horizontal or vertical within 15°"] == pytest.approx(0.75)
    assert olshausen_field.statistics(fits(explained=0.2), 12)["atoms explained to 70% or more"] == "0 of 4"


def test_kurtosis_counts_the_zeros_of_sparse_codes():
    values = np.random.default_rng(0).normal(size=(400, 50))
    assert olshausen_field.kurtosis(values) == pytest.approx(3, abs=0.1)
    thinned = values * (np.random.default_rng(1).random(values.shape) < 0.1)
    assert olshausen_field.kurtosis(sp.csr_array(thinned)) == pytest.approx(olshausen_field.kurtosis(thinned))
    assert olshausen_field.kurtosis(thinned) == pytest.approx(30, rel=0.15)


def test_a_folder_of_pictures_and_pictures_that_are_too_small(tmp_path):
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 255, (50, 60), np.uint8)).save(tmp_path / "noise.png")
    train, held_out, (before, after), names = olshausen_field.whitened_patches(tmp_path, 8, 300, 0)
    assert train.shape == (300, 64)
    assert len(held_out) == 37  # what is left once the flattest tenth is gone
    assert before.shape == (50, 60)
    assert after.shape == (34, 44)
    assert names == "noise.png"
    assert np.mean(train**2) == pytest.approx(1, rel=0.05)
    np.testing.assert_allclose(train.mean(axis=1), 0, atol=1e-5)
    Image.fromarray(rng.integers(0, 255, (20, 60), np.uint8)).save(tmp_path / "small.png")
    with pytest.raises(DataError, match=r"small.png is smaller than 24×24"):
        olshausen_field.whitened_patches(tmp_path, 8, 300, 0)
