"""Learning encoders of sparse codes: LISTA from an exact solver's codes, PSD together with the dictionary.

LISTA is supervised. It minimises mean ‖f(x) − z*‖², where z* are the exact codes, layer by layer: a new layer
starts as a step of ISTA, is trained alone, and then with all earlier layers. Each of these is a run of the training
loop.

PSD (predictive sparse decomposition) learns from the signals alone, and is one run. The losses of both are in
:mod:`latentia.learning.prediction`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import optax
import scipy.sparse as sp

from latentia.core.algorithms import AbstractObjective, require
from latentia.core.errors import DataError, DivergenceError, ParameterError
from latentia.core.run_folder import RunFolder
from latentia.inference.sparse.unrolled import LISTA, AbstractEncoder, Activation, PSDEncoder, encode_with
from latentia.learning import fit as loop
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.prediction import (
    CodeDistance,
    Columns,
    PredictiveDecomposition,
    PredictiveEncoder,
    TaughtEncoder,
)
from latentia.learning.progress import Display, Silent
from latentia.ops import random
from latentia.ops.examples import Examples

__all__ = ["Journal", "encode_with", "learn_lista", "learn_psd"]

#: Part of a layer's steps in which it learns alone.
ALONE = 0.25
#: Most steps between two looks of the host.
LONGEST_CHUNK = 500
#: Signals from which the range of a tanh is taken.
RANGE_ROWS = 20_000


@dataclasses.dataclass
class Journal:
    """How a training is kept and shown, and what it has been like.

    Args:
        folder: for metrics and checkpoints; None writes nothing. The last stage has it for its own, those before
            it have folders for stages in it.
        resume: continue from the folder's checkpoints.
        fingerprint: what a checkpoint must have been written with.
        callbacks: called with a :class:`latentia.learning.fit.Event` after every chunk; True ends the stage.
        display: the display of a stage, given its name.
        history: rows of metrics; they are added as stages end, with steps, epochs and seconds that go on.
    """

    folder: RunFolder | Path | None = None
    resume: bool = False
    fingerprint: Any = ""
    callbacks: Sequence[Callable[[loop.Event], Any]] = ()
    display: Callable[[str], Display] = lambda _: Silent()
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)

    def add(self, rows: Sequence[dict[str, float]], facts: dict[str, float]) -> None:
        """Write down a stage: its rows after those of the stages before it, each with the stage's own facts."""
        before = self.history[-1] if self.history else {}
        going_on = {name: before.get(name, 0) for name in ("step", "epoch", "seconds")}
        for row in rows:
            self.history.append({**facts, **row, **{name: row[name] + past for name, past in going_on.items()}})


@dataclasses.dataclass(frozen=True)
class _Stage:
    """One run of the loop: its name, its number, its length, and facts for its rows of metrics."""

    name: str
    number: int
    n_steps: int
    is_last: bool = True
    facts: dict[str, float] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class _Course:
    """What all stages share."""

    rows: Examples
    batch_size: int
    seed: int
    journal: Journal

    def run(
        self,
        stage: _Stage,
        model: Any,
        objective: AbstractObjective,
        optimizer: Optimizer,
        kept: Callable[[Any], Any],
    ) -> Any:
        """What is ``kept`` of the model after a stage; also of the last good one, in the error of a divergence."""
        learner, prepare = GradientLearner(objective, optimizer), Columns(model.x_space)
        require(learner, model)
        key = random.key(self.seed + stage.number)
        try:
            result = loop.fit(model, self.rows, learner, prepare, self._settings(stage), key=key)
        except DivergenceError as error:
            if error.result is not None:
                self.journal.add(error.result.history, stage.facts)
                error.result = dataclasses.replace(error.result, model=kept(error.result.model))
            error.add_note(f"This happened while training the encoder ({stage.name}).")
            raise
        self.journal.add(result.history, stage.facts)
        return kept(result.model)

    def _settings(self, stage: _Stage) -> loop.Settings:
        journal = self.journal
        folder = None if journal.folder is None else RunFolder.of(journal.folder)
        if folder is not None and not stage.is_last:
            folder = folder.stage(stage.number + 1)
        return loop.Settings(
            n_steps=stage.n_steps,
            batch_size=self.batch_size,
            seed=self.seed + stage.number,
            chunk=min(math.ceil(len(self.rows) / self.batch_size), LONGEST_CHUNK),
            folder=folder,
            resume=journal.resume,
            fingerprint=journal.fingerprint,
            callbacks=journal.callbacks,
            display=journal.display(stage.name),
            stage=stage.name,
        )


