"""Functions of a model and one row, and what is made of them for many: codes, energies, held-out scores."""

from __future__ import annotations

from collections.abc import Callable
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
from latentia.likelihood.pseudo import can_pseudo, pseudo_log_likelihood
from latentia.ops import random
from latentia.ops.arrays import float_type, n_numbers

#: At most this many held-out rows enter a pseudo-likelihood, which costs one free energy per site.
VALIDATION_ROWS = 256


def held_out_score(rows: np.ndarray, weights: Any = None) -> Callable[[Any], float]:
    """How well a model does on some rows, higher is better: see ``LatentEstimator.validation_scorer``."""
    few = spread(len(rows), VALIDATION_ROWS, weights) if len(rows) > VALIDATION_ROWS else None

    def score(model: Any) -> float:
        x = space.encode_seen(model.x_space, rows)
        if isinstance(model, Normalised):
            return -average(apply_rows(free_energy_row, model, x), weights)
        if can_pseudo(model):
            some, their = (x, weights) if few is None else (x[few], None)
            return average(np.asarray(pseudo_log_likelihood(model, jnp.asarray(some))), their)
        if not isinstance(model, Decodes):
            return -average(apply_rows(_sliced_score, model, x), weights)
        return -reconstruction_error(model, rows, weights)

    return score


def average(values: np.ndarray, weights: Any = None) -> float:
    """The mean over rows, weighted by theirs."""
    return float(np.mean(values)) if weights is None else float(np.average(values, weights=weights))


def reconstruction_error(model: Any, rows: np.ndarray, weights: Any = None) -> float:
    """The mean squared error of rebuilding each entry of some rows from their codes."""
    x = space.encode_seen(model.x_space, rows)
    data, again = jax.tree.leaves(x), jax.tree.leaves(apply_rows(_reconstruct, model, x))
    errors = [(a - b) ** 2 for a, b in zip(again, data, strict=False)]
    columns = np.concatenate([e.reshape(len(e), -1) for e in errors], axis=1)
    return float(np.mean(columns)) if weights is None else average(columns.mean(axis=1), weights)


def code_row(model: Any, x: Any) -> Any:
    """The code of one example as a vector."""
    return jnp.concatenate([leaf.reshape(-1) for leaf in jax.tree.leaves(code_of(model, x))])


def decode_row(model: Any, z: Any) -> Any:
    """Mean visibles of one code."""
    return model.decode(z)


def _reconstruct(model: Any, x: Any) -> Any:
    return model.decode(code_of(model, x))


def _sliced_score(model: Any, x: Any) -> Any:
    """The score-matching objective of one example, in directions that are always the same."""
    return hyvarinen_score(model, x, jax.random.rademacher(random.key(0), (8, n_numbers(x)), float_type(x)))


def free_energy_row(model: Any, x: Any) -> Any:
    """F(x) of one example, or an upper bound of it by the model's inference."""
    if isinstance(model, FreeEnergy):
        return model.free_energy(x)
    return variational_energy(model, x, inference_of(model).infer(model, x, key=random.key(0)))
