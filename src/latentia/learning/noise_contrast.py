"""Noise contrast: learn a model, and its log Z, by classifying data against noise.

With ν noise samples for every example, noise of known density p_n and a free parameter c for log Z, the log-odds
that x came from the model are G(x) = −F(x) − c − log(ν p_n(x)), and the loss is that of a logistic regression
(Gutmann and Hyvärinen, 2012),

    J = −E_data log σ(G) − ν E_noise log σ(−G).

At the minimum c = log Z. The loss is convex in c: one damped Newton step a batch keeps c where it belongs, whatever
the scale of the energy and the rate of the optimiser.

Conditional noise contrast (Ceylan and Gutmann, 2018) compares an example x with a disturbed copy y of itself. For a
symmetric disturbance, q(y | x) = q(x | y), only the energies are left,

    J = E log(1 + exp(−G)),      G = F(y) − F(x):

no noise density and no c, so log Z stays unknown.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import ParameterError
from latentia.core.model import Scalar
from latentia.learning.noise import AbstractDisturbance, AbstractNoise, Disturbance, draw_many
from latentia.learning.noise import noise as noise_by_name
from latentia.ops.arrays import batch_size, weighted_mean

#: Most that one batch may move c, in nats.
LONGEST_STEP = 5.0
#: Part of a Newton step that every batch takes in the long run.
SLOWEST_RATE = 0.05
#: Noise samples with which c starts.
FIRST_SAMPLES = 1000


class NoiseState(eqx.Module):
    """Noise samples, and c with the number of steps that it has made."""

    samples: Any
    log_z: Float[Array, ""]
    n_steps: Float[Array, ""]


class NCE(AbstractObjective):
    """Noise-contrastive estimation.

    Args:
        ratio: noise samples for every example, ν.
        noise: "gaussian", "mixture", "marginals", an :class:`~latentia.learning.noise.AbstractNoise`, or "auto".

    Reference:
        Gutmann and Hyvärinen (2012), *Noise-contrastive estimation of unnormalized statistical models*.
    """

    ratio: int = eqx.field(static=True, default=1)
    noise: Any = "auto"

    def __check_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    def surveyed(self, model: Any, look: Any, *, key: PRNGKeyArray) -> NCE:
        """With noise fitted to the data."""
        del key
        return NCE(self.ratio, noise_by_name(self.noise, model.x_space).fitted(model.x_space, look()))

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> NoiseState:
        """Noise samples, and c by importance sampling: Z = E_noise exp(−F)/p_n."""
        first, sample_key = jax.random.split(key)
        drawn = draw_many(self._noise(), FIRST_SAMPLES, key=first)
        log_z = first_log_z(-jax.vmap(model.free_energy)(drawn) - jax.vmap(self._noise().log_prob)(drawn))
        samples = draw_many(self._noise(), self.ratio * batch_size(x), key=sample_key)
        return NoiseState(samples, log_z, jnp.zeros_like(log_z))

    def _noise(self) -> AbstractNoise:
        if not isinstance(self.noise, AbstractNoise):
            raise ParameterError("The noise is not fitted to the data: call surveyed() first.")
        return self.noise

    def prepare(
        self, model: Any, x: Any, state: NoiseState, *, key: PRNGKeyArray, weights: Any = None
    ) -> NoiseState:
        """Fresh noise, and a step of c."""
        samples = draw_many(self._noise(), self.ratio * batch_size(x), key=key)
        data, noise = self._log_odds(model, x, samples)
        return advanced(state, samples, data, noise, self.ratio, weights)

    def _log_odds(self, model: Any, x: Any, samples: Any) -> tuple[Array, Array]:
        """−F − log(ν p_n) on the data and on the noise: G without c."""
        both = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), x, samples)
        values = -jax.vmap(model.free_energy)(both) - jax.vmap(self._noise().log_prob)(both) - jnp.log(self.ratio)
        return values[: batch_size(x)], values[batch_size(x) :]

    def loss(self, model: Any, x: Any, weights: Any, state: NoiseState) -> tuple[Scalar, Metrics]:
        """J, with c as the metric ``log_z``."""
        data, noise = self._log_odds(model, x, state.samples)
        value = contrast(data - state.log_z, noise - state.log_z, self.ratio, weights)
        return value, {"nce": value, "log_z": state.log_z}


def contrast(data: Float[Array, " n"], noise: Float[Array, " m"], ratio: int, weights: Any) -> Scalar:
    """−E_data log σ(G) − ν E_noise log σ(−G)."""
    return weighted_mean(jax.nn.softplus(-data), weights) + ratio * jnp.mean(jax.nn.softplus(noise))


def first_log_z(log_weights: Float[Array, " n"]) -> Scalar:
    """log mean exp."""
    return jax.nn.logsumexp(log_weights) - jnp.log(float(log_weights.shape[0])).astype(log_weights.dtype)


def advanced(state: NoiseState, samples: Any, data: Array, noise: Array, ratio: int, weights: Any) -> NoiseState:
    """The state with new samples and c moved by a damped Newton step on J; ``data`` and ``noise`` are G + c.

    ∂J/∂c = E_data σ(−G) − ν E_noise σ(G) and ∂²J/∂c² = E_data σ(G)σ(−G) + ν E_noise σ(G)σ(−G).
    """
    data, noise = data - state.log_z, noise - state.log_z
    spread = lambda g: jax.nn.sigmoid(g) * jax.nn.sigmoid(-g)  # noqa: E731
    slope = weighted_mean(jax.nn.sigmoid(-data), weights) - ratio * jnp.mean(jax.nn.sigmoid(noise))
    bend = weighted_mean(spread(data), weights) + ratio * jnp.mean(spread(noise))
    step = jnp.clip(slope / jnp.maximum(bend, 1e-6), -LONGEST_STEP, LONGEST_STEP)
    rate = jnp.maximum(1 / (2 + state.n_steps), SLOWEST_RATE)
    return NoiseState(samples, state.log_z - rate * step, state.n_steps + 1)


class ConditionalNCE(AbstractObjective):
    """Conditional noise contrast: an example against disturbed copies of itself.

    Args:
        ratio: disturbed copies of every example.
        disturbance: how to disturb; symmetric.

    Reference:
        Ceylan and Gutmann (2018), *Conditional noise-contrastive estimation of unnormalised models*.
    """

    ratio: int = eqx.field(static=True, default=1)
    disturbance: AbstractDisturbance = Disturbance()

    def __check_init__(self) -> None:
        check_ratio(self.ratio)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    def surveyed(self, model: Any, look: Any, *, key: PRNGKeyArray) -> ConditionalNCE:
        """With a disturbance of the data's own scale."""
        del key
        return ConditionalNCE(self.ratio, self.disturbance.fitted(model.x_space, look()))

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """Disturbed copies, ``(ratio, n, …)``."""
        del model
        keys = jax.random.split(key, (self.ratio, batch_size(x)))
        return jax.vmap(jax.vmap(lambda x, key: self.disturbance.disturb(x, key=key)), in_axes=(None, 0))(x, keys)

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """Fresh copies."""
        del state, weights
        return self.init(model, x, key=key)

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """J."""
        energies = jax.vmap(model.free_energy)
        advantage = jax.vmap(energies)(state) - energies(x)[None, :]
        value = weighted_mean(jnp.mean(jax.nn.softplus(-advantage), axis=0), weights)
        return value, {"conditional_nce": value}


def check_ratio(ratio: int) -> None:
    """Refuse anything but a positive whole number."""
    if not isinstance(ratio, int) or ratio < 1:
        raise ParameterError(f"ratio must be a whole number of at least 1, got {ratio!r}.")
