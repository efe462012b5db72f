"""Deep belief networks: directed layers under a restricted Boltzmann machine.

The visibles x = h⁰ and L hidden layers form x ← h¹ ← … ← h^{L−1} – h^L, the last two an RBM:

    p(x, h¹ … h^L) = p(x | h¹) … p(h^{L−2} | h^{L−1}) · exp(−E_top(h^{L−1}, h^L)) / Z,
    E(x, h) = E_top(h^{L−1}, h^L) − Σ_{l<L} log p(h^{l−1} | h^l),
    p(h^{l−1} | h^l) = units under the field W(t(h^l) − λ),

so that Z is that of the RBM alone. A label y, one softmax group, joins h^{L−1} as visibles of the RBM. Posteriors
are out of reach; a recognition model q(h¹ | x) … q(h^{L−1} | h^{L−2}) with weights of its own stands for them, and

    log p(x) + log Z ≥ E_q[Σ log p(h^{l−1} | h^l) − F_top(h^{L−1}) − Σ log q(h^l | h^{l−1})],

with h^L summed out exactly; the log of the mean of n such weights is a tighter bound (Burda, Grosse and
Salakhutdinov, 2016). Every directed layer is a layer of units under the field W(t − λ), t the statistic of the
layer that it reads: what an RBM's conditionals are, so that RBMs trained one on another assemble without loss.
Hinton, Osindero and Teh (2006); classification by the free energy of each label is their §6.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import space
from latentia.core.capabilities import Bounded, Centred, Constrained, Decodes, PartlyDirected
from latentia.core.errors import ParameterError
from latentia.core.model import Scalar
from latentia.core.moved import moved
from latentia.core.parameters import buffer, weight
from latentia.energies.rbm import RBMModel
from latentia.learning.up_down import Path, UpDown
from latentia.ops.arrays import weighted_mean
from latentia.ops.compiling import jitted
from latentia.units import AbstractUnits, Categorical, Factorial
from latentia.units.joined import Joined

__getattr__ = moved(__name__, {"row_bounds": "latentia.likelihood.partly_directed"})

Centres = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array, Array]]


class Directed(eqx.Module):
    """p(layer | source): the layer's units under the field W(t − λ), t the statistic of the source."""

    units: AbstractUnits
    weights: Float[Array, "layer source"] = weight()
    offset: Float[Array, " source"] = buffer()

    def given(self, statistic: Float[Array, " source"]) -> Factorial:
        """The layer's distribution."""
        return Factorial(self.units, self.weights @ (statistic - self.offset))

    def recentred(self, centre: Float[Array, " source"], rate: Any) -> Self:
        """The same distribution with the offset moved towards ``centre``; the biases take up what that changes."""
        move = rate * (centre - self.offset)
        return type(self)(self.units.biased(self.weights @ move), self.weights, self.offset + move)

    def projected(self) -> Self:
        """Scales inside their range."""
        return eqx.tree_at(lambda d: d.units, self, self.units.projected())


class Bounds(NamedTuple):
    """Bounds on log p(x) + log Z: the plain one, and the importance-weighted one, which is never lower."""

    plain: Scalar
    weighted: Scalar


