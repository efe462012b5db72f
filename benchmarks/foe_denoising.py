"""Denoising by a field of experts against total variation and wavelets, with BM3D for reference.

    python benchmarks/foe_denoising.py [--out FOLDER] [--field FILE] [--threads 2] [--epochs 10] [--sigma 25]

24 filters of 5×5 are learned from patches of 110 photographs of ``$LATENTIA_DATA/natural/bsds500_train``, by
denoising score matching at noise 5; the field's λ and blur are then chosen on noisy crops of the other 10. The test
images are all of ``$LATENTIA_DATA/natural/set12``, with white noise that is not clipped (seed: the image's number).

The peers, scikit-image's ``denoise_tv_chambolle`` and ``denoise_wavelet`` (BayesShrink and VisuShrink, with and
without cycle spinning), get the true σ and are tuned *on the test images themselves*: for each the setting with the
best average. BM3D (package ``bm3d``) gets the true σ. Needs scikit-image and bm3d.
"""

from __future__ import annotations

import argparse
import itertools
import os
import time
import warnings
from pathlib import Path
from typing import Any

from common import pin_threads, report

#: Photographs left out of the training, to choose λ and blur on.
HELD_OUT = 10
PATCH, N_PATCHES, BATCH, TAU = 32, 8000, 16, 5.0


def load(folder: str) -> tuple[list[str], list[Any]]:
    """(names, grey images) of a folder of the data."""
    import numpy as np
    from PIL import Image

    files = sorted((Path(os.environ["LATENTIA_DATA"]) / "natural" / folder).iterdir())
    return [f.stem for f in files], [np.asarray(Image.open(f).convert("L"), np.float64) for f in files]


def with_noise(images: list[Any], sigma: float) -> list[Any]:
    """White noise from the image's number."""
    import numpy as np

    return [x + sigma * np.random.default_rng(i).normal(size=x.shape) for i, x in enumerate(images)]


def psnr(found: Any, wanted: Any) -> float:
    """Peak signal-to-noise ratio in decibels, peak 255."""
    import numpy as np

    return float(10 * np.log10(255**2 / np.mean((np.asarray(found, np.float64) - wanted) ** 2)))


def average(found: list[Any], wanted: list[Any]) -> float:
    return sum(psnr(a, b) for a, b in zip(found, wanted, strict=True)) / len(wanted)


def learn(images: list[Any], epochs: int) -> Any:
    """A field of experts."""
    from latentia import FieldsOfExperts
    from latentia.datasets import extract_patches
    from latentia.learning.score_matching import DenoisingScoreMatching

    patches = extract_patches(images, PATCH, N_PATCHES, seed=0)
    objective = DenoisingScoreMatching(TAU, relative=False)
    field = FieldsOfExperts(
        24, filter_shape=5, objective=objective, n_epochs=epochs, batch_size=BATCH, random_state=0
    )
    return field.set_params(monitor=None).fit(patches)


def tune(field: Any, images: list[Any], sigma: float) -> dict[str, float]:
    """λ and blur with the best average on noisy crops of the given images."""
    crops = [x[96:192, 96:192] for x in images]
    noisy = with_noise(crops, sigma)
    scores = {}
    for weight, blur in itertools.product((0.45, 0.5, 0.55, 0.6), (0.0, 0.2, 0.3)):
        found = field.denoise(noisy, sigma, weight=weight, blur=blur, tol=0.05)
        scores[weight, blur] = average(found, crops)
    weight, blur = max(scores, key=lambda key: scores[key])
    best = scores[weight, blur]
    print(f"chosen on held-out photographs: weight {weight}, blur {blur} ({best:.2f} dB there)", flush=True)
    return {"weight": weight, "blur": blur}


def total_variation(images: list[Any], noisy: list[Any]) -> tuple[str, list[Any]]:
    """(setting, images) with the best average of a grid of weights."""
    from skimage.restoration import denoise_tv_chambolle

    runs = {
        f"weight {w}": [denoise_tv_chambolle(y, w, eps=2e-5, max_num_iter=300) for y in noisy]
        for w in range(16, 23)
    }
    return max(runs.items(), key=lambda run: average(run[1], images))


