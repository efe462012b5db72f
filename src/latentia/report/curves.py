"""Training curves as data for the page's script, of one run or of several in one chart."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from latentia.report import plots

#: A line has at most so many points on the page.
MOST_POINTS = 400
#: Metrics whose names hold one of these are about chains.
_CHAINS = ("swap", "accept", "step_size", "divergen", "r_hat", "mixing")

History = Sequence[Mapping[str, Any]]


def sampler_metrics(history: History) -> list[str]:
    """The metrics of the sampler: swap rates, acceptance, step sizes."""
    return [name for name in plots.metric_names(history) if any(word in name for word in _CHAINS)]


def charts(histories: Mapping[str, History], names: Sequence[str]) -> dict[str, Any]:
    """One chart for every metric, with a line for every run that has it.

    Args:
        histories: rows of metrics by the run's name; the name of a single run may be empty.
        names: which metrics.
    """
    return {"charts": [_chart(histories, name) for name in names]}


def _chart(histories: Mapping[str, History], name: str) -> dict[str, Any]:
    axis = "epoch" if all("epoch" in row for history in histories.values() for row in history) else "step"
    lines = []
    for run, history in histories.items():
        points = [
            (float(row.get(axis, i)), float(row[name]))
            for i, row in enumerate(history)
            if _finite(row.get(name)) and _finite(row.get(axis, i))
        ]
        if not points:
            continue
        some = np.unique(np.linspace(0, len(points) - 1, min(len(points), MOST_POINTS)).round().astype(int))
        lines.append({"name": run, "points": [[_short(points[i][0]), _short(points[i][1])] for i in some]})
    return {"title": plots.readable(name), "x": axis, "lines": lines}


def shared(histories: Sequence[History]) -> list[str]:
    """The metrics that at least two runs have."""
    counts: dict[str, int] = {}
    for history in histories:
        for name in plots.metric_names(history):
            counts[name] = counts.get(name, 0) + 1
    return [name for name, count in counts.items() if count > 1]


def _finite(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
