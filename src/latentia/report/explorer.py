"""The explorer of a run: for every latent its use, examples, neighbours, and the effect of scaling it.

All of it is computed here and put into the page as a few sprite sheets and one JSON object; the page's script
(``templates/explorer.js``) only looks things up. A slider needs no model either: frames are decoded in advance,
and the script blends between two of them, which is exact where decoding is linear, so that two frames are enough
there.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np

from latentia.core import space
from latentia.core.capabilities import Decodes, ProxSplit
from latentia.report import sprites
from latentia.report.latents import (
    Group,
    Missing,
    as_columns,
    chosen,
    code_space,
    data_parts,
    groups,
    picks_one,
    pictures,
    sampled_words,
    switches,
)
from latentia.report.runs import Run

#: Latents, examples and neighbours of each, frames of each slider, bins of each histogram; at most.
MOST_LATENTS, MOST_EXAMPLES, MOST_NEAR, MOST_FRAMES, BINS = 100, 12, 6, 7, 20
#: Room for the tiles of the examples and of the frames, in bytes before compression, for one run on the page.
ROOM_EXAMPLES, ROOM_FRAMES = 500_000, 700_000
#: Names (words) that a latent is read by, and rows in which they are looked for.
MOST_NAMES = 10


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How many of everything fit."""

    latents: int
    examples: int
    frames: int

    @staticmethod
    def fitting(tile: tuple[int, ...], counts: list[int], share: float) -> Sizes:
        """For tiles of this shape, layers of so many latents and this share of a page; ``latents`` of a layer."""
        weight = math.prod(tile)
        most = int(np.clip(share * ROOM_FRAMES / (3 * weight * len(counts)), 12, MOST_LATENTS))
        latents = sum(min(most, count) for count in counts)
        examples = int(np.clip(share * ROOM_EXAMPLES / (latents * weight), 3, MOST_EXAMPLES))
        frames = int(np.clip(share * ROOM_FRAMES / (latents * weight), 3, MOST_FRAMES))
        return Sizes(most, examples, frames)


@dataclasses.dataclass
class Explorer:
    """The explorer of one run: ``data`` for the script, and the pictures for readers without one."""

    data: dict[str, Any]
    meaning: str
    note: str
    rows: np.ndarray
    shape: tuple[int, ...] | None
    signed: bool


def explore(run: Run, rows: np.ndarray, codes: np.ndarray, rows_are: str, share: float = 1.0) -> Explorer:
    """Everything that the explorer of a run needs.

    Args:
        run: with an estimator.
        rows: data, at most a few thousand rows.
        codes: their codes.
        rows_are: what the rows are, in words.
        share: of the page's room.
    """
    estimator, layers = run.estimator, groups(run.estimator, codes.shape[1])
    if not layers:
        raise Missing("The model has no latents to explore.")
    tile = sprites.layout(run.image_shape, rows.shape[1])
    sizes = Sizes.fitting(tile, [group.count for group in layers], share)
    found = [_Layer(estimator, group, rows, codes, sizes.latents) for group in layers]
    low, high = sprites.grey_range(rows)
    drawn = lambda rows: sprites.sheet(sprites.tiles(rows, run.image_shape), low, high)  # noqa: E731
    numbers = np.unique(np.concatenate([layer.examples(sizes.examples).ravel() for layer in found]))
    frames: list[np.ndarray] = []
    described = [layer.described(numbers, frames, sizes, run) for layer in found]
    data = {
        "parts": data_parts(estimator, run.image_shape or run.part_shape),
        "features": [str(name) for name in getattr(estimator, "feature_names_in_", [])][: rows.shape[1]],
        "image": run.image_shape is not None,
        "rows": f"{len(rows):,} {rows_are}",
        "layers": described,
        "examples": drawn(rows[numbers]),
        "frames": drawn(np.concatenate(frames)) if frames else None,
    }
    shown = found[0].shown
    return Explorer(data, shown.meaning, _notes(found), shown.rows, shown.shape or run.image_shape, shown.signed)


def _notes(layers: list[_Layer]) -> str:
    """Which layers are not shown in full."""
    said = [(layer.group.title, sampled_words(len(layer.which), layer.group.count)) for layer in layers]
    return " ".join(f"{title}: {note}" if title else note for title, note in said if note)


