"""The log-likelihood of directed models with a learned posterior.

From below by importance sampling, log mean w with w = p(x, z)/q(z | x) over k draws (Burda, Grosse and
Salakhutdinov, 2016); the bound rises with k, and its standard error follows from the weights' spread. From above by
annealing back from the posterior (:mod:`latentia.likelihood.latent_annealing`). Few binary latents are summed over
instead. A row's random numbers follow from its values, so that its bound does not depend on the rows around it. All
in float64.
"""

from __future__ import annotations

import math
import zlib
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import space
from latentia.core.capabilities import Amortised
from latentia.core.conditioning import kind, resolved
from latentia.core.errors import CapabilityError, DataError, ParameterError, UnknownNameError
from latentia.likelihood import latent_annealing
from latentia.likelihood.enumeration import LIMIT
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.likelihood.result import LogLikelihood
from latentia.ops.arrays import batch_size
from latentia.ops.compiling import jitted

METHODS = ("auto", "exact", "ais", "importance")
N_STDERR = 2.0
#: Draws that are held at a time, over all rows of a block.
_DRAWS = 2**15
_ROWS = 256


class RowBounds(NamedTuple):
    """Per row: the importance-weighted bound, its variance to first order, and the ELBO of the same draws."""

    iwae: np.ndarray
    variance: np.ndarray
    elbo: np.ndarray
    stderr: float


