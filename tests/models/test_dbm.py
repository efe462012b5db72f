"""Layered Boltzmann machines: structure, clamping, mean field and learning, against enumeration and brute force."""

from __future__ import annotations

import dataclasses
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import (
    Nodes,
    at,
    check_summed_out,
    check_sweep,
    close,
    flat,
    nodes,
    perturbed,
    quick,
    whole_leaves,
)
from jax.flatten_util import ravel_pytree
from layered_machines import (
    KINDS,
    energies_of,
    exact_log_z,
    free,
    grid,
    kinds,
    machine,
    numpy_energy,
    numpy_layer,
    numpy_table,
    pairs,
    some_x,
    states,
)
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

from latentia import likelihood, samplers, units
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.parameters import trainable
from latentia.energies.layered import LayeredModel
from latentia.inference import MeanFieldInference, infer_means
from latentia.learning import contrastive
from latentia.learning.contrastive import Contrastive, ContrastiveState
from latentia.likelihood import evidence
from latentia.likelihood.precision import double
from latentia.samplers.gibbs import GibbsState

CONVERGED = MeanFieldInference(2000, 1e-13)


pytestmark = pytest.mark.usefixtures("hasty")


@pytest.fixture(autouse=True)
def _x64():
    with double():
        yield


@quick
def inferred(model, x):
    """(q's mean, E_q[E] − H(q)) by mean field run to its end, for a batch."""

    def one(x):
        q = CONVERGED.infer(model, x)
        return q.mean(), model.clamped(x).variational_energy(q)

    return jax.vmap(one)(x)


@kinds
def test_the_energy_is_the_formula(kind):
    model = machine(**KINDS[kind])
    x, z = pairs(some_x(model), states(model.z_space))
    close(energies_of(model, x, z), numpy_energy(model, x, z), tolerance=1e-12)


# -- structure -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "wanted"),
    [
        ({"sizes": (5, 3, 2)}, ((0, 2), (1,))),
        ({"sizes": (2, 9, 3)}, ((1,), (0, 2))),  # the wider colour comes first
        ({"sizes": (5, 3, 2, 2)}, ((0, 2), (1, 3))),
        ({"sizes": (2, 7, 2, 7)}, ((1, 3), (0, 2))),
        ({"sizes": (5, 2, 2), "n_labels": 3}, ((0, 3), (1, 2))),
        ({"sizes": (5, 2, 2, 3), "n_labels": 4}, ((0, 1, 3), (2, 4))),
        ({"sizes": (2, 2, 9, 3), "n_labels": 2}, ((0, 1, 3), (2, 4))),
    ],
)
def test_the_colours_are_every_second_layer_and_labels_count_as_a_neighbour_of_the_top(kind, wanted):
    model = machine(**kind)
    assert model.blocks() == wanted
    for block, (i, j) in itertools.product(wanted, model.edges):
        assert not {i, j} <= set(block)


def test_parts_that_no_edge_joins_are_coloured_too():
    clamped = machine((3, 2, 2, 2), n_labels=2).clamped((np.zeros(3), None))  # y – h³ – h² – h¹ is left
    assert sorted(itertools.chain(*clamped.blocks())) == [0, 1, 2, 3]
    bits = [units.Bernoulli.make(2) for _ in range(4)]
    apart = LayeredModel.make(bits[:1], bits[1:], [(2, 3)], key=jax.random.key(0))
    assert sorted(itertools.chain(*apart.blocks())) == [0, 1, 2, 3]
    assert not any({2, 3} <= set(block) for block in apart.blocks())


