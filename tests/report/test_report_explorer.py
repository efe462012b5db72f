"""What the explorer is told: true examples, true neighbours, true frames, in sprite sheets that read back."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from latentia import (
    DBM,
    PPCA,
    RBM,
    DictionaryLearning,
    FieldsOfExperts,
    GaussianRBM,
    MultimodalDBM,
    ProductOfExperts,
)
from latentia.ops.examples import Examples
from latentia.report import latents, sprites
from latentia.report.explorer import explore
from latentia.report.latents import Missing, groups, pictures
from latentia.report.runs import Run
from latentia.report.sections import Gallery

RNG = np.random.default_rng(0)
BINARY = (RNG.random((80, 12)) < RNG.random(12)).astype(np.float32)
REAL = (RNG.normal(size=(80, 6)) @ RNG.normal(size=(6, 12))).astype(np.float32)


def fresh(estimator, rows):
    """Fitted, as far as pictures care: with random parameters, which nothing has to be compiled for."""
    facts = estimator._blueprint(Examples(rows))
    return estimator.adopt(estimator.build(facts, seed=0), facts)


def read(sheet: dict, index: int) -> np.ndarray:
    """A tile of a sheet as values, as the page's script reads it."""
    data = base64.b64decode(sheet["src"].partition(",")[2])
    pixels = np.asarray(Image.open(io.BytesIO(data)), np.float64)
    height, width = sheet["tile"]
    top, left = (index // sheet["columns"]) * height, (index % sheet["columns"]) * width
    tile = pixels[top : top + height, left : left + width]
    return sheet["low"] + (sheet["high"] - sheet["low"]) * tile / 255


def explored(estimator, rows, tmp_path, shape=None, **more):
    run = Run(tmp_path, estimator=estimator, rows=rows, rows_are="rows", image_shape=shape, **more)
    codes = estimator.transform(rows)
    return explore(run, rows, codes, "rows"), codes


@pytest.fixture(scope="module")
def rbm():
    return fresh(RBM(n_components=9, weight_scale=1.5), BINARY)


@pytest.fixture(scope="module")
def ppca():
    return fresh(PPCA(n_components=3), REAL)


def test_latents_come_by_use_with_the_rows_that_excite_them_most(rbm, tmp_path):
    found, codes = explored(rbm, BINARY, tmp_path, (3, 4))
    (layer,) = found.data["layers"]
    order = np.argsort(-codes.mean(axis=0), kind="stable")
    assert [latent["id"] for latent in layer["latents"]] == order.tolist()
    for place, latent in enumerate(layer["latents"]):
        assert latent["rank"] == place + 1
        assert latent["use"] == pytest.approx(codes[:, latent["id"]].mean(), rel=1e-3)
        assert latent["on"] == pytest.approx((codes[:, latent["id"]] > 0.5).mean(), rel=1e-3)
        assert sum(latent["histogram"]) == len(codes)
        values = [value for _, value in latent["examples"]]
        np.testing.assert_allclose(values, np.sort(codes[:, latent["id"]])[::-1][: len(values)], rtol=1e-3)
        tile = read(found.data["examples"], latent["examples"][0][0]).ravel()
        best = BINARY[codes[:, latent["id"]] >= codes[:, latent["id"]].max() - 1e-6]
        assert (np.abs(best - tile).max(axis=1) < 0.01).any()


def test_frames_are_decoded_codes_with_one_latent_changed(rbm, tmp_path):
    found, codes = explored(rbm, BINARY, tmp_path, (3, 4))
    for latent in found.data["layers"][0]["latents"]:
        slider, k = latent["slider"], latent["id"]
        row = int(np.argmax(codes[:, k]))
        assert slider["own"] == pytest.approx(codes[row, k], rel=1e-3)
        assert len(slider["values"]) == 7
        for i, value in enumerate(slider["values"]):
            code = codes[row].copy()
            code[k] = value
            wanted = rbm.inverse_transform(code[None])[0]
            np.testing.assert_allclose(read(found.data["frames"], slider["first"] + i).ravel(), wanted, atol=0.003)


def test_a_linear_decoder_needs_two_frames(ppca, tmp_path):
    found, codes = explored(ppca, REAL, tmp_path)
    for latent in found.data["layers"][0]["latents"]:
        low, high = latent["slider"]["values"]
        assert low == -high
        assert high == pytest.approx(1.25 * np.abs(codes[:, latent["id"]]).max(), rel=1e-3)


def test_neighbours_are_the_most_similar_pictures(ppca, rbm, tmp_path):
    found, _ = explored(rbm, BINARY, tmp_path, (3, 4))
    rows = found.rows / np.linalg.norm(found.rows, axis=1, keepdims=True)
    for i, latent in enumerate(found.data["layers"][0]["latents"]):
        cosines = rows @ rows[i]
        cosines[i] = 0
        wanted = np.sort(np.abs(cosines))[::-1][: len(latent["near"])]
        np.testing.assert_allclose([abs(c) for _, c in latent["near"]], wanted, atol=1e-3)
        for j, cosine in latent["near"]:
            assert cosine == pytest.approx(cosines[j], abs=1e-3)


def test_layers_are_told_apart_and_upper_units_reach_the_visibles(tmp_path):
    dbm = fresh(DBM((5, 4), weight_scale=0.3), BINARY)
    found, codes = explored(dbm, BINARY, tmp_path, (3, 4))
    assert [(layer["title"], layer["count"]) for layer in found.data["layers"]] == [("Layer 1", 5), ("Layer 2", 4)]
    upper = found.data["layers"][1]["latents"]
    use = codes[:, 5:].mean(axis=0)
    assert np.ptp(use) > 0.01
    np.testing.assert_allclose(
        [latent["use"] for latent in upper], use[[latent["id"] for latent in upper]], rtol=1e-3
    )
    assert any(latent["slider"] for latent in upper)


def test_kinds_of_data_are_parts(tmp_path):
    machine = MultimodalDBM({"a": 8, "b": 4}, hidden=(3,), joint=2, visible="bernoulli", weight_scale=1.0)
    machine = fresh(machine, BINARY)
    found, _ = explored(machine, BINARY, tmp_path, part_shape=(2, 4))
    assert [(p["name"], p["begin"], p["end"], p["shape"]) for p in found.data["parts"]] == [
        ("a", 0, 8, [2, 4]),
        ("b", 8, 12, []),
    ]
    assert len(found.data["layers"]) == 3
    assert found.data["examples"]["tile"] == [1, 12]


def test_sliding_filters_say_where_they_found_it(tmp_path):
    field = fresh(FieldsOfExperts(n_filters=2, filter_shape=2), REAL[:, :9])
    found, codes = explored(field, REAL[:, :9], tmp_path, (3, 3))
    (layer,) = found.data["layers"]
    assert layer["word"] == "Filter"
    assert layer["sheet"]["tile"] == [2, 2]
    maps = codes.reshape(-1, 2, 2, 2)
    for latent in layer["latents"]:
        _, value, (top, left, height, width) = latent["examples"][0]
        mine = maps[:, latent["id"]]
        row, i, j = np.unravel_index(np.abs(mine).argmax(), mine.shape)
        assert value == pytest.approx(mine[row, i, j], rel=1e-3)
        assert (top, left) == pytest.approx((i / 3, j / 3), rel=1e-3)
        assert (height, width) == pytest.approx((2 / 3, 2 / 3), rel=1e-3)


def test_names_nearest_to_an_atom(tmp_path):
    words = np.array([f"word {i}" for i in range(80)])
    learning = fresh(DictionaryLearning(4, n_nonzero=1), REAL)
    names = {"names": words, "named_rows": REAL, "training_names": words}
    found, codes = explored(learning, REAL, tmp_path, **names)
    (layer,) = found.data["layers"]
    assert layer["word"] == "Atom"
    for latent in layer["latents"]:
        cosines = REAL @ learning.components_[latent["id"]] / np.linalg.norm(REAL, axis=1)
        assert latent["names"][0] == words[np.argmax(cosines)]
        assert latent["called"][0] == words[np.argmax(np.abs(codes[:, latent["id"]]))]


def test_models_without_a_decoder_show_filters_or_gradients():
    experts = fresh(ProductOfExperts(n_components=5), REAL)
    (group,) = groups(experts, 5)
    found = pictures(experts, group, np.array([3, 1]), REAL)
    np.testing.assert_array_equal(found.rows, experts.components_[[3, 1]])
    slopes = latents.gradients(experts, np.array([3, 1]), REAL)
    np.testing.assert_allclose(slopes, found.rows, rtol=1e-3, atol=1e-6)


def test_gradients_of_log_odds_do_not_vanish(rbm):
    """A Gaussian RBM's log-odds are linear in x: their gradient is the weights, however sure the units are."""
    machine = fresh(GaussianRBM(n_components=3), REAL)
    slopes = latents.gradients(machine, np.arange(3), 100 * REAL)
    expected = latents.gradients(machine, np.arange(3), REAL)
    assert np.abs(expected).max(axis=1).min() > 0
    np.testing.assert_allclose(slopes, expected, rtol=1e-2, atol=1e-4)
    with pytest.raises(Missing):
        latents.gradients(rbm, np.arange(3), BINARY)


def test_a_huge_model_is_sampled_and_said_to_be():
    use = RNG.random(5000)
    which = latents.chosen(use, 99)
    order = np.argsort(-use)
    assert len(set(which)) == 99
    np.testing.assert_array_equal(which[:66], order[:66])
    assert which[-1] == order[-1]
    assert latents.sampled_words(99, 5000).startswith("99 of 5,000 latents are shown: the 66 most used")
    assert latents.sampled_words(5, 5) == ""


def test_no_square_matrix_of_switches_for_a_huge_model(rbm, monkeypatch):
    whole = latents.switched(rbm, np.array([4, 2]))[0]
    monkeypatch.setattr(latents, "MOST_SWITCHES", 5)
    monkeypatch.setattr(RBM, "latent_switches", lambda self: pytest.fail("asked for all switches"))
    np.testing.assert_array_equal(latents.switched(rbm, np.array([4, 2]))[0], whole)


@pytest.mark.parametrize("shape", [(5, 7), (5, 7, 3), (100, 60)])
def test_sheets_read_back(shape):
    rows = RNG.random((11, int(np.prod(shape))))
    tiles = sprites.tiles(rows, shape)
    assert tiles.shape[1:] == sprites.layout(shape, rows.shape[1])
    assert max(tiles.shape[1:3]) <= sprites.MOST_SIDE
    sheet = sprites.sheet(tiles, 0.0, 1.0)
    for i in (0, 4, 10):
        np.testing.assert_allclose(read(sheet, i), tiles[i], atol=0.003)
    assert tiles.mean() == pytest.approx(rows.mean(), abs=0.02)


def test_sampler_metrics_have_a_section_of_their_own(rbm, tmp_path):
    history = [{"step": i, "epoch": i, "loss": 1.0 / (i + 1), "swap_rate_min": 0.02} for i in range(3)]
    run = Run(tmp_path, estimator=rbm, rows=BINARY, rows_are="rows", history=history)
    gallery = Gallery(run, "r1")
    made = {section.key: section for section in gallery.sections()}
    assert [chart["title"] for chart in made["sampler"].data["charts"]] == ["Swap rate min"]
    assert [chart["title"] for chart in made["training"].data["charts"]] == ["Loss"]
    from latentia.report.advice import warnings

    said = " ".join(warnings(run, gallery.codes, 1.4))
    assert "hardly swap" in said
    assert "do not mix" in said
    assert "1.40" in said


@pytest.mark.parametrize("shape", [(30, 7), (7, 30)])
def test_principal_axes(shape):
    rows = RNG.normal(size=shape)
    rows -= rows.mean(axis=0)
    axes, wanted = latents.principal_axes(rows, 3), np.linalg.svd(rows)[2][:3]
    np.testing.assert_allclose(np.abs(np.sum(axes * wanted, axis=1)), 1, rtol=1e-9)
