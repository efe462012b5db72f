"""Tables of numbers: ``.csv`` through NumPy and ``.parquet`` through pyarrow, where it is installed."""

from __future__ import annotations

import csv
import itertools
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from latentia.core.errors import DataError, FileFormatError, LatentiaError, ParameterError
from latentia.datasets.base import Dataset, Domain
from latentia.datasets.columns import check_names
from latentia.datasets.files import settle_domain
from latentia.datasets.formats import damaged

if TYPE_CHECKING:
    import pyarrow


def load_csv(
    path: Path,
    *,
    target: str | int | None = None,
    delimiter: str | None = None,
    domain: Domain | None = None,
    allow_nan: bool = False,
) -> Dataset:
    """Numbers in columns, with or without a header line; ``target`` is the column of labels.

    ``target`` is a column's name or its number, counted from 0. ``delimiter`` is guessed among comma,
    semicolon and tab. With ``allow_nan=True`` empty cells become NaN.
    """
    names, mark, header = _peek(path, delimiter)
    if header:
        check_names(str(path), names)
    _check_width(path, mark, header, len(names))
    column = None if target is None else _column(path, names, header, target)
    features = [i for i in range(len(names)) if i != column]
    if not features:
        raise DataError(f"{path} has no column besides the target {target!r}; it has no features.")
    rows = _read_columns(path, mark, header, features, np.float64, _number_or_nan if allow_nan else None)
    labels = None
    if column is not None:
        labels = _as_labels(_read_columns(path, mark, header, [column], np.str_, None).ravel())
    known = tuple(names[i] for i in features) if header else None
    return _table(path, rows, labels, target, domain, allow_nan, known)


def load_parquet(
    path: Path, *, target: str | None = None, domain: Domain | None = None, allow_nan: bool = False
) -> Dataset:
    """Numeric columns of a Parquet file; ``target`` names the column of labels."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DataError(
            f"Reading {path.name} needs pyarrow, which is not installed. Run `pip install pyarrow`, or save "
            "the table as .csv or .npz."
        ) from error
    try:
        table = pyarrow.parquet.ParquetFile(path).read()
    except (pyarrow.ArrowException, OSError) as error:
        raise damaged(path, error) from error
    check_names(str(path), table.column_names)
    if target is not None and target not in table.column_names:
        raise ParameterError(f"{path} has no column {target!r}. Columns: {', '.join(table.column_names)}.")
    features = [name for name in table.column_names if name != target]
    if not features or not table.num_rows:
        raise DataError(f"{path} holds no features or no rows. Give at least one of each.")
    rows = np.stack([_parquet_column(path, table, name) for name in features], axis=1)
    labels = None if target is None else np.array(table.column(target).to_pylist())
    return _table(path, rows, labels, target, domain, allow_nan, tuple(features))


def _table(
    path: Path,
    rows: np.ndarray,
    labels: np.ndarray | None,
    target: str | int | None,
    domain: Domain | None,
    allow_nan: bool,
    names: tuple[str, ...] | None,
) -> Dataset:
    with np.errstate(over="ignore"):  # overflow becomes infinite and is reported as such
        rows = rows.astype(np.float32)
    y = "" if target is None else f" and labels from column {target!r}"
    return Dataset(
        name=path.stem,
        X=rows,
        y=labels,
        domain=settle_domain(rows, domain, allow_nan, path),
        description=f"{path.name}: {rows.shape[0]} rows of {rows.shape[1]} features{y}, as stored; no split.",
        feature_names=names,
    )


def column_names(path: Path) -> tuple[str, ...]:
    """The names in a table's header, labels included; none if it has no header or cannot be read."""
    try:
        if path.suffix.lower() == ".parquet":
            import pyarrow.parquet

            return tuple(pyarrow.parquet.read_schema(path).names)
        names, _, header = _peek(path, None)
    except (ImportError, ValueError, OSError, LatentiaError):  # loading the file says what is wrong
        return ()
    return tuple(names) if header else ()


