"""Errors for users: each says what is wrong, why, and what to do.

Every class derives from :class:`LatentiaError` and from a built-in exception, so that both
``except LatentiaError`` and the ordinary ``except ValueError`` work.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any


class LatentiaError(Exception):
    """Base class of all errors that the library raises on purpose."""


class ParameterError(LatentiaError, ValueError):
    """A parameter has the wrong type or lies outside its range."""


class DataError(LatentiaError, ValueError):
    """The data do not fit: wrong shape, wrong domain, not finite, empty."""


class UnknownNameError(ParameterError, KeyError):
    """A name (model, objective, data set …) is not known; the message suggests the nearest ones."""

    __str__ = Exception.__str__  # KeyError would print the repr of the message

    def __init__(self, kind: str, name: object, choices: Iterable[str]):
        known = sorted(choices)
        near = difflib.get_close_matches(str(name).lower(), known, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(repr(n) for n in near)}? " if near else ""
        super().__init__(f"Unknown {kind} {name!r}. {hint}Known: {', '.join(known)}.")


class CapabilityError(LatentiaError, TypeError):
    """An algorithm needs something that the model cannot do."""


class AbsentMethodError(CapabilityError, AttributeError):
    """A method that the family does not have; ``hasattr`` is False for it."""


class NotNormalisableError(LatentiaError, ValueError):
    """The energy has no finite normaliser, so the model defines no distribution.

    ``result`` holds what training had reached before, if it was training that went there.
    """

    result: Any = None


class DivergenceError(LatentiaError, ArithmeticError):
    """Training kept diverging; ``result`` holds the last good state."""

    result: Any = None


class FileFormatError(LatentiaError, ValueError):
    """A file is cut off, tampered with, of another kind, or written by a newer version."""


class MissingPackageError(LatentiaError, ImportError):
    """An optional package is not installed; the message says how to install it."""


class RunFolderError(LatentiaError, OSError):
    """A run folder cannot be used: it exists already, is incomplete, or cannot be written."""