class DBNModel(UpDown, PartlyDirected, Decodes, Centred, Constrained, Bounded):
    """E(x, h) = E_top(h^{L−1}, h^L) − Σ log p(h^{l−1} | h^l).

    ``generative[l]`` draws layer l (x is layer 0) from layer l + 1, ``recognition[l]`` layer l + 1 from layer l.
    With labels, x is the pair of the visibles and the one-hot label ``(1, K)``, or None in its place where it is
    unknown.
    """

    generative: tuple[Directed, ...]
    recognition: tuple[Directed, ...]
    top: RBMModel

    @classmethod
    def from_stack(cls, rbms: Sequence[RBMModel]) -> Self:
        """RBMs trained one on another, the lowest first; the last one stays an RBM, and may see labels too."""
        *lower, top = rbms
        generative = tuple(Directed(rbm.visible, rbm.weights, rbm.hidden_offset) for rbm in lower)
        recognition = tuple(Directed(rbm.hidden, rbm.weights.T, rbm.visible_offset) for rbm in lower)
        return cls(generative, recognition, top)

    @classmethod
    def make(
        cls,
        layers: Sequence[AbstractUnits],
        *,
        key: PRNGKeyArray,
        n_labels: int | None = None,
        weight_scale: float = 0.01,
    ) -> Self:
        """Small random weights between layers of units, the visible one first."""
        below, above = list(layers[:-1]), list(layers[1:])
        if n_labels is not None:
            below[-1] = with_label(below[-1], n_labels)
        keys = jax.random.split(key, len(above))
        triples = zip(below, above, keys, strict=True)
        return cls.from_stack([RBMModel.make(v, h, key=k, weight_scale=weight_scale) for v, h, k in triples])

    # -- structure -----------------------------------------------------------------------------------------

    @property
    def summit(self) -> RBMModel:
        """The RBM on top."""
        return self.top

    @property
    def n_labels(self) -> int | None:
        """How many labels there are, if any."""
        visible = self.top.visible
        return visible.parts[1].n_statistics if isinstance(visible, Joined) else None

    @property
    def layers(self) -> tuple[AbstractUnits, ...]:
        """The units of x, h¹ … h^L."""
        visible = self.top.visible
        uppermost = visible.parts[0] if isinstance(visible, Joined) else visible
        return (*(layer.units for layer in self.generative), uppermost, self.top.hidden)

    @property
    def x_space(self) -> Any:
        """The space of x, or the pair of it and the label's."""
        own = self.layers[0].space
        return own if self.n_labels is None else (own, space.Space("categorical", (1, self.n_labels)))

    @property
    def z_space(self) -> tuple[space.Space, ...]:
        """The spaces of h¹ … h^L."""
        return tuple(units.space for units in self.layers[1:])

    def _parts(self, x: Any) -> tuple[Array, Array | None]:
        return (x, None) if self.n_labels is None else x

    def _packed(self, x: Array, label: Any) -> Any:
        return x if self.n_labels is None else (x, label)

    # -- energies ------------------------------------------------------------------------------------------

    def energy(self, x: Any, z: Any) -> Scalar:
        """E(x, h)."""
        x, label = self._parts(x)
        path = (x, *z[:-1])
        return self.generative_energy(path) + self.top.energy(self._packed(path[-1], label), z[-1])

    def generative_energy(self, path: Path) -> Scalar:
        """−Σ log p(h^{l−1} | h^l)."""
        total = jnp.zeros((), path[0].dtype)
        for layer, units, below, above in zip(self.generative, self.layers[1:-1], path[:-1], path[1:], strict=True):
            total = total - layer.given(units.statistic(above)).log_prob(below)
        return total

    def recognition_energy(self, path: Path) -> Scalar:
        """−Σ log q(h^l | h^{l−1})."""
        total = jnp.zeros((), path[0].dtype)
        readers = jax.lax.stop_gradient(self.layers[:-2])  # how a layer is read is for the layer itself to learn
        for layer, units, below, above in zip(self.recognition, readers, path[:-1], path[1:], strict=True):
            total = total - layer.given(units.statistic(below)).log_prob(above)
        return total

    def log_joint(self, x: Any, z: Any) -> Scalar:
        """log p(x, h¹ … h^{L−1}) + log Z: h^L is summed out, and so is the label if it is None."""
        x, label = self._parts(x)
        path = (x, *z)
        if self.n_labels is None or label is not None:
            free = self.top.free_energy(self._packed(path[-1], label))
        else:
            free = -logsumexp(-self._label_energies(path[-1]))
        return -self.generative_energy(path) - free

    # -- recognition ---------------------------------------------------------------------------------------

    def recognise(self, x: Any, *, key: PRNGKeyArray) -> tuple[tuple[Array, ...], Scalar]:
        """(h¹ … h^{L−1} drawn from q, log q of them)."""
        path, _ = self.climb(x, key=key)
        return path[1:], -self.recognition_energy(path)

    def climb(self, x: Any, *, key: PRNGKeyArray) -> tuple[Path, Any]:
        """(x, h¹ … h^{L−1} drawn from q; the top RBM's visibles)."""
        x, label = self._parts(x)
        path = [x]
        for level, (layer, units) in enumerate(zip(self.recognition, self.layers[:-2], strict=True)):
            q = layer.given(units.statistic(path[-1]))
            path.append(q.sample(key=jax.random.fold_in(key, level)))
        return tuple(path), self._packed(path[-1], label)

    def means(self, x: Any) -> tuple[Array, ...]:
        """E[h¹], …, E[h^L] one after another, each given the mean below it (and the label, if that is known)."""
        x, label = self._parts(x)
        values = self._mean_path(x)
        if self.n_labels is None or label is not None:
            uppermost = self.top.posterior(self._packed(values[-1], label)).mean()
        else:
            each = jax.vmap(lambda label: self.top.posterior(self._packed(values[-1], label)).mean())(
                self._labels()
            )
            uppermost = jnp.tensordot(jax.nn.softmax(-self._label_energies(values[-1])), each, axes=1)
        return (*values[1:], uppermost)

    def _mean_path(self, x: Array) -> list[Array]:
        values = [x]
        for layer, units in zip(self.recognition, self.layers[:-2], strict=True):
            values.append(layer.given(units.statistic(values[-1])).mean())
        return values

    def log_weights(self, x: Any, *, key: PRNGKeyArray, n_samples: int) -> Float[Array, " n_samples"]:
        """log p(x, h) + log Z − log q(h | x) at draws of h = (h¹ … h^{L−1}) from q."""

        def one(key: PRNGKeyArray) -> Scalar:
            z, log_q = self.recognise(x, key=key)
            return self.log_joint(x, z) - log_q

        return jax.vmap(one)(jax.random.split(key, n_samples))

    def bound(self, x: Any, *, key: PRNGKeyArray, n_samples: int) -> Bounds:
        """Unbiased estimates of the lower bounds on log p(x) + log Z: E[mean log w] ≤ E[log mean w]."""
        logs = self.log_weights(x, key=key, n_samples=n_samples)
        return Bounds(jnp.mean(logs), logsumexp(logs) - math.log(n_samples))

    def label_energies(self, x: Any) -> Float[Array, " labels"]:
        """F_top(ĥ^{L−1}, y) for every label y: softmax of their negatives is p(y | ĥ^{L−1}), exactly."""
        return self._label_energies(self._mean_path(self._parts(x)[0])[-1])

    def label_energy(self, x: Any) -> Scalar:
        """−log p(y | ĥ^{L−1}), exact, ĥ the means on the way up."""
        self._need_labels()
        _, label = x
        return -jnp.sum(label.reshape(-1) * jax.nn.log_softmax(-self.label_energies(x)))

    def _label_energies(self, uppermost: Array) -> Float[Array, " labels"]:
        return jax.vmap(lambda label: self.top.free_energy(self._packed(uppermost, label)))(self._labels())

    def _labels(self) -> Float[Array, "labels 1 labels"]:
        return jnp.eye(self._need_labels(), dtype=self.top.weights.dtype)[:, None, :]

    def _need_labels(self) -> int:
        if self.n_labels is None:
            raise ParameterError("This deep belief network has no label units: it was fitted without labels.")
        return self.n_labels

    # -- generation ----------------------------------------------------------------------------------------

    def descend(self, visible: Any, *, key: PRNGKeyArray) -> Path:
        """(x, h¹ … h^{L−1}) drawn downwards from the top RBM's visibles."""
        return self.generate(self._parts(visible)[0], key=key)

    def generate(self, uppermost: Array, *, key: PRNGKeyArray) -> Path:
        """(x, h¹ … h^{L−1}) drawn downwards from h^{L−1}."""
        path, pairs = [uppermost], zip(self.generative, self.layers[1:-1], strict=True)
        for level, (layer, units) in enumerate(reversed(list(pairs))):
            p = layer.given(units.statistic(path[-1]))
            path.append(p.sample(key=jax.random.fold_in(key, level)))
        return tuple(reversed(path))

    def decode(self, z: Any) -> Any:
        """E[x | h¹], and E[y | h^L] where there are labels."""
        x, label = self._parts(self.top.decode(z[-1]))
        if self.generative:
            x = self.generative[0].given(self.layers[1].statistic(z[0])).mean()
        return self._packed(x, label)

    def dream(
        self, uppermost: Array, *, key: PRNGKeyArray, n_steps: int, label: Array | None = None
    ) -> tuple[Any, tuple[Array, ...]]:
        """(x, h) after Gibbs sweeps in the top RBM from a value of h^{L−1}, and one pass down.

        With a one-hot ``label`` the sweeps leave p(h^{L−1}, h^L | y) as it is, else the joint distribution. A start
        at that distribution is an exact draw; from elsewhere it is one in the limit of many sweeps.
        """
        label_key, chain_key, down_key = jax.random.split(key, 3)
        fixed = None
        if label is not None:
            self._need_labels()
            fixed = (jnp.zeros(uppermost.shape, bool), jnp.ones(label.shape, bool))
        elif self.n_labels is not None:
            chosen = jax.random.categorical(label_key, -self._label_energies(uppermost))
            label = self._labels()[chosen]
        start = (self._packed(uppermost, label), jnp.zeros(self.top.z_space.shape, uppermost.dtype))

        def sweep(state: Any, key: PRNGKeyArray) -> tuple[Any, None]:
            return self.top.sweep(*state, key=key, fixed=fixed), None

        (visible, hidden), _ = jax.lax.scan(sweep, start, jax.random.split(chain_key, n_steps))
        path = self.descend(visible, key=down_key)
        return self._packed(path[0], self._parts(visible)[1]), (*path[1:], hidden)

    # -- learning ------------------------------------------------------------------------------------------

    def centres(self, x: Any, weights: Any) -> Centres:
        """Means of what the generative and the recognition layers and the top RBM read, on the way up by means."""
        x, label = self._parts(x)
        paths = jax.vmap(self._mean_path)(x)
        pairs = zip(self.layers[:-1], paths, strict=True)
        own = tuple(weighted_mean(jax.vmap(units.statistic)(values), weights) for units, values in pairs)
        return own[1:], own[:-1], self.top.centres(self._packed(paths[-1], label), weights)

    def recentred(self, centres: Centres, rate: Any) -> Self:
        """Every reader's offset moves towards the mean of what it reads; the distributions stay."""
        above, below, top = centres
        generative = tuple(d.recentred(c, rate) for d, c in zip(self.generative, above, strict=True))
        recognition = tuple(d.recentred(c, rate) for d, c in zip(self.recognition, below, strict=True))
        return type(self)(generative, recognition, self.top.recentred(top, rate))

    def project(self) -> Self:
        """Scales inside their range."""
        generative, recognition = (tuple(d.projected() for d in s) for s in (self.generative, self.recognition))
        return type(self)(generative, recognition, self.top.project())

    def margin(self) -> Scalar:
        """The top RBM's: directed layers are always normalised."""
        return self.top.margin()

    def margin_message(self) -> str:
        """The top RBM's."""
        return self.top.margin_message()


def with_label(units: AbstractUnits, n_labels: int) -> Joined:
    """A layer joined by one softmax group of labels."""
    return Joined((units, Categorical.make(1, n_labels)))


def switches(model: DBNModel) -> tuple[np.ndarray, np.ndarray]:
    """(codes with one binary hidden unit on, codes with it off), a row for every unit of every hidden layer.

    The layers below a unit's own take the means that it causes, layer by layer; those above stay at their offsets.
    """
    levels = range(len(model.z_space))
    on, off = (np.concatenate([_switched(model, level, value) for level in levels]) for value in (1.0, 0.0))
    return on, off


@jitted
def _switched(model: DBNModel, level: int, value: float) -> Array:
    offsets = [*(layer.offset for layer in model.generative), model.top.hidden_offset]

    def one(unit: Array) -> Array:
        means = [*offsets[:level], offsets[level].at[unit].set(value), *offsets[level + 1 :]]
        for below in reversed(range(level)):
            if below == len(model.generative) - 1:
                means[below] = model._parts(model.top.decode(means[-1]))[0]
            else:
                means[below] = model.generative[below + 1].given(means[below + 1]).mean()
        return jnp.concatenate(means)

    return jax.vmap(one)(jnp.arange(offsets[level].shape[0]))
