"""Drawing samples: directly, by chains, or with some entries given.

A model that can be sampled directly is; one with conditionals runs Gibbs chains; of others with a free energy over
real x, Hamiltonian chains follow the gradient. These start

- where training's chains have arrived, if the estimator has any (they are lost when it is saved and loaded);
- else where the model says that chains may start (:class:`~latentia.core.capabilities.Starts`);
- else at a standard normal. Unstandardised data may lie far from there: the first half of the steps is a warm-up in
  which the sampler finds step size and scales, and the chains the data. A thousand standard deviations away are no
  trouble; what a chain cannot find is another mode behind a high wall, so unlike modes may get too many or too few
  draws.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia import samplers
from latentia.core import space
from latentia.core.algorithms import misfit
from latentia.core.capabilities import (
    Conditionals,
    Decodes,
    Encodes,
    ExactPosterior,
    ExactSampler,
    FreeEnergy,
    Starts,
    Tempered,
)
from latentia.core.errors import CapabilityError, DataError
from latentia.ops.arrays import batch_size, float_type, keep
from latentia.ops.compiling import jitted

#: Fewer Hamiltonian chains than this learn too little about step size and scales: others run along.
FEWEST = 32


def draw(
    estimator: Any, n_samples: int, *, n_steps: int, given: Any, mask: Any, mean: bool, key: PRNGKeyArray
) -> np.ndarray:
    """See :meth:`latentia.estimator.base.LatentEstimator.sample`."""
    model = estimator.model_
    if mean and not isinstance(model, Decodes):
        raise CapabilityError(f"{type(estimator).__name__} cannot return means: its model lacks Decodes.")
    if given is None:
        no_mask(mask)
        x, z = _free(estimator, n_samples, n_steps, key)
        fixed = None
    else:
        x, fixed = known_entries(estimator, given, mask, n_samples)
        x, z = _clamped(estimator, x, fixed, n_steps, key)
    shown = len(space.seen(model.x_space, estimator.n_features_in_))  # without labels
    spaces = tuple(space.leaves(model.x_space)[:shown])
    if not mean:
        return np.asarray(space.decode(spaces, jax.tree.leaves(x)[:shown]))
    means = _means(model, jax.vmap(model.encode)(x) if isinstance(model, Encodes) else z)
    if fixed is not None:
        means = keep(fixed, x, means)
    return np.asarray(space.flatten(spaces, jax.tree.leaves(means)[:shown]))


def _free(estimator: Any, n: int, n_steps: int, key: PRNGKeyArray) -> tuple[Any, Any]:
    model = estimator.model_
    if isinstance(model, ExactSampler):
        return _exact(model, jax.random.split(key, n))
    start_key, run_key = jax.random.split(key)
    if not isinstance(model, Conditionals):
        reason = misfit(samplers.HMC(), model)
        if reason is not None:
            raise CapabilityError(
                f"{type(model).__name__} cannot be sampled: it has neither ExactSampler nor Conditionals, and HMC "
                f"does not fit: {reason}."
            )
        starts = chain_starts(estimator, max(n, FEWEST), start_key)
        return jax.tree.map(lambda a: a[:n], _hamiltonian(model, starts, None, n_steps, run_key))
    # One sweep of the uncoupled model is an independent draw: chains start spread out, not all at one point.
    start = model.base() if isinstance(model, Tempered) else model
    zeros = jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *a.shape)), space.zeros(model.x_space))
    x, _ = _chain(start, zeros, None, 1, start_key)
    return _chain(model, x, None, n_steps, run_key)


def _clamped(estimator: Any, x: Any, fixed: Any, n_steps: int, key: PRNGKeyArray) -> tuple[Any, Any]:
    model = estimator.model_
    if isinstance(model, Conditionals):
        return _chain(model, x, fixed, n_steps, key)
    if isinstance(model, ExactSampler) or misfit(samplers.HMC(), model) is not None:
        raise CapabilityError(f"{type(model).__name__} cannot fill in entries: it lacks Conditionals (sweep).")
    start_key, run_key = jax.random.split(key)
    n = batch_size(x)
    rows = np.arange(max(n, FEWEST)) % n
    x, fixed = jax.tree.map(lambda a: a[rows], (x, fixed))
    starts = keep(fixed, x, chain_starts(estimator, len(rows), start_key))
    return jax.tree.map(lambda a: a[:n], _hamiltonian(model, starts, fixed, n_steps, run_key))


def chain_starts(estimator: Any, n: int, key: PRNGKeyArray) -> Any:
    """Where ``n`` Hamiltonian chains start; see the module's docstring."""
    model, chains = estimator.model_, estimator._chains()
    if chains is not None:
        rows = jax.random.permutation(key, batch_size(chains))[np.arange(n) % batch_size(chains)]
        return jax.tree.map(lambda a: a[rows], chains)
    if isinstance(model, Starts):
        return jax.vmap(lambda key: model.start(key=key))(jax.random.split(key, n))
    spaces, treedef = jax.tree.flatten(model.x_space)
    keys, dtype = [jax.random.fold_in(key, i) for i in range(len(spaces))], float_type(model)
    each = [jax.random.normal(k, (n, *s.shape), dtype) for s, k in zip(spaces, keys, strict=True)]
    return jax.tree.unflatten(treedef, each)


