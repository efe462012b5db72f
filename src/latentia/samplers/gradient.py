"""Shared parts of samplers that use ∇F(x): fixed entries, step size and scales, and their adaptation.

They draw from p(x) ∝ exp(−F(x)) for real x. A chain's state is its x and nothing else: the energy and its gradient
are computed anew at the start of every step, so that a step is right for the model it is given, whatever the model
was when the chain was there before (in persistent training θ moves between steps). That costs one gradient a step.

**Fixed entries** have neither gradient nor momentum. The rest then moves on F with the fixed values in place, which
is the energy of p(free | fixed) up to a constant.

**Adaptation.** With ā the mean acceptance over the chains, a* the target and γ a gain that falls as t^(−3/4) to a
floor, a Robbins–Monro step moves log ε by γ (ā − a*)/max(1 − a*, 0.2) (Andrieu and Thoms, 2008, section 5; the
division makes the rise as quick for a high target as for a low one and leaves the fixed point where it is). The
floor lets the sampler follow a model that keeps learning. The diagonal inverse mass is the running variance of all
chains' positions, with the same gain; where it grows as a whole, ε shrinks in turn, so that moves keep their length
and only their proportions follow the mass. The first inverse mass is the variance of the points where the chains
start: chains that start at data then fit data of any scale.
"""

# Annotations are not strings here: Equinox must see its AbstractVar.

import abc
from collections.abc import Callable
from numbers import Real
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractSampler, Metrics
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel
from latentia.core.space import Domain
from latentia.ops.arrays import batch_size, cast, float_type

#: The gain of the n-th adaptation is (n + DELAY)^(−DECAY), and never less than FLOOR.
DELAY, DECAY, FLOOR = 3.0, 0.75, 0.01
#: Number of chains from which one step gives half of the information on the variances.
ENOUGH = 10.0

Vector = Float[Array, " d"]
LogDensity = Callable[[Vector], Float[Array, ""]]


class Position(eqx.Module):
    """The state of a chain."""

    x: Any


class Transition(eqx.Module):
    """What happened in one step.

    ``acceptance`` is the probability of acceptance (its mean along a NUTS trajectory), ``position`` the flat x
    afterwards and ``free`` which of its entries could move, None for all.
    """

    acceptance: Float[Array, "*batch"]
    divergent: Bool[Array, "*batch"]
    position: Float[Array, "*batch d"]
    free: Bool[Array, "*batch d"] | None


class AbstractGradientSampler(AbstractSampler):
    """Moves x along ∇F. Implement ``_move``, get the rest."""

    #: Moves keep their length if the step size goes with the inverse mass to the minus this.
    mass_power: eqx.AbstractClassVar[float]
    step_size: eqx.AbstractVar[Float[Array, ""]]
    #: Diagonal of the inverse mass matrix, over the flattened x; None: ones, and nothing adapts it.
    inverse_mass: eqx.AbstractVar[Vector | None]
    adaptive: eqx.AbstractVar[bool]
    #: The acceptance that the step size adapts to.
    target: eqx.AbstractVar[float]
    #: The running mean of the positions, and the number of adaptations so far.
    mean: eqx.AbstractVar[Vector | None]
    count: eqx.AbstractVar[Float[Array, ""]]

    @abc.abstractmethod
    def _move(
        self,
        log_density: LogDensity,
        x: Vector,
        *,
        step_size: Float[Array, ""],
        inverse_mass: Vector,
        free: Bool[Array, " d"] | None,
        key: PRNGKeyArray,
    ) -> tuple[Vector, Any, Any]:
        """(x, acceptance, whether it diverged) after one transition; what is not free is put back afterwards."""

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """Real x: there is no gradient on states, and no wall at zero."""
        return ("real",)

    def init(self, model: FreeEnergy, x: Any, *, key: PRNGKeyArray) -> Position:
        """Start at ``x``."""
        del model, key
        return Position(x)

    def visible(self, state: Position) -> Any:
        """x."""
        return state.x

    def latent(self, state: Position) -> Any:
        """Nothing: the latents are summed out."""
        del state
        return ()

    def step(
        self, model: FreeEnergy, state: Position, *, key: PRNGKeyArray, fixed: Any = None
    ) -> tuple[Position, Transition]:
        """One transition from where the chain is."""
        start, unravel = ravel_pytree(state.x)
        free = None if fixed is None else ~ravel_pytree(fixed)[0]

        def held(x: Vector) -> Vector:
            return x if free is None else jnp.where(free, x, start)

        mass = self.inverse_mass
        with jax.enable_x64(start.dtype == jnp.float64):  # BlackJAX makes arrays of JAX's default type
            x, acceptance, divergent = self._move(
                lambda x: -model.free_energy(unravel(held(x))),
                start,
                step_size=self.step_size.astype(start.dtype),
                inverse_mass=jnp.ones_like(start) if mass is None else mass.astype(start.dtype),
                free=free,
                key=key,
            )
        x = held(x)
        return Position(unravel(x)), Transition(jnp.asarray(acceptance), jnp.asarray(divergent), x, free)

    def sized(self, x: Any) -> Self:
        """With an inverse mass that fits chains starting at the rows of ``x``, for it to adapt."""
        self = cast(self, float_type(x))
        if not self.adaptive or (self.inverse_mass is not None and self.mean is not None):
            return self
        rows = _rows(x)
        mass = _variances(rows) if self.inverse_mass is None else self.inverse_mass
        centre = jnp.mean(rows, axis=0)
        is_none = lambda leaf: leaf is None  # noqa: E731
        return eqx.tree_at(lambda s: (s.inverse_mass, s.mean), self, (mass, centre), is_leaf=is_none)

    def adapt(self, info: Transition) -> Self:
        """One step of the step size towards its target and of the mass towards the variance of the positions."""
        if not self.adaptive:
            return self
        dtype = self.step_size.dtype
        gain = jnp.maximum((self.count + DELAY) ** -DECAY, FLOOR)
        acceptance = jnp.mean(jnp.nan_to_num(info.acceptance)).astype(dtype)
        log_step = jnp.log(self.step_size) + gain * (acceptance - self.target) / max(1 - self.target, 0.2)
        mass, mean = self.inverse_mass, self.mean
        if mass is not None and mean is not None:
            mass, mean, growth = _followed(mass, mean, info, gain)
            log_step = log_step - growth * self.mass_power
        leaves = lambda s: (s.step_size, s.inverse_mass, s.mean, s.count)  # noqa: E731
        new = (jnp.exp(jnp.clip(log_step, -60.0, 60.0)), mass, mean, self.count + 1)
        return eqx.tree_at(leaves, self, new, is_leaf=lambda leaf: leaf is None)

    def metrics(self, info: Transition) -> Metrics:
        """Mean acceptance, step size and share of diverged transitions."""
        return {
            "acceptance": jnp.mean(info.acceptance),
            "step_size": self.step_size,
            "divergent": jnp.mean(info.divergent.astype(self.step_size.dtype)),
        }


