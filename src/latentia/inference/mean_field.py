"""Mean field: the factorial distribution nearest to p(z | x), by coordinate ascent over groups of latents.

The best distribution of a group S, with those of the other groups held, is

    q(z_S) ∝ exp(−E_{−S}[E(x, z)]),

where E_{−S} averages over the other groups. Such an update minimises E_q[E(x, z)] − H(q) = F(x) + KL(q ‖ p(z | x))
over q(z_S), so updating group after group never raises the variational energy, and −(E_q[E] − H(q)) − log Z never
exceeds log p(x). The model defines the groups: a site, a layer, a block of jointly Gaussian variables; with one
group for everything this is exact inference.

Updating all groups at once needs fewer, larger products, but may oscillate. Natural parameters then move only part
of the way (``step``), and a step that would raise the energy is not taken but halved. Small steps also find better
optima: no group is fixed before the others have had their say.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import Clamps, ParallelMeanField
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractModel, AbstractPosterior
from latentia.ops.arrays import float_type
from latentia.ops.loops import unrolled

#: What a step that was halved grows by after one that did not raise the energy.
_GROWTH = 1.5


class MeanFieldInference(AbstractInference):
    """Rounds of group updates from the model's own guess.

    Args:
        n_rounds: how many at most.
        tolerance: stop when no mean moves by more than this in a round; 0 always takes all rounds.
        parallel: update all groups at once, with steps that never raise the variational energy; otherwise one group
            after another.
        step: how far a parallel round goes towards the updates at most.
    """

    n_rounds: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=1e-5)
    parallel: bool = eqx.field(static=True, default=False, metadata={"added": True})
    step: float = eqx.field(static=True, default=0.1, metadata={"added": True})

    def __check_init__(self) -> None:
        if self.n_rounds < 1 or self.tolerance < 0:
            raise ParameterError(
                f"Mean field needs at least one round and a tolerance of at least 0, got n_rounds={self.n_rounds} "
                f"and tolerance={self.tolerance}."
            )
        if not 0 < self.step <= 1:
            raise ParameterError(f"A parallel round of mean field needs a step in (0, 1], got {self.step}.")

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``Clamps``; for parallel rounds the clamped model must be a ``ParallelMeanField``."""
        return (Clamps,)

    @property
    def goes_on(self) -> bool:
        """An earlier q is a good start: the bound does not fall below what it gives."""
        return True

    def infer(self, model: Clamps, x: Any, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """q(z | x); parts of ``x`` that are None are inferred too. Nothing here is random."""
        del key
        clamped = model.clamped(x)
        return self._settled(clamped, clamped.guess())

    def begun(self, model: Clamps, x: Any, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """The model's own guess."""
        del key
        return model.clamped(x).guess()

    def improved(self, model: Clamps, x: Any, q: Any, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """Rounds from an earlier q."""
        del key
        return self._settled(model.clamped(x), q)

    def _settled(self, clamped: Any, start: Any) -> AbstractPosterior:
        if self.parallel:
            return self._in_parallel(clamped, start)
        if not self.tolerance:
            refine = lambda _, q: clamped.refine(q)  # noqa: E731
            return jax.lax.fori_loop(0, self.n_rounds, refine, start, unroll=unrolled(self.n_rounds))

        def unsettled(carry: Any) -> Any:
            _, moved, rounds = carry
            return (moved > self.tolerance) & (rounds < self.n_rounds)

        def body(carry: Any) -> Any:
            q, _, rounds = carry
            new = clamped.refine(q)
            return new, largest_change(q.mean(), new.mean()), rounds + 1

        return jax.lax.while_loop(unsettled, body, (start, jnp.array(jnp.inf, float_type(start)), 0))[0]

    def _in_parallel(self, clamped: Any, start: Any) -> AbstractPosterior:
        if not isinstance(clamped, ParallelMeanField):
            raise CapabilityError(
                f"{type(clamped).__name__} cannot be updated in parallel: it lacks ParallelMeanField (best). Use "
                "MeanFieldInference(parallel=False)."
            )
        one = jnp.ones((), float_type(start))
        slack = 2 * float(jnp.finfo(one.dtype).eps)  # what rounding adds is no rise

        def unsettled(carry: Any) -> Any:
            _, _, _, moved, rounds = carry
            return (moved > self.tolerance) & (rounds < self.n_rounds)

        def body(carry: Any) -> Any:
            q, energy, rate, _, rounds = carry
            best = clamped.best(q)
            new = between(q, best, rate)
            new_energy = clamped.variational_energy(new)
            down = new_energy <= energy + slack * jnp.abs(energy)
            q = jax.tree.map(lambda a, b: jnp.where(down, b, a), q, new)
            energy = jnp.where(down, new_energy, energy)
            # How far the fixed point is, whatever the rate: a small step is not an arrival.
            distance = largest_change(q.mean(), best.mean())
            return (
                q,
                energy,
                jnp.where(down, jnp.minimum(_GROWTH * rate, self.step), 0.5 * rate),
                distance,
                rounds + 1,
            )

        first = (start, clamped.variational_energy(start), self.step * one, jnp.inf * one, 0)
        return jax.lax.while_loop(unsettled, body, first)[0]


def between(old: Any, new: Any, rate: Any) -> Any:
    """The distribution whose natural parameters, the leaves, lie between those of two others."""
    mix = lambda a, b: a + rate * (b - a) if eqx.is_inexact_array(a) else a  # noqa: E731
    return jax.tree.map(mix, old, new)


def largest_change(before: Any, after: Any) -> Any:
    """The largest absolute difference between two pytrees."""
    moves = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), before, after)
    return jnp.max(jnp.stack(jax.tree.leaves(moves)))
