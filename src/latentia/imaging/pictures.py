"""Grey images in and out of estimators that restore them: any sizes, one or many, checked."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from latentia.core.errors import DataError

#: Pixels that are restored in one call.
PIXELS = 2**18


def checked(images: Any, least: tuple[int, ...], *, gaps: bool = False) -> list[np.ndarray]:
    """The images as floating-point arrays (h, w); ``gaps`` allows pixels that are not finite.

    Args:
        images: one image (h, w), a stack (n, h, w), or a list of images of any sizes.
        least: smallest height and width.
        gaps: whether pixels may be missing.
    """
    whole = is_array(images)
    given = np.asarray(images) if whole else images
    if whole and given.ndim not in (2, 3):
        raise DataError(
            f"images has shape {given.shape}; expected one grey image (h, w), a stack (n, h, w), or a list."
        )
    found = [np.asarray(picture) for picture in ([given] if whole and given.ndim == 2 else given)]
    if not found:
        raise DataError("There are no images to restore. Give at least one.")
    for index, picture in enumerate(found):
        _check(index, picture, least, gaps)
    return [picture if picture.dtype.kind == "f" else picture.astype(np.float32) for picture in found]


def is_array(images: Any) -> bool:
    """Whether images came as one array, and not as a list."""
    return isinstance(images, np.ndarray) or hasattr(images, "__array__")


def _check(index: int, picture: np.ndarray, least: tuple[int, ...], gaps: bool) -> None:
    if picture.ndim != 2 or picture.dtype.kind not in "buif":
        raise DataError(
            f"Image {index} has shape {picture.shape} and dtype {picture.dtype}; expected a grey image of numbers, "
            "(h, w). Convert colour images to grey, or restore their channels one by one."
        )
    if picture.shape[0] < least[0] or picture.shape[1] < least[1]:
        raise DataError(
            f"Image {index} is {picture.shape[0]}×{picture.shape[1]}, smaller than the filters "
            f"({least[0]}×{least[1]})."
        )
    if picture.dtype.kind == "f" and not gaps and not np.isfinite(picture).all():
        raise DataError(f"Image {index} holds NaN or infinite values. Fill them in first, with inpaint.")


def masks(pictures: list[np.ndarray], mask: Any) -> list[np.ndarray]:
    """One mask for each image, checked: True where known."""
    if mask is None:
        found = [~np.isnan(p) for p in pictures]
    elif isinstance(mask, np.ndarray) and mask.ndim == 2:
        found = [mask] * len(pictures)
    else:
        found = [np.asarray(m) for m in mask]
    if len(found) != len(pictures):
        raise DataError(f"There are {len(found)} masks for {len(pictures)} images. Give one, or one for each.")
    for index, (picture, known) in enumerate(zip(pictures, found, strict=True)):
        if known.shape != picture.shape or known.dtype.kind != "b":
            raise DataError(
                f"Mask {index} has shape {known.shape} and dtype {known.dtype}; its image has shape "
                f"{picture.shape}. A mask holds True (known) or False for every pixel."
            )
        if known.all() or not known.any():
            what = "known: there is nothing to fill in" if known.all() else "unknown: at least one must be known"
            raise DataError(f"All pixels of image {index} are {what}.")
        if not np.isfinite(picture[known]).all():
            raise DataError(f"Image {index} holds NaN or infinite values where the mask says that it is known.")
    return found


def by_shape(solve: Callable[..., Any], *lists: list[np.ndarray]) -> list[np.ndarray]:
    """``solve`` on stacks of images of one shape, no larger than :data:`PIXELS`; results in the order given."""
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, picture in enumerate(lists[0]):
        groups.setdefault(picture.shape, []).append(index)
    found: dict[int, np.ndarray] = {}
    for shape, members in groups.items():
        size = max(1, PIXELS // math.prod(shape))
        for start in range(0, len(members), size):
            block = members[start : start + size]
            stacks = [np.stack([each[i] for i in block]) for each in lists]
            values = solve(*[jnp.asarray(s, jnp.float32 if s.dtype.kind == "f" else bool) for s in stacks])
            found.update(zip(block, np.asarray(values), strict=True))
    return [found[i] for i in range(len(lists[0]))]


def like(images: Any, found: list[np.ndarray]) -> Any:
    """One array where one was given, else a list."""
    if not is_array(images):
        return found
    return found[0] if np.ndim(images) == 2 else np.stack(found)
