"""Finding the files of a public data set: a folder of the user's first, then a verified download.

The folder is named by the environment variable ``LATENTIA_DATA``. Downloads go to the user's cache;
pooch writes to a temporary name and renames only after the checksum matches, so a half-downloaded
or altered file never stays in the cache as if it were good, and a cached file that has since been
damaged is fetched again.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

from latentia.core.errors import DataError

ENVIRONMENT = "LATENTIA_DATA"


@dataclasses.dataclass(frozen=True)
class RemoteFile:
    """One file of a data set: its name, the places that serve it, and its published checksum."""

    name: str
    urls: tuple[str, ...]
    checksum: str  # "md5:…" or "sha256:…", of the file as served


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a data set lives: accepted folder names below ``LATENTIA_DATA``, and its downloads."""

    dataset: str
    folders: tuple[str, ...]
    files: tuple[RemoteFile, ...]
    alternative: str = ""  # other contents that the folder may have, in words

    @property
    def layout(self) -> str:
        """The expected layout of the data folder, in words."""
        names = ", ".join(file.name for file in self.files)
        return f"${ENVIRONMENT}/{self.folders[0]}/ with {names}{self.alternative}"


def data_folder() -> Path | None:
    """The user's own data folder, if the environment names one."""
    value = os.environ.get(ENVIRONMENT, "").strip()
    return Path(value).expanduser() if value else None


def cache_folder() -> Path:
    """Where downloads are kept."""
    import pooch

    return Path(pooch.os_cache("latentia"))


def local_folders(source: Source) -> list[Path]:
    """Existing folders of the data set below ``LATENTIA_DATA``, in order of preference."""
    root = data_folder()
    return [root / name for name in source.folders if (root / name).is_dir()] if root else []


def find_local(source: Source) -> list[Path] | None:
    """All files of the data set from the user's folder, each plain or still in its ``.gz``, or None."""
    for folder in local_folders(source):
        found = [_plain_or_packed(folder / file.name) for file in source.files]
        if all(found):
            return [path for path in found if path]
    return None


def _plain_or_packed(path: Path) -> Path | None:
    names = [path, path.with_suffix("")] if path.suffix == ".gz" else [path]
    return next((name for name in names if name.is_file()), None)


def download(source: Source) -> list[Path]:
    """All files of the data set from the cache or the network, verified by checksum."""
    return [_fetch(source, file) for file in source.files]


def locate(source: Source) -> list[Path]:
    """All files of the data set: the user's folder first, then the cache or the network."""
    return find_local(source) or download(source)


def _fetch(source: Source, file: RemoteFile) -> Path:
    import pooch

    tried: list[str] = []
    for url in file.urls:
        try:
            path = pooch.retrieve(
                url, known_hash=file.checksum, fname=file.name, path=cache_folder() / source.dataset
            )
            return Path(path)
        # Network and disk trouble arrive as OSError (requests' errors derive from it), a checksum
        # that does not match as ValueError.
        except (OSError, ValueError) as error:
            tried.append(f"{url} ({_first_line(error)})")
    raise DataError(_unreachable(source, tried))


def _first_line(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0][:160]}" if text else type(error).__name__


def _unreachable(source: Source, tried: list[str]) -> str:
    from latentia.datasets.loading import bundled_names

    root = data_folder()
    if root is None:
        folder = f"the environment variable {ENVIRONMENT} is not set"
    elif not root.is_dir():
        folder = f"{ENVIRONMENT}={root} is not a folder"
    else:
        folder = f"{root} (from {ENVIRONMENT}) does not hold all of its files"
    attempts = "; ".join(tried) or "nothing, it is served as an archive only"
    return (
        f"The data set {source.dataset!r} is not at hand: {folder}, and the download failed. "
        f"Tried: {attempts}. Connect to the network, or set {ENVIRONMENT} to a folder laid out as "
        f"{source.layout}. These work offline: {', '.join(bundled_names())}."
    )
