"""Sparse coding and dictionary learning (Olshausen and Field, 1996; Mairal, Bach, Ponce and Sapiro, 2010).

A signal is a sum of few atoms d_1 … d_K, the rows of a dictionary D,

    E(x, z) = ½‖x − zD‖² + penalty(z),      ‖d_j‖ ≤ 1 (or = 1),

and its code is the z that minimises E. The penalty is α‖z‖₁ unless another is chosen (elastic net, ℓ0, ℓq,
groups), or instead of it the number of atoms in use is limited. Learning lowers the mean of E over the signals by
turns: codes with the atoms held, atoms with the codes held. Without a bound on the atoms' norms codes could shrink
at no cost.

The codes are found, not summed out, so there is no likelihood: models are compared by the objective.
"""

from __future__ import annotations

import math
from typing import Any, Literal, Self

import numpy as np
from jaxtyping import Array, Float

from latentia.abilities.sparse_codes import SparseEstimator
from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import ParameterError
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator import checks, training
from latentia.estimator.declared import changed, param
from latentia.estimator.groups import (
    BatchSize,
    Callbacks,
    Components,
    EarlyStopping,
    Epochs,
    LearningRate,
    RunDir,
    Seed,
    Verbosity,
)
from latentia.estimator.rows_to_learn import LearningRows, n_held_out
from latentia.learning.dictionary import UPDATES, Constraint
from latentia.learning.fit import Event
from latentia.ops import random

#: Steps between two looks of the host, unless an epoch is shorter.
LONGEST_CHUNK = 200

Atoms = Float[Array, "k d"]
Update = Literal["online", "gradient", "ksvd", "mod"]
PenaltyName = Literal["l1", "elastic_net", "l0", "lq", "group"]


