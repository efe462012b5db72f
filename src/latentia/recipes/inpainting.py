"""In-painting: the lower half of held-out pictures from the upper half, by clamped Gibbs sampling.

Compared, by the squared error per missing pixel, with the training pictures' mean at every pixel and with the lower
half of the training picture whose upper half is nearest.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.run_folder import RunFolder
from latentia.recipes.base import Recipe

#: True where a picture of this many rows is known.
LOWER_HALF = "lower half"


def _known(shape: tuple[int, int]) -> np.ndarray:
    mask = np.zeros(shape, bool)
    mask[: shape[0] // 2] = True
    return mask.ravel()


def inpainting(
    machine: Any,
    data: Any,
    shape: tuple[int, int],
    what: str,
    picture: Path,
    *,
    n_pictures: int = 200,
    n_draws: int = 10,
    n_steps: int = 200,
) -> dict[str, Any]:
    """Errors of a fitted machine and of two simple guesses; a picture of the first ones goes to ``picture``.

    The machine's prediction is the mean over several independent draws, which minimises the squared error.
    """
    mask = _known(shape)
    truth = np.asarray(data.X_test[:n_pictures], np.float64)
    filled = machine.sample(n_draws, given=truth, mask=mask, n_steps=n_steps, mean=True, random_state=0)
    guesses = {
        "machine": filled.reshape(len(truth), n_draws, -1).mean(axis=1)[:, ~mask],
        "mean of every pixel": np.broadcast_to(data.X.mean(axis=0)[~mask], (len(truth), int((~mask).sum()))),
        "nearest neighbour": data.X[_nearest(data.X[:, mask], truth[:, mask])][:, ~mask],
    }
    errors = {name: float(np.mean((guess - truth[:, ~mask]) ** 2)) for name, guess in guesses.items()}
    _draw(picture, truth, mask, {name: np.asarray(guess) for name, guess in guesses.items()}, shape)
    return {"what": f"{what}, squared error per missing pixel, {len(truth)} test pictures", **errors}


def _nearest(rows: np.ndarray, queries: np.ndarray) -> np.ndarray:
    distances = (rows**2).sum(axis=1)[None, :] - 2 * queries @ rows.T
    return np.argmin(distances, axis=1)


def _draw(path: Path, truth: np.ndarray, mask: np.ndarray, guesses: dict[str, np.ndarray], shape: Any) -> None:
    from matplotlib.figure import Figure

    n = min(12, len(truth))
    rows = {"original": truth[:n], "given": np.where(mask, truth[:n], np.nan)}
    for name, guess in guesses.items():
        whole = truth[:n].copy()
        whole[:, ~mask] = guess[:n]
        rows[name] = whole
    figure = Figure(figsize=(0.8 * n, 0.9 * len(rows)), dpi=160)
    axes = figure.subplots(len(rows), n, squeeze=False)
    for line, (name, pictures) in zip(axes, rows.items(), strict=True):
        for axis, pixels in zip(line, pictures, strict=True):
            axis.imshow(pixels.reshape(shape), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
            axis.set_axis_off()
        line[0].set_title(name, fontsize=7, loc="left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")


_OLIVETTI: dict[str, Any] = {
    "full": {"fit": {"hidden": (400, 200), "n_epochs": 1500, "learning_rate": 0.002}, "n_test": 100},
    "cpu": {"fit": {"hidden": (200, 100), "n_epochs": 200, "learning_rate": 0.002}, "n_test": 40},
    "quick": {"fit": {"hidden": (8, 4), "n_epochs": 2}, "n_test": 8},
}


def _olivetti(out: Path, variant: str, seed: int) -> dict[str, Any]:
    from latentia import DBM, datasets

    begin = time.perf_counter()
    settings = _OLIVETTI[variant]
    faces: Any = _split_people(datasets.load("olivetti"))
    common = {
        "visible": "gaussian",
        "optimizer": "adam",
        "clip": 10.0,
        "batch_size": 50,
        "n_chains": 100,
        "n_sampler_steps": 1,
    }
    dbm = DBM(**common, **settings["fit"], random_state=seed, run_dir=out, verbose=1).fit(faces.X)
    picture = out / "inpainting.png"
    painted = inpainting(dbm, faces, (64, 64), LOWER_HALF, picture, n_pictures=settings["n_test"])
    figures = {
        "variant": variant,
        "faces": "400 pictures of 40 people, the last ten people held out",
        "settings": {**common, **settings["fit"]},
        "in-painting": painted,
        "picture": str(picture),
        "total seconds": time.perf_counter() - begin,
    }
    RunFolder(out).write_evaluation({"recipe": figures})
    return figures


def _split_people(data: Any) -> Any:
    import dataclasses

    held_out = data.y >= 30
    parts = {"X": data.X[~held_out], "y": data.y[~held_out], "X_test": data.X[held_out], "y_test": data.y[held_out]}
    return dataclasses.replace(data, **parts)


OLIVETTI_INPAINTING = Recipe(
    "Gaussian deep Boltzmann machine on Olivetti faces: the lower half from the upper", {}, _olivetti
)
