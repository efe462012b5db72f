"""The Gaussian with a constrained precision matrix, as an energy.

    F(x) = ½(x − μ)ᵀΛ(x − μ),      log Z = ½ D log 2π − ½ log det Λ,      Λ = S (I + A) S,  S = diag(s),

with A symmetric, zero on its diagonal and wherever two variables may not be coupled: given all others, those are
independent (Dempster, 1972). −A holds the partial correlations. The energy is left *unnormalised*, though log Z is
known, so that what an objective learns about log Z can be held against the truth.

Λ must stay positive definite without losing its zeros, which a Cholesky factor would fill in. Its diagonal s² is
positive by its logarithm; A is kept where the smallest eigenvalue of I + A is above a floor: after a step that
leaves that set, A is shrunk towards zero, which keeps every zero, until a Cholesky factor exists again. One factor
for a step is the price, about that of the step's own products.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, PRNGKeyArray
from sklearn.utils.metaestimators import available_if

from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import ParameterError
from latentia.core.model import (
    Bounded,
    Conditionals,
    Constrained,
    Decodes,
    Encodes,
    ExactSampler,
    Initialised,
    KnownLogZ,
    Scalar,
)
from latentia.core.parameters import bias, buffer, weight
from latentia.core.space import Space
from latentia.estimator import checks, training
from latentia.estimator.energy import ENERGY_CHECKS, EnergyEstimator
from latentia.estimator.training import Plan
from latentia.learning.optimizer import Schedule
from latentia.learning.solved import Solved
from latentia.likelihood import free_energies, log_z
from latentia.ops import graphical, random, whitening
from latentia.ops.gaussian import LOG_2PI

Value = Float[Array, " d"]

#: The smallest eigenvalue that I + A may have: single precision still tells it from zero.
FLOOR = 1e-5
#: What is left of A after every failure to find a Cholesky factor.
SHRINK = 0.98


class GaussianEnergy(KnownLogZ, ExactSampler, Conditionals, Encodes, Decodes, Constrained, Bounded, Initialised):
    """F(x) = ½(x − μ)ᵀS(I + A)S(x − μ); A is None where all variables are independent."""

    mean: Value = bias()
    log_diagonal: Value = bias()  # of Λ: log s²
    couplings: Float[Array, "d d"] | None = weight()
    mask: Bool[Array, "d d"] | None = buffer()  # None: any two variables may be coupled

    @classmethod
    def make(cls, n: int, mask: np.ndarray | None = None, *, coupled: bool = True) -> Self:
        """The standard normal distribution."""
        couplings = jnp.zeros((n, n)) if coupled else None
        return cls(jnp.zeros(n), jnp.zeros(n), couplings, None if mask is None else jnp.asarray(mask))

    def with_precision(self, mean: np.ndarray, precision: np.ndarray) -> Self:
        """The model with a given mean and a given precision matrix (or its diagonal)."""
        diagonal = np.maximum(precision if self.couplings is None else np.diagonal(precision), 1e-30)
        couplings = None
        if self.couplings is not None:
            scaled = precision / np.sqrt(diagonal)[:, None] / np.sqrt(diagonal)[None, :]
            np.fill_diagonal(scaled, 0.0)
            couplings = jnp.asarray(scaled.astype(self.couplings.dtype))
        cast = lambda a: jnp.asarray(np.asarray(a).astype(self.mean.dtype))  # noqa: E731
        return type(self)(cast(mean), cast(np.log(diagonal)), couplings, self.mask)

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.mean.shape)

    @property
    def z_space(self) -> tuple[()]:
        """No latents."""
        return ()

    @property
    def code_space(self) -> Space:
        """Whitened values."""
        return self.x_space

    def coupled(self) -> Float[Array, "d d"]:
        """A: symmetric, with its zeros."""
        assert self.couplings is not None
        off = ~jnp.eye(self.mean.shape[0], dtype=bool)
        return jnp.where(
            off if self.mask is None else off & self.mask, 0.5 * (self.couplings + self.couplings.T), 0.0
        )

    def scaled(self) -> Float[Array, "d d"]:
        """I + A, the precision in units in which its diagonal is one."""
        return jnp.eye(self.mean.shape[0], dtype=self.mean.dtype) + self.coupled()

    def precision(self) -> Float[Array, "d d"]:
        """Λ."""
        if self.couplings is None:
            return jnp.diag(jnp.exp(self.log_diagonal))
        scale = jnp.exp(0.5 * self.log_diagonal)
        return scale[:, None] * self.scaled() * scale[None, :]

    def _units(self, x: Value) -> Value:
        """S(x − μ)."""
        return jnp.exp(0.5 * self.log_diagonal) * (x - self.mean)

    def _data(self, u: Value) -> Value:
        """The inverse of :meth:`_units`."""
        return self.mean + jnp.exp(-0.5 * self.log_diagonal) * u

    def energy(self, x: Value, z: tuple[()]) -> Scalar:
        """F(x)."""
        del z
        return self.free_energy(x)

    def free_energy(self, x: Value) -> Scalar:
        """½(x − μ)ᵀΛ(x − μ)."""
        u = self._units(x)
        return 0.5 * (u @ u) if self.couplings is None else 0.5 * (u @ (u + self.coupled() @ u))

    def log_z(self) -> Scalar:
        """½ D log 2π − ½ log det Λ."""
        half_log_det = 0.5 * jnp.sum(self.log_diagonal)
        if self.couplings is not None:
            half_log_det += jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(self.scaled()))))
        return 0.5 * self.mean.shape[0] * LOG_2PI - half_log_det

    def sample(self, *, key: PRNGKeyArray) -> tuple[Value, tuple[()]]:
        """One draw."""
        return self._data(self._draw(jnp.zeros_like(self.mean), None, key)), ()

    def begin(self, x: Value, *, key: PRNGKeyArray) -> tuple[()]:
        """No latents."""
        del x, key
        return ()

    def sweep(self, x: Value, z: tuple[()], *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Value, tuple[()]]:
        """A draw of all entries that are not fixed at once: independent of where they were."""
        drawn = self._data(self._draw(self._units(x), fixed, key))
        return drawn if fixed is None else jnp.where(fixed, x, drawn), z

    def _draw(self, u: Value, fixed: Any, key: PRNGKeyArray) -> Value:
        """u_f | u_o ~ N(−M_ff⁻¹ M_fo u_o, M_ff⁻¹), M = I + A; the mask may differ from example to example.

        Fixed entries stay in the system, tied to zero by a row of their own.
        """
        noise = jax.random.normal(key, u.shape, u.dtype)
        if self.couplings is None:
            return noise
        if fixed is None:
            return solve_triangular(jnp.linalg.cholesky(self.scaled()), noise, trans=1, lower=True)
        free = jnp.where(fixed, 0.0, 1.0).astype(u.dtype)
        block = free[:, None] * self.scaled() * free[None, :] + jnp.diag(1 - free)
        factor = jnp.linalg.cholesky(block)
        mean = cho_solve((factor, True), -free * (self.coupled() @ ((1 - free) * u)))
        return mean + solve_triangular(factor, noise, trans=1, lower=True)

    def _spectrum(self) -> tuple[Value, Float[Array, "d d"]]:
        values, vectors = jnp.linalg.eigh(self.precision())
        return jnp.maximum(values, float(jnp.finfo(values.dtype).eps) * jnp.max(values)), vectors

    def encode(self, x: Value) -> Value:
        """Λ^½(x − μ) with the symmetric root: white under the model, and as near to x as white can be."""
        if self.couplings is None:
            return self._units(x)
        values, vectors = self._spectrum()
        return vectors @ (jnp.sqrt(values) * ((x - self.mean) @ vectors))

    def decode(self, z: Value) -> Value:
        """Λ^−½ z + μ."""
        if self.couplings is None:
            return self._data(z)
        values, vectors = self._spectrum()
        return self.mean + vectors @ ((z @ vectors) / jnp.sqrt(values))

    def project(self) -> Self:
        """A made symmetric with its zeros, and shrunk until I + A is safely positive definite."""
        if self.couplings is None:
            return self
        coupled = self.coupled()
        rest = (1 - FLOOR) * jnp.eye(self.mean.shape[0], dtype=self.mean.dtype)
        broken = lambda a: ~jnp.all(jnp.isfinite(jnp.linalg.cholesky(rest + a)))  # noqa: E731
        finite = lambda a: jnp.all(jnp.isfinite(a))  # noqa: E731  # what diverged is for others to notice
        shrunk = jax.lax.while_loop(lambda a: finite(a) & broken(a), lambda a: SHRINK * a, coupled)
        return eqx.tree_at(lambda m: m.couplings, self, shrunk)

    def margin(self) -> Scalar:
        """The smallest eigenvalue of I + A."""
        if self.couplings is None:
            return jnp.ones((), self.mean.dtype)
        return jnp.linalg.eigvalsh(self.scaled())[0]

    def margin_message(self) -> str:
        """Why a precision must be positive definite."""
        return (
            "The precision matrix of a Gaussian must be positive definite: the energy has a minimum only then. "
            "Call project() after changing its couplings, or use a lower learning_rate."
        )

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """Mean and variances of the data, no couplings."""
        del key
        variances = jnp.var(x, axis=0)
        usual = jnp.where(jnp.max(variances) > 0, jnp.mean(variances), 1.0)
        couplings = None if self.couplings is None else jnp.zeros_like(self.couplings)
        return type(self)(jnp.mean(x, axis=0), -jnp.log(jnp.maximum(variances, 1e-6 * usual)), couplings, self.mask)


def _check_precision(name: str, value: Any) -> None:
    if isinstance(value, str):
        checks.one_of("full", "diagonal", "neighbours")(name, value)
    else:
        graphical.check_mask(name, value)


class GaussianModel(EnergyEstimator):
    """Gaussian whose precision matrix has given zeros, learned by likelihood, score matching or noise contrast.

    ``transform`` whitens (by the symmetric root of the precision, "ZCA") and ``inverse_transform`` undoes it.

    Args:
        precision: which variables may be coupled: "full" (any two), "diagonal" (none), "neighbours" (pixels of an
            image within ``radius`` of each other), or a symmetric boolean matrix.
        image_shape: height and width (and channels) of the images, for "neighbours"; a square if None.
        radius: for "neighbours", in pixels: 1 couples four, 1.5 eight neighbours.
        solver: "closed_form" (maximum likelihood; iterative where the precision has given zeros),
            "score_matching" (exact, a linear system), or "gradient", by the objective. The first two need the data
            only through their covariance.
        ridge: part of the mean variance that those two add to every variance: an inverse exists even where columns
            are constant or depend on each other.
        objective: for "gradient": "score_matching", "sliced_score_matching", "denoising_score_matching", "nce",
            "conditional_nce", or an objective object.
        k: sampler steps per update.
        n_chains: persistent chains; as many as the batch has rows if None.
        noise_ratio: noise samples for each example, for the objectives that contrast data with noise.
        n_epochs: passes over the data.
        batch_size: rows per update.
        learning_rate: step size at the start.
        schedule: "constant", or falling to zero: "linear", "cosine", "warmup" (after a rise).
        optimizer: "sgd", "nesterov", "adam", "rmsprop", or an Optax transformation.
        momentum: decay of past gradients.
        weight_decay: shrinkage of the couplings per unit of learning rate.
        clip: largest norm of the gradient; 0 does not clip.
        averaging: decay of a running average of the parameters that becomes the final model; 0 for none.
        early_stopping: stop when the likelihood of held-out rows no longer rises.
        validation_fraction: rows held out for that.
        patience: epochs without a better score before stopping.
        monitor: the log-likelihood of a few training rows as a metric after every epoch: "auto" and "always" follow
            it, None does not.
        run_dir: folder for config, metrics, checkpoints and model; None writes nothing.
        resume: go on from the folder's checkpoint.
        callbacks: functions called with a ``latentia.learning.fit.Event`` now and then; True stops.
        random_state: seed.
        verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

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
    parameter_checks: ClassVar[Mapping[str, checks.Check]] = {
        **ENERGY_CHECKS,
        "precision": _check_precision,
        "radius": checks.number(0),
        "solver": checks.one_of("closed_form", "score_matching", "gradient"),
        "ridge": checks.number(0),
    }

    precision: Any
    image_shape: tuple[int, ...] | None
    radius: float
    solver: str
    ridge: float

    def __init__(
        self,
        precision: Any = "full",
        *,
        image_shape: tuple[int, ...] | None = None,
        radius: float = 1.0,
        solver: str = "closed_form",
        ridge: float = 1e-6,
        objective: Any = "score_matching",
        k: int = 1,
        n_chains: int | None = None,
        noise_ratio: int = 1,
        n_epochs: int = 50,
        batch_size: int = 100,
        learning_rate: float = 0.01,
        schedule: Schedule = "linear",
        optimizer: Any = "adam",
        momentum: float = 0.0,
        weight_decay: float = 0.0,
        clip: float = 0.0,
        averaging: float = 0.0,
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 5,
        monitor: str | None = "auto",
        run_dir: Any = None,
        resume: bool = False,
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        vars(self).update({name: value for name, value in locals().items() if name != "self"})

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> GaussianEnergy:
        """The standard normal distribution with the right structure."""
        del seed
        n, structure, mask = blueprint["n_features"], blueprint["structure"], None
        if structure == "neighbours":
            mask = graphical.pixel_neighbours(tuple(blueprint["image_shape"]), self.radius)
        elif structure == "mask":  # one from a file is still to come, see adopt
            mask = np.zeros((n, n), bool) if isinstance(self.precision, str) else np.asarray(self.precision)
        return GaussianEnergy.make(n, mask, coupled=structure != "diagonal")

    def _blueprint(self, X: np.ndarray) -> dict[str, Any]:
        n = int(X.shape[1])
        structure = self.precision if isinstance(self.precision, str) else "mask"
        facts = {"n_features": n, "structure": structure}
        if structure == "neighbours":
            facts["image_shape"] = list(graphical.image_shape(n, self.image_shape))
        if structure == "mask" and np.shape(self.precision) != (n, n):
            raise ParameterError(
                f"precision is a mask for {len(self.precision)} variables, but the data have {n} columns."
            )
        return facts

    def adopt(self, model: Any, blueprint: dict[str, Any], feature_names: list[str] | None = None) -> Self:
        """Become a fitted estimator around a given model; a mask that a file held becomes the parameter again."""
        if blueprint["structure"] == "mask" and isinstance(self.precision, str):
            self.precision = np.asarray(model.mask)
        return super().adopt(model, blueprint, feature_names)

    def _plan(self, n_rows: int) -> Plan:
        if self.solver == "gradient":
            return super()._plan(n_rows)
        callbacks = tuple(self.callbacks or ())
        return Plan(1, min(100, n_rows), 1, run_dir=self.run_dir, resume=self.resume, callbacks=callbacks)

    def _pretrain(self, model: Any, rows: np.ndarray, seed: int, plan: Plan, weights: Any) -> Any:
        if self.solver == "gradient":
            return model
        diagonal = model.couplings is None
        mean, covariance = whitening.moments(lambda: training.blocks(rows), weights, diagonal=diagonal)
        ridged = graphical.with_ridge(covariance, self.ridge)
        if model.couplings is None:
            solved = model.with_precision(mean, 1 / ridged)
        else:
            likeliest = self.solver == "closed_form"
            solve = graphical.likeliest_precision if likeliest else graphical.score_matched_precision
            mask = np.ones(ridged.shape, bool) if model.mask is None else np.asarray(model.mask)
            solved = _safe(model.with_precision(mean, solve(ridged, mask | np.eye(len(mask), dtype=bool))))
        precision = np.exp(solved.log_diagonal) if model.couplings is None else np.asarray(solved.precision())
        trace = np.sum(precision.astype(np.float64) * covariance)
        self._solved = -0.5 * trace - log_z(solved, key=random.key(0)).estimate
        return solved

    def _learner(self, plan: Plan) -> AbstractLearner:
        if self.solver == "gradient":
            return super()._learner(plan)
        return Solved(jnp.asarray(vars(self).pop("_solved"), jnp.float32))

    @available_if(lambda self: self.solver == "gradient")
    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """One pass over more rows, going on from the model so far, at a constant learning rate."""
        return super().partial_fit(X, y, sample_weight)

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

    def validation_scorer(self, rows: np.ndarray) -> Callable[[Any], float]:
        """The mean log-likelihood of the rows."""
        x = jnp.asarray(self._rows(rows, purpose="scoring"))
        return lambda model: -float(np.mean(free_energies(model, x))) - log_z(model, key=random.key(0)).estimate

    def monitors(self, model: Any, rows: np.ndarray) -> dict[str, Callable[[Any], float]]:
        """The log-likelihood of a few rows."""
        del model
        if self.solver != "gradient" or not self.monitor:
            return {}
        return {"log_likelihood": self.validation_scorer(training.some_rows(rows, 0, 256))}

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


def _safe(model: GaussianEnergy) -> GaussianEnergy:
    """The model, its couplings shrunk where its precision is not positive definite."""
    least = float(np.linalg.eigvalsh(np.asarray(model.coupled(), np.float64))[0])
    if 1 + least > FLOOR:
        return model
    warnings.warn(
        "The best precision matrix with these zeros is not positive definite to single precision, so its couplings "
        "were shrunk until it is. Allow more couplings, a larger ridge, or use solver='closed_form'.",
        stacklevel=3,
    )
    return eqx.tree_at(lambda m: m.couplings, model, (1 - 2 * FLOOR) / -least * model.coupled()).project()
