"""Normalised densities of independent sources, with their scores.

=========== ================================== ============================ ======================================
name        −log p(u)                          normaliser                   score ψ(u) = −(log p)′(u)
=========== ================================== ============================ ======================================
sech        log cosh u + log π                 ∫ sech = π                   tanh u
logistic    2 log cosh(u/2) + log 4            ∫ sech²(u/2) = 4             tanh(u/2)
student_t   ½(ν+1) log(1 + u²/ν) + log c       c = √(νπ) Γ(ν/2)/Γ(½(ν+1))   (ν+1)u/(ν + u²)
laplace     √(ε² + u²) + log 2εK₁(ε)           2εK₁(ε), a Bessel function   u/√(ε² + u²)
extended    ½u² ± log cosh u + log c±          see :class:`Extended`        u ± tanh u
=========== ================================== ============================ ======================================

All but the lower sign of "extended" are super-Gaussian: peaked, with heavy tails. "sech" is the usual choice, and
what others call the tanh nonlinearity; "logistic" is that of Infomax (Bell and Sejnowski, 1995); "laplace", with a
small ε, is the Laplace density with its corner rounded off (the symmetric hyperbolic distribution).

Scales are left to the filters: a scaled source with a scaled filter is the same model.
"""

from __future__ import annotations

import abc
import math
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import scipy.special
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.hooks import hook
from latentia.ops.gaussian import LOG_2PI

Sources = Float[Array, "k *n"]

#: E sech(u) over u ~ N(0, 1); a test repeats the integral.
MEAN_SECH = 0.7412642741253692


class Slopes(NamedTuple):
    """−log p(u), its first derivative ψ(u) and its second ψ′(u), elementwise."""

    energy: Sources
    score: Sources
    bend: Sources


