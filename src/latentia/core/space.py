"""Spaces: what the values of a variable may be.

A model names its visible and latent variables by *pytrees* of :class:`Space`: one space for an RBM's
visibles, a tuple of spaces for the layers of a deep Boltzmann machine, a dictionary for several
modalities. Inside a model a value is a float array of the space's ``shape``; a categorical site is one-hot,
so that energies stay linear in the parameters. In the user's data a categorical site is one integer column;
:meth:`Space.encode` and :meth:`Space.decode` convert between the two.

:mod:`latentia.core.domains` is the only list of domains; everything that depends on a domain is
a method of :class:`Space`.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import jax
import numpy as np

from latentia.core.domains import KINDS, Domain
from latentia.core.errors import DataError, ParameterError

_STATES = {"binary": (0.0, 1.0), "spin": (-1.0, 1.0)}
#: How far the sum of a site on the simplex may be from one: float32 rows that were divided by their sum.
_OFF_ONE = 1e-4


@dataclasses.dataclass(frozen=True)
class Space:
    """The domain and shape of one array variable (a leaf, not a node, of pytrees).

    ``shape`` is the shape of one value inside the model: ``(n,)``, and ``(sites, states)`` for one-hot
    categorical sites. A site on the simplex is the last axis: ``(k,)`` is one site, ``(sites, k)`` are several.
    Counts may have a ``maximum``; without one there are infinitely many.
    """

    domain: Domain
    shape: tuple[int, ...]
    maximum: int | None = None

    def __post_init__(self) -> None:
        if self.domain not in KINDS:
            raise ParameterError(f"domain must be one of {', '.join(map(repr, KINDS))}, got {self.domain!r}.")
        if self.maximum is not None and (self.domain != "count" or self.maximum < 1):
            raise ParameterError(
                f"Only counts have a maximum, of at least 1; got {self.domain!r} with maximum={self.maximum!r}."
            )

    @property
    def is_discrete(self) -> bool:
        """Whether the space has finitely many values."""
        return self.domain in ("binary", "spin", "categorical") or self.maximum is not None

    @property
    def bounds(self) -> tuple[float, float]:
        """The ends of the range of an entry."""
        kind = KINDS[self.domain]
        return kind.low, kind.high if self.maximum is None else float(self.maximum)

    @property
    def filler(self) -> np.ndarray:
        """One value of the space as a row of a data matrix, to stand where nothing is known."""
        share = 1 / self.shape[-1] if self.domain == "simplex" else 0.0
        return np.full(self.n_columns, -1.0 if self.domain == "spin" else share, np.float32)

    @property
    def n_columns(self) -> int:
        """Columns of a data matrix that hold one value (a categorical site is one column)."""
        return self.shape[0] if self.domain == "categorical" else math.prod(self.shape)

    @property
    def site_states(self) -> tuple[float, ...] | int:
        """The states of one site: a tuple of numbers, or the number of categories."""
        if self.domain == "categorical":
            return self.shape[1]
        if self.domain == "count" and self.maximum is not None:
            return tuple(float(n) for n in range(self.maximum + 1))
        return _STATES[self.domain]

    @property
    def _numbers(self) -> tuple[float, ...]:
        states = self.site_states
        return tuple(map(float, range(states))) if isinstance(states, int) else states

    @property
    def n_states(self) -> int:
        """How many states one site of a discrete space has."""
        states = self.site_states
        return states if isinstance(states, int) else len(states)

    @property
    def log_count(self) -> float:
        """log(number of values); infinite for a continuous space."""
        if not self.is_discrete:
            return math.inf
        return self.n_columns * math.log(self.n_states)

    def enumerate(self) -> np.ndarray:
        """All values of a discrete space, stacked along a new leading axis."""
        if not self.is_discrete:
            hint = " Give it a maximum." if self.domain == "count" else ""
            raise DataError(f"A {self.domain} space has infinitely many values and cannot be enumerated.{hint}")
        if self.domain == "categorical":
            sites, states = self.shape
            codes = np.array(list(itertools.product(range(states), repeat=sites)), dtype=np.int64)
            return np.eye(states, dtype=np.float32)[codes.reshape(-1, sites)]
        rows = np.array(list(itertools.product(self._numbers, repeat=self.n_columns)), dtype=np.float32)
        return rows.reshape(-1, *self.shape)

    def check(self, X: np.ndarray, *, fix: str = "", first: tuple[int, int] = (0, 0)) -> None:
        """Raise a :class:`DataError` unless every entry of the data matrix ``X`` lies in the domain.

        Args:
            X: the matrix, or a block of it.
            fix: what to do about it, for the message.
            first: the row and the column of the whole matrix where the block begins.
        """
        problem = self._problem(X, first)
        if problem:
            raise DataError(f"{problem}{' ' + fix if fix else ''}")

    def _problem(self, X: np.ndarray, first: tuple[int, int]) -> str | None:
        low, high = self.bounds
        wanted = KINDS[self.domain].values
        if self.domain == "simplex":
            return self._simplex_problem(X, first)
        if self.domain == "categorical":
            states = self.shape[1]
            bad = (X < 0) | (states <= X) | (np.floor(X) != X)
            wanted = f"an integer from 0 to {states - 1} (categorical units with {states} states)"
        elif self.domain == "count":
            bad = ~((low <= X) & (high >= X) & np.isfinite(X) & (np.floor(X) == X))
            wanted = f"{wanted if self.maximum is None else f'a whole number from 0 to {self.maximum}'} (counts)"
        elif self.domain == "nonnegative":
            bad = X < 0
            wanted += " (rectified units)"
        elif self.is_discrete:
            bad = ~np.isin(X, (low, high))
            wanted += f" ({self.domain} units)"
        else:
            return None
        return _first(bad, X, wanted, first)

    def _simplex_problem(self, X: np.ndarray, first: tuple[int, int]) -> str | None:
        wanted = "at least 0 (shares of a whole)"
        found = _first(~((X >= 0) & np.isfinite(X)), X, wanted, first)
        if found:
            return found
        k = self.shape[-1]
        sums = np.asarray(X, np.float64).reshape(len(X), -1, k).sum(axis=2)
        bad = ~(np.abs(sums - 1) <= _OFF_ONE)
        if not bad.any():
            return None
        row, site = np.argwhere(bad)[0]
        begin = first[1] + site * k
        return (
            f"{int(bad.sum())} of {sums.size} groups of {k} shares do not sum to 1; the first is row "
            f"{first[0] + row}, columns {begin} to {begin + k - 1}, with a sum of {sums[row, site]:g}."
        )

    def encode(self, X: Any) -> Any:
        """Data matrix ``(n, n_columns)`` → values ``(n, *shape)``; works on NumPy and JAX arrays."""
        if self.domain == "categorical":
            xp = np if isinstance(X, np.ndarray) else jax.numpy
            states = xp.arange(self.shape[1], dtype=X.dtype).reshape((1,) * X.ndim + (-1,))
            return (X[..., None] == states).astype(np.float32)
        return X.reshape(X.shape[0], *self.shape)

    def decode(self, value: Any) -> Any:
        """Values ``(n, *shape)`` → data matrix ``(n, n_columns)``: the inverse of :meth:`encode`."""
        if self.domain == "categorical":
            return value.argmax(-1).astype(np.float32)
        return value.reshape(value.shape[0], -1)

    def flatten(self, value: Any) -> Any:
        """Values ``(n, *shape)`` → one flat row each; categorical means keep one column per state."""
        return value.reshape(value.shape[0], -1)

    def unflatten(self, rows: Any) -> Any:
        """The inverse of :meth:`flatten`."""
        return rows.reshape(rows.shape[0], *self.shape)


def _first(bad: np.ndarray, X: np.ndarray, wanted: str, first: tuple[int, int]) -> str | None:
    if not bad.any():
        return None
    row, column = np.argwhere(bad)[0][:2]
    return (
        f"{int(bad.sum())} of {X.size} values are not {wanted}; the first is "
        f"{float(X[row, column]):g} in row {first[0] + row}, column {first[1] + column}."
    )


def leaves(space: Any) -> list[Space]:
    """The spaces in a pytree of spaces."""
    return jax.tree.leaves(space)


def n_columns(space: Any) -> int:
    """Columns of a data matrix that hold one value of a pytree of spaces, leaf after leaf."""
    return sum(leaf.n_columns for leaf in leaves(space))


def width(space: Any) -> int:
    """Columns of a matrix of *means* of a pytree of spaces: a categorical site has one per state."""
    return sum(math.prod(leaf.shape) for leaf in leaves(space))


def check(space: Any, X: np.ndarray, *, fix: str = "", first: tuple[int, int] = (0, 0)) -> None:
    """Raise a :class:`DataError` unless every column of the data matrix lies in the domain of its leaf."""
    row, column = first
    for leaf, columns in zip(leaves(space), _columns(space, X, lambda leaf: leaf.n_columns), strict=True):
        if columns is not None:
            leaf.check(columns, fix=fix, first=(row, column))
        column += leaf.n_columns


def encode(space: Any, X: Any) -> Any:
    """Data matrix ``(n, n_columns)``, or a pytree of matrices → a pytree of values with a leading axis."""
    parts = _columns(space, X, lambda leaf: leaf.n_columns)
    lacking = [number for number, part in enumerate(parts) if part is None]
    if lacking:
        raise DataError(f"The data lack part {lacking[0] + 1} of the {len(parts)} parts of the model.")
    return _each(space, parts, Space.encode)


def encode_seen(space: Any, X: Any) -> Any:
    """Like :func:`encode`, but leaves whose columns the data lack (labels, say) are None: not observed."""
    flat, treedef = jax.tree.flatten(space)
    parts = _columns(space, X, lambda leaf: leaf.n_columns)
    seen = [None if part is None else leaf.encode(part) for leaf, part in zip(flat, parts, strict=True)]
    return jax.tree.unflatten(treedef, seen)


def decode(space: Any, value: Any) -> Any:
    """The inverse of :func:`encode`."""
    return _joined(space, value, Space.decode)


def flatten(space: Any, value: Any) -> Any:
    """A pytree of means with a leading axis → one matrix, leaf after leaf."""
    return _joined(space, value, Space.flatten)


def unflatten(space: Any, rows: Any) -> Any:
    """The inverse of :func:`flatten`."""
    return _each(space, _columns(space, rows, lambda leaf: math.prod(leaf.shape)), Space.unflatten)


def seen(space: Any, n_columns: int) -> list[Space]:
    """The leaves that the first ``n_columns`` columns hold."""
    ends = np.cumsum([leaf.n_columns for leaf in leaves(space)])
    return [leaf for leaf, end in zip(leaves(space), ends, strict=True) if end <= n_columns]


def spread(space: Any, mask: np.ndarray) -> Any:
    """A boolean matrix over columns → a pytree of booleans over values, the same for all states of a site."""
    parts = _columns(space, mask, lambda leaf: leaf.n_columns)
    shape = lambda leaf, part: (len(part), *leaf.shape)  # noqa: E731
    wide = lambda leaf, part: part[..., None] if leaf.domain == "categorical" else part.reshape(shape(leaf, part))  # noqa: E731
    return _each(space, parts, lambda leaf, part: np.broadcast_to(wide(leaf, part), shape(leaf, part)))


def _columns(space: Any, X: Any, count: Any) -> list[Any]:
    """The columns of each leaf of a space.

    ``X`` is one matrix, or a pytree of them (a vector is one column) whose columns follow one another; a leaf may
    not reach over two of them. None in the place of a matrix stands for one leaf that was not observed, as do
    matrices that are missing at the end; those beyond the last leaf are not read.
    """
    parts, found = jax.tree.leaves(X, is_leaf=lambda part: part is None), []
    wanted = [count(leaf) for leaf in leaves(space)]
    for part in parts:
        if len(found) == len(wanted):
            break
        if part is None:
            found.append(None)
            continue
        matrix, begin = (part[:, None] if part.ndim == 1 else part), 0
        while len(found) < len(wanted) and begin + wanted[len(found)] <= matrix.shape[1]:
            found.append(matrix[:, begin : begin + wanted[len(found)]])
            begin += found[-1].shape[1]
        if begin < matrix.shape[1]:
            raise DataError(f"The data have {matrix.shape[1]} columns where the model expects {begin}.")
    return found + [None] * (len(wanted) - len(found))


def _each(space: Any, parts: list[Any], function: Any) -> Any:
    flat, treedef = jax.tree.flatten(space)
    return jax.tree.unflatten(treedef, [function(leaf, part) for leaf, part in zip(flat, parts, strict=True)])


def _joined(space: Any, value: Any, function: Any) -> Any:
    parts = [function(leaf, part) for leaf, part in zip(leaves(space), jax.tree.leaves(value), strict=True)]
    if len(parts) == 1:
        return parts[0]
    xp = np if isinstance(parts[0], np.ndarray) else jax.numpy
    return xp.concatenate(parts, axis=1)


def is_discrete(space: Any) -> bool:
    """Whether a pytree of spaces has values, and finitely many."""
    spaces = leaves(space)
    return bool(spaces) and all(leaf.is_discrete for leaf in spaces)


def log_count(space: Any) -> float:
    """log(number of joint values) of a pytree of spaces; infinite if any of them is continuous."""
    return sum(leaf.log_count for leaf in leaves(space))


def enumerate_states(space: Any) -> Any:
    """All joint values of a pytree of discrete spaces, with one leading axis."""
    parts, treedef = jax.tree.flatten(space)
    each = [part.enumerate() for part in parts]
    grid = np.meshgrid(*[np.arange(len(e)) for e in each], indexing="ij")
    return jax.tree.unflatten(treedef, [e[g.ravel()] for e, g in zip(each, grid, strict=True)])


def zeros(space: Any, dtype: Any = np.float32) -> Any:
    """A placeholder value of the right structure (all entries zero)."""
    return jax.tree.map(lambda s: jax.numpy.zeros(s.shape, dtype), space)
