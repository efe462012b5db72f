"""log Z from both sides: annealed importance sampling forward (low on average) and reverse (high on average).

Forward: chains go from the base to the model; E[w] = Z/Z₀, so by Jensen's inequality the logarithm of the
mean weight is a stochastic *lower* bound of log Z/Z₀. Reverse: chains start in equilibrium of the model and
go to the base; E[1/w] = Z₀/Z, so it gives a stochastic *upper* bound, provided that the start really is in
equilibrium. Between the two stands Bennett's estimate, which uses both sets of works.

References: Neal (2001); Salakhutdinov and Murray (2008); Burda, Grosse and Salakhutdinov (2015) for reverse
AIS; Bennett (1976).
"""

from __future__ import annotations

import time
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core import tempering
from latentia.core.capabilities import Bounded, Tempered
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractModel, Scalar
from latentia.likelihood import works
from latentia.likelihood.annealing import anneal, blank, path
from latentia.likelihood.equilibrium import Equilibrium, equilibrium
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.likelihood.result import LogZ
from latentia.ops.compiling import jitted

#: The interval reaches this many standard errors beyond the forward and the reverse estimate.
N_STDERR = 2.0
_WIDE = 1.0  # nats
_LOW_SWAP_RATE = 0.05
_HIGH_BETA = 0.5
_LOW_OVERLAP = 0.01


def log_z(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    n_temperatures: int = 2000,
    n_chains: int = 256,
    n_replicas: int = 10,
    n_burn_in: int = 500,
    n_steps: int = 500,
    start: Any = None,
) -> LogZ:
    """log Z by forward and reverse annealed importance sampling.

    The interval is [forward − c·stderr, reverse + c·stderr] with c = ``N_STDERR``, or the union of both error
    bars where noise makes them cross; the estimate is Bennett's, moved into the interval if need be. The
    standard error is Bennett's own, or half the gap between the two sides where noise does not explain it or
    their works do not overlap.

    Args:
        model: a model with a path to a base of known log Z (:class:`~latentia.core.capabilities.Tempered`).
        key: random key.
        n_temperatures: annealing steps between base and model; more of them narrow the interval.
        n_chains: annealing runs in each direction.
        n_replicas: rungs of the ladder of the equilibrium chains.
        n_burn_in: their adapting steps.
        n_steps: their steps after that.
        start: where they start; see :func:`~latentia.likelihood.equilibrium.equilibrium`.

    Returns:
        The interval. ``details`` holds both one-sided estimates with errors and effective sample sizes, the
        overlap of the works, swap rates, seconds, and a ``warning`` where something is doubtful.
    """
    _check(n_temperatures=n_temperatures, n_chains=n_chains, n_burn_in=n_burn_in, n_steps=n_steps)
    began = time.perf_counter()
    keys = jax.random.split(key, 3)
    with double():
        target = to_double(_tempered(model))
        samples = equilibrium(
            target,
            n_chains,
            key=keys[0],
            n_replicas=n_replicas,
            n_burn_in=n_burn_in,
            n_steps=n_steps,
            start=start,
        )
        base, offset = _fitted_base(target, batch_to_double(samples.earlier))
        x, z = batch_to_double((samples.x, samples.z))
        betas = path(n_temperatures)
        forward, *_ = anneal(base, target, jnp.asarray(betas), *blank(target, n_chains), key=keys[1])
        reverse, *_ = anneal(base, target, jnp.asarray(betas[::-1]), x, z, key=keys[2])
    method = f"AIS and reverse AIS ({n_temperatures} temperatures, {n_chains} chains)"
    return combine(
        float(offset) + np.asarray(forward),
        float(offset) - np.asarray(reverse),
        samples,
        method,
        time.perf_counter() - began,
    )