def row_bounds(model: Amortised, x: Any, *, key: PRNGKeyArray, n_samples: int) -> RowBounds:
    """Lower bounds on log p(x) of every row of a batch.

    Args:
        model: a directed model.
        x: a batch of visibles.
        key: random key.
        n_samples: k, draws of the latents for every row.
    """
    codes = fingerprints(x)
    keys = jax.vmap(lambda code: jax.random.fold_in(key, code))(jnp.asarray(codes))
    n, found = batch_size(x), []
    with double():
        model = to_double(model)
        for first in range(0, n, _ROWS):
            block = np.arange(first, first + _ROWS) % n if n > _ROWS else _padded(n)  # few shapes are compiled
            part = batch_to_double(jax.tree.map(lambda a, block=block: np.asarray(a)[block], x))
            results = _bounds(model, part, keys[block], n_samples, max(1, min(n_samples, _DRAWS // len(block))))
            found.append([np.asarray(result)[: n - first] for result in results])
    iwae, variance, elbo = (np.concatenate(column) for column in zip(*found, strict=True))
    _, index, counts = np.unique(codes, return_index=True, return_counts=True)  # equal rows err alike
    return RowBounds(iwae, variance, elbo, float(np.sqrt(np.sum(counts**2 * variance[index])) / n))


def _padded(n: int) -> np.ndarray:
    return np.arange(1 << (n - 1).bit_length()) % n


def fingerprints(x: Any) -> np.ndarray:
    """A number for every row that follows from its values, so that draws by it do not depend on other rows."""
    columns = [np.asarray(leaf, np.float32) for leaf in jax.tree.leaves(x)]
    codes = [zlib.crc32(b"".join(part.tobytes() for part in row)) for row in zip(*columns, strict=True)]
    return np.array(codes, np.uint32)


@jitted
def _bounds(model: Any, x: Any, keys: Any, n_samples: int, chunk: int) -> tuple[Array, Array, Array]:
    """(log mean w, var(w)/(k E[w]²), mean log w), ``chunk`` draws at a time."""
    n_chunks = math.ceil(n_samples / chunk)

    def one(row: Any, key: PRNGKeyArray) -> tuple[Array, Array, Array]:
        found, x = resolved(model, row)
        q = found.recognise(x)

        def log_weight(index: Array) -> Float[Array, ""]:
            z = q.sample(key=jax.random.fold_in(key, index))
            return -found.energy(x, z) - q.log_prob(z)

        def body(carry: Any, number: Array) -> tuple[Any, None]:
            first, second, total = carry
            index = number * chunk + jnp.arange(chunk)
            log_w = jax.vmap(log_weight)(index)
            counted = index < n_samples
            kept = jnp.where(counted, log_w, -jnp.inf)
            first = jnp.logaddexp(first, logsumexp(kept))
            second = jnp.logaddexp(second, logsumexp(2 * kept))
            return (first, second, total + jnp.sum(jnp.where(counted, log_w, 0.0))), None

        low = jnp.asarray(-jnp.inf, jnp.float64)
        begin = (low, low, jnp.zeros((), jnp.float64))
        (first, second, total), _ = jax.lax.scan(body, begin, jnp.arange(n_chunks))
        return first - math.log(n_samples), jnp.exp(second - 2 * first) - 1 / n_samples, total / n_samples

    return jax.vmap(one)(x, keys)


def log_likelihood(
    model: Amortised,
    x: Any,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    limit: int = LIMIT,
    n_samples: int = 1000,
    n_temperatures: int = 100,
    n_steps: int = 100,
    n_chains: int = 2,
    n_leapfrog: int = 5,
    n_annealed: int = 200,
) -> LogLikelihood:
    """Mean log p(x) of a batch, in nats.

    Args:
        model: a directed model with its posterior.
        x: a batch of visibles.
        key: random key; unused where the answer is exact.
        method: "exact" (binary latents, summed over), "importance" (the lower bound alone, whose upper end is
            infinite), "ais" (both sides), or "auto": exact where possible, else both sides.
        limit: how many states of the latents may be summed over.
        n_samples: k, draws for every row.
        n_temperatures: annealing steps between q and p(x, z), for the upper side.
        n_steps: moves from q to p(z | x) before them.
        n_chains: annealing runs for every row and direction, at least two.
        n_leapfrog: leapfrog steps of a move of real latents.
        n_annealed: rows that are annealed, spread over the batch; how far they rise above their importance bound
            gives the upper bound of all.
    """
    if method not in METHODS:
        raise UnknownNameError("likelihood method", method, METHODS)
    if not isinstance(kind(model), Amortised):
        raise CapabilityError(f"{type(model).__name__} lacks Amortised (recognise, log_given, divergences).")
    if batch_size(x) == 0:
        raise DataError("There are no examples: the batch has no rows.")
    if n_chains < 2 or n_samples < 2:
        raise ParameterError(f"n_chains and n_samples must be at least 2, got {n_chains} and {n_samples}.")
    log_count = space.log_count(kind(model).z_space)
    small = log_count <= np.log(limit) + 1e-9
    if method == "exact" and not small:
        states = "infinitely many" if not np.isfinite(log_count) else f"2^{log_count / np.log(2):.4g}"
        raise CapabilityError(f"The latents have {states} states, more than can be summed over. Use method='ais'.")
    if method == "exact" or (method == "auto" and small):
        value = float(np.mean(exact_rows(model, x)))
        return LogLikelihood(value, value, value, 0.0, "exact (sum over the latents)")
    bound_key, anneal_key = jax.random.split(key)
    bounds = row_bounds(model, x, key=bound_key, n_samples=n_samples)
    if method == "importance":
        return _one_sided(bounds, n_samples)
    n = batch_size(x)
    rows = np.unique(np.linspace(0, n - 1, min(n, n_annealed)).astype(int))
    annealed = jax.tree.map(lambda a: np.asarray(a)[rows], x)
    options = {"n_temperatures": n_temperatures, "n_steps": n_steps, "n_chains": n_chains, "n_leapfrog": n_leapfrog}
    forward, reverse = latent_annealing.bracket(model, annealed, key=anneal_key, **options)
    return _two_sided(bounds, n_samples, rows, forward, reverse, n_temperatures)


def _facts(bounds: RowBounds, n_samples: int) -> dict[str, Any]:
    return {
        "importance_bound": float(bounds.iwae.mean()),
        "importance_stderr": bounds.stderr,
        "n_samples": n_samples,
        "elbo": float(bounds.elbo.mean()),
        "n_examples": bounds.iwae.size,
    }


def _one_sided(bounds: RowBounds, n_samples: int) -> LogLikelihood:
    value = float(bounds.iwae.mean())
    lower = value - N_STDERR * bounds.stderr
    method = f"importance sampling, k = {n_samples}: a lower bound"
    return LogLikelihood(lower, math.inf, value, bounds.stderr, method, _facts(bounds, n_samples))


def _two_sided(
    bounds: RowBounds,
    n_samples: int,
    rows: np.ndarray,
    forward: np.ndarray,
    reverse: np.ndarray,
    n_temperatures: int,
) -> LogLikelihood:
    """Both ends, widened by two standard errors; annealed rows stand for the others."""
    value = float(bounds.iwae.mean())
    rise = reverse - bounds.iwae[rows, None]
    gap, gain = float(rise.mean()), float((forward - bounds.iwae[rows, None]).mean())
    # Rows that were not annealed may rise by more or less: the spread over rows counts unless all of them were.
    everything = len(rows) == bounds.iwae.size
    both = np.stack([rise, forward - bounds.iwae[rows, None]])
    noise = (
        np.var(both, axis=2, ddof=1).mean(1) / rise.size if everything else np.var(both.mean(2), axis=1) / len(rows)
    )
    stderr = float(np.sqrt(noise.max() + bounds.stderr**2))
    above, below = value + gap, value + gain
    lower = max(value - N_STDERR * bounds.stderr, min(below, above) - N_STDERR * stderr)
    upper = max(value, above) + N_STDERR * stderr
    details = {
        **_facts(bounds, n_samples),
        "annealed_lower": below,
        "annealed_upper": above,
        "n_annealed": len(rows),
        "n_temperatures": n_temperatures,
    }
    if gap < max(gain, 0.0) - N_STDERR * stderr:
        details["warning"] = (
            "The upper bound lies below the lower one: the chains have not converged to p(z | x). Raise n_steps "
            "and n_temperatures."
        )
    best = max(value, below)
    estimate = min(max(0.5 * (best + above), lower), upper)
    method = (
        f"importance sampling, k = {n_samples}, and reverse AIS in latent space on {len(rows)} rows "
        f"({n_temperatures} temperatures)"
    )
    return LogLikelihood(lower, upper, estimate, max(stderr, 0.5 * abs(above - best)), method, details)


def exact_rows(model: Amortised, x: Any) -> np.ndarray:
    """log p(x) = log Σ_z exp(−E(x, z)) of every row, z binary."""
    with double():
        states = batch_to_double(space.enumerate_states(kind(model).z_space))
        return np.asarray(_summed(to_double(model), batch_to_double(x), states))


@jitted
def _summed(model: Any, x: Any, states: Any) -> Float[Array, " n"]:
    def one(row: Any) -> Float[Array, ""]:
        found, x = resolved(model, row)
        return logsumexp(-jax.vmap(lambda z: found.energy(x, z))(states))

    return jax.lax.map(one, x)
