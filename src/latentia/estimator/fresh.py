"""Models as estimators make them: in float32, whatever JAX's default type is.

With ``jax_enable_x64`` arrays made without a type are float64. A model built then would fit neither the data
nor the files and checkpoints of runs without it, and its random start would be another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp

from latentia.ops.arrays import cast


def fresh(build: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """What ``build`` makes, in float32; networks that a user put into it too."""
    with jax.enable_x64(False):
        made = build(*args, **options)
    return cast(made, jnp.float32)


def outline(build: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The shapes and types of what :func:`fresh` would make, without making it."""
    with jax.enable_x64(False):
        shapes = eqx.filter_eval_shape(lambda: build(*args, **options))
    floating = lambda leaf: hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)  # noqa: E731
    single = lambda leaf: jax.ShapeDtypeStruct(leaf.shape, jnp.float32)  # noqa: E731
    return jax.tree.map(lambda leaf: single(leaf) if floating(leaf) else leaf, shapes)
