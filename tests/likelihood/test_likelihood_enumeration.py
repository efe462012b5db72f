"""Exact log Z against brute force over all joint states, closed forms and quadrature."""

from __future__ import annotations

import itertools
import math

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from machines import double_rbm, logsumexp, random_rbm

from latentia import likelihood, units
from latentia.core import space
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.space import Space
from latentia.energies.rbm import RBMModel
from latentia.inference.enumeration import state
from latentia.likelihood import enumeration
from latentia.likelihood.precision import batch_to_double, double, to_double

DISCRETE = [
    ("bernoulli", "bernoulli"),
    ("bernoulli", "spin"),
    ("spin", "categorical"),
    ("categorical", "spin"),
]


@eqx.filter_jit
def joint_energies(model, x, z):
    return jax.vmap(lambda x: jax.vmap(lambda z: model.energy(x, z))(z))(x)


@pytest.mark.parametrize(("visible", "hidden"), DISCRETE)
def test_enumeration_equals_brute_force_over_joint_states(visible, hidden):
    model = random_rbm(visible, hidden, 4, 3, seed=3, scale=1.0)
    with double():
        target = double_rbm(visible, hidden, 4, 3, seed=3, scale=1.0)
        x, z = (jnp.asarray(v.enumerate(), jnp.float64) for v in (model.x_space, model.z_space))
        brute = logsumexp(-joint_energies(target, x, z))
        both_sides = [float(enumeration.sum_states(target, side)) for side in ("visible", "hidden", "joint")]
    np.testing.assert_allclose(both_sides, brute, rtol=1e-12)
    result = enumeration.log_z(model)
    np.testing.assert_allclose([result.lower, result.estimate, result.upper], brute, rtol=1e-12)
    assert result.stderr == 0
    assert result.is_exact
    assert f"{result.details['states']} {result.details['side']} states" in result.method


def test_chunks_cover_every_state_once(monkeypatch):
    monkeypatch.setattr(enumeration, "_CHUNK", 7)  # 3⁴ = 81 is no multiple of 7
    model = random_rbm("categorical", "bernoulli", 4, 2, seed=11, scale=1.0)
    with double():
        target = double_rbm("categorical", "bernoulli", 4, 2, seed=11, scale=1.0)
        fine = float(enumeration.sum_states.__wrapped__(target, "visible"))
    x = jnp.asarray(model.x_space.enumerate())
    np.testing.assert_allclose(fine, logsumexp(-likelihood.free_energies(model, x)), rtol=1e-12)


def test_state_number_runs_through_all_values():
    spaces = {"a": Space("binary", (2,)), "b": (Space("categorical", (2, 3)), Space("spin", (1, 2)))}
    count = 4 * 9 * 4
    with double():
        states = jax.vmap(lambda i: state(spaces, i, jnp.float32))(jnp.arange(count))
    rows = np.concatenate([np.asarray(leaf).reshape(count, -1) for leaf in jax.tree.leaves(states)], axis=1)
    wanted = [leaf.reshape(count, -1) for leaf in jax.tree.leaves(space.enumerate_states(spaces))]
    assert {tuple(r) for r in rows} == {tuple(r) for r in np.concatenate(wanted, axis=1)}
    assert len({tuple(r) for r in rows}) == count


def test_gaussian_visibles_against_the_closed_form():
    """MATH.md §1 with offsets: with v = W(z − λ), z gives Π√(2πσ²) exp(bᵀz − μᵀv + Σ(mv + ½v²)/σ²)."""
    model = random_rbm("gaussian", "bernoulli", 5, 4, seed=2, scale=0.8)
    v, h = model.visible, model.hidden
    w, mu, lam = (np.asarray(a, np.float64) for a in (model.weights, model.visible_offset, model.hidden_offset))
    m, log_sigma, b = (np.asarray(a, np.float64) for a in (v.location, v.log_sigma, h.bias))
    terms = []
    for z in itertools.product((0.0, 1.0), repeat=4):
        field = w @ (np.array(z) - lam)
        gauss = 0.5 * np.log(2 * np.pi) + log_sigma + (m * field + 0.5 * field**2) / np.exp(2 * log_sigma)
        terms.append(b @ np.array(z) - mu @ field + gauss.sum())
    np.testing.assert_allclose(enumeration.log_z(model).estimate, logsumexp(terms), rtol=1e-11)


