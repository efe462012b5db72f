"""Images through patches: averaging, denoising and in-painting against plain versions, bits against theory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.interpolate import griddata
from scipy.ndimage import gaussian_filter, uniform_filter
from scipy.stats import chi2
from sklearn.feature_extraction.image import extract_patches_2d, reconstruct_from_patches_2d
from sklearn.linear_model import orthogonal_mp

from latentia import DictionaryLearning, SparseCoder
from latentia.core.errors import DataError, ParameterError
from latentia.datasets.bundled import photographs
from latentia.datasets.patches import extract_patches
from latentia.imaging import coloured, restoring
from latentia.imaging.patchwise import denoise_image
from latentia.imaging.rate_distortion import code_lengths, rate_distortion, references
from latentia.inference.sparse.masked import complete_signals
from latentia.learning.dictionary.ksvd import ksvd, start_dictionary
from latentia.ops.patches import Grid, corners

SIGMA = 0.1


def psnr(found, wanted):
    return 10 * np.log10(1 / np.mean((np.asarray(found, float) - wanted) ** 2))


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def coder(D):
    """A fitted estimator with these atoms."""
    return SparseCoder(D, n_nonzero=1).fit(np.zeros((2, D.shape[1]), np.float32))


@pytest.fixture(scope="module")
def photos():
    found = photographs(["china", "flower"])
    return {"china": found["china"][120:200, 220:300], "flower": found["flower"]}


@pytest.fixture(scope="module")
def atoms(photos):
    """Atoms of 6×6 patches of the flower."""
    rows = extract_patches(photos["flower"], 6, 4000, seed=0)
    rows -= rows.mean(axis=1, keepdims=True)
    start = start_dictionary(rows, 96, rng=np.random.default_rng(0))
    return ksvd(rows, start, n_iterations=6, n_nonzero=4)


# -- patches and back ----------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(11, 13), (10, 9, 3)])
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_adding_is_the_transpose_of_cutting(shape, stride):
    rng = np.random.default_rng(0)
    grid = Grid(shape, (4, 3), stride)
    image = rng.normal(size=shape)
    patches = rng.normal(size=(len(grid), 12 * (shape[2] if len(shape) == 3 else 1)))
    back = np.zeros(shape)
    bands = list(grid.bands(7))
    whole = np.concatenate([grid.cut(image, rows) for rows in bands])
    np.testing.assert_array_equal(whole, grid.cut(image))
    grid.add(back, patches)
    assert np.vdot(whole, patches) == pytest.approx(np.vdot(image, back))
    ones = np.zeros(shape)
    grid.add(ones, np.ones(patches.shape))
    coverage = grid.coverage() if len(shape) == 2 else np.repeat(grid.coverage()[..., None], 3, axis=2)
    np.testing.assert_array_equal(ones, coverage)
    assert coverage.min() >= 1


def test_patches_are_those_of_the_data_sets_and_of_scikit_learn():
    image = np.arange(7 * 8 * 3, dtype=np.float32).reshape(7, 8, 3)
    cut = Grid(image.shape, (3, 2)).cut(image)
    np.testing.assert_array_equal(cut, extract_patches_2d(image, (3, 2)).reshape(len(cut), -1))
    np.testing.assert_array_equal(Grid(image.shape, (3, 2)).pick(image, np.array([9, 3])), cut[[9, 3]])
    some = extract_patches([image], (3, 2), 30, seed=0)
    assert {tuple(row) for row in some} <= {tuple(row) for row in cut}
    assert corners(10, 4, 3).tolist() == [0, 3, 6]
    assert corners(4, 4, 3).tolist() == [0]


# -- denoising -----------------------------------------------------------------------------------------


def test_denoising_is_pursuit_and_averaging():
    """Against scikit-learn's pursuit and its mean of overlapping patches."""
    rng = np.random.default_rng(0)
    D = rng.normal(size=(40, 16))
    centred = unit(D - D.mean(axis=1, keepdims=True))
    noisy = gaussian_filter(rng.normal(size=(18, 21)), 2) * 5 + SIGMA * rng.normal(size=(18, 21))
    patches = extract_patches_2d(noisy, (4, 4)).reshape(-1, 16)
    means = patches.mean(axis=1, keepdims=True)
    codes = []
    for patch in patches - means:
        enough = 1.3**2 * SIGMA**2 * 16
        count = next(
            s for s in range(9) if s == 8 or np.sum((patch - _code(patch, centred, s) @ centred) ** 2) <= enough
        )
        codes.append(_code(patch, centred, count))
    wanted = reconstruct_from_patches_2d((np.array(codes) @ centred + means).reshape(-1, 4, 4), noisy.shape)
    found = coder(D).denoise(noisy, SIGMA, gain=1.3, weight=0.0)
    np.testing.assert_allclose(found, wanted, atol=2e-5)
    counts = Grid(noisy.shape, (4, 4)).coverage()
    mixed = coder(D).denoise(noisy, SIGMA, gain=1.3, weight=2.5)
    np.testing.assert_allclose(mixed, (counts * wanted + 2.5 * noisy) / (counts + 2.5), atol=2e-5)


