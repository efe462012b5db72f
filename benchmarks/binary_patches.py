"""What binary sparse coding learns from patches of photographs: are its atoms localised and oriented?

    python benchmarks/binary_patches.py [--images FOLDER] [--n-components 200] [--out FOLDER]

Patches are whitened as in the recipe of Olshausen and Field, and every one is divided by its own standard
deviation: atoms that are on or off have no amplitude of their own to follow the contrast. The start is annealed by
the temperature of the likelihood alone: with the prior heated too many atoms are on while it is hot, and few become
localised. The class itself has ``--annealed posterior --temperature 1.7 --n-init 4`` as defaults.

A Gabor function is fitted to every atom (:mod:`latentia.ops.gabor`); an atom counts as localised and oriented if
the fit explains at least 70 % of it. As a comparison the same is done for patches themselves and for atoms whose
pixels are shuffled. With ``--out`` the atoms are kept in ``atoms.npy`` and drawn in ``atoms.png``.
``--patches FILE`` takes patches from a ``.npy`` file.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import numpy as np

#: A fit that explains at least this part of an atom counts.
GOOD = 0.7


def main() -> None:
    """Learn and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=Path, default=None)
    parser.add_argument("--patches", type=Path, default=None)
    parser.add_argument("--side", type=int, default=12)
    parser.add_argument("--n-patches", type=int, default=20_000)
    parser.add_argument("--n-components", type=int, default=100)
    parser.add_argument("--inference", default="truncated")
    parser.add_argument("--n-best-states", type=int, default=32)
    parser.add_argument("--annealed", default="likelihood", choices=("likelihood", "posterior"))
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--n-annealing", type=int, default=50)
    parser.add_argument("--n-init", type=int, default=1)
    parser.add_argument("--keep-contrast", action="store_true", help="do not divide by the standard deviations")
    parser.add_argument("--n-epochs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-fits", action="store_true", help="keep the atoms only")
    parser.add_argument("--out", type=Path, default=None)
    args = parser.parse_args()
    from latentia import BinarySparseCoding

    X = patches(args)
    if not args.keep_contrast:
        X = X / np.maximum(X.std(axis=1, keepdims=True), 1e-6)
    begin = time.perf_counter()
    coder = BinarySparseCoding(
        args.n_components,
        inference=args.inference,
        n_best_states=args.n_best_states,
        annealed=args.annealed,
        temperature=args.temperature,
        n_annealing=args.n_annealing,
        n_init=args.n_init,
        n_epochs=args.n_epochs,
        tol=1e-5,
        random_state=args.seed,
        verbose=1,
    ).fit(X)
    seconds = time.perf_counter() - begin
    some = X[:2000]
    on = coder.transform(some)
    left = np.mean((coder.reconstruct(some) - some) ** 2) / np.mean(some**2)
    print(
        f"{len(X):,} patches of {args.side}×{args.side} pixels, {args.n_components} atoms, {args.inference}: "
        f"{coder.n_steps_} steps in {seconds:.0f} s; bound {coder.history_[-1]['bound']:.2f} nats; "
        f"{on.sum(axis=1).mean():.1f} atoms on; {1 - left:.2f} of the variance explained; "
        f"noise variance {float(np.mean(coder.noise_variance_)):.3f}"
    )
    if args.out is not None:
        args.out.mkdir(parents=True, exist_ok=True)
        np.save(args.out / "atoms.npy", coder.components_)
        np.save(args.out / "rates.npy", coder.probabilities_)
    if not args.no_fits:
        judge(coder.components_, X, args)


def patches(args: argparse.Namespace) -> np.ndarray:
    """Whitened patches."""
    if args.patches is not None:
        return np.load(args.patches)[: args.n_patches].astype(np.float32)
    from latentia.recipes.olshausen_field import whitened_patches

    data = os.environ.get("LATENTIA_DATA")
    images = args.images or (None if data is None else Path(data) / "natural" / "bsds500_train")
    return whitened_patches(images, args.side, args.n_patches, args.seed)[0]


def judge(atoms: np.ndarray, X: np.ndarray, args: argparse.Namespace) -> None:
    """Print how many atoms look like Gabor functions, and draw them."""
    rng = np.random.default_rng(0)
    shuffled = rng.permuted(atoms, axis=1)
    kinds = (("atoms", atoms), ("patches", X[: len(atoms)]), ("atoms with shuffled pixels", shuffled))
    for name, rows in kinds:
        print(f"{name}: {np.mean(explained(rows, args.side) >= GOOD):.0%} localised and oriented")
    if args.out is not None:
        draw(atoms, args.side, args.out / "atoms.png")


def explained(rows: np.ndarray, side: int) -> np.ndarray:
    """The part of every row that a Gabor function explains."""
    from latentia.ops.gabor import fit_gabors

    return np.asarray(fit_gabors(rows / np.linalg.norm(rows, axis=1, keepdims=True), (side, side)).explained)


def draw(atoms: np.ndarray, side: int, path: Path) -> None:
    """All atoms as tiles of grey."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    columns = int(np.ceil(np.sqrt(len(atoms))))
    figure, axes = plt.subplots(int(np.ceil(len(atoms) / columns)), columns, figsize=(8, 8))
    for axis in axes.ravel():
        axis.axis("off")
    for axis, atom in zip(axes.ravel(), atoms, strict=False):
        top = np.abs(atom).max()
        axis.imshow(atom.reshape(side, side), cmap="gray", vmin=-top, vmax=top)
    figure.savefig(path, dpi=100, bbox_inches="tight")


if __name__ == "__main__":
    main()
