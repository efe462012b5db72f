"""Symmetric couplings W between the sites of a machine, dense or along the edges of a graph.

All that a Boltzmann machine needs of W: ½ sᵀWs, products Ws, W with some sites held fixed, and *sweeps*, in which
every site is updated from its field f_i = Σ_j W_ij s_j with the newest values of all others. The same sweep draws
(Gibbs), averages (mean field) and minimises (zero temperature); they differ in one function of the fields.

Dense machines are swept site by site. Fields are computed for blocks of sites at once, by a matrix product, and
corrected within the block as its sites change one after another. Along a graph all sites of one colour are updated
together.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from latentia.core.model import Scalar
from latentia.core.parameters import weight
from latentia.ops.colouring import Graph, graph

Vector = Float[Array, " n"]
#: (fields, data of the sites) → new values; element by element.
Update = Callable[[Any, Any], Any]

#: Sites of a dense machine whose fields are computed by one product. More of them make the product faster and the
#: corrections within the block, which grow with its square, slower.
BLOCK = 16
#: Chains whose states fit into one word, and how many must move together for that to pay.
WORD, FEWEST_PACKED = 32, 8


class Swept(NamedTuple):
    """Values after a sweep, and the field that each site had when it was updated."""

    values: Vector
    fields: Vector


class Held(NamedTuple):
    """What is left of W when the first sites are held at x: couplings of the others, their fields, and ½ xᵀWx."""

    couplings: AbstractCouplings
    field: Vector
    quadratic: Scalar


class AbstractCouplings(eqx.Module):
    """W, symmetric and without a diagonal; all methods take one example."""

    @property
    @abc.abstractmethod
    def order(self) -> Int[np.ndarray, " n"]:
        """The sites in the order of a sweep."""

    @property
    @abc.abstractmethod
    def first(self) -> Int[np.ndarray, " k"]:
        """The sites that a sweep updates first, all at once: no two of them are coupled."""

    @abc.abstractmethod
    def product(self, s: Vector) -> Vector:
        """Ws."""

    @abc.abstractmethod
    def quadratic(self, s: Vector) -> Scalar:
        """½ sᵀWs."""

    @abc.abstractmethod
    def sweep(self, s: Vector, update: Update, data: Any) -> Swept:
        """Every site updated once, each from its field at the newest values of the others.

        Args:
            s: values; those of the first sites are not read.
            update: what becomes of sites with some fields and data.
            data: a pytree of arrays over the sites, *in the order of the sweep*.
        """

    @abc.abstractmethod
    def drawn(self, s: Vector, threshold: Vector, low: float, high: float) -> Vector:
        """A sweep in which every site is ``high`` where its field is above a threshold, else ``low``.

        Thresholds are *in the order of the sweep*; values are ``low`` or ``high`` before, too.
        """

    @abc.abstractmethod
    def held(self, x: Vector) -> Held:
        """The first ``len(x)`` sites held fixed."""

    @abc.abstractmethod
    def uncoupled(self) -> Self:
        """W = 0."""

    @abc.abstractmethod
    def absolute(self) -> Vector:
        """Σ_j |W_ij| of every site."""


class DenseCouplings(AbstractCouplings):
    """Any two sites are coupled; only what stands above the diagonal of ``weights`` counts: W = U + Uᵀ."""

    weights: Float[Array, "n n"] = weight()

    def upper(self) -> Float[Array, "n n"]:
        """U."""
        return jnp.triu(self.weights, 1)

    def matrix(self) -> Float[Array, "n n"]:
        """W."""
        upper = self.upper()
        return upper + upper.T

    @property
    def order(self) -> Int[np.ndarray, " n"]:
        """As they are numbered."""
        return np.arange(self.weights.shape[0], dtype=np.int32)

    @property
    def first(self) -> Int[np.ndarray, " 1"]:
        """Site 0."""
        return self.order[:1]

    def product(self, s: Vector) -> Vector:
        """Ws."""
        return self.matrix() @ s

    def quadratic(self, s: Vector) -> Scalar:
        """sᵀUs."""
        return s @ (self.upper() @ s)

    def sweep(self, s: Vector, update: Update, data: Any) -> Swept:
        """Site by site, in blocks; see the module's docstring."""
        n = s.shape[0]
        size = min(BLOCK, n)
        n_blocks = -(-n // size)
        padded = lambda a: jnp.pad(a, [(0, n_blocks * size - n)] + [(0, 0)] * (a.ndim - 1))  # noqa: E731
        blocked = lambda a: padded(a).reshape(n_blocks, size, *a.shape[1:])  # noqa: E731
        rows = blocked(jnp.pad(self.matrix(), ((0, 0), (0, n_blocks * size - n))))
        starts = size * jnp.arange(n_blocks)
        inside = jax.vmap(lambda rows, at: jax.lax.dynamic_slice_in_dim(rows, at, size, 1))(rows, starts)
        inside = jnp.triu(inside, 1)  # what a site does to those after it in its block

        def block(s: Vector, each: Any) -> tuple[Vector, Any]:
            start, rows, inside, data = each
            old = jax.lax.dynamic_slice_in_dim(s, start, size)
            fields = rows @ s
            for i in range(size):
                new = update(fields[i], jax.tree.map(lambda a, i=i: a[i], data))
                fields = fields + (new - old[i]) * inside[i]
            # No field has changed since its site was updated: ``inside`` reaches later sites only.
            return jax.lax.dynamic_update_slice_in_dim(s, update(fields, data), start, 0), fields

        s = padded(s.at[0].set(jnp.zeros((), s.dtype)))
        s, fields = jax.lax.scan(block, s, (starts, rows, inside, jax.tree.map(blocked, data)))
        return Swept(s[:n], fields.reshape(-1)[:n])

    def drawn(self, s: Vector, threshold: Vector, low: float, high: float) -> Vector:
        """See :meth:`sweep`."""
        return self.sweep(s, lambda f, t: jnp.where(f > t, high, low).astype(s.dtype), threshold).values

    def held(self, x: Vector) -> Held:
        """The lower right corner of W."""
        n = x.shape[0]
        upper = self.upper()
        return Held(DenseCouplings(self.weights[n:, n:]), x @ upper[:n, n:], x @ (upper[:n, :n] @ x))

    def uncoupled(self) -> Self:
        """W = 0."""
        return type(self)(jnp.zeros_like(self.weights))

    def absolute(self) -> Vector:
        """Σ_j |W_ij|."""
        return jnp.sum(jnp.abs(self.matrix()), axis=1)


class SparseCouplings(AbstractCouplings):
    """One weight for every edge of a graph."""

    graph: Graph = eqx.field(static=True)
    weights: Float[Array, " edges"] = weight()

    @property
    def order(self) -> Int[np.ndarray, " n"]:
        """Colour after colour."""
        return self.graph.order

    @property
    def first(self) -> Int[np.ndarray, " k"]:
        """The sites of the first colour."""
        begin, end = self.graph.spans[0]
        return self.graph.order[begin:end]

    def _fields(self, shade: int, placed: Vector) -> Vector:
        """The fields on the sites of a colour, from values in the order of a sweep."""
        padded = jnp.append(self.weights, jnp.zeros(1, self.weights.dtype))
        parts = []
        for piece in self.graph.pieces[shade]:
            terms = [padded[edge] * placed[end] for edge, end in zip(piece.edges.T, piece.ends.T, strict=True)]
            parts.append(sum(terms, jnp.zeros(len(piece.ends), placed.dtype)))
        return jnp.concatenate(parts)

    def product(self, s: Vector) -> Vector:
        """Ws."""
        placed = s[self.graph.order]
        fields = [self._fields(shade, placed) for shade in range(len(self.graph.spans))]
        return self._unplaced(jnp.concatenate(fields))

    def _unplaced(self, placed: Vector) -> Vector:
        return placed[np.argsort(self.graph.order)]

    def quadratic(self, s: Vector) -> Scalar:
        """Σ_edges w_ij s_i s_j."""
        return self.weights @ (s[self.graph.edges[:, 0]] * s[self.graph.edges[:, 1]])

    def sweep(self, s: Vector, update: Update, data: Any) -> Swept:
        """Colour by colour."""
        placed = s[self.graph.order]
        parts = [placed[begin:end] for begin, end in self.graph.spans]
        parts[0] = jnp.zeros_like(parts[0])
        found = []
        for shade, (begin, end) in enumerate(self.graph.spans):
            fields = self._fields(shade, jnp.concatenate(parts))
            parts[shade] = update(fields, jax.tree.map(lambda a, b=begin, e=end: a[b:e], data))
            found.append(fields)
        return Swept(self._unplaced(jnp.concatenate(parts)), self._unplaced(jnp.concatenate(found)))

    def drawn(self, s: Vector, threshold: Vector, low: float, high: float) -> Vector:
        """See :meth:`sweep`; many chains at once keep the states of a site in the bits of one word."""
        return _packable(self.graph, low, high)(self.weights, s, threshold)

    def held(self, x: Vector) -> Held:
        """The edges between the other sites."""
        n, edges = x.shape[0], self.graph.edges
        seen = (edges < n).sum(axis=1)
        both, across, none = (np.flatnonzero(seen == k) for k in (2, 1, 0))
        rest = graph(self.graph.n - n, edges[none] - n)
        pulls = self.weights[across] * x[edges[across, 0]]
        field = jnp.zeros(rest.n, x.dtype).at[edges[across, 1] - n].add(pulls)
        quadratic = self.weights[both] @ (x[edges[both, 0]] * x[edges[both, 1]])
        return Held(SparseCouplings(rest, self.weights[none]), field, quadratic)

    def uncoupled(self) -> Self:
        """W = 0."""
        return type(self)(self.graph, jnp.zeros_like(self.weights))

    def absolute(self) -> Vector:
        """Σ_j |W_ij|."""
        found = jnp.zeros(self.graph.n, self.weights.dtype)
        for column in self.graph.edges.T:
            found = found.at[column].add(jnp.abs(self.weights))
        return found


@functools.lru_cache(maxsize=64)
def _packable(graph: Graph, low: float, high: float) -> Any:
    """(weights, s, thresholds) → s after a sweep along a graph, and how many chains make it together.

    Looking up neighbours takes longer than all else. Chains with the same weights look up the same places, so that
    their states are packed into words, 32 chains to a word, and each word is looked up once.
    """

    def alone(weights: Any, s: Any, threshold: Any) -> Any:
        update = lambda f, t: jnp.where(f > t, high, low).astype(s.dtype)  # noqa: E731
        return SparseCouplings(graph, weights).sweep(s, update, threshold).values

    @jax.custom_batching.custom_vmap
    def sweep(weights: Any, s: Any, threshold: Any) -> Any:
        return alone(weights, s, threshold)

    @sweep.def_vmap
    def together(n: int, batched: Any, weights: Any, s: Any, threshold: Any) -> Any:
        if n < FEWEST_PACKED or list(batched) != [False, True, True]:
            axes = tuple(0 if each else None for each in batched)
            return jax.vmap(alone, in_axes=axes)(weights, s, threshold), True
        packed = lambda s, t: _packed_sweep(graph, weights, s, t, low, high)  # noqa: E731
        whole = n - n % WORD
        words = lambda a: a[:whole].reshape(-1, WORD, a.shape[1])  # noqa: E731
        found = [jax.vmap(packed)(words(s), words(threshold)).reshape(whole, -1)] if whole else []
        found += [packed(s[whole:], threshold[whole:])] if n > whole else []
        return jnp.concatenate(found), True

    return sweep


def _packed_sweep(graph: Graph, weights: Any, s: Any, threshold: Any, low: float, high: float) -> Any:
    """A sweep of up to 32 chains, states in bits: (chains, n) → (chains, n)."""
    shifts = jnp.arange(s.shape[0], dtype=jnp.uint32)[:, None]
    pack = lambda on: jnp.sum(on.astype(jnp.uint32) << shifts, axis=0, dtype=jnp.uint32)  # noqa: E731
    state = lambda words: jnp.where((words[None] >> shifts) & jnp.uint32(1) == 1, high, low).astype(s.dtype)  # noqa: E731
    padded = jnp.append(weights, jnp.zeros(1, weights.dtype))
    placed = pack(s == high)[graph.order]
    parts = [placed[begin:end] for begin, end in graph.spans]
    for shade, (begin, end) in enumerate(graph.spans):
        words, fields = jnp.concatenate(parts), []
        for piece in graph.pieces[shade]:
            pairs = zip(piece.edges.T, piece.ends.T, strict=True)
            terms = [padded[edges][None, :] * state(words[ends]) for edges, ends in pairs]
            fields.append(sum(terms, jnp.zeros((s.shape[0], len(piece.ends)), s.dtype)))
        parts[shade] = pack(jnp.concatenate(fields, axis=1) > threshold[:, begin:end])
    return state(jnp.concatenate(parts)[np.argsort(graph.order)])
