"""The log-likelihood of undirected models: mean log p(x) = −mean F(x) − log Z, exact or from both sides."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core.capabilities import (
    Amortised,
    Bounded,
    Conditional,
    FreeEnergy,
    KnownLogZ,
    NormalisedJoint,
    PartlyDirected,
    Tempered,
)
from latentia.core.errors import CapabilityError, NotNormalisableError, UnknownNameError
from latentia.core.model import AbstractModel
from latentia.likelihood import ais, enumeration
from latentia.likelihood.enumeration import LIMIT, can_enumerate
from latentia.likelihood.evidence import Evidence, evidence
from latentia.likelihood.precision import double, to_double
from latentia.likelihood.result import LogLikelihood, LogZ
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
    normaliser: LogZ | None = None,
) -> LogLikelihood:
    """Mean log p(x) of a model with a free energy, or of one whose visibles can be clamped.

    The arguments are those of :func:`latentia.likelihood.log_likelihood`.
    """
    evidence_key, key = jax.random.split(key)
    if normaliser is None:
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
    return joined(data, normaliser)


def joined(data: Evidence, normaliser: LogZ) -> LogLikelihood:
    """mean −F(x) less log Z, both from both sides."""
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
    """log Z; the arguments are those of :func:`latentia.likelihood.log_likelihood`."""
    if method not in METHODS:
        raise UnknownNameError("likelihood method", method, METHODS)
    if isinstance(model, Amortised):
        return LogZ(0.0, 0.0, 0.0, 0.0, "exact (normalised)")
    if isinstance(model, Conditional):
        raise CapabilityError(
            f"{type(model).__name__} has a log Z for every context: use log_z(model.given(context)), or "
            "log_likelihood(model, x) with a context for every row."
        )
    if isinstance(model, PartlyDirected):
        model = model.summit
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
