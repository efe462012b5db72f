"""Pytrees as named arrays, and back into a pytree of the same structure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from latentia.core.errors import FileFormatError
from latentia.core.parameters import names


def to_arrays(tree: Any, prefix: str = "") -> dict[str, np.ndarray]:
    """Every array leaf by name."""
    arrays = eqx.filter(tree, eqx.is_array)
    return {
        prefix + name: np.asarray(leaf) for name, leaf in zip(names(arrays), jax.tree.leaves(arrays), strict=True)
    }


def from_arrays(
    like: Any,
    arrays: Mapping[str, np.ndarray],
    prefix: str = "",
    *,
    source: str = "the file",
    any_precision: bool = False,
) -> Any:
    """``like`` (arrays or their shapes) with its array leaves replaced by those of the same name.

    With ``any_precision`` floating-point arrays may have another precision, which they keep (as far as JAX has it).
    """
    dynamic, static = eqx.partition(like, lambda leaf: eqx.is_array(leaf) or isinstance(leaf, jax.ShapeDtypeStruct))
    wanted = [prefix + name for name in names(dynamic)]
    present = {name for name in arrays if name.startswith(prefix)}
    if set(wanted) != present:
        odd = sorted(set(wanted) ^ present)
        raise FileFormatError(f"{source} does not fit this model: it differs in the arrays {', '.join(odd[:5])}.")
    flat, treedef = jax.tree.flatten(dynamic)
    for name, leaf in zip(wanted, flat, strict=True):
        found = arrays[name]
        both_floating = any_precision and all(np.issubdtype(a.dtype, np.floating) for a in (found, leaf))
        counted = found.dtype == np.int32 and leaf.dtype == np.float32  # what earlier releases counted in integers
        if found.shape != leaf.shape or (found.dtype != leaf.dtype and not (both_floating or counted)):
            raise FileFormatError(
                f"{source} does not fit this model: {name} is {found.dtype}{list(found.shape)}, "
                f"expected {leaf.dtype}{list(leaf.shape)}."
            )
    whole = [np.issubdtype(arrays[name].dtype, np.integer) for name in wanted]
    leaves = [
        jnp.asarray(arrays[name], leaf.dtype if integers else None)
        for name, leaf, integers in zip(wanted, flat, whole, strict=True)
    ]
    return eqx.combine(jax.tree.unflatten(treedef, leaves), static)