def learn_lista(
    X: Any,
    Z: Any,
    D: Any,
    alpha: Any,
    n_layers: int = 3,
    *,
    nonnegative: bool = False,
    n_epochs: int = 30,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    random_state: int = 0,
    journal: Journal | None = None,
) -> LISTA:
    """LISTA taught by exact codes.

    Args:
        X: signals, (n, d).
        Z: their exact codes, (n, K), dense or sparse.
        D: the dictionary, (K, d), atoms in rows.
        alpha: strength of the ℓ1 penalty that the codes were found with; a number, or one per atom.
        n_layers: layers.
        nonnegative: codes are not negative.
        n_epochs: passes over the signals for every layer that is added.
        batch_size: signals per step.
        learning_rate: of Adam, at the start of every stage (a layer alone, or with those before it); it falls to
            zero.
        random_state: order of the signals.
        journal: folder, callbacks and progress of the training, and its metrics; by default none of them.

    Returns:
        The encoder; :func:`encode_with` gives the codes of further signals. If training diverges, the ``model`` of
        the error's ``result`` is the last good one, of as many layers as there were.
    """
    signals, atoms = _checked(X, D)
    _check_numbers(n_epochs=n_epochs, batch_size=batch_size, learning_rate=learning_rate, random_state=random_state)
    rows = Examples((signals, _checked_codes(Z, (len(signals), len(atoms)))))
    start = LISTA.make(atoms, alpha, n_layers=n_layers, nonnegative=nonnegative)
    course = _Course(rows, min(batch_size, len(rows)), random_state, journal or Journal())
    encoder = LISTA((), nonnegative)
    for stage, n_still in _stages(n_layers, math.ceil(n_epochs * len(rows) / course.batch_size)):
        depth = int(stage.facts["layer"])
        layers = encoder.layers if len(encoder.layers) == depth else (*encoder.layers, start.layers[depth - 1])
        model = TaughtEncoder.of(LISTA(layers, start.nonnegative), n_still)
        optimizer = Optimizer.make("adam", learning_rate=learning_rate, n_steps=stage.n_steps, schedule="cosine")
        encoder = course.run(stage, model, CodeDistance(), optimizer, lambda model: model.encoder)
    return encoder


def _stages(n_layers: int, n_steps: int) -> list[tuple[_Stage, int]]:
    """The stages of a LISTA, each with the number of layers that stand still in it."""
    alone = round(ALONE * n_steps)
    lengths = [(1, 0, n_steps)]
    for depth in range(2, n_layers + 1):
        lengths += [(depth, depth - 1, alone)] if alone else []
        lengths += [(depth, 0, n_steps - alone)]
    return [
        (
            _Stage(
                f"layer {depth} alone" if n_still else f"layer {depth}",
                number,
                steps,
                is_last=number == len(lengths) - 1,
                facts={"layer": depth},
            ),
            n_still,
        )
        for number, (depth, n_still, steps) in enumerate(lengths)
    ]


def learn_psd(
    X: Any,
    D: Any,
    alpha: float,
    *,
    beta: float = 1.0,
    activation: Activation = "soft",
    nonnegative: bool = False,
    update_dictionary: bool = False,
    n_code_steps: int = 30,
    n_epochs: int = 30,
    batch_size: int = 256,
    learning_rate: float = 1e-3,
    dictionary_rate: float = 0.1,
    random_state: int = 0,
    journal: Journal | None = None,
) -> tuple[PSDEncoder, np.ndarray]:
    """Predictive sparse decomposition: an encoder (and a dictionary) learned from the signals.

    Args:
        X: signals, (n, d).
        D: the dictionary, (K, d), atoms in rows.
        alpha: strength of the ℓ1 penalty.
        beta: how much codes must agree with the encoder.
        activation: "soft" (a soft threshold) or "tanh" (with a gain).
        nonnegative: codes are not negative.
        update_dictionary: whether the dictionary learns too.
        n_code_steps: proximal steps for the codes of a batch.
        n_epochs: passes over the signals.
        batch_size: signals per step.
        learning_rate: of Adam for the encoder; it falls to zero.
        dictionary_rate: of the gradient step on the dictionary.
        random_state: order of the signals.
        journal: folder, callbacks and progress of the training, and its metrics; by default none of them.

    Returns:
        The encoder, and the dictionary (as it was, unless it learns too). If training diverges, the ``model`` of
        the error's ``result`` is the last good pair.
    """
    _check_numbers(
        n_epochs=n_epochs,
        batch_size=batch_size,
        n_code_steps=n_code_steps,
        learning_rate=learning_rate,
        dictionary_rate=dictionary_rate,
        random_state=random_state,
    )
    if not 0 < beta < math.inf:
        raise ParameterError(f"beta must be above 0, got {beta!r}: without it nothing ties codes to the encoder.")
    signals, atoms = _checked(X, D)
    gain = _range(signals, atoms) if activation == "tanh" else 1.0
    encoder = PSDEncoder.make(atoms, alpha, activation=activation, nonnegative=nonnegative, gain=gain)
    model = PredictiveEncoder.make(encoder, atoms, alpha=alpha, beta=beta, learn=bool(update_dictionary))
    course = _Course(Examples(signals), min(batch_size, len(signals)), random_state, journal or Journal())
    n_steps = math.ceil(n_epochs * len(signals) / course.batch_size)
    # A direction that is an Optax transformation brings its own rates; of the named one this is the rate.
    direction = _two_rates(learning_rate, dictionary_rate, n_steps) if update_dictionary else "adam"
    optimizer = Optimizer.make(direction, learning_rate=learning_rate, n_steps=n_steps, schedule="cosine")
    objective = PredictiveDecomposition(int(n_code_steps))

    def kept(model: PredictiveEncoder) -> tuple[PSDEncoder, np.ndarray]:
        return model.encoder, np.asarray(model.dictionary if update_dictionary else D)

    return course.run(_Stage("psd", 0, n_steps), model, objective, optimizer, kept)


