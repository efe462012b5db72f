"""Exit codes and errors of the command line: every error is one or two lines, without a traceback."""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import click

from latentia.commands.console import wrapped
from latentia.core.errors import LatentiaError

#: Exit codes, as documented in the guide and in docs/reference/cli.md.
BUG, MISTAKE, INTERRUPTED = 1, 2, 130
DEBUG = "LATENTIA_DEBUG"


class Interrupted(Exception):
    """Ctrl-C during a command that can be resumed."""


def was_interrupted(error: BaseException) -> bool:
    """Whether Ctrl-C is behind an error: whatever goes wrong while a run puts its things away still counts."""
    return isinstance(error, KeyboardInterrupt) or isinstance(error.__context__, KeyboardInterrupt)


def guarded(run: Callable[[list[str]], Any], args: Sequence[str] | None) -> NoReturn:
    """Run a command line and exit; errors go to standard error, with ``--json`` also to standard output."""
    words = list(sys.argv[1:] if args is None else args)
    try:
        result = run(words)
    except click.UsageError as error:
        _end(error.format_message() + _where_to_read(error.ctx), error.exit_code, words)
    except click.ClickException as error:
        _end(error.format_message(), error.exit_code, words)
    except (click.Abort, KeyboardInterrupt):
        _end("Interrupted, and nothing was written. Run the same command to begin anew.", INTERRUPTED, words)
    except Interrupted as error:
        _end(str(error), INTERRUPTED, words)
    except SystemExit as error:
        # Click ends like this when the reader of standard output has closed it: that is not a failure.
        sys.exit(0 if "PacifyFlush" in type(sys.stdout).__name__ else error.code)
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
    """Whether scikit-learn's checks of the data or of a seed (by NumPy) refused the user's input."""
    frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    while frames and frames[-1].startswith("numpy.random"):
        frames.pop()
    return bool(frames) and frames[-1].startswith("sklearn.utils.")


def _where_to_read(ctx: click.Context | None) -> str:
    return "" if ctx is None else f"\nHelp: {ctx.command_path} --help"


def _end(message: str, code: int, words: list[str]) -> NoReturn:
    text = f"error: {message}"
    click.echo(wrapped(text) if sys.stderr.isatty() else text, err=True)
    if "--json" in words:
        click.echo(json.dumps({"error": message}))
    sys.exit(code)
