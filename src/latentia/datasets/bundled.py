"""Real data that need no download: scikit-learn's digits, and patches of bundled photographs."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from latentia.core.errors import DataError, UnknownNameError
from latentia.datasets.base import Dataset, check_count
from latentia.datasets.patches import extract_patches

_SKLEARN_PHOTOGRAPHS = {"china": "china.jpg", "flower": "flower.jpg"}
# Photographs inside scikit-image's wheel. They are opened by path rather than through
# skimage.data, which would quietly download whatever a release happens not to ship.
_SKIMAGE_PHOTOGRAPHS = {
    "astronaut": "astronaut.png",
    "camera": "camera.png",
    "chelsea": "chelsea.png",
    "coffee": "coffee.png",
    "motorcycle": "motorcycle_left.png",
    "rocket": "rocket.jpg",
}
_LUMA = np.array([0.299, 0.587, 0.114])  # ITU-R BT.601, the weights that Pillow's mode "L" uses


def load_digits() -> Dataset:
    """Handwritten digits of 8×8 pixels (UCI, 1,797 of them), split 80/20 by default_rng(0)."""
    from sklearn.datasets import load_digits as sklearn_digits

    pixels, labels = (np.asarray(part) for part in sklearn_digits(return_X_y=True))
    rows = (pixels / 16).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = np.split(order, [int(0.8 * len(rows))])
    return Dataset(
        name="digits",
        X=rows[train],
        y=labels[train],
        X_test=rows[test],
        y_test=labels[test],
        image_shape=(8, 8),
        domain="unit",
        description=(
            f"scikit-learn's 8×8 handwritten digits, grey levels 0–16 scaled to [0, 1]; random split "
            f"{len(train)}/{len(test)} by default_rng(0)."
        ),
    )


def load_patches(
    *, patch_size: int = 12, n: int = 20_000, seed: int = 0, images: Sequence[str] | None = None
) -> Dataset:
    """Random grey patches of bundled photographs, values in [0, 1].

    ``images`` names the photographs: ``china`` and ``flower`` come with scikit-learn; ``astronaut``,
    ``camera``, ``chelsea``, ``coffee``, ``motorcycle`` and ``rocket`` with scikit-image. The default
    takes all that are installed, so name them where a result must be the same everywhere.
    """
    check_count("patch_size", patch_size)
    found = photographs(images)
    rows = extract_patches(list(found.values()), patch_size, n, seed=seed)
    return Dataset(
        name="patches",
        X=rows,
        image_shape=(patch_size, patch_size),
        domain="unit",
        description=(
            f"{n} random {patch_size}×{patch_size} grey patches in [0, 1], seed {seed}, of the photographs "
            f"{', '.join(found)}."
        ),
    )


def photographs(names: Sequence[str] | None = None) -> dict[str, np.ndarray]:
    """Bundled photographs by name, grey in [0, 1]; by default all that are installed."""
    if isinstance(names, str):  # a command line gives "china,flower"
        names = [name.strip() for name in names.split(",")]
    known = _SKLEARN_PHOTOGRAPHS | _SKIMAGE_PHOTOGRAPHS
    chosen: dict[str, np.ndarray] = {}
    for name in known if names is None else names:
        if name not in known:
            raise UnknownNameError("photograph", name, known)
        if name in _SKLEARN_PHOTOGRAPHS:
            chosen[name] = _sklearn_photograph(_SKLEARN_PHOTOGRAPHS[name])
            continue
        folder = _skimage_folder()
        if folder and (folder / known[name]).is_file():
            chosen[name] = _grey(_open(folder / known[name]))
        elif names is not None:
            raise DataError(
                f"The photograph {name!r} comes with scikit-image, which is not installed or does not "
                f"ship it. Run `pip install scikit-image`, or choose from: {', '.join(_SKLEARN_PHOTOGRAPHS)}."
            )
    return chosen


def _sklearn_photograph(filename: str) -> np.ndarray:
    from sklearn.datasets import load_sample_image

    return _grey(load_sample_image(filename))


def _skimage_folder() -> Path | None:
    spec = importlib.util.find_spec("skimage")  # finds the folder without importing the package
    return Path(spec.origin).parent / "data" if spec and spec.origin else None


def _open(path: Path) -> np.ndarray:
    from PIL import Image

    with Image.open(path) as image:
        return np.asarray(image)


def _grey(image: np.ndarray) -> np.ndarray:
    levels = image if image.ndim == 2 else image[..., :3] @ _LUMA
    # Rounding of the weights may carry white a hair above 1.
    return np.clip(levels / 255, 0, 1).astype(np.float32)
