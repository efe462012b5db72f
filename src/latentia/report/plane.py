"""Codes in the plane: the positions of the examples, and decoded points between them."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from latentia.abilities.labels import missing
from latentia.core import space
from latentia.core.capabilities import Decodes
from latentia.report import facts, plots
from latentia.report.latents import as_columns, code_space, principal_axes
from latentia.report.runs import Run

#: Points that are drawn, classes that get a colour, and pictures along each side of the decoded plane.
MOST_POINTS, MOST_CLASSES, SIDE = 600, 12, 13


@dataclasses.dataclass
class Map:
    """A scatter of codes and, for codes with two numbers, the decoded plane."""

    scatter: Any
    decoded: Any
    text: list[str]
    caption: str


def has_map(run: Run, codes: np.ndarray | None) -> bool:
    """Whether a map of the codes is useful: two real numbers, or more of them and classes."""
    if run.estimator is None or codes is None or len(codes) < 3:
        return False
    if any(leaf.domain == "categorical" for leaf in space.leaves(code_space(run.estimator))):
        return False
    return _is_plane(run, codes) or (codes.shape[1] > 2 and _classes(run) is not None)


def latent_map(run: Run, codes: np.ndarray) -> Map:
    """The map of a run, from unseen rows where they have labels."""
    labels = _classes(run)
    if labels is not None and run.rows is not None:
        codes = np.asarray(run.estimator.transform(run.rows))
    some = np.unique(np.linspace(0, len(codes) - 1, min(len(codes), MOST_POINTS)).round().astype(int))
    points, axes, text = codes[some], ("code 1", "code 2"), []
    plane = _is_plane(run, codes)
    if not plane:
        centred = codes - codes.mean(axis=0)
        projected = centred @ principal_axes(centred, 2).T
        points, axes = projected[some], ("first component", "second component")
        kept = 100 * float(np.sum(projected**2) / max(float(np.sum(centred**2)), 1e-30))
        text.append(
            f"Codes have {codes.shape[1]:,} numbers; these are their first two principal components, which hold "
            f"{kept:.0f} % of their variance."
        )
    figure = plots.labelled(points, None if labels is None else labels[some], x=axes[0], y=axes[1])
    shown = run.rows_are == "training rows" and facts.learned_labels(run)
    by_labels = f", coloured by their labels, which the model was {'' if shown else 'not '}shown."
    caption = f"{len(some):,} {'rows.' if labels is None else run.rows_are + by_labels}"
    return Map(figure, _decoded(run, codes) if plane else None, text, caption)


def _decoded(run: Run, codes: np.ndarray) -> Any:
    estimator, shape = run.estimator, run.image_shape
    if shape is None or not isinstance(estimator.model_, Decodes):
        return None
    low, high = np.quantile(codes, (0.01, 0.99), axis=0)
    x, y = np.linspace(low[0], high[0], SIDE), np.linspace(high[1], low[1], SIDE)  # up is more
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2).astype(np.float32)
    rows = as_columns(estimator, estimator.inverse_transform(grid))
    return plots.image_grid(rows, shape, n=len(rows), columns=SIDE, gap=1)


def _is_plane(run: Run, codes: np.ndarray) -> bool:
    return codes.shape[1] == 2 and all(leaf.domain == "real" for leaf in space.leaves(code_space(run.estimator)))


def _classes(run: Run) -> np.ndarray | None:
    """One label for every unseen row, if there are a few different ones."""
    if run.labels is None or run.rows is None or len(run.labels) != len(run.rows):
        return None
    labels = np.asarray(run.labels).reshape(len(run.rows), -1)
    if labels.shape[1] != 1 or not 2 <= len(np.unique(labels[~missing(labels[:, 0])])) <= MOST_CLASSES:
        return None
    return labels[:, 0]
