"""Grey and colour images in and out of estimators that work on patches: any sizes, one or many, checked."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from latentia.core.errors import DataError, ParameterError
from latentia.imaging.pictures import is_array

#: Rows are brightness and two differences of colour. It is orthonormal: white noise stays white, and as strong.
OPPONENT = np.array([[1, 1, 1], [1, 0, -1], [0.5, -1, 0.5]]) / np.sqrt([[3], [2], [1.5]])


def many(images: Any, patch_shape: tuple[int, int], *, gaps: bool = False) -> list[np.ndarray]:
    """The images as floating-point arrays (h, w) or (h, w, 3).

    Args:
        images: one image (h, w) or (h, w, 3), a stack of either, or a list of images of any sizes.
        patch_shape: the least height and width.
        gaps: whether pixels may be missing (NaN).
    """
    if is_array(images):
        given = np.asarray(images)
        if given.ndim not in (2, 3, 4):
            raise DataError(
                f"images has shape {given.shape}; expected one image (h, w) or (h, w, 3), a stack of them, or a "
                "list."
            )
        found = [given] if is_one(given) else list(given)
    else:
        found = [np.asarray(picture) for picture in images]
    if not found:
        raise DataError("There are no images to restore. Give at least one.")
    for index, picture in enumerate(found):
        _check(index, picture, patch_shape, gaps)
    return [p if p.dtype in (np.float32, np.float64) else p.astype(np.float32) for p in found]


def is_one(images: np.ndarray) -> bool:
    """Whether an array is a single image: two axes, or a third of the three colours."""
    return images.ndim == 2 or (images.ndim == 3 and images.shape[2] == 3)


def like(images: Any, found: list[np.ndarray]) -> Any:
    """One array where one was given, else a list."""
    if not is_array(images):
        return found
    return found[0] if is_one(np.asarray(images)) else np.stack(found)


def _check(index: int, picture: np.ndarray, least: tuple[int, int], gaps: bool) -> None:
    if picture.ndim not in (2, 3) or picture.shape[2:] not in ((), (3,)) or picture.dtype.kind not in "uif":
        raise DataError(
            f"Image {index} has shape {picture.shape} and dtype {picture.dtype}; expected numbers of shape (h, w) "
            "or, in colour, (h, w, 3). Leave out a channel of transparency, and put a stack of narrow images in a "
            "list."
        )
    if picture.shape[0] < least[0] or picture.shape[1] < least[1]:
        raise DataError(
            f"Image {index} is {picture.shape[0]}×{picture.shape[1]}, smaller than a patch ({least[0]}×{least[1]})."
        )
    if picture.dtype.kind == "f" and not gaps and not np.isfinite(picture).all():
        raise DataError(f"Image {index} holds NaN or infinite values. Fill them in first, with inpaint.")


def masks(pictures: list[np.ndarray], mask: Any) -> list[np.ndarray]:
    """One mask of the image's own shape for each image, checked: True where known."""
    if mask is None:
        found = [~np.isnan(p) for p in pictures]
    elif isinstance(mask, np.ndarray) and (mask.ndim == 2 or mask.shape == pictures[0].shape):
        found = [mask] * len(pictures)
    else:
        found = [np.asarray(m) for m in mask]
    if len(found) != len(pictures):
        raise DataError(f"There are {len(found)} masks for {len(pictures)} images. Give one, or one for each.")
    return [_mask(index, *pair) for index, pair in enumerate(zip(pictures, found, strict=True))]


def _mask(index: int, picture: np.ndarray, known: np.ndarray) -> np.ndarray:
    if known.shape not in (picture.shape, picture.shape[:2]) or known.dtype.kind != "b":
        raise DataError(
            f"Mask {index} has shape {known.shape} and dtype {known.dtype}; its image has shape {picture.shape}. "
            "A mask holds True (known) or False for every pixel."
        )
    if known.all() or not known.any():
        what = "known: there is nothing to fill in" if known.all() else "unknown: at least one must be known"
        raise DataError(f"All pixels of image {index} are {what}.")
    if known.ndim < picture.ndim:
        known = np.repeat(known[..., None], picture.shape[2], axis=2)
    if not np.isfinite(picture[known]).all():
        raise DataError(f"Image {index} holds NaN or infinite values where the mask says that it is known.")
    return known


def patch_shape_of(n_features: int, patch_shape: Any = None) -> tuple[int, int, int]:
    """(height, width, channels) of the patches that rows of so many features are.

    Args:
        n_features: d.
        patch_shape: (height, width), or one number for square patches; by default square patches, grey or RGB.
    """
    if patch_shape is None:
        for channels in (1, 3):
            side = math.isqrt(n_features // channels)
            if side**2 * channels == n_features:
                return side, side, channels
        raise ParameterError(f"{n_features} features are no square patch, grey or RGB. Give patch_shape.")
    both = tuple(patch_shape) if isinstance(patch_shape, tuple | list) else (patch_shape, patch_shape)
    if len(both) != 2 or not all(isinstance(n, int | np.integer) and n > 0 for n in both):
        raise ParameterError(f"patch_shape must be a positive integer or (height, width), got {patch_shape!r}.")
    height, width = int(both[0]), int(both[1])
    if n_features not in (height * width, 3 * height * width):
        raise ParameterError(
            f"patch_shape=({height}, {width}) has {height * width} pixels ({3 * height * width} values in colour), "
            f"but the dictionary was learned from {n_features} features."
        )
    return height, width, n_features // (height * width)
