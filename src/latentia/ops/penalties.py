"""Penalties of sparse coding: values, exact proximal maps, and duals for the duality gap.

A penalty Ω(z) = Σ_j α w_j ω(z_j) (a sum over groups for ``Group``) makes codes sparse. With all atoms' weights
w_j = 1 and t = step · α w_j, its proximal map argmin_z ½(z − u)²/step + Ω(z) is, entry by entry,

============== ============================ ==============================================================
penalty        ω(z)                         prox(u)
============== ============================ ==============================================================
``L1``         \\|z\\|                        sign(u) (\\|u\\| − t)₊
``ElasticNet`` ρ\\|z\\| + ½(1 − ρ)z²          sign(u) (\\|u\\| − tρ)₊ / (1 + t(1 − ρ))
``L0``         [z ≠ 0]                      u where u² > 2t, else 0
``Lq``         \\|z\\|^q, 0 < q < 1           the larger root of z + t q z^(q−1) = \\|u\\| above a jump, else 0
``Group``      ‖z_g‖₂                       u_g (1 − t/‖u_g‖)₊
============== ============================ ==============================================================

A non-negative penalty is +∞ below zero; its map is that of max(u, 0).

**Duality gap** of ½‖x − zD‖² + Ω(z) for convex Ω. Every θ gives the lower bound ½‖x‖² − ½‖x − θ‖² − Ω*(θDᵀ).
With the residual r = x − zD, correlations c = rDᵀ and θ = s r, the objective is above that bound by

    gap = ½(1 − s)²‖r‖² + [Ω(z) + Ω*(s c) − ⟨z, s c⟩],

two parts of which neither can be negative (Fenchel–Young): no large numbers cancel, as they would in the difference
of the two objectives. Where Ω* is the indicator of a dual ball, s is the best factor that keeps s c inside. The
quadratic half of an elastic net may also be counted with the data (its r and c then have further entries); the
better bound of the two is used.

Reference:
    F. Bach, R. Jenatton, J. Mairal and G. Obozinski, "Optimization with sparsity-inducing penalties", Foundations
    and Trends in Machine Learning 4 (2012).
"""

from __future__ import annotations

import abc
import math
import numbers
from collections.abc import Sequence
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.ops.thresholds import hard, shrink_power, soft

#: Codes: any leading axes, the atoms on the last one.
Codes = Float[Array, "*n k"]
PerSignal = Float[Array, "*n"]


def _number(value: Any) -> Any:
    """A plain float where possible, so that it takes on the precision of the codes; arrays of JAX stay."""
    return value if isinstance(value, jax.Array) else float(value)


def _factors(value: Any) -> Any:
    """Weights as an array of float64 on the host; arrays of JAX stay."""
    if value is None or isinstance(value, jax.Array):
        return value
    array = np.asarray(value, np.float64)
    if array.ndim != 1 or not np.all(np.isfinite(array)) or not np.all(array > 0):
        raise ParameterError("weights must be one finite number above 0 per atom (per group for Group).")
    return array


class AbstractPenalty(eqx.Module):
    """Ω(z), with its proximal map. ``z`` carries the atoms on its last axis, signals on those before it."""

    alpha: eqx.AbstractVar[Any]
    weights: eqx.AbstractVar[Any]
    nonnegative: eqx.AbstractVar[bool]
    name: ClassVar[str]

    @property
    @abc.abstractmethod
    def convex(self) -> bool:
        """Whether Ω is convex, so that a duality gap certifies a solution."""

    @abc.abstractmethod
    def value(self, z: Codes) -> PerSignal:
        """Ω(z), one number per signal (+∞ where a non-negative penalty meets a negative entry)."""

    @abc.abstractmethod
    def prox(self, u: Codes, step: Any) -> Codes:
        """argmin_z ½(z − u)²/step + Ω(z), exactly.

        Zero where two minima tie (ℓ0 and ℓq at their jump). ``step``: a number, or an array with as many axes as u.
        """

    def strength(self, z: Codes) -> Array:
        """α w_j with as many axes as z."""
        alpha = jnp.asarray(self.alpha, z.dtype)
        if self.weights is None:
            return alpha.reshape((1,) * z.ndim)
        return alpha * _row(self.weights, z)

    def _allowed(self, u: Codes) -> Codes:
        return jnp.maximum(u, 0.0) if self.nonnegative else u

    def _guarded(self, value: PerSignal, z: Codes) -> PerSignal:
        return jnp.where(jnp.any(z < 0, axis=-1), jnp.inf, value) if self.nonnegative else value