class AbstractSources(eqx.Module):
    """K densities of one kind, applied to K rows of values."""

    @abc.abstractmethod
    def energies(self, u: Sources) -> Sources:
        """−log p_i(u), elementwise; smooth everywhere for any number of derivatives."""

    @abc.abstractmethod
    def slopes(self, u: Sources) -> Slopes:
        """−log p_i(u) with its derivatives in closed form, which share their transcendental functions."""

    @abc.abstractmethod
    def sample(self, n: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """One independent draw of each of ``n`` sources."""

    @hook
    def tuned(self, u: Float[Array, "k n"], weights: Float[Array, " n"] | None) -> Self:
        """The kind of density that suits each row of values best, where there is a choice."""
        del u, weights
        return self


class Sech(AbstractSources):
    """p(u) = 1/(π cosh u), the hyperbolic secant density: its score is tanh."""

    def energies(self, u: Sources) -> Sources:
        """log cosh u + log π."""
        return _log_cosh(u) + math.log(math.pi)

    def slopes(self, u: Sources) -> Slopes:
        """With ψ = tanh u and ψ′ = sech² u."""
        energy, score = _log_cosh_and_tanh(u)
        return Slopes(energy + math.log(math.pi), score, 1 - score**2)

    def sample(self, n: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """±log tan(πv/4) for a uniform v: P(|u| > t) = (4/π) arctan e^{−t}."""
        v_key, sign_key = jax.random.split(key)
        v = jax.random.uniform(v_key, (n,), dtype, minval=float(jnp.finfo(dtype).tiny))
        return jax.random.rademacher(sign_key, (n,), dtype) * jnp.log(jnp.tan(0.25 * math.pi * v))


class Logistic(AbstractSources):
    """p(u) = 1/(4 cosh²(u/2)), the logistic density: its score is tanh(u/2)."""

    def energies(self, u: Sources) -> Sources:
        """2 log cosh(u/2) + log 4."""
        return 2 * _log_cosh(0.5 * u) + math.log(4.0)

    def slopes(self, u: Sources) -> Slopes:
        """With ψ = tanh(u/2) and ψ′ = ½ sech²(u/2)."""
        energy, score = _log_cosh_and_tanh(0.5 * u)
        return Slopes(2 * energy + math.log(4.0), score, 0.5 * (1 - score**2))

    def sample(self, n: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """log v/(1 − v) for a uniform v."""
        return jax.random.logistic(key, (n,), dtype)


class StudentT(AbstractSources):
    """p(u) ∝ (1 + u²/ν)^{−(ν+1)/2}: tails so heavy that only moments below ν exist."""

    dof: float = eqx.field(static=True, default=3.0)

    def __check_init__(self) -> None:
        if not self.dof > 0:
            raise ParameterError(f"dof must be positive, got {self.dof}.")

    def _log_c(self) -> float:
        half = 0.5 * self.dof
        return 0.5 * math.log(self.dof * math.pi) + math.lgamma(half) - math.lgamma(half + 0.5)

    def energies(self, u: Sources) -> Sources:
        """½(ν+1) log(1 + u²/ν) + log c."""
        return 0.5 * (self.dof + 1) * jnp.log1p(u**2 / self.dof) + self._log_c()

    def slopes(self, u: Sources) -> Slopes:
        """With ψ = (ν+1)u/(ν + u²) and ψ′ = (ν+1)(ν − u²)/(ν + u²)²."""
        below = 1 / (self.dof + u**2)
        score = (self.dof + 1) * u * below
        return Slopes(self.energies(u), score, (self.dof + 1) * (self.dof - u**2) * below**2)

    def sample(self, n: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """A normal over the root of a chi-square."""
        return jax.random.t(key, self.dof, (n,), dtype)


class SmoothLaplace(AbstractSources):
    """p(u) = exp(−√(ε² + u²)) / 2εK₁(ε): Laplace's e^{−|u|}/2 as ε → 0, with a round top."""

    epsilon: float = eqx.field(static=True, default=0.1)

    def __check_init__(self) -> None:
        if not self.epsilon > 0:
            raise ParameterError(f"epsilon must be positive, got {self.epsilon}.")

    def energies(self, u: Sources) -> Sources:
        """√(ε² + u²) + log 2εK₁(ε)."""
        log_c = math.log(2 * self.epsilon * float(scipy.special.k1(self.epsilon)))
        return jnp.sqrt(self.epsilon**2 + u**2) + log_c

    def slopes(self, u: Sources) -> Slopes:
        """With ψ = u/√(ε² + u²) and ψ′ = ε²/(ε² + u²)^{3/2}."""
        below = jax.lax.rsqrt(self.epsilon**2 + u**2)
        return Slopes(self.energies(u), u * below, self.epsilon**2 * below**3)

    def sample(self, n: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """Laplace draws, kept with probability exp(|u| − √(ε² + u²)) ≥ e^{−ε}."""
        propose = lambda key: jax.random.laplace(key, (n,), dtype)  # noqa: E731
        return _kept(propose, lambda u: jnp.exp(jnp.abs(u) - jnp.sqrt(self.epsilon**2 + u**2)), key)


class Extended(AbstractSources):
    """Each source super- or sub-Gaussian: p(u) = N(u; 0, 1) sech(u)/c or N(u; 0, 1) cosh(u)/√e.

    c = E sech over the standard normal. The second is the even mixture of N(−1, 1) and N(1, 1), flat on top.
    These are the densities of extended Infomax (Lee, Girolami and Sejnowski, 1999), whose rule for the choice
    :meth:`tuned` applies: a source is super-Gaussian if E[sech² u] E[u²] > E[u tanh u], which is what makes the
    separating solution a stable one.
    """

    sub: Bool[Array, " k"]

    def energies(self, u: Sources) -> Sources:
        """½u² ± log cosh u + log c±."""
        return self._energies(u, _log_cosh(u))

    def _energies(self, u: Sources, log_cosh: Sources) -> Sources:
        sign, sub = self._sign(u), self._columns(self.sub, u)
        log_c = jnp.where(sub, jnp.asarray(0.5, u.dtype), jnp.asarray(math.log(MEAN_SECH), u.dtype))
        return 0.5 * (u**2 + LOG_2PI) + sign * log_cosh + log_c

    def slopes(self, u: Sources) -> Slopes:
        """With ψ = u ± tanh u and ψ′ = 1 ± sech² u."""
        log_cosh, tanh = _log_cosh_and_tanh(u)
        sign = self._sign(u)
        return Slopes(self._energies(u, log_cosh), u + sign * tanh, 1 + sign * (1 - tanh**2))

    def _columns(self, values: Any, u: Sources) -> Any:
        return values.reshape((-1,) + (1,) * (u.ndim - 1))

    def _sign(self, u: Sources) -> Sources:
        return self._columns(1 - 2 * self.sub.astype(u.dtype), u)

    def sample(self, n: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, " k"]:
        """Normal draws, moved by ±1 (sub) or kept with probability sech u (super)."""
        move_key, normal_key, super_key = jax.random.split(key, 3)
        normal = lambda key: jax.random.normal(key, (n,), dtype)  # noqa: E731
        two = jax.random.rademacher(move_key, (n,), dtype) + normal(normal_key)
        return jnp.where(self.sub, two, _kept(normal, lambda u: 1 / jnp.cosh(u), super_key))

    def tuned(self, u: Float[Array, "k n"], weights: Float[Array, " n"] | None) -> Self:
        """Super- or sub-Gaussian, whichever separates the rows stably."""
        if weights is None:
            weights = jnp.ones(u.shape[1:], u.dtype)
        mass = jnp.sum(weights)
        share = weights / jnp.where(mass > 0, mass, 1.0)
        tanh = jnp.tanh(u)
        stable = ((1 - tanh**2) @ share) * (u**2 @ share) - (u * tanh) @ share
        return eqx.tree_at(lambda s: s.sub, self, jnp.where(mass > 0, stable < 0, self.sub))


def _log_cosh(u: Sources) -> Sources:
    return jnp.logaddexp(u, -u) - math.log(2.0)


def _log_cosh_and_tanh(u: Sources) -> tuple[Sources, Sources]:
    """Both from one exponential; not for differentiation, which the absolute value spoils at 0."""
    size = jnp.abs(u)
    small = jnp.exp(-2 * size)
    return size + jnp.log1p(small) - math.log(2.0), jnp.sign(u) * (1 - small) / (1 + small)


def _kept(propose: Any, probability: Any, key: PRNGKeyArray) -> Float[Array, " k"]:
    """Draws by rejection: proposals, each drawn again until it is kept with its probability."""

    def again(carry: tuple) -> tuple:
        key, u, kept = carry
        key, u_key, v_key = jax.random.split(key, 3)
        new = propose(u_key)
        keep = jax.random.uniform(v_key, new.shape, new.dtype) < probability(new)
        return key, jnp.where(kept, u, new), kept | keep

    first = jax.eval_shape(propose, key)
    start = (key, jnp.zeros(first.shape, first.dtype), jnp.zeros(first.shape, bool))
    return jax.lax.while_loop(lambda carry: ~jnp.all(carry[2]), again, start)[1]


_KINDS: dict[str, Any] = {
    "sech": Sech,
    "logistic": Logistic,
    "student_t": StudentT,
    "laplace": SmoothLaplace,
}
SOURCES = (*_KINDS, "extended")


def make(name: str, n: int) -> AbstractSources:
    """``n`` sources of a kind.

    >>> float(make("logistic", 1).energies(jnp.zeros(1))[0])  # log 4
    1.386294...
    """
    if name == "extended":
        return Extended(jnp.zeros(n, bool))
    if name not in _KINDS:
        raise UnknownNameError("density", name, SOURCES)
    return _KINDS[name]()
