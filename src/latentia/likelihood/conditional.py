"""The likelihood of conditional models: mean log p(y | c) = −mean [F(y; c) + log Z(c)], log Z of every context.

log Z(c) is exact where given(c) is normalised, where its log Z is known or where one of its sides can be
enumerated, row by row in one compiled loop. Otherwise every context is annealed in both directions, equal ones
once, by random numbers that follow from the context. The interval's ends are the means of the contexts' ends; the
errors of different contexts are independent.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import Bounded, Conditional, KnownLogZ, Normalised, Tempered
from latentia.core.conditioning import kind, parted
from latentia.core.errors import CapabilityError, NotNormalisableError, UnknownNameError
from latentia.likelihood import ais, enumeration
from latentia.likelihood.enumeration import LIMIT, can_enumerate, sum_states
from latentia.likelihood.evidence import by_rows, evidence
from latentia.likelihood.importance import fingerprints
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.likelihood.result import LogLikelihood, LogZ
from latentia.likelihood.undirected import METHODS, joined
from latentia.ops.compiling import jitted


def log_likelihood(
    model: Conditional,
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
) -> LogLikelihood:
    """Mean log p(y | c) of a batch ``{"y": …, "c": …}``; the arguments are those of the undirected likelihood."""
    evidence_key, key = jax.random.split(key)
    annealing = {
        "n_temperatures": n_temperatures,
        "n_chains": n_chains,
        "n_replicas": n_replicas,
        "n_burn_in": n_burn_in,
        "n_steps": n_steps,
    }
    normaliser = mean_log_z(model, parted(model, x)[1], key=key, method=method, limit=limit, **annealing)
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


def mean_log_z(
    model: Conditional,
    contexts: Any,
    *,
    key: PRNGKeyArray,
    method: str = "auto",
    limit: int = LIMIT,
    **annealing: int,
) -> LogZ:
    """The mean of log Z(c) over a batch of contexts; options as of :func:`latentia.likelihood.ais.log_z`."""
    if method not in METHODS:
        raise UnknownNameError("likelihood method", method, METHODS)
    found = kind(model)
    if isinstance(found, Bounded):
        _check_margins(model, contexts)
    if method != "ais" and isinstance(found, Normalised):
        return LogZ(0.0, 0.0, 0.0, 0.0, "exact (normalised)")
    if method != "ais" and isinstance(found, KnownLogZ):
        return _mean(by_rows(_known, model, contexts)[0], "exact (closed form)")
    small = can_enumerate(found, limit)
    if method == "exact" and not small:
        enumeration.log_z(found, limit=limit)  # says what stands in the way
    if method != "ais" and small:
        side = enumeration.smallest_side(found)
        each = by_rows(_enumerated, model, contexts, side.name)[0]
        return _mean(each, f"exact (enumeration of {side.count} {side.name} states per context)")
    if not isinstance(found, Tempered):
        raise CapabilityError(
            f"No way to find log Z(c) of {type(model).__name__}: given(c), a {type(found).__name__}, is not "
            f"Normalised, has no discrete side with at most {limit:,} states, and lacks Tempered (base, "
            "base_log_z, reduced_energy) for annealed importance sampling."
        )
    return _annealed(model, contexts, key, annealing)


def _mean(each: np.ndarray, method: str) -> LogZ:
    value = float(np.mean(each))
    return LogZ(value, value, value, 0.0, method)


def _annealed(model: Conditional, contexts: Any, key: PRNGKeyArray, annealing: dict[str, int]) -> LogZ:
    """The mean over contexts of log Z from both sides; equal contexts share one run."""
    codes = fingerprints(contexts)
    rows = np.concatenate([np.asarray(leaf).reshape(len(codes), -1) for leaf in jax.tree.leaves(contexts)], axis=1)
    _, firsts, counts = np.unique(rows, axis=0, return_index=True, return_counts=True)
    found = []
    with double():
        wide = to_double(model)
        for row in firsts:
            context = batch_to_double(jax.tree.map(lambda a, row=row: np.asarray(a)[row], contexts))
            found.append(ais.log_z(wide.given(context), key=jax.random.fold_in(key, codes[row]), **annealing))
    shares = counts / counts.sum()
    mean = lambda name: float(shares @ [getattr(each, name) for each in found])  # noqa: E731
    details: dict[str, Any] = {"n_contexts": len(found)}
    warnings = Counter(each.warning for each in found if each.warning)
    if warnings:
        text, _ = warnings.most_common(1)[0]
        details["warning"] = f"{sum(warnings.values())} of {len(found)} contexts have a warning, such as: {text}"
    stderr = float(np.sqrt(np.sum((shares * [each.stderr for each in found]) ** 2)))
    method = f"{found[0].method} for each of {len(found)} contexts"
    return LogZ(mean("lower"), mean("upper"), mean("estimate"), stderr, method, details)


def _check_margins(model: Conditional, contexts: Any) -> None:
    margins = by_rows(_margins, model, contexts)[0]
    if not (margins > 0).all():
        worst = jax.tree.map(lambda a: np.asarray(a)[int(np.argmin(margins))], contexts)
        raise NotNormalisableError(_of(model, worst).margin_message())


def _of(model: Any, context: Any) -> Any:
    with double():
        return to_double(model).given(batch_to_double(context))


@jitted
def _margins(model: Any, contexts: Any, keys: Any) -> tuple[Float[Array, " n"]]:
    del keys
    return (jax.lax.map(lambda c: model.given(c).margin(), contexts),)


@jitted
def _known(model: Any, contexts: Any, keys: Any) -> tuple[Float[Array, " n"]]:
    del keys
    return (jax.lax.map(lambda c: model.given(c).log_z(), contexts),)


@jitted
def _enumerated(model: Any, contexts: Any, keys: Any, name: str) -> tuple[Float[Array, " n"]]:
    del keys
    return (jax.lax.map(lambda c: sum_states(model.given(c), name), contexts),)
