"""The training loop. There is only this one, and it depends only on the learner interface.

Chunks of steps run as one compiled scan with donated buffers. Between chunks the host
shows progress, writes metrics, saves a checkpoint, scores the validation rows and checks for divergence.
Learners on the host are called from Python instead; nothing else differs.
The loop is written over a device mesh with one ``data`` axis; a single device is the smallest case.

All random numbers are derived from the key and the number of the chunk, and the order of the rows from the seed
and the step: a run that is killed and resumed gives the same bits as an uninterrupted one.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractLearner
from latentia.core.capabilities import Bounded
from latentia.core.errors import DivergenceError, NotNormalisableError
from latentia.core.run_folder import RunFolder, held
from latentia.core.sharding import data_mesh
from latentia.learning import checkpoint, interrupts
from latentia.learning.batches import Batches
from latentia.learning.compiled import AbstractPrepare, Carry, Inputs, is_compiled, run_chunk
from latentia.learning.further import resized
from latentia.learning.guard import Guard
from latentia.learning.host_loop import HostBatches, run_on_host
from latentia.learning.progress import Display, Silent
from latentia.ops.arrays import float_type, largest
from latentia.ops.compiling import briefly, jitted, make_room
from latentia.ops.examples import Examples

#: How often a run may diverge before it is stopped.
MAX_ROLLBACKS = 3
#: Parameters this many times larger than at the start (or than 1) have exploded.
EXPLOSION = 1e3
#: Steps of a chunk below which all of them are full ones.
SHORT_CHUNK = 16
#: Steps of a run from which on a longer compilation pays.
LONG_RUN = 30_000
#: Least time between two checkpoints, unless the settings say otherwise.
CHECKPOINT_SECONDS = 20.0


@dataclasses.dataclass(frozen=True)
class Event:
    """What callbacks receive after every chunk; returning True stops the run.

    ``stage`` is the name of a pretraining stage, and empty in the main training.
    ``model`` is the current model, and ``kept`` the model that the run would return if it ended now (an averaged
    model, or the best one).
    """

    step: int
    n_steps: int
    epoch: float
    metrics: dict[str, float]
    model: Any
    history: Sequence[dict[str, float]]
    stage: str = ""
    kept: Any = None


@dataclasses.dataclass
class Settings:
    """How to run.

    Args:
        n_steps: learning steps, rounded up to whole chunks.
        batch_size: rows per step.
        seed: order of the rows.
        chunk: approximate number of steps per chunk.
        devices: which devices to spread batches over; all of the default backend if None.
        monitors: further metrics of the model by name, computed after every chunk.
        independent_baseline: values of some of the monitors for a model of independent sites; a model that is worse
            has collapsed (:mod:`latentia.learning.guard`).
        score: validation score of a model (higher is better), computed after every chunk.
        patience: chunks without a better score before the run stops, keeping the best; 0 never stops.
        tolerance: smallest gain of the score that counts as better.
        folder: the run folder, where metrics and checkpoints go; nowhere if None.
        resume: continue from the folder's checkpoint if there is one.
        fingerprint: the settings with which a checkpoint must have been written, see
            :func:`latentia.learning.checkpoint.load`.
        checkpoint_seconds: least time between two checkpoints.
        begin: called before the first step, after all checks.
        callbacks: called with an :class:`Event` after every chunk.
        display: progress on the screen.
        stage: name of the pretraining stage; empty for the main training.
    """

    n_steps: int
    batch_size: int
    seed: int = 0
    chunk: int = 500
    devices: Sequence[Any] | None = None
    monitors: dict[str, Callable[[Any], float]] = dataclasses.field(default_factory=dict)
    independent_baseline: dict[str, float] = dataclasses.field(default_factory=dict)
    score: Callable[[Any], float] | None = None
    patience: int = 0
    tolerance: float = 0.0
    folder: RunFolder | Path | None = None
    resume: bool = False
    fingerprint: Any = ""
    checkpoint_seconds: float = dataclasses.field(default_factory=lambda: CHECKPOINT_SECONDS)
    begin: Callable[[], None] = lambda: None
    callbacks: Sequence[Callable[[Event], Any]] = ()
    display: Display = dataclasses.field(default_factory=Silent)
    stage: str = ""


@dataclasses.dataclass
class Result:
    """The result of a run."""

    model: Any
    state: Any
    history: list[dict[str, float]]
    seconds: float
    compile_seconds: float
    n_steps: int
    rollbacks: int
    stopped_early: bool


def fit(
    model: Any,
    X: Any,
    learner: AbstractLearner,
    prepare: AbstractPrepare,
    settings: Settings,
    *,
    key: PRNGKeyArray,
    weights: np.ndarray | None = None,
    state: Any = None,
) -> Result:
    """Train ``model`` on ``X`` (examples, or one array); ``state`` continues an earlier run's learner."""
    make_room()
    with held(settings.folder):
        examples = X if isinstance(X, Examples) else Examples(X)
        run = _Run(model, examples, learner, prepare, settings, key, weights, state)
        try:
            settings.begin()
            return _through(run)
        finally:
            run.batches.close()


