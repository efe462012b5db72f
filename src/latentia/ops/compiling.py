"""Compilation of what is not worth tuning.

On a GPU XLA tries several kernels for every product while it compiles, which takes seconds a program: time that a
loop of many thousand steps earns back, and hardly anything else.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax


def untuned(backend: str) -> dict[str, Any]:
    """Options for ``jax.jit`` that leave out the search for kernels.

    >>> untuned("cpu")
    {}
    """
    if backend != "gpu":
        return {}
    return {"compiler_options": {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}}


def briefly(function: Callable[..., Any]) -> Callable[..., Any]:
    """``equinox.filter_jit`` without the search for kernels.

    Not for what is called inside another compiled function: JAX takes such options for the outermost one only.

    >>> briefly(lambda x: 2 * x)(3)
    6
    """

    @functools.cache
    def compiled() -> Any:  # at the first call: an import must not start the backend
        return eqx.filter_jit(function, **untuned(jax.default_backend()))

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return call
