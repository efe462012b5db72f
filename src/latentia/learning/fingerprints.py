"""What a run must share with the run that it resumes: named facts, so that a refusal can say which of them differ.

A fingerprint is text, a JSON object of names. Plain values stand in it as they are; arrays, and objects such as an
optimiser or an objective, by their digest, for which everything that they consist of counts.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import numbers
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

import jax
import numpy as np
from scipy.sparse import issparse

#: Bytes of an array that are digested at a time.
BLOCK_BYTES = 32 * 1024**2
#: Most facts that a refusal names.
MOST_NAMED = 6


def fingerprint(**facts: Any) -> str:
    """The fingerprint of a run.

    >>> fingerprint(n_epochs=3, optimizer="adam")
    '{"n_epochs": 3.0, "optimizer": "adam"}'
    """
    return json.dumps({name: _fact(value) for name, value in facts.items()}, sort_keys=True)


def differences(found: Any, wanted: str) -> list[str]:
    """In what two fingerprints differ, in words; nothing where one of them does not name its facts."""
    there, here = _facts(found), _facts(wanted)
    if there is None or here is None:
        return []
    names = [name for name in sorted({*there, *here}) if there.get(name) != here.get(name)]
    return [_difference(name, there, here) for name in names]


def described(found: Any, wanted: str) -> str:
    """The differences as the end of a sentence: ``": n_epochs (2 there, 3 here), the labels"``, or nothing."""
    words = differences(found, wanted)
    more = f" and {len(words) - MOST_NAMED} more" if len(words) > MOST_NAMED else ""
    return f": {', '.join(words[:MOST_NAMED])}{more}" if words else ""


def _difference(name: str, there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    if name not in there or name not in here:
        return f"{name} ({'only there' if name in there else 'only here'})"
    values = there[name], here[name]
    if any(isinstance(value, dict) for value in values):
        return f"the {name}"
    old, new = (f"{value:g}" if isinstance(value, float) else repr(value) for value in values)
    return f"{name} ({old} there, {new} here)"


def _facts(text: Any) -> dict[str, Any] | None:
    try:
        facts = json.loads(text)
    except (TypeError, ValueError):
        return None
    return facts if isinstance(facts, dict) else None


def _fact(value: Any) -> Any:
    """A plain value as it is, anything else by its digest."""
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, numbers.Real):
        return float(value)
    if isinstance(value, Path):
        return str(value)
    digest = hashlib.blake2b(digest_size=16)
    for part in _parts(value, ()):
        digest.update(part)
    return {"digest": digest.hexdigest()}


def _parts(value: Any, inside: tuple[int, ...]) -> Iterable[bytes]:
    """Bytes that say what a value consists of; ``inside`` are the objects that it was found in."""
    if id(value) in inside:
        return
    inside = (*inside, id(value))
    if isinstance(value, jax.Array) and jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    if issparse(value):
        value = (value.data, value.indices, value.indptr, value.shape) if value.format == "csr" else value.tocsr()
        yield from _parts(value, inside)
    elif isinstance(value, np.ndarray | np.generic | jax.Array) and np.asarray(value).dtype != object:
        yield from _array(value)
    elif isinstance(value, Mapping):
        for name in sorted(value, key=repr):
            yield repr(name).encode()
            yield from _parts(value[name], inside)
    elif isinstance(value, list | tuple | np.ndarray):
        yield f"{type(value).__qualname__} {len(value)}".encode()
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
        fields = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    else:
        fields = getattr(value, "__dict__", {})
    yield from _parts(dict(fields), inside)
    if hasattr(value, "__wrapped__"):
        yield from _parts(value.__wrapped__, inside)
