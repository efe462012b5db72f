"""Gabor functions: planted ones are recovered, derivatives are right, and angles mean what they say."""

from __future__ import annotations

import numpy as np
import pytest

from latentia.core.errors import DataError
from latentia.ops import gabor as module
from latentia.ops.gabor import fit_gabors, gabor

SHAPE = (13, 11)


def planted(n, seed=0):
    """(parameters (n, 7), pictures): all well inside and well resolved."""
    rng = np.random.default_rng(seed)
    bounds = [(3, 7), (3, 9), (0, np.pi), (0.1, 0.35), (-np.pi, np.pi), (1.2, 2.5), (1.2, 3.0)]
    parameters = np.stack([rng.uniform(low, high, n) for low, high in bounds], axis=1)
    return parameters, np.stack([gabor(SHAPE, *p).ravel() for p in parameters])


def angle_between(a, b):
    return np.abs(np.mod(a - b + np.pi / 2, np.pi) - np.pi / 2)


def test_planted_functions_are_recovered():
    p, pictures = planted(40)
    scales = np.linspace(0.1, 50, 40)
    fits = fit_gabors(scales[:, None] * pictures, SHAPE)
    np.testing.assert_allclose(fits.explained, 1, atol=1e-6)
    np.testing.assert_allclose(fits.x, p[:, 0], atol=1e-3)
    np.testing.assert_allclose(fits.y, p[:, 1], atol=1e-3)
    np.testing.assert_allclose(fits.frequency, p[:, 3], atol=1e-4)
    np.testing.assert_allclose(fits.along, p[:, 5], rtol=1e-3)
    np.testing.assert_allclose(fits.across, p[:, 6], rtol=1e-3)
    np.testing.assert_allclose(fits.amplitude, scales, rtol=1e-3)
    assert angle_between(fits.orientation, p[:, 2]).max() < 1e-3
    np.testing.assert_allclose(np.exp(1j * fits.phase), np.exp(1j * p[:, 4]), atol=1e-2)
    assert ((fits.orientation >= 0) & (fits.orientation < np.pi)).all()
    np.testing.assert_allclose(fits.pictures(SHAPE).reshape(40, -1), scales[:, None] * pictures, atol=1e-3)


def test_noise_does_little_harm():
    p, pictures = planted(30, seed=1)
    pictures /= np.linalg.norm(pictures, axis=1, keepdims=True)
    noisy = pictures + 0.03 * np.random.default_rng(2).normal(size=pictures.shape)
    fits = fit_gabors(noisy, SHAPE)
    assert np.median(np.abs(fits.frequency - p[:, 3])) < 0.005
    assert np.median(angle_between(fits.orientation, p[:, 2])) < 0.03
    assert np.median(np.hypot(fits.x - p[:, 0], fits.y - p[:, 1])) < 0.15
    expected = 1 - 0.03**2 * pictures.shape[1] / np.sum(noisy**2, axis=1)
    np.testing.assert_allclose(fits.explained, expected, atol=0.06)


def test_derivatives_agree_with_differences():
    p = np.array([5.0, 4.0, 0.7, 0.2, 1.5, 2.0, 0.3, -0.4])
    rows, columns = np.mgrid[: SHAPE[0], : SHAPE[1]].astype(float)
    value = lambda q: module._wave(q, rows, columns)[0].ravel()  # noqa: E731
    step = 1e-6 * np.eye(8)
    wanted = np.stack([(value(p + h) - value(p - h)) / 2e-6 for h in step], axis=1)
    np.testing.assert_allclose(module._slopes(p, rows, columns), wanted, atol=1e-8)


def test_angles_frequencies_and_widths_mean_what_they_say():
    upright = gabor((9, 9), 4, 4, 0.0, 0.25, 0.0, 3.0, 3.0)  # the wave travels to the right
    np.testing.assert_allclose(upright[0] / upright[0, 4], upright[8] / upright[8, 4])
    assert upright[4, 4] == 1
    assert upright[4, 6] < 0  # half a period, 2 pixels, to the right
    assert upright[6, 4] > 0  # but not below
    lying = gabor((9, 9), 4, 4, np.pi / 2, 0.25, 0.0, 3.0, 3.0)
    np.testing.assert_allclose(lying, upright.T, atol=1e-12)
    falling = gabor(
        (9, 9), 4, 4, np.pi / 4, 0.25, 0.0, 50.0, 50.0
    )  # y points down: crests from lower left to upper right
    assert falling[6, 2] == pytest.approx(falling[2, 6]) == pytest.approx(1, abs=0.01)
    wide = gabor((9, 9), 4, 4, 0.0, 0.0, 0.0, 1.0, 3.0)
    assert wide[4, 5] == pytest.approx(np.exp(-0.5))
    assert wide[7, 4] == pytest.approx(np.exp(-0.5))


def test_bandwidth_is_that_of_the_spectrum():
    """Half amplitude of the Fourier transform, measured."""
    fits = fit_gabors(gabor((64, 64), 32, 32, 0.0, 0.2, 0.0, 4.0, 4.0).reshape(1, -1), (64, 64))
    spectrum = np.abs(np.fft.fft(gabor((1, 4096), 2048, 0, 0.0, 0.2, 0.0, 4.0, 4.0)[0]))[:2048]
    above = np.flatnonzero(spectrum > spectrum.max() / 2)
    assert fits.bandwidth[0] == pytest.approx(np.log2((above[-1] + 0.5) / (above[0] - 0.5)), abs=0.01)
    assert fits.aspect[0] == pytest.approx(1, abs=1e-3)
    low = fit_gabors(gabor((32, 32), 16, 16, 0.3, 0.05, 0.0, 2.0, 4.0).reshape(1, -1), (32, 32))
    assert low.bandwidth[0] == np.inf  # reaches down to zero frequency


def test_pictures_that_are_no_gabor_functions_are_told_apart():
    noise = np.random.default_rng(0).normal(size=(5, 121))
    assert fit_gabors(noise, (11, 11)).explained.max() < 0.6
    with pytest.raises(DataError, match="zero everywhere"):
        fit_gabors(np.zeros((1, 9)), (3, 3))
    with pytest.raises(DataError, match="do not fold"):
        fit_gabors(noise, (3, 3))
    with pytest.raises(DataError, match="NaN"):
        fit_gabors(np.full((1, 9), np.nan), (3, 3))
