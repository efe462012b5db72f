"""Fine-tuning: a fitted generative model, unrolled into a feed-forward network, becomes a classifier.

A host estimator says what its network is (``_feed_forward``: the hidden layers) and what it reads
(``_network_inputs``), and gets ``finetune``, ``predict``, ``predict_proba`` and ``accuracy``. The generative model
itself stays as it is. Hosts with label units of their own also say ``_label_probabilities`` and set ``classes_``;
they can then predict before any fine-tuning.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import hashlib
import json
import math
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar, cast, get_args

import jax
import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from latentia.core.errors import DataError, DivergenceError
from latentia.core.files import write_json
from latentia.core.space import encode
from latentia.estimator import checks, saving, training
from latentia.estimator.gradient import LONGEST_CHUNK, OptimizerName
from latentia.estimator.labels import class_codes, known_codes
from latentia.estimator.rows import apply_rows
from latentia.learning import checkpoint
from latentia.learning import fit as loop
from latentia.learning.batches import read_rows
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer, Schedule
from latentia.learning.progress import display
from latentia.learning.supervised import Activation, CrossEntropy, FeedForward, LabelledRows
from latentia.ops import random

Method = TypeVar("Method", bound=Callable[..., Any])


@dataclasses.dataclass(frozen=True)
class Recipe:
    """The numbers of one fine-tuning; see :meth:`Finetunes.finetune`."""

    n_epochs: int
    batch_size: int
    learning_rate: float
    schedule: Schedule
    optimizer: Any
    momentum: float
    dropout: float
    input_dropout: float
    max_norm: float
    weight_decay: float
    averaging: float
    label_smoothing: float
    input_noise: float
    adversarial: float
    virtual_adversarial: float
    early_stopping: bool
    validation_fraction: float
    patience: int
    run_dir: Any
    resume: bool


RECIPE_CHECKS: dict[str, checks.Check] = {
    "n_epochs": checks.integer(1),
    "batch_size": checks.integer(1),
    "learning_rate": checks.number(0, open_low=True),
    "schedule": checks.one_of(*get_args(Schedule)),
    "momentum": checks.number(0, 1, open_high=True),
    "dropout": checks.number(0, 1, open_high=True),
    "input_dropout": checks.number(0, 1, open_high=True),
    "max_norm": checks.number(0),
    "weight_decay": checks.number(0),
    "averaging": checks.number(0, 1, open_high=True),
    "label_smoothing": checks.number(0, 1, open_high=True),
    "input_noise": checks.number(0),
    "adversarial": checks.number(0),
    "virtual_adversarial": checks.number(0),
    "early_stopping": checks.flag,
    "validation_fraction": checks.number(0, 1, open_low=True, open_high=True),
    "patience": checks.integer(1),
    "resume": checks.flag,
}


class _OnceLabelled:
    """A method that exists once there is something to predict with, so that ``hasattr`` tells the truth.

    Tools ask an estimator by ``hasattr`` whether it predicts; a person who calls it too early reads why not.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        functools.update_wrapper(cast(Any, self), function)

    def __get__(self, estimator: Any, owner: Any = None) -> Any:
        if estimator is None:
            return self.function
        if "classes_" not in vars(estimator):
            raise _not_labelled(estimator)  # an AttributeError too
        return types.MethodType(self.function, estimator)


def _once_labelled(function: Method) -> Method:
    return cast(Method, _OnceLabelled(function))


def _not_labelled(estimator: Any) -> NotFittedError:
    name = type(estimator).__name__
    if "model_" not in vars(estimator):
        return NotFittedError(
            f"This {name} is not fitted yet: call fit(X), then finetune(X, y), before predicting."
        )
    return NotFittedError(
        f"This {name} cannot predict labels yet: it has learned from X alone. Call finetune(X, y) first, or fit "
        "with labels where the model has label units."
    )


