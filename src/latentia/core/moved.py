"""Names that have changed: the old ones still work, with a warning that gives the new ones."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def moved(old: str, names: dict[str, str]) -> Callable[[str], Any]:
    """A module's ``__getattr__``: ``names`` says in which module each name is now; "*" stands for all others."""

    def find(name: str) -> Any:
        new = names.get(name, names.get("*"))
        if new is None or name.startswith("__"):
            raise AttributeError(f"module {old!r} has no attribute {name!r}")
        found = getattr(importlib.import_module(new), name)
        warnings.warn(f"{old}.{name} is {new}.{name} now; the old name will go.", DeprecationWarning, stacklevel=2)
        return found

    return find


def renamed(**names: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A decorator for functions some of whose arguments had other names: ``names`` says which they have now.

    >>> renamed(k="n_steps")(lambda n_steps=1: n_steps)(n_steps=3)
    3
    """

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(function)
        def call(*arguments: P.args, **given: P.kwargs) -> T:
            for old, new in names.items():
                if old in given:
                    if new in given:
                        raise TypeError(f"{function.__name__}: {old} is the former name of {new}; give only {new}.")
                    text = f"The argument {old} of {function.__name__} is {new} now; the old name will go."
                    warnings.warn(text, DeprecationWarning, stacklevel=2)
                    given[new] = given.pop(old)
            return function(*arguments, **given)

        call.former_names = names  # type: ignore[attr-defined]
        return call

    return decorate
