"""Filters moved over an image, and the transpose of that."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


def correlate(x: Float[Array, "h w"], filters: Float[Array, "k a b"]) -> Float[Array, "k p q"]:
    """Responses u_k[i, j] = Σ_{a,b} f_k[a, b] x[i + a, j + b] wherever the filter lies inside the image.

    Filters are laid on the image as they are seen, not mirrored. Written as a sum over shifted windows it is one
    matrix product, forwards and in every derivative, which on a CPU is faster than a convolution.

    >>> correlate(jnp.arange(3.0)[None, :], jnp.array([[[-1.0, 1.0]]]))[0]
    Array([[1., 1.]], dtype=float32)
    """
    n, height, width = filters.shape
    rows, columns = x.shape[0] - height + 1, x.shape[1] - width + 1
    windows = [x[a : a + rows, b : b + columns] for a in range(height) for b in range(width)]
    return jnp.tensordot(filters.reshape(n, -1), jnp.stack(windows), axes=1)


def spread_back(
    responses: Float[Array, "k p q"], filters: Float[Array, "k a b"], shape: tuple[int, ...]
) -> Float[Array, "h w"]:
    """The transpose of :func:`correlate`: responses → image."""
    blank = jnp.zeros(shape, responses.dtype)
    return jax.linear_transpose(lambda x: correlate(x, filters), blank)(responses)[0]
