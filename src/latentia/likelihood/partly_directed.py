"""The likelihood of directed layers under an undirected model: a lower bound by importance sampling.

log p(x) + log Z ≥ E log mean w with w = exp(log p(x, z) + log Z)/q(z | x) over n draws (Burda, Grosse and
Salakhutdinov, 2016); log Z is that of the top model.
"""

from __future__ import annotations

import math
from numbers import Integral
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, PRNGKeyArray

from latentia.core.capabilities import PartlyDirected
from latentia.core.errors import ParameterError
from latentia.core.model import Scalar
from latentia.likelihood.enumeration import LIMIT
from latentia.likelihood.importance import fingerprints
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.likelihood.undirected import log_z
from latentia.ops.arrays import batch_size
from latentia.ops.compiling import jitted

#: Rows whose bounds are computed at once.
_ROWS = 256


def log_likelihood(
    model: PartlyDirected,
    x: Any,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    limit: int = LIMIT,
    n_samples: int = 100,
    n_temperatures: int = 2000,
    n_chains: int = 256,
    n_replicas: int = 10,
    n_burn_in: int = 500,
    n_steps: int = 500,
    start: Any = None,
    normaliser: LogZ | None = None,
) -> LogLikelihood:
    """A lower bound on mean log p(x); ``lower`` and ``upper`` hold what is known of log Z from both sides.

    The likelihood itself may lie above all of them. ``n_samples`` are draws of the latents for every row; the other
    arguments are those of :func:`latentia.likelihood.log_likelihood`.
    """
    bounds, noise = row_bounds(model, x, key=key, n_samples=n_samples)
    if normaliser is None:
        normaliser = log_z(
            model,
            key=key,
            method=method,
            limit=limit,
            n_temperatures=n_temperatures,
            n_chains=n_chains,
            n_replicas=n_replicas,
            n_burn_in=n_burn_in,
            n_steps=n_steps,
            start=start,
        )
    mean = float(np.mean(bounds))
    details = {
        **normaliser.details,
        "mean_bound": mean,
        "n_examples": bounds.size,
        "log_z": normaliser.estimate,
        "log_z_lower": normaliser.lower,
        "log_z_upper": normaliser.upper,
    }
    method = f"lower bound from {n_samples} paths; {normaliser.method}"
    ends = (mean - normaliser.upper, mean - normaliser.lower, mean - normaliser.estimate)
    return LogLikelihood(*ends, float(np.hypot(normaliser.stderr, noise)), method, details)


def row_bounds(model: PartlyDirected, x: Any, *, key: PRNGKeyArray, n_samples: int) -> tuple[np.ndarray, float]:
    """(importance-weighted bounds on log p(x) + log Z of a batch, standard error of their mean), in float64."""
    if isinstance(n_samples, bool) or not isinstance(n_samples, Integral) or n_samples < 2:
        raise ParameterError(f"n_samples must be an integer of at least 2, got {n_samples!r}.")
    n, found = batch_size(x), []
    # A row's random numbers follow from its values: its bound does not depend on the rows around it.
    codes = fingerprints(x)
    keys = jax.vmap(lambda code: jax.random.fold_in(key, code))(jnp.asarray(codes))
    with double():
        model = to_double(model)
        for first in range(0, n, _ROWS):
            begin = max(0, min(first, n - _ROWS))  # full blocks, so that one shape is compiled
            block = slice(begin, begin + _ROWS)
            part = batch_to_double(jax.tree.map(lambda a, block=block: a[block], x))
            results = _bounds(model, part, n_samples, keys[block])
            found.append([np.asarray(result)[first - begin :] for result in results])
    bounds, variances = (np.concatenate(column) for column in zip(*found, strict=True))
    _, index, counts = np.unique(codes, return_index=True, return_counts=True)  # equal rows err alike
    return bounds, float(np.sqrt(np.sum(counts**2 * variances[index])) / n)


@jitted
def _bounds(model: PartlyDirected, x: Any, n_samples: int, keys: PRNGKeyArray) -> tuple[Array, Array]:
    """(log mean w, var(w) / (n E[w]²): its variance to first order)."""

    def one(x: Any, key: PRNGKeyArray) -> tuple[Scalar, Scalar]:
        logs = model.log_weights(x, key=key, n_samples=n_samples)
        return logsumexp(logs) - math.log(n_samples), jnp.sum(jax.nn.softmax(logs) ** 2) - 1 / n_samples

    return jax.vmap(one)(x, keys)
