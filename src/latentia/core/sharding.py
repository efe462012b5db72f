"""One mesh axis, ``data``: batches and chains are split over it, parameters are replicated.

Code that makes a batch calls :func:`split`; on one device, or outside a mesh, this does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

AXIS = "data"


def data_mesh(devices: Sequence[Any] | None, batch_size: int) -> Mesh:
    """A mesh over as many of the devices (all by default) as divide the batch evenly."""
    devices = list(jax.devices() if devices is None else devices)
    n = max(n for n in range(1, len(devices) + 1) if batch_size % n == 0)
    return Mesh(np.array(devices[:n]), (AXIS,), axis_types=(AxisType.Auto,))


def split(tree: Any, axis: int = 0) -> Any:
    """The pytree of batches with ``axis`` split over the mesh in force (where it divides evenly)."""
    mesh = jax.sharding.get_abstract_mesh()
    n = mesh.shape.get(AXIS, 1) if not mesh.empty else 1
    if n == 1:
        return tree

    def constrain(leaf: Any) -> Any:
        if leaf.ndim <= axis or leaf.shape[axis] % n:
            return leaf
        return jax.lax.with_sharding_constraint(leaf, PartitionSpec(*[None] * axis, AXIS))

    return jax.tree.map(constrain, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of parameters: a copy on every device."""
    return NamedSharding(mesh, PartitionSpec())


def place(array: np.ndarray, mesh: Mesh, axis: int | None = None) -> jax.Array:
    """A host array on the mesh, split along ``axis`` or replicated; every host passes the same array."""
    spec = PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, AXIS)
    return jax.make_array_from_callback(array.shape, NamedSharding(mesh, spec), lambda index: array[index])
