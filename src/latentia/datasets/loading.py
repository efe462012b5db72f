"""``load`` opens every data set, by name or by path; ``available`` lists the names."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latentia.core.errors import DataError, FileFormatError, ParameterError, UnknownNameError
from latentia.datasets.base import Dataset, DatasetInfo

# name -> (module, function, one line, works offline). Adding a data set is one function and one line.
_NAMED: dict[str, tuple[str, str, str, bool]] = {
    "digits": ("bundled", "load_digits", "8×8 handwritten digits, 1,437 + 360", True),
    "patches": ("bundled", "load_patches", "random grey patches of photographs", True),
    "bars": ("synthetic", "load_bars", "synthetic binary bars with known probabilities", True),
    "mixtures": ("synthetic", "load_mixtures", "synthetic Gaussian clusters in the plane", True),
    "mnist": ("public", "load_mnist", "28×28 handwritten digits, 60,000 + 10,000", False),
    "fashion-mnist": ("public", "load_fashion_mnist", "28×28 articles of clothing, 60,000 + 10,000", False),
    "olivetti": ("public", "load_olivetti", "64×64 faces, 400 of 40 people", False),
    "cifar10": ("public", "load_cifar10", "32×32 colour photographs, 50,000 + 10,000", False),
    "caltech-silhouettes": (
        "public",
        "load_caltech_silhouettes",
        "28×28 binary shapes, 4,100 + 2,307",
        False,
    ),
    "wiki": ("pairs", "load_wiki", "picture and text features of articles, 2,173 + 693 pairs", False),
}
_SUFFIXES: dict[str, tuple[str, str]] = {
    ".npy": ("files", "load_npy"),
    ".npz": ("files", "load_npz"),
    ".safetensors": ("files", "load_safetensors"),
    ".csv": ("tables", "load_csv"),
    ".parquet": ("tables", "load_parquet"),
}


def available() -> list[DatasetInfo]:
    """List the data sets that :func:`load` finds by name."""
    return [DatasetInfo(name, line, bundled) for name, (_, _, line, bundled) in _NAMED.items()]


def bundled_names() -> list[str]:
    """Names of the data sets that work offline."""
    return [info.name for info in available() if info.bundled]


def load(name_or_path: str | os.PathLike[str], **options: Any) -> Dataset:
    """Load a data set by name, or the user's own data from a file or a folder of pictures.

    A known name wins over a file of the same name; write ``./mnist`` to mean the file.

    Arguments:
        name_or_path: a name from :func:`available`; or a path to a ``.npy``, ``.npz``,
            ``.safetensors``, ``.csv`` or ``.parquet`` file or to a folder of pictures.
        options: keyword arguments of that data set or format, for example ``patch_size`` for
            ``patches``, ``target`` for tables, ``mmap`` for ``.npy``. An unknown one is an error
            that names those that exist.

    Returns:
        A :class:`Dataset`.

    Example:
        >>> from latentia.datasets import load
        >>> load("digits")
        <Dataset digits: 1437 × 64 unit, images 8×8, labelled, 360 held out>
    """
    name = _known_name(name_or_path)
    if name is not None:
        module, function, _, _ = _NAMED[name]
        return _call(f"The data set {name!r}", module, function, (), options)
    path = Path(name_or_path).expanduser()
    if path.is_dir():
        return _call("A folder of pictures", "images", "load_image_folder", (path,), options)
    if not path.is_file():
        raise _missing(name_or_path, path)
    if path.suffix.lower() not in _SUFFIXES:
        raise FileFormatError(
            f"{path} is of no supported kind. Supported: {', '.join(_SUFFIXES)}, or a folder of pictures. "
            "Convert it to one of these."
        )
    module, function = _SUFFIXES[path.suffix.lower()]
    return _call(f"A {path.suffix.lower()} file", module, function, (path,), options)


def _known_name(name_or_path: str | os.PathLike[str]) -> str | None:
    if not isinstance(name_or_path, str | os.PathLike):
        raise ParameterError(f"load() takes a name or a path, got {type(name_or_path).__name__}.")
    name = str(name_or_path).lower().replace("_", "-") if isinstance(name_or_path, str) else ""
    return name if name in _NAMED else None


def _missing(given: str | os.PathLike[str], path: Path) -> DataError | UnknownNameError:
    looks_like_path = not isinstance(given, str) or path.suffix.lower() in _SUFFIXES or len(path.parts) > 1
    if looks_like_path or not given:
        return DataError(
            f"There is no file or folder {str(given)!r} (looked in {Path.cwd()}). Check the path; data sets "
            f"known by name: {', '.join(_NAMED)}."
        )
    return UnknownNameError("data set (and no such file)", given, _NAMED)


def _call(what: str, module: str, function: str, arguments: tuple[Path, ...], options: dict[str, Any]) -> Dataset:
    loader: Callable[..., Dataset] = getattr(importlib.import_module(f"latentia.datasets.{module}"), function)
    valid = [p.name for p in inspect.signature(loader).parameters.values() if p.kind is p.KEYWORD_ONLY]
    unknown = [option for option in options if option not in valid]
    if unknown:
        raise ParameterError(
            f"{what} has no option {', '.join(map(repr, unknown))}. "
            + (f"Options: {', '.join(valid)}." if valid else "It has no options.")
        )
    return loader(*arguments, **options)
