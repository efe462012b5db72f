"""Shared parts of all pictures: finding the estimator and the shape of its pictures, axes, and grids of tiles."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from latentia.core.errors import CapabilityError, DataError, ParameterError, RunFolderError
from latentia.estimator.base import LatentEstimator
from latentia.estimator.saving import load
from latentia.estimator.weights import picture_shape
from latentia.report.plots import fold
from latentia.report.runs import Run, read_run

#: Okabe and Ito's colours, distinct for colour-blind readers, and marks that differ in shape as well.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
MARKERS = "o^sDvPX"
#: Colour maps: signed values, and others. Both keep their order for colour-blind readers.
SIGNED, PLAIN = "RdBu_r", "cividis"
#: The share of grey values at each end that one scale for all tiles may cut off.
_CUT = 0.02


@dataclasses.dataclass(frozen=True)
class Source:
    """A fitted estimator and what is known of its data.

    Args:
        estimator: the estimator.
        image_shape: how rows fold into pictures; None if they are none.
        run: the run folder that it came from, if any.
    """

    estimator: Any
    image_shape: tuple[int, ...] | None = None
    run: Run | None = None

    @property
    def name(self) -> str:
        """The estimator's class, for messages."""
        return type(self.estimator).__name__

    @property
    def columns(self) -> list[str]:
        """Names of the data's columns."""
        named = getattr(self.estimator, "feature_names_in_", None)
        return (
            [f"feature {i}" for i in range(self.estimator.n_features_in_)]
            if named is None
            else list(map(str, named))
        )


def source(model: Any, image_shape: Sequence[int] | bool | None = None) -> Source:
    """The estimator behind what the user gave.

    Args:
        model: a fitted estimator, a run folder, or a model file.
        image_shape: (height, width) or (height, width, 3); False if rows are no pictures; None to find out.
    """
    run = None
    if isinstance(model, str | PathLike):
        path = Path(model)
        if path.is_dir():
            run = read_run(path)
            if run.estimator is None:
                raise RunFolderError(
                    f"There is no model to draw in {path}: {run.problems.get('model', 'none found')}"
                )
            model = run.estimator
        elif path.is_file():
            model = load(path)
        else:
            raise RunFolderError(f"There is neither a run folder nor a model file at {path}. Check the path.")
    if not isinstance(model, LatentEstimator):
        raise ParameterError(
            f"Expected a fitted estimator, a run folder or a model file, got {type(model).__name__}. Of a "
            "pipeline, give its last step: pipeline[-1]."
        )
    if "model_" not in vars(model):
        raise ParameterError(f"This {type(model).__name__} is not fitted yet: call fit(X) first.")
    return Source(model, _shape(model, image_shape, run), run)


def _shape(estimator: Any, image_shape: Any, run: Run | None) -> tuple[int, ...] | None:
    if image_shape is False:
        return None
    if image_shape is None or image_shape is True:
        return (run.image_shape if run is not None else None) or picture_shape(estimator)
    return checked_shape(image_shape, estimator.n_features_in_)


def checked_shape(image_shape: Any, n_columns: int) -> tuple[int, ...]:
    """A shape that rows of so many columns fold into."""
    try:
        shape = tuple(int(side) for side in image_shape)
    except (TypeError, ValueError):
        shape = ()
    if len(shape) not in (2, 3) or shape[2:] not in ((), (3,)) or math.prod(shape) != n_columns:
        raise ParameterError(
            f"image_shape must be (height, width) or (height, width, 3) with {n_columns} entries in all, or False "
            f"where rows are no pictures; got {image_shape!r}."
        )
    return shape