@pytest.mark.parametrize(("visible", "hidden"), [("bernoulli", "rectified"), ("rectified", "spin")])
def test_continuous_layers_against_quadrature(visible, hidden):
    """Gauss–Legendre over one continuous unit, brute force over the discrete ones; only E is used."""
    left = visible == "rectified"
    sizes = (1, 3) if left else (3, 1)
    model = random_rbm(visible, hidden, *sizes, seed=5, scale=0.7)
    nodes, weights = np.polynomial.legendre.leggauss(400)
    grid, weights = 15 * (nodes + 1), 15 * weights
    discrete = (model.z_space if left else model.x_space).enumerate()
    with double():
        target = double_rbm(visible, hidden, *sizes, seed=5, scale=0.7)
        points, states = jnp.asarray(grid)[:, None], jnp.asarray(discrete, jnp.float64)
        energies = joint_energies(target, points, states) if left else joint_energies(target, states, points).T
    brute = logsumexp(-np.asarray(energies) + np.log(weights)[:, None])
    result = enumeration.log_z(model)
    np.testing.assert_allclose(result.estimate, brute, rtol=1e-10)
    assert result.details["states"] == 8


class Coupled(FreeEnergy):
    """Two kinds of visibles and a tuple of latents: everything is a pytree."""

    weights: jax.Array
    bias: jax.Array

    @property
    def x_space(self):
        return {"bits": Space("binary", (3,)), "sites": Space("categorical", (2, 3))}

    @property
    def z_space(self):
        return (Space("spin", (2,)),)

    def _row(self, x):
        return jnp.concatenate([x["bits"], x["sites"].reshape(-1)])

    def energy(self, x, z):
        return -self._row(x) @ self.weights @ z[0] - self.bias @ self._row(x)

    def free_energy(self, x):
        field = self._row(x) @ self.weights
        return -self.bias @ self._row(x) - jnp.sum(jnp.logaddexp(field, -field))


def coupled(seed: int = 0) -> Coupled:
    keys = jax.random.split(jax.random.key(seed))
    return Coupled(jax.random.normal(keys[0], (9, 2)), jax.random.normal(keys[1], (9,)))


def test_pytree_spaces():
    model = coupled()
    x, z = space.enumerate_states(model.x_space), space.enumerate_states(model.z_space)
    with double():
        brute = logsumexp(-joint_energies(to_double(model), batch_to_double(x), batch_to_double(z)))
    result = enumeration.log_z(model)
    np.testing.assert_allclose(result.estimate, brute, rtol=1e-12)
    assert result.details == {**result.details, "states": 72, "side": "visible"}


def uncoupled(visible: str, hidden: str, n_visible: int, n_hidden: int) -> RBMModel:
    zeros = [jnp.zeros(shape) for shape in ((n_visible, n_hidden), n_visible, n_hidden)]
    return RBMModel(units.make(visible, n_visible), units.make(hidden, n_hidden), *zeros)


def test_can_enumerate_counts_the_smaller_side():
    assert likelihood.can_enumerate(uncoupled("bernoulli", "spin", 60, 10))
    assert likelihood.can_enumerate(uncoupled("gaussian", "bernoulli", 30, 20))
    assert not likelihood.can_enumerate(uncoupled("gaussian", "bernoulli", 30, 21))
    assert not likelihood.can_enumerate(uncoupled("gaussian", "bernoulli", 3, 5), limit=31)
    assert likelihood.can_enumerate(uncoupled("gaussian", "bernoulli", 3, 5), limit=32)
    assert not likelihood.can_enumerate(uncoupled("gaussian", "rectified", 2, 2))


def test_errors_say_how_many_states_and_what_to_do():
    with pytest.raises(ParameterError, match=r"2\^60 hidden states, more than the limit of 1,048,576.*'ais'"):
        enumeration.log_z(uncoupled("bernoulli", "bernoulli", 70, 60))
    with pytest.raises(ParameterError, match=r"4,096 hidden states, more than the limit of 100\."):
        enumeration.log_z(uncoupled("bernoulli", "bernoulli", 70, 12), limit=100)
    with pytest.raises(CapabilityError, match=r"no discrete side.*'ais'"):
        enumeration.log_z(uncoupled("gaussian", "gaussian", 2, 2))


def test_large_energies_do_not_overflow():
    model = random_rbm("bernoulli", "bernoulli", 6, 5, seed=0, scale=1.0)
    model = eqx.tree_at(lambda m: m.visible.bias, model, model.visible.bias + 2000.0)
    assert math.isfinite(enumeration.log_z(model).estimate)
