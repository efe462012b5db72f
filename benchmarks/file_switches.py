"""How often setting up a fit goes from one file of the package to another.

    python benchmarks/file_switches.py [--list]

Counts the direct calls from a function in one file of the package to a function in another one, from the call of
``RBM.fit`` to its first learning step. Calls that go through other packages do not count. The fewer there are, the
easier the way from the data to the loop is to follow.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import latentia
from latentia import RBM
from latentia.learning import fit as loop

PACKAGE = str(Path(latentia.__file__).parent)


class FirstStep(Exception):
    """The loop is about to take its first step."""


def switches(run: Callable[[], Any]) -> list[tuple[str, str]]:
    """(caller, callee) of every call between two files until the loop begins, as ``file:function``."""
    found: list[tuple[str, str]] = []

    def watch(frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or not frame.f_code.co_filename.startswith(PACKAGE):
            return
        if frame.f_code is loop._Run.advance.__code__:
            sys.setprofile(None)
            raise FirstStep
        caller = frame.f_back
        if caller is None or not caller.f_code.co_filename.startswith(PACKAGE):
            return
        if caller.f_code.co_filename != frame.f_code.co_filename:
            found.append((_name(caller), _name(frame)))

    sys.setprofile(watch)
    try:
        run()
    except FirstStep:
        pass
    finally:
        sys.setprofile(None)
    return found


def _name(frame: FrameType) -> str:
    return f"{Path(frame.f_code.co_filename).relative_to(PACKAGE)}:{frame.f_code.co_name}"


def main() -> None:
    """Print the number of switches, and with --list what they are."""
    X = np.random.default_rng(0).integers(0, 2, (200, 20)).astype(np.float32)
    make = lambda: RBM(n_components=8, n_epochs=1, random_state=0)  # noqa: E731
    make().fit(X)  # what is compiled or imported on first use is no part of the way
    found = switches(lambda: make().fit(X))
    if "--list" in sys.argv:
        for number, (caller, callee) in enumerate(found, 1):
            print(f"{number:4d}  {caller}  →  {callee}")
        for pair, count in Counter(found).most_common(10):
            print(f"{count:4d}×  {pair[0]}  →  {pair[1]}")
    print(f"{len(found)} switches between files before the first step of RBM.fit")


if __name__ == "__main__":
    main()
