"""What the proximal solvers are given, checked: signals, dictionary or operator, starting points, penalties."""

from __future__ import annotations

import math
import numbers
from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array

from latentia.core import space
from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.ops.operators import LinearOperator
from latentia.ops.penalties import L0, AbstractPenalty

Method = Literal["ista", "fista", "iht"]


class KSparse(eqx.Module):
    """No price, but at most k atoms: its map keeps the k largest entries."""

    k: int = eqx.field(static=True)
    nonnegative: bool = eqx.field(static=True, default=False)

    @property
    def convex(self) -> bool:
        """It is not."""
        return False

    def value(self, z: Array) -> Array:
        """Zero: a constraint has no price."""
        return jnp.zeros(z.shape[:-1], z.dtype)

    def prox(self, u: Array, step: Any) -> Array:
        """u with all but its k largest entries set to zero; of equal ones the first."""
        del step
        u = jnp.maximum(u, 0.0) if self.nonnegative else u
        _, places = jax.lax.top_k(jnp.abs(u), self.k)
        kept = jnp.zeros(u.shape, bool)
        rows = jnp.broadcast_to(jnp.arange(u.shape[0])[:, None], places.shape)
        return jnp.where(kept.at[rows, places].set(True), u, jnp.zeros_like(u))


def matching(X: Any, D: Any) -> tuple[Any, np.ndarray]:
    """Signals and dictionary as arrays of one precision, checked; signals that are on a device stay there."""
    x = X if isinstance(X, jax.Array) else np.asarray(X.toarray() if sp.issparse(X) else X)
    atoms = np.asarray(D.toarray() if sp.issparse(D) else D)
    dtype = np.result_type(x.dtype, atoms.dtype) if not isinstance(X, jax.Array) else x.dtype
    dtype = dtype if dtype in (np.float32, np.float64) else np.dtype(np.float64)
    x, atoms = x.astype(dtype), atoms.astype(dtype, copy=False)
    if x.ndim != 2 or atoms.ndim != 2 or x.shape[1] != atoms.shape[1]:
        raise DataError(
            f"Signals (n, d) and atoms (K, d) must be matrices of equally many columns, got {x.shape} and "
            f"{atoms.shape}: a dictionary has its atoms in rows."
        )
    for name, a in (("signals", x), ("dictionary", atoms)):
        if not bool((jnp if isinstance(a, jax.Array) else np).isfinite(a).all()):
            raise DataError(f"The {name} hold NaN or infinite numbers; replace or drop them first.")
    if not atoms.size or not (atoms != 0).any(axis=1).all():
        raise DataError("The dictionary has an atom of zero norm (or none at all), whose code is arbitrary.")
    return x, atoms


def flat_rows(X: Any, operator: LinearOperator) -> Any:
    """Signals of an operator as rows (n, d): given as such, or as a pytree like a signal with one axis in front."""
    shapes = [leaf.shape for leaf in space.leaves(operator.signal_space)]
    found = jax.tree.leaves(X.toarray() if sp.issparse(X) else X)
    if len(found) == 1 and np.ndim(found[0]) == 2 and np.shape(found[0])[1] == operator.n_signal:
        return found[0]
    own = [np.shape(leaf) for leaf in found]
    n = own[0][:1] if own else ()
    if not n or own != [(*n, *shape) for shape in shapes]:
        wanted = " and ".join(str(("n", *shape)).replace("'", "") for shape in shapes)
        raise DataError(
            f"Signals must have shape {wanted}, or (n, {operator.n_signal}) with one flat signal a row; got "
            f"{' and '.join(map(str, own))}."
        )
    flat = [leaf.reshape(n[0], math.prod(shape)) for leaf, shape in zip(found, shapes, strict=True)]
    return flat[0] if len(flat) == 1 else np.concatenate(flat, axis=1)


