"""A likelihood's interval as a drawing small enough for a line of text, for notebooks."""

from __future__ import annotations

import math
from html import escape

_WIDTH, _HEIGHT, _EDGE = 260, 26, 22
_STYLE = (
    "<style>.latentia-interval{--latentia-blue:#0072b2}"
    "@media (prefers-color-scheme: dark){.latentia-interval{--latentia-blue:#56b4e9}}"
    ":is([data-theme=dark],[data-jp-theme-light=false],.vscode-dark,[data-md-color-scheme=slate]) "
    ".latentia-interval{--latentia-blue:#56b4e9}"
    ".latentia-interval svg{vertical-align:middle;overflow:visible}</style>"
)


def interval_svg(lower: float, estimate: float, upper: float) -> str:
    """A bar from lower to upper and a dot at the estimate; an end that is not known fades out to an arrow."""
    ends = [value for value in (lower, estimate, upper) if math.isfinite(value)]
    if not ends:
        return ""
    low, high = min(ends), max(ends)

    def at(value: float) -> float:
        if not math.isfinite(value):
            return _WIDTH if value > 0 else 0.0
        share = 0.5 if high == low else (value - low) / (high - low)
        return _EDGE + share * (_WIDTH - 2 * _EDGE)

    middle, blue = _HEIGHT / 2, "var(--latentia-blue)"
    left, right = at(lower), at(upper)
    marks = "".join(
        f'<path d="M{at(end):.1f} {middle - 8}v16" stroke="{blue}" stroke-width="2"/>'
        if math.isfinite(end)
        else f'<path d="M{at(end) + way * 8:.1f} {middle - 6}l{-way * 8} 6l{way * 8} 6" '
        f'stroke="{blue}" stroke-width="2" fill="none"/>'
        for end, way in ((lower, 1), (upper, -1))
        if lower < upper
    )
    bar = f'<path d="M{left:.1f} {middle}H{right:.1f}" stroke="{blue}" stroke-width="6" stroke-opacity="0.4"/>'
    dot = f'<circle cx="{at(estimate):.1f}" cy="{middle}" r="5" fill="{blue}"/>' if math.isfinite(estimate) else ""
    label = f"from {lower:.6g} to {upper:.6g}, estimate {estimate:.6g}"
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(label)}">{bar}{marks}{dot}</svg>'
    )


def interval_html(title: str, lower: float, estimate: float, upper: float, notes: list[str]) -> str:
    """The number, its interval as a drawing between its two ends, and notes in small print."""
    exact, width = lower == upper, upper - lower
    # Enough decimals to distinguish the ends.
    decimals = min(max(2, math.ceil(-math.log10(width))), 5) if 0 < width < math.inf else 2
    ends = [_number(end, decimals) for end in (lower, upper)]
    span = interval_svg(lower, estimate, upper).join(f"<span>{end}</span>" for end in ends)
    small = "".join(f'<div style="opacity:.7;font-size:.9em">{escape(note)}</div>' for note in notes if note)
    return (
        f'{_STYLE}<div class="latentia-interval"><div>{escape(title)} <b>{_number(estimate, decimals)}</b> nats'
        f"{' (exact)' if exact else ''}</div>{'' if exact else f'<div>{span}</div>'}{small}</div>"
    )


def _number(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}".replace("-", "−").replace("inf", "∞")
