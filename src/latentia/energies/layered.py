"""Boltzmann machines of layers: the shared model of deep and multimodal machines, whose layers form a tree.

With units' own energies E_l, statistics s_l, offsets μ_l and a weight matrix on every edge between two layers,

    E(s) = Σ_l E_l(s_l) − Σ_{edges i–j} (s_i − μ_i)ᵀ W_ij (s_j − μ_j).

Layers of one colour, which no edge joins, are independent given all others: Gibbs sampling draws one colour after
another, and any colour can be summed out exactly. A tree has two colours; other graphs get as many as they need.
With f_l = Σ_i W_li (s_i − μ_i) the field on layer l,

    p(s_l | all other layers) = units under the field f_l,
    −log Σ_{l ∈ colour} exp(−E) = Σ_{l ∉ colour} E_l(s_l) + Σ_{l ∈ colour} [μ_l·f_l − Γ_l(f_l)].

For x – h¹ – h² that is an RBM between h¹ and (x, h²), and annealing runs over h¹ alone. Mean field: Salakhutdinov
and Hinton (2009, 2012); centring: Montavon and Müller (2012).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import (
    Centred,
    Clamps,
    Constrained,
    Decodes,
    Initialised,
    LatentFreeEnergy,
    ParallelMeanField,
    Restricts,
    Settles,
    Tempered,
)
from latentia.core.model import AbstractPosterior, Scalar
from latentia.core.parameters import buffer, weight
from latentia.inference import MeanFieldInference
from latentia.ops import colouring
from latentia.ops.arrays import float_type, keep, weighted_mean
from latentia.ops.compiling import jitted
from latentia.units import AbstractUnits, Factorial

#: Rounds of mean field for the centring offsets and for a chain's first latents.
ROUNDS = 10
#: A hidden layer of this width starts with weights of the plain scale to the next one.
_WIDE = 2000
Values = Sequence[Any]


def _nothing(tree: Any) -> Scalar:
    return jnp.zeros((), float_type(tree))


class LayeredPosterior(AbstractPosterior):
    """Independent layers of independent units."""

    layers: tuple[Factorial, ...]

    def mean(self) -> tuple:
        """E[z], layer by layer."""
        return tuple(layer.mean() for layer in self.layers)

    def sample(self, *, key: PRNGKeyArray) -> tuple:
        """One draw of all layers."""
        keys = jax.random.split(key, len(self.layers))
        return tuple(layer.sample(key=k) for layer, k in zip(self.layers, keys, strict=True))

    def log_prob(self, z: Any) -> Scalar:
        """Σ log q_l(z_l)."""
        return sum((q.log_prob(v) for q, v in zip(self.layers, z, strict=True)), _nothing(self))

    def entropy(self) -> Scalar:
        """Σ H(q_l)."""
        return sum((layer.entropy() for layer in self.layers), _nothing(self))


class LayeredModel(
    Clamps,
    Restricts,
    ParallelMeanField,
    LatentFreeEnergy,
    Decodes,
    Settles,
    Tempered,
    Centred,
    Constrained,
    Initialised,
):
    """E(s) = Σ_l E_l(s_l) − Σ_{i–j} (s_i − μ_i)ᵀ W_ij (s_j − μ_j) + constant.

    Layers are numbered visible ones first; ``edges`` name their ends by these numbers. Of the hidden layers, z is
    the tuple; x is the one visible layer itself, or the tuple of several, or empty where all of them are clamped.
    """

    visible: tuple[AbstractUnits, ...]
    hidden: tuple[AbstractUnits, ...]
    weights: tuple[Float[Array, "a b"], ...] = weight()
    offsets: tuple[Float[Array, " n"], ...] = buffer()
    constant: Float[Array, ""] = buffer()
    edges: tuple[tuple[int, int], ...] = eqx.field(static=True, default=())
    #: The hidden layers from the nearest to the farthest from what was clamped; empty: as they are numbered.
    order: tuple[int, ...] = eqx.field(static=True, default=())

    @classmethod
    def make(
        cls,
        visible: Sequence[AbstractUnits],
        hidden: Sequence[AbstractUnits],
        edges: Sequence[tuple[int, int]],
        *,
        key: PRNGKeyArray,
        weight_scale: float = 0.01,
    ) -> Self:
        """Small random weights on every edge, no offsets.

        ``weight_scale`` is their standard deviation at visible layers. Between hidden ones it is scaled by the
        width below, since a layer that its neighbour hardly moves takes long to wake up.
        """
        sizes = [layer.n_statistics for layer in (*visible, *hidden)]
        scales = [1.0 if i < len(visible) else (_WIDE / sizes[i]) ** 0.5 for i, _ in edges]
        keys = jax.random.split(key, len(edges))
        dtype = float_type((visible, hidden))
        weights = [
            weight_scale * scale * jax.random.normal(k, (sizes[i], sizes[j]), dtype)
            for k, scale, (i, j) in zip(keys, scales, edges, strict=True)
        ]
        offsets = tuple(jnp.zeros(n, dtype) for n in sizes)
        constant = jnp.zeros((), dtype)
        return cls(tuple(visible), tuple(hidden), tuple(weights), offsets, constant, tuple(edges))

    # -- structure -----------------------------------------------------------------------------------------

    @property
    def layers(self) -> tuple[AbstractUnits, ...]:
        """All layers, visible ones first."""
        return (*self.visible, *self.hidden)

    @property
    def x_space(self) -> Any:
        """The visible layer's space, or a tuple of several."""
        return self._packed([layer.space for layer in self.visible])

    @property
    def z_space(self) -> tuple:
        """The hidden layers' spaces."""
        return tuple(layer.space for layer in self.hidden)

    def blocks(self) -> tuple[tuple[int, ...], ...]:
        """Layers of one colour, the widest first: a sweep draws it first, so it is what annealing sums out.

        A tree has two colours (the second empty where there are no edges), other graphs as many as they need.
        """
        found = colouring.classes(len(self.layers), self.edges)
        found += [()] * (2 - len(found))
        return tuple(sorted(found, key=lambda b: -sum(self.layers[i].n_statistics for i in b)))

    def _packed(self, parts: Values) -> Any:
        return parts[0] if len(parts) == 1 else tuple(parts)

    def _parts(self, x: Any) -> list[Any]:
        return [x] if len(self.visible) == 1 else list(x)

    def _centred(self, values: Values) -> list[Any]:
        triples = zip(self.layers, values, self.offsets, strict=True)
        return [None if v is None else layer.statistic(v) - offset for layer, v, offset in triples]

    def _field(self, layer: int, centred: Values) -> Float[Array, " n"]:
        """What the other layers' centred statistics (None: at their offset) add to a layer's biases."""
        field = jnp.zeros_like(self.offsets[layer])
        for (i, j), weights in zip(self.edges, self.weights, strict=True):
            if i == layer and centred[j] is not None:
                field = field + weights @ centred[j]
            if j == layer and centred[i] is not None:
                field = field + centred[i] @ weights
        return field

    # -- energies ------------------------------------------------------------------------------------------

    def energy(self, x: Any, z: Any) -> Scalar:
        """E(x, z)."""
        values = [*self._parts(x), *z]
        own = sum((layer.energy(v) for layer, v in zip(self.layers, values, strict=True)), self.constant)
        return own - self._couplings(self._centred(values))

    def _couplings(self, centred: Values) -> Scalar:
        pairs = zip(self.edges, self.weights, strict=True)
        return sum((centred[i] @ weights @ centred[j] for (i, j), weights in pairs), jnp.zeros_like(self.constant))

    def _summed(self, values: Values, block: Sequence[int]) -> Scalar:
        """The energy with the layers of a block, which no edge joins, summed out."""
        centred: list[Any] = [None if here in block else c for here, c in enumerate(self._centred(values))]
        total = self.constant
        for here, (layer, value) in enumerate(zip(self.layers, values, strict=True)):
            if here in block:
                field = self._field(here, centred)
                total = total + self.offsets[here] @ field - layer.log_partition(field)
            else:
                total = total + layer.energy(value)
        inside = [(e, w) for e, w in zip(self.edges, self.weights, strict=True) if not set(e) & set(block)]
        return total - sum((centred[i] @ w @ centred[j] for (i, j), w in inside), jnp.zeros_like(self.constant))

    def latent_free_energy(self, z: Any) -> Scalar:
        """The visible layers summed out."""
        n = len(self.visible)
        blank = [layer.mean(jnp.zeros_like(o)) for layer, o in zip(self.visible, self.offsets[:n], strict=True)]
        return self._summed([*blank, *z], range(n))

    def visible_free_energy(self, x: Any) -> Scalar:
        """The hidden layers summed out; only where no edge joins two of them."""
        n = len(self.visible)
        blank = [layer.mean(jnp.zeros_like(o)) for layer, o in zip(self.hidden, self.offsets[n:], strict=True)]
        return self._summed([*self._parts(x), *blank], range(n, n + len(self.hidden)))

    def reduced_energy(self, x: Any, z: Any) -> Scalar:
        """The colour summed out that a sweep draws first."""
        return self._summed([*self._parts(x), *z], self.blocks()[0])

    def settled_energy(self, x: Any, z: Any) -> Scalar:
        """The colour summed out that a sweep draws last."""
        return self._summed([*self._parts(x), *z], self.blocks()[-1])

    def decode(self, z: Any) -> Any:
        """E[x | z]."""
        centred = [*(None for _ in self.visible), *self._centred_hidden(z)]
        return self._packed([layer.mean(self._field(here, centred)) for here, layer in enumerate(self.visible)])

    def _centred_hidden(self, z: Any) -> list[Any]:
        return self._centred([*(None for _ in self.visible), *z])[len(self.visible) :]

    # -- inference -----------------------------------------------------------------------------------------

    def clamped(self, x: Any) -> Self:
        """The model of the hidden layers, and of visible ones that are None; the others are taken into biases."""
        left, parts = self.restricted(x), [*self._parts(x), *(None for _ in self.hidden)]
        free = [here for here, part in enumerate(parts) if part is None]
        distance = self._distances([here for here, part in enumerate(parts) if part is not None])
        order = tuple(sorted(range(len(free)), key=lambda i: (distance[free[i]], i)))
        return type(self)((), left.layers, left.weights, left.offsets, left.constant, left.edges, order)

    def restricted(self, x: Any) -> Self:
        """The model of all layers but the visible ones that are known, which are taken into biases."""
        parts = [*self._parts(x), *(None for _ in self.hidden)]
        centred = self._centred(parts)
        free = [here for here, part in enumerate(parts) if part is None]
        constant, layers = self.constant, []
        for here, (layer, part) in enumerate(zip(self.layers, parts, strict=True)):
            if part is not None:
                constant = constant + layer.energy(part)
                continue
            field = self._field(here, centred)
            biased = layer.biased(field)
            constant = constant + self.offsets[here] @ field
            if layer.unbounded:  # completing the square leaves something behind
                constant = constant + biased.log_partition(jnp.zeros_like(field)) - layer.log_partition(field)
            layers.append(biased)
        for (i, j), weights in zip(self.edges, self.weights, strict=True):
            if centred[i] is not None and centred[j] is not None:
                constant = constant - centred[i] @ weights @ centred[j]
        kept = [(e, w) for e, w in zip(self.edges, self.weights, strict=True) if set(e) <= set(free)]
        edges = tuple((free.index(i), free.index(j)) for (i, j), _ in kept)
        offsets = tuple(self.offsets[here] for here in free)
        n, weights = len(layers) - len(self.hidden), tuple(w for _, w in kept)
        return type(self)(tuple(layers[:n]), tuple(layers[n:]), weights, offsets, constant, edges)

    def _distances(self, start: Sequence[int]) -> list[int]:
        """How many edges every layer is away from the nearest of some layers."""
        distance = [0 if here in start else len(self.layers) for here in range(len(self.layers))]
        for _ in self.layers:
            for i, j in self.edges:
                distance[i], distance[j] = min(distance[i], distance[j] + 1), min(distance[j], distance[i] + 1)
        return distance

    def guess(self) -> LayeredPosterior:
        """From what was clamped outwards: layers not reached yet stand at their offsets and exert no field."""
        centred: list[Any] = [None] * len(self.hidden)
        posteriors: list[Any] = [None] * len(self.hidden)
        for here in self.order or range(len(self.hidden)):
            layer, field = self.hidden[here], self._field(here, centred)
            centred[here] = layer.mean_statistic(field) - self.offsets[here]
            posteriors[here] = Factorial(layer, field)
        return LayeredPosterior(tuple(posteriors))

    def refine(self, q: LayeredPosterior) -> LayeredPosterior:
        """Every layer of one colour at its best for the other, then the other way round."""
        layers = list(q.layers)
        for block in sorted(self.blocks()):
            centred = self._mean_centred(layers)
            for here in block:
                layers[here] = Factorial(self.hidden[here], self._field(here, centred))
        return LayeredPosterior(tuple(layers))

    def best(self, q: LayeredPosterior) -> LayeredPosterior:
        """Every layer at its best for the others as they are."""
        centred = self._mean_centred(q.layers)
        return LayeredPosterior(tuple(Factorial(h, self._field(i, centred)) for i, h in enumerate(self.hidden)))

    def variational_energy(self, q: LayeredPosterior) -> Scalar:
        """E_q[E(z)] − H(q)."""
        total = self.constant - q.entropy() - self._couplings(self._mean_centred(q.layers))
        for layer, part in zip(self.hidden, q.layers, strict=True):
            # The energy of bounded units is linear in their values, so that it can be taken at the mean.
            total = total + (part.units.mean_energy(part.field) if layer.unbounded else layer.energy(part.mean()))
        return total

    def _mean_centred(self, layers: Sequence[Factorial]) -> list[Any]:
        pairs = zip(layers, self.offsets, strict=True)
        return [layer.units.mean_statistic(layer.field) - offset for layer, offset in pairs]

    def base_at(self, q: LayeredPosterior) -> Self:
        """The layers under the fields of q, without coupling."""
        hidden = tuple(layer.units.biased(layer.field) for layer in q.layers)
        return eqx.tree_at(lambda m: m.hidden, self.base(), hidden)

    # -- sampling ------------------------------------------------------------------------------------------

    def begin(self, x: Any, *, key: PRNGKeyArray) -> tuple:
        """A draw from the mean-field posterior."""
        return self._posterior(x).sample(key=key)

    def _posterior(self, x: Any) -> LayeredPosterior:
        clamped = self.clamped(x)
        return jax.lax.fori_loop(0, ROUNDS, lambda _, q: clamped.refine(q), clamped.guess())

    def sweep(self, x: Any, z: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, tuple]:
        """One colour after another, each given all others."""
        values, n_visible = [*self._parts(x), *z], len(self.visible)
        known = [None] * n_visible if fixed is None else self._parts(fixed)
        keys = jax.random.split(key, len(values))
        for block in self.blocks():
            centred = self._centred(values)
            for here in block:
                drawn = self.layers[here].sample(self._field(here, centred), key=keys[here])
                values[here] = keep(known[here], values[here], drawn) if here < n_visible else drawn
        return self._packed(values[:n_visible]), tuple(values[n_visible:])

    def base(self, x: Any = None) -> Self:
        """No couplings; visible marginals fitted to the batch if there is one."""
        visible = self.visible
        if x is not None:
            visible = tuple(layer.fitted(part) for layer, part in zip(visible, self._parts(x), strict=True))
        empty = tuple(jnp.zeros_like(w) for w in self.weights)
        new = (visible, empty, jnp.zeros_like(self.constant))
        return eqx.tree_at(lambda m: (m.visible, m.weights, m.constant), self, new)

    def base_log_z(self) -> Scalar:
        """Σ Γ_l(0) − constant."""
        logs = (layer.log_partition(jnp.zeros_like(o)) for layer, o in zip(self.layers, self.offsets, strict=True))
        return sum(logs, -self.constant)

    # -- centring ------------------------------------------------------------------------------------------

    def centres(self, x: Any, weights: Any) -> tuple[Array, ...]:
        """Means of the statistics over the batch: of the visible layers, and of q of the hidden ones."""

        def statistics(x: Any) -> list[Any]:
            seen = [layer.statistic(part) for layer, part in zip(self.visible, self._parts(x), strict=True)]
            return seen + [layer.units.mean_statistic(layer.field) for layer in self._posterior(x).layers]

        return tuple(weighted_mean(values, weights) for values in jax.vmap(statistics)(x))

    def recentred(self, centres: tuple[Array, ...], rate: Any) -> Self:
        """Offsets move towards the centres; the biases take up what that changes."""
        moves = [rate * (centre - offset) for centre, offset in zip(centres, self.offsets, strict=True)]
        layers = [layer.biased(self._field(here, moves)) for here, layer in enumerate(self.layers)]
        offsets = tuple(offset + move for offset, move in zip(self.offsets, moves, strict=True))
        n = len(self.visible)
        return type(self)(tuple(layers[:n]), tuple(layers[n:]), self.weights, offsets, self.constant, self.edges)

    def project(self) -> Self:
        """Scales inside their range."""
        visible, hidden = (tuple(layer.projected() for layer in side) for side in (self.visible, self.hidden))
        return eqx.tree_at(lambda m: (m.visible, m.hidden), self, (visible, hidden))

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """Visible scales and biases from the data; offsets at the data's means."""
        del key
        pairs = zip(self.visible, self._parts(x), strict=True)
        model = eqx.tree_at(lambda m: m.visible, self, tuple(v.standardised(p).fitted(p) for v, p in pairs))
        return model.recentred(model.centres(x, None), 1.0)


