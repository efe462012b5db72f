"""Sprite sheets: many small pictures as one PNG inside the page, one pixel for each value.

The page's script cuts the tiles out and enlarges them without smoothing, so they are crisp at any size, and a
thousand of them weigh little. A tile is a picture, grey or in colour; rows that are no pictures become tiles one
pixel high, which the script draws as bars.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

#: Pictures larger than this are shrunk by a whole number.
MOST_SIDE = 48
#: The middle grey of signed tiles: zero.
_MIDDLE = 127.5


def layout(image_shape: Sequence[int] | None, n_features: int) -> tuple[int, ...]:
    """The shape of a tile for rows of so many features: their picture's, shrunk if large, or one row of bars."""
    if image_shape is None:
        return (1, n_features)
    height, width, *rest = (int(side) for side in image_shape)
    factor = _factor(height, width)
    return (math.ceil(height / factor), math.ceil(width / factor), *rest)


def tiles(rows: np.ndarray, image_shape: Sequence[int] | None) -> np.ndarray:
    """Flat rows as tiles of the shape that :func:`layout` says, each of their pixels a mean of the original's."""
    rows = np.nan_to_num(np.asarray(rows, np.float64))
    if image_shape is None:
        return rows[:, None, :]
    pictures = rows.reshape(len(rows), *(int(side) for side in image_shape))
    factor = _factor(*pictures.shape[1:3])
    if factor == 1:
        return pictures
    height, width = pictures.shape[1:3]
    pad = ((0, 0), (0, -height % factor), (0, -width % factor), *[(0, 0)] * (pictures.ndim - 3))
    pictures = np.pad(pictures, pad, mode="edge")
    blocks = pictures.reshape(
        len(rows), pictures.shape[1] // factor, factor, pictures.shape[2] // factor, factor, *pictures.shape[3:]
    )
    return blocks.mean(axis=(2, 4))


def sheet(values: np.ndarray, low: float, high: float) -> dict[str, Any]:
    """Tiles ``(n, h, w)`` or ``(n, h, w, 3)`` as one PNG; ``low`` is black and ``high`` white.

    Returns:
        What the script needs: ``src``, ``columns``, ``tile`` (height, width), ``low``, ``high``, ``colour``.
    """
    from PIL import Image

    n, height, width = values.shape[:3]
    span = high - low if high > low else 1.0
    grey = np.clip(np.rint((values - low) / span * 255), 0, 255).astype(np.uint8)
    columns = max(1, min(n, round(math.sqrt(n * height / width)) or 1))
    lines = math.ceil(n / columns)
    canvas = np.zeros((lines * columns, *grey.shape[1:]), np.uint8)
    canvas[:n] = grey
    canvas = canvas.reshape(lines, columns, *grey.shape[1:]).swapaxes(1, 2)
    canvas = canvas.reshape(lines * height, columns * width, *grey.shape[3:])
    buffer = io.BytesIO()
    Image.fromarray(canvas).save(buffer, format="PNG", optimize=True)
    return {
        "src": "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode(),
        "columns": columns,
        "tile": [height, width],
        "low": float(low),
        "high": float(high),
        "colour": values.ndim == 4,
        "signed": False,
    }


def signed_sheet(values: np.ndarray) -> dict[str, Any]:
    """Tiles with a contrast of their own each, symmetric around zero: ±1 is the largest size in the tile."""
    size = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True)
    found = sheet(values / np.where(size > 0, size, 1.0), -1.0, 1.0)
    return {**found, "signed": True}


def grey_range(rows: np.ndarray) -> tuple[float, float]:
    """What is black and what is white: 0 and 1 where values keep that meaning, else nearly all of their range."""
    rows = np.asarray(rows, np.float64)
    rows = rows[np.isfinite(rows)]
    if not rows.size:
        return 0.0, 1.0
    low, high = float(rows.min()), float(rows.max())
    if low >= 0 and high <= 1 and high > 0.5:
        return 0.0, 1.0
    low, high = (float(q) for q in np.quantile(rows, (0.002, 0.998)))  # a few bright pixels must not darken all
    return (low, high) if high > low else (low - 0.5, low + 0.5)


def _factor(height: int, width: int) -> int:
    return max(1, math.ceil(max(height, width) / MOST_SIDE))
