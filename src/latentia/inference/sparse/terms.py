"""A penalty as plain numbers: thresholds and ridges per atom, which is what compiled solvers read.

Every convex separable penalty here is Σⱼ aⱼ|zⱼ| + ½ bⱼ zⱼ², with zⱼ ≥ 0 if required; a group penalty is Σ_g
a_g‖z_g‖₂.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np

from latentia.core.errors import ParameterError
from latentia.ops.penalties import AbstractPenalty


@dataclass(frozen=True)
class Terms:
    """A penalty in numbers.

    Attributes:
        kind: "l1" (with or without ridge), "group", "l0" or "lq".
        thresholds: aⱼ of every atom, or of every group.
        ridges: bⱼ of every atom.
        nonnegative: whether codes must not be negative.
        groups: number of the group of every atom; None without groups.
        power: q of "lq".
    """

    kind: str
    thresholds: np.ndarray
    ridges: np.ndarray
    nonnegative: bool = False
    groups: np.ndarray | None = None
    power: float = 1.0

    def only(self, atoms: np.ndarray, thresholds: np.ndarray | None = None) -> Terms:
        """A separable penalty of some atoms alone, with these thresholds for all atoms in place of its own."""
        own = self.thresholds if thresholds is None else thresholds
        return Terms(self.kind, own[atoms], np.zeros(len(atoms)), self.nonnegative)

    def value(self, z: np.ndarray) -> np.ndarray:
        """The penalty of every row of z, in float64."""
        z = np.asarray(z, dtype=np.float64)
        if self.kind == "group":
            assert self.groups is not None
            squares = np.zeros((*z.shape[:-1], len(self.thresholds)))
            for g in range(len(self.thresholds)):
                squares[..., g] = (z[..., self.groups == g] ** 2).sum(axis=-1)
            return np.sqrt(squares) @ self.thresholds
        if self.kind == "l0":
            return (z != 0) @ self.thresholds
        if self.kind == "lq":
            return np.abs(z) ** self.power @ self.thresholds
        return np.abs(z) @ self.thresholds + 0.5 * (z * z) @ self.ridges


def terms_of(penalty: Any, n_atoms: int) -> Terms:
    """The numbers of a penalty for so many atoms; a plain number is α of ℓ1.

    Args:
        penalty: one of :mod:`latentia.ops.penalties`, or a number.
        n_atoms: K.
    """
    alpha: Any
    if isinstance(penalty, numbers.Real) and not isinstance(penalty, bool):
        name, alpha, weights, nonnegative = "L1", float(penalty), None, False
    elif isinstance(penalty, AbstractPenalty):
        name = type(penalty).__name__
        alpha, weights, nonnegative = penalty.alpha, penalty.weights, bool(penalty.nonnegative)
    else:
        raise ParameterError(
            f"penalty must be a number (α of ℓ1) or one of latentia.ops.penalties, got {penalty!r}."
        )
    if np.ndim(alpha) != 0 or not (np.isfinite(float(alpha)) and float(alpha) > 0):
        raise ParameterError(f"alpha must be a positive number, got {alpha!r}: without it no code is sparse.")
    alpha = float(alpha)
    spec: Any = penalty
    if name == "Group":
        return _group_terms(spec, alpha, weights, nonnegative, n_atoms)
    factors = weights_of(weights, n_atoms, "atom")
    none = np.zeros(n_atoms)
    if name == "L1":
        return Terms("l1", alpha * factors, none, nonnegative)
    if name == "ElasticNet":
        ratio = float(spec.ratio)
        return Terms("l1", alpha * ratio * factors, alpha * (1 - ratio) * factors, nonnegative)
    if name == "L0":
        return Terms("l0", alpha * factors, none, nonnegative)
    if name == "Lq":
        return Terms("lq", alpha * factors, none, nonnegative, power=float(spec.q))
    raise ParameterError(
        f"The sparse solvers do not support the penalty {name}. Use L1, ElasticNet, Group, L0 or Lq."
    )


def _group_terms(penalty: Any, alpha: float, weights: Any, nonnegative: bool, n_atoms: int) -> Terms:
    groups = np.asarray(penalty.groups)
    if groups.shape != (n_atoms,):
        raise ParameterError(f"groups must name the group of each of the {n_atoms} atoms, got {groups.size} names.")
    names, numbered = np.unique(groups, return_inverse=True)
    factors = weights_of(weights, len(names), "group")
    return Terms("group", alpha * factors, np.zeros(n_atoms), nonnegative, numbered.astype(np.int64))


def weights_of(weights: Any, n: int, what: str) -> np.ndarray:
    """Factors of α, one for each of n atoms or groups; None: ones."""
    if weights is None:
        return np.ones(n)
    factors = np.asarray(weights, dtype=np.float64)
    if factors.shape != (n,):
        raise ParameterError(f"weights must hold one number per {what}, {n} in all, got shape {factors.shape}.")
    if not (np.isfinite(factors).all() and (factors > 0).all()):
        raise ParameterError(f"weights must be positive: an {what} with weight 0 is not penalised at all.")
    return factors
