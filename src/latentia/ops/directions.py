"""Random directions of signs for traces: E vᵀAv = tr A for every direction v of independent random signs ±1.

A batch takes its directions from one vector s of random signs and the rows h_i of a Hadamard matrix, repeated along
the entries where these are more:

    v_i = s ∘ h_i.

Each of them alone is a vector of independent signs, no different from a fresh one; but different ones are (nearly)
orthogonal to each other, so that a mean over them varies less, they need n random bits and not one for every entry
of every direction, and the products of all of them with a matrix are one fast Walsh–Hadamard transform of its
columns: no product of the size of the batch.
"""

from __future__ import annotations

import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray


class SignDirections(eqx.Module):
    """Several directions for every example of a batch.

    Args:
        signs: s.
        shape: (examples, directions for each).
    """

    signs: Float[Array, " n"]
    shape: tuple[int, int] = eqx.field(static=True)

    @classmethod
    def draw(cls, shape: tuple[int, int], n: int, dtype: Any, *, key: PRNGKeyArray) -> Self:
        """Fresh signs."""
        return cls(jax.random.rademacher(key, (n,), dtype), shape)

    @property
    def period(self) -> int:
        """Size of the Hadamard matrix: a power of two that has a row for each direction, or one for each entry."""
        return 1 << (min(math.prod(self.shape), self.signs.shape[0]) - 1).bit_length()

    def dense(self) -> Float[Array, "b k n"]:
        """The directions themselves.

        >>> SignDirections(jnp.array([1.0, 1.0, -1.0]), (2, 1)).dense()[:, 0]
        Array([[ 1.,  1., -1.],
               [ 1., -1., -1.]], dtype=float32)
        """
        row = jnp.arange(math.prod(self.shape), dtype=jnp.uint32) % self.period
        column = jnp.arange(self.signs.shape[0], dtype=jnp.uint32) % self.period
        odd = (
            jax.lax.population_count(row[:, None] & column[None, :]) % 2
        )  # Sylvester's Hadamard matrix is (−1)^odd
        return jnp.where(odd == 1, -self.signs[None, :], self.signs[None, :]).reshape(*self.shape, -1)

    def products(self, matrix: Float[Array, "m n"]) -> Float[Array, "b k m"]:
        """Mv for all directions.

        >>> some = SignDirections(jnp.array([1.0, 1.0, -1.0]), (2, 1))
        >>> some.products(jnp.eye(3))[:, 0] == some.dense()[:, 0]
        Array([[ True,  True,  True],
               [ True,  True,  True]], dtype=bool)
        """
        m, n = matrix.shape
        folded = jnp.pad((matrix * self.signs[None, :]).T, ((0, -n % self.period), (0, 0)))
        folded = jnp.sum(folded.reshape(-1, self.period, m), axis=0)
        rows = _transformed(folded)
        count = math.prod(self.shape)
        if count > self.period:
            rows = jnp.tile(rows, (-(-count // self.period), 1))
        return rows[:count].reshape(*self.shape, m)


def _transformed(columns: Float[Array, "p m"]) -> Float[Array, "p m"]:
    """H times columns for the Hadamard matrix H = H_a ⊗ H_b: two small products instead of a large one."""
    p, m = columns.shape
    a = 1 << ((p.bit_length() - 1) // 2)
    b = p // a
    inner = _hadamard(b, columns.dtype) @ columns.reshape(a, b, m).transpose(1, 0, 2).reshape(b, a * m)
    outer = _hadamard(a, columns.dtype) @ inner.reshape(b, a, m).transpose(1, 0, 2).reshape(a, b * m)
    return outer.reshape(p, m)


def _hadamard(n: int, dtype: Any) -> Float[Array, "n n"]:
    odd = np.bitwise_count(np.arange(n)[:, None] & np.arange(n)[None, :]) % 2
    return jnp.asarray(1 - 2.0 * odd, dtype)
