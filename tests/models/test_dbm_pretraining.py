"""Pretraining of deep Boltzmann machines: RBMs with copies, and what is assembled from them, by enumeration."""

from __future__ import annotations

import functools
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from conformance_oracles import Nodes, check_sweep, close, perturbed, quick
from layered_machines import energies_of, machine, numpy_energy, numpy_layer, pairs, some_x, states
from scipy.special import expit, logsumexp

from latentia import units
from latentia.energies.replicated import ReplicatedRBM, assemble
from latentia.likelihood.precision import double

VISIBLES = ("bernoulli", "spin", "categorical", "gaussian")


@pytest.fixture(autouse=True)
def _x64():
    with double():
        yield


def stage(n_below, n_above, copies, *, visible="bernoulli", seed=0):
    layers = units.make(visible, n_below, 3), units.make("bernoulli", n_above)
    return perturbed(ReplicatedRBM.make(*layers, copies, key=jax.random.key(0), weight_scale=0.0), seed)


def copies_of(value, n):
    return value if n == 1 else (value,) * n


def numpy_stage_energy(model, xs, zs):
    """E of a batch of all copies together, written out: every copy is coupled to every one of the other side."""
    below = [numpy_layer(model.visible, x) for x in xs]
    above = [numpy_layer(model.hidden, z) for z in zs]
    mu, lam, w = (np.asarray(a) for a in (model.visible_offset, model.hidden_offset, model.weights))
    total = sum(own for _, own in (*below, *above))
    for (s, _), (t, _) in itertools.product(below, above):
        total = total - np.einsum("ni,ij,nj->n", s - mu, w, t - lam)
    return total


COPIES = pytest.mark.parametrize("copies", [(2, 1), (2, 2), (1, 2), (1, 1)])


@COPIES
def test_given_all_copies_of_one_side_the_other_has_the_conditionals_of_the_module(copies):
    n, m = copies
    model = stage(3, 2, copies, seed=1)
    a, b, w = (np.asarray(p) for p in (model.visible.bias, model.hidden.bias, model.weights))
    mu, lam = np.asarray(model.visible_offset), np.asarray(model.hidden_offset)
    xs, zs = states((units.Bernoulli.make(3).space,) * n), states((units.Bernoulli.make(2).space,) * m)
    for x in (np.array([1.0, 0.0, 1.0]), np.array([0.0, 1.0, 1.0])):
        log_p = -numpy_stage_energy(model, [np.repeat(x[None], len(zs[0]), axis=0)] * n, zs)
        p = np.exp(log_p - logsumexp(log_p))
        wanted = expit(n * (x - mu) @ w + b)
        for z in zs:
            close(p @ z, wanted, tolerance=1e-12)
        close(model.code(x), wanted, tolerance=1e-12)
    for h in (np.array([1.0, 0.0]), np.array([1.0, 1.0])):
        log_p = -numpy_stage_energy(model, xs, [np.repeat(h[None], len(xs[0]), axis=0)] * m)
        p = np.exp(log_p - logsumexp(log_p))
        for x in xs:
            close(p @ x, expit(m * w @ (h - lam) + a), tolerance=1e-12)


@COPIES
@pytest.mark.parametrize("visible", VISIBLES)
def test_the_energy_of_copies_is_the_formula_and_free_energies_sum_it(copies, visible):
    n, m = copies
    model = stage(2, 2, copies, visible=visible, seed=2)
    parts = [part for _ in range(n) for part in [some_x(machine((2, 2, 2), visible=visible), 3, seed=len(visible))]]
    parts = [part + (i if visible == "gaussian" else 0) for i, part in enumerate(parts)]
    zs = states((units.Bernoulli.make(2).space,) * m)
    for i in range(3):
        xs = [np.repeat(part[i][None], len(zs[0]), axis=0) for part in parts]
        wanted = numpy_stage_energy(model, xs, zs)
        found = energies_of(model, xs[0] if n == 1 else tuple(xs), zs)
        close(found, wanted, tolerance=1e-10)
        one = parts[0][i] if n == 1 else tuple(part[i] for part in parts)
        close(quick(lambda m, x: m.free_energy(x))(model, one), -logsumexp(-wanted), tolerance=1e-10)


