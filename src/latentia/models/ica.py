"""Independent component analysis: x is a mixture of independent sources (Comon, 1994; Bell and Sejnowski, 1995).

With filters W and sources y = W(x − μ) that have densities p_i, the complete model (as many sources as features) is
exact (Pham and Garat, 1997):

    F(x) = −log p(x) = −Σ_i log p_i(w_iᵀ(x − μ)) − log|det W|,      log Z = 0,      x = W⁻¹y + μ.

Fewer sources than features leave a rest r = R(x − μ), which is standard normal; R are the whitened lesser principal
components, W is learned among the greater ones, and the density is still exact:

    F(x) = −Σ_i log p_i(y_i) + ½‖r‖² + ½(D − K) log 2π − log|det [W; R]|.

The overcomplete model (more sources than features) keeps the energy and loses the normaliser (Teh, Welling,
Osindero and Hinton, 2003):

    F(x) = −Σ_i log p_i(w_iᵀ(x − μ)),      log Z unknown.

The densities are those of :mod:`latentia.ops.sources`. Data are whitened *inside* the model, W = VP and
μ = c + P⁻¹b with c and P from the data's mean and covariance: rates and objectives do not depend on the units of x.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner
from latentia.core.capabilities import (
    Decodes,
    Encodes,
    ExactSampler,
    Initialised,
    Normalised,
    Relative,
    RelativeSlopes,
    Standardises,
)
from latentia.core.errors import DataError, ParameterError
from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, weight
from latentia.core.space import Space
from latentia.estimator import checks, training
from latentia.estimator.declared import changed, param
from latentia.estimator.energy import EnergyEstimator
from latentia.estimator.fits import Watched
from latentia.estimator.rows_to_learn import LearningRows, n_held_out
from latentia.learning.fit import Event
from latentia.learning.relative import PER_STEP, NaturalGradient, QuasiNewton, QuasiNewtonState
from latentia.learning.standardised import Standardised
from latentia.ops import random, sources
from latentia.ops.arrays import weighted_mean
from latentia.ops.examples import Examples
from latentia.ops.gaussian import LOG_2PI
from latentia.ops.sources import AbstractSources
from latentia.ops.whitening import directions, moments, whitener

Value = Float[Array, " d"]
Code = Float[Array, " k"]
Rows = Float[Array, "n d"]

#: Data whose correlation matrix has a smaller eigenvalue are numerically singular in float32.
FLAT = 1e-11
SOLVERS = ("quasi_newton", "natural_gradient", "gradient")


class AbstractICAModel(Standardises, Encodes, Initialised):
    """Filters W = VP with a density each; V is learned, in units that P makes those of whitened data."""

    weights: Float[Array, "k d"] = weight()
    shift: Value = bias()
    centre: Value = buffer()
    whiten: Float[Array, "d d"] = buffer()
    density: AbstractSources = buffer()

    @classmethod
    def make(cls, n: int, n_components: int, density: AbstractSources, *, key: PRNGKeyArray) -> Self:
        """Filters in random directions, no mean."""
        zeros, dtype = jnp.zeros(n), jnp.result_type(float)
        return cls(cls.start(n_components, n, dtype, key=key), zeros, zeros, jnp.eye(n), density)

    @classmethod
    @abc.abstractmethod
    def start(cls, k: int, d: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, "k d"]:
        """V at the start, for whitened data."""

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.shift.shape)

    @property
    def z_space(self) -> tuple[()]:
        """No latents."""
        return ()

    @property
    def code_space(self) -> Space:
        """The sources, ℝᴷ."""
        return Space("real", (self.weights.shape[0],))

    def filters(self) -> Float[Array, "k d"]:
        """W = VP."""
        return jnp.matmul(self.weights, self.whiten, precision="highest")

    def mean(self) -> Value:
        """μ = c + P⁻¹b."""
        return self.centre + jnp.linalg.solve(self.whiten, self.shift)

    def standardise(self, x: Value) -> Value:
        """x̂ = P(x − c)."""
        return self.whiten @ (x - self.centre)

    def inner(self) -> Self:
        """With c = 0 and P = I."""
        plain = (jnp.zeros_like(self.centre), jnp.eye(self.centre.shape[0], dtype=self.centre.dtype))
        return eqx.tree_at(lambda m: (m.centre, m.whiten), self, plain)

    def encode(self, x: Value) -> Code:
        """y = V(P(x − c) − b) = W(x − μ)."""
        return self.weights @ (self.standardise(x) - self.shift)

    def energy(self, x: Value, z: Any) -> Scalar:
        """F(x)."""
        del z
        return self.free_energy(x)

    def source_energy(self, x: Value) -> Scalar:
        """−Σ_i log p_i(y_i)."""
        return jnp.sum(self.density.energies(self.encode(x)))

    def initialise(self, x: Rows, *, key: PRNGKeyArray) -> Self:
        """c and P from the data's mean and covariance, b = 0, and filters in random directions."""
        centre = jnp.mean(x, axis=0)
        tilde = x - centre[None, :]
        whiten, _ = whitener(jnp, tilde.T @ tilde / x.shape[0], self.weights.shape[0])
        k, d = self.weights.shape
        new = (self.start(k, d, x.dtype, key=key), jnp.zeros_like(centre), centre, whiten)
        return eqx.tree_at(lambda m: (m.weights, m.shift, m.centre, m.whiten), self, new)


