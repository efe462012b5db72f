"""The pictures on their own, and the sections of models that are no Boltzmann machines."""

import math
import subprocess
import sys

import jax
import numpy as np
import pytest

from latentia.core.errors import DataError
from latentia.estimator.base import LatentEstimator
from latentia.likelihood.result import LogLikelihood
from latentia.models.gaussian_mixture import MixtureModel
from latentia.models.ppca import PPCAModel
from latentia.report import plots
from latentia.report.runs import Run
from latentia.report.sections import Gallery, between


class Plain(LatentEstimator):
    """A bare estimator around a given model: the sections must not need more."""

    family = "plain"

    def __init__(self, random_state=None):
        self.random_state = random_state

    def build(self, blueprint, *, seed=0):
        raise NotImplementedError

    def _plan(self, n_rows):
        raise NotImplementedError

    def _learner(self, plan):
        raise NotImplementedError

    def _rows(self, X, *, purpose):
        return X


def sections_of(model, rows, shape, tmp_path):
    estimator = Plain().adopt(model, {"n_features": rows.shape[1]})
    run = Run(tmp_path, estimator=estimator, rows=rows, rows_are="rows", image_shape=shape)
    return {section.key: section for section in Gallery(run, "r1").sections()}


def test_a_mixture_shows_its_means_by_use(tmp_path):
    model = MixtureModel.make(4, 3, key=jax.random.key(0))
    rows = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    made = sections_of(model, rows, (2, 2), tmp_path)
    assert made["filters"].title == "Means"
    assert "Sorted by use" in made["filters"].text[0]
    assert "Independent draws." in made["samples"].text[0]
    for key in ("activations", "filters", "samples", "reconstructions"):
        assert not made[key].note, made[key].note
        assert made[key].pictures or made[key].still, key


def test_principal_components_in_the_plane(tmp_path):
    model = PPCAModel.make(2, 1, key=jax.random.key(0))
    rows = np.random.default_rng(0).normal(size=(50, 2)).astype(np.float32)
    made = sections_of(model, rows, None, tmp_path)
    assert made["filters"].title == "Filters"
    assert "changes the mean" in made["filters"].text[0]
    assert "plane" in made["samples"].text[0]
    assert "mean squared error" in made["reconstructions"].text[0]
    assert all(not made[key].note for key in ("activations", "filters", "samples", "reconstructions"))


def test_more_filters_than_fit_are_said_to_be_more(tmp_path):
    model = PPCAModel.make(4, 130, key=jax.random.key(0))
    made = sections_of(model, np.zeros((3, 4), np.float32), (2, 2), tmp_path)
    assert "100 of 130 latents are shown: the 66 most used, then 34 spread evenly" in made["filters"].text[0]


def test_one_broken_section_does_not_cost_the_others(tmp_path, monkeypatch):
    def broken(*args, **kwargs):
        raise RuntimeError("out of paint")

    monkeypatch.setattr(plots, "histogram", broken)
    model = PPCAModel.make(4, 2, key=jax.random.key(0))
    made = sections_of(model, np.zeros((3, 4), np.float32), (2, 2), tmp_path)
    assert made["activations"].note == "Could not be made: RuntimeError: out of paint"
    assert not made["activations"].pictures
    assert made["filters"].still


def pixels(figure) -> np.ndarray:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())


def test_signed_tiles_have_their_own_contrast():
    picture = pixels(plots.image_grid(np.array([[1.0, 0.0], [0.0, -100.0]]), (1, 2), signed=True, columns=1))
    zoom = picture.shape[1] // 2
    red, blue = picture[zoom // 2, zoom // 2], picture[-zoom // 2, -zoom // 2]
    assert red[0] > red[2] + 50
    assert blue[2] > blue[0] + 50
    white = picture[zoom // 2, -zoom // 2]
    assert white[:3].min() > 240


def test_images_share_one_grey_scale():
    picture = pixels(plots.image_grid(np.array([[0.0, 10.0], [5.0, 5.0]]), (1, 2), columns=1))
    zoom = picture.shape[1] // 2
    assert picture[zoom // 2, zoom // 2, 0] == 0
    assert picture[zoom // 2, -zoom // 2, 0] == 255
    assert abs(int(picture[-zoom // 2, zoom // 2, 0]) - 128) <= 1
    assert picture[zoom + 2, 0, 3] == 0  # the gap is see-through


@pytest.mark.parametrize("shape", [(2, 300), (250, 3), (200, 200, 3)])
def test_pictures_larger_than_a_tile_are_not_enlarged(shape):
    picture = pixels(plots.image_grid(np.ones((1, int(np.prod(shape)))), shape))
    assert picture.shape[:2] == shape[:2]


@pytest.mark.parametrize("rows", [np.zeros((3, 12)), np.full((3, 12), np.nan), np.ones((1, 12))])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), (2, 2, 3)])
def test_dull_rows_can_be_drawn(rows, signed, shape):
    assert pixels(plots.image_grid(rows, shape, signed=signed)).size


@pytest.mark.parametrize("shape", [(3, 5), (12,), (2, 3, 2), (1, 1, 2, 6)])
def test_rows_that_do_not_fold_are_refused(shape):
    with pytest.raises(DataError, match="do not fold"):
        plots.image_grid(np.zeros((3, 12)), shape)
    with pytest.raises(DataError, match="no rows"):
        plots.image_grid(np.zeros((0, 12)), (3, 4))


def test_curves_have_a_panel_per_metric_and_skip_what_is_no_number():
    history = [{"step": i, "epoch": i, "seconds": 1.0, "loss": 1 / (i + 1), "gap": math.nan} for i in range(5)]
    history.append({"step": 5, "epoch": 5, "validation_score": 2.0})
    figure = plots.curves(history)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["Loss", "Gap", "Validation score"]
    assert figure.axes[0].get_xlabel() == "epoch"
    assert len(figure.axes[0].lines[0].get_xdata()) == 5
    pixels(figure)
    with pytest.raises(DataError, match="no metrics"):
        plots.curves([{"step": 1}])


def test_the_interval_takes_results_and_dictionaries_and_open_ends():
    result = LogLikelihood(-3.0, -2.0, -2.5, 0.1, "AIS")
    figure = plots.likelihood([result, {"lower": None, "upper": -1.0, "estimate": -2.0}], ["a", "b"])
    low, high = figure.axes[0].get_xlim()
    assert low < -3 < -1 < high
    pixels(figure)
    with pytest.raises(DataError, match="no finite"):
        plots.likelihood({"lower": None, "upper": None, "estimate": None})


def test_words_for_an_interval_tell_its_ends_apart():
    assert between(-26.8304, -26.8244) == "between −26.830 and −26.824"
    assert between(-30.0, -10.0) == "between −30.00 and −10.00"
    assert between(-30.0, math.inf) == "between −30.00 and ∞"


def test_histograms_of_shares_add_up():
    figure = plots.histogram(np.random.default_rng(0).random((20, 5)))
    assert math.isclose(sum(bar.get_height() for bar in figure.axes[0].patches), 1)
    with pytest.raises(DataError, match="no finite"):
        plots.histogram(np.array([math.nan]))


def test_importing_latentia_imports_no_matplotlib_and_plots_no_pyplot():
    code = (
        "import sys, latentia, latentia.report; assert 'matplotlib' not in sys.modules;"
        "import latentia.report.plots; assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
