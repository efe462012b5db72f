"""Every number of a report, against NumPy: on data whose training and held-out rows are not alike."""

from __future__ import annotations

import re

import numpy as np
import pytest
from report_numbers import embedded, fitted, section, some, tile, words

from latentia.report import build, curves, facts, moving, plots, runs
from latentia.report.comparison import compare
from latentia.report.sections import Gallery

DRAWN = ("histogram", "curves", "image_grid", "strips", "labelled", "likelihood")
BOTH = pytest.mark.parametrize("kind", ["rbm", "ppca"])


class Told:
    """A page about both runs, and for each of them what is known, the arrays that were drawn and its sections."""

    def __init__(self, folder, patch):
        self.known = {each.folder.name.partition("-")[0]: each for each in fitted(folder)}
        self.drawn, self.galleries, self.ids = {}, {}, {"rbm": "run-1", "ppca": "run-2"}
        patch.setattr(runs, "MOST_ROWS", 40)
        view = build._view
        for name in DRAWN:
            patch.setattr(plots, name, self.watched(name, getattr(plots, name)))

        def watched_view(gallery, index):
            self.current = self.drawn.setdefault(gallery.run.name.partition("-")[0], [])
            self.galleries[gallery.run.name.partition("-")[0]] = gallery
            return view(gallery, index)

        patch.setattr(build, "_view", watched_view)
        self.page = build.build_report([each.folder for each in self.known.values()], folder / "p.html").read_text()

    def watched(self, name, function):
        def draw(*args, **options):
            self.current.append((name, args, options, function(*args, **options)))
            return self.current[-1][-1]

        return draw

    def section(self, kind, key):
        return section(self.page, f"{self.ids[kind]}-{key}")

    def figures(self, kind, name):
        return [(args, options, figure) for n, args, options, figure in self.drawn[kind] if n == name]


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        yield Told(tmp_path_factory.mktemp("numbers"), patch)


@pytest.fixture
def known(told, kind):
    return told.known[kind]


def minus(text: str) -> str:
    return text.replace("-", "−")


def heights(figure) -> np.ndarray:
    return np.array([bar.get_height() for bar in figure.axes[0].patches])


def test_the_rows_differ_enough_to_notice_a_mix_up(told):
    for known in told.known.values():
        assert abs(known.X.mean() - known.held_out.mean()) > 0.2
        assert np.abs(known.seen.mean(axis=0) - known.X.mean(axis=0)).max() > 1e-3
        assert np.abs(known.codes.mean(axis=0) - known.held_out_codes.mean(axis=0)).max() > 0.1


@BOTH
def test_the_summary(told, known, kind):
    html = told.section(kind, "summary")
    value = known.log_likelihood(known.held_out).mean()
    assert known.evaluation["log_likelihood"]["estimate"] == pytest.approx(value, rel=1e-5)
    lead = f"{minus(f'{value:.2f}')} nats per example, exact"
    if known.discrete:
        lead += f" · {-value / np.log(2) / known.X.shape[1]:.3f} bits per feature"
    shown = dict(re.findall(r"<div><b>([^<]*)</b><span>([^<]*)</span></div>", html))
    n = sum(known.arrays[name].size for name in known.learned)
    assert words(re.findall(r'<div class="lead">(.*?)</div>', html)[0]) == lead
    assert {name: value for value, name in shown.items()} == {
        "latents": str(known.codes.shape[1]),
        "parameters": str(n),
        "epochs": f"{known.history[-1]['epoch']:.4g}",
        "training": facts.duration(known.config["seconds"]),
        "compiling": facts.duration(known.config["compile_seconds"]),
    }
    assert known.config["seconds"] == known.history[-1]["seconds"]
    text = words(html)
    assert f" 60 training rows of {known.X.shape[1]} features." in text
    changed = {
        "rbm": "n_components = 5 instead of 256 weight_scale = 1.0 instead of 0.01 n_epochs = 4 instead of 20 "
        "batch_size = 20 instead of 100 random_state = 3 instead of none All",
        "ppca": "Parameters random_state = 0 instead of none All",
    }[kind]
    assert changed in text


@BOTH
def test_the_likelihood_says_on_which_rows(told, known, kind):
    text = words(told.section(kind, "likelihood"))
    value = known.log_likelihood(known.held_out).mean()
    assert text.split("Likelihood ")[1].startswith(f"{minus(f'{value:.2f}')} nats per example. The value is exact")
    how = {"rbm": "Exact (enumeration of 32 hidden states)", "ppca": "Exact (normalised)"}[kind]
    assert text.endswith(f"{how}, 24 test examples.")


