"""Second derivatives of scalar functions without their Hessian.

A second directional derivative is the second coefficient of t ↦ f(x + t v): two nested forward derivatives, which
never form a vector of the size of x beyond x itself.

The trace of the Hessian goes through f once, step by step, and carries with every intermediate y = h(x)

    its derivatives J_i = ∂h/∂x_i  and the sum  Λ = Σ_i ∂²h/∂x_i²,

which is all that the next step g needs: Λ(g∘h) = Dg·Λ + Σ_i D²g[J_i, J_i] (the *forward Laplacian* of Li et al.,
2024). Only nonlinear steps have the sum, and of the second derivatives only Λ is carried on. Two more savings:

* derivatives that are the same for all examples of a batch (of a first linear layer, say) are computed only once;
* behind a bottleneck, where y has fewer entries than x, the sum only needs G = Σ_i J_i J_iᵀ: it runs over the axes
  of y instead, as Σ_j D²g[e_j, G_j]. A network on 784 pixels whose first layer has 64 units takes 64 directions.

Derivatives of the single steps are JAX's own, so every function that JAX can differentiate twice will do.

Reference:
    Li, Ye, Zhang et al. (2024), *A computational framework for neural network-based variational Monte Carlo with
    Forward Laplacian*.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend import core as jax_core
from jaxtyping import Array, Float

Scalar = Float[Array, ""]
Vector = Float[Array, " n"]

#: Axes that are followed at once where there is no bottleneck: more need more memory, fewer are slower.
CHUNK = 64
#: Numbers per example that all axes at once may take.
MOST_NUMBERS = 65_536

#: Steps that are linear in all their real inputs together, and those that are in each of them.
_SUMS = ("add", "sub", "neg", "add_any", "reduce_sum", "cumsum", "select_n", "convert_element_type", "copy")
_SHAPES = ("reshape", "squeeze", "broadcast_in_dim", "transpose", "concatenate", "split", "pad", "rev")
_SLICES = ("slice", "dynamic_slice", "dynamic_update_slice", "gather")
_LINEAR = frozenset({*_SUMS, *_SHAPES, *_SLICES})
_MULTILINEAR = frozenset({"mul", "dot_general", "conv_general_dilated"})
_INLINED = frozenset({"jit", "pjit", "closed_call", "core_call"})


def curvature(f: Callable[[Vector], Scalar], x: Vector, v: Vector) -> Scalar:
    """vᵀ ∇²f(x) v.

    >>> x = jnp.array([1.0, 2.0])
    >>> float(curvature(lambda x: x[0] ** 2 * x[1], x, jnp.array([1.0, 0.0])))
    4.0
    """
    slope = lambda x: jax.jvp(f, (x,), (v,))[1]  # noqa: E731
    return jax.jvp(slope, (x,), (v,))[1]


def slope_and_curvature(
    f: Callable[[Vector], Scalar], x: Vector, directions: Float[Array, "k n"]
) -> tuple[Vector, Float[Array, " k"]]:
    """(∇f(x), vᵀ∇²f(x) v of every direction), from one pass through f.

    Parameters of f then meet one backward pass for both, not one for each.

    >>> slope, bend = slope_and_curvature(lambda x: x[0] ** 2 * x[1], jnp.array([1.0, 2.0]), jnp.eye(2))
    >>> slope, bend
    (Array([4., 1.], dtype=float32), Array([4., 0.], dtype=float32))
    """

    def along(x: Vector, v: Vector) -> tuple[Scalar, Scalar]:
        (value, _), (_, bend) = jax.jvp(lambda x: jax.jvp(f, (x,), (v,)), (x,), (v,))
        return value, bend

    value, pull, bends = jax.vjp(lambda x: jax.vmap(along, (None, 0), (None, 0))(x, directions), x, has_aux=True)
    return pull(jnp.ones_like(value))[0], bends


def laplacian(f: Callable[[Vector], Scalar], x: Vector, scale: Vector | None = None, chunk: int = CHUNK) -> Scalar:
    """Σ_i s_i² ∂²f/∂x_i² at x: the trace of the Hessian where the scale s is one.

    >>> x = jnp.array([1.0, 2.0, 3.0])
    >>> float(laplacian(lambda x: jnp.sum(x**3), x))  # Σ 6 x_i
    36.0
    """
    n = x.shape[0]
    weights = jnp.ones_like(x) if scale is None else scale**2
    jaxpr = jax.make_jaxpr(f)(x)

    def over(columns: Array) -> tuple[Scalar, int]:
        axes = (columns[:, None] == jnp.arange(n)[None, :]).astype(x.dtype)  # zero beyond the last
        walk = _Walk()
        start = _Moving(x, jnp.zeros_like(x), {0: (axes, axes * weights[None, :])}, scale is None)
        (out,) = walk.run(jaxpr.jaxpr, jaxpr.consts, [start])
        return (out.bend if isinstance(out, _Moving) else jnp.zeros((), x.dtype)), walk.largest

    largest: list[int] = []
    jax.eval_shape(lambda: [largest.append(over(jnp.arange(n))[1]), jnp.zeros(())][1])
    if largest[0] <= MOST_NUMBERS or n <= chunk:
        return over(jnp.arange(n))[0]
    part = jax.checkpoint(lambda columns: over(columns)[0])
    columns = jnp.arange(-(-n // chunk) * chunk).reshape(-1, chunk)
    return jax.lax.scan(lambda total, c: (total + part(c), None), jnp.zeros((), x.dtype), columns)[0]


@dataclasses.dataclass
class _Moving:
    """A value that depends on x: itself, Λ, and pairs of directions (L, R) with Σ_j L_j R_jᵀ = Σ_i w_i J_i J_iᵀ.

    ``pairs`` are kept by the intermediate whose axes they come from (0: x itself); values meet in what they share.
    """

    value: Array
    bend: Array
    pairs: dict[int, tuple[Array, Array]]
    same: bool  # whether the directions are the same for every x, and so for all examples of a batch


class _Walk:
    """Goes through the steps of a function; ``largest`` is the most numbers that directions of one step take."""

    def __init__(self) -> None:
        self.largest, self.n_bottlenecks = 0, 0

    def run(self, jaxpr: Any, consts: Sequence[Any], args: Sequence[Any]) -> list[Any]:
        """The outputs, moving or not."""
        known: dict[Any, Any] = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))
        read = lambda atom: atom.val if isinstance(atom, jax_core.Literal) else known[atom]  # noqa: E731
        for step in jaxpr.eqns:
            known.update(zip(step.outvars, self.step(step, [read(v) for v in step.invars]), strict=True))
        return [read(atom) for atom in jaxpr.outvars]

    def step(self, step: Any, inputs: list[Any]) -> list[Any]:
        """The outputs of one step."""
        name = step.primitive.name
        if name in _INLINED and any(isinstance(v, _Moving) for v in inputs):
            inner = step.params.get("jaxpr", step.params.get("call_jaxpr"))
            return self.run(inner.jaxpr, inner.consts, inputs)
        bind = _binder(step)
        plain = [v.value if isinstance(v, _Moving) else v for v in inputs]
        outputs: list[Any] = list(bind(*plain))
        places = [i for i, v in enumerate(inputs) if isinstance(v, _Moving)]
        smooth = [i for i, out in enumerate(outputs) if jnp.issubdtype(jnp.result_type(out), jnp.inexact)]
        if not places or not smooth:
            return outputs

        def g(*moving: Array) -> list[Array]:
            full = list(plain)
            for i, value in zip(places, moving, strict=True):
                full[i] = value
            out = bind(*full)
            return [out[i] for i in smooth]

        moving = [inputs[i] for i in places]
        at = tuple(m.value for m in moving)
        push = lambda tangents: jax.jvp(g, at, tangents)[1]  # noqa: E731
        bends = push(tuple(m.bend for m in moving))
        shared = [key for key in moving[0].pairs if all(key in m.pairs for m in moving)]
        pairs = {}
        for key in shared:
            left, right = (tuple(m.pairs[key][side] for m in moving) for side in (0, 1))
            pairs[key] = (jax.vmap(push)(left), jax.vmap(push)(right))
        same = _is_linear(name, places) and all(m.same for m in moving)
        if not same:
            self._measure([m for m in moving if not m.same], pairs)
        if not _is_linear(name, places):
            key = min(shared, key=lambda key: moving[0].pairs[key][0].shape[0])
            left, right = (tuple(m.pairs[key][side] for m in moving) for side in (0, 1))
            twice = lambda l, r: jax.jvp(lambda *q: jax.jvp(g, q, l)[1], at, r)[1]  # noqa: E731, E741
            sums = jax.tree.map(lambda a: jnp.sum(a, axis=0), jax.vmap(twice)(left, right))
            bends = [b + s for b, s in zip(bends, sums, strict=True)]
        for place, i in enumerate(smooth):
            own = {key: (left[place], right[place]) for key, (left, right) in pairs.items()}
            own = self._narrowed(own, outputs[i]) if name == "dot_general" else own
            outputs[i] = _Moving(outputs[i], bends[place], own, same)
        return outputs

    def _measure(self, moving: list[_Moving], pairs: dict[int, tuple[list[Array], list[Array]]]) -> None:
        key = min(pairs, key=lambda key: pairs[key][0][0].shape[0])
        sizes = [*(m.pairs[key][0].size for m in moving), *(out.size for out in pairs[key][0])]
        self.largest = max([self.largest, *sizes])

    def _narrowed(self, pairs: dict[int, tuple[Array, Array]], value: Array) -> dict[int, tuple[Array, Array]]:
        """With the axes of the value itself as directions, if they are fewer."""
        key = min(pairs, key=lambda key: pairs[key][0].shape[0])
        left, right = pairs[key]
        size = math.prod(value.shape)
        if size >= left.shape[0]:
            return pairs
        gram = left.reshape(-1, size).T @ right.reshape(-1, size)
        axes = jnp.eye(size, dtype=value.dtype).reshape(size, *value.shape)
        self.n_bottlenecks += 1
        return {**pairs, self.n_bottlenecks: (axes, gram.reshape(size, *value.shape))}


def _binder(step: Any) -> Callable[..., list[Array]]:
    """The step as a function of its inputs."""

    def bind(*inputs: Any) -> list[Array]:
        out = step.primitive.bind(*inputs, **step.primitive.get_bind_params(step.params))
        return list(out) if step.primitive.multiple_results else [out]

    return bind


def _is_linear(name: str, places: list[int]) -> bool:
    alone = len(places) == 1
    return name in _LINEAR or (alone and name in _MULTILINEAR) or (name == "div" and places == [0])
