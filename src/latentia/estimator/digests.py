"""What a run must share with the run that it resumes, as digests by name, so that a refusal can say what differs.

A digest looks into lists, functions and objects, such as an optimiser or an objective: everything that they consist
of counts, and nothing that differs between two processes does.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from scipy.sparse import issparse

from latentia.ops.examples import Examples, side_by_side

#: Metadata of a dataclass's field that earlier releases did not have: at its default it does not count, so that
#: runs which began without it go on.
ADDED = "added"
#: Bytes of an array that are digested at a time.
BLOCK_BYTES = 32 * 1024**2


def digests(**facts: Any) -> dict[str, str]:
    """A digest for every fact.

    >>> digests(n_epochs=3, dropout=0.5) == digests(n_epochs=np.int64(3), dropout=np.float64(0.5))
    True
    """
    return {name: digest(value) for name, value in facts.items()}


def digest(value: Any) -> str:
    """The same for values that consist of the same things, in every process."""
    found = hashlib.blake2b(digest_size=16)
    for part in _parts(value, ()):
        found.update(part + b";")
    return found.hexdigest()


def _parts(value: Any, inside: tuple[int, ...]) -> Iterable[bytes]:
    """Bytes that say what a value consists of; ``inside`` are the objects that it was found in."""
    if id(value) in inside:
        return
    inside = (*inside, id(value))
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if isinstance(value, Examples):
        yield from _examples(value, inside)
    elif issparse(value):
        sparse: Any = value
        rows = sparse.tocsr()
        yield from _parts((rows.data, rows.indices, rows.indptr, rows.shape), inside)
    elif isinstance(value, np.ndarray | jax.Array) and np.asarray(value).dtype != object:
        yield from _array(value)
    elif isinstance(value, Mapping):
        for name in sorted(value, key=repr):
            yield repr(name).encode()
            yield from _parts(value[name], inside)
    elif isinstance(value, list | tuple | np.ndarray):
        yield f"sequence {len(value)}".encode()  # JSON makes lists of tuples
        for each in value:
            yield from _parts(each, inside)
    elif isinstance(value, functools.partial):
        yield from _parts((value.func, value.args, value.keywords), inside)
    elif isinstance(value, set | frozenset):
        yield repr(sorted(map(repr, value))).encode()
    elif isinstance(value, MethodType):
        yield from _parts((value.__func__, value.__self__), inside)
    elif isinstance(value, FunctionType):
        yield from _function(value, inside)
    elif isinstance(value, ModuleType):
        yield value.__name__.encode()
    elif isinstance(value, type):
        yield f"{value.__module__}.{value.__qualname__}".encode()
    elif isinstance(value, numbers.Real) and not isinstance(value, bool):
        yield repr(float(value) if abs(float(value)) < 2**53 else value).encode()  # 1 is 1.0
    elif value is None or isinstance(value, bool | str | bytes | Path | numbers.Number):
        yield f"{type(value).__name__} {value!r}".encode()
    else:
        yield from _object(value, inside)


def _array(value: Any) -> Iterable[bytes]:
    array = np.asarray(value)
    yield f"{array.dtype} {array.shape}".encode()
    if array.ndim == 0:
        yield array.tobytes()
        return
    size = max(1, BLOCK_BYTES // max(1, array.nbytes // max(1, len(array))))
    for first in range(0, len(array), size):  # a copy of the whole would double the memory
        yield np.ascontiguousarray(array[first : first + size]).tobytes()


def _examples(examples: Examples, inside: tuple[int, ...]) -> Iterable[bytes]:
    """One array as what it is; several parts as the matrix that they make side by side."""
    if len(examples.leaves) == 1:
        yield from _parts(examples.leaves[0], inside)
        return
    yield f"float32 {examples.shape}".encode()
    for block in examples.blocks():
        yield np.ascontiguousarray(side_by_side(block)).tobytes()


def _function(function: FunctionType, inside: tuple[int, ...]) -> Iterable[bytes]:
    """A function by its name, the names and numbers in its code, and the values that it was made with."""
    code = function.__code__
    constants = [each for each in code.co_consts[1:] if isinstance(each, bool | int | float | str)]
    yield f"{function.__module__}.{function.__qualname__} {code.co_names} {constants}".encode()
    cells = []
    for cell in function.__closure__ or ():
        try:
            cells.append(cell.cell_contents)
        except ValueError:  # not filled yet
            cells.append(None)
    yield from _parts((function.__defaults__, function.__kwdefaults__, tuple(cells)), inside)


def _object(value: Any, inside: tuple[int, ...]) -> Iterable[bytes]:
    """An object by its class and its fields."""
    yield from _parts(type(value), inside)
    yield str(getattr(value, "__qualname__", "")).encode()  # of functions that are not Python's own
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: getattr(value, field.name, None)
            for field in dataclasses.fields(value)
            if not (field.metadata.get(ADDED) and getattr(value, field.name, None) == field.default)
        }
    else:
        fields = getattr(value, "__dict__", {})
    yield from _parts(dict(fields), inside)
    yield from _parts(getattr(value, "__wrapped__", None), inside)