@pytest.mark.parametrize("kind", ["three layers", "labels", "gaussian"])
def test_both_colours_can_be_summed_out_and_a_sweep_keeps_the_distribution(kind):
    model = machine(**KINDS[kind], seed=2)
    reduced, settled = (
        whole_leaves(check_summed_out(model, name)) for name in ("reduced_energy", "settled_energy")
    )
    assert sorted((*reduced, *settled)) == list(range(len(model.layers)))
    assert (tuple(reduced), tuple(settled)) == model.blocks()
    check_sweep(model, grid(model), key=jax.random.key(1))
    if kind == "labels":  # with the label fixed the data move, and the other way round
        for which in range(2):
            fixed = tuple(np.full(leaf.shape, i == which) for i, leaf in enumerate(model.x_space))
            check_sweep(model, grid(model), key=jax.random.key(2), fixed=fixed)


@kinds
def test_a_machine_without_offsets_has_the_same_distribution(kind):
    model = machine(**KINDS[kind], seed=3)
    zeros = tuple(np.zeros_like(o) for o in model.offsets)
    plain = model.recentred(zeros, 1.0)
    assert all(not np.asarray(o).any() for o in plain.offsets)
    x, z = pairs(some_x(model), states(model.z_space))
    change = numpy_energy(plain, x, z) - numpy_energy(model, x, z)
    close(change, np.full_like(change, change[0]), tolerance=1e-10)
    undone = plain.recentred(model.offsets, 1.0)  # and back again, to the very same machine
    for found, wanted in zip(jax.tree.leaves(undone), jax.tree.leaves(model), strict=True):
        close(found, wanted, tolerance=1e-12)


@pytest.mark.parametrize("kind", ["three layers and labels", "gaussian"])
def test_offsets_start_and_follow_at_the_means_of_data_and_mean_field(kind):
    model = machine(**KINDS[kind], seed=3)
    x, weights = some_x(model, 6), np.array([2.0, 0.0, 1.0, 0.5, 1.5, 1.0])
    parts = list(x) if isinstance(x, tuple) else [x]
    seen = [numpy_layer(layer, part)[0] for layer, part in zip(model.visible, parts, strict=True)]
    wanted = [np.average(s, axis=0, weights=weights) for s in seen]
    wanted += [np.average(m, axis=0, weights=weights) for m in inferred(model, x)[0]]
    for found, mean in zip(model.centres(x, weights), wanted, strict=True):
        close(found, mean, tolerance=1e-4)  # ten rounds of mean field
    start = model.initialise(x, key=jax.random.key(0))
    for found, mean in zip(start.offsets, start.centres(x, None), strict=True):
        close(found, mean, tolerance=1e-3)
    assert np.abs(np.asarray(start.offsets[-1])).min() > 1e-3


@pytest.mark.parametrize("kind", ["three layers and labels", "categorical"])
def test_log_z_of_an_uncoupled_machine_counts_its_constant(kind):
    base = machine(**KINDS[kind], seed=3).base()
    assert not any(np.asarray(w).any() for w in base.weights)
    shifted = eqx.tree_at(lambda m: m.constant, base, jnp.array(0.7))
    close(shifted.base_log_z(), exact_log_z(shifted), tolerance=1e-10)
    close(shifted.base_log_z(), base.base_log_z() - 0.7, tolerance=1e-12)


# -- clamping --------------------------------------------------------------------------------------------


@kinds
def test_clamping_all_visibles_leaves_log_z_at_minus_the_free_energy(kind):
    model = machine(**KINDS[kind], seed=4)
    x, z = some_x(model, 3), states(model.z_space)
    clamp = quick(lambda m, x, z: jax.vmap(lambda z: m.clamped(x).energy((), z))(z))
    found = np.stack([np.asarray(clamp(model, at(x, i), z)) for i in range(3)])
    close(found, numpy_table(model, x), tolerance=1e-10)
    close(logsumexp(-found, axis=1), -free(model, x), tolerance=1e-10)


def test_visible_layers_that_are_joined_keep_their_coupling_when_both_are_clamped():
    layers = [units.Bernoulli.make(2) for _ in range(3)]
    model = LayeredModel.make(layers[:2], layers[2:], [(0, 1), (1, 2)], key=jax.random.key(0), weight_scale=0.0)
    model = perturbed(model, 3)
    x, z = some_x(model, 4), states(model.z_space)
    for i in range(4):
        seen = at(x, i)
        found = [float(model.clamped(seen).energy((), at(z, j))) for j in range(4)]
        close(found, numpy_table(model, jax.tree.map(lambda a: a[None], seen))[0], tolerance=1e-10)


