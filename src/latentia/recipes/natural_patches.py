"""Natural patches: does an energy model separate photographs from Gaussian samples of their covariance and from
digits?

50,000 grey patches of 28×28 pixels are cut from photographs. A Gaussian whose precision couples only neighbouring
pixels is fitted by maximum likelihood, score matching, noise contrast and conditional noise contrast. A two-layer
deep energy model, F(x) = ‖x‖²/2σ² − bᵀx − Σ_k S(w_kᵀ s(Vx) + c_k), then learns the patches by score matching, plain
and whitened with that Gaussian, for σ = 1 and 0.1. It is judged by log p̃ = −F of held-out patches, of samples of
the Gaussian and of handwritten digits. Everything goes onto one page, ``report.html``.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.errors import DataError, LatentiaError
from latentia.core.run_folder import RunFolder
from latentia.recipes.base import Recipe

_FULL: dict[str, Any] = {
    "side": 28,
    "n_train": 50_000,
    "n_test": 5_000,
    "n_epochs": 20,
    "gaussian_rates": (1e-3, 3e-4),
    "hidden": (64, 64),
}
_SETTINGS: dict[str, dict[str, Any]] = {
    "full": _FULL,
    "cpu": _FULL,  # small enough for two cores as it is
    "quick": {
        **_FULL,
        "side": 10,
        "n_train": 1000,
        "n_test": 200,
        "n_epochs": 2,
        "hidden": (8, 8),
    },
}


def _run(out: Path, variant: str, seed: int, images: Path | None = None) -> dict[str, Any]:
    begin = time.perf_counter()
    settings = _SETTINGS[variant]
    out.mkdir(parents=True, exist_ok=True)
    side = settings["side"]
    train, test, source = cut_patches(images, side, settings["n_train"], settings["n_test"], seed)
    digits, digits_name = _digits(side, settings["n_test"], seed)
    gaussians = _gaussians(train, test, settings, seed)
    best = gaussians["maximum likelihood"]["estimator"]
    samples = best.sample(settings["n_test"], random_state=seed)
    trained = {}
    for data in ("whitened", "plain"):
        whiten = best.transform if data == "whitened" else np.asarray
        sets = {"held-out patches": test, "Gaussian samples": samples, "digits": digits}
        sets = {name: whiten(others) for name, others in sets.items()}
        rows = whiten(train)
        for sigma in (1.0, 0.1):
            model, facts = _deep_energy(rows, sets, sigma, settings, seed)
            unwhiten = best.inverse_transform if data == "whitened" else np.asarray
            starts = sets["Gaussian samples"][:16]
            facts |= {"starts": unwhiten(starts), "modes": unwhiten(model.modes(starts, max_steps=300, tol=1e-4))}
            model.save(out / f"deep-energy-{data}-sigma-{sigma:g}.safetensors")
            trained[f"{data}, σ = {sigma:g}"] = facts
    figures = {
        "variant": variant,
        "patches": f"{len(train):,} of {side}×{side} pixels for training, {len(test):,} held out; {source}",
        "digits": digits_name,
        "gaussians": {name: _numbers(facts) for name, facts in gaussians.items()},
        "deep energy models": {name: _numbers(facts) for name, facts in trained.items()},
        "total seconds": time.perf_counter() - begin,
    }
    RunFolder(out).write_evaluation({"recipe": figures})
    from latentia.recipes.natural_patches_page import write_page

    return {
        **figures,
        "report": str(write_page(RunFolder(out).report, figures, train, samples, gaussians, trained)),
    }


def _numbers(facts: dict[str, Any]) -> dict[str, Any]:
    wanted = ("held-out log-likelihood", "distance", "remark", "log p̃", "AUC", "seconds")
    return {name: facts[name] for name in wanted if name in facts}


def cut_patches(
    images: Path | None, side: int, n_train: int, n_test: int, seed: int
) -> tuple[np.ndarray, np.ndarray, str]:
    """Training and held-out patches from different photographs (or parts of them), grey values made continuous."""
    from latentia.datasets.bundled import photographs
    from latentia.datasets.images import load_photographs
    from latentia.datasets.patches import extract_patches

    found = photographs() if images is None else load_photographs(Path(images))
    small = [name for name, picture in found.items() if min(picture.shape) < 2 * side]
    if small:
        raise DataError(f"{small[0]} is smaller than {2 * side}×{2 * side} pixels. Leave it out or enlarge it.")
    pictures = list(found.values())
    if len(pictures) >= 10:
        held_out, kept = pictures[::5], [p for i, p in enumerate(pictures) if i % 5]
        how = f"{len(kept)} photographs for training, {len(held_out)} others held out"
    else:  # too few to spare one: hold out a strip of each
        cuts = [max(side, p.shape[1] // 5) for p in pictures]
        held_out = [p[:, :cut] for p, cut in zip(pictures, cuts, strict=True)]
        kept = [p[:, cut:] for p, cut in zip(pictures, cuts, strict=True)]
        how = f"{len(pictures)} photographs ({', '.join(found)}), the left fifth of each held out"
    rng = np.random.default_rng(seed)
    parts = (extract_patches(kept, side, n_train, seed=rng), extract_patches(held_out, side, n_test, seed=rng))
    train, test = (continuous(rows, rng) for rows in parts)
    return train, test, how


def continuous(rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Grey levels spread over their bins: a density is learned, and 256 spikes have none."""
    return (rows * (255 / 256) + rng.random(rows.shape, np.float32) / 256).astype(np.float32)


