"""Likelihoods are computed in double precision, whatever the precision of the model.

Importing this module changes no setting: both settings hold inside the context only, and JAX keys its caches
of compiled functions by them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from latentia.ops.arrays import cast


@contextlib.contextmanager
def double() -> Iterator[None]:
    """64-bit arrays and full-precision matrix products (a GPU would otherwise use TF32)."""
    with jax.enable_x64(True), jax.default_matmul_precision("highest"):
        yield


def to_double(tree: Any) -> Any:
    """The pytree with its floating-point arrays in float64; call it inside :func:`double`."""
    return cast(tree, jnp.float64)


def batch_to_double(batch: Any) -> Any:
    """A batch of values, from NumPy or JAX arrays of any kind, in float64; call it inside :func:`double`."""
    return jax.tree.map(lambda a: jax.device_put(np.asarray(a, dtype=np.float64)), batch)
