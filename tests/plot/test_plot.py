"""Pictures on Matplotlib axes: what they show, for every family, and what they refuse."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import latentia
from latentia import plot
from latentia.core.errors import CapabilityError, DataError, ParameterError, RunFolderError
from latentia.likelihood.result import LogLikelihood
from latentia.ops.examples import Examples
from latentia.plot import shared
from latentia.registry import FAMILIES

RNG = np.random.default_rng(0)
PIXELS = (RNG.random((30, 36)) < 0.4).astype(np.float32)
CLOUDS = np.concatenate([RNG.normal(m, 0.3, (20, 2)) for m in ((0, 0), (4, 1))])


@pytest.fixture
def ax():
    return Figure(layout="constrained").subplots()


@pytest.fixture(scope="module")
def rbm(tmp_path_factory):
    run = tmp_path_factory.mktemp("runs") / "small é"
    return latentia.RBM(n_components=4, n_epochs=3, batch_size=10, random_state=0, run_dir=run).fit(PIXELS)


@pytest.fixture(scope="module")
def mixture():
    return latentia.GaussianMixture(n_components=2, random_state=0).fit(CLOUDS)


def untrained(family):
    """A family's tiny configuration around a model as it starts: fitted as far as pictures can tell."""
    n = 5 if family.tiny_data == "binary" else 3
    rows = RNG.integers(0, 2, (12, n)) if family.tiny_data == "binary" else RNG.normal(size=(12, n))
    estimator = family.estimator()(**family.tiny)
    blueprint = estimator._blueprint(Examples(rows.astype(np.float32)))
    return estimator.adopt(estimator.build(blueprint, seed=1), blueprint), rows.astype(np.float32)


def labels(axes):
    return axes.get_title(), axes.get_xlabel(), axes.get_ylabel()


# -- filters -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_every_family_shows_what_its_latents_stand_for(family, ax):
    estimator, _ = untrained(family)
    assert plot.filters(estimator, ax=ax) is ax
    assert "filter" in ax.get_title() or "mean" in ax.get_title()
    assert ax.images
    Figure.draw_without_rendering(ax.figure)


def test_filters_are_the_changes_of_the_log_odds_in_the_models_order(rbm, ax):
    plot.filters(rbm, sort=False, columns=4, ax=ax)
    picture = ax.images[0].get_array()
    weights = np.asarray(rbm.model_.weights).T  # of an RBM these are exactly its weights
    size = 6 + 1  # a gap of one pixel
    assert picture.shape == (6, 4 * size - 1, 4)
    for k, row in enumerate(weights):
        tile = picture[:, k * size : k * size + 6]
        expected = matplotlib.colormaps["RdBu_r"](0.5 + 0.5 * row.reshape(6, 6) / np.abs(row).max())
        np.testing.assert_allclose(tile, expected, atol=0.02)
        if k:
            assert (picture[:, k * size - 1, 3] == 0).all()  # gaps are transparent
    assert labels(ax)[0] == "4 filters"
    assert "red raises" in ax.get_xlabel()


def test_the_strongest_come_first_or_the_most_used_if_there_are_rows(rbm, ax, monkeypatch):
    drawn = []
    monkeypatch.setattr(
        plot.pictures, "_draw_filters", lambda ax, found, pictures, order, *rest: drawn.append(order)
    )
    plot.filters(rbm, ax=ax)
    plot.filters(rbm, X=PIXELS, n=2, ax=ax)
    weights = np.asarray(rbm.model_.weights)
    np.testing.assert_array_equal(drawn[0], np.argsort(-np.linalg.norm(weights, axis=0)))
    np.testing.assert_array_equal(drawn[1], np.argsort(-rbm.transform(PIXELS).mean(axis=0))[:2])
    assert ax.get_title() == "2 filters of 4"


