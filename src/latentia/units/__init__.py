"""Unit types, one file each. ``make("bernoulli", 10)`` builds a layer by name."""

from __future__ import annotations

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.units.base import AbstractUnits, Factorial
from latentia.units.bernoulli import Bernoulli
from latentia.units.categorical import Categorical
from latentia.units.gaussian import Gaussian
from latentia.units.rectified import Rectified
from latentia.units.spin import Spin

_SIMPLE = {"bernoulli": Bernoulli, "spin": Spin, "gaussian": Gaussian, "rectified": Rectified}
UNITS: dict[str, type[AbstractUnits]] = {**_SIMPLE, "categorical": Categorical}


def make(name: str, n: int, n_states: int | None = None) -> AbstractUnits:
    """A layer of ``n`` units by name; ``n_states`` is the number of states of categorical ones."""
    if name not in UNITS:
        raise UnknownNameError("unit type", name, UNITS)
    if name != "categorical":
        return _SIMPLE[name].make(n)
    if n_states is None or n_states < 2:
        raise ParameterError(f"Categorical units need at least 2 states, got n_states={n_states!r}.")
    return Categorical.make(n, n_states)


__all__ = [
    "UNITS",
    "AbstractUnits",
    "Bernoulli",
    "Categorical",
    "Factorial",
    "Gaussian",
    "Rectified",
    "Spin",
    "make",
]