def _through(run: _Run) -> Result:
    """The chunks of a run; whatever ends it, what was learned is saved."""
    run.settings.display.start(run.n_steps, run.step)
    try:
        with jax.set_mesh(run.mesh), interrupts.remembered() as interrupted:
            while run.step < run.n_steps and not run.stopped:
                run.advance()
                if interrupted():
                    raise KeyboardInterrupt
    except KeyboardInterrupt:
        run.save(force=True)
        raise
    except (DivergenceError, NotNormalisableError) as error:
        run.save(force=True)
        error.result = run.result()
        raise
    finally:
        run.settings.display.stop()
    run.save(force=True)
    return run.result()


class _Run:
    """One training run: the carry, and the host's bookkeeping."""

    def __init__(
        self,
        model: Any,
        X: Examples,
        learner: Any,
        prepare: Any,
        settings: Settings,
        key: Any,
        weights: Any,
        state: Any,
    ):
        self.learner, self.settings, self.key = learner, settings, key
        self.folder = None if settings.folder is None else RunFolder.of(settings.folder)
        dtype = float_type(model)
        self.prepare = prepare if dtype == np.float32 else _Typed(prepare, dtype)
        weights = None if weights is None else np.asarray(weights, dtype)
        self.mesh = data_mesh(settings.devices, 1 if learner.host_side else settings.batch_size)
        rows = (X, weights, settings.batch_size, settings.seed)
        if learner.host_side:
            self.batches = HostBatches(*rows)
        else:
            self.batches = Batches(*rows, self.mesh, in_order=learner.keeps_rows)
        n_chunks = math.ceil(settings.n_steps / min(settings.chunk, self.batches.most_steps))
        chunk = math.ceil(settings.n_steps / n_chunks)
        # Light and full steps are two programs to compile; a short chunk has full ones only.
        period = 1 if chunk < SHORT_CHUNK and not learner.host_side else learner.period
        n_groups = math.ceil(chunk / period)
        self.period = math.ceil(chunk / n_groups)
        self.chunk = chunk if learner.host_side else self.period * n_groups  # a compiled loop has whole groups
        self.n_steps = self.chunk * n_chunks
        self.history: list[dict[str, float]] = []
        self.step = self.rollbacks = self.waited = 0
        self.stopped = False
        self.seconds = self.compile_seconds = 0.0
        self.best_score = -math.inf
        self._saved_at = self._begun_at = time.monotonic()
        with jax.set_mesh(self.mesh):
            self._start(model, state)

    def _start(self, model: Any, state: Any) -> None:
        first_key = jax.random.fold_in(self.key, 0)
        if state is None:
            init_key, prepare_key = jax.random.split(first_key)
            x = self.prepare(jax.device_put(self.batches.sample(self.settings.batch_size)), key=prepare_key)
            state, top = _init(self.learner, model, x, init_key)
        else:
            n = self.settings.batch_size
            rows, weighted = self.batches.sample(n), self.batches.weights is not None
            enough = jax.tree.map(lambda leaf: np.resize(leaf, (n, *leaf.shape[1:])), rows)
            rows = jax.device_put(enough)  # a batch may be more than all rows
            state = resized(state, model, self.learner, self.prepare, rows, weighted=weighted, key=first_key)
            top = _largest(model)
        self.limit = EXPLOSION * max(1.0, float(top))
        self.carry = _spread(_copy(Carry(model, state)), self.mesh)
        self.best = _copy(self.learner.final(model, state)) if self.settings.patience else None
        self._check_margin(model, self.step)
        known = {
            name: value
            for name, value in self.settings.independent_baseline.items()
            if name in self.settings.monitors
        }
        self.guard = Guard(known, self._monitored(known))
        if self.folder is None:
            return
        if self.settings.resume and self.folder.has_checkpoint:
            self._resume(self.folder)
        else:
            self.folder.write_metrics()

    def _resume(self, folder: RunFolder) -> None:
        fresh = (self.carry, self.best)
        loaded, progress = checkpoint.load(folder, fresh, self.settings.fingerprint)
        self.carry, self.best = jax.tree.map(lambda new, old: jax.device_put(new, old.sharding), loaded, fresh)
        self.step, self.rollbacks, self.waited = progress["step"], progress["rollbacks"], progress["waited"]
        self.best_score, self.stopped = progress["best_score"], progress["stopped"]
        self.seconds, self.history = progress["seconds"], folder.ordered(progress["history"])
        for row in self.history:
            self.guard.keep(row)
        folder.write_metrics(self.history)  # without what a killed run wrote after its checkpoint

    def advance(self) -> None:
        """One chunk: compute, then either keep it or roll back."""
        begin = time.perf_counter()
        self._good = good = _copy(self.carry)
        data, weights, rows = self.batches.chunk(self.step, self.chunk)
        # A retried chunk must not meet the same random numbers again.
        key = jax.random.fold_in(jax.random.fold_in(self.key, self.step + 1), self.rollbacks)
        inputs = Inputs(self.learner, self.prepare, data, weights, rows, key, self.period, self.n_steps >= LONG_RUN)
        if self.learner.host_side:
            self.carry, results, compiling = run_on_host(inputs, self.carry)
        else:
            if not is_compiled(inputs, self.carry):
                self.settings.display.compiling()
            self.carry, results, compiling = run_chunk(inputs, self.carry)
        results = jax.device_get(results)
        self.batches.release(data, weights)
        self.compile_seconds += compiling
        self.seconds += time.perf_counter() - begin - compiling
        metrics = {name: float(value) for name, value in results["metrics"].items()}
        why = self._trouble(results, metrics)
        if why is not None:
            self._roll_back(good, why)
            return
        self._check_margin(self.carry.model, self.step + self.chunk, good)
        self.step += self.chunk
        self._keep(metrics)

    def _trouble(self, results: dict, metrics: dict[str, float]) -> str | None:
        """Why the chunk must not be kept, or None; what the monitors say joins the metrics."""
        if not results["finite"]:
            return "non-finite numbers"
        if not float(results["largest"]) < self.limit:
            return "exploding parameters"
        metrics.update(self._monitored(self.settings.monitors))
        return self.guard.collapsed(metrics)

    def _monitored(self, names: Iterable[str]) -> dict[str, float]:
        model = self.learner.final(self.carry.model, self.carry.state)
        return {name: float(self.settings.monitors[name](model)) for name in names}

    def _keep(self, metrics: dict[str, float]) -> None:
        if self.settings.score is not None:
            metrics["validation_score"] = self._validate()
        epoch = self.step * self.settings.batch_size / self.batches.X.n
        row = {"step": self.step, "epoch": epoch, "seconds": self.seconds, **metrics}
        self.history.append(row)
        self.guard.keep(metrics)
        if self.folder is not None:
            self.folder.append_metrics(row)
        self.settings.display.update(self.step, metrics)
        stage = self.settings.stage
        event = Event(self.step, self.n_steps, epoch, metrics, self.carry.model, self.history, stage, self._kept())
        for callback in self.settings.callbacks:
            self.stopped = bool(callback(event)) or self.stopped
        self.save()

    def _validate(self) -> float:
        assert self.settings.score is not None
        candidate = self.learner.final(self.carry.model, self.carry.state)
        score = float(self.settings.score(candidate))
        if not self.settings.patience:
            return score
        if score > self.best_score + self.settings.tolerance:
            self.best_score, self.waited, self.best = score, 0, _copy(candidate)
        else:
            self.waited += 1
            self.stopped = self.waited >= self.settings.patience
        return score

    def _roll_back(self, good: Carry, why: str) -> None:
        """Return to the state before the chunk with half the step, or end the run, which can be resumed there."""
        self.carry = good
        halved = self.learner.halve_step(good.state)
        if halved is None or self.rollbacks == MAX_ROLLBACKS:
            tried = f" after {self.rollbacks} rollbacks, each with half the step," if self.rollbacks else ""
            raise DivergenceError(
                f"Training diverged ({why}) at step {self.step}{tried} and was stopped. The model before that step "
                "was kept (model_). Lower learning_rate, set clip, or scale the data."
            )
        self.rollbacks += 1
        self.settings.display.say(
            f"Training diverged ({why}) after step {self.step}: rolled back (rollback {self.rollbacks} of "
            f"{MAX_ROLLBACKS}), step halved."
        )
        self.carry = Carry(good.model, halved)

    def _check_margin(self, model: Any, step: int, good: Carry | None = None) -> None:
        """Refuse a model without a normaliser; the run stays where it was before the chunk, to be resumed."""
        if isinstance(model, Bounded) and not float(model.margin()) > 0:
            self.carry = self.carry if good is None else good
            raise NotNormalisableError(
                f"At step {step} the model is not normalisable (margin {float(model.margin()):.3g}). "
                f"{model.margin_message()}"
            )

    def save(self, force: bool = False) -> None:
        """A checkpoint, if there is a folder and it is time."""
        now = time.monotonic()
        if self.folder is None or (not force and now - self._saved_at < self.settings.checkpoint_seconds):
            return
        if any(leaf.is_deleted() for leaf in jax.tree.leaves(self.carry)):
            self.carry = self._good  # interrupted inside a chunk, which had consumed its carry
        names = ("step", "rollbacks", "waited", "best_score", "stopped", "seconds", "history")
        progress = {name: getattr(self, name) for name in names}
        checkpoint.save(self.folder, (self.carry, self.best), progress, self.settings.fingerprint)
        self._saved_at = now

    def _kept(self) -> Any:
        return self.best if self.settings.patience else self.learner.final(self.carry.model, self.carry.state)

    def result(self) -> Result:
        """The model to keep, and how it came about."""
        early = self.stopped and self.step < self.n_steps
        return Result(
            _copy(self._kept()),
            self.carry.state,
            self.history,
            self.seconds,
            self.compile_seconds,
            self.step,
            self.rollbacks,
            early,
        )


