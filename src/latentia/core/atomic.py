"""Writing files so that a kill or a full disk leaves either the old file or the new one, never half of one."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from latentia.core.errors import RunFolderError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` or leave it as it was: never a half-written file."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o666 & ~_umask())  # temporary files are private; this one is not
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


@contextlib.contextmanager
def explained(path: Path) -> Iterator[None]:
    """A failure to write ``path`` becomes a :class:`RunFolderError` that says what to do."""
    try:
        yield
    except RunFolderError:
        raise
    except OSError as error:
        raise RunFolderError(_explain(path, error)) from error


def _umask() -> int:
    """The permissions that new files are not to have; reading them means setting them for a moment."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _explain(path: Path, error: OSError) -> str:
    kept = " What was saved there before is untouched." if path.exists() else ""
    if error.errno == errno.ENOSPC:
        return f"Could not write {path}: the disk is full. Free some space and run again.{kept}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return f"Could not write {path}: no permission. Choose another folder.{kept}"
    return f"Could not write {path}: {error.strerror or error}.{kept}"