class _Layer:
    """One layer: which of its latents are shown, in which order, and what there is to say about each."""

    def __init__(self, estimator: Any, group: Group, rows: np.ndarray, codes: np.ndarray, most: int):
        self.estimator, self.group, self.codes = estimator, group, codes
        self.activations, self.where = group.responses(codes)
        self.use, self.on = group.use(self.activations), group.active(self.activations)
        self.which = chosen(self.use, most)
        self.shown = pictures(estimator, group, self.which, rows)

    def examples(self, n: int) -> np.ndarray:
        """Rows that excite each latent most, ``(latents, n)``: by size where activations may be negative."""
        strength = self.activations if self.group.bounded else np.abs(self.activations)
        return np.argsort(-strength[:, self.which], axis=0, kind="stable")[:n].T

    def described(self, numbers: np.ndarray, frames: list[np.ndarray], sizes: Sizes, run: Run) -> dict[str, Any]:
        """The layer for the script; decoded frames are added to ``frames``."""
        examples, near = self.examples(sizes.examples), self._near()
        sliders = self._sliders(examples[:, 0], frames, sizes.frames)
        names = None if run.names is None or run.named_rows is None else self._names(run)
        called, latents = run.training_names, []
        for place, latent in enumerate(self.which):
            a = self.activations[:, latent]
            low, high = (float(a.min()), float(a.max())) if not self._unit() else (0.0, 1.0)
            counts = np.histogram(a, BINS, (low, high if high > low else low + 1))[0]
            latents.append(
                {
                    "id": int(latent),
                    "rank": int(np.sum(self.use > self.use[latent])) + 1,
                    "use": _short(self.use[latent]),
                    "on": None if self.on is None else _short(self.on[:, latent].mean()),
                    "range": [_short(low), _short(high)],
                    "histogram": counts.tolist(),
                    "examples": [self._example(row, latent, numbers) for row in examples[place]],
                    "called": [] if called is None else [str(called[row]) for row in examples[place]],
                    "near": near[place],
                    "slider": sliders[place],
                    "names": [] if names is None else names[place],
                }
            )
        sheet = self._sheet(run)
        whole = {
            "name": "",
            "begin": 0,
            "end": int(self.shown.rows.shape[1]),
            "shape": list(self.shown.shape or []),
        }
        return {
            "title": self.group.title,
            "count": self.group.count,
            "word": self._word(),
            "latents": latents,
            "sheet": sheet,
            "parts": [whole] if self.shown.shape else None,
        }

    def _sheet(self, run: Run) -> dict[str, Any]:
        shape = self.shown.shape or run.image_shape
        cut = sprites.tiles(self.shown.rows, shape)
        return sprites.signed_sheet(cut) if self.shown.signed else sprites.sheet(cut, *sprites.grey_range(cut))

    def _word(self) -> str:
        """What one of them is called."""
        if self.group.places:
            return "Filter"
        if picks_one(code_space(self.estimator)):
            return "Component"
        return "Atom" if isinstance(self.estimator.model_, ProxSplit) else "Latent"

    def _unit(self) -> bool:
        return self.group.leaf.bounds == (0.0, 1.0)

    def _example(self, row: int, latent: int, numbers: np.ndarray) -> list[Any]:
        """[tile, activation], and [top, left, height, width] of the window for sliding filters, as shares."""
        entry: list[Any] = [int(np.searchsorted(numbers, row)), _short(self.activations[row, latent])]
        if self.where is not None and self.shown.shape is not None:
            height, width = (n + m - 1 for n, m in zip(self.group.places, self.shown.shape[:2], strict=True))
            top, left = divmod(int(self.where[row, latent]), self.group.places[1])
            box = (top / height, left / width, self.shown.shape[0] / height, self.shown.shape[1] / width)
            entry.append([_short(side) for side in box])
        return entry

    def _near(self) -> list[list[list[float]]]:
        """[[place, cosine] …] of the most similar pictures among those shown, for each."""
        rows = self.shown.rows if self.shown.signed else self.shown.rows - self.shown.rows.mean(axis=0)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = rows / np.where(lengths > 0, lengths, 1.0)
        cosines = rows @ rows.T
        np.fill_diagonal(cosines, 0.0)
        order = np.argsort(-np.abs(cosines), axis=1, kind="stable")[:, : min(MOST_NEAR, len(rows) - 1)]
        return [[[int(j), round(float(cosines[i, j]), 3)] for j in line] for i, line in enumerate(order)]

    def _names(self, run: Run) -> list[list[str]]:
        """The names of the rows that are nearest to each picture by their cosine: words, for word vectors."""
        rows = np.asarray(run.named_rows, np.float32)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        found = np.argsort(-(self.shown.rows.astype(np.float32) @ rows.T), axis=1, kind="stable")[:, :MOST_NAMES]
        names = np.asarray(run.names)
        return [[str(name) for name in names[line]] for line in found]

    # -- scaling one latent --------------------------------------------------------------------------------

    def _sliders(self, rows: np.ndarray, frames: list[np.ndarray], n: int) -> list[dict[str, Any] | None]:
        """Where each latent's frames are, at which values, and its value in the example; None if nothing moves."""
        estimator = self.estimator
        if not isinstance(estimator.model_, Decodes) or self.group.places or picks_one(code_space(estimator)):
            return [None] * len(self.which)
        columns = self.group.begin + self.which
        on, off = switches(estimator, columns)
        lever = (on - off)[np.arange(len(columns)), columns][:, None]
        direction = (on - off) / np.where(np.abs(lever) > 0, lever, 1.0)  # layers below follow, as switches say
        begin, values = self.codes[rows], self._values(n)
        own = begin[np.arange(len(columns)), columns]
        codes = begin[:, None] + (values - own[:, None])[..., None] * direction[:, None]
        codes = _within(codes, estimator)
        flat = codes.reshape(-1, codes.shape[-1]).astype(np.float32)
        decoded = as_columns(estimator, estimator.inverse_transform(flat)).reshape(len(columns), n, -1)
        moves = np.ptp(decoded, axis=1).max(axis=1) > 1e-6 * max(float(np.abs(decoded).max()), 1e-12)
        if _is_linear(decoded):
            decoded, values = decoded[:, [0, -1]], values[:, [0, -1]]
        sliders: list[dict[str, Any] | None] = []
        count = sum(len(block) for block in frames)
        for place in range(len(columns)):
            if not moves[place]:
                sliders.append(None)
                continue
            frames.append(decoded[place])
            steps = [_short(v) for v in values[place]]
            sliders.append({"first": count, "values": steps, "own": _short(own[place])})
            count += len(steps)
        return sliders

    def _values(self, n: int) -> np.ndarray:
        """Where each slider stops, ``(latents, n)``: off to on, or the range in the data and a quarter more."""
        if self.group.bounded:
            return np.broadcast_to(np.linspace(*self.group.leaf.bounds, n), (len(self.which), n))
        a = self.activations[:, self.which]
        low, high = np.minimum(1.25 * a.min(axis=0), 0.0), np.maximum(1.25 * a.max(axis=0), 0.0)
        both = (low < 0) & (high > 0)
        reach = np.maximum(-low, high)
        low, high = np.where(both, -reach, low), np.where(both, reach, high)
        high = np.where(high > low, high, low + 1.0)
        return low[:, None] + (high - low)[:, None] * np.linspace(0, 1, n)


def _within(codes: np.ndarray, estimator: Any) -> np.ndarray:
    """Codes moved back into the domains of their columns."""
    begin = 0
    for leaf in space.leaves(code_space(estimator)):
        end = begin + math.prod(leaf.shape)
        codes[..., begin:end] = np.clip(codes[..., begin:end], *leaf.bounds)
        begin = end
    return codes


def _is_linear(decoded: np.ndarray) -> bool:
    """Whether the frames lie on straight lines, so that two of them are enough."""
    bend = np.abs(np.diff(decoded, n=2, axis=1)).max(initial=0.0)
    return bool(bend <= 1e-3 * max(float(np.ptp(decoded)), 1e-12))


def _short(value: Any) -> float:
    """Four digits are enough for a page."""
    return float(f"{float(value):.4g}")
