"""Thresholds: the proximal maps of |z|, [z ≠ 0] and |z|^q, entry by entry.

Each is argmin_z ½(z − u)² + t ω(z) exactly. For ω = |z|^q with 0 < q < 1 the minimum jumps: it is zero up to

    |u| = least (2 − q) / (2 (1 − q)),      least = (2t(1 − q))^(1/(2 − q)),

and from there on the larger root of z + t q z^(q−1) = |u|, which begins at z = least (there the slope is zero, and
the value that of z = 0). The root has closed forms at q = ½ and q = ⅔.

References:
    Z. Xu, X. Chang, F. Xu and H. Zhang, "L1/2 regularization: a thresholding representation theory and a fast
    solver", IEEE Transactions on Neural Networks and Learning Systems 23 (2012).
    W. Cao, J. Sun and Z. Xu, "Fast image deconvolution using closed-form thresholding formulas of Lq (q = 1/2, 2/3)
    regularization", Journal of Visual Communication and Image Representation 24 (2013).
    G. Marjanovic and V. Solo, "On lq optimization and matrix completion", IEEE Transactions on Signal Processing 60
    (2012): the jump for any q.
"""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

Values = Float[Array, "*n"]

#: Newton steps of the ℓq map. They start right of a simple root of a function that is convex and rising there, so
#: they fall onto it; seven reach float64's precision for every q.
NEWTON_STEPS = 9


def soft(u: Values, t: Array) -> Values:
    """sign(u) (|u| − t)₊: the map of t|z|.

    Example:
        >>> soft(jnp.array([2.0, -0.3]), jnp.array([0.5]))
        Array([1.5, 0. ], dtype=float32)
    """
    return u - jnp.clip(u, -t, t)


def hard(u: Values, t: Array) -> Values:
    """u where u² > 2t, else 0: the map of t[z ≠ 0]."""
    return jnp.where(u**2 > 2 * t, u, jnp.zeros_like(u))


def shrink_power(u: Values, t: Array, q: float) -> Values:
    """The map of t|z|^q, 0 < q < 1."""
    t = jnp.broadcast_to(t, u.shape)
    some = t > 0
    t = jnp.where(some, t, 1.0)
    least = (2 * t * (1 - q)) ** (1 / (2 - q))
    jump = least * (2 - q) / (2 * (1 - q))
    size = jnp.abs(u)
    above = size > jump
    root = _ROOTS.get(q, _newton_root)(jnp.where(above, size, 2 * jump), t, least, q)
    moved = jnp.where(above, jnp.sign(u) * jnp.clip(root, least, jnp.maximum(size, least)), 0.0)
    return jnp.where(some, moved, u)


def _newton_root(size: Array, t: Array, least: Array, q: float) -> Array:
    """The larger root of z + t q z^(q−1) = size for any q."""

    def step(z: Array, _: None) -> tuple[Array, None]:
        slope = 1 - t * q * (1 - q) * z ** (q - 2)
        return jnp.maximum(z - (z - size + t * q * z ** (q - 1)) / slope, least), None

    return jax.lax.scan(step, size, None, length=NEWTON_STEPS)[0]


def _half_root(size: Array, t: Array, least: Array, q: float) -> Array:
    """q = ½: a cubic in √z, by its cosine (Xu et al., 2012)."""
    del least, q
    angle = jnp.arccos(jnp.clip(0.25 * t * (size / 3) ** -1.5, -1.0, 1.0))
    return (2 / 3) * size * (1 + jnp.cos(2 * math.pi / 3 - 2 * angle / 3))


def _two_thirds_root(size: Array, t: Array, least: Array, q: float) -> Array:
    """q = ⅔: a quartic in the cube root of z, by its resolvent (Cao, Sun and Xu, 2013)."""
    del least, q
    angle = jnp.arccosh(jnp.maximum((27 / 16) * size**2 * (2 * t) ** -1.5, 1.0))
    a = (2 / math.sqrt(3)) * (2 * t) ** 0.25 * jnp.sqrt(jnp.cosh(angle / 3))
    return ((a + jnp.sqrt(jnp.maximum(2 * size / a - a**2, 0.0))) / 2) ** 3


_ROOTS = {0.5: _half_root, 2 / 3: _two_thirds_root}
