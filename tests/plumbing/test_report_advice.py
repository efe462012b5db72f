"""The numbers in a report's warnings, and the ways that lengths of time and layers are told."""

from __future__ import annotations

import types

import numpy as np
import pytest

from latentia import DBM, PPCA, RBM
from latentia.report import advice, facts, moving, plots, sprites
from latentia.report.explorer import explore
from latentia.report.latents import groups
from latentia.report.runs import Run
from latentia.report.sections import Gallery

RNG = np.random.default_rng(6)
FACTS = {"n_features": 9}


def fresh(estimator):
    """With random parameters, which nothing has to be compiled for."""
    return estimator.adopt(estimator.build(FACTS, seed=1), FACTS)


def said(tmp_path, codes=None, r_hat=np.nan, estimator=None, **parts) -> str:
    return " ".join(advice.warnings(Run(tmp_path, estimator=estimator, **parts), codes, r_hat))


@pytest.mark.parametrize("estimator", [RBM(n_components=6), PPCA(n_components=6)], ids=["binary", "real"])
def test_dead_latents_are_counted_by_their_spread(estimator, tmp_path):
    spread = np.array([0.3, 0.0199, 0.0, 0.0201, 0.1, 0.0001])
    scale = 1.0 if isinstance(estimator, RBM) else 7.0
    codes = 0.4 * scale + scale * spread * np.where(np.arange(40) % 2, 1, -1)[:, None]
    few = 3 if scale == 1 else 2  # of real codes two hundredths of the liveliest's
    assert f"{few} of 6 latents hardly respond" in said(tmp_path, codes, estimator=fresh(estimator))
    assert "hardly respond" not in said(tmp_path, codes[:, [0, 4]], estimator=fresh(estimator))


def test_other_warnings_hold_their_own_numbers(tmp_path):
    history = [
        {"step": 3, "epoch": 1.25, "swap_rate_min": 0.5, "acceptance": 0.9, "loss": float("nan")},
        {"step": 6, "epoch": 2.5, "swap_rate_min": 0.034, "acceptance": 0.127, "loss": 1.0},
    ]
    config = {"params": {"n_epochs": 50}, "rollbacks": 2}
    problems = {"model": "The model is missing."}
    text = said(tmp_path, r_hat=1.234, history=history, config=config, problems=problems)
    for wanted in (
        "R̂ = 1.23;",
        "the lowest rate was 0.034 in the end",
        "accepts 13% of its proposals",
        "diverged 2 times",
        "interrupted after 2.5 of 50 epochs",
        "Not a finite number at some point: loss.",
    ):
        assert wanted in text
    result = {"lower": -31.0, "estimate": -30.0, "upper": -29.3}
    assert "interval is 1.7 nats wide" in said(tmp_path, evaluation={"log_likelihood": result})
    result["lower"] = -30.2
    assert "interval" not in said(tmp_path, evaluation={"log_likelihood": result})
    del result["upper"]
    assert "interval is open on one side" in said(tmp_path, evaluation={"log_likelihood": result})


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0 s"),
        (9.94, "9.9 s"),
        (9.96, "10 s"),
        (59.4, "59 s"),
        (59.7, "1 min 0 s"),
        (75.2, "1 min 15 s"),
        (119.6, "2 min 0 s"),
        (3599.7, "1 h 0 min"),
        (7384, "2 h 3 min"),
        (90061, "25 h 1 min"),
        (None, "–"),
    ],
)
def test_lengths_of_time(seconds, text):
    assert facts.duration(seconds) == text