@BOTH
def test_curves_go_through_the_recorded_metrics(told, known, kind):
    names = [name for name in known.history[0] if name not in ("step", "epoch", "seconds")]
    data = embedded(told.section(kind, "training"))
    assert [chart["title"] for chart in data["charts"]] == [plots.readable(name) for name in names]
    for name, chart, (_, _, figure) in zip(names, data["charts"], told.figures(kind, "curves"), strict=True):
        wanted = [(row["epoch"], row[name]) for row in known.history]
        ((line,), axis) = chart["lines"], chart["x"]
        assert axis == figure.axes[0].get_xlabel() == "epoch"
        np.testing.assert_allclose(line["points"], wanted, rtol=1e-5)
        np.testing.assert_allclose(figure.axes[0].lines[0].get_xydata(), wanted)
        assert f"during training, {wanted[-1][1]:.4g} at the end" in told.section(kind, "training")


@BOTH
def test_activations_are_those_of_the_training_rows(told, known, kind):
    text = words(told.section(kind, "activations"))
    assert "Activations of the latents on 40 training rows." in text
    (everything, *rest) = told.figures(kind, "histogram")
    np.testing.assert_allclose(everything[0][0], known.codes, atol=2e-5)
    ends = (0, 1, 25) if kind == "rbm" else (known.codes.min(), known.codes.max(), 40)
    counts = np.histogram(known.codes, np.linspace(ends[0], ends[1], ends[2] + 1))[0]
    np.testing.assert_allclose(heights(everything[2]), counts / known.codes.size, atol=1.1 / known.codes.size)
    if kind == "ppca":
        assert not rest
        return
    at_once = (known.codes > 0.5).sum(axis=1)
    assert f"On average {at_once.mean():.1f} of 5 latents are on at once." in text
    np.testing.assert_array_equal(rest[0][0][0], at_once)
    shares = np.bincount(at_once)[at_once.min() : at_once.max() + 1] / 40
    np.testing.assert_allclose(heights(rest[0][2]), shares)
    middles = [bar.get_x() + bar.get_width() / 2 for bar in rest[0][2].axes[0].patches]
    np.testing.assert_allclose(middles, np.arange(at_once.min(), at_once.max() + 1))


@BOTH
def test_the_explorer_describes_each_latent(told, known, kind):
    data = embedded(told.section(kind, "filters"))
    assert data["rows"] == "40 training rows"
    (layer,) = data["layers"]
    use = known.codes.mean(axis=0) if known.discrete else np.abs(known.codes).mean(axis=0)
    assert [latent["id"] for latent in layer["latents"]] == np.argsort(-use).tolist()
    assert layer["count"] == len(use)
    for place, latent in enumerate(layer["latents"]):
        k = latent["id"]
        mine = known.codes[:, k]
        ends = (0.0, 1.0) if known.discrete else (mine.min(), mine.max())
        assert latent["rank"] == place + 1
        assert latent["use"] == pytest.approx(use[k], rel=1e-3)
        assert latent["on"] == (pytest.approx((mine > known.on).mean(), rel=1e-3) if known.on else None)
        assert latent["range"] == pytest.approx(ends, rel=1e-3)
        counts = np.histogram(mine, 20, ends)[0]
        assert np.abs(np.subtract(latent["histogram"], counts)).sum() <= 2  # float32 at the edges of bins
        strength = mine if known.discrete else np.abs(mine)
        best = np.argsort(-strength, kind="stable")[:12]
        np.testing.assert_allclose([value for _, value in latent["examples"]], mine[best], rtol=2e-3, atol=1e-4)
        for (index, value), row in zip(latent["examples"], best, strict=True):
            shown = tile(data["examples"], index).ravel()[None]
            grain = (data["examples"]["high"] - data["examples"]["low"]) / 255
            twins = np.abs(strength - strength[row]) < 1e-4  # equal rows may change places
            clipped = np.clip(known.seen, data["examples"]["low"], data["examples"]["high"])
            assert (np.abs(clipped[twins] - shown).max(axis=1) <= 0.51 * grain + 1e-6).any(), (k, value)


@BOTH
def test_the_explorers_pictures_are_the_filters_and_their_cosines(told, known, kind):
    (layer,) = embedded(told.section(kind, "filters"))["layers"]
    order = [latent["id"] for latent in layer["latents"]]
    filters = known.filters()[order]
    for place, row in enumerate(filters):
        shown = tile(layer["sheet"], place)
        np.testing.assert_allclose(shown, row.reshape(known.shape) / np.abs(row).max(), atol=0.51 * 2 / 255 + 1e-3)
    lengths = np.linalg.norm(filters, axis=1)
    cosines = filters @ filters.T / np.outer(lengths, lengths) - np.eye(len(filters))
    for place, latent in enumerate(layer["latents"]):
        near = np.argsort(-np.abs(cosines[place]), kind="stable")[: min(6, len(filters) - 1)]
        assert [j for j, _ in latent["near"]] == near.tolist()
        np.testing.assert_allclose([c for _, c in latent["near"]], cosines[place][near], atol=1.5e-3)
    args, _, _ = next(each for each in told.figures(kind, "image_grid") if each[1].get("signed"))
    np.testing.assert_allclose(args[0], filters, rtol=1e-3, atol=1e-4)
    assert tuple(args[1]) == known.shape


