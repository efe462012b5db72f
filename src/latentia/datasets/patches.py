"""Random windows cut from images, as rows of a matrix.

Sparse coding and product-of-experts models of natural images are trained on small patches rather
than on whole photographs.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from latentia.core.errors import DataError, ParameterError
from latentia.datasets.base import check_count


def extract_patches(
    images: np.ndarray | Sequence[np.ndarray],
    patch_size: int | tuple[int, int],
    n: int,
    *,
    seed: int | np.random.Generator,
) -> np.ndarray:
    """Cut ``n`` windows, each window of each image being equally likely, with replacement.

    Arguments:
        images: a list of images, each (h, w) or (h, w, channels), of any sizes; or one grey image
            (h, w), a stack of grey images (n, h, w) or a stack of colour images (n, h, w, c). Put
            a single colour image into a list.
        patch_size: side of a square window, or (height, width).
        n: number of windows.
        seed: seed or generator of the choice; the same seed gives the same windows.

    Returns:
        float32 array of shape (n, height × width [× channels]), rows in row-major order, in random
        order. Values are those of the images: nothing is scaled.

    Example:
        >>> import numpy as np
        >>> from latentia.datasets import extract_patches
        >>> extract_patches(np.eye(8), patch_size=3, n=5, seed=0).shape
        (5, 9)
    """
    height, width = _window(patch_size)
    check_count("n", n)
    pictures = _as_list(images)
    _check_pictures(pictures, height, width)
    rng = np.random.default_rng(seed)

    # One number per window over all images, so that large images are not under-represented.
    columns = np.array([p.shape[1] - width + 1 for p in pictures])
    windows = np.array([p.shape[0] - height + 1 for p in pictures]) * columns
    ends = np.cumsum(windows)
    choice = rng.integers(ends[-1], size=n)
    owner = np.searchsorted(ends, choice, side="right")
    within = choice - (ends - windows)[owner]

    out = np.empty((n, height, width, *pictures[0].shape[2:]), np.float32)
    for index, picture in enumerate(pictures):
        rows = np.flatnonzero(owner == index)
        if rows.size:
            views = np.lib.stride_tricks.sliding_window_view(picture, (height, width), axis=(0, 1))
            chosen = views[within[rows] // columns[index], within[rows] % columns[index]]
            # The view puts the window's axes last; colour belongs behind them.
            out[rows] = np.moveaxis(chosen, 1, -1) if picture.ndim == 3 else chosen
    return out.reshape(n, -1)


def _window(patch_size: int | tuple[int, int]) -> tuple[int, int]:
    if isinstance(patch_size, tuple | list):
        if len(patch_size) != 2:
            raise ParameterError(f"patch_size must be one number or (height, width), got {patch_size!r}.")
        height, width = patch_size
    else:
        height = width = patch_size
    check_count("patch_size", height)
    check_count("patch_size", width)
    return int(height), int(width)


def _as_list(images: np.ndarray | Sequence[np.ndarray]) -> list[np.ndarray]:
    if isinstance(images, np.ndarray):
        if images.ndim not in (2, 3, 4):
            raise DataError(
                f"images has shape {images.shape}; expected one grey image (h, w), a stack (n, h, w) or "
                "(n, h, w, channels), or a list of images. Rows of pixels must be reshaped first."
            )
        return [images] if images.ndim == 2 else list(images)
    return [np.asarray(image) for image in images]


def _check_pictures(pictures: list[np.ndarray], height: int, width: int) -> None:
    if not pictures:
        raise DataError("There are no images to cut patches from. Give at least one.")
    for index, picture in enumerate(pictures):
        if picture.ndim not in (2, 3) or picture.dtype.kind not in "buif":
            raise DataError(
                f"Image {index} has shape {picture.shape} and dtype {picture.dtype}; expected numbers of "
                "shape (h, w) or (h, w, channels)."
            )
        if picture.shape[2:] != pictures[0].shape[2:]:
            raise DataError(
                f"Image {index} has shape {picture.shape} but image 0 has {pictures[0].shape}: grey and "
                "colour images do not mix. Convert them all to grey or all to colour."
            )
        if picture.shape[0] < height or picture.shape[1] < width:
            hint = " (If this is one colour image, pass it in a list.)" if picture.shape[1] in (3, 4) else ""
            raise DataError(
                f"Image {index} is {picture.shape[0]}×{picture.shape[1]}, smaller than the patch "
                f"{height}×{width}. Use a smaller patch_size or leave that image out.{hint}"
            )
        if picture.dtype.kind == "f" and not np.isfinite(picture).all():
            raise DataError(f"Image {index} holds NaN or infinite values. Repair it or leave it out.")
