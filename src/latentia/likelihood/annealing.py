"""Annealing along the path between a base and a model, for forward and reverse AIS.

Let β_0, β_1, …, β_K be a schedule (rising from 0 to 1 in forward AIS, falling from 1 to 0 in reverse AIS) and
E_β the reduced energy at β. With s_0 an exact draw at β_0 and s_k a sweep at β_k from s_{k−1}, the weight

    log w = Σ_{k=1}^{K} E_{β_{k−1}}(s_{k−1}) − E_{β_k}(s_{k−1})

has E[w] = Z(β_K)/Z(β_0), for any sweep that leaves its own distribution invariant (Neal, 2001). Each term
looks at the state *before* the sweep at its new temperature. A sweep that is reversible on what the reduced
energy depends on (an RBM's z | x, x | z is, on x) also makes forward and reverse works a Crooks pair, since
the reversed schedule then retraces the very same path with the terms negated.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import tempering
from latentia.core.model import Scalar
from latentia.ops.arrays import batch_size
from latentia.ops.compiling import jitted


def schedule(n_temperatures: int, steepness: float = 3.0) -> np.ndarray:
    """0 = β_0 < … < β_K = 1, a logistic curve stretched to [0, 1]: finer at both ends (Grosse et al. 2013)"""
    curve = 1 / (1 + np.exp(-steepness * np.linspace(-1.0, 1.0, n_temperatures + 1)))
    return (curve - curve[0]) / (curve[-1] - curve[0])


def path(n_temperatures: int) -> np.ndarray:
    """The schedule with its β = 0 twice.

    The first step of forward annealing then adds exactly nothing to the weights and draws the base by one
    sweep, so that it may start anywhere (:func:`blank`).
    """
    return np.concatenate([[0.0], schedule(n_temperatures)])


def blank(model: Any, n: int) -> tuple[Any, Any]:
    """Placeholders (x, z) of ``n`` chains; call it inside :func:`~latentia.likelihood.precision.double`."""
    spaces = (model.x_space, model.z_space)
    return jax.tree.map(lambda leaf: jnp.zeros((n, *leaf.shape), jnp.float64), spaces)


@jitted
def anneal(
    base: Any, model: Any, betas: Float[Array, " k"], x: Any, z: Any, *, key: PRNGKeyArray
) -> tuple[Float[Array, " n"], Any, Any]:
    """(log-weights, x, z) of many chains carried from ``betas[0]`` to ``betas[-1]`` in one scan.

    Args:
        base: what β = 0 stands for.
        model: what β = 1 stands for.
        betas: the schedule, rising or falling.
        x: visibles of the chains, drawn at ``betas[0]``; see :func:`path` for a start from the base.
        z: latents of the chains.
        key: random key.
    """
    keys = jax.random.split(key, batch_size((x, z)))
    return jax.vmap(lambda x, z, key: anneal_chain(base, model, betas, x, z, key=key))(x, z, keys)


def anneal_chain(
    base: Any, model: Any, betas: Float[Array, " k"], x: Any, z: Any, *, key: PRNGKeyArray
) -> tuple[Scalar, Any, Any]:
    """(log-weight, x, z) of one chain; see :func:`anneal`."""

    def body(carry: Any, step: Any) -> tuple[Any, None]:
        log_weight, x, z = carry
        before, after, count = step
        old, new = tempering.at(base, model, before), tempering.at(base, model, after)
        gain = old.reduced_energy(x, z) - new.reduced_energy(x, z)
        x, z = new.sweep(x, z, key=jax.random.fold_in(key, count))
        return (log_weight + gain, x, z), None

    steps = (betas[:-1], betas[1:], jnp.arange(betas.shape[0] - 1, dtype=jnp.uint32))
    return jax.lax.scan(body, (jnp.zeros((), betas.dtype), x, z), steps)[0]
