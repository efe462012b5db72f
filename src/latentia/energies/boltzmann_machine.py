"""General Boltzmann machines: binary units, any of which may be coupled.

With s = (x, z) in {0, 1}ⁿ or {−1, +1}ⁿ and W symmetric with zero diagonal,

    E(s) = −½ sᵀWs − bᵀs,        p(s_i = on | all others) = σ(g (b_i + f_i)),    f_i = Σ_j W_ij s_j,

where g is the difference between the two states: 1 for {0, 1} and 2 for {−1, +1}. Sweeps update every unit once,
from its field at the newest values of the others. They draw (Gibbs sampling), average (mean field: each update
minimises the variational energy over one unit, so no round raises it; all at once they may) or minimise (zero
temperature: each update minimises the energy over one unit). A sweep updates one block of units after another, so
with more than two blocks it is not reversible: annealing bounds log Z from both sides all the same, and Bennett's
estimate between the two is then approximate.

References: Ackley, Hinton and Sejnowski (1985); Hopfield (1982); Peterson and Anderson (1987) for mean field.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, PRNGKeyArray

from latentia.core.capabilities import Clamps, FreeEnergy, Initialised, MeanField, Tempered
from latentia.core.model import Scalar
from latentia.core.parameters import buffer
from latentia.core.space import Space
from latentia.energies.layered import LayeredPosterior
from latentia.inference import MeanFieldInference
from latentia.ops.arrays import float_type
from latentia.ops.colouring import graph
from latentia.ops.couplings import AbstractCouplings, DenseCouplings, SparseCouplings
from latentia.units import Bernoulli, Factorial, Spin

Vector = Float[Array, " n"]
#: Rounds of mean field for a chain's first latents.
ROUNDS = 10
#: A field below this part of the largest that a unit can have counts as zero: rounding decides its sign.
TIE = 1e-6


class BoltzmannMachineModel(Tempered, Initialised):
    """E(s) = −½ sᵀWs − bᵀs + constant; the first ``n_visible`` units are x, the others z."""

    units: Bernoulli | Spin
    couplings: AbstractCouplings
    constant: Float[Array, ""] = buffer()
    n_visible: int = eqx.field(static=True, default=0)

    # -- structure -----------------------------------------------------------------------------------------

    @property
    def n_hidden(self) -> int:
        """How many units are latent."""
        return self.units.n_statistics - self.n_visible

    @property
    def x_space(self) -> Any:
        """The visible units; empty where all of them are clamped."""
        return Space(self.units.space.domain, (self.n_visible,)) if self.n_visible else ()

    @property
    def z_space(self) -> tuple[Space, ...]:
        """The hidden units; empty if there are none."""
        return (Space(self.units.space.domain, (self.n_hidden,)),) if self.n_hidden else ()

    @property
    def states(self) -> tuple[float, float]:
        """The two states of a unit: off and on."""
        return (-1.0, 1.0) if isinstance(self.units, Spin) else (0.0, 1.0)

    def _joined(self, x: Any, z: Any) -> Vector:
        return jnp.concatenate(jax.tree.leaves((x, z)))

    def _parted(self, s: Vector) -> tuple[Any, tuple]:
        n = self.n_visible
        return (s[:n] if n else ()), ((s[n:],) if self.n_hidden else ())

    # -- energies ------------------------------------------------------------------------------------------

    def energy(self, x: Any, z: Any) -> Scalar:
        """E(x, z)."""
        s = self._joined(x, z)
        return self.constant + self.units.energy(s) - self.couplings.quadratic(s)

    def reduced_energy(self, x: Any, z: Any) -> Scalar:
        """The units summed out that a sweep draws first."""
        first = self.couplings.first
        s = self._joined(x, z)
        rest = s.at[first].set(jnp.zeros((), s.dtype))
        field = self.couplings.product(rest)
        drawn = type(self.units)(self.units.bias[first])
        return self.constant + self.units.energy(rest) - 0.5 * (rest @ field) - drawn.log_partition(field[first])

    # -- sweeps --------------------------------------------------------------------------------------------

    def _state(self, on: Bool[Array, "..."]) -> Array:
        low, high = self.states
        return jnp.where(on, high, low).astype(self.units.bias.dtype)

    def sweep(self, x: Any, z: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, tuple]:
        """Every unit drawn given all others, block after block.

        A unit is switched on where u < σ(g (b + f)) with u uniform, hence where f > log(u / (1 − u)) / g − b: the
        right-hand side is computed for all units at once, before the sweep.
        """
        s, order = self._joined(x, z), self.couplings.order
        low, high = self.states
        u = jax.random.uniform(key, s.shape, s.dtype)
        threshold = jnp.log(u / (1 - u)) / (high - low) - self.units.bias[order]
        if fixed is not None:
            still = self._joined(fixed, jax.tree.map(lambda a: jnp.zeros(a.shape, bool), z))[order]
            always = jnp.where(s[order] == high, -jnp.inf, jnp.inf).astype(s.dtype)
            threshold = jnp.where(still, always, threshold)
        return self._parted(self.couplings.drawn(s, threshold, low, high))

    def settle(self, s: Vector, fixed: Bool[Array, " n"]) -> Vector:
        """One sweep at zero temperature: every unit that is not fixed takes its better state, or stays at a tie."""
        order = self.couplings.order
        scale = TIE * (self.couplings.absolute() + jnp.abs(self.units.bias))
        scale = jnp.where(fixed, jnp.inf, scale)  # a tie wherever it is fixed

        def better(field: Any, data: Any) -> Any:
            bias, scale, old = data
            pull = bias + field
            return jnp.where(jnp.abs(pull) <= scale, old, self._state(pull > 0))

        data = jax.tree.map(lambda a: a[order], (self.units.bias, scale, s))
        return self.couplings.sweep(s, better, data).values

    def site_means(self, x: Any, z: Any) -> Any:
        """E[x_i | all other units at their values or means], for every visible unit."""
        field = self.couplings.product(self._joined(x, z))
        return self._parted(self.units.mean(field))[0]

    # -- tempering and starts ------------------------------------------------------------------------------

    def base(self, x: Any = None) -> Self:
        """No couplings; visible marginals fitted to the batch if there is one."""
        units = self.units if x is None or not self.n_visible else self._fitted(x)
        return eqx.tree_at(lambda m: (m.units, m.couplings), self, (units, self.couplings.uncoupled()))

    def _fitted(self, x: Float[Array, "batch n"]) -> Bernoulli | Spin:
        hidden = self.units.bias[self.n_visible :]
        visible = type(self.units)(self.units.bias[: self.n_visible]).fitted(x)
        return type(self.units)(jnp.concatenate([visible.bias, hidden]))

    def base_log_z(self) -> Scalar:
        """Γ(0) − constant."""
        return self.units.log_partition(jnp.zeros_like(self.units.bias)) - self.constant

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """Visible biases from the data's means."""
        del key
        return eqx.tree_at(lambda m: m.units, self, self._fitted(x))


