"""Using conditional models row by row.

A batch for a :class:`~latentia.core.capabilities.Conditional` model is ``{"y": …, "c": …}``. Algorithms split it
into y and contexts and work on ``given(c)`` for every row; for any other model the context is None and nothing
changes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from latentia.core.capabilities import Conditional
from latentia.core.model import AbstractModel


def parted(model: Any, x: Any) -> tuple[Any, Any]:
    """(y, contexts) of an example or a batch for a conditional model; (x, None) for any other model."""
    return (x["y"], x["c"]) if isinstance(model, Conditional) else (x, None)


def resolved(model: Any, x: Any) -> tuple[Any, Any]:
    """(given(c), y) of one example for a conditional model; (model, x) for any other model."""
    return (model.given(x["c"]), x["y"]) if isinstance(model, Conditional) else (model, x)


def over_rows(function: Callable[..., Any], model: Any, contexts: Any) -> Callable[..., Any]:
    """``function(model, *rows)`` mapped over rows, with given(c) in place of the model where there are contexts."""
    if contexts is None:
        return jax.vmap(functools.partial(function, model))
    return functools.partial(jax.vmap(lambda c, *rows: function(model.given(c), *rows)), contexts)


def kind(model: AbstractModel) -> Any:
    """The model whose capabilities and spaces count: the shape of given(c), or the model itself."""
    if not isinstance(model, Conditional):
        return model
    dtypes = [leaf.dtype for leaf in jax.tree.leaves(eqx.filter(model, eqx.is_inexact_array))]
    dtype = dtypes[0] if dtypes else jnp.float32
    blank = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, dtype), model.x_space["c"])
    return eqx.filter_eval_shape(lambda model, c: model.given(c), model, blank)
