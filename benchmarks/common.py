"""What the benchmarks share: a clock, pinned threads, and one way to print a result."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any


def pin_threads(n: int) -> None:
    """Give every library the same number of threads; call before importing NumPy, JAX or PyTorch."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = str(n)
    os.sched_setaffinity(0, set(sorted(os.sched_getaffinity(0))[:n]))


def best_of(function: Callable[[], Any], repeats: int = 7) -> float:
    """The shortest wall-clock time of several runs, in seconds (the first, cold one is not counted)."""
    function()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        function()
        times.append(time.perf_counter() - begin)
    return min(times)


def report(title: str, figures: dict[str, Any]) -> None:
    """Print figures for people, then as one JSON line for programs."""
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<44} {value:.4g}" if isinstance(value, float) else f"  {name:<44} {value}")
    print(json.dumps({"benchmark": title, **figures}))
