"""Evidence bounds for directed models with a learned posterior: the ELBO and its importance-weighted relatives.

With z_1 … z_k ~ q(z | x) and w_i = p(x, z_i)/q(z_i | x),

    ELBO = E[mean log w_i] = E_q[log p(x | z)] − KL(q ‖ p(z)) ≤ IWAE_k = E[log mean w_i] ≤ log p(x),

and the second rises to log p(x) with k (Burda, Grosse and Salakhutdinov, 2016). Its gradient weighs every draw by
w̃_i = w_i/Σw: a *good* draw weighs most. Through the draws only, the weights of q's gradient are squared,

    ∇_φ IWAE_k = E[Σ_i w̃_i² ∂log w_i/∂z_i · dz_i/dφ],

which keeps its signal when k is large (Tucker, Lawson, Gu and Maddison, 2019). With a weight β on the divergence
the factor is w̃_i(1 − β + β w̃_i). For draws that are not differentiable see
:mod:`latentia.learning.discrete_gradients`.
"""

from __future__ import annotations

import abc
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from latentia.core import space
from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import Amortised, ExpectedGiven
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.model import Scalar
from latentia.core.space import Domain
from latentia.learning.discrete_gradients import (
    GRADIENTS,
    check_exact,
    check_gradient,
    draw,
    expectation,
    is_real,
    log_mean,
    log_mean_exp,
    scaled_gradient,
)
from latentia.ops import random
from latentia.ops.arrays import batch_size, weighted_mean

LATENTS: tuple[Domain, ...] = ("real", "binary")


class BoundState(eqx.Module):
    """The seed of this step's latents, and how many steps there were."""

    seed: Any  # one 32-bit word
    step: Float[Array, ""]


class AbstractBound(AbstractObjective):
    """What both bounds share: draws, the weight of the divergence and its rise."""

    k: eqx.AbstractVar[int]
    gradient: eqx.AbstractVar[str]
    beta: eqx.AbstractVar[float]
    warmup: eqx.AbstractVar[float]
    temperature: eqx.AbstractVar[float]

    @property
    def requires(self) -> tuple[Need, ...]:
        """A directed model with its posterior."""
        return (Amortised,)

    @property
    def latent_domains(self) -> tuple[Domain, ...]:
        """Real or binary."""
        return LATENTS

    @abc.abstractmethod
    def chosen(self, model: Amortised) -> str:
        """The gradient's name, "auto" resolved."""

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> BoundState:
        """No steps yet; refuses a gradient that does not fit the latents."""
        del x
        name = self.chosen(model)
        check_gradient(name, model)
        if name == "exact":
            check_exact(model, isinstance(model, ExpectedGiven))
        return BoundState(_seed(key), jnp.zeros((), jnp.float32))

    def prepare(
        self, model: Any, x: Any, state: BoundState, *, key: PRNGKeyArray, weights: Any = None
    ) -> BoundState:
        """A fresh seed, one step on."""
        del model, x, weights
        return BoundState(_seed(key), state.step + 1)

    def weight(self, state: BoundState, dtype: Any) -> Scalar:
        """β now: it rises in a straight line over the warm-up."""
        rise = jnp.minimum(1.0, state.step / self.warmup) if self.warmup else jnp.ones_like(state.step)
        return (self.beta * rise).astype(dtype)