class Finetunes(abc.ABC):
    """An estimator whose model can be unrolled into a classifier; put it before the estimator's base class."""

    #: What a file keeps besides the model (see :mod:`latentia.estimator.saving`).
    parts: ClassVar[Mapping[str, Any]] = {"classifier_": FeedForward}
    #: What the hidden units of the network do.
    network_activation: ClassVar[Activation] = "sigmoid"

    #: The network, once fine-tuned.
    classifier_: FeedForward
    #: The labels, in the order of the columns of ``predict_proba``.
    classes_: np.ndarray
    #: Metrics of the fine-tuning.
    finetune_history_: list[dict[str, float]]
    random_state: Any
    verbose: int

    # -- what a host implements ----------------------------------------------------------------------------

    @abc.abstractmethod
    def _feed_forward(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Weights ``(n_in, n_out)`` and biases of the network's hidden layers, from the inputs upwards."""

    @abc.abstractmethod
    def _network_inputs(self, X: Any) -> np.ndarray:
        """Rows of data, as the user gave them, as checked rows of inputs of the network."""

    def _label_probabilities(self, X: Any) -> np.ndarray:
        """p(label | x) of the generative model itself, one column for each of ``classes_``."""
        raise _not_labelled(self)

    # -- learning ------------------------------------------------------------------------------------------

    def finetune(
        self,
        X: Any,
        y: Any,
        *,
        sample_weight: Any = None,
        n_epochs: int = 50,
        batch_size: int = 100,
        learning_rate: float = 0.003,
        schedule: Schedule = "linear",
        optimizer: OptimizerName | Any = "adam",
        momentum: float = 0.0,
        dropout: float = 0.5,
        input_dropout: float = 0.2,
        max_norm: float = 0.0,
        weight_decay: float = 0.0,
        averaging: float = 0.0,
        label_smoothing: float = 0.0,
        input_noise: float = 0.0,
        adversarial: float = 0.0,
        virtual_adversarial: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 5,
        run_dir: Any = None,
        resume: bool = False,
        random_state: Any = None,
    ) -> Self:
        """Learn to tell labels apart, starting from the generative model's weights.

        Minimises the cross-entropy mean −log p(y | x) of the unrolled network, thinned by dropout. The generative
        model stays as it is; ``classifier_`` holds the network, ``classes_`` the labels and ``finetune_history_``
        the metrics.

        The defaults suit tens of thousands of rows on a laptop; fewer rows want more epochs, since steps count. A
        long recipe for a GPU, after Srivastava et al. (2014), for the last tenths of a percent::

            finetune(X, y, n_epochs=500, optimizer="sgd", learning_rate=0.1, momentum=0.95, max_norm=4.0,
                     averaging=0.999)

        Args:
            X: data, ``(n, n_features)``, as for ``fit``.
            y: one label per row: integers, strings, or any other few values.
            sample_weight: one non-negative weight per row.
            n_epochs: passes over the data.
            batch_size: rows per update.
            learning_rate: step size at the start; the default is one for "adam".
            schedule: "constant", or falling to zero: "linear", "cosine", "warmup" (after a rise).
            optimizer: "sgd", "nesterov", "adam", "rmsprop", or an Optax transformation.
            momentum: decay of past gradients; 0 means the optimiser's usual value.
            dropout: part of the hidden values dropped at every step.
            input_dropout: part of the inputs dropped at every step.
            max_norm: largest norm of the weights into a unit; 0 sets no bound. A bound below the norms of the
                generative weights takes away part of what they know.
            weight_decay: shrinkage of the weights per unit of learning rate.
            averaging: decay of a running average of the parameters that becomes the classifier; 0 for none.
            label_smoothing: part of every label that is spread evenly over the classes.
            input_noise: standard deviation of normal noise added to the inputs at every step.
            adversarial: length of a step on the inputs to where the label is hardest to read; half of the loss is
                taken there. 0 takes no step. About a tenth of the inputs' norm helps, at twice the time.
            virtual_adversarial: length of a step on the inputs to where the prediction changes most; that it should
                not change joins the loss. 0 takes no step. Two to three times the time.
            early_stopping: stop when log p(y | x) of held-out rows no longer rises, and keep the best network.
            validation_fraction: rows held out for that, with all classes in proportion.
            patience: epochs without a better score before stopping.
            run_dir: folder for the metrics, checkpoints and the estimator with its classifier; None writes nothing.
            resume: go on from the folder's checkpoint.
            random_state: seed; the estimator's own by default.

        References:
            Hinton and Salakhutdinov (2006); Hinton et al. (2012), "Improving neural networks by preventing
            co-adaptation of feature detectors"; Srivastava et al. (2014); Goodfellow, Shlens and Szegedy (2015);
            Miyato, Maeda, Koyama and Ishii (2019).
        """
        name = type(self).__name__
        check_is_fitted(
            self, "model_", msg=f"This {name} is not fitted yet: finetune starts from what fit(X) learned."
        )
        given = locals()
        recipe = Recipe(**{field.name: given[field.name] for field in dataclasses.fields(Recipe)})
        checks.check_parameters(recipe, RECIPE_CHECKS)
        state = self.random_state if random_state is None else random_state
        seed = int(check_random_state(state).randint(2**31 - 1))
        inputs = np.asarray(self._network_inputs(X), np.float32)
        classes, codes = class_codes(y, inputs.shape[0])
        weights = training.normalised_weights(sample_weight, inputs.shape[0])
        network = FeedForward.from_layers(
            self._feed_forward(),
            classes.size,
            key=_keys(seed)[0],
            activation=self.network_activation,
            dropout=recipe.dropout,
            input_dropout=recipe.input_dropout,
            max_norm=recipe.max_norm,
        )
        rows = np.column_stack([inputs, codes.astype(np.float32)])
        try:
            result = _run(self, network, rows, weights, recipe, seed)
        except DivergenceError as error:
            if error.result is not None:
                self._keep_classifier(error.result, classes)
            raise
        self._keep_classifier(result, classes)
        if recipe.run_dir is not None:
            saving.save(self, Path(recipe.run_dir) / "model.safetensors")
        return self

    def _keep_classifier(self, result: loop.Result, classes: np.ndarray) -> None:
        self.classifier_, self.classes_, self.finetune_history_ = result.model, classes, result.history

    def _forget_classifier(self) -> None:
        for name in ("classifier_", "classes_", "finetune_history_"):
            vars(self).pop(name, None)

    def _train(self, *arguments: Any, **options: Any) -> None:
        """Learning the generative model anew: a classifier that started from the old one is no longer its own."""
        self._forget_classifier()
        cast(Any, super())._train(*arguments, **options)

    # -- use -----------------------------------------------------------------------------------------------

    @_once_labelled
    def predict_proba(self, X: Any) -> np.ndarray:
        """p(label | x), a row per example and a column for each of ``classes_``; nothing is dropped here."""
        if "classifier_" in vars(self):
            return apply_rows(_probabilities, self.classifier_, self._network_inputs(X))
        return self._label_probabilities(X)

    @_once_labelled
    def predict(self, X: Any) -> np.ndarray:
        """The most probable label of every row."""
        return self.classes_[np.argmax(self.predict_proba(X), axis=1)]

    @_once_labelled
    def accuracy(self, X: Any, y: Any) -> float:
        """The part of the rows whose label is predicted."""
        found = np.argmax(self.predict_proba(X), axis=1)
        wanted = known_codes(y, self.classes_, found.shape[0])
        return float(np.mean(found == wanted))


def _run(
    estimator: Any, network: FeedForward, rows: np.ndarray, weights: Any, recipe: Recipe, seed: int
) -> loop.Result:
    """One run of the training loop on rows ``[inputs | label's number]``."""
    folder = None if recipe.run_dir is None else Path(recipe.run_dir)
    fingerprint = "" if folder is None else _open_folder(estimator, folder, network, rows, weights, recipe, seed)
    score = None
    if recipe.early_stopping:
        kept, held = _split(rows[:, -1], recipe.validation_fraction, seed)
        score = _scorer(network, rows[held], _part(weights, held))
        rows, weights = rows[kept], _part(weights, kept)
    plan = _plan(recipe, rows.shape[0])
    settings = loop.Settings(
        n_steps=plan.n_steps,
        batch_size=plan.batch_size,
        seed=seed,
        chunk=plan.chunk,
        score=score,
        patience=recipe.patience if recipe.early_stopping else 0,
        folder=folder,
        resume=recipe.resume,
        fingerprint=fingerprint,
        display=display(estimator.verbose, f"{type(estimator).__name__} fine-tuning"),
    )
    learner, prepare = _learner(recipe, plan.n_steps), LabelledRows(network.x_space)
    return loop.fit(network, rows, learner, prepare, settings, key=_keys(seed)[1], weights=weights)


def _plan(recipe: Recipe, n_rows: int) -> training.Plan:
    batch_size = min(recipe.batch_size, n_rows)
    return training.Plan(
        n_steps=math.ceil(n_rows * recipe.n_epochs / batch_size),
        batch_size=batch_size,
        chunk=min(math.ceil(n_rows / batch_size), LONGEST_CHUNK),
        run_dir=recipe.run_dir,
        resume=recipe.resume,
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
    return GradientLearner(objective, optimizer, averaging=recipe.averaging)


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


def _part(weights: np.ndarray | None, rows: np.ndarray) -> np.ndarray | None:
    return None if weights is None else training.normalised_weights(weights[rows], rows.size)


def _scorer(network: FeedForward, rows: np.ndarray, weights: Any) -> Callable[[Any], float]:
    """How early stopping scores a network: mean log p(y | x) of the held-out rows."""
    inputs, labels = encode(network.x_space, rows)
    return lambda network: -float(np.average(apply_rows(_energy, network, inputs, labels), weights=weights))


def _open_folder(
    estimator: Any, folder: Path, network: FeedForward, rows: Any, weights: Any, recipe: Recipe, seed: int
) -> str:
    """Make the run folder (or find it, to resume); what a run must share with the run it resumes."""
    training.open_folder(estimator, _plan(recipe, rows.shape[0]), rows.shape[0])
    plain = {name: value for name, value in _plain(recipe).items() if name not in ("run_dir", "resume")}
    if not checkpoint.exists(folder):
        write_json(folder / "finetuning.json", plain)
    digest = hashlib.sha256(json.dumps([plain, seed, network.blueprint, list(rows.shape)]).encode())
    few = read_rows(rows, np.linspace(0, rows.shape[0] - 1, 64).astype(int))
    for array in (few, *network.weights, *network.biases, *([] if weights is None else [weights])):
        digest.update(np.asarray(array, order="C").tobytes())
    return digest.hexdigest()


def _plain(recipe: Recipe) -> dict[str, Any]:
    """The numbers and names; an optimiser that is an object is left out."""
    values = {k: v.item() if isinstance(v, np.generic) else v for k, v in vars(recipe).items()}
    return {name: value for name, value in values.items() if isinstance(value, str | int | float)}


def _probabilities(network: FeedForward, inputs: Any) -> Any:
    return jax.nn.softmax(network.logits(inputs))


def _energy(network: FeedForward, inputs: Any, label: Any) -> Any:
    return network.energy((inputs, label), ())
