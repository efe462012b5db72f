"""How a command line ends: results are exit code 0, and every error is a line or two, never a traceback."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from latentia.core.errors import LatentiaError

#: Exit codes, as documented in the README.
BUG, MISTAKE, INTERRUPTED = 1, 2, 130
DEBUG = "LATENTIA_DEBUG"


class Interrupted(Exception):
    """Ctrl-C during a command that knows how to go on."""


def guarded(run: Callable[[list[str]], Any], args: Sequence[str] | None) -> NoReturn:
    """Run a command line and exit; errors go to standard error, with ``--json`` also to standard output."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        result = run(words)
    except click.UsageError as error:
        error.show()
        _end(error.format_message(), error.exit_code, words, shown=True)
    except click.ClickException as error:
        _end(error.format_message(), error.exit_code, words)
    except (click.Abort, KeyboardInterrupt):
        _end("Interrupted.", INTERRUPTED, words)
    except Interrupted as error:
        _end(str(error), INTERRUPTED, words)
    except Exception as error:
        _end(*_explain(error), words)
    sys.exit(result if isinstance(result, int) else 0)


def _explain(error: Exception) -> tuple[str, int]:
    """What to say, and the exit code."""
    if isinstance(error, LatentiaError):
        return str(error), MISTAKE
    if isinstance(error, OSError):
        name = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{name}", MISTAKE
    if isinstance(error, ValueError) and _refused_by_sklearn(error):
        return " ".join(str(error).split()), MISTAKE
    if isinstance(error, MemoryError):
        return f"Not enough memory. Use less data or smaller batches. {error}".strip(), BUG
    first = (str(error).strip().splitlines() or [""])[0]
    message = f"Unexpected {type(error).__name__}: {first}"
    if os.environ.get(DEBUG):
        traceback.print_exception(error)
        return message, BUG
    return f"{message}\nRun again with {DEBUG}=1 to see where, and please report it.", BUG


def _refused_by_sklearn(error: ValueError) -> bool:
    """Whether scikit-learn's checks of the data or of a seed refused what the user gave."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return bool(frames) and frames[-1].startswith("sklearn.utils.")


def _end(message: str, code: int, words: list[str], *, shown: bool = False) -> NoReturn:
    if not shown:
        click.echo(f"error: {message}", err=True)
    if "--json" in words:
        click.echo(json.dumps({"error": message}))
    sys.exit(code)
