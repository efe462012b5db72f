"""A feed-forward classifier with dropout and normalised fields.

A generative model of layers, unrolled from the visibles upwards, is the start of a classifier (Hinton and
Salakhutdinov, 2006): its couplings become the weights of hidden layers, a small random output layer is put on top,
and all of it is trained to discriminate the classes. As an energy of inputs v and a one-hot label y,

    E(v, y) = −yᵀ log softmax(f(v)),      f(v) = b_L + W_Lᵀ h_{L−1},      h_l = σ(b_l + W_lᵀ h_{l−1}),      h_0 = v,

which is −log p(y | v): normalised over labels for every v, and no statement about v. A layer may read the inputs
again beside the layer below, [v, h_{l−1}], as the second round of mean field does in a deep Boltzmann machine.

Dropout (Hinton et al., 2012; Srivastava et al., 2014) multiplies every input and hidden value in training by m/q,
where m is one with probability q and zero otherwise. Since E[m/q] = 1, nothing changes at prediction, and weights
from generative training need no change: each unit still has the field it was trained with, on average.

Batch normalisation (Ioffe and Szegedy, 2015) measures the field u of every hidden unit by its mean m and spread s,

    h = σ(b + g (u − m)/s),      s² = Var u + 0.001,

those of the batch in training, thinned as it is, and those of training rows, of which nothing is dropped, in
prediction. A network that is given it starts with g = s and b + m, and predicts as it did. Since dropout widens the
fields of a batch, units no longer see in prediction what they were trained with: normalise with little dropout.
"""

from __future__ import annotations

import abc
import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import Any, Literal, Self, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.capabilities import Constrained
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.hooks import hook
from latentia.core.model import AbstractModel, Scalar
from latentia.core.parameters import bias, buffer, weight
from latentia.core.space import Space
from latentia.ops.arrays import TINY
from latentia.ops.compiling import jitted

Activation = Literal["sigmoid", "relu", "tanh"]
_ACTIVATIONS = {"sigmoid": jax.nn.sigmoid, "relu": jax.nn.relu, "tanh": jnp.tanh}

#: Standard deviation of the weights into the logits at the start: the classes begin almost equal.
OUTPUT_SCALE = 0.01

#: Added to the variance of a field: what hardly varies is not blown up.
VARIANCE_FLOOR = 1e-3

#: Name of the axis of examples, over which training takes the moments of fields.
EXAMPLES = "examples"

#: Which values stay, layer by layer from the inputs; None where all of them do.
Masks = tuple[Bool[Array, " n"] | None, ...]


class AbstractClassifier(AbstractModel):
    """A model of a label given inputs: x = (inputs, one-hot label), and no latents."""

    @property
    def z_space(self) -> tuple[()]:
        """Nothing is latent."""
        return ()

    def energy(self, x: Any, z: Any = ()) -> Scalar:
        """−log p(label | inputs)."""
        del z
        inputs, label = x
        return -jnp.sum(label.reshape(-1) * jax.nn.log_softmax(self.logits(inputs)))

    @abc.abstractmethod
    def logits(
        self, inputs: Float[Array, " n"], masks: Any = None, weight: Scalar | None = None
    ) -> Float[Array, " k"]:
        """log p(label | inputs) up to a constant.

        Args:
            inputs: one example.
            masks: in training, which values are dropped.
            weight: in training, the example's weight among those of its batch; None where all are equal.
        """

    @abc.abstractmethod
    def masks(self, *, key: PRNGKeyArray) -> Any:
        """A draw of what training drops for one example."""

    @hook
    def with_moments(self, inputs: Any, weights: Any = None) -> Self:
        """The classifier ready to predict, with the moments of the rows that it learned from.

        Args:
            inputs: rows that it learned from.
            weights: one weight per row; None if all are equal.
        """
        del inputs, weights
        return self


#: (mean, spread) of the fields of every hidden layer.
Moments = Sequence[tuple[Float[Array, " n"], Float[Array, " n"]]]


class Normalisation(eqx.Module):
    """Gains of the hidden units, and the moments of their fields over the training rows; one entry per layer."""

    gains: tuple[Float[Array, " n"], ...] = bias()
    moments: tuple[tuple[Float[Array, " n"], Float[Array, " n"]], ...] = buffer()


