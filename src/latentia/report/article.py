"""A page about an experiment: headings, paragraphs, tables and pictures in the style of the report.

>>> from latentia.report.article import Section, table, text, write_article
>>> section = Section("Result", [text("It worked."), table(["what", "how much"], [["gain", "3"]])])
>>> write_article("page.html", "An experiment", [section])  # doctest: +SKIP
PosixPath('page.html')
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from latentia.core.files import write_atomically
from latentia.report import theme

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Part = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Section:
    """A heading and what stands under it (see :func:`text`, :func:`table` and :func:`pictures`)."""

    title: str
    parts: list[Part]


def text(paragraph: str) -> Part:
    """A paragraph."""
    return {"kind": "text", "text": paragraph}


def table(header: Sequence[str], rows: Sequence[Sequence[str]], caption: str = "", *, words: bool = False) -> Part:
    """A table whose first column names its rows; the others hold numbers, or words that may take several lines."""
    lines = [list(row) for row in rows]
    return {"kind": "table", "header": list(header), "rows": lines, "caption": caption, "words": words}


def pictures(*figures: tuple[Figure, str]) -> Part:
    """Figures side by side, each with its caption; curves become drawings, images stay images."""
    shown = []
    for figure, caption in figures:
        drawn = not any(axes.images for axes in figure.axes)
        html = theme.svg(figure, caption, f"f{abs(hash(caption)) % 10**8}") if drawn else theme.png(figure, caption)
        wide = figure.get_size_inches()[0] * theme.CSS_DPI > 500
        shown.append({"html": Markup(html), "caption": caption, "wide": wide})
    return {"kind": "pictures", "pictures": shown}


def write_article(path: str | Path, title: str, sections: Sequence[Section]) -> Path:
    """Write the page to one HTML file that needs nothing else."""
    from latentia import __version__

    environment = Environment(
        loader=PackageLoader("latentia.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("article.html.jinja").render(
        title=title, sections=sections, version=__version__
    )
    write_atomically(Path(path), page.encode())
    return Path(path)