def test_a_gaussian_layer_under_a_field_keeps_its_energy_and_its_integral():
    """Completing the square in a real layer next to a clamped one leaves a constant behind."""
    model = machine((3, 2, 2), middle="gaussian", seed=5, gain=0.7)
    x = at(some_x(model), 0)
    clamped = model.clamped(x)
    z = nodes(model.z_space, (np.random.default_rng(0).normal(0.5, 1.2, (2000, 2)), np.zeros((2000, 2))))
    many = jax.tree.map(lambda a: np.broadcast_to(a, (len(flat(z.points)), *a.shape)), x)
    wanted = numpy_energy(model, many, z.points)
    found = np.asarray(quick(lambda m, z: jax.vmap(lambda z: m.energy((), z))(z))(clamped, z.points))
    close(found, wanted, tolerance=1e-9)
    q = _field_moved(clamped.guess(), 1)
    log_q, energy = quick(lambda m, q, z: (jax.vmap(q.log_prob)(z), m.variational_energy(q)))(clamped, q, z.points)
    p = np.exp(np.asarray(log_q) + z.log_weights)
    close(p.sum(), 1.0)
    close(energy, p @ (wanted + np.asarray(log_q)))
    refined = quick(lambda m, q: jax.lax.fori_loop(0, 200, lambda _, q: m.refine(q), q))(clamped, q)
    best = float(clamped.variational_energy(refined))
    assert -logsumexp(z.log_weights - wanted) < best < float(energy) - 0.05
    for seed in range(20):
        assert float(clamped.variational_energy(_field_moved(refined, seed, 0.1))) > best


def _field_moved(q, seed, scale=0.6):
    rng = np.random.default_rng(seed)
    fields = tuple(np.asarray(layer.field) + scale * rng.normal(size=layer.field.shape) for layer in q.layers)
    return eqx.tree_at(lambda q: tuple(layer.field for layer in q.layers), q, fields)


@pytest.mark.parametrize("kind", ["labels", "three layers and labels", "gaussian and labels"])
@pytest.mark.parametrize("missing", [0, 1])
def test_a_visible_layer_that_is_none_is_summed_out_with_the_latents(kind, missing):
    model = machine(**KINDS[kind], seed=6)
    x = some_x(model, 3)
    space = model.x_space[missing]
    if space.is_discrete:
        values = Nodes(states(space), np.zeros(len(states(space))))
    else:
        values = nodes(space, np.random.default_rng(0).normal(0, 2.0, (2000, *space.shape)))
    for i in range(3):
        seen = tuple(None if m == missing else part[i] for m, part in enumerate(x))
        clamped = model.clamped(seen)
        assert clamped.z_space == (space, *model.z_space)
        y, z = pairs(values.points, states(model.z_space))
        weights = np.repeat(values.log_weights, len(flat(states(model.z_space))))
        whole = tuple(y if m == missing else np.repeat(x[m][i][None], len(y), axis=0) for m in range(2))
        wanted = numpy_energy(model, whole, z)
        found = np.asarray(quick(lambda m, v: jax.vmap(lambda v: m.energy((), v))(v))(clamped, (y, *z)))
        close(found, wanted, tolerance=1e-9)
        batch, log_p = jax.tree.map(lambda a: a[None], seen), logsumexp(weights - wanted)
        if space.is_discrete:
            close(likelihood.log_z(clamped, key=None, method="exact").estimate, log_p, tolerance=1e-10)
            close(evidence(model, batch, key=None).estimate, log_p, tolerance=1e-10)
        else:
            with pytest.raises(CapabilityError, match="real-valued.*method='ais'"):
                evidence(model, batch, key=None, method="exact")
            found = evidence(model, batch, key=jax.random.key(i))  # not by enumeration, then
            assert found.lower <= log_p <= found.upper < found.lower + 1