def _code(patch, atoms, count):
    return orthogonal_mp(atoms.T, patch, n_nonzero_coefs=count) if count else np.zeros(len(atoms))


def test_a_wide_tolerance_leaves_the_means_of_the_patches():
    noisy = np.random.default_rng(0).normal(size=(20, 20))
    found = coder(unit(np.random.default_rng(1).normal(size=(20, 9)))).denoise(noisy, 1.0, gain=50.0, weight=0.0)
    twice = uniform_filter(uniform_filter(noisy, 3), 3)
    np.testing.assert_allclose(found[4:-4, 4:-4], twice[4:-4, 4:-4], atol=1e-5)


def test_the_tolerance_is_the_papers_for_64_values_and_as_strict_for_others():
    for d in (16, 64, 192):
        plan = restoring.Plan((8, 8), sigma=2.0)
        assert chi2.sf(plan.enough(d) / 4, d) == pytest.approx(chi2.sf(1.15**2 * 64, 64), rel=1e-6)
    assert restoring.Plan((8, 8), sigma=2.0).enough(64) == pytest.approx(1.15**2 * 64 * 4)
    assert restoring.Plan((8, 8), sigma=2.0, gain=1.2).enough(192) == pytest.approx(1.2**2 * 192 * 4)


def test_learning_on_the_noisy_image_beats_smoothing(photos):
    clean = photos["china"]
    noisy = clean + SIGMA * np.random.default_rng(0).normal(size=clean.shape)
    options = {"n_components": 64, "patch_shape": 6, "n_iterations": 6, "random_state": 1}
    found, D = denoise_image(noisy, SIGMA, return_dictionary=True, **options)
    best = max(psnr(gaussian_filter(noisy, width), clean) for width in np.linspace(0.4, 1.5, 12))
    assert psnr(found, clean) > best + 0.3
    assert psnr(found, clean) > psnr(noisy, clean) + 3
    assert D.shape == (64, 36)
    np.testing.assert_allclose(D.mean(axis=1), 0, atol=1e-4)
    scaled = denoise_image(255 * noisy - 20, 255 * SIGMA, n_threads=1, **options)
    np.testing.assert_allclose(scaled, 255 * found - 20, atol=0.3)  # in any units, on any number of threads
    np.testing.assert_array_equal(found, denoise_image(noisy, SIGMA, n_threads=2, **options))


