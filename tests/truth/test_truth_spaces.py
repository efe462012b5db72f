"""Domains: what values they hold, how bad ones are refused, and counts and shares wherever a domain matters."""

from __future__ import annotations

from typing import get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from latentia.core import space
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import DataError, ParameterError
from latentia.core.space import KINDS, Domain, Space
from latentia.datasets import load
from latentia.estimator.drawing import known_as_a_whole
from latentia.inference.amortised import Encoder
from latentia.inference.enumeration import state
from latentia.learning import noise as noises
from latentia.likelihood import log_z, pseudo_log_likelihood
from latentia.likelihood.precision import double

RNG = np.random.default_rng(0)
SPACES = {
    "binary": Space("binary", (3,)),
    "spin": Space("spin", (2, 2)),
    "categorical": Space("categorical", (2, 3)),
    "real": Space("real", (3,)),
    "nonnegative": Space("nonnegative", (2,)),
    "count": Space("count", (3,)),
    "simplex": Space("simplex", (2, 3)),
}
COUNTS = Space("count", (2,), maximum=3)


def test_there_is_one_list_of_domains():
    assert tuple(KINDS) == get_args(Domain) == tuple(SPACES)


@pytest.mark.parametrize("domain", SPACES)
def test_a_filler_lies_in_the_domain_and_goes_there_and_back(domain):
    leaf = SPACES[domain]
    rows = np.stack([leaf.filler] * 4)
    leaf.check(rows)
    assert rows.shape == (4, leaf.n_columns)
    low, high = leaf.bounds
    assert (rows >= low).all()
    assert (rows <= high).all()
    value = leaf.encode(rows)
    assert value.shape == (4, *leaf.shape)
    np.testing.assert_array_equal(leaf.decode(value), rows)
    np.testing.assert_array_equal(leaf.unflatten(leaf.flatten(value)), value)
    assert space.spread(leaf, np.ones_like(rows, bool)).shape == value.shape


def test_bounded_counts_are_enumerable_and_others_are_not():
    rows = COUNTS.enumerate()
    assert COUNTS.is_discrete
    assert COUNTS.site_states == (0.0, 1.0, 2.0, 3.0)
    assert COUNTS.bounds == (0, 3)
    assert len(np.unique(rows, axis=0)) == 16 == round(np.exp(COUNTS.log_count))
    assert rows.min() == 0
    assert rows.max() == 3
    with double():
        mixed = (COUNTS, Space("categorical", (1, 3)))
        each = [jax.tree.map(np.asarray, state(mixed, jnp.asarray(i), jnp.float32)) for i in range(48)]
    found = {(*map(int, counts), int(one.argmax())) for counts, one in each}
    assert found == {(a, b, c) for a in range(4) for b in range(4) for c in range(3)}
    free = SPACES["count"]
    assert not free.is_discrete
    assert free.log_count == np.inf
    with pytest.raises(DataError, match="Give it a maximum"):
        free.enumerate()


@pytest.mark.parametrize("bad", [-1, 0.5, np.nan, np.inf])
def test_counts_are_whole_and_not_negative(bad):
    X = np.array([[0, 1, 2], [3, 1e6, bad]])
    with pytest.raises(DataError, match=r"1 of 6 values are not a whole number of at least 0 .*row 11, column 22"):
        SPACES["count"].check(X, first=(10, 20))
    SPACES["count"].check(X[:1])


def test_counts_do_not_exceed_their_maximum():
    with pytest.raises(DataError, match=r"from 0 to 3 \(counts\); the first is 4 in row 0, column 1"):
        COUNTS.check(np.array([[3, 4]]))


def test_shares_are_not_negative_and_sum_to_one():
    good = RNG.dirichlet(np.ones(3), size=(5, 2)).reshape(5, 6).astype(np.float32)
    leaf = SPACES["simplex"]
    leaf.check(good)
    for bad in (-0.1, np.nan, np.inf):
        X = good.copy()
        X[2, 4] = bad
        with pytest.raises(DataError, match=r"1 of 30 values are not at least 0 .*row 2, column 4"):
            leaf.check(X)
    X = good.copy()
    X[3, 3:] *= 0.9
    with pytest.raises(DataError, match=r"1 of 10 groups of 3 shares .*row 13, columns 3 to 5, with a sum of 0.9"):
        leaf.check(X, first=(10, 0))
    with pytest.raises(DataError, match="columns 2 to 4"):  # of a pytree, counted over all leaves
        space.check((Space("real", (2,)), Space("simplex", (3,))), np.array([[0, 0, 1, 1, 0.0]]))