# -- mean field ------------------------------------------------------------------------------------------


def best_factorial(energy, bits, seed, n_starts=12):
    """The lowest Σ q (E + log q) over all products of independent bits, by BFGS from many starts."""

    def objective(logits):
        log_q = bits @ -np.logaddexp(0, -logits) + (1 - bits) @ -np.logaddexp(0, logits)
        q, value = np.exp(log_q), energy + log_q
        return q @ value, (q * value) @ (bits - expit(logits))

    starts = np.random.default_rng(seed).normal(0, 2, (n_starts, bits.shape[1]))
    ends = [minimize(objective, start, jac=True, options={"gtol": 1e-10}) for start in starts]
    best = min(ends, key=lambda end: end.fun)
    return best.fun, expit(best.x)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (3, 2, 2, 2)])
def test_mean_field_finds_the_best_factorial_distribution(sizes):
    for seed in range(4):
        model = machine(sizes, seed=seed)
        x = some_x(model, 3, seed)
        means, found = inferred(model, x)
        for i, energy in enumerate(numpy_table(model, x)):
            value, best = best_factorial(energy, flat(states(model.z_space)), seed)
            close(found[i], value, tolerance=1e-8)
            close(flat(jax.tree.map(lambda a, i=i: a[i : i + 1], means))[0], best, tolerance=1e-4)
            assert value > -logsumexp(-energy) + 1e-4


def test_strongly_coupled_machines_have_several_optima_and_mean_field_ends_in_one_of_them():
    model = machine((3, 2, 2), gain=8.0)
    x = states(model.x_space)
    means, found = inferred(model, x)
    for i, energy in enumerate(numpy_table(model, x)):
        bits = flat(states(model.z_space))
        value, _ = best_factorial(energy, bits, 0)
        assert found[i] > value - 1e-8
        q = flat(jax.tree.map(lambda a, i=i: a[i : i + 1], means))[0]
        for unit in range(bits.shape[1]):  # no unit alone can do better
            others = np.prod(np.where(bits == 1, q, 1 - q)[:, np.arange(4) != unit], axis=1)
            logit = (others * energy * (1 - 2 * bits[:, unit])).sum()
            close(q[unit], expit(logit), tolerance=1e-6)


def test_the_guess_goes_upwards_through_layers_that_stand_at_their_offsets():
    model = machine((3, 2, 2, 2), seed=7)
    x = np.array([1.0, 0.0, 1.0])
    w = [np.asarray(a) for a in model.weights]
    mu = [np.asarray(a) for a in model.offsets]
    below = x
    for layer, found in enumerate(model.clamped(x).guess().mean()):
        wanted = expit(np.asarray(model.hidden[layer].bias) + (below - mu[layer]) @ w[layer])
        close(found, wanted, tolerance=1e-12)
        below = wanted


def test_a_round_updates_the_second_colour_from_the_first_ones_new_means():
    model = machine((3, 2, 2, 2), seed=7, gain=4.0)
    clamped = model.clamped(np.array([1.0, 0.0, 1.0]))
    old = _field_moved(clamped.guess(), 3, 2.0)
    w, mu = ([np.asarray(a) for a in side] for side in (clamped.weights, clamped.offsets))
    b = [np.asarray(layer.bias) for layer in clamped.hidden]
    centred = [np.asarray(m) - o for m, o in zip(old.mean(), mu, strict=True)]
    outer = [expit(b[0] + w[0] @ centred[1]), expit(b[2] + centred[1] @ w[1])]  # h¹ and h³ given h²
    inner = expit(b[1] + (outer[0] - mu[0]) @ w[0] + w[1] @ (outer[1] - mu[2]))  # then h² given them
    for found, wanted in zip(clamped.refine(old).mean(), (outer[0], inner, outer[1]), strict=True):
        close(found, wanted, tolerance=1e-12)


