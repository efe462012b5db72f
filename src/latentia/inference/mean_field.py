"""Mean field: the factorial distribution nearest to p(z | x), by exact updates of one block after another.

Each update minimises E_q[E(x, z)] − H(q) = F(x) + KL(q ‖ p(z | x)) over one block with the others held, so the
variational energy never rises and −(E_q[E] − H(q)) − log Z never exceeds log p(x).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import Clamps
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel, AbstractPosterior
from latentia.ops.arrays import float_type
from latentia.ops.loops import unrolled


class MeanFieldInference(AbstractInference):
    """Rounds of block updates from the model's own guess.

    Args:
        n_rounds: how many at most.
        tolerance: stop when no mean moves by more than this in a round; 0 always takes all rounds.
    """

    n_rounds: int = eqx.field(static=True, default=200)
    tolerance: float = eqx.field(static=True, default=1e-5)

    def __check_init__(self) -> None:
        if self.n_rounds < 1 or self.tolerance < 0:
            raise ParameterError(
                f"Mean field needs at least one round and a tolerance of at least 0, got n_rounds={self.n_rounds} "
                f"and tolerance={self.tolerance}."
            )

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``Clamps``."""
        return (Clamps,)

    def infer(self, model: Clamps, x: Any, *, key: PRNGKeyArray | None = None) -> AbstractPosterior:
        """q(z | x); parts of ``x`` that are None are inferred too. Nothing here is random."""
        del key
        clamped = model.clamped(x)
        start = clamped.guess()
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


def largest_change(before: Any, after: Any) -> Any:
    """The largest absolute difference between two pytrees."""
    moves = jax.tree.map(lambda a, b: jnp.max(jnp.abs(a - b)), before, after)
    return jnp.max(jnp.stack(jax.tree.leaves(moves)))
