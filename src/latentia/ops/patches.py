"""Overlapping patches of an image, and the image that fits overlapping patches best.

With R_i the map from an image to its i-th patch, the x that is closest to all patches p_i and, a little, to an
image y,

    argmin over x of Σ_i ‖R_i x − p_i‖² + λ‖x − y‖²,      is      x = (Σ_i R_iᵀ p_i + λy) / (Σ_i R_iᵀ 1 + λ):

every pixel is the mean of all patches that contain it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def corners(size: int, patch: int, stride: int) -> np.ndarray:
    """Where patches begin along one side: every ``stride`` pixels, and one that ends at the border.

    >>> corners(10, 4, 4)
    array([0, 4, 6])
    """
    return np.unique(np.append(np.arange(0, size - patch + 1, stride), size - patch))


class Grid:
    """The patches of an image on a grid of corners.

    Args:
        shape: of the image, (height, width) or (height, width, channels).
        patch_shape: (height, width) of the patches.
        stride: pixels from one patch to the next.
    """

    def __init__(self, shape: tuple[int, ...], patch_shape: tuple[int, int], stride: int = 1):
        self.shape, self.patch_shape = shape, patch_shape
        self.rows, self.columns = (corners(n, p, stride) for n, p in zip(shape[:2], patch_shape, strict=True))

    def __len__(self) -> int:
        return len(self.rows) * len(self.columns)

    def bands(self, most: int) -> Iterator[np.ndarray]:
        """Corners of successive rows of patches, at most about ``most`` patches at a time."""
        step = max(1, most // len(self.columns))
        for first in range(0, len(self.rows), step):
            yield self.rows[first : first + step]

    def cut(self, image: np.ndarray, rows: np.ndarray | None = None) -> np.ndarray:
        """Patches, one a row, those of one row of corners after the other; a copy."""
        rows = self.rows if rows is None else rows
        return self._rows(image, rows[:, None], self.columns[None, :])

    def pick(self, image: np.ndarray, numbers: np.ndarray) -> np.ndarray:
        """The patches with these numbers, one a row, counted along the rows of corners."""
        return self._rows(image, self.rows[numbers // len(self.columns)], self.columns[numbers % len(self.columns)])

    def _rows(self, image: np.ndarray, tops: np.ndarray, lefts: np.ndarray) -> np.ndarray:
        views = np.lib.stride_tricks.sliding_window_view(image, self.patch_shape, axis=(0, 1))
        chosen = views[tops, lefts]
        if image.ndim == 3:  # the view puts the window's axes last; colour belongs behind them
            chosen = np.moveaxis(chosen, -3, -1)
        return np.ascontiguousarray(chosen).reshape(np.broadcast(tops, lefts).size, -1)

    def add(self, image: np.ndarray, patches: np.ndarray, rows: np.ndarray | None = None) -> None:
        """Add patches to the image where they came from, in place: the transpose of :meth:`cut`."""
        rows = self.rows if rows is None else rows
        height, width = self.patch_shape
        blocks = patches.reshape(len(rows), len(self.columns), height, width, *self.shape[2:])
        for a in range(height):
            for b in range(width):  # corners differ, so that no pixel is met twice
                image[(rows + a)[:, None], (self.columns + b)[None, :]] += blocks[:, :, a, b]

    def coverage(self) -> np.ndarray:
        """How many patches hold each pixel, (height, width)."""
        counts = []
        for size, patch, starts in zip(self.shape[:2], self.patch_shape, (self.rows, self.columns), strict=True):
            inside = np.zeros(size)
            for shift in range(patch):
                inside[starts + shift] += 1
            counts.append(inside)
        return counts[0][:, None] * counts[1][None, :]