def _check_width(path: Path, mark: str, header: int, width: int) -> None:
    """Refuse a table with a row of more or fewer cells: NumPy would leave some out, or shift the columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            rows = csv.reader(itertools.islice(stream, header, None), delimiter=mark)
            odd = next(((i, len(row)) for i, row in enumerate(filter(None, rows)) if len(row) != width), None)
    except (UnicodeDecodeError, csv.Error) as error:
        raise damaged(path, f"it is not a table in UTF-8 text ({error})") from error
    if odd is not None:
        what = "columns in the header" if header else "cells in the first row"
        raise FileFormatError(
            f"{path} is not a table: {width} {what}, but {odd[1]} in row {odd[0]} (counted from 0, without the "
            "header). The file may be cut off; name every column, numbers of rows too."
        )


def _peek(path: Path, delimiter: str | None) -> tuple[list[str], str, int]:
    """Column names (or the first cells), the delimiter, and how many lines the header takes."""
    if delimiter is not None and len(delimiter) != 1:
        raise ParameterError(f"delimiter must be one character, got {delimiter!r}.")
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            first, line = "", 0
            for line, text in enumerate(stream):  # noqa: B007 - the number of the first filled line is needed below
                if text.strip():
                    first = text
                    break
    except UnicodeDecodeError as error:
        raise damaged(path, f"it is not UTF-8 text ({error})") from error
    if not first:
        raise DataError(f"{path} is empty. Give at least one row of numbers.")
    mark = delimiter or max(",;\t", key=first.count)
    cells = [cell.strip() for cell in next(csv.reader([first], delimiter=mark))]
    return cells, mark, 0 if all(map(_is_number_or_empty, cells)) else line + 1


def _is_number_or_empty(cell: str) -> bool:
    try:
        float(cell or 0)
    except ValueError:
        return False
    return True


def _number_or_nan(cell: str) -> float:
    return float(cell) if cell.strip() else np.nan


def _column(path: Path, names: list[str], header: int, target: str | int) -> int:
    if isinstance(target, int) and not isinstance(target, bool):
        if not -len(names) <= target < len(names):
            raise ParameterError(f"{path} has {len(names)} columns; target={target} does not exist.")
        return target % len(names)
    if not header:
        raise ParameterError(
            f"{path} has no header line, so there is no column {target!r}. Pass the column's number, from 0."
        )
    if target not in names:
        raise ParameterError(f"{path} has no column {target!r}. Columns: {', '.join(names)}.")
    return names.index(str(target))


def _read_columns(
    path: Path,
    mark: str,
    header: int,
    columns: list[int],
    dtype: type,
    converter: Callable[[str], float] | None,
) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "no data": answered by an error below
            cells = np.loadtxt(
                path,
                dtype=dtype,
                delimiter=mark,
                skiprows=header,
                usecols=columns,
                ndmin=2,
                quotechar='"',
                comments=None,
                converters=converter,
                encoding="utf-8-sig",
            )
    except (ValueError, IndexError) as error:
        raise FileFormatError(
            f"{path} is not a table of numbers: {error} (rows counted without the header). Encode text as "
            "numbers, name a column of labels by target=…, and pass allow_nan=True if cells are empty."
        ) from error
    if not cells.size:
        raise DataError(f"{path} has a header but no rows. Give at least one row of numbers.")
    return cells


def _as_labels(cells: np.ndarray) -> np.ndarray:
    """Whole numbers where all labels are such, numbers where all are, with NaN for empty cells, else text."""
    for kind, values in ((np.int64, cells), (np.float64, np.where(cells == "", "nan", cells))):
        try:
            return values.astype(kind)
        except ValueError:
            continue
    return cells


def _parquet_column(path: Path, table: pyarrow.Table, name: str) -> np.ndarray:
    values = table.column(name).to_numpy()
    if values.dtype == object and all(v is None or isinstance(v, bool) for v in values):
        values = np.array([np.nan if v is None else v for v in values], dtype=float)  # flags with gaps
    if values.dtype.kind not in "buif":
        raise FileFormatError(
            f"{path}: column {name!r} holds {table.column(name).type}, not numbers. Encode it as numbers, "
            "drop it, or name it as target=…"
        )
    return values.astype(np.float64)
