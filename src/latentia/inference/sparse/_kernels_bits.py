"""Numbers as bits, for compiled code: an argmax that vectorises.

The bits of a non-negative float, read as an integer, have the order of the floats. With its lowest bits replaced by
the number of an atom, the integer maximum over all atoms names the atom too: one pass, no branch. What is lost are
the last bits of a comparison.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic


def _ranked_single(typingctx, x, k, mask):
    """|x| (float32) as an integer of the same order, its bits outside of the mask replaced by those of k."""

    def generate(context, builder, signature, arguments):
        word = ir.IntType(32)
        bits = builder.bitcast(arguments[0], word)
        kept = builder.and_(bits, builder.trunc(arguments[2], word))
        return builder.or_(kept, builder.trunc(arguments[1], word))

    return types.int32(types.float32, types.int64, types.int64), generate


def _ranked_double(typingctx, x, k, mask):
    """The same for float64."""

    def generate(context, builder, signature, arguments):
        bits = builder.bitcast(arguments[0], ir.IntType(64))
        return builder.or_(builder.and_(bits, arguments[2]), arguments[1])

    return types.int64(types.float64, types.int64, types.int64), generate


def _larger(typingctx, a, b):
    """The larger one of two integers of 32 bits (which Numba would widen)."""

    def generate(context, builder, signature, arguments):
        a, b = arguments
        return builder.select(builder.icmp_signed(">", a, b), a, b)

    return types.int32(types.int32, types.int32), generate


def _excess(typingctx, x, low, high):
    """x less its nearest point in [low, high], all float32."""

    def generate(context, builder, signature, arguments):
        x, low, high = arguments
        inside = builder.select(builder.fcmp_ordered("<", x, low), low, x)
        inside = builder.select(builder.fcmp_ordered(">", inside, high), high, inside)
        return builder.fsub(x, inside)

    return types.float32(types.float32, types.float32, types.float32), generate


ranked_single: Any = intrinsic(_ranked_single)
ranked_double: Any = intrinsic(_ranked_double)
larger: Any = intrinsic(_larger)
excess: Any = intrinsic(_excess)