def test_what_is_no_domain_is_refused():
    with pytest.raises(ParameterError, match="'simplex', got 'counts'"):
        Space("counts", (2,))  # type: ignore[arg-type]
    for domain, maximum in (("real", 3), ("count", 0)):
        with pytest.raises(ParameterError, match="Only counts have a maximum"):
            Space(domain, (2,), maximum)  # type: ignore[arg-type]


class Coupled(FreeEnergy):
    """F(x) = −b·x + xᵀ J x over bounded counts."""

    linear: jax.Array
    coupling: jax.Array
    x_space: Space = eqx.field(static=True, default=COUNTS)

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return x @ self.coupling @ x - self.linear @ x


def test_likelihoods_of_counts_are_sums_over_all_of_them():
    model = Coupled(jnp.asarray(RNG.normal(size=2)), jnp.asarray(RNG.normal(size=(2, 2)) / 3))
    rows = COUNTS.enumerate().astype(np.float64)
    linear, coupling = (np.asarray(a, np.float64) for a in (model.linear, model.coupling))
    energies = np.einsum("ni,ij,nj->n", rows, coupling, rows) - rows @ linear
    found = log_z(model, key=jax.random.key(0))
    assert found.details["states"] == 16
    assert found.estimate == pytest.approx(logsumexp(-energies), abs=1e-6)
    table = -energies.reshape(4, 4)
    wanted = 2 * table - logsumexp(table, axis=0, keepdims=True) - logsumexp(table, axis=1, keepdims=True)
    np.testing.assert_allclose(pseudo_log_likelihood(model, rows), wanted.reshape(-1), atol=1e-6)


@pytest.mark.parametrize("name", ["count", "simplex"])
def test_disturbances_are_symmetric_and_stay_inside(name):
    n = 40_000
    if name == "count":
        leaf = COUNTS
        start = leaf.enumerate()[RNG.integers(0, 16, n)]
    else:
        leaf = Space("simplex", (2, 3))
        start = RNG.dirichlet(np.ones(3), size=(n, 2)).astype(np.float32)
    disturbance = noises.Disturbance(0.8, 0.4).fitted(leaf, jnp.asarray(start))
    keys = jax.random.split(jax.random.key(0), n)
    end = np.asarray(eqx.filter_jit(jax.vmap(lambda x, k: disturbance.disturb(x, key=k)))(jnp.asarray(start), keys))
    leaf.check(end.reshape(n, -1))
    assert 0.2 < (start != end).mean() < 0.8
    start, end = start.reshape(n, -1).astype(float), end.reshape(n, -1)
    # Uniform starts: swapping the two changes no statistic.
    lopsided = np.concatenate([start**2 * end - end**2 * start, np.sqrt(start) - np.sqrt(end)], axis=1)
    assert np.abs(lopsided.mean(0) / (lopsided.std(0) / np.sqrt(n))).max() < 4.5


def test_what_has_no_distribution_for_counts_says_so():
    for make in (noises.Marginals, noises.GaussianNoise):
        with pytest.raises(DataError, match=r"data, not for count\.$"):
            make().fitted(COUNTS, jnp.zeros((4, 2)))
    with pytest.raises(DataError, match="use 'marginals'"):
        noises.GaussianNoise().fitted(SPACES["binary"], jnp.zeros((4, 3)))
    with pytest.raises(TypeError, match="real, binary, spin and categorical latents, not count"):
        Encoder.make(COUNTS, jnp.zeros((4, 2)), hidden=None, key=jax.random.key(0))


def test_shares_are_known_all_together_or_not_at_all():
    leaves = (Space("real", (1,)), Space("simplex", (3,)))
    known_as_a_whole(leaves, np.array([[True, False, False, False], [False, True, True, True]]))
    with pytest.raises(DataError, match="all together or not at all"):
        known_as_a_whole(leaves, np.array([[True, True, False, False]]))


def test_files_may_hold_counts_and_shares(tmp_path):
    counts, shares = RNG.integers(0, 9, (20, 3)).astype(np.float32), RNG.dirichlet(np.ones(3), 20)
    np.save(tmp_path / "counts.npy", counts)
    np.save(tmp_path / "shares.npy", shares)
    assert load(tmp_path / "counts.npy", domain="count").domain == "count"
    assert load(tmp_path / "shares.npy", domain="simplex").domain == "simplex"
    with pytest.raises(DataError, match=r"groups of 3 shares do not sum to 1.*domain='simplex' was requested"):
        load(tmp_path / "counts.npy", domain="simplex")
    with pytest.raises(DataError, match="not a whole number of at least 0"):
        load(tmp_path / "shares.npy", domain="count")