class AbstractConvexPenalty(AbstractPenalty):
    """A penalty whose solutions a duality gap certifies."""

    @property
    def convex(self) -> bool:
        """It is."""
        return True

    @abc.abstractmethod
    def conjugate(self, v: Codes) -> PerSignal:
        """Ω*(v) = max_z ⟨z, v⟩ − Ω(z); +∞ outside of its domain."""

    @abc.abstractmethod
    def dual_norm(self, v: Codes) -> PerSignal:
        """The least t ≥ 0 with v inside t times the dual ball of Ω's ℓ1 part: s = 1/t scales v onto its border."""

    @abc.abstractmethod
    def gap(self, z: Codes, residual: Float[Array, "*n d"], correlations: Codes) -> PerSignal:
        """How far ½‖x − zD‖² + Ω(z) can be above its minimum, given r = x − zD and c = rDᵀ."""

    def _ball_gap(self, z: Codes, value: PerSignal, squares: PerSignal, correlations: Codes) -> PerSignal:
        """The gap at the best multiple of the residual, where Ω* is the indicator of the dual ball."""
        along = jnp.sum(z * correlations, axis=-1)
        tiny = jnp.finfo(z.dtype).tiny
        best = 1 + along / jnp.maximum(squares, tiny)
        s = jnp.clip(best, 0.0, 1 / jnp.maximum(self.dual_norm(correlations), tiny))
        return 0.5 * (1 - s) ** 2 * squares + jnp.maximum(value - s * along, 0.0)


class L1(AbstractConvexPenalty):
    """Ω(z) = α Σ_j w_j |z_j|: the soft threshold.

    Args:
        alpha: strength; not divided by the number of features.
        weights: a factor of α per atom; None for ones.
        nonnegative: only z ≥ 0.

    Example:
        >>> L1(0.5).prox(jnp.array([2.0, -0.3, -1.0]), 1.0)
        Array([ 1.5,  0. , -0.5], dtype=float32)
    """

    alpha: Any = eqx.field(converter=_number)
    weights: Any = eqx.field(converter=_factors, default=None, kw_only=True)
    nonnegative: bool = eqx.field(static=True, default=False, kw_only=True)
    name: ClassVar[str] = "l1"

    def value(self, z: Codes) -> PerSignal:
        """α Σ w_j |z_j|."""
        return self._guarded(jnp.sum(self.strength(z) * jnp.abs(z), axis=-1), z)

    def prox(self, u: Codes, step: Any) -> Codes:
        """The soft threshold at step · α w_j."""
        return soft(self._allowed(u), step * self.strength(u))

    def dual_norm(self, v: Codes) -> PerSignal:
        """max_j |v_j| / (α w_j); positive parts only for non-negative codes."""
        return jnp.max(_over(_size(v, self.nonnegative), self.strength(v)), axis=-1)

    def conjugate(self, v: Codes) -> PerSignal:
        """0 inside of the dual ball, +∞ outside."""
        return _indicator(self.dual_norm(v))

    def gap(self, z: Codes, residual: Float[Array, "*n d"], correlations: Codes) -> PerSignal:
        """See :class:`AbstractConvexPenalty`."""
        return self._ball_gap(z, self.value(z), jnp.sum(residual**2, axis=-1), correlations)


