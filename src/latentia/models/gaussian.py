"""The Gaussian with a constrained precision matrix: an estimator that solves for it, or learns it like any energy.

See :mod:`latentia.energies.gaussian_energy` for the model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import ParameterError
from latentia.energies.gaussian_energy import GaussianEnergy, safe
from latentia.estimator import checks, training
from latentia.estimator.declared import changed, param
from latentia.estimator.door import DataKind
from latentia.estimator.energy import EnergyEstimator
from latentia.estimator.fits import Watched
from latentia.estimator.rows_to_learn import LearningRows, spread
from latentia.estimator.scoring import average
from latentia.estimator.training import Plan
from latentia.learning.solved import Solved
from latentia.likelihood import free_energies, log_z
from latentia.ops import graphical, random, whitening
from latentia.ops.examples import Examples


def _check_precision(name: str, value: Any) -> None:
    if isinstance(value, str):
        checks.one_of("full", "diagonal", "neighbours")(name, value)
    else:
        graphical.check_mask(name, value)


class GaussianModel(EnergyEstimator):
    """Gaussian whose precision matrix has given zeros, learned by likelihood, score matching or noise contrast.

    ``transform`` whitens (by the symmetric root of the precision, "ZCA") and ``inverse_transform`` undoes it.

    Example:
        >>> import numpy as np
        >>> from latentia import GaussianModel
        >>> X = np.random.default_rng(0).normal(size=(100, 9)).cumsum(axis=1)
        >>> gaussian = GaussianModel(precision="neighbours").fit(X)
        >>> int(np.count_nonzero(gaussian.precision_))  # nine pixels, twelve pairs of neighbours
        33
        >>> gaussian.transform(X).shape
        (100, 9)

    References:
        Dempster (1972), *Covariance selection*; Hyvärinen (2005).
    """

    family = "gaussian"
    accepts: ClassVar[frozenset[DataKind]] = frozenset({"images"})

    precision: Any = param(
        default="full",
        check=_check_precision,
        doc='which variables may be coupled: "full" (any two), "diagonal" (none), "neighbours" (pixels of an '
        "image within ``radius`` of each other), or a symmetric boolean matrix.",
        kw_only=False,
    )
    image_shape: tuple[int, ...] | None = param(
        default=None,
        doc='height and width (and channels) of the images, for "neighbours"; a square if None.',
    )
    radius: float = param(
        default=1.0,
        check=checks.number(0),
        doc='for "neighbours", in pixels: 1 couples four, 1.5 eight neighbours.',
    )
    solver: str = param(
        default="closed_form",
        check=checks.one_of("closed_form", "score_matching", "gradient"),
        doc='"closed_form" (maximum likelihood; iterative if the precision has given zeros), "score_matching" '
        '(exact, a linear system), or "gradient", by the objective. The first two use only the covariance of '
        "the data.",
    )
    ridge: float = param(
        default=1e-6,
        check=checks.number(0),
        doc="fraction of the mean variance that those two add to every variance, so that an inverse exists even "
        "if columns are constant or linearly dependent.",
    )

    objective = changed(
        default="score_matching",
        doc='for "gradient": "score_matching", "sliced_score_matching", "denoising_score_matching", "nce", '
        '"conditional_nce", or an objective object.',
    )
    learning_rate = 0.01
    weight_decay = changed(doc="decay of the couplings per unit of learning rate.")
    early_stopping = changed(doc="stop when the likelihood of held-out rows no longer rises.")
    monitor = changed(
        doc='whether to record the log-likelihood of a few training rows after every epoch: "auto" and "always" '
        "do, None does not.",
    )

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> GaussianEnergy:
        """The standard normal distribution with the right structure."""
        del seed
        n, structure, mask = blueprint["n_features"], blueprint["structure"], None
        if structure == "neighbours":
            mask = graphical.pixel_neighbours(tuple(blueprint["image_shape"]), self.radius)
        elif structure == "mask":  # one from a file is still to come, see adopt
            mask = np.zeros((n, n), bool) if isinstance(self.precision, str) else np.asarray(self.precision)
        return GaussianEnergy.make(n, mask, coupled=structure != "diagonal")

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        n = X.n_columns
        structure = self.precision if isinstance(self.precision, str) else "mask"
        facts = {"n_features": n, "structure": structure}
        if structure == "neighbours":
            facts["image_shape"] = list(graphical.image_shape(n, self.image_shape or X.item_shape))
        if structure == "mask" and np.shape(self.precision) != (n, n):
            raise ParameterError(
                f"precision is a mask for {len(self.precision)} variables, but the data have {n} columns."
            )
        return facts

    def _adopted(self) -> None:
        """A mask that a file held becomes the parameter again."""
        if self.blueprint_["structure"] == "mask" and isinstance(self.precision, str):
            self.precision = np.asarray(self.model_.mask)

    def _replanned(self, plan: Plan, n_rows: int) -> Plan:
        if self.solver == "gradient":
            return plan
        shape = {"n_steps": 1, "batch_size": min(100, n_rows), "chunk": 1}
        return dataclasses.replace(plan, **shape, validation_fraction=0.0, patience=0)

    def _pretrain(self, model: Any, rows: LearningRows, seed: int, plan: Plan) -> Any:
        if self.solver == "gradient":
            return model
        diagonal = model.couplings is None
        data = lambda: training.blocks(rows.training)  # noqa: E731
        mean, covariance = whitening.moments(data, rows.weights, diagonal=diagonal)
        ridged = graphical.with_ridge(covariance, self.ridge)
        if model.couplings is None:
            solved = model.with_precision(mean, 1 / ridged)
        else:
            likeliest = self.solver == "closed_form"
            solve = graphical.likeliest_precision if likeliest else graphical.score_matched_precision
            mask = np.ones(ridged.shape, bool) if model.mask is None else np.asarray(model.mask)
            solved = safe(model.with_precision(mean, solve(ridged, mask | np.eye(len(mask), dtype=bool))))
        precision = np.exp(solved.log_diagonal) if model.couplings is None else np.asarray(solved.precision())
        trace = np.sum(precision.astype(np.float64) * covariance)
        self._solved = -0.5 * trace - log_z(solved, key=random.key(0)).estimate
        return solved

    def _solver(self, plan: Plan) -> AbstractLearner | None:
        del plan
        if self.solver == "gradient":
            return None
        return Solved(jnp.asarray(vars(self).pop("_solved"), jnp.float32))

    def _lacks(self, method: str) -> str | None:
        if method != "partial_fit" or self.solver == "gradient":
            return None
        return f"solver={self.solver!r} sees all rows at once. Use solver='gradient'."

    def sample(
        self,
        n_samples: int = 1,
        *,
        n_steps: int = 1,
        given: Any = None,
        mask: Any = None,
        mean: bool = False,
        random_state: Any = None,
    ) -> np.ndarray:
        """Draw from the model as any estimator does; one step is enough, because every step is a fresh draw."""
        options = {"given": given, "mask": mask, "mean": mean, "random_state": random_state}
        return super().sample(n_samples, n_steps=n_steps, **options)

    def validation_scorer(self, rows: Any, weights: Any = None) -> Callable[[Any], float]:
        """The mean log-likelihood of the rows."""
        portions = self._scored(rows)

        def score(model: Any) -> float:
            energies = [np.asarray(free_energies(model, jnp.asarray(portion))) for portion in portions]
            energy = average(np.concatenate(energies), weights)
            return -energy - log_z(model, key=random.key(0)).estimate

        return score

    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """The log-likelihood of a few rows."""
        del model
        if self.solver != "gradient" or not self.monitor:
            return Watched({}, {})
        few = rows.read(spread(len(rows), min(256, len(rows)), weights))
        return Watched({"log_likelihood": self.validation_scorer(few)}, {})

    @property
    def mean_(self) -> np.ndarray:
        """μ."""
        return np.asarray(self.model_.mean)

    @property
    def precision_(self) -> np.ndarray:
        """Λ."""
        return np.asarray(self.model_.precision())

    @property
    def covariance_(self) -> np.ndarray:
        """Λ⁻¹."""
        return np.linalg.inv(self.precision_.astype(np.float64)).astype(np.float32)
