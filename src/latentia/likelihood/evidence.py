"""log Σ_z exp(−E(x, z)) = −F(x) of given examples, for models whose latents have no closed-form sum.

With x clamped, the rest is a model of z whose log Z is −F(x). If it is small it is enumerated; otherwise it
is bounded from both sides, example by example, by annealing between the mean-field posterior q, which is
normalised, and p(z | x):

    E log w ≤ −F(x)   from q upwards,        E log(1/w′) ≥ −F(x)   from draws of p(z | x) downwards.

Mean field is near the truth, so the path is short, and both sides lie inside what q alone gives. The logarithms
are averaged over examples, hence the two are bounds in expectation, and the error bars only hold the noise of
annealing.
References: Neal (2001); Grosse, Ghahramani and Adams (2015) for the two sides.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import numpy as np
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import space
from latentia.core.capabilities import Clamps, FreeEnergy
from latentia.core.conditioning import kind, resolved
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractModel
from latentia.inference.mean_field import MeanFieldInference
from latentia.likelihood import enumeration
from latentia.likelihood.annealing import anneal_chain, path
from latentia.likelihood.precision import batch_to_double, double, to_double
from latentia.ops.arrays import batch_size, cast_like
from latentia.ops.compiling import jitted

#: Annealing runs per example and direction: two are enough to estimate their noise.
N_RUNS = 2
N_STDERR = 2.0
_ROWS = 4096
_INFERENCE = MeanFieldInference()


@dataclasses.dataclass(frozen=True)
class Evidence:
    """Mean −F(x) over examples, from both sides, and per example."""

    lower: float
    upper: float
    estimate: float
    stderr: float
    method: str
    each: np.ndarray
    details: dict[str, Any] = dataclasses.field(default_factory=dict)


def evidence(
    model: AbstractModel,
    x: Any,
    *,
    key: PRNGKeyArray | None,
    method: str = "auto",
    limit: int = enumeration.LIMIT,
    n_temperatures: int = 100,
    n_steps: int = 100,
) -> Evidence:
    """Mean −F(x) of a batch.

    Args:
        model: a model with ``FreeEnergy`` (exact), or with ``Clamps``.
        x: a batch of visible values.
        key: random key; unused where the answer is exact.
        method: "exact", "ais", or "auto": exact where it is possible.
        limit: how many states of the latents, and of what was not observed, may be enumerated.
        n_temperatures: annealing steps between q and p(z | x).
        n_steps: Gibbs sweeps from q to p(z | x).
    """
    if isinstance(kind(model), FreeEnergy):
        return _exact(-by_rows(_free_energies, model, x)[0], "")
    log_count = space.log_count(_unseen(model, x))
    if method == "exact" and not np.isfinite(log_count):
        raise CapabilityError(
            "Part of what was not observed is real-valued and cannot be enumerated, so there is no exact F(x). Use "
            "method='ais'."
        )
    small = log_count <= np.log(limit) + 1e-9
    if method == "exact" and not small:
        raise ParameterError(
            f"An exact F(x) of this {type(model).__name__} needs 2^{log_count / np.log(2):.4g} states per example, "
            f"more than the limit of {limit:,}. Use method='ais', or raise the limit."
        )
    if method != "ais" and small:
        return _exact(-by_rows(_enumerated, model, x)[0], "exact p(z | x)")
    betas = path(n_temperatures)
    bound, forward, reverse = by_rows(_bracketed, model, x, betas, n_steps, key=key)
    return _between(bound, forward, reverse, f"p(z | x) by AIS both ways ({n_temperatures} temperatures)")


def variational_bounds(model: Clamps, x: Any) -> np.ndarray:
    """H(q) − E_q[E(x, z)] ≤ −F(x) of every example, q by mean field."""
    return by_rows(_bounds, model, x)[0]


def _unseen(model: Any, x: Any) -> Any:
    """The spaces that clamping leaves free: those of the latents, and of the parts of x that are None."""
    row = cast_like(jax.tree.map(lambda a: a[0], x), model)
    return eqx.filter_eval_shape(_clamped, model, row).z_space


def _clamped(model: Any, row: Any) -> Any:
    model, x = resolved(model, row)
    return model.clamped(x)


def _exact(each: np.ndarray, method: str) -> Evidence:
    mean = float(np.mean(each))
    return Evidence(mean, mean, mean, 0.0, method, each)


def _between(bound: np.ndarray, forward: np.ndarray, reverse: np.ndarray, method: str) -> Evidence:
    below, above = float(forward.mean()), float(reverse.mean())
    noise = [float(np.sqrt(np.mean(np.var(runs, axis=1, ddof=1)) / runs.size)) for runs in (forward, reverse)]
    # The variational bound is one too, and without noise.
    lower = max(float(bound.mean()), min(below, above) - N_STDERR * noise[0])
    upper = max(above, below) + N_STDERR * noise[1]
    details = {"variational_bound": float(bound.mean()), "evidence_lower": below, "evidence_upper": above}
    estimate = min(max(0.5 * (below + above), lower), upper)
    each = 0.5 * (forward.mean(axis=1) + reverse.mean(axis=1))
    return Evidence(lower, upper, estimate, max(*noise, 0.5 * abs(above - below)), method, each, details)


def by_rows(
    function: Any, model: Any, x: Any, *arguments: Any, key: PRNGKeyArray | None = None
) -> list[np.ndarray]:
    """``function(model, rows, keys, *arguments)`` in float64, a bounded number of rows at a time."""
    n = batch_size(x)
    rows = min(n, _ROWS)
    keys = None if key is None else jax.random.split(key, n)
    parts = []
    with double():
        model = to_double(model)
        for first in range(0, n, rows):
            # The last batch starts early enough to be full, so that one shape is compiled.
            begin = min(first, n - rows)
            part = batch_to_double(jax.tree.map(lambda a, i=begin: a[i : i + rows], x))
            chosen = None if keys is None else keys[begin : begin + rows]
            results = function(model, part, chosen, *arguments)
            parts.append([np.asarray(result)[first - begin :] for result in results])
    return [np.concatenate(column) for column in zip(*parts, strict=True)]


@jitted
def _free_energies(model: Any, x: Any, keys: Any) -> tuple[Float[Array, " n"]]:
    del keys

    def one(row: Any) -> Any:
        found, x = resolved(model, row)
        return found.free_energy(x)

    return (jax.vmap(one)(x),)


@jitted
def _enumerated(model: Any, x: Any, keys: Any) -> tuple[Float[Array, " n"]]:
    del keys
    return (jax.lax.map(lambda row: -enumeration.sum_states(_clamped(model, row), "joint"), x),)


@jitted
def _bounds(model: Any, x: Any, keys: Any) -> tuple[Float[Array, " n"]]:
    del keys

    def one(row: Any) -> Any:
        found, x = resolved(model, row)
        return -found.clamped(x).variational_energy(_INFERENCE.infer(found, x))

    return (jax.vmap(one)(x),)


@jitted
def _bracketed(model: Any, x: Any, keys: Any, betas: Any, n_steps: int) -> tuple[Any, Any, Any]:
    """(variational bound, forward, reverse) estimates of −F(x), the latter two with an axis of runs."""

    def run(clamped: Any, base: Any, q: Any, key: Any) -> tuple[Any, Any]:
        start_key, settle_key, *keys = jax.random.split(key, 4)
        z = q.sample(key=start_key)
        forward, *_ = anneal_chain(base, clamped, betas, (), z, key=keys[0])
        settle = lambda z, key: (clamped.sweep((), z, key=key)[1], None)  # noqa: E731
        z, _ = jax.lax.scan(settle, z, jax.random.split(settle_key, n_steps))
        reverse, *_ = anneal_chain(base, clamped, betas[::-1], (), z, key=keys[1])
        return forward, reverse

    def one(row: Any, key: Any) -> tuple[Any, Any, Any]:
        found, x = resolved(model, row)
        clamped, q = found.clamped(x), _INFERENCE.infer(found, x)
        base = clamped.base_at(q)
        forward, reverse = jax.vmap(lambda key: run(clamped, base, q, key))(jax.random.split(key, N_RUNS))
        offset = base.base_log_z()
        return -clamped.variational_energy(q), offset + forward, offset - reverse

    return jax.vmap(one)(x, keys)
