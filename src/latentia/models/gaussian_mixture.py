"""Mixtures of Gaussians.

A one-hot z picks one of K components with probability π_k and x | k ~ N(μ_k, Σ_k):

    E(x, z) = −log p(x, z) = −Σ_k z_k [log π_k + log N(x; μ_k, Σ_k)],      log Z = 0,
    F(x) = −log Σ_k π_k N(x; μ_k, Σ_k),      p(z_k = 1 | x) = π_k N(x; μ_k, Σ_k) exp F(x).

Each covariance is held as a triangular factor U of the precision, Σ⁻¹ = UUᵀ (scikit-learn's
``precisions_cholesky_``), and the weights as logits, so that any values of the leaves with a non-zero
diagonal of U are a normalised model. EM: Dempster, Laird and Rubin (1977); the start: Arthur and
Vassilvitskii (2007).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import (
    Conditionals,
    Decodes,
    ExactSampler,
    Initialised,
    LatentFreeEnergy,
    MStep,
    Normalised,
)
from latentia.core.errors import DataError
from latentia.core.model import Scalar
from latentia.core.parameters import bias, scale
from latentia.core.space import Space
from latentia.estimator import checks
from latentia.estimator.batch import BATCH_CHECKS, BatchEstimator
from latentia.learning.em import EM
from latentia.ops import gaussian, random
from latentia.ops.arrays import keep
from latentia.ops.examples import Examples
from latentia.units import Categorical, Factorial

CovarianceType = Literal["full", "tied", "diag", "spherical"]
Value = Float[Array, " d"]
OneHot = Float[Array, "1 k"]

#: The start spreads 1/K of this part of the responsibilities evenly over the components: one that begins with
#: a single row, an outlier say, then has a wide covariance instead of a spike of unbounded likelihood.
START_SPREAD = 0.1


class MixtureModel(Normalised, LatentFreeEnergy, MStep, ExactSampler, Decodes, Conditionals, Initialised):
    """E(x, z) = −Σ_k z_k [log π_k + log N(x; μ_k, Σ_k)].

    ``precision_cholesky`` holds, by ``covariance_type``, upper triangular factors ``(K, D, D)`` (full) or one
    ``(D, D)`` (tied), or inverse standard deviations ``(K, D)`` (diag) or ``(K,)`` (spherical).
    """

    log_weights: Float[Array, " k"] = bias()
    means: Float[Array, "k d"] = bias()
    precision_cholesky: Float[Array, "..."] = scale()
    covariance_type: CovarianceType = eqx.field(static=True, default="full")
    reg_covar: float = eqx.field(static=True, default=1e-6)

    @classmethod
    def make(
        cls,
        n: int,
        n_components: int,
        *,
        key: PRNGKeyArray,
        covariance_type: CovarianceType = "full",
        reg_covar: float = 1e-6,
    ) -> Self:
        """Equal weights, unit covariances and standard normal means in ``n`` dimensions."""
        means = jax.random.normal(key, (n_components, n))
        root = {
            "full": jnp.tile(jnp.eye(n)[None], (n_components, 1, 1)),
            "tied": jnp.eye(n),
            "diag": jnp.ones((n_components, n)),
            "spherical": jnp.ones(n_components),
        }[covariance_type]
        return cls(jnp.zeros(n_components), means, root, covariance_type, reg_covar)

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", (self.means.shape[1],))

    @property
    def z_space(self) -> Space:
        """One site with K states."""
        return Space("categorical", (1, self.means.shape[0]))

    def log_priors(self) -> Float[Array, " k"]:
        """log π."""
        return jax.nn.log_softmax(self.log_weights)

    def covariances(self) -> Float[Array, "..."]:
        """Σ in scikit-learn's layout for the covariance type."""
        root = self._factors()
        if self.covariance_type == "full":
            return jax.vmap(gaussian.covariance_of)(root)
        return gaussian.covariance_of(root) if self.covariance_type == "tied" else root**-2

    def with_moments(
        self, weights: Float[Array, " k"], means: Float[Array, "k d"], covariances: Float[Array, "..."]
    ) -> Self:
        """The model with the given weights, means and (positive definite) covariances."""
        invert = gaussian.precision_factor
        if self.covariance_type == "full":
            root = jax.vmap(invert)(covariances)
        else:
            root = invert(covariances) if self.covariance_type == "tied" else covariances**-0.5
        return type(self)(jnp.log(weights), means, root, self.covariance_type, self.reg_covar)

    def _factors(self) -> Float[Array, "..."]:
        root = self.precision_cholesky
        return jnp.triu(root) if self.covariance_type in ("full", "tied") else root

    def log_joint(self, x: Value) -> Float[Array, " k"]:
        """log π_k + log N(x; μ_k, Σ_k) for all k."""
        root = self._factors()
        if self.covariance_type == "full":  # one by one: a batch is then K plain matrix products
            density = jax.lax.map(lambda each: gaussian.log_density(x - each[0], each[1]), (self.means, root))
        elif self.covariance_type == "tied":  # one product with x, not K; centred so that no digits are lost
            centre = jnp.mean(self.means, axis=0)
            whitened = ((x - centre) @ root)[None, :] - (self.means - centre[None, :]) @ root
            density = gaussian.whitened_log_density(whitened, jnp.diagonal(root)[None, :])
        else:
            scales = root if self.covariance_type == "diag" else root[:, None]
            residual = x[None, :] - self.means
            density = gaussian.whitened_log_density(residual * scales, jnp.broadcast_to(scales, residual.shape))
        return self.log_priors() + density

    def energy(self, x: Value, z: OneHot) -> Scalar:
        """−log p(x, z)."""
        return -(z[0] @ self.log_joint(x))

    def free_energy(self, x: Value) -> Scalar:
        """−log p(x)."""
        return -logsumexp(self.log_joint(x))

    def latent_free_energy(self, z: OneHot) -> Scalar:
        """−log π_z."""
        return -(z[0] @ self.log_priors())

    def posterior(self, x: Value) -> Factorial:
        """p(z | x): one site under the field of log-responsibilities."""
        field = jax.nn.log_softmax(self.log_joint(x))
        return Factorial(Categorical(jnp.zeros_like(field)[None, :]), field)

    def decode(self, z: OneHot) -> Value:
        """E[x | z] = Σ_k z_k μ_k."""
        return z[0] @ self.means

    def _draw(self, z: OneHot, *, key: PRNGKeyArray, x: Any = None, fixed: Any = None) -> Value:
        index = jnp.argmax(z[0])
        mean, root = self.means[index], self._factors()
        noise = jax.random.normal(key, mean.shape, mean.dtype)
        if self.covariance_type in ("diag", "spherical"):
            return keep(fixed, x, mean + noise / root[index])
        root = root if self.covariance_type == "tied" else root[index]
        if fixed is None:
            return mean + gaussian.colour(noise, root)
        return keep(fixed, x, mean + gaussian.colour_given(noise, root, x - mean, fixed))

    def sample(self, *, key: PRNGKeyArray) -> tuple[Value, OneHot]:
        """z ~ π, then x ~ N(μ_z, Σ_z)."""
        z_key, x_key = jax.random.split(key)
        z = Categorical(self.log_weights[None, :]).sample(jnp.zeros_like(self.log_weights), key=z_key)
        return self._draw(z, key=x_key), z

    def begin(self, x: Value, *, key: PRNGKeyArray) -> OneHot:
        """A placeholder: a sweep draws the latents first."""
        del key
        return jnp.zeros(self.z_space.shape, x.dtype)

    def sweep(self, x: Value, z: OneHot, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Value, OneHot]:
        """z | x, then the free entries of x given z and the fixed ones."""
        del z
        z_key, x_key = jax.random.split(key)
        z = self.posterior(x).sample(key=z_key)
        return self._draw(z, key=x_key, x=x, fixed=fixed), z

    def m_step(self, x: Float[Array, "n d"], posterior: Any, weights: Float[Array, " n"]) -> Self:
        """Moments weighted by responsibility, with ``reg_covar`` added to the variances.

        A component without any responsibility keeps its mean and covariance and a tiny weight.
        """
        shares = jax.vmap(lambda q: q.mean())(posterior)[:, 0, :] * weights[:, None]
        tiny = 10 * float(jnp.finfo(x.dtype).eps)
        mass = jnp.sum(shares, axis=0)
        empty = mass <= tiny
        safe = jnp.where(empty, 1.0, mass)
        means = jnp.where(empty[:, None], self.means, (shares.T @ x) / safe[:, None])
        root = self._fitted_factors(x, shares, safe, means, jnp.maximum(jnp.sum(mass), tiny))
        if self.covariance_type != "tied":
            root = jnp.where(empty.reshape(-1, *[1] * (root.ndim - 1)), self.precision_cholesky, root)
        log_weights = jnp.log(mass + tiny) - jnp.log(jnp.sum(mass + tiny))
        return type(self)(log_weights, means, root, self.covariance_type, self.reg_covar)

    def _fitted_factors(self, x: Array, shares: Array, mass: Array, means: Array, total: Array) -> Array:
        """Of the covariances: each component's ``mass`` (not 0, even where it is empty), and the ``total`` mass."""
        d = x.shape[1]

        def scatter(inputs: tuple[Array, Array]) -> Array:  # one component at a time: memory n·D, not n·K·D
            share, mean = inputs
            residual = x - mean[None, :]
            if self.covariance_type in ("diag", "spherical"):
                return share @ residual**2
            return (residual * share[:, None]).T @ residual

        if self.covariance_type == "tied":
            within, _ = jax.lax.scan(
                lambda s, each: (s + scatter(each), None), jnp.zeros((d, d), x.dtype), (shares.T, means)
            )
            return gaussian.ridge_precision_factor(within / total, self.reg_covar)
        scatters = jax.lax.map(scatter, (shares.T, means))
        if self.covariance_type == "full":
            covariances = scatters / mass[:, None, None]
            return jax.vmap(lambda c: gaussian.ridge_precision_factor(c, self.reg_covar))(covariances)
        variances = scatters / mass[:, None]
        if self.covariance_type == "spherical":
            variances = jnp.mean(variances, axis=1)
        return gaussian.with_ridge(variances, self.reg_covar) ** -0.5

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """k-means++ rows as centres, then an M-step from the slightly softened nearest-centre assignment."""
        k = self.means.shape[0]
        distances = spread_rows(x, k, key=key)[1]
        nearest = jax.nn.one_hot(jnp.argmin(distances, axis=0), k, dtype=x.dtype)
        shares = (1 - START_SPREAD / k) * nearest + START_SPREAD / k**2
        fields = jnp.log(shares)
        posterior = Factorial(Categorical(jnp.zeros_like(fields)[:, None, :]), fields)
        return self.m_step(x, posterior, jnp.ones(x.shape[0], x.dtype))