class ICAModel(AbstractICAModel, Relative, Normalised, ExactSampler, Decodes):
    """F(x) = −Σ_i log p_i(w_iᵀ(x − μ)) − log|det W|; with fewer filters than features, the rest is Gaussian."""

    @classmethod
    def start(cls, k: int, d: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, "k d"]:
        """A rotation of the first K axes: sources of unit variance, uncorrelated."""
        return jnp.pad(directions(k, k, dtype, key=key), ((0, 0), (0, d - k)))

    def _square(self) -> Float[Array, "d d"]:
        """V, completed by the axes of the rest."""
        k, d = self.weights.shape
        return jnp.concatenate([self.weights, jnp.eye(d, dtype=self.weights.dtype)[k:]]) if k < d else self.weights

    def free_energy(self, x: Value) -> Scalar:
        """−log p(x)."""
        return self.source_energy(x) + self._rest_energy(x) - self.log_volume()

    def _rest_energy(self, x: Value) -> Scalar:
        """½‖r‖² + ½(D − K) log 2π, with r the last of the whitened values."""
        k, d = self.weights.shape
        if k == d:
            return jnp.zeros((), x.dtype)
        rest = self.whiten[k:] @ (x - self.centre) - self.shift[k:]
        return 0.5 * jnp.sum(rest**2 + LOG_2PI)

    def log_volume(self) -> Scalar:
        """log|det [W; R]|."""
        return jnp.linalg.slogdet(self._square())[1] + jnp.linalg.slogdet(self.whiten)[1]

    def decode(self, z: Code) -> Value:
        """The x whose sources are y and whose rest is 0: W⁻¹y + μ if W is square."""
        k, d = self.weights.shape
        return self._mixed(jnp.pad(z, (0, d - k)))

    def _mixed(self, whole: Value) -> Value:
        """x from sources and rest."""
        return self.centre + jnp.linalg.solve(self.whiten, jnp.linalg.solve(self._square(), whole) + self.shift)

    def sample(self, *, key: PRNGKeyArray) -> tuple[Value, tuple[()]]:
        """Independent sources and rest, mixed."""
        y_key, rest_key = jax.random.split(key)
        k, d = self.weights.shape
        y = self.density.sample(k, self.weights.dtype, key=y_key)
        return self._mixed(jnp.concatenate([y, jax.random.normal(rest_key, (d - k,), y.dtype)])), ()

    def _sources(self, x: Rows) -> Float[Array, "k n"]:
        """The sources of all rows, one source a row: long rows make quick loops."""
        y = jnp.matmul(self.filters(), (x - self.centre[None, :]).T, precision="highest")
        return y - (self.weights @ self.shift)[:, None]

    def relative(self, x: Rows, weights: Float[Array, " n"] | None) -> RelativeSlopes:
        """⟨−Σ log p_i(y_i)⟩, ⟨ψ(y_i) y_j⟩ and ⟨ψ′(y_i) y_j²⟩."""
        y = self._sources(x)
        energy, score, bend = self.density.slopes(y)
        if weights is not None:
            energy, score, bend = (part * weights[None, :] for part in (energy, score, bend))
        mean = lambda a, b: jnp.matmul(a, b.T, precision="highest") / x.shape[0]  # noqa: E731
        value = jnp.sum(energy) / x.shape[0]
        if self.weights.shape[0] < x.shape[1]:
            value = value + weighted_mean(jax.vmap(self._rest_energy)(x), weights)
        return RelativeSlopes(value, mean(score, y), mean(bend, y**2))

    def moved(self, change: Float[Array, "k k"]) -> Self:
        """V ← (I + change) V."""
        weights = self.weights + jnp.matmul(change, self.weights, precision="highest")
        return eqx.tree_at(lambda m: m.weights, self, weights)

    def tuned(self, x: Rows, weights: Float[Array, " n"] | None) -> Self:
        """With the kind of density that suits each source."""
        density = self.density.tuned(self._sources(x), weights)
        return self if density is self.density else eqx.tree_at(lambda m: m.density, self, density)


