"""Columns by name: data are put into the order in which a model learned them, or refused."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from latentia.core.errors import DataError
from latentia.datasets.base import Dataset

#: At most this many names are listed in a message.
_MOST_LISTED = 10


def names_of(estimator: Any) -> list[str] | None:
    """The column names of a fitted estimator; None if its columns have no names."""
    names = getattr(estimator, "feature_names_in_", None)
    return None if names is None else [str(name) for name in names]


def arranged(data: Dataset, names: Sequence[str] | None, *, source: str | None = None) -> Dataset:
    """The data with the named columns in the order of ``names``.

    Data without names, and names that are not known (None), mean that columns go by position: the data stay as they
    are. Otherwise every name must be there, and nothing else.

    Args:
        data: as loaded.
        names: those of the model.
        source: what to call the data in a message; by default their own name.
    """
    source = source or data.name
    own = data.feature_names
    if names is None or own is None or list(own) == list(names):
        return data
    missing = [name for name in names if name not in own]
    unknown = [name for name in own if name not in names]
    if missing:
        others = f" It has columns that the model does not have: {_listed(unknown)}." if unknown else ""
        raise DataError(
            f"{source}: {_count(missing)} that the model was trained on {_verb(missing)} missing: "
            f"{_listed(missing)}.{others} Add or rename them; columns are found by their names, in any order."
        )
    if unknown:
        raise DataError(
            f"{source}: {_count(unknown)} that the model was not trained on: {_listed(unknown)}. Drop them; if one "
            f"holds labels, say so when it is loaded: target={unknown[0]} (--data-option target={unknown[0]})."
        )
    order = [own.index(name) for name in names]
    test = None if data.X_test is None else data.X_test[:, order]
    return dataclasses.replace(data, X=data.X[:, order], X_test=test, feature_names=tuple(names))


def check_names(source: str, names: Sequence[str]) -> None:
    """Refuse names that do not identify columns."""
    empty = [index for index, name in enumerate(names) if not name]
    if empty:
        raise DataError(
            f"{source}: column {empty[0]} (counted from 0) has no name in the header. Name it; if it numbers the "
            "rows, write the table without it (pandas: to_csv(…, index=False))."
        )
    twice = sorted({name for name in names if list(names).count(name) > 1})
    if twice:
        raise DataError(
            f"{source}: more than one column is named {_listed(twice)}. Give every column a name of its own."
        )


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MOST_LISTED} more" if len(names) > _MOST_LISTED else ""
    return ", ".join(map(repr, names[:_MOST_LISTED])) + more


def _count(names: Sequence[str]) -> str:
    return "1 column" if len(names) == 1 else f"{len(names)} columns"


def _verb(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
