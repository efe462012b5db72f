"""One run of fine-tuning: its numbers, and the training loop on inputs with labels."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Callable
from typing import Any, cast, get_args

import jax
import numpy as np
from sklearn.model_selection import train_test_split

from latentia.core.errors import DataError, DivergenceError, ParameterError
from latentia.core.run_folder import RunFolder
from latentia.core.space import encode
from latentia.estimator import checks, training, weighing
from latentia.estimator.declared import changed, param
from latentia.estimator.digests import digests
from latentia.estimator.gradient import LONGEST_CHUNK
from latentia.estimator.groups import (
    Averaging,
    BatchSize,
    EarlyStopping,
    Epochs,
    LearningRate,
    Optimisation,
    RunDir,
    Seed,
)
from latentia.estimator.rows import apply_rows
from latentia.learning import fit as loop
from latentia.learning.checkpoint import BEFORE
from latentia.learning.committee import Committee, Separately
from latentia.learning.feed_forward import AbstractClassifier, Activation, FeedForward
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.progress import display
from latentia.learning.supervised import CrossEntropy, LabelledRows
from latentia.ops import random
from latentia.ops.examples import Examples, WithLabels, side_by_side

#: Most rows from which a normalised network takes the moments of its fields: two digits of a mean are enough.
MOST_MOMENT_ROWS = 10_000


class Recipe(Epochs, BatchSize, LearningRate, Optimisation, Averaging, EarlyStopping, RunDir, Seed):
    """The numbers of one fine-tuning; see :meth:`Finetunes.finetune`."""

    sample_weight: Any = param(
        default=None,
        doc="one non-negative weight per row; only ratios count. Rows of weight zero are left out, and their "
        "labels are ignored.",
    )
    n_networks: int = param(
        default=1,
        check=checks.integer(1),
        doc="number of networks that are trained independently; several predict by their mean probability "
        "(:class:`~latentia.learning.committee.Committee`).",
    )
    activation: Activation | None = param(
        default=None,
        check=checks.one_of(None, *get_args(Activation)),
        doc='activation of the hidden units: "sigmoid", "relu", "tanh"; by default that of the model\'s units. '
        "With another one the network starts with the model's weights, but does not compute the model's "
        "function.",
    )
    normalise: bool = param(
        default=False,
        check=checks.flag,
        doc="normalise the fields of the hidden units by their moments over the batch (Ioffe and Szegedy, 2015), "
        "and in prediction by those over training rows. Use little ``dropout``: the moments used for "
        "prediction do not include it.",
    )
    dropout: float = param(
        default=0.5,
        check=checks.number(0, 1, open_high=True),
        doc="fraction of the hidden values dropped at every step.",
    )
    input_dropout: float = param(
        default=0.2,
        check=checks.number(0, 1, open_high=True),
        doc="fraction of the inputs dropped at every step.",
    )
    max_norm: float = param(
        default=0.0,
        check=checks.number(0),
        doc="largest norm of the weights into a unit; 0 sets no bound. A bound below the norms of the generative "
        "weights loses part of what was learned before.",
    )
    label_smoothing: float = param(
        default=0.0,
        check=checks.number(0, 1, open_high=True),
        doc="label smoothing: the fraction of every label that is spread evenly over the classes.",
    )
    input_noise: float = param(
        default=0.0,
        check=checks.number(0),
        doc="standard deviation of normal noise added to the inputs at every step.",
    )
    adversarial: float = param(
        default=0.0,
        check=checks.number(0),
        doc="length of an adversarial step on the inputs, in the direction that increases the loss most; half of "
        "the loss is evaluated there. 0 takes no step. About a tenth of the inputs' norm works well and "
        "doubles the time.",
    )
    virtual_adversarial: float = param(
        default=0.0,
        check=checks.number(0),
        doc="length of a virtual adversarial step on the inputs, in the direction that changes the prediction "
        "most; the change is added to the loss. 0 takes no step. Training takes two to three times as long.",
    )

    learning_rate = changed(default=0.003, doc='step size at the start; the default is one for "adam".')
    momentum = changed(doc="decay of past gradients; 0 means the optimiser's usual value.")
    averaging = changed(doc="decay of a running average of the parameters that becomes the classifier; 0 for none.")
    early_stopping = changed(
        doc="stop when the (weighted) mean log p(y | x) of held-out rows no longer rises, and keep the best "
        "network.",
    )
    validation_fraction = changed(doc="fraction of rows held out for early stopping, stratified by class.")
    run_dir = changed(
        doc="folder for the metrics, checkpoints and the estimator with its classifier; None writes nothing.",
    )
    random_state = changed(doc="seed; the estimator's own by default.")


#: What a recipe holds besides the numbers that steer the network's training.
APART = ("sample_weight", "random_state", "run_dir", "resume")
#: The order of these numbers in the descriptions of earlier releases, without those that the blueprint says.
_EARLIER = (
    *("n_epochs", "batch_size", "learning_rate", "schedule", "optimizer", "momentum", "dropout", "input_dropout"),
    *("max_norm", "weight_decay", "averaging", "label_smoothing", "input_noise", "adversarial"),
    *("virtual_adversarial", "early_stopping", "validation_fraction", "patience"),
)


@dataclasses.dataclass(frozen=True)
class Lesson:
    """What is learned from: inputs with labels, all of which count.

    Args:
        inputs: a row for each example.
        labels: the number of each example's class.
        weights: a positive weight for each, as given; None if all are equal.
        classes: the labels, by their numbers.
    """

    inputs: np.ndarray
    labels: np.ndarray
    weights: np.ndarray | None
    classes: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def examples(self) -> Examples:
        """Inputs and labels as the loop takes them."""
        return Examples(WithLabels(self.inputs, self.labels))

    def part(self, numbers: np.ndarray) -> Lesson:
        """Some of the rows, each with its weight."""
        weights = None if self.weights is None else self.weights[numbers]
        return Lesson(self.inputs[numbers], self.labels[numbers], weights, self.classes)

    def few(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Inputs and weights of some of the rows, spread evenly over them: whose moments a network keeps."""
        n_rows = len(self)
        some = self.part(np.linspace(0, n_rows - 1, min(n_rows, MOST_MOMENT_ROWS)).astype(int))
        return some.inputs, weighing.mean_one(some.weights)


