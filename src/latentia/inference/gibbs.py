"""Inference by Gibbs sampling: z is averaged over the sweeps of a chain at fixed x.

The averages converge to those of p(z | x) as the chain grows longer; there is no bound from one side.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractInference
from latentia.core.capabilities import Clamps, Conditionals
from latentia.core.errors import ParameterError
from latentia.core.model import AbstractModel
from latentia.inference.states import Draws


class GibbsInference(AbstractInference):
    """Draws of z from a chain that leaves p(z | x) invariant.

    Args:
        n_sweeps: how many are averaged.
        n_burn_in: how many come before that.
    """

    n_sweeps: int = eqx.field(static=True, default=50)
    n_burn_in: int = eqx.field(static=True, default=20)

    def __check_init__(self) -> None:
        if self.n_sweeps < 1 or self.n_burn_in < 0:
            raise ParameterError(
                f"Gibbs inference needs n_sweeps of at least 1 and n_burn_in of at least 0, got {self.n_sweeps} "
                f"and {self.n_burn_in}."
            )

    @property
    def requires(self) -> tuple[type[AbstractModel], ...]:
        """``Conditionals``."""
        return (Conditionals,)

    @property
    def goes_on(self) -> bool:
        """A chain may run on from where it stopped."""
        return True

    @property
    def is_random(self) -> bool:
        """Chains are."""
        return True

    def infer(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Draws:
        """Sweeps from where the model says that a chain may begin."""
        begin_key, key = jax.random.split(key)
        return self._run(model, x, model.begin(x, key=begin_key), key)

    def begun(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Draws:
        """Where chains begin, as often as there will be draws."""
        z = model.begin(x, key=key)
        return Draws(jax.tree.map(lambda a: jnp.broadcast_to(a, (self.n_sweeps, *a.shape)), z))

    def improved(self, model: Any, x: Any, q: Draws, *, key: PRNGKeyArray) -> Draws:
        """The chain runs on from its last draw."""
        return self._run(model, x, jax.tree.map(lambda a: a[-1], q.states), key)

    def _run(self, model: Any, x: Any, z: Any, key: PRNGKeyArray) -> Draws:
        fixed = jax.tree.map(lambda a: jnp.ones(a.shape, bool), x)
        sweep = lambda z, key: model.sweep(x, z, key=key, fixed=fixed)[1]  # noqa: E731
        clamped = model.clamped(x) if isinstance(model, Clamps) else None
        if isinstance(clamped, Conditionals):  # which has computed already what x has to do with z
            sweeps: Any = clamped
            sweep = lambda z, key: sweeps.sweep((), z, key=key)[1]  # noqa: E731

        def step(z: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
            z = sweep(z, key)
            return z, z

        keys = jax.random.split(key, self.n_burn_in + self.n_sweeps)
        z, _ = jax.lax.scan(lambda z, key: (step(z, key)[0], None), z, keys[: self.n_burn_in])
        return Draws(jax.lax.scan(step, z, keys[self.n_burn_in :])[1])
