"""Sparse coding and dictionary learning (Olshausen and Field, 1996; Mairal, Bach, Ponce and Sapiro, 2010).

A signal is a sum of few atoms d_1 … d_K, the rows of a dictionary D,

    E(x, z) = ½‖x − zD‖² + penalty(z),      ‖d_j‖ ≤ 1 (or = 1),

and its code is the z that minimises E. The penalty is α‖z‖₁ unless another is asked for (elastic net, ℓ0, ℓq,
groups), or instead of it the number of atoms in use is limited. Learning lowers the mean of E over the signals by
turns: codes with the atoms held, atoms with the codes held. Without a bound on the atoms' norms codes could shrink
at no cost.

The codes are found, not summed out, so there is no likelihood: models are compared by the objective.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
from jaxtyping import Array, Float

from latentia.abilities.sparse_codes import SPARSE_CHECKS, Method, SparseEstimator
from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import ParameterError
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator import checks, training
from latentia.estimator.rows_to_learn import LearningRows, n_held_out
from latentia.learning.dictionary import UPDATES, Constraint
from latentia.learning.fit import Event
from latentia.ops import random

#: Steps between two looks of the host, unless an epoch is shorter.
LONGEST_CHUNK = 200

Atoms = Float[Array, "k d"]
Update = Literal["online", "gradient", "ksvd", "mod"]
PenaltyName = Literal["l1", "elastic_net", "l0", "lq", "group"]


class DictionaryLearning(SparseEstimator):
    """Dictionary learning: atoms of which every signal needs few.

    Args:
        n_components: number of atoms.
        alpha: strength of the penalty; not divided by the number of features.
        penalty: "l1", "elastic_net", "l0", "lq", "group", or an object of ``latentia.ops.penalties``.
        ratio: of an elastic net, the part of the ℓ1 norm.
        q: of an ℓq penalty, the power between 0 and 1.
        groups: of a group penalty, the number of its group for every atom.
        n_nonzero: most atoms in a code, found by matching pursuit; alpha and penalty then have no part in it.
        error: squared error ‖x − zD‖² at which a code has enough atoms; like n_nonzero, or together with it.
        update: how atoms learn: "online" (statistics of mini-batches, with forgetting), "gradient" (a step and
            back to norm one), "mod" (least squares on all codes) or "ksvd" (every atom with its coefficients).
        inference: how codes are found: "cd", "lars", "ista", "fista", "omp", "ols", "iht", "working" (for an
            accelerator); "auto" by the penalty.
        constraint: "ball" (norms of at most one) or "sphere" (norms of one).
        nonnegative_codes: codes without negative entries.
        nonnegative_dictionary: atoms without negative entries.
        center: subtract the mean of the data first, and add it in reconstructions.
        dictionary_init: atoms to start from, ``(n_components, n_features)``; rows of the data by default.
        forgetting: of "online": how fast old codes are forgotten; 0 never.
        learning_rate: of "gradient": the step as a part of the largest safe one.
        reseed: replace unused and doubled atoms by signals that are represented badly.
        warm_codes: of updates that see all rows: find codes from those of the epoch before.
        batch_size: rows per step, for "online" and "gradient"; "mod" and "ksvd" take all rows at once.
        n_epochs: passes over the data at most.
        min_gain: least relative gain of the objective from one epoch to the next; a smaller one ends the training.
        tol: certified relative duality gap of the codes.
        max_code_iter: most iterations a code; None for the solver's own limit.
        early_stopping: hold out rows and stop when their objective no longer falls.
        validation_fraction: the part of the rows to hold out for that.
        patience: epochs without a better score before stopping.
        n_threads: threads of the compiled solvers; None for all cores. The result is the same for any number.
        run_dir: folder for config, metrics, checkpoints and model; None writes nothing.
        resume: go on from the folder's checkpoint.
        callbacks: functions called with a ``latentia.learning.fit.Event`` after every epoch; True stops.
        random_state: seed of the start and of the order of the rows.
        verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

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
    parameter_checks: ClassVar[Mapping[str, checks.Check]] = {
        **SPARSE_CHECKS,
        "n_components": checks.integer(1),
        "update": checks.one_of(*UPDATES),
        "constraint": checks.one_of("ball", "sphere"),
        "nonnegative_dictionary": checks.flag,
        "forgetting": checks.number(0),
        "learning_rate": checks.number(0, open_low=True),
        "reseed": checks.flag,
        "warm_codes": checks.flag,
        "batch_size": checks.integer(1),
        "n_epochs": checks.integer(1),
        "min_gain": checks.number(0),
        "early_stopping": checks.flag,
        "validation_fraction": checks.number(0, 1, open_low=True, open_high=True),
        "patience": checks.integer(1),
        "resume": checks.flag,
    }

    def __init__(
        self,
        n_components: int = 100,
        alpha: float = 0.1,
        *,
        penalty: Any = "l1",
        ratio: float = 0.5,
        q: float = 0.5,
        groups: Any = None,
        n_nonzero: int | None = None,
        error: float | None = None,
        update: Update = "online",
        inference: Method = "auto",
        constraint: Constraint = "ball",
        nonnegative_codes: bool = False,
        nonnegative_dictionary: bool = False,
        center: bool = False,
        dictionary_init: Any = None,
        forgetting: float = 3.0,
        learning_rate: float = 1.0,
        reseed: bool = True,
        warm_codes: bool = True,
        batch_size: int = 512,
        n_epochs: int = 50,
        min_gain: float = 1e-4,
        tol: float = 1e-4,
        max_code_iter: int | None = None,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 3,
        n_threads: int | None = None,
        run_dir: Any = None,
        resume: bool = False,
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.n_components = n_components
        self.alpha = alpha
        self.penalty = penalty
        self.ratio = ratio
        self.q = q
        self.groups = groups
        self.n_nonzero = n_nonzero
        self.error = error
        self.update = update
        self.inference = inference
        self.constraint = constraint
        self.nonnegative_codes = nonnegative_codes
        self.nonnegative_dictionary = nonnegative_dictionary
        self.center = center
        self.dictionary_init = dictionary_init
        self.forgetting = forgetting
        self.learning_rate = learning_rate
        self.reseed = reseed
        self.warm_codes = warm_codes
        self.batch_size = batch_size
        self.n_epochs = n_epochs
        self.min_gain = min_gain
        self.tol = tol
        self.max_code_iter = max_code_iter
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.n_threads = n_threads
        self.run_dir = run_dir
        self.resume = resume
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

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
            callbacks=(_Settled(self.min_gain), *(self.callbacks or ())),
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
        checks.check_parameters(self, self.parameter_checks)
        if self.update in ("mod", "ksvd"):
            raise ParameterError(
                f"partial_fit needs update='online' or 'gradient': {self.update!r} sees all rows at once."
            )
        return self._pass_over(X, y, sample_weight)


class _Settled:
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
