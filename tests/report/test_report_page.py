"""The HTML report: what it holds, that it stands alone, and that damage costs one section, not the page."""

import base64
import io
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from latentia.core.errors import RunFolderError
from latentia.report import build_report
from latentia.report.comparison import compare
from latentia.report.runs import read_run
from latentia.report.sections import Gallery

SECTIONS = ("likelihood", "training", "activations", "filters", "samples", "reconstructions")
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(HTMLParser):
    """Sections by id with their text, notes and pictures; complains about tags that do not match."""

    def __init__(self, path: Path):
        super().__init__()
        self.text, self.notes, self.images, self.drawings = {}, {}, {}, {}
        self.ids, self.tags, self.attributes, self._open, self._sections = [], set(), [], [], []
        self.raw = path.read_text(encoding="utf-8")
        self.feed(self.raw)
        self.close()
        assert not self._open, self._open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.tags.add(tag)
        self.attributes += [(tag, name, value) for name, value in attrs.items()]
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag not in VOID:
            self._open.append((tag, attrs.get("class")))
        if tag == "section":
            self._sections.append(attrs["id"])
        where = self._sections[-1] if self._sections else ""
        if tag == "img":
            self.images.setdefault(where, []).append(attrs)
        if tag == "svg":
            self.drawings.setdefault(where, []).append(attrs)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self._open.pop()[0] == tag
        if tag == "section":
            self._sections.pop()

    def handle_data(self, data):
        where = self._sections[-1] if self._sections else ""
        self.text[where] = self.text.get(where, "") + data
        if ("p", "note") in self._open:
            self.notes[where] = self.notes.get(where, "") + data


def picture(attrs) -> Image.Image:
    kind, _, data = attrs["src"].partition(",")
    assert kind == "data:image/png;base64"
    return Image.open(io.BytesIO(base64.b64decode(data, validate=True)))


@pytest.fixture(scope="module")
def page(fitted_run, tmp_path_factory) -> Page:
    out = tmp_path_factory.mktemp("page") / "report.html"
    assert build_report([fitted_run], out=out) == out
    return Page(out)


def test_all_sections_are_made(page):
    for key in SECTIONS:
        where = f"run-1-{key}"
        assert where in page.text
        assert where not in page.notes, page.notes.get(where)
        assert page.images.get(where) or page.drawings.get(where), key


def test_it_needs_nothing_from_outside(page):
    assert "link" not in page.tags
    assert not [value for tag, name, value in page.attributes if tag == "script" and name != "type"]
    assert len(page.raw) < 5_000_000
    embedded = re.sub(r"base64,[A-Za-z0-9+/=\s]+", "", page.raw)
    assert not re.search(r"https?:|//|@import|url\((?!#)", embedded)
    for tag, name, value in page.attributes:
        if name in ("src", "href", "xlink:href", "srcset"):
            assert value.startswith(("#", "data:")), (tag, name, value[:50])


def test_ids_are_unique_and_links_lead_somewhere(page):
    assert len(page.ids) == len(set(page.ids))
    targets = {value[1:] for _, name, value in page.attributes if name.endswith("href") and value[0] == "#"}
    targets |= set(re.findall(r"url\(#([^)]+)\)", page.raw[: page.raw.index("<footer")]))
    assert targets
    assert targets <= set(page.ids)


def test_pictures_are_crisp(page):
    (filters,), (samples,), (originals, again) = (
        page.images[f"run-1-{key}"] for key in ("filters", "samples", "reconstructions")
    )
    for attrs, columns, lines in ((filters, 3, 3), (samples, 6, 6), (originals, 12, 1), (again, 12, 1)):
        image = picture(attrs)
        width, height = int(attrs["width"]), int(attrs["height"])
        assert (image.width, image.height) == (2 * width, 2 * height)
        assert (image.width + 6) % columns == 0  # whole pixels: tiles of equal size, six between them
        tile = (image.width + 6) // columns - 6
        assert tile % 8 == 0
        assert image.height == lines * (tile + 6) - 6
        assert attrs["alt"]


