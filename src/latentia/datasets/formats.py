"""Readers of the file formats that public data sets come in: idx, MATLAB and CIFAR batches.

Each reader checks what it reads and, where a file is cut off or of another kind, raises
:class:`FileFormatError` with the file's name and what to do. None of them executes anything from a
file: CIFAR's Python batches, which are pickles, go through an unpickler that allows only arrays.
"""

from __future__ import annotations

import gzip
import io
import math
import pickle
import tarfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.errors import FileFormatError

CIFAR_BATCHES = (*(f"data_batch_{i}" for i in range(1, 6)), "test_batch")
_CIFAR_PIXELS = 3 * 32 * 32


def damaged(path: Path, why: object) -> FileFormatError:
    """Return the error for a file that cannot be used."""
    return FileFormatError(
        f"{path} cannot be read: {str(why).rstrip('.')}. The file is cut off, damaged or of another kind; "
        "delete it and get it again."
    )


def read_idx(path: Path) -> np.ndarray:
    """Read an array of bytes in MNIST's idx format, packed with gzip or not."""
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"it does not unpack ({error})") from error
    # Header: two zero bytes, type 8 (unsigned byte), number of axes, then each length big-endian.
    axes = data[3] if len(data) > 3 else 0
    if data[:3] != b"\x00\x00\x08" or axes == 0 or len(data) < 4 + 4 * axes:
        raise damaged(path, "it has no idx header for unsigned bytes")
    shape = tuple(int(length) for length in np.frombuffer(data, ">u4", axes, offset=4))
    promised, held = math.prod(shape), len(data) - 4 - 4 * axes
    if promised != held:
        raise damaged(path, f"its header promises {promised} values, it holds {held}")
    return np.frombuffer(data, np.uint8, offset=4 + 4 * axes).reshape(shape)


def read_mat(path: Path, keys: Iterable[str]) -> dict[str, np.ndarray]:
    """Read the named matrices of a MATLAB file (version 5 or older)."""
    import scipy.io

    wanted = list(keys)
    try:
        content = scipy.io.loadmat(path, variable_names=wanted)
    except Exception as error:  # a damaged file makes scipy raise almost any class, struct.error to TypeError
        raise damaged(path, f"it is no readable MATLAB file ({type(error).__name__}: {error})") from error
    missing = [key for key in wanted if key not in content]
    if missing:
        raise damaged(path, f"it lacks {', '.join(missing)}")
    return {key: content[key] for key in wanted}


def read_cifar_binary(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels of one binary batch: rows of one label byte and 3,072 pixel bytes."""
    if not data or len(data) % (_CIFAR_PIXELS + 1):
        raise damaged(path, f"its {len(data)} bytes are no multiple of {_CIFAR_PIXELS + 1} (label and pixels)")
    rows = np.frombuffer(data, np.uint8).reshape(-1, _CIFAR_PIXELS + 1)
    return rows[:, 1:], rows[:, 0]


def read_cifar_python(data: bytes, path: Path) -> tuple[np.ndarray, np.ndarray]:
    """Pixels (n, 3072) and labels of one Python batch."""
    try:
        content = _ArrayUnpickler(io.BytesIO(data), encoding="bytes").load()
        content = {k.decode() if isinstance(k, bytes) else k: v for k, v in content.items()}
        pixels, labels = np.asarray(content["data"]), np.asarray(content["labels"])
    except Exception as error:  # a damaged pickle raises almost any class, a refused one UnpicklingError
        raise damaged(path, f"it is no CIFAR batch ({error})") from error
    if pixels.dtype != np.uint8 or pixels.shape != (len(labels), _CIFAR_PIXELS):
        raise damaged(path, f"its pixels have shape {pixels.shape} and type {pixels.dtype}")
    return pixels, labels


class _ArrayUnpickler(pickle.Unpickler):
    """Unpickles arrays of numbers and refuses every other class or function."""

    def find_class(self, module: str, name: str) -> Any:
        if name == "_reconstruct" and module in ("numpy.core.multiarray", "numpy._core.multiarray"):
            return np.ndarray.__reduce__(np.zeros(0))[0]  # numpy's own, wherever this release keeps it
        if module == "numpy" and name in ("ndarray", "dtype"):
            return getattr(np, name)
        if (module, name) == ("_codecs", "encode"):  # how Python 3 writes bytes in old protocols
            return _latin1
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which a batch of images does not need")


def _latin1(text: str, encoding: str = "latin1") -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"unexpected text encoding {encoding!r}")
    return text.encode("latin1")


def read_tar(path: Path, names: Iterable[str]) -> dict[str, bytes]:
    """The named members of a tar file, by base name; nothing is written to disk."""
    wanted, found = set(names), {}
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                name = Path(member.name).name
                stream = archive.extractfile(member) if member.isfile() and name in wanted else None
                if stream is not None:
                    found[name] = stream.read()
    except (tarfile.TarError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise damaged(path, f"it does not unpack ({error})") from error
    if missing := sorted(wanted - found.keys()):
        raise damaged(path, f"it lacks {', '.join(missing)}")
    return found
