"""Honest likelihoods: exact where that is possible, two-sided where it is not.

``log_likelihood`` and ``log_z`` choose by what the model can do: a normalised model, one whose log Z is known and
one with a side small enough to enumerate are exact; a model with a path to a base of known log Z is bracketed by
forward and reverse annealed importance sampling. Everything runs in float64.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core.capabilities import Bounded, Clamps, FreeEnergy, KnownLogZ, NormalisedJoint, Tempered
from latentia.core.errors import CapabilityError, DataError, NotNormalisableError, UnknownNameError
from latentia.core.model import AbstractModel
from latentia.likelihood import ais, enumeration
from latentia.likelihood.enumeration import LIMIT, can_enumerate
from latentia.likelihood.equilibrium import Equilibrium, equilibrium
from latentia.likelihood.evidence import Evidence, evidence, variational_bounds
from latentia.likelihood.precision import double, to_double
from latentia.likelihood.pseudo import can_pseudo, pseudo_log_likelihood
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.ops.arrays import batch_size
from latentia.ops.compiling import jitted

METHODS = ("auto", "exact", "ais")


def log_likelihood(
    model: AbstractModel,
    x: Any,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    limit: int = LIMIT,
    n_temperatures: int = 2000,
    n_chains: int = 256,
    n_replicas: int = 10,
    n_burn_in: int = 500,
    n_steps: int = 500,
    n_posterior_temperatures: int = 100,
    n_posterior_steps: int = 100,
    start: Any = None,
) -> LogLikelihood:
    """Mean log-likelihood per example, mean log p(x) = −mean F(x) − log Z, in nats.

    Args:
        model: a model with a free energy, or one whose visibles can be clamped.
        x: a batch of visible values (a pytree with one leading axis).
        key: random key; unused where the answer is exact.
        method: ``"exact"`` (normalised, or by enumeration), ``"ais"``, or ``"auto"``: exact where possible.
        limit: how many states may be enumerated.
        n_temperatures: see :func:`latentia.likelihood.ais.log_z`, as the following.
        n_chains: annealing runs in each direction.
        n_replicas: rungs of the ladder of the equilibrium chains.
        n_burn_in: their adapting steps.
        n_steps: their steps after that.
        n_posterior_temperatures: annealing steps per example where F(x) itself has to be bracketed; see
            :func:`latentia.likelihood.evidence.evidence`.
        n_posterior_steps: sweeps from mean field to p(z | x) for that.
        start: where they start: training examples or persistent chains.
    """
    if not isinstance(model, FreeEnergy | Clamps):
        raise CapabilityError(
            f"A log-likelihood of {type(model).__name__} needs FreeEnergy (free_energy) or Clamps (clamped)."
        )
    if batch_size(x) == 0:
        raise DataError("There are no examples: the batch has no rows.")
    evidence_key, key = jax.random.split(key)
    normaliser = log_z(
        model,
        key=key,
        method=method,
        limit=limit,
        n_temperatures=n_temperatures,
        n_chains=n_chains,
        n_replicas=n_replicas,
        n_burn_in=n_burn_in,
        n_steps=n_steps,
        start=start,
    )
    data = evidence(
        model,
        x,
        key=evidence_key,
        method=method,
        limit=limit,
        n_temperatures=n_posterior_temperatures,
        n_steps=n_posterior_steps,
    )
    details = {
        **normaliser.details,
        **data.details,
        "mean_free_energy": -data.estimate,
        "n_examples": data.each.size,
        "log_z": normaliser.estimate,
        "log_z_lower": normaliser.lower,
        "log_z_upper": normaliser.upper,
    }
    return LogLikelihood(
        data.lower - normaliser.upper,
        data.upper - normaliser.lower,
        data.estimate - normaliser.estimate,
        float(np.hypot(normaliser.stderr, data.stderr)),
        "; ".join(filter(None, (normaliser.method, data.method))),
        details,
    )


def log_z(
    model: AbstractModel,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    limit: int = LIMIT,
    n_temperatures: int = 2000,
    n_chains: int = 256,
    n_replicas: int = 10,
    n_burn_in: int = 500,
    n_steps: int = 500,
    start: Any = None,
) -> LogZ:
    """log Z; the arguments are those of :func:`log_likelihood`."""
    if method not in METHODS:
        raise UnknownNameError("likelihood method", method, METHODS)
    if isinstance(model, Bounded) and not float(model.margin()) > 0:
        raise NotNormalisableError(model.margin_message())
    if isinstance(model, NormalisedJoint) and (method != "ais" or not isinstance(model, FreeEnergy)):
        return LogZ(0.0, 0.0, 0.0, 0.0, "exact (normalised)")
    if method != "ais" and isinstance(model, KnownLogZ):
        with double():
            value = float(_known_log_z(to_double(model)))
        return LogZ(value, value, value, 0.0, "exact (closed form)")
    if method == "exact" or (method == "auto" and can_enumerate(model, limit)):
        return enumeration.log_z(model, limit=limit)
    if method == "auto" and not isinstance(model, Tempered):
        raise CapabilityError(
            f"No way to find log Z of {type(model).__name__}: it is not Normalised, has no discrete side "
            f"with at most {limit:,} states, and lacks Tempered (base, base_log_z, reduced_energy) for "
            "annealed importance sampling."
        )
    return ais.log_z(
        model,
        key=key,
        n_temperatures=n_temperatures,
        n_chains=n_chains,
        n_replicas=n_replicas,
        n_burn_in=n_burn_in,
        n_steps=n_steps,
        start=start,
    )


@jitted
def _known_log_z(model: KnownLogZ) -> Any:
    return model.log_z()


def free_energies(model: AbstractModel, x: Any) -> np.ndarray:
    """F(x) of every example of a batch, in float64; an upper bound by mean field where it is out of reach."""
    if isinstance(model, FreeEnergy):
        return -evidence(model, x, key=None).each
    if isinstance(model, Clamps):
        return -variational_bounds(model, x)
    raise CapabilityError(f"{type(model).__name__} lacks FreeEnergy (free_energy) and Clamps (clamped).")


__all__ = [
    "LIMIT",
    "METHODS",
    "Equilibrium",
    "Evidence",
    "LogLikelihood",
    "LogZ",
    "can_enumerate",
    "can_pseudo",
    "equilibrium",
    "evidence",
    "free_energies",
    "log_likelihood",
    "log_z",
    "pseudo_log_likelihood",
    "variational_bounds",
]
