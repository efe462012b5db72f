"""A committee: networks that learn side by side, each for itself, and predict together.

The networks differ in the random numbers of the training: their output layers at the start, what is dropped at
every step, and hence their adversarial steps. Each minimises its own loss, in one compiled program; what they share
is the batches, the rate (a divergence of one halves it for all), the moment of stopping, and the norm of the
gradient where an optimiser clips it. They predict by

    p(y | v) = (1/K) Σ_k p_k(y | v),

which by Jensen's inequality is never worse in cross-entropy than the networks are on average, and better by as much
as they disagree.

References:
    Hansen and Salamon (1990), "Neural network ensembles".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import Constrained
from latentia.core.model import Scalar
from latentia.core.space import Space
from latentia.learning.feed_forward import AbstractClassifier, FeedForward


class Committee(AbstractClassifier, Constrained):
    """Networks of one shape whose probabilities are averaged.

    Args:
        members: a network whose arrays all have a leading axis, one entry for each member; see :meth:`of`.

    Example:
        >>> layers = [(jnp.ones((4, 3)), jnp.zeros(3))]
        >>> keys = jax.random.split(jax.random.key(0), 2)
        >>> committee = Committee.of([FeedForward.from_layers(layers, 5, key=key) for key in keys])
        >>> committee.n_members, committee.logits(jnp.ones(4)).shape
        (2, (5,))
    """

    members: FeedForward

    @classmethod
    def of(cls, networks: Sequence[FeedForward]) -> Self:
        """The committee of networks of one shape."""
        return cls(jax.tree.map(lambda *arrays: jnp.stack(arrays), *networks))

    @classmethod
    def build(cls, blueprint: dict[str, Any]) -> Any:
        """A committee of the shape given by :attr:`blueprint`; one network, if it has no members."""
        facts = dict(blueprint)
        n_members = facts.pop("n_members", None)
        network = FeedForward.build(facts)
        return network if n_members is None else cls.of([network] * n_members)

    @property
    def n_members(self) -> int:
        """How many networks there are."""
        return self.members.biases[-1].shape[0]

    def member(self, number: int) -> FeedForward:
        """One of the networks."""
        place = range(self.n_members)[number]  # an array would take any number
        return jax.tree.map(lambda array: array[place], self.members)

    @property
    def blueprint(self) -> dict[str, Any]:
        """Plain facts from which :meth:`build` makes a committee of the same structure."""
        return {"n_members": self.n_members, **self.member(0).blueprint}

    @property
    def x_space(self) -> tuple[Space, Space]:
        """Every member's: inputs, and one categorical label."""
        return self.member(0).x_space

    def logits(
        self, inputs: Float[Array, " n"], masks: Any = None, weight: Scalar | None = None
    ) -> Float[Array, " k"]:
        """log p(label | inputs), normalised; ``masks`` has a leading axis, as the members have."""
        one = lambda member, masks: jax.nn.log_softmax(member.logits(inputs, masks, weight))  # noqa: E731
        each = jax.vmap(one)(self.members, masks)
        return jax.nn.logsumexp(each, axis=0) - jnp.log(self.n_members).astype(each.dtype)

    def masks(self, *, key: PRNGKeyArray) -> Any:
        """A draw for each member."""
        keys = jax.random.split(key, self.n_members)
        return jax.vmap(lambda member, key: member.masks(key=key))(self.members, keys)

    def with_moments(self, inputs: Any, weights: Any = None) -> Self:
        """Every member with the moments of these rows."""
        return type(self)(jax.vmap(lambda member: member.with_moments(inputs, weights))(self.members))

    def project(self) -> Self:
        """Every member within its bounds."""
        return type(self)(jax.vmap(lambda member: member.project())(self.members))


class Separately(AbstractObjective):
    """The sum of an objective over the members of a committee: each learns as if it were alone.

    Members share the batches, but not the random numbers. The objective's metrics are means over the members.

    Args:
        objective: what each member minimises.
    """

    objective: AbstractObjective

    @property
    def requires(self) -> tuple[Need, ...]:
        """A committee."""
        return (Committee,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """A state for each member."""
        keys = jax.random.split(key, model.n_members)
        return jax.vmap(lambda member, key: self.objective.init(member, x, key=key))(model.members, keys)

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """Each member's state, made ready."""

        def one(member: Any, state: Any, key: PRNGKeyArray) -> Any:
            return self.objective.prepare(member, x, state, key=key, weights=weights)

        return jax.vmap(one)(model.members, state, jax.random.split(key, model.n_members))

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """Σ_k of the members' losses."""
        one = jax.vmap(lambda member, state: self.objective.loss(member, x, weights, state))
        losses, metrics = one(model.members, state)
        return jnp.sum(losses), jax.tree.map(lambda each: jnp.mean(each, axis=0), metrics)
