"""Latentia: one energy, many ways to learn it.

Latent-variable and energy-based representation learning on JAX, with a scikit-learn face. Names are imported
on first use, so that ``import latentia`` is quick.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"

_FUNCTIONS = {"load": "latentia.estimator.saving"}
_MODULES = ("callbacks", "core", "datasets", "learning", "likelihood", "plot", "registry", "samplers", "units")


def _estimators() -> dict[str, Any]:
    from latentia.registry import FAMILIES

    return {entry.class_name: entry for entry in FAMILIES}


def __getattr__(name: str) -> Any:
    if name in _FUNCTIONS:
        return getattr(importlib.import_module(_FUNCTIONS[name]), name)
    if name in _MODULES:
        return importlib.import_module(f"latentia.{name}")
    estimators = _estimators()
    if name in estimators:
        return estimators[name].estimator()
    raise AttributeError(f"module 'latentia' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *_FUNCTIONS, *_MODULES, *_estimators()])
