"""Exact log Z by enumerating whichever side of the model is small enough.

Gaussian and rectified layers are covered by the other, discrete side; see :mod:`latentia.inference.enumeration`.
Everything is accumulated in float64.
"""

from __future__ import annotations

import math
import time
from typing import Any

from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractModel, Scalar
from latentia.inference.enumeration import CHUNK, LIMIT, can_enumerate, log_sum, smallest_side
from latentia.likelihood.precision import double, to_double
from latentia.likelihood.result import LogZ
from latentia.ops.compiling import jitted

_CHUNK = CHUNK

__all__ = ["LIMIT", "can_enumerate", "log_z", "smallest_side", "sum_states"]


def log_z(model: AbstractModel, *, limit: int = LIMIT) -> LogZ:
    """Exact log Z; an error that says what stands in the way if there are too many states."""
    side = smallest_side(model)
    if math.isinf(side.log_count):
        raise CapabilityError(
            f"{type(model).__name__} has no discrete side that could be enumerated once the other is "
            "integrated out, so there is no exact log Z. Use method='ais'."
        )
    if not can_enumerate(model, limit):
        raise ParameterError(
            f"An exact log Z of this {type(model).__name__} needs {side}, more "
            f"than the limit of {limit:,}. Use method='ais', or raise the limit."
        )
    began = time.perf_counter()
    with double():
        value = float(sum_states(to_double(model), side.name))
    details = {"states": side.count, "side": side.name, "seconds": time.perf_counter() - began}
    method = f"exact (enumeration of {side.count} {side.name} states)"
    return LogZ(value, value, value, 0.0, method, details)


@jitted
def sum_states(model: Any, name: str) -> Scalar:
    """log Σ exp(−energy) over all states of the named side."""
    return log_sum(model, name, chunk=_CHUNK)
