"""The page in a real browser: no complaints, and what can be clicked does what it says."""

from __future__ import annotations

import shutil

import pytest

from latentia.report import build_report

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
]
#: Run as root too, and ask the network for nothing.
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
ARGUMENTS += ("--disable-component-update", "--disable-sync")
PIXELS = "canvas => canvas.toDataURL()"


@pytest.fixture(scope="module")
def address(fitted_run, tmp_path_factory) -> str:
    return build_report(fitted_run, out=tmp_path_factory.mktemp("browser") / "seite ü.html").as_uri()


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as engine:
        browser = engine.chromium.launch(executable_path=CHROMIUM, args=list(ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture
def visit(browser, address):
    """Open the page; whatever it complains about, or asks from the network, fails the test."""
    said, pages = [], []

    def go(where=address, **options):
        page = browser.new_page(**options)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: request.url.startswith(("file:", "data:")) or said.append(request.url))
        page.goto(where)
        page.wait_for_selector(".filters.alive .detail h4", state="attached")
        page.wait_for_selector(".samples.alive .frames", state="attached")
        pages.append(page)
        return page

    yield go
    for page in pages:
        page.close()
    assert said == []


def test_clicking_a_latent_shows_its_examples(visit):
    page = visit()
    section = page.locator("#run-1-filters")
    assert section.locator(".still").is_hidden()
    assert section.locator(".atoms .atom").count() == 9
    first = section.locator(".detail h4").inner_text()
    examples = section.locator(".detail .examples canvas")
    before = examples.first.evaluate(PIXELS)
    section.locator(".atoms .atom").nth(4).click()
    assert section.locator(".detail h4").inner_text() != first
    assert section.locator(".atoms .atom").nth(4).get_attribute("aria-pressed") == "true"
    assert examples.count() == 12
    assert examples.first.evaluate(PIXELS) != before
    neighbour = section.locator(".detail .row .atom").first
    name = neighbour.get_attribute("aria-label").split(",")[0]
    neighbour.click()
    assert section.locator(".detail h4").inner_text() == name


def test_latents_can_be_reached_by_keys(visit):
    page = visit()
    section = page.locator("#run-1-filters")
    section.locator(".atoms .atom").first.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowLeft"):
        page.keyboard.press(key)
    pressed = section.locator(".atoms .atom[aria-pressed=true]")
    assert pressed.count() == 1
    assert pressed.get_attribute("aria-label") == section.locator(".atoms .atom").nth(1).get_attribute("aria-label")
    assert pressed.evaluate("button => button === document.activeElement")


def test_scaling_a_latent_changes_the_reconstruction(visit):
    section = visit().locator("#run-1-filters")
    slider, changed = section.locator("input[type=range]"), section.locator(".changed canvas")
    slider.fill("0")
    off, words = changed.evaluate(PIXELS), section.locator(".controls output").inner_text()
    slider.fill("1")
    assert changed.evaluate(PIXELS) != off
    assert section.locator(".controls output").inner_text() != words
    section.get_by_role("button", name="Its own").click()
    rebuilt = section.locator(".row figure:nth-child(2) canvas").first
    assert changed.evaluate(PIXELS) == rebuilt.evaluate(PIXELS)


def test_samples_go_back_on_their_way(visit):
    section = visit().locator("#run-1-samples")
    tile, output = section.locator(".frames canvas").first, section.locator("output")
    assert output.inner_text() == "after 1,000 Gibbs sweeps"
    last = tile.evaluate(PIXELS)
    section.locator("input[type=range]").fill("0")
    assert output.inner_text() == "at the start"
    assert tile.evaluate(PIXELS) != last


def test_curves_zoom_and_read_out(visit):
    page = visit()
    chart = page.locator("#run-1-training .chart").first
    plot = chart.locator(".plot")
    plot.scroll_into_view_if_needed()
    box, whole = plot.bounding_box(), plot.locator("path").get_attribute("d")
    page.mouse.move(box["x"] + 0.3 * box["width"], box["y"] + 50)
    assert plot.locator(".cursor").count() == 1
    assert "epoch" in chart.locator(".readout").inner_text()
    page.mouse.down()
    page.mouse.move(box["x"] + 1.2 * box["width"], box["y"] + 60)
    page.mouse.up()
    assert plot.locator("path").get_attribute("d") != whole
    chart.get_by_role("button", name="Reset zoom").click()
    page.mouse.move(5, 5)
    assert plot.locator("path").get_attribute("d") == whole


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_and_the_button_between_them(visit, scheme):
    page = visit(color_scheme=scheme)
    paper = "getComputedStyle(document.body).backgroundColor"
    dark = {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 24, 29)"}
    other = {"light": "dark", "dark": "light"}[scheme]
    tile = page.locator("#run-1-filters .atoms canvas").first
    assert page.evaluate(paper) == dark[scheme]
    before = tile.evaluate(PIXELS)
    page.locator("#theme").click()
    assert page.evaluate(paper) == dark[other]
    assert tile.evaluate(PIXELS) != before  # zero is the colour of the paper
    page.reload()
    for _ in range(2):  # Chromium itself forgets what was stored just before a reload, about once in 160 times
        if page.evaluate(paper) != dark[other]:
            page.locator("#theme").click()
            page.reload()
    assert page.evaluate(paper) == dark[other]  # remembered


def test_nothing_sticks_out_on_a_phone(visit):
    page = visit(viewport={"width": 390, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.locator("#run-1-filters .atoms .atom").last.click()
    assert page.locator("#run-1-filters .detail").bounding_box()["width"] <= 390


def test_without_a_script_the_page_is_still_complete(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    for key in ("training", "filters", "samples"):
        assert page.locator(f"#run-1-{key} .still").is_visible()
    assert page.locator("#theme").is_hidden()
    context.close()