def test_layers_have_columns_latents_and_words_of_their_own(tmp_path):
    dbm = fresh(DBM((5, 4)))
    rows = (RNG.random((30, 9)) < 0.5).astype(np.float32)
    codes = RNG.random((30, 9))  # as if they were its codes: five columns, then four
    found = explore(Run(tmp_path, estimator=dbm, image_shape=(3, 3)), rows, codes, "rows")
    for layer, mine in zip(found.data["layers"], (codes[:, :5], codes[:, 5:]), strict=True):
        order = np.argsort(-mine.mean(axis=0))
        assert layer["count"] == mine.shape[1]
        assert [latent["id"] for latent in layer["latents"]] == order.tolist()
        for latent, k in zip(layer["latents"], order, strict=True):
            assert latent["use"] == pytest.approx(mine[:, k].mean(), rel=1e-3)
            assert latent["on"] == pytest.approx((mine[:, k] > 0.5).mean(), rel=1e-3)
            assert latent["histogram"] == np.histogram(mine[:, k], 20, (0, 1))[0].tolist()
            assert latent["examples"][0][1] == pytest.approx(mine[:, k].max(), rel=1e-3)
            assert latent["slider"]["own"] == pytest.approx(mine[:, k].max(), rel=1e-3)
    assert [(g.begin, g.count) for g in groups(dbm, 9)] == [(0, 5), (5, 4)]


def test_runs_without_held_out_rows_say_training_rows(tmp_path):
    rbm, rows = fresh(RBM(n_components=3)), (RNG.random((30, 9)) < 0.5).astype(np.float32)
    run = Run(tmp_path, estimator=rbm, rows=rows, rows_are="training rows", training=rows)
    gallery = Gallery(run, "r1")
    made = {section.key: section for section in gallery.sections()}
    again = rbm.reconstruct(rows).astype(float)
    assert gallery.error == pytest.approx(np.mean((rows - again) ** 2))
    assert made["reconstructions"].text[0].endswith("(training rows).")
    given = Run(tmp_path, estimator=rbm, rows=rows, rows_are="given rows")
    assert Gallery(given, "r1")._looked_at() == (rows, "given rows")


def test_traversals_are_of_the_latents_that_vary_most(tmp_path):
    asked, codes = {}, RNG.normal(size=(50, 12)) * np.array([3, 1, 9, 2, 8, 0.5, 7, 6, 0.1, 5, 4, 0.2]) + 100
    moves = lambda latents, n_steps: asked.update(latents=latents) or np.zeros((8, n_steps, 9))  # noqa: E731
    stub = types.SimpleNamespace(traverse=moves, model_=fresh(PPCA(n_components=12 - 3)).model_, n_features_in_=9)
    rows, names = moving.traversals(Run(tmp_path, estimator=stub, image_shape=(3, 3)), codes)
    order = np.argsort(-codes[:, :9].std(axis=0))[
        :8
    ]  # the model has nine; the last three columns are another layer
    assert asked["latents"].tolist() == order.tolist()
    assert names == [f"Latent {k}" for k in order]
    assert len(rows) == 8


@pytest.mark.parametrize(
    ("rows", "ends"),
    [
        ([[0.0, 0.9]], (0.0, 1.0)),
        ([[0.0, 0.4]], (0.0008, 0.3992)),
        ([[-1.0, 1.0]], (-0.996, 0.996)),
        ([[2.0, 2.0]], (1.5, 2.5)),
        ([[np.nan, np.nan]], (0.0, 1.0)),
    ],
)
def test_what_is_black_and_what_is_white(rows, ends):
    assert sprites.grey_range(np.array(rows)) == pytest.approx(ends)


def test_without_data_the_strongest_filters_come_first(tmp_path, monkeypatch):
    rbm, drawn = fresh(RBM(n_components=5, weight_scale=1.0)), []
    grid = plots.image_grid
    monkeypatch.setattr(
        plots, "image_grid", lambda rows, *rest, **more: drawn.append(rows) or grid(rows, *rest, **more)
    )
    run = Run(tmp_path, estimator=rbm, image_shape=(3, 3), problems={"data": "There are none."})
    section = Gallery(run, "r1")._made("filters", "Filters", Gallery(run, "r1")._filters)
    assert section.text[0].endswith("Sorted by strength.")
    weights = np.asarray(rbm.model_.weights, float).T
    np.testing.assert_allclose(drawn[0], weights[np.argsort(-np.linalg.norm(weights, axis=1))], atol=1e-4)
