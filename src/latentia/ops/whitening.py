"""Starting points for linear models: means, covariances, whitening, and random directions to rotate it by."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


@functools.partial(jax.jit, static_argnums=(0, 1, 2))  # one function to compile, where nothing else is
def directions(k: int, d: int, dtype: Any, *, key: PRNGKeyArray) -> Float[Array, "k d"]:
    """Random unit vectors; orthogonal ones if k = d, else shrunk until their squares add up to as much."""
    drawn = jax.random.normal(key, (k, d), dtype)
    if k == d:
        q, r = jnp.linalg.qr(drawn)
        return q * jnp.sign(jnp.diagonal(r))[None, :]
    return drawn / jnp.linalg.norm(drawn, axis=1, keepdims=True) * math.sqrt(d / k)


def whitener(xp: Any, covariance: Any, n_components: int) -> tuple[Any, Any]:
    """(a matrix that whitens, least eigenvalue of the correlations), by NumPy or JAX.

    With fewer components than features its rows are the principal components, the greatest first. Otherwise it
    whitens the correlations, so that columns in different units do no harm. Directions that do not vary get a large
    but finite factor.
    """
    sd = xp.sqrt(xp.diagonal(covariance))
    scale = xp.where(sd > 0, sd, xp.ones_like(sd))
    values, vectors = xp.linalg.eigh(covariance / scale[:, None] / scale[None, :])
    least, floor = values[0], 10 * float(xp.finfo(values.dtype).eps)
    if n_components >= covariance.shape[0]:
        return (vectors / xp.sqrt(xp.maximum(values, floor))[None, :]) @ vectors.T / scale[None, :], least
    values, vectors = xp.linalg.eigh(covariance)
    floor = floor * xp.where(values[-1] > 0, values[-1], xp.ones_like(values[-1]))
    return (vectors / xp.sqrt(xp.maximum(values, floor))[None, :]).T[::-1], least


def moments(
    blocks: Callable[[], Iterable[np.ndarray]], weights: np.ndarray | None, *, diagonal: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(mean, covariance, or only the variances) of the rows of all blocks, weighted, in double precision.

    >>> mean, covariance = moments(lambda: [np.array([[0.0], [4.0]]), np.array([[8.0]])], np.array([3.0, 0.0, 1.0]))
    >>> float(mean[0]), float(covariance[0, 0])
    (2.0, 12.0)
    """
    mean = mean_of(blocks, weights)
    if diagonal:
        return mean, _averaged(blocks, weights, lambda block, share: share @ (block - mean) ** 2)
    scatter = lambda block, share: ((block - mean) * share[:, None]).T @ (block - mean)  # noqa: E731
    return mean, _averaged(blocks, weights, scatter)


def mean_of(blocks: Callable[[], Iterable[np.ndarray]], weights: np.ndarray | None) -> np.ndarray:
    """The mean of the rows of all blocks, weighted, in double precision."""
    return _averaged(blocks, weights, lambda block, share: share @ block)


def _averaged(
    blocks: Callable[[], Iterable[np.ndarray]],
    weights: np.ndarray | None,
    term: Callable[[np.ndarray, np.ndarray], np.ndarray],
) -> Any:
    """Σ term(block, weights of its rows) over the sum of all weights."""
    found, mass, start = 0.0, 0.0, 0
    for block in blocks():
        n = len(block)
        share = np.ones(n) if weights is None else weights[start : start + n].astype(np.float64)
        found, mass, start = found + term(block, share), mass + share.sum(), start + n
    return found / mass
