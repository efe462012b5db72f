"""Every family over time: fitted again, killed and resumed, gone on with; always as if it had been done at once."""

from __future__ import annotations

import inspect
from typing import Any

import jax
import numpy as np
import pytest

from latentia.core.errors import LatentiaError
from latentia.learning import fit as loop
from latentia.registry import FAMILIES

NAMES = [family.name for family in FAMILIES]
BY_NAME = {family.name: family for family in FAMILIES}
#: Settings with a state of their own, for the families that have them.
STATEFUL = {
    "n_epochs": 3,
    "batch_size": 12,
    "averaging": 0.6,
    "momentum": 0.5,
    "schedule": "warmup",
    "optimizer": "adam",
    "early_stopping": True,
    "validation_fraction": 0.25,
    "patience": 2,
    "update": "online",
    "solver": "natural_gradient",
    "warmup": 2.0,
    "pretraining_epochs": 2,
}
#: Families in which a name means something else.
OTHERS = {"gaussian": ("solver",), "ppca": ("solver",)}
#: Families whose learners keep something of a batch's size: chains, noise, directions, codes.
ANY_SIZE = ("rbm", "deep-energy", "autoencoder", "dictionary", "ica")


def rows(name: str, seed: int, n: int = 48) -> np.ndarray:
    rng = np.random.default_rng([seed, 5])
    if BY_NAME[name].tiny_data == "binary":
        return (rng.random((n, 5)) < [0.2, 0.4, 0.5, 0.6, 0.8]).astype(np.float32)
    scale = [1.0, 2.0, 0.5]
    return (rng.standard_t(5, size=(n, 3)) @ rng.normal(size=(3, 3)) * scale + [1, -2, 3]).astype(np.float32)


def estimator(name: str, **changes: Any) -> Any:
    kind = BY_NAME[name].estimator()
    known = inspect.signature(kind).parameters
    options = {key: value for key, value in STATEFUL.items() if key in known and key not in OTHERS.get(name, ())}
    return kind(**{**options, **BY_NAME[name].tiny, **changes, "random_state": 3})


def arrays(fitted: Any) -> list[np.ndarray]:
    kept = [fitted.model_, vars(fitted).get("_state")]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(kept) if hasattr(leaf, "dtype") and not is_key(leaf)]


def is_key(leaf: Any) -> bool:
    return jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def same(one: Any, other: Any) -> None:
    for a, b in zip(arrays(one), arrays(other), strict=True):
        np.testing.assert_array_equal(a, b)
    assert without_seconds(one.history_) == without_seconds(other.history_)


def without_seconds(history: Any) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


class Killed(Exception):
    """What ends a run without a last checkpoint."""


def killed(at: int) -> Any:
    calls = []

    def callback(event: Any) -> None:
        calls.append(event.step)
        if len(calls) == at:
            raise Killed

    return callback


@pytest.mark.parametrize("name", NAMES)
def test_a_family_over_time(name, tmp_path, monkeypatch):
    """One test for all, so that what is compiled for a family is compiled once."""
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    X, other = rows(name, 0), rows(name, 1)
    fresh = estimator(name).fit(X)
    again_after_another(name, fresh, X, other)
    if "run_dir" in fresh.get_params():
        killed_and_resumed(name, fresh, X, other, tmp_path)
    if hasattr(fresh, "partial_fit"):
        gone_on_with(name, X, other)


def again_after_another(name: str, fresh: Any, X: np.ndarray, other: np.ndarray) -> None:
    """A second fit is a first one, whatever was done in between."""
    second = estimator(name).fit(other)
    if hasattr(second, "partial_fit"):
        second.partial_fit(other)
    second._log_z = second._log_likelihood = "of the model before"
    second.fit(X)
    same(fresh, second)
    assert set(vars(second)) == set(vars(fresh))
    assert vars(second).get("_next_seed") == vars(fresh).get("_next_seed")


def killed_and_resumed(name: str, fresh: Any, X: np.ndarray, other: np.ndarray, tmp_path: Any) -> None:
    """Killed in its second and in its last chunk, and resumed: the same bits."""
    n_chunks = len(fresh.history_) + sum(map(len, vars(fresh).get("pretraining_history_", ())))
    for at in sorted({min(2, n_chunks), n_chunks}):
        folder = tmp_path / str(at)
        with pytest.raises(Killed):
            estimator(name, run_dir=folder, callbacks=[killed(at)]).fit(X)
        resumed = estimator(name, run_dir=folder, resume=True).fit(X)
        same(fresh, resumed)
        if at < n_chunks:
            continue
        done = estimator(name, run_dir=folder, resume=True).fit(X)  # nothing is left to do
        same(fresh, done)
        with pytest.raises(LatentiaError, match="the training rows"):
            estimator(name, run_dir=folder, resume=True).fit(other)
        with pytest.raises(LatentiaError, match="sample_weight"):
            estimator(name, run_dir=folder, resume=True).fit(X, sample_weight=np.arange(1, len(X) + 1))


def gone_on_with(name: str, X: np.ndarray, other: np.ndarray) -> None:
    """Passes over more rows: other random numbers each time, a state that goes on, any number of rows."""
    first = estimator(name).partial_fit(X)
    seeds = [first._next_seed]
    before = arrays(first)
    first.partial_fit(X)
    seeds.append(first._next_seed)
    assert len(set(seeds)) == 2
    assert any(not np.array_equal(a, b) for a, b in zip(before, arrays(first), strict=True))
    same(first, estimator(name).partial_fit(X).partial_fit(X))
    step = getattr(first._state, "step", None)
    if step is not None:
        assert float(step) == 2 * len(X) / 12  # steps are counted on
    if name in ANY_SIZE:
        first.partial_fit(other[:7]).partial_fit(other)  # fewer rows than a batch, and again as many
    assert all(np.isfinite(array).all() for array in arrays(first) if array.dtype.kind == "f")


@pytest.mark.parametrize("name", ["rbm", "dictionary"])
def test_a_pass_after_a_fit_meets_new_random_numbers(name, monkeypatch):
    from latentia.learning import fit as loop

    seeds = []
    real = loop.fit
    monkeypatch.setattr(loop, "fit", lambda *args, **options: seeds.append(args[4].seed) or real(*args, **options))
    X = rows(name, 0)
    fitted = estimator(name, early_stopping=False).fit(X).partial_fit(X).partial_fit(X)
    assert len(set(seeds)) == 3
    read = estimator(name).adopt(fitted.model_, fitted.blueprint_)
    read.partial_fit(X)
    assert seeds[-1] != seeds[0]  # a model from a file has been fitted too


def test_a_given_model_brings_nothing_of_the_one_before():
    """What was found out about the old model, its log Z above all, is not said of the new one."""
    X = rows("ppca", 0)
    fitted = estimator("ppca").fit(X)
    fitted._log_z = fitted._log_likelihood = "of the model before"
    fitted.network_ = "of the model before"
    fitted.adopt(estimator("ppca").fit(2 * X).model_, fitted.blueprint_)
    assert not {"_log_z", "_log_likelihood", "network_", "_state"} & set(vars(fitted))
    assert np.isfinite(fitted.log_z().estimate)
