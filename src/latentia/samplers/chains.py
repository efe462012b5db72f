"""Many chains in parallel: start them, run them, and draw samples with diagnostics."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core import conditioning
from latentia.core.algorithms import AbstractSampler, require
from latentia.core.errors import ParameterError
from latentia.ops.arrays import batch_size, cast_like
from latentia.ops.compiling import jitted
from latentia.ops.loops import unrolled
from latentia.samplers.diagnostics import diagnose


def start(sampler: AbstractSampler, model: Any, x: Any, *, key: PRNGKeyArray, contexts: Any = None) -> Any:
    """The states of many chains, one starting at each row of ``x``.

    Of a conditional model ``x`` is y, and ``contexts`` has one for every chain, here and in :func:`advance`.
    """
    x, contexts = cast_like((x, contexts), model)
    keys = jax.random.split(key, batch_size(x))
    return conditioning.over_rows(lambda model, x, key: sampler.init(model, x, key=key), model, contexts)(x, keys)


def advance(
    sampler: AbstractSampler,
    model: Any,
    states: Any,
    *,
    key: PRNGKeyArray,
    fixed: Any = None,
    contexts: Any = None,
) -> tuple[Any, Any]:
    """One step of many chains: (states, infos)."""
    keys = jax.random.split(key, batch_size(states))

    def one(model: Any, state: Any, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Any]:
        return sampler.step(model, state, key=key, fixed=fixed)

    rows = (states, keys) if fixed is None else (states, keys, fixed)
    return conditioning.over_rows(one, model, cast_like(contexts, model))(*rows)


def run(
    sampler: AbstractSampler,
    model: Any,
    states: Any,
    n_steps: int,
    *,
    key: PRNGKeyArray,
    adapt: bool = False,
    fixed: Any = None,
    contexts: Any = None,
) -> tuple[AbstractSampler, Any]:
    """``n_steps`` steps of many chains in one scan: (sampler, states); the sampler adapts if required."""

    def body(carry: Any, key: PRNGKeyArray) -> tuple[Any, None]:
        sampler, states = carry
        states, info = advance(sampler, model, states, key=key, fixed=fixed, contexts=contexts)
        return (sampler.adapt(info) if adapt else sampler, states), None

    keys = jax.random.split(key, n_steps)
    (sampler, states), _ = jax.lax.scan(body, (sampler, states), keys, unroll=unrolled(n_steps))
    return sampler, states


class Chains(NamedTuple):
    """Diagnostics of a run of :func:`sample`, and the state to continue it.

    ``diagnosis`` holds ``r_hat`` (the largest over all entries of x), ``ess`` (the smallest), and of samplers that
    accept and reject ``acceptance``, ``step_size`` and ``divergences`` (how many transitions diverged).
    """

    diagnosis: dict[str, float]
    sampler: AbstractSampler
    states: Any


def sample(
    sampler: AbstractSampler,
    model: Any,
    x: Any,
    n_steps: int,
    *,
    key: PRNGKeyArray,
    n_warmup: int | None = None,
    thin: int = 1,
    fixed: Any = None,
) -> tuple[Any, Chains]:
    """Draws of many chains, one from each row of ``x``, in one compiled run.

    Args:
        sampler: adapts during the warm-up only.
        model: what to draw from.
        x: where the chains start, with a leading axis; of a conditional model ``{"y": …, "c": …}``, and every chain
            keeps its context and draws y.
        n_steps: steps of each chain after the warm-up.
        key: random key.
        n_warmup: steps before, whose draws are dropped; half of ``n_steps`` if None.
        thin: keep every so many-th step.
        fixed: booleans like ``x`` (of a conditional model like y); entries that are True stay, the others follow
            p(free | fixed).

    Returns:
        (draws, chains): x with two leading axes, ``(n_steps // thin, n_chains, …)``, and :class:`Chains`.
    """
    require(sampler, model)
    n_warmup = n_steps // 2 if n_warmup is None else n_warmup
    if thin < 1 or n_steps < thin or n_warmup < 0:
        raise ParameterError(
            f"A run needs thin ≥ 1, n_steps ≥ thin and n_warmup ≥ 0, got {thin=}, {n_steps=}, {n_warmup=}."
        )
    x, contexts = conditioning.parted(model, cast_like(x, model))
    facts = _sample(sampler, model, x, contexts, fixed, n_warmup, n_steps // thin, thin, key)
    sampler, states, draws, metrics = facts
    counts = {name: float(jnp.mean(value)) for name, value in metrics.items()}
    if "divergent" in counts:  # a share of all transitions
        counts["divergences"] = round(counts.pop("divergent") * (n_steps // thin) * thin * batch_size(x))
    return draws, Chains({**diagnose(draws), **counts}, sampler, states)


@jitted
def _sample(
    sampler: Any,
    model: Any,
    x: Any,
    contexts: Any,
    fixed: Any,
    n_warmup: int,
    n_draws: int,
    thin: int,
    key: PRNGKeyArray,
) -> tuple[Any, Any, Any, Any]:
    start_key, warmup_key, run_key = jax.random.split(key, 3)
    sampler = sampler.sized(x)
    states = start(sampler, model, x, key=start_key, contexts=contexts)
    kept_fixed = {"fixed": fixed, "contexts": contexts}
    if n_warmup:
        sampler, states = run(sampler, model, states, n_warmup, key=warmup_key, adapt=True, **kept_fixed)

    def one(states: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
        states, info = advance(sampler, model, states, key=key, **kept_fixed)
        return states, sampler.metrics(info)

    def kept(states: Any, key: PRNGKeyArray) -> tuple[Any, Any]:
        states, metrics = jax.lax.scan(one, states, jax.random.split(key, thin))
        return states, (jax.vmap(sampler.visible)(states), jax.tree.map(jnp.mean, metrics))

    states, (draws, metrics) = jax.lax.scan(kept, states, jax.random.split(run_key, n_draws))
    return sampler, states, draws, metrics
