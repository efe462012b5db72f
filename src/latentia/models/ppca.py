"""Probabilistic principal component analysis (Tipping and Bishop, 1999).

x = Wz + μ + σε with z ~ N(0, I_K) and ε ~ N(0, I_D), so that

    E(x, z) = −log p(x, z) = ½‖z‖² + ‖x − Wz − μ‖²/2σ² + ½ D log σ² + ½ (D + K) log 2π,      log Z = 0,
    F(x) = −log N(x; μ, WWᵀ + σ²I),      p(z | x) = N(M⁻¹Wᵀ(x − μ), σ²M⁻¹),      M = WᵀW + σ²I.

All algebra goes through the K×K matrix M. The likelihood has a closed-form maximum, from the eigenvectors U
and eigenvalues Λ of the data's covariance: W = U_K (Λ_K − σ²I)^½ and σ² the mean of the other eigenvalues.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractLearner
from latentia.core.capabilities import (
    ClosedForm,
    Conditionals,
    Decodes,
    ExactPosterior,
    ExactSampler,
    Initialised,
    LatentFreeEnergy,
    MStep,
    Normalised,
)
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractPosterior, Scalar
from latentia.core.parameters import bias, scale, weight
from latentia.core.space import Space
from latentia.estimator import checks
from latentia.estimator.batch import BatchEstimator
from latentia.estimator.declared import changed, param
from latentia.learning.closed_form import ClosedFormML
from latentia.learning.em import EM
from latentia.ops import gaussian, random
from latentia.ops.arrays import keep
from latentia.ops.examples import Examples

Value = Float[Array, " d"]
Code = Float[Array, " k"]


class GaussianPosterior(AbstractPosterior):
    """N(location, covariance); ``factor`` is the lower triangular F with covariance⁻¹ = F Fᵀ."""

    location: Code
    covariance: Float[Array, "k k"]
    factor: Float[Array, "k k"]

    def mean(self) -> Code:
        """E[z]."""
        return self.location

    def sample(self, *, key: PRNGKeyArray) -> Code:
        """One draw."""
        noise = jax.random.normal(key, self.location.shape, self.location.dtype)
        return self.location + gaussian.colour(noise, self.factor, lower=True)

    def log_prob(self, z: Code) -> Scalar:
        """log N(z; location, covariance)."""
        return gaussian.log_density(z - self.location, self.factor)

    def entropy(self) -> Scalar:
        """½ K (1 + log 2π) − Σ log F_ii."""
        return jnp.sum(0.5 * (1 + gaussian.LOG_2PI) - jnp.log(jnp.diagonal(self.factor)))


class PPCAModel(
    Normalised,
    LatentFreeEnergy,
    ExactPosterior,
    MStep,
    ClosedForm,
    ExactSampler,
    Decodes,
    Conditionals,
    Initialised,
):
    """E(x, z) = ½‖z‖² + ‖x − Wz − μ‖²/2σ² + ½ D log σ² + ½ (D + K) log 2π."""

    weights: Float[Array, "d k"] = weight()
    mean: Value = bias()
    log_variance: Scalar = scale()

    @classmethod
    def make(cls, n: int, n_components: int, *, key: PRNGKeyArray) -> Self:
        """Random unit-scale weights, no mean, σ² = 1."""
        weights = jax.random.normal(key, (n, n_components)) / n_components**0.5
        return cls(weights, jnp.zeros(n), jnp.zeros(()))

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.mean.shape)

    @property
    def z_space(self) -> Space:
        """ℝᴷ."""
        return Space("real", (self.weights.shape[1],))

    def variance(self) -> Scalar:
        """σ²."""
        return jnp.exp(self.log_variance)

    def energy(self, x: Value, z: Code) -> Scalar:
        """−log p(x, z)."""
        noise = jnp.sum((x - self.decode(z)) ** 2) / self.variance()
        constant = self.mean.shape[0] * (self.log_variance + gaussian.LOG_2PI)
        return 0.5 * (noise + constant) + self.latent_free_energy(z)

    def free_energy(self, x: Value) -> Scalar:
        """−log N(x; μ, WWᵀ + σ²I)."""
        return -gaussian.low_rank_log_density(x - self.mean, self.weights, self.variance())

    def latent_free_energy(self, z: Code) -> Scalar:
        """½‖z‖² + ½ K log 2π."""
        return 0.5 * jnp.sum(z**2 + gaussian.LOG_2PI)

    def posterior(self, x: Value) -> GaussianPosterior:
        """N(M⁻¹Wᵀ(x − μ), σ²M⁻¹); the covariance is the same for all x."""
        mean, cholesky = gaussian.low_rank_posterior(x - self.mean, self.weights, self.variance())
        factor = cholesky * jnp.exp(-0.5 * self.log_variance)
        return GaussianPosterior(mean, gaussian.covariance_of(factor, lower=True), factor)

    def decode(self, z: Code) -> Value:
        """E[x | z] = Wz + μ."""
        return self.weights @ z + self.mean

    def _draw(self, z: Code, *, key: PRNGKeyArray) -> Value:
        noise = jax.random.normal(key, self.mean.shape, self.mean.dtype)
        return self.decode(z) + jnp.exp(0.5 * self.log_variance) * noise

    def sample(self, *, key: PRNGKeyArray) -> tuple[Value, Code]:
        """z ~ N(0, I), then x ~ N(Wz + μ, σ²I)."""
        z_key, x_key = jax.random.split(key)
        z = jax.random.normal(z_key, (self.weights.shape[1],), self.weights.dtype)
        return self._draw(z, key=x_key), z

    def begin(self, x: Value, *, key: PRNGKeyArray) -> Code:
        """A placeholder: a sweep draws the latents first."""
        del key
        return jnp.zeros(self.z_space.shape, x.dtype)

    def sweep(self, x: Value, z: Code, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Value, Code]:
        """z | x, then x | z, whose entries are independent."""
        del z
        z_key, x_key = jax.random.split(key)
        z = self.posterior(x).sample(key=z_key)
        return keep(fixed, x, self._draw(z, key=x_key)), z

    def m_step(self, x: Float[Array, "n d"], posterior: Any, weights: Float[Array, " n"]) -> Self:
        """The regression of x on z: W = ⟨(x − x̄)(z − z̄)ᵀ⟩⟨(z − z̄)(z − z̄)ᵀ⟩⁻¹, μ = x̄ − Wz̄, σ² what is left.

        ⟨·⟩ averages over the rows and their Gaussian posteriors. With μ = x̄, where :meth:`initialise` starts,
        z̄ = 0 and this is Tipping and Bishop's EM.
        """
        share = _shares(weights)
        z = jax.vmap(lambda q: q.mean())(posterior)
        x_mean, z_mean = share @ x, share @ z
        x_tilde, z_tilde = x - x_mean[None, :], z - z_mean[None, :]
        if isinstance(posterior, GaussianPosterior):
            spread = jnp.sum(share[:, None, None] * posterior.covariance, axis=0)
        else:
            spread = posterior.second_moment(share) - (z * share[:, None]).T @ z
        second = spread + (z_tilde * share[:, None]).T @ z_tilde
        loadings = cho_solve(cho_factor(second, lower=True), (z_tilde * share[:, None]).T @ x_tilde).T
        residual = share @ (x_tilde - z_tilde @ loadings.T) ** 2
        variance = (jnp.sum(residual) + jnp.sum((loadings @ spread) * loadings)) / x.shape[1]
        floor = _variance_floor(share @ x_tilde**2)
        return type(self)(loadings, x_mean - loadings @ z_mean, jnp.log(jnp.maximum(variance, floor)))

    def fit_closed_form(self, x: Float[Array, "n d"], weights: Float[Array, " n"]) -> Self:
        """The maximum of the weighted likelihood: W = U_K (Λ_K − σ²I)^½, σ² the mean of the other Λ.

        Columns of W come in falling order of variance, each with its largest entry positive. Where no
        variance is left over (K = D, fewer rows than components, constant columns) σ² is a floor at the
        rounding error.
        """
        n, d = x.shape
        share = _shares(weights)
        mean = share @ x
        tilde = (x - mean[None, :]) * jnp.sqrt(share)[:, None]
        if n < d:  # the covariance has rank n at most: never form it
            _, singular, vectors = jnp.linalg.svd(tilde, full_matrices=False)
            values, vectors = singular**2, vectors.T
        else:
            values, vectors = jnp.linalg.eigh(tilde.T @ tilde)
            values, vectors = jnp.maximum(values[::-1], 0.0), vectors[:, ::-1]
        k = self.weights.shape[1]
        left = jnp.sum(values[k:]) / max(d - k, 1)
        variance = jnp.maximum(left, _variance_floor(jnp.sum(tilde**2, axis=0)))
        loadings = vectors[:, :k] * jnp.sqrt(jnp.maximum(values[:k] - variance, 0.0))[None, :]
        top = jnp.take_along_axis(loadings, jnp.argmax(jnp.abs(loadings), axis=0)[None, :], axis=0)
        loadings = jnp.where(top < 0, -loadings, loadings)
        loadings = jnp.pad(loadings, ((0, 0), (0, k - loadings.shape[1])))
        return type(self)(loadings, mean, jnp.log(variance))

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """μ = x̄; the mean variance split evenly between random weights and σ²."""
        variances = jnp.var(x, axis=0)
        half = 0.5 * jnp.mean(variances) + _variance_floor(variances)
        d, k = self.weights.shape
        weights = jnp.sqrt(half / k) * jax.random.normal(key, (d, k), x.dtype)
        return type(self)(weights, jnp.mean(x, axis=0), jnp.log(half))


def _shares(weights: Float[Array, " n"]) -> Float[Array, " n"]:
    """Weights that sum to one (all zero if they all are)."""
    return weights / jnp.maximum(jnp.sum(weights), float(jnp.finfo(weights.dtype).tiny))


def _variance_floor(variances: Float[Array, " d"]) -> Scalar:
    """The smallest σ² that differs numerically from 0: 10 ε of the mean variance (of 1, if nothing varies)."""
    total = jnp.mean(variances)
    return 10 * float(jnp.finfo(variances.dtype).eps) * jnp.where(total > 0, total, 1.0)


class PPCA(BatchEstimator):
    """Probabilistic principal component analysis.

    Example:
        >>> import numpy as np
        >>> from latentia import PPCA
        >>> X = np.random.default_rng(0).normal(size=(50, 4))
        >>> PPCA(n_components=2).fit(X).transform(X).shape
        (50, 2)

    Reference:
        Tipping and Bishop (1999).
    """

    family = "ppca"

    solver: str = param(
        default="closed_form",
        check=checks.one_of("closed_form", "em"),
        doc='"closed_form" (exact, by an eigendecomposition) or "em".',
    )

    n_components = changed(default=2, doc="number of latent dimensions.")
    n_epochs = 500
    tol = changed(default=1e-6, doc="smallest gain of the mean log-likelihood per step; a smaller one ends EM.")
    random_state = changed(doc="seed of EM's start.")

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> PPCAModel:
        """A model with the right shapes at a random start."""
        return PPCAModel.make(blueprint["n_features"], self.n_components, key=random.key(seed))

    def _steps(self) -> int:
        return 1 if self.solver == "closed_form" else self.n_epochs

    def _learner(self, plan: Any) -> AbstractLearner:
        del plan
        return ClosedFormML() if self.solver == "closed_form" else EM()

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        if self.n_components > X.n_columns:
            raise ParameterError(
                f"n_components={self.n_components} is more than the {X.n_columns} features of the data."
            )
        return super()._blueprint(X)

    @property
    def components_(self) -> np.ndarray:
        """W, one row per latent dimension."""
        return np.asarray(self.model_.weights).T

    @property
    def mean_(self) -> np.ndarray:
        """The mean of x."""
        return np.asarray(self.model_.mean)

    @property
    def noise_variance_(self) -> float:
        """σ²."""
        return float(self.model_.variance())
