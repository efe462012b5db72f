"""Expert functions φ for products and fields of experts.

An expert gives the response u of a filter the energy φ(u):

=============== ======================================= =================================================
name            φ(u)                                    grows like
=============== ======================================= =================================================
student_t       log(1 + u²/2)                           2 log(u): the heaviest tails
log_cosh        2 log cosh(u/2)                         u: exp(−φ) is the logistic density
charbonnier     √(1 + u²)                               u
gsm             −log Σ_j π_j N(u; 0, s_j²)              u²/2s² with the widest scale s, but any shape before
gaussian        u²/2                                    u²/2
=============== ======================================= =================================================

("logistic" is another name of log_cosh.) All are even, and concave functions of u². So, with w(v) = φ′(v)/v,

    φ(u) ≤ φ(v) + ½ w(v) (u² − v²):

a quadratic that touches φ at v and lies above it everywhere (``pull`` is w), which is why iteratively reweighted
least squares descend.

Every expert of a Gaussian scale mixture has weights π of its own over a ladder of scales that all share: its shape
is learned (Weiss and Freeman, 2007; Schmidt, Gao and Roth, 2010).
"""

from __future__ import annotations

import abc

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latentia.core.errors import UnknownNameError
from latentia.core.hooks import hook
from latentia.core.parameters import bias, buffer
from latentia.ops.gaussian import LOG_2PI

Responses = Float[Array, "k *positions"]


class AbstractExperts(eqx.Module):
    """K functions φ_k, applied to the responses of K filters at any number of positions."""

    @abc.abstractmethod
    def energies(self, u: Responses) -> Responses:
        """φ_k(u), elementwise."""

    @abc.abstractmethod
    def pull(self, u: Responses) -> Responses:
        """w(u) = φ_k′(u)/u, φ_k″(0) at 0: the curvature of the quadratic above φ_k that touches it at ±u."""

    @hook
    def least_power(self) -> float:
        """The α above which ∫ exp(−α φ(u)) du is finite."""
        return 0.0


class StudentT(AbstractExperts):
    """φ(u) = log(1 + u²/2): exp(−αφ) is a Student t density with 2α − 1 degrees of freedom, so α > ½.

    >>> float(StudentT().energies(jnp.array([2.0]))[0])  # log 3
    1.0986123...
    """

    def energies(self, u: Responses) -> Responses:
        """log(1 + u²/2)."""
        return jnp.log1p(0.5 * u**2)

    def pull(self, u: Responses) -> Responses:
        """1/(1 + u²/2)."""
        return 1 / (1 + 0.5 * u**2)

    def least_power(self) -> float:
        """½: with a smaller power the tails are too heavy to integrate."""
        return 0.5


class LogCosh(AbstractExperts):
    """φ(u) = 2 log cosh(u/2): exp(−φ) is the logistic density, up to a factor."""

    def energies(self, u: Responses) -> Responses:
        """|u| + 2 log(1 + e^{−|u|}) − 2 log 2, which does not overflow."""
        return 2 * (jnp.logaddexp(0.5 * u, -0.5 * u) - float(np.log(2.0)))

    def pull(self, u: Responses) -> Responses:
        """tanh(u/2)/u."""
        away = jnp.where(jnp.abs(u) < 1e-3, 1e-3, u)  # below, it is ½ up to rounding
        return jnp.tanh(0.5 * away) / away


class Charbonnier(AbstractExperts):
    """φ(u) = √(1 + u²): a smooth |u|."""

    def energies(self, u: Responses) -> Responses:
        """√(1 + u²)."""
        return jnp.sqrt(1 + u**2)

    def pull(self, u: Responses) -> Responses:
        """1/√(1 + u²)."""
        return 1 / jnp.sqrt(1 + u**2)


class Gaussian(AbstractExperts):
    """φ(u) = u²/2: a product of these is a normal distribution."""

    def energies(self, u: Responses) -> Responses:
        """u²/2."""
        return 0.5 * u**2

    def pull(self, u: Responses) -> Responses:
        """1."""
        return jnp.ones_like(u)


class ScaleMixture(AbstractExperts):
    """φ_k(u) = −log Σ_j π_kj N(u; 0, s_j²), π_k = softmax(logits_k), with scales s_1 < … < s_J that all share."""

    logits: Float[Array, "k j"] = bias()
    scales: Float[Array, " j"] = buffer()

    def energies(self, u: Responses) -> Responses:
        """−log Σ_j π_j N(u; 0, s_j²)."""
        last, total, _ = self._terms(u)
        return -last - jnp.log(total)

    def pull(self, u: Responses) -> Responses:
        """Σ_j r_j/s_j², r_j the probability that u came from scale j."""
        _, total, bent = self._terms(u)
        return bent / total

    def _terms(self, u: Responses) -> tuple[Responses, Responses, Responses]:
        """(logarithm of the widest term, Σ_j t_j, Σ_j t_j/s_j²), the terms t relative to the widest.

        That one vanishes last, so no other overflows unless its weight is e⁸⁰ times as large. The sum is written
        out term by term, which a compiler fuses into one pass over the responses.
        """
        column = (slice(None),) + (None,) * (u.ndim - 1)
        heights = jax.nn.log_softmax(self.logits, axis=1) - jnp.log(self.scales)[None, :] - 0.5 * LOG_2PI
        precisions = 1 / self.scales**2
        half = 0.5 * u**2
        total, bent = jnp.ones_like(u), jnp.broadcast_to(precisions[-1], u.shape)
        for j in range(self.scales.shape[0] - 1):
            term = jnp.exp((heights[:, j] - heights[:, -1])[column] - half * (precisions[j] - precisions[-1]))
            total, bent = total + term, bent + precisions[j] * term
        return heights[:, -1][column] - half * precisions[-1], total, bent


#: Scales of a mixture, in units of a response's standard deviation: each twice the one before.
LADDER = tuple(2.0**power for power in range(-5, 4))

#: Experts without parameters of their own, by name.
_PLAIN: dict[str, type[AbstractExperts]] = {
    "student_t": StudentT,
    "log_cosh": LogCosh,
    "logistic": LogCosh,
    "charbonnier": Charbonnier,
    "gaussian": Gaussian,
}
EXPERTS = (*_PLAIN, "gsm")


def make(name: str, n: int, ladder: tuple[float, ...] = LADDER) -> AbstractExperts:
    """``n`` experts of a kind; those of a scale mixture begin with equal weights: peaked, with heavy tails."""
    if name == "gsm":
        return ScaleMixture(jnp.zeros((n, len(ladder))), jnp.asarray(ladder, jnp.result_type(float)))
    if name not in _PLAIN:
        raise UnknownNameError("expert", name, EXPERTS)
    return _PLAIN[name]()