class _Typed(AbstractPrepare):
    """Visibles in the type of a model that is not in float32, as rows are."""

    prepare: AbstractPrepare
    dtype: Any = eqx.field(static=True)

    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Prepare a batch."""
        return jax.tree.map(lambda leaf: leaf.astype(self.dtype), self.prepare(rows, key=key))


@briefly
def _init(learner: AbstractLearner, model: Any, x: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
    """(state, largest parameter), in one program."""
    return learner.init(model, x, key=key), largest(model)


def _spread(tree: Any, mesh: Mesh) -> Any:
    """Arrays that are not on the mesh yet (parameters) are replicated over it; split ones (chains) stay split."""
    everywhere = NamedSharding(mesh, PartitionSpec())
    on_mesh = lambda leaf: isinstance(leaf.sharding, NamedSharding) and leaf.sharding.mesh == mesh  # noqa: E731
    return jax.tree.map(lambda leaf: leaf if on_mesh(leaf) else jax.device_put(leaf, everywhere), tree)


_largest = jitted(largest)


def _copy(tree: Any) -> Any:
    """The tree with arrays of its own; a transfer, so that no shape has to be compiled for."""
    fresh = lambda leaf: jax.device_put(leaf, leaf.sharding, may_alias=False)  # noqa: E731
    return jax.tree.map(lambda leaf: fresh(leaf) if isinstance(leaf, jax.Array) else leaf, tree)
