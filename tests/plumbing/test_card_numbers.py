"""Every number of the card in a notebook, and of the pictures of :mod:`latentia.plot`, against NumPy."""

from __future__ import annotations

import base64
import io
import re
from html import unescape

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from latentia import PPCA, RBM, plot
from latentia.estimator import notebook
from latentia.likelihood.result import LogLikelihood

RNG = np.random.default_rng(4)
X = (RNG.random((50, 36)) < RNG.uniform(0.1, 0.9, 36)).astype(np.float32)
REAL = (3 + RNG.normal(size=(30, 2)) @ RNG.normal(size=(2, 36)) + 0.2 * RNG.normal(size=(30, 36))).astype(
    np.float32
)
SMALL = {"n_components": 40, "n_epochs": 2, "batch_size": 20, "random_state": 0, "weight_scale": 0.3}


@pytest.fixture(scope="module")
def rbm():
    return RBM(**SMALL).fit(X)


@pytest.fixture(scope="module")
def ppca():
    return PPCA(n_components=2).fit(REAL)


def shown(estimator) -> dict[str, str]:
    made = notebook.card(estimator)
    return {
        name: unescape(re.sub(r"<[^>]+>", "", text))
        for name, text in re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", made, re.DOTALL)
    }


def facts_are_right(estimator, n_rows: int) -> None:
    found, last = shown(estimator), estimator.history_[-1]
    assert found["data"] == f"{n_rows} rows × 36 features → 40 latents"
    compiling = estimator.compile_seconds_
    after = f", and {compiling:.1f} s of compiling" if compiling else ""
    assert found["training"] == f"{last['step']} steps in {last['seconds']:.1f} s{after}"
    wanted = [(k, v) for k, v in last.items() if k not in ("step", "epoch", "seconds", "gradient_norm")]
    assert found["at the end"] == ", ".join(f"{k.replace('_', ' ')} {v:.4g}" for k, v in wanted).replace("-", "−")


def test_facts_after_a_fit_and_after_a_further_pass(rbm):
    facts_are_right(rbm, 50)
    other = RBM(**SMALL).fit(X)
    before = shown(other)
    other.partial_fit(X[:40])
    facts_are_right(other, 40)
    assert shown(other)["at the end"] != before["at the end"]


