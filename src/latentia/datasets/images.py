"""A folder of pictures as a data set: one row per picture, values in [0, 1]."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from latentia.core.errors import DataError, FileFormatError
from latentia.datasets.base import Dataset

if TYPE_CHECKING:
    from PIL.Image import Image

SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".pgm", ".ppm", ".pbm", ".tif", ".tiff", ".webp")


def load_image_folder(path: Path, *, color: bool = False) -> Dataset:
    """All pictures directly in the folder, sorted by name, grey unless ``color=True``.

    They must be of one size; other files and subfolders are passed over.
    """
    files = picture_files(path)
    first = _read(files[0], color)
    rows = np.empty((len(files), first.size), np.float32)
    for index, file in enumerate(files):
        picture = first if index == 0 else _read(file, color)
        if picture.shape != first.shape:
            raise DataError(
                f"All pictures of a folder must be of one size: {files[0].name} is {_size(first)} but "
                f"{file.name} is {_size(picture)}. Resize or crop them, or cut patches with extract_patches."
            )
        rows[index] = picture.ravel()
    kind = "RGB" if color else "grey"
    return Dataset(
        name=path.resolve().name or "images",
        X=rows,
        image_shape=first.shape,
        domain="unit",
        description=f"{len(files)} {kind} pictures from the folder {path.name}, scaled to [0, 1]; no split.",
    )


def load_photographs(path: Path) -> dict[str, np.ndarray]:
    """All pictures directly in the folder, grey in [0, 1], of any sizes, by name; for cutting patches."""
    return {file.name: _read(file, color=False) for file in picture_files(path)}


def picture_files(path: Path) -> list[Path]:
    """The picture files directly in the folder, sorted by name; an error if there are none."""
    if not path.is_dir():
        raise DataError(f"{path} is not a folder of pictures.")
    files = sorted(p for p in path.iterdir() if p.is_file() and p.suffix.lower() in SUFFIXES)
    if not files:
        inner = any(p.is_dir() for p in path.iterdir())
        hint = " Its subfolders are not searched: pass one of them." if inner else ""
        raise DataError(f"The folder {path} holds no pictures ({', '.join(SUFFIXES)}).{hint}")
    return files


def _size(picture: np.ndarray) -> str:
    return f"{picture.shape[1]}×{picture.shape[0]}"


def _read(file: Path, color: bool) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(file) as image:
            return _to_unit(image, color)
    # Pillow reports damage as OSError, SyntaxError (PNG), ValueError or EOFError, by format.
    except (OSError, SyntaxError, ValueError, EOFError, UnidentifiedImageError) as error:
        raise FileFormatError(
            f"{file} is not a readable picture ({error}). It is cut off or of another kind; replace or remove it."
        ) from error


def _to_unit(image: Image, color: bool) -> np.ndarray:
    if image.mode.startswith("I"):
        # Sixteen-bit grey: Pillow's own conversion to eight bits would clip everything above 255.
        grey = np.clip(np.asarray(image).astype(np.float32) / 65535, 0, 1)
        return np.repeat(grey[..., None], 3, axis=2) if color else grey
    if image.mode == "F":
        raise ValueError("it holds floating-point values of unknown scale; save it as 8- or 16-bit")
    return np.asarray(image.convert("RGB" if color else "L"), np.float32) / np.float32(255)
