"""Roles of a model's arrays, declared where the array is declared.

A model is an :class:`equinox.Module`; its floating-point leaves are its parameters θ. A field may declare the
kind of its parameter, and all learners then treat it accordingly::

    weights: Array = weight()            # decayed by weight decay
    bias: Array = bias()                 # learned, never decayed
    log_sigma: Array = scale()           # learned more slowly, never decayed
    offset: Array = buffer()             # part of the model, never touched by a gradient

A role also holds for everything inside the field, unless a nested field names its own.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import equinox as eqx
import jax
from jax.tree_util import DictKey, GetAttrKey, SequenceKey, tree_flatten_with_path

_ROLE = "latentia_role"
WEIGHT, BIAS, SCALE, BUFFER = "weight", "bias", "scale", "buffer"


def weight() -> Any:
    """A field of coupling weights: learned, and shrunk by weight decay."""
    return eqx.field(metadata={_ROLE: WEIGHT})


def bias() -> Any:
    """A field of biases or locations: learned, never decayed."""
    return eqx.field(metadata={_ROLE: BIAS})


def scale() -> Any:
    """A field of log-scales: learned at a tenth of the rate, never decayed."""
    return eqx.field(metadata={_ROLE: SCALE})


def buffer() -> Any:
    """A field that belongs to the model but is not learned by gradients (offsets, standardisation)."""
    return eqx.field(metadata={_ROLE: BUFFER})


def roles(model: Any) -> Any:
    """A pytree like ``model`` whose leaves are the roles of its leaves."""
    flat, treedef = tree_flatten_with_path(model)
    return jax.tree.unflatten(treedef, [_role(model, path) for path, _ in flat])


def names(model: Any) -> list[str]:
    """A readable name for every leaf, in leaf order: ``hidden.bias``, ``layers.0.weights`` …"""
    return [".".join(_label(key) for key in path) for path, _ in tree_flatten_with_path(model)[0]]


def trainable(model: Any) -> Any:
    """A pytree of booleans: True for floating-point arrays that gradients may change."""
    return jax.tree.map(lambda leaf, role: eqx.is_inexact_array(leaf) and role != BUFFER, model, roles(model))


def _role(node: Any, path: tuple) -> str:
    role = WEIGHT
    for key in path:
        if isinstance(key, GetAttrKey):
            field = (
                {f.name: f for f in dataclasses.fields(node)}.get(key.name)
                if dataclasses.is_dataclass(node)
                else None
            )
            if field is not None:
                role = field.metadata.get(_ROLE, role)
            node = getattr(node, key.name)
        elif isinstance(key, SequenceKey):
            node = node[key.idx]
        elif isinstance(key, DictKey):
            node = node[key.key]
    return role


def _label(key: Any) -> str:
    if isinstance(key, GetAttrKey):
        return key.name
    if isinstance(key, SequenceKey):
        return str(key.idx)
    if isinstance(key, DictKey):
        return str(key.key)
    return str(key)
