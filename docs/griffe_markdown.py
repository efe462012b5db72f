"""Lets mkdocstrings read the package's docstrings as Markdown; see docstrings.py."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import to_markdown


class MarkdownDocstrings(griffe.Extension):
    """Applies ``to_markdown`` to every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring in place."""
        if obj.docstring is not None:
            obj.docstring.value = to_markdown(obj.docstring.value)
