"""Rectangular lattices, and what is known exactly of the Ising model on them.

With spins s ∈ {−1, +1} and p(s) ∝ exp(K Σ_{neighbours} s_i s_j), the log Z of a finite lattice with periodic
borders is known in closed form, for every size (Kaufman, 1949). In an infinite lattice the magnetisation sets in at
K_c = ½ log(1 + √2) ≈ 0.4407 (Onsager, 1944).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

from latentia.core.errors import ParameterError

#: Where the magnetisation of the infinite square lattice sets in.
CRITICAL = 0.5 * math.log1p(math.sqrt(2))


def grid_edges(shape: Sequence[int], *, periodic: bool = False) -> Int[np.ndarray, "m 2"]:
    """The edges between neighbours in a lattice of any number of dimensions, sites numbered row by row.

    Args:
        shape: the length of every dimension.
        periodic: whether the last site of a row is also a neighbour of its first one.

    >>> grid_edges((2, 2)).tolist()
    [[0, 2], [1, 3], [0, 1], [2, 3]]
    >>> len(grid_edges((256, 256), periodic=True))
    131072
    """
    if not shape or min(shape) < 1 or (periodic and 2 in shape):
        wanted = "1, or 3 and more" if periodic else "at least 1"
        raise ParameterError(
            f"A{' periodic' if periodic else ''} lattice needs lengths of {wanted}, got {tuple(shape)!r}"
            f"{': a site would be the same neighbour on both sides' if periodic else ''}."
        )
    sites = np.arange(math.prod(shape), dtype=np.int32).reshape(shape)
    found = []
    for axis, length in enumerate(shape):
        if length == 1:
            continue
        here, there = sites, np.roll(sites, -1, axis)
        if not periodic:
            inner = np.arange(length - 1)
            here, there = here.take(inner, axis), there.take(inner, axis)
        found.append(np.stack([here.ravel(), there.ravel()], axis=1))
    return np.concatenate(found) if found else np.zeros((0, 2), np.int32)


def ising_log_z(shape: tuple[int, int], coupling: float) -> float:
    """log Z of the Ising model on a periodic lattice by Kaufman's four products.

    With m rows, n columns, cosh γ_l = cosh(2K) coth(2K) − cos(π l/n) and γ_0 = 2K + log tanh K,

        Z = ½ (2 sinh 2K)^{mn/2} [Π 2cosh(½mγ_{2r+1}) + Π 2sinh(½mγ_{2r+1}) + Π 2cosh(½mγ_{2r}) + Π 2sinh(½mγ_{2r})]

    over r = 0 … n − 1; γ_0 is negative for K < K_c, and with it the last product.

    Args:
        shape: rows and columns, at least 3 each.
        coupling: K > 0.

    >>> round(ising_log_z((16, 16), 0.44), 4)
    238.3872
    """
    m, n = shape
    if min(m, n) < 3 or not coupling > 0:
        raise ParameterError(
            f"Kaufman's formula needs at least 3 × 3 sites and K > 0, got {shape}, K = {coupling}."
        )
    twice = 2 * coupling
    cosh = math.cosh(twice) / math.tanh(twice) - np.cos(np.pi * np.arange(2 * n) / n)
    gamma = np.arccosh(np.maximum(cosh, 1.0))
    gamma[0] = twice + math.log(math.tanh(coupling))
    half = 0.5 * m * gamma
    size = np.abs(half)
    log_cosh = size + np.log1p(np.exp(-2 * size))
    with np.errstate(divide="ignore"):  # at K_c the last product is zero
        log_sinh = size + np.log(-np.expm1(-2 * size))
    logs = np.array([log_cosh[1::2].sum(), log_sinh[1::2].sum(), log_cosh[::2].sum(), log_sinh[::2].sum()])
    signs = np.array([1.0, 1.0, 1.0, np.sign(half[0])])
    top = logs.max()
    products = top + math.log(float(signs @ np.exp(logs - top)))
    return -math.log(2) + 0.5 * m * n * math.log(2 * math.sinh(twice)) + float(products)


def ising_correlation(shape: tuple[int, int], coupling: float) -> float:
    """E[Σ_{neighbours} s_i s_j], the derivative of :func:`ising_log_z` in K (by a central difference)."""
    step = 1e-4
    return (ising_log_z(shape, coupling + step) - ising_log_z(shape, coupling - step)) / (2 * step)
