"""Functions of a model and one row, and their application to many: codes, energies, held-out scores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from latentia.core import space
from latentia.core.capabilities import Decodes, FreeEnergy, Normalised
from latentia.estimator.rows import apply_rows
from latentia.estimator.rows_to_learn import spread
from latentia.inference import code_of, inference_of, variational_energy
from latentia.learning.score_matching import hyvarinen_score
from latentia.likelihood.pseudo import can_pseudo, pseudo_rows
from latentia.ops import random
from latentia.ops.arrays import batch_size, float_type, n_numbers
from latentia.ops.examples import Examples, WithLabels

#: At most this many held-out rows enter a pseudo-likelihood, which costs one free energy per site.
VALIDATION_ROWS = 256


def held_out_score(rows: Any, weights: Any = None) -> Callable[[Any], float]:
    """How well a model does on some rows, higher is better: see ``LatentEstimator.validation_scorer``.

    Args:
        rows: examples, or :class:`Portions` of them.
        weights: one weight for each.
    """
    rows = rows if isinstance(rows, Portions) else Portions(rows)
    few = spread(rows.n, VALIDATION_ROWS, weights) if rows.n > VALIDATION_ROWS else None

    def score(model: Any) -> float:
        if isinstance(model, Normalised):
            return -average(rows.apply(free_energy_row, model), weights)
        if can_pseudo(model):
            return average(pseudo_rows(model, rows.visibles(model.x_space, few)), weights if few is None else None)
        if not isinstance(model, Decodes):
            return -average(rows.apply(_sliced_score, model), weights)
        return -average(rows.apply(_rebuilding_error, model), weights)

    return score


class Portions:
    """Examples as they are scored, without labels and after a conversion: at once if they lie in memory.

    Those in a file are read portion by portion, on every use.

    Args:
        data: the examples.
        convert: makes a function that is called with one portion after another, from the first on; grey values that
            are sampled once need the portions in their order.
    """

    def __init__(self, data: Any, convert: Callable[[], Callable[[Any], Any]] | None = None):
        parts: Any = data
        if isinstance(data, Examples):
            parts = data.data if data.in_file else data.read_all()
        self.convert = convert
        self.file = parts if isinstance(parts, Examples) else None
        self.parts: Any = None if self.file is not None else parts.data if isinstance(parts, WithLabels) else parts
        if convert is not None and self.file is None:
            self.parts = convert()(self.parts)
        self._visibles: Any = None  # of all, as long as they are in memory: they are scored again and again
        #: How many examples there are.
        self.n = jax.tree.leaves(self.parts)[0].shape[0] if self.file is None else self.file.n

    def __iter__(self) -> Iterator[Any]:
        if self.file is None:
            yield self.parts
            return
        convert = None if self.convert is None else self.convert()
        for portion in self.file.portions():
            yield portion if convert is None else convert(portion)

    def mean_pseudo_likelihood(self, model: Any) -> float:
        """The mean pseudo-log-likelihood of all of them."""
        return average(pseudo_rows(model, self.visibles(model.x_space)))

    def visibles(self, spaces: Any, rows: np.ndarray | None = None) -> Any:
        """All of them (or some, in increasing order) in memory, as values of these spaces."""
        if rows is None and self.file is None:
            if self._visibles is None:
                self._visibles = space.encode_seen(spaces, self.parts)
            return self._visibles
        found, first = [], 0
        for portion in self:
            n = batch_size(portion)
            here = slice(None) if rows is None else rows[(rows >= first) & (rows < first + n)] - first
            found.append(jax.tree.map(lambda leaf, here=here: leaf[here], portion))
            first += n
        whole = found[0] if len(found) == 1 else jax.tree.map(lambda *parts: np.concatenate(parts), *found)
        return space.encode_seen(spaces, whole)

    def apply(self, function: Callable[..., Any], model: Any) -> np.ndarray:
        """``function(model, x)`` of every example."""
        values = [apply_rows(function, model, space.encode_seen(model.x_space, portion)) for portion in self]
        return np.concatenate(values)


def average(values: np.ndarray, weights: Any = None) -> float:
    """The mean over rows, weighted by theirs."""
    return float(np.mean(values)) if weights is None else float(np.average(values, weights=weights))


def reconstruction_error(model: Any, rows: Any, weights: Any = None) -> float:
    """The mean squared error of rebuilding each entry of some rows from their codes."""
    portions = rows if isinstance(rows, Portions) else Portions(rows)
    return average(portions.apply(_rebuilding_error, model), weights)


def _rebuilding_error(model: Any, x: Any) -> Any:
    """The mean squared error of rebuilding the entries of one example from its code."""
    again = jax.tree.leaves(model.decode(code_of(model, x)))
    errors = [jnp.reshape((a - b) ** 2, -1) for a, b in zip(again, jax.tree.leaves(x), strict=False)]
    return jnp.mean(jnp.concatenate(errors))


def code_row(model: Any, x: Any) -> Any:
    """The code of one example as a vector."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(code_of(model, x))])


def decode_row(model: Any, z: Any) -> Any:
    """Mean visibles of one code."""
    return model.decode(z)


def _sliced_score(model: Any, x: Any) -> Any:
    """The score-matching objective of one example, in directions that are always the same."""
    return hyvarinen_score(model, x, jax.random.rademacher(random.key(0), (8, n_numbers(x)), float_type(x)))


def free_energy_row(model: Any, x: Any) -> Any:
    """F(x) of one example, or an upper bound of it by the model's inference."""
    if isinstance(model, FreeEnergy):
        return model.free_energy(x)
    return variational_energy(model, x, inference_of(model).infer(model, x, key=random.key(0)))