def spread_rows(
    x: Float[Array, "n d"], k: int, *, key: PRNGKeyArray
) -> tuple[Float[Array, "k d"], Float[Array, "k n"]]:
    """(k rows far apart, the squared distances to each): k-means++ (Arthur and Vassilvitskii, 2007).

    Each row is drawn with a probability proportional to its squared distance to the nearest earlier one, so
    rows are distinct while there are distinct ones left; then any row may come again.
    """

    def pick(nearest: Array, key: PRNGKeyArray) -> tuple[Array, tuple[Array, Array]]:
        choice = jnp.any((nearest > 0) & (nearest < jnp.inf))
        row = x[jax.random.categorical(key, jnp.where(choice, jnp.log(nearest), 0.0))]
        distance = jnp.sum((x - row[None, :]) ** 2, axis=1)
        return jnp.minimum(nearest, distance), (row, distance)

    start = jnp.full(x.shape[0], jnp.inf, x.dtype)
    return jax.lax.scan(pick, start, jax.random.split(key, k))[1]


class GaussianMixture(BatchEstimator):
    """Mixture of Gaussians, fitted by EM.

    Args:
        n_components: number of Gaussians.
        covariance_type: "full", "tied", "diag" or "spherical".
        reg_covar: added to the diagonal of every covariance.
        n_epochs: most EM steps.
        tol: least gain of the mean log-likelihood a step; a smaller one ends the fit.
        run_dir: folder for config, metrics, checkpoints and model; None writes nothing.
        resume: go on from the folder's checkpoint.
        callbacks: functions called with a ``latentia.learning.fit.Event`` after every step; True stops.
        random_state: seed of the start.
        verbose: 0 is silent, 1 shows progress, 2 also prints every row of metrics.

    Example:
        >>> import numpy as np
        >>> from latentia import GaussianMixture
        >>> X = np.random.default_rng(0).normal(size=(100, 2)) + np.repeat([[0, 0], [9, 9]], 50, axis=0)
        >>> mixture = GaussianMixture(n_components=2, random_state=0).fit(X)
        >>> len(set(mixture.predict(X)))
        2

    References:
        Dempster, Laird and Rubin (1977), *Maximum likelihood from incomplete data via the EM algorithm*; Arthur and
        Vassilvitskii (2007), *k-means++: the advantages of careful seeding*.
    """

    family = "gaussian-mixture"
    covariance_type: CovarianceType
    parameter_checks: ClassVar[Mapping[str, checks.Check]] = {
        **BATCH_CHECKS,
        "covariance_type": checks.one_of(*get_args(CovarianceType)),
        "reg_covar": checks.number(0),
    }

    def __init__(
        self,
        n_components: int = 8,
        *,
        covariance_type: CovarianceType = "full",
        reg_covar: float = 1e-6,
        n_epochs: int = 200,
        tol: float = 1e-4,
        run_dir: Any = None,
        resume: bool = False,
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ):
        self.n_components = n_components
        self.covariance_type = covariance_type
        self.reg_covar = reg_covar
        self.n_epochs = n_epochs
        self.tol = tol
        self.run_dir = run_dir
        self.resume = resume
        self.callbacks = callbacks
        self.random_state = random_state
        self.verbose = verbose

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> MixtureModel:
        """A mixture with the right shapes; :meth:`MixtureModel.initialise` places it."""
        return MixtureModel.make(
            blueprint["n_features"],
            self.n_components,
            key=random.key(seed),
            covariance_type=self.covariance_type,
            reg_covar=self.reg_covar,
        )

    def _learner(self, plan: Any) -> EM:
        del plan
        return EM()

    def _blueprint(self, X: Examples) -> dict[str, Any]:
        if len(X) < self.n_components:
            raise DataError(
                f"A mixture of n_components={self.n_components} needs at least as many rows, "
                f"got n_samples={len(X)}."
            )
        return super()._blueprint(X)

    def predict_proba(self, X: Any) -> np.ndarray:
        """Probability of every component for every row."""
        return self.transform(X)

    def predict(self, X: Any) -> np.ndarray:
        """The most probable component of every row."""
        return self.transform(X).argmax(axis=1)

    @property
    def weights_(self) -> np.ndarray:
        """π."""
        return np.exp(np.asarray(self.model_.log_priors()))

    @property
    def means_(self) -> np.ndarray:
        """μ, one row per component."""
        return np.asarray(self.model_.means)

    @property
    def covariances_(self) -> np.ndarray:
        """Σ, in the layout of the covariance type."""
        return np.asarray(self.model_.covariances())
