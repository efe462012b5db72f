"""Continuing with a learner's state on batches of another size."""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractLearner
from latentia.ops.arrays import float_type


def resized(
    state: Any, model: Any, learner: AbstractLearner, prepare: Any, rows: Any, *, weighted: bool, key: PRNGKeyArray
) -> Any:
    """The state for batches of as many rows as these: what depends on their number begins afresh.

    That is what a step would leave in another shape than it finds it (the chains of CD, which start at the batch);
    persistent chains are kept, however many there are.
    """
    init_key, prepare_key = jax.random.split(key)

    def begun(model: Any, rows: Any) -> Any:
        return learner.init(model, prepare(rows, key=prepare_key), key=init_key)

    def after(model: Any, state: Any, rows: Any) -> Any:
        weights = jnp.ones(jax.tree.leaves(rows)[0].shape[0], float_type(model)) if weighted else None
        return learner.step(model, prepare(rows, key=prepare_key), weights, state, key=init_key, since=1)[1]

    wanted = eqx.filter_eval_shape(begun, model, rows)
    if not _same_shapes(state, wanted) and not learner.host_side:
        wanted = eqx.filter_eval_shape(after, model, state, rows)
    if _same_shapes(state, wanted):
        return state
    fresh = eqx.filter_jit(begun)(model, rows)
    return _joined(state, fresh, wanted)


def _joined(old: Any, new: Any, wanted: Any) -> Any:
    """What of ``old`` has the shape that is wanted, part by part; the rest from ``new``."""
    if _same_shapes(old, wanted):
        return old
    if jax.tree.structure(old) == jax.tree.structure(wanted):
        return jax.tree.map(lambda a, b, like: a if a.shape == like.shape else b, old, new, wanted)
    if not isinstance(old, eqx.Module) or type(old) is not type(wanted):
        return new
    names = [field.name for field in dataclasses.fields(old) if not field.metadata.get("static", False)]
    parts = {name: _joined(*(getattr(tree, name) for tree in (old, new, wanted))) for name in names}
    return dataclasses.replace(new, **parts)


def _same_shapes(a: Any, b: Any) -> bool:
    shapes = [jax.tree.map(lambda leaf: (leaf.shape, leaf.dtype), tree) for tree in (a, b)]
    return shapes[0] == shapes[1]