def test_codes_with_labels_unseen_are_those_of_the_hidden_layers_alone():
    model = machine((3, 2, 2), n_labels=3, seed=8)
    x = np.array([1.0, 0.0, 1.0])
    means = CONVERGED.infer(model, (x, None)).mean()
    assert [m.shape for m in means] == [(1, 3), (2,), (2,)]
    for found, wanted in zip(infer_means(model, (x, None)), means[1:], strict=True):
        close(found, wanted, tolerance=1e-4)


# -- learning --------------------------------------------------------------------------------------------


PERSISTENT = Contrastive(samplers.Gibbs(), 1, True, None, CONVERGED)
FROM_DATA = Contrastive(samplers.Gibbs(), 1, False, None, CONVERGED)


@quick
def loss_gradients(objective, model, x, weights, samples):
    """The surrogate's gradient with each joint state in turn as the only sample: it is linear in the samples."""
    params, rest = eqx.partition(model, trainable(model))

    def one(sample):
        chains = GibbsState(*jax.tree.map(lambda a: a[None], sample))
        state = ContrastiveState(chains, samplers.Gibbs(), {})
        gradient = eqx.filter_grad(lambda p: objective.loss(eqx.combine(p, rest), x, weights, state)[0])(params)
        return ravel_pytree(gradient)[0]

    return jax.vmap(one)(samples)


@quick
def enumerated_loss(model, x, weights, samples):
    """(mean of the best bounds, its finite differences, ∇ log Z by autodiff through all joint states)."""
    params, rest = eqx.partition(model, trainable(model))
    vector, unravel = ravel_pytree(params)

    def bound(vector):
        moved = eqx.combine(unravel(vector), rest)
        optimal = lambda x: moved.clamped(x).variational_energy(CONVERGED.infer(moved, x))  # noqa: E731
        return jnp.mean(weights * jax.vmap(optimal)(x))

    def log_z(vector):
        moved = eqx.combine(unravel(vector), rest)
        return jax.nn.logsumexp(-jax.vmap(moved.energy)(*samples))

    step = 1e-5 * jnp.eye(len(vector))
    differences = (
        jax.lax.map(lambda d: bound(vector + d), step) - jax.lax.map(lambda d: bound(vector - d), step)
    ) / 2e-5
    return differences, jax.grad(log_z)(vector)


def joint_states(model):
    """All (x, z), and their probabilities."""
    x, z = pairs(states(model.x_space), states(model.z_space))
    log_p = -numpy_energy(model, x, z)
    return (x, z), np.exp(log_p - logsumexp(log_p))


LEARNERS = {
    "two layers": {"sizes": (3, 2, 2)},
    "three layers": {"sizes": (2, 2, 2, 2)},
    "labels": {"sizes": (2, 2, 2), "n_labels": 3},
    "three layers and labels": {"sizes": (2, 2, 2, 2), "n_labels": 2},
}


@pytest.mark.parametrize("kind", LEARNERS)
def test_with_exact_samples_the_surrogate_has_the_gradient_of_the_optimal_bound(kind):
    """Positive phase: that of the re-optimised bound, though q is held fixed; negative phase: ∇ log Z."""
    model = machine(**LEARNERS[kind], seed=9)
    x = some_x(model, 4)
    weights = np.array([2.0, 0.5, 0.5, 1.0])
    samples, p = joint_states(model)
    positive, normaliser = enumerated_loss(model, x, weights, samples)
    for objective in (PERSISTENT, FROM_DATA):  # the last block summed out, or the joint energy
        each = np.asarray(loss_gradients(objective, model, x, weights, samples))
        close(p @ each, np.asarray(positive + normaliser), tolerance=1e-7)
        assert np.abs(each - p @ each).max() > 0.1  # single samples are far from it
    assert np.abs(np.asarray(positive)).max() > 0.05
    n_free = sum(leaf.size for leaf in jax.tree.leaves((model.visible, model.hidden, model.weights)))
    assert each.shape[1] == n_free  # neither offsets nor the constant are learned


