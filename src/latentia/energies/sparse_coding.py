"""Sparse coding and dictionary learning (Olshausen and Field, 1996; Mairal, Bach, Ponce and Sapiro, 2010).

A signal is a sum of few atoms d_1 … d_K, the rows of a dictionary D,

    E(x, z) = ½‖x − zD‖² + penalty(z),      ‖d_j‖ ≤ 1 (or = 1),

and its code is the z that minimises E. The penalty is α‖z‖₁ unless another is chosen (elastic net, ℓ0, ℓq,
groups), or instead of it the number of atoms in use is limited. Learning lowers the mean of E over the signals by
turns: codes with the atoms held, atoms with the codes held. Without a bound on the atoms' norms codes could shrink
at no cost.

The codes are found, not summed out, so there is no likelihood: models are compared by the objective.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import Constrained, Decodes, Initialised, ProxSplit
from latentia.core.model import Scalar
from latentia.core.parameters import buffer, weight
from latentia.core.space import Space
from latentia.learning.dictionary import Constraint
from latentia.learning.dictionary.atoms import project
from latentia.ops import penalties

#: Steps between two looks of the host, unless an epoch is shorter.
Atoms = Float[Array, "k d"]


class SparseCodingModel(ProxSplit, Decodes, Constrained, Initialised):
    """E(x, z) = ½‖x − μ − zD‖² + penalty(z), with μ = 0 unless there is a ``mean``."""

    atoms: Atoms = weight()
    mean: Any = buffer()
    #: The penalty's arguments, as a tuple of pairs; None where only the number of atoms is limited.
    rule: Any = eqx.field(static=True, default=None)
    constraint: Constraint = eqx.field(static=True, default="ball")
    nonnegative: bool = eqx.field(static=True, default=False)

    @classmethod
    def make(
        cls,
        n: int,
        n_components: int,
        *,
        rule: Mapping[str, Any] | None,
        constraint: Constraint = "ball",
        nonnegative: bool = False,
        center: bool = False,
        key: PRNGKeyArray,
    ) -> Self:
        """Random atoms of norm one."""
        atoms = jax.random.normal(key, (n_components, n))
        atoms = _normalised(jnp.abs(atoms) if nonnegative else atoms)
        plain = None if rule is None else tuple(sorted((name, _hashable(value)) for name, value in rule.items()))
        return cls(atoms, jnp.zeros(n) if center else None, plain, constraint, nonnegative)

    @property
    def x_space(self) -> Space:
        """ℝᵈ."""
        return Space("real", (self.atoms.shape[1],))

    @property
    def z_space(self) -> Space:
        """ℝᴷ, or its non-negative part."""
        positive = self.penalty is not None and self.penalty.nonnegative
        return Space("nonnegative" if positive else "real", (self.atoms.shape[0],))

    @property
    def dictionary(self) -> Atoms:
        """D, one atom a row."""
        return self.atoms

    @property
    def penalty(self) -> Any:
        """What codes pay; None where only the number of atoms is limited."""
        return None if self.rule is None else penalties.penalty(**dict(self.rule))

    def signal(self, x: Any) -> Any:
        """x − μ."""
        if self.mean is None:
            return x
        return x - (self.mean if x.ndim == 1 else self.mean[None, :])

    def with_dictionary(self, dictionary: Any) -> Self:
        """The model with other atoms."""
        return type(self)(jnp.asarray(dictionary), self.mean, self.rule, self.constraint, self.nonnegative)

    def energy(self, x: Float[Array, " d"], z: Float[Array, " k"]) -> Scalar:
        """½‖x − μ − zD‖² + penalty(z)."""
        error = 0.5 * jnp.sum((self.signal(x) - z @ self.atoms) ** 2)
        return error if self.penalty is None else error + self.penalty.value(z)

    def decode(self, z: Float[Array, " k"]) -> Float[Array, " d"]:
        """μ + zD."""
        return z @ self.atoms if self.mean is None else self.mean + z @ self.atoms

    def project(self) -> Self:
        """Atoms cut to norm one (or scaled to it), negative entries set to zero if they are not allowed."""
        rules: Any = {"constraint": self.constraint, "nonnegative": self.nonnegative}
        return self.with_dictionary(project(self.atoms, **rules, xp=jnp))

    def initialise(self, x: Float[Array, "n d"], *, key: PRNGKeyArray) -> Self:
        """Atoms are different rows at random, scaled to norm one; too few are mixed with the old atoms.

        Their directions are random in a fresh model.
        """
        n, k = x.shape[0], self.atoms.shape[0]
        mean = None if self.mean is None else jnp.mean(x, axis=0)
        rows = x if mean is None else x - mean[None, :]
        rows = jnp.maximum(rows, 0.0) if self.nonnegative else rows
        some = jnp.max(jnp.abs(rows), axis=1) > 0
        rank = jax.random.uniform(key, (n,), x.dtype) + jnp.where(some, 1.0, 0.0)  # rows of nothing come last
        picked = jax.lax.top_k(rank, min(k, n))[1][jnp.arange(k) % n]
        fresh = (jnp.arange(k) >= n) | ~some[picked]
        atoms = _normalised(rows[picked]) + jnp.where(fresh[:, None], self.atoms, jnp.zeros_like(self.atoms))
        return type(self)(_normalised(atoms), mean, self.rule, self.constraint, self.nonnegative)


def _normalised(rows: Any) -> Any:
    # Scaled by the largest entry first: squares of very small or large numbers leave the range of float32.
    top = jnp.max(jnp.abs(rows), axis=1, keepdims=True)
    rows = rows / jnp.where(top > 0, top, jnp.ones_like(top))
    norms = jnp.sqrt(jnp.sum(rows**2, axis=1, keepdims=True))
    return rows / jnp.where(norms > 0, norms, jnp.ones_like(norms))


def _hashable(value: Any) -> Any:
    return tuple(map(_hashable, value)) if isinstance(value, list | tuple) else value
