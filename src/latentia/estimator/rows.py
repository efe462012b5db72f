"""Functions of a model and one example, applied to all rows of a matrix.

Rows go through in blocks, padded to a power of two, so that few shapes are ever compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

BLOCK = 4096


@eqx.filter_jit
def _block(function: Callable[..., Any], model: Any, rows: Any) -> Any:
    return jax.vmap(lambda *row: function(model, *row))(*rows)


def apply_rows(function: Callable[..., Any], model: Any, *rows: np.ndarray) -> np.ndarray:
    """``function(model, row, …)`` for every row; pass a module-level function, so that compiling is shared."""
    n = rows[0].shape[0]
    out = []
    for start in range(0, n, BLOCK):
        part = [np.asarray(r[start : start + BLOCK], np.float32) for r in rows]
        size = part[0].shape[0]
        padded = 1 << (size - 1).bit_length()
        part = [np.concatenate([p, np.repeat(p[:1], padded - size, axis=0)]) for p in part]
        out.append(np.asarray(_block(function, model, [jnp.asarray(p) for p in part]))[:size])
    return np.concatenate(out)