class ELBO(AbstractBound):
    """−E_q[log p(x | z)] + β KL(q ‖ p(z)), with the divergence in closed form wherever it has one.

    Args:
        k: draws of the latents for every example; "rloo" takes at least two.
        gradient: "auto" ("reparametrised" for real latents, "rloo" for binary ones), or a name in
            :data:`~latentia.learning.discrete_gradients.GRADIENTS`.
        beta: weight of the divergence; only with 1 is it a bound.
        warmup: steps over which the weight rises from 0.
        free_bits: nats of divergence that every latent may have without paying (Kingma et al., 2016); the mean over
            the batch counts.
        temperature: of relaxed draws.

    References:
        Kingma and Welling (2014); Rezende, Mohamed and Wierstra (2014); Higgins et al. (2017) for β.
    """

    k: int = eqx.field(static=True, default=1)
    gradient: str = eqx.field(static=True, default="auto")
    beta: float = eqx.field(static=True, default=1.0)
    warmup: float = eqx.field(static=True, default=0.0)
    free_bits: float = eqx.field(static=True, default=0.0)
    temperature: float = eqx.field(static=True, default=0.5)

    def __check_init__(self) -> None:
        _check(self)
        if self.gradient == "doubly_reparametrised":
            raise ParameterError(
                "gradient='doubly_reparametrised' is one of objective='iwae'; the ELBO takes 'reparametrised'."
            )

    def chosen(self, model: Amortised) -> str:
        """The gradient's name, "auto" resolved."""
        return self.gradient if self.gradient != "auto" else "reparametrised" if is_real(model) else "rloo"

    def loss(self, model: Any, x: Any, weights: Any, state: BoundState) -> tuple[Scalar, Metrics]:
        """Minus the weighted bound, and as metrics the bound itself with its two parts."""
        name = self.chosen(model)
        n_draws = max(self.k, 2) if name == "rloo" else self.k
        look = _all_states if name == "exact" else _draws
        options = (name, n_draws, self.temperature)
        given, rates, shares = look(model, x, options, random.key(state.seed))
        mean_rates = weighted_mean(jnp.sum(shares.probability[..., None] * rates, axis=1), weights)
        # The derivative of max(λ, rate) is that of the rate, or nothing. The weights of a batch average to one over
        # many batches only, and λ is a bound on what is not linear in them.
        free = self.free_bits if weights is None else self.free_bits * jnp.mean(weights)
        pays = (mean_rates > free).astype(rates.dtype) if self.free_bits else jnp.ones_like(mean_rates)
        cost = -given + self.weight(state, given.dtype) * (rates @ jax.lax.stop_gradient(pays))
        if name == "exact":
            each = jnp.sum(shares.probability * cost, axis=1)
        else:
            each = jax.vmap(lambda cost, log_q: expectation(name, cost, log_q))(cost, shares.log_q)
        explained = weighted_mean(jnp.sum(shares.probability * given, axis=1), weights)
        rate = jnp.sum(mean_rates)
        metrics = {"elbo": explained - rate, "log_given": explained, "kl": rate}
        return weighted_mean(each, weights), metrics


