"""Supervised learning: the cross-entropy of a classifier with dropout, also at adversarial inputs.

Adversarial training (Goodfellow, Shlens and Szegedy, 2015; in this norm Miyato, Dai and Goodfellow, 2017) also
evaluates the loss after the step of length ε on the inputs that increases it most: r = ε g/‖g‖, g the gradient of
the cross-entropy at the
inputs, held fixed:

    ½ CE(v) + ½ CE(v + r).

Virtual adversarial training (Miyato, Maeda, Koyama and Ishii, 2019) needs no label: it penalises the change of
the prediction after the step of length ε that changes it most,

    CE(v) + KL(p(· | v) ‖ p(· | v + r)),      r = ε d,

with p(· | v) held fixed and d the first eigenvector of the KL's Hessian at r = 0, by a step of the power method
from a random direction.
"""

from __future__ import annotations

import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray, UInt32

from latentia.core import space
from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.errors import ParameterError
from latentia.core.model import Scalar
from latentia.core.space import Space
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.feed_forward import EXAMPLES, AbstractClassifier
from latentia.ops.arrays import batch_size, weighted_mean

#: Length of the step at which the divergence's slope shows its Hessian: the slope at zero is zero, and too short a
#: step drowns in rounding.
PROBE = 0.1


class LabelledRows(AbstractPrepare):
    """Inputs with the number of a label each → (inputs, one-hot label)."""

    x_space: tuple[Space, Space] = eqx.field(static=True)

    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Encode a batch."""
        del key
        return space.encode(self.x_space, rows)


class CrossEntropyState(eqx.Module):
    """The key of a step's masks and noise, as the words it consists of: files hold arrays, not keys."""

    words: UInt32[Array, " words"]
    implementation: Any = eqx.field(static=True)

    @classmethod
    def of(cls, key: PRNGKeyArray) -> Self:
        """The state that holds a key."""
        return cls(jax.random.key_data(key), jax.random.key_impl(key))

    @property
    def key(self) -> PRNGKeyArray:
        """The key itself."""
        return jax.random.wrap_key_data(self.words, impl=self.implementation)


class CrossEntropy(AbstractObjective):
    """mean −Σ_k t_k log p(k | inputs), with targets t = (1 − s) y + s/K and the network thinned by dropout.

    The state holds the step's key, two words instead of a batch of masks; given the state, the loss is a plain
    function of the parameters.

    Args:
        smoothing: part s of every label that is spread evenly over the classes.
        noise: standard deviation of normal noise added to the inputs in training.
        adversarial: length ε of the step on the inputs that raises the loss most; 0 takes none.
        virtual: length ε of the step on the inputs that changes the prediction most; 0 takes none.
    """

    smoothing: float = eqx.field(static=True, default=0.0)
    noise: float = eqx.field(static=True, default=0.0)
    adversarial: float = eqx.field(static=True, default=0.0)
    virtual: float = eqx.field(static=True, default=0.0)

    def __check_init__(self) -> None:
        if not 0 <= self.smoothing < 1:
            raise ParameterError(f"smoothing must be in [0, 1), got {self.smoothing!r}.")
        for name in ("noise", "adversarial", "virtual"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ParameterError(f"{name} must be at least 0, got {getattr(self, name)!r}.")

    @property
    def requires(self) -> tuple[Need, ...]:
        """A classifier."""
        return (AbstractClassifier,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> CrossEntropyState:
        """A key."""
        del model, x
        return CrossEntropyState.of(key)

    def prepare(
        self, model: Any, x: Any, state: CrossEntropyState, *, key: PRNGKeyArray, weights: Any = None
    ) -> CrossEntropyState:
        """The step's own key: masks and noise that no other step has."""
        del model, x, state
        return CrossEntropyState.of(key)

    def loss(self, model: Any, x: Any, weights: Any, state: CrossEntropyState) -> tuple[Scalar, Metrics]:
        """The cross-entropy of the batch, and the part of it that the thinned network gets right."""
        inputs, labels = x
        keys = jax.random.split(state.key, batch_size(inputs))
        labels = labels.reshape(batch_size(inputs), -1).astype(inputs.dtype)
        one = jax.vmap(lambda *example: self._example(model, *example), axis_name=EXAMPLES)
        each, right = one(inputs, labels, keys, weights)
        loss = weighted_mean(each, weights)
        return loss, {"loss": loss, "accuracy": weighted_mean(right, weights)}

    def _example(
        self,
        model: Any,
        inputs: Float[Array, " n"],
        label: Float[Array, " k"],
        key: PRNGKeyArray,
        weight: Scalar | None,
    ) -> tuple[Scalar, Scalar]:
        """(loss of one example, whether the thinned network reads it right)."""
        mask_key, noise_key = jax.random.split(key)
        inputs, masks = self._noisy(inputs, noise_key), model.masks(key=mask_key)
        targets = (1 - self.smoothing) * label + self.smoothing / label.size

        def entropy(model: Any, inputs: Any) -> tuple[Scalar, Any]:
            logits = model.logits(inputs, masks, weight)
            return -jnp.sum(targets * jax.nn.log_softmax(logits)), logits

        loss, logits = entropy(model, inputs)
        right = (jnp.argmax(logits) == jnp.argmax(label)).astype(logits.dtype)
        if self.adversarial:
            held = jax.lax.stop_gradient(model)
            uphill = jax.grad(lambda v: _weighted(entropy(held, v)[0], weight))(inputs)
            loss = 0.5 * (loss + entropy(model, inputs + self.adversarial * _unit(uphill))[0])
        if self.virtual:
            start = jax.random.normal(jax.random.fold_in(noise_key, 1), inputs.shape, inputs.dtype)
            read = lambda m, v: m.logits(v, masks, weight)  # noqa: E731
            loss = loss + self._changed(read, model, inputs, logits, start, weight)
        return loss, right

    def _changed(self, read: Any, model: Any, inputs: Any, logits: Any, start: Any, weight: Any) -> Scalar:
        """KL between the prediction and that one step away, where it changes most, sought from a random start."""
        said = jax.lax.stop_gradient(jax.nn.log_softmax(logits))

        def divergence(model: Any, step: Any) -> Scalar:
            return jnp.sum(jnp.exp(said) * (said - jax.nn.log_softmax(read(model, inputs + step))))

        held = jax.lax.stop_gradient(model)
        uphill = jax.grad(lambda step: _weighted(divergence(held, step), weight))(PROBE * _unit(start))
        return divergence(model, self.virtual * _unit(uphill))

    def _noisy(self, inputs: Float[Array, " n"], key: PRNGKeyArray) -> Float[Array, " n"]:
        if not self.noise:
            return inputs
        return inputs + self.noise * jax.random.normal(key, inputs.shape, inputs.dtype)


def _weighted(loss: Scalar, weight: Scalar | None) -> Scalar:
    """An example's part of the batch's loss: where examples share moments, each moves the others' losses too."""
    return loss if weight is None else weight * loss


def _unit(step: Float[Array, " n"]) -> Float[Array, " n"]:
    """A step of length one; one that vanished in float32 has no direction, and stays zero."""
    return step / jnp.maximum(jnp.sqrt(jnp.sum(step**2)), jnp.finfo(step.dtype).tiny)
