"""Denoising by K-SVD on the noisy image itself: the literature's figures, and BM3D for reference.

    python benchmarks/ksvd_denoising.py [--threads 2] [--sigma 25] [--all] [--out FOLDER]

Patches of 8×8, 256 atoms, orthogonal matching pursuit to the error 1.15 σ √64, as in Elad and Aharon (2006), whose
figures at σ = 25 stand beside ours for House, Peppers, Lena, Barbara and Boat of ``$LATENTIA_DATA/natural/set12``;
``--all`` does all twelve. The noise is white and not clipped (seed: the image's number). Times are of a second run:
the first one compiles. BM3D (package ``bm3d``) is skipped where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
from pathlib import Path
from typing import Any

from common import pin_threads, report

#: PSNR at σ = 25 by the file's number: name, Elad and Aharon's figure.
LITERATURE = {
    2: ("House", 32.15),
    3: ("Peppers", 29.73),
    8: ("Lena", 31.32),
    9: ("Barbara", 29.60),
    10: ("Boat", 29.28),
}


def load(number: int) -> Any:
    """One of the twelve images, counted from 1."""
    import numpy as np
    from PIL import Image

    path = Path(os.environ["LATENTIA_DATA"]) / "natural" / "set12" / f"{number:02d}.png"
    return np.asarray(Image.open(path).convert("L"), np.float64)


def psnr(found: Any, wanted: Any) -> float:
    """Peak signal-to-noise ratio in decibels, peak 255."""
    import numpy as np

    return float(10 * np.log10(255**2 / np.mean((np.asarray(found, np.float64) - wanted) ** 2)))


def draw(path: Path, pictures: dict[str, Any], atoms: Any) -> None:
    """Crops side by side, and the atoms."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * (len(pictures) + 1), 4.3), dpi=90)
    axes = figure.subplots(1, len(pictures) + 1)
    for axis, (title, picture) in zip(axes, pictures.items(), strict=False):
        axis.imshow(picture[64:256, 64:256], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
        axis.set_title(title, fontsize=9)
        axis.axis("off")
    order = abs(atoms).max(axis=1).argsort()
    tiles = (atoms / abs(atoms).max(axis=1, keepdims=True))[order][:256].reshape(16, 16, 8, 8)
    axes[-1].imshow(tiles.transpose(0, 2, 1, 3).reshape(128, 128), cmap="gray", interpolation="nearest")
    axes[-1].set_title("atoms", fontsize=9)
    axes[-1].axis("off")
    figure.tight_layout()
    figure.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--sigma", type=float, default=25.0)
    parser.add_argument("--all", action="store_true", help="all twelve images, not only those with figures")
    parser.add_argument("--out", type=Path, help="folder for pictures")
    args = parser.parse_args()
    pin_threads(args.threads)
    import numpy as np

    from latentia.imaging.patchwise import denoise_image

    with_reference = importlib.util.find_spec("bm3d") is not None
    numbers = range(1, 13) if args.all else LITERATURE
    small = load(2)[:64, :64] + args.sigma * np.random.default_rng(0).normal(size=(64, 64))
    begin = time.perf_counter()
    denoise_image(small, args.sigma, n_iterations=1)
    compiling = time.perf_counter() - begin
    ours, wanted, reference, seconds = {}, {}, {}, {}
    print(f"{'PSNR, dB':<12}{'ours':>8}{'paper':>8}{'BM3D':>8}{'seconds':>9}", flush=True)
    for number in numbers:
        clean = load(number)
        noisy = clean + args.sigma * np.random.default_rng(number - 1).normal(size=clean.shape)
        begin = time.perf_counter()
        found, atoms = denoise_image(noisy, args.sigma, n_threads=args.threads, return_dictionary=True)
        seconds[number] = time.perf_counter() - begin
        name, paper = LITERATURE.get(number, (f"image {number}", float("nan")))
        ours[number] = psnr(found, clean)
        if number in LITERATURE and args.sigma == 25:
            wanted[number] = paper
        if with_reference:
            import bm3d

            reference[number] = psnr(bm3d.bm3d(noisy, args.sigma), clean)
        beside = f"{wanted.get(number, float('nan')):8.2f}{reference.get(number, float('nan')):8.2f}"
        print(f"{name:<12}{ours[number]:8.2f}{beside}{seconds[number]:9.1f}", flush=True)
        if args.out:
            args.out.mkdir(parents=True, exist_ok=True)
            titles = {f"noisy {psnr(noisy, clean):.2f} dB": noisy, f"K-SVD {ours[number]:.2f} dB": found}
            draw(args.out / f"{name.lower().replace(' ', '-')}.png", {**titles, "clean": clean}, atoms)
    compared = [ours[n] - wanted[n] for n in wanted]
    figures = {
        "average, dB": sum(ours.values()) / len(ours),
        "longest time of an image, s": max(seconds.values()),
        "compiling and a first small run, s": compiling,
    }
    if compared:
        figures["above the literature on average, dB"] = sum(compared) / len(compared)
    if reference:
        figures["BM3D, dB"] = sum(reference.values()) / len(reference)
    report(f"Denoising by K-SVD at sigma {args.sigma:g}, {args.threads} threads", figures)


if __name__ == "__main__":
    main()
