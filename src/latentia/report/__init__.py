"""Pictures of models and runs, and the HTML report.

>>> from latentia.report import build_report
>>> build_report(["runs/small", "runs/large"], out="comparison.html")  # doctest: +SKIP

Matplotlib and Jinja are imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from latentia.report import plots
    from latentia.report.build import build_report

__all__ = ["build_report", "plots"]


def __getattr__(name: str) -> Any:
    if name == "build_report":
        return importlib.import_module("latentia.report.build").build_report
    if name == "plots":
        return importlib.import_module("latentia.report.plots")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
