"""Honest likelihoods: exact where that is possible, two-sided where it is not.

``log_likelihood`` and ``log_z`` choose by what the model can do: a normalised model and one with a side small
enough to enumerate are exact; a model with a path to a base of known log Z is bracketed by forward and
reverse annealed importance sampling. Everything runs in float64.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.errors import CapabilityError, DataError, NotNormalisableError, UnknownNameError
from latentia.core.model import AbstractModel, Bounded, FreeEnergy, Normalised, Tempered
from latentia.likelihood import ais, enumeration
from latentia.likelihood.enumeration import LIMIT, can_enumerate
from latentia.likelihood.equilibrium import Equilibrium, equilibrium
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.likelihood.pseudo import can_pseudo, pseudo_log_likelihood
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.ops.arrays import batch_size

METHODS = ("auto", "exact", "ais")
_ROWS = 4096


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
    start: Any = None,
) -> LogLikelihood:
    """Mean log-likelihood per example, mean log p(x) = −mean F(x) − log Z, in nats.

    Args:
        model: a model with a free energy.
        x: a batch of visible values (a pytree with one leading axis).
        key: random key; unused where the answer is exact.
        method: ``"exact"`` (normalised, or by enumeration), ``"ais"``, or ``"auto"``: exact where possible.
        limit: how many states may be enumerated.
        n_temperatures: see :func:`latentia.likelihood.ais.log_z`, as the following.
        n_chains: annealing runs in each direction.
        n_replicas: rungs of the ladder of the equilibrium chains.
        n_burn_in: their adapting steps.
        n_steps: their steps after that.
        start: where they start: training examples or persistent chains.
    """
    if not isinstance(model, FreeEnergy):
        raise CapabilityError(f"A log-likelihood of {type(model).__name__} needs FreeEnergy (free_energy).")
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
    energies = free_energies(model, x)
    mean = -float(np.mean(energies))
    details = {
        **normaliser.details,
        "mean_free_energy": -mean,
        "n_examples": energies.size,
        "log_z": normaliser.estimate,
        "log_z_lower": normaliser.lower,
        "log_z_upper": normaliser.upper,
    }
    return LogLikelihood(
        mean - normaliser.upper,
        mean - normaliser.lower,
        mean - normaliser.estimate,
        normaliser.stderr,
        normaliser.method,
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
    if method != "ais" and isinstance(model, Normalised):
        return LogZ(0.0, 0.0, 0.0, 0.0, "exact (normalised)")
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


def free_energies(model: AbstractModel, x: Any) -> np.ndarray:
    """F(x) of every example of a batch, in float64 and a bounded number of rows at a time."""
    if not isinstance(model, FreeEnergy):
        raise CapabilityError(f"{type(model).__name__} lacks FreeEnergy (free_energy).")
    n = batch_size(x)
    if n == 0:
        raise DataError("There are no examples: the batch has no rows.")
    rows = min(n, _ROWS)
    values = []
    with double():
        model = to_double(model)
        for first in range(0, n, rows):
            # The last batch starts early enough to be full, so that one shape is compiled.
            begin = min(first, n - rows)
            part = batch_to_double(jax.tree.map(lambda a, i=begin: a[i : i + rows], x))
            values.append(np.asarray(_free_energies(model, part))[first - begin :])
    return np.concatenate(values)


@eqx.filter_jit
def _free_energies(model: Any, x: Any) -> Float[Array, " n"]:
    return jax.vmap(model.free_energy)(x)


__all__ = [
    "LIMIT",
    "METHODS",
    "Equilibrium",
    "LogLikelihood",
    "LogZ",
    "can_enumerate",
    "can_pseudo",
    "equilibrium",
    "free_energies",
    "log_likelihood",
    "log_z",
    "pseudo_log_likelihood",
]
