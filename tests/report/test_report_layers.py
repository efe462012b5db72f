"""Reports of machines with several layers, labels and kinds of data; pictures that a run left behind."""

from __future__ import annotations

import numpy as np
import pytest

from latentia import DBM, DBN, MultimodalDBM
from latentia.report import build_report, comparison, plane
from latentia.report.plots import image_grid
from latentia.report.runs import Run
from latentia.report.sections import Gallery, Section

RNG = np.random.default_rng(0)
X = (RNG.random((60, 6)) < 0.5).astype(float)
Y = RNG.integers(0, 3, 60)
SHORT = {"n_epochs": 1, "random_state": 0}


@pytest.mark.parametrize(
    "machine",
    [
        DBM((4, 3), **SHORT),
        DBN((4, 3), pretraining_epochs=1, **SHORT),
        MultimodalDBM({"a": 4, "b": 2}, hidden=(3,), joint=2, visible="bernoulli", **SHORT),
    ],
    ids=["dbm", "dbn", "multimodal"],
)
def test_every_section_can_be_made(machine, tmp_path):
    machine.set_params(run_dir=tmp_path / "run").fit(X, Y)
    figure = image_grid(RNG.random((4, 4)), (2, 2))
    figure.savefig(tmp_path / "run" / "filled-in.png")
    page = build_report(tmp_path / "run", rows=X, image_shape=(2, 3)).read_text()
    assert "Could not be made" not in page
    assert "cannot" not in page.split("<main")[-1].split("Reconstructions")[0].lower() or isinstance(machine, DBN)
    assert "data:image/png;base64," in page
    assert "Pictures" in page
    assert page.count("<h3") + page.count("<h2") >= 7


def test_switching_a_unit_of_the_second_layer_reaches_the_visibles():
    dbm = DBM((4, 3), n_epochs=200, batch_size=10, learning_rate=0.3, random_state=0).fit(X)
    on, off = dbm.latent_switches()
    assert on.shape == off.shape == (7, 7)
    assert (on[np.arange(7), np.arange(7)] == 1).all()
    assert (off[np.arange(7), np.arange(7)] == 0).all()
    change = np.abs(dbm.inverse_transform(on) - dbm.inverse_transform(off)).max(1)
    assert (change > 1e-6).all()


@pytest.mark.parametrize("labels", [None, Y], ids=["rows alone", "rows and labels"])
@pytest.mark.parametrize("rows_are", ["training rows", "held-out rows"])
def test_the_map_says_whether_the_model_was_shown_the_labels(labels, rows_are, tmp_path):
    machine = DBM((4, 3), pretraining_epochs=0, **SHORT).fit(X, labels)
    config = {"family": "dbm", "blueprint": machine.blueprint_}
    run = Run(tmp_path, config=config, estimator=machine, rows=X, rows_are=rows_are, labels=Y)
    shown = "shown." if labels is not None and rows_are == "training rows" else "not shown."
    caption = plane.latent_map(run, machine.transform(X)).caption
    assert caption == f"60 {rows_are}, coloured by their labels, which the model was {shown}"


def test_the_bound_of_a_belief_network_is_not_called_exact(tmp_path):
    machine = DBN((4, 3))
    found = machine.adopt(machine.build({"n_features": 6}), {"n_features": 6}).log_likelihood(X)
    for ends, interval in (({}, "a lower bound"), ({"upper": found.lower + 0.5}, "a lower bound, between ")):
        result = {**found.as_dict(), **ends}  # log Z is exact, or bracketed; the bound is one all the same
        run = Run(tmp_path, estimator=machine, evaluation={"log_likelihood": result})
        section = Section("likelihood", "Likelihood")
        Gallery(run, "r1")._likelihood(section)
        assert "The value is exact" not in section.text[0]
        assert "true value" not in section.text[0]
        assert section.text[0].startswith("A lower bound on the log-likelihood ")
        assert comparison.likelihood_words(run)["interval"].startswith(interval)


def test_bits_are_shared_among_the_features_alone(tmp_path):
    machine = DBM((4, 3), pretraining_epochs=0, **SHORT).fit(X, Y)
    run = Run(tmp_path, estimator=machine, evaluation={"log_likelihood": {"estimate": -3.0}})
    assert comparison.likelihood_words(run)["bits"] == f"{3 / 6 / np.log(2):.3f} bits per feature"


@pytest.mark.parametrize("gap", [np.nan, ""])
def test_rows_without_a_label_are_on_the_map_but_are_no_class(gap, tmp_path):
    labels = Y.astype(float) if gap != gap else np.array(["oak", "ash", "fir"])[Y]
    labels[[3, 40]] = gap
    machine = DBM((4, 3), pretraining_epochs=0, **SHORT).fit(X)
    run = Run(tmp_path, config={"family": "dbm"}, estimator=machine, rows=X, rows_are="given rows", labels=labels)
    axes = plane.latent_map(run, machine.transform(X)).scatter.axes[0]
    assert sum(len(dots.get_offsets()) for dots in axes.collections) == 60
    names = ["0", "1", "2"] if gap != gap else ["ash", "fir", "oak"]
    assert [text.get_text() for text in axes.texts] == names
