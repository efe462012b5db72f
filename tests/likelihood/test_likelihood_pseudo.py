"""The pseudo-likelihood against conditionals read off the enumerated distribution."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import random_rbm
from test_likelihood_enumeration import coupled

from latentia import likelihood
from latentia.core import space
from latentia.core.errors import CapabilityError


def explicit(free_energies: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Σ_i log p(x_i | x_−i) for all states, by comparing rows that differ in one site only."""
    log_pl = np.zeros(len(codes))
    for n, row in enumerate(codes):
        for i in range(codes.shape[1]):
            same = (np.delete(codes, i, axis=1) == np.delete(row, i)).all(axis=1)
            log_pl[n] += -free_energies[n] - np.log(np.sum(np.exp(-free_energies[same])))
    return log_pl


@pytest.mark.parametrize(
    ("visible", "hidden"), [("bernoulli", "spin"), ("spin", "bernoulli"), ("categorical", "rectified")]
)
def test_pseudo_likelihood_equals_explicit_conditionals(visible, hidden):
    model = random_rbm(visible, hidden, 4, 3, seed=1, scale=1.0)
    x = jnp.asarray(model.x_space.enumerate())
    got = likelihood.pseudo_log_likelihood(model, x)
    assert got.dtype == np.float64
    codes = model.x_space.decode(np.asarray(x))
    np.testing.assert_allclose(got, explicit(likelihood.free_energies(model, x), codes), rtol=1e-11)


def test_pytrees_of_visibles():
    model = coupled()
    x = space.enumerate_states(model.x_space)
    codes = np.concatenate(
        [s.decode(v) for s, v in zip(jax.tree.leaves(model.x_space), jax.tree.leaves(x), strict=True)], 1
    )
    got = likelihood.pseudo_log_likelihood(model, x)
    np.testing.assert_allclose(got, explicit(likelihood.free_energies(model, x), codes), rtol=1e-11)


def test_independent_visibles_make_it_the_likelihood():
    model = random_rbm("bernoulli", "bernoulli", 5, 3, seed=4, scale=0.0)
    x = jnp.asarray(model.x_space.enumerate())
    log_p = -likelihood.free_energies(model, x) - likelihood.log_z(model, key=jax.random.key(0)).estimate
    np.testing.assert_allclose(likelihood.pseudo_log_likelihood(model, x), log_p, rtol=1e-11)


def test_continuous_visibles_are_refused():
    model = random_rbm("gaussian", "bernoulli", 3, 2, seed=0, scale=0.1)
    assert not likelihood.can_pseudo(model)
    assert likelihood.can_pseudo(coupled())
    with pytest.raises(CapabilityError, match="discrete visibles"):
        likelihood.pseudo_log_likelihood(model, jnp.zeros((2, 3)))