class ElasticNet(AbstractConvexPenalty):
    """Ω(z) = α Σ_j w_j (ρ|z_j| + ½(1 − ρ)z_j²).

    Args:
        alpha: strength.
        ratio: ρ in [0, 1], the part of the ℓ1 norm: 1 is ``L1``, 0 is ridge regression.
        weights: a factor of α per atom; None for ones.
        nonnegative: only z ≥ 0.

    Example:
        >>> ElasticNet(1.0, 0.5).prox(jnp.array([2.0, -0.3]), 1.0)
        Array([1., 0.], dtype=float32)
    """

    alpha: Any = eqx.field(converter=_number)
    ratio: Any = eqx.field(converter=_number, default=0.5)
    weights: Any = eqx.field(converter=_factors, default=None, kw_only=True)
    nonnegative: bool = eqx.field(static=True, default=False, kw_only=True)
    name: ClassVar[str] = "elastic_net"

    def __check_init__(self):
        if isinstance(self.ratio, float) and not 0 <= self.ratio <= 1:
            raise ParameterError(f"ratio must be a number in [0, 1], got {self.ratio!r}.")

    def parts(self, z: Codes) -> tuple[Array, Array]:
        """(α w_j ρ, α w_j (1 − ρ)) with as many axes as z: the weights of |z| and of ½z²."""
        ratio = jnp.asarray(self.ratio, z.dtype)
        return ratio * self.strength(z), (1 - ratio) * self.strength(z)

    def value(self, z: Codes) -> PerSignal:
        """α Σ w_j (ρ|z_j| + ½(1 − ρ)z_j²)."""
        linear, square = self.parts(z)
        return self._guarded(jnp.sum(linear * jnp.abs(z) + 0.5 * square * z**2, axis=-1), z)

    def prox(self, u: Codes, step: Any) -> Codes:
        """The soft threshold, shrunk."""
        linear, square = self.parts(u)
        return soft(self._allowed(u), step * linear) / (1 + step * square)

    def dual_norm(self, v: Codes) -> PerSignal:
        """max_j |v_j| / (α w_j ρ); positive parts only for non-negative codes."""
        return jnp.max(_over(_size(v, self.nonnegative), self.parts(v)[0]), axis=-1)

    def conjugate(self, v: Codes) -> PerSignal:
        """Σ_j (|v_j| − α w_j ρ)₊² / (2 α w_j (1 − ρ))."""
        linear, square = self.parts(v)
        excess = jnp.maximum(_size(v, self.nonnegative) - linear, 0.0)
        return jnp.sum(_over(0.5 * excess**2, square), axis=-1)

    def gap(self, z: Codes, residual: Float[Array, "*n d"], correlations: Codes) -> PerSignal:
        """The better one of two bounds: the quadratic part with the penalty, or with the data."""
        linear, square = self.parts(z)
        squares = jnp.sum(residual**2, axis=-1)
        absolute = self._guarded(jnp.sum(linear * jnp.abs(z), axis=-1), z)
        with_data = squares + jnp.sum(square * z**2, axis=-1)
        first = self._ball_gap(z, absolute, with_data, correlations - square * z)
        excess = jnp.maximum(_size(correlations, self.nonnegative) - linear, 0.0)
        young = linear * jnp.abs(z) + 0.5 * square * z**2 + _over(0.5 * excess**2, square) - z * correlations
        second = self._guarded(jnp.sum(jnp.maximum(young, 0.0), axis=-1), z)
        return jnp.minimum(first, second)


