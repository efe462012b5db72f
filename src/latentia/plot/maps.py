"""Maps of the rows in latent space."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latentia.core.capabilities import Decodes
from latentia.core.errors import CapabilityError, DataError, ParameterError
from latentia.plot import shared
from latentia.plot.shared import COLOURS, MARKERS, Source, source
from latentia.report.latents import as_columns, picks_one

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: More different labels than this are numbers, not classes.
_MOST_CLASSES = 20


def latent_map(
    model: Any,
    X: Any,
    y: Any = None,
    *,
    dims: Sequence[int] | None = None,
    decode: int | None = None,
    image_shape: Sequence[int] | bool | None = None,
    ax: Axes | None = None,
) -> Axes:
    """The rows of ``X`` in the plane of two latents, coloured by ``y``.

    A code with more than two columns is shown by its two leading principal components unless ``dims`` chooses two
    latents. Latents that name a component (mixtures) are no places: the rows are then shown as they are (or by
    their own leading components) and coloured by component.

    Args:
        model: a fitted estimator, a run folder or a model file.
        X: rows.
        y: a label (or a number) for every row.
        dims: which two latents, counted from 0.
        decode: draw instead what the model decodes over the plane, so many pictures a side; for two latents and
            rows that are pictures.
        image_shape: see :func:`latentia.plot.filters`.
        ax: where to draw; a new figure by default.

    Returns:
        The axes.
    """
    found = source(model, image_shape)
    rows = shared.rows_of(X, n_columns=found.estimator.n_features_in_)
    try:
        codes = np.asarray(found.estimator.transform(rows), float)
    except (AttributeError, CapabilityError) as error:
        raise shared.cannot(found, "codes", str(error)) from error
    labels = None if y is None else _labels(y, len(rows))
    if decode is not None:
        return _decoded(found, codes, dims, shared.count("decode", decode), ax)
    if picks_one(found.estimator.model_.z_space) and dims is None:
        labels = np.array([f"component {k}" for k in codes.argmax(axis=1)]) if labels is None else labels
        points, names = (rows, found.columns) if rows.shape[1] == 2 else _leading(rows, "the data")
    else:
        points, names = _places(found, codes, dims)
    ax = shared.plain(shared.axes_or_new(ax, (5.5, 4.5)), x=names[0], y=names[1])
    ax.set_title(f"{len(rows):,} rows, by {found.name}")
    if not names[1]:
        ax.set_yticks([])
    _scatter(ax, points, labels)
    return ax


def _places(found: Source, codes: np.ndarray, dims: Any) -> tuple[np.ndarray, list[str]]:
    width = codes.shape[1]
    if dims is None and width > 2:
        return _leading(codes, "the code")
    if dims is None and width == 1:
        spread = np.random.default_rng(0).uniform(-1, 1, len(codes))  # or they would hide each other
        return np.column_stack([codes[:, 0], spread]), ["latent 0", ""]
    chosen = [0, 1] if dims is None else list(dims)
    whole = all(isinstance(d, int | np.integer) and not isinstance(d, bool) for d in chosen)
    if not whole or len(chosen) != 2 or not all(0 <= d < width for d in chosen):
        raise ParameterError(f"dims must be two latents from 0 to {width - 1}, got {dims!r}.")
    return codes[:, chosen], [f"latent {d}" for d in chosen]


def _leading(rows: np.ndarray, what: str) -> tuple[np.ndarray, list[str]]:
    """Two principal components, and how much of the variance each holds."""
    centred = rows - rows.mean(axis=0)
    _, sizes, axes = np.linalg.svd(centred, full_matrices=False)
    shares = sizes**2 / max(float((sizes**2).sum()), 1e-30)
    places = centred @ axes[:2].T
    if places.shape[1] < 2:
        places = np.column_stack([places, np.zeros((len(rows), 2 - places.shape[1]))])
    names = [f"component {i + 1} of {what} ({100 * s:.0f} % of its variance)" for i, s in enumerate(shares[:2])]
    return places, [*names, "", ""][:2]


def _labels(y: Any, n: int) -> np.ndarray:
    labels = np.asarray(y)
    if labels.shape != (n,):
        raise DataError(f"y must have one entry per row ({n}), got shape {labels.shape}.")
    return labels


def _scatter(ax: Any, points: np.ndarray, labels: np.ndarray | None) -> None:
    style = {"s": 14, "alpha": 0.65, "linewidths": 0}
    if labels is None:
        ax.scatter(*points.T, color=COLOURS[0], **style)
        return
    values = np.unique(labels)
    if len(values) > _MOST_CLASSES and labels.dtype.kind in "fiu":
        drawn = ax.scatter(*points.T, c=labels, cmap=shared.PLAIN, **style)
        ax.figure.colorbar(drawn, ax=ax, label="y")
        return
    for place, value in enumerate(values):
        marker = MARKERS[
            (place + place // len(COLOURS)) % len(MARKERS)
        ]  # a colour that comes again has another mark
        mine = points[labels == value]
        ax.scatter(*mine.T, color=COLOURS[place % len(COLOURS)], marker=marker, label=str(value), **style)
    ax.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False, markerscale=1.4)


def _decoded(found: Source, codes: np.ndarray, dims: Any, side: int, ax: Any) -> Axes:
    model, shape = found.estimator.model_, found.image_shape
    if not isinstance(model, Decodes):
        raise shared.cannot(found, "decoded map", "its model cannot map latents to data (it lacks Decodes).")
    if shape is None or codes.shape[1] != 2 or dims is not None:
        raise ParameterError(
            f"decode needs a code of two latents and rows that are pictures; this {found.name} has "
            f"{codes.shape[1]} latents and image_shape {shape}."
        )
    ends = np.quantile(codes, [0.02, 0.98], axis=0)
    across, up = (np.linspace(ends[0, i], ends[1, i], side) for i in (0, 1))
    grid = np.array([(a, b) for b in up[::-1] for a in across], np.float32)
    rows = as_columns(found.estimator, found.estimator.inverse_transform(grid))
    ax = shared.axes_or_new(ax, (5, 5))
    gap = shared.show_tiles(ax, shared.grey_tiles(rows, shape), side)
    for axis, values, length in (("x", across, shape[1]), ("y", up[::-1], shape[0])):
        few = sorted({0, side // 2, side - 1})
        ticks = [place * (length + gap) + length / 2 for place in few]
        getattr(ax, f"set_{axis}ticks")(ticks, [f"{values[place]:.1f}".replace("-", "−") for place in few])
    ax.set(xlabel="latent 0", ylabel="latent 1", title="Decoded over the plane of the latents")
    ax.tick_params(length=0)
    return ax
