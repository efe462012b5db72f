"""Random keys with fast number generation on a CPU.

The generator is Threefry-2x32 with twenty rounds (Salmon et al., 2011), as in JAX, in another layout. JAX keeps one
of the two words that a hash yields, so that any sharding of an array draws the same numbers, and rolls the
rounds into a loop on CPU. Here arrays are only ever split between examples, each of which has a key of its own:
both words are kept and the rounds are unrolled, which takes a quarter of the time. Every function of
:mod:`jax.random` takes these keys. An accelerator has no such trouble and keeps JAX's own.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.extend.random
import jax.numpy as jnp
from jaxtyping import Array, PRNGKeyArray, UInt32

_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = 0x1BD11BDA
Words = UInt32[Array, "..."]


def key(seed: int) -> PRNGKeyArray:
    """A key from an integer.

    >>> jax.random.uniform(key(0), (3,)).shape
    (3,)
    """
    return jax.random.key(seed, impl=_IMPLEMENTATION if jax.default_backend() == "cpu" else None)


@functools.partial(jax.jit, inline=True)  # one call instead of a hundred where nothing is traced
def threefry(key: UInt32[Array, "2"], high: Words, low: Words) -> tuple[Words, Words]:
    """The hash of the 64-bit counters ``(high, low)`` under a key: two words each."""
    schedule = (key[0], key[1], key[0] ^ key[1] ^ jnp.uint32(_PARITY))
    high, low = high + schedule[0], low + schedule[1]
    for group in range(5):
        for distance in _ROTATIONS[group % 2]:
            high = high + low
            low = high ^ ((low << jnp.uint32(distance)) | (low >> jnp.uint32(32 - distance)))
        high = high + schedule[(group + 1) % 3]
        low = low + schedule[(group + 2) % 3] + jnp.uint32(group + 1)
    return high, low


def _seed(seed: Array) -> Words:
    high = seed >> 32 if seed.dtype.itemsize == 8 else jnp.zeros_like(seed)
    return jnp.stack([high.astype(jnp.uint32), seed.astype(jnp.uint32)])


def _split(key: Words, shape: tuple[int, ...]) -> Words:
    counters = jax.lax.iota(jnp.uint32, math.prod(shape))
    return jnp.stack(threefry(key, jnp.zeros_like(counters), counters), axis=-1).reshape(*shape, 2)


def _fold_in(key: Words, data: Any) -> Words:
    # The high word keeps folded keys apart from split ones.
    return jnp.stack(threefry(key, jnp.uint32(1), data.astype(jnp.uint32)))


def _random_bits(key: Words, bit_width: int, shape: tuple[int, ...]) -> Array:
    n = math.prod(shape)
    words = n * max(bit_width // 32, 1)
    counters = jax.lax.iota(jnp.uint32, (words + 1) // 2)
    first, second = threefry(key, jnp.zeros_like(counters), counters)
    if bit_width == 64:
        bits = (first.astype(jnp.uint64) << jnp.uint64(32)) | second.astype(jnp.uint64)
    else:
        bits = jnp.concatenate([first, second])[:n].astype(f"uint{bit_width}")
    return bits.reshape(shape)


_IMPLEMENTATION = jax.extend.random.define_prng_impl(
    key_shape=(2,),
    seed=_seed,
    split=_split,
    random_bits=_random_bits,
    fold_in=_fold_in,
    name="latentia_threefry",
    tag="ltf",
)
