"""What a run must share with the run that it resumes.

Everything that steers a run has a digest of its own, by name, so that a refusal can say what differs: each
parameter (objects such as an objective or an optimiser by what they are made of), the seed, the training rows,
their weights, and the held-out rows with theirs.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np

from latentia.estimator import saving
from latentia.estimator.digests import digests
from latentia.estimator.rows_to_learn import LearningRows
from latentia.learning.checkpoint import BEFORE
from latentia.ops.examples import Examples, side_by_side

#: Parameters that may differ between a run and the run that goes on with it.
FREE = ("run_dir", "resume", "verbose", "callbacks", "n_threads")
#: Rows of a memory map that are looked at; arrays in memory are looked at as a whole.
FEW = 64


def fingerprint(estimator: Any, rows: LearningRows, plan: Any, seed: int) -> dict[str, str]:
    """Digests by name, of parameters, seed, rows, weights and validation settings."""
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in FREE}
    params["random_state"] = seed  # what it gave is what counts
    facts = {
        "the training rows": _of(rows.training),
        "sample_weight": rows.weights,
        "the held-out rows": _of(rows.held_out),
        "sample_weight of the held-out rows": rows.held_out_weights,
        "the rules of early stopping": (plan.validation_fraction, plan.patience, plan.tolerance),
    }
    return {**digests(**params, **facts), BEFORE: _earlier(estimator, rows.training, seed)}


def _of(rows: Examples | None) -> Any:
    """All numbers of the examples; of those in a file a few rows and their shape."""
    return (_few(rows), rows.shape) if rows is not None and rows.in_file else rows


def _few(rows: Examples) -> np.ndarray:
    return side_by_side(rows.read(np.linspace(0, len(rows) - 1, FEW).astype(int)))


def _earlier(estimator: Any, rows: Examples, seed: int) -> str:
    params = saving.plain_parameters(estimator)
    for name in FREE:
        params.pop(name, None)
    found = hashlib.sha256(json.dumps([params, seed, list(rows.shape)], sort_keys=True, default=str).encode())
    found.update(np.ascontiguousarray(_few(rows)).tobytes())
    return found.hexdigest()
