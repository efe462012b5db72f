"""What people do with the estimators: real-valued data, samples, in-painting, files, and wrong input."""

from __future__ import annotations

import functools
import json
import struct

import numpy as np
import pytest
from sklearn.datasets import load_digits

import latentia
from latentia import PPCA, RBM, VAE, GaussianMixture, GaussianRBM, MultimodalDBM
from latentia.core.capabilities import Clamps, Conditionals, FreeEnergy
from latentia.core.errors import (
    CapabilityError,
    DataError,
    FileFormatError,
    LatentiaError,
    ParameterError,
    UnknownNameError,
)
from latentia.estimator import training
from latentia.learning.contrastive import Contrastive
from latentia.learning.em import EM
from latentia.ops.examples import Examples
from latentia.samplers import Gibbs

SMALL = {"n_components": 4, "batch_size": 20, "n_epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def X():
    return (np.random.default_rng(0).random((60, 6)) < 0.4).astype(float)


@pytest.fixture(scope="module")
def rbm(X):
    return RBM(**SMALL).fit(X)


# -- real-valued data of any scale ---------------------------------------------------------------------------


@pytest.mark.parametrize("scale", [1.0, 255 / 16, 1e-4, 1e5])
def test_gaussian_rbm_trains_on_raw_digits_of_any_scale_with_default_settings(scale):
    pixels = load_digits().data * scale  # raw, with constant and nearly constant columns
    said = []
    rbm = GaussianRBM(random_state=0, n_epochs=10, callbacks=[lambda event: said.append(event.metrics)]).fit(pixels)
    assert float(rbm._state.slowdown) == 1.0  # never rolled back
    residual = np.mean((rbm.reconstruct(pixels) - pixels) ** 2) / np.mean((pixels - pixels.mean(0)) ** 2)
    assert residual < 0.5
    samples = rbm.sample(300, n_steps=200)
    spread = pixels.std()
    assert np.abs(samples.mean(0) - pixels.mean(0)).mean() < 0.15 * spread
    assert 0.7 < samples.std(0).mean() / pixels.std(0).mean() < 1.6


def test_learning_does_not_depend_on_the_unit_of_measurement():
    pixels = load_digits().data[:500]
    one, other = (GaussianRBM(**SMALL).fit(c * pixels + s) for c, s in ((1.0, 0.0), (64.0, 1000.0)))
    np.testing.assert_allclose(one.transform(pixels), other.transform(64 * pixels + 1000), atol=2e-3)
    moved = other.score_samples(64 * pixels + 1000) + pixels.shape[1] * np.log(64)  # the density's Jacobian
    np.testing.assert_allclose(one.score_samples(pixels), moved, atol=0.2)


# -- samples --------------------------------------------------------------------------------------------------


def test_clamped_samples_keep_what_is_given_and_fill_in_the_rest_exactly():
    """On an enumerable model the filled-in entry follows its exact conditional."""
    rng = np.random.default_rng(1)
    a = rng.random(400) < 0.5
    X = np.stack([a, a ^ (rng.random(400) < 0.1), rng.random(400) < 0.3], axis=1).astype(float)
    rbm = RBM(n_components=3, batch_size=20, n_epochs=60, learning_rate=0.2, random_state=0).fit(X)
    given = np.array([[1.0, np.nan, 0.0]])
    drawn = rbm.sample(4000, given=given, n_steps=200)
    assert (drawn[:, [0, 2]] == [1, 0]).all()
    both = -rbm.free_energy(np.array([[1.0, 0, 0], [1.0, 1, 0]])).astype(float)
    p = np.exp(both[1] - np.logaddexp(*both))
    assert 0.6 < p < 0.99  # the coupling was learned
    assert abs(drawn[:, 1].mean() - p) < 5 * np.sqrt(p * (1 - p) / 4000)
    again = rbm.sample(4000, given=np.array([[1.0, 0.0, 0.0]]), mask=np.array([True, False, True]), n_steps=200)
    np.testing.assert_array_equal(again, drawn)  # a mask says the same as NaN, and hides what is under it


def test_free_samples_follow_the_exact_marginals(X):
    rbm = RBM(**{**SMALL, "n_epochs": 40, "learning_rate": 0.3}).fit(X)
    every = ((np.arange(64)[:, None] >> np.arange(6)) & 1).astype(float)
    log_p = -rbm.free_energy(every).astype(float)
    p = np.exp(log_p - np.logaddexp.reduce(log_p))
    drawn = rbm.sample(4000, n_steps=300)
    counts = np.bincount((drawn @ (1 << np.arange(6))).astype(int), minlength=64)
    chi2 = ((counts - 4000 * p) ** 2 / (4000 * p))[4000 * p > 5].sum()
    assert chi2 < 63 + 5 * np.sqrt(2 * 63)


@pytest.mark.parametrize(
    ("given", "mask", "message"),
    [
        (np.zeros((2, 5)), None, "6 columns"),
        (np.zeros((0, 6)), None, "at least one row"),
        (np.zeros((2, 6)), np.ones((3, 6), bool), "mask must have shape"),
        (np.zeros((2, 6)), np.ones((2, 6)), "boolean"),
        (np.full((2, 6), np.nan), np.ones((2, 6), bool), "NaN or infinity"),
        (np.full((2, 6), 0.5), None, "binary units"),
        (None, np.ones((2, 6), bool), "pass given too"),
        (np.zeros((2, 6)), np.ones((2, 6), bool), "everything is known"),
        (np.zeros((2, 6)), np.zeros(6, bool), "nothing is known"),
    ],
)
def test_wrong_masks_are_explained(rbm, given, mask, message):
    with pytest.raises(DataError, match=message):
        rbm.sample(1, given=given, mask=mask)


# -- files ----------------------------------------------------------------------------------------------------


def test_saved_models_come_back_bit_for_bit(rbm, X, tmp_path):
    rbm.save(tmp_path / "rbm.safetensors")
    back = latentia.load(tmp_path / "rbm.safetensors")
    assert back.get_params() == rbm.get_params()
    np.testing.assert_array_equal(back.transform(X), rbm.transform(X))
    np.testing.assert_array_equal(back.free_energy(X), rbm.free_energy(X))


def _edit_header(content: bytes, change) -> bytes:
    size = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + size])
    change(header)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + content[8 + size :]


