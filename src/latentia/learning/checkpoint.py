"""Checkpoints: everything a run needs to go on exactly where it was, in one file replaced atomically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from latentia.core.errors import RunFolderError
from latentia.core.files import read_arrays, write_arrays
from latentia.core.leaves import from_arrays, to_arrays
from latentia.learning.fingerprints import described

FILE = "checkpoint.safetensors"


def save(folder: Path, tree: Any, progress: dict[str, Any], fingerprint: str) -> None:
    """Replace the folder's checkpoint."""
    write_arrays(
        folder / FILE,
        to_arrays(tree),
        {"kind": "checkpoint", "progress": progress, "fingerprint": fingerprint},
    )


def exists(folder: Path) -> bool:
    """Whether there is something to resume."""
    return (folder / FILE).is_file()


def load(folder: Path, like: Any, fingerprint: str) -> tuple[Any, dict[str, Any]]:
    """(tree, progress); refuses a checkpoint of another run."""
    arrays, description = read_arrays(folder / FILE)
    found = description.get("fingerprint")
    if found != fingerprint:
        raise RunFolderError(
            f"The checkpoint in {folder} belongs to a run with other parameters or other data"
            f"{described(found, fingerprint)}. Resume with the same ones, or choose another folder."
        )
    return from_arrays(like, arrays, source=f"The checkpoint in {folder}"), description["progress"]