def test_layers_are_chosen_and_counted_from_one(ax):
    dbm, _ = untrained(next(f for f in FAMILIES if f.name == "dbm"))
    plot.filters(dbm, layer=2, ax=ax)
    assert ax.get_title() == "2 filters, layer 2"
    assert ax.images[0].get_array().shape == (2, 5)
    plot.filters(dbm, ax=Figure().subplots())
    for wrong in (0, 3, "top", True):
        with pytest.raises(ParameterError, match="from 1 to 2: this DBM has 2 layers"):
            plot.filters(dbm, layer=wrong, ax=ax)


def test_two_features_are_shown_in_the_plane(mixture, ax):
    plot.filters(mixture, ax=ax)
    points = np.sort(ax.lines[0].get_xydata(), axis=0)
    np.testing.assert_allclose(points, np.sort(mixture.inverse_transform(np.eye(2)), axis=0), atol=1e-5)
    assert labels(ax) == ("2 means", "feature 0", "feature 1")


def test_named_columns_are_no_pixels(ax):
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame(PIXELS, columns=[f"gene {i}" for i in range(36)])
    model = latentia.PPCA(n_components=2).fit(table)
    plot.filters(model, ax=ax)
    assert ax.get_xlabel() == "feature"
    plot.filters(model, image_shape=(4, 9), ax=Figure().subplots())


# -- samples and reconstructions -----------------------------------------------------------------------------


def test_samples_as_pictures_as_points_and_from_an_array(rbm, mixture):
    one, two, three = (Figure().subplots() for _ in range(3))
    assert plot.samples(rbm, 5, n_steps=5, ax=one) is one
    assert one.get_title() == "5 samples"
    assert one.images[0].get_array().shape == (13, 20, 4)  # 3 tiles by 2
    plot.samples(mixture, 30, X=CLOUDS, ax=two)
    assert [text.get_text() for text in two.get_legend().get_texts()] == ["data", "samples"]
    assert [len(dots.get_offsets()) for dots in two.collections] == [40, 30]
    plot.samples(PIXELS, 4, image_shape=(6, 6), ax=three)
    np.testing.assert_array_equal(three.images[0].get_array()[:6, :6, 0], PIXELS[0].reshape(6, 6))


def test_reconstructions_beside_the_data_on_their_scale(rbm, ax):
    plot.reconstructions(rbm, PIXELS, n=3, ax=ax)
    picture = ax.images[0].get_array()
    assert picture.shape == (13, 20, 4)
    np.testing.assert_array_equal(picture[:6, :6, 0], PIXELS[0].reshape(6, 6))
    np.testing.assert_allclose(picture[7:, :6, 0], rbm.reconstruct(PIXELS[:1]).reshape(6, 6), atol=1e-6)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["data", "model"]
    table = Figure().subplots()
    plot.reconstructions(rbm, PIXELS, image_shape=False, ax=table)
    assert labels(table)[1:] == ("data", "reconstruction")


def test_a_model_without_such_a_thing_says_so(ax):
    poe, rows = untrained(next(f for f in FAMILIES if f.name == "product-of-experts"))
    with pytest.raises(CapabilityError, match="ProductOfExperts has no reconstructions to draw"):
        plot.reconstructions(poe, rows, ax=ax)
    coder, _ = untrained(next(f for f in FAMILIES if f.name == "sparse-coder"))
    with pytest.raises(CapabilityError, match="SparseCoder has no samples to draw"):
        plot.samples(coder, 3, ax=ax)
    with pytest.raises(CapabilityError, match="cannot map latents"):
        plot.latent_map(poe, rows, decode=3, ax=ax)


# -- maps ----------------------------------------------------------------------------------------------------


