"""Variational noise contrast: noise contrast for unnormalised models whose latents cannot be summed out.

With p̃(x, z) = exp(−E(x, z) − c), a posterior q(z | x) and G(x, z) = log p̃(x, z) − log(ν p_n(x) q(z | x)),

    J = E_data E_q log σ(G(x, z)) − ν E_noise log(1 + E_q[p̃/q] / (ν p_n))

is at most the objective of noise contrast with the latents summed out (to be maximised), with equality if and only
if q is the true posterior (Rhodes and Gutmann, 2019). The second term's E_q[p̃/q] is p̃(x) whatever q is; it is found
by importance sampling. So q is learned by the first term alone: by differentiable draws where the latents are real,
and otherwise by the score function with the other draws as a baseline. c is learned as in plain noise contrast.
"""

from __future__ import annotations

from typing import Any, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractInference, AbstractObjective, Metrics, Need
from latentia.core.capabilities import ExactPosterior
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel, Scalar
from latentia.core.space import Domain, leaves
from latentia.inference.amortised import DOMAINS, Encoder
from latentia.inference.exact import Exact
from latentia.learning.noise import AbstractNoise, draw_many
from latentia.learning.noise import noise as noise_by_name
from latentia.learning.noise_contrast import (
    FIRST_SAMPLES,
    NoiseState,
    advanced,
    check_ratio,
    contrast,
    first_log_z,
)
from latentia.ops.arrays import batch_size


class VariationalState(eqx.Module):
    """Noise and c, the inference (with the weights of an encoder), and the seed of this step's latents."""

    noise: NoiseState
    inference: Any
    seed: Array


