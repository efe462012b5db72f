"""Hamiltonian Monte Carlo and the No-U-Turn sampler: BlackJAX's kernels on exp(−F(x)).

With momentum p ~ N(0, M), M⁻¹ diagonal, leapfrog steps of size ε follow H(x, p) = F(x) + ½ pᵀM⁻¹p, and the end of
the trajectory is accepted with probability min(1, exp(H_start − H_end)) (Duane et al., 1987; Neal, 2011). NUTS
doubles the trajectory until it turns back and draws from all of it (Hoffman and Gelman, 2014, here with multinomial
weights after Betancourt, 2017); its "acceptance" is the mean along the trajectory.

Both adapt to an acceptance of 0.8. The optimum for the cost of independent draws lies at 0.65 for HMC in the limit
of high dimensions (Beskos et al., 2013), and anything from 0.6 to 0.9 is nearly as good (Betancourt, Byrne and
Girolami, 2014); Hoffman and Gelman found 0.6 to 0.8 best. We stay at the safe end.
"""

from __future__ import annotations

from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PRNGKeyArray

from latentia.core.errors import ParameterError
from latentia.samplers import gradient
from latentia.samplers.gradient import AbstractGradientSampler, LogDensity, Vector, check_target


class HMC(AbstractGradientSampler):
    """Hamiltonian Monte Carlo with trajectories of a fixed number of leapfrog steps.

    Args:
        n_leapfrog: leapfrog steps of a trajectory, each one gradient.
        step_size: ε at the start, relative to the square root of the inverse mass.
        jitter: ε varies from trajectory to trajectory by up to this fraction either way: trajectories of one length
            may close on themselves, and the chain would then never leave its orbit (Neal, 2011, section 3.2).
        target: acceptance that the step size adapts to.
        inverse_mass: diagonal of the inverse mass matrix; None begins with the variances of the starting points.
        adaptive: adapt step size and inverse mass (whenever the caller of the sampler requests it).
    """

    mass_power: ClassVar[float] = 0.5

    n_leapfrog: int = eqx.field(static=True, default=10)
    step_size: Float[Array, ""] = eqx.field(default=0.2, converter=gradient.step_size)
    jitter: float = eqx.field(static=True, default=0.2)
    target: float = eqx.field(static=True, default=0.8)
    inverse_mass: Vector | None = eqx.field(default=None, converter=gradient.array)
    adaptive: bool = eqx.field(static=True, default=True)
    mean: Vector | None = None
    count: Float[Array, ""] = eqx.field(default=0.0, converter=gradient.array)

    def __check_init__(self) -> None:
        check_target(self.target)
        if self.n_leapfrog < 1:
            raise ParameterError(f"HMC needs at least one leapfrog step, got n_leapfrog={self.n_leapfrog}.")
        if not 0 <= self.jitter < 1:
            raise ParameterError(f"jitter must be at least 0 and less than 1, got {self.jitter!r}.")

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
        from blackjax.mcmc import hmc  # on first use: it takes half a second to import

        jitter_key, key = jax.random.split(key)
        step_size = step_size * (1 + self.jitter * jax.random.uniform(jitter_key, (), x.dtype, -1.0, 1.0))
        kernel: Any = hmc.build_kernel()
        begin = hmc.init(x, log_density)
        end, info = kernel(key, begin, log_density, step_size, _metric(inverse_mass, free), self.n_leapfrog)
        return end.position, info.acceptance_rate, info.is_divergent


class NUTS(AbstractGradientSampler):
    """The No-U-Turn sampler: trajectories end when they turn back towards their start.

    Chains that run together wait for the longest trajectory among them, so HMC is often the faster one here.

    Args:
        max_doublings: a trajectory has at most 2 to this power, less one, leapfrog steps.
        step_size: ε at the start, relative to the square root of the inverse mass.
        target: mean acceptance along the trajectory that the step size adapts to.
        inverse_mass: diagonal of the inverse mass matrix; None begins with the variances of the starting points.
        adaptive: adapt step size and inverse mass (whenever the caller of the sampler requests it).
    """

    mass_power: ClassVar[float] = 0.5

    max_doublings: int = eqx.field(static=True, default=10)
    step_size: Float[Array, ""] = eqx.field(default=0.2, converter=gradient.step_size)
    target: float = eqx.field(static=True, default=0.8)
    inverse_mass: Vector | None = eqx.field(default=None, converter=gradient.array)
    adaptive: bool = eqx.field(static=True, default=True)
    mean: Vector | None = None
    count: Float[Array, ""] = eqx.field(default=0.0, converter=gradient.array)

    def __check_init__(self) -> None:
        check_target(self.target)
        if self.max_doublings < 1:
            raise ParameterError(f"NUTS needs at least one doubling, got max_doublings={self.max_doublings}.")

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
        from blackjax.mcmc import nuts  # on first use: it takes half a second to import

        kernel: Any = nuts.build_kernel()
        begin = nuts.init(x, log_density)
        end, info = kernel(key, begin, log_density, step_size, _metric(inverse_mass, free), self.max_doublings)
        return end.position, info.acceptance_rate, info.is_divergent


def _metric(inverse_mass: Vector, free: Bool[Array, " d"] | None) -> Any:
    """Momenta ~ N(0, M), none for fixed entries: these would fly on straight, and NUTS would never see a U-turn."""
    from blackjax.mcmc import metrics

    metric = metrics.gaussian_euclidean(inverse_mass)
    if free is None:
        return metric

    def sample_momentum(key: PRNGKeyArray, position: Vector) -> Any:
        momentum: Any = metric.sample_momentum(key, position)
        return jnp.where(free, momentum, jnp.zeros_like(momentum))

    return metric._replace(sample_momentum=sample_momentum)
