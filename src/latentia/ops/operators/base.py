"""The interface of operators, the matrix, and functions of any operator."""

from __future__ import annotations

import abc
import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latentia.core import space
from latentia.core.parameters import weight
from latentia.core.space import Space
from latentia.ops.arrays import float_type

Scalar = Float[Array, ""]

HIGHEST = jax.lax.Precision.HIGHEST
#: Of :func:`largest_eigenvalue`: vectors of a cycle, most cycles, and the relative residual that is small enough.
KRYLOV, CYCLES, SETTLED = 16, 60, 1e-3
#: What exact eigenvalues are rounded up by: 1/L is then a safe step in single precision.
ROUNDED_UP = 1e-5
#: Columns of the matrix that :func:`to_matrix` finds together.
COLUMNS = 256


class LinearOperator(eqx.Module):
    """D, with its adjoint. Floating-point leaves are its parameters."""

    @property
    @abc.abstractmethod
    def code_space(self) -> Any:
        """What z is: a pytree of spaces."""

    @property
    @abc.abstractmethod
    def signal_space(self) -> Any:
        """What x is: a pytree of spaces."""

    @abc.abstractmethod
    def synthesise(self, z: Any) -> Any:
        """Dz."""

    @abc.abstractmethod
    def analyse(self, x: Any) -> Any:
        """Dᵀx, the adjoint: ⟨Dz, x⟩ = ⟨z, Dᵀx⟩."""

    @abc.abstractmethod
    def lipschitz(self) -> Scalar:
        """λ_max(DᵀD), a little rounded up; 0 if D is zero."""

    @property
    def n_code(self) -> int:
        """How many numbers a code has."""
        return sum(math.prod(leaf.shape) for leaf in space.leaves(self.code_space))

    @property
    def n_signal(self) -> int:
        """How many numbers a signal has."""
        return sum(math.prod(leaf.shape) for leaf in space.leaves(self.signal_space))

    def flat_code(self, z: Any) -> Any:
        """The numbers of a code on one axis, the last; axes in front of it stay."""
        return _flat(self.code_space, z)

    def unflat_code(self, numbers: Any) -> Any:
        """The inverse of :meth:`flat_code`."""
        return _unflat(self.code_space, numbers)

    def flat_signal(self, x: Any) -> Any:
        """The numbers of a signal on one axis, the last; axes in front of it stay."""
        return _flat(self.signal_space, x)

    def unflat_signal(self, numbers: Any) -> Any:
        """The inverse of :meth:`flat_signal`."""
        return _unflat(self.signal_space, numbers)

    def per_code(self, factors: Any) -> Array:
        """One factor for every number of a flat code, from a pytree that broadcasts to a code (one a map, say).

        For the ``weights`` of a penalty.
        """
        wide = lambda leaf, factor: jnp.broadcast_to(jnp.asarray(factor), leaf.shape)  # noqa: E731
        return self.flat_code(jax.tree.map(wide, self.code_space, factors))


class Matrix(LinearOperator):
    """Dz = Σ_k z_k d_k, with one atom d_k a row.

    Args:
        atoms: (K, d).

    Example:
        >>> Matrix(jnp.array([[1.0, 2.0], [0.0, 1.0]])).synthesise(jnp.array([1.0, 3.0]))
        Array([1., 5.], dtype=float32)
    """

    atoms: Float[Array, "k d"] = weight()

    @property
    def code_space(self) -> Space:
        """ℝᴷ."""
        return Space("real", (self.atoms.shape[0],))

    @property
    def signal_space(self) -> Space:
        """ℝᵈ."""
        return Space("real", (self.atoms.shape[1],))

    def synthesise(self, z: Float[Array, " k"]) -> Float[Array, " d"]:
        """zD."""
        return jnp.matmul(z, self.atoms, precision=HIGHEST)

    def analyse(self, x: Float[Array, " d"]) -> Float[Array, " k"]:
        """xDᵀ."""
        return jnp.matmul(x, self.atoms.T, precision=HIGHEST)

    def lipschitz(self) -> Scalar:
        """The largest eigenvalue of DDᵀ or DᵀD, whichever is smaller."""
        atoms = jax.lax.stop_gradient(jnp.asarray(self.atoms))
        small = atoms @ atoms.T if atoms.shape[0] <= atoms.shape[1] else atoms.T @ atoms
        return jnp.maximum(jnp.linalg.eigvalsh(small)[-1], 0.0) * (1 + ROUNDED_UP)


def as_operator(D: Any) -> LinearOperator:
    """An operator as it is; a matrix with atoms in rows as :class:`Matrix`."""
    return D if isinstance(D, LinearOperator) else Matrix(D)


