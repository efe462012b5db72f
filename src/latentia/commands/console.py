"""What commands print: text or tables for people, one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

import click

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")


def emit(value: Any, *, as_json: bool, text: str = "") -> None:
    """Print ``value`` as JSON, or ``text`` for a person."""
    click.echo(json.dumps(value) if as_json else text)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table: drawn on a terminal, aligned plain text in a pipe or a file."""
    if sys.stdout.isatty():
        from rich import box
        from rich.console import Console
        from rich.table import Table

        drawn = Table(*headers, box=box.SIMPLE_HEAD, pad_edge=False)
        for row in rows:
            drawn.add_row(*row)
        Console().print(drawn)
        return
    widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
    for row in (headers, *rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        click.echo("  ".join(cells).rstrip())


def duration(seconds: float) -> str:
    """For instance ``0.4 s``, ``12 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