def test_a_dictionary_of_another_photograph_denoises_too(photos, atoms):
    clean = photos["china"]
    noisy = (clean + SIGMA * np.random.default_rng(0).normal(size=clean.shape)).astype(np.float32)
    found = coder(atoms).denoise(noisy, SIGMA)
    assert found.dtype == np.float32
    assert psnr(found, clean) > psnr(noisy, clean) + 2.5
    quick = coder(atoms).denoise(noisy, SIGMA, stride=3)
    assert psnr(noisy, clean) + 2 < psnr(quick, clean) < psnr(found, clean)
    assert found.min() < 0 or found.max() > 1
    clipped = coder(atoms).denoise(noisy, SIGMA, clip=(0, 1))
    np.testing.assert_array_equal(clipped, np.clip(found, 0, 1))
    whole, parts = coder(atoms).denoise([noisy, noisy[:40]], SIGMA), np.stack([noisy, noisy])
    np.testing.assert_array_equal(whole[0], found)
    assert whole[1].shape == (40, 80)
    assert coder(atoms).denoise(parts, SIGMA).shape == parts.shape


def test_blocks_of_patches_make_no_difference(photos, atoms, monkeypatch):
    noisy = photos["china"] + SIGMA * np.random.default_rng(0).normal(size=(80, 80)).astype(np.float32)
    one = coder(atoms).denoise(noisy, SIGMA)
    monkeypatch.setattr(restoring, "BLOCK", 300)
    np.testing.assert_allclose(coder(atoms).denoise(noisy, SIGMA), one, atol=1e-6)


def test_colour_is_coded_jointly_or_as_brightness_and_differences(atoms):
    np.testing.assert_allclose(coloured.OPPONENT @ coloured.OPPONENT.T, np.eye(3), atol=1e-12)
    rng = np.random.default_rng(0)
    edges = np.where(
        np.add.outer(np.arange(40), np.arange(40))[..., None] // 7 % 2 == 0, [0.9, 0.2, 0.1], [0.1, 0.3, 0.8]
    )
    noisy = edges + SIGMA * rng.normal(size=edges.shape)
    joint = denoise_image(noisy, SIGMA, n_components=32, patch_shape=4, n_iterations=5)
    alone = [denoise_image(noisy[..., c], SIGMA, n_components=32, patch_shape=4, n_iterations=5) for c in range(3)]
    assert joint.shape == edges.shape
    assert psnr(joint, edges) > psnr(np.stack(alone, axis=-1), edges) + 1  # edges have one place in all channels
    turned = coder(atoms).denoise(noisy, SIGMA)
    assert psnr(turned, edges) > psnr(noisy, edges) + 3
    grey = np.repeat(noisy[..., :1], 3, axis=2)
    same = coder(atoms).denoise(grey, SIGMA)
    np.testing.assert_allclose(same[..., 0], same[..., 2], atol=1e-5)
    # √3 y carries the brightness of three equal channels
    np.testing.assert_allclose(
        same[..., 0] * 3**0.5, coder(atoms).denoise(noisy[..., 0] * 3**0.5, SIGMA), atol=1e-4
    )


def test_progress_is_shown_if_asked(atoms, capsys):
    noisy = np.random.default_rng(0).normal(size=(20, 20))
    coder(atoms).denoise(noisy, 1.0)
    assert capsys.readouterr().err == ""
    coder(atoms).denoise(noisy, 1.0, verbose=1)
    assert "denoising" in capsys.readouterr().err
    denoise_image(noisy, 1.0, n_components=8, patch_shape=3, n_iterations=2, verbose=1)
    assert "3/3" in capsys.readouterr().err  # two rounds, one block


# -- filling in ----------------------------------------------------------------------------------------


def masked_pursuit(x, known, D, most, error):
    """One signal by the definition: levels always in, atoms judged by what is left of them on the known values."""
    kept, ones = np.flatnonzero(known), np.ones((known.sum(), 1))
    seen = D[:, kept] - D[:, kept].mean(axis=1, keepdims=True)
    sizes = np.sum(seen**2, axis=1)
    chosen: list[int] = []
    left = x[kept] - x[kept].mean()
    while len(chosen) < most and np.mean(left**2) > error:
        gains = np.where(sizes > 1e-4, (seen @ left) ** 2 / np.maximum(sizes, 1e-12), 0)
        gains[chosen] = 0
        chosen.append(int(np.argmax(gains)))
        basis = np.concatenate([ones, D[np.ix_(chosen, kept)].T], axis=1)
        z = np.linalg.lstsq(basis, x[kept], rcond=None)[0]
        left = x[kept] - basis @ z
    if not chosen:
        return np.full(len(x), x[kept].mean())
    return z[0] + z[1:] @ D[chosen]


