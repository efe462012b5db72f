"""Least squares and a penalty over any linear operator: ½‖x − Dz‖² + Ω(z), and how far a code is from the best one.

Codes and signals are those of the operator (:mod:`latentia.ops.operators`), one example; the penalty receives the
code's numbers on one axis (:mod:`latentia.ops.penalties`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from latentia.ops.operators import LinearOperator

Scalar = Float[Array, ""]


def objective(operator: LinearOperator, penalty: Any, x: Any, z: Any) -> Scalar:
    """½‖x − Dz‖² + Ω(z); without Ω if the penalty is None."""
    error = 0.5 * jnp.sum(_residual(operator, x, z) ** 2)
    return error if penalty is None else error + penalty.value(operator.flat_code(z))


def duality_gap(operator: LinearOperator, penalty: Any, x: Any, z: Any) -> Scalar:
    """How far the objective at z can be above its minimum, for a convex penalty; 0 only at the minimum."""
    r = _residual(operator, x, z)
    correlations = operator.flat_code(operator.analyse(operator.unflat_signal(r)))
    return penalty.gap(operator.flat_code(z), r, correlations)


def _residual(operator: LinearOperator, x: Any, z: Any) -> Float[Array, " d"]:
    return operator.flat_signal(jax.tree.map(jnp.subtract, x, operator.synthesise(z)))