def wavelets(images: list[Any], noisy: list[Any], sigma: float) -> tuple[str, list[Any]]:
    """(setting, images) with the best average of wavelets, thresholds and shifts."""
    from skimage.restoration import cycle_spin, denoise_wavelet

    def one(y: Any, **options: Any) -> Any:
        return denoise_wavelet(y, mode=options.pop("mode", "soft"), rescale_sigma=False, **options)

    settings: dict[str, dict[str, Any]] = {}
    for wavelet in ("db1", "db2"):
        settings[f"BayesShrink {wavelet}"] = {"wavelet": wavelet, "method": "BayesShrink", "sigma": sigma}
        # VisuShrink's threshold is too high for the least squared error: at half of σ it is better.
        options = {"wavelet": wavelet, "method": "VisuShrink", "sigma": 0.5 * sigma, "mode": "hard"}
        settings[f"VisuShrink hard {wavelet} at half of σ"] = options
    runs = {}
    for name, options in settings.items():
        runs[name] = [one(y, **options) for y in noisy]
        runs[f"{name}, 16 shifts"] = [cycle_spin(y, one, 3, func_kw=options, workers=1) for y in noisy]
    best = max(runs, key=lambda name: average(runs[name], images)).removesuffix(", 16 shifts")
    runs[f"{best}, 64 shifts"] = [cycle_spin(y, one, 7, func_kw=settings[best], workers=1) for y in noisy]
    return max(runs.items(), key=lambda run: average(run[1], images))


def draw(folder: Path, field: Any, columns: dict[str, list[Any]], clean: list[Any], names: list[str]) -> None:
    """Crops of some images, and the filters."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    shown = [i for i in (1, 3, 7, 8) if i < len(clean)]
    figure, axes = plt.subplots(len(shown), len(columns) + 1, figsize=(3 * (len(columns) + 1), 3.2 * len(shown)))
    for row, i in zip(axes, shown, strict=True):
        middle = [n // 2 for n in clean[i].shape]
        crop = tuple(slice(m - 64, m + 64) for m in middle)
        for axis, (title, images) in zip(row, [*columns.items(), ("clean", clean)], strict=True):
            axis.imshow(images[i][crop], cmap="gray", vmin=0, vmax=255, interpolation="nearest")
            value = "" if title == "clean" else f" {psnr(images[i], clean[i]):.2f} dB"
            axis.set_title(f"{names[i]}: {title}{value}", fontsize=9)
            axis.axis("off")
    figure.tight_layout()
    figure.savefig(folder / "denoised.png", dpi=90)
    figure, axes = plt.subplots(3, 8, figsize=(10, 4.2))
    powers = field.powers_
    for axis, kernel, power in zip(axes.flat, field.filters_, powers, strict=True):
        top = abs(kernel).max()
        axis.imshow(kernel, cmap="gray", vmin=-top, vmax=top, interpolation="nearest")
        axis.set_title(f"α {power:.3f}", fontsize=8)
        axis.axis("off")
    figure.savefig(folder / "filters.png", dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--field", type=Path, help="a field that an earlier run saved in its --out folder")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--sigma", type=float, default=25.0)
    args = parser.parse_args()
    pin_threads(args.threads)
    warnings.filterwarnings("ignore", category=UserWarning, module="skimage")
    import bm3d

    import latentia

    _, photographs = load("bsds500_train")
    names, clean = load("set12")
    noisy = with_noise(clean, args.sigma)

    begin = time.perf_counter()
    field = latentia.load(args.field) if args.field else learn(photographs[:-HELD_OUT], args.epochs)
    learning = time.perf_counter() - begin
    print(f"{'loaded' if args.field else 'learned'} in {learning:.0f} s", flush=True)
    if args.out:
        args.out.mkdir(parents=True, exist_ok=True)
        field.save(args.out / "field.safetensors")
    chosen = tune(field, photographs[-HELD_OUT:], args.sigma)
    begin = time.perf_counter()
    ours = field.denoise(noisy, args.sigma, **chosen)
    restoring = time.perf_counter() - begin

    print(f"denoised in {restoring:.0f} s: {average(ours, clean):.2f} dB", flush=True)
    tv_setting, tv = total_variation(clean, noisy)
    wavelet_setting, wavelet = wavelets(clean, noisy, args.sigma)
    reference = [bm3d.bm3d(y, args.sigma) for y in noisy]

    columns = {"noisy": noisy, "TV": tv, "wavelet": wavelet, "field of experts": ours, "BM3D": reference}
    print(f"\n{'PSNR, dB':<12}" + "".join(f"{name:>18}" for name in columns))
    for i, name in enumerate(names):
        print(f"{name:<12}" + "".join(f"{psnr(images[i], clean[i]):18.2f}" for images in columns.values()))
    means = {name: average(images, clean) for name, images in columns.items()}
    print(f"{'average':<12}" + "".join(f"{value:18.2f}" for value in means.values()))
    if args.out:
        draw(args.out, field, columns, clean, names)
    figures = {
        "field of experts, dB": means["field of experts"],
        f"total variation ({tv_setting}), dB": means["TV"],
        f"wavelets ({wavelet_setting}), dB": means["wavelet"],
        "BM3D, dB": means["BM3D"],
        "gain over the better peer, dB": means["field of experts"] - max(means["TV"], means["wavelet"]),
        "loading, s" if args.field else "learning, s": learning,
        "denoising 12 images, s": restoring,
    }
    report(f"Denoising set12 at sigma {args.sigma:g}", figures)


if __name__ == "__main__":
    main()