@jitted
def _hamiltonian(model: FreeEnergy, x: Any, fixed: Any, n_steps: int, key: PRNGKeyArray) -> tuple[Any, Any]:
    """(x, latents) after so many transitions, the first half of which adapt the sampler."""
    start_key, warmup_key, run_key, latent_key = jax.random.split(key, 4)
    sampler = samplers.HMC().sized(x)
    states = samplers.start(sampler, model, x, key=start_key)
    n_warmup = n_steps // 2
    sampler, states = samplers.run(sampler, model, states, n_warmup, key=warmup_key, adapt=True, fixed=fixed)
    _, states = samplers.run(sampler, model, states, n_steps - n_warmup, key=run_key, fixed=fixed)
    x = jax.vmap(sampler.visible)(states)
    return x, _latents(model, x, latent_key)


def _latents(model: Any, x: Any, key: PRNGKeyArray) -> Any:
    """A draw of the latents given x, where their distribution is known."""
    if not isinstance(model, ExactPosterior):
        return ()
    keys = jax.random.split(key, batch_size(x))
    return jax.vmap(lambda x, key: model.posterior(x).sample(key=key))(x, keys)


@jitted
def _exact(model: ExactSampler, keys: PRNGKeyArray) -> tuple[Any, Any]:
    return jax.vmap(lambda key: model.sample(key=key))(keys)


@jitted
def _chain(model: Conditionals, x: Any, fixed: Any, n_steps: int, key: PRNGKeyArray) -> tuple[Any, Any]:
    sampler = samplers.Gibbs()
    states = samplers.start(sampler, model, x, key=key)
    _, states = samplers.run(sampler, model, states, n_steps, key=key, fixed=fixed)
    return jax.vmap(sampler.visible)(states), jax.vmap(sampler.latent)(states)


@jitted
def _means(model: Decodes, z: Any) -> Any:
    return jax.vmap(model.decode)(z)


def no_mask(mask: Any) -> None:
    """Refuse a mask without the rows that it is for."""
    if mask is not None:
        raise DataError("mask says which entries of given are known; pass given too.")


def known_entries(estimator: Any, given: Any, mask: Any, repeats: int) -> tuple[Any, Any]:
    """(starting visibles, which entries are fixed), each row of ``given`` repeated."""
    x_space = estimator.model_.x_space
    rows = np.asarray(given, np.float32)
    n_columns = space.n_columns(x_space)
    n_data = estimator.n_features_in_
    if rows.ndim != 2 or rows.shape[1] not in (n_data, n_columns) or rows.shape[0] == 0:
        raise DataError(
            f"given must be a matrix with {n_data} columns and at least one row, got shape {rows.shape}."
        )
    known = ~np.isnan(rows) if mask is None else np.asarray(mask)
    if known.dtype != bool:
        raise DataError(f"mask must be boolean (True where given is known), got {known.dtype}.")
    if known.shape == rows.shape[1:]:
        known = np.broadcast_to(known, rows.shape)
    if known.shape != rows.shape:
        raise DataError(f"mask must have shape {rows.shape} or {rows.shape[1:]}, got {known.shape}.")
    if not np.isfinite(rows[known]).all():
        raise DataError("given holds NaN or infinity where the mask says that it is known.")
    unseen = ((0, 0), (0, n_columns - rows.shape[1]))  # labels, where only data are given
    rows, known = np.pad(rows, unseen), np.pad(known, unseen)
    known_as_a_whole(x_space, known)
    filler = np.concatenate([leaf.filler for leaf in space.leaves(x_space)])
    rows = np.where(known, rows, filler).astype(np.float32)
    space.check(x_space, rows)
    data = known[:, :n_data]
    if data.all() or not known.any():
        why = "everything is known, so there is nothing to draw" if data.all() else "nothing is known"
        raise DataError(f"given and mask say that {why}. Leave entries open (False or NaN), or call sample().")
    x = space.encode(x_space, np.repeat(rows, repeats, axis=0))
    fixed = space.spread(x_space, np.repeat(known, repeats, axis=0))
    return jax.tree.map(jnp.asarray, (x, fixed))


def known_as_a_whole(x_space: Any, known: np.ndarray) -> None:
    """Refuse groups of shares of which only some are known: what is open would have to fill up to one."""
    begin = 0
    for leaf in space.leaves(x_space):
        columns = known[:, begin : begin + leaf.n_columns]
        if leaf.domain == "simplex":
            groups = columns.reshape(len(columns), -1, leaf.shape[-1])
            if (groups.any(axis=2) != groups.all(axis=2)).any():
                raise DataError(
                    "Shares that sum to 1 must be given all together or not at all: fill in or open the rest of "
                    f"the group of {leaf.shape[-1]} columns."
                )
        begin += leaf.n_columns
