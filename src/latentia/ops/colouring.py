"""Graphs and their colourings: which sites may be updated at the same time.

Sites that no edge joins are independent given all others, so that Gibbs sampling and mean field update them
together. A colouring splits the sites into such sets. Two colours suffice exactly where no cycle has odd length;
other graphs get more, never too few.
"""

from __future__ import annotations

import functools
import hashlib
import heapq
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from latentia.core.errors import ParameterError

Edges = Int[np.ndarray, "m 2"]


def check_edges(edges: Any, n: int, *, name: str = "edges") -> Edges:
    """Pairs of different sites from 0 to n − 1, none of them twice, as (smaller, larger) in the order given.

    >>> check_edges([(2, 0), (1, 2)], 3).tolist()
    [[0, 2], [1, 2]]
    """
    found = np.asarray(edges)
    if found.size == 0:
        return np.zeros((0, 2), np.int32)
    if found.ndim != 2 or found.shape[1] != 2:
        raise ParameterError(f"{name} must be pairs of sites, shape (m, 2), got shape {found.shape}.")
    if found.dtype.kind not in "iu":
        raise ParameterError(f"{name} must hold integers (numbers of sites from 0), got {found.dtype}.")
    outside = (found < 0) | (found >= n)
    if outside.any():
        worst = found[outside.any(axis=1)][0].tolist()
        raise ParameterError(f"{name} must name sites from 0 to {n - 1}, got the pair {tuple(worst)}.")
    loops = found[:, 0] == found[:, 1]
    if loops.any():
        raise ParameterError(
            f"{name} must join two different sites, but site {found[loops][0, 0]} is joined to itself. "
            "Use a bias for what a site prefers by itself."
        )
    found = np.sort(found.astype(np.int32), axis=1)
    code = found[:, 0].astype(np.int64) * n + found[:, 1]
    kinds, counts = np.unique(code, return_counts=True)
    if (counts > 1).any():
        twice = divmod(int(kinds[counts > 1][0]), n)
        raise ParameterError(f"{name} must hold every pair once, but {twice} is there more than once (either way).")
    return found


def colour(n: int, edges: Edges) -> Int[np.ndarray, " n"]:
    """A colour for every site, so that no edge joins two of one colour.

    Two colours where the graph allows it; otherwise by saturation (Brélaz, 1979): the site whose neighbours already
    have the most colours is next, and takes the first that is free.

    >>> colour(4, np.array([[0, 1], [1, 2], [2, 3], [0, 3]])).tolist()
    [0, 1, 0, 1]
    >>> colour(3, np.array([[0, 1], [1, 2], [0, 2]])).max()
    np.int64(2)
    """
    edges = np.asarray(edges, np.int64).reshape(-1, 2)
    if (edges[:, 0] == edges[:, 1]).any():
        raise ParameterError("A graph with an edge from a site to itself has no colouring.")
    starts, ends = _adjacency(n, edges)
    two = _two_colours(n, edges, starts, ends)
    return two if (two[edges[:, 0]] != two[edges[:, 1]]).all() else _saturation(n, starts, ends)


def classes(n: int, edges: Iterable[Sequence[int]]) -> list[tuple[int, ...]]:
    """The sites of every colour.

    >>> classes(3, [(0, 1), (1, 2)])
    [(0, 2), (1,)]
    """
    shades = colour(n, np.array(list(edges), np.int64).reshape(-1, 2))
    return [tuple(np.flatnonzero(shades == shade).tolist()) for shade in range(max(shades, default=-1) + 1)]


