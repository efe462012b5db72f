"""Greedy layer-wise training: one model after another, each on the codes of the previous one.

Stage l trains on rows X_l, and X_{l+1} = encode(model_l, X_l). Deep belief networks are built this way from
RBMs (Hinton, Osindero and Teh, 2006), how deep Boltzmann machines are pretrained, and how autoencoders are stacked
(Bengio, Lamblin, Popovici and Larochelle, 2007). Every stage is one run of the training loop with a folder of its
own: a stack that is resumed finds its finished stages in their checkpoints, and continues the unfinished one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jaxtyping import PRNGKeyArray

from latentia.core.algorithms import AbstractLearner, require
from latentia.core.errors import DivergenceError, NotNormalisableError
from latentia.learning.compiled import AbstractPrepare
from latentia.learning.fit import Result, Settings, fit
from latentia.ops.examples import Examples

#: Rows that are encoded at once.
BLOCK = 4096


@dataclasses.dataclass(frozen=True)
class Stage:
    """One layer's training.

    Args:
        name: what to call it in messages and folders.
        model: the model at its starting point for the stage's rows.
        learner: how it learns.
        prepare: rows → visibles, anew at every step.
        n_steps: learning steps.
        batch_size: rows per step.
        chunk: about how many steps run between two looks of the host.
        encode: (trained model, a block of rows) → as many rows for the next stage; not called in the last one.
    """

    name: str
    model: Any
    learner: AbstractLearner
    prepare: AbstractPrepare
    n_steps: int
    batch_size: int
    chunk: int
    encode: Callable[[Any, Any], Any]


#: A stage from its rows and a key; called when the stage begins, since a model's start depends on its data.
Maker = Callable[[Examples, PRNGKeyArray], Stage]


def greedy(
    rows: Any,
    makers: Sequence[Maker],
    settings: Callable[[Stage, int], Settings],
    *,
    key: PRNGKeyArray,
    weights: np.ndarray | None = None,
) -> list[Result]:
    """Train one stage after another.

    Args:
        rows: the first stage's examples.
        makers: one function per stage, from its rows and a key to the stage.
        settings: how to run a stage, given it and its number (each needs a folder of its own, if any).
        key: random key.
        weights: one weight per row (averaging to one), the same at every stage.

    Returns:
        One result of the training loop per stage, the first stage first.
    """
    results, rows = [], Examples.of(rows)
    for index, make in enumerate(makers):
        begin_key, run_key = jax.random.split(jax.random.fold_in(key, index))
        stage = make(rows, begin_key)
        results.append(_train(stage, rows, settings(stage, index), run_key, weights))
        if index + 1 < len(makers):
            rows = Examples(encoded(stage.encode, results[-1].model, rows))
    return results


def encoded(encode: Callable[[Any, Any], Any], model: Any, rows: Any) -> Any:
    """``encode(model, block)`` for all rows, block by block, in float32."""
    rows = Examples.of(rows)
    n, out = len(rows), None
    size = min(n, BLOCK)
    for first in range(0, n, size):
        # The last block starts early enough to be full, so that one shape is compiled.
        begin = min(first, n - size)
        block = encode(model, rows.read(np.arange(begin, begin + size)))
        if out is None:
            out = jax.tree.map(lambda leaf: np.empty((n, *leaf.shape[1:]), np.float32), block)
        for whole, part in zip(jax.tree.leaves(out), jax.tree.leaves(block), strict=True):
            whole[begin : begin + size] = part
    assert out is not None
    return out


def _train(stage: Stage, rows: Examples, settings: Settings, key: PRNGKeyArray, weights: Any) -> Result:
    require(stage.learner, stage.model)
    try:
        return fit(stage.model, rows, stage.learner, stage.prepare, settings, key=key, weights=weights)
    except (DivergenceError, NotNormalisableError) as error:
        error.result = None  # one layer's model must not be taken for the whole stack's
        error.add_note(f"This happened while training {stage.name}.")
        raise
