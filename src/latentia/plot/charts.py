"""Curves of training, and intervals of likelihoods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from latentia.core.errors import DataError, ParameterError
from latentia.estimator.base import LatentEstimator
from latentia.likelihood.result import Interval
from latentia.plot import shared
from latentia.plot.shared import COLOURS, MARKERS
from latentia.report.plots import interval_ends, metric_names, readable
from latentia.report.runs import read_run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_STYLES = ("-", "--", "-.", ":")


def curves(models: Any, metrics: str | Sequence[str] | None = None, *, ax: Any = None) -> np.ndarray:
    """How the metrics went while the model trained: one panel for each, several models laid over each other.

    Args:
        models: a fitted estimator, a run folder (also of a run that is still going on), or rows of metrics as in
            ``history_``; or a list of such, or a mapping from names to such.
        metrics: which ones; all by default.
        ax: where to draw: one axes for every metric. A new figure by default.

    Returns:
        A one-dimensional array of axes, one for each metric, also if there is only one.
    """
    histories = {name: _history(model) for name, model in _named(models).items()}
    found = {metric: None for history in histories.values() for metric in metric_names(history)}
    wanted = list(found) if metrics is None else [metrics] if isinstance(metrics, str) else list(metrics)
    unknown = [metric for metric in wanted if metric not in found]
    if unknown:
        raise ParameterError(f"There is no metric {unknown[0]!r} here. There are: {', '.join(found) or 'none'}.")
    if not wanted:
        raise DataError("The history holds no metrics to draw: the model was loaded from a file or not trained.")
    panels = _panels(ax, len(wanted))
    by_epoch = all("epoch" in row for history in histories.values() for row in history)
    for panel, metric in zip(panels, wanted, strict=True):
        shared.plain(panel, x="epoch" if by_epoch else "step", y=readable(metric))
        for place, (name, history) in enumerate(histories.items()):
            _curve(panel, history, metric, "epoch" if by_epoch else "step", place, name)
    if len(histories) > 1:
        panels[0].legend()
    return panels


def _curve(
    panel: Any, history: Sequence[Mapping[str, float]], metric: str, axis: str, place: int, name: str
) -> None:
    numbers = [(row.get(axis, i), row[metric]) for i, row in enumerate(history) if _is_number(row.get(metric))]
    x, y = np.array(numbers, float).reshape(-1, 2).T
    style = _STYLES[place // len(COLOURS) % len(_STYLES)]
    mark = "o" if len(x) < 3 else ""
    panel.plot(x, y, color=COLOURS[place % len(COLOURS)], linestyle=style, marker=mark, label=name)


def _panels(ax: Any, n: int) -> np.ndarray:
    if ax is None:
        from matplotlib import pyplot

        columns = min(n, 3)
        lines = math.ceil(n / columns)
        size = (3.6 * columns, 2.6 * lines)
        grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False, layout="constrained")[1].ravel()
        for spare in grid[n:]:
            spare.remove()
        return grid[:n]
    given = np.array(ax, dtype=object).ravel()
    if len(given) != n:
        raise ParameterError(
            f"{n} metrics need as many axes, got {len(given)}. Choose metrics=…, or leave ax out for a new figure."
        )
    return np.array([shared.axes_or_new(panel, (0, 0)) for panel in given], dtype=object)


def _named(models: Any) -> dict[str, Any]:
    """What was given, by name."""
    if isinstance(models, Mapping) and "estimate" not in models:
        return {str(name): model for name, model in models.items()}
    several = isinstance(models, list | tuple) and not (
        models and isinstance(models[0], Mapping) and "step" in models[0]
    )
    found: dict[str, Any] = {}
    for model in models if several else [models]:
        name = _name(model)
        found[name if name not in found else f"{name} ({len(found) + 1})"] = model
    if not found:
        raise ParameterError("There is nothing to draw: the list is empty.")
    return found


def _name(model: Any) -> str:
    return Path(model).resolve().name if isinstance(model, str | PathLike) else type(model).__name__


def _history(model: Any) -> list[Any]:
    if isinstance(model, str | PathLike):
        return read_run(Path(model)).history
    if isinstance(model, LatentEstimator):
        if "history_" not in vars(model):
            raise ParameterError(f"This {type(model).__name__} is not fitted yet: call fit(X) first.")
        return model.history_
    if isinstance(model, list | tuple) and all(isinstance(row, Mapping) for row in model):
        return list(model)
    raise ParameterError(
        f"Expected a fitted estimator, a run folder or rows of metrics, got {type(model).__name__}."
    )


def likelihood(results: Any, names: Sequence[str] = (), *, ax: Axes | None = None) -> Axes:
    """The two-sided interval of one or several evaluations: a bar from lower to upper, a dot at the estimate.

    Args:
        results: what ``log_likelihood`` returned, or its dictionary; an estimator on which it was called, or a run
            folder with an evaluation; or a list or a mapping of such.
        names: what to call them; by default the names in a mapping, classes of estimators and names of folders.
        ax: where to draw; a new figure by default.

    Returns:
        The axes.
    """
    found = _named(results)
    ends = [interval_ends(_evaluation(result)) for result in found.values()]
    titles = list(names) or [("" if isinstance(r, Mapping | Interval) else name) for name, r in found.items()]
    titles = (
        list(map(str, found))
        if isinstance(results, Mapping) and "estimate" not in results and not names
        else titles
    )
    if len(titles) != len(ends):
        raise ParameterError(f"{len(ends)} evaluations need as many names, got {len(titles)}.")
    finite = [value for three in ends for value in three if math.isfinite(value)]
    if not finite:
        raise DataError("The evaluation holds no finite number to draw.")
    ax = shared.axes_or_new(ax, (5.5, 0.9 + 0.5 * len(ends)))
    shared.plain(ax, x="mean log-likelihood per example, in nats", grid="x")
    reach = 0.18 * (max(finite) - min(finite)) or max(abs(finite[0]) * 1e-3, 0.5)
    low, high = min(finite) - reach, max(finite) + reach
    for place, three in enumerate(ends):
        _interval(ax, place, three, low, high)
    ax.set(xlim=(low, high), ylim=(len(ends) - 0.4, -0.6))
    ax.set_yticks(range(len(ends)), titles)
    ax.tick_params(axis="y", length=0)
    ax.spines["left"].set_visible(False)
    ax.ticklabel_format(axis="x", useOffset=False)
    return ax


def _interval(ax: Any, place: int, ends: tuple[float, float, float], low: float, high: float) -> None:
    lower, estimate, upper = ends
    colour, marker = COLOURS[place % len(COLOURS)], MARKERS[place % len(MARKERS)]
    ax.plot(
        [max(lower, low), min(upper, high)],
        [place] * 2,
        color=colour,
        linewidth=8,
        alpha=0.35,
        solid_capstyle="butt",
    )
    for end in (lower, upper):
        if math.isfinite(end) and lower < upper:
            ax.plot(end, place, "|", color=colour, markersize=14, markeredgewidth=1.8)
    if math.isfinite(estimate):
        ax.plot(estimate, place, marker, color=colour, markersize=8, markeredgecolor="white", markeredgewidth=0.8)


def _evaluation(result: Any) -> Any:
    if isinstance(result, LatentEstimator):
        kept = result._remembered("_log_likelihood") if "model_" in vars(result) else None
        if kept is None:
            raise ParameterError(
                f"This {type(result).__name__} has not been evaluated: call log_likelihood(X_test) first, or "
                "give its result."
            )
        return kept
    if isinstance(result, str | PathLike):
        run = read_run(Path(result))
        if run.likelihood is None:
            raise DataError(f"The run in {result} has not been evaluated. To do it: latentia evaluate {result}")
        return run.likelihood
    if not (isinstance(result, Interval) or (isinstance(result, Mapping) and "estimate" in result)):
        raise ParameterError(
            f"Expected the result of log_likelihood(X), an estimator or a run folder, got {type(result).__name__}."
        )
    return result


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)
