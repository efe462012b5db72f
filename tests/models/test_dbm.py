"""Layered Boltzmann machines against energies written out in NumPy, enumeration, quadrature and brute force."""

from __future__ import annotations

import functools
import itertools
import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize
from scipy.special import expit, logsumexp

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from conformance_oracles import Nodes, at, check_summed_out, check_sweep, close, flat, nodes, perturbed, quick

from latentia import likelihood, samplers, units
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.parameters import trainable
from latentia.core.space import enumerate_states
from latentia.inference import MeanFieldInference, infer_means
from latentia.learning import contrastive
from latentia.learning.contrastive import Contrastive, ContrastiveState
from latentia.likelihood import evidence, variational_bounds
from latentia.likelihood.evidence import _bracketed
from latentia.likelihood.precision import batch_to_double, double
from latentia.models.layered import LayeredModel, label_energies
from latentia.models.replicated import ReplicatedRBM, assemble
from latentia.samplers.gibbs import GibbsState

CONVERGED = MeanFieldInference(2000, 1e-13)
VISIBLES = ("bernoulli", "spin", "categorical", "gaussian")


@pytest.fixture(autouse=True, scope="module")
def _hasty():
    """Compiling is most of the time of annealing a machine of ten units: do not optimise."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture(autouse=True)
def _x64():
    with double():
        yield


def machine(sizes=(3, 3, 2), *, visible="bernoulli", n_labels=None, seed=0, gain=1.0, middle="bernoulli"):
    """x – h¹ – h² – …, labels joined to the top, at random parameters: no bias, offset or constant is zero."""
    below = [units.make(visible, sizes[0], 3)]
    below += [] if n_labels is None else [units.make("categorical", 1, n_labels)]
    above = [units.make(middle if i == 0 else "bernoulli", n, 3) for i, n in enumerate(sizes[1:])]
    first, depth = len(below), len(above)
    edges = [(0, first), *((first + i, first + i + 1) for i in range(depth - 1))]
    edges += [] if n_labels is None else [(1, first + depth - 1)]
    model = perturbed(LayeredModel.make(below, above, edges, key=jax.random.key(0)), seed)
    return eqx.tree_at(lambda m: m.weights, model, tuple(gain * w for w in model.weights))


def states(space):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), enumerate_states(space))


# -- energies written out --------------------------------------------------------------------------------


def numpy_layer(layer, values):
    """(statistics, energies) of a batch of values of one layer."""
    if isinstance(layer, units.Gaussian):
        mean, scale, location, sigma = (
            np.asarray(a, np.float64)
            for a in (layer.data_mean, layer.data_scale, layer.location, np.exp(layer.log_sigma))
        )
        standard = (values - mean) / scale
        own = 0.5 * (((standard - location) / sigma) ** 2).sum(1) + np.log(scale).sum()
        return standard / sigma**2, own
    values = values.reshape(len(values), -1)
    return values, -values @ np.asarray(layer.bias, np.float64).ravel()


def numpy_energy(model, x, z):
    """E of a batch of pairs (x, z), from the formula at the top of the module."""
    parts = [x] if len(model.visible) == 1 else list(x)
    facts = [numpy_layer(*pair) for pair in zip((*model.visible, *model.hidden), (*parts, *z), strict=True)]
    centred = [s - np.asarray(o) for (s, _), o in zip(facts, model.offsets, strict=True)]
    couplings = [
        np.einsum("ni,ij,nj->n", centred[i], np.asarray(w), centred[j])
        for (i, j), w in zip(model.edges, model.weights, strict=True)
    ]
    return sum(own for _, own in facts) - sum(couplings) + float(model.constant)


def pairs(points, latents):
    """All pairs of two batches, as two batches."""
    n, m = len(flat(points)), len(flat(latents))
    return at(points, np.repeat(np.arange(n), m)), at(latents, np.tile(np.arange(m), n))


def numpy_table(model, x):
    """E(x, ·) at all z, a row per x."""
    z = states(model.z_space)
    return numpy_energy(model, *pairs(x, z)).reshape(len(flat(x)), -1)


def free(model, x):
    """F by enumeration."""
    return -logsumexp(-numpy_table(model, x), axis=1)


def grid(model):
    """All x, or a grid over real ones with the logarithms of its weights."""
    if all(leaf.is_discrete for leaf in jax.tree.leaves(model.x_space)):
        x = states(model.x_space)
        return Nodes(x, np.zeros(len(flat(x))))
    leaves, treedef = jax.tree.flatten(model.x_space)
    wide = [np.random.default_rng(0).normal(0, 2.0, (2000, *leaf.shape)) for leaf in leaves]
    return nodes(model.x_space, jax.tree.unflatten(treedef, wide))


def exact_log_z(model):
    x, log_weights = grid(model)
    return float(logsumexp(log_weights - free(model, x)))


def some_x(model, n=5, seed=1):
    """A few visible values."""
    rng = np.random.default_rng(seed)
    pick = lambda s: rng.choice(s.enumerate(), n) if s.is_discrete else rng.normal(0, 1.5, (n, *s.shape))  # noqa: E731
    return jax.tree.map(lambda s: np.asarray(pick(s), np.float64), model.x_space)


@quick
def energies_of(model, x, z):
    return jax.vmap(model.energy)(x, z)


@quick
def inferred(model, x):
    """(q's mean, E_q[E] − H(q)) by mean field run to its end, for a batch."""

    def one(x):
        q = CONVERGED.infer(model, x)
        return q.mean(), model.clamped(x).variational_energy(q)

    return jax.vmap(one)(x)


KINDS = {
    "two layers": {"sizes": (3, 3, 2)},
    "three layers": {"sizes": (3, 2, 2, 2)},
    "labels": {"sizes": (3, 2, 2), "n_labels": 3},
    "three layers and labels": {"sizes": (3, 2, 2, 2), "n_labels": 3},
    "spin": {"sizes": (3, 2, 2), "visible": "spin"},
    "categorical": {"sizes": (2, 2, 2), "visible": "categorical"},
    "gaussian": {"sizes": (2, 3, 2), "visible": "gaussian"},
    "gaussian and labels": {"sizes": (2, 2, 2), "visible": "gaussian", "n_labels": 2},
}
kinds = pytest.mark.parametrize("kind", KINDS)


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
    reduced, settled = (check_summed_out(model, name) for name in ("reduced_energy", "settled_energy"))
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


# -- clamping --------------------------------------------------------------------------------------------


@kinds
def test_clamping_all_visibles_leaves_log_z_at_minus_the_free_energy(kind):
    model = machine(**KINDS[kind], seed=4)
    x, z = some_x(model, 3), states(model.z_space)
    clamp = quick(lambda m, x, z: jax.vmap(lambda z: m.clamped(x).energy((), z))(z))
    found = np.stack([np.asarray(clamp(model, at(x, i), z)) for i in range(3)])
    close(found, numpy_table(model, x), tolerance=1e-10)
    close(logsumexp(-found, axis=1), -free(model, x), tolerance=1e-10)


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
        objective = make(k=1, rounds=7)
        wanted = eqx.tree_at(
            lambda o: o.inference, objective, MeanFieldInference(7, 0.0), is_leaf=lambda a: a is objective.inference
        )
        found = loss_gradients(objective, model, x, None, few)
        close(found, loss_gradients(wanted, model, x, None, few), tolerance=1e-12)
        other = loss_gradients(make(k=1, rounds=1), model, x, None, few)
        assert np.abs(np.asarray(found - other)).max() > 1e-3


# -- likelihoods -----------------------------------------------------------------------------------------


QUICK = {"n_temperatures": 60, "n_chains": 32, "n_replicas": 3, "n_burn_in": 40, "n_steps": 40}


@pytest.mark.parametrize(
    ("kind", "n_seeds"),
    [
        ({"sizes": (6, 4, 3), "gain": 1.5}, 40),
        ({"sizes": (5, 4, 3, 2), "gain": 1.5}, 40),
        ({"sizes": (2, 3, 2), "visible": "gaussian"}, 6),
        ({"sizes": (3, 3, 2), "visible": "categorical", "n_labels": 2}, 6),
    ],
)
def test_two_sided_intervals_hold_the_exact_log_z(kind, n_seeds):
    hits, widths = 0, []
    for seed in range(n_seeds):
        model = machine(**kind, seed=seed)
        found = likelihood.log_z(model, key=jax.random.key(seed), method="ais", **QUICK)
        exact = likelihood.log_z(model, key=jax.random.key(0), method="exact").estimate
        close(exact, exact_log_z(model), tolerance=1e-7)
        hits += found.lower <= exact <= found.upper
        widths.append(found.width)
    assert hits >= 0.95 * n_seeds
    assert np.median(widths) < 0.5


@pytest.mark.parametrize("kind", ["two layers", "three layers", "labels", "categorical", "gaussian"])
def test_evidence_brackets_the_exact_free_energies(kind):
    model = machine(**KINDS[kind], seed=11, gain=2.0)
    x = some_x(model, 16)
    wanted = -free(model, x)
    exact = evidence(model, x, key=None)
    close(exact.each, wanted, tolerance=1e-9)
    assert exact.lower == exact.upper == exact.estimate
    close(exact.estimate, wanted.mean(), tolerance=1e-9)
    bounds = variational_bounds(model, x)
    assert (bounds <= wanted + 1e-9).all()
    assert (wanted - bounds).max() > 0.01
    found = evidence(model, x, key=jax.random.key(0), method="ais", n_temperatures=10, n_steps=20)
    assert found.lower <= wanted.mean() <= found.upper
    assert bounds.mean() <= found.lower
    assert found.upper - found.lower < (wanted - bounds).mean()  # annealing adds to what mean field knows
    close(found.details["variational_bound"], bounds.mean(), tolerance=1e-5)


@pytest.mark.parametrize("kind", ["two layers", "three layers"])
def test_annealing_between_q_and_the_posterior_is_unbiased_in_both_directions(kind):
    """E[w] exp(F) = 1 upwards and E[1/w] exp(−F) = 1 downwards, for any number of temperatures."""
    model = machine(**KINDS[kind], seed=12, gain=2.5)
    x = some_x(model, 1)
    wanted = -free(model, x)[0]
    many = jax.tree.map(lambda a: jnp.asarray(np.repeat(a, 5000, axis=0)), x)
    keys = jax.random.split(jax.random.key(0), 5000)
    bound, forward, reverse = map(np.asarray, _bracketed(model, many, keys, np.array([0.0, 0.0, 0.4, 1.0]), 50))
    for log_w in (forward.ravel() - wanted, wanted - reverse.ravel()):
        w = np.exp(log_w)
        stderr = w.std() / np.sqrt(w.size)
        assert stderr < 0.03
        assert abs(w.mean() - 1) < 4.5 * stderr
    assert bound[0] + 0.02 < forward.mean() < wanted - 0.01
    assert reverse.mean() > wanted + 0.01


def test_states_beyond_the_limit_are_not_enumerated():
    model = machine((3, 3, 2))
    x = some_x(model, 2)
    with pytest.raises(ParameterError, match=r"needs 2\^5 states per example.*limit of 16.*method='ais'"):
        evidence(model, x, key=None, method="exact", limit=16)
    assert evidence(model, x, key=jax.random.key(0), limit=16, n_steps=5, n_temperatures=5).method.startswith(
        "p(z | x) by AIS"
    )
    labelled = machine((3, 3, 2), n_labels=3)
    seen = (some_x(labelled, 2)[0], None)
    assert evidence(labelled, seen, key=None, limit=96).method == "exact p(z | x)"
    with pytest.raises(ParameterError, match="limit of 95"):  # an unseen label counts
        evidence(labelled, seen, key=None, method="exact", limit=95)


@pytest.mark.parametrize("kind", ["two layers", "three layers", "labels", "gaussian", "gaussian and labels"])
def test_exact_likelihoods_are_those_of_brute_force(kind):
    model = machine(**KINDS[kind], seed=13)
    x, log_z = some_x(model, 6), exact_log_z(model)
    found = likelihood.log_likelihood(model, x, key=jax.random.key(0))
    close(found.estimate, np.mean(-free(model, x)) - log_z, tolerance=1e-7)
    assert found.is_exact
    if isinstance(x, tuple):  # the label was not observed
        classes = states(model.x_space[1])
        each = [-free(model, (x[0], np.repeat(c[None], 6, axis=0))) for c in classes]
        wanted = np.mean(logsumexp(each, axis=0)) - log_z
        found = likelihood.log_likelihood(model, (x[0], None), key=jax.random.key(0))
        close(found.estimate, wanted, tolerance=1e-7)


def test_two_sided_likelihoods_hold_the_exact_one():
    for seed in range(5):
        model = machine((5, 4, 3), seed=seed, gain=1.5)
        x = some_x(model, 8)
        wanted = np.mean(-free(model, x)) - exact_log_z(model)
        options = {"n_posterior_temperatures": 10, "n_posterior_steps": 20}
        found = likelihood.log_likelihood(model, x, key=jax.random.key(seed), method="ais", **QUICK, **options)
        assert found.lower <= wanted <= found.upper < found.lower + 1
        close(found.estimate, wanted, tolerance=0.05)


@pytest.mark.parametrize("kind", ["labels", "three layers and labels"])
def test_label_energies_bound_the_exact_ones_and_match_them_without_couplings(kind):
    model = machine(**KINDS[kind], seed=14)
    x, classes = some_x(model, 1)[0][0], states(model.x_space[1])
    exact = free(model, (np.repeat(x[None], 3, axis=0), classes))
    found = np.asarray(label_energies(model, (x,)))
    assert (found > exact).all()
    assert (found - exact).max() < 0.3
    weak = eqx.tree_at(lambda m: m.weights, model, tuple(1e-4 * w for w in model.weights))
    exact = free(weak, (np.repeat(x[None], 3, axis=0), classes))
    close(label_energies(weak, (x,)), exact, tolerance=1e-7)


# -- pretraining with copies -----------------------------------------------------------------------------


def stage(n_below, n_above, copies, *, visible="bernoulli", seed=0):
    layers = units.make(visible, n_below, 3), units.make("bernoulli", n_above)
    return perturbed(ReplicatedRBM.make(*layers, copies, key=jax.random.key(0)), seed)


def copies_of(value, n):
    return value if n == 1 else (value,) * n


def numpy_stage_energy(model, xs, zs):
    """E of a batch of all copies together, written out: every copy of one side is coupled to every one of the other."""
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
