"""Traces of chains: their states after several numbers of steps, and their convergence.

:meth:`~latentia.estimator.base.LatentEstimator.sample` returns the last states of chains; figures also need earlier
ones. As there, a model with conditionals runs Gibbs chains from independent draws without couplings, and one with a
free energy over real x runs Hamiltonian chains. Models that are sampled directly have no chains.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia import samplers
from latentia.core import space
from latentia.core.algorithms import misfit
from latentia.core.capabilities import Conditionals, Decodes, ExactSampler, FreeEnergy, Tempered
from latentia.estimator.drawing import FEWEST, chain_starts
from latentia.ops import random
from latentia.ops.arrays import float_type
from latentia.ops.compiling import jitted
from latentia.samplers.diagnostics import r_hat

#: Sweeps at the end over which Gibbs chains are compared, how many of them are looked at, and random directions in
#: which the visibles are: they distinguish modes of equal energy.
_WATCHED, _LOOKS, _DIRECTIONS = 200, 50, 4
#: Most transitions of Hamiltonian chains.
_HAMILTONIAN = 200


@dataclasses.dataclass(frozen=True)
class Trace:
    """What chains held on their way.

    Args:
        frames: ``(marks, chains, n_features)``: means of the visibles given the latents where the model has them
            (``mean`` is True), else the visibles.
        marks: after how many steps.
        steps: what a step is: "Gibbs sweeps" or "Hamiltonian transitions".
        mean: whether frames are means.
        r_hat: the largest R̂ over the chains at the end, of their energy and of some projections of their visibles;
            above 1.1 they still depend on their starting points. NaN if it was not measured.
    """

    frames: np.ndarray
    marks: tuple[int, ...]
    steps: str
    mean: bool
    r_hat: float


def trace(estimator: Any, n_chains: int, marks: Sequence[int], *, key: PRNGKeyArray) -> Trace | None:
    """Chains at the given numbers of steps; None for a model that is sampled without chains, or not at all.

    Args:
        estimator: a fitted estimator.
        n_chains: how many chains.
        marks: increasing numbers of steps; Hamiltonian chains, whose steps are longer, take at most 200, with eight
            looks on the way.
        key: random key.
    """
    model = estimator.model_
    if isinstance(model, ExactSampler):
        return None
    if isinstance(model, Conditionals):
        return _gibbs(estimator, n_chains, tuple(marks), key)
    if misfit(samplers.HMC(), model) is None:
        return _hamiltonian(estimator, n_chains, min(marks[-1], _HAMILTONIAN), key)
    return None


def _gibbs(estimator: Any, n: int, marks: tuple[int, ...], key: PRNGKeyArray) -> Trace:
    model, (begin_key, key) = estimator.model_, jax.random.split(key)
    base = model.base() if isinstance(model, Tempered) else model
    zeros = jax.tree.map(lambda a: jnp.broadcast_to(a, (n, *a.shape)), space.zeros(model.x_space))
    x = samplers.Gibbs().visible(_swept(base, _begun(base, zeros, begin_key), jnp.asarray(1), begin_key))
    states = _begun(model, x, key)
    mean, frames, done = isinstance(model, Decodes), [], 0
    for mark in marks:
        states = _swept(model, states, jnp.asarray(mark - done), jax.random.fold_in(key, mark))
        frames.append(_columns(estimator, _shown(model, states)))
        done = mark
    return Trace(
        np.stack(frames), marks, "Gibbs sweeps", mean, _agreement(model, states, jax.random.fold_in(key, done + 1))
    )


def _agreement(model: Any, states: Any, key: PRNGKeyArray) -> float:
    """The largest R̂ of what the chains are watched by, where it moves at all."""
    looks = []
    for look in range(_LOOKS):  # from the host: a loop of its own would have to be compiled, which takes longer
        states = _swept(model, states, jnp.asarray(_WATCHED // _LOOKS), jax.random.fold_in(key, look))
        looks.append(np.asarray(_watched(model, states)))
    seen = np.stack(looks)
    moving = np.ptp(seen, axis=(0, 1)) > 0
    if not moving.any() or not np.isfinite(seen).all():
        return float("nan")
    found = r_hat(seen[:, :, moving])
    return float(np.max(np.where(np.isnan(found), np.inf, found)))  # chains that do not move, but differ


@jitted
def _begun(model: Any, x: Any, key: PRNGKeyArray) -> Any:
    return samplers.start(samplers.Gibbs(), model, x, key=key)


@jitted
def _swept(model: Any, states: Any, n_steps: Any, key: PRNGKeyArray) -> Any:
    """The number of sweeps is an array: any number of them is compiled once."""
    sampler = samplers.Gibbs()

    def body(i: Any, states: Any) -> Any:
        return samplers.advance(sampler, model, states, key=jax.random.fold_in(key, i))[0]

    return jax.lax.fori_loop(0, n_steps, body, states)


@jitted
def _watched(model: Any, states: Any) -> Any:
    """Energy and some projections of every chain, ``(chains, 1 + directions)``."""
    sampler, size = samplers.Gibbs(), space.width(model.x_space)
    directions = jax.random.normal(random.key(0), (size, _DIRECTIONS), float_type(model)) / size**0.5
    x, z = jax.vmap(sampler.visible)(states), jax.vmap(sampler.latent)(states)
    return jnp.column_stack([jax.vmap(model.energy)(x, z), space.flatten(model.x_space, x) @ directions])


@jitted
def _shown(model: Any, states: Any) -> Any:
    sampler = samplers.Gibbs()
    if isinstance(model, Decodes):
        return jax.vmap(model.decode)(jax.vmap(sampler.latent)(states))
    return jax.vmap(sampler.visible)(states)


def _hamiltonian(estimator: Any, n: int, n_steps: int, key: PRNGKeyArray, looks: int = 8) -> Trace:
    """Half of the steps adapt the sampler, as in :mod:`latentia.estimator.drawing`."""
    model, (begin_key, start_key, key) = estimator.model_, jax.random.split(key, 3)
    x = chain_starts(estimator, max(n, FEWEST), begin_key)
    sampler = samplers.HMC().sized(x)
    states = jitted(samplers.start)(sampler, model, x, key=start_key)
    each, frames, marks = max(1, n_steps // looks), [_columns(estimator, x)[:n]], [0]
    for look in range(looks):
        adapt = jnp.asarray(look < looks // 2)
        sampler, states = _moved(sampler, model, states, each, adapt, jax.random.fold_in(key, look))
        x = jax.vmap(sampler.visible)(states)
        frames.append(_columns(estimator, x)[:n])
        marks.append(marks[-1] + each)
    return Trace(np.stack(frames), tuple(marks), "Hamiltonian transitions", False, float("nan"))


@jitted
def _moved(sampler: Any, model: FreeEnergy, states: Any, n_steps: int, adapt: Any, key: PRNGKeyArray) -> Any:
    """Whether the sampler adapts is an array: both ways are compiled once, which takes longer than running them."""

    def body(carry: Any, key: PRNGKeyArray) -> tuple[Any, None]:
        sampler, states = carry
        states, info = samplers.advance(sampler, model, states, key=key)
        changed = jax.tree.map(lambda new, old: jnp.where(adapt, new, old), sampler.adapt(info), sampler)
        return (changed, states), None

    return jax.lax.scan(body, (sampler, states), jax.random.split(key, n_steps))[0]


def _columns(estimator: Any, x: Any) -> np.ndarray:
    """Values as flat rows, without labels."""
    spaces = tuple(space.seen(estimator.model_.x_space, estimator.n_features_in_))
    return np.asarray(space.flatten(spaces, jax.tree.leaves(x)[: len(spaces)]))
