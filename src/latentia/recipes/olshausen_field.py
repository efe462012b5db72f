"""Olshausen and Field (1996): sparse codes of natural images make edge detectors.

Photographs are whitened as the retina is thought to do it, by the filter

    R(f) = f · exp(−(f/f₀)⁴),      f₀ = 0.4 cycles per pixel,

which flattens the 1/f amplitude of natural images and removes the noisy corners of the spectrum. Patches cut from
them are coded by min over z and D of ½‖x − zD‖² + α‖z‖₁, ‖d‖ ≤ 1. The atoms become localised, oriented and
band-pass, like receptive fields of simple cells in the primary visual cortex. Gabor functions fitted to them
(:mod:`latentia.ops.gabor`) say where they are, how they are turned and which frequencies they prefer.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.errors import DataError
from latentia.core.run_folder import RunFolder
from latentia.recipes.base import Recipe

_SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"side": 16, "n_patches": 200_000, "n_components": 400, "n_epochs": 8},
    "cpu": {"side": 12, "n_patches": 100_000, "n_components": 200, "n_epochs": 8},
    "quick": {"side": 8, "n_patches": 2000, "n_components": 16, "n_epochs": 2},
}
#: α, for patches of unit variance a pixel.
ALPHA = 1.2
#: f₀ in cycles per pixel: 200 cycles over a picture of 512 pixels.
CUTOFF = 0.4
#: Pixels at the border that whitening spoils: it takes pictures to be periodic.
BORDER = 8
#: A fit that explains less of an atom than this is not counted in the statistics.
GOOD = 0.7


def _run(out: Path, variant: str, seed: int, images: Path | None = None) -> dict[str, Any]:
    from latentia import DictionaryLearning
    from latentia.ops.gabor import fit_gabors

    begin = time.perf_counter()
    settings = _SETTINGS[variant]
    out.mkdir(parents=True, exist_ok=True)
    side = settings["side"]
    train, held_out, examples, source = whitened_patches(images, side, settings["n_patches"], seed)
    learning = DictionaryLearning(
        settings["n_components"],
        ALPHA,
        update="online",
        n_epochs=settings["n_epochs"],
        random_state=seed,
        verbose=int(variant != "quick"),
    ).fit(train)
    learning.save(out / "atoms.safetensors")
    atoms = learning.components_
    codes = learning.codes(held_out)
    left = held_out - codes.values @ atoms
    fits = fit_gabors(atoms, (side, side))
    figures = {
        "variant": variant,
        "patches": f"{len(train):,} of {side}×{side} pixels, {len(held_out):,} held out; {source}",
        "atoms": len(atoms),
        "alpha": ALPHA,
        "atoms in a patch, mean": codes.values.nnz / len(held_out),
        "part of the variance explained": 1 - float(np.mean(left**2) / np.mean(held_out**2)),
        "kurtosis of the coefficients": kurtosis(codes.values),
        "kurtosis of the pixels": kurtosis(held_out),
        **statistics(fits, side),
        "seconds of learning": learning.history_[-1]["seconds"],
        "total seconds": time.perf_counter() - begin,
    }
    RunFolder(out).write_evaluation({"recipe": figures})
    from latentia.recipes.olshausen_field_page import write_page

    usage = np.asarray(abs(codes.values).sum(axis=0)).ravel()
    page = write_page(RunFolder(out).report, figures, examples, train, atoms, fits, usage)
    return {**figures, "report": str(page)}


def whitened(picture: np.ndarray) -> np.ndarray:
    """The picture through the filter R, without its border, with unit variance."""
    fy, fx = np.meshgrid(np.fft.fftfreq(picture.shape[0]), np.fft.fftfreq(picture.shape[1]), indexing="ij")
    f = np.hypot(fy, fx)
    filtered = np.fft.ifft2(np.fft.fft2(picture) * f * np.exp(-((f / CUTOFF) ** 4))).real
    inner = filtered[BORDER:-BORDER, BORDER:-BORDER]
    spread = inner.std()
    if not spread > 0:
        raise DataError("A picture is of one grey level: there is nothing to learn from it. Leave it out.")
    return (inner / spread).astype(np.float32)


def whitened_patches(
    images: Path | None, side: int, n: int, seed: int
) -> tuple[np.ndarray, np.ndarray, tuple[np.ndarray, np.ndarray], str]:
    """(training patches, held-out patches, a picture before and after whitening, where they come from).

    Patches have unit variance a pixel on average; the flattest tenth is left out, as it holds nothing but noise.
    """
    from latentia.datasets.bundled import photographs
    from latentia.datasets.images import load_photographs
    from latentia.datasets.patches import extract_patches

    found = photographs() if images is None else load_photographs(Path(images))
    least = side + 2 * BORDER
    small = [name for name, picture in found.items() if min(picture.shape) < least]
    if small:
        raise DataError(f"{small[0]} is smaller than {least}×{least} pixels. Leave it out or enlarge it.")
    pictures = {name: whitened(picture) for name, picture in found.items()}
    rows = extract_patches(list(pictures.values()), side, round(1.25 * n), seed=seed)
    rows -= rows.mean(axis=1, keepdims=True)
    spreads = rows.std(axis=1)
    rows = rows[spreads > np.quantile(spreads, 0.1)]
    rows /= rows.std()
    first = next(iter(found))
    names = ", ".join(found) if len(found) <= 10 else f"{len(found)} photographs"
    return rows[:n], rows[n : n + max(100, n // 20)], (found[first], pictures[first]), names


def kurtosis(values: Any) -> float:
    """Fourth moment over the squared second one: 3 for a Gaussian, more where most values are small."""
    entries, total = (values.data, np.prod(values.shape)) if hasattr(values, "indptr") else (values, values.size)
    entries = np.asarray(entries, np.float64)
    return float((np.sum(entries**4) / total) / (np.sum(entries**2) / total) ** 2)


def statistics(fits: Any, side: int) -> dict[str, Any]:
    """What the Gabor functions say, over the atoms that they describe well and whose centre is inside the patch."""
    good = fits.explained >= GOOD
    found: dict[str, Any] = {
        "variance of an atom explained by a Gabor function, median": float(np.median(fits.explained)),
        f"atoms explained to {GOOD:.0%} or more": f"{np.count_nonzero(good)} of {len(good)}",
    }
    middle = (side - 1) / 2
    inside = good & (np.maximum(np.abs(fits.x - middle), np.abs(fits.y - middle)) < side / 2)
    if inside.any():
        found |= {
            "of these with their centre inside the patch": f"{inside.sum()} of {good.sum()}",
            "frequency, median (cycles per pixel)": float(np.median(fits.peak[inside])),
            "bandwidth, median (octaves)": float(np.median(fits.bandwidth[inside])),
            "length over width, median": float(np.median(fits.aspect[inside])),
            "width of the envelope, median (pixels)": float(np.median(fits.along[inside])),
            "horizontal or vertical within 15°": float(np.mean(_cardinal(fits.orientation[inside]))),
        }
    return found


def _cardinal(orientation: np.ndarray) -> np.ndarray:
    """Whether an orientation is within 15° of an axis: a third of all if they are spread evenly."""
    off = np.mod(orientation, np.pi / 2)
    return np.minimum(off, np.pi / 2 - off) < np.radians(15)


OLSHAUSEN_FIELD = Recipe(
    "Sparse codes of whitened natural images: localised, oriented, band-pass atoms, with Gabor fits",
    {"Olshausen and Field (1996)": "192 atoms of 16×16 pixels, localised, oriented and band-pass"},
    _run,
    ("images",),
)
