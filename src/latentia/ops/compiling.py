"""Compilation of what is not worth tuning, and an end to what compiled programs hold.

On a GPU XLA tries several kernels for every product while it compiles, which takes seconds a program: time that a
loop of many thousand steps earns back, and hardly anything else.

Every compiled program holds one or two megabytes of memory and some memory mappings, of which Linux allows a
process 65,530; JAX keeps programs for as long as the process lives. A process that fits models of hundreds of
shapes would run out of both. So our functions are compiled by :func:`jitted` or :func:`briefly`, which record
their programs, and :func:`make_room` frees these when there are too many.
"""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax

#: More compiled programs than this in the process, the user's own among them, are too many.
MOST_PROGRAMS = 512
#: So are more memory mappings. (Linux allows 65,530, and other libraries need some.)
MOST_MAPPINGS = 24_000
#: What :func:`jitted` made.
_OURS: dict[int, Any] = {}


def untuned(backend: str) -> dict[str, Any]:
    """Options for ``jax.jit`` that leave out the search for kernels.

    >>> untuned("cpu")
    {}
    """
    if backend != "gpu":
        return {}
    return {"compiler_options": {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}}


def jitted(function: Callable[..., Any], **options: Any) -> Any:
    """``equinox.filter_jit`` of a function whose programs :func:`make_room` may let go of.

    >>> jitted(lambda x: 2 * x)(3)
    6
    """
    made = eqx.filter_jit(function, **options)
    compiled = getattr(made, "_cached", None)  # JAX's function, which Equinox shares between functions of one name
    if compiled is not None:  # otherwise only the last resort remains
        _OURS[id(compiled)] = compiled
    return made


def briefly(function: Callable[..., Any]) -> Callable[..., Any]:
    """``equinox.filter_jit`` without the search for kernels.

    Not for what is called inside another compiled function: JAX takes such options for the outermost one only.

    >>> briefly(lambda x: 2 * x)(3)
    6
    """

    @functools.cache
    def compiled() -> Any:  # at the first call: an import must not start the backend
        return jitted(function, **untuned(jax.default_backend()))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return call


def program_size(program: Any) -> int:
    """How large a compiled program is: the bytes of its code, or of its text if the backend does not report
    them."""
    return program.memory_analysis().generated_code_size_in_bytes or len(program.as_text())


def make_room() -> None:
    """Let go of compiled programs if the process holds too many of them; call it between two pieces of work.

    First our own go, apart from the loops of learning, which are counted for themselves
    (:mod:`latentia.learning.compiled`). Only if most of what is left belongs to others, such as the operations that
    JAX compiles one by one, all of JAX's caches are emptied, the user's functions' among them. These are then
    compiled again when they are next called, which happens at most once in MOST_PROGRAMS / 2 other programs.
    """
    if not _crowded(1.0):
        return
    for compiled in list(_OURS.values()):
        compiled.clear_cache()
    gc.collect()
    if _crowded(0.5):
        eqx.clear_caches()  # these hold on to what JAX would let go
        jax.clear_caches()
        gc.collect()


def _crowded(share: float) -> bool:
    """Whether there are more programs or memory mappings than a share of what is allowed."""
    n_programs = n_live_programs()
    return n_programs > share * MOST_PROGRAMS or (
        n_programs > share * MOST_PROGRAMS / 8 and _n_mappings() > share * MOST_MAPPINGS
    )


def n_live_programs() -> int:
    """How many compiled programs this process holds."""
    return len(jax.devices()[0].client.live_executables())


def _n_mappings() -> int:
    """How many memory mappings this process has; 0 if the system does not report it."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0
