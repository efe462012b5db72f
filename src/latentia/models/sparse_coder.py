"""Sparse codes over a dictionary that is given: the model of sparse coding without the learning.

    E(x, z) = ½‖x − zD‖² + penalty(z)

See :mod:`latentia.models.sparse_coding`.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from latentia.abilities.sparse_codes import SparseEstimator, checked_dictionary
from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import ParameterError
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator import checks, training
from latentia.estimator.declared import Parameters, changed, param
from latentia.estimator.rows_to_learn import LearningRows
from latentia.ops import random
from latentia.ops.examples import Examples


class GivenDictionary(Parameters):
    """The dictionary, which comes first where parameters are given without names."""

    dictionary: Any = param(
        default=None,
        doc="atoms in rows, ``(n_components, n_features)``, or an .npy file of them; None takes rows of the data.",
        kw_only=False,
    )


class SparseCoder(SparseEstimator, GivenDictionary):
    """Sparse codes over a given dictionary.

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
    _fewest_rows: ClassVar[int] = 1

    n_components: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc="number of rows of the data to use as atoms if there is no dictionary; the number of features if None.",
    )

    center = changed(doc="subtract the mean of the training data first, and add it in reconstructions.")
    random_state = changed(doc="seed for the choice of rows if there is no dictionary.")
    verbose = changed(doc="not used.")

    def _learn(self, X: Examples, y: Any, weights: np.ndarray | None) -> None:
        """Check the dictionary against the data; nothing is learned, but the mean that ``center`` takes off."""
        self._inference()
        model, _, _ = self._begin(X, self._first_seed(), y, weights)
        names = list(getattr(self, "feature_names_in_", [])) or None
        self.adopt(model, self.blueprint_, names)

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
