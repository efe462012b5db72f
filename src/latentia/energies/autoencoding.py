"""The model of autoencoders: an encoder, a decoder, and the reconstruction error as energy.

    E(x) = Σ_j ℓ_j(x, g(f(x))),

see :mod:`latentia.models.autoencoder`, which also describes the matching energy model.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import FreeEnergy, Initialised, Reconstructs
from latentia.core.errors import CapabilityError
from latentia.core.model import Scalar
from latentia.core.parameters import bias
from latentia.core.space import Space
from latentia.ops import networks
from latentia.ops.logistic import softplus
from latentia.ops.networks import MLP, POTENTIALS, AnyActivation, Dense, Held, Transposed, activation

Value = Float[Array, " d"]
Code = Float[Array, " k"]
#: Mean pixels are kept this far from 0 and 1 when their log-odds become the first biases.
MARGIN = 0.01


class TiedEnergy(FreeEnergy):
    """F(x) = ½‖x − a‖² − Σ_k Φ(w_kᵀx + b_k)."""

    layer: Dense
    centre: Value = bias()

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.centre.shape)

    @property
    def z_space(self) -> tuple[()]:
        """No latents."""
        return ()

    def energy(self, x: Value, z: tuple[()]) -> Scalar:
        """F(x)."""
        del z
        return self.free_energy(x)

    def free_energy(self, x: Value) -> Scalar:
        """½‖x − a‖² − Σ_k Φ(w_kᵀx + b_k)."""
        assert isinstance(self.layer.activation, str)
        potential = POTENTIALS[self.layer.activation]
        return 0.5 * jnp.sum((x - self.centre) ** 2) - jnp.sum(potential(self.layer.field(x)))


class AutoencoderModel(Reconstructs, Initialised):
    """E(x) = Σ_j ℓ_j(x, g(f(x))).

    Args:
        encoder: x ↦ code.
        decoder: code ↦ what ``output`` is applied to; or the biases of one with the encoder's weights.
        n_features: entries of x.
        n_code: entries of a code.
        loss: "squared" or "cross_entropy".
        output: from the decoder's values to x̂; a sigmoid for cross-entropy.
        n_winners: how many entries of a code are kept, the largest; None keeps all.
    """

    encoder: Any
    decoder: Any
    n_features: int = eqx.field(static=True)
    n_code: int = eqx.field(static=True)
    loss: str = eqx.field(static=True, default="squared")
    output: AnyActivation = eqx.field(static=True, default="linear")
    n_winners: int | None = eqx.field(static=True, default=None)

    @classmethod
    def dense(
        cls,
        sizes: Sequence[int],
        *,
        key: PRNGKeyArray,
        activation: AnyActivation = "relu",
        code_activation: AnyActivation = "linear",
        tied: bool = False,
        **options: Any,
    ) -> Self:
        """Dense layers of the given sizes, from x to the code, and back."""
        up, down = jax.random.split(key)
        encoder = MLP.make(sizes, key=up, activation=activation, last=code_activation)
        if tied:
            decoder: Any = Transposed.make(encoder, activation=activation)
        else:
            decoder = MLP.make(tuple(reversed(sizes)), key=down, activation=activation)
        return cls(encoder, decoder, sizes[0], sizes[-1], **options)

    @property
    def x_space(self) -> Space:
        """Bits, or grey values that stand for their probabilities, where the loss is the cross-entropy; else ℝᴰ."""
        return Space("binary" if self.loss == "cross_entropy" else "real", (self.n_features,))

    @property
    def z_space(self) -> tuple[()]:
        """Nothing is latent: the code is a function of x."""
        return ()

    @property
    def code_space(self) -> Space:
        """ℝᴷ."""
        return Space("real", (self.n_code,))

    def encode(self, x: Value) -> Code:
        """f(x)."""
        return self._kept(self.encoder(x))

    def _kept(self, code: Code) -> Code:
        return code if self.n_winners is None else networks.winners(code, self.n_winners)

    def _field(self, code: Code) -> Value:
        tied = isinstance(self.decoder, Transposed)
        return self.decoder.of(self.encoder)(code) if tied else self.decoder(code)

    def decode(self, z: Code) -> Value:
        """x̂ = g(z)."""
        return activation(self.output)(self._field(z))

    def losses(self, x: Value, code: Code) -> Value:
        """½(x_j − x̂_j)², or −x_j log x̂_j − (1 − x_j) log(1 − x̂_j)."""
        if self.loss == "cross_entropy":
            field = self._field(code)
            return softplus(field) - x * field
        return 0.5 * (x - self.decode(code)) ** 2

    def energy(self, x: Value, z: tuple[()]) -> Scalar:
        """The loss of x rebuilt from its code."""
        del z
        return jnp.sum(self.losses(x, self.encode(x)))

    def squared_jacobian(self, x: Value) -> Scalar:
        """‖∂f/∂x‖²_F; with one layer Σ_k s′(u_k)² ‖w_k‖², u = Wx + b, which takes no more than f itself."""
        if not self.is_shallow or not isinstance(self.encoder.layers[0].activation, str):
            return networks.squared_jacobian(self.encode, x)
        layer = self.encoder.layers[0]
        field, fire = layer.field(x), activation(layer.activation)
        _, slopes = jax.jvp(lambda u: self._kept(fire(u)), (field,), (jnp.ones_like(field),))
        return jnp.sum(slopes**2 * jnp.sum(layer.weights**2, axis=1))

    @property
    def is_shallow(self) -> bool:
        """Whether the encoder is one dense layer."""
        return isinstance(self.encoder, MLP) and len(self.encoder.layers) == 1

    def matching_energy(self) -> TiedEnergy:
        """The energy model whose ½‖∇F(x)‖² is this autoencoder's loss."""
        tied = self.is_shallow and isinstance(self.decoder, Transposed) and self.n_winners is None
        plain = self.loss == "squared" and self.output == "linear"
        if not tied or not plain or self.encoder.layers[0].activation not in POTENTIALS:
            raise CapabilityError(
                "A matching energy model exists for one layer with tied weights, squared loss, linear output and "
                f"an activation that is the slope of something ({', '.join(POTENTIALS)}), without winners."
            )
        return TiedEnergy(self.encoder.layers[0], self.decoder.biases[0])

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """The mean of the data as the first x̂; the first layer's sums centred there, with unit variance if real."""
        del key
        mean, model = jnp.mean(x, axis=0), self
        if isinstance(self.encoder, MLP):
            first, spread = self.encoder.layers[0], jnp.sqrt(jnp.mean(jnp.var(x, axis=0)))
            free = isinstance(self.decoder, MLP) and self.loss == "squared" and self.output == "linear"
            scale = jnp.where(spread > 0, spread, 1.0) if free else jnp.ones_like(spread)
            weights = first.weights / scale
            start = lambda m: (m.encoder.layers[0].weights, m.encoder.layers[0].biases)  # noqa: E731
            model = eqx.tree_at(start, model, (weights, -weights @ mean))
            if free:
                last = lambda m: m.decoder.layers[-1].weights  # noqa: E731
                model = eqx.tree_at(last, model, scale * last(model))
        if isinstance(self.decoder, Held) or self.output not in ("linear", "sigmoid"):
            return model
        biases = mean
        if self.output == "sigmoid":
            biases = jnp.clip(mean, MARGIN, 1 - MARGIN)
            biases = jnp.log(biases) - jnp.log1p(-biases)
        return eqx.tree_at(_last_biases, model, biases.reshape(-1, _last_biases(model).size).mean(axis=0))


def _last_biases(model: AutoencoderModel) -> Any:
    """What is added to x̂ before ``output``: one number for each entry, or for each colour of an image."""
    tied = isinstance(model.decoder, Transposed)
    return model.decoder.biases[-1] if tied else model.decoder.layers[-1].biases
