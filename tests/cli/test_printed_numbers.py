"""What the command line prints, against the same worked out in NumPy from the arrays of the run's model.

Training and test rows differ, and no mean is zero; rows are also taken in small blocks, as many rows would be.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logsumexp
from scipy.stats import multivariate_normal

import latentia
from latentia.estimator import rows as blocks
from latentia.estimator.gradient import MONITOR_ROWS

from .conftest import Shell

RNG = np.random.default_rng(0)
BITS = {"X": RNG.random((24, 4)) < [0.8, 0.3, 0.6, 0.5], "X_test": RNG.random((10, 4)) < [0.4, 0.6, 0.9, 0.2]}
_MIX = np.array([[1.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 2.0]])
REALS = {"X": RNG.normal(size=(24, 3)) @ _MIX + [1, 2, 3], "X_test": 1.5 * RNG.normal(size=(10, 3)) + [0, 3, 1]}
DATA = {"bits": BITS, "reals": REALS}
STATES = np.array(list(itertools.product((0.0, 1.0), repeat=4)))


def arrays(*values: Any) -> list[np.ndarray]:
    return [np.asarray(value, np.float64) for value in values]


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0, x)


# -- each family's number for one row, written out --------------------------------------------------------


def rbm_free_energy(model: Any, X: np.ndarray) -> np.ndarray:
    b, c, weights, mu, lam = arrays(
        model.visible.bias, model.hidden.bias, model.weights, model.visible_offset, model.hidden_offset
    )
    field = (X - mu) @ weights
    return -X @ b + field @ lam - softplus(c + field).sum(axis=1)


def rbm(model: Any, X: np.ndarray) -> np.ndarray:
    return -rbm_free_energy(model, X) - logsumexp(-rbm_free_energy(model, STATES))


def ppca(model: Any, X: np.ndarray) -> np.ndarray:
    weights, mean, log_variance = arrays(model.weights, model.mean, model.log_variance)
    covariance = weights @ weights.T + np.exp(log_variance) * np.eye(len(mean))
    return multivariate_normal(mean, covariance).logpdf(X)


def autoencoder(model: Any, X: np.ndarray) -> np.ndarray:
    rebuilt = X
    for layer in (*model.encoder.layers, *model.decoder.layers):
        weights, biases = arrays(layer.weights, layer.biases)
        rebuilt = rebuilt @ weights.T + biases
        rebuilt = np.tanh(rebuilt) if layer.activation == "tanh" else rebuilt
    return 0.5 * np.sum((X - rebuilt) ** 2, axis=1)


def dictionary(model: Any, X: np.ndarray) -> np.ndarray:
    from sklearn.decomposition import sparse_encode

    atoms = np.asarray(model.dictionary, np.float64)
    codes = sparse_encode(X, atoms, algorithm="lasso_cd", alpha=0.5, max_iter=10_000)
    return 0.5 * np.sum((X - codes @ atoms) ** 2, axis=1) + 0.5 * np.abs(codes).sum(axis=1)


def product_of_experts(model: Any, X: np.ndarray) -> np.ndarray:
    """½‖∇F‖² − the mean of vᵀ∇²Fv over the fixed directions, all slopes by differences."""
    import jax

    from latentia.ops import random

    weights, powers, centre, ridge, location, spread = arrays(
        model.weights, model.log_powers, model.centre, model.log_ridge, model.location, model.spread
    )

    def energy(X: np.ndarray) -> np.ndarray:
        offset = (X - location) / spread - centre
        experts = np.log1p(0.5 * (offset @ weights.T) ** 2) @ np.exp(powers)
        return experts + 0.5 * np.exp(ridge) * np.sum(offset**2, axis=1)

    h = 1e-4
    slopes = np.stack([(energy(X + h * e) - energy(X - h * e)) / (2 * h) for e in np.eye(3)], axis=1)
    signs = np.asarray(jax.random.rademacher(random.key(0), (8, 3), np.float32), np.float64)
    bends = [(energy(X + h * v) - 2 * energy(X) + energy(X - h * v)) / h**2 for v in signs]
    return 0.5 * np.sum(slopes**2, axis=1) - np.mean(bends, axis=0)


def vae(model: Any, X: np.ndarray) -> np.ndarray:
    """log Σ_z p(z) p(x | z) over the eight states of three binary latents."""
    z = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    odds = np.asarray(model.log_odds, np.float64)
    p = np.stack([np.asarray(model.decode(state.astype(np.float32)), np.float64) for state in z])
    log_prior = z @ odds - softplus(odds).sum()
    return logsumexp(log_prior + X @ np.log(p).T + (1 - X) @ np.log1p(-p).T, axis=1)


Rows = Callable[[Any, np.ndarray], np.ndarray]
#: family → (data, options, what is printed, the number of every row)
CASES: dict[str, tuple[str, list[Any], str, Rows]] = {
    "rbm": ("bits", ["--n-components", 3, "--learning-rate", 1, "--centring", 0.3], "log_likelihood", rbm),
    "ppca": ("reals", ["--n-components", 2], "log_likelihood", ppca),
    "vae": ("bits", ["--n-components", 3, "--hidden", "4,", "--latents", "bernoulli"], "log_likelihood", vae),
    "autoencoder": ("reals", ["--hidden", "3,2", "--activation", "tanh"], "reconstruction_loss", autoencoder),
    "dictionary": ("reals", ["--n-components", 2, "--alpha", 0.5], "objective", dictionary),
    "product-of-experts": ("reals", ["--n-components", 4], "score_matching", product_of_experts),
}
UNIT = {
    "log_likelihood": r"log-likelihood per example: (-?[\d.]+) nats",
    "objective": r"penalty: (-?[\d.e+-]+) \(lower",
    "reconstruction_loss": r"reconstruction loss per example: (-?[\d.e+-]+) \(lower",
    "score_matching": r"score-matching objective: (-?[\d.e+-]+) \(lower",
}


class Fitted:
    """A run, its model, and what its fit printed."""

    def __init__(self, shell: Shell, folder: Path, family: str):
        data, options, self.key, self.each = CASES[family]
        self.rows = {name: np.asarray(rows, np.float32) for name, rows in DATA[data].items()}
        np.savez(folder / f"{data}.npz", **self.rows)  # pyright: ignore[reportArgumentType]
        self.run = folder / family
        words = ["fit", family, folder / f"{data}.npz", *options, "--random-state", 0, "--out", self.run]
        words += [] if family == "ppca" else ["--n-epochs", 3, "--batch-size", 12]
        self.said = shell.ok(*words)
        self.model = latentia.load(self.run / "model.safetensors").model_

    def by_hand(self, part: str) -> np.ndarray:
        return self.each(self.model, self.rows[part].astype(np.float64))


@pytest.fixture(scope="module", params=list(CASES))
def fitted(request: pytest.FixtureRequest, shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Fitted:
    return Fitted(shell, tmp_path_factory.mktemp("numbers"), request.param)


@pytest.mark.parametrize("block", [4, 4096])
def test_evaluate_prints_the_mean_of_what_each_row_gets(
    shell: Shell, fitted: Fitted, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(blocks, "BLOCK", block)
    test, train = (fitted.by_hand(part).mean() for part in ("X_test", "X"))
    assert abs(test - train) > 0.02  # else nothing is tested
    for words, wanted, split, n in (
        ([], test, "test", 10),
        (["--split", "test"], test, "test", 10),
        (["--split", "train"], train, "train", 24),
    ):
        said = shell.ok("evaluate", fitted.run, *words)
        kept = json.loads((fitted.run / "evaluation.json").read_text())
        found = kept[fitted.key]["estimate"] if fitted.key == "log_likelihood" else kept[fitted.key]
        assert found == pytest.approx(wanted, rel=1e-3)
        assert (kept["split"], kept["n_examples"]) == (split, n)
        assert f"{n} {split} rows" in said
        shown = re.search(UNIT[fitted.key], said)
        assert shown, said
        assert float(shown[1]) == pytest.approx(found, rel=1e-3, abs=0.0051)


def test_fit_ends_with_what_was_done(fitted: Fitted) -> None:
    n, d = fitted.rows["X"].shape
    config = json.loads((fitted.run / "config.json").read_text())
    first, model, run, _ = fitted.said.strip().splitlines()
    assert f"Trained {config['family']} on {Path(config['data']['name']).stem} ({n} × {d}) in " in first
    steps = re.search(r", (\d+) steps\.$", first)
    assert steps
    assert int(steps[1]) == (1 if config["family"] == "ppca" else 3 * 24 // 12)
    assert model.split() == ["model", str(fitted.run / "model.safetensors")]
    assert run.split() == ["run", str(fitted.run)]
    assert config["n_rows"] == n


def test_the_last_metrics_are_of_the_training_rows(shell: Shell, tmp_path: Path) -> None:
    bits = Fitted(shell, tmp_path, "rbm")
    last = json.loads((bits.run / "metrics.jsonl").read_text().splitlines()[-1])
    X = bits.rows["X"][np.linspace(0, 23, MONITOR_ROWS).astype(int)].astype(np.float64)
    here = rbm_free_energy(bits.model, X)
    flipped = [rbm_free_energy(bits.model, np.where(np.arange(4) == i, 1 - X, X)) for i in range(4)]
    wanted = -np.mean(np.sum([softplus(here - other) for other in flipped], axis=0))
    assert last["pseudo_likelihood"] == pytest.approx(wanted, rel=1e-3)


@pytest.mark.parametrize("family", ["rbm", "ppca"])
@pytest.mark.parametrize("block", [4, 4096])
def test_codes_are_those_of_their_rows(
    shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, block: int
) -> None:
    found = Fitted(shell, tmp_path, family)
    monkeypatch.setattr(blocks, "BLOCK", block)
    for part in ("train", "test"):
        X = found.rows["X" if part == "train" else "X_test"].astype(np.float64)
        shell.ok("encode", found.run, "--split", part, "--out", tmp_path / "codes.csv")
        written = np.loadtxt(tmp_path / "codes.csv", delimiter=",", skiprows=1)
        np.testing.assert_allclose(written, CODES[family](found.model, X), rtol=1e-3, atol=1e-4)


def _rbm_codes(model: Any, X: np.ndarray) -> np.ndarray:
    weights, mu, c = arrays(model.weights, model.visible_offset, model.hidden.bias)
    return expit(c + (X - mu) @ weights)


def _ppca_codes(model: Any, X: np.ndarray) -> np.ndarray:
    weights, mean, log_variance = arrays(model.weights, model.mean, model.log_variance)
    matrix = weights.T @ weights + np.exp(log_variance) * np.eye(weights.shape[1])
    return np.linalg.solve(matrix, weights.T @ (X - mean).T).T


CODES: dict[str, Rows] = {"rbm": _rbm_codes, "ppca": _ppca_codes}
