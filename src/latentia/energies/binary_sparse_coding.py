"""Binary sparse coding: every example is the sum of the atoms that are switched on, plus normal noise.

    p(z_i = 1) = σ(b_i),      p(x | z) = N(x; Wz, diag(1/β)),
    E(x, z) = −log p(x, z) = Σ_i [S(b_i) − b_i z_i] + ½ Σ_j β_j (x_j − W_jᵀz)² + ½ Σ_j log(2π/β_j),      log Z = 0,

with S(u) = log(1 + exp u). With x clamped the sites are coupled by G = WᵀBW, B = diag(β), and with fields of
b + WᵀBx − ½ diag G:

    q(z_i = 1) = σ(b_i + xᵀBW_i − ½ W_iᵀBW_i − Σ_{j≠i} W_iᵀBW_j ẑ_j)

is the best factorial posterior, site by site. With second moments E_q[zzᵀ] from any posterior the M-step is a
regression in closed form.

References: Haft, Hofman and Tresp (2004), *Generative binary codes*; Henniges, Puertas, Bornschein, Eggert and
Lücke (2010), *Binary sparse coding*.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_factor, cho_solve
from jax.scipy.special import logit
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import (
    ClampsToSites,
    Conditionals,
    Decodes,
    ExactSampler,
    Heats,
    Infers,
    Initialised,
    LatentFreeEnergy,
    MStep,
    NormalisedJoint,
)
from latentia.core.model import Scalar, SecondMoments
from latentia.core.parameters import bias, scale, weight
from latentia.core.space import Space
from latentia.energies.binary_sites import CoupledSites
from latentia.inference import MeanFieldInference
from latentia.ops.arrays import keep
from latentia.ops.gaussian import LOG_2PI
from latentia.ops.logistic import softplus

Value = Float[Array, " d"]
Code = Float[Array, " k"]

#: The M-step holds W to its old value by this many nominal examples per example: atoms that are never on stay where
#: they are, and the moments can be inverted. It does not move the fixed points.
RIDGE = 1e-5
#: Atoms are on with at least this probability, and off with at least this.
LEAST_RATE = 1e-5
#: Rounds of mean field from which a Gibbs chain starts.
ROUNDS = 10
#: The standard deviation of atoms at the start, relative to that of the data.
START_NOISE = 0.15


class BinarySparseCodingModel(
    NormalisedJoint,
    LatentFreeEnergy,
    ClampsToSites,
    MStep,
    Heats,
    Infers,
    ExactSampler,
    Conditionals,
    Decodes,
    Initialised,
):
    """E(x, z) = Σ [S(b) − b z] + ½ Σ β (x − Wz)² + ½ Σ log(2π/β).

    ``log_precision`` holds log β, one for every feature or, without an axis, one for all. ``inference`` is what EM
    and transform use.
    """

    weights: Float[Array, "d k"] = weight()
    bias: Code = bias()
    log_precision: Float[Array, "..."] = scale()
    inference: AbstractInference = MeanFieldInference()

    @classmethod
    def make(
        cls,
        n: int,
        n_components: int,
        *,
        key: PRNGKeyArray,
        shared_noise: bool = True,
        inference: AbstractInference | None = None,
    ) -> Self:
        """Random unit-scale atoms, one of which is on in the mean, and β = 1."""
        weights = jax.random.normal(key, (n, n_components))
        rate = logit(jnp.full(n_components, _first_rate(n_components)))
        noise = jnp.zeros(() if shared_noise else (n,))
        return cls(weights, rate, noise, MeanFieldInference() if inference is None else inference)

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", (self.weights.shape[0],))

    @property
    def z_space(self) -> Space:
        """{0, 1}ᴷ."""
        return Space("binary", self.bias.shape)

    @property
    def default_inference(self) -> AbstractInference:
        """What the model was made with."""
        return self.inference

    def precision(self) -> Value:
        """β of every feature."""
        return jnp.broadcast_to(jnp.exp(self.log_precision), self.weights.shape[:1])

    def _log_noise(self) -> Scalar:
        """½ Σ log(2π/β)."""
        log_precision = jnp.broadcast_to(self.log_precision, self.weights.shape[:1])
        return 0.5 * jnp.sum(LOG_2PI - log_precision)

    def energy(self, x: Value, z: Code) -> Scalar:
        """−log p(x, z)."""
        return self.latent_free_energy(z) + 0.5 * self.precision() @ (x - self.decode(z)) ** 2 + self._log_noise()

    def latent_free_energy(self, z: Code) -> Scalar:
        """−log p(z)."""
        return jnp.sum(softplus(self.bias) - self.bias * z)

    def decode(self, z: Code) -> Value:
        """E[x | z] = Wz."""
        return self.weights @ z

    # -- inference -----------------------------------------------------------------------------------------

    def clamped(self, x: Value) -> CoupledSites:
        """The sites given x: coupled by G without its diagonal."""
        beta = self.precision()
        scaled = self.weights * jnp.sqrt(beta)[:, None]
        with jax.default_matmul_precision("highest"):
            gram = scaled.T @ scaled
            own = jnp.diagonal(gram)
            field = self.bias + (x * beta) @ self.weights - 0.5 * own
        constant = jnp.sum(softplus(self.bias)) + 0.5 * beta @ x**2 + self._log_noise()
        return CoupledSites(field, gram - jnp.diag(own), constant)

    def heated(self, temperature: Any, *, prior: bool = True) -> Self:
        """b/T and β/T: every term of the energy that z is in, divided by T; b stays as it is without the prior."""
        cooler = self.log_precision - jnp.log(temperature)
        return type(self)(self.weights, self.bias / temperature if prior else self.bias, cooler, self.inference)

    # -- learning ------------------------------------------------------------------------------------------

    def m_step(self, x: Float[Array, "n d"], posterior: SecondMoments, weights: Float[Array, " n"]) -> Self:
        """W = (⟨x zᵀ⟩ + εW)(⟨zzᵀ⟩ + εI)⁻¹, b the log-odds of ⟨z⟩, 1/β the mean of E_q[(x − Wz)²].

        ⟨·⟩ averages over rows and their posteriors, ε is :data:`RIDGE` and what rounding asks for. An atom that
        no example uses is put where the worst-explained examples are.
        """
        share = weights / jnp.maximum(jnp.sum(weights), float(jnp.finfo(weights.dtype).tiny))
        means = jax.vmap(lambda q: q.mean())(posterior)
        weighted = means * share[:, None]
        # Accelerators multiply float32 with 10 bits otherwise: too few for differences of moments.
        with jax.default_matmul_precision("highest"):
            second = posterior.second_moment(share)
            ridge = _ridge(second)
            crossed = weighted.T @ x + ridge * self.weights.T
            held = second + ridge * jnp.eye(second.shape[0], dtype=second.dtype)
            atoms = cho_solve(cho_factor(held, lower=True), crossed).T
            residual = x - means @ atoms.T
            spread = second - weighted.T @ means
            variance = share @ residual**2 + jnp.sum((atoms @ spread) * atoms, axis=1)
        floor = _variance_floor(share @ x**2)
        variance = jnp.maximum(variance if self.log_precision.ndim else jnp.mean(variance), floor)
        rate = share @ means
        atoms = self._revived(atoms, rate, residual, share)
        return type(self)(
            atoms, logit(jnp.clip(rate, LEAST_RATE, 1 - LEAST_RATE)), -jnp.log(variance), self.inference
        )

    def _revived(self, atoms: Array, rate: Code, residual: Array, share: Array) -> Array:
        """Atoms that are (almost) never on become what is left of the examples with the largest residuals."""
        worst = jnp.argsort(-jnp.where(share > 0, jnp.sum(residual**2, axis=1), -1.0))
        dead = rate < LEAST_RATE
        turn = jnp.minimum(jnp.cumsum(dead) - 1, residual.shape[0] - 1)
        return jnp.where(dead[None, :], residual[worst[jnp.maximum(turn, 0)]].T, atoms)

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """Atoms scattered around the mean of x, and noise as large as all of x's variance."""
        d, k = self.weights.shape
        mean, variance = jnp.mean(x, axis=0), jnp.var(x, axis=0)
        rate = _first_rate(k)
        noise = jax.random.normal(key, (d, k), x.dtype)
        atoms = mean[:, None] / (k * rate) + START_NOISE * jnp.sqrt(variance)[:, None] * noise
        floor = _variance_floor(jnp.mean(x**2, axis=0))
        variance = jnp.maximum(variance if self.log_precision.ndim else jnp.mean(variance), floor)
        return type(self)(atoms, jnp.full(k, logit(rate), x.dtype), -jnp.log(variance), self.inference)

    # -- sampling ------------------------------------------------------------------------------------------

    def _draw(self, z: Code, *, key: PRNGKeyArray) -> Value:
        noise = jax.random.normal(key, self.weights.shape[:1], self.weights.dtype)
        return self.decode(z) + noise / jnp.sqrt(self.precision())

    def sample(self, *, key: PRNGKeyArray) -> tuple[Value, Code]:
        """z from its prior, then x | z."""
        z_key, x_key = jax.random.split(key)
        z = (jax.random.logistic(z_key, self.bias.shape, self.bias.dtype) < self.bias).astype(self.bias.dtype)
        return self._draw(z, key=x_key), z

    def begin(self, x: Value, *, key: PRNGKeyArray) -> Code:
        """A draw from the mean-field posterior."""
        clamped = self.clamped(x)
        return jax.lax.fori_loop(0, ROUNDS, lambda _, q: clamped.refine(q), clamped.guess()).sample(key=key)

    def sweep(self, x: Value, z: Code, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Value, Code]:
        """Site after site of z given x, then x given z."""
        z_key, x_key = jax.random.split(key)
        _, z = self.clamped(x).sweep((), z, key=z_key)
        return keep(fixed, x, self._draw(z, key=x_key)), z


def _first_rate(k: int) -> float:
    """One atom on in the mean, but none more often than not."""
    return min(0.5, 1.0 / k)


def _ridge(second: Float[Array, "k k"]) -> Scalar:
    """ε = :data:`RIDGE` + √k·ulp·tr⟨zzᵀ⟩: rounded moments are not positive definite where many atoms are on.

    Rounding moves the eigenvalues by about √k ulp times the largest, which the trace bounds.
    """
    k = second.shape[0]
    return RIDGE + float(np.sqrt(k) * jnp.finfo(second.dtype).eps) * jnp.trace(second)


def _variance_floor(squares: Float[Array, " d"]) -> Scalar:
    """The smallest variance that differs numerically from 0: 10 ε of the mean square of x (of 1, if x is zero)."""
    total = jnp.mean(squares)
    return 10 * float(jnp.finfo(squares.dtype).eps) * jnp.where(total > 0, total, 1.0)