@BOTH
def test_frames_are_decoded_codes_with_one_latent_changed(told, known, kind):
    data = embedded(told.section(kind, "filters"))
    grain = (data["frames"]["high"] - data["frames"]["low"]) / 255
    for latent in data["layers"][0]["latents"]:
        k, slider = latent["id"], latent["slider"]
        mine = known.codes[:, k]
        row = int(np.argmax(mine if known.discrete else np.abs(mine)))
        assert slider["own"] == pytest.approx(mine[row], rel=1e-3)
        ends = np.linspace(0, 1, 7) if known.discrete else 1.25 * np.abs(mine).max() * np.array([-1, 1])
        np.testing.assert_allclose(slider["values"], ends, rtol=1e-3, atol=1e-3)
        for place, value in enumerate(ends):
            code = known.codes[row].copy()
            code[k] = value
            wanted = np.clip(known.decode(code[None])[0], data["frames"]["low"], data["frames"]["high"])
            shown = tile(data["frames"], slider["first"] + place).ravel()
            np.testing.assert_allclose(shown, wanted, atol=0.51 * grain + 2e-3)


@BOTH
def test_reconstructions_are_those_of_held_out_rows(told, known, kind):
    text = words(told.section(kind, "reconstructions"))
    again = known.reconstruct(known.held_out)
    error = np.mean((known.held_out - again) ** 2)
    share = 100 * error / known.held_out.var(axis=0).mean()
    assert f"mean squared error {error:.3g}, {share:.0f} % of the data's variance (held-out rows)." in text
    chosen = np.linspace(0, 23, 12).astype(int)
    ((lines, shape), _, _) = told.figures(kind, "strips")[0]
    assert shape == known.shape
    wanted = [known.held_out, again]
    if kind == "ppca":
        centre = known.seen.mean(axis=0)
        axes = np.linalg.svd(known.seen - centre)[2][:2]
        wanted.append(centre + (known.held_out - centre) @ axes.T @ axes)
        error = np.mean((known.held_out - wanted[-1]) ** 2)
        assert f"By as many principal components of the training rows: {error:.3g}." in text
    for line, rows in zip(lines, wanted, strict=True):
        np.testing.assert_allclose(line, rows[chosen], atol=1e-3)
    assert ("principal components" in text) == (kind == "ppca")  # codes between 0 and 1 are no coordinates


@BOTH
def test_the_map_places_held_out_rows_by_their_codes(told, known, kind):
    text, codes = words(told.section(kind, "map")), known.held_out_codes
    (args, options, figure) = told.figures(kind, "labelled")[0]
    np.testing.assert_array_equal(args[1], known.labels)
    assert "24 held-out rows, coloured by their labels, which the model was not shown." in text
    points, names = codes, ("code 1", "code 2")
    if kind == "rbm":
        centred = codes - codes.mean(axis=0)
        sizes, axes = np.linalg.svd(centred)[1:]
        kept = 100 * (sizes[:2] ** 2).sum() / (sizes**2).sum()
        assert (
            f"Codes have 5 numbers; these are their first two principal components, which hold {kept:.0f} %" in text
        )
        points, names = centred @ axes[:2].T, ("first component", "second component")
        points = points * np.sign(np.sum(points * args[0], axis=0))
    np.testing.assert_allclose(args[0], points, atol=2e-3)
    assert (options["x"], options["y"]) == names
    spots = [np.asarray(spot.get_offsets()) for spot in figure.axes[0].collections]
    for label, spot in zip(np.unique(known.labels), spots, strict=True):
        np.testing.assert_allclose(spot, args[0][known.labels == label])
    if kind == "ppca":
        (rows, shape), extra, _ = next(each for each in told.figures(kind, "image_grid") if "columns" in each[1])
        low, high = np.quantile(codes, (0.01, 0.99), axis=0)
        grid = [(x, y) for y in np.linspace(high[1], low[1], 13) for x in np.linspace(low[0], high[0], 13)]
        np.testing.assert_allclose(rows, known.decode(np.array(grid)), atol=5e-3)
        assert (tuple(shape), extra["columns"]) == (known.shape, 13)


