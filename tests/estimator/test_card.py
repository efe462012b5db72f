"""What a notebook shows of estimators and likelihoods."""

from __future__ import annotations

import base64
import io
import re
import time
from html.parser import HTMLParser

import jax
import numpy as np
import pytest
import sklearn
from PIL import Image
from sklearn.pipeline import make_pipeline

from latentia import RBM, load
from latentia.estimator import notebook
from latentia.estimator.weights import input_weights, picture_shape
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.ops.examples import Examples
from latentia.registry import FAMILIES

X = (np.random.default_rng(0).random((40, 36)) < 0.4).astype(np.float32)


@pytest.fixture(scope="module")
def rbm():
    model = RBM(n_components=4, n_epochs=3, batch_size=20, random_state=0).fit(X)
    model.log_likelihood(X)
    return model


class Balanced(HTMLParser):
    """Counts what is opened and not closed."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag != "img":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_before_fitting_there_is_scikit_learns_diagram_alone():
    html = RBM()._repr_html_()
    assert "sk-top-container" in html
    assert "latentia-card" not in html


def test_after_fitting_a_card_tells_what_was_learned(rbm):
    html = rbm._repr_html_()
    assert "sk-top-container" in html
    made = notebook.card(rbm)
    assert html.endswith(made)
    assert rbm._repr_mimebundle_()["text/html"].endswith(made)
    text = re.sub(r"<style>.*?</style>|<[^>]+>", " ", made)
    assert "Restricted Boltzmann machine" in text
    assert "E(x, z) = " in text
    assert "40 rows × 36 features → 4 latents" in text
    assert f"{rbm.n_steps_} steps in" in text
    assert f"{rbm.history_[-1]['energy_gap']:.4g}".replace("-", "−") in text
    assert "Mean log-likelihood" in text
    assert "4 filters" in text
    assert not re.search(r"(src|href)=\"(?!data:)|<script|@import|url\(", made)  # it needs nothing else
    parser = Balanced()
    parser.feed(made)
    assert parser.open == []


def test_the_picture_shows_the_weights_blue_and_red(rbm):
    data = re.search(r"data:image/png;base64,([^\"]+)", notebook.card(rbm))
    assert data
    picture = np.asarray(Image.open(io.BytesIO(base64.b64decode(data[1]))), float)
    assert picture.shape == (13, 13, 4)
    weights = np.asarray(rbm.model_.weights).T
    strongest = weights[np.argmax(np.linalg.norm(weights, axis=1))].reshape(6, 6)
    redness = picture[:6, :6, 0] - picture[:6, :6, 2]
    assert ((redness > 0) == (strongest > 0))[np.abs(strongest) > 0.01 * np.abs(strongest).max()].all()
    assert picture[6, :, 3].max() == 0  # gaps let the page through


def test_showing_compiles_nothing_and_is_quick(rbm):
    compiled = []
    hear = lambda name, *_, **__: compiled.append(name)  # noqa: E731
    jax.monitoring.register_event_duration_secs_listener(hear)
    try:
        rbm._repr_html_()
        begin = time.perf_counter()
        rbm._repr_html_()
        assert time.perf_counter() - begin < 0.3
        assert not [name for name in compiled if "compile" in name]
    finally:
        jax.monitoring.unregister_event_duration_listener(hear)


def test_it_never_raises(rbm, monkeypatch):
    monkeypatch.setattr(notebook, "_picture", lambda estimator: 1 / 0)
    assert "latentia-card" not in rbm._repr_html_()
    assert "sk-top-container" in rbm._repr_html_()


def test_scikit_learns_setting_is_kept(rbm):
    with sklearn.config_context(display="text"):
        assert "text/html" not in rbm._repr_mimebundle_()
        assert not hasattr(rbm, "_repr_html_")
    assert "sk-top-container" in make_pipeline(rbm)._repr_html_()


def test_a_loaded_model_has_a_card_too(rbm, tmp_path):
    rbm.save(tmp_path / "model.safetensors")
    made = notebook.card(load(tmp_path / "model.safetensors"))
    assert "36 features → 4 latents" in made
    assert "steps in" not in made
    assert "<img" in made


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_family_has_a_card(family):
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (12, 5)) if family.tiny_data == "binary" else rng.normal(size=(12, 3))
    estimator = family.estimator()(**family.tiny)
    blueprint = estimator._blueprint(Examples(rows.astype(np.float32)))
    estimator.adopt(estimator.build(blueprint, seed=1), blueprint)
    made = notebook.card(estimator)
    assert "<dt>formula</dt>" in made, family.name
    assert "<img" not in made or family.name == "fields-of-experts"  # five numbers are no picture


def test_weights_are_found_whichever_way_they_lie(rbm):
    np.testing.assert_array_equal(input_weights(rbm), np.asarray(rbm.model_.weights).T)
    assert picture_shape(rbm) == (6, 6)
    assert picture_shape(rbm, 35) is None
    assert picture_shape(rbm, 25) is None  # small tables are no pictures


# -- likelihoods ---------------------------------------------------------------------------------------------


def test_an_interval_is_drawn():
    html = LogLikelihood(-31.0, -29.0, -30.5, 0.1, "AIS & reverse", {"warning": "too <wide>"})._repr_html_()
    assert "<b>−30.50</b> nats" in html
    assert "AIS &amp; reverse" in html
    assert "⚠ too &lt;wide&gt;" in html
    left, dot, right = (
        float(re.search(rule, html)[1]) for rule in (r"M([\d.]+) 13.0H", r"cx=\"([\d.]+)\"", r"H([\d.]+)")
    )
    assert left < right
    assert (dot - left) / (right - left) == pytest.approx(0.25, abs=0.01)
    parser = Balanced()
    parser.feed(html)
    assert parser.open == []


def test_ends_can_be_told_apart_and_exact_values_have_none():
    close = LogLikelihood(-27.7812, -27.7803, -27.7808, 1e-4, "AIS")._repr_html_()
    assert "−27.7812" in close
    assert "−27.7803" in close
    exact = LogZ(3.0, 3.0, 3.0, 0.0, "enumeration")._repr_html_()
    assert "log Z <b>3.00</b> nats (exact)" in exact
    assert "<svg" not in exact


def test_an_end_that_is_not_known_is_an_arrow():
    html = LogLikelihood(-31.0, np.inf, -30.5, 0.1, "bound")._repr_html_()
    assert "∞" in html
    assert 'H260.0"' in html
    assert "nan" not in LogLikelihood(-np.inf, np.inf, np.nan, 0.1, "?")._repr_html_().split("nats")[1]
