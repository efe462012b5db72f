"""Callbacks with a beginning and an end: they are called when a fit begins, after every chunk, and when it ends.

The loop calls any function after every chunk (:class:`latentia.learning.fit.Event`). A log, however, must be opened
before the first stage and closed after the last one, also if the run fails; the estimator does this.
It is opened right before the first step: a fit that is refused writes no log.
"""

from __future__ import annotations

import abc
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

from latentia.core.errors import DivergenceError, NotNormalisableError
from latentia.core.hooks import hook
from latentia.learning.fit import Event

#: How a fit ended: to its end (or stopped early), by Ctrl-C, by divergence, or by another error.
Outcome = Literal["finished", "interrupted", "diverged", "failed"]


class Callback(abc.ABC):
    """A callback that is also called at the beginning and the end of a fit.

    Pass instances in an estimator's ``callbacks``. They are copied with the estimator (``clone``, a grid search),
    and so should hold nothing between two fits that cannot be copied.
    """

    @hook
    def begin(self, estimator: Any, *, goes_on: bool = False) -> None:
        """The fit begins; nothing was learned yet.

        Args:
            estimator: the estimator. Its parameters are checked and its folder, if any, is made.
            goes_on: whether this is another pass over data of a model that has learned before (``partial_fit``).
        """
        del estimator, goes_on

    @abc.abstractmethod
    def __call__(self, event: Event) -> bool | None:
        """A chunk of steps is done; True stops the run."""

    @hook
    def end(self, estimator: Any, outcome: Outcome) -> None:
        """The fit is over, well or not; ``estimator`` is fitted unless it was interrupted or failed.

        Args:
            estimator: the estimator.
            outcome: how the fit ended.
        """
        del estimator, outcome


@contextmanager
def told(estimator: Any, callbacks: Sequence[Any], *, goes_on: bool = False) -> Iterator[Callable[[], None]]:
    """A fit after which callbacks are closed; what it yields opens them, the first time that it is called.

    A log that cannot be closed causes a warning; the model is kept.
    """
    begun: list[Callback] = []
    waiting = [callback for callback in callbacks if isinstance(callback, Callback)]

    def begin() -> None:
        while waiting:
            begun.append(waiting.pop(0))
            begun[-1].begin(estimator, goes_on=goes_on)

    outcome: Outcome = "failed"
    try:
        yield begin
        begin()  # a fit without a single step has begun and ended too
        outcome = "finished"
    except KeyboardInterrupt:
        outcome = "interrupted"
        raise
    except (DivergenceError, NotNormalisableError):
        outcome = "diverged"
        raise
    finally:
        for callback in begun:
            _end(callback, estimator, outcome)


def _end(callback: Callback, estimator: Any, outcome: Outcome) -> None:
    try:
        callback.end(estimator, outcome)
    except Exception as error:
        name = type(callback).__name__
        warnings.warn(f"{name} could not be ended: {type(error).__name__}: {error}", RuntimeWarning, stacklevel=2)
