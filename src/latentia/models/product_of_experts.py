"""Products of experts: heavy-tailed functions of linear filters (Hinton, 2002; Welling, Hinton and Osindero, 2003).

    F(x) = Σ_k α_k φ_k(w_kᵀ(x̂ − μ)) + ½ ε‖x̂ − μ‖²,      x̂ the standardised x,

with expert functions φ (:mod:`latentia.ops.experts`) and powers α_k > 0. With φ(u) = log(1 + u²/2) and ε = 0 it is
the product of Student t distributions. As many experts as dimensions make a model of independent components; with
more, the responses are no longer independent, and no mixing matrix describes the model.

Normalisable: always with ε > 0. With ε = 0, F must grow in every direction, so the filters must span the space; and
each power must exceed ½ for Student t experts, whose tails are too heavy otherwise (as many experts as dimensions
need exactly that; more could do with less, but the model is then refused, to be on the safe side).
"""

from __future__ import annotations

import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import Bounded, Encodes, Initialised, Projected, Projections, Starts
from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, scale, weight
from latentia.core.space import Space
from latentia.estimator.declared import changed
from latentia.estimator.energy import ExpertFunctions, UnnormalisedEstimator
from latentia.estimator.groups import Components
from latentia.ops import random
from latentia.ops.experts import AbstractExperts, make
from latentia.ops.whitening import directions

Value = Float[Array, " d"]
Responses = Float[Array, " k"]

#: Directions whose variance is this part of the largest are taken to have that much: filters stay finite.
FLOOR = 1e-4


class ProductOfExpertsModel(Projected, Encodes, Starts, Bounded, Initialised):
    """F(x) = Σ_k α_k φ_k(w_kᵀ(x̂ − μ)) + ½ ε‖x̂ − μ‖²; ε is absent if ``log_ridge`` is None."""

    experts: AbstractExperts
    weights: Float[Array, "k d"] = weight()
    log_powers: Responses = bias()
    centre: Value = bias()
    log_ridge: Scalar | None = scale()
    location: Value = buffer()
    spread: Value = buffer()

    @classmethod
    def make(
        cls, n: int, n_components: int, expert: str, *, key: PRNGKeyArray, ridge: float = 0.01, power: float = 1.0
    ) -> Self:
        """Random filters; data that are standardised already."""
        weights = jax.random.normal(key, (n_components, n)) / n**0.5
        powers = jnp.full(n_components, math.log(power), weights.dtype)
        log_ridge = jnp.asarray(math.log(ridge), weights.dtype) if ridge else None
        experts = make(expert, n_components)
        return cls(experts, weights, powers, jnp.zeros(n), log_ridge, jnp.zeros(n), jnp.ones(n))

    @property
    def x_space(self) -> Space:
        """ℝᴰ."""
        return Space("real", self.centre.shape)

    @property
    def z_space(self) -> tuple[()]:
        """No latents."""
        return ()

    @property
    def code_space(self) -> Space:
        """One response for each expert."""
        return Space("real", self.log_powers.shape)

    def _offset(self, x: Value) -> Value:
        """x̂ − μ."""
        return (x - self.location) / self.spread - self.centre

    def encode(self, x: Value) -> Responses:
        """w_kᵀ(x̂ − μ)."""
        return self.weights @ self._offset(x)

    def free_energy(self, x: Value) -> Scalar:
        """F(x)."""
        energy = jnp.exp(self.log_powers) @ self.experts.energies(self.encode(x))
        if self.log_ridge is None:
            return energy
        return energy + 0.5 * jnp.exp(self.log_ridge) * jnp.sum(self._offset(x) ** 2)

    def projections(self) -> Projections:
        """ε/s², what pulls towards the centre, and the filters of x as it comes (s its scales)."""
        ridge = jnp.zeros((), self.weights.dtype) if self.log_ridge is None else jnp.exp(self.log_ridge)
        centre = self.location / self.spread + self.centre
        return Projections(
            ridge / self.spread**2, ridge * centre / self.spread, self.weights / self.spread[None, :]
        )

    def potential(self, u: Responses) -> Scalar:
        """Σ_k α_k φ_k(u_k − w_kᵀ(centre))."""
        responses = u - self.weights @ (self.location / self.spread + self.centre)
        return jnp.exp(self.log_powers) @ self.experts.energies(responses)

    def energy(self, x: Value, z: tuple[()]) -> Scalar:
        """F(x)."""
        del z
        return self.free_energy(x)

    def start(self, *, key: PRNGKeyArray) -> Value:
        """Independent entries with the data's means and scales."""
        noise = jax.random.normal(key, self.centre.shape, self.centre.dtype)
        return self.location + self.spread * (self.centre + noise)

    def margin(self) -> Scalar:
        """1 with ε > 0; else the least singular value of the filters that are allowed to count.

        A filter counts fully if its power is ½ above the least that its expert can be integrated with, not at all
        at that power or below, and in between in part.
        """
        if self.log_ridge is not None:
            return jnp.ones((), self.weights.dtype)
        above = jnp.exp(self.log_powers) - self.experts.least_power()
        counted = jnp.clip(2 * above, 0.0, 1.0)[:, None] * self.weights
        if counted.shape[0] < counted.shape[1]:
            return jnp.zeros((), self.weights.dtype)
        return jnp.linalg.svd(counted, compute_uv=False)[-1]

    def margin_message(self) -> str:
        """When there is a normaliser."""
        least = self.experts.least_power()
        return (
            "Without a ridge the energy must grow in every direction: there must be at least as many experts as "
            f"features ({self.weights.shape[0]} and {self.weights.shape[1]} here), their filters must span the "
            f"space, and their powers must exceed {least:g}. Set ridge > 0, or use more experts."
        )

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """Location and scale of each column; filters that are random directions of the whitened data."""
        location, spread = jnp.mean(x, axis=0), jnp.std(x, axis=0)
        spread = jnp.where(spread > 1e-6 * (1 + jnp.abs(location)), spread, 1.0)
        x = (x - location[None, :]) / spread[None, :]
        values, vectors = jnp.linalg.eigh(x.T @ x / x.shape[0])
        values = jnp.maximum(values, FLOOR * jnp.maximum(values[-1], 1.0))
        mixing = directions(self.weights.shape[0], x.shape[1], x.dtype, key=key)
        weights = (mixing / jnp.sqrt(values)[None, :]) @ vectors.T
        return eqx.tree_at(lambda m: (m.weights, m.location, m.spread), self, (weights, location, spread))


