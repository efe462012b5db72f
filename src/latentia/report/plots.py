"""Pictures of models and runs: functions from arrays to Matplotlib figures.

None of them uses ``pyplot`` or any other global state, so they can run in a server or a notebook.
Curves are drawn in points, grids of images pixel for pixel at twice the density in which they are shown.

>>> import numpy as np
>>> from latentia.report import plots
>>> figure = plots.image_grid(np.random.default_rng(0).normal(size=(12, 64)), (8, 8), signed=True)
>>> figure.savefig("filters.png")  # doctest: +SKIP
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from latentia.abilities.labels import missing
from latentia.core.errors import DataError
from latentia.report.theme import BLUE, CLASSES, CSS_DPI, INK, MUTED, PAPER, SERIES, dress

#: Grids of images are about this wide, in CSS pixels, and drawn at twice the density; a strip may be wider.
_GRID, _STRIP, _DENSITY = 400, 760, 2
#: Columns of a metrics row that are not metrics.
_NOT_METRICS = ("step", "epoch", "seconds")
#: Words that are written in capitals.
_ACRONYMS = ("elbo", "ess", "iwae", "kl", "nce")


def metric_names(history: Sequence[Mapping[str, float]]) -> list[str]:
    """The metrics that occur in a training history, in order of first appearance."""
    names = {name: None for row in history for name, value in row.items() if isinstance(value, int | float)}
    return [name for name in names if name not in _NOT_METRICS]


def curves(history: Sequence[Mapping[str, float]], metrics: Sequence[str] | None = None) -> Figure:
    """One small panel per metric over the epochs (or steps, where epochs are not known).

    Args:
        history: rows as in ``history_`` or ``metrics.jsonl``.
        metrics: which ones; all by default.
    """
    metrics = metric_names(history) if metrics is None else list(metrics)
    if not metrics:
        raise DataError("The history holds no metrics to draw.")
    axis = "epoch" if all("epoch" in row for row in history) else "step"
    columns = min(len(metrics), 3)
    rows = math.ceil(len(metrics) / columns)
    figure = _figure(330 * columns, 210 * rows)
    for place, name in enumerate(metrics, start=1):
        points = [(row.get(axis, i), row[name]) for i, row in enumerate(history) if _is_number(row.get(name))]
        axes = dress(figure.add_subplot(rows, columns, place), x=axis)
        axes.set_title(readable(name), loc="left", fontsize=11, color=INK, pad=10)
        x, y = np.array(points, float).reshape(-1, 2).T
        axes.plot(x, y, color=BLUE, linewidth=1.6, marker="o" if len(x) < 3 else None, markersize=4)
        if len(x) > 1:
            axes.plot(x[-1], y[-1], "o", color=BLUE, markersize=4, clip_on=False)
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True, steps=[1, 2, 5, 10]))
        axes.yaxis.set_major_locator(MaxNLocator(5))
        axes.ticklabel_format(axis="y", useOffset=False)
    return figure


def image_grid(
    rows: np.ndarray,
    image_shape: Sequence[int],
    *,
    n: int = 100,
    signed: bool = False,
    columns: int | None = None,
    gap: int = 3,
) -> Figure:
    """Rows as pictures in a grid.

    Args:
        rows: ``(m, n_features)``.
        image_shape: (height, width) or (height, width, 3).
        n: at most this many.
        signed: for filters: every tile has its own contrast, symmetric around zero (blue is negative, red is
            positive). Otherwise all tiles share one grey scale.
        columns: tiles side by side; about a square by default.
        gap: between tiles, in CSS pixels.
    """
    tiles = fold(rows, image_shape)[:n]
    columns = columns or _square(len(tiles))
    coloured = _signed(tiles) if signed else _shared(tiles)
    return _mosaic(coloured, columns, _GRID, gap)


def reconstructions(
    originals: np.ndarray, reconstructed: np.ndarray, image_shape: Sequence[int], *others: np.ndarray, n: int = 12
) -> Figure:
    """Originals in the upper row, their reconstructions below, then any others, with one grey scale for all."""
    rows = [fold(images, image_shape)[:n] for images in (originals, reconstructed, *others)]
    for below in rows[1:]:
        if len(rows[0]) != len(below):
            raise DataError(f"{len(rows[0])} originals but {len(below)} reconstructions. Give one for each.")
    return _mosaic(_shared(np.concatenate(rows)), len(rows[0]), _STRIP)


def strips(lines: Sequence[np.ndarray], image_shape: Sequence[int], width: int = _STRIP) -> list[Figure]:
    """One strip of pictures for every set of rows, with one grey scale for all, about so many CSS pixels wide."""
    folded = [fold(rows, image_shape) for rows in lines]
    shaded = _shared(np.concatenate(folded))
    ends = np.cumsum([len(tiles) for tiles in folded])[:-1]
    return [_mosaic(tiles, len(tiles), width) for tiles in np.split(shaded, ends)]


def likelihood(results: Any, names: Sequence[str] = ()) -> Figure:
    """The two-sided interval of one or several evaluations: a bar from lower to upper, a dot at the estimate.

    Args:
        results: a :class:`latentia.likelihood.result.LogLikelihood`, its dictionary, or a list of them.
        names: what to write at the left of each, if there are several.
    """
    results = results if isinstance(results, list | tuple) else [results]
    ends = [interval_ends(result) for result in results]
    figure = _figure(340 + 60 * bool(names), 76 + 34 * len(ends))
    axes = dress(figure.add_subplot(), x="mean log-likelihood per example, in nats", grid="x")
    finite = [value for three in ends for value in three if math.isfinite(value)]
    if not finite:
        raise DataError("The evaluation holds no finite number to draw.")
    low, high = min(finite), max(finite)
    pad = 0.18 * (high - low) or max(abs(high) * 1e-3, 0.5)
    low, high = low - pad, high + pad
    for place, (lower, estimate, upper) in enumerate(ends):
        axes.plot(
            [max(lower, low), min(upper, high)],
            [place, place],
            color=BLUE,
            linewidth=9,
            alpha=0.32,
            solid_capstyle="butt",
        )
        for end, word in ((lower, "lower"), (upper, "upper")):
            if math.isfinite(end) and lower < upper:
                axes.plot(end, place, "|", color=BLUE, markersize=15, markeredgewidth=1.6)
                axes.text(
                    end,
                    place - 0.36,
                    "" if names else word,
                    color=MUTED,
                    fontsize=10,
                    ha="center",
                    va="bottom",
                )
        if math.isfinite(estimate):
            axes.plot(estimate, place, "o", color=BLUE, markersize=8, markeredgecolor=PAPER, markeredgewidth=1.5)
    axes.set(
        xlim=(low, high),
        ylim=(len(ends) - 0.4, -0.6 - 0.4 * (not names)),
        yticks=range(len(ends)) if names else [],
    )
    if names:
        axes.set_yticklabels([_short(name) for name in names], color=INK)
    axes.xaxis.set_major_locator(MaxNLocator(4))
    axes.ticklabel_format(axis="x", useOffset=False)
    return figure


def histogram(
    activations: np.ndarray,
    *,
    title: str = "",
    label: str = "activation E[z | x]",
    count: str = "share of all values",
    whole: bool = False,
) -> Figure:
    """How the values of ``activations`` are spread, as shares.

    Args:
        activations: any array of numbers.
        title: heading.
        label: what the numbers are.
        count: what the shares are of.
        whole: the numbers are counts: one bar each, or for several of them together.
    """
    values = np.asarray(activations, float).ravel()
    values = values[np.isfinite(values)]
    if not values.size:
        raise DataError("There are no finite activations to draw.")
    within = values.min() >= 0 and values.max() <= 1
    bins = np.linspace(0, 1, 26) if within and not whole else np.histogram_bin_edges(values, 40)
    if whole:
        step = max(1, math.ceil((values.max() - values.min() + 1) / 40))
        bins = np.arange(values.min() - 0.5, values.max() + 0.5 + step, step)
    figure = _figure(330, 210)
    axes = dress(figure.add_subplot(), x=label, y=count)
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=10)
    weights = np.full(values.shape, 1 / values.size)
    axes.hist(values, bins=list(bins), weights=weights, color=BLUE, alpha=0.85, rwidth=0.88)
    axes.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.3g} %")
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    return figure


def matrix(
    rows: np.ndarray, *, columns: Sequence[str] = (), signed: bool = False, y: str = "", n: int = 100
) -> Figure:
    """Rows of numbers that are no pictures, as a heat map with a colour bar."""
    rows = np.asarray(rows, float)[:n]
    figure = _figure(480, float(np.clip(70 + 14 * len(rows), 150, 460)))
    axes = dress(figure.add_subplot(), x="feature", y=y, grid="")
    largest = float(np.nanmax(np.abs(rows))) or 1.0
    low, high = (-largest, largest) if signed else (None, None)
    colours = "RdBu_r" if signed else "cividis"
    picture = axes.imshow(rows, aspect="auto", interpolation="none", vmin=low, vmax=high, cmap=colours)
    if columns and rows.shape[1] <= 24:
        axes.set_xticks(range(rows.shape[1]), [_short(str(name)) for name in columns], rotation=40, ha="right")
    else:
        axes.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    bar = figure.colorbar(picture, ax=axes, pad=0.02, fraction=0.04)
    bar.outline.set_visible(False)  # pyright: ignore[reportCallIssue]
    bar.ax.tick_params(colors=MUTED, labelsize=10, length=0)
    return figure


def scatter(groups: Mapping[str, np.ndarray], *, columns: Sequence[str] = ()) -> Figure:
    """Points in the plane, one colour and one marker per group."""
    names = list(columns)[:2] or ["feature 0", "feature 1"]
    figure = _figure(400, 320)
    axes = dress(figure.add_subplot(), x=names[0], y=names[1], grid="both")
    for (name, points), colour, marker in zip(groups.items(), SERIES, "o^sD", strict=False):
        style = {"s": 14, "alpha": 0.55, "linewidths": 0, "color": colour, "marker": marker}
        axes.scatter(points[:, 0], points[:, 1], label=name, **style)
    axes.legend(frameon=False, labelcolor=INK, fontsize=10, loc="upper left", bbox_to_anchor=(0, 1.12), ncols=4)
    return figure


def labelled(points: np.ndarray, labels: np.ndarray | None = None, *, x: str = "", y: str = "") -> Figure:
    """Points in the plane; classes have a colour, a marker and their name where they are thickest.

    Points without a label are grey.

    Args:
        points: ``(n, 2)``.
        labels: one for each point, or None.
        x: what the first column is.
        y: what the second column is.
    """
    figure = _figure(400, 360)
    axes = dress(figure.add_subplot(), x=x, y=y, grid="both")
    dots: dict[str, Any] = {"s": 13, "alpha": 0.6, "linewidths": 0}
    if labels is None:
        axes.scatter(points[:, 0], points[:, 1], color=CLASSES[0], **dots)
    else:
        there = ~missing(labels)
        if not there.all():
            axes.scatter(points[~there, 0], points[~there, 1], color=MUTED, **dots)
        _classes(axes, points[there], labels[there], dots)
    axes.xaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_locator(MaxNLocator(6))
    return figure


def _classes(axes: Any, points: np.ndarray, labels: np.ndarray, dots: dict[str, Any]) -> None:
    names = list(np.unique(labels))
    for place, name in enumerate(names):
        mine = points[labels == name]
        colour, marker = CLASSES[place % len(CLASSES)], "o^sDvP"[place // 2 % 6]
        axes.scatter(mine[:, 0], mine[:, 1], color=colour, marker=marker, **dots)
    for place, name in enumerate(names):
        middle = np.median(points[labels == name], axis=0)
        box = {"boxstyle": "round,pad=0.25", "facecolor": PAPER, "edgecolor": CLASSES[place % len(CLASSES)]}
        style = {"color": INK, "fontsize": 10, "ha": "center", "va": "center", "bbox": box}
        word = f"{name:g}" if isinstance(name, float) else str(name)
        axes.text(float(middle[0]), float(middle[1]), _short(word, 14), **style)


def roc(curves: Mapping[str, tuple[np.ndarray, np.ndarray]], *, title: str = "") -> Figure:
    """Receiver operating characteristics: (false, true) positive rates by name, and the diagonal of guessing."""
    figure = _figure(330, 300)
    axes = dress(figure.add_subplot(), x="false positives", y="true positives", grid="both")
    axes.set_title(title, loc="left", fontsize=11, color=INK, pad=10)
    axes.plot([0, 1], [0, 1], color=MUTED, linewidth=0.8, linestyle=":")
    for (name, (false, true)), colour in zip(curves.items(), SERIES, strict=False):
        axes.plot(false, true, color=colour, linewidth=1.6, label=name)
    axes.legend(frameon=False, labelcolor=INK, fontsize=10, loc="lower right")
    return figure


def fold(rows: np.ndarray, image_shape: Sequence[int]) -> np.ndarray:
    """Flat rows as ``(m, height, width)`` or ``(m, height, width, 3)``."""
    rows, shape = np.asarray(rows, float), tuple(int(side) for side in image_shape)
    if (
        rows.ndim != 2
        or len(shape) not in (2, 3)
        or shape[2:] not in ((), (3,))
        or math.prod(shape) != rows.shape[1]
    ):
        raise DataError(f"Rows of shape {rows.shape} do not fold into pictures of shape {shape}.")
    if not len(rows):
        raise DataError("There are no rows to draw.")
    return np.nan_to_num(rows).reshape(-1, *shape)


def interval_ends(result: Any) -> tuple[float, float, float]:
    """(lower, estimate, upper) of an evaluation or its dictionary; what JSON could not hold is infinite."""
    entries = result if isinstance(result, Mapping) else result.as_dict()
    blanks = {"lower": -math.inf, "estimate": math.nan, "upper": math.inf}
    lower, estimate, upper = (
        blank if entries.get(key) is None else float(entries[key]) for key, blank in blanks.items()
    )
    return lower, estimate, upper


def is_bound(result: Mapping[str, Any]) -> bool:
    """Whether an evaluation is of a lower bound, so that the likelihood itself may lie above both of its ends."""
    return str(result.get("method") or "").startswith("lower bound")


def readable(name: str) -> str:
    """``energy_gap`` → "Energy gap", ``kl`` → "KL"."""
    words = " ".join(word.upper() if word in _ACRONYMS else word for word in name.replace("_", " ").split())
    return words[:1].upper() + words[1:]


def _figure(width: float, height: float) -> Figure:
    return Figure(figsize=(width / CSS_DPI, height / CSS_DPI), dpi=CSS_DPI, layout="constrained")


def _signed(tiles: np.ndarray) -> np.ndarray:
    size = np.abs(tiles).max(axis=tuple(range(1, tiles.ndim)), keepdims=True)
    scaled = tiles / np.where(size > 0, size, 1.0)
    return 0.5 + 0.5 * scaled if tiles.ndim == 4 else colormaps["RdBu_r"](0.5 + 0.5 * scaled)[..., :3]


def _shared(tiles: np.ndarray) -> np.ndarray:
    low, high = float(tiles.min()), float(tiles.max())
    if low >= 0 and high <= 1 and high > 0.5:
        low, high = 0.0, 1.0  # grey values keep their meaning
    scaled = (tiles - low) / (high - low) if high > low else np.full_like(tiles, 0.5)
    return scaled if tiles.ndim == 4 else np.repeat(scaled[..., None], 3, axis=-1)


def _mosaic(tiles: np.ndarray, columns: int, room: int, space: int = 3) -> Figure:
    """Tiles enlarged by whole numbers to fill about ``room``, with transparent gaps, pixel for pixel."""
    n, height, width, _ = tiles.shape
    lines = math.ceil(n / columns)
    gap = space * _DENSITY
    most = max(1, 96 * _DENSITY // max(width, height))  # large pictures stay as they are
    zoom = int(np.clip((_DENSITY * room // columns - gap) // width, 1, most))
    high, wide = height * zoom, width * zoom
    canvas = np.zeros((lines * (high + gap) - gap, columns * (wide + gap) - gap, 4))
    for place, tile in enumerate(tiles):
        top, left = (place // columns) * (high + gap), (place % columns) * (wide + gap)
        canvas[top : top + high, left : left + wide, :3] = tile.repeat(zoom, 0).repeat(zoom, 1)
        canvas[top : top + high, left : left + wide, 3] = 1.0
    dpi = CSS_DPI * _DENSITY
    figure = Figure(figsize=(canvas.shape[1] / dpi, canvas.shape[0] / dpi), dpi=dpi)
    figure.patch.set_alpha(0)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(canvas, interpolation="nearest", aspect="auto")
    axes.axis("off")
    return figure


def _square(n: int) -> int:
    return max(1, min(n, math.ceil(math.sqrt(n))))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(text: str, most: int = 24) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


__all__ = [
    "curves",
    "histogram",
    "image_grid",
    "labelled",
    "likelihood",
    "matrix",
    "metric_names",
    "reconstructions",
    "roc",
    "scatter",
    "strips",
]
