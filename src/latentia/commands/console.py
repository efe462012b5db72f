"""The output of commands: text and tables that fit the terminal, and one JSON object for programs."""

from __future__ import annotations

import json
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import click

#: A table becomes a list of cards, and a description goes under its term, on terminals narrower than this.
NARROW = 60

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object and nothing else.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress on the terminal.")


def emit(value: Any, *, as_json: bool, text: str = "") -> None:
    """Print ``value`` as JSON, or ``text`` for a person."""
    click.echo(json.dumps(value) if as_json else text)


def width() -> int:
    """Columns of the terminal."""
    return max(shutil.get_terminal_size().columns, 20)


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], *, heading: str = "") -> None:
    """A table: drawn to the width of a terminal, cards on a narrow one, aligned plain text in a pipe or a file."""
    if sys.stdout.isatty() and width() < NARROW:
        _cards(headers, rows, heading)
    elif sys.stdout.isatty():
        _drawn(headers, rows, heading)
    else:
        if heading:
            click.echo(heading)
        widths = [max(map(len, column)) for column in zip(headers, *rows, strict=True)]
        for row in (headers, *rows):
            cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            click.echo("  ".join(cells).rstrip())


def _drawn(headers: Sequence[str], rows: Sequence[Sequence[str]], heading: str) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    title = {"title": heading, "title_justify": "left", "title_style": "bold"} if heading else {}
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, expand=False, **title)  # pyright: ignore[reportArgumentType]
    for index, header in enumerate(headers):
        longest = max((len(word) for row in rows for word in row[index].split()), default=0)
        drawn.add_column(header, no_wrap=index == 0, min_width=min(longest, 26))
    for row in rows:
        drawn.add_row(*row)
    Console(width=min(width(), 120), highlight=False).print(drawn)


def _cards(headers: Sequence[str], rows: Sequence[Sequence[str]], heading: str) -> None:
    if heading:
        click.secho(f"{heading}\n", bold=True)
    for first, *rest in rows:
        click.secho(first, bold=True)
        for header, cell in zip(headers[1:], rest, strict=True):
            click.echo(wrapped(f"{header}: {cell}" if cell else "", indent="  "))
        click.echo()


def wrapped(text: str, *, indent: str = "", columns: int | None = None) -> str:
    """Paragraphs broken to the terminal's width; lines that begin with spaces (commands, formulas) are kept."""
    limit = min(width(), 100) if columns is None else columns
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("  ") or not line:
            lines.append(line and indent + line)
            continue
        lines += textwrap.wrap(
            line,
            max(limit - 1, 20),
            initial_indent=indent,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
    return "\n".join(lines)


def told(text: str) -> str:
    """Text for a person: broken between words on a terminal, as it is elsewhere."""
    return wrapped(text) if sys.stdout.isatty() else text


def say(text: str) -> None:
    """Print text for a person, at once."""
    click.echo(told(text))
    sys.stdout.flush()  # the next line may take long, also in a pipe


def remark(text: str) -> None:
    """Say on standard error what does not stop a command but should be known."""
    note = f"warning: {text}"
    click.echo(wrapped(note) if sys.stderr.isatty() else note, err=True)


@contextmanager
def working(what: str, *, quiet: bool = False) -> Iterator[None]:
    """A spinner with the time spent so far, on standard error, while something takes long; nothing in a pipe."""
    if quiet or not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        progress.add_task(what, total=None)
        yield


def duration(seconds: float) -> str:
    """For instance ``0.4 s``, ``12 s``, ``3 min 20 s``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
