"""Functions of a model and one example, applied to all rows of a matrix.

Rows go through in blocks, padded to a power of two, so that few shapes are ever compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from latentia.ops.arrays import batch_size, float_type
from latentia.ops.compiling import briefly, make_room

BLOCK = 4096


@briefly
def _block(function: Callable[..., Any], model: Any, rows: Any) -> Any:
    return jax.vmap(lambda *row: function(model, *row))(*rows)


def apply_rows(function: Callable[..., Any], model: Any, *rows: Any) -> Any:
    """``function(model, row, …)`` for every row; pass a module-level function, so that compiling is shared.

    Rows and results are pytrees of NumPy arrays with one leading axis.
    """
    make_room()
    n, dtype = batch_size(rows), float_type(model)
    out = []
    for start in range(0, n, BLOCK):
        size = min(BLOCK, n - start)
        padded = 1 << (size - 1).bit_length()
        part = jax.tree.map(lambda a, i=start, n=size, m=padded: _padded(a[i : i + n], m, dtype), rows)
        out.append(jax.tree.map(lambda a, n=size: np.asarray(a)[:n], _block(function, model, part)))
    return jax.tree.map(lambda *parts: np.concatenate(parts), *out)


def _padded(rows: np.ndarray, n: int, dtype: Any) -> Any:
    rows = np.asarray(rows, dtype)
    return jax.device_put(np.concatenate([rows, np.repeat(rows[:1], n - rows.shape[0], axis=0)]))