def test_damaged_and_foreign_files_are_refused(rbm, tmp_path):
    path = tmp_path / "rbm.safetensors"
    rbm.save(path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-3] ^= 1
    newer = _edit_header(good, lambda h: h["__metadata__"].update(format_version="99"))
    foreign = _edit_header(good, lambda h: h["__metadata__"].pop("latentia"))
    renamed = _edit_header(
        good,
        lambda h: h["__metadata__"].update(latentia=h["__metadata__"]["latentia"].replace("rbm", "ppca")),
    )
    cases = {
        "cut off": (good[:-10], "not a complete"),
        "header cut off": (good[:20], "not a complete"),
        "empty": (b"", "not a complete"),
        "text": (b"hello" * 10, "not a complete"),
        "a flipped bit": (bytes(flipped), "checksum"),
        "newer": (newer, "format version 99.*Upgrade"),
        "foreign": (foreign, "not one that Latentia wrote"),
        "another family": (renamed, "checksum"),
    }
    for name, (content, message) in cases.items():
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            latentia.load(path)
        assert path.read_bytes() == content, name
    with pytest.raises(FileFormatError, match="no model file"):
        latentia.load(tmp_path / "nothing")


# -- wrong input ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (np.zeros((0, 4)), "0 sample"),
        (np.zeros((1, 4)), "1 sample|minimum of 2"),
        (np.zeros((5, 0)), "0 feature"),
        (np.zeros(5), "1D array"),
        (np.zeros((3, 4, 5)), "dim 3|<= 2"),
        (np.full((5, 4), np.nan), "NaN"),
        (np.full((5, 4), np.inf), "infinity|inf"),
        (np.array([["a", "b"], ["c", "d"]]), "convert|numeric|string"),
        (np.full((5, 4), 0.5), "20 of 20 values are not 0 or 1.*binarize"),
        (np.full((5, 4), 2.0), "GaussianRBM"),
    ],
)
def test_wrong_data_for_binary_units(data, message):
    with pytest.raises(ValueError, match=message):
        RBM(**SMALL).fit(data)


