"""The joint distribution of a variational autoencoder, and its recognition network.

    E(x, z) = −log p(x, z),      p(x, z) = p(x | z¹) p(z¹ | z²) … p(z^L),      p(z^L) = N(0, I), or learned odds;

the parameters of each conditional distribution are the outputs of a network. The top prior may also be the mixture
of posteriors

    p(z^L) = 1/K Σ_k q(z^L | u_k)

of learned pseudo-inputs u_k (Tomczak and Welling, 2018), which adapts to the distribution of the codes.

Recognition goes upwards, q(z¹ | x) q(z² | z¹) …, or down a ladder, q(z^L | x) … q(z¹ | z², x), where x's evidence
about each layer is multiplied with the model's prediction.

Metropolis within Gibbs (Mattei and Frellsen, 2018) draws what is missing: propose z from q(z | x), accept it as if
it were the posterior's, then draw x given z.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, PRNGKeyArray

from latentia.core.capabilities import (
    Amortised,
    Conditionals,
    Constrained,
    Decodes,
    ExactSampler,
    ExpectedGiven,
    Initialised,
)
from latentia.core.model import Scalar
from latentia.core.parameters import bias
from latentia.core.space import Space
from latentia.energies.vae_parts import AbstractVisible, Reader, Reals, Rung, Vector
from latentia.inference import posteriors
from latentia.inference.amortised import DiagonalGaussian
from latentia.inference.posteriors import AbstractLayered, BottomUp, Coins, Mixture, TopDown, n_numbers, numbers_to
from latentia.ops.arrays import keep
from latentia.ops.networks import MLP

Latents = Literal["gaussian", "bernoulli"]


class AbstractVAE(Amortised, Conditionals, Constrained, Decodes, ExactSampler, Initialised):
    """Networks between x, z¹ … z^L; see the module's docstring. With one layer z is an array, else a tuple.

    Args:
        visible: p(x | numbers).
        decoder: z¹ → numbers of x.
        encoder: x → numbers of q(z¹ | x); on a ladder, the lowest rung.
        generative: z^{l+1} → numbers of p(z^l | z^{l+1}), the lowest first.
        recognition: z^l → numbers of q(z^{l+1} | z^l), or the further rungs.
        sizes: latents of each layer, the lowest first.
        latents: "gaussian" or "bernoulli".
        posterior: "diagonal" or "full".
        ladder: how recognition goes.
        log_odds: of the uppermost layer, where it is binary and its prior is no mixture; else None.
        pseudo_inputs: K of them, if the prior of the uppermost layer is the mixture of their posteriors; else None.
    """

    visible: AbstractVisible
    decoder: Any
    encoder: Any
    generative: tuple[Any, ...]
    recognition: tuple[Any, ...]
    sizes: tuple[int, ...] = eqx.field(static=True)
    latents: str = eqx.field(static=True)
    posterior: str = eqx.field(static=True)
    ladder: bool = eqx.field(static=True)
    log_odds: Vector | None = bias()
    pseudo_inputs: Any = bias()

    # -- structure ---------------------------------------------------------------------------------------------

    @property
    def x_space(self) -> Space:
        """The visibles'."""
        return self.visible.space

    @property
    def z_space(self) -> Any:
        """The layers': one space, or a tuple of them."""
        domain = "real" if self.latents == "gaussian" else "binary"
        spaces = tuple(Space(domain, (n,)) for n in self.sizes)
        return spaces[0] if len(spaces) == 1 else spaces

    def _layers(self, z: Any) -> tuple[Array, ...]:
        return (z,) if len(self.sizes) == 1 else z

    def _packed(self, layers: Sequence[Array]) -> Any:
        return layers[0] if len(self.sizes) == 1 else tuple(layers)

    # -- the model ---------------------------------------------------------------------------------------------

    def prior(self, level: int, layers: Sequence[Any]) -> Any:
        """p(z^l | z^{l+1}); levels count from 0."""
        if level < len(self.sizes) - 1:
            return numbers_to(self.latents, self.generative[level](layers[level + 1]))
        if self.pseudo_inputs is not None:
            return Mixture(jax.vmap(self._uppermost)(self.pseudo_inputs))
        if self.log_odds is not None:
            return Coins(self.log_odds)
        dtype = jax.tree.leaves(eqx.filter(self.decoder, eqx.is_inexact_array))[0].dtype
        zero = jnp.zeros(self.sizes[-1], dtype)
        return DiagonalGaussian(zero, zero)

    def log_prior(self, z: Any) -> Scalar:
        """log p(z)."""
        layers = self._layers(z)
        terms = [self.prior(level, layers).log_prob(layer) for level, layer in enumerate(layers)]
        return jnp.sum(jnp.stack(terms))

    def log_given(self, x: Any, z: Any) -> Scalar:
        """log p(x | z¹)."""
        return self.visible.log_prob(self.decoder(self._layers(z)[0]), x)

    def energy(self, x: Any, z: Any) -> Scalar:
        """−log p(x | z¹) − log p(z)."""
        return -self.log_given(x, z) - self.log_prior(z)

    def decode(self, z: Any) -> Any:
        """E[x | z¹]."""
        return self.visible.mean(self.decoder(self._layers(z)[0]))

    def descend(self, level: int, layer: Array) -> Any:
        """All layers from one of them downwards, each at its mean given the one above; those above at zero."""
        layers: list[Any] = [jnp.zeros(n, layer.dtype) for n in self.sizes]
        layers[level] = layer
        for below in reversed(range(level)):
            layers[below] = self.prior(below, layers).mean()
        return self._packed(layers)

    def sample(self, *, key: PRNGKeyArray) -> tuple[Any, Any]:
        """z from the top downwards, then x."""
        layers: list[Any] = [None] * len(self.sizes)
        for level in reversed(range(len(self.sizes))):
            layers[level] = self.prior(level, layers).sample(key=jax.random.fold_in(key, level))
        z = self._packed(layers)
        return self._draw(z, key=jax.random.fold_in(key, len(layers))), z

    def _draw(self, z: Any, *, key: PRNGKeyArray) -> Array:
        return self.visible.sample(self.decoder(self._layers(z)[0]), key=key)

    # -- recognition -------------------------------------------------------------------------------------------

    def recognise(self, x: Any) -> Any:
        """q(z | x)."""
        if self.ladder:
            features, numbers = self.encoder(x)
            evidence = [numbers_to("gaussian", numbers)]
            for rung in self.recognition:
                features, numbers = rung(features)
                evidence.append(numbers_to("gaussian", numbers))
            return TopDown(tuple(evidence), self.generative)
        lowest = numbers_to(self._kind, self.encoder(x))
        return lowest if len(self.sizes) == 1 else BottomUp(lowest, self.recognition, self._kind)

    def _uppermost(self, x: Any) -> Any:
        """q(z^L | x), for one layer of latents or a ladder of them."""
        q = self.recognise(x)
        return q.evidence[-1] if isinstance(q, TopDown) else q

    @property
    def _kind(self) -> str:
        return "full" if self.posterior == "full" else self.latents

    def divergences(self, q: Any, z: Any) -> Vector:
        """In closed form for the uppermost layer, and for all layers of a ladder."""
        layers = self._layers(z)
        terms = []
        for level, layer in enumerate(layers):
            own = q.conditional(level, layers) if isinstance(q, AbstractLayered) else q
            prior = self.prior(level, layers)
            if isinstance(prior, Mixture):
                terms.append((own.log_prob(layer) - prior.log_prob(layer))[None])
            elif self.ladder or level == len(layers) - 1:
                terms.append(posteriors.divergences(own, prior))
            else:  # the layer above was drawn given this one, so that the mean over this one is out of reach
                terms.append(posteriors.log_ratios(own, prior, layer))
        return jnp.concatenate(terms)

    # -- chains ------------------------------------------------------------------------------------------------

    def begin(self, x: Any, *, key: PRNGKeyArray) -> Any:
        """A draw of q(z | x)."""
        return self.recognise(x).sample(key=key)

    def sweep(self, x: Any, z: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Any]:
        """z by a Metropolis step with q(z | x) as proposal, then x given z."""
        propose, accept, draw = jax.random.split(key, 3)
        q = self.recognise(x)
        new = q.sample(key=propose)
        gain = (q.log_prob(z) + self.energy(x, z)) - (q.log_prob(new) + self.energy(x, new))
        taken: Bool[Array, ""] = jnp.log(jax.random.uniform(accept, (), gain.dtype)) < gain
        z = jax.tree.map(lambda a, b: jnp.where(taken, a, b), new, z)
        return keep(fixed, x, self._draw(z, key=draw)), z

    # -- learning ----------------------------------------------------------------------------------------------

    def project(self) -> Self:
        """The visibles' scales, and pseudo-inputs, inside their range."""
        model = eqx.tree_at(lambda m: m.visible, self, self.visible.projected(), is_leaf=_is_visible)
        if self.pseudo_inputs is None or self.x_space.domain == "real":
            return model
        return eqx.tree_at(lambda m: m.pseudo_inputs, model, jnp.clip(self.pseudo_inputs, 0.0, 1.0))

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """The encoder standardises, and the decoder begins with what describes the pixels one by one."""
        visible, numbers = self.visible.fitted(x)
        model = eqx.tree_at(lambda m: m.visible, self, visible, is_leaf=_is_visible)
        if self.pseudo_inputs is not None:
            n = self.pseudo_inputs.shape[0]
            chosen = jax.random.choice(key, x.shape[0], (n,), replace=n > x.shape[0])
            model = eqx.tree_at(lambda m: m.pseudo_inputs, model, x[chosen])
        if isinstance(model.decoder, MLP):
            model = eqx.tree_at(lambda m: m.decoder.layers[-1].biases, model, numbers)
        if isinstance(model.encoder, Reader):
            rows = x.reshape(x.shape[0], -1)
            spread = visible.spread if isinstance(visible, Reals) else jnp.ones_like(model.encoder.spread)
            where = lambda m: (m.encoder.centre, m.encoder.spread)  # noqa: E731
            model = eqx.tree_at(where, model, (jnp.mean(rows, axis=0), spread))
        return model


