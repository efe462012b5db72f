"""Names that have moved: the old place still gives them, with a warning that says where they are now."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable
from typing import Any


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
