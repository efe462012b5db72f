"""Compiling with a cache on disk that depends on all kernels, not only on the current file.

Numba keeps the machine code of a function until the function's own file changes. Kernels, however, inline functions
and freeze constants of other kernel files: after an edit or an upgrade there, the old code would go on being used.
Here the mark of freshness that Numba writes beside the code covers all kernel files of the folder.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Like Numba's decorator of that name.

    Args:
        options: Numba's.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = numba.njit(**options)(function)
        # Numba has no public way to say what else a function is made of. Should a release keep its mark elsewhere,
        # its own check is what remains.
        index: Any = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
        own = getattr(index, "_source_stamp", None)
        if own is not None:
            index._source_stamp = (own, digest(Path(function.__code__.co_filename).parent))
        return dispatcher

    return compiled


@functools.cache
def digest(folder: Path) -> str:
    """SHA-256 of all kernel files of a folder.

    Args:
        folder: where they are.
    """
    found = hashlib.sha256()
    for path in sorted(folder.glob("_kernels*.py")):
        found.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return found.hexdigest()