class Group(AbstractConvexPenalty):
    """Ω(z) = α Σ_g w_g ‖z_g‖₂: whole groups of atoms are off or on.

    Args:
        alpha: strength.
        groups: the number of its group, 0, 1, …, for every atom.
        weights: a factor of α per group; None for ones (√size is common where sizes differ).
        nonnegative: only z ≥ 0.

    Example:
        >>> Group(1.0, (0, 0, 1)).prox(jnp.array([3.0, 4.0, 0.5]), 1.0)
        Array([2.4, 3.2, 0. ], dtype=float32)
    """

    alpha: Any = eqx.field(converter=_number)
    groups: tuple[int, ...] = eqx.field(static=True, converter=lambda g: tuple(int(i) for i in g))
    weights: Any = eqx.field(converter=_factors, default=None, kw_only=True)
    nonnegative: bool = eqx.field(static=True, default=False, kw_only=True)
    name: ClassVar[str] = "group"

    def __check_init__(self):
        if not self.groups or sorted(set(self.groups)) != list(range(max(self.groups) + 1)):
            raise ParameterError("groups must name a group for every atom, numbered 0, 1, … without a gap.")
        if self.weights is not None and len(self.weights) != self.n_groups:
            raise ParameterError(
                f"weights must hold one factor for each of the {self.n_groups} groups, got {len(self.weights)}."
            )

    @property
    def n_groups(self) -> int:
        """How many groups there are."""
        return max(self.groups) + 1

    def norms(self, z: Codes) -> Float[Array, "*n g"]:
        """‖z_g‖₂ of every group."""
        members = [np.flatnonzero(np.array(self.groups) == g) for g in range(self.n_groups)]
        widest = max(map(len, members))
        # Groups of unequal size are filled up with an atom that is always zero.
        table = np.array([np.pad(m, (0, widest - len(m)), constant_values=len(self.groups)) for m in members])
        padded = jnp.concatenate([z, jnp.zeros_like(z[..., :1])], axis=-1)
        return jnp.sqrt(jnp.sum(padded[..., table] ** 2, axis=-1))

    def value(self, z: Codes) -> PerSignal:
        """α Σ w_g ‖z_g‖."""
        norms = self.norms(z)
        return self._guarded(jnp.sum(self.strength(norms) * norms, axis=-1), z)

    def prox(self, u: Codes, step: Any) -> Codes:
        """Every group shortened by step · α w_g."""
        u = self._allowed(u)
        norms = self.norms(u)
        tiny = jnp.finfo(u.dtype).tiny
        kept = jnp.maximum(1 - step * self.strength(norms) / jnp.maximum(norms, tiny), 0.0)
        return u * kept[..., np.array(self.groups)]

    def dual_norm(self, v: Codes) -> PerSignal:
        """max_g ‖v_g‖ / (α w_g); of the positive parts for non-negative codes."""
        norms = self.norms(self._allowed(v))
        return jnp.max(_over(norms, self.strength(norms)), axis=-1)

    def conjugate(self, v: Codes) -> PerSignal:
        """0 inside of the dual ball, +∞ outside."""
        return _indicator(self.dual_norm(v))

    def gap(self, z: Codes, residual: Float[Array, "*n d"], correlations: Codes) -> PerSignal:
        """See :class:`AbstractConvexPenalty`."""
        return self._ball_gap(z, self.value(z), jnp.sum(residual**2, axis=-1), correlations)


class L0(AbstractPenalty):
    """Ω(z) = α Σ_j w_j [z_j ≠ 0]: the hard threshold.

    Args:
        alpha: the price of an atom.
        weights: a factor of α per atom; None for ones.
        nonnegative: only z ≥ 0.

    Example:
        >>> L0(0.5).prox(jnp.array([2.0, -0.9, 1.1]), 1.0)
        Array([2. , 0. , 1.1], dtype=float32)
    """

    alpha: Any = eqx.field(converter=_number)
    weights: Any = eqx.field(converter=_factors, default=None, kw_only=True)
    nonnegative: bool = eqx.field(static=True, default=False, kw_only=True)
    name: ClassVar[str] = "l0"

    @property
    def convex(self) -> bool:
        """It is not."""
        return False

    def value(self, z: Codes) -> PerSignal:
        """α Σ w_j over the atoms in use."""
        used = jnp.where(z != 0, self.strength(z), jnp.zeros_like(z))
        return self._guarded(jnp.sum(used, axis=-1), z)

    def prox(self, u: Codes, step: Any) -> Codes:
        """The hard threshold at √(2 · step · α w_j)."""
        return hard(self._allowed(u), step * self.strength(u))


