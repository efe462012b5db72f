"""Restricted Boltzmann machines over any two unit types.

With units' own energies E_v and E_h, statistics s and t, weights W and offsets μ and λ,

    E(x, z) = E_v(x) + E_h(z) − (s(x) − μ)ᵀ W (t(z) − λ).

The offsets *centre* the couplings (Montavon and Müller, 2012; Melchior, Fischer and Wiskott, 2016): they change
the gradient's geometry, not what the model can express, and zero offsets give the textbook form. With
f = Wᵀ(s(x) − μ), all follows from the units' log-partitions Γ:

    F(x) = E_v(x) + λ·f − Γ_h(f),      p(z | x) = units under the field f,      and likewise with x and z exchanged.
"""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import (
    Bounded,
    Centred,
    Constrained,
    Decodes,
    ExactPosterior,
    FreeEnergy,
    Initialised,
    LatentFreeEnergy,
    Restricts,
    Settles,
    Tempered,
)
from latentia.core.errors import CapabilityError
from latentia.core.model import Scalar
from latentia.core.parameters import buffer, weight
from latentia.core.space import Space, leaves
from latentia.ops.arrays import float_type, keep, weighted_mean
from latentia.units import AbstractUnits, Factorial
from latentia.units.joined import Joined

Value = Float[Array, "*shape"]


