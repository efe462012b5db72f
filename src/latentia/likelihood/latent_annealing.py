"""log p(x) of directed models from both sides, by annealing in latent space between q(z | x) and p(x, z).

The path is log f_β(z) = (1 − β) log q(z | x) + β log p(x, z): it begins at a normalised distribution and ends at
one whose normaliser is p(x). Forward, from draws of q, E log w ≤ log p(x); backward, from draws of p(z | x),
E log(1/w′) ≥ log p(x) (Neal, 2001; Grosse, Ghahramani and Adams, 2015; Wu, Burda, Salakhutdinov and Grosse, 2017).
Draws of p(z | x) come from chains that begin at q; the upper bound is valid if they have converged.

Real latents are annealed as the noise ε that q makes them of, z = z(ε): there q is standard normal and the target
is log N(ε; 0, 1) + log p(x, z(ε)) − log q(z(ε) | x), which has the same normaliser. Layers that follow one another
closely are thin and bent in z, and round in ε as far as q is right. ε moves by Hamiltonian trajectories, with a
step size for every chain that adapts during burn-in and is held fixed afterwards; binary latents are flipped one
by one, by Gibbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import Amortised
from latentia.core.conditioning import resolved
from latentia.core.model import Scalar
from latentia.core.space import leaves
from latentia.likelihood.annealing import schedule
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.ops.arrays import batch_size
from latentia.ops.compiling import jitted

_TARGET, _FIRST_STEP = 0.8, 0.2
#: A step size adapts at the rate 1, slowing down to this.
_SLOWEST = 0.1
_ROWS = 256

LogDensity = Callable[[Float[Array, " d"]], Scalar]


def bracket(
    model: Amortised,
    x: Any,
    *,
    key: PRNGKeyArray,
    n_temperatures: int,
    n_steps: int,
    n_chains: int,
    n_leapfrog: int,
) -> tuple[np.ndarray, np.ndarray]:
    """(forward, reverse) estimates of log p(x), ``(rows, chains)`` each, in float64.

    Args:
        model: a directed model.
        x: a batch of visibles.
        key: random key.
        n_temperatures: steps of the path.
        n_steps: moves from q to p(z | x) before the way back.
        n_chains: runs in each direction for every row.
        n_leapfrog: leapfrog steps of a trajectory.
    """
    betas, found, n = schedule(n_temperatures), [], batch_size(x)
    rows = min(n, _ROWS)
    keys = jax.random.split(key, n)
    with double():
        model = to_double(model)
        for first in range(0, n, rows):
            begin = min(first, n - rows)  # full blocks, so that one shape is compiled
            part = batch_to_double(jax.tree.map(lambda a, i=begin: a[i : i + rows], x))
            chosen = keys[begin : begin + rows]
            results = _bracketed(model, part, chosen, jnp.asarray(betas), n_steps, n_chains, n_leapfrog)
            found.append([np.asarray(result)[first - begin :] for result in results])
    forward, reverse = (np.concatenate(column) for column in zip(*found, strict=True))
    return forward, reverse


@jitted
def _bracketed(
    model: Any, x: Any, keys: Any, betas: Array, n_steps: int, n_chains: int, n_leapfrog: int
) -> tuple[Array, Array]:
    def one(row: Any, key: PRNGKeyArray) -> tuple[Array, Array]:
        found, x = resolved(model, row)
        q = found.recognise(x)
        runs = jax.random.split(key, n_chains)
        return jax.vmap(lambda key: _both_ways(found, x, q, betas, n_steps, n_leapfrog, key))(runs)

    return jax.vmap(one)(x, keys)


def _both_ways(
    model: Any, x: Any, q: Any, betas: Array, n_steps: int, n_leapfrog: int, key: PRNGKeyArray
) -> tuple[Scalar, Scalar]:
    """(log w forward, −log w′ backward) of one chain each way."""
    first, second, settle_key, up_key, down_key = jax.random.split(key, 5)
    drawn, unravel = ravel_pytree(q.sample(key=first))
    rises = lambda z: -model.energy(x, z) - q.log_prob(z)  # noqa: E731
    move: Any
    if all(leaf.domain == "real" for leaf in leaves(model.z_space)):
        move = _hamiltonian(n_leapfrog)
        draw = lambda key: jax.random.normal(key, drawn.shape, drawn.dtype)  # noqa: E731
        log_start = lambda noise: -0.5 * jnp.sum(noise**2)  # noqa: E731
        log_rise = lambda noise: rises(q.place(unravel(noise)))  # noqa: E731
    else:
        move = _flips
        draw = lambda key: ravel_pytree(q.sample(key=key))[0]  # noqa: E731
        log_start = lambda z: q.log_prob(unravel(z))  # noqa: E731
        log_rise = lambda z: rises(unravel(z))  # noqa: E731
    at = lambda beta: lambda z: log_start(z) + beta * log_rise(z)  # noqa: E731

    def settle(carry: Any, key: PRNGKeyArray) -> tuple[Any, None]:
        z, step, rate = carry
        z, accepted = move(at(jnp.ones_like(step)), z, step, key)
        step = step * jnp.exp(rate * (accepted - _TARGET))
        return (z, step, jnp.maximum(0.95 * rate, _SLOWEST)), None

    def anneal(z: Array, betas: Array, step: Scalar, key: PRNGKeyArray) -> Scalar:
        def body(carry: Any, each: Any) -> tuple[Any, None]:
            (log_w, z), (before, after, key) = carry, each
            log_w = log_w + (after - before) * log_rise(z)
            return (log_w, move(at(after), z, step, key)[0]), None

        keys = jax.random.split(key, betas.shape[0] - 1)
        return jax.lax.scan(body, (jnp.zeros((), betas.dtype), z), (betas[:-1], betas[1:], keys))[0][0]

    begin = (draw(first), *jnp.asarray([_FIRST_STEP, 1.0], betas.dtype))
    (settled, step, _), _ = jax.lax.scan(settle, begin, jax.random.split(settle_key, n_steps))
    return anneal(draw(second), betas, step, up_key), -anneal(settled, betas[::-1], step, down_key)


def _hamiltonian(n_leapfrog: int) -> Any:
    """A trajectory of a fixed number of leapfrog steps, accepted or refused."""

    def move(log_density: LogDensity, z: Array, step: Scalar, key: PRNGKeyArray) -> tuple[Array, Scalar]:
        from blackjax.mcmc import hmc  # on first use: it takes half a second to import

        jitter_key, key = jax.random.split(key)
        step = step * (1 + 0.2 * jax.random.uniform(jitter_key, (), z.dtype, -1.0, 1.0))
        kernel: Any = hmc.build_kernel()
        end, info = kernel(key, hmc.init(z, log_density), log_density, step, jnp.ones_like(z), n_leapfrog)
        return end.position, info.acceptance_rate

    return move


def _flips(log_density: LogDensity, z: Array, step: Scalar, key: PRNGKeyArray) -> tuple[Array, Scalar]:
    """Every binary latent drawn given the others, in turn."""

    def one(z: Array, each: Any) -> tuple[Array, None]:
        index, key = each
        on, off = z.at[index].set(1.0), z.at[index].set(0.0)
        odds = log_density(on) - log_density(off)
        drawn = jnp.log(jax.random.uniform(key, (), z.dtype)) < jax.nn.log_sigmoid(odds)
        return jnp.where(drawn, on, off), None

    z, _ = jax.lax.scan(one, z, (jnp.arange(z.shape[0]), jax.random.split(key, z.shape[0])))
    return z, jnp.full_like(step, _TARGET)