def test_filters_are_the_weights_by_use(page, fitted_run, digits):
    """Each tile's largest pixel is fully red or blue just where the largest weight is."""
    from latentia import load

    rbm = load(fitted_run / "model.safetensors")
    seen = digits.X[np.linspace(0, len(digits.X) - 1, 1000).astype(int)]
    weights = np.asarray(rbm.model_.weights).T[np.argsort(-rbm.transform(seen).mean(axis=0))]
    pixels = np.asarray(picture(page.images["run-1-filters"][0]).convert("RGB"), float)
    tile = (pixels.shape[1] + 6) // 3 - 6
    for k, row in enumerate(weights):
        top, left = (k // 3) * (tile + 6), (k % 3) * (tile + 6)
        zoom = tile // 8
        small = pixels[top : top + tile : zoom, left : left + tile : zoom][:8, :8]
        redness = (small[..., 0] - small[..., 2]).ravel()
        assert np.corrcoef(redness, row)[0, 1] > 0.9


def test_the_summary_says_what_was_run(page):
    words = " ".join(page.text["run-1-summary"].split())
    for wanted in (
        "−30.00",
        "between −30.25 and −29.75",
        "1 min 15 s",
        "1.5 s",
        "n_components = 9",
        "Digits <b>scaled</b>.",
        "sampled from a Bernoulli distribution",
        "JAX 0.10.2",
        "1 × cpu",
        "latentia fit rbm digits --n-components 9 --binarize sample",
        "--random-state 0",
    ):
        assert wanted in words.replace("\xa0", " ").replace("\\ ", ""), wanted
    assert "batch_size" not in words  # at its default
    assert "run_dir" not in words
    assert re.search(r'class="formula">E\(x, z\) = E<sub>v</sub>\(x\)', page.raw)
    assert "Digits &lt;b&gt;scaled" in page.raw


def test_the_likelihood_is_in_plain_words(page):
    words = page.text["run-1-likelihood"]
    assert "between −30.25 and −29.75" in words
    assert "lower end" in words
    assert "upper end" in words
    assert "AIS & reverse AIS, 360 test examples." in words


def test_drawings_use_the_colours_of_the_page(page):
    from latentia.report.theme import BLUE, INK

    body = page.raw[page.raw.index("<body") :]
    assert "var(--blue)" in body
    assert BLUE not in body
    assert INK not in body
    assert "prefers-color-scheme: dark" in page.raw
    assert len(page.drawings["run-1-training"]) == 3  # energy gap, gradient norm, pseudo-likelihood


def test_the_same_run_gives_the_same_bytes(page, fitted_run, tmp_path):
    assert build_report(fitted_run, out=tmp_path).read_text(encoding="utf-8") == page.raw


def test_an_exact_likelihood_is_a_number_without_a_picture(run, add):
    exact = {"lower": -3.5, "upper": -3.5, "estimate": -3.5, "stderr": 0.0, "method": "exact", "details": {}}
    add(run / "evaluation.json", log_likelihood=exact)
    page = Page(build_report([run]))
    assert "−3.50 nats per example. The value is exact" in page.text["run-1-likelihood"]
    assert "run-1-likelihood" not in page.drawings


def test_a_title_is_escaped(fitted_run, tmp_path):
    page = Page(build_report(fitted_run, out=tmp_path, title="<script>alert(1)</script> & more"))
    assert "<script>alert" not in page.raw
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; more" in page.raw


def test_several_runs_are_compared(fitted_run, table_run, tmp_path):
    page = Page(build_report([fitted_run, table_run], out=tmp_path / "both.html"))
    assert len(page.ids) == len(set(page.ids))
    assert "Restricted Boltzmann machine" in page.text["comparison"]
    assert "tiny" in page.text["comparison"]
    assert "−30.00" in page.text["comparison"]
    for key in SECTIONS:
        assert f"run-1-{key}" in page.text
        assert f"run-2-{key}" in page.text
    assert {"run-1", "run-2"} <= set(page.ids)


def test_likelihoods_of_the_same_data_share_a_picture(fitted_run, tmp_path):
    page = Page(build_report([fitted_run, fitted_run], out=tmp_path / "both.html"))
    assert len(page.drawings["comparison"]) == 1
    assert "cannot be compared" not in page.text["comparison"]


def test_likelihoods_of_other_binarisations_are_not_compared(fitted_run, run, add, tmp_path):
    params = json.loads((run / "config.json").read_text())["params"]
    add(run / "config.json", params=params | {"binarize": "threshold"})
    page = Page(build_report([fitted_run, run], out=tmp_path / "both.html"))
    assert "comparison" not in page.drawings
    assert "cannot be compared" in page.text["comparison"]


@pytest.mark.parametrize(("others", "mixed"), [({}, False), ({"split": "train"}, True), ({"data": "bars"}, True)])
def test_likelihoods_of_other_rows_are_not_compared(fitted_run, run, add, others, mixed):
    add(run / "evaluation.json", **others)
    runs = [read_run(fitted_run), read_run(run)]
    found = compare(runs, [Gallery(each, "r1") for each in runs])
    assert (found["mixed"], found["picture"] is None) == (mixed, mixed)


def test_rows_that_are_no_pictures(table_run, tmp_path):
    page = Page(build_report(table_run, out=tmp_path / "table.html"))
    assert page.drawings["run-1-filters"]
    assert page.drawings["run-1-samples"]
    assert "does not name the data" in page.notes["run-1-reconstructions"]
    assert "Not evaluated yet" in page.notes["run-1-likelihood"]
    assert "RBM(n_components=9" in page.text["run-1-summary"]


def test_rows_can_be_given(table_run, tmp_path):
    rows = np.random.default_rng(1).integers(0, 2, size=(40, 64))
    page = Page(build_report(table_run, out=tmp_path / "table.html", rows=rows))
    assert "mean squared error" in page.text["run-1-reconstructions"]
    assert "40 given rows" in page.text["run-1-activations"]


def test_by_default_it_lies_in_the_run(run):
    assert build_report([run]) == run / "report.html"
    assert (run / "report.html").is_file()


@pytest.mark.parametrize(
    ("file", "lost"),
    [
        ("config.json", {"activations", "reconstructions"}),
        ("metrics.jsonl", {"training"}),
        ("model.safetensors", {"activations", "filters", "samples", "reconstructions"}),
        ("evaluation.json", {"likelihood"}),
    ],
)
@pytest.mark.parametrize("damage", ["missing", "cut off"])
def test_a_damaged_file_costs_its_sections_only(run, file, lost, damage):
    (run / "checkpoint.safetensors").unlink()  # or it would stand in for the model
    path = run / file
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:20])
    page = Page(build_report([run]))
    for key in SECTIONS:
        where = f"run-1-{key}"
        assert where in page.text
        assert (where in page.notes) == (key in lost), (key, page.notes.get(where))
    if file != "evaluation.json":
        assert file in page.text["run-1-summary"]