class Lq(AbstractPenalty):
    """Ω(z) = α Σ_j w_j |z_j|^q with 0 < q < 1: between ℓ0 and ℓ1, sparser than ℓ1 and less biased.

    Args:
        alpha: strength.
        q: the power; ½ and ⅔ have closed forms, others take Newton's method.
        weights: a factor of α per atom; None for ones.
        nonnegative: only z ≥ 0.

    Example:
        >>> Lq(1.0, 0.5).prox(jnp.array([1.4, 1.6]), 1.0)  # the jump is at 1.5
        Array([0.       , 1.1295449], dtype=float32)
    """

    alpha: Any = eqx.field(converter=_number)
    q: float = eqx.field(static=True, default=0.5)
    weights: Any = eqx.field(converter=_factors, default=None, kw_only=True)
    nonnegative: bool = eqx.field(static=True, default=False, kw_only=True)
    name: ClassVar[str] = "lq"

    def __check_init__(self):
        if not isinstance(self.q, numbers.Real) or not 0 < self.q < 1:
            raise ParameterError(f"q must be a number in (0, 1), got {self.q!r}; use L1 for q = 1, L0 for q = 0.")

    @property
    def convex(self) -> bool:
        """It is not."""
        return False

    def value(self, z: Codes) -> PerSignal:
        """α Σ w_j |z_j|^q."""
        size = jnp.abs(z)
        power = jnp.where(size > 0, jnp.where(size > 0, size, 1.0) ** self.q, 0.0)
        return self._guarded(jnp.sum(self.strength(z) * power, axis=-1), z)

    def prox(self, u: Codes, step: Any) -> Codes:
        """Zero up to the jump, then the larger root of z + t q z^(q−1) = |u|."""
        return shrink_power(self._allowed(u), step * self.strength(u), self.q)


PENALTIES: dict[str, type[AbstractPenalty]] = {p.name: p for p in (L1, ElasticNet, L0, Lq, Group)}


def penalty(
    name: str,
    alpha: float,
    *,
    ratio: float | None = None,
    q: float | None = None,
    groups: Sequence[int] | None = None,
    weights: Any = None,
    nonnegative: bool = False,
) -> AbstractPenalty:
    """A penalty by name: "l1", "elastic_net", "l0", "lq" or "group".

    Args:
        name: which one.
        alpha: its strength, above zero.
        ratio: of an elastic net; ½ if None.
        q: of an ℓq penalty; ½ if None.
        groups: of a group penalty, which needs them.
        weights: a factor of alpha per atom (per group for "group").
        nonnegative: only z ≥ 0.

    Example:
        >>> penalty("elastic_net", 0.1, ratio=0.9).ratio
        0.9
    """
    if name not in PENALTIES:
        raise UnknownNameError("penalty", name, PENALTIES)
    real = isinstance(alpha, numbers.Real) and not isinstance(alpha, bool)
    if not real or not math.isfinite(alpha) or alpha <= 0:
        raise ParameterError(f"alpha must be a finite number above 0, got {alpha!r}.")
    if name == "group" and groups is None:
        raise ParameterError("A group penalty needs groups: the number of its group for every atom.")
    given = {"ratio": (ratio, "elastic_net"), "q": (q, "lq"), "groups": (groups, "group")}
    own: dict[str, Any] = {}
    for option, (value, owner) in given.items():
        if value is not None and owner != name:
            raise ParameterError(f"{option} belongs to the penalty {owner!r}, not to {name!r}.")
        if value is not None:
            own[option] = value
    return PENALTIES[name](alpha, **own, weights=weights, nonnegative=bool(nonnegative))


def _row(values: Any, z: Codes) -> Array:
    """One value per atom, with as many axes as z."""
    row = jnp.asarray(values).astype(z.dtype)
    if row.shape[0] != z.shape[-1]:
        raise ParameterError(f"weights must hold one factor for each of {z.shape[-1]} atoms, got {row.shape[0]}.")
    return row.reshape((1,) * (z.ndim - 1) + (-1,))


def _size(v: Array, nonnegative: bool) -> Array:
    """|v|, or only its positive part where codes may not be negative."""
    return jnp.maximum(v, 0.0) if nonnegative else jnp.abs(v)


def _over(size: Array, limit: Array) -> Array:
    """size/limit of non-negative numbers; 0/0 is 0 and size/0 is infinite."""
    safe = jnp.where(limit > 0, limit, 1.0)
    return jnp.where(limit > 0, size / safe, jnp.where(size > 0, jnp.inf, 0.0))


def _indicator(dual_norm: PerSignal) -> PerSignal:
    """0 inside the dual ball and +∞ outside, forgiving rounding."""
    return jnp.where(dual_norm <= 1 + 16 * jnp.finfo(dual_norm.dtype).eps, 0.0, jnp.inf)
