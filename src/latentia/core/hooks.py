"""Which methods a class may replace: abstract methods, hooks, and nothing else.

An abstract method must be implemented. A *hook* has a default (nothing, no change, a constant, what most classes
need) and may be replaced. Every other method is final: a subclass that replaces it fails a test. A public method
whose replacement only takes further keyword arguments is *extensible*.

A decorator sets one attribute of the function and returns what it was given, so that it costs nothing at run time.
It may stand above or below ``property`` and ``classmethod``.
"""

from __future__ import annotations

import inspect
from typing import Any, Literal, TypeVar

Member = TypeVar("Member")
Freedom = Literal["hook", "extensible"]

_MARK = "__may_be_replaced__"
#: Where decorators (and Equinox, and scikit-learn) keep the function that they wrap.
_INNER = ("fget", "__func__", "method", "function", "fn", "func", "__wrapped__")


def hook(member: Member) -> Member:
    """A method with a default that subclasses may replace.

    >>> class Shape:
    ...     @property
    ...     @hook
    ...     def closed(self):
    ...         return True
    >>> freedom(vars(Shape)["closed"])
    'hook'
    """
    return _marked(member, "hook")


def extensible(member: Member) -> Member:
    """A method that subclasses may replace by one with further keyword arguments; all other calls stay possible."""
    return _marked(member, "extensible")


def freedom(member: Any) -> Freedom | None:
    """How a member of a class was marked; None for a final one."""
    return getattr(function_of(member), _MARK, None)


def function_of(member: Any) -> Any:
    """The function in a member of a class: a method, a property, a descriptor around one; None if there is none."""
    while not (member is None or inspect.isfunction(member) or inspect.isclass(member)):
        inner = (getattr(member, name, None) for name in _INNER)
        member = next((found for found in inner if callable(found)), None)
    return member if inspect.isfunction(member) else None


def _marked(member: Member, mark: Freedom) -> Member:
    function = function_of(member)
    if function is None:
        raise TypeError(f"Only methods, properties and class methods can be marked, not {member!r}.")
    setattr(function, _MARK, mark)
    return member
