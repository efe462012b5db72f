"""Methods that not every estimator has: they are absent, so that ``hasattr`` tells the truth.

scikit-learn's ``available_if`` does the same, but always says "has no attribute"; here the error says why, and what
to use instead.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any, TypeVar, cast

from latentia.core.errors import AbsentMethodError

Method = TypeVar("Method", bound=Callable[..., Any])


class _Conditional:
    """A method of those estimators for which there is no reason against it; of a class it is the plain function."""

    def __init__(self, function: Callable[..., Any], reason: Callable[[Any, str], AttributeError | None]):
        self.function, self.reason = function, reason
        functools.update_wrapper(cast(Any, self), function)

    def __get__(self, estimator: Any, owner: Any = None) -> Any:
        if estimator is None:
            return self.function
        error = self.reason(estimator, self.function.__name__)
        if error is not None:
            raise error
        return types.MethodType(self.function, estimator)


def absent_if(reason: Callable[[Any, str], AttributeError | None]) -> Callable[[Method], Method]:
    """A method that is absent from an estimator for which ``reason(estimator, name)`` returns an error."""
    return lambda function: cast(Any, _Conditional(function, reason))


def _lacking(estimator: Any, name: str) -> AttributeError | None:
    why = estimator._lacks(name)
    return None if why is None else AbsentMethodError(f"{type(estimator).__name__} has no {name}: {why}")


def absent_if_lacking(function: Method) -> Method:
    """A method that is absent where the estimator's ``_lacks`` says why."""
    return absent_if(_lacking)(function)
