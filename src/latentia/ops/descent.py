"""Descents to the nearest minimum, many at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Float

from latentia.ops.compiling import briefly

#: Steps that a compiled loop takes before the host looks whether all have arrived.
CHUNK = 25


def minimise(
    function: Callable[[Any, Float[Array, " n"]], Float[Array, ""]],
    parameters: Any,
    x: Float[Array, "m n"],
    *,
    max_steps: int,
    tol: float,
    path: bool = False,
) -> tuple[Float[Array, "m n"], np.ndarray | None]:
    """(local minima of x ↦ function(parameters, x) from every row, the points on the way).

    L-BFGS with a line search that satisfies the Wolfe conditions, each row for itself; a row stands still once no
    entry of its gradient is above ``tol``, or when rounding lets no step go down. Pass a module-level function, so
    that compiling is shared.

    >>> ends, _ = minimise(lambda p, x: jnp.sum((x - p) ** 2), 3.0, jnp.zeros((1, 2)), max_steps=50, tol=1e-4)
    >>> bool(jnp.abs(ends - 3).max() < 1e-3)
    True
    """
    with jax.numpy_dtype_promotion("standard"):
        state, level = _start(function, parameters, x), np.asarray(tol, x.dtype)  # a number would be compiled in
        points = [np.asarray(x)[None]]
        for done in range(0, max_steps, CHUNK):
            state, visited = _advance(function, parameters, state, level, min(CHUNK, max_steps - done))
            if path:
                points.append(np.asarray(visited))
            if bool(jnp.all(state.done)):
                break
    if not bool(jnp.all(state.done)):
        left = float(jnp.max(jnp.abs(state.slope)))
        warnings.warn(f"Not all descents ended in {max_steps} steps; a gradient is still {left:.1g}.", stacklevel=3)
    return state.x, np.concatenate(points) if path else None


class _State(eqx.Module):
    x: Array
    value: Array
    slope: Array
    solver: Any
    done: Array


_SOLVER = optax.lbfgs(memory_size=10, linesearch=optax.scale_by_zoom_linesearch(max_linesearch_steps=30))


@briefly
def _start(function: Any, parameters: Any, x: Array) -> _State:
    value, slope = jax.vmap(jax.value_and_grad(lambda x: function(parameters, x)))(x)
    state = _State(x, value, slope, jax.vmap(_SOLVER.init)(x), jnp.zeros(x.shape[0], bool))
    # Types as strong as those after a step: with weaker ones the loop would be compiled twice.
    return jax.tree.map(lambda a: jax.lax.convert_element_type(a, a.dtype), state)


@briefly
def _advance(function: Any, parameters: Any, state: _State, tol: Any, n_steps: int) -> tuple[_State, Array]:
    f = lambda x: function(parameters, x)  # noqa: E731

    def one(old: _State) -> _State:
        move: Any
        move, solver = _SOLVER.update(old.slope, old.solver, old.x, value=old.value, grad=old.slope, value_fn=f)
        x = old.x + move
        value, slope = jax.value_and_grad(f)(x)
        stuck = ~(value <= old.value) | jnp.all(x == old.x)
        still = old.done | stuck | (jnp.max(jnp.abs(old.slope)) <= tol)
        new = _State(x, value, slope, solver, still)
        kept = jax.tree.map(lambda a, b: jnp.where(still, a, b), old, new)
        return eqx.tree_at(lambda s: s.done, kept, still)

    def step(state: _State, _: None) -> tuple[_State, Array]:
        state = jax.vmap(one)(state)
        return state, state.x

    return jax.lax.scan(step, state, None, length=n_steps)
