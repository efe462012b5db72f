"""The page of benchmarks: tables and a picture from benchmarks/results, put where the page has its marker."""

from __future__ import annotations

import ast
import json
import math
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
FOLDER = DOCS.parent / "benchmarks"
MARKER = "<!-- benchmarks -->"
PICTURE = "benchmarks"


def results() -> dict[str, list[dict[str, Any]]]:
    """All that was kept, by script."""
    files = sorted((FOLDER / "results").glob("*.json"))
    return {file.stem: json.loads(file.read_text(encoding="utf-8")) for file in files}


def ratios() -> list[tuple[str, str, float]]:
    """(what, peer, how many times as long the peer took), the largest first."""
    found = [
        (entry["title"], peer, float(ratio))
        for entries in results().values()
        for entry in entries
        for peer, ratio in entry["peers"].items()
        if ratio and math.isfinite(ratio)
    ]
    return sorted(found, key=lambda row: -row[2])


def markdown() -> str:
    """A picture of all ratios, and a section for every script."""
    picture = f"![How many times as long each peer takes, on a logarithmic scale](gallery/{PICTURE}.png)"
    lines = [
        "## At a glance",
        "",
        "How many times as long a peer takes for the same work, in the same run:",
        "",
        picture,
        "",
    ]
    for script, entries in results().items():
        lines += [f"## {_heading(script)}", "", _about(script), ""]
        for entry in entries:
            lines += _entry(entry)
    return "\n".join(lines)


def _entry(entry: dict[str, Any]) -> list[str]:
    versions = ", ".join(f"{name} {number}" for name, number in entry["versions"].items())
    lines = [
        " · ".join(filter(None, [f"**{_title(entry['title'])}**", entry["date"], entry["machine"], versions])),
        "",
    ]
    lines += ["| figure | |", "|---|--:|"]
    lines += [f"| {_cell(name)} | {_cell(_number(value))} |" for name, value in entry["figures"].items()]
    lines += [f"| **{_cell(peer)} takes** | **{_number(ratio)} ×** |" for peer, ratio in entry["peers"].items()]
    return [*lines, "", *([entry["note"], ""] if entry.get("note") else [])]


def _heading(script: str) -> str:
    """The first sentence of the script's docstring."""
    if script == "recipes":
        return "Published experiments, run again"
    return re.split(r"[.:](?:\s|$)", _docstring(script), maxsplit=1)[0].strip()


def _about(script: str) -> str:
    if script == "recipes":
        return (
            "By `latentia reproduce NAME`; likelihoods are two-sided, in nats, on the test digits binarised once."
        )
    return f"`python benchmarks/{script}.py`"


def _docstring(script: str) -> str:
    path = FOLDER / f"{script}.py"
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) if path.is_file() else None
    return " ".join((text or script).split("\n\n")[0].split())


def _number(value: Any) -> str:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.1e}"
    return f"{value:,.4g}" if abs(value) < 1e4 else f"{value:,.0f}"


def _title(text: str) -> str:
    return text.replace("1 threads", "1 thread")


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def draw() -> Any:
    """The ratios as bars, one colour on either side of one."""
    from matplotlib import pyplot

    from latentia.report.theme import BLUE, INK, MUTED, ORANGE

    rows = ratios()[::-1]
    figure, axes = pyplot.subplots(figsize=(8.2, 0.27 * len(rows) + 0.7))
    values = [ratio for *_, ratio in rows]
    axes.barh(range(len(rows)), values, left=1, color="none")
    for place, (_, _, ratio) in enumerate(rows):
        axes.plot(
            [1, ratio], [place, place], color=BLUE if ratio >= 1 else ORANGE, linewidth=7, solid_capstyle="butt"
        )
        end = {"ha": "left", "x": ratio * 1.06} if ratio >= 1 else {"ha": "right", "x": ratio / 1.06}
        axes.text(y=place, s=f"{ratio:.3g}×", va="center", fontsize=9, color=INK, **end)
    axes.axvline(1, color=MUTED, linewidth=1)
    axes.set_yticks(range(len(rows)), [f"{peer} · {_short(what)}" for what, peer, _ in rows], fontsize=9)
    axes.set(xscale="log", xlim=(min(0.4, *values) / 1.4, max(values) * 1.8), xlabel="times as long as ours")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.tick_params(length=0)
    axes.minorticks_off()
    axes.spines["left"].set_visible(False)
    return figure


def _short(title: str) -> str:
    """What was measured and with how many threads; the sizes are in the tables."""
    threads = re.search(r"(\d+) threads", title)
    where = "GPU" if "GPU" in title else f"{threads[1]} thread{'s' if threads[1] != '1' else ''}" if threads else ""
    return title.partition(",")[0].strip() + (f", {where}" if where else "")
