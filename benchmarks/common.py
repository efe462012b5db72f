"""What the benchmarks share: a clock, pinned threads, and one way to print and to keep a result.

With ``LATENTIA_RECORD`` set, a benchmark also keeps its figures in ``benchmarks/results/NAME.json``, from which the
documentation's page is made:

    LATENTIA_RECORD="two cores of an AMD EPYC, quiet" python benchmarks/rbm_cpu.py

The text says what the machine is, as a reader would want to know it; "1" leaves that to what Python can find out.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import sys
import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"
#: Packages whose versions say what was measured; those that are not installed are left out.
PACKAGES = (
    "latentia",
    "jax",
    "jaxlib",
    "numpy",
    "scipy",
    "scikit-learn",
    "numba",
    "torch",
    "spams-bin",
    "python-picard",
)


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


def report(title: str, figures: dict[str, Any], peers: dict[str, float] | None = None) -> None:
    """Print figures for people, then as one JSON line for programs; keep them if that is wanted.

    Args:
        title: what was measured, with its sizes.
        figures: numbers and short texts by name.
        peers: how many times as long each peer took in the same run.
    """
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<44} {value:.4g}" if isinstance(value, float) else f"  {name:<44} {value}")
    print(json.dumps({"benchmark": title, **figures}))
    wanted = os.environ.get("LATENTIA_RECORD")
    if wanted:
        script = Path(sys.argv[0]).stem
        print(f"kept in {record(script, title, figures, peers, machine='' if wanted == '1' else wanted)}")


def record(
    script: str, title: str, figures: dict[str, Any], peers: dict[str, float] | None = None, *, machine: str = ""
) -> Path:
    """Append one result to the file of its script; a benchmark of the same title gives way to the new one.

    Args:
        script: name of the benchmark's file, without its ending.
        title: what was measured, with its sizes.
        figures: numbers and short texts by name.
        peers: how many times as long each peer took.
        machine: what it ran on, in words; found out if empty.

    Returns:
        The file.
    """
    entry = {
        "title": title,
        "date": datetime.date.today().isoformat(),
        "machine": machine or this_machine(),
        "versions": versions(),
        "figures": {name: _plain(value) for name, value in figures.items()},
        "peers": {name: _plain(ratio) for name, ratio in (peers or {}).items()},
    }
    path = RESULTS / f"{script}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    entries = [*(old for old in known if old["title"] != title), entry]
    RESULTS.mkdir(exist_ok=True)
    path.write_text(json.dumps(entries, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path


def this_machine() -> str:
    """What it runs on, in words: the processor, how many cores may be used, and the accelerator if there is one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    words = f"{cores} core{'s' if cores != 1 else ''} of {_processor()}"
    jax = sys.modules.get("jax")
    if jax is not None and jax.default_backend() != "cpu":
        words = f"one {jax.devices()[0].device_kind}, {words}"
    return words


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of Python and of the packages that matter here."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _plain(value: Any) -> Any:
    """Five digits of a number are enough for a file that people read."""
    if isinstance(value, bool | int | str) or value is None:
        return value
    try:
        return float(f"{float(value):.5g}")
    except (TypeError, ValueError):
        return str(value)