def largest_eigenvalue(operator: LinearOperator, *, tol: float = SETTLED, max_cycles: int = CYCLES) -> Scalar:
    """λ_max(DᵀD) by iteration, for operators without a closed form.

    Let A be the smaller of DᵀD and DDᵀ, which have the same largest eigenvalue. The plain power iteration
    v ← Av/‖Av‖ is slow where eigenvalues lie close together, as those of convolutions do. So every cycle takes the
    best vector in the span of v, Av, …, A^(m−1)v (Lanczos, with full orthogonalisation), and the next begins there,
    until ‖Av − ρv‖ ≤ tol ρ. The Ritz value ρ is never above λ_max; what comes back is ρ plus that residual.
    """
    operator = jax.lax.stop_gradient(operator)
    by_signal = operator.n_signal < operator.n_code
    size = min(operator.n_signal, operator.n_code)

    def apply(v: Array) -> Array:
        if by_signal:
            return operator.flat_signal(operator.synthesise(operator.analyse(operator.unflat_signal(v))))
        return operator.flat_code(operator.analyse(operator.synthesise(operator.unflat_code(v))))

    def cycle(carry: tuple) -> tuple:
        v, _, _, n = carry
        return *_lanczos(apply, v, min(KRYLOV, size)), n + 1

    def unsettled(carry: tuple) -> Any:
        _, rho, residual, n = carry
        return (n < max_cycles) & (residual > tol * rho)

    begin = jax.random.normal(jax.random.key(0), (size,), float_type(operator))
    begin = begin / jnp.sqrt(jnp.sum(begin**2))
    _, rho, residual, _ = jax.lax.while_loop(unsettled, cycle, cycle((begin, 0.0, 0.0, 0)))
    return jnp.maximum(rho + residual, 0.0) * (1 + ROUNDED_UP)


def _lanczos(apply: Any, v: Array, m: int) -> tuple[Array, Array, Array]:
    """(vector, ρ, ‖Av − ρv‖) of the largest Ritz value in the span of v, Av, …, A^(m−1)v."""

    def step(j: Any, carry: tuple) -> tuple:
        basis, v, diagonal, beside = carry
        basis = basis.at[j].set(v)
        w = apply(v)
        diagonal = diagonal.at[j].set(jnp.sum(v * w))
        for _ in range(2):  # once leaves rounding errors that grow
            w = w - jnp.matmul(jnp.matmul(basis, w, precision=HIGHEST), basis, precision=HIGHEST)
        length = jnp.sqrt(jnp.sum(w**2))
        return basis, w / jnp.where(length > 0, length, jnp.ones_like(length)), diagonal, beside.at[j].set(length)

    none = jnp.zeros(m, v.dtype)
    basis, _, diagonal, beside = jax.lax.fori_loop(0, m, step, (jnp.zeros((m, v.size), v.dtype), v, none, none))
    small = jnp.diag(diagonal) + jnp.diag(beside[:-1], 1) + jnp.diag(beside[:-1], -1)
    ritz, parts = jnp.linalg.eigh(small)
    found = jnp.matmul(parts[:, -1], basis, precision=HIGHEST)
    length = jnp.sqrt(jnp.sum(found**2))
    found = found / jnp.where(length > 0, length, jnp.ones_like(length))
    return found, ritz[-1], jnp.abs(beside[-1] * parts[-1, -1])


def to_matrix(operator: LinearOperator) -> Float[Array, "k d"]:
    """The operator written as a matrix, one atom a row: row k is D applied to the code that is 1 at k alone.

    In the type of its parameters; JAX's default where it has none.
    """
    dtype = float_type(operator)
    by_code = operator.n_code <= operator.n_signal
    size = operator.n_code if by_code else operator.n_signal

    def unit(k: Array) -> Array:
        one = (jnp.arange(size) == k).astype(dtype)
        if by_code:
            return operator.flat_signal(operator.synthesise(operator.unflat_code(one)))
        return operator.flat_code(operator.analyse(operator.unflat_signal(one)))

    found = jax.lax.map(unit, jnp.arange(size), batch_size=COLUMNS)
    return found if by_code else found.T


def _flat(tree: Any, value: Any) -> Any:
    parts = [
        leaf.reshape(*leaf.shape[: leaf.ndim - len(each.shape)], math.prod(each.shape))
        for each, leaf in zip(space.leaves(tree), jax.tree.leaves(value), strict=True)
    ]
    if len(parts) == 1:
        return parts[0]
    together = np.concatenate if all(isinstance(part, np.ndarray) for part in parts) else jnp.concatenate
    return together(parts, axis=-1)


def _unflat(tree: Any, numbers: Any) -> Any:
    found, start = [], 0
    for each in space.leaves(tree):
        size = math.prod(each.shape)
        part = numbers if size == numbers.shape[-1] else numbers[..., start : start + size]
        found.append(part.reshape(*numbers.shape[:-1], *each.shape))
        start += size
    return jax.tree.unflatten(jax.tree.structure(tree), found)
