"""Filters, samples and reconstructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from latentia.core.capabilities import Decodes
from latentia.core.errors import CapabilityError, ParameterError
from latentia.estimator.weights import input_weights, picture_shape
from latentia.inference import code_space
from latentia.plot import shared
from latentia.plot.shared import COLOURS, Source, source
from latentia.report.latents import Group, Missing, Pictures, as_columns, groups, picks_one, pictures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ImageShape = Sequence[int] | bool | None


def filters(
    model: Any,
    *,
    X: Any = None,
    layer: int | None = None,
    n: int = 100,
    image_shape: ImageShape = None,
    sort: bool = True,
    columns: int | None = None,
    ax: Axes | None = None,
) -> Axes:
    """What each latent stands for: filters, atoms, basis functions, means of a mixture.

    Where the model can map latents to data, it is what switching a latent on changes (in the log-odds of binary
    data, else in the mean); where it cannot, its filters or the weights of its first layer. Red raises, blue
    lowers, and every tile has its own contrast. Rows that are no pictures become a heat map, two features arrows in
    the plane.

    Args:
        model: a fitted estimator, a run folder or a model file.
        X: rows; filters are then sorted by use instead of strength.
        layer: which layer of latents of a model with several (1 is the lowest, the default).
        n: at most this many.
        image_shape: (height, width) or (height, width, 3) of a row; False if rows are no pictures. By default what
            the model or the run says, or a square if the columns have no names.
        sort: strongest (or most used) first; False keeps the model's order.
        columns: tiles side by side; about a square by default.
        ax: where to draw; a new figure by default.

    Returns:
        The axes.
    """
    found, n = source(model, image_shape), shared.count("n", n)
    rows = None if X is None else shared.rows_of(X)
    group = _layer(found, layer)
    drawn = _pictures(found, group, rows)
    order = np.arange(len(drawn.rows))
    if sort:
        use = _use(found, group, rows, drawn.rows)
        order = np.argsort(-use, kind="stable")
    order = order[:n]
    shape = drawn.shape or found.image_shape
    ax = shared.axes_or_new(ax, (5, 5) if shape or drawn.rows.shape[1] == 2 else (6, 4))
    what = "mean" if not drawn.signed else "filter"
    title = f"{len(order)} {what}{'s' * (len(order) > 1)}" + (
        f" of {len(drawn.rows):,}" if len(order) < len(drawn.rows) else ""
    )
    ax.set_title(title + (f", layer {layer or 1}" if group.title else ""))
    _draw_filters(ax, found, drawn, order, shape, columns)
    return ax


def _draw_filters(
    ax: Any, found: Source, drawn: Pictures, order: np.ndarray, shape: Any, columns: int | None
) -> None:
    rows = drawn.rows[order]
    if shape is not None:
        tiles = shared.signed_tiles(rows, shape) if drawn.signed else shared.grey_tiles(rows, shape)
        shared.show_tiles(ax, tiles, columns)
        ax.set_xlabel(_short(drawn.meaning), fontsize="small")
    elif rows.shape[1] == 2:
        _in_the_plane(ax, found, rows, arrows=drawn.signed)
    else:
        y = "latent" if drawn.signed else "component"
        shared.show_matrix(ax, rows, found.columns, signed=drawn.signed, y=f"{y}, by rank", label="weight")


def _in_the_plane(ax: Any, found: Source, rows: np.ndarray, *, arrows: bool) -> None:
    shared.plain(ax, x=found.columns[0], y=found.columns[1])
    if not arrows:
        ax.plot(rows[:, 0], rows[:, 1], "X", color=COLOURS[1], markersize=10, markeredgecolor="white")
        return
    ax.quiver(*np.zeros((2, len(rows))), *rows.T, angles="xy", scale_units="xy", scale=1, color=COLOURS[0])
    reach = 1.1 * (float(np.abs(rows).max()) or 1.0)
    ax.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")


def _layer(found: Source, layer: int | None) -> Group:
    try:
        width = found.estimator._n_features_out
        layers = groups(found.estimator, width)
    except AttributeError as error:
        raise shared.cannot(found, "filters", str(error)) from error
    if layer is None and layers:
        return layers[0]
    whole = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
    if not whole or not 1 <= int(layer or 0) <= len(layers):
        has = f"{len(layers)} layers of latents" if len(layers) > 1 else "one layer of latents"
        raise ParameterError(f"layer must be from 1 to {len(layers)}: this {found.name} has {has}; got {layer!r}.")
    return layers[int(layer or 0) - 1]


def _pictures(found: Source, group: Group, rows: np.ndarray | None) -> Pictures:
    estimator = found.estimator
    try:
        return pictures(estimator, group, np.arange(group.count), rows)
    except Missing as why:
        weights = input_weights(estimator)
        if weights is None:
            raise shared.cannot(found, "filters", str(why)) from why
        flat = weights.reshape(len(weights), -1)
        shape = weights.shape[1:] if weights.ndim > 2 else None
        shape = shape or (
            None if flat.shape[1] == estimator.n_features_in_ else picture_shape(estimator, flat.shape[1])
        )
        return Pictures(flat, "Weights of the first layer: red raises the response, blue lowers it.", True, shape)


def _use(found: Source, group: Group, rows: np.ndarray | None, drawn: np.ndarray) -> np.ndarray:
    if rows is not None and len(drawn) == group.count:
        return group.use(group.responses(np.asarray(found.estimator.transform(rows)))[0])
    return (
        np.linalg.norm(drawn, axis=1)
        if not picks_one(code_space(found.estimator.model_))
        else -np.arange(len(drawn))
    )


def samples(
    model: Any,
    n: int = 64,
    *,
    X: Any = None,
    n_steps: int = 1000,
    mean: bool | None = None,
    image_shape: ImageShape = None,
    columns: int | None = None,
    random_state: Any = 0,
    ax: Axes | None = None,
) -> Axes:
    """Draws from the model: pictures in a grid; two features as points in the plane; other rows as a heat map.

    Args:
        model: a fitted estimator, a run folder or a model file; or rows that were drawn already.
        n: how many.
        X: data to show with the draws where they are points in the plane.
        n_steps: Gibbs sweeps (or Hamiltonian transitions) of models that are not sampled directly.
        mean: show E[x | z] instead of x, which is smoother; by default where pictures have such means.
        image_shape: see :func:`filters`.
        columns: tiles side by side; about a square by default.
        random_state: seed.
        ax: where to draw; a new figure by default.

    Returns:
        The axes.
    """
    n = shared.count("n", n)
    found, rows = _drawn(model, n, n_steps, mean, image_shape, random_state)
    shape = found if isinstance(found, tuple) or found is None else found.image_shape
    names = found.columns if isinstance(found, Source) else [f"feature {i}" for i in range(rows.shape[1])]
    ax = shared.axes_or_new(ax, (5, 5) if shape or rows.shape[1] == 2 else (6, 4))
    ax.set_title(f"{len(rows)} samples")
    if shape is not None:
        shared.show_tiles(ax, shared.grey_tiles(rows, shape), columns)
    elif rows.shape[1] == 2:
        data = None if X is None else shared.rows_of(X, n_columns=2)
        _points(ax, {"data": data, "samples": rows}, names)
    else:
        shared.show_matrix(ax, rows, names, signed=False, y="sample", label="value")
    return ax


def _drawn(
    model: Any, n: int, n_steps: int, mean: bool | None, image_shape: Any, random_state: Any
) -> tuple[Any, Any]:
    """(the source, or the shape of given rows; the rows)."""
    if isinstance(model, np.ndarray | list):
        rows = shared.rows_of(model, name="model (as drawn rows)")[:n]
        return (shared.checked_shape(image_shape, rows.shape[1]) if image_shape else None), rows
    found = source(model, image_shape)
    smooth = isinstance(found.estimator.model_, Decodes) and not picks_one(found.estimator.model_.z_space)
    mean = smooth and found.image_shape is not None if mean is None else bool(mean)
    try:
        rows = found.estimator.sample(n, n_steps=n_steps, mean=mean, random_state=random_state)
    except (AttributeError, CapabilityError) as error:
        raise shared.cannot(found, "samples", str(error)) from error
    return found, as_columns(found.estimator, rows)


def _points(ax: Any, named: dict[str, np.ndarray | None], columns: Sequence[str]) -> None:
    shared.plain(ax, x=columns[0], y=columns[1])
    for (name, points), colour, marker in zip(named.items(), COLOURS, shared.MARKERS, strict=False):
        if points is not None:
            style = {"s": 16, "alpha": 0.6, "linewidths": 0, "color": colour, "marker": marker}
            ax.scatter(points[:, 0], points[:, 1], label=name, **style)
    ax.legend()


def reconstructions(
    model: Any, X: Any, *, n: int = 10, image_shape: ImageShape = None, ax: Axes | None = None
) -> Axes:
    """Rows of ``X`` above, what the model makes of them below.

    Rows that are no pictures become one point for each value, its reconstruction over itself: the nearer to the
    diagonal the better. Two features are shown in the plane, each row joined to its reconstruction.

    Args:
        model: a fitted estimator, a run folder or a model file.
        X: rows; of more than ``n`` pictures some are chosen, evenly spaced.
        n: at most so many pictures.
        image_shape: see :func:`filters`.
        ax: where to draw; a new figure by default.

    Returns:
        The axes.
    """
    found, n = source(model, image_shape), shared.count("n", n)
    rows = shared.rows_of(X, n_columns=found.estimator.n_features_in_)
    shape = found.image_shape
    some = rows[shared.evenly(len(rows), n if shape else 1000)]
    try:
        again = as_columns(found.estimator, found.estimator.reconstruct(some))
    except (AttributeError, CapabilityError) as error:
        raise shared.cannot(found, "reconstructions", str(error)) from error
    ax = shared.axes_or_new(ax, (max(4.0, 0.8 * len(some)), 2.2) if shape else (4.5, 4.5))
    error = float(np.mean((some - again) ** 2))
    ax.set_title(f"Reconstructions, mean squared error {error:.3g}")
    if shape is not None:
        both = np.concatenate([some, again])
        gap = shared.show_tiles(ax, shared.grey_tiles(both, shape, like=some), len(some))
        ax.set_yticks([shape[0] / 2, shape[0] * 1.5 + gap], ["data", "model"])
        ax.tick_params(length=0)
    elif rows.shape[1] == 2:
        _points(ax, {"data": some, "reconstructions": again}, found.columns)
        ax.plot(
            *np.stack([some, again], axis=1).transpose(2, 1, 0), color="gray", linewidth=0.5, alpha=0.5, zorder=0
        )
    else:
        shared.plain(ax, x="data", y="reconstruction")
        ends = [float(some.min()), float(some.max())]
        ax.plot(ends, ends, color="gray", linewidth=1, linestyle=":")
        ax.scatter(some.ravel(), again.ravel(), s=8, alpha=0.4, linewidths=0, color=COLOURS[0])
    return ax


def _short(meaning: str) -> str:
    """What tiles mean, in two lines."""
    return meaning.rstrip(".").replace(": ", ":\n", 1)
