"""The compiled inner loop: a chunk of learning steps as one scan, cached by structure and shape."""

from __future__ import annotations

import abc
import functools
import time
from collections import OrderedDict
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractLearner
from latentia.core.sharding import split
from latentia.ops.arrays import all_finite, batch_size, largest, n_numbers
from latentia.ops.compiling import program_size, untuned

#: At most this many compiled loops are kept, the ones used last.
MOST_LOOPS = 64
#: At most this many bytes of compiled loops are kept, as :func:`latentia.ops.compiling.program_size` counts them.
MOST_BYTES = 32 * 1024**2
#: Parameters and states with fewer numbers than this make small steps.
SMALL = 2_000_000


class AbstractPrepare(eqx.Module):
    """Turns a batch of data rows into a batch of visibles, anew at every step."""

    @abc.abstractmethod
    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Rows ``(n, …)`` → visibles with a leading axis of length n."""


class Inputs(eqx.Module):
    """What a chunk reads."""

    learner: AbstractLearner
    prepare: AbstractPrepare
    data: Any
    weights: Any
    rows: Any
    key: PRNGKeyArray
    period: int = eqx.field(static=True)
    long: bool = eqx.field(static=True)  # whether the run is long enough to be worth a longer compilation


class Carry(eqx.Module):
    """What a chunk changes."""

    model: Any
    state: Any


class _Loop(NamedTuple):
    """A compiled chunk: arrays of the inputs, arrays of the carry → arrays of the next carry, results."""

    run: Any
    size: int


_CACHE: OrderedDict[Any, _Loop] = OrderedDict()


def _chunk(inputs: Inputs, carry: Carry) -> tuple[Carry, dict]:
    """Steps in groups of ``inputs.period``, the last of each group a full one."""
    arrays, static = eqx.partition(carry, eqx.is_array)
    streamed = inputs.rows is None
    steps = inputs.data if streamed else inputs.rows
    period, unroll = inputs.period, _unroll(arrays) if inputs.long else 1

    def step(arrays: Any, each: Any, since: int) -> tuple[Any, Any]:
        picked, weights, keys = each
        carry = eqx.combine(arrays, static)
        batch = picked if streamed else jax.tree.map(lambda leaf: leaf[picked], inputs.data)
        if not streamed and inputs.weights is not None:
            weights = inputs.weights[picked]
        x = inputs.prepare(split(batch), key=keys[0])
        model, state, metrics = inputs.learner.step(carry.model, x, weights, carry.state, key=keys[1], since=since)
        return eqx.filter(Carry(model, state), eqx.is_array), metrics if since else None

    def group(arrays: Any, each: Any) -> tuple[Any, Any]:
        light, last = jax.tree.map(lambda a: a[:-1], each), jax.tree.map(lambda a: a[-1], each)
        if period > 1:  # a loop without turns would be traced and compiled all the same
            arrays, _ = jax.lax.scan(functools.partial(step, since=0), arrays, light, unroll=unroll)
        return step(arrays, last, since=period)

    keys = jax.random.split(inputs.key, (batch_size(steps), 2))
    each = (steps, inputs.weights if streamed else None, keys)
    each = jax.tree.map(lambda a: a.reshape(-1, period, *a.shape[1:]), each)
    arrays, metrics = jax.lax.scan(group, arrays, each)
    carry = eqx.combine(arrays, static)
    summary = {name: jnp.mean(values) for name, values in metrics.items()}
    return carry, {
        "metrics": summary,
        "finite": all_finite((carry, summary)),
        "largest": largest(carry.model),
    }


def _unroll(arrays: Any) -> int:
    """How many light steps make one body.

    On a GPU a small step is a matter of launches, which a longer body saves; elsewhere it only takes longer to
    compile.
    """
    small = n_numbers(arrays) < SMALL
    return 4 if small and jax.default_backend() != "cpu" else 1


def _placed(carry: Carry) -> Any:
    """The chunk with its result placed on the devices as its input is, so that the next chunk fits it again."""
    places = [leaf.sharding for leaf in jax.tree.leaves(eqx.filter(carry, eqx.is_array))]
    if all(len(place.device_set) == 1 for place in places):
        return _chunk

    def chunk(inputs: Inputs, carry: Carry) -> tuple[Carry, dict]:
        carry, results = _chunk(inputs, carry)
        arrays, static = eqx.partition(carry, eqx.is_array)
        flat, treedef = jax.tree.flatten(arrays)
        flat = [jax.lax.with_sharding_constraint(leaf, place) for leaf, place in zip(flat, places, strict=True)]
        return eqx.combine(jax.tree.unflatten(treedef, flat), static), results

    return chunk


def run_chunk(inputs: Inputs, carry: Carry) -> tuple[Carry, dict, float]:
    """(carry, results, seconds spent compiling) of one chunk; ``carry`` is consumed."""
    key = _signature((inputs, carry))
    seconds = 0.0
    if key not in _CACHE:
        begin = time.perf_counter()
        _CACHE[key] = _compile(inputs, carry)
        seconds = time.perf_counter() - begin
    _CACHE.move_to_end(key)
    _drop_oldest()
    arrays, static = eqx.partition(carry, eqx.is_array)
    arrays, results = _CACHE[key].run(eqx.filter(inputs, eqx.is_array), arrays)
    return eqx.combine(arrays, static), results, seconds


def _compile(inputs: Inputs, carry: Carry) -> _Loop:
    """The chunk as a program of its own: nothing but its entry in the cache keeps it alive."""
    chunk = _placed(carry)
    input_arrays, input_rest = eqx.partition(inputs, eqx.is_array)
    carry_arrays, carry_rest = eqx.partition(carry, eqx.is_array)

    def _chunk(inputs: Any, carry: Any) -> tuple[Any, dict]:
        carry, results = chunk(eqx.combine(inputs, input_rest), eqx.combine(carry, carry_rest))
        return eqx.filter(carry, eqx.is_array), results

    options = {} if inputs.long else untuned(jax.default_backend())
    run = jax.jit(_chunk, donate_argnums=1, **options).lower(input_arrays, carry_arrays).compile()
    return _Loop(run, program_size(run))


def _drop_oldest() -> None:
    """Let go of the loops that have not been used for longest; the newest one stays, whatever its size."""
    size = sum(loop.size for loop in _CACHE.values())
    while len(_CACHE) > 1 and (len(_CACHE) > MOST_LOOPS or size > MOST_BYTES):
        _, loop = _CACHE.popitem(last=False)
        size -= loop.size


def is_compiled(inputs: Inputs, carry: Carry) -> bool:
    """Whether :func:`run_chunk` would find its compiled loop."""
    return _signature((inputs, carry)) in _CACHE


def forget() -> None:
    """Let go of all compiled loops, and of the memory that they hold."""
    _CACHE.clear()


def _signature(tree: Any) -> Any:
    flat, treedef = jax.tree.flatten(tree)
    specs = tuple((jax.typeof(leaf), leaf.sharding) if isinstance(leaf, jax.Array) else leaf for leaf in flat)
    return treedef, specs, jax.config.read("jax_enable_x64")
