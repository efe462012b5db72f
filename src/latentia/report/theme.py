"""Colours of the pictures, and how a figure becomes part of a page.

Curves become inline SVG whose colours are the page's own variables, so that one drawing serves light and
dark; grids of images become PNG with transparent gaps, at twice the size in which they are shown.
"""

from __future__ import annotations

import base64
import io
import re
from typing import TYPE_CHECKING

import matplotlib

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Text and lines, light theme. The series colours are Okabe and Ito's, distinct for colour-blind readers.
INK, MUTED, RULE, PAPER = "#1c2430", "#5d6875", "#dde2e8", "#fffffe"
BLUE, ORANGE, GREEN, PURPLE = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
SKY, AMBER = "#4aa3d8", "#b57d00"
SERIES = (BLUE, ORANGE, GREEN, PURPLE)
#: For more classes than series; their order keeps neighbours apart.
CLASSES = (BLUE, ORANGE, GREEN, PURPLE, AMBER, SKY, INK)

#: Figures are measured in points, 72 to the inch.
CSS_DPI = 72
_VARIABLES = {
    INK: "var(--ink)",
    MUTED: "var(--muted)",
    RULE: "var(--rule)",
    PAPER: "var(--paper)",
    BLUE: "var(--blue)",
    ORANGE: "var(--orange)",
    GREEN: "var(--green)",
    PURPLE: "var(--purple)",
    SKY: "var(--sky)",
    AMBER: "var(--amber)",
}


def dress(axes: Axes, *, x: str = "", y: str = "", grid: str = "y") -> Axes:
    """Quiet axes: two thin spines or fewer, a faint grid behind the data, small muted labels."""
    axes.set_facecolor("none")
    for side, spine in axes.spines.items():
        spine.set_visible(side == "bottom")
        spine.set_color(RULE)
        spine.set_linewidth(1)
    axes.tick_params(colors=MUTED, labelsize=10, length=0, pad=5)
    axes.set_axisbelow(True)
    if grid:
        axes.grid(axis=grid, color=RULE, linewidth=0.8)  # pyright: ignore[reportArgumentType]
    axes.set_xlabel(x, color=MUTED, fontsize=10, labelpad=6)
    axes.set_ylabel(y, color=MUTED, fontsize=10, labelpad=6)
    return axes


def svg(figure: Figure, alt: str, prefix: str) -> str:
    """The figure as an inline SVG element in the page's colours; ``prefix`` keeps its ids its own."""
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": prefix}):
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\s(xmlns(:\w+)?|version)="[^"]*"', "", text)  # HTML needs no namespaces
    text = re.sub(r"font-family:[^;\"]*;?", "", text)
    text = re.sub(r"(font: [^;\"]*?px)[^;\"]*", r"\1 sans-serif", text)  # the page's own font: see report.css
    text = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{prefix}-", text)
    for colour, variable in _VARIABLES.items():
        text = text.replace(colour, variable)
    return text.replace("<svg", f'<svg role="img" aria-label="{_attribute(alt)}"', 1)


def png(figure: Figure, alt: str) -> str:
    """The figure as an ``img`` element with a PNG of twice the density inside."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=figure.dpi, transparent=True, metadata={"Software": None})
    width, height = (round(side * CSS_DPI) for side in figure.get_size_inches())
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{_attribute(alt)}" width="{width}" height="{height}" src="data:image/png;base64,{data}">'


def _attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