def test_wrong_data_for_other_units():
    with pytest.raises(DataError, match=r"-1 or \+1.*2 \* X - 1"):
        RBM(**SMALL, visible="spin").fit(np.zeros((5, 4)))
    with pytest.raises(DataError, match="integer from 0 to 2"):
        RBM(**SMALL, visible="categorical", n_states=3).fit(np.full((5, 4), 3.0))
    with pytest.raises(DataError, match="integer from 0"):
        RBM(**SMALL, visible="categorical").fit(np.full((5, 4), 1.5))
    with pytest.raises(DataError, match="at least 0"):
        RBM(**SMALL, visible="rectified").fit(np.full((5, 4), -1.0))
    with pytest.raises(DataError, match="from 0 to 1.*255"):
        RBM(**SMALL, binarize="sample").fit(np.full((5, 4), 200.0))
    with pytest.raises(DataError, match="float32"):
        GaussianRBM(**SMALL).fit(np.full((5, 4), 1e300) * np.arange(5)[:, None])


@pytest.mark.parametrize(
    "estimator", [RBM(2), VAE(2, visible="bernoulli"), MultimodalDBM({"a": 3, "b": 3}, visible="bernoulli")]
)
def test_a_wrong_value_is_named_by_its_place_in_the_whole_data(estimator, monkeypatch):
    """Large data are looked at block by block, and those of several kinds of units kind by kind."""
    monkeypatch.setattr(training, "blocks", functools.partial(training.blocks, n_bytes=4 * 6 * 10))
    data = np.zeros((60, 6))
    data[47, 4] = 0.5
    with pytest.raises(DataError, match="row 47, column 4"):
        estimator.fit(data)


@pytest.mark.parametrize("row", [0, 31, 59])
def test_every_block_of_large_data_is_looked_at(row, tmp_path, monkeypatch):
    """For what is missing in a memory map, for values that do not fit, and for the number of states."""
    monkeypatch.setattr(training, "blocks", functools.partial(training.blocks, n_bytes=4 * 6 * 10))
    data = np.zeros((60, 6), np.float32)
    data[row, 4] = 3.0
    np.save(tmp_path / "fine.npy", data)
    mapped = np.load(tmp_path / "fine.npy", mmap_mode="r")
    categorical = RBM(**SMALL, visible="categorical", monitor=None)
    assert (
        categorical._blueprint(Examples(data))
        == categorical._blueprint(Examples(mapped))
        == {"n_features": 6, "n_states": 4}
    )
    with pytest.raises(DataError, match="0 to 3"):
        RBM(**SMALL, binarize="sample").fit(mapped)
    for value in (np.nan, -np.inf):
        data[row, 4] = value
        np.save(tmp_path / "broken.npy", data)
        with pytest.raises(DataError, match="NaN or infinity"):
            GaussianRBM(**SMALL).fit(np.load(tmp_path / "broken.npy", mmap_mode="r"))