class VNCE(AbstractObjective):
    """Variational noise-contrastive estimation.

    Args:
        ratio: noise samples for every example, ν.
        noise: as in :class:`~latentia.learning.noise_contrast.NCE`.
        posterior: "encoder": a network from x to a product over the latents (normal, Bernoulli, categorical),
            learned along with the model; "exact": the model's own posterior.
        hidden: units of the encoder's hidden layer; None for an affine encoder. Latents that explain one another
            away, as in sparse coding, need a hidden layer: the bound of an affine encoder is too loose there.
        n_samples: draws of the latents for every example.

    Reference:
        Rhodes and Gutmann (2019), *Variational noise-contrastive estimation*.
    """

    ratio: int = eqx.field(static=True, default=1)
    noise: Any = "auto"
    posterior: str = eqx.field(static=True, default="encoder")
    hidden: int | None = eqx.field(static=True, default=None)
    n_samples: int = eqx.field(static=True, default=8)
    encoder: Encoder | None = None

    def __check_init__(self) -> None:
        check_ratio(self.ratio)
        if self.posterior not in ("encoder", "exact"):
            raise ParameterError(f"posterior must be 'encoder' or 'exact', got {self.posterior!r}.")
        if self.n_samples < 2:
            raise ParameterError(f"n_samples must be at least 2, got {self.n_samples}.")

    @property
    def requires(self) -> tuple[Need, ...]:
        """An energy; and ``ExactPosterior`` for ``posterior="exact"``."""
        return (ExactPosterior,) if self.posterior == "exact" else (AbstractModel,)

    @property
    def latent_domains(self) -> tuple[Domain, ...]:
        """Those that an encoder supports; without latents there is nothing to approximate."""
        return get_args(Domain) if self.posterior == "exact" else DOMAINS

    def surveyed(self, model: Any, look: Any, *, key: PRNGKeyArray) -> VNCE:
        """With noise fitted to the data, and an encoder for them."""
        x = look()
        noise = noise_by_name(self.noise, model.x_space).fitted(model.x_space, x)
        encoder = None
        if self.posterior == "encoder":
            encoder = Encoder.make(model.z_space, x, hidden=self.hidden, key=key)
        return VNCE(self.ratio, noise, self.posterior, self.hidden, self.n_samples, encoder)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> VariationalState:
        """Noise samples, and c by importance sampling over noise and latents."""
        if not isinstance(self.noise, AbstractNoise):
            raise ParameterError("The noise is not fitted to the data: call surveyed() first.")
        first, latents, sample_key = jax.random.split(key, 3)
        inference = Exact() if self.encoder is None else self.encoder
        drawn = draw_many(self.noise, FIRST_SAMPLES, key=first)
        log_p = _log_p(*self._draws(model, inference, drawn, latents)[:2])
        log_z = first_log_z(log_p - jax.vmap(self.noise.log_prob)(drawn))
        samples = draw_many(self.noise, self.ratio * batch_size(x), key=sample_key)
        noise = NoiseState(samples, log_z, jnp.zeros_like(log_z))
        return VariationalState(noise, inference, jax.random.key_data(key))

    def learned(self, state: VariationalState) -> Encoder | None:
        """The encoder."""
        return state.inference if isinstance(state.inference, Encoder) else None

    def with_learned(self, state: VariationalState, learned: Any) -> VariationalState:
        """With another encoder."""
        return state if learned is None else VariationalState(state.noise, learned, state.seed)

    def prepare(
        self, model: Any, x: Any, state: VariationalState, *, key: PRNGKeyArray, weights: Any = None
    ) -> VariationalState:
        """Fresh noise, a fresh seed, and a step of c."""
        noise_key, latent_key = jax.random.split(key)
        samples = draw_many(self.noise, self.ratio * batch_size(x), key=noise_key)
        data, noise = self._odds(model, state.inference, x, samples, latent_key)
        weights = None if weights is None else jnp.repeat(weights, self.n_samples)
        moved = advanced(state.noise, samples, data[0].reshape(-1), noise, self.ratio, weights)
        return VariationalState(moved, state.inference, jax.random.key_data(latent_key))

    def _draws(
        self, model: Any, inference: AbstractInference, x: Any, key: PRNGKeyArray
    ) -> tuple[Float[Array, "n k"], Float[Array, "n k"], Float[Array, "n k"]]:
        """(−E(x, z), log q(z | x), the same with z held fixed) of draws z for every row."""
        real = all(leaf.domain == "real" for leaf in leaves(model.z_space))

        def one(x: Any, key: PRNGKeyArray) -> Any:
            q = inference.infer(model, x, key=key)
            z = jax.vmap(lambda key: q.sample(key=key))(jax.random.split(key, self.n_samples))
            fixed = jax.lax.stop_gradient(z)
            z = z if real else fixed
            return -jax.vmap(lambda z: model.energy(x, z))(z), jax.vmap(q.log_prob)(z), jax.vmap(q.log_prob)(fixed)

        return jax.vmap(one)(x, jax.random.split(key, batch_size(x)))

    def _odds(self, model: Any, inference: Any, x: Any, samples: Any, key: PRNGKeyArray) -> tuple[Any, Array]:
        """((G + c on the data, log q of its draws), G + c on the noise)."""
        data_key, noise_key = jax.random.split(key)
        log_p, log_q, log_q_fixed = self._draws(model, inference, x, data_key)
        prior = jax.vmap(self.noise.log_prob)(x) + jnp.log(self.ratio)
        of_noise = self._draws(model, jax.lax.stop_gradient(inference), samples, noise_key)[:2]
        noise = _log_p(*of_noise) - jax.vmap(self.noise.log_prob)(samples) - jnp.log(self.ratio)
        return (log_p - log_q - prior[:, None], log_q_fixed), noise

    def loss(self, model: Any, x: Any, weights: Any, state: VariationalState) -> tuple[Scalar, Metrics]:
        """−J, to be minimised; for discrete latents the encoder's gradient is that of the score function."""
        key = jax.random.wrap_key_data(state.seed)
        log_z, k = state.noise.log_z, self.n_samples
        (data, log_q), noise = self._odds(model, state.inference, x, state.noise.samples, key)
        tiled = None if weights is None else jnp.repeat(weights, k)
        value = contrast((data - log_z).reshape(-1), noise - log_z, self.ratio, tiled)
        metrics = {"vnce": value, "log_z": log_z}
        if all(leaf.domain == "real" for leaf in leaves(model.z_space)):
            return value, metrics
        cost = jax.lax.stop_gradient(jax.nn.softplus(log_z - data))
        others = (jnp.sum(cost, axis=1, keepdims=True) - cost) / (k - 1)
        pull = (cost - others) * log_q
        pull = jnp.mean(pull if weights is None else pull * weights[:, None])
        return value + pull - jax.lax.stop_gradient(pull), metrics


def _log_p(log_p: Float[Array, "n k"], log_q: Float[Array, "n k"]) -> Float[Array, " n"]:
    """log mean p̃/q over the draws of every row."""
    return jax.nn.logsumexp(log_p - log_q, axis=1) - jnp.log(float(log_p.shape[1])).astype(log_p.dtype)
