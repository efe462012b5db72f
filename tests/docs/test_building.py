"""What turns pages into a site: outputs and pictures put in, results kept, benchmarks listed."""

from __future__ import annotations

import json
import runpy
import sys

import matplotlib
import pytest

from .pages import DOCS, ROOT

PAGE = """# A page

```python
print("hello")
```

Text.

```python
import matplotlib.pyplot as plt

plt.plot([1, 2])
```

![A line](gallery/a-line.png)
"""


@pytest.fixture
def build(monkeypatch, tmp_path):
    """The hook's functions, with a documentation folder of their own."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = runpy.run_path(str(DOCS / "execute.py"), run_name="execute")
    space = made["run"].__globals__
    monkeypatch.setitem(space, "DOCS", tmp_path)
    monkeypatch.setitem(space, "GALLERY", tmp_path / "gallery")
    monkeypatch.setitem(space, "KEPT", tmp_path / "gallery" / ".runs")
    matplotlib.use("agg")
    return space


def test_a_page_is_run_kept_and_shown(build, tmp_path, capsys):
    page = tmp_path / "page.md"
    page.write_text(PAGE, encoding="utf-8")
    assert not build["is_fresh"](page)
    build["main"]([str(page)])
    assert "2 blocks, 1 pictures" in capsys.readouterr().out
    assert build["is_fresh"](page)
    for end in ("", "-dark"):
        assert (tmp_path / "gallery" / f"a-line{end}.png").stat().st_size > 500
    shown = build["show"](PAGE, build["kept"](page))
    assert "``` {.text .output}\nhello\n```" in shown
    assert shown.count(".output") == 1  # the second block prints nothing
    assert "![A line](gallery/a-line.png#only-light)" in shown
    assert "![A line](gallery/a-line-dark.png#only-dark)" in shown
    page.write_text(PAGE.replace("hello", "good day"), encoding="utf-8")
    assert not build["is_fresh"](page)  # other code
    page.write_text(PAGE.replace("Text.", "Other text."), encoding="utf-8")
    (tmp_path / "gallery" / "a-line-dark.png").unlink()
    assert not build["is_fresh"](page)  # a picture is gone


@pytest.mark.parametrize("change", [("plt.plot([1, 2])", "pass"), ("![A line](gallery/a-line.png)", "")])
def test_figures_and_links_must_agree(build, tmp_path, change):
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(*change), encoding="utf-8")
    with pytest.raises(SystemExit, match="figures"):
        build["run"](page)
    matplotlib.pyplot.close("all")


def test_dark_pictures_change_ink_only(build):
    from matplotlib.colors import to_hex
    from matplotlib.figure import Figure

    from latentia.report.theme import INK, ORANGE

    figure = Figure()
    axes = figure.subplots()
    axes.set_facecolor("none")
    title = axes.set_title("t", color=INK)
    (line,) = axes.plot([1, 2], color=ORANGE)
    build["darken"](figure)
    assert to_hex(title.get_color()) != INK
    assert to_hex(line.get_color()) == ORANGE
    assert axes.get_facecolor()[3] == 0  # what was transparent stays so


def test_formulas_become_mathml(build):
    pytest.importorskip("latex2mathml")
    html = '<p>a <span class="arithmatex">\\(x &lt; y\\)</span></p><div class="arithmatex">\\[\\frac{1}{2}\\]</div>'
    text = build["on_page_content"](html)
    assert text.count("<math") == 2
    assert 'class="formula"' in text
    assert "arithmatex" not in text
    assert "&amp;lt;" not in text


def test_results_are_recorded_and_replaced(monkeypatch, tmp_path):
    common = runpy.run_path(str(ROOT / "benchmarks" / "common.py"), run_name="common")
    monkeypatch.setitem(common["record"].__globals__, "RESULTS", tmp_path)
    for value in (1.23456789, 2.0):
        common["record"]("speed", "a title", {"ms": value, "what": "words"}, {"peer": 3.0}, machine="a machine")
    common["record"]("speed", "another", {"ms": 1})
    first, second = json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))
    assert first["figures"] == {"ms": 2.0, "what": "words"}  # the newer one of that title
    assert first["peers"] == {"peer": 3.0}
    assert first["machine"] == "a machine"
    assert second["machine"]  # found out
    assert {"python", "jax", "numpy"} <= set(second["versions"])


def test_every_result_is_on_the_page(build):
    results = build["results"]
    text = results.markdown()
    kept = results.results()
    assert len(kept) > 10
    for script, entries in kept.items():
        assert script == "recipes" or (ROOT / "benchmarks" / f"{script}.py").is_file()
        for entry in entries:
            assert set(entry) - {"note"} == {"title", "date", "machine", "versions", "figures", "peers"}
            assert entry["date"] in text
            assert entry["machine"] in text
            assert all(name.replace("|", "\\|") in text for name in entry["figures"])
    assert results.MARKER in (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    assert [ratio for *_, ratio in results.ratios()] == sorted((r for *_, r in results.ratios()), reverse=True)