class ProductOfExperts(Components, ExpertFunctions, UnnormalisedEstimator):
    """Product of experts: heavy-tailed functions of linear filters, for real data of any scale.

    Columns are standardised inside. Score matching takes the density to be smooth; where many values are repeated
    exactly (pixels in flat patches), experts become ever narrower: use "denoising_score_matching" there.

    Example:
        >>> import numpy as np
        >>> from latentia import ProductOfExperts
        >>> X = np.random.default_rng(0).laplace(size=(64, 5))
        >>> model = ProductOfExperts(n_components=8, n_epochs=2, batch_size=16, random_state=0).fit(X)
        >>> model.transform(X).shape
        (64, 8)

    References:
        Hinton (2002), *Training products of experts by minimizing contrastive divergence*; Welling, Hinton and
        Osindero (2003), *Learning sparse topographic representations with products of Student-t distributions*.
    """

    family = "product-of-experts"

    n_components = changed(doc="number of experts.")
    ridge = changed(
        doc="initial value of ε, which is learned too. With 0 there is no such term, and training stops with an "
        "error if the energy is no longer normalisable.",
    )

    def build(self, blueprint: dict[str, Any], *, seed: int = 0) -> ProductOfExpertsModel:
        """A product with random filters."""
        n = blueprint["n_features"]
        return ProductOfExpertsModel.make(n, self.n_components, self.expert, key=random.key(seed), ridge=self.ridge)

    @property
    def components_(self) -> np.ndarray:
        """The filters in the data's units, a row each: ``transform(X)`` is (X − mean_) components_ᵀ."""
        return np.asarray(self.model_.weights / self.model_.spread[None, :])

    @property
    def mean_(self) -> np.ndarray:
        """μ in the data's units."""
        return np.asarray(self.model_.location + self.model_.spread * self.model_.centre)

    @property
    def powers_(self) -> np.ndarray:
        """α, one for each expert."""
        return np.exp(np.asarray(self.model_.log_powers))
