"""How an estimator learns: from the user's data to one run of the training loop.

The steps are: the data are accepted (:mod:`latentia.estimator.door`), rows without weight are left out, a
blueprint of plain facts is read off the data, the model is built from it once, held-out rows are put aside, and a
:class:`~latentia.learning.fit.Settings` collects all settings of the loop.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from latentia.core import space
from latentia.core.algorithms import AbstractLearner, require
from latentia.core.capabilities import Initialised
from latentia.core.errors import DivergenceError, NotNormalisableError
from latentia.core.hooks import hook
from latentia.core.model import AbstractModel
from latentia.core.run_folder import RunFolder
from latentia.estimator import callbacks, checks, door, grey_values, saving, training
from latentia.estimator.declared import attribute
from latentia.estimator.fingerprint import fingerprint
from latentia.estimator.fresh import fresh
from latentia.estimator.groups import Seed, Verbosity
from latentia.estimator.memory import MOST_SEED, following, forget
from latentia.estimator.rows_to_learn import LearningRows, some_rows, split, weighted
from latentia.estimator.scoring import Portions, held_out_score
from latentia.inference import code_space
from latentia.learning import fit as loop
from latentia.learning import fitting
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.progress import display
from latentia.ops import random
from latentia.ops.arrays import cast_like
from latentia.ops.compiling import jitted
from latentia.ops.examples import Examples

Purpose = Literal["training", "coding", "scoring"]


class Watched(NamedTuple):
    """The metrics recorded while a model trains.

    Args:
        monitors: metrics by name, as functions of the model.
        independent: values of some of them for a model of independent sites. Each has one sign, and a larger
            absolute value is worse. A model that is worse than this has collapsed, and its run is rolled back.
    """

    monitors: dict[str, Callable[[Any], float]]
    independent: dict[str, float]


class Fits(Seed, Verbosity, BaseEstimator, abc.ABC):
    """The steps of a fit. See :mod:`latentia.estimator.base` for what a family implements."""

    #: The name in the registry.
    family: ClassVar[str]
    #: The kinds of data that it takes besides rows of numbers.
    accepts: ClassVar[frozenset[door.DataKind]] = frozenset()
    #: Rows with a weight that ``fit`` needs at least.
    _fewest_rows: ClassVar[int] = 2
    #: What to do with grey values in the place of bits; None takes data as they are. A parameter where that can be.
    binarize: Any = attribute(default=None)

    #: The fitted model, an :class:`equinox.Module`.
    model_: Any = attribute()
    blueprint_: dict[str, Any] = attribute()

    # -- what a family implements --------------------------------------------------------------------------

    @abc.abstractmethod
    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> AbstractModel:
        """A fresh model for a blueprint (plain facts about the data, such as ``n_features``)."""

    @abc.abstractmethod
    def _plan(self, n_rows: int) -> training.Plan:
        """Batch size, number of steps and stopping rules."""

    @abc.abstractmethod
    def _learner(self, plan: training.Plan) -> AbstractLearner:
        """How the model learns."""

    @hook
    def _blueprint(self, X: Examples) -> dict[str, Any]:
        """Plain facts about the data that :meth:`build` needs."""
        return {"n_features": X.n_columns}

    def _prepare(self, model: Any) -> AbstractPrepare:
        """Examples → visibles at every training step."""
        return training.Encode(model.x_space, sample=self.binarize == "sample")

    @hook
    def _check_domain(self, X: Examples, spaces: Any) -> None:
        """Refuse data outside the domain of the model's visibles."""
        X.check(functools.partial(space.check, spaces))

    @hook
    def _targets(self, X: Examples, y: Any) -> np.ndarray | None:
        """Labels to learn from as numbers, for families that learn labels; None ignores y."""
        del X, y
        return None

    @hook
    def _more_targets(self, X: Examples, y: Any) -> np.ndarray | None:
        """Like ``_targets``, for a fitted model."""
        return self._targets(X, y)

    @hook
    def _target_facts(self, y: Any) -> dict[str, Any]:
        """Plain facts about the labels that :meth:`build` needs."""
        del y
        return {}

    @hook
    def _pretrain(self, model: Any, rows: LearningRows, seed: int, plan: training.Plan) -> Any:
        """The model after pretraining; most families have none."""
        del rows, seed, plan
        return model

    @hook
    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """The metrics recorded of the whole model while it trains; none by default."""
        del model, rows, weights
        return Watched({}, {})

    @hook
    def validation_scorer(self, rows: Any, weights: Any = None) -> Callable[[Any], float]:
        """How early stopping scores a model on held-out rows: higher is better.

        The likelihood where it is normalised, the pseudo-likelihood where the data are discrete, otherwise the
        negative squared error of the reconstructions, or the negative score-matching objective if there are
        none.
        """
        return held_out_score(self._scored(rows), weights)

    @hook
    def _lacks(self, method: str) -> str | None:
        """Why there is no such method, as a clause that follows a colon; None where there is one."""
        del method
        return None

    # -- data ----------------------------------------------------------------------------------------------

    @hook
    def _refuse(self, X: Any) -> None:
        """Refuse data with an error of the family's own, before they are looked at."""
        del X

    def _accept(self, X: Any, *, reset: bool) -> Examples:
        """The data as examples; see :mod:`latentia.estimator.door`."""
        self._refuse(X)
        return door.accept(self, X, reset=reset)

    def _scored(self, rows: Any) -> Portions:
        """Examples as they are scored, without labels: grey values are sampled once, always the same way."""
        if isinstance(rows, Portions):
            return rows
        return Portions(rows, self._converter("scoring"))

    def _converter(self, purpose: Purpose) -> Callable[[], Callable[[Any], Any]] | None:
        """The treatment of grey values for a purpose; None if data stay as they are."""
        return None if self.binarize is None else grey_values.converter(self.binarize, purpose)

    def _visibles(self, X: Any, *, purpose: Purpose) -> Any:
        """The rows as the model's visibles; parts that are not in X (labels) are None."""
        check_is_fitted(self, "model_")
        rows, spaces = self._accept(X, reset=False), self.model_.x_space
        self._check_domain(rows, spaces)
        return Portions(rows, self._converter(purpose)).visibles(spaces)

    # -- learning ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from the rows of ``X``.

        Args:
            X: data, ``(n, n_features)``: an array, a data frame, or a memory map, which is streamed. Some families
                also take sparse matrices, images, or several parts by name.
            y: labels, for families with label units; others ignore it.
            sample_weight: one non-negative weight per row; a row of weight zero is left out, and one of weight two
                counts as two rows.
        """
        checks.check_parameters(self)
        X, weights = self._accept(X, reset=True), None
        if sample_weight is not None:
            X, y, weights = weighted(X, y, sample_weight, least=self._fewest_rows)
        self._learn(X, y, weights)
        return self

    @hook
    def _learn(self, X: Examples, y: Any, weights: np.ndarray | None) -> None:
        """Learn from checked examples."""
        seed = self._first_seed()
        forget(self)
        model, rows, plan = self._begin(X, seed, y, weights)
        with training.run_folder(self, plan, rows.training.n), callbacks.told(self, plan.callbacks) as begin:
            plan = dataclasses.replace(plan, begin=begin)
            model = self._pretrain(model, rows, seed, plan)
            self._train(model, rows, seed, plan, state=None)
        self._next_seed = following(seed)

    def _first_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(MOST_SEED))

    def _pass_over(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One pass over more rows, continuing from the current model (or a new one), with new random numbers."""
        checks.check_parameters(self)
        goes_on = "model_" in vars(self)
        X, y, weights = weighted(self._accept(X, reset=not goes_on), y, sample_weight)
        if goes_on:
            next_seed = vars(self).get("_next_seed")
            seed = following(self._first_seed()) if next_seed is None else next_seed
            model = self.model_
            rows = self._to_learn(X, self._more_targets(X, y), model.x_space)
            rows, plan = LearningRows(rows, weights), self._plan(X.n)
        else:
            forget(self)
            seed = self._first_seed()
            model, rows, plan = self._begin(X, seed, y, weights, in_passes=True)
        plan = plan.one_pass(X.n)
        with callbacks.told(self, plan.callbacks, goes_on=goes_on) as begin:
            plan = dataclasses.replace(plan, begin=begin)
            self._train(model, rows, seed, plan, state=vars(self).get("_state"))
        self._next_seed = following(seed)  # the next pass meets other random numbers
        return self

    def _begin(
        self, X: Any, seed: int, y: Any, weights: np.ndarray | None, *, in_passes: bool = False
    ) -> tuple[Any, LearningRows, training.Plan]:
        """A model at its starting point, the rows to learn from, and for how long.

        The starting point depends only on the rows to train on; held-out ones are put aside first.
        """
        targets = self._targets(X, y)
        self.blueprint_ = {**self._blueprint(X), **(self._target_facts(y) if targets is not None else {})}
        model = fresh(self.build, self.blueprint_, seed=seed)
        rows = self._to_learn(X, targets, model.x_space)
        plan = self._plan(rows.n)
        held_out = 0.0 if in_passes else plan.validation_fraction
        split_rows = split(rows, weights, held_out, seed) if held_out else LearningRows(rows, weights)
        return self._started(model, split_rows, seed), split_rows, plan

    def _to_learn(self, X: Examples, targets: np.ndarray | None, spaces: Any) -> Examples:
        """The examples for training, checked, with their labels."""
        self._check_domain(X, spaces)
        convert = self._converter("training")
        rows = X if convert is None else X.map(convert())
        return rows if targets is None else rows.labelled(targets)

    @hook
    def _started(self, model: Any, rows: LearningRows, seed: int) -> Any:
        """The model at the starting point that the training rows suggest."""
        if not isinstance(model, Initialised):
            return model
        few = some_rows(rows.training, seed, rows.weights)
        return _initialise(model, space.encode(model.x_space, jax.device_put(few)), random.key(seed))

    @hook
    def _forget_earlier(self) -> None:
        """Drop what belongs to an earlier model; called before another one is learned or taken over."""

    def _train(self, model: Any, rows: LearningRows, seed: int, plan: training.Plan, state: Any) -> None:
        self._forget_earlier()
        if not plan.n_steps:  # what came before the training proper was all that was asked for
            self._keep(loop.Result(model, None, [], 0.0, 0.0, 0, 0, False))
            saving.save_run(self, plan.run_dir)
            return
        learner = self._learner(plan)
        require(learner, model, fitting=lambda: fitting(model))
        prepare = self._prepare(model)
        look = functools.partial(training.survey, rows.training, rows.weights, prepare, seed)
        key = random.key(seed)
        learner = cast_like(learner.surveyed(model, look, key=key), model)
        for name in ("_log_z", "_state", "_log_likelihood"):
            vars(self).pop(name, None)
        self._n_rows = rows.training.n
        settings = self._settings(model, rows, plan, seed)
        options = {"key": key, "weights": rows.weights, "state": state}
        try:
            result = loop.fit(model, rows.training, learner, prepare, settings, **options)
        except (DivergenceError, NotNormalisableError) as error:
            if error.result is not None:
                self._keep(error.result)
            raise
        self._keep(result)
        saving.save_run(self, plan.run_dir)

    def _settings(self, model: Any, rows: LearningRows, plan: training.Plan, seed: int) -> loop.Settings:
        """The settings of the loop, besides the model, its data and its learner."""
        folder = None if plan.run_dir is None else RunFolder.of(plan.run_dir)
        watched = self.watch(model, rows.training, rows.weights)
        return loop.Settings(
            n_steps=plan.n_steps,
            batch_size=plan.batch_size,
            seed=seed,
            chunk=plan.chunk,
            monitors=watched.monitors,
            independent_baseline=watched.independent,
            score=None if rows.held_out is None else self.validation_scorer(rows.held_out, rows.held_out_weights),
            patience=plan.patience,
            tolerance=plan.tolerance,
            folder=folder,
            resume=plan.resume,
            fingerprint={} if folder is None else fingerprint(self, rows, plan, seed),
            begin=plan.begin,
            callbacks=plan.callbacks,
            display=display(self.verbose, type(self).__name__),
        )

    def _keep(self, result: Any) -> None:
        self.model_, self._state, self.history_ = result.model, result.state, result.history
        self.n_steps_, self.fit_seconds_, self.compile_seconds_ = (
            result.n_steps,
            result.seconds,
            result.compile_seconds,
        )
        self._n_features_out = space.width(code_space(self.model_))
        self._kept(result)

    @hook
    def _kept(self, result: loop.Result) -> None:
        """More that is remembered of a run, once its model is kept."""
        del result


@jitted
def _initialise(model: Any, x: Any, key: Any) -> Any:
    return model.initialise(x, key=key)
