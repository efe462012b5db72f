"""Multivariate normal numerics: densities, draws and conditioning through triangular factors.

A *factor* of a precision matrix P is a triangular F with P = F Fᵀ, upper triangular unless ``lower`` is given
(scikit-learn's ``precisions_cholesky_`` are upper ones). With it, for r = x − μ,

    log N(x; μ, P⁻¹) = −½‖Fᵀr‖² + Σ log|F_ii| − ½ D log 2π,        F⁻ᵀε ~ N(0, P⁻¹) for ε ~ N(0, I),

so neither P nor its inverse is ever formed.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax.scipy.linalg import cho_solve, solve_triangular
from jaxtyping import Array, Bool, Float

LOG_2PI = math.log(2 * math.pi)

Vector = Float[Array, " n"]
Matrix = Float[Array, "n n"]
Scalar = Float[Array, ""]


def with_ridge(
    variances: Float[Array, "*n"], ridge: Scalar | float, relative: Scalar | float = 0.0
) -> Float[Array, "*n"]:
    """Variances plus a ridge, or plus the ``relative`` part of each variance where that is larger."""
    least = jnp.maximum(jnp.asarray(ridge, variances.dtype), jnp.finfo(variances.dtype).tiny)
    return variances + jnp.maximum(relative * variances, least)


def precision_factor(covariance: Matrix) -> Matrix:
    """The upper triangular F with F Fᵀ = covariance⁻¹."""
    cholesky = jnp.linalg.cholesky(covariance)
    return solve_triangular(cholesky, jnp.eye(covariance.shape[0], dtype=covariance.dtype), lower=True).T


def ridge_precision_factor(covariance: Matrix, ridge: Scalar | float) -> Matrix:
    """The factor of (covariance + ridge I)⁻¹, finite for every positive semi-definite matrix.

    A singular covariance summed up in single precision is positive only up to rounding. The error is relative
    to each variance (columns of different scales do not disturb one another), so each gets at least its
    rounding error, and ten times as much until the Cholesky factor exists.
    """
    variances = jnp.diagonal(covariance)
    rounding = 4 * math.sqrt(len(variances)) * float(jnp.finfo(covariance.dtype).eps)

    def attempt(tries: Array) -> Matrix:
        raised = with_ridge(variances, ridge, rounding * 10.0 ** tries.astype(covariance.dtype))
        return precision_factor(covariance + jnp.diag(raised - variances))

    def failed(state: tuple[Array, Matrix]) -> Bool[Array, ""]:
        tries, factor = state
        return (tries < 6) & ~jnp.all(jnp.isfinite(factor))

    zero = jnp.zeros((), jnp.int32)
    return jax.lax.while_loop(failed, lambda s: (s[0] + 1, attempt(s[0] + 1)), (zero, attempt(zero)))[1]


def covariance_of(factor: Matrix, *, lower: bool = False) -> Matrix:
    """(F Fᵀ)⁻¹."""
    inverse = solve_triangular(factor, jnp.eye(factor.shape[0], dtype=factor.dtype), lower=lower)
    return inverse.T @ inverse


def log_density(residual: Vector, factor: Matrix) -> Scalar:
    """log N(r; 0, (F Fᵀ)⁻¹)."""
    return whitened_log_density(residual @ factor, jnp.diagonal(factor))


def whitened_log_density(whitened: Float[Array, "*k n"], scales: Float[Array, "*#k n"]) -> Float[Array, "*k"]:
    """−½‖y‖² + Σ log|s_i| − ½ D log 2π over the last axis: the density whose whitened residual is y."""
    constant = jnp.sum(jnp.log(jnp.abs(scales)), axis=-1) - 0.5 * whitened.shape[-1] * LOG_2PI
    return constant - 0.5 * jnp.sum(whitened**2, axis=-1)


def colour(noise: Vector, factor: Matrix, *, lower: bool = False) -> Vector:
    """F⁻ᵀ ε: white noise turned into N(0, (F Fᵀ)⁻¹)."""
    return solve_triangular(factor, noise, trans=1, lower=lower)


def colour_given(noise: Vector, factor: Matrix, residual: Vector, fixed: Bool[Array, " n"]) -> Vector:
    """A draw of the free entries of r ~ N(0, (F Fᵀ)⁻¹) given the fixed ones, which come back as they are.

    With rows F_f and F_o of the free and the fixed entries, r_f | r_o ~ N(−P_ff⁻¹ P_fo r_o, P_ff⁻¹) is the
    solution δ of the least-squares problem min ‖F_fᵀ δ − (ε − F_oᵀ r_o)‖ with white noise ε. Solved by QR,
    the condition number is that of F, not of P. The mask is dynamic, so fixed unknowns stay in the problem,
    tied to zero by a row of their own.
    """
    free = jnp.where(fixed, 0.0, 1.0).astype(factor.dtype)
    held = jnp.where(fixed, residual, jnp.zeros_like(residual))
    q, r = jnp.linalg.qr(jnp.concatenate([factor.T * free[None, :], jnp.diag(1 - free)]))
    target = noise - held @ factor
    solution = solve_triangular(r, target @ q[: noise.shape[0]])
    return jnp.where(fixed, residual, solution)


def low_rank_posterior(
    residual: Vector, weights: Float[Array, "n k"], variance: Scalar
) -> tuple[Float[Array, " k"], Float[Array, "k k"]]:
    """(M⁻¹Wᵀr, lower Cholesky factor of M = WᵀW + σ²I), for r = Wz + σε: z | r ~ N(M⁻¹Wᵀr, σ²M⁻¹)."""
    gram = weights.T @ weights
    cholesky = jnp.linalg.cholesky(gram + variance * jnp.eye(gram.shape[0], dtype=gram.dtype))
    return cho_solve((cholesky, True), residual @ weights), cholesky


def low_rank_log_density(residual: Vector, weights: Float[Array, "n k"], variance: Scalar) -> Scalar:
    """log N(r; 0, WWᵀ + σ²I) at the cost of a K×K matrix.

    By the determinant lemma log det C = (D − K) log σ² + log det M. For the quadratic form, Woodbury's
    difference (‖r‖² − rᵀWM⁻¹Wᵀr)/σ² cancels badly when σ² is small; rᵀC⁻¹r = min_z ‖r − Wz‖²/σ² + ‖z‖², whose
    minimiser is the posterior mean, does not.
    """
    n, k = weights.shape
    mean, cholesky = low_rank_posterior(residual, weights, variance)
    quadratic = jnp.sum((residual - weights @ mean) ** 2) / variance + jnp.sum(mean**2)
    log_det = (n - k) * jnp.log(variance) + 2 * jnp.sum(jnp.log(jnp.diagonal(cholesky)))
    return -0.5 * (quadratic + log_det + n * LOG_2PI)