def label_energies(model: LayeredModel, data: tuple) -> Float[Array, " classes"]:
    """Variational energies of data with every value of the last visible layer, a categorical site, in turn."""

    def energy(label: Any) -> Scalar:
        seen = (*data, label[None, :])
        q: Any = MeanFieldInference().infer(model, seen)
        return model.clamped(seen).variational_energy(q)

    return jax.lax.map(energy, jnp.eye(model.visible[-1].n_statistics, dtype=model.constant.dtype))


def apply_switches(model: LayeredModel) -> tuple[np.ndarray, np.ndarray]:
    """(codes with one hidden unit on, codes with it off), a row for every unit of every hidden layer.

    The layers below a unit's own take the means that it causes, layer by layer; all others stay at their offsets.
    """
    n = len(model.visible)
    results = [_switched(model, here, value) for value in (1.0, 0.0) for here in range(n, len(model.layers))]
    half = len(results) // 2
    return np.concatenate(results[:half]), np.concatenate(results[half:])


@jitted
def _switched(model: LayeredModel, layer: int, value: float) -> Any:
    n = len(model.visible)

    def one(unit: Any) -> Any:
        means = list(model.offsets)
        means[layer] = means[layer].at[unit].set(value)
        for here in range(layer - 1, n - 1, -1):
            above = [
                None if i <= here else m - o for i, (m, o) in enumerate(zip(means, model.offsets, strict=True))
            ]
            if (here, layer) in model.edges or any(i == here and j <= layer for i, j in model.edges):
                means[here] = model.layers[here].mean_statistic(model._field(here, above))
        return jnp.concatenate(means[n:])

    return jax.vmap(one)(jnp.arange(model.offsets[layer].shape[0]))
