"""The page about an experiment: complete, escaped, and in need of nothing else."""

from __future__ import annotations

import numpy as np
import pytest

from latentia.report import plots
from latentia.report.article import Section, pictures, table, text, write_article


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    curve = plots.roc({"a <b>": (np.array([0.0, 0.5, 1.0]), np.array([0.0, 0.9, 1.0]))}, title="ROC")
    grid = plots.image_grid(np.random.default_rng(0).normal(size=(4, 9)), (3, 3))
    sections = [
        Section("First & foremost", [text("x < y"), table(["what", "number"], [["<one>", "1"]], "A caption")]),
        Section("Second", [pictures((curve, "A curve"), (grid, "A grid"))]),
    ]
    path = write_article(tmp_path_factory.mktemp("article") / "page.html", "Title <1>", sections)
    return path.read_text(encoding="utf-8")


def test_everything_is_there_and_escaped(page):
    for wanted in ("Title &lt;1&gt;", "First &amp; foremost", "x &lt; y", "&lt;one&gt;", "A caption", "A curve"):
        assert wanted in page
    assert "<one>" not in page
    assert page.index("First") < page.index("Second")


def test_curves_are_drawings_and_grids_are_images(page):
    assert page.count("<svg") == 1
    assert page.count('<img alt="A grid"') == 1
    assert 'src="http' not in page
    assert "url(http" not in page


def test_the_curve_shows_its_names_and_its_points(page):
    figure = plots.roc({"one": (np.array([0.0, 1.0]), np.array([0.0, 1.0])), "two": (np.zeros(2), np.ones(2))})
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_legend().get_texts()] == ["one", "two"]
    np.testing.assert_array_equal(axes.lines[2].get_ydata(), [1, 1])
