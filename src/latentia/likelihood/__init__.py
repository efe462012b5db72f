"""Likelihoods with error bars: exact if possible, otherwise a lower and an upper bound.

``log_likelihood`` and ``log_z`` work for every model and choose the method by its capabilities:

- undirected models (``FreeEnergy`` or ``Clamps``): log Z is exact if the model is normalised, if it is known or if
  the visible or the latent states can be enumerated. Otherwise a path to a base of known log Z (``Tempered``)
  bounds it by annealed importance sampling forward and backward. F(x) is exact, or bounded by annealing with x
  clamped.
- directed models (``Amortised``): importance sampling from below and reverse annealing from above.
- directed layers under an undirected model (``PartlyDirected``): a lower bound by importance sampling.
- conditional models (``Conditional``): the method for ``given(c)``, with a log Z for every context.

All computations are in float64.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, cast

import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.capabilities import Amortised, Clamps, Conditional, FreeEnergy, PartlyDirected
from latentia.core.conditioning import kind
from latentia.core.errors import CapabilityError, DataError, ParameterError
from latentia.core.model import AbstractModel
from latentia.likelihood import conditional, importance, partly_directed, undirected
from latentia.likelihood.enumeration import LIMIT, can_enumerate
from latentia.likelihood.equilibrium import Equilibrium, equilibrium
from latentia.likelihood.evidence import Evidence, evidence, variational_bounds
from latentia.likelihood.pseudo import can_pseudo, pseudo_log_likelihood
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.likelihood.undirected import METHODS, log_z
from latentia.ops.arrays import batch_size


def log_likelihood(
    model: AbstractModel,
    x: Any,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    limit: int = LIMIT,
    start: Any = None,
    normaliser: LogZ | None = None,
    **options: Any,
) -> LogLikelihood:
    """Mean log-likelihood per example, in nats.

    Args:
        model: any model whose likelihood can be found; see :mod:`latentia.likelihood`.
        x: a batch of visible values (a pytree with one leading axis); for conditional models ``{"y": …, "c": …}``.
        key: random key; unused where the answer is exact.
        method: ``"exact"`` (normalised, or by enumeration), ``"ais"``, or ``"auto"``: exact where possible; for
            directed models also ``"importance"``, the lower bound alone.
        limit: how many states may be enumerated.
        start: where the equilibrium chains of log Z start: training examples or persistent chains. Models without
            such chains have no use for it.
        normaliser: log Z of an undirected or partly directed model, if it is known already.
        options: of undirected, partly directed and conditional models ``n_temperatures``, ``n_chains``,
            ``n_replicas``, ``n_burn_in`` and ``n_steps``, see :func:`latentia.likelihood.ais.log_z`; where F(x)
            itself has to be bracketed, ``n_posterior_temperatures`` and ``n_posterior_steps``, see
            :func:`latentia.likelihood.evidence.evidence`. Of directed models those of
            :func:`latentia.likelihood.importance.log_likelihood`; of partly directed ones also ``n_samples``.
    """
    evaluate = _evaluator(model)
    taken = inspect.signature(evaluate).parameters
    if normaliser is not None:
        options["normaliser"] = normaliser
    unknown = [name for name in options if name not in taken]
    if unknown:
        known = [name for name in taken if name not in ("model", "x", "key", "start")]
        raise ParameterError(
            f"The likelihood of {type(model).__name__} has no option {unknown[0]!r}. It has: {', '.join(known)}."
        )
    if batch_size(x) == 0:
        raise DataError("There are no examples: the batch has no rows.")
    if start is not None and "start" in taken:
        options["start"] = start
    return evaluate(model, x, key=key, method=method, limit=limit, **options)


def _evaluator(model: AbstractModel) -> Callable[..., LogLikelihood]:
    found = kind(model)
    if isinstance(found, Amortised):
        return importance.log_likelihood
    if isinstance(found, PartlyDirected):
        return partly_directed.log_likelihood
    if isinstance(found, FreeEnergy | Clamps):
        return conditional.log_likelihood if isinstance(model, Conditional) else undirected.log_likelihood
    raise CapabilityError(
        f"A log-likelihood of {type(found).__name__} needs FreeEnergy (free_energy) or Clamps (clamped)."
    )


def log_probabilities(
    model: AbstractModel, x: Any, *, key: PRNGKeyArray, limit: int = LIMIT, n_samples: int = 100, log_z: float = 0.0
) -> np.ndarray:
    """log p(x) of every row of a batch for a given log Z, in float64: exact, or the lower bound that there is.

    Args:
        model: an undirected, directed or partly directed model.
        x: a batch of visible values.
        key: random key; unused where the answer is exact.
        limit: how many states of a directed model's latents may be summed over.
        n_samples: draws of the latents for every row, where the bound is by importance sampling.
        log_z: log Z of the model, 0 where it is normalised.
    """
    found, able = kind(model), cast(Any, model)
    if isinstance(found, Amortised):
        if space.log_count(found.z_space) <= np.log(limit):
            return importance.exact_rows(able, x)
        return importance.row_bounds(able, x, key=key, n_samples=n_samples).iwae
    if isinstance(model, PartlyDirected):
        return partly_directed.row_bounds(model, x, key=key, n_samples=n_samples)[0] - log_z
    return -free_energies(model, x) - log_z


def free_energies(model: AbstractModel, x: Any) -> np.ndarray:
    """F(x) of every example of a batch, in float64; an upper bound by mean field where it is out of reach."""
    if isinstance(kind(model), FreeEnergy):
        return -evidence(model, x, key=None).each
    if isinstance(kind(model), Clamps):
        return -variational_bounds(cast(Any, model), x)
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
    "log_probabilities",
    "log_z",
    "pseudo_log_likelihood",
    "variational_bounds",
]
