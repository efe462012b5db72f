"""What a person sees while a model trains: a bar with phase, rate, remaining time and metrics."""

from __future__ import annotations

import sys
from typing import Any, Protocol

from latentia.core.errors import ParameterError


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


class Bar:
    """A rich progress bar on standard error."""

    def __init__(self, title: str = "training"):
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._title = title
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=Console(file=sys.stderr),
        )
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
        shown = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items() if name != "gradient_norm")
        speed = self._progress.tasks[0].speed
        rate = f"{speed:.0f} steps/s" if speed else ""
        self._progress.update(self._task, description=self._title, completed=done, metrics=shown, rate=rate)

    def say(self, message: str) -> None:
        """Print above the bar."""
        self._progress.console.print(message)

    def stop(self) -> None:
        """Leave the finished bar on the screen."""
        self._progress.stop()


def display(verbose: int, title: str) -> Display:
    """A bar for ``verbose`` ≥ 1, nothing for 0."""
    if not isinstance(verbose, int | bool) or verbose < 0:
        raise ParameterError(f"verbose must be 0 (silent) or a positive integer, got {verbose!r}.")
    return Bar(title) if verbose else Silent()
