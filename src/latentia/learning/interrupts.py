"""Reliable handling of Ctrl-C.

Python raises KeyboardInterrupt at the next instruction. Inside a finaliser, or a callback
from compiled code, it is printed and ignored, and a long run continues. The training loop therefore stores the
signal.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def remembered() -> Iterator[Callable[[], bool]]:
    """A function that says whether Ctrl-C was pressed since; the signal does what it did before as well."""
    pressed: list[int] = []
    before: Any = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield lambda: False  # signals come to the main thread alone, or somebody has switched this one off
        return

    def note(number: int, frame: Any) -> None:
        pressed.append(number)
        before(number, frame)

    report = sys.unraisablehook

    def tell(lost: Any) -> None:
        if not issubclass(lost.exc_type, KeyboardInterrupt):  # Ctrl-C is stored, and the loop checks for it
            report(lost)

    signal.signal(signal.SIGINT, note)
    sys.unraisablehook = tell
    try:
        yield lambda: bool(pressed)
    finally:
        sys.unraisablehook = report
        signal.signal(signal.SIGINT, before)