def test_the_picture_shows_the_strongest_filters_in_order(rbm):
    made = notebook.card(rbm)
    assert made.count("36 strongest of 40 filters") == 2
    data = re.search(r"base64,([^\"]+)", made)
    assert data
    canvas = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1]))), float)
    assert canvas.shape == (6 * 7 - 1, 6 * 7 - 1, 4)
    weights = np.asarray(rbm.model_.weights, float).T
    order = np.argsort(-np.linalg.norm(weights, axis=1))[:36]
    blue, red = np.array([5, 48, 97.0]), np.array([103, 0, 31.0])
    for place, k in enumerate(order):
        top, left = 7 * (place // 6), 7 * (place % 6)
        tile = weights[k].reshape(6, 6, 1) / np.abs(weights[k]).max()
        size = np.abs(tile) ** 0.7
        colours = 255 * (1 - size) + size * np.where(tile < 0, blue, red)
        np.testing.assert_allclose(canvas[top : top + 6, left : left + 6, :3], colours, atol=1.01)
    few = RBM(n_components=3).adopt(RBM(n_components=3).build({"n_features": 36}), {"n_features": 36})
    assert notebook.card(few).count("3 filters") == 2


@pytest.mark.parametrize(
    ("lower", "estimate", "upper", "words"),
    [
        (-31.257, -30.124, -29.5, ("−31.26", "−30.12", "−29.50")),
        (-30.00081, -30.00052, -30.00044, ("−30.0008", "−30.0005", "−30.0004")),
        (-3.0, 2.5, np.inf, ("−3.00", "2.50", "∞")),
    ],
)
def test_the_interval_on_the_card(rbm, lower, estimate, upper, words):
    rbm._remember("_log_likelihood", LogLikelihood(lower, upper, estimate, 0.123, "AIS"))
    made = rbm._log_likelihood._repr_html_()
    left, middle, right = words
    assert f"Mean log-likelihood <b>{middle}</b> nats" in made
    assert re.findall(r"<span>([−∞\d.]+)</span>", made) == [left, right]
    assert "standard error 0.12; AIS" in made
    assert made in notebook.card(rbm)
    if np.isfinite(upper):
        begin, dot, end = (
            float(re.findall(rule, made)[0]) for rule in (r"M([\d.]+) 13", r'cx="([\d.]+)', r"H([\d.]+)")
        )
        assert (begin, end) == (22.0, 238.0)
        assert (dot - begin) / (end - begin) == pytest.approx((estimate - lower) / (upper - lower), abs=1e-3)


# -- plots -----------------------------------------------------------------------------------------------------


def test_reconstructions_tell_the_error_of_the_rows_that_are_shown(ppca):
    ax, held_out = Figure().subplots(), REAL[::-1] * 0.5
    plot.reconstructions(ppca, held_out, n=4, ax=ax)
    some = held_out[[0, 10, 19, 29]].astype(float)
    w, mean = np.asarray(ppca.model_.weights, float), np.asarray(ppca.model_.mean, float)
    inner = w.T @ w + float(ppca.model_.variance()) * np.eye(2)
    again = mean + np.linalg.solve(inner, w.T @ (some - mean).T).T @ w.T
    assert ax.get_title() == f"Reconstructions, mean squared error {np.mean((some - again) ** 2):.3g}"
    low, high = np.quantile(some, [0.02, 0.98])
    canvas = ax.images[0].get_array()
    for line, rows in enumerate((some, again)):
        for place, row in enumerate(rows):
            grey = np.clip((row.reshape(6, 6) - low) / (high - low), 0, 1)
            np.testing.assert_allclose(
                canvas[7 * line : 7 * line + 6, 7 * place : 7 * place + 6, 0], grey, atol=1e-3
            )


def test_a_map_is_of_the_rows_that_were_given(ppca):
    ax, rows = Figure().subplots(), 0.5 * REAL[:20] + 1
    plot.latent_map(ppca, rows, np.arange(20) % 2, ax=ax)
    w, mean = np.asarray(ppca.model_.weights, float), np.asarray(ppca.model_.mean, float)
    inner = w.T @ w + float(ppca.model_.variance()) * np.eye(2)
    codes = np.linalg.solve(inner, w.T @ (rows - mean).T).T
    for label, spots in enumerate(ax.collections):
        np.testing.assert_allclose(spots.get_offsets(), codes[label::2], atol=1e-3)
    assert ax.get_title() == "20 rows, by PPCA"
    wide = Figure().subplots()
    plot.latent_map(RBM(n_components=4).adopt(four(), {"n_features": 36}), X, ax=wide)
    codes = RBM(n_components=4).adopt(four(), {"n_features": 36}).transform(X).astype(float)
    sizes, axes = np.linalg.svd(codes - codes.mean(axis=0))[1:]
    shares = 100 * sizes**2 / np.sum(sizes**2)
    assert f"({shares[0]:.0f} % of its variance)" in wide.get_xlabel()
    assert f"({shares[1]:.0f} % of its variance)" in wide.get_ylabel()
    places = (codes - codes.mean(axis=0)) @ axes[:2].T
    np.testing.assert_allclose(np.abs(wide.collections[0].get_offsets()), np.abs(places), atol=1e-3)


def four():
    return RBM(n_components=4, weight_scale=1.0).build({"n_features": 36}, seed=2)


def test_intervals_have_their_own_ends_and_limits():
    ax = Figure().subplots()
    given = {"a": (-31.0, -30.5, -29.0), "b": (-28.5, -28.0, -26.0), "c": (-33.0, -32.0, np.inf)}
    results = {name: LogLikelihood(low, high, middle, 0.1, "AIS") for name, (low, middle, high) in given.items()}
    plot.likelihood(results, ax=ax)
    lines, limits = iter(ax.lines), ax.get_xlim()
    assert limits == pytest.approx((-33 - 0.18 * 7, -26 + 0.18 * 7))
    for place, (low, middle, high) in enumerate(given.values()):
        np.testing.assert_allclose(next(lines).get_xydata(), [[low, place], [min(high, limits[1]), place]])
        marks = [float(next(lines).get_xdata()[0]) for end in (low, high, middle) if np.isfinite(end)]
        assert marks == [end for end in (low, high, middle) if np.isfinite(end)]
