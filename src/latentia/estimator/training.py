"""From an estimator's parameters to a run of the training loop."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.errors import DataError
from latentia.core.run_folder import RunFolder
from latentia.estimator import saving
from latentia.estimator.fingerprint import fingerprint
from latentia.estimator.rows_to_learn import LearningRows, some_rows
from latentia.learning import fit as loop
from latentia.learning import stacking
from latentia.learning.batches import read_rows
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.progress import display
from latentia.ops import random

Binarize = Literal["sample", "threshold"] | None


class Encode(AbstractPrepare):
    """Rows → visibles; with ``sample`` each entry in [0, 1] is a coin's probability, thrown anew every time."""

    spaces: Any = eqx.field(static=True)
    sample: bool = eqx.field(static=True, default=False)

    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Encode a batch."""
        if self.sample:  # the data come first, and binary sites are the only ones that can be thrown
            first = space.leaves(self.spaces)[0].n_columns
            data = rows[:, :first]
            thrown = (jax.random.uniform(key, data.shape, rows.dtype) < data).astype(rows.dtype)
            rows = thrown if first == rows.shape[1] else jnp.concatenate([thrown, rows[:, first:]], axis=1)
        return space.encode(self.spaces, rows)


@dataclasses.dataclass(frozen=True)
class Plan:
    """How long to train, in what batches, and when to stop."""

    n_steps: int
    batch_size: int
    chunk: int
    validation_fraction: float = 0.0
    patience: int = 0
    tolerance: float = 0.0
    run_dir: str | Path | None = None
    resume: bool = False
    constant_rate: bool = False
    begin: Callable[[], None] = lambda: None
    callbacks: Sequence[Callable[[loop.Event], Any]] = ()

    def one_pass(self, n_rows: int) -> Plan:
        """The plan for one pass over the rows, without validation or files."""
        steps = max(1, math.ceil(n_rows / self.batch_size))
        return dataclasses.replace(
            self,
            n_steps=steps,
            chunk=min(steps, self.chunk),
            validation_fraction=0.0,
            patience=0,
            run_dir=None,
            constant_rate=True,
        )


def survey(rows: np.ndarray, weights: Any, prepare: AbstractPrepare, seed: int) -> Any:
    """Visibles of many rows, as training meets them; as often as their weights say."""
    return prepare(jax.device_put(some_rows(rows, seed, weights)), key=random.key(seed))


def validate_mapped(estimator: Any, X: np.ndarray, *, reset: bool) -> np.ndarray:
    """Check a memory map block by block, without reading it into memory as a whole."""
    if X.ndim != 2 or X.shape[0] < 2 or X.shape[1] < 1 or X.dtype.kind not in "fiub":
        raise DataError(f"A memory map must be a numeric matrix with at least 2 rows, got {X.dtype}{X.shape}.")
    if reset:
        estimator.n_features_in_ = int(X.shape[1])
    elif X.shape[1] != estimator.n_features_in_:
        raise DataError(
            f"X has {X.shape[1]} features, but {type(estimator).__name__} expects {estimator.n_features_in_}."
        )
    for rows in blocks(X):
        if not np.isfinite(rows).all():
            raise DataError("The memory map contains NaN or infinity. Clean the data before fitting.")
    return X


def blocks(X: np.ndarray, n_bytes: int = 32 * 1024**2) -> Any:
    """The rows of an array, block by block, as float32."""
    size = max(1, n_bytes // (4 * X.shape[1]))
    for start in range(0, X.shape[0], size):
        yield read_rows(X, np.arange(start, min(start + size, X.shape[0])))


def check_blocks(check: Callable[..., None], X: np.ndarray, **options: Any) -> None:
    """Check the rows of an array block by block; what is wrong is named by its row in the whole array."""
    row = 0
    for block in blocks(X):
        check(block, first=(row, 0), **options)
        row += len(block)


def run(
    estimator: Any, model: Any, rows: LearningRows, learner: Any, prepare: Any, plan: Plan, seed: int, state: Any
) -> loop.Result:
    """One run of the loop, with its validation rows and its folder."""
    folder = None if plan.run_dir is None else RunFolder.of(plan.run_dir)
    held_out = rows.held_out
    settings = loop.Settings(
        n_steps=plan.n_steps,
        batch_size=plan.batch_size,
        seed=seed,
        chunk=plan.chunk,
        monitors=estimator.monitors(model, rows.training, rows.weights),
        ignorance=estimator.ignorance(model, rows.training, rows.weights),
        score=None if held_out is None else estimator.validation_scorer(held_out, rows.held_out_weights),
        patience=plan.patience,
        tolerance=plan.tolerance,
        folder=folder,
        resume=plan.resume,
        fingerprint={} if folder is None else fingerprint(estimator, rows, plan, seed),
        begin=plan.begin,
        callbacks=plan.callbacks,
        display=display(estimator.verbose, type(estimator).__name__),
    )
    return loop.fit(
        model,
        rows.training,
        learner,
        prepare,
        settings,
        key=random.key(seed),
        weights=rows.weights,
        state=state,
    )


def run_stack(
    estimator: Any, rows: LearningRows, makers: Sequence[stacking.Maker], plan: Plan, seed: int
) -> list[loop.Result]:
    """Greedy stages before the training proper, each with a bar and, in the run's folder, a folder of its own."""
    belonging = fingerprint(estimator, rows, plan, seed) if plan.run_dir is not None else {}

    def settings(stage: stacking.Stage, index: int) -> loop.Settings:
        return loop.Settings(
            n_steps=stage.n_steps,
            batch_size=stage.batch_size,
            seed=seed + index,
            chunk=stage.chunk,
            folder=None if plan.run_dir is None else RunFolder.of(plan.run_dir).stage(index + 1),
            resume=plan.resume,
            fingerprint=belonging,
            begin=plan.begin,
            callbacks=plan.callbacks,
            display=display(estimator.verbose, f"{type(estimator).__name__}: {stage.name}"),
            stage=stage.name,
        )

    return stacking.greedy(rows.training, makers, settings, key=random.key(seed), weights=rows.weights)


@contextlib.contextmanager
def run_folder(estimator: Any, plan: Any, n_rows: int) -> Iterator[RunFolder | None]:
    """The run's folder for as long as it is written, with the run described in it; None for a run without one.

    Args:
        estimator: who learns.
        plan: anything with ``run_dir`` and ``resume``.
        n_rows: rows to learn from.
    """
    if plan.run_dir is None:
        yield None
        return
    folder = RunFolder.of(plan.run_dir)
    folder.refuse(resume=plan.resume)
    with folder.held():
        description = {
            "family": estimator.family,
            "params": saving.plain_parameters(estimator),
            "blueprint": estimator.blueprint_,
            "n_rows": n_rows,
        }
        folder.begin(description, resume=plan.resume)
        yield folder
