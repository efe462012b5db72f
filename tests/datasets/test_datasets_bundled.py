"""Bundled and synthetic data against their sources and exact distributions; patches."""

import itertools
import math
import socket

import numpy as np
import pytest
from scipy.stats import chisquare
from sklearn.datasets import load_digits, load_sample_image

from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.datasets import Dataset, available, bars_log_prob, extract_patches, load
from latentia.datasets import bundled as bundled_module


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("a bundled data set tried to use the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


def test_every_bundled_set_loads_offline(no_network):
    names = [info.name for info in available() if info.bundled]
    assert names == ["digits", "patches", "bars", "mixtures"]
    for name in names:
        data = load(name)
        assert data.X.dtype == np.float32
        assert data.name == name
        assert data.description
        if data.domain in ("unit", "binary"):
            assert data.X.min() == 0
            assert data.X.max() == 1


def test_digits_are_scikit_learns():
    data, (pixels, labels) = load("digits"), load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(1797)
    np.testing.assert_array_equal(np.concatenate([data.X, data.X_test]) * 16, pixels[order])
    np.testing.assert_array_equal(np.concatenate([data.y, data.y_test]), labels[order])
    assert (len(data.X), len(data.X_test), data.image_shape, data.domain) == (1437, 360, (8, 8), "unit")


@pytest.mark.parametrize(("size", "p"), [(2, 0.3), (3, None), (3, 0.6)])
def test_bars_probability_by_enumeration(size, p):
    """Sum over all sets of bars; compare every possible picture, including impossible ones."""
    on = 1 / size if p is None else p
    exact = {}
    for bars in itertools.product([0, 1], repeat=2 * size):
        rows, columns = np.array(bars[:size]), np.array(bars[size:])
        picture = tuple(np.maximum(rows[:, None], columns[None, :]).ravel())
        k = sum(bars)
        exact[picture] = exact.get(picture, 0) + on**k * (1 - on) ** (2 * size - k)
    pictures = np.array(list(itertools.product([0, 1], repeat=size * size)))
    expected = np.array([exact.get(tuple(picture), 0) for picture in pictures])
    probability = np.exp(bars_log_prob(pictures, size, p))
    np.testing.assert_allclose(probability, expected, atol=1e-14)
    assert probability.sum() == pytest.approx(1)


def test_bars_are_drawn_from_their_distribution():
    data = load("bars", size=2, p=0.3, n=20_000, n_test=0, seed=1)
    pictures, counts = np.unique(data.X, axis=0, return_counts=True)
    assert chisquare(counts, 20_000 * np.exp(bars_log_prob(pictures, 2, 0.3))).pvalue > 1e-3
    assert data.X_test is None


def test_bars_defaults_match_log_prob():
    data = load("bars")
    assert (data.X.shape, data.X_test.shape, data.image_shape, data.domain) == (
        (5000, 16),
        (1000, 16),
        (4, 4),
        "binary",
    )
    assert np.isfinite(bars_log_prob(data.X)).all()
    assert bars_log_prob(np.ones((1, 16)))[0] == pytest.approx(math.log(2 * 0.25**4 - 0.25**8))


@pytest.mark.parametrize("bad", [np.zeros((2, 9)), np.full((1, 16), 0.5), np.zeros(16)])
def test_bars_log_prob_refuses(bad):
    with pytest.raises(DataError, match="16 pixels"):
        bars_log_prob(bad)


def test_mixture_geometry():
    data = load("mixtures", n=30_000, n_clusters=4, separation=8.0, seed=2)
    centres = np.stack([data.X[data.y == k].mean(axis=0) for k in range(4)])
    gaps = np.linalg.norm(centres - np.roll(centres, 1, axis=0), axis=1)
    np.testing.assert_allclose(gaps, 8.0, atol=0.1)
    spread = np.cov((data.X - centres[data.y]).T)
    np.testing.assert_allclose(spread, np.eye(2), atol=0.05)
    assert chisquare(np.bincount(data.y)).pvalue > 1e-3
    assert load("mixtures", n_clusters=1).X.shape == (2000, 2)


@pytest.mark.parametrize("name", ["bars", "mixtures", "patches"])
def test_seeds(name):
    a, b, c = load(name, n=50, seed=5), load(name, n=50, seed=5), load(name, n=50, seed=6)
    np.testing.assert_array_equal(a.X, b.X)
    assert not np.array_equal(a.X, c.X)


@pytest.mark.parametrize(
    ("name", "options", "word"),
    [
        ("bars", {"p": 0.0}, "p"),
        ("bars", {"p": 1.5}, "p"),
        ("bars", {"size": 0}, "size"),
        ("bars", {"n": 0}, "n"),
        ("bars", {"n_test": -1}, "n_test"),
        ("mixtures", {"n_clusters": 0}, "n_clusters"),
        ("mixtures", {"n": 2.5}, "n"),
        ("mixtures", {"separation": -1}, "separation"),
        ("patches", {"patch_size": 0}, "patch_size"),
        ("patches", {"n": True}, "n"),
    ],
)
def test_bad_options(name, options, word):
    with pytest.raises(ParameterError, match=word):
        load(name, **options)


def test_patches_are_windows_of_the_photograph():
    data = load("patches", patch_size=9, n=40, images=["china"], seed=1)
    china = load_sample_image("china.jpg") @ np.array([0.299, 0.587, 0.114]) / 255
    windows = np.lib.stride_tricks.sliding_window_view(china.astype(np.float32), (9, 9))
    for row in data.X[:10]:
        patch = row.reshape(9, 9)
        at = np.argwhere(np.isclose(windows[..., 0, 0], patch[0, 0], atol=1e-6))
        assert any(np.allclose(windows[i, j], patch, atol=1e-6) for i, j in at)
    assert data.image_shape == (9, 9)
    assert "china" in data.description
    assert "flower" not in data.description


def test_grey_matches_pillow():
    from PIL import Image

    colour = load_sample_image("flower.jpg")
    pillow = np.asarray(Image.fromarray(colour).convert("L")) / 255
    np.testing.assert_allclose(bundled_module._grey(colour), pillow, atol=1.01 / 255)


def test_patches_use_scikit_image_where_installed(no_network):
    pytest.importorskip("skimage")
    assert "camera" in load("patches", n=10).description
    from skimage.data import camera

    row = load("patches", patch_size=512, n=1, images="camera").X
    np.testing.assert_allclose(row.reshape(512, 512) * 255, camera(), atol=1e-4)


def test_patches_without_scikit_image(monkeypatch):
    monkeypatch.setattr(bundled_module, "_skimage_folder", lambda: None)
    assert load("patches", n=5).description.endswith("china, flower.")
    with pytest.raises(DataError, match="pip install scikit-image"):
        load("patches", images=["camera"])
    with pytest.raises(UnknownNameError, match="camera"):
        load("patches", images=["camra"])


def test_extract_patches_exact_windows():
    """Pixels that encode image, row and column: each patch names the window it came from."""
    images = [
        np.arange(6 * 7).reshape(6, 7).astype(float),
        1000 + np.arange(5 * 4).reshape(5, 4).astype(float),
    ]
    patches = extract_patches(images, (3, 2), 4000, seed=0).reshape(-1, 3, 2)
    seen = {}
    for patch in patches:
        source, width = (images[1], 4) if patch[0, 0] >= 1000 else (images[0], 7)
        i, j = divmod(int(patch[0, 0]) % 1000, width)
        np.testing.assert_array_equal(patch, source[i : i + 3, j : j + 2])
        key = (source is images[1], i, j)
        seen[key] = seen.get(key, 0) + 1
    assert len(seen) == 4 * 6 + 3 * 3  # every window occurs, the last row and column too
    assert chisquare(list(seen.values())).pvalue > 1e-3


def test_extract_colour_patches():
    image = np.random.default_rng(0).random((8, 9, 3)).astype(np.float32)
    patches = extract_patches([image], 8, 30, seed=1).reshape(30, 8, 8, 3)
    for patch in patches:
        assert any(np.array_equal(patch, image[:, j : j + 8]) for j in range(2))
    assert extract_patches(np.stack([image, image]), 2, 3, seed=0).shape == (3, 12)
    assert extract_patches(np.zeros((5, 6, 6)), 3, 4, seed=0).shape == (4, 9)


@pytest.mark.parametrize(
    ("images", "size", "message"),
    [
        ([], 3, "no images"),
        (np.zeros((4, 9)), 5, "smaller than the patch"),
        (np.zeros((64, 64, 3)), 8, "pass it in a list"),
        ([np.zeros((9, 9)), np.zeros((9, 9, 3))], 3, "do not mix"),
        (np.zeros(9), 3, "expected one grey image"),
        ([np.zeros(9)], 3, "expected numbers"),
        ([np.array([["a", "b"]])], 1, "expected numbers"),
        (np.full((5, 5), np.nan), 3, "NaN"),
    ],
)
def test_extract_patches_refuses(images, size, message):
    with pytest.raises(DataError, match=message):
        extract_patches(images, size, 2, seed=0)


@pytest.mark.parametrize(("size", "n"), [(0, 2), ((1, 2, 3), 2), (2.5, 2), (3, 0), (3, -1)])
def test_extract_patches_bad_parameters(size, n):
    with pytest.raises(ParameterError):
        extract_patches(np.zeros((9, 9)), size, n, seed=0)


def test_binarised_sample_has_the_right_means():
    data = Dataset(
        "grey", np.full((4000, 2), [0.2, 0.9], np.float32), X_test=np.eye(2, dtype=np.float32), domain="unit"
    )
    sampled = data.binarised(seed=0)
    assert set(np.unique(sampled.X)) == {0.0, 1.0}
    np.testing.assert_allclose(sampled.X.mean(axis=0), [0.2, 0.9], atol=0.03)
    np.testing.assert_array_equal(sampled.X_test, np.eye(2))  # certain pixels stay
    assert sampled.domain == "binary"
    assert "default_rng(0)" in sampled.description
    expected = np.random.default_rng(0).random((4000, 2)) < data.X
    np.testing.assert_array_equal(sampled.X, expected)
    np.testing.assert_array_equal(data.binarised("threshold").X, np.tile([0, 1], (4000, 1)))


def test_binarised_in_chunks_is_the_same(monkeypatch):
    data = load("digits")
    whole = data.binarised()
    monkeypatch.setattr("latentia.datasets.base._CHUNK_VALUES", 1000)
    np.testing.assert_array_equal(data.binarised().X_test, whole.X_test)


def test_binarised_refuses():
    with pytest.raises(DataError, match="Scale"):
        load("mixtures").binarised()
    with pytest.raises(ParameterError, match="method"):
        load("digits").binarised("dither")
    bars = load("bars")
    assert bars.binarised() is bars


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"X": np.zeros(3)}, "two-dimensional"),
        ({"X": np.zeros((0, 3))}, "empty"),
        ({"X": np.zeros((2, 3)), "y": np.zeros(3)}, "labels"),
        ({"X": np.zeros((2, 3)), "X_test": np.zeros((2, 4))}, "columns"),
        ({"X": np.zeros((2, 3)), "y_test": np.zeros(2)}, "without X_test"),
        ({"X": np.zeros((2, 3)), "image_shape": (2, 2)}, "image_shape"),
        ({"X": np.zeros((2, 3)), "domain": "complex"}, "domain"),
    ],
)
def test_dataset_checks_itself(fields, message):
    with pytest.raises(ValueError, match=message):
        Dataset("broken", **fields)
