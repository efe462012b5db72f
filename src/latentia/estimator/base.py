"""The base class of all estimators.

A family implements ``build`` (a fresh model from a blueprint), ``_learner`` (how it learns) and, where its data
are special, ``_blueprint`` and ``_rows``. It gets ``fit``, ``transform``, ``inverse_transform``,
``reconstruct``, ``sample``, ``free_energy``, ``score_samples``, ``score``, ``log_likelihood``, ``save`` and
``latentia.load``, each of them as far as its model's capabilities allow.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from scipy.sparse import issparse
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

from latentia import likelihood
from latentia.core import space
from latentia.core.algorithms import AbstractLearner, require
from latentia.core.capabilities import (
    Amortised,
    Clamps,
    Decodes,
    Encodes,
    ExactPosterior,
    FreeEnergy,
    Initialised,
    ProxSplit,
)
from latentia.core.errors import CapabilityError, DataError, DivergenceError, NotNormalisableError
from latentia.core.model import AbstractModel
from latentia.estimator import callbacks, card, checks, saving, training
from latentia.estimator.drawing import draw
from latentia.estimator.fresh import fresh
from latentia.estimator.memory import MOST_SEED, following, forget
from latentia.estimator.rows import apply_rows
from latentia.estimator.rows_to_learn import LearningRows, some_rows, split, weighted
from latentia.estimator.scoring import code_row, decode_row, free_energy_row, held_out_score
from latentia.inference import code_space
from latentia.learning import fitting
from latentia.learning.batches import is_mapped
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.contrastive import ContrastiveState
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.ops import random
from latentia.ops.arrays import cast_like
from latentia.ops.compiling import jitted

Purpose = Literal["training", "coding", "scoring"]


class LatentEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, abc.ABC):
    """A model with a scikit-learn face. See the module's docstring for what a family implements."""

    #: The name in the registry.
    family: ClassVar[str]
    #: The fitted model, an :class:`equinox.Module`.
    model_: Any
    random_state: Any
    verbose: int
    #: What each parameter may be.
    parameter_checks: ClassVar[Mapping[str, checks.Check]] = {}
    #: Whether rows may come as a sparse matrix; they then stay on the host, for learners that work there.
    accepts_sparse: ClassVar[bool] = False

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

    def _blueprint(self, X: np.ndarray) -> dict[str, Any]:
        """Plain facts about the data that :meth:`build` needs."""
        return {"n_features": int(X.shape[1])}

    def _prepare(self, model: Any) -> AbstractPrepare:
        """Rows → visibles at every training step."""
        return training.Encode(model.x_space)

    def _rows(self, X: np.ndarray, *, purpose: Purpose) -> np.ndarray:
        """The rows, checked against the model's domain (and converted, where a family can)."""
        del purpose
        visibles = eqx.filter_eval_shape(lambda: self.build(self.blueprint_)).x_space
        training.check_blocks(functools.partial(space.check, visibles), X)
        return X

    def _targets(self, X: np.ndarray, y: Any) -> np.ndarray | None:
        """Further columns of the rows to learn from, for families that learn labels; None ignores y."""
        del X, y
        return None

    def _target_facts(self, y: Any) -> dict[str, Any]:
        """Plain facts about the labels that :meth:`build` needs."""
        del y
        return {}

    def _pretrain(self, model: Any, rows: LearningRows, seed: int, plan: training.Plan) -> Any:
        """The model after what comes before the training proper; most families need nothing."""
        del rows, seed, plan
        return model

    # -- learning ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from the rows of ``X``.

        Args:
            X: data, ``(n, n_features)``: an array, a data frame, or a memory map, which is streamed.
            y: labels, for families with label units; others ignore it.
            sample_weight: one non-negative weight per row; a row of weight zero is left out, and one of weight two
                counts as two rows.
        """
        checks.check_parameters(self, self.parameter_checks)
        seed = self._first_seed()
        X, y, weights = weighted(self._validate(X, reset=True), y, sample_weight, least=2)
        forget(self)
        model, rows, plan = self._begin(X, seed, y, weights)
        training.open_folder(self, plan, rows.training.shape[0])
        with callbacks.told(self, plan.callbacks) as begin:
            plan = dataclasses.replace(plan, begin=begin)
            model = self._pretrain(model, rows, seed, plan)
            self._train(model, rows, seed, plan, state=None)
        self._next_seed = following(seed)
        return self

    def _first_seed(self) -> int:
        return int(check_random_state(self.random_state).randint(MOST_SEED))

    def _pass_over(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """One pass over more rows, going on from the model so far (or beginning), with other random numbers."""
        checks.check_parameters(self, self.parameter_checks)
        goes_on = "model_" in vars(self)
        X, y, weights = weighted(self._validate(X, reset=not goes_on), y, sample_weight)
        if goes_on:
            next_seed = vars(self).get("_next_seed")
            seed = following(self._first_seed()) if next_seed is None else next_seed
            model, rows = self.model_, self._more_rows(X, y)
            rows, plan = LearningRows(rows, weights), self._plan(X.shape[0])
        else:
            forget(self)
            seed = self._first_seed()
            model, rows, plan = self._begin(X, seed, y, weights, in_passes=True)
        plan = plan.one_pass(X.shape[0])
        with callbacks.told(self, plan.callbacks, goes_on=goes_on) as begin:
            plan = dataclasses.replace(plan, begin=begin)
            self._train(model, rows, seed, plan, state=vars(self).get("_state"))
        self._next_seed = following(seed)  # the next pass meets other random numbers
        return self

    def _begin(
        self, X: Any, seed: int, y: Any, weights: np.ndarray | None, *, in_passes: bool = False
    ) -> tuple[Any, LearningRows, training.Plan]:
        """A model at its starting point, the rows to learn from, and for how long.

        Only rows to train on have a say in where the model starts; held-out ones are put aside first.
        """
        targets = self._targets(X, y)
        self.blueprint_ = {**self._blueprint(X), **(self._target_facts(y) if targets is not None else {})}
        rows = self._rows(X, purpose="training")
        if targets is not None:
            rows = np.column_stack([rows, targets])
        plan = self._plan(rows.shape[0])
        split_rows = split(rows, weights, 0.0 if in_passes else plan.validation_fraction, seed)
        model = fresh(self.build, self.blueprint_, seed=seed)
        return self._started(model, split_rows, seed), split_rows, plan

    def _started(self, model: Any, rows: LearningRows, seed: int) -> Any:
        """The model at the starting point that the training rows suggest."""
        if not isinstance(model, Initialised):
            return model
        few = some_rows(rows.training, seed, rows.weights)
        return _initialise(model, space.encode(model.x_space, jax.device_put(few)), random.key(seed))

    def _more_rows(self, X: Any, y: Any) -> np.ndarray:
        """Rows for a model that has learned already."""
        rows, targets = self._rows(X, purpose="training"), self._more_targets(X, y)
        return rows if targets is None else np.column_stack([rows, targets])

    def _more_targets(self, X: np.ndarray, y: Any) -> np.ndarray | None:
        """Like ``_targets``, for a model that has learned already."""
        return self._targets(X, y)

    def _train(self, model: Any, rows: LearningRows, seed: int, plan: training.Plan, state: Any) -> None:
        learner = self._learner(plan)
        require(learner, model, fitting=fitting(model))
        prepare = self._prepare(model)
        look = functools.partial(training.survey, rows.training, rows.weights, prepare, seed)
        learner = cast_like(learner.surveyed(model, look, key=random.key(seed)), model)
        for name in ("_log_z", "_state", "_log_likelihood"):
            vars(self).pop(name, None)
        self._n_rows = int(rows.training.shape[0])
        try:
            result = training.run(self, model, rows, learner, prepare, plan, seed, state)
        except (DivergenceError, NotNormalisableError) as error:
            if error.result is not None:
                self._keep(error.result)
            raise
        self._keep(result)
        if plan.run_dir is not None:
            saving.save(self, Path(plan.run_dir) / "model.safetensors")

    def _keep(self, result: Any) -> None:
        self.model_, self._state, self.history_ = result.model, result.state, result.history
        self.n_steps_, self.fit_seconds_, self.compile_seconds_ = (
            result.n_steps,
            result.seconds,
            result.compile_seconds,
        )
        self._n_features_out = space.width(code_space(self.model_))

    def adopt(
        self, model: AbstractModel, blueprint: dict[str, Any], feature_names: list[str] | None = None
    ) -> Self:
        """Become a fitted estimator around a given model."""
        forget(self)
        self.blueprint_, self.model_, self.history_ = blueprint, model, []
        self.n_features_in_ = blueprint["n_features"]
        if feature_names:
            self.feature_names_in_ = np.asarray(feature_names, dtype=object)
        self._n_features_out = space.width(code_space(model))
        return self

    # -- data ----------------------------------------------------------------------------------------------

    def _validate(self, X: Any, *, reset: bool) -> np.ndarray:
        if is_mapped(X):
            return training.validate_mapped(self, X, reset=reset)
        minimum = 2 if reset else 1
        sparse = "csr" if self.accepts_sparse else False
        shape: Any = {"order": "C", "ensure_min_samples": minimum, "accept_sparse": sparse}
        X = validate_data(self, X, reset=reset, dtype=[np.float64, np.float32], **shape)
        with np.errstate(over="ignore"):
            single = X.astype(np.float32)
        if not np.isfinite(single.data if issparse(single) else single).all():
            raise DataError("X has values beyond the range of float32 (about 3.4e38). Scale the data first.")
        return single

    def _visibles(self, X: Any, *, purpose: Purpose) -> Any:
        """The rows as the model's visibles; what X has no columns for (labels) is None."""
        check_is_fitted(self, "model_")
        X = self._validate(X, reset=False)
        return space.encode_seen(self.model_.x_space, np.asarray(self._rows(X, purpose=purpose)))

    def _needs(self, capability: Any, method: str) -> Any:
        check_is_fitted(self, "model_")
        if not isinstance(self.model_, capability):
            names = " and ".join(c.__name__ for c in get_args(capability) or (capability,))
            raise CapabilityError(f"{type(self).__name__} has no {method}: its model lacks {names}.")
        return self.model_

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the latents (or the codes of a model without latents), one row per example."""
        model = self._needs(ExactPosterior | Clamps | Encodes | ProxSplit | Amortised, "transform")
        return apply_rows(code_row, model, self._visibles(X, purpose="coding"))

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Mean visibles for given latents (rows as :meth:`transform` returns them)."""
        model = self._needs(Decodes, "inverse_transform")
        Z = np.asarray(X, np.float32)
        if Z.ndim != 2 or Z.shape[1] != self._n_features_out:
            raise DataError(f"Latents must be a matrix with {self._n_features_out} columns, got shape {Z.shape}.")
        means = apply_rows(decode_row, model, space.unflatten(code_space(model), Z))
        return self._data_columns(space.flatten(model.x_space, means))

    def _data_columns(self, values: np.ndarray) -> np.ndarray:
        """Without the columns of what ``fit`` got besides X (labels)."""
        return values[:, : space.width(space.seen(self.model_.x_space, self.n_features_in_))]

    def latent_switches(self) -> tuple[np.ndarray, np.ndarray]:
        """(codes with one latent on, codes with it off), a row for every latent, for pictures of what it does."""
        check_is_fitted(self, "model_")
        n = self._n_features_out
        return np.eye(n, dtype=np.float32), np.zeros((n, n), np.float32)

    def reconstruct(self, X: Any) -> np.ndarray:
        """Mean visibles given the posterior means of the latents."""
        return self.inverse_transform(self.transform(X))

    def free_energy(self, X: Any) -> np.ndarray:
        """F(x) = −log Σ_z exp(−E(x, z)) of every row; an upper bound by inference where F is out of reach."""
        model = self._needs(FreeEnergy | Clamps, "free_energy")
        return apply_rows(free_energy_row, model, self._visibles(X, purpose="scoring"))

    def sample(
        self,
        n_samples: int = 1,
        *,
        n_steps: int = 1000,
        given: Any = None,
        mask: Any = None,
        mean: bool = False,
        random_state: Any = None,
    ) -> np.ndarray:
        """Draw from the model.

        Args:
            n_samples: how many; with ``given``, how many for each of its rows.
            n_steps: Gibbs sweeps (or Hamiltonian transitions, half of them to adapt) from the start, where the
                model cannot be sampled directly.
            given: rows with known entries; the others are drawn from their conditional distribution.
            mask: True where ``given`` is known; by default wherever it is not NaN.
            mean: return E[x | z] instead of x in the end (smoother pictures).
            random_state: seed; the estimator's own by default.

        Returns:
            ``(n_samples, n_features)``, or ``(rows · n_samples, n_features)`` with ``given``.
        """
        check_is_fitted(self, "model_")
        checks.integer(1)("n_samples", n_samples)
        checks.integer(1)("n_steps", n_steps)
        state = self.random_state if random_state is None else random_state
        key = random.key(int(check_random_state(state).randint(2**31 - 1)))
        return draw(self, n_samples, n_steps=n_steps, given=given, mask=mask, mean=mean, key=key)

    def log_z(self, **options: Any) -> LogZ:
        """log Z with both sides; see :func:`latentia.likelihood.log_z` for the options. Remembered."""
        check_is_fitted(self, "model_")
        known = None if options else self._remembered("_log_z")
        if known is not None:
            return known
        options = {"key": random.key(0), "start": self._chains(), **options}
        return self._remember("_log_z", likelihood.log_z(self._undirected(), **options))

    def _undirected(self) -> Any:
        """The part of the model whose log Z is that of the whole."""
        return self.model_

    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x) of every row, in nats; exact where log Z is known exactly, else with its estimate.

        Where F(x) is out of reach it is the variational lower bound.
        """
        visibles = self._visibles(X, purpose="scoring")
        model = self._needs(FreeEnergy | Clamps, "score_samples")
        return -apply_rows(free_energy_row, model, visibles).astype(np.float64) - self.log_z().estimate

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log p(x) over the rows."""
        del y
        return float(np.mean(self.score_samples(X)))

    def log_likelihood(self, X: Any, **options: Any) -> LogLikelihood:
        """Mean log p(x) with both sides: lower, upper, estimate, stderr, method.

        Options go to :func:`latentia.likelihood.log_likelihood` (``method``, ``n_temperatures``, ``n_chains`` …).
        """
        visibles = self._visibles(X, purpose="scoring")
        options = {"key": random.key(0), "start": self._chains(), **options}
        found = likelihood.log_likelihood(self.model_, jax.tree.map(jnp.asarray, visibles), **options)
        return self._remember("_log_likelihood", found)

    def _remember(self, name: str, evaluation: Any) -> Any:
        """Keep an evaluation of the model as it is, and forget those of another model."""
        self._remembered(name)
        setattr(self, name, evaluation)
        return evaluation

    def _remembered(self, name: str) -> Any:
        """An evaluation (``_log_z``, ``_log_likelihood``) of the model as it is; None if that has changed."""
        if self.__dict__.get("_evaluated") is not self.model_:
            for known in ("_log_z", "_log_likelihood"):
                vars(self).pop(known, None)
            self._evaluated = self.model_
        return self.__dict__.get(name)

    def _chains(self) -> Any:
        """Where the training's persistent chains are, if there are any: a good start for equilibrium."""
        state = getattr(self.__dict__.get("_state"), "objective", None)
        if isinstance(state, ContrastiveState):
            return jax.vmap(state.sampler.visible)(state.chains)
        return None

    def monitors(self, model: Any, rows: Any, weights: Any = None) -> dict[str, Callable[[Any], float]]:
        """Metrics of the whole model to follow while it trains, by name; none unless a family has some."""
        del model, rows, weights
        return {}

    def ignorance(self, model: Any, rows: Any, weights: Any = None) -> dict[str, float]:
        """What some of the monitors say of a model that knows every site by itself alone, by name.

        Each of them lies on one side of zero, and away from it is worse. A model that does worse than this while it
        trains has collapsed, and its run is rolled back.
        """
        del model, rows, weights
        return {}

    def validation_scorer(self, rows: np.ndarray, weights: Any = None) -> Callable[[Any], float]:
        """How early stopping scores a model on held-out rows: higher is better.

        The likelihood where it is normalised, the pseudo-likelihood where the data are discrete, otherwise the
        negative squared error of the reconstructions, or the negative score-matching objective where there are
        none.
        """
        rows = self._rows(rows[:, : self.n_features_in_], purpose="scoring")
        return held_out_score(rows, weights)

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file that :func:`latentia.load` reads; nothing in it is executed."""
        check_is_fitted(self, "model_")
        saving.save(self, path)

    def _repr_html_inner(self) -> str:
        """For notebooks: scikit-learn's diagram, and a card of what was learned."""
        return card.with_card(self, super()._repr_html_inner())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.transformer_tags.preserves_dtype = []  # codes are float32, whatever the data
        tags.input_tags.sparse = self.accepts_sparse
        return tags


@jitted
def _initialise(model: Any, x: Any, key: Any) -> Any:
    return model.initialise(x, key=key)