@BOTH
def test_samples_are_what_the_chains_held(told, known, kind):
    html = told.section(kind, "samples")
    data, drawn = embedded(html), moving.samples(told.galleries[kind].run, 0.5)
    marks = moving.MARKS if kind == "rbm" else range(1, 7)
    name = "at the start", "after 1 Gibbs sweep", "after {:,} Gibbs sweeps"
    chains = [name[min(mark, 2)].format(mark) for mark in marks]
    assert data["labels"] == (chains if kind == "rbm" else [f"set {i} of 6" for i in marks])
    assert data["count"] == 36
    flat = drawn.frames.reshape(-1, known.X.shape[1])
    if kind == "rbm":
        assert "36 chains, each from its own start, after 1,000 Gibbs sweeps" in words(html)
        assert f"R̂ over the chains is {drawn.r_hat:.2f};" in words(html)
        assert told.galleries[kind].r_hat == drawn.r_hat
    grain = (data["sheet"]["high"] - data["sheet"]["low"]) / 255
    for index in (0, 40, len(flat) - 1):
        wanted = np.clip(flat[index], data["sheet"]["low"], data["sheet"]["high"])
        np.testing.assert_allclose(tile(data["sheet"], index).ravel(), wanted, atol=0.51 * grain + 1e-6)
    still = next(each for each in told.figures(kind, "image_grid") if "columns" not in each[1] and not each[1])
    np.testing.assert_array_equal(still[0][0], drawn.frames[-1])


def test_the_table_of_several_runs(told):
    rows = re.findall(r"<tr>\s*<th scope=\"row\">(.*?)</tr>", told.page, re.DOTALL)
    heads = re.findall(r"<th class[^>]*>(.*?)</th>", told.page.split("<tbody>")[0])
    for row, (kind, known) in zip(rows, told.known.items(), strict=True):
        cells = dict(zip(heads, map(words, re.findall(r"<td[^>]*>(.*?)</td>", row, re.DOTALL)), strict=True))
        value = known.log_likelihood(known.held_out).mean()
        error = np.mean((known.held_out - known.reconstruct(known.held_out)) ** 2)
        assert words(row).startswith(known.folder.name)
        assert cells.pop("Log-likelihood, nats") == f"{minus(f'{value:.2f}')} exact"
        assert cells.pop("Model") in ("Restricted Boltzmann machine", "Probabilistic principal components")
        assert cells.pop("Data") == f"{kind}.npz"
        assert cells == {
            "Latents": str(known.codes.shape[1]),
            "Parameters": str(sum(known.arrays[name].size for name in known.learned)),
            "Epochs": f"{known.history[-1]['epoch']:.0f}",
            "Reconstruction error": f"{error:.3g}",
            "Training": facts.duration(known.config["seconds"]),
        }
    assert "cannot be compared" in told.page


def test_intervals_side_by_side_hold_their_own_numbers(told):
    gallery, changed = told.galleries["rbm"], []
    told.current = []
    for lower, estimate, upper in ((-31.5, -30.25, -30.0), (-29.0, -28.5, -26.0)):
        run = runs.read_run(gallery.run.folder)
        result = {**run.likelihood, "lower": lower, "estimate": estimate, "upper": upper}
        run.evaluation["log_likelihood"] = result
        changed.append(Gallery(run, "r"))
    made = compare([each.run for each in changed], changed)
    assert [line["likelihood"]["interval"] for line in made["lines"]] == [
        "between −31.50 and −30.00",
        "between −29.00 and −26.00",
    ]
    lines = [line.get_xdata() for line in told.current[0][-1].axes[0].lines]
    np.testing.assert_allclose(lines[0], [-31.5, -30.0])
    assert [line[0] for line in lines[1:4]] == [-31.5, -30.0, -30.25]
    assert [line[0] for line in lines[5:8]] == [-29.0, -26.0, -28.5]


def test_long_curves_keep_their_ends_and_lie_on_themselves():
    history = [{"step": i, "epoch": i / 7, "loss": np.sin(i / 50.0), "gap": None} for i in range(1, 1501)]
    (chart,) = curves.charts({"a": history, "b": history[:3]}, ["loss"])["charts"]
    points = np.array(chart["lines"][0]["points"])
    assert len(points) == curves.MOST_POINTS
    np.testing.assert_allclose(points[:, 1], np.sin(7 * points[:, 0] / 50), atol=1e-4)
    np.testing.assert_allclose(points[[0, -1], 0], [1 / 7, 1500 / 7], rtol=1e-5)
    assert [line["name"] for line in chart["lines"]] == ["a", "b"]


def test_rows_are_spread_evenly(told):
    rows = np.arange(101.0)[:, None]
    np.testing.assert_array_equal(runs._some(rows), some(rows))
    assert runs._some(rows)[-1] == 100
