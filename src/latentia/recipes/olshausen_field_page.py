"""The page of the Olshausen–Field experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from latentia.recipes.olshausen_field import BORDER, CUTOFF, GOOD
from latentia.report import plots
from latentia.report.article import Section, pictures, table, text, write_article
from latentia.report.theme import BLUE, CSS_DPI, INK, MUTED, RULE, dress


def write_page(
    path: Path,
    figures: dict[str, Any],
    examples: tuple[np.ndarray, np.ndarray],
    patches: np.ndarray,
    atoms: np.ndarray,
    fits: Any,
    usage: np.ndarray,
) -> Path:
    """Everything that the experiment found, to be read from top to bottom."""
    side = round(atoms.shape[1] ** 0.5)
    order = np.argsort(-usage, kind="stable")
    sections = [
        _data(figures, examples, patches, side),
        _atoms(figures, atoms[order], side),
        _gabors(figures, atoms, fits, side),
        _summary(figures),
    ]
    return write_article(path, "Sparse codes of natural images", sections)


def _data(figures: dict[str, Any], examples: tuple[np.ndarray, ...], patches: np.ndarray, side: int) -> Section:
    before, after = examples
    height, width = (min(240, n) for n in after.shape)
    inside = before[BORDER : BORDER + height, BORDER : BORDER + width]
    return Section(
        "The data",
        [
            text(
                f"{figures['patches']}. Every photograph is whitened by R(f) = f · exp(−(f/f₀)⁴), f₀ = {CUTOFF} "
                "cycles per pixel; patches lose their means, and the flattest tenth is left out."
            ),
            pictures(
                (photograph(inside, 0, 1), "A photograph"),
                (photograph(after[:height, :width], -3, 3), "The same, whitened"),
                (plots.image_grid(patches[:64], (side, side), signed=True), "Whitened patches"),
            ),
        ],
    )


def _atoms(figures: dict[str, Any], atoms: np.ndarray, side: int) -> Section:
    return Section(
        "Atoms",
        [
            text(
                f"min ½‖x − zD‖² + α‖z‖₁ with α = {figures['alpha']:g}: a held-out patch uses "
                f"{figures['atoms in a patch, mean']:.1f} of {figures['atoms']} atoms on average, and they explain "
                f"{100 * figures['part of the variance explained']:.0f} % of its variance. Each atom has its own "
                "contrast; blue is negative, red is positive. The most used come first."
            ),
            pictures((plots.image_grid(atoms, (side, side), signed=True, n=400), "All atoms")),
        ],
    )


def _gabors(figures: dict[str, Any], atoms: np.ndarray, fits: Any, side: int) -> Section:
    good = np.flatnonzero(fits.explained >= GOOD)
    best = np.argsort(-fits.explained, kind="stable")
    shown = best[np.linspace(0, len(best) - 1, min(16, len(best))).round().astype(int)]
    drawn = fits.pictures((side, side)).reshape(len(atoms), -1)
    tops = np.abs(atoms[shown]).max(axis=1, keepdims=True)
    strip = plots.reconstructions(atoms[shown] / tops, drawn[shown] / tops, (side, side), n=len(shown))
    drawings = [(strip, "Atoms, from the best fit to the worst; their Gabor functions below")]
    if len(good):
        drawings.append(
            (polar(fits, good), "Preferred orientation (of the stripes) and frequency; cycles per pixel")
        )
        drawings.append((places(fits, good, side), "Where atoms look: centres, drawn along the stripes"))
        band = fits.bandwidth[good]
        drawings.append(
            (
                plots.histogram(
                    band[np.isfinite(band)], label="bandwidth in octaves", count="share of fitted atoms"
                ),
                "Bandwidths",
            )
        )
        drawings.append(
            (
                plots.histogram(fits.explained, label="part of an atom explained", count="share of atoms"),
                "How well Gabor functions fit",
            )
        )
    return Section(
        "Gabor functions",
        [
            text(
                "g = a exp(−½(u²/s_u² + v²/s_v²)) cos(2πfu + φ), fitted to every atom by least squares. The "
                f"statistics are of atoms that are explained to {GOOD:.0%} or more: "
                f"{figures[f'atoms explained to {GOOD:.0%} or more']}."
            ),
            pictures(*drawings),
        ],
    )


def _summary(figures: dict[str, Any]) -> Section:
    rows = [[name, _shown(value)] for name, value in figures.items() if name not in ("variant", "patches")]
    return Section("In numbers", [table(["what", "value"], rows, words=True)])


def _shown(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def photograph(picture: np.ndarray, black: float, white: float) -> Figure:
    """A picture in grey, two pixels of the figure for each of its own."""
    height, width = picture.shape
    figure = Figure(figsize=(width / CSS_DPI, height / CSS_DPI), dpi=2 * CSS_DPI)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.imshow(picture, cmap="gray", vmin=black, vmax=white, interpolation="nearest", aspect="auto")
    axes.axis("off")
    return figure


def polar(fits: Any, chosen: np.ndarray) -> Figure:
    """One point an atom: its angle is that of the stripes, its radius the frequency it answers to best."""
    figure = Figure(figsize=(330 / CSS_DPI, 330 / CSS_DPI), dpi=CSS_DPI, layout="constrained")
    axes: Any = figure.add_subplot(projection="polar")
    axes.set_facecolor("none")
    # Pictures count y downwards: an angle in them is the opposite one on paper. Stripes stand across the wave.
    angles = np.mod(np.pi / 2 - fits.orientation[chosen], np.pi)
    both = np.concatenate([angles, angles + np.pi])  # a stripe has no direction
    axes.scatter(both, np.tile(fits.peak[chosen], 2), s=9, color=BLUE, alpha=0.6, linewidths=0)
    axes.set_ylim(0, 0.5)
    axes.set_yticks([0.1, 0.2, 0.3, 0.4, 0.5])
    axes.tick_params(colors=MUTED, labelsize=9)
    axes.grid(color=RULE, linewidth=0.8)
    axes.spines["polar"].set_color(RULE)
    return figure


def places(fits: Any, chosen: np.ndarray, side: int) -> Figure:
    """A short line for every atom at its centre, along its stripes."""
    figure = Figure(figsize=(330 / CSS_DPI, 330 / CSS_DPI), dpi=CSS_DPI, layout="constrained")
    axes = dress(figure.add_subplot(), x="pixels", y="pixels", grid="both")
    for k in chosen:
        theta, half = fits.orientation[k], min(0.5 * fits.across[k], 0.08 * side)
        dx, dy = -half * np.sin(theta), half * np.cos(theta)
        axes.plot([fits.x[k] - dx, fits.x[k] + dx], [fits.y[k] - dy, fits.y[k] + dy], color=BLUE, linewidth=1.1)
    axes.set(xlim=(-1, side), ylim=(side, -1), aspect="equal")
    axes.set_title(f"{len(chosen)} atoms", loc="left", fontsize=10, color=INK)
    return figure
