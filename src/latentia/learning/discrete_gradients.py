"""Gradients of E_q[c(z)] in the parameters of q: by the score, by relaxations, or through the draws themselves.

    ∇ E_q[c(z)] = E_q[∇c(z) + (c(z) − b) ∇ log q(z)]

for every b that does not depend on z. With several draws, the mean of the others' costs is such a b (leave-one-out:
Kool, van Hoof and Welling, 2019). Each function turns the costs of the draws of one example into a scalar with the
value of their mean whose derivative is the estimate; costs are differentiable in what they were computed from.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.model import AbstractModel, Scalar
from latentia.core.space import leaves, log_count

Draws = Float[Array, " k"]
#: As many states as this may be summed over at every step.
MOST_STATES = 4096


@dataclasses.dataclass(frozen=True)
class Estimator:
    """A way to estimate the gradient.

    Args:
        unbiased: whether its mean is the gradient of the objective.
        latents: the domains of latents that it supports.
        scored: whether it uses the score ∇ log q, with draws that are held fixed.
        text: what it does, in a few words.
    """

    unbiased: bool
    latents: tuple[str, ...]
    scored: bool
    text: str


GRADIENTS: dict[str, Estimator] = {
    "reparametrised": Estimator(True, ("real",), False, "through the draws"),
    "doubly_reparametrised": Estimator(True, ("real",), False, "through the draws only, weights squared"),
    "exact": Estimator(True, ("real", "binary"), False, "closed form, or the sum over all states"),
    "score_function": Estimator(True, ("real", "binary"), True, "cost times score"),
    "rloo": Estimator(True, ("real", "binary"), True, "cost less that of the other draws, times score"),
    "gumbel": Estimator(False, ("binary",), False, "through relaxed draws"),
    "straight_through": Estimator(False, ("binary",), False, "through the means, at the draws"),
}


def is_real(model: AbstractModel) -> bool:
    """Whether all latents are real."""
    return all(leaf.domain == "real" for leaf in leaves(model.z_space))


def check_gradient(name: str, model: AbstractModel) -> None:
    """Refuse a gradient that does not fit the latents."""
    if name not in GRADIENTS:
        raise UnknownNameError("gradient", name, GRADIENTS)
    strange = sorted({leaf.domain for leaf in leaves(model.z_space)} - set(GRADIENTS[name].latents))
    if strange:
        fit = [n for n, g in GRADIENTS.items() if set(strange) <= set(g.latents)]
        raise ParameterError(
            f"gradient={name!r} does not fit {strange[0]} latents. Those that fit: {', '.join(fit)}."
        )


def check_exact(model: AbstractModel, closed: bool) -> None:
    """Refuse the exact gradient where there is none."""
    count = log_count(model.z_space)
    if not closed and count > math.log(MOST_STATES) + 1e-6:
        raise ParameterError(
            "gradient='exact' needs a closed form (a linear Gaussian decoder and one layer of latents), or binary "
            f"latents with at most {MOST_STATES:,} states in all. Use 'reparametrised' for real latents and 'rloo' "
            "for binary ones."
        )


def draw(name: str, q: Any, temperature: Any, *, key: PRNGKeyArray) -> Any:
    """A draw of the latents, differentiable as far as the estimator requires."""
    if name == "gumbel":
        return q.relaxed(temperature, key=key)
    if name == "straight_through":
        return q.straight_through(key=key)
    z = q.sample(key=key)
    return jax.lax.stop_gradient(z) if GRADIENTS[name].scored else z


def expectation(name: str, cost: Draws, log_q: Draws) -> Scalar:
    """mean c, with the gradient of E_q[c]; ``log_q`` is that of draws held fixed."""
    value = jnp.mean(cost)
    if not GRADIENTS[name].scored:
        return value
    signal = cost - others(cost) if name == "rloo" else cost
    return with_score(value, jnp.mean(jax.lax.stop_gradient(signal) * log_q))


def log_mean(name: str, log_w: Draws, log_q: Draws) -> Scalar:
    """log mean w, with the gradient of its expectation.

    "rloo" compares with log mean w where one log-weight is replaced by the mean of the others' (Mnih and Rezende,
    2016, *Variational inference for Monte Carlo objectives*).
    """
    value = log_mean_exp(log_w)
    if not GRADIENTS[name].scored:
        return value
    signal = jnp.broadcast_to(value, log_w.shape)
    if name == "rloo":
        swapped = jnp.where(jnp.eye(log_w.shape[0], dtype=bool), others(log_w)[:, None], log_w[None, :])
        signal = signal - jax.vmap(log_mean_exp)(swapped)
    return with_score(value, jnp.sum(jax.lax.stop_gradient(signal) * log_q))


def with_score(value: Scalar, score: Scalar) -> Scalar:
    """The value, with the derivative of the score added to its own."""
    return value + score - jax.lax.stop_gradient(score)


def others(values: Draws) -> Draws:
    """For every draw, the mean over the other ones."""
    return (jnp.sum(values) - values) / (values.shape[0] - 1)


def log_mean_exp(values: Draws) -> Scalar:
    """log mean exp."""
    return jax.nn.logsumexp(values) - jnp.log(jnp.asarray(values.shape[0], values.dtype))


@jax.custom_vjp
def scaled_gradient(value: Any, factor: Scalar) -> Any:
    """The value itself, through which derivatives pass multiplied by a factor."""
    del factor
    return value


def _forward(value: Any, factor: Scalar) -> tuple[Any, Scalar]:
    return value, factor


def _backward(factor: Scalar, slope: Any) -> tuple[Any, Scalar]:
    return jax.tree.map(lambda s: factor * s, slope), jnp.zeros_like(factor)


scaled_gradient.defvjp(_forward, _backward)
