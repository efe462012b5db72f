"""The base class of all estimators.

A family implements ``build`` (a fresh model from a blueprint), ``_learner`` (how it learns) and, if its data
are special, ``_blueprint`` and ``_check_domain``. It inherits ``fit``, ``transform``, ``inverse_transform``,
``reconstruct``, ``sample``, ``free_energy``, ``score_samples``, ``score``, ``log_likelihood``, ``save`` and
``latentia.load``, each of them as far as its model's capabilities allow.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self, get_args

import jax
import jax.numpy as jnp
import numpy as np
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from latentia import likelihood
from latentia.core import space
from latentia.core.capabilities import (
    Amortised,
    Clamps,
    Decodes,
    Encodes,
    ExactPosterior,
    FreeEnergy,
    LinearSplit,
)
from latentia.core.errors import CapabilityError, DataError
from latentia.core.hooks import extensible, hook
from latentia.core.model import AbstractModel
from latentia.estimator import checks, notebook, saving
from latentia.estimator.absent import absent_if_lacking
from latentia.estimator.drawing import draw
from latentia.estimator.fits import Fits
from latentia.estimator.memory import forget
from latentia.estimator.rows import apply_rows
from latentia.estimator.scoring import code_row, decode_row, free_energy_row
from latentia.inference import code_space
from latentia.learning.contrastive import ContrastiveState
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.ops import random


class LatentEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, Fits):
    """A model with the scikit-learn interface. See the module's docstring for what a family implements."""

    def adopt(
        self, model: AbstractModel, blueprint: dict[str, Any], feature_names: list[str] | None = None
    ) -> Self:
        """Become a fitted estimator around a given model."""
        self._forget_earlier()
        forget(self)
        self.blueprint_, self.model_, self.history_ = blueprint, model, []
        self.n_features_in_ = blueprint["n_features"]
        if feature_names:
            self.feature_names_in_ = np.asarray(feature_names, dtype=object)
        self._n_features_out = space.width(code_space(model))
        self._adopted()
        return self

    @hook
    def _adopted(self) -> None:
        """What follows from a model that was taken over."""

    def _needs(self, capability: Any, method: str) -> Any:
        check_is_fitted(self, "model_")
        if not isinstance(self.model_, capability):
            names = " and ".join(c.__name__ for c in get_args(capability) or (capability,))
            raise CapabilityError(f"{type(self).__name__} has no {method}: its model lacks {names}.")
        return self.model_

    # -- use -----------------------------------------------------------------------------------------------

    @extensible
    def transform(self, X: Any) -> np.ndarray:
        """Posterior means of the latents (or the codes of a model without latents), one row per example."""
        model = self._needs(ExactPosterior | Clamps | Encodes | LinearSplit | Amortised, "transform")
        return apply_rows(code_row, model, self._visibles(X, purpose="coding"))

    def inverse_transform(self, X: Any) -> np.ndarray:
        """Mean visibles for given latents (rows as :meth:`transform` returns them)."""
        return self._decoded(X)

    @hook
    def _decoded(self, X: Any) -> np.ndarray:
        """Mean visibles for given latents, which are checked here."""
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
        return self._switches()

    @hook
    def _switches(self) -> tuple[np.ndarray, np.ndarray]:
        """Codes for :meth:`latent_switches`: by default the others are off."""
        n = self._n_features_out
        return np.eye(n, dtype=np.float32), np.zeros((n, n), np.float32)

    def reconstruct(self, X: Any) -> np.ndarray:
        """Mean visibles given the posterior means of the latents."""
        return self._reconstructed(X)

    @hook
    def _reconstructed(self, X: Any) -> np.ndarray:
        """What :meth:`reconstruct` returns; by default decoded codes."""
        return self.inverse_transform(self.transform(X))

    @absent_if_lacking
    def free_energy(self, X: Any) -> np.ndarray:
        """F(x) = −log Σ_z exp(−E(x, z)) of every row; an upper bound by inference where F is out of reach."""
        model = self._needs(FreeEnergy | Clamps, "free_energy")
        return apply_rows(free_energy_row, model, self._visibles(X, purpose="scoring"))

    @absent_if_lacking
    @extensible
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

    @absent_if_lacking
    def log_z(self, **options: Any) -> LogZ:
        """log Z with both sides; see :func:`latentia.likelihood.log_z` for the options. Remembered."""
        check_is_fitted(self, "model_")
        known = None if options else self._remembered("_log_z")
        if known is not None:
            return known
        options = {"key": random.key(0), "start": self._chains(), **options}
        return self._remember("_log_z", likelihood.log_z(self.model_, **options))

    @absent_if_lacking
    @extensible
    def score_samples(self, X: Any) -> np.ndarray:
        """log p(x) of every row, in nats; exact where log Z is known exactly, else with its estimate.

        Where F(x) is out of reach it is the variational lower bound.
        """
        visibles = self._visibles(X, purpose="scoring")
        model = self._needs(FreeEnergy | Clamps, "score_samples")
        return -apply_rows(free_energy_row, model, visibles).astype(np.float64) - self.log_z().estimate

    def score(self, X: Any, y: Any = None) -> float:
        """Mean log p(x) over the rows; of a family without a likelihood another measure. Higher is better."""
        del y
        return self._score(X)

    @hook
    def _score(self, X: Any) -> float:
        """What :meth:`score` returns."""
        return float(np.mean(self.score_samples(X)))

    @absent_if_lacking
    @extensible
    def log_likelihood(self, X: Any, **options: Any) -> LogLikelihood:
        """Mean log p(x) with both sides: lower, upper, estimate, stderr, method.

        Options go to :func:`latentia.likelihood.log_likelihood` (``method``, ``n_temperatures``, ``n_chains`` …).
        """
        visibles = self._visibles(X, purpose="scoring")
        options = {"key": random.key(0), "start": self._chains(), **options}
        found = likelihood.log_likelihood(self.model_, jax.tree.map(jnp.asarray, visibles), **options)
        return self._remember("_log_likelihood", found)

    def _remember(self, name: str, evaluation: Any) -> Any:
        """Store an evaluation of the current model, and discard those of another model."""
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
        state = state if isinstance(state, ContrastiveState) else self._contrastive_state(state)
        return None if state is None else jax.vmap(state.sampler.visible)(state.chains)

    @hook
    def _contrastive_state(self, state: Any) -> ContrastiveState | None:
        """The state with persistent chains that an objective's state of another type holds, if any."""
        del state
        return None

    def save(self, path: str | Path) -> None:
        """Write to a safetensors file that :func:`latentia.load` reads; nothing in it is executed."""
        self._check_savable()
        check_is_fitted(self, "model_")
        saving.save(self, path)

    @hook
    def _check_savable(self) -> None:
        """Refuse to be saved, where a parameter is code that no file can hold."""

    def _repr_html_inner(self) -> str:
        """For notebooks: scikit-learn's diagram, and a card of what was learned."""
        return notebook.with_card(self, super()._repr_html_inner())

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        bundle = super()._repr_mimebundle_(**kwargs)
        return bundle | {"text/html": self._repr_html_inner()} if "text/html" in bundle else bundle

    def __sklearn_is_fitted__(self) -> bool:
        return "model_" in self.__dict__

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = False
        tags.transformer_tags.preserves_dtype = []  # codes are float32, whatever the data
        tags.input_tags.sparse = "sparse" in self.accepts
        return tags
