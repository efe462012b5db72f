"""Checks of parameters: what each may be, and errors that say so."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from latentia.core.errors import ParameterError, UnknownNameError

Check = Callable[[str, Any], None]


def integer(low: int, *, optional: bool = False) -> Check:
    """An integer of at least ``low``."""

    def check(name: str, value: Any) -> None:
        if value is None and optional:
            return
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < low:
            raise ParameterError(f"{name} must be an integer of at least {low}{_or_none(optional)}, got {value!r}.")

    return check


def sizes(least: int) -> Check:
    """A sequence of at least ``least`` positive integers."""

    def check(name: str, value: Any) -> None:
        fits = isinstance(value, Sequence) and not isinstance(value, str) and len(value) >= least
        whole = fits and all(
            isinstance(n, numbers.Integral) and not isinstance(n, bool) and int(n) > 0 for n in value
        )
        if not whole:
            raise ParameterError(f"{name} must be a tuple of at least {least} positive integers, got {value!r}.")

    return check


def number(low: float, high: float = float("inf"), *, open_low: bool = False, open_high: bool = False) -> Check:
    """A finite number in a range; an end is excluded if it is open."""

    def check(name: str, value: Any) -> None:
        fits = isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value)
        if fits:
            above = low < float(value) if open_low else low <= float(value)
            fits = above and (float(value) < high if open_high else float(value) <= high)
        if not fits:
            span = f"{'(' if open_low else '['}{low:g}, {high:g}{')' if open_high or high == float('inf') else ']'}"
            raise ParameterError(f"{name} must be a number in {span}, got {value!r}.")

    return check


def one_of(*choices: str | None) -> Check:
    """One of some names."""

    def check(name: str, value: Any) -> None:
        if value is None and None in choices:
            return
        if value not in choices:
            raise UnknownNameError(name, value, [c for c in choices if c is not None])

    return check


def flag(name: str, value: Any) -> None:
    """True or False."""
    if not isinstance(value, bool) and value not in (0, 1):
        raise ParameterError(f"{name} must be True or False, got {value!r}.")


def check_parameters(holder: Any) -> None:
    """Check every parameter whose declaration says how; NumPy's numbers become Python's.

    A number of NumPy's has a type, which computations with it would take on; a Python number takes on theirs.
    """
    for name, value in list(vars(holder).items()):
        if name == name.strip("_") and isinstance(value, np.generic):  # not what was fitted
            setattr(holder, name, value.item())
    for each in holder.declared.values():
        if each.check is not None:
            each.check(each.name, getattr(holder, each.name))


def _or_none(optional: bool) -> str:
    return " or None" if optional else ""
