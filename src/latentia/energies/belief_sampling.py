"""Draws from deep belief networks: free ones, and with some visibles known.

Free draws are Gibbs sweeps in the top RBM and one pass down. With known visibles a Markov chain draws the others
and all hidden layers from p(x_free, y, h¹ … h^L | x_known), for the joint density of
:mod:`latentia.energies.belief_net`. One sweep

1. proposes h¹ … h^{L−1} together from the recognition model, h^L summed out, and accepts them with probability
   min(1, w′/w), w = p(x, y, h) / q(h | x): an independence step of Metropolis and Hastings;
2. draws h^L given h^{L−1} and y, and y given h^L unless it is known: the top RBM's own conditionals;
3. draws the units of h^{L−1}, …, h¹ one after another, each given its layer's other units, the layer above and the
   layer below: log p(h_i = s | rest) = s·(field from above) + log p(h^{l−1} | h^l with h_i = s) + const;
4. draws the free entries of x given h¹.

Each of them leaves the target exactly as it is, however bad the recognition model: it only decides how often step 1
is accepted. What is not exact is the number of sweeps, as with every Markov chain. Step 3 takes one unit at a time,
because the units of a directed layer depend on one another once the layer below is known.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray

from latentia.energies.belief_net import DBNModel, Directed
from latentia.ops.arrays import batch_size, cast_like, float_type, keep
from latentia.ops.compiling import jitted
from latentia.units import AbstractUnits

Latents = tuple[Array, ...]


@jitted
def dream(model: DBNModel, label: Any, n_steps: int, keys: PRNGKeyArray) -> tuple[Any, Any]:
    """(x, E[x | h¹]) of independent chains with no entry known, or the one-hot label alone."""

    label = None if label is None else cast_like(label, model)

    def one(key: PRNGKeyArray) -> tuple[Any, Any]:
        start_key, run_key = jax.random.split(key)
        units = model.layers[-2]
        start = units.sample(
            jnp.zeros(units.n_statistics, float_type(units)), key=start_key
        )  # spread out, not all at one point
        x, z = model.dream(start, key=run_key, n_steps=n_steps, label=label)
        return jax.tree.leaves(x)[0], jax.tree.leaves(model.decode(z))[0]

    return jax.vmap(one)(keys)


@jitted
def fill_in(model: DBNModel, x: Any, fixed: Any, n_steps: int, key: PRNGKeyArray) -> tuple[Any, Any]:
    """(x, E[x | h¹] or the entry itself where it is fixed) of one chain for every row after so many sweeps."""

    def one(x: Any, fixed: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
        start_key, run_key = jax.random.split(key)

        def body(state: Any, key: PRNGKeyArray) -> tuple[Any, None]:
            return sweep(model, *state, key=key, fixed=fixed), None

        keys = jax.random.split(run_key, n_steps)
        (x, z), _ = jax.lax.scan(body, (x, begin(model, x, key=start_key)), keys)
        return x, keep(fixed, x, model.decode(z))

    return jax.vmap(one)(x, fixed, jax.random.split(key, batch_size(x)))


def begin(model: DBNModel, x: Any, *, key: PRNGKeyArray) -> Latents:
    """h¹ … h^L drawn on the way up."""
    climb_key, top_key = jax.random.split(key)
    path, visible = model.climb(x, key=climb_key)
    return (*path[1:], model.top.posterior(visible).sample(key=top_key))


def sweep(model: DBNModel, x: Any, z: Latents, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Latents]:
    """One sweep; see the module's docstring. Entries of x that are ``fixed`` keep their value."""
    if not model.generative:
        x, hidden = model.top.sweep(x, z[-1], key=key, fixed=fixed)
        return x, (hidden,)
    keys = iter(jax.random.split(key, len(z) + 4))
    data, label = model._parts(x)
    fixed_data, fixed_label = (None, None) if fixed is None else model._parts(fixed)
    path = [data, *_proposed(model, x, z[:-1], key=next(keys))]
    hidden = model.top.posterior(model._packed(path[-1], label)).sample(key=next(keys))
    field = model.top.weights @ (model.top.hidden.statistic(hidden) - model.top.hidden_offset)
    if label is not None:
        _, drawn = model.top.visible.sample(field, key=next(keys))
        label = keep(fixed_label, label, drawn)
    field = field[: model.layers[-2].n_statistics]
    for level in reversed(range(1, len(path))):
        units, below = model.layers[level], model.generative[level - 1]
        if units.space.is_discrete:  # real layers are moved by the first step alone
            path[level] = _site_by_site(units, field, below, path[level - 1], path[level], key=next(keys))
        field = below.given(units.statistic(path[level])).field
    data = keep(fixed_data, data, model.layers[0].sample(field, key=next(keys)))
    return model._packed(data, label), (*path[1:], hidden)


def _proposed(model: DBNModel, x: Any, z: Latents, *, key: PRNGKeyArray) -> Latents:
    """h¹ … h^{L−1} after an independence step."""
    propose_key, accept_key = jax.random.split(key)
    data, _ = model._parts(x)
    new, log_q = model.recognise(x, key=propose_key)
    gain = model.log_joint(x, new) - log_q - model.log_joint(x, z) - model.recognition_energy((data, *z))
    accepted = jnp.log(jax.random.uniform(accept_key, dtype=gain.dtype)) < gain
    return jax.tree.map(lambda a, b: jnp.where(accepted, a, b), new, z)


def _site_by_site(
    units: AbstractUnits, field: Array, below: Directed, lower: Array, value: Array, *, key: PRNGKeyArray
) -> Array:
    """A layer's units drawn in turn, given the field from above and the layer below."""
    n_sites = value.shape[0]
    n_each = units.n_statistics // n_sites
    seen = below.units.statistic(lower)
    choices = _choices(units, value.dtype)

    def one(state: tuple[Array, Array], turn: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
        value, reach = state
        site, key = turn
        options = jax.vmap(lambda choice: value.at[site].set(choice))(choices)
        statistics = jax.vmap(units.statistic)(options)
        moves = statistics - units.statistic(value)[None]
        moves = jax.lax.dynamic_slice_in_dim(moves, site * n_each, n_each, axis=1)
        weights = jax.lax.dynamic_slice_in_dim(below.weights, site * n_each, n_each, axis=1)
        reaches = reach[None] + moves @ weights.T
        logits = statistics @ field - jax.vmap(units.energy)(options)
        logits = logits + reaches @ seen - jax.vmap(below.units.log_partition)(reaches)
        chosen = jax.random.categorical(key, logits)
        return (options[chosen], reaches[chosen]), None

    start = (value, below.given(units.statistic(value)).field)
    (value, _), _ = jax.lax.scan(one, start, (jnp.arange(n_sites), jax.random.split(key, n_sites)))
    return value


def _choices(units: AbstractUnits, dtype: Any) -> Array:
    """The states of one site."""
    states = units.space.site_states
    return jnp.eye(states, dtype=dtype) if isinstance(states, int) else jnp.asarray(states, dtype)