def rows_of(data: Any, *, name: str = "X", n_columns: int | None = None) -> np.ndarray:
    """Rows as a matrix of numbers, checked."""
    try:
        rows = np.asarray(data, np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be a matrix of numbers, one row per example: {error}") from error
    if rows.ndim != 2 or not rows.size or (n_columns is not None and rows.shape[1] != n_columns):
        wanted = "" if n_columns is None else f" with {n_columns} columns"
        raise DataError(f"{name} must be a matrix{wanted} and at least one row, got shape {rows.shape}.")
    return rows


def evenly(n_rows: int, n: int) -> np.ndarray:
    """At most ``n`` of the rows, evenly spaced."""
    return np.unique(np.linspace(0, n_rows - 1, min(n, n_rows)).round().astype(int))


def count(name: str, value: Any) -> int:
    """A positive whole number."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise ParameterError(f"{name} must be an integer of at least 1, got {value!r}.")
    return int(value)


def axes_or_new(ax: Any, size: tuple[float, float]) -> Axes:
    """The given axes, or those of a new figure of pyplot's."""
    if ax is None:
        from matplotlib import pyplot

        return pyplot.subplots(figsize=size, layout="constrained")[1]
    if not isinstance(ax, Axes):
        raise ParameterError(
            f"ax must be Matplotlib axes (from plt.subplots(), for instance), got {type(ax).__name__}."
        )
    return ax


def plain(ax: Axes, *, x: str = "", y: str = "", grid: Any = "both") -> Axes:
    """Labelled axes with a faint grid and without a box."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_axisbelow(True)
    ax.grid(True, axis=grid, alpha=0.3, linewidth=0.6)
    ax.set(xlabel=x, ylabel=y)
    return ax


def show_tiles(ax: Any, tiles: np.ndarray, columns: int | None = None) -> Any:
    """Coloured tiles ``(n, height, width, 3)`` on a grid with transparent gaps; no ticks."""
    n, height, width = tiles.shape[:3]
    columns = columns or max(1, math.ceil(math.sqrt(n)))
    gap = max(1, round(0.08 * max(height, width)))
    lines = math.ceil(n / columns)
    canvas = np.zeros((lines * (height + gap) - gap, columns * (width + gap) - gap, 4))
    for place, tile in enumerate(tiles):
        top, left = place // columns * (height + gap), place % columns * (width + gap)
        canvas[top : top + height, left : left + width] = np.dstack([tile, np.ones((height, width))])
    ax.imshow(np.clip(canvas, 0, 1), interpolation="nearest")
    ax.set(xticks=[], yticks=[])
    ax.spines[:].set_visible(False)
    ax.set_facecolor("none")
    return gap


def signed_tiles(rows: np.ndarray, shape: Sequence[int]) -> np.ndarray:
    """Every tile with its own contrast, symmetric around zero: blue is negative, red is positive."""
    tiles = fold(rows, shape)
    size = np.abs(tiles).max(axis=tuple(range(1, tiles.ndim)), keepdims=True)
    scaled = 0.5 + 0.5 * tiles / np.where(size > 0, size, 1.0)
    return scaled if tiles.ndim == 4 else colormaps[SIGNED](scaled)[..., :3]


def grey_tiles(rows: np.ndarray, shape: Sequence[int], like: np.ndarray | None = None) -> np.ndarray:
    """All tiles with one grey scale, that of ``like`` (the data) where it is given.

    Values in [0, 1] are grey values and keep their meaning; of others a few that lie far out are cut off.
    """
    tiles, reference = fold(rows, shape), rows if like is None else like
    low, high = float(np.min(reference)), float(np.max(reference))
    if low >= 0 and high <= 1 and high > 0.5:
        low, high = 0.0, 1.0
    else:
        low, high = np.quantile(reference, [_CUT, 1 - _CUT])
    scaled = np.clip((tiles - low) / (high - low), 0, 1) if high > low else np.full_like(tiles, 0.5)
    return scaled if tiles.ndim == 4 else np.repeat(scaled[..., None], 3, axis=-1)


def show_matrix(ax: Any, rows: np.ndarray, columns: Sequence[str], *, signed: bool, y: str, label: str) -> Any:
    """Rows that are no pictures: a heat map with a colour bar."""
    largest = float(np.nanmax(np.abs(rows))) or 1.0
    limits = {"vmin": -largest, "vmax": largest} if signed else {}
    drawn = ax.imshow(rows, aspect="auto", interpolation="none", cmap=SIGNED if signed else PLAIN, **limits)
    ax.set(xlabel="feature", ylabel=y)
    ax.yaxis.set_major_locator(MaxNLocator(6, integer=True))
    if rows.shape[1] <= 24:
        names = [name.removeprefix("feature ") for name in columns]
        long = any(len(name) > 3 for name in names)
        ax.set_xticks(range(rows.shape[1]), names, rotation=40 if long else 0, ha="right" if long else "center")
    ax.figure.colorbar(drawn, ax=ax, label=label)
    return ax


def cannot(found: Source, what: str, why: str) -> CapabilityError:
    """The error for a model that has no such thing."""
    return CapabilityError(f"{found.name} has no {what} to draw: {why}")