class VAEModel(AbstractVAE):
    """Any decoder."""


class LinearVAEModel(AbstractVAE, ExpectedGiven):
    """A linear decoder with Gaussian visibles: E_q[log p(x | z)] needs no draws.

    E_q‖x − m − s(Wz + b)‖²/σ² is that at z = E_q[z], plus Σ_k var(z_k) ‖s w_k/σ‖² for independent latents.
    """

    def expected_log_given(self, x: Any, q: Any) -> Scalar:
        """E_q[log p(x | z)]."""
        visible: Any = self.visible
        numbers = self.decoder(q.mean())
        precision = jnp.exp(-2 * visible.log_sigmas(numbers))
        columns = (visible.spread**2 * precision) @ self.decoder.layers[0].weights ** 2
        return visible.log_prob(numbers, x) - 0.5 * jnp.sum(posteriors.variance(q) * columns)


def _is_visible(node: Any) -> bool:
    return isinstance(node, AbstractVisible)


def build(
    visible: AbstractVisible,
    *,
    sizes: tuple[int, ...],
    hidden: Sequence[Sequence[int]],
    decoder_hidden: Sequence[Sequence[int]],
    latents: str,
    posterior: str,
    ladder: bool,
    activation: str,
    key: PRNGKeyArray,
    encoder: Any = None,
    decoder: Any = None,
    n_pseudo_inputs: int = 0,
) -> AbstractVAE:
    """A model with random networks, or with those given for x ↔ z¹.

    Args:
        visible: p(x | numbers).
        sizes: latents of each layer.
        hidden: hidden sizes of the recognition networks, level by level from the data upwards.
        decoder_hidden: those of the generative networks, each from above downwards.
        latents: "gaussian" or "bernoulli".
        posterior: "diagonal" or "full".
        ladder: whether recognition goes down a ladder.
        activation: between the layers of the networks.
        key: random key.
        encoder: x → numbers of q(z¹ | x), in place of a network.
        decoder: z¹ → numbers of x, in place of a network.
        n_pseudo_inputs: whose posteriors make up the prior; 0 for a plain prior.
    """
    n, levels = _width(visible.space), range(len(sizes))
    keys = iter(jax.random.split(key, 4 * len(sizes)))
    kind = "full" if posterior == "full" else latents

    def network(inside: int, middle: Sequence[int], outside: int, gain: float) -> MLP:
        return MLP.make((inside, *middle, outside), key=next(keys), activation=activation, gain=gain)

    def rung(inside: int, level: int) -> Rung:
        sides = (inside, *hidden[level])
        body = MLP.make(sides, key=next(keys), activation=activation, last=activation, gain=1.0)
        return Rung(body, network(sides[-1], (), 2 * sizes[level], 0.1))

    if ladder:
        lowest, upper = rung(n, 0), tuple(rung(hidden[i - 1][-1], i) for i in levels[1:])
    else:
        lowest = network(n, hidden[0], n_numbers(kind, sizes[0]), 0.1)
        upper = tuple(network(sizes[i - 1], hidden[i], n_numbers(kind, sizes[i]), 0.1) for i in levels[1:])
    generative = tuple(
        network(sizes[i], decoder_hidden[i], n_numbers(latents, sizes[i - 1]), 0.1) for i in levels[1:]
    )
    own_decoder = network(sizes[0], decoder_hidden[0], visible.n_numbers, 1.0)
    predicted = isinstance(visible, Reals) and visible.variance == "predicted"
    linear = len(sizes) == 1 and not decoder_hidden[0] and isinstance(visible, Reals) and not predicted
    plain = decoder is None and posterior == "diagonal" and not n_pseudo_inputs
    make = LinearVAEModel if linear and plain else VAEModel
    odds = jnp.zeros(sizes[-1]) if latents == "bernoulli" and not n_pseudo_inputs else None
    pseudo_inputs = jnp.zeros((n_pseudo_inputs, *visible.space.shape)) if n_pseudo_inputs else None
    reader = Reader(lowest, jnp.zeros(n), jnp.ones(n)) if encoder is None else encoder
    return make(
        visible,
        own_decoder if decoder is None else decoder,
        reader,
        generative,
        upper,
        sizes,
        latents,
        posterior,
        ladder,
        odds,
        pseudo_inputs,
    )


def _width(space: Space) -> int:
    return math.prod(space.shape)