def _followed(mass: Vector, mean: Vector, info: Transition, gain: Any) -> tuple[Vector, Vector, Any]:
    """(variances, means, mean change of the log variances) after a look at all chains' positions.

    Entries count where they are free only. The weights (1 − g, g) of old and new make the variance
    (1 − g) v + g (within + (1 − g)(centre − mean)²), what the mixture of both has.
    """
    x = info.position.astype(mass.dtype)
    free = jnp.ones_like(x) if info.free is None else info.free.astype(x.dtype)
    chains = jnp.sum(free, axis=0)
    n = jnp.maximum(chains, 1.0)
    rate = jnp.minimum(gain, chains / (chains + ENOUGH))  # one chain says little about a variance
    centre = jnp.sum(free * x, axis=0) / n
    within = jnp.sum(free * (x - centre[None]) ** 2, axis=0) / n
    new = (1 - rate) * (mass + rate * (centre - mean) ** 2) + rate * within
    new_mean = mean + rate * (centre - mean)
    good = (chains > 0) & jnp.isfinite(new) & jnp.isfinite(new_mean)
    # A cloud that has not yet spread (chains that all start at one point) must not stop itself.
    new = jnp.where(good, jnp.maximum(new, 1e-30), mass)
    n_good = jnp.maximum(jnp.sum(good.astype(new.dtype)), 1.0)
    growth = jnp.sum(jnp.where(good, jnp.log(new) - jnp.log(mass), 0.0)) / n_good
    return new, jnp.where(good, new_mean, mean), growth


def _rows(x: Any) -> Float[Array, "n d"]:
    n = batch_size(x)
    return jnp.concatenate([leaf.reshape(n, -1) for leaf in jax.tree.leaves(x)], axis=1)


def _variances(rows: Float[Array, "n d"]) -> Vector:
    """The columns' variances, few rows' drawn towards their common mean; ones where the rows do not differ."""
    n = rows.shape[0]
    variance = jnp.var(rows, axis=0)
    common = jnp.mean(variance)
    blended = (n * variance + 5 * common) / (n + 5)
    return jnp.where(jnp.isfinite(common) & (common > 0), blended, 1.0).astype(rows.dtype)


def array(value: Any) -> Any:
    """A converter of a field: numbers become an array, in the precision in force; arrays and None stay."""
    return value if value is None or isinstance(value, jax.Array) else jnp.asarray(value, jnp.result_type(float))


def step_size(value: Any) -> Any:
    """A converter of a field: a positive number becomes an array."""
    if not isinstance(value, jax.Array) and not (isinstance(value, Real) and 0 < float(value) < float("inf")):
        raise ParameterError(f"step_size must be a positive number, got {value!r}.")
    return array(value)


def check_target(target: float) -> None:
    """Refuse a target acceptance that is no probability strictly between 0 and 1."""
    if not 0 < target < 1:
        raise ParameterError(f"target must lie between 0 and 1 (it is an acceptance probability), got {target!r}.")
