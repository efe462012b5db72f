"""Array files: safetensors with a description, written atomically and checked when read.

Nothing in such a file is executed: it holds named arrays, a JSON description and a SHA-256 digest of both.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.errors import FileFormatError, RunFolderError

#: The version of the layout; a file with a higher one was written by a newer release.
FORMAT_VERSION = 1
_DESCRIPTION, _DIGEST, _VERSION = "latentia", "sha256", "format_version"


def write_atomically(path: Path, content: bytes) -> None:
    """Replace ``path`` by ``content`` or leave it as it was: never a half-written file."""
    try:
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


def write_json(path: Path, value: Any) -> None:
    """Write JSON atomically."""
    write_atomically(path, (json.dumps(value, indent=2) + "\n").encode())


def write_arrays(path: Path | str, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Write named arrays and a JSON-able description to ``path`` atomically."""
    from safetensors.numpy import save

    contiguous = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    text = json.dumps(description, sort_keys=True)
    metadata = {_DESCRIPTION: text, _DIGEST: _digest(contiguous, text), _VERSION: str(FORMAT_VERSION)}
    write_atomically(Path(path), save(contiguous, metadata))


def read_arrays(path: Path | str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """(arrays, description) of a file that :func:`write_arrays` wrote; anything else is refused."""
    from safetensors import SafetensorError, safe_open

    path = Path(path)
    if not path.is_file():
        raise FileFormatError(f"There is no model file at {path}. Check the path.")
    try:
        with safe_open(str(path), framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError, TypeError) as error:
        raise FileFormatError(
            f"{path} is not a complete safetensors file ({error}). It may be cut off or of another kind; "
            "save the model again or restore a copy."
        ) from error
    if _DESCRIPTION not in metadata:
        raise FileFormatError(f"{path} is a safetensors file, but not one that Latentia wrote.")
    version = metadata.get(_VERSION, "?")
    if not version.isdigit() or int(version) > FORMAT_VERSION:
        raise FileFormatError(
            f"{path} has format version {version}; this release reads up to {FORMAT_VERSION}. Upgrade latentia."
        )
    if metadata.get(_DIGEST) != _digest(arrays, metadata[_DESCRIPTION]):
        raise FileFormatError(
            f"{path} was changed after it was saved: its checksum does not match. Restore a copy."
        )
    return arrays, json.loads(metadata[_DESCRIPTION])


def _digest(arrays: Mapping[str, np.ndarray], text: str) -> str:
    digest = hashlib.sha256(text.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}|{array.dtype}|{array.shape}|".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()
