"""The Gaussian with a constrained precision matrix, as an energy.

    F(x) = ½(x − μ)ᵀΛ(x − μ),      log Z = ½ D log 2π − ½ log det Λ,      Λ = S (I + A) S,  S = diag(s),

with A symmetric, zero on its diagonal and wherever two variables may not be coupled: given all others, those are
independent (Dempster, 1972). −A holds the partial correlations. The energy is left *unnormalised*, though log Z is
known, so that the log Z learned by an objective can be compared with the true value.

Λ must stay positive definite without losing its zeros, which a Cholesky factor would fill in. Its diagonal s² is
positive by its logarithm; A is kept where the smallest eigenvalue of I + A is above a floor: after a step that
leaves that set, A is shrunk towards zero, which keeps every zero, until a Cholesky factor exists again. One factor
for a step is the price, about that of the step's own products.
"""

from __future__ import annotations

import warnings
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.capabilities import (
    Bounded,
    Conditionals,
    Constrained,
    Decodes,
    Encodes,
    ExactSampler,
    Initialised,
    KnownLogZ,
)
from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, weight
from latentia.core.space import Space
from latentia.ops.compiling import jitted
from latentia.ops.gaussian import LOG_2PI

Value = Float[Array, " d"]

#: The smallest eigenvalue that I + A may have: in single precision it still differs from zero.
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
        zeros = lambda *shape: jax.device_put(np.zeros(shape, jnp.result_type(float)))  # noqa: E731
        couplings = zeros(n, n) if coupled else None
        return cls(zeros(n), zeros(n), couplings, None if mask is None else jax.device_put(mask))

    def with_precision(self, mean: np.ndarray, precision: np.ndarray) -> Self:
        """The model with a given mean and a given precision matrix (or its diagonal)."""
        diagonal = np.maximum(precision if self.couplings is None else np.diagonal(precision), 1e-30)
        couplings = None
        if self.couplings is not None:
            scaled = precision / np.sqrt(diagonal)[:, None] / np.sqrt(diagonal)[None, :]
            np.fill_diagonal(scaled, 0.0)
            couplings = jax.device_put(scaled.astype(self.couplings.dtype))
        cast = lambda a: jax.device_put(np.asarray(a).astype(self.mean.dtype))  # noqa: E731
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

    @jitted
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

    @jitted
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


def safe(model: GaussianEnergy) -> GaussianEnergy:
    """The model, its couplings shrunk where its precision is not positive definite."""
    coupled = jitted(GaussianEnergy.coupled)(model)
    least = float(np.linalg.eigvalsh(np.asarray(coupled, np.float64))[0])
    if 1 + least > FLOOR:
        return model
    warnings.warn(
        "The best precision matrix with these zeros is not positive definite to single precision, so its couplings "
        "were shrunk until it is. Allow more couplings, a larger ridge, or use solver='closed_form'.",
        stacklevel=3,
    )
    shrunk = eqx.tree_at(lambda m: m.couplings, model, (1 - 2 * FLOOR) / -least * coupled)
    return jitted(GaussianEnergy.project)(shrunk)
