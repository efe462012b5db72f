"""Draws the picture of the front page, docs/assets/learned.png, with the library itself.

    python docs/picture.py

Two minutes at most on two cores, nothing is downloaded: a Gaussian RBM learns whitened patches of the bundled
photographs, and an RBM learns the bundled digits.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
import numpy as np

from latentia import RBM, GaussianRBM
from latentia.datasets import ZCAWhitening, load

TARGET = Path(__file__).parent / "assets" / "learned.png"
GRID = (6, 10)


def tiles(rows: np.ndarray, side: int, *, symmetric: bool) -> np.ndarray:
    """The rows as one picture; each tile scaled on its own if symmetric, else all alike."""
    height, width = GRID
    tiles = rows[: height * width].reshape(-1, side, side)
    if symmetric:
        tiles = 0.5 + 0.5 * tiles / np.abs(tiles).max(axis=(1, 2), keepdims=True)
    padded = np.pad(tiles, ((0, 0), (0, 1), (0, 1)), constant_values=np.nan)
    return (
        padded.reshape(height, width, side + 1, side + 1).swapaxes(1, 2).reshape(height * (side + 1), -1)[:-1, :-1]
    )


def strongest(weights: np.ndarray) -> np.ndarray:
    """The filters, strongest first."""
    return weights[np.argsort(-np.linalg.norm(weights, axis=1))]


def main() -> None:
    """Train both models and draw."""
    digits = load("digits")
    rbm = RBM(n_components=100, binarize="sample", n_epochs=300, n_chains=100, learning_rate=0.1, random_state=0)
    rbm.fit(digits.X)
    patches = load("patches", patch_size=12, n=50_000).X
    patches = ZCAWhitening(epsilon=1e-2).fit_transform(patches - patches.mean(axis=1, keepdims=True))
    natural = GaussianRBM(
        n_components=100,
        n_epochs=100,
        n_chains=100,
        optimizer="sgd",
        learning_rate=0.3,
        momentum=0.5,
        random_state=0,
    )
    natural.fit(patches)
    panels = {
        "Filters of patches of photographs\n(Gaussian RBM)": tiles(
            strongest(np.asarray(natural.model_.weights).T), 12, symmetric=True
        ),
        "Filters of handwritten digits\n(RBM)": tiles(
            strongest(np.asarray(rbm.model_.weights).T), 8, symmetric=True
        ),
        "Digits that it draws\n(1,000 Gibbs steps, means)": tiles(
            rbm.sample(60, n_steps=1000, mean=True), 8, symmetric=False
        ),
    }
    figure, axes = plt.subplots(1, 3, figsize=(12, 3.1), layout="constrained", facecolor="white")
    for axis, (title, picture) in zip(axes, panels.items(), strict=True):
        axis.imshow(picture, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axis.set_title(title, fontsize=11)
        axis.set_axis_off()
    TARGET.parent.mkdir(exist_ok=True)
    figure.savefig(TARGET, dpi=90, metadata={"Software": None}, pil_kwargs={"optimize": True})


if __name__ == "__main__":
    main()
