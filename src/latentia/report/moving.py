"""Animated pictures: samples while chains run, and the visibles while one latent changes."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from latentia.core import space
from latentia.core.capabilities import Decodes, ExactSampler
from latentia.estimator.tracing import trace
from latentia.ops import random
from latentia.ops.arrays import n_numbers
from latentia.report import sprites
from latentia.report.latents import as_columns, picks_one
from latentia.report.runs import Run

#: Chains, and the numbers of steps at which they are looked at; large models get fewer.
N_CHAINS, MOST_SWEEPS = 36, 1000
MARKS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, MOST_SWEEPS)
#: Marks for models that must start anew for each.
_FEW_MARKS = (1, 10, 100, MOST_SWEEPS)
#: Sets of independent draws.
N_SETS = 6
#: Products of a sweep that a report can afford, in all.
_WORK = 1.5e10
#: Bytes of frames before compression.
ROOM = 450_000
#: Latents and points of a traversal.
MOST_TRAVERSED, N_POINTS = 8, 9


@dataclasses.dataclass
class Samples:
    """Frames ``(marks, chains, n_features)`` with what to say about each, and about all."""

    frames: np.ndarray
    labels: list[str]
    text: list[str]
    r_hat: float = float("nan")

    @property
    def last(self) -> np.ndarray:
        """What the chains hold in the end."""
        return self.frames[-1]

    def widget(self, image_shape: tuple[int, ...]) -> dict[str, Any]:
        """For the page's script."""
        flat = self.frames.reshape(-1, self.frames.shape[-1])
        sheet = sprites.sheet(sprites.tiles(flat, image_shape), *sprites.grey_range(self.last))
        return {"sheet": sheet, "labels": self.labels, "count": self.frames.shape[1]}


def samples(run: Run, share: float = 1.0) -> Samples:
    """Samples from a run's model: chains on their way, or sets of independent draws."""
    estimator = run.estimator
    tile = sprites.layout(run.image_shape, estimator.n_features_in_)
    n = int(np.clip(share * ROOM / (len(MARKS) * np.prod(tile)), 9, N_CHAINS))
    n = int(np.sqrt(n)) ** 2
    if isinstance(estimator.model_, ExactSampler):
        return _independent(estimator, n)
    found = trace(estimator, n, _marks(estimator, n), key=random.key(0))
    if found is None:
        return _anew(estimator, n)
    frames = np.stack([as_columns(estimator, frame) for frame in found.frames])
    last = found.marks[-1]
    text = [
        f"{n} chains, each from its own start, after {last:,} {found.steps}; the slider goes back on their way."
        + (" Shown is the mean of the visibles given the drawn latents, which is smoother." if found.mean else "")
    ]
    if np.isfinite(found.r_hat):
        text.append(
            f"R̂ over the chains is {found.r_hat:.2f}; 1 means that they no longer depend on their starting points."
        )
    labels = [_after(mark, found.steps) for mark in found.marks]
    return Samples(frames, labels, text, found.r_hat)


def _marks(estimator: Any, n: int) -> tuple[int, ...]:
    """Fewer sweeps of a model whose sweeps are long."""
    most = max(100.0, _WORK / (n * max(n_numbers(estimator.model_), 1)))
    return tuple(mark for mark in MARKS if mark <= most)


def _after(mark: int, steps: str) -> str:
    if mark == 0:
        return "at the start"
    return f"after {mark:,} {steps if mark > 1 else steps.rstrip('s')}"


def _smooth(estimator: Any) -> bool:
    return isinstance(estimator.model_, Decodes) and not picks_one(estimator.model_.z_space)


def _independent(estimator: Any, n: int) -> Samples:
    smooth = _smooth(estimator)
    drawn = as_columns(estimator, estimator.sample(N_SETS * n, mean=smooth, random_state=0))
    shown = "; each shows the mean of the visibles given the drawn latents, which is smoother." if smooth else "."
    labels = [f"set {i} of {N_SETS}" for i in range(1, N_SETS + 1)]
    return Samples(drawn.reshape(N_SETS, n, -1), labels, [f"Independent draws{shown}"])


def _anew(estimator: Any, n: int) -> Samples:
    smooth = _smooth(estimator)
    frames = [estimator.sample(n, n_steps=mark, mean=smooth, random_state=0) for mark in _FEW_MARKS]
    text = f"{n} draws, each from its own start, after {_FEW_MARKS[-1]:,} Gibbs sweeps; the slider shows fewer."
    labels = [_after(mark, "Gibbs sweeps") for mark in _FEW_MARKS]
    return Samples(np.stack([as_columns(estimator, frame) for frame in frames]), labels, [text])


def has_traversals(run: Run) -> bool:
    """Whether single latents can be moved, in pictures."""
    return run.image_shape is not None and hasattr(run.estimator, "traverse")


def traversals(run: Run, codes: np.ndarray) -> tuple[list[np.ndarray], list[str]]:
    """(rows of each, names): the most used latents of the lowest layer, moved one by one."""
    lowest = space.leaves(run.estimator.model_.z_space)[0]
    width = int(np.prod(lowest.shape))
    order = np.argsort(-codes[:, :width].std(axis=0), kind="stable")[:MOST_TRAVERSED]
    rows = run.estimator.traverse(latents=order, n_steps=N_POINTS)
    return [as_columns(run.estimator, line) for line in rows], [f"Latent {k}" for k in order]