@functools.lru_cache(maxsize=16)  # the same numbers, the same object, the same compiled steps
def _two_rates(rate: float, dictionary_rate: float, n_steps: int) -> optax.GradientTransformation:
    """Adam with a falling rate for the encoder, plain gradient steps for the dictionary."""

    def is_dictionary(model: Any) -> Any:
        return eqx.tree_at(lambda m: m.learned, jax.tree.map(lambda _: False, model), True)

    def is_encoder(model: Any) -> Any:
        return jax.tree.map(lambda is_atoms: not is_atoms, is_dictionary(model))

    adam = optax.chain(
        optax.scale_by_adam(), optax.scale_by_learning_rate(optax.cosine_decay_schedule(rate, n_steps))
    )
    return optax.chain(
        optax.masked(adam, is_encoder), optax.masked(optax.scale_by_learning_rate(dictionary_rate), is_dictionary)
    )


def _range(signals: np.ndarray, atoms: np.ndarray) -> float:
    """Where a tanh begins, which is flat beyond its range: it should hold the codes that one threshold gives."""
    some = signals[:: math.ceil(len(signals) / RANGE_ROWS)]
    return 2 * float(np.std(some @ atoms.T))


def _checked(X: Any, D: Any) -> tuple[np.ndarray, np.ndarray]:
    x = np.asarray(X.toarray() if sp.issparse(X) else X, np.float32)
    atoms = np.asarray(D, np.float32)
    if x.ndim != 2 or atoms.ndim != 2 or x.shape[1] != atoms.shape[1] or not len(x):
        raise DataError(f"Signals (n, d) and atoms (K, d) do not fit: {x.shape} and {atoms.shape}.")
    if not (np.isfinite(x).all() and np.isfinite(atoms).all()):
        raise DataError("Signals and dictionary must be finite; replace or drop NaN and infinite numbers first.")
    return x, atoms


def _checked_codes(Z: Any, shape: tuple[int, int]) -> Any:
    codes = Z.tocsr() if sp.issparse(Z) else np.asarray(Z, np.float32)
    if codes.shape != shape:
        raise DataError(f"There must be {shape[0]} codes of {shape[1]} atoms, got shape {codes.shape}.")
    if not np.isfinite(codes.data if sp.issparse(codes) else codes).all():
        raise DataError("The codes hold NaN or infinite numbers, which cannot be learned.")
    return codes


def _check_numbers(**values: Any) -> None:
    """Counts are integers of at least 1 (a seed of at least 0), rates are positive numbers."""
    for name, value in values.items():
        least = 0 if name == "random_state" else 1
        if name.endswith("_rate"):
            fits = isinstance(value, numbers.Real) and not isinstance(value, bool) and 0 < float(value) < math.inf
            wanted = "a positive number"
        else:
            fits = isinstance(value, numbers.Integral) and not isinstance(value, bool) and int(value) >= least
            wanted = f"an integer of at least {least}"
        if not fits:
            raise ParameterError(f"{name} must be {wanted}, got {value!r}.")


def distance(encoder: AbstractEncoder, X: Any, Z: Any) -> float:
    """mean ‖f(x) − z*‖²: what LISTA learns, on signals X with exact codes Z."""
    return float(np.mean(np.sum((encode_with(encoder, X) - np.asarray(Z)) ** 2, axis=1)))
