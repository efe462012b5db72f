"""Sparse codes of many rows: the same in any pieces and threads, from dense or sparse rows."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import scipy.sparse as sp

from latentia import DictionaryLearning, SparseCoder
from latentia.imaging import pictures, restoring
from latentia.inference.sparse import blocks, codes, encode, products, proximal, working
from latentia.inference.sparse import masked as gaps
from latentia.inference.sparse.masked import complete_signals
from latentia.learning.dictionary import ksvd
from latentia.ops import examples
from latentia.ops.penalties import L1

RNG = np.random.default_rng(2)
D = RNG.normal(size=(12, 6)).astype(np.float32)
D /= np.linalg.norm(D, axis=1, keepdims=True)
#: Rows of very different kinds, a row of zeros among them: a code in the wrong row shows.
X = (RNG.normal(size=(60, 6)) * np.geomspace(0.2, 20, 60)[:, None]).astype(np.float32)
X[np.abs(X) < 0.1] = 0
X[37] = 0

#: Ways to code, and whether rows stay the same to the last bit (matrix products of batches may round otherwise).
WAYS = {
    "cd": ({"inference": "cd"}, True),
    "elastic net": ({"penalty": "elastic_net"}, True),
    "groups": ({"penalty": "group", "groups": [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]}, True),
    "lars": ({"inference": "lars"}, True),
    "omp": ({"n_nonzero": 3}, True),
    "ols": ({"n_nonzero": 3, "inference": "ols"}, True),
    "error": ({"error": 0.5}, True),
    "fista": ({"inference": "fista"}, False),
    "iht": ({"penalty": "l0", "inference": "iht"}, False),
    "working": ({"inference": "working"}, False),
    "without products cd": ({"inference": "cd"}, True),
    "without products omp": ({"n_nonzero": 3}, True),
}


def small(monkeypatch):
    """Pieces of a few rows wherever rows go through in pieces."""
    monkeypatch.setattr(examples, "BLOCK_BYTES", 4 * 6 * 25)
    for module, name, value in (
        (blocks, "PIECE_ROWS", 8),
        (blocks, "PANEL", 8),
        (codes, "BLOCK_ENTRIES", 50),
        (proximal, "LEAST_BATCH", 32),
        (proximal, "BLOCK_ENTRIES", 12 * 32),
        (working, "LEAST_BATCH", 32),
        (working, "BLOCK_ENTRIES", 12 * 32),
    ):
        monkeypatch.setattr(module, name, value)


@functools.cache
def whole(name):
    return coder(name).codes(X), coder(name).objective(X)


@functools.cache
def coder(name, n_threads=1):
    return SparseCoder(D, alpha=0.4, tol=1e-5, n_threads=n_threads, **WAYS[name][0]).fit(X)


@pytest.mark.filterwarnings("ignore:The Gram matrix", "ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("name", WAYS)
def test_codes_do_not_depend_on_blocks_threads_or_form(name, monkeypatch):
    if name.startswith("without products"):
        monkeypatch.setattr(encode, "GRAM_BYTES", 100)
        monkeypatch.setattr(products, "FIRST", 2)  # how products grow decides where a search ends
    wanted, objective = whole(name)
    Z = wanted.toarray()
    assert (Z != 0).any(axis=1).sum() > 30
    assert not Z[37].any()
    by_hand = 0.5 * np.sum((X.astype(float) - Z.astype(float) @ D) ** 2, axis=1)
    penalty = coder(name).model_.penalty
    if penalty is not None:
        by_hand = by_hand + np.array([float(penalty.value(row)) for row in Z])
    np.testing.assert_allclose(objective, by_hand, rtol=1e-4, atol=1e-4)
    small(monkeypatch)
    same = np.testing.assert_array_equal if WAYS[name][1] else functools.partial(close, scale=np.abs(X).max(axis=1))
    ways = [(X, 1), (sp.csr_array(X), 1), (X, 2), (sp.csr_array(X), 2)]
    for rows, threads in ways if WAYS[name][1] else ways[:2]:
        found = coder(name, threads).codes(rows)
        same(found.toarray(), Z)
        if WAYS[name][1]:
            np.testing.assert_array_equal(found.gaps, wanted.gaps)
            np.testing.assert_array_equal(found.n_iter, wanted.n_iter)
        np.testing.assert_array_equal(found.converged, wanted.converged)
        np.testing.assert_allclose(coder(name).objective(rows), objective, rtol=1e-4, atol=1e-4)
    dense = coder(name).transform(X)
    same(dense, Z)
    np.testing.assert_allclose(coder(name).inverse_transform(sp.csr_array(dense)), dense @ D, atol=1e-5)


def close(found, wanted, scale):
    np.testing.assert_allclose(
        found / np.maximum(scale, 1)[:, None], wanted / np.maximum(scale, 1)[:, None], atol=2e-3
    )


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("method", ["cd", "fista"])
def test_starts_stay_with_their_rows(method, monkeypatch):
    """With so few iterations that a code tells from where it came."""
    small(monkeypatch)
    start = (RNG.normal(size=(60, 12)) * (RNG.random((60, 12)) < 0.3)).astype(np.float32)
    options = {"penalty": L1(0.4), "method": method, "tol": 1e-12, "max_iter": 1, "n_threads": 2}
    code = functools.partial(encode.sparse_encode, D=D, **options)
    found, cold = code(X, init=start).toarray(), code(X).toarray()
    each = [code(X[[i]], init=start[[i]]).toarray()[0] for i in range(0, 60, 9)]
    np.testing.assert_allclose(found[::9], each, rtol=1e-4, atol=1e-4)
    assert np.abs(found - cold).max() > 0.05


def test_errors_to_stop_at_stay_with_their_rows(monkeypatch):
    small(monkeypatch)
    errors = np.sum(X.astype(float) ** 2, axis=1) * RNG.uniform(0.05, 0.9, 60)
    found = encode.sparse_encode(X, D, method="omp", error=errors, n_threads=2)
    each = [encode.sparse_encode(X[[i]], D, method="omp", error=errors[[i]]).toarray()[0] for i in range(0, 60, 9)]
    np.testing.assert_array_equal(found.toarray()[::9], each)


def test_masks_and_patches_stay_with_their_rows(monkeypatch):
    known = RNG.random(X.shape) < 0.7
    known[:, 0] = True
    options = {"n_nonzero": 2, "error": 1e-4, "channels": 2}
    wanted, counts = complete_signals(X, known, D, n_threads=1, **options)
    monkeypatch.setattr(gaps, "PIECE", 7)
    found, numbers = complete_signals(X, known, D, n_threads=2, **options)
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(numbers, counts)
    one, _ = complete_signals(X[[40]], known[[40]], D, **options)
    np.testing.assert_array_equal(one[0], wanted[40])


def test_k_svd_in_pieces_is_k_svd(monkeypatch):
    Z = whole("omp")[0].values
    weights = RNG.uniform(0.5, 2, 60)
    wanted = ksvd.ksvd_step(X, Z, D, weights=weights, n_threads=1)
    monkeypatch.setattr(ksvd, "PIECE", 16)
    found = ksvd.ksvd_step(X, Z, D, weights=weights, n_threads=2)
    np.testing.assert_array_equal(found.dictionary, wanted.dictionary)
    np.testing.assert_array_equal(found.codes.toarray(), wanted.codes.toarray())
    assert found.error == wanted.error


@pytest.mark.parametrize("center", [False, True])
def test_sparse_rows_and_frames_learn_the_same(center):
    options = {"n_epochs": 2, "batch_size": 30, "alpha": 0.4, "center": center, "random_state": 0}
    dense = DictionaryLearning(5, **options).fit(X)
    rows = DictionaryLearning(5, **options).fit(sp.csr_matrix(X))
    np.testing.assert_array_equal(dense.components_, rows.components_)
    np.testing.assert_array_equal(dense.transform(X), rows.transform(X))
    np.testing.assert_allclose(dense.transform(sp.csc_array(X)), dense.transform(X), atol=1e-5)
    np.testing.assert_allclose(dense.reconstruct(X), dense.inverse_transform(dense.transform(X)), atol=1e-6)


def test_images_of_all_sizes_keep_their_own_masks(monkeypatch):
    """Several images in one call are the images one by one, whatever the bands of patches."""
    rng = np.random.default_rng(0)
    images = [rng.normal(size=shape).cumsum(axis=1) for shape in ((9, 11), (11, 9), (9, 11))]
    masks = [rng.random(image.shape) < 0.7 for image in images]
    learning = SparseCoder(D).fit(X)
    alone = [learning.inpaint(i, m, patch_shape=(2, 3)) for i, m in zip(images, masks, strict=True)]
    clean = [learning.denoise(i, 0.3, patch_shape=(2, 3), stride=2, weight=0.7) for i in images]
    monkeypatch.setattr(restoring, "BLOCK", 20)
    together = learning.inpaint(images, masks, patch_shape=(2, 3), n_threads=2)
    for one, other, image, mask in zip(alone, together, images, masks, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
        np.testing.assert_array_equal(other[mask], image[mask])
    for one, other in zip(
        clean, learning.denoise(images, 0.3, patch_shape=(2, 3), stride=2, weight=0.7), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_overlapping_patches_are_averaged_as_by_hand():
    """Every pixel is the mean of the patches that hold it, and of the noisy pixel with its weight."""
    rng = np.random.default_rng(5)
    image, (h, w), stride, weight = rng.normal(size=(7, 8)), (2, 3), 2, 0.5
    learning = SparseCoder(D).fit(X)
    found = learning.denoise(image, 0.2, patch_shape=(h, w), stride=stride, weight=weight)
    atoms = D - D.mean(axis=1, keepdims=True)
    atoms /= np.linalg.norm(atoms, axis=1, keepdims=True)
    total, votes = weight * image, np.full(image.shape, weight)
    enough = restoring.Plan((h, w), sigma=0.2).enough(6)
    for top in (0, 2, 4, 5):
        for left in (0, 2, 4, 5):
            patch = image[top : top + h, left : left + w].astype(np.float32)
            flat = patch.ravel() - patch.mean()
            code = encode.sparse_encode(flat[None], atoms, method="omp", error=enough, n_nonzero=3)
            total[top : top + h, left : left + w] += (code.toarray() @ atoms).reshape(h, w) + patch.mean()
            votes[top : top + h, left : left + w] += 1
    np.testing.assert_allclose(found, total / votes, atol=1e-5)


def test_images_that_go_through_by_shape_come_back_in_their_places(monkeypatch):
    monkeypatch.setattr(pictures, "PIXELS", 50)  # two images at a time, or one
    shapes = [(4, 5), (3, 7), (4, 5), (3, 7), (4, 5), (9, 9)]
    images = [RNG.normal(size=shape).astype(np.float32) for shape in shapes]
    masks = [RNG.random(shape) < 0.5 for shape in shapes]
    found = pictures.by_shape(lambda y, m: np.where(m, 2 * y, -y), images, masks)
    for image, mask, one in zip(images, masks, found, strict=True):
        np.testing.assert_array_equal(one, np.where(mask, 2 * image, -image))