def test_stages_keep_their_distribution_under_sweeps_and_when_offsets_move():
    model = stage(2, 2, (2, 2), seed=3)
    x, z = states(model.x_space), states(model.z_space)
    check_sweep(model, Nodes(x, np.zeros(len(x[0]))), key=jax.random.key(0))
    moved = model.recentred(jax.tree.map(lambda c: c + 0.7, model.centres(x, None)), 0.6)
    xs, zs = pairs(x, z)
    change = numpy_stage_energy(moved, xs, zs) - numpy_stage_energy(model, xs, zs)
    close(change, np.full_like(change, change[0]), tolerance=1e-10)
    assert np.abs(np.asarray(moved.visible_offset - model.visible_offset)).min() > 1e-3
    plain = eqx.tree_at(
        lambda s: (s.visible, s.hidden, s.visible_offset, s.hidden_offset),
        model,
        (*model.plain_biases(), np.zeros(2), np.zeros(2)),
    )
    change = numpy_stage_energy(plain, xs, zs) - numpy_stage_energy(model, xs, zs)
    close(change, np.full_like(change, change[0]), tolerance=1e-10)


def stack_of(sizes, visible="bernoulli"):
    """Stages with the copies that their places ask for, no two alike."""
    depth = len(sizes) - 1
    copies = [(1 if i == depth - 1 else 2, 1 if i == 0 else 2) for i in range(depth)]
    return [
        stage(sizes[i], sizes[i + 1], copies[i], visible=visible if i == 0 else "bernoulli", seed=20 + i)
        for i in range(depth)
    ]


def logits(energy, values):
    """log p(unit on)/p(unit off) of every unit of a layer, from an energy of one value of that layer."""
    found = []
    for unit in range(len(values)):
        on, off = values.copy(), values.copy()
        on[unit], off[unit] = 1.0, 0.0
        found.append(energy(off) - energy(on))
    return np.array(found)


@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 2, 3, 2), (3, 2, 3, 2, 3)])
def test_a_layer_of_the_assembled_machine_hears_the_average_of_its_two_stages(sizes):
    """Exactly that, for every layer; x and the top layer hear their only stage."""
    stages = stack_of(sizes)
    model = assemble(machine(sizes, seed=30), stages)
    rng = np.random.default_rng(0)
    values = [rng.integers(0, 2, n).astype(float) for n in sizes]

    def whole(layer, value):
        parts = [value if i == layer else v for i, v in enumerate(values)]
        return float(numpy_energy(model, parts[0][None], [v[None] for v in parts[1:]])[0])

    def upwards(stage, below, above):  # the energy of one copy of the upper side, given all copies of the lower one
        n, m = stage.copies
        return float(
            numpy_stage_energy(stage, [below[None]] * n, [above[None], *[np.zeros((1, len(above)))] * (m - 1)])[0]
        )

    def downwards(stage, below, above):
        n, m = stage.copies
        return float(
            numpy_stage_energy(stage, [below[None], *[np.zeros((1, len(below)))] * (n - 1)], [above[None]] * m)[0]
        )

    for layer, value in enumerate(values):
        said = []
        if layer > 0:
            said.append(logits(functools.partial(upwards, stages[layer - 1], values[layer - 1]), value))
        if layer < len(stages):
            said.append(logits(lambda v, layer=layer: downwards(stages[layer], v, values[layer + 1]), value))
        assert len(said) == (1 if layer in (0, len(stages)) else 2)
        found = logits(functools.partial(whole, layer), value)
        close(found, np.mean(said, axis=0), tolerance=1e-10)
        assert np.abs(found).max() > 0.1
    assert not any(np.asarray(o).any() for o in model.offsets)


def test_assembling_keeps_scales_and_labels():
    sizes = (2, 2, 3)
    start = machine(sizes, visible="gaussian", n_labels=3, seed=31)
    stages = stack_of(sizes, "gaussian")
    model = assemble(start, stages)
    h = np.array([1.0, 0.0])
    field = np.asarray(stages[0].weights) @ (h - np.asarray(stages[0].hidden_offset))
    x = stages[0].visible
    wanted = x.data_mean + x.data_scale * (x.location + field)  # one hidden copy: x hears it once
    close(model.decode((h, np.zeros(3)))[0], wanted, tolerance=1e-12)
    for name in ("log_sigma", "data_mean", "data_scale"):
        close(getattr(model.visible[0], name), getattr(x, name), tolerance=1e-15)
    close(model.visible[1].bias, start.visible[1].bias, tolerance=1e-15)
    close(model.weights[2], start.weights[2], tolerance=1e-15)
    assert model.edges == start.edges