def _begin(layers: list[Any], n_classes: int, recipe: Recipe, few: Any, seed: int) -> AbstractClassifier:
    """The networks before training: the given hidden layers, and untrained output layers."""

    def one(key: Any) -> FeedForward:
        network = FeedForward.from_layers(
            layers,
            n_classes,
            key=key,
            activation=cast(Activation, recipe.activation),
            dropout=recipe.dropout,
            input_dropout=recipe.input_dropout,
            max_norm=recipe.max_norm,
        )
        return network.normalised(*few) if recipe.normalise else network

    key = _keys(seed)[0]
    if recipe.n_networks == 1:
        return one(key)
    return Committee.of([one(each) for each in jax.random.split(key, recipe.n_networks)])


def run(estimator: Any, layers: list[Any], lesson: Lesson, recipe: Recipe, seed: int) -> loop.Result:
    """One run of the training loop, from given hidden layers."""
    train, held_out = lesson, None
    if recipe.early_stopping:
        kept, held = _split(lesson.labels, recipe.validation_fraction, seed)
        train, held_out = lesson.part(kept), lesson.part(held)
    plan, few = _plan(recipe, len(train)), train.few()
    if recipe.normalise:
        _check_moments(plan.batch_size, few[0].shape[0])
    network = _begin(layers, lesson.classes.size, recipe, few, seed)
    learner, prepare = _learner(recipe, plan.n_steps), LabelledRows(network.x_space)
    weights, key = weighing.mean_one(train.weights), _keys(seed)[1]
    with training.run_folder(estimator, recipe, len(lesson)) as folder:
        settings = loop.Settings(
            n_steps=plan.n_steps,
            batch_size=plan.batch_size,
            seed=seed,
            chunk=plan.chunk,
            score=None if held_out is None else _scorer(few, network, held_out),
            patience=recipe.patience if recipe.early_stopping else 0,
            folder=folder,
            resume=recipe.resume,
            fingerprint="" if folder is None else _described(folder, network, lesson, recipe, seed),
            display=display(estimator.verbose, f"{type(estimator).__name__} fine-tuning"),
        )
        try:
            result = loop.fit(network, train.examples, learner, prepare, settings, key=key, weights=weights)
        except DivergenceError as error:
            if error.result is not None:
                error.result = _with_moments(error.result, few)
            raise
        return _with_moments(result, few)


def _with_moments(result: loop.Result, few: Any) -> loop.Result:
    return dataclasses.replace(result, model=result.model.with_moments(*few))


