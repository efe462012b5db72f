"""Strict arithmetic for every test: no silent promotion of dtypes or ranks; and compiling that is quick."""

import ctypes
import difflib
import gc
import os
from importlib.metadata import version
from pathlib import Path

import pytest

# Compiled functions are shared between the test processes and between runs: all of them, because most are single
# operations on a few numbers, which take longer to compile than to read.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR", os.path.join(os.path.dirname(__file__), "..", ".pytest_cache", "jax")
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Tiny models take far longer to compile than to run: do not optimise.
_FLAGS = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and refuse to start
    _FLAGS.append("--xla_cpu_use_fusion_emitters=false")
os.environ.setdefault("XLA_FLAGS", " ".join(_FLAGS))

import equinox as eqx  # noqa: E402
import jax  # noqa: E402

jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")

# Tracing makes many objects that live on; looking through them every 700 takes a twentieth of the time.
gc.set_threshold(20_000, 20, 20)

#: Resident memory of a test process beyond which it lets go of what it has compiled; it stays well below NEEDED.
MOST_BYTES = 2_100_000_000
#: More compiled programs than this are too many where the system does not tell the resident memory.
MOST_PROGRAMS = 800
#: What a test process may take.
NEEDED = 2_500_000_000

from latentia.learning import compiled  # noqa: E402
from latentia.ops import compiling  # noqa: E402
from latentia.registry import FAMILIES  # noqa: E402

# The tests look after their memory themselves, by its size (see below); fits need not.
compiling.MOST_PROGRAMS = 1_000_000


# -- memory ----------------------------------------------------------------------------------------------------


def resident() -> int | None:
    """Bytes of this process that are in memory now; None where the system does not tell."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError):
        return None


def too_large() -> bool:
    now = resident()
    return compiling.n_live_programs() > MOST_PROGRAMS if now is None else now > MOST_BYTES


def release() -> None:
    """Let go of everything compiled, and give the memory back to the system (which glibc does not by itself)."""
    compiled.forget()
    eqx.clear_caches()
    jax.clear_caches()
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)


def pytest_collection_finish() -> None:
    """What is there before the first test stays to the end: no collection need look through it again."""
    gc.collect()
    gc.freeze()


def pytest_runtest_logfinish() -> None:
    """After a test: is this process too large?"""
    if too_large():
        release()


# -- how the tests are spread over processes -------------------------------------------------------------------


def memory() -> int | None:
    """Bytes of memory that this machine has; None where the system does not tell."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):
        return None


def pytest_xdist_auto_num_workers() -> int:
    """A process for every core, as far as the memory goes."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    room = memory()
    return max(1, cores if room is None else min(cores, int(room / NEEDED)))


# -- one family ------------------------------------------------------------------------------------------------


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--family", help="run only those conformance tests that are about this family")


def pytest_configure(config: pytest.Config) -> None:
    wanted, names = config.getoption("--family"), [family.name for family in FAMILIES]
    if wanted is not None and wanted not in names:
        close = difflib.get_close_matches(wanted, names, 1)
        hint = f" Did you mean {close[0]}?" if close else ""
        raise pytest.UsageError(f"There is no family {wanted!r}.{hint} The families are: {', '.join(names)}.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    wanted = config.getoption("--family")
    if wanted is None:
        return
    keep, leave = [], []
    for item in items:
        about = getattr(getattr(item, "callspec", None), "params", {}).get("family")
        elsewhere = "conformance" not in item.path.parts
        (keep if elsewhere or getattr(about, "name", None) == wanted else leave).append(item)
    items[:] = keep
    config.hook.pytest_deselected(items=leave)


# -- what was skipped ------------------------------------------------------------------------------------------


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """What was skipped, by reason."""
    places: dict[str, list[str]] = {}
    for report in terminalreporter.stats.get("skipped", []):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        places.setdefault(reason.removeprefix("Skipped: "), []).append(report.nodeid.partition("::")[0])
    if not places:
        return
    terminalreporter.section("skipped, and why")
    for reason, files in sorted(places.items(), key=lambda pair: (-len(pair[1]), pair[0])):
        terminalreporter.line(f"{len(files):4d}  {reason}  ({', '.join(sorted(set(files)))})")
