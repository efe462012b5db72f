"""The page of the natural-patches experiment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from latentia.report import plots
from latentia.report.article import Section, pictures, table, text, write_article

Shape = tuple[int, int]


def write_page(
    path: Path,
    figures: dict[str, Any],
    train: np.ndarray,
    samples: np.ndarray,
    gaussians: dict[str, dict[str, Any]],
    trained: dict[str, dict[str, Any]],
) -> Path:
    """Everything that the experiment found, to be read from top to bottom."""
    side = round(train.shape[1] ** 0.5)
    shape = (side, side)
    sections = [
        _data(figures, train, shape),
        _gaussian(samples, gaussians, shape),
        _telling_apart(trained, figures),
        _filters(trained, shape),
        _modes(trained, shape),
        _verdict(trained, figures),
    ]
    return write_article(path, "Energy models of natural image patches", sections)


def _data(figures: dict[str, Any], train: np.ndarray, shape: Shape) -> Section:
    return Section(
        "The data",
        [
            text(
                f"{figures['patches']}. Patches are grey, in [0, 1]; a uniform random number is added "
                "to every grey level so that a density exists."
            ),
            pictures((plots.image_grid(train[:64], shape), "Patches of the training set")),
        ],
    )


def _gaussian(samples: np.ndarray, gaussians: dict[str, dict[str, Any]], shape: Shape) -> Section:
    rows = [
        [name, f"{f['held-out log-likelihood']:.1f}", f"{f['distance']:.3f}", f"{f['seconds']:.1f}"]
        for name, f in gaussians.items()
    ]
    best = gaussians["maximum likelihood"]["estimator"]
    whitened = best.transform(samples[:64])
    return Section(
        "A Gaussian with neighbouring pixels coupled",
        [
            text(
                "log p(x) = −½(x − μ)ᵀΛ(x − μ) + ½ log|Λ| − D/2 log 2π, where Λ may differ from zero only between "
                "pixels at most two pixels apart. Four ways to estimate it, all judged by the exact log-likelihood "
                "of the held-out patches:"
            ),
            table(
                ["estimator", "held-out log p, nats", "‖Λ − Λ_ML‖/‖Λ_ML‖", "seconds"],
                rows,
                "The last two start from score matching's answer. On Gaussian data all four agree; patches are not "
                "Gaussian, and each way has its own idea of the nearest one."
                + "".join(f" {name.capitalize()}: {f['remark']}." for name, f in gaussians.items() if f["remark"]),
            ),
            pictures(
                (plots.image_grid(samples[:64], shape), "Samples of the Gaussian"),
                (plots.image_grid(whitened, shape), "The same, whitened with Λ^½"),
            ),
        ],
    )


def _telling_apart(trained: dict[str, dict[str, Any]], figures: dict[str, Any]) -> Section:
    sets = list(next(iter(trained.values()))["log p̃"])
    rows = [[name, *f["log p̃"].values()] for name, f in trained.items()]
    areas = [[name, *(f"{f['AUC'][other]:.3f}" for other in sets[1:])] for name, f in trained.items()]
    drawings = [
        (
            plots.roc({f"{other} (AUC {f['AUC'][other]:.3f})": c for other, c in f["curves"].items()}, title=name),
            name,
        )
        for name, f in trained.items()
    ]
    return Section(
        "Telling patches from Gaussian samples and digits",
        [
            text(
                "A two-layer deep energy model, log p̃(x) = −‖x‖²/2σ² + bᵀx + Σ_k S(w_kᵀ s(Vx + d) + c_k), learned "
                "by sliced score matching. Mean ± standard deviation of log p̃ (log Z is unknown, so only "
                f"differences within a row mean something). Digits: {figures['digits']}."
            ),
            table(["log p̃", *sets], rows),
            table(
                ["AUC", *(f"patches against {name}" for name in sets[1:])],
                areas,
                "The chance that a held-out patch scores above one of the others; ½ is guessing.",
            ),
            pictures(*drawings),
        ],
    )


def _filters(trained: dict[str, dict[str, Any]], shape: Shape) -> Section:
    grids = [(plots.image_grid(f["filters"], shape, signed=True), f"Filters v_j: {n}") for n, f in trained.items()]
    return Section(
        "Filters",
        [text("Rows of V, each with its own contrast; blue is negative, red is positive."), pictures(*grids)],
    )


def _modes(trained: dict[str, dict[str, Any]], shape: Shape) -> Section:
    strips = [
        (
            plots.reconstructions(f["starts"], f["modes"], shape, n=12),
            f"{name}: Gaussian samples, and modes below them",
        )
        for name, f in trained.items()
    ]
    return Section(
        "Modes",
        [text("log p ascended from samples of the Gaussian to the nearest local maximum."), pictures(*strips)],
    )


def _verdict(trained: dict[str, dict[str, Any]], figures: dict[str, Any]) -> Section:
    lines = []
    for other in ("Gaussian samples", "digits"):
        name, facts = max(trained.items(), key=lambda item: item[1]["AUC"][other])
        below = [n for n, f in trained.items() if f["AUC"][other] < 0.5]
        tail = f" Scored above patches by: {'; '.join(below)}." if below else ""
        lines.append(text(f"{other}: best separated by the model “{name}”, AUC {facts['AUC'][other]:.3f}.{tail}"))
    lines.append(text(f"The whole experiment took {figures['total seconds']:.0f} seconds."))
    return Section("Summary", lines)
