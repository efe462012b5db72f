"""Fine-tuning: a fitted generative model, unrolled into a feed-forward network, becomes a classifier.

An estimator defines its network (``_feed_forward``: the hidden layers) and the inputs of the network
(``_network_inputs``), and inherits ``finetune``, ``predict``, ``predict_proba`` and ``accuracy``. The generative
model is not changed. Estimators with label units also define ``_label_probabilities`` and set ``classes_``;
they can then predict without fine-tuning.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from typing import Any, ClassVar, Self

import jax
import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from latentia.abilities import finetuning_run
from latentia.abilities.finetuning_run import Lesson, Recipe
from latentia.abilities.labels import class_codes, known_codes
from latentia.core.errors import DivergenceError
from latentia.core.hooks import hook
from latentia.core.run_folder import held
from latentia.estimator import checks, saving
from latentia.estimator.absent import absent_if
from latentia.estimator.declared import takes
from latentia.estimator.rows import apply_rows
from latentia.estimator.weighing import checked_weights, rows_with_weight
from latentia.learning import fit as loop
from latentia.learning.committee import Committee
from latentia.learning.feed_forward import AbstractClassifier, Activation, FeedForward


def _unlabelled(estimator: Any, name: str) -> NotFittedError | None:
    """The error of a method that exists once there is something to predict with."""
    del name
    return None if "classes_" in vars(estimator) else _not_labelled(estimator)  # an AttributeError too


_once_labelled = absent_if(_unlabelled)


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
    parts: ClassVar[Mapping[str, Any]] = {"classifier_": Committee}

    #: The network, once fine-tuned; a committee where several were wanted.
    classifier_: FeedForward | Committee
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

    @property
    @hook
    def network_activation(self) -> Activation:
        """What the hidden units of the network do."""
        return "sigmoid"

    @hook
    def _label_probabilities(self, X: Any) -> np.ndarray:
        """p(label | x) of the generative model itself, one column for each of ``classes_``."""
        raise _not_labelled(self)

    # -- learning ------------------------------------------------------------------------------------------

    @takes(Recipe)
    def finetune(self, X: Any, y: Any, recipe: Recipe) -> Self:
        """Train a classifier, starting from the generative model's weights.

        Minimises the cross-entropy mean −log p(y | x) of the unrolled network, thinned by dropout. The generative
        model stays as it is; ``classifier_`` holds the network, ``classes_`` the labels and ``finetune_history_``
        the metrics.

        The defaults suit tens of thousands of rows on a laptop; use more epochs for fewer rows, since the number of
        steps matters. A
        long recipe for a GPU, after Srivastava et al. (2014), for the last tenths of a percent::

            finetune(X, y, n_epochs=500, optimizer="sgd", learning_rate=0.1, momentum=0.95, max_norm=4.0,
                     averaging=0.999)

        Args:
            X: data, ``(n, n_features)``, as for ``fit``.
            y: one label per row: integers, strings, or any other few values. ``classes_`` are those that occur,
                or those of the model's label units, if these include all of them.

        References:
            Hinton and Salakhutdinov (2006); Hinton et al. (2012), "Improving neural networks by preventing
            co-adaptation of feature detectors"; Srivastava et al. (2014); Goodfellow, Shlens and Szegedy (2015);
            Miyato, Maeda, Koyama and Ishii (2019); Ioffe and Szegedy (2015), "Batch normalization".
        """
        name = type(self).__name__
        check_is_fitted(
            self, "model_", msg=f"This {name} is not fitted yet: finetune starts from what fit(X) learned."
        )
        checks.check_parameters(recipe)
        recipe.activation = recipe.activation or self.network_activation
        state = self.random_state if recipe.random_state is None else recipe.random_state
        seed = int(check_random_state(state).randint(2**31 - 1))
        lesson = self._lesson(np.asarray(self._network_inputs(X), np.float32), y, recipe.sample_weight)
        with held(recipe.run_dir):
            try:
                result = finetuning_run.run(self, self._feed_forward(), lesson, recipe, seed)
            except DivergenceError as error:
                if error.result is not None:
                    self._keep_classifier(error.result, lesson.classes)
                raise
            self._keep_classifier(result, lesson.classes)
            saving.save_run(self, recipe.run_dir)
        return self

    def _lesson(self, inputs: np.ndarray, y: Any, sample_weight: Any) -> Lesson:
        """The rows to learn from: those without weight are left out before anything looks at them."""
        n_rows = inputs.shape[0]
        weights = checked_weights(sample_weight, n_rows)
        kept = rows_with_weight(weights, n_rows)
        classes, codes = class_codes(y, n_rows, kept)
        known = np.asarray(vars(self).get("blueprint_", {}).get("classes", []))
        if known.size and set(classes.tolist()) <= set(known.tolist()):
            classes, codes = known, known_codes(classes[codes], known, kept.size)
        return Lesson(inputs[kept], codes.astype(np.float32), None if weights is None else weights[kept], classes)

    def _keep_classifier(self, result: loop.Result, classes: np.ndarray) -> None:
        self.classifier_, self.classes_, self.finetune_history_ = result.model, classes, result.history

    def _forget_classifier(self) -> None:
        for name in ("classifier_", "classes_", "finetune_history_"):
            vars(self).pop(name, None)

    def _forget_earlier(self) -> None:
        """A classifier that started from another generative model is not that of the new one."""
        self._forget_classifier()

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


def _probabilities(network: AbstractClassifier, inputs: Any) -> Any:
    return jax.nn.softmax(network.logits(inputs))