class OvercompleteICAModel(AbstractICAModel):
    """F(x) = −Σ_i log p_i(w_iᵀ(x − μ)), more filters than features; an energy without a known log Z."""

    @classmethod
    def start(cls, k: int, d: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, "k d"]:
        """Unit vectors, shrunk as their number grows."""
        return directions(k, d, dtype, key=key)

    def free_energy(self, x: Value) -> Scalar:
        """−Σ_i log p_i(y_i)."""
        return self.source_energy(x)


def _converged(event: Event) -> bool:
    return event.metrics["converged"] > 0


class ICA(EnergyEstimator):
    """Independent component analysis with an exact likelihood.

    Example:
        >>> import numpy as np
        >>> from latentia import ICA
        >>> rng = np.random.default_rng(0)
        >>> sources, mixing = rng.laplace(size=(2000, 2)), np.array([[1.0, 0.5], [0.3, 1.0]])
        >>> ica = ICA(random_state=0).fit(sources @ mixing.T)
        >>> found = np.abs(ica.components_ @ mixing)  # a permutation, up to scales, where the sources are separated
        >>> bool((np.sort(found / found.max(axis=1, keepdims=True))[:, 0] < 0.1).all())
        True

    Reference:
        Ablin, Cardoso and Gramfort (2018); Amari, Cichocki and Yang (1996); Hyvärinen (2005).
    """

    family = "ica"

    n_components: int | None = param(
        default=None,
        check=checks.integer(1, optional=True),
        doc="number of sources; as many as the data have features if None. If fewer, they are estimated in as "
        "many principal components, and the other components are modelled as Gaussian; if more, the model is "
        'an overcomplete energy without a likelihood, for ``solver="gradient"``.',
        kw_only=False,
    )
    density: str = param(
        default="sech",
        check=checks.one_of(*sources.SOURCES),
        doc='density of the sources: "sech" (the usual one, with score tanh), "logistic", "student_t", "laplace" '
        '(with a round top), all super-Gaussian; "extended" selects super- or sub-Gaussian for each source.',
    )
    solver: str = param(
        default="quasi_newton",
        check=checks.one_of(*SOLVERS),
        doc='"quasi_newton" (maximum likelihood on all rows: preconditioned L-BFGS), "natural_gradient" '
        '(maximum likelihood on mini-batches) or "gradient" (any ``objective``). The first two keep μ at '
        "the data's mean.",
    )
    tol: float = param(
        default=1e-5,
        check=checks.number(0),
        doc='largest entry of the relative gradient at which "quasi_newton" stops.',
    )
    max_iter: int = param(
        default=500,
        check=checks.integer(1),
        doc='maximal number of iterations of "quasi_newton", each over all rows.',
    )

    objective = changed(
        default="score_matching",
        doc='for ``solver="gradient"``: "score_matching", "sliced_score_matching", "denoising_score_matching", '
        '"nce", "conditional_nce", or an objective object.',
    )
    n_sampler_steps = changed(doc="sampler steps per update, for objectives with chains.")
    noise_ratio = changed(doc="noise samples per example, for noise-contrastive objectives.")
    n_epochs = changed(doc="passes over the data of the other two solvers.")
    batch_size = changed(doc='rows per update of the other two; "quasi_newton" always takes all.')
    learning_rate = 0.03
    weight_decay = changed(doc='decay of the filters per unit of learning rate, for ``solver="gradient"``.')
    clip = 10.0
    averaging = changed(
        doc="decay of a running average of the parameters that becomes the final model; 0 for none. For "
        '``solver="gradient"``.',
    )
    monitor = changed(
        doc="whether to record the log-likelihood (for an overcomplete model, the score-matching objective) of a "
        'few training rows after every epoch: "auto" and "always" do, None does not; "quasi_newton" always '
        "reports that of all rows.",
    )

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> AbstractICAModel:
        """A model with the right shapes at a random start."""
        n, k = blueprint["n_features"], blueprint.get("n_components", blueprint["n_features"])
        density, key = sources.make(self.density, k), random.key(seed)
        if k <= n:
            return ICAModel.make(n, k, density, key=key)
        return OvercompleteICAModel.make(n, k, density, key=key)

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        n = X.n_columns
        k = n if self.n_components is None else int(self.n_components)
        if k > n and self.solver != "gradient":
            raise ParameterError(
                f"n_components={k} is more than the {n} features of the data: the likelihood that solver="
                f"{self.solver!r} maximises is unknown then. Use solver='gradient', with an objective like "
                "'score_matching'."
            )
        if self.solver == "gradient" and self.density == "extended":
            raise ParameterError(
                "density='extended' chooses between densities by a rule of maximum likelihood, which solver="
                "'gradient' does not apply. Use solver='quasi_newton' or 'natural_gradient', or another density."
            )
        return {"n_features": n, "n_components": k}

    def _pretrain(self, model: Any, rows: LearningRows, seed: int, plan: training.Plan) -> Any:
        """Whitened by the moments of all training rows with their weights, in double precision."""
        del seed, plan
        mean, covariance = moments(lambda: training.blocks(rows.training), rows.weights)
        whiten, least = whitener(np, covariance, model.weights.shape[0])
        if least < FLAT:
            raise DataError(
                f"The {len(mean)} features of the data are linearly dependent (or constant, or there are too "
                "few rows): in some direction nothing varies, and the likelihood has no maximum. Reduce the data "
                "first, for instance with make_pipeline(PCA(n), ICA())."
            )
        new = (jnp.asarray(mean, model.centre.dtype), jnp.asarray(whiten, model.whiten.dtype))
        return eqx.tree_at(lambda m: (m.centre, m.whiten), model, new)

    def _replanned(self, plan: training.Plan, n_rows: int) -> training.Plan:
        if self.solver != "quasi_newton":
            return plan
        return dataclasses.replace(
            plan,
            n_steps=math.ceil(self.max_iter / PER_STEP),
            batch_size=max(1, n_rows - n_held_out(n_rows, plan.validation_fraction)),
            chunk=1,
            callbacks=(_converged, *plan.callbacks),
        )

    def _solver(self, plan: training.Plan) -> AbstractLearner | None:
        if self.solver == "quasi_newton":
            return QuasiNewton.make(self.max_iter, self.tol)
        return NaturalGradient(self._optimizer(plan)) if self.solver == "natural_gradient" else None

    def _surrogate(self, plan: training.Plan) -> Standardised:
        return Standardised(super()._surrogate(plan))

    def _kept(self, result: Any) -> None:
        exact = isinstance(result.state, QuasiNewtonState)
        self.n_iter_ = int(result.state.iterations) if exact else result.n_steps

    def _lacks(self, method: str) -> str | None:
        if method != "partial_fit" or self.solver != "quasi_newton":
            return None
        return "solver='quasi_newton' needs all rows at once. Use solver='natural_gradient' or 'gradient'."

    def watch(self, model: Any, rows: Any, weights: Any = None) -> Watched:
        """See ``monitor``; the likelihood of all rows, which "quasi_newton" reports, needs no other."""
        return Watched({}, {}) if self.solver == "quasi_newton" else super().watch(model, rows, weights)

    @property
    def components_(self) -> np.ndarray:
        """W, one filter a row."""
        return np.asarray(self.model_.filters())

    @property
    def mixing_(self) -> np.ndarray:
        """The inverse of W, one source a column."""
        return (self.inverse_transform(np.eye(self._n_features_out)) - self.mean_[None, :]).T

    @property
    def mean_(self) -> np.ndarray:
        """μ."""
        return np.asarray(self.model_.mean())
