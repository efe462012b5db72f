"""Checkpoints: the complete state for resuming a run exactly, in one file that is replaced atomically."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from latentia.core.errors import RunFolderError
from latentia.core.leaves import from_arrays, to_arrays
from latentia.core.run_folder import RunFolder

#: The name of what earlier releases wrote in place of names and texts.
BEFORE = "before"
#: The name of the present names by former ones, under which earlier releases wrote the same things.
FORMER = "former names"


#: A run folder, or where it is.
Place = RunFolder | str | os.PathLike[str]


def save(folder: Place, tree: Any, progress: dict[str, Any], fingerprint: Any) -> None:
    """Replace the folder's checkpoint."""
    folder = RunFolder.of(folder)
    if folder.writes:
        description = {"kind": "checkpoint", "progress": progress, "fingerprint": fingerprint}
        folder.write_checkpoint(to_arrays(tree), description)


def load(folder: Place, like: Any, fingerprint: Any) -> tuple[Any, dict[str, Any]]:
    """(tree, progress); refuses a checkpoint of another run.

    Args:
        folder: where the checkpoint is.
        like: a tree of the same structure.
        fingerprint: a text, or texts by the name of what they stand for; what one side has no name for is not
            compared. :data:`BEFORE` names the single text that earlier releases wrote, :data:`FORMER` the
            present names by those that they used.
    """
    folder = RunFolder.of(folder)
    arrays, description = folder.read_checkpoint()
    _check_same_run(folder, description.get("fingerprint"), fingerprint)
    return from_arrays(like, arrays, source=f"The checkpoint in {folder.path}"), description["progress"]


def _check_same_run(folder: RunFolder, found: Any, wanted: Any) -> None:
    if isinstance(wanted, Mapping):
        named = isinstance(found, Mapping)
        former = wanted.get(FORMER, {})
        found = {former.get(name, name): text for name, text in found.items()} if named else {BEFORE: found}
        names = (set(found) & set(wanted)) - ({BEFORE, FORMER} if named else {FORMER})
        differing = sorted(name for name in names if found[name] != wanted[name])
    else:
        differing = [] if found == wanted else [BEFORE]
    if not differing:
        return
    said = "" if differing == [BEFORE] else f" What differs: {', '.join(differing)}."
    raise RunFolderError(
        f"The checkpoint in {folder.path} belongs to a run with other parameters or other data.{said} "
        "Resume with the same ones, or choose another folder."
    )
