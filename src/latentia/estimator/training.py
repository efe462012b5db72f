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
from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.run_folder import RunFolder
from latentia.estimator import saving
from latentia.estimator.fingerprint import fingerprint
from latentia.estimator.rows_to_learn import LearningRows, some_rows
from latentia.learning import fit as loop
from latentia.learning import stacking
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.progress import display
from latentia.ops import random
from latentia.ops.examples import Examples, WithLabels, without_labels

Binarize = Literal["sample", "threshold"] | None


class Encode(AbstractPrepare):
    """Examples → visibles; with ``sample`` entries in [0, 1] are probabilities, and are sampled anew every time."""

    spaces: Any = eqx.field(static=True)
    sample: bool = eqx.field(static=True, default=False)

    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Encode a batch."""
        if self.sample:  # the data, not the labels
            data = without_labels(rows)
            sampled = (jax.random.uniform(key, data.shape, data.dtype) < data).astype(data.dtype)
            rows = rows._replace(data=sampled) if isinstance(rows, WithLabels) else sampled
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


def survey(rows: Any, weights: Any, prepare: AbstractPrepare, seed: int) -> Any:
    """Visibles of many rows, as training meets them; as often as their weights say."""
    return prepare(jax.device_put(some_rows(rows, seed, weights)), key=random.key(seed))


def blocks(X: Any) -> Iterator[Any]:
    """The rows of examples, or of one array of them, block by block, as float32."""
    return Examples.of(X).blocks()


def run_stack(
    estimator: Any, rows: LearningRows, makers: Sequence[stacking.Maker], plan: Plan, seed: int
) -> list[loop.Result]:
    """Greedy pretraining stages, each with a progress bar and a folder inside the run's folder."""
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