def test_half_a_last_line_of_metrics_is_ignored(run):
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99, "ener')
    assert "run-1-training" not in Page(build_report([run])).notes


@pytest.mark.parametrize("wrong", ["nowhere", "empty", "file"])
def test_what_is_no_run_is_refused(tmp_path, wrong):
    folder = tmp_path / wrong
    if wrong == "empty":
        folder.mkdir()
        (folder / "notes.txt").write_text("hello")
    if wrong == "file":
        folder.write_text("hello")
    with pytest.raises(RunFolderError, match=wrong):
        build_report([folder])
    with pytest.raises(RunFolderError, match="at least one"):
        build_report([])


def test_an_unknown_family_still_gives_a_page(run, add):
    add(run / "config.json", family="of-the-future")
    (run / "model.safetensors").unlink()
    page = Page(build_report([run]))
    assert "has no model family" in page.text["run-1-summary"]


def test_warnings_are_in_plain_words(run, add):
    add(run / "config.json", rollbacks=2)
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["log_likelihood"] |= {"upper": None, "details": {}}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    page = Page(build_report([run]))
    words = page.text["run-1-summary"]
    assert "diverged 2 times" in words
    assert "open on one side" in words
    assert "∞" in words
    assert "hardly respond" in words  # two epochs teach nine units next to nothing