class RBMModel(
    FreeEnergy,
    LatentFreeEnergy,
    ExactPosterior,
    Decodes,
    Settles,
    Tempered,
    Centred,
    Constrained,
    Bounded,
    Initialised,
    Restricts,
):
    """E(x, z) = E_v(x) + E_h(z) − (s(x) − μ)ᵀ W (t(z) − λ)."""

    visible: AbstractUnits
    hidden: AbstractUnits
    weights: Float[Array, "visible hidden"] = weight()
    visible_offset: Float[Array, " visible"] = buffer()
    hidden_offset: Float[Array, " hidden"] = buffer()

    @classmethod
    def make(
        cls, visible: AbstractUnits, hidden: AbstractUnits, *, key: PRNGKeyArray, weight_scale: float = 0.01
    ) -> Self:
        """Small random weights between two layers, no offsets."""
        shape = (visible.n_statistics, hidden.n_statistics)
        dtype = float_type((visible, hidden))
        weights = weight_scale * jax.random.normal(key, shape, dtype)
        return cls(visible, hidden, weights, jnp.zeros(shape[0], dtype), jnp.zeros(shape[1], dtype))

    @property
    def x_space(self) -> Space:
        """The visible layer."""
        return self.visible.space

    @property
    def z_space(self) -> Space:
        """The hidden layer."""
        return self.hidden.space

    def _hidden_field(self, x: Value) -> Float[Array, " hidden"]:
        return (self.visible.statistic(x) - self.visible_offset) @ self.weights

    def _visible_field(self, z: Value) -> Float[Array, " visible"]:
        return self.weights @ (self.hidden.statistic(z) - self.hidden_offset)

    def energy(self, x: Value, z: Value) -> Scalar:
        """E(x, z)."""
        coupling = self._hidden_field(x) @ (self.hidden.statistic(z) - self.hidden_offset)
        return self.visible.energy(x) + self.hidden.energy(z) - coupling

    def free_energy(self, x: Value) -> Scalar:
        """E_v(x) + λ·f − Γ_h(f), f = Wᵀ(s(x) − μ)."""
        field = self._hidden_field(x)
        return self.visible.energy(x) + self.hidden_offset @ field - self.hidden.log_partition(field)

    def latent_free_energy(self, z: Value) -> Scalar:
        """E_h(z) + μ·f − Γ_v(f), f = W(t(z) − λ)."""
        field = self._visible_field(z)
        return self.hidden.energy(z) + self.visible_offset @ field - self.visible.log_partition(field)

    def posterior(self, x: Value) -> Factorial:
        """p(z | x): the hidden units are independent."""
        return Factorial(self.hidden, self._hidden_field(x))

    def decode(self, z: Value) -> Value:
        """E[x | z]."""
        return self.visible.mean(self._visible_field(z))

    def restricted(self, x: Any) -> Self:
        """The RBM of the visible layers that are None: the known ones act as a field on the hidden units."""
        visible = self.visible
        if not isinstance(visible, Joined):
            raise CapabilityError("The visibles of this RBM are one layer, with no parts to fix.")
        weights, offsets = visible.split(self.weights), visible.split(self.visible_offset)
        field, free = jnp.zeros_like(self.hidden_offset), []
        for here, (part, value) in enumerate(zip(visible.parts, x, strict=True)):
            if value is None:
                free.append(here)
            else:
                field = field + (part.statistic(value) - offsets[here]) @ weights[here]
        parts = tuple(visible.parts[here] for here in free)
        return type(self)(
            parts[0] if len(parts) == 1 else Joined(parts),
            self.hidden.biased(field),
            jnp.concatenate([weights[here] for here in free]),
            jnp.concatenate([offsets[here] for here in free]),
            self.hidden_offset,
        )

    def begin(self, x: Value, *, key: PRNGKeyArray) -> Value:
        """A placeholder: a sweep draws the latents first."""
        del key
        return jnp.zeros(self.z_space.shape, jax.tree.leaves(x)[0].dtype)  # x may be several layers joined

    def sweep(self, x: Value, z: Value, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Value, Value]:
        """z | x, then x | z."""
        del z
        hidden_key, visible_key = jax.random.split(key)
        z = self.hidden.sample(self._hidden_field(x), key=hidden_key)
        return keep(fixed, x, self.visible.sample(self._visible_field(z), key=visible_key)), z

    def settled_energy(self, x: Value, z: Value) -> Scalar:
        """The latents' free energy: a sweep draws x last."""
        del x
        return self.latent_free_energy(z)

    def base(self, x: Any = None) -> Self:
        """W = 0; visible marginals fitted to the batch if there is one."""
        visible = self.visible if x is None else self.visible.fitted(x)
        return eqx.tree_at(lambda m: (m.visible, m.weights), self, (visible, jnp.zeros_like(self.weights)))

    def base_log_z(self) -> Scalar:
        """Γ_v(0) + Γ_h(0)."""
        return self.visible.log_partition(jnp.zeros_like(self.visible_offset)) + self.hidden.log_partition(
            jnp.zeros_like(self.hidden_offset)
        )

    def reduced_energy(self, x: Value, z: Value) -> Scalar:
        """F(x): a sweep draws z first."""
        del z
        return self.free_energy(x)

    def centres(self, x: Any, weights: Any) -> tuple[Array, Array]:
        """Means of s(x) and of E[t(z) | x] over the batch."""
        visible = jax.vmap(self.visible.statistic)(x)
        hidden = jax.vmap(lambda x: self.hidden.mean_statistic(self._hidden_field(x)))(x)
        return weighted_mean(visible, weights), weighted_mean(hidden, weights)

    def recentred(self, centres: tuple[Array, Array], rate: Any) -> Self:
        """Offsets move towards the centres; the biases take up what that changes."""
        visible_move = rate * (centres[0] - self.visible_offset)
        hidden_move = rate * (centres[1] - self.hidden_offset)
        return type(self)(
            self.visible.biased(self.weights @ hidden_move),
            self.hidden.biased(visible_move @ self.weights),
            self.weights,
            self.visible_offset + visible_move,
            self.hidden_offset + hidden_move,
        )

    def project(self) -> Self:
        """Scales inside their range."""
        return eqx.tree_at(
            lambda m: (m.visible, m.hidden), self, (self.visible.projected(), self.hidden.projected())
        )

    def margin(self) -> Scalar:
        """1 − ‖A‖₂ for two unbounded layers, A = diag(1/σ_v) W diag(1/σ_h); always 1 otherwise.

        In units of the layers' own standard deviations the energy is ½‖u‖² + ½‖w‖² − uᵀAw, which is
        positive definite exactly when ‖A‖₂ < 1. Between two non-negative layers only positive entries of A
        can break it.
        """
        if not (self.visible.unbounded and self.hidden.unbounded):
            return jnp.ones((), self.weights.dtype)
        scaled = self.visible.stiffness()[:, None] * self.weights * self.hidden.stiffness()[None, :]
        if all(leaf.domain == "nonnegative" for leaf in leaves((self.x_space, self.z_space))):
            scaled = jnp.maximum(scaled, 0.0)
        return 1 - jnp.linalg.norm(scaled, ord=2)

    def margin_message(self) -> str:
        """Why two unbounded layers may have no normaliser."""
        return (
            f"{type(self.visible).__name__} visible with {type(self.hidden).__name__} hidden units are both "
            "unbounded: their energy has a finite normaliser only while the largest singular value of "
            "diag(1/σ_v) W diag(1/σ_h) is below 1. "
            "Use bounded hidden units (hidden='bernoulli'), or a lower learning_rate and more weight_decay."
        )

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """Visible scale and biases from the data; offsets at the data's means."""
        del key
        visible = self.visible.standardised(x).fitted(x)
        model = eqx.tree_at(lambda m: m.visible, self, visible)
        return model.recentred(model.centres(x, None), 1.0)
