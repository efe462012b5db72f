"""Array files: safetensors with a description, written atomically and checked when read.

Such a file contains no code: it holds named arrays, a JSON description and a SHA-256 digest of both.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.atomic import write_atomically, write_json
from latentia.core.errors import FileFormatError

__all__ = ["FORMAT_VERSION", "read_arrays", "write_arrays", "write_atomically", "write_json"]

#: The version of the layout; a file with a higher one was written by a newer release.
FORMAT_VERSION = 1
_DESCRIPTION, _DIGEST, _VERSION = "latentia", "sha256", "format_version"


def write_arrays(path: Path | str, arrays: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Write named arrays and a JSON-able description to ``path`` atomically."""
    from safetensors.numpy import save

    contiguous = {name: np.asarray(value, order="C") for name, value in arrays.items()}
    text = json.dumps(description)  # in the order given: rows of metrics come back as they were written
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