class VisibleBoltzmann(BoltzmannMachineModel, FreeEnergy):
    """A machine without hidden units: F(x) = E(x)."""

    def free_energy(self, x: Vector) -> Scalar:
        """E(x)."""
        return self.energy(x, ())

    def begin(self, x: Any, *, key: PRNGKeyArray) -> tuple:
        """There are no latents."""
        del x, key
        return ()


class HiddenBoltzmann(BoltzmannMachineModel, Clamps, MeanField):
    """A machine with hidden units; clamping x leaves one of z alone, with biases b_z + W_zx x."""

    def begin(self, x: Any, *, key: PRNGKeyArray) -> tuple:
        """A draw from the mean-field posterior."""
        q: Any = MeanFieldInference(ROUNDS, 0.0).infer(self, x)
        return q.sample(key=key)

    def clamped(self, x: Any) -> Self:
        """The machine of the hidden units."""
        n = self.n_visible
        held, bias = self.couplings.held(x), self.units.bias
        constant = self.constant - bias[:n] @ x - held.quadratic
        return type(self)(type(self.units)(bias[n:] + held.field), held.couplings, constant, 0)

    def guess(self) -> LayeredPosterior:
        """Units under their biases alone."""
        return LayeredPosterior((Factorial(self.units, jnp.zeros_like(self.units.bias)),))

    def refine(self, q: LayeredPosterior) -> LayeredPosterior:
        """The mean of one unit after another, m_i = mean under the field Σ_j W_ij m_j."""
        units = type(self.units)
        update = lambda field, bias: units(bias).mean(field)  # noqa: E731
        swept = self.couplings.sweep(q.mean()[0], update, self.units.bias[self.couplings.order])
        return LayeredPosterior((Factorial(self.units, swept.fields),))

    def variational_energy(self, q: LayeredPosterior) -> Scalar:
        """E_q[E] − H(q); products of two units have the product of their means."""
        means = q.mean()[0]
        return self.constant + self.units.energy(means) - self.couplings.quadratic(means) - q.entropy()

    def base_at(self, q: LayeredPosterior) -> Self:
        """The units under the fields of q, uncoupled."""
        (part,) = q.layers
        units = part.units.biased(part.field)
        return eqx.tree_at(lambda m: (m.units, m.couplings), self, (units, self.couplings.uncoupled()))


class Recalled(NamedTuple):
    """Where zero-temperature sweeps led: units, and how many sweeps changed anything."""

    s: Vector
    n_sweeps: Int[Array, ""]


def recall(model: BoltzmannMachineModel, x: Any, fixed: Any, n_sweeps: int) -> Recalled:
    """Zero-temperature sweeps from x until nothing changes; hidden units start at their likelier states."""
    z = _likelier(model, x)
    s = model._joined(x, z)
    still = jnp.concatenate([fixed, jnp.zeros(model.n_hidden, bool)])

    def moving(carry: Any) -> Any:
        _, moved, count = carry
        return moved & (count < n_sweeps)

    def body(carry: Any) -> Any:
        s, _, count = carry
        new = model.settle(s, still)
        return new, jnp.any(new != s), count + 1

    s, _, count = jax.lax.while_loop(moving, body, (s, jnp.array(True), jnp.array(0)))
    return Recalled(s, count)


def _likelier(model: BoltzmannMachineModel, x: Any) -> tuple:
    if not isinstance(model, HiddenBoltzmann):
        return ()
    low, high = model.states
    means = MeanFieldInference().infer(model, x).mean()
    return tuple(model._state(m > 0.5 * (low + high)) for m in means)


def make(
    units: str, n_visible: int, n_hidden: int, edges: Any, *, key: PRNGKeyArray, weight_scale: float
) -> VisibleBoltzmann | HiddenBoltzmann:
    """Small random couplings between any two units, or along some edges; no biases."""
    n = n_visible + n_hidden
    layer = (Spin if units == "spin" else Bernoulli).make(n)
    dtype = float_type(layer)
    if edges is None:
        weights = jnp.triu(weight_scale * jax.random.normal(key, (n, n), dtype), 1)
        couplings: AbstractCouplings = DenseCouplings(weights)
    else:
        joined = graph(n, edges)
        couplings = SparseCouplings(joined, weight_scale * jax.random.normal(key, (len(joined.edges),), dtype))
    kind = HiddenBoltzmann if n_hidden else VisibleBoltzmann
    return kind(layer, couplings, jnp.zeros((), dtype), n_visible)
