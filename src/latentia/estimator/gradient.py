"""The base class of estimators that learn by gradients: objective, optimiser, epochs, early stopping."""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import jax
import numpy as np
from scipy.special import entr

from latentia.core.algorithms import AbstractLearner, AbstractObjective
from latentia.core.capabilities import Decodes, Normalised
from latentia.core.hooks import hook
from latentia.estimator.absent import absent_if_lacking
from latentia.estimator.base import LatentEstimator
from latentia.estimator.declared import attribute
from latentia.estimator.fits import Watched
from latentia.estimator.groups import GradientTraining
from latentia.estimator.rows_to_learn import n_held_out, spread
from latentia.estimator.scoring import Portions, reconstruction_error
from latentia.estimator.training import Plan
from latentia.learning import objective
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.likelihood.pseudo import can_pseudo
from latentia.ops.arrays import n_numbers
from latentia.ops.examples import Examples

OptimizerName = Literal["sgd", "nesterov", "adam", "rmsprop"]

#: Steps between two looks of the host, unless an epoch is shorter.
LONGEST_CHUNK = 1000

#: Rows of the training data whose pseudo-likelihood (or reconstruction) is followed.
MONITOR_ROWS = 64
#: "auto" follows them if that takes fewer multiplications than this after every epoch.
MONITOR_COST = 1e9


class GradientEstimator(GradientTraining, LatentEstimator):
    """Learns by descending an objective."""

    #: A parameter of those that let their user choose; the others overwrite ``_learner``.
    objective: Any = attribute()
    #: A parameter of models that can be centred.
    centring: float = attribute(default=0.0)

    @absent_if_lacking
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One pass over more rows, going on from the model so far, at a constant learning rate."""
        return self._pass_over(X, y, sample_weight)

    @hook
    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """Pseudo-likelihood over all sites of a few fixed rows; their squared error where data are real.

        Where the former is too dear to follow and "auto" leaves the choice, the latter too: the loop notices a
        collapse by it. Independent sites have a pseudo-likelihood of minus their entropies, and a squared error of
        their variances.
        """
        few = self._scored(monitored(rows, weights))
        if isinstance(model, Normalised):
            return Watched({"log_likelihood": self.validation_scorer(few)} if self.monitor else {}, {})
        discrete, rebuilds = can_pseudo(model), isinstance(model, Decodes)
        independent = _independent_sites(model, few, discrete, rebuilds) if discrete or rebuilds else {}
        if not discrete:
            name = "reconstruction_error" if rebuilds else "score_matching_loss"
            scorer = self.validation_scorer(few)
            return Watched({name: lambda model: -scorer(model)} if self.monitor else {}, independent)
        cost = few.n * n_numbers((few.parts, model))
        if self.monitor == "always" or (self.monitor == "auto" and cost < MONITOR_COST):
            return Watched({"pseudo_likelihood": few.mean_pseudo_likelihood}, independent)
        if self.monitor is None or not rebuilds:
            return Watched({}, independent)
        return Watched({"reconstruction_error": lambda model: reconstruction_error(model, few)}, independent)

    def _stage_plan(self, n_rows: int, n_epochs: int) -> Plan:
        """The plan of a stage that comes before the training proper."""
        batch_size = min(self.batch_size, n_rows)
        per_epoch = math.ceil(n_rows / batch_size)
        return Plan(per_epoch * n_epochs, batch_size, min(per_epoch, LONGEST_CHUNK))

    def _plan(self, n_rows: int) -> Plan:
        held_out = self.validation_fraction if self.early_stopping else 0.0
        n_training = max(1, n_rows - n_held_out(n_rows, held_out)) if held_out else n_rows
        batch_size = min(self.batch_size, n_training)
        per_epoch = math.ceil(n_training / batch_size)
        plan = Plan(
            n_steps=math.ceil(n_training * self.n_epochs / batch_size),
            batch_size=batch_size,
            chunk=min(per_epoch, LONGEST_CHUNK),
            validation_fraction=held_out,
            patience=self.patience if self.early_stopping else 0,
            run_dir=self.run_dir,
            resume=self.resume,
            callbacks=tuple(self.callbacks or ()),
        )
        return self._replanned(plan, n_rows)

    @hook
    def _replanned(self, plan: Plan, n_rows: int) -> Plan:
        """The plan of the training proper, where a family has solvers with another one."""
        del n_rows
        return plan

    @hook
    def _objective_numbers(self) -> dict[str, Any]:
        """Keyword arguments for objectives named by a string."""
        names = ("n_sampler_steps", "n_chains", "n_replicas", "rounds")
        return {name: getattr(self, name) for name in names if name in self.declared}

    def _learner(self, plan: Plan) -> AbstractLearner:
        solver = self._solver(plan)
        if solver is not None:
            return solver
        surrogate, optimizer = self._surrogate(plan), self._optimizer(plan, self._main_rate())
        return GradientLearner(surrogate, optimizer, averaging=self.averaging, centring=self.centring)

    @hook
    def _solver(self, plan: Plan) -> AbstractLearner | None:
        """A learner that does not descend an objective; None where gradients do the learning."""
        del plan
        return None

    @hook
    def _surrogate(self, plan: Plan) -> AbstractObjective:
        """The objective of the training proper."""
        del plan
        return objective(self.objective, **self._objective_numbers())

    @hook
    def _main_rate(self) -> float:
        """The step size at the start of the training proper."""
        return self.learning_rate

    def _optimizer(self, plan: Plan, learning_rate: float | None = None) -> Optimizer:
        return Optimizer.make(
            self.optimizer,
            learning_rate=self.learning_rate if learning_rate is None else learning_rate,
            n_steps=plan.n_steps,
            momentum=self.momentum,
            schedule="constant" if plan.constant_rate else self.schedule,
            weight_decay=self.weight_decay,
            clip=self.clip,
        )


def monitored(rows: Any, weights: Any = None) -> Any:
    """The few training rows that are followed, the same ones every time: spread as evenly as their weights are."""
    rows = rows if isinstance(rows, Examples) else Examples(rows)
    return rows.read(spread(rows.n, MONITOR_ROWS, weights))


def _independent_sites(model: Any, few: Portions, discrete: bool, rebuilds: bool) -> dict[str, float]:
    """The pseudo-likelihood of independent sites, and the squared error of predicting every site's mean."""
    x = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(few.visibles(model.x_space))]
    known = {"pseudo_likelihood": -sum(_entropy(leaf) for leaf in x)} if discrete else {}
    if rebuilds:
        known["reconstruction_error"] = float(np.concatenate([leaf.var(axis=0).ravel() for leaf in x]).mean())
    return known


def _entropy(x: np.ndarray) -> float:
    """Of all sites, each by itself; its two states differ in sign, or its many are one-hot along the last axis."""
    p = x.mean(axis=0) if x.ndim > 2 else np.stack([(x > 0).mean(axis=0), (x <= 0).mean(axis=0)])
    return float(entr(p).sum())
