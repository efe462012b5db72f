"""The normal distribution cut off at zero, stable in both tails.

For x ~ N(m, σ²) given x ≥ 0, with α = m/σ: log P(x ≥ 0) = log Φ(α), E[x] = m + σ r(α) and
Var[x] = σ² (1 − α r(α) − r(α)²), where r(α) = φ(α)/Φ(α) is the inverse Mills ratio.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.special import log_ndtr, ndtr, ndtri
from jaxtyping import Array, Float, PRNGKeyArray

_LOG_SQRT_2PI = 0.5 * math.log(2 * math.pi)
_TAIL = -3.0  # below this α the inverse of Φ loses digits and Newton's method takes over


def log_cdf(alpha: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """log Φ(α)."""
    return jnp.asarray(log_ndtr(alpha))


def inverse_mills(alpha: Float[Array, "*s"]) -> Float[Array, "*s"]:
    """φ(α)/Φ(α), computed as exp(log φ − log Φ) so that it neither over- nor underflows."""
    return jnp.exp(-0.5 * alpha**2 - _LOG_SQRT_2PI - log_cdf(alpha))


def mean_and_variance(
    m: Float[Array, "*s"], sigma: Float[Array, "*s"]
) -> tuple[Float[Array, "*s"], Float[Array, "*s"]]:
    """Mean and variance of N(m, σ²) given x ≥ 0."""
    alpha = m / sigma
    ratio = inverse_mills(alpha)
    # In the tail α + r(α) cancels. Laplace's continued fraction r(−t) = t + 1/(t + 2/(t + 3/(t + …))) does not.
    t = jnp.maximum(-alpha, -_TAIL)
    fraction = jnp.zeros_like(t)
    for n in range(24, 1, -1):
        fraction = n / (t + fraction)
    tail_mean = 1 / (t + fraction)
    mean = jnp.where(alpha < _TAIL, tail_mean, alpha + ratio)
    variance = jnp.where(alpha < _TAIL, tail_mean * (fraction - tail_mean), 1 - ratio * (alpha + ratio))
    return sigma * mean, sigma**2 * variance


def sample(m: Float[Array, "*s"], sigma: Float[Array, "*s"], *, key: PRNGKeyArray) -> Float[Array, "*s"]:
    """A draw of N(m, σ²) given x ≥ 0, by inversion.

    Solves Φ(−t) = u Φ(α) for the standardised x = m + σ t: directly where Φ(α) is not small, and in the
    tail by Newton steps on log Φ(−t), which is concave, so that the steps converge from the start
    t₀ = √(α² − 2 log u), the solution for a Rayleigh tail.
    """
    alpha = m / sigma
    tiny = jnp.finfo(alpha.dtype).tiny
    u = jax.random.uniform(key, alpha.shape, alpha.dtype, minval=tiny)
    near = -ndtri(jnp.maximum(u * ndtr(jnp.maximum(alpha, _TAIL)), tiny))
    tail = jnp.minimum(alpha, _TAIL)
    goal = jnp.log(u) + log_cdf(tail)
    t = jnp.sqrt(tail**2 - 2 * jnp.log(u))
    for _ in range(4):
        t = t + (log_cdf(-t) - goal) / inverse_mills(-t)
    return jnp.maximum(m + sigma * jnp.where(alpha < _TAIL, t, near), 0.0)
