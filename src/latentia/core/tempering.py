"""The path of models between a base (β = 0) and a model (β = 1)."""

from __future__ import annotations

from typing import Any, TypeVar

import equinox as eqx
import jax

from latentia.core.capabilities import Tempered

M = TypeVar("M", bound=Tempered)


def at(base: M, model: M, beta: Any) -> M:
    """The model at inverse temperature β: the leafwise interpolation (1 − β) base + β model."""

    def interpolate(low: Any, high: Any) -> Any:
        if not eqx.is_inexact_array(high):
            return high
        return (1 - beta) * low + beta * high

    return jax.tree.map(interpolate, base, model)