def _check_moments(batch_size: int, n_rows: int) -> None:
    if n_rows < 2:
        raise DataError(
            "normalise=True takes moments over rows, and there is one to learn from that has weight: pass more "
            "rows, or normalise=False."
        )
    if batch_size < 2:
        raise ParameterError("normalise=True takes moments over a batch: it needs a batch_size of at least 2.")


def _plan(recipe: Recipe, n_rows: int) -> training.Plan:
    batch_size = min(recipe.batch_size, n_rows)
    return training.Plan(
        n_steps=math.ceil(n_rows * recipe.n_epochs / batch_size),
        batch_size=batch_size,
        chunk=min(math.ceil(n_rows / batch_size), LONGEST_CHUNK),
    )


def _keys(seed: int) -> Any:
    """A key for the output layer, and one for learning."""
    return jax.random.split(random.key(seed))


def _learner(recipe: Recipe, n_steps: int) -> GradientLearner:
    optimizer = Optimizer.make(
        recipe.optimizer,
        learning_rate=recipe.learning_rate,
        n_steps=n_steps,
        momentum=recipe.momentum,
        schedule=recipe.schedule,
        weight_decay=recipe.weight_decay,
    )
    steps = float(recipe.adversarial), float(recipe.virtual_adversarial)
    objective = CrossEntropy(float(recipe.label_smoothing), float(recipe.input_noise), *steps)
    several = recipe.n_networks > 1
    return GradientLearner(Separately(objective) if several else objective, optimizer, averaging=recipe.averaging)


def _split(codes: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(rows to train on, rows held out), the classes in proportion where each has enough rows for that."""
    n, counts = codes.size, np.unique(codes, return_counts=True)[1]
    n_held = max(1, round(fraction * n))
    if n_held >= n:
        raise DataError(f"validation_fraction={fraction} of {n} rows leaves none to train on.")
    enough = counts.min() >= 2 and min(n_held, n - n_held) >= counts.size
    kept, held = train_test_split(
        np.arange(n), test_size=n_held, stratify=codes if enough else None, random_state=seed
    )
    return np.sort(kept), np.sort(held)


def _scorer(few: Any, network: AbstractClassifier, held_out: Lesson) -> Callable[[Any], float]:
    """How early stopping scores a network, with the moments of few rows: the mean log p(y | x) of others."""
    inputs, labels = encode(network.x_space, held_out.examples.parts)

    def score(network: AbstractClassifier) -> float:
        energies = apply_rows(_energy, network.with_moments(*few), inputs, labels)
        return -float(np.average(energies, weights=weighing.mean_one(held_out.weights)))

    return score


def _described(folder: RunFolder, network: Any, lesson: Lesson, recipe: Recipe, seed: int) -> Any:
    """Write the settings of a new run into its folder; what a run must share with the run it resumes."""
    if not folder.has_checkpoint:
        folder.write_finetuning(_plain(recipe))
    facts = {
        "random_state (its seed)": seed,
        "the data": lesson.inputs,
        "the labels": (lesson.classes, lesson.labels),
        "sample_weight": weighing.mean_one(lesson.weights),
        "the model that it starts from": (network.blueprint, jax.tree.leaves(network)),
    }
    own = {name: value for name, value in vars(recipe).items() if name not in APART}
    return {**digests(**own, **facts), BEFORE: _earlier(network, lesson, recipe, seed)}


def _earlier(network: Any, lesson: Lesson, recipe: Recipe, seed: int) -> str:
    """What earlier releases wrote into a checkpoint instead."""
    plain, rows, weights = _plain(recipe), lesson.examples, weighing.mean_one(lesson.weights)
    ordered = {name: plain[name] for name in _EARLIER if name in plain}
    found = hashlib.sha256(json.dumps([ordered, seed, network.blueprint, list(rows.shape)]).encode())
    few = side_by_side(rows.read(np.linspace(0, len(rows) - 1, 64).astype(int)))
    for array in (few, *jax.tree.leaves(network), *([] if weights is None else [weights])):
        found.update(np.asarray(array, order="C").tobytes())
    return found.hexdigest()


def _plain(recipe: Recipe) -> dict[str, Any]:
    """The numbers and names for people to read; an optimiser that is an object is left out."""
    values = {k: v.item() if isinstance(v, np.generic) else v for k, v in vars(recipe).items()}
    plain = {name: value for name, value in values.items() if isinstance(value, str | int | float)}
    return {name: value for name, value in plain.items() if name not in APART}


def _energy(network: AbstractClassifier, inputs: Any, label: Any) -> Any:
    return network.energy((inputs, label), ())
