"""Short loops, unrolled if that is faster."""

from __future__ import annotations

import jax

#: Longer loops stay loops: their bodies' launches no longer matter beside the time to compile them.
_SHORT = 12


def unrolled(n: int) -> int:
    """How many of ``n`` turns make one body: all of a short loop on an accelerator, where every launch counts."""
    return n if 0 < n <= _SHORT and jax.default_backend() != "cpu" else 1