def matching_operator(X: Any, operator: LinearOperator) -> tuple[np.ndarray, LinearOperator]:
    """Signals as rows, and the operator, of one precision, checked."""
    x = np.asarray(flat_rows(X, operator))
    parameters = [leaf for leaf in jax.tree.leaves(operator) if eqx.is_inexact_array(leaf)]
    dtype = np.result_type(x.dtype, *(leaf.dtype for leaf in parameters))
    x = x.astype(dtype if dtype in (np.float32, np.float64) else np.float64)
    for name, arrays in (("signals", [x]), ("operator's parameters", parameters)):
        if not all(bool(np.isfinite(np.asarray(a)).all()) for a in arrays):
            raise DataError(f"The {name} hold NaN or infinite numbers; replace or drop them first.")
    return x, operator


def flat_codes(codes: Any, n: int, operator: LinearOperator) -> Any:
    """n codes of an operator as rows (n, K): given as such, or as a pytree like a code with one axis in front."""
    leaves = jax.tree.leaves(codes)
    own = [np.shape(leaf) for leaf in leaves]  # of a sparse matrix too
    if own == [(n, operator.n_code)]:
        return leaves[0]
    wanted = [(n, *leaf.shape) for leaf in space.leaves(operator.code_space)]
    if own != wanted:
        raise DataError(
            f"init must hold {n} codes of shape {' and '.join(map(str, wanted))}, or flat ones of shape "
            f"{(n, operator.n_code)}; got {' and '.join(map(str, own))}."
        )
    return operator.flat_code(jax.tree.map(np.asarray, codes))


def starting(init: Any, x: np.ndarray, K: int, operator: LinearOperator | None = None) -> np.ndarray | None:
    """Codes to start from as rows (n, K); an operator's may be a pytree like a code with one axis in front."""
    if init is None:
        return None
    if operator is not None:
        init = flat_codes(init, len(x), operator)
    start = np.asarray(init.toarray() if sp.issparse(init) else init).astype(x.dtype, copy=False)
    if start.shape != (len(x), K) or not np.isfinite(start).all():
        raise DataError(f"init must hold {len(x)} finite codes of {K} atoms, got shape {start.shape}.")
    return start


def rule_of(penalty: Any, method: str, n_nonzero: int | None, K: int) -> Any:
    """The penalty (or the constraint) of a method, or why there is none."""
    if method not in get_args(Method):
        raise UnknownNameError("method", method, get_args(Method))
    if n_nonzero is not None:
        if method != "iht":
            raise ParameterError(f"n_nonzero belongs to the method 'iht' (and to the pursuits), not to {method!r}.")
        if not isinstance(n_nonzero, numbers.Integral) or not 1 <= n_nonzero <= K:
            raise ParameterError(f"n_nonzero must be an integer from 1 to the {K} atoms, got {n_nonzero!r}.")
        return KSparse(int(n_nonzero), isinstance(penalty, AbstractPenalty) and penalty.nonnegative)
    if not isinstance(penalty, AbstractPenalty):
        raise ParameterError(f"{method} needs a penalty of latentia.ops.penalties, got {penalty!r}.")
    if method == "iht" and not isinstance(penalty, L0):
        raise ParameterError(f"iht needs the penalty L0 or n_nonzero, not {type(penalty).__name__}; use 'ista'.")
    if method == "fista" and not penalty.convex:
        raise ParameterError(
            f"fista needs a convex penalty, and {type(penalty).__name__} is not: momentum would carry it from one "
            "minimum to another. Use 'ista' (or 'iht')."
        )
    if not float(penalty.alpha) > 0:
        raise ParameterError(f"alpha must be above 0, got {penalty.alpha!r}.")
    return penalty


def check_options(tol: Any, max_iter: Any) -> None:
    """Raise if they are out of range."""
    if not isinstance(tol, numbers.Real) or not float(tol) > 0:
        raise ParameterError(f"tol must be a number above 0, got {tol!r}.")
    if not isinstance(max_iter, numbers.Integral) or max_iter < 1:
        raise ParameterError(f"max_iter must be an integer of at least 1, got {max_iter!r}.")