class IWAE(AbstractBound):
    """−log mean w over k draws, w = p(x, z)/q(z | x).

    Args:
        k: draws of the latents for every example.
        gradient: "auto" ("doubly_reparametrised" for real latents, "rloo" for binary ones), or a name in
            :data:`~latentia.learning.discrete_gradients.GRADIENTS` except "exact".
        beta: weight of log q − log p(z) in log w; only with 1 is it a bound.
        warmup: steps over which the weight rises from 0.
        temperature: of relaxed draws.

    References:
        Burda, Grosse and Salakhutdinov (2016); Tucker et al. (2019); Mnih and Rezende (2016).
    """

    k: int = eqx.field(static=True, default=5)
    gradient: str = eqx.field(static=True, default="auto")
    beta: float = eqx.field(static=True, default=1.0)
    warmup: float = eqx.field(static=True, default=0.0)
    temperature: float = eqx.field(static=True, default=0.5)

    def __check_init__(self) -> None:
        _check(self)
        if self.gradient == "exact":
            raise ParameterError(
                "objective='iwae' has no exact gradient; 'rloo' is an unbiased one for any latents."
            )
        if self.gradient == "rloo" and self.k < 2:
            raise ParameterError(
                f"gradient='rloo' compares draws: objective='iwae' needs k ≥ 2 for it, got {self.k}."
            )

    def chosen(self, model: Amortised) -> str:
        """The gradient's name, "auto" resolved."""
        if self.gradient != "auto":
            return self.gradient
        return "doubly_reparametrised" if is_real(model) else "rloo" if self.k > 1 else "score_function"

    def loss(self, model: Any, x: Any, weights: Any, state: BoundState) -> tuple[Scalar, Metrics]:
        """Minus the bound; the metrics are the bound and the ELBO of the same draws."""
        name = self.chosen(model)
        keys = jax.random.split(random.key(state.seed), batch_size(x))

        def one(x: Any, key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
            beta = self.weight(state, jax.tree.leaves(x)[0].dtype)
            q = model.recognise(x)
            z = jax.vmap(lambda key: draw(name, q, self.temperature, key=key))(jax.random.split(key, self.k))
            if name == "doubly_reparametrised":
                return _doubly(model, x, q, z, beta)
            log_w = _log_weights(model, x, q, z, beta)
            return log_mean(name, log_w, jax.vmap(q.log_prob)(jax.lax.stop_gradient(z))), jnp.mean(log_w)

        bounds, elbos = jax.vmap(one)(x, keys)
        metrics = {"iwae": weighted_mean(bounds, weights), "elbo": weighted_mean(elbos, weights)}
        return -weighted_mean(bounds, weights), metrics


def _log_weights(model: Amortised, x: Any, q: Any, z: Any, beta: Scalar) -> Float[Array, " k"]:
    """log p(x | z) + β (log p(z) − log q(z)) of every draw."""

    def one(z: Any) -> Scalar:
        given = model.log_given(x, z)
        return given + beta * (-model.energy(x, z) - given - q.log_prob(z))

    return jax.vmap(one)(z)


def _doubly(model: Amortised, x: Any, q: Any, z: Any, beta: Scalar) -> tuple[Scalar, Scalar]:
    """(log mean w, mean log w), q's gradient through the draws only."""
    still = jax.lax.stop_gradient(q)
    log_w = jax.lax.stop_gradient(_log_weights(model, x, still, z, beta))
    factor = 1 - beta + beta * jax.nn.softmax(log_w)
    # A compiler finds the same products again: only the way back is new.
    log_w = _log_weights(model, x, still, jax.vmap(scaled_gradient)(z, factor), beta)
    return log_mean_exp(log_w), jnp.mean(log_w)


class _Shares(eqx.Module):
    probability: Float[Array, "n k"]
    log_q: Float[Array, "n k"]


def _draws(model: Any, x: Any, options: tuple[str, int, float], key: PRNGKeyArray) -> tuple[Any, Any, _Shares]:
    """(log p(x | z), divergences, shares) of draws for every example."""
    name, k, temperature = options

    def one(x: Any, key: PRNGKeyArray) -> Any:
        q = model.recognise(x)
        z = jax.vmap(lambda key: draw(name, q, temperature, key=key))(jax.random.split(key, k))
        given = jax.vmap(lambda z: model.log_given(x, z))(z)
        rates = jax.vmap(lambda z: model.divergences(q, z))(z)
        fixed = jax.vmap(q.log_prob)(jax.lax.stop_gradient(z)) if GRADIENTS[name].scored else jnp.zeros_like(given)
        return given, rates, fixed

    given, rates, log_q = jax.vmap(one)(x, jax.random.split(key, batch_size(x)))
    return given, rates, _Shares(jnp.full(given.shape, 1 / k, given.dtype), log_q)


def _all_states(model: Any, x: Any, options: Any, key: PRNGKeyArray) -> tuple[Any, Any, _Shares]:
    """The same for every state of the latents with its probability, or once where E_q is known."""
    del options
    if isinstance(model, ExpectedGiven):

        def closed(x: Any) -> Any:
            q = model.recognise(x)
            given = model.expected_log_given(x, q)
            return given[None], model.divergences(q, q.mean())[None], jnp.ones_like(given)[None]

        given, rates, probability = jax.vmap(closed)(x)
        return given, rates, _Shares(probability, jnp.zeros_like(probability))
    del key
    dtype = jax.tree.leaves(x)[0].dtype
    states = jax.tree.map(lambda a: jnp.asarray(a, dtype), space.enumerate_states(model.z_space))

    def one(x: Any) -> Any:
        q = model.recognise(x)
        given = jax.vmap(lambda z: model.log_given(x, z))(states)
        return given, jax.vmap(lambda z: model.divergences(q, z))(states), jax.vmap(q.log_prob)(states)

    given, rates, log_q = jax.vmap(one)(x)
    return given, rates, _Shares(jnp.exp(log_q), log_q)


def _seed(key: PRNGKeyArray) -> UInt32[Array, ""]:
    return jax.random.bits(key, (), jnp.uint32)


def _check(bound: Any) -> None:
    if not isinstance(bound.k, int) or bound.k < 1:
        raise ParameterError(f"k must be a whole number of draws, at least 1, got {bound.k!r}.")
    for name in ("beta", "warmup", "free_bits"):
        if getattr(bound, name, 0.0) < 0:
            raise ParameterError(f"{name} must be at least 0, got {getattr(bound, name)!r}.")
    if not bound.temperature > 0:
        raise ParameterError(f"temperature must be greater than 0, got {bound.temperature!r}.")
    if bound.gradient != "auto" and bound.gradient not in GRADIENTS:
        raise UnknownNameError("gradient", bound.gradient, ["auto", *GRADIENTS])
