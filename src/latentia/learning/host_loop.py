"""The inner loop of learners that work on the host: a chunk of steps in Python, on NumPy batches.

It replaces the compiled loop (:mod:`latentia.learning.compiled`), with the same order of the rows and
the same kind of results, so that metrics, checkpoints, resuming and divergence work in the same way.
Batches are read on use, from arrays, memory maps or sparse matrices; only the current batch is dense.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.learning.batches import RowOrder
from latentia.learning.compiled import Carry, Inputs
from latentia.ops.examples import Examples


class HostBatches:
    """Batches for a host-side learner; the same face as :class:`~latentia.learning.batches.Batches`.

    Args:
        X: the examples, in memory, in a file or sparse.
        weights: one weight per row (averaging to one), or None.
        batch_size: rows of a batch.
        seed: order of the rows.
    """

    def __init__(self, X: Any, weights: np.ndarray | None, batch_size: int, seed: int):
        self.X = X if isinstance(X, Examples) else Examples(X)
        self.weights, self.order = weights, RowOrder(self.X.n, batch_size, seed)
        #: Steps that one chunk may hold: any number, they are read one by one.
        self.most_steps = 1 << 30
        self._pool = ThreadPoolExecutor(1) if self.X.in_file else None

    def chunk(self, first_step: int, n_steps: int) -> tuple[Any, None, int]:
        """(a function that yields (rows, weights) step by step, None, number of steps)."""
        return lambda: self._steps(first_step, n_steps), None, n_steps

    def _steps(self, first_step: int, n_steps: int) -> Iterator[tuple[Any, np.ndarray | None]]:
        steps = range(first_step, first_step + n_steps)
        if self._pool is None:
            yield from map(self._read, steps)
            return
        ahead = self._pool.submit(self._read, steps[0])
        for step in steps[1:]:
            ready, ahead = ahead.result(), self._pool.submit(self._read, step)  # read while the learner works
            yield ready
        yield ahead.result()

    def _read(self, step: int) -> tuple[Any, np.ndarray | None]:
        rows = self.order.rows(step, 1)[0]
        if rows.size == len(self.X):
            rows = np.arange(rows.size, dtype=rows.dtype)
        return self.X.read(rows), None if self.weights is None else self.weights[rows]

    def release(self, data: Any, weights: Any) -> None:
        """Nothing to free: a batch goes when its step is over."""

    def sample(self, n: int) -> Any:
        """The first rows of the order, for starting values."""
        return self.X.read(self.order.first(n))

    def close(self) -> None:
        """Stop reading ahead."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


class _Keys:
    """Two keys for every step, drawn many at a time: to draw one alone takes longer than some steps."""

    def __init__(self, key: PRNGKeyArray, size: int = 256):
        self.key, self.size, self.kind = key, size, jax.random.key_impl(key)
        self.block, self.words = -1, np.empty(0)

    def __getitem__(self, place: tuple[int, int]) -> PRNGKeyArray:
        step, which = place
        if step // self.size != self.block:
            self.block = step // self.size
            drawn = jax.random.split(jax.random.fold_in(self.key, self.block), (self.size, 2))
            self.words = np.asarray(jax.random.key_data(drawn))
        return jax.random.wrap_key_data(self.words[step % self.size, which], impl=self.kind)


def run_on_host(inputs: Inputs, carry: Carry) -> tuple[Carry, dict, float]:
    """(carry, results, 0 seconds of compiling) of one chunk; ``carry`` stays as it is."""
    period, prepare, step = inputs.period, inputs.prepare, inputs.learner.step
    own = jax.tree.map(np.array, carry)  # copies, which the learner may change in place
    model, state, told = own.model, own.state, []
    keys = _Keys(inputs.key)
    for i, (rows, weights) in enumerate(inputs.data()):
        since = i % period + 1 if (i + 1) % period == 0 or i + 1 == inputs.rows else 0
        x = prepare(rows, key=keys[i, 0])
        model, state, metrics = step(model, x, weights, state, key=keys[i, 1], since=since)
        if since:
            told.append(metrics)
    summary = {name: float(np.mean([metrics[name] for metrics in told])) for name in told[0]}
    numbers = [leaf for leaf in jax.tree.leaves((model, state)) if np.issubdtype(leaf.dtype, np.floating)]
    finite = all(np.isfinite(leaf).all() for leaf in numbers) and bool(np.isfinite(list(summary.values())).all())
    tops = [np.abs(leaf).max() for leaf in jax.tree.leaves(model) if leaf.size]
    placed = jax.tree.map(
        lambda new, old: jax.device_put(jnp.asarray(new), old.sharding), Carry(model, state), carry
    )
    return placed, {"metrics": summary, "finite": finite, "largest": max(tops, default=0.0)}, 0.0
