"""Lets mkdocstrings read the package's docstrings as Markdown; see docstrings.py.

Sections of parameters that are made from declarations stand in no source: they are taken from the imported objects.
"""

from __future__ import annotations

import inspect
import pydoc
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import to_markdown

from latentia.estimator.declared import Parameters


class MarkdownDocstrings(griffe.Extension):
    """Applies ``to_markdown`` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring in place."""
        if obj.docstring is None:
            return
        obj.docstring.value = to_markdown(written(obj.path) or obj.docstring.value)
        if obj.is_function and (taken := signature(obj.path)) is not None:
            obj.parameters = griffe.Parameters(
                *(
                    griffe.Parameter(
                        each.name,
                        kind=griffe.ParameterKind(each.kind.description),
                        default=None if each.default is each.empty else repr(each.default),
                    )
                    for each in taken.parameters.values()
                )
            )


def written(path: str) -> str | None:
    """The docstring of what has declared parameters, as it is at run time."""
    found = pydoc.locate(path)
    made = inspect.isclass(found) and issubclass(found, Parameters)
    return inspect.getdoc(found) if made or signature(path) is not None else None


def signature(path: str) -> inspect.Signature | None:
    """The signature of a method that takes declared parameters as keyword arguments."""
    return getattr(pydoc.locate(path), "__signature__", None) if inspect.isfunction(pydoc.locate(path)) else None
