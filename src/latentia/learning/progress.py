"""Output on the screen during training, by the level of ``verbose``.

0 is silent. 1 shows a bar with phase, rate, remaining time and metrics on terminals and in notebooks, and otherwise
prints one line with the result. 2 also prints a line for every row of metrics.
"""

from __future__ import annotations

import sys
import time
from contextvars import ContextVar
from typing import Any, Protocol

from latentia.core.errors import ParameterError

#: A terminal with fewer columns than this has room for the title, the steps and the remaining time alone.
NARROW = 72
#: If set, nothing is shown, whatever ``verbose`` is (``latentia reproduce --quiet``).
HUSHED: ContextVar[bool] = ContextVar("hushed", default=False)


class Display(Protocol):
    """How the loop shows itself."""

    def start(self, n_steps: int, done: int) -> None:
        """The run begins."""

    def compiling(self) -> None:
        """The next chunk has to be compiled first."""

    def update(self, done: int, metrics: dict[str, float]) -> None:
        """A chunk has ended."""

    def say(self, message: str) -> None:
        """Something worth reading happened."""

    def stop(self) -> None:
        """The run has ended."""


class Silent:
    """Shows nothing."""

    def start(self, n_steps: int, done: int) -> None:
        """Nothing."""

    def compiling(self) -> None:
        """Nothing."""

    def update(self, done: int, metrics: dict[str, float]) -> None:
        """Nothing."""

    def say(self, message: str) -> None:
        """Nothing."""

    def stop(self) -> None:
        """Nothing."""


class Lines:
    """Plain lines on standard error, for files and pipes: one when the run is over, or one for every chunk too."""

    def __init__(self, title: str = "training", *, every: bool = False):
        self._title, self._every = title, every
        self._done = self._total = 0
        self._metrics: dict[str, float] = {}
        self._begun = 0.0

    def start(self, n_steps: int, done: int) -> None:
        """Look at the clock."""
        self._total, self._done, self._begun = n_steps, done, time.monotonic()

    def compiling(self) -> None:
        """Nothing."""

    def update(self, done: int, metrics: dict[str, float]) -> None:
        """Record the progress, and print it if a line per chunk is requested."""
        self._done, self._metrics = done, metrics
        if self._every:
            self.say(chunk_line(self._title, done, self._total, metrics))

    def say(self, message: str) -> None:
        """Print it."""
        print(message, file=sys.stderr, flush=True)

    def stop(self) -> None:
        """Print the result."""
        took = f"in {time.monotonic() - self._begun:.1f} s"
        last = "" if self._every else shown(self._metrics)
        self.say("  ".join(part for part in (f"{self._title}  {self._done}/{self._total}  {took}", last) if part))


class Bar:
    """A rich progress bar on standard error, for terminals and notebooks; on request with a line for every
    chunk."""

    def __init__(self, title: str = "training", *, every: bool = False, console: Any = None):
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )
        from rich.table import Column

        self._title, self._every = title, every
        console = console or _console()
        title_column, left = TextColumn("[bold]{task.description}"), (TextColumn("left"), TimeRemainingColumn())
        # Metrics take what room the numbers that matter more leave, and are cut there.
        rest = Column(ratio=1, no_wrap=True, overflow="ellipsis")
        wide = (
            title_column,
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            *left,
            TextColumn("{task.fields[metrics]}", table_column=rest),
        )
        narrow = (title_column, MofNCompleteColumn(), *left)
        roomy = console.width >= NARROW
        self._progress = Progress(*(wide if roomy else narrow), console=console, expand=roomy)
        self._task: Any = None

    def start(self, n_steps: int, done: int) -> None:
        """Show the bar."""
        self._progress.start()
        self._task = self._progress.add_task(self._title, total=n_steps, completed=done, rate="", metrics="")

    def compiling(self) -> None:
        """Say that time goes into compiling, not into learning."""
        self._progress.update(self._task, description=f"{self._title}: compiling")
        self._progress.refresh()

    def update(self, done: int, metrics: dict[str, float]) -> None:
        """Advance."""
        speed = self._progress.tasks[0].speed
        rate = f"{speed:.0f} steps/s" if speed else ""
        text = "" if self._every else shown(metrics)
        self._progress.update(self._task, description=self._title, completed=done, metrics=text, rate=rate)
        if self._every:
            self.say(chunk_line(self._title, done, int(self._progress.tasks[0].total or 0), metrics))

    def say(self, message: str) -> None:
        """Print above the bar."""
        self._progress.console.print(message, markup=False, highlight=False)

    def stop(self) -> None:
        """Leave the finished bar on the screen."""
        self._progress.stop()


def shown(metrics: dict[str, float]) -> str:
    """Metrics in one line, without the one that only experts read."""
    return "  ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "gradient_norm")


def chunk_line(title: str, done: int, total: int, metrics: dict[str, float]) -> str:
    """What a chunk has come to."""
    return f"{title}  {done:>{len(str(total))}}/{total}  {shown(metrics)}".rstrip()


def display(verbose: int, title: str) -> Display:
    """The display for a level of ``verbose``.

    0: nothing. 1: a bar on a terminal or in a notebook, elsewhere one line at the end. 2 (or more): also a line
    with the metrics of every chunk, on a terminal or not.

    Args:
        verbose: how much to show.
        title: what runs.
    """
    if not isinstance(verbose, int | bool) or verbose < 0:
        raise ParameterError(
            f"verbose must be 0 (silent), 1 (progress) or 2 (and a line for every row of metrics), got {verbose!r}."
        )
    if not verbose or HUSHED.get():
        return Silent()
    console = _console()
    if console.is_terminal or console.is_jupyter:
        return Bar(title, every=verbose > 1, console=console)
    return Lines(title, every=verbose > 1)


def _console() -> Any:
    from rich.console import Console

    return Console(file=sys.stderr)
