"""What a run must share with the run that it resumes.

Everything that steers a run has a digest of its own, by name, so that a refusal can say what differs: each
parameter (objects such as an objective or an optimiser by what they are made of), the seed, the training rows,
their weights, and the held-out rows with theirs.
"""

from __future__ import annotations

import functools
import hashlib
import json
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
from scipy.sparse import issparse

from latentia.estimator import saving
from latentia.estimator.rows_to_learn import LearningRows
from latentia.learning.batches import is_mapped, read_rows
from latentia.learning.checkpoint import BEFORE

#: Parameters that may differ between a run and the run that goes on with it.
FREE = ("run_dir", "resume", "verbose", "callbacks", "n_threads")
#: Rows of a memory map that are looked at; arrays in memory are looked at as a whole.
FEW = 64


def fingerprint(estimator: Any, rows: LearningRows, plan: Any, seed: int) -> dict[str, str]:
    """Digests by name, of parameters, seed, rows, weights and validation settings."""
    params = {name: value for name, value in estimator.get_params(deep=False).items() if name not in FREE}
    params["random_state"] = None  # the seed that it gave is what counts
    stopping = [plan.validation_fraction, plan.patience, plan.tolerance]
    return {
        **{name: digest(value) for name, value in params.items()},
        "random_state (its seed)": digest(seed),
        "the training rows": rows_digest(rows.training),
        "sample_weight": digest(rows.weights),
        "the held-out rows": rows_digest(rows.held_out),
        "sample_weight of the held-out rows": digest(rows.held_out_weights),
        "the rules of early stopping": digest(stopping),
        BEFORE: _earlier(estimator, rows.training, seed),
    }


def digest(value: Any) -> str:
    """The same for values that are made of the same things, in every process."""
    return hashlib.sha256(json.dumps(described(value), sort_keys=True, default=str).encode()).hexdigest()


def described(value: Any, inside: tuple[int, ...] = ()) -> Any:
    """A value as something that JSON can hold: objects by type and contents, functions by their code."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | Path | np.dtype):
        return str(value)
    if id(value) in inside:  # a function that refers to itself
        return "the same again"
    within = functools.partial(described, inside=(*inside, id(value)))
    if isinstance(value, np.ndarray | jax.Array):
        return _array(value) if value.dtype != object else [within(entry) for entry in value.tolist()]
    if isinstance(value, Mapping):
        return {str(key): within(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [within(entry) for entry in value]
    if isinstance(value, functools.partial):
        return ["partial", within(value.func), within(value.args), within(value.keywords)]
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return [value.__module__, value.__qualname__, _code(value.__code__), within([*cells, value.__defaults__])]
    name = [type(value).__module__, type(value).__qualname__, getattr(value, "__qualname__", "")]
    return [*name, within(getattr(value, "__dict__", {}))]


def _array(value: Any) -> list[Any]:
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.ascontiguousarray(value)
    return [str(array.dtype), list(array.shape), hashlib.sha256(array.tobytes()).hexdigest()]


def _code(code: types.CodeType) -> list[Any]:
    constants = [_code(c) if isinstance(c, types.CodeType) else repr(c) for c in code.co_consts]
    return [code.co_code.hex(), list(code.co_names), constants]


def rows_digest(rows: Any) -> str:
    """Of all numbers of an array; of a memory map of a few rows and its shape."""
    if rows is None:
        return ""
    found = hashlib.sha256(str(tuple(rows.shape)).encode())
    if is_mapped(rows):
        found.update(np.ascontiguousarray(_few(rows)).tobytes())
    else:
        parts = (rows.data, rows.indices, rows.indptr) if issparse(rows) else (rows,)
        for part in parts:
            found.update(np.ascontiguousarray(part).data)
    return found.hexdigest()


def _few(rows: Any) -> np.ndarray:
    return read_rows(rows, np.linspace(0, rows.shape[0] - 1, FEW).astype(int))


def _earlier(estimator: Any, rows: Any, seed: int) -> str:
    params = saving.plain_parameters(estimator)
    for name in FREE:
        params.pop(name, None)
    found = hashlib.sha256(json.dumps([params, seed, list(rows.shape)], sort_keys=True, default=str).encode())
    found.update(np.ascontiguousarray(_few(rows)).tobytes())
    return found.hexdigest()
