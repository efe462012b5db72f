"""Sparse codes over a dictionary that is given: the model of sparse coding without the learning.

    E(x, z) = ½‖x − zD‖² + penalty(z)

See :mod:`latentia.models.sparse_coding`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from latentia.abilities.sparse_codes import SPARSE_CHECKS, Method, SparseEstimator, checked_dictionary
from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import ParameterError
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator import checks, training
from latentia.estimator.rows_to_learn import LearningRows, weighted
from latentia.ops import random


class SparseCoder(SparseEstimator):
    """Sparse codes over a given dictionary.

    Args:
        dictionary: atoms in rows, ``(n_components, n_features)``, or the .npy file that holds them; None takes
            rows of the data.
        alpha: strength of the penalty; not divided by the number of features.
        penalty: "l1", "elastic_net", "l0", "lq", "group", or an object of ``latentia.ops.penalties``.
        ratio: of an elastic net, the part of the ℓ1 norm.
        q: of an ℓq penalty, the power between 0 and 1.
        groups: of a group penalty, the number of its group for every atom.
        n_nonzero: most atoms in a code, found by matching pursuit; alpha and penalty then have no part in it.
        error: squared error ‖x − zD‖² at which a code has enough atoms; like n_nonzero, or together with it.
        inference: how codes are found: "cd", "lars", "ista", "fista", "omp", "ols", "iht", "working" (for an
            accelerator); "auto" by the penalty.
        nonnegative_codes: codes without negative entries.
        center: subtract the mean of the data that ``fit`` saw first, and add it in reconstructions.
        n_components: how many rows of the data to take where there is no dictionary; as many as features if None.
        tol: certified relative duality gap of the codes.
        max_code_iter: most iterations a code; None for the solver's own limit.
        n_threads: threads of the compiled solvers; None for all cores. The result is the same for any number.
        random_state: seed of the choice of rows where there is no dictionary.
        verbose: not used; here for the sake of uniformity.

    Example:
        >>> import numpy as np
        >>> from latentia import SparseCoder
        >>> X = np.array([[3.0, 0.1], [0.0, -2.0]])
        >>> SparseCoder(np.eye(2), alpha=0.5).fit(X).transform(X)
        array([[ 2.5,  0. ],
               [ 0. , -1.5]], dtype=float32)

    References:
        Tibshirani (1996), *Regression shrinkage and selection via the lasso*; Olshausen and Field (1996).
    """

    family = "sparse-coder"
    parameter_checks: ClassVar[Mapping[str, checks.Check]] = {
        **SPARSE_CHECKS,
        "n_components": checks.integer(1, optional=True),
    }

    def __init__(
        self,
        dictionary: Any = None,
        alpha: float = 0.1,
        *,
        penalty: Any = "l1",
        ratio: float = 0.5,
        q: float = 0.5,
        groups: Any = None,
        n_nonzero: int | None = None,
        error: float | None = None,
        inference: Method = "auto",
        nonnegative_codes: bool = False,
        center: bool = False,
        n_components: int | None = None,
        tol: float = 1e-4,
        max_code_iter: int | None = None,
        n_threads: int | None = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.dictionary = dictionary
        self.alpha = alpha
        self.penalty = penalty
        self.ratio = ratio
        self.q = q
        self.groups = groups
        self.n_nonzero = n_nonzero
        self.error = error
        self.inference = inference
        self.nonnegative_codes = nonnegative_codes
        self.center = center
        self.n_components = n_components
        self.tol = tol
        self.max_code_iter = max_code_iter
        self.n_threads = n_threads
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Check the dictionary against the data; nothing is learned.

        Args:
            X: data, ``(n, n_features)``.
            y: ignored.
            sample_weight: one non-negative weight per row, for the mean that ``center`` takes off.
        """
        checks.check_parameters(self, self.parameter_checks)
        self._inference()
        X, y, weights = weighted(self._accept(X, reset=True), y, sample_weight)
        model, _, _ = self._begin(X, self._first_seed(), y, weights)
        names = list(getattr(self, "feature_names_in_", [])) or None
        return self.adopt(model, self.blueprint_, names)

    def _started(self, model: Any, rows: LearningRows, seed: int) -> Any:
        return self._begin_with(super()._started(model, rows, seed), rows, self.dictionary)

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> SparseCodingModel:
        """A model with the right shapes at a random start."""
        n, k = blueprint["n_features"], blueprint["n_components"]
        return SparseCodingModel.make(
            n, k, rule=blueprint["penalty"], center=bool(self.center), key=random.key(seed)
        )

    def _blueprint(self, X: Any) -> dict[str, Any]:
        n = X.n_columns
        k = self.n_components or n if self.dictionary is None else len(checked_dictionary(self.dictionary))
        self._check_size(k)
        return {"n_features": n, "n_components": k, "penalty": self._rule()}

    def _plan(self, n_rows: int) -> training.Plan:
        return training.Plan(n_steps=1, batch_size=n_rows, chunk=1)

    def _learner(self, plan: training.Plan) -> AbstractLearner:
        raise ParameterError("SparseCoder does not learn. Use DictionaryLearning.")