def test_q_is_held_fixed_however_few_rounds_it_had():
    """The gradient is that of E_q[E] with a fixed q: minus the mean statistics, for the weights of h¹ – h²."""
    model = machine((3, 2, 2), seed=9, gain=2.0)
    x, (samples, p) = some_x(model, 4), joint_states(model)
    objective = dataclasses.replace(FROM_DATA, inference=MeanFieldInference(1, 0.0))
    each = np.asarray(loss_gradients(objective, model, x, None, samples))
    params = eqx.partition(model, trainable(model))[0]
    found = ravel_pytree(params)[1](jnp.asarray(p @ each)).weights[1]
    means = jax.vmap(lambda x: MeanFieldInference(1, 0.0).infer(model, x).mean())(x)
    mu = [np.asarray(o) for o in model.offsets]
    data = np.einsum("ni,nj->ij", np.asarray(means[0]) - mu[1], np.asarray(means[1]) - mu[2]) / 4
    drawn = np.einsum("n,ni,nj->ij", p, samples[1][0] - mu[1], samples[1][1] - mu[2])
    close(found, drawn - data, tolerance=1e-9)


def test_the_settled_surrogate_is_the_less_noisy_one():
    model = machine((3, 2, 2), seed=9)
    samples, p = joint_states(model)
    x = some_x(model, 4)
    noise = []
    for objective in (PERSISTENT, FROM_DATA):
        each = np.asarray(loss_gradients(objective, model, x, None, samples))
        noise.append(p @ ((each - p @ each) ** 2).sum(1))
    assert noise[0] < 0.9 * noise[1]


def test_weights_are_repeated_rows():
    model = machine((3, 2, 2), seed=9)
    x, (samples, _) = some_x(model, 4), joint_states(model)
    few = at(samples, np.arange(2))
    found = loss_gradients(PERSISTENT, model, x, np.array([2.0, 1.0, 0.0, 1.0]), few)
    wanted = loss_gradients(PERSISTENT, model, x[[0, 0, 1, 3]], None, few)
    close(found, wanted, tolerance=1e-10)
    assert np.abs(np.asarray(found - loss_gradients(PERSISTENT, model, x, None, few))).max() > 1e-2


def test_objectives_by_name_run_as_many_rounds_as_they_are_told():
    model = machine((3, 3, 2), seed=10, gain=3.0)
    x, (samples, _) = some_x(model, 4), joint_states(model)
    few = at(samples, np.arange(1))
    for make in (contrastive.cd, contrastive.pcd, contrastive.tempering):
        objective = make(n_sampler_steps=1, rounds=7)
        by_hand = dataclasses.replace(objective, inference=MeanFieldInference(7, 0.0))
        found = loss_gradients(objective, model, x, None, few)
        close(found, loss_gradients(by_hand, model, x, None, few), tolerance=1e-12)
        other = loss_gradients(make(n_sampler_steps=1, rounds=1), model, x, None, few)
        assert np.abs(np.asarray(found - other)).max() > 1e-3


def test_layers_in_an_odd_cycle_are_drawn_one_after_another():
    bits = [units.Bernoulli.make(n) for n in (3, 2, 2)]
    edges = [(0, 1), (1, 2), (0, 2)]
    model = perturbed(LayeredModel.make(bits[:1], bits[1:], edges, key=jax.random.key(0)), 3)
    model = eqx.tree_at(lambda m: m.weights, model, tuple(2 * w for w in model.weights))
    assert sorted(model.blocks()) == [(0,), (1,), (2,)]
    assert whole_leaves(check_summed_out(model, "reduced_energy")) == [0]
    check_sweep(model, grid(model), key=jax.random.key(1))
    with pytest.raises(ParameterError, match="itself"):
        LayeredModel.make(bits[:1], bits[1:], [(0, 0)], key=jax.random.key(0)).blocks()