def test_a_map_by_two_latents_by_their_components_and_by_label(ax):
    ppca = latentia.PPCA(n_components=3, random_state=0).fit(PIXELS)
    codes = ppca.transform(PIXELS)
    y = np.repeat(["a", "b"], 15)
    plot.latent_map(ppca, PIXELS, y, dims=(2, 0), ax=ax)
    assert labels(ax)[1:] == ("latent 2", "latent 0")
    np.testing.assert_allclose(ax.collections[1].get_offsets(), codes[15:][:, [2, 0]], atol=1e-5)
    colours = {tuple(dots.get_facecolor()[0]) for dots in ax.collections}
    shapes = {str(dots.get_paths()[0].vertices) for dots in ax.collections}
    assert len(colours) == len(shapes) == 2  # told apart without colours too
    other = Figure().subplots()
    plot.latent_map(ppca, PIXELS, np.arange(30.0), ax=other)
    assert "of the code" in other.get_xlabel()
    spread = np.ptp(np.asarray(other.collections[0].get_offsets()), axis=0)
    assert spread[0] > 0
    for dims in ((0,), (0, 3), (0, 1.5), (0, True)):
        with pytest.raises(ParameterError, match="dims must be two latents from 0 to 2"):
            plot.latent_map(ppca, PIXELS, dims=dims, ax=ax)
    with pytest.raises(DataError, match="one entry per row"):
        plot.latent_map(ppca, PIXELS, [1, 2], ax=ax)


def test_mixtures_are_coloured_by_component_where_the_data_lie(mixture, ax):
    plot.latent_map(mixture, CLOUDS, ax=ax)
    parts = [np.asarray(dots.get_offsets()) for dots in ax.collections]
    assert sorted(map(len, parts)) == [20, 20]
    best = mixture.transform(CLOUDS).argmax(axis=1)
    np.testing.assert_allclose(parts[0], CLOUDS[best == 0], atol=1e-6)


def test_the_plane_can_be_decoded(ax):
    ppca = latentia.PPCA(n_components=2, random_state=0).fit(PIXELS)
    plot.latent_map(ppca, PIXELS, decode=3, ax=ax)
    assert ax.images[0].get_array().shape == (20, 20, 4)
    low, high = np.quantile(ppca.transform(PIXELS), [0.02, 0.98], axis=0)
    corner = ppca.inverse_transform(np.array([[low[0], high[1]]], np.float32)).reshape(6, 6)  # upper left
    shown = ax.images[0].get_array()[:6, :6, 0]
    assert np.corrcoef(shown.ravel(), corner.ravel())[0, 1] > 0.99
    with pytest.raises(ParameterError, match="two latents and rows that are pictures"):
        plot.latent_map(ppca, PIXELS, decode=3, image_shape=False, ax=ax)


# -- curves and likelihoods ----------------------------------------------------------------------------------


def test_curves_of_an_estimator_a_folder_and_several(rbm):
    panels = plot.curves(rbm, "energy_gap", ax=Figure().subplots())
    assert panels.shape == (1,)
    line = panels[0].lines[0].get_xydata()
    np.testing.assert_allclose(line, [(row["epoch"], row["energy_gap"]) for row in rbm.history_])
    assert labels(panels[0])[1:] == ("epoch", "Energy gap")
    figure = Figure()
    both = plot.curves(
        {"one": rbm.run_dir, "two": rbm.history_}, ["energy_gap", "gradient_norm"], ax=figure.subplots(2)
    )
    assert all(len(panel.lines) == 2 for panel in both)
    assert [text.get_text() for text in both[0].get_legend().get_texts()] == ["one", "two"]
    np.testing.assert_allclose(both[0].lines[0].get_xydata(), both[0].lines[1].get_xydata())


def test_curves_refuse_what_is_not_there(rbm, ax):
    with pytest.raises(ParameterError, match="no metric 'loss' here. There are: energy_gap"):
        plot.curves(rbm, "loss", ax=ax)
    with pytest.raises(ParameterError, match="2 metrics need as many axes, got 1"):
        plot.curves(rbm, ["energy_gap", "gradient_norm"], ax=ax)
    with pytest.raises(DataError, match="holds no metrics"):
        plot.curves(latentia.load(rbm.run_dir / "model.safetensors"), ax=ax)


