"""Small array helpers that several layers share."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from latentia.ops.compiling import jitted

#: The least total weight of a batch: one of rows without weight has means of zero, not of nothing.
TINY = 1e-30


def batch_size(batch: Any) -> int:
    """The length of the leading axis of a pytree of arrays."""
    return jax.tree.leaves(batch)[0].shape[0]


def n_numbers(tree: Any) -> int:
    """How many numbers the arrays of a pytree hold.

    >>> n_numbers((jnp.zeros((2, 3)), "a name", jnp.zeros(4)))
    10
    """
    return sum(leaf.size for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array)))


def weighted_mean(values: Float[Array, "n *s"], weights: Float[Array, " n"] | None) -> Float[Array, "*s"]:
    """Σ w_i v_i / n for weights that average to one; the plain mean if there are none."""
    if weights is None:
        return jnp.mean(values, axis=0)
    return jnp.tensordot(weights, values, axes=1) / values.shape[0]


def keep(fixed: Any, old: Any, new: Any) -> Any:
    """``old`` where ``fixed`` is True, else ``new`` (pytrees); ``new`` if nothing is fixed."""
    if fixed is None:
        return new
    return jax.tree.map(lambda f, a, b: jnp.where(f, a, b), fixed, old, new)


def all_finite(tree: Any) -> Bool[Array, ""]:
    """Whether every floating-point entry of a pytree is finite."""
    checks = [jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array))]
    return jnp.all(jnp.array(checks)) if checks else jnp.array(True)


def largest(tree: Any) -> Float[Array, ""]:
    """The largest absolute value in a pytree of floating-point arrays."""
    tops = [jnp.max(jnp.abs(leaf)) for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_inexact_array)) if leaf.size]
    return jnp.max(jnp.array(tops)) if tops else jnp.array(0.0)


def float_type(tree: Any) -> Any:
    """The type of a pytree's floating-point arrays, the widest of several; JAX's default where there are none.

    >>> float_type((jnp.zeros(2, jnp.float16), jnp.arange(3)))
    dtype('float16')
    """
    found = [leaf.dtype for leaf in jax.tree.leaves(tree) if _is_floating(leaf)]
    return np.result_type(*found) if found else jnp.result_type(float)


def cast_like(tree: Any, other: Any) -> Any:
    """The pytree in the type of another one's floating-point arrays; as it is, if that has none."""
    return cast(tree, float_type(other)) if any(map(_is_floating, jax.tree.leaves(other))) else tree


def _is_floating(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and jnp.issubdtype(leaf.dtype, jnp.floating)


def cast(tree: Any, dtype: Any) -> Any:
    """The pytree with its floating-point arrays in another precision; as it is, if they are in that already."""
    if all(leaf.dtype == dtype for leaf in jax.tree.leaves(tree) if _is_floating(leaf)):
        return tree
    return _cast(tree, dtype)


@jitted  # one program for all arrays
def _cast(tree: Any, dtype: Any) -> Any:
    return jax.tree.map(lambda a: a.astype(dtype) if eqx.is_inexact_array(a) else a, tree)
