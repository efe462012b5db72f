"""Langevin sampling, with and without a Metropolis test.

With step size ε and diagonal inverse mass m, both propose

    x′ = x − ε m ∇F(x) + √(2 ε m) ξ,      ξ ~ N(0, I).

:class:`Langevin` takes the proposal as it is. Its stationary distribution is off by O(ε): on N(0, 1) with m = 1 the
map x′ = (1 − ε) x + √(2ε) ξ has the variance 2ε/(1 − (1 − ε)²) = 1/(1 − ε/2) instead of 1, and none for ε ≥ 2. It
is the cheapest there is, one gradient a step, and common in learning energies, where short chains matter more than
exact ones. :class:`MALA` accepts x′ with the Metropolis–Hastings probability and is exact (Roberts and Tweedie,
1996); its best acceptance is 0.574 in high dimensions (Roberts and Rosenthal, 1998). The kernel is BlackJAX's,
which has no mass: it runs on x/√m, which is equivalent.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.samplers import gradient
from latentia.samplers.gradient import AbstractGradientSampler, LogDensity, Vector, check_target

#: A fall of the log density beyond which a step has diverged, as in BlackJAX.
WORST = 1000.0


class Langevin(AbstractGradientSampler):
    """Unadjusted Langevin: every proposal is taken.

    How far off a step is shows in the probability with which :class:`MALA` would have accepted it. An adaptive
    sampler computes it (a second gradient a step) and adapts its step size to it; a fixed one does not.

    Args:
        step_size: ε, relative to the inverse mass; the variances of a Gaussian come out about ε/2 too large.
        target: would-be acceptance that the step size adapts to.
        inverse_mass: diagonal of the inverse mass matrix; None begins with the variances of the starting points.
        adaptive: adapt step size and inverse mass (whenever the caller of the sampler requests it). False takes
            ``step_size`` and ``inverse_mass`` (ones if None) as they are.
    """

    mass_power: ClassVar[float] = 1.0

    step_size: Float[Array, ""] = eqx.field(default=0.05, converter=gradient.step_size)
    target: float = eqx.field(static=True, default=0.95)
    inverse_mass: Vector | None = eqx.field(default=None, converter=gradient.array)
    adaptive: bool = eqx.field(static=True, default=True)
    mean: Vector | None = None
    count: Float[Array, ""] = eqx.field(default=0.0, converter=gradient.array)

    def __check_init__(self) -> None:
        check_target(self.target)

    def _move(
        self,
        log_density: LogDensity,
        x: Vector,
        *,
        step_size: Float[Array, ""],
        inverse_mass: Vector,
        free: Bool[Array, " d"] | None,
        key: PRNGKeyArray,
    ) -> tuple[Vector, Any, Any]:
        del free  # see MALA
        value_and_grad = jax.value_and_grad(log_density)
        noise = jax.random.normal(key, x.shape, x.dtype)
        value, slope = value_and_grad(x)
        spread = jnp.sqrt(2 * step_size * inverse_mass)
        new = x + step_size * inverse_mass * slope + spread * noise
        if not self.adaptive:
            gain = jnp.zeros_like(value)
        else:
            new_value, new_slope = value_and_grad(new)
            back = (x - new - step_size * inverse_mass * new_slope) / spread  # the noise that would lead back
            gain = new_value - value + 0.5 * (jnp.sum(noise**2) - jnp.sum(back**2))
        # A chain that flies off to infinity would never come back.
        good = jnp.all(jnp.isfinite(new)) & (gain > -WORST)
        return jnp.where(good, new, x), jnp.where(good, jnp.exp(jnp.minimum(gain, 0.0)), 0.0), ~good


class MALA(AbstractGradientSampler):
    """The Metropolis-adjusted Langevin algorithm.

    Args:
        step_size: ε at the start, relative to the inverse mass.
        target: acceptance that the step size adapts to.
        inverse_mass: diagonal of the inverse mass matrix; None begins with the variances of the starting points.
        adaptive: adapt step size and inverse mass (whenever the caller of the sampler requests it).
    """

    mass_power: ClassVar[float] = 1.0

    step_size: Float[Array, ""] = eqx.field(default=0.1, converter=gradient.step_size)
    target: float = eqx.field(static=True, default=0.574)
    inverse_mass: Vector | None = eqx.field(default=None, converter=gradient.array)
    adaptive: bool = eqx.field(static=True, default=True)
    mean: Vector | None = None
    count: Float[Array, ""] = eqx.field(default=0.0, converter=gradient.array)

    def __check_init__(self) -> None:
        check_target(self.target)

    def _move(
        self,
        log_density: LogDensity,
        x: Vector,
        *,
        step_size: Float[Array, ""],
        inverse_mass: Vector,
        free: Bool[Array, " d"] | None,
        key: PRNGKeyArray,
    ) -> tuple[Vector, Any, Any]:
        from blackjax.mcmc import mala  # on first use: it takes half a second to import

        del free  # an entry without gradient moves there and back with the same probability: the test ignores it
        scale = jnp.sqrt(inverse_mass)
        scaled = lambda u: log_density(u * scale)  # noqa: E731
        kernel: Any = mala.build_kernel()
        end, info = kernel(key, mala.init(x / scale, scaled), scaled, step_size)
        moved = jnp.where(info.is_accepted, end.position * scale, x)  # x itself, not (x/√m)√m
        return moved, info.acceptance_rate, info.acceptance_rate == 0