def test_signals_with_gaps_are_completed_by_the_definition():
    rng = np.random.default_rng(0)
    D = rng.normal(size=(30, 24))
    D = unit(D - D.mean(axis=1, keepdims=True))
    X, known = rng.normal(size=(40, 24)), rng.random((40, 24)) < 0.7
    found, counts = complete_signals(X, known, D, n_nonzero=5, error=0.15)
    most = np.clip(known.sum(axis=1) // 4, 1, 5)  # one atom for four known values
    wanted = [masked_pursuit(x, m, D, n, 0.15) for x, m, n in zip(X, known, most, strict=True)]
    np.testing.assert_allclose(found, wanted, atol=1e-4)
    assert (counts <= most).all()
    assert (counts == most).any()
    assert (counts < most).any()  # the error is small enough
    same, _ = complete_signals(X, known, D, n_nonzero=5, error=0.15, n_threads=1)
    np.testing.assert_array_equal(found, same)


def test_sparse_signals_are_completed_exactly_each_channel_with_its_level():
    rng = np.random.default_rng(0)
    D = rng.normal(size=(40, 36))
    D = unit((D.reshape(40, 12, 3) - D.reshape(40, 12, 3).mean(axis=1, keepdims=True)).reshape(40, 36))
    Z = np.zeros((60, 40))
    for row in Z:
        row[rng.choice(40, 2, replace=False)] = rng.choice([-1, 1], 2) * rng.uniform(2, 3, 2)
    X = Z @ D + np.tile(rng.normal(size=(60, 1, 3)), (1, 12, 1)).reshape(60, 36)
    known = rng.random(X.shape) < 0.75
    found, _ = complete_signals(np.where(known, X, 99.0), known, D, n_nonzero=4, error=1e-10, channels=3)
    exact = np.abs(found - X).max(axis=1) < 1e-4
    assert exact.mean() > 0.8
    levelled, _ = complete_signals(np.where(known, X, 99.0), known, D, n_nonzero=4, error=1e-10)
    assert (np.abs(levelled - X).max(axis=1) < 1e-4).mean() < 0.2  # one level for all does not do


@pytest.mark.parametrize(("missing", "gain"), [(0.5, 0.6), (0.8, 0.1)])
def test_missing_pixels_are_filled_in_better_than_by_interpolation(photos, atoms, missing, gain):
    clean = photos["china"]
    known = np.random.default_rng(0).random(clean.shape) > missing
    found = coder(atoms).inpaint(np.where(known, clean, np.nan))
    np.testing.assert_array_equal(found[known], clean[known])
    rows, columns = np.nonzero(known)
    where = tuple(np.mgrid[: clean.shape[0], : clean.shape[1]])
    linear, nearest = (griddata((rows, columns), clean[known], where, method=m) for m in ("linear", "nearest"))
    baseline = np.where(np.isnan(linear), nearest, linear)
    assert psnr(found, clean) > psnr(baseline, clean) + gain
    np.testing.assert_array_equal(found, coder(atoms).inpaint(clean, known, n_threads=1))


def test_scratches_and_holes_are_filled_from_their_borders(atoms):
    rows, columns = np.mgrid[:48, :48]
    clean = 0.5 + 0.4 * np.sin((rows + 2 * columns) / 6)
    known = np.ones(clean.shape, bool)
    known[20:34, 16:32] = False  # wider than a patch
    known[:, 40] = False
    found = coder(atoms).inpaint(np.where(known, clean, 1e9), known)
    assert np.isfinite(found).all()
    assert psnr(found[~known], clean[~known]) > psnr(clean[known].mean(), clean[~known]) + 3
    assert np.abs(found[:, 40] - clean[:, 40]).max() < 0.1


def test_a_hole_as_wide_as_the_stride_is_seen_by_finer_patches(atoms):
    clean = np.add.outer(np.arange(24.0), np.arange(24.0))
    known = np.ones(clean.shape, bool)
    known[6:12, 12:18] = False  # one patch of those with corners 0, 6, 12 and 18, and no other
    found = coder(atoms).inpaint(clean, known, stride=6)
    assert np.abs(found - clean).max() < 3
    stripes = np.ones((8, 30), bool)
    stripes[4:] = False
    with pytest.raises(DataError, match="cannot be filled in"):
        coder(unit(np.random.default_rng(0).normal(size=(5, 5)))).inpaint(
            clean[:8], stripes[:, :24], patch_shape=(1, 5)
        )


def test_colour_holes_and_masks_of_single_channels(atoms):
    rows, columns = np.mgrid[:24, :24]
    clean = np.stack([np.sin((rows + columns) / s) for s in (4, 5, 6)], axis=-1)
    rng = np.random.default_rng(0)
    known = rng.random((24, 24)) > 0.4
    found = coder(atoms).inpaint(clean, known)
    np.testing.assert_array_equal(found[known], clean[known])
    assert np.abs(found - clean).max() < 0.5
    each = rng.random(clean.shape) > 0.4
    by_channel = coder(atoms).inpaint(clean, each)
    np.testing.assert_array_equal(by_channel[each], clean[each])
    patches = Grid(clean.shape, (4, 4)).cut(clean)
    D = start_dictionary(patches, 40, rng=rng)
    joint = coder(D).inpaint(clean, each)
    assert np.mean((joint - clean)[~each] ** 2) < 0.05 * np.var(clean)


# -- rate and distortion -------------------------------------------------------------------------------


def test_a_gaussian_takes_the_bits_that_theory_says():
    """At a fine step Δ entropy is h − log₂ Δ and the error Δ²/12."""
    rng = np.random.default_rng(0)
    scales = np.array([4.0, 2.0, 1.0])
    rotation = np.linalg.qr(rng.normal(size=(3, 3)))[0]
    X = (rng.normal(size=(40_000, 3)) * scales) @ rotation
    step = 0.25
    (row,) = rate_distortion(X, {"axes": rotation}, n_nonzero=[3], steps=[step], peak=10.0)
    entropy = np.mean(0.5 * np.log2(2 * np.pi * np.e * scales**2) - np.log2(step))
    assert row["bits"] == pytest.approx(entropy, abs=0.02)
    assert row["mse"] == pytest.approx(step**2 / 12, rel=0.02)
    assert row["psnr"] == pytest.approx(10 * np.log10(100 / row["mse"]))
    shannon = np.mean(0.5 * np.log2(scales**2 / row["mse"]))
    assert row["bits"] - shannon == pytest.approx(
        0.5 * np.log2(np.pi * np.e / 6), abs=0.02
    )  # 0.254: a uniform step
    table = rate_distortion(X, references(X, None), n_nonzero=[3], steps=[step])
    bits = {r["dictionary"]: r["bits"] for r in table}
    assert bits["principal components"] == pytest.approx(row["bits"], abs=0.01)  # the same axes
    assert bits["cosine transform"] > row["bits"] + 0.05  # other axes need more


def test_code_lengths_are_entropies_and_tables():
    import scipy.sparse as sp

    n = 4096
    codes = np.zeros((n, 3))
    codes[: n // 4, 0] = np.resize([1, -1, 2, -2], n // 4)  # a quarter use it, with four values
    codes[:, 1] = 5  # all use it, always alike
    positions, values = code_lengths(sp.csr_array(codes))
    half = -(0.25 * np.log2(0.25) + 0.75 * np.log2(0.75))
    assert positions == pytest.approx(n * half + 2 * 0.5 * np.log2(n))
    assert values == pytest.approx(n // 4 * 2 + 3 * 0.5 * np.log2(n // 4))
    assert code_lengths(sp.csr_array((n, 3))) == (0.0, 0.0)


def test_a_learned_dictionary_takes_fewer_bits():
    rng = np.random.default_rng(0)
    truth = unit(rng.normal(size=(24, 16)))
    Z = np.zeros((3000, 24))
    for row in Z:
        row[rng.choice(24, 2, replace=False)] = rng.normal(size=2) * 3
    X = (Z @ truth + 0.02 * rng.normal(size=(3000, 16))).astype(np.float32)
    model = DictionaryLearning(24, n_nonzero=2, update="ksvd", n_epochs=25, random_state=0).fit(X)
    table = model.rate_distortion(X, n_nonzero=[1, 2, 4, 8], peak=1.0)
    assert {row["dictionary"] for row in table} == {"learned", "cosine transform", "principal components"}
    assert len(table) == 3 * 4 * 5
    front = {
        name: sorted((r["bits"], r["psnr"]) for r in table if r["dictionary"] == name and r["best"])
        for name in ("learned", "cosine transform")
    }
    for points in front.values():
        assert all(a[1] < b[1] for a, b in itertools.pairwise(points))  # more bits, less error
    wanted = front["learned"][-1][1] - 3  # a quality that both should reach
    bits = {
        name: min((b for b, quality in points if quality >= wanted), default=np.inf)
        for name, points in front.items()
    }
    assert bits["learned"] < 0.7 * bits["cosine transform"]
    alone = model.rate_distortion(X[:200], n_nonzero=[2], steps=[0.5], compare=False)
    assert [row["dictionary"] for row in alone] == ["learned"]


def test_the_cosine_transform_is_that_of_the_shape_of_the_patches():
    """Waves along the rows of patches 2 × 18: 36 values, which might as well be 6 × 6."""
    rng = np.random.default_rng(0)
    waves = np.cos(np.pi * rng.integers(1, 4, (300, 1)) * (np.arange(18) + 0.5) / 18)
    X = np.tile(waves * rng.normal(size=(300, 1)), (1, 2)).astype(np.float32)
    options = {"n_nonzero": [1], "steps": [0.1]}
    _, cosines, _ = coder(np.eye(36)).rate_distortion(X, patch_shape=(2, 18), **options)
    (wanted,) = rate_distortion(X, {"cosine transform": references(X, (2, 18, 1))["cosine transform"]}, **options)
    assert {**cosines, "best": None} == {**wanted, "best": None}
    _, square, _ = coder(np.eye(36)).rate_distortion(X, **options)
    assert cosines["dictionary"] == square["dictionary"] == "cosine transform"
    assert cosines["mse"] < 0.1 * square["mse"]  # a wave of the right shape is one atom


def test_the_peak_is_the_range_of_the_signals_by_default():
    X = np.linspace(-3, 5, 40).reshape(10, 4)
    options = {"n_nonzero": [4], "steps": [0.3]}
    (row,) = rate_distortion(X, {"axes": np.eye(4)}, **options)
    assert row["psnr"] == pytest.approx(10 * np.log10(8**2 / row["mse"]))
    (row,) = rate_distortion(np.full((3, 4), -2.0), {"axes": np.eye(4)}, **options)
    assert row["psnr"] == pytest.approx(10 * np.log10(2**2 / row["mse"]))  # no range: the size instead


def test_references_are_orthonormal_and_begin_with_the_constant():
    X = np.random.default_rng(0).normal(size=(50, 48)).astype(np.float32)
    found = references(X, (4, 4, 3))
    for D in found.values():
        np.testing.assert_allclose(D @ D.T, np.eye(48), atol=1e-6)
    np.testing.assert_allclose(
        found["cosine transform"][:3].reshape(3, 16, 3),
        np.eye(3)[:, None, :] * 0.25 + np.zeros((3, 16, 3)),
        atol=1e-12,
    )


# -- bad input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"sigma": 0.0}, ParameterError, "sigma"),
        ({"sigma": None}, ParameterError, "sigma"),
        ({"sigma": 25.0}, DataError, "image's units"),
        ({"stride": 7}, ParameterError, "stride"),
        ({"gain": -1.0}, ParameterError, "gain"),
        ({"weight": -1.0}, ParameterError, "weight"),
        ({"clip": (1, 0)}, ParameterError, "clip"),
        ({"clip": 1}, ParameterError, "clip"),
        ({"patch_shape": (5, 5)}, ParameterError, "36 features"),
        ({"patch_shape": "big"}, ParameterError, "patch_shape"),
        ({"n_threads": 0}, ParameterError, "n_threads"),
        ({"images": np.zeros((4, 9))}, DataError, "smaller than a patch"),
        ({"images": np.full((9, 9), np.nan)}, DataError, "NaN"),
        ({"images": np.zeros((9, 9, 4))}, DataError, "smaller than a patch"),
        ({"images": [np.zeros((9, 9, 4))]}, DataError, "transparency"),
        ({"images": np.zeros((9, 9), bool)}, DataError, "dtype bool"),
        ({"images": np.zeros(9)}, DataError, "shape"),
        ({"images": []}, DataError, "no images"),
    ],
)
def test_bad_denoising_is_explained(atoms, options, error, message):
    image = np.random.default_rng(0).random((12, 12))
    with pytest.raises(error, match=message):
        coder(atoms).denoise(**{"images": image, "sigma": 0.1, **options})


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        (np.ones((12, 12), bool), "nothing to fill in"),
        (np.zeros((12, 12), bool), "at least one must be known"),
        (np.ones((12, 12)), "True"),
        (np.ones((5, 5), bool), "shape"),
        ([np.ones((12, 12), bool)] * 2, "2 masks for 1 images"),
    ],
)
def test_bad_masks_are_explained(atoms, mask, message):
    with pytest.raises(DataError, match=message):
        coder(atoms).inpaint(np.zeros((12, 12)), mask)