class FeedForward(AbstractClassifier, Constrained):
    """Hidden layers of one kind of unit, and linear logits on top.

    Args:
        weights: one matrix ``(n_in, n_out)`` per layer, from the inputs to the logits.
        biases: one vector per layer.
        activation: what hidden units do with their field: "sigmoid", "relu", "tanh".
        dropout: part of the hidden values dropped in training.
        input_dropout: part of the inputs dropped in training.
        max_norm: largest Euclidean norm of the weights into a unit; 0 sets no bound.
        rereads: numbers of layers that read the inputs again, before the values of the layer below.
        normalisation: of the fields of the hidden units; None for none. See :meth:`normalised`.

    Example:
        >>> layers = [(jnp.ones((4, 3)), jnp.zeros(3)), (jnp.ones((3, 2)), jnp.zeros(2))]
        >>> network = FeedForward.from_layers(layers, 5, key=jax.random.key(0), dropout=0.5)
        >>> network.logits(jnp.ones(4)).shape
        (5,)
    """

    weights: tuple[Float[Array, "n_in n_out"], ...] = weight()
    biases: tuple[Float[Array, " n_out"], ...] = bias()
    activation: Activation = eqx.field(static=True, default="sigmoid")
    dropout: float = eqx.field(static=True, default=0.0)
    input_dropout: float = eqx.field(static=True, default=0.0)
    max_norm: float = eqx.field(static=True, default=0.0)
    rereads: tuple[int, ...] = eqx.field(static=True, default=())
    normalisation: Normalisation | None = None

    def __check_init__(self) -> None:
        if self.activation not in get_args(Activation):
            raise UnknownNameError("activation", self.activation, get_args(Activation))
        for name in ("dropout", "input_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise ParameterError(f"{name} must be in [0, 1), got {getattr(self, name)!r}.")
        if not 0 <= self.max_norm < math.inf:
            raise ParameterError(f"max_norm must be positive, or 0 for no bound, got {self.max_norm!r}.")

    @classmethod
    def from_layers(
        cls,
        layers: Sequence[tuple[Any, Any]],
        n_classes: int,
        *,
        key: PRNGKeyArray,
        activation: Activation = "sigmoid",
        dropout: float = 0.0,
        input_dropout: float = 0.0,
        max_norm: float = 0.0,
    ) -> Self:
        """Given hidden layers ``[(weights, biases), …]`` with a small random output layer on top.

        A layer that is taller than the one before is wide, by as many rows as there are inputs, reads the inputs
        again: its first rows are theirs.
        """
        weights = [jnp.asarray(w, jnp.float32) for w, _ in layers]
        biases = [jnp.asarray(b, jnp.float32) for _, b in layers]
        sizes = [weights[0].shape[0], *(b.shape[0] for b in biases)] if layers else []
        rereads = tuple(i for i in range(1, len(weights)) if weights[i].shape[0] == sizes[0] + sizes[i])
        if not layers or [w.shape for w in weights] != _shapes(sizes, rereads):
            raise ParameterError(
                "Hidden layers must be matrices (n_in, n_out) with n_out biases, each as tall as the one before is "
                "wide (or by the number of inputs taller, to read them again); got weights "
                f"{[w.shape for w in weights]} and biases {[b.shape for b in biases]}."
            )
        output = OUTPUT_SCALE * jax.random.normal(key, (sizes[-1], n_classes), jnp.float32)
        both = (*weights, output), (*biases, jnp.zeros(n_classes, jnp.float32))
        return cls(*both, activation, float(dropout), float(input_dropout), float(max_norm), rereads)

    @classmethod
    def build(cls, blueprint: dict[str, Any]) -> Self:
        """A network of the shape that :attr:`blueprint` says, all of it zero."""
        facts = dict(blueprint)
        sizes, rereads = facts.pop("sizes"), tuple(facts.pop("rereads", ()))
        normalised = facts.pop("normalised", False)
        weights = tuple(jnp.zeros(shape, jnp.float32) for shape in _shapes(sizes, rereads))
        biases = tuple(jnp.zeros(n, jnp.float32) for n in sizes[1:])
        normalisation = Normalisation(biases[:-1], tuple((b, b) for b in biases[:-1])) if normalised else None
        return cls(weights, biases, **facts, rereads=rereads, normalisation=normalisation)

    @property
    def sizes(self) -> list[int]:
        """How many inputs there are, and how many values in every layer."""
        return [self.weights[0].shape[0], *(b.shape[0] for b in self.biases)]

    @property
    def blueprint(self) -> dict[str, Any]:
        """Plain facts from which :meth:`build` makes a network of the same structure."""
        return {
            "sizes": self.sizes,
            "activation": self.activation,
            "dropout": self.dropout,
            "input_dropout": self.input_dropout,
            "max_norm": self.max_norm,
            "rereads": list(self.rereads),
            **({} if self.normalisation is None else {"normalised": True}),
        }

    @property
    def x_space(self) -> tuple[Space, Space]:
        """Inputs, and one categorical label."""
        return Space("real", self.weights[0].shape[:1]), Space("categorical", (1, self.biases[-1].shape[0]))

    def logits(
        self, inputs: Float[Array, " n"], masks: Masks | None = None, weight: Scalar | None = None
    ) -> Float[Array, " k"]:
        """f(inputs); with ``masks``, values that stay are divided by the probability of staying.

        With masks, a network that is normalised must be mapped over the axis :data:`EXAMPLES` of a batch, whose
        moments are taken with the examples' weights.
        """
        normalised_in_training = masks is not None and self.normalisation is not None
        return self._run(inputs, masks, weight, among_examples=normalised_in_training)[0]

    def _run(
        self, inputs: Float[Array, " n"], masks: Masks | None, weight: Scalar | None, *, among_examples: bool
    ) -> tuple[Float[Array, " k"], Moments]:
        """(logits, the moments of the fields among the examples, if requested)."""
        values, last, moments = inputs, len(self.weights) - 1, []
        for layer, (weights, biases) in enumerate(zip(self.weights, self.biases, strict=True)):
            mask = None if masks is None else masks[layer]
            if mask is not None:
                values = jnp.where(mask, values / (1 - self._rate(layer)), 0.0)
            if layer == 0:
                inputs = values  # what was dropped is not read again
            values = (jnp.concatenate([inputs, values]) if layer in self.rereads else values) @ weights
            if layer < last and among_examples:
                moments.append(_moments(values, weight))
            if layer < last and self.normalisation is not None:
                mean, spread = moments[layer] if among_examples else self.normalisation.moments[layer]
                values = self.normalisation.gains[layer] * (values - mean) / spread
            values = values + biases
            if layer < last:
                values = _ACTIVATIONS[self.activation](values)
        return values, moments

    def normalised(self, inputs: Any, weights: Any = None) -> Self:
        """The same function with normalised fields, of which these rows (and their weights) give the moments."""
        moments = tuple(self._moments_over(inputs, weights))
        biases = (*(b + mean for b, (mean, _) in zip(self.biases, moments, strict=False)), self.biases[-1])
        normalisation = Normalisation(tuple(spread for _, spread in moments), moments)
        return dataclasses.replace(self, biases=biases, normalisation=normalisation)

    def with_moments(self, inputs: Any, weights: Any = None) -> Self:
        """With the moments of the fields over these rows and their weights, for prediction."""
        if self.normalisation is None:
            return self
        return eqx.tree_at(lambda m: m.normalisation.moments, self, tuple(self._moments_over(inputs, weights)))

    @jitted
    def _moments_over(self, inputs: Any, weights: Any) -> Moments:
        one = lambda row, weight: self._run(row, None, weight, among_examples=True)[1]  # noqa: E731
        return jax.vmap(one, out_axes=None, axis_name=EXAMPLES)(inputs, weights)

    def masks(self, *, key: PRNGKeyArray) -> Masks:
        """Independent Bernoulli samples for all inputs and hidden values."""
        keys = jax.random.split(key, len(self.weights))
        return tuple(
            jax.random.bernoulli(key, 1 - self._rate(layer), (n,)) if self._rate(layer) else None
            for layer, (key, n) in enumerate(zip(keys, self.sizes[:-1], strict=True))
        )

    def _rate(self, layer: int) -> float:
        return self.dropout if layer else self.input_dropout

    def project(self) -> Self:
        """Weights into a unit that are longer than the bound, shortened to it."""
        if not self.max_norm:
            return self

        def bounded(weights: Float[Array, "n_in n_out"]) -> Float[Array, "n_in n_out"]:
            norms = jnp.sqrt(jnp.sum(weights**2, axis=0, keepdims=True))
            return weights * jnp.broadcast_to(self.max_norm / jnp.maximum(norms, self.max_norm), weights.shape)

        return eqx.tree_at(lambda m: m.weights, self, tuple(bounded(w) for w in self.weights))


def _moments(fields: Float[Array, " n"], weight: Scalar | None) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """(mean, spread) over the examples among which this one is mapped."""
    share = None if weight is None else weight / jnp.maximum(jax.lax.psum(weight, EXAMPLES), TINY)

    def mean_of(values: Float[Array, " n"]) -> Float[Array, " n"]:
        return jax.lax.pmean(values, EXAMPLES) if share is None else jax.lax.psum(share * values, EXAMPLES)

    mean = mean_of(fields)
    return mean, jnp.sqrt(mean_of((fields - mean) ** 2) + VARIANCE_FLOOR)


def _shapes(sizes: Sequence[int], rereads: Sequence[int]) -> list[tuple[int, int]]:
    """Shapes of the weights between layers of given sizes, the inputs first."""
    pairs = enumerate(itertools.pairwise(sizes))
    return [(below + (sizes[0] if layer in rereads else 0), above) for layer, (below, above) in pairs]