def test_the_interval_of_a_likelihood(rbm, ax):
    result = LogLikelihood(-31.0, -29.0, -30.2, 0.1, "AIS")
    plot.likelihood({"mine": result, "open": {"lower": -30.5, "estimate": -30.0, "upper": None}}, ax=ax)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["mine", "open"]
    bar = ax.lines[0].get_xdata()
    np.testing.assert_allclose(bar, [-31, -29])
    assert ax.lines[3].get_xdata()[0] == -30.2
    open_bar = ax.lines[4].get_xdata()
    assert open_bar[1] == ax.get_xlim()[1]  # to the edge
    with pytest.raises(ParameterError, match="has not been evaluated"):
        plot.likelihood(rbm, ax=ax)
    exact = rbm.log_likelihood(PIXELS)
    plot.likelihood(rbm, ax=Figure().subplots())
    assert vars(rbm)["_log_likelihood"] is exact
    with pytest.raises(DataError, match="latentia evaluate"):
        plot.likelihood(rbm.run_dir, ax=ax)
    with pytest.raises(DataError, match="no finite number"):
        plot.likelihood({"lower": None, "estimate": None, "upper": None}, ax=ax)


# -- manners -------------------------------------------------------------------------------------------------


def test_sources_are_an_estimator_a_folder_or_a_file(rbm, tmp_path, ax):
    for given in (rbm.run_dir, str(rbm.run_dir), rbm.run_dir / "model.safetensors"):
        plot.filters(given, ax=ax)
    with pytest.raises(RunFolderError, match="neither a run folder nor a model file"):
        plot.filters(tmp_path / "nowhere", ax=ax)
    with pytest.raises(ParameterError, match="not fitted yet"):
        plot.filters(latentia.RBM(), ax=ax)
    with pytest.raises(ParameterError, match=r"got Pipeline. Of a pipeline, give its last step"):
        from sklearn.pipeline import make_pipeline

        plot.filters(make_pipeline(rbm), ax=ax)


@pytest.mark.parametrize("shape", [(5, 5), (6,), "36", (6, 6, 2), 6])
def test_a_shape_that_does_not_fit_is_refused(rbm, ax, shape):
    with pytest.raises(ParameterError, match="with 36 entries in all, or False"):
        plot.filters(rbm, image_shape=shape, ax=ax)


def test_bad_input_is_refused(rbm, ax):
    with pytest.raises(DataError, match="with 36 columns"):
        plot.reconstructions(rbm, PIXELS[:, :5], ax=ax)
    with pytest.raises(DataError, match="at least one row"):
        plot.reconstructions(rbm, PIXELS[:0], ax=ax)
    with pytest.raises(ParameterError, match="n must be an integer of at least 1"):
        plot.samples(rbm, 0, ax=ax)
    with pytest.raises(ParameterError, match="ax must be Matplotlib axes"):
        plot.filters(rbm, ax="here")


def test_a_few_extreme_values_do_not_darken_all_pictures():
    rows = np.tile(np.linspace(-1, 1, 36), (20, 1))
    rows[0, 0] = 1000.0
    assert shared.grey_tiles(rows, (6, 6))[5].max() > 0.95
    grey = np.full((2, 36), 0.6)
    np.testing.assert_allclose(shared.grey_tiles(grey, (6, 6)), 0.6)  # grey values keep their meaning


def test_without_axes_there_is_a_new_figure_and_no_setting_changes(rbm):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    before, open_figures = matplotlib.rcParams.copy(), len(pyplot.get_fignums())
    panels = plot.curves(rbm)
    one = plot.filters(rbm)
    assert isinstance(one, Axes)
    assert pyplot.gcf() is one.figure  # a notebook shows it, and plt.show() too
    assert len(panels) == len(panels[0].figure.axes)  # no empty panel is left
    assert len(pyplot.get_fignums()) == open_figures + 2
    assert matplotlib.rcParams == before
    pyplot.close(one.figure)
    pyplot.close(panels[0].figure)


def test_plot_comes_on_first_use():
    assert latentia.plot is plot
    assert "plot" in dir(latentia)
    assert not hasattr(shared, "pyplot")  # imported where a new figure is wanted, and nowhere else