def test_other_bad_input_is_explained(atoms):
    image = np.random.default_rng(0).random((12, 12))
    holed = image.copy()
    holed[0, 0] = np.nan
    known = np.ones(image.shape, bool)
    known[3, 3] = False
    with pytest.raises(DataError, match="says that it is known"):
        coder(atoms).inpaint(holed, known)
    with pytest.raises(DataError, match="constant"):
        coder(np.ones((2, 9))).denoise(image, 0.1)
    with pytest.raises(DataError, match="image is grey"):
        coder(np.random.default_rng(0).normal(size=(5, 27))).denoise(image, 0.1)
    with pytest.raises(DataError, match="one image"):
        denoise_image(np.zeros((4, 12, 12)), 0.1)
    with pytest.raises(ParameterError, match="n_components"):
        denoise_image(image, 0.1, n_components=0)
    with pytest.raises(ParameterError, match="no square patch"):
        coder(np.ones((2, 10))).denoise(image, 0.1)
    with pytest.raises(DataError, match="no known value"):
        complete_signals(np.zeros((1, 4)), np.zeros((1, 4), bool), np.eye(4), n_nonzero=1, error=0.1)
    with pytest.raises(DataError, match="no bits"):
        rate_distortion(np.zeros((3, 2)), {"axes": np.eye(2)})
    with pytest.raises(ParameterError, match="more than the 2 atoms"):
        rate_distortion(np.ones((3, 2)), {"axes": np.eye(2)}, n_nonzero=[3])
    with pytest.raises(ParameterError, match="steps"):
        rate_distortion(np.ones((3, 2)), {"axes": np.eye(2)}, steps=[0.0])