class DictionaryLearning(
    SparseEstimator,
    Epochs,
    BatchSize,
    LearningRate,
    EarlyStopping,
    RunDir,
    Callbacks,
    Seed,
    Verbosity,
    Components,
):
    """Dictionary learning: atoms of which every signal needs few.

    Example:
        >>> import numpy as np
        >>> from latentia import DictionaryLearning
        >>> X = np.random.default_rng(0).normal(size=(200, 8))
        >>> learning = DictionaryLearning(n_components=12, alpha=0.5, n_epochs=3, random_state=0).fit(X)
        >>> learning.transform(X, output="csr").shape
        (200, 12)

    Reference:
        Mairal, Bach, Ponce and Sapiro (2010), *Online learning for matrix factorization and sparse coding*.
    """

    family = "dictionary"

    update: Update = param(
        default="online",
        check=checks.one_of(*UPDATES),
        doc='update of the atoms: "online" (statistics of mini-batches, with decay), "gradient" (a gradient step '
        'and a projection), "mod" (least squares on all codes) or "ksvd" (every atom with its coefficients).',
    )
    constraint: Constraint = param(
        default="ball",
        check=checks.one_of("ball", "sphere"),
        doc='"ball" (norms of at most one) or "sphere" (norms of one).',
    )
    nonnegative_dictionary: bool = param(default=False, check=checks.flag, doc="atoms without negative entries.")
    dictionary_init: Any = param(
        default=None,
        doc="atoms to start from, ``(n_components, n_features)``; rows of the data by default.",
    )
    forgetting: float = param(
        default=3.0,
        check=checks.number(0),
        doc='"online": rate at which the weight of old codes decays; 0 for no decay.',
    )
    reseed: bool = param(
        default=True,
        check=checks.flag,
        doc="replace unused and duplicate atoms by signals with large errors.",
    )
    warm_codes: bool = param(
        default=True,
        check=checks.flag,
        doc="for updates over all rows: start from the codes of the previous epoch.",
    )
    min_gain: float = param(
        default=1e-4,
        check=checks.number(0),
        doc="smallest relative gain of the objective per epoch; a smaller one ends the training.",
    )

    n_components = changed(default=100, doc="number of atoms.")
    learning_rate = changed(default=1.0, doc='"gradient": step size relative to the largest stable one.')
    batch_size = changed(
        default=512,
        doc='rows per step, for "online" and "gradient"; "mod" and "ksvd" take all rows at once.',
    )
    n_epochs = changed(doc="passes over the data at most.")
    early_stopping = changed(doc="hold out rows and stop when their objective no longer falls.")
    validation_fraction = changed(doc="fraction of rows held out for early stopping.")
    patience = 3
    callbacks = changed(
        doc="functions called with a ``latentia.learning.fit.Event`` after every epoch; True stops.",
    )
    random_state = changed(doc="seed of the start and of the order of the rows.")

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> SparseCodingModel:
        """A model with the right shapes at a random start."""
        constraint: Any = self.constraint
        return SparseCodingModel.make(
            blueprint["n_features"],
            self.n_components,
            rule=blueprint["penalty"],
            constraint=constraint,
            nonnegative=bool(self.nonnegative_dictionary),
            center=bool(self.center),
            key=random.key(seed),
        )

    def _blueprint(self, X: Any) -> dict[str, Any]:
        return {"n_features": X.n_columns, "penalty": self._rule()}

    def _started(self, model: Any, rows: LearningRows, seed: int) -> Any:
        self._check_size(self.n_components)
        self._inference()
        model = self._begin_with(super()._started(model, rows, seed), rows, self.dictionary_init)
        return model if self.dictionary_init is None else model.project()

    def _plan(self, n_rows: int) -> training.Plan:
        held_out = self.validation_fraction if self.early_stopping else 0.0
        n = max(1, n_rows - n_held_out(n_rows, held_out))
        batch_size = n if self.update in ("mod", "ksvd") else min(self.batch_size, n)
        per_epoch = math.ceil(n / batch_size)
        return training.Plan(
            n_steps=math.ceil(n * self.n_epochs / batch_size),
            batch_size=batch_size,
            chunk=min(per_epoch, LONGEST_CHUNK),
            validation_fraction=held_out,
            patience=self.patience if self.early_stopping else 0,
            run_dir=self.run_dir,
            resume=self.resume,
            callbacks=(_Converged(self.min_gain), *(self.callbacks or ())),
        )

    def _learner(self, plan: training.Plan) -> AbstractLearner:
        inference = self._inference()
        warm = bool(self.warm_codes) and inference.method in ("cd", "ista", "fista") and plan.chunk == 1
        warm = warm and not plan.constant_rate  # a pass of partial_fit meets other rows than the one before
        own: dict[str, dict[str, Any]] = {
            "online": {"forgetting": float(self.forgetting)},
            "gradient": {"warm": warm, "rate": float(self.learning_rate)},
            "mod": {"warm": warm},
            "ksvd": {"warm": warm, "nonnegative_codes": bool(self.nonnegative_codes)},
        }
        return UPDATES[self.update](  # type: ignore[call-arg]
            inference,
            constraint=self.constraint,
            nonnegative=bool(self.nonnegative_dictionary),
            reseed=bool(self.reseed),
            **own[self.update],
        )

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One pass over more rows, going on from the atoms and statistics so far.

        Args:
            X: data, ``(n, n_features)``.
            y: ignored.
            sample_weight: one non-negative weight per row.
        """
        checks.check_parameters(self)
        if self.update in ("mod", "ksvd"):
            raise ParameterError(
                f"partial_fit needs update='online' or 'gradient': {self.update!r} uses all rows at once."
            )
        return self._pass_over(X, y, sample_weight)


class _Converged:
    """Stops when the mean objective of an epoch is hardly better than that of the epoch before.

    Reads the run's history instead of remembering, so that a resumed run stops where it would have.
    """

    def __init__(self, gain: float):
        self.gain = gain

    def __call__(self, event: Event) -> bool:
        if not self.gain or event.epoch < 2:
            return False
        since = lambda begin, end: [r["objective"] for r in event.history if begin < r["epoch"] <= end]  # noqa: E731
        last, before = since(event.epoch - 1, event.epoch), since(event.epoch - 2, event.epoch - 1)
        return bool(before) and bool(np.mean(before) - np.mean(last) < self.gain * np.mean(before))
