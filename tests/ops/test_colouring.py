"""Colourings of graphs, lattices, and Kaufman's log Z by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.special import logsumexp

from latentia.core.errors import ParameterError
from latentia.ops.colouring import Graph, check_edges, classes, colour, graph
from latentia.ops.lattice import CRITICAL, grid_edges, ising_correlation, ising_log_z


def random_edges(n, p, seed):
    rng = np.random.default_rng(seed)
    pairs = np.array(list(itertools.combinations(range(n), 2)))
    return pairs[rng.random(len(pairs)) < p]


def cycle(n):
    return np.array([(i, (i + 1) % n) for i in range(n)])


@pytest.mark.parametrize("seed", range(20))
def test_no_edge_joins_two_sites_of_one_colour(seed):
    n = 5 + seed
    edges = random_edges(n, [0.05, 0.2, 0.6][seed % 3], seed)
    shades = colour(n, edges)
    assert (shades[edges[:, 0]] != shades[edges[:, 1]]).all()
    assert sorted(set(shades.tolist())) == list(range(shades.max() + 1))


@pytest.mark.parametrize(
    ("n", "edges", "wanted"),
    [
        (6, cycle(6), 2),
        (5, cycle(5), 3),
        (7, np.concatenate([cycle(3), [[3, 4], [4, 5], [5, 6], [3, 6]]]), 3),
        (6, random_edges(6, 1.1, 0), 6),
        (4, np.zeros((0, 2), int), 1),
        (16, grid_edges((4, 4), periodic=True), 2),
        (15, grid_edges((5, 3), periodic=True), 3),
        (27, grid_edges((3, 3, 3)), 2),
    ],
)
def test_graphs_get_as_many_colours_as_they_need(n, edges, wanted):
    assert colour(n, edges).max() + 1 == wanted


def test_the_first_site_of_each_part_of_a_two_coloured_graph_has_the_first_colour():
    assert colour(7, np.array([[0, 3], [3, 1], [2, 5], [5, 6]])).tolist() == [0, 0, 0, 1, 0, 1, 0]
    assert classes(4, [(0, 1), (1, 2)]) == [(0, 2, 3), (1,)]
    with pytest.raises(ParameterError, match="itself"):
        classes(2, [(1, 1)])


@pytest.mark.parametrize("seed", range(6))
def test_the_padded_lists_hold_every_edge_twice(seed):
    n = 12
    edges = random_edges(n, [0.1, 0.3, 0.9][seed % 3], seed)
    if seed == 5:  # one site with many neighbours
        edges = np.array([(0, i) for i in range(1, n)])
    joined = graph(n, edges)
    found, width = [], 0
    for (begin, end), pieces in zip(joined.spans, joined.pieces, strict=True):
        assert pieces[0].first == begin
        assert sum(len(piece.ends) for piece in pieces) == end - begin
        for piece in pieces:
            width = max(width, piece.ends.shape[1])
            for row, (ends, numbers) in enumerate(zip(piece.ends, piece.edges, strict=True)):
                real = numbers < len(edges)
                assert real.sum() * 2 > len(real) or not real.sum()
                here = joined.order[piece.first + row]
                for end, number in zip(joined.order[ends[real]], numbers[real], strict=True):
                    assert sorted((here, end)) == joined.edges[number].tolist()
                    found.append((int(here), int(end)))
    both = np.concatenate([edges, edges[:, ::-1]])
    assert sorted(found) == sorted(map(tuple, both.tolist()))
    assert sorted(joined.order.tolist()) == list(range(n))


def test_graphs_compare_by_content():
    edges = random_edges(6, 0.5, 0)
    assert graph(6, edges) is graph(6, edges.tolist())
    assert Graph(6, edges) == Graph(6, edges[:, ::-1])
    assert hash(Graph(6, edges)) == hash(Graph(6, edges))
    assert Graph(6, edges) != Graph(7, edges)
    assert Graph(6, edges) != Graph(6, edges[1:])


@pytest.mark.parametrize(
    ("edges", "why"),
    [
        ([(0, 0)], "joined to itself"),
        ([(0, 3)], "from 0 to 2"),
        ([(-1, 1)], "from 0 to 2"),
        ([(0, 1), (1, 0)], "more than once"),
        ([(0.0, 1.0)], "integers"),
        ([(0, 1, 2)], "pairs"),
        ([0, 1], "pairs"),
    ],
)
def test_bad_edges_are_refused(edges, why):
    with pytest.raises(ParameterError, match=why):
        check_edges(edges, 3)


def test_lattices_have_their_edges():
    assert {tuple(sorted(e)) for e in grid_edges((2, 3)).tolist()} == {
        (0, 1), (1, 2), (3, 4), (4, 5), (0, 3), (1, 4), (2, 5)
    }  # fmt: skip
    assert len(grid_edges((3, 4), periodic=True)) == 24
    assert grid_edges((1,)).shape == (0, 2)
    check_edges(grid_edges((3, 1, 4), periodic=True), 12)
    with pytest.raises(ParameterError, match="3 and more"):
        grid_edges((2, 5), periodic=True)
    with pytest.raises(ParameterError, match="at least 1"):
        grid_edges((0, 5))


@pytest.mark.parametrize("shape", [(3, 3), (3, 4), (4, 3), (4, 4)])
@pytest.mark.parametrize("coupling", [0.1, 0.3, CRITICAL, 0.6, 1.5])
def test_kaufmans_log_z_is_the_sum_over_all_states(shape, coupling):
    i, j = grid_edges(shape, periodic=True).T
    spins = 2.0 * ((np.arange(2 ** (shape[0] * shape[1]))[:, None] >> np.arange(shape[0] * shape[1])) & 1) - 1
    agreement = (spins[:, i] * spins[:, j]).sum(axis=1)
    wanted = logsumexp(coupling * agreement)
    assert ising_log_z(shape, coupling) == pytest.approx(wanted, abs=1e-10)
    mean = np.exp(coupling * agreement - wanted) @ agreement
    assert ising_correlation(shape, coupling) == pytest.approx(mean, abs=1e-5)


def test_large_lattices_tend_to_onsagers_free_energy():
    at_critical = 0.5 * np.log(2) + 2 * 0.915965594177219 / np.pi  # with Catalan's constant
    assert ising_log_z((512, 512), CRITICAL) / 512**2 == pytest.approx(at_critical, abs=1e-5)
    for shape, coupling in (((2, 4), 0.4), ((4, 4), 0.0), ((4, 4), -0.4)):
        with pytest.raises(ParameterError, match="Kaufman"):
            ising_log_z(shape, coupling)
