"""The base class of estimators that learn by gradients: objective, optimiser, epochs, early stopping."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal, Self

import jax
import numpy as np
from scipy.special import entr

from latentia.core import space
from latentia.core.algorithms import AbstractLearner
from latentia.core.capabilities import Decodes, Normalised
from latentia.estimator.base import LatentEstimator
from latentia.estimator.declared import attribute
from latentia.estimator.groups import (
    Averaging,
    BatchSize,
    Callbacks,
    Clipping,
    EarlyStopping,
    Epochs,
    LearningRate,
    Monitoring,
    Optimisation,
    RunFolder,
)
from latentia.estimator.rows_to_learn import n_held_out, spread
from latentia.estimator.scoring import reconstruction_error
from latentia.estimator.training import Plan
from latentia.learning import objective
from latentia.learning.batches import read_rows
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.likelihood.pseudo import can_pseudo
from latentia.ops.arrays import n_numbers

OptimizerName = Literal["sgd", "nesterov", "adam", "rmsprop"]

#: Steps between two looks of the host, unless an epoch is shorter.
LONGEST_CHUNK = 1000

#: Rows of the training data whose pseudo-likelihood (or reconstruction) is followed.
MONITOR_ROWS = 64
#: "auto" follows them if that takes fewer multiplications than this after every epoch.
MONITOR_COST = 1e9


class GradientEstimator(
    Epochs,
    BatchSize,
    LearningRate,
    Optimisation,
    Clipping,
    Averaging,
    EarlyStopping,
    Monitoring,
    RunFolder,
    Callbacks,
    LatentEstimator,
):
    """Learns by descending an objective."""

    #: A parameter of those that let their user choose; the others overwrite ``_learner``.
    objective: Any = attribute()
    #: A parameter of models that can be centred.
    centring: float = attribute(default=0.0)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One pass over more rows, going on from the model so far, at a constant learning rate."""
        return self._pass_over(X, y, sample_weight)

    def monitors(self, model: Any, rows: Any, weights: Any = None) -> dict[str, Callable[[Any], float]]:
        """Pseudo-likelihood over all sites of a few fixed rows; their squared error where data are real.

        Where the former is too dear to follow and "auto" leaves the choice, the latter too: the loop notices a
        collapse by it.
        """
        few = monitored(rows, weights)
        scorer = self.validation_scorer(few)
        if isinstance(model, Normalised):
            return {"log_likelihood": scorer} if self.monitor else {}
        if not can_pseudo(model):
            name = "reconstruction_error" if isinstance(model, Decodes) else "score_matching_loss"
            return {name: lambda model: -scorer(model)} if self.monitor else {}
        cost = few.size * n_numbers(model)
        if self.monitor == "always" or (self.monitor == "auto" and cost < MONITOR_COST):
            return {"pseudo_likelihood": scorer}
        if self.monitor is None or not isinstance(model, Decodes):
            return {}
        x = self._rows(few[:, : self.n_features_in_], purpose="scoring")
        return {"reconstruction_error": lambda model: reconstruction_error(model, x)}

    def ignorance(self, model: Any, rows: Any, weights: Any = None) -> dict[str, float]:
        """The pseudo-likelihood of independent sites, or the squared error of predicting every site's mean."""
        if isinstance(model, Normalised) or not (can_pseudo(model) or isinstance(model, Decodes)):
            return {}
        few = self._rows(monitored(rows, weights)[:, : self.n_features_in_], purpose="scoring")
        x = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(space.encode_seen(model.x_space, few))]
        known = {"pseudo_likelihood": -sum(_entropy(leaf) for leaf in x)} if can_pseudo(model) else {}
        if isinstance(model, Decodes):
            known["reconstruction_error"] = float(np.concatenate([leaf.var(axis=0).ravel() for leaf in x]).mean())
        return known

    def _stage_plan(self, n_rows: int, n_epochs: int) -> Plan:
        """The plan of a stage that comes before the training proper."""
        batch_size = min(self.batch_size, n_rows)
        per_epoch = math.ceil(n_rows / batch_size)
        return Plan(per_epoch * n_epochs, batch_size, min(per_epoch, LONGEST_CHUNK))

    def _plan(self, n_rows: int) -> Plan:
        held_out = self.validation_fraction if self.early_stopping else 0.0
        n_training = max(1, n_rows - n_held_out(n_rows, held_out))
        batch_size = min(self.batch_size, n_training)
        per_epoch = math.ceil(n_training / batch_size)
        return Plan(
            n_steps=math.ceil(n_training * self.n_epochs / batch_size),
            batch_size=batch_size,
            chunk=min(per_epoch, LONGEST_CHUNK),
            validation_fraction=held_out,
            patience=self.patience if self.early_stopping else 0,
            run_dir=self.run_dir,
            resume=self.resume,
            callbacks=tuple(self.callbacks or ()),
        )

    def _objective_numbers(self) -> dict[str, Any]:
        """Keyword arguments for objectives named by a string."""
        names = ("n_sampler_steps", "n_chains", "n_replicas", "rounds")
        return {name: getattr(self, name) for name in names if name in self.declared}

    def _learner(self, plan: Plan) -> AbstractLearner:
        surrogate = objective(self.objective, **self._objective_numbers())
        optimizer = self._optimizer(plan)
        return GradientLearner(surrogate, optimizer, averaging=self.averaging, centring=self.centring)

    def _optimizer(self, plan: Plan) -> Optimizer:
        return Optimizer.make(
            self.optimizer,
            learning_rate=self.learning_rate,
            n_steps=plan.n_steps,
            momentum=self.momentum,
            schedule="constant" if plan.constant_rate else self.schedule,
            weight_decay=self.weight_decay,
            clip=self.clip,
        )


def monitored(rows: Any, weights: Any = None) -> np.ndarray:
    """The few training rows that are followed, the same ones every time: spread as evenly as their weights are."""
    return read_rows(rows, spread(rows.shape[0], MONITOR_ROWS, weights))


def _entropy(x: np.ndarray) -> float:
    """Of all sites, each by itself; its two states differ in sign, or its many are one-hot along the last axis."""
    p = x.mean(axis=0) if x.ndim > 2 else np.stack([(x > 0).mean(axis=0), (x <= 0).mean(axis=0)])
    return float(entr(p).sum())
