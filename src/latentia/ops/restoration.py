"""Images that minimise an energy of filter responses plus a quadratic, by reweighted least squares.

    J(x) = ½ c‖x − y‖² + λ [Σ_k Σ_ij α_k φ_k(ũ_kij) + ½ ε‖x‖²],      ũ² = (f_k ∗ x)² + ν²‖f_k‖²,

over the free pixels of x. Because each φ is a concave function of u², J lies below a quadratic in x that touches it
at the current x (see :mod:`latentia.ops.experts`): with the weights w = φ′(ũ)/ũ held fixed, minimising is a linear
system. A few conjugate gradient steps on it, then new weights, and so on: no step raises J, there is no step size,
and with quadratic φ it is the linear system of Wiener's filter.

ν is a blur. If x is known only up to noise of standard deviation ν, then E φ(u) ≤ φ(√E u²): J bounds the expected
energy, where without ν it is that of the single best image, which is flatter than the images that it stands for.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.sparse.linalg import cg
from jaxtyping import Array, Bool, Float

from latentia.ops.convolution import correlate, spread_back
from latentia.ops.experts import AbstractExperts

Image = Float[Array, "h w"]
Maps = Float[Array, "k p q"]
Scalar = Float[Array, ""]

#: Conjugate gradient steps for one set of weights: more are wasted on weights that will change.
INNER_STEPS = 8
#: For a start with fixed weights.
START_STEPS = 200


class Field(eqx.Module):
    """The energy Σ_k Σ_ij α_k φ_k((f_k ∗ x)_ij) + ½ ε‖x‖²."""

    kernels: Float[Array, "k a b"]
    powers: Float[Array, " k"]
    experts: AbstractExperts
    ridge: Scalar


class Task(eqx.Module):
    """What to restore.

    Args:
        image: y; pixels that are not free keep its values.
        free: which pixels may change.
        pull: c, one over the variance of the noise; 0 where y says nothing about the free pixels.
        weight: λ.
        blur: ν.
    """

    image: Image
    free: Bool[Array, "h w"]
    pull: Scalar
    weight: Scalar
    blur: Scalar


def objective(field: Field, task: Task, x: Image) -> Scalar:
    """J(x)."""
    energies = field.powers[:, None, None] * field.experts.energies(_blurred(field, task, x))
    prior = jnp.sum(energies) + 0.5 * field.ridge * jnp.sum(x**2)
    return 0.5 * task.pull * jnp.sum((x - task.image) ** 2) + task.weight * prior


def settled(
    field: Field, task: Task, start: Image, *, max_steps: Any, tol: Any
) -> tuple[Image, Float[Array, ""], Any]:
    """(x, largest change of a pixel by the last reweighting, number of reweightings).

    Ends when no pixel changes by more than ``tol``, after ``max_steps`` in any case.
    """

    def body(state: tuple[Image, Any, Any]) -> tuple[Image, Any, Any]:
        x, _, n = state
        new = _solved(field, task, x, field.experts.pull(_blurred(field, task, x)), INNER_STEPS)
        return new, jnp.max(jnp.abs(new - x)), n + 1

    begin = (start, jnp.asarray(jnp.inf, start.dtype), jnp.zeros((), jnp.int32))
    return jax.lax.while_loop(lambda state: (state[1] > tol) & (state[2] < max_steps), body, begin)


def smooth_start(field: Field, task: Task) -> Image:
    """The free pixels as they would be if every expert were a parabola, curved as at the bottom of its well."""
    bottom = field.experts.pull(jnp.zeros_like(correlate(task.image, field.kernels)))
    return _solved(field, task, task.image, bottom, START_STEPS)


def _blurred(field: Field, task: Task, x: Image) -> Maps:
    extra = task.blur**2 * jnp.sum(field.kernels**2, axis=(1, 2))
    return jnp.sqrt(correlate(x, field.kernels) ** 2 + extra[:, None, None])


def _solved(field: Field, task: Task, x: Image, pulls: Maps, n_steps: int) -> Image:
    """Conjugate gradient steps from x on the quadratic whose curvatures at the responses are α ``pulls``."""
    kernels = field.kernels
    curvatures = task.weight * field.powers[:, None, None] * pulls
    level = task.pull + task.weight * field.ridge

    def product(step: Image) -> Image:
        step = jnp.where(task.free, step, 0.0)
        bent = level * step + spread_back(curvatures * correlate(step, kernels), kernels, x.shape)
        return jnp.where(task.free, bent, 0.0)

    slope = task.pull * (task.image - x) - task.weight * field.ridge * x
    slope = slope - spread_back(curvatures * correlate(x, kernels), kernels, x.shape)
    diagonal = level + spread_back(curvatures, kernels**2, x.shape)
    step, _ = cg(product, jnp.where(task.free, slope, 0.0), tol=1e-6, maxiter=n_steps, M=lambda r: r / diagonal)
    return x + jnp.where(task.free, step, 0.0)
