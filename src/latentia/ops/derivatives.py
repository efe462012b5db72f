"""Second derivatives of scalar functions without their Hessian.

A second directional derivative is the second coefficient of t ↦ f(x + t v): two nested forward derivatives, which
never form a vector of the size of x beyond x itself. Directions that are the same for every example of a batch
(the axes) pass a function's first linear layer once for all examples, not once for each.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Scalar = Float[Array, ""]
Vector = Float[Array, " n"]

#: Axes that are followed at once: more need more memory, fewer are slower.
CHUNK = 64


def curvature(f: Callable[[Vector], Scalar], x: Vector, v: Vector) -> Scalar:
    """vᵀ ∇²f(x) v.

    >>> x = jnp.array([1.0, 2.0])
    >>> float(curvature(lambda x: x[0] ** 2 * x[1], x, jnp.array([1.0, 0.0])))
    4.0
    """
    slope = lambda x: jax.jvp(f, (x,), (v,))[1]  # noqa: E731
    return jax.jvp(slope, (x,), (v,))[1]


def laplacian(f: Callable[[Vector], Scalar], x: Vector, scale: Vector | None = None, chunk: int = CHUNK) -> Scalar:
    """Σ_i s_i² ∂²f/∂x_i² at x: the trace of the Hessian where the scale s is one.

    >>> x = jnp.array([1.0, 2.0, 3.0])
    >>> float(laplacian(lambda x: jnp.sum(x**3), x))  # Σ 6 x_i
    36.0
    """
    n = x.shape[0]
    weights = jnp.ones_like(x) if scale is None else scale**2
    size = min(chunk, n)
    n_chunks = -(-n // size)
    columns = jnp.arange(n_chunks * size).reshape(n_chunks, size)

    def part(total: Scalar, columns: Array) -> tuple[Scalar, None]:
        axes = (columns[:, None] == jnp.arange(n)[None, :]).astype(x.dtype)  # zero beyond the last
        along = jax.vmap(lambda v: curvature(f, x, v))(axes)
        return total + along @ (axes @ weights), None

    return jax.lax.scan(part, jnp.zeros((), x.dtype), columns)[0]