def _digits(side: int, n: int, seed: int) -> tuple[np.ndarray, str]:
    """Handwritten digits of the patches' size: MNIST's, or scikit-learn's where those cannot be had."""
    from scipy.ndimage import zoom

    from latentia import datasets

    try:
        rows, name = np.asarray(datasets.load("mnist").X_test), "MNIST, test images"
    except (LatentiaError, OSError):
        small = np.asarray(datasets.load("digits").X)
        rows, name = small / small.max(), "scikit-learn's digits (MNIST could not be loaded)"
    own = round(rows.shape[1] ** 0.5)
    pictures = rows[:n].reshape(-1, own, own)
    if own != side:
        pictures = np.clip(np.asarray(zoom(pictures, (1, side / own, side / own), order=1)), 0, 1)
        name += f", resized from {own}×{own}"
    rng = np.random.default_rng(seed)
    return continuous(pictures.reshape(len(pictures), -1).astype(np.float32), rng), name


def _gaussians(
    train: np.ndarray, test: np.ndarray, settings: dict[str, Any], seed: int
) -> dict[str, dict[str, Any]]:
    """Four ways to a Gaussian: exact held-out likelihoods, and the distance from maximum likelihood."""
    from latentia import GaussianModel
    from latentia.learning.noise import Disturbance
    from latentia.learning.noise_contrast import NCE, ConditionalNCE

    shape = (settings["side"], settings["side"])
    common = {"precision": "neighbours", "image_shape": shape, "radius": 2.0, "random_state": seed}
    solvers = {"maximum likelihood": "closed_form", "score matching": "score_matching"}
    objectives = {
        "noise contrast": NCE(),
        # Weak noise: with stronger noise copies are easily separated from their originals, and nothing is learned.
        "conditional noise contrast": ConditionalNCE(disturbance=Disturbance(0.01)),
    }
    results: dict[str, dict[str, Any]] = {}

    def add(name: str, fit: Any) -> None:
        begin = time.perf_counter()
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            model = fit()
        seconds = time.perf_counter() - begin
        precision = model.precision_
        wanted = results["maximum likelihood"]["estimator"].precision_ if results else precision
        results[name] = {
            "estimator": model,
            "held-out log-likelihood": model.score(test),
            "distance": float(np.linalg.norm(precision - wanted) / np.linalg.norm(wanted)),
            "seconds": seconds,
            "remark": "couplings shrunk until positive definite" if caught else "",
        }

    def descend(objective: Any) -> Any:
        model = results["score matching"]["estimator"]
        for rate in settings["gaussian_rates"]:
            options = {"objective": objective, "batch_size": 250, "learning_rate": rate, "monitor": None}
            further = GaussianModel(**common, solver="gradient", **options)
            model = further.adopt(model.model_, model.blueprint_).partial_fit(train)
        return model

    for name, solver in solvers.items():
        add(name, lambda solver=solver: GaussianModel(**common, solver=solver).fit(train))
    for name, objective in objectives.items():
        add(name, lambda objective=objective: descend(objective))
    return results


def _deep_energy(
    train: np.ndarray, sets: dict[str, np.ndarray], sigma: float, settings: dict[str, Any], seed: int
) -> tuple[Any, dict[str, Any]]:
    """Train one model; mean and standard deviation of log p̃ on every set, and how well it separates them."""
    from sklearn.metrics import roc_auc_score, roc_curve

    from latentia import DeepEnergyModel

    begin = time.perf_counter()
    model = DeepEnergyModel(
        settings["hidden"],
        sigma=sigma,
        n_epochs=settings["n_epochs"],
        batch_size=100,
        monitor=None,
        random_state=seed,
    ).fit(train)
    seconds = time.perf_counter() - begin
    scores = {name: -model.free_energy(rows).astype(np.float64) for name, rows in sets.items()}
    natural = scores["held-out patches"]
    facts: dict[str, Any] = {
        "log p̃": {name: f"{s.mean():.5g} ± {s.std():.3g}" for name, s in scores.items()},
        "seconds": seconds,
        "AUC": {},
        "filters": np.asarray(model.model_.layers[0].weights),
        "scores": scores,
        "curves": {},
    }
    for name, others in scores.items():
        if name != "held-out patches":
            truth = np.repeat([1, 0], [len(natural), len(others)])
            both = np.concatenate([natural, others])
            facts["AUC"][name] = float(roc_auc_score(truth, both))
            facts["curves"][name] = roc_curve(truth, both)[:2]
    return model, facts


NATURAL_PATCHES = Recipe(
    "Constrained Gaussian and two-layer deep energy models on natural image patches", {}, _run, ("images",)
)
