"""The pseudo-likelihood of discrete visibles, over all sites and without sampling.

    log PL(x) = Σ_i log p(x_i | x_−i),        log p(x_i | x_−i) = −F(x) − log Σ_k exp(−F(x with x_i = k)).

log Z cancels, so that only the free energy is needed. For a site with two states this is −S(F(x) − F(x′)),
x′ being x with the site flipped and S the softplus. References: Besag (1975); Hyvärinen (2006).
"""

from __future__ import annotations

from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from latentia.core import space
from latentia.core.capabilities import Conditional, FreeEnergy
from latentia.core.conditioning import kind, resolved
from latentia.core.errors import CapabilityError
from latentia.core.model import AbstractModel, Scalar
from latentia.core.space import Space
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.ops.compiling import jitted


def can_pseudo(model: AbstractModel) -> bool:
    """Whether the model has a free energy and all its visibles are discrete."""
    asked = kind(model) if isinstance(model, Conditional) else model
    return isinstance(asked, FreeEnergy) and space.is_discrete(asked.x_space)


def pseudo_log_likelihood(model: AbstractModel, x: Any) -> np.ndarray:
    """log PL of every example of a batch, in float64 and in nats.

    Args:
        model: a model with a free energy over discrete visibles.
        x: a batch of visible values (a pytree with one leading axis).

    Returns:
        One value per example. Memory stays at one example's n flips, each of n entries.
    """
    if not can_pseudo(model):
        raise CapabilityError(
            f"The pseudo-likelihood needs FreeEnergy (free_energy) over discrete visibles; "
            f"{type(model).__name__} lacks one of the two."
        )
    return pseudo_rows(cast(FreeEnergy, model), x)


def pseudo_rows(model: FreeEnergy, x: Any) -> np.ndarray:
    """:func:`pseudo_log_likelihood` of a model that is known to have one."""
    with double():
        return np.asarray(_rows(model, batch_to_double(x)))


@jitted
def _rows(model: Any, x: Any) -> Float[Array, " n"]:
    model = to_double(model)
    return jax.lax.map(lambda row: _one(*resolved(model, row)), x)


def _one(model: FreeEnergy, x: Any) -> Scalar:
    """log PL of one example: a term for every leaf of the visibles."""
    values, treedef = jax.tree.flatten(x)
    here = model.free_energy(x)
    total = jnp.zeros_like(here)
    for i, leaf in enumerate(space.leaves(model.x_space)):

        def free_energy(value: Any, i: int = i) -> Scalar:
            return model.free_energy(jax.tree.unflatten(treedef, [*values[:i], value, *values[i + 1 :]]))

        term = {"categorical": _categorical, "count": _counts}.get(leaf.domain, _two_states)
        total = total + term(free_energy, leaf, values[i], here)
    return total


def _two_states(free_energy: Any, leaf: Space, value: Float[Array, "*shape"], here: Scalar) -> Scalar:
    """−Σ_i S(F(x) − F(x with site i flipped))."""
    flat = value.reshape(-1)
    other = -flat if leaf.domain == "spin" else 1 - flat

    def flipped(i: Array) -> Scalar:
        return free_energy(flat.at[i].set(other[i]).reshape(leaf.shape))

    return -jnp.sum(jax.nn.softplus(here - jax.vmap(flipped)(jnp.arange(flat.shape[0]))))


def _categorical(free_energy: Any, leaf: Space, value: Float[Array, "sites states"], here: Scalar) -> Scalar:
    """Σ_i [−F(x) − log Σ_k exp(−F(x with site i in state k))]."""
    sites, states = leaf.shape
    rows = jnp.eye(states, dtype=value.dtype)

    def changed(i: Array) -> Scalar:
        return free_energy(value.at[i // states].set(rows[i % states]))

    energies = jax.vmap(changed)(jnp.arange(sites * states)).reshape(sites, states)
    return jnp.sum(-here - logsumexp(-energies, axis=1))


def _counts(free_energy: Any, leaf: Space, value: Float[Array, "*shape"], here: Scalar) -> Scalar:
    """Σ_i [−F(x) − log Σ_k exp(−F(x with k at site i))]."""
    flat = value.reshape(-1)
    states = jnp.asarray(leaf.site_states, flat.dtype)

    def changed(i: Array, state: Array) -> Scalar:
        return free_energy(flat.at[i].set(state).reshape(leaf.shape))

    energies = jax.vmap(lambda i: jax.vmap(lambda state: changed(i, state))(states))(jnp.arange(flat.shape[0]))
    return jnp.sum(-here - logsumexp(-energies, axis=1))