def combine(forward: np.ndarray, reverse: np.ndarray, samples: Equilibrium, method: str, seconds: float) -> LogZ:
    """The interval from the log-weights of both directions, in the forward sense and with log Z₀ added."""
    if not (np.isfinite(forward).all() and np.isfinite(reverse).all()):
        raise ParameterError(
            "Annealing found energies that are not finite, so log Z cannot be estimated. The model's "
            "parameters are not finite or too large; train with a lower learning_rate."
        )
    below, above = works.log_mean_exp(forward), -works.log_mean_exp(-reverse)
    below_se, above_se = works.log_mean_exp_stderr(forward), works.log_mean_exp_stderr(-reverse)
    lower = min(below - N_STDERR * below_se, above - N_STDERR * above_se if above < below else np.inf)
    upper = max(above + N_STDERR * above_se, below + N_STDERR * below_se if above < below else -np.inf)
    middle, stderr, overlap = works.bennett(forward, reverse)
    noise = N_STDERR * float(np.hypot(below_se, above_se))
    if overlap < _LOW_OVERLAP or abs(above - below) > noise:
        stderr = max(stderr, 0.5 * abs(above - below))
    details: dict[str, Any] = {
        "forward": below,
        "forward_stderr": below_se,
        "forward_effective_chains": works.effective_size(forward),
        "reverse": above,
        "reverse_stderr": above_se,
        "reverse_effective_chains": works.effective_size(-reverse),
        "overlap": overlap,
        "swap_rate_min": samples.swap_rate_min,
        "swap_rate_mean": samples.swap_rate_mean,
        "hottest_beta": samples.hottest_beta,
        "seconds": seconds,
    }
    warning = _warning(details, upper - lower, noise)
    if warning:
        details["warning"] = warning
    return LogZ(float(lower), float(upper), float(np.clip(middle, lower, upper)), stderr, method, details)


def _warning(details: dict[str, Any], width: float, noise: float) -> str:
    reasons = []
    if width > _WIDE:
        reasons.append(f"The interval is {width:.1f} nats wide: use more n_temperatures or n_chains.")
    if details["forward"] - details["reverse"] > noise:
        reasons.append(
            "The reverse estimate lies below the forward one by more than noise explains, so the equilibrium "
            "chains did not reach all that the model has to offer: use more n_burn_in, n_steps or n_replicas."
        )
    if details["swap_rate_min"] < _LOW_SWAP_RATE:
        reasons.append(
            f"The equilibrium chains hardly mix (one swap rate is {details['swap_rate_min']:.1%}), so the "
            "bound from reverse annealing may not hold: use more n_replicas or n_burn_in."
        )
    if details["hottest_beta"] > _HIGH_BETA:
        reasons.append(
            f"The ladder of the equilibrium chains only reaches down to β = {details['hottest_beta']:.2f}, "
            "so that the bound from reverse annealing rests on where the chains start: use more n_replicas."
        )
    return " ".join(reasons)


@jitted
def _fitted_base(model: Any, x: Any) -> tuple[Any, Scalar]:
    """The base fitted to samples of the model and its log Z.

    Where the path to it leaves the bounds within which the energy has a normaliser, the plain base instead.
    """
    base, plain = model.base(x), model.base()
    if isinstance(model, Bounded):
        margins = jax.lax.map(lambda beta: tempering.at(base, model, beta).margin(), jnp.linspace(0.0, 1.0, 65))
        safe = jnp.all(margins > 0)
        base = jax.tree.map(lambda a, b: jnp.where(safe, a, b) if eqx.is_array(a) else a, base, plain)
    return base, base.base_log_z()


def _tempered(model: AbstractModel) -> Tempered:
    if isinstance(model, Tempered):
        return model
    raise CapabilityError(
        f"Annealed importance sampling cannot be used with {type(model).__name__}: it needs Tempered "
        "(base, base_log_z, reduced_energy)."
    )


def _check(n_chains: int, **counts: int) -> None:
    for name, value, least in (
        ("n_chains", n_chains, 2),
        *((name, value, 1) for name, value in counts.items()),
    ):
        if value < least:
            raise ParameterError(f"{name} must be at least {least}, got {value!r}.")