@pytest.mark.parametrize(
    "estimator", [RBM(**SMALL), GaussianRBM(**SMALL), GaussianMixture(2, random_state=0), PPCA(2)]
)
def test_constant_and_zero_columns_train(estimator, X):
    data = np.concatenate([X, np.zeros((60, 1)), np.ones((60, 1))], axis=1)
    fitted = estimator.fit(data)
    assert np.isfinite(fitted.transform(data)).all()
    assert np.isfinite(fitted.score_samples(data)).all()


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"n_components": 0}, "n_components must be an integer of at least 1, got 0"),
        ({"n_components": 2.5}, "n_components must be an integer"),
        ({"n_components": "many"}, "n_components must be an integer"),
        ({"n_components": True}, "n_components must be an integer"),
        ({"learning_rate": -1}, r"learning_rate must be a number in \(0, inf\)"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"batch_size": 0}, "batch_size"),
        ({"momentum": 1.0}, r"momentum must be a number in \[0, 1\)"),
        ({"k": 0}, "k must be"),
        ({"n_chains": 0}, "n_chains"),
        ({"early_stopping": "yes"}, "early_stopping must be True or False"),
        ({"verbose": -1}, "verbose"),
        ({"objective": 3}, "objective must be a name"),
        ({"optimizer": 3}, "optimizer must be a name"),
        ({"objective": "cd", "n_chains": 10}, None),
    ],
)
def test_wrong_parameters_are_named(X, parameters, message):
    if message is None:  # CD has no chains of its own: the name ignores the number, as documented
        RBM(**{**SMALL, **parameters}).fit(X)
        return
    with pytest.raises(ParameterError, match=message):
        RBM(**{**SMALL, **parameters}).fit(X)


@pytest.mark.parametrize(
    ("parameters", "suggestion"),
    [
        ({"objective": "pdc"}, "pcd"),
        ({"visible": "bernouli"}, "bernoulli"),
        ({"hidden": "gausian"}, "gaussian"),
        ({"optimizer": "adm"}, "adam"),
        ({"schedule": "linaer"}, "linear"),
        ({"binarize": "sampled"}, "sample"),
    ],
)
def test_misspelt_names_get_suggestions(X, parameters, suggestion):
    with pytest.raises(UnknownNameError, match=f"Did you mean.*'{suggestion}'"):
        RBM(**{**SMALL, **parameters}).fit(X)


def test_unknown_families_get_suggestions():
    with pytest.raises(UnknownNameError, match="'gaussian-rbm'"):
        latentia.registry.family("gausian-rbm")
    with pytest.raises(AttributeError, match="RBN"):
        _ = latentia.RBN


def test_other_widths_and_unfitted_estimators(rbm, X):
    with pytest.raises(ValueError, match="5 features.*expecting 6"):
        rbm.transform(X[:, :5])
    with pytest.raises(DataError, match="4 columns"):
        rbm.inverse_transform(np.zeros((2, 3)))
    for use in ("transform", "free_energy", "score", "reconstruct"):
        with pytest.raises(ValueError, match="not fitted"):
            getattr(RBM(), use)(X)
    with pytest.raises(ValueError, match="not fitted"):
        RBM().save("nowhere")


@pytest.mark.parametrize("weight", [np.ones(3), -np.ones(60), np.zeros(60), np.full(60, np.nan)])
def test_wrong_sample_weights(X, weight):
    with pytest.raises(DataError, match="sample_weight"):
        RBM(**SMALL).fit(X, sample_weight=weight)


def test_an_algorithm_that_does_not_fit_says_what_is_missing(X):
    class RBMByEM(RBM):
        def _learner(self, plan):
            return EM()

    with pytest.raises(
        CapabilityError,
        match=r"EM cannot be used with RBMModel.*MStep \(.*m_step.*Objectives that fit: cd, pcd, tempering",
    ):
        RBMByEM(**SMALL).fit(X)
    assert set(Contrastive(Gibbs()).requires) == {FreeEnergy | Clamps, Conditionals}


def test_exact_likelihood_where_it_is_impossible_says_what_to_do():
    X = (np.random.default_rng(0).random((50, 40)) < 0.5).astype(float)
    rbm = RBM(n_components=30, n_epochs=1, random_state=0).fit(X)
    with pytest.raises(LatentiaError, match="ais"):
        rbm.log_likelihood(X, method="exact")
    with pytest.raises(UnknownNameError, match="'ais'"):
        rbm.log_likelihood(X, method="aiz")