def _adjacency(n: int, edges: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The neighbours of site i are ``ends[starts[i] : starts[i + 1]]``."""
    both = np.concatenate([edges, edges[:, ::-1]])
    both = both[np.argsort(both[:, 0], kind="stable")]
    return np.searchsorted(both[:, 0], np.arange(n + 1)), both[:, 1]


def _two_colours(n: int, edges: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """The parity of the distance from the first site of each component."""
    joined = coo_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    _, first = np.unique(connected_components(joined, directed=False)[1], return_index=True)
    found = np.full(n, -1, np.int64)
    frontier, shade = first, 0
    while frontier.size:
        found[frontier] = shade
        counts = starts[frontier + 1] - starts[frontier]
        steps = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
        near = np.unique(ends[np.repeat(starts[frontier], counts) + steps])
        frontier, shade = near[found[near] < 0], 1 - shade
    return found


def _saturation(n: int, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    neighbours = [ends[starts[i] : starts[i + 1]].tolist() for i in range(n)]
    found, around = [-1] * n, [set() for _ in range(n)]
    waiting = [(0, -len(near), site) for site, near in enumerate(neighbours)]
    heapq.heapify(waiting)
    while waiting:
        saturation, _, site = heapq.heappop(waiting)
        if found[site] >= 0 or -saturation != len(around[site]):
            continue  # an entry that a later one replaced
        found[site] = next(shade for shade in range(n) if shade not in around[site])
        for near in neighbours[site]:
            if found[near] < 0 and found[site] not in around[near]:
                around[near].add(found[site])
                heapq.heappush(waiting, (-len(around[near]), -len(neighbours[near]), near))
    return np.array(found, np.int64)


class Piece(NamedTuple):
    """Sites that follow one another in the order of a sweep, with their neighbours in padded lists.

    ``ends`` are positions in that order and ``edges`` numbers of edges, one past the last for padding.
    """

    first: int
    ends: Int[np.ndarray, "sites neighbours"]
    edges: Int[np.ndarray, "sites neighbours"]


class Graph:
    """Sites and edges with their colouring; compares by content, so that compiled programs can depend on it.

    In the order of a sweep one colour follows another. Within a colour sites are sorted by how many neighbours they
    have, and lists are padded by less than their own length, so that a few sites with many neighbours cost little.
    """

    def __init__(self, n: int, edges: Any):
        self.n = n
        self.edges = check_edges(edges, n)
        self._digest = hashlib.sha256(self.edges.tobytes()).digest()

    def __hash__(self) -> int:
        return hash((self.n, self._digest))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Graph) and (self.n, self._digest) == (other.n, other._digest)

    def __repr__(self) -> str:
        return f"Graph({self.n} sites, {len(self.edges)} edges)"

    @functools.cached_property
    def _layout(self) -> tuple[np.ndarray, list[tuple[int, int]], list[list[Piece]]]:
        shades = colour(self.n, self.edges)
        degrees = np.bincount(self.edges.ravel(), minlength=self.n)
        sizes = np.ceil(np.log2(np.maximum(degrees, 1))).astype(np.int64)  # of the lists, as powers of two
        order = np.lexsort((np.arange(self.n), sizes, shades)).astype(np.int32)
        place = np.argsort(order).astype(np.int32)
        both = np.concatenate([self.edges, self.edges[:, ::-1]]).astype(np.int64)
        numbers = np.tile(np.arange(len(self.edges)), 2)
        by = np.lexsort((numbers, place[both[:, 0]]))
        ends, numbers = place[both[by, 1]], numbers[by].astype(np.int32)
        starts = np.searchsorted(place[both[by, 0]], np.arange(self.n + 1))
        spans, pieces = [], []
        for shade in range(int(shades.max(initial=-1)) + 1):
            here = np.flatnonzero(shades[order] == shade)
            spans.append((int(here[0]), int(here[-1]) + 1))
            pieces.append([_piece(b, starts, ends, numbers) for b in _runs(here, sizes[order])])
        return order, spans, pieces

    @property
    def order(self) -> Int[np.ndarray, " n"]:
        """The sites in the order of a sweep."""
        return self._layout[0]

    @property
    def spans(self) -> list[tuple[int, int]]:
        """Where every colour begins and ends in that order."""
        return self._layout[1]

    @property
    def pieces(self) -> list[list[Piece]]:
        """The neighbours of each colour's sites."""
        return self._layout[2]


@functools.lru_cache(maxsize=16)
def _graph(n: int, edges: bytes) -> Graph:
    return Graph(n, np.frombuffer(edges, np.int32).reshape(-1, 2))


def graph(n: int, edges: Any) -> Graph:
    """A graph; one that was made before is remembered with its colouring."""
    return _graph(n, check_edges(edges, n).tobytes())


def _runs(places: np.ndarray, sizes: np.ndarray) -> list[np.ndarray]:
    """Places of one size of lists after another."""
    return np.split(places, np.flatnonzero(np.diff(sizes[places])) + 1)


def _piece(places: np.ndarray, starts: np.ndarray, ends: np.ndarray, numbers: np.ndarray) -> Piece:
    counts = starts[places + 1] - starts[places]
    width = int(counts.max(initial=0))
    there = np.arange(width)[None, :] < counts[:, None]
    index = np.minimum(starts[places][:, None] + np.arange(width), max(len(ends) - 1, 0))
    if not width:
        empty = np.zeros((len(places), 0), np.int32)
        return Piece(int(places[0]), empty, empty)
    padding = np.int32(len(numbers) // 2)
    return Piece(int(places[0]), np.where(there, ends[index], 0), np.where(there, numbers[index], padding))
