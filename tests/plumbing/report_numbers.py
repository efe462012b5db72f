"""Runs whose training and held-out rows differ, and what their models give, worked out with NumPy alone.

The arrays are read from the model file; no function of the library has a part in the oracles.
"""

from __future__ import annotations

import base64
import io
import itertools
import json
import re
from html import unescape
from pathlib import Path

import numpy as np
from click.testing import CliRunner
from PIL import Image
from safetensors.numpy import load_file

from latentia.cli import cli

#: At most so many rows are looked at in the tests: fewer than there are training rows, more than held-out ones.
MOST_ROWS = 40


def sigmoid(field):
    return 1 / (1 + np.exp(-field))


def logsumexp(values):
    return values.max() + np.log(np.exp(values - values.max()).sum())


def some(rows):
    """The rows that a report looks at: evenly spaced."""
    return rows if len(rows) <= MOST_ROWS else rows[np.linspace(0, len(rows) - 1, MOST_ROWS).astype(int)]


class Known:
    """A run folder, its data, and what is known of its model."""

    def __init__(self, folder: Path, data: dict, shape: tuple[int, int]):
        self.folder, self.shape = folder, shape
        self.X, self.held_out = (data[name].reshape(len(data[name]), -1).astype(float) for name in ("X", "X_test"))
        self.labels = data["y_test"]
        self.arrays = {k: v.astype(float) for k, v in load_file(folder / "model.safetensors").items()}
        self.history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        self.config = json.loads((folder / "config.json").read_text())
        self.evaluation = json.loads((folder / "evaluation.json").read_text())
        self.seen = some(self.X)
        self.codes, self.held_out_codes = self.code(self.seen), self.code(self.held_out)

    def reconstruct(self, x):
        return self.decode(self.code(x))


class KnownRBM(Known):
    """E(x, z) = −a·x − b·z − (x − μ)ᵀ W (z − λ)."""

    discrete, on, learned = True, 0.5, ("weights", "visible.bias", "hidden.bias")

    def field(self, x):
        return (x - self.arrays["visible_offset"]) @ self.arrays["weights"]

    def code(self, x):
        return sigmoid(self.arrays["hidden.bias"] + self.field(x))

    def decode(self, z):
        return sigmoid(self.arrays["visible.bias"] + (z - self.arrays["hidden_offset"]) @ self.filters())

    def filters(self):
        return self.arrays["weights"].T

    def log_likelihood(self, x):
        states = np.array(list(itertools.product((0.0, 1.0), repeat=x.shape[1])))
        return self.minus_free_energy(x) - logsumexp(self.minus_free_energy(states))

    def minus_free_energy(self, x):
        field = self.field(x)
        hidden = np.logaddexp(0, self.arrays["hidden.bias"] + field).sum(axis=1)
        return x @ self.arrays["visible.bias"] - field @ self.arrays["hidden_offset"] + hidden


class KnownPPCA(Known):
    """x ~ N(μ, WWᵀ + σ²I)."""

    discrete, on, learned = False, None, ("weights", "mean", "log_variance")

    def code(self, x):
        w = self.arrays["weights"]
        inner = w.T @ w + np.exp(self.arrays["log_variance"]) * np.eye(w.shape[1])
        return np.linalg.solve(inner, w.T @ (x - self.arrays["mean"]).T).T

    def decode(self, z):
        return z @ self.filters() + self.arrays["mean"]

    def filters(self):
        return self.arrays["weights"].T

    def log_likelihood(self, x):
        w, d = self.arrays["weights"], x.shape[1]
        covariance = w @ w.T + np.exp(self.arrays["log_variance"]) * np.eye(d)
        centred = x - self.arrays["mean"]
        distance = np.sum(centred * np.linalg.solve(covariance, centred.T).T, axis=1)
        return -0.5 * (distance + np.linalg.slogdet(covariance)[1] + d * np.log(2 * np.pi))


def binary_data():
    """Pictures of 3 × 4; the held-out ones are of other labels and much darker."""
    rng = np.random.default_rng(1)
    y, y_test = rng.integers(0, 2, 60), np.arange(24) % 3 + 5
    p, q = rng.uniform(0.3, 0.95, (2, 12)), rng.uniform(0.02, 0.4, (9, 12))
    return {
        "X": (rng.random((60, 12)) < p[y]).astype(np.float32).reshape(-1, 3, 4),
        "y": y,
        "X_test": (rng.random((24, 12)) < q[y_test]).astype(np.float32).reshape(-1, 3, 4),
        "y_test": y_test,
    }


def real_data():
    """Pictures of 2 × 3 far from zero; the held-out ones lie elsewhere and vary otherwise."""
    rng = np.random.default_rng(2)
    train = 3 + rng.normal(size=(60, 2)) @ rng.normal(size=(2, 6)) + 0.3 * rng.normal(size=(60, 6))
    test = -1 + rng.normal(size=(24, 3)) @ rng.normal(size=(3, 6)) + 0.8 * rng.normal(size=(24, 6))
    return {
        "X": train.astype(np.float32).reshape(-1, 2, 3),
        "y": np.arange(60) % 2,
        "X_test": test.astype(np.float32).reshape(-1, 2, 3),
        "y_test": np.arange(24) % 4,
    }


def fitted(folder: Path) -> list[Known]:
    """Both runs, made by the commands that make them for people."""
    binary, real = binary_data(), real_data()
    rbm = {"n-components": 5, "n-epochs": 4, "batch-size": 20, "weight-scale": 1.0, "random-state": 3}
    runs = []
    for kind, name, data, options in (
        (KnownRBM, "rbm", binary, rbm),
        (KnownPPCA, "ppca", real, {"random-state": 0}),
    ):
        np.savez(folder / f"{name}.npz", **data)
        words = itertools.chain(*((f"--{key}", str(value)) for key, value in options.items()))
        out = folder / f"{name}-run"
        called(["fit", name, str(folder / f"{name}.npz"), *words, "--out", str(out), "--quiet"])
        called(["evaluate", str(out), "--quiet"])
        runs.append(kind(out, data, data["X"].shape[1:]))
    return runs


def called(words: list[str]) -> None:
    result = CliRunner().invoke(cli, words, prog_name="latentia")
    assert result.exit_code == 0, result.output


def section(page: str, name: str) -> str:
    """The HTML of a section by its id."""
    found = re.search(rf'<section[^>]*id="{name}">(.*?)</section>', page, re.DOTALL)
    assert found, name
    return found[1]


def words(html: str) -> str:
    """What a reader sees of it, without pictures and data."""
    html = re.sub(r"<script.*?</script>|<svg.*?</svg>", " ", html, flags=re.DOTALL)
    return " ".join(unescape(re.sub(r"<[^>]+>", " ", html)).split())


def embedded(html: str) -> dict:
    """What the page's script is given."""
    found = re.search(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    assert found
    return json.loads(found[1])


def tile(sheet: dict, index: int) -> np.ndarray:
    """A tile of a sprite sheet as values, as the page's script reads it."""
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(sheet["src"].partition(",")[2]))), float)
    height, width = sheet["tile"]
    top, left = (index // sheet["columns"]) * height, (index % sheet["columns"]) * width
    grey = pixels[top : top + height, left : left + width]
    return sheet["low"] + (sheet["high"] - sheet["low"]) * grey / 255
