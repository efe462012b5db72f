"""RBMs with tied copies of a layer: the stages of a deep Boltzmann machine's pretraining.

A hidden layer of a deep Boltzmann machine has input from below *and* from above. An RBM that becomes one of
its parts must not count the input of the other neighbour twice, so it is trained with copies: with n copies of the
visible layer, all showing the data, and m copies of the hidden one, every pair joined by the same weights,

    p(h | x, …, x) = σ(n Wᵀx + b),        p(x | h, …, h) = σ(m W h + a).

The first stage has n = 2, m = 1; the last n = 1, m = 2; those between n = m = 2 (an ordinary RBM with weights 2W).
The logit of a layer in the assembled machine is then the average of what its two stages say of it:

    W¹ᵀx + W²h² + ½(b¹ + a²) = ½ (2 W¹ᵀx + b¹) + ½ (2 W²h² + a²).

Reference: Salakhutdinov and Hinton (2012), "An efficient learning procedure for deep Boltzmann machines".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import Centred, Constrained, FreeEnergy, Initialised, Settles
from latentia.core.model import Scalar
from latentia.core.parameters import buffer, weight
from latentia.energies.layered import LayeredModel
from latentia.ops.arrays import float_type
from latentia.units import AbstractUnits


class ReplicatedRBM(FreeEnergy, Settles, Centred, Constrained, Initialised):
    """An RBM with ``copies = (n, m)`` of its visible and hidden layer; x and z are tuples of copies."""

    visible: AbstractUnits
    hidden: AbstractUnits
    weights: Float[Array, "visible hidden"] = weight()
    visible_offset: Float[Array, " visible"] = buffer()
    hidden_offset: Float[Array, " hidden"] = buffer()
    copies: tuple[int, int] = eqx.field(static=True, default=(1, 1))

    @classmethod
    def make(
        cls,
        visible: AbstractUnits,
        hidden: AbstractUnits,
        copies: tuple[int, int],
        *,
        key: PRNGKeyArray,
        weight_scale: float = 0.01,
    ) -> Self:
        """Small random weights, no offsets."""
        shape = (visible.n_statistics, hidden.n_statistics)
        dtype = float_type((visible, hidden))
        weights = weight_scale * jax.random.normal(key, shape, dtype)
        return cls(visible, hidden, weights, jnp.zeros(shape[0], dtype), jnp.zeros(shape[1], dtype), copies)

    def expanded(self) -> LayeredModel:
        """The machine with its copies written out."""
        n, m = self.copies
        edges = tuple((i, n + j) for i in range(n) for j in range(m))
        offsets = (*[self.visible_offset] * n, *[self.hidden_offset] * m)
        layers = ((self.visible,) * n, (self.hidden,) * m)
        constant = jnp.zeros((), self.weights.dtype)
        return LayeredModel(*layers, (self.weights,) * len(edges), offsets, constant, edges)

    def _tied(self, model: LayeredModel) -> Self:
        """The model whose copies all look like the first ones of ``model``."""
        n = self.copies[0]
        first = (model.visible[0], model.hidden[0], self.weights, model.offsets[0], model.offsets[n])
        return type(self)(*first, self.copies)

    @property
    def x_space(self) -> Any:
        """The copies of the visible layer (the layer itself if there is one)."""
        return self.expanded().x_space

    @property
    def z_space(self) -> Any:
        """The copies of the hidden layer."""
        return self.expanded().z_space

    def energy(self, x: Any, z: Any) -> Scalar:
        """Of all copies together."""
        return self.expanded().energy(x, z)

    def free_energy(self, x: Any) -> Scalar:
        """All copies of the hidden layer summed out."""
        return self.expanded().visible_free_energy(x)

    def settled_energy(self, x: Any, z: Any) -> Scalar:
        """The side summed out that a sweep draws last."""
        return self.expanded().settled_energy(x, z)

    def begin(self, x: Any, *, key: PRNGKeyArray) -> Any:
        """A draw of the hidden copies."""
        return self.expanded().begin(x, key=key)

    def sweep(self, x: Any, z: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Any]:
        """One side given the other, then the other way round."""
        return self.expanded().sweep(x, z, key=key, fixed=fixed)

    def centres(self, x: Any, weights: Any) -> Any:
        """Means of the first copies."""
        return self.expanded().centres(x, weights)

    def recentred(self, centres: Any, rate: Any) -> Self:
        """Offsets move towards the centres, by the same amount in all copies."""
        return self._tied(self.expanded().recentred(centres, rate))

    def project(self) -> Self:
        """Scales inside their range."""
        return self._tied(self.expanded().project())

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """Visible scale and biases from the data; offsets at the data's means."""
        return self._tied(self.expanded().initialise(x, key=key))

    def code(self, x: Any) -> Float[Array, " hidden"]:
        """E[h | x, …, x], the next stage's data."""
        n = self.copies[0]
        return self.hidden.mean(n * (self.visible.statistic(x) - self.visible_offset) @ self.weights)

    def plain_biases(self) -> tuple[AbstractUnits, AbstractUnits]:
        """The layers with the offsets' share folded into their biases: what they would be without centring."""
        n, m = self.copies
        visible = self.visible.biased(-m * (self.weights @ self.hidden_offset))
        return visible, self.hidden.biased(-n * (self.visible_offset @ self.weights))


def assemble(model: LayeredModel, stages: Sequence[ReplicatedRBM]) -> LayeredModel:
    """A chain x – h¹ – h² – … with the stages' weights, and biases that average what two stages say of a layer."""
    sides = [stage.plain_biases() for stage in stages]
    visible = (sides[0][0], *model.visible[1:])
    hidden = []
    for lower, upper in zip(sides, [*sides[1:], None], strict=True):
        below = lower[1]
        hidden.append(below if upper is None else jax.tree.map(lambda a, b: (a + b) / 2, below, upper[0]))
    chain = tuple(stage.weights for stage in stages)
    empty = tuple(jnp.zeros_like(offset) for offset in model.offsets)
    weights = chain + model.weights[len(chain) :]  # labels keep their small random ones
    return LayeredModel(visible, tuple(hidden), weights, empty, model.constant, model.edges)
