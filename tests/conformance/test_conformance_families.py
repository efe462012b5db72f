"""Every registered family × every capability its model has, at random parameters, against independent oracles.

A new family is covered as soon as it stands in the registry.
"""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import (
    N_DRAWS,
    all_energies,
    at,
    begins,
    blank,
    check_latents_summed,
    check_posterior,
    check_summed_out,
    check_sweep,
    chi_square,
    close,
    draws_latents_first,
    energies,
    exact_draws,
    exact_latents,
    flat,
    free_energies,
    index_of,
    inside,
    is_discrete,
    latent_means,
    nodes,
    perturbed,
    quick,
    random_model,
    repeated,
    statistics,
    summed_energies,
    sweeps,
    tiny,
    toy_rows,
    typical,
    visible_probabilities,
    visibles,
    whole_leaves,
    worst_score,
)
from scipy.special import logsumexp

import latentia
from latentia.core import capabilities, parameters, space, tempering
from latentia.core.errors import CapabilityError
from latentia.inference import Exact, MeanFieldInference, inference_of
from latentia.learning.closed_form import ClosedFormML
from latentia.learning.em import EM
from latentia.likelihood import can_enumerate, enumeration
from latentia.likelihood.precision import batch_to_double, double
from latentia.ops.examples import Examples
from latentia.registry import FAMILIES

MODELS = {family.name: random_model(family) for family in FAMILIES}


def has_exact_likelihood(model):
    return isinstance(model, capabilities.Normalised | capabilities.KnownLogZ) or can_enumerate(model)


def having(*needed, where=lambda model: True):
    """The families whose model has all these capabilities, and of which ``where`` holds."""
    able = [f for f in FAMILIES if all(isinstance(MODELS[f.name], need) for need in needed)]
    able = [f for f in able if where(MODELS[f.name])]
    return pytest.mark.parametrize("family", able, ids=[f.name for f in able])


@pytest.fixture
def x64():
    with double():
        yield


def rows_of(family, model, n=64):
    return batch_to_double(space.encode(model.x_space, toy_rows(family.tiny_data, n)))


def log_likelihood(model, x, weights=None):
    return -float(np.average(np.asarray(free_energies(model, x)), weights=weights))


# -- sums and integrals -----------------------------------------------------------------------------


@having(capabilities.ExactPosterior)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("x64")
def test_posterior_and_free_energy_follow_from_the_energy(family, seed):
    model = random_model(family, seed)
    x, _ = typical(model)
    for i in (0, 1):
        check_posterior(model, at(x, i), key=jax.random.key(seed))


@having(capabilities.ExactPosterior)
def test_exact_inference_is_the_posterior(family):
    model = random_model(family)
    x = at(typical(model)[0], np.arange(3))
    inferred = quick(lambda m, x: Exact().infer_many(m, x, key=jax.random.key(0)))(model, x)
    own = quick(lambda m, x: jax.vmap(m.posterior)(x))(model, x)
    jax.tree.map(np.testing.assert_array_equal, inferred, own)


@having(capabilities.FreeEnergy)
@pytest.mark.usefixtures("x64")
def test_free_energy_by_enumeration_at_every_point(family):
    model = random_model(family)
    x, drawn = typical(model)
    x = nodes(model.x_space, x).points if is_discrete(model.x_space) else at(x, np.arange(4))
    z = nodes(model.z_space, drawn)
    wanted = -logsumexp(-np.asarray(energies(model, x, z.points)) + z.log_weights, axis=1)
    close(free_energies(model, x), wanted)


@having(capabilities.Normalised)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("x64")
def test_normalised_sums_to_one(family, seed):
    model = random_model(family, seed)
    x = nodes(model.x_space, typical(model)[0], sheared=True)
    close(logsumexp(x.log_weights - np.asarray(free_energies(model, x.points))), 0.0)


@having(capabilities.KnownLogZ)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("x64")
def test_a_known_log_z_is_the_integral(family, seed):
    model = random_model(family, seed)
    x = nodes(model.x_space, typical(model)[0], sheared=True)
    close(model.log_z(), logsumexp(x.log_weights - np.asarray(free_energies(model, x.points))))


@having(capabilities.LatentFreeEnergy)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("x64")
def test_latent_free_energy_and_decode_follow_from_the_energy(family, seed):
    model = random_model(family, seed)
    x, z = typical(model)
    x = nodes(model.x_space, x)
    for i in (0, 1, 2):
        check_latents_summed(model, x, at(z, i))


@having(capabilities.Decodes)
@pytest.mark.usefixtures("x64")
def test_decode_is_the_conditional_mean(family):
    model = random_model(family, 2)
    x, z = typical(model)
    if isinstance(model, capabilities.Reconstructs):
        check_loss_is_proper(model, at(x, np.arange(8)))
    elif isinstance(model, capabilities.Encodes):
        check_code_decoded(model, at(x, np.arange(8)))
    else:
        check_latents_summed(model, nodes(model.x_space, x), at(z, 5))


def check_loss_is_proper(model, x):
    """The loss is least where x is what the code is decoded to, and the energy is the loss at x's own code."""
    code = quick(lambda model, x: jax.vmap(model.encode)(x))(model, x)
    total = lambda model, x, code: jnp.sum(model.losses(x, code))  # noqa: E731
    slope = lambda model, code: jax.grad(lambda c: total(model, model.decode(code), c))(code)  # noqa: E731
    np.testing.assert_allclose(quick(lambda m, c: jax.vmap(lambda c: slope(m, c))(c))(model, code), 0, atol=1e-10)
    away = quick(lambda m, x, c: jax.vmap(lambda x, c: jax.grad(lambda c: total(m, x, c))(c))(x, c))(model, x, code)
    assert np.abs(away).max() > 1e-3
    losses = quick(lambda m, x, c: jax.vmap(lambda x, c: total(m, x, c))(x, c))(model, x, code)
    close(quick(lambda m, x: jax.vmap(lambda x: m.energy(x, ()))(x))(model, x), losses, tolerance=1e-10)


def check_code_decoded(model, x):
    """What is decoded has the code that it came from; it is x again where the code has as many numbers."""
    both = quick(lambda model, x: jax.vmap(lambda x: (model.encode(x), model.decode(model.encode(x))))(x))
    code, again = both(model, x)
    close(flat(both(model, again)[0]), flat(code), tolerance=1e-9)
    assert np.std(flat(code), axis=0).min() > 1e-3
    if space.width(model.code_space) == space.width(model.x_space):
        close(flat(again), flat(x), tolerance=1e-9)


# -- kernels ----------------------------------------------------------------------------------------


@having(capabilities.Conditionals)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("x64")
def test_a_sweep_leaves_the_distribution_invariant(family, seed):
    model = random_model(family, seed)
    check_sweep(model, nodes(model.x_space, typical(model)[0]), key=jax.random.key(seed))


@having(capabilities.Conditionals)
@pytest.mark.parametrize("which", ["first", "last", "all"])
@pytest.mark.usefixtures("x64")
def test_a_clamped_sweep_leaves_the_conditional_invariant(family, which):
    model = random_model(family, 3)

    def mask(space):
        fixed = np.zeros(space.shape, bool)
        fixed[{"first": slice(1), "last": slice(1, None), "all": slice(None)}[which]] = True
        return jnp.asarray(fixed)

    fixed = jax.tree.map(mask, model.x_space)
    x = nodes(model.x_space, typical(model)[0])
    if which != "all":
        check_sweep(model, x, key=jax.random.key(0), fixed=fixed)
        return
    check_still(model, x, fixed)


def check_still(model, x, fixed):
    """With all of x fixed nothing of it may move, and the latents keep their posterior."""
    most = at(x.points, np.argsort(-visible_probabilities(model, x))[:2])
    chosen = np.arange(N_DRAWS) % 2
    start = at(most, chosen)
    moved, z = sweeps(model, start, exact_latents(model, most, chosen), jax.random.key(0), fixed)
    np.testing.assert_array_equal(flat(moved), flat(start))
    if space.leaves(model.z_space) and is_discrete(model.z_space):
        values = nodes(model.z_space, blank(model.z_space, 1)).points
        for i, log_p in enumerate(-np.asarray(energies(model, most, values))):
            p = np.exp(log_p - logsumexp(log_p))
            assert worst_score(flat(z)[chosen == i], p, flat(values)) < 5


@having(capabilities.Conditionals)
@pytest.mark.usefixtures("x64")
def test_chains_begin_with_latents_that_exist(family):
    model = random_model(family, 3)
    x = at(typical(model)[0], np.arange(64))
    z = begins(model, x, jax.random.key(0))
    assert jax.tree.structure(z) == jax.tree.structure(model.z_space)
    for leaf, values in zip(jax.tree.leaves(model.z_space), jax.tree.leaves(z), strict=True):
        assert values.shape == (64, *leaf.shape)
        assert values.dtype == jnp.float64
        # Placeholders are never read (the sweeps above start from NaN), but they are carried, so they are finite.
        assert np.isfinite(values).all() if draws_latents_first(model, x) else inside(leaf, values)


@having(capabilities.ExactSampler)
@pytest.mark.usefixtures("x64")
def test_exact_samples_have_the_exact_moments(family):
    model = random_model(family, 4)
    x, z = exact_draws(model, N_DRAWS, jax.random.key(11))
    points = nodes(model.x_space, typical(model)[0], sheared=True)
    p = visible_probabilities(model, points)
    values = statistics(points.points, latent_means(model, points.points))
    assert worst_score(statistics(x, z), p, values) < 5


# -- tempering --------------------------------------------------------------------------------------


@having(capabilities.Tempered)
@pytest.mark.parametrize("fitted", [False, True])
@pytest.mark.usefixtures("x64")
def test_the_base_is_uncoupled_and_its_log_z_known(family, fitted):
    model = random_model(family, 5)
    base = model.base(rows_of(family, model)) if fitted else model.base()
    x, z = typical(base)
    energy = np.asarray(energies(base, at(x, np.arange(12)), at(z, np.arange(12))))
    close(energy + energy[:1, :1], energy[:1, :] + energy[:, :1], tolerance=1e-10)
    # The sum over both sides is the product of one sum each, because nothing couples them.
    x_nodes, z_nodes = nodes(model.x_space, x), nodes(model.z_space, z)
    origin = jax.tree.map(lambda a: a[:1], (x, z))
    over_x = np.asarray(energies(base, x_nodes.points, origin[1]))[:, 0]
    over_z = np.asarray(energies(base, origin[0], z_nodes.points))[0]
    log_z = logsumexp(x_nodes.log_weights - over_x) + logsumexp(z_nodes.log_weights - over_z) + energy[0, 0]
    close(base.base_log_z(), log_z)
    # "One sweep from anywhere samples it exactly": from a single point, not from equilibrium.
    first = draws_latents_first(model, x)
    latents = blank(base.z_space, N_DRAWS) if first else repeated(z_nodes.points, N_DRAWS)
    drawn, latents = sweeps(base, repeated(x_nodes.points, N_DRAWS), latents, jax.random.key(2))
    p = visible_probabilities(base, x_nodes)
    values = statistics(x_nodes.points, latent_means(base, x_nodes.points))
    assert worst_score(statistics(drawn, latents), p, values) < 5
    if is_discrete(model.x_space):
        index = {row.tobytes(): i for i, row in enumerate(flat(x_nodes.points))}
        counts = np.bincount([index[row.tobytes()] for row in flat(drawn)], minlength=len(p))
        assert chi_square(counts, p) > 1e-5


@having(capabilities.Tempered)
@pytest.mark.usefixtures("x64")
def test_the_path_runs_from_the_base_to_the_model(family):
    model = random_model(family, 6)
    base = model.base(rows_of(family, model))
    for beta, end in ((0.0, base), (1.0, model)):
        for found, wanted in zip(
            jax.tree.leaves(tempering.at(base, model, beta)), jax.tree.leaves(end), strict=True
        ):
            np.testing.assert_array_equal(found, wanted)
    quarter = tempering.at(base, model, 0.25)
    for found, low, high in zip(*map(jax.tree.leaves, (quarter, base, model)), strict=True):
        if eqx.is_inexact_array(high):
            close(found, 0.75 * np.asarray(low) + 0.25 * np.asarray(high), tolerance=1e-12)


@having(capabilities.Tempered)
@pytest.mark.usefixtures("x64")
def test_the_reduced_energy_sums_out_what_it_does_not_read(family):
    check_summed_out(random_model(family, 7), "reduced_energy")


@having(capabilities.Tempered)
@pytest.mark.usefixtures("x64")
def test_a_sweep_draws_first_what_the_reduced_energy_sums_out(family):
    model = random_model(family, 7)
    free = check_summed_out(model, "reduced_energy")
    parts, treedef = jax.tree.flatten(typical(model, 64))
    hidden = [np.where(mask, np.nan, part) for mask, part in zip(free, parts, strict=True)]
    found = sweeps(model, *jax.tree.unflatten(treedef, hidden), jax.random.key(4))
    wanted = sweeps(model, *jax.tree.unflatten(treedef, parts), jax.random.key(4))
    np.testing.assert_array_equal(flat(found), flat(wanted))


@having(capabilities.Settles)
@pytest.mark.usefixtures("x64")
def test_the_settled_energy_sums_out_what_a_sweep_draws_last(family):
    model = random_model(family, 7)
    last = whole_leaves(check_summed_out(model, "settled_energy"))
    if isinstance(model, capabilities.Tempered):
        assert not set(last) & set(whole_leaves(check_summed_out(model, "reduced_energy")))
    # Wherever a sweep starts, the block that it draws last is an exact draw given the others.
    x, z = typical(model)
    latents = blank(model.z_space, N_DRAWS) if draws_latents_first(model, x) else repeated(z, N_DRAWS)
    parts, treedef = jax.tree.flatten(sweeps(model, repeated(x, N_DRAWS), latents, jax.random.key(5)))
    spaces = jax.tree.leaves((model.x_space, model.z_space))
    rest = tuple(i for i in range(len(parts)) if i not in last)
    pick = lambda values, chosen: tuple(np.asarray(values[i]) for i in chosen)  # noqa: E731
    given = nodes(tuple(spaces[i] for i in rest), pick(parts, rest)).points
    block = nodes(tuple(spaces[i] for i in last), pick(parts, last))

    def energy(model, rest_values, block_values):
        full = dict(zip((*rest, *last), (*rest_values, *block_values), strict=True))
        return model.energy(*jax.tree.unflatten(treedef, [full[i] for i in range(len(parts))]))

    both = quick(lambda m, a, b: jax.vmap(lambda a: jax.vmap(lambda b: energy(m, a, b))(b))(a))
    log_p = block.log_weights - np.asarray(both(model, given, block.points))
    p = np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True))
    which = index_of(given, pick(parts, rest))
    drawn, values = flat(pick(parts, last)), flat(block.points)
    mean = p @ values
    variance = (p @ values**2 - mean**2)[which].sum(0)
    assert np.max(np.abs((drawn - mean[which]).sum(0)) / np.sqrt(variance)) < 5
    for i in np.flatnonzero(np.bincount(which) > 500):
        assert worst_score(drawn[which == i], p[i], values) < 5


# -- clamping and mean field ------------------------------------------------------------------------


@quick
def _clamped_facts(model, x, z):
    """(E(x, ·), E(·) of the clamped model) at every z, for one x."""
    clamped = model.clamped(x)
    return jax.vmap(lambda z: model.energy(x, z))(z), jax.vmap(lambda z: clamped.energy((), z))(z)


@quick
def _refined(model, q, n):
    """(q after n rounds, variational energies on the way, the first included)."""

    def body(q, _):
        return model.refine(q), model.variational_energy(q)

    q, path = jax.lax.scan(body, q, None, length=n)
    return q, jnp.append(path, model.variational_energy(q))


@quick
def _q_facts(model, q, z):
    """(E, log q at every z, E_q[E] − H(q), mean, entropy) of a clamped model and a q."""
    energy, log_q = jax.vmap(lambda z: (model.energy((), z), q.log_prob(z)))(z)
    return energy, log_q, model.variational_energy(q), q.mean(), q.entropy()


@quick
def _clamp(model, x):
    clamped = model.clamped(x)
    return clamped, clamped.guess()


def clamped_machines(family, seed, n=3):
    """(clamped model, its guess at q, E(x, ·) at every z, all z) for a few examples."""
    model = random_model(family, seed)
    x = typical(model)[0]
    z = nodes(model.z_space, blank(model.z_space, 1)).points
    for i in range(n):
        clamped, guess = _clamp(model, at(x, i))
        yield clamped, guess, np.asarray(_clamped_facts(model, at(x, i), z)[0]), z


def tables(spaces, values):
    """Numbers at all values of a tuple of discrete spaces, as an array with one axis per site."""
    states = lambda leaf: leaf.shape[1] if leaf.domain == "categorical" else 2  # noqa: E731
    return np.asarray(values).reshape(
        [states(leaf) for leaf in jax.tree.leaves(spaces) for _ in range(leaf.n_columns)]
    )


@having(capabilities.Clamps)
@pytest.mark.usefixtures("x64")
def test_clamping_keeps_every_energy(family):
    model = random_model(family, 15)
    x, _ = typical(model)
    z = nodes(model.z_space, blank(model.z_space, 1)).points
    for i in range(4):
        wanted, found = map(np.asarray, _clamped_facts(model, at(x, i), z))
        close(found, wanted, tolerance=1e-10)
        clamped = _clamp(model, at(x, i))[0]
        assert isinstance(clamped, capabilities.MeanField)
        assert jax.tree.leaves(clamped.x_space) == []
        assert clamped.z_space == model.z_space
        close(enumeration.log_z(clamped).estimate, logsumexp(-wanted), tolerance=1e-10)
    assert np.ptp(wanted) > 0.5  # energies that all agree would prove nothing


@having(capabilities.Clamps)
@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.usefixtures("x64")
def test_the_variational_energy_is_the_free_energy_plus_a_divergence(family, seed):
    for clamped, guess, energy, z in clamped_machines(family, 16):
        q = perturbed(guess, seed)
        own, log_q, found, mean, entropy = _q_facts(clamped, q, z)
        log_q, p = np.asarray(log_q), np.exp(np.asarray(log_q))
        close(p.sum(), 1.0, tolerance=1e-10)
        close(entropy, -p @ log_q, tolerance=1e-10)
        close(flat(jax.tree.map(lambda a: a[None], mean))[0], p @ flat(z), tolerance=1e-10)
        close(found, p @ (np.asarray(own) + log_q), tolerance=1e-10)
        free = -logsumexp(-energy)
        divergence = p @ (log_q - (free - energy))
        close(found - free, divergence, tolerance=1e-10)
        assert divergence > 1e-2


@having(capabilities.Clamps)
@pytest.mark.usefixtures("x64")
def test_draws_of_q_follow_q(family):
    for clamped, guess, _, z in clamped_machines(family, 16, n=1):
        q = perturbed(guess, 2)
        keys = jax.random.split(jax.random.key(3), N_DRAWS)
        drawn = quick(lambda q, keys: jax.vmap(lambda k: q.sample(key=k))(keys))(q, keys)
        p = np.exp(np.asarray(_q_facts(clamped, q, z)[1]))
        assert chi_square(np.bincount(index_of(z, drawn), minlength=len(p)), p) > 1e-5


@having(capabilities.Clamps)
@pytest.mark.usefixtures("x64")
def test_no_round_of_mean_field_raises_the_variational_energy(family):
    for clamped, guess, _, _ in clamped_machines(family, 17):
        louder = lambda leaf, role: 8 * leaf if role == parameters.WEIGHT else leaf  # noqa: E731
        strong = jax.tree.map(louder, clamped, parameters.roles(clamped))  # where updating all at once would swing
        for model, seed in itertools.product((clamped, strong), range(4)):
            path = np.asarray(_refined(model, perturbed(guess, seed), 20)[1])
            assert np.diff(path).max() < 1e-11
            assert path[0] - path[-1] > 1e-3


@having(capabilities.Clamps)
@pytest.mark.usefixtures("x64")
def test_at_the_fixed_point_every_site_is_at_its_best(family):
    for clamped, guess, energy, z in clamped_machines(family, 18):
        q, path = _refined(clamped, guess, 300)
        assert path[-2] - path[-1] < 1e-12
        log_q = tables(clamped.z_space, _q_facts(clamped, q, z)[1])
        energy, p = tables(clamped.z_space, energy), np.exp(log_q)
        axes = range(p.ndim)
        marginals = [p.sum(tuple(j for j in axes if j != i), keepdims=True) for i in axes]
        close(p, np.prod(np.broadcast_arrays(*marginals), axis=0), tolerance=1e-10)
        for i in axes:  # given the other units, the best distribution of one is softmax(−E averaged over them)
            others = np.prod(
                np.broadcast_arrays(*[m for j, m in enumerate(marginals) if j != i], p * 0 + 1), axis=0
            )
            average = (others * energy).sum(tuple(j for j in axes if j != i))
            close(marginals[i].ravel(), np.exp(-average - logsumexp(-average)), tolerance=1e-7)


@having(capabilities.Clamps)
@pytest.mark.usefixtures("x64")
def test_inference_by_mean_field_is_the_rounds_from_the_guess(family):
    model = random_model(family, 18)
    x = at(typical(model)[0], 0)
    clamped, guess = _clamp(model, x)
    for rounds in (1, 3):
        found = quick(lambda m, x, n=rounds: MeanFieldInference(n, 0.0).infer(m, x))(model, x)
        jax.tree.map(lambda a, b: close(a, b, tolerance=1e-12), found, _refined(clamped, guess, rounds)[0])
    settled = quick(lambda m, x: MeanFieldInference(1000, 1e-9).infer(m, x))(model, x)
    wanted = _refined(clamped, guess, 300)[0]
    jax.tree.map(lambda a, b: close(a, b, tolerance=1e-7), settled.mean(), wanted.mean())


@having(capabilities.Clamps)
@pytest.mark.usefixtures("x64")
def test_the_base_at_q_is_q(family):
    for clamped, guess, _, z in clamped_machines(family, 19):
        q = _refined(clamped, perturbed(guess, 0), 1)[0]
        base = clamped.base_at(q)
        assert jax.tree.structure(base) == jax.tree.structure(clamped)
        energy, log_q = map(np.asarray, _q_facts(base, q, z)[:2])
        close(energy + log_q, np.full_like(energy, energy[0] + log_q[0]), tolerance=1e-10)
        close(base.base_log_z(), logsumexp(-energy), tolerance=1e-10)
        assert np.ptp(log_q) > 0.5


# -- centring ---------------------------------------------------------------------------------------


def buffers(model):
    roles = jax.tree.leaves(parameters.roles(model))
    return [np.asarray(a) for a, role in zip(jax.tree.leaves(model), roles, strict=True) if role == "buffer"]


@quick
def _centres(model, x, weights):
    return model.centres(x, weights)


@quick
def _recentred(model, centres, rate):
    return model.recentred(centres, rate)


@having(capabilities.Centred)
@pytest.mark.usefixtures("x64")
def test_moving_the_offsets_keeps_the_distribution(family):
    model = random_model(family, 8)
    x, z = at(typical(model), np.arange(20))
    centres = jax.tree.map(lambda c: c + 0.7, _centres(model, x, None))  # anywhere, not only at the means
    for rate in (jnp.array(1.0), jnp.array(0.3), jnp.array(-0.5)):
        moved = _recentred(model, centres, rate)
        change = np.asarray(energies(moved, x, z)) - np.asarray(energies(model, x, z))
        close(change, np.full_like(change, change[0, 0]), tolerance=1e-9)
        wanted = jax.tree.leaves(centres)
        changed = [
            (old, new) for old, new in zip(buffers(model), buffers(moved), strict=True) if (old != new).any()
        ]
        assert len(changed) == len(wanted), "the offsets, and only they, are buffers that move"
        for (old, new), centre in zip(changed, wanted, strict=True):
            close(new, old + rate * (np.asarray(centre) - old), tolerance=1e-12)


@having(capabilities.Centred)
@pytest.mark.usefixtures("x64")
def test_centres_are_means_over_the_batch(family):
    model = random_model(family, 9)
    x, _ = at(typical(model), np.arange(4))
    single = [_centres(model, at(x, np.array([i])), None) for i in range(4)]
    mean = jax.tree.map(lambda *parts: np.mean([np.asarray(p) for p in parts], axis=0), *single)
    jax.tree.map(lambda a, b: close(a, b, tolerance=1e-12), _centres(model, x, None), mean)
    repeated = _centres(model, at(x, np.array([0, 0, 1, 3])), None)
    weighted = _centres(model, x, jnp.array([2.0, 1.0, 0.0, 1.0]))
    jax.tree.map(lambda a, b: close(a, b, tolerance=1e-12), weighted, repeated)


# -- coordinates ------------------------------------------------------------------------------------


@having(capabilities.Standardises)
@pytest.mark.usefixtures("x64")
def test_the_inner_model_is_that_of_standardised_data(family):
    model = random_model(family, 21)
    x = at(typical(model)[0], np.arange(16))
    standard = quick(lambda m, x: jax.vmap(m.standardise)(x))(model, x)
    assert np.abs(flat(standard) - flat(x)).max() > 0.1
    change = np.asarray(free_energies(model, x)) - np.asarray(free_energies(model.inner(), standard))
    close(change, np.full_like(change, change[0]), tolerance=1e-9)
    assert jax.tree.structure(model.inner()) == jax.tree.structure(model)


@having(capabilities.Relative)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_relative_slopes_are_those_of_the_likelihood(family, weighted):
    model = random_model(family, 22)
    x = rows_of(family, model)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(64)) * 64) if weighted else jnp.ones(64)
    slopes = model.relative(x, weights if weighted else None)
    loss = lambda change: jnp.mean(weights * jax.vmap(model.moved(change).free_energy)(x))  # noqa: E731
    still = jnp.zeros_like(slopes.gradient)
    value, gradient = jax.jit(jax.value_and_grad(loss))(still)
    close(slopes.value - model.log_volume(), value, tolerance=1e-10)
    close(slopes.gradient - jnp.eye(len(still)), gradient, tolerance=1e-10)
    assert np.abs(gradient).max() > 0.1


# -- learning by closed forms -----------------------------------------------------------------------


@having(capabilities.MStep, capabilities.Normalised)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_em_never_lowers_the_likelihood(family, weighted):
    model = random_model(family, 10)
    x = rows_of(family, model)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(64)) * 64) if weighted else None
    step = quick(lambda m: EM().step(m, x, weights, None, key=jax.random.key(0), since=1))
    path = []
    for _ in range(25):
        before = log_likelihood(model, x, weights)
        model, _, metrics = step(model)
        close(metrics["log_likelihood"], before, tolerance=1e-10)
        path.append(before)
    # reg_covar (1e-6) is added after the maximisation, so the last gains may fall short of zero by about that.
    assert np.diff(path).min() > -1e-6
    assert path[-1] > path[0] + 0.1


@having(capabilities.MStep, where=lambda model: not isinstance(model, capabilities.Normalised))
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_em_never_lowers_the_bound_with_the_models_own_inference(family, weighted):
    model = random_model(family, 10)
    x = rows_of(family, model)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(64)) * 64) if weighted else None
    learner = EM(inference_of(model))
    state = learner.init(model, x, key=jax.random.key(0))
    step = quick(lambda m, s: learner.step(m, x, weights, s, key=jax.random.key(1), since=1))
    path = []
    for _ in range(25):
        before = -float(np.average(summed_energies(model, x), weights=weights))
        model, state, metrics = step(model, state)
        assert metrics["bound"] <= before + 1e-10  # the families of these tests can be enumerated
        path.append(float(metrics["bound"]))
    assert np.diff(path).min() > -1e-6
    assert path[-1] > path[0] + 0.1


@having(capabilities.MStep)
@pytest.mark.usefixtures("x64")
def test_the_m_step_is_a_stationary_point_of_the_expected_energy(family):
    """With the posteriors of the model's own inference, exact or not."""
    old = random_model(family, 11)
    x = rows_of(family, old, 16)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.full(16, 3.0)) * 16)
    infer = lambda x: inference_of(old).infer(old, x, key=jax.random.key(0))  # noqa: E731
    draw = quick(jax.vmap(lambda x, k: infer(x).sample(key=k)))
    draws = draw(np.repeat(x, 100, axis=0), jax.random.split(jax.random.key(0), 1600))
    z = nodes(old.z_space, draws)
    log_q = np.asarray(quick(jax.vmap(lambda x: jax.vmap(infer(x).log_prob)(z.points)))(x))
    q = jnp.asarray(np.exp(log_q + z.log_weights))
    close(q.sum(1), np.ones(16))
    new = quick(lambda m: m.m_step(x, jax.vmap(infer)(x), weights))(old)

    @quick
    @eqx.filter_value_and_grad
    def expected(model):
        return jnp.sum(weights[:, None] * q * all_energies(model, x, z.points)) / 16

    size = lambda tree: max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))  # noqa: E731
    (before, start), (after, end) = expected(old), expected(new)
    assert after < before
    assert size(start) > 0.1
    assert size(end) < 1e-4  # reg_covar, 1e-6, is the only reason why it is not zero


@having(capabilities.ClosedForm, capabilities.Normalised)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.usefixtures("x64")
def test_the_closed_form_is_the_maximum(family, weighted):
    model = random_model(family, 12)
    x = rows_of(family, model)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.ones(64)) * 64) if weighted else jnp.ones(64)
    solve = quick(lambda m: ClosedFormML().step(m, x, weights, None, key=jax.random.key(0), since=1))
    best, _, metrics = solve(model)
    top = log_likelihood(best, x, weights)
    close(metrics["log_likelihood"], top, tolerance=1e-10)
    loss = lambda m: jnp.sum(weights * jax.vmap(m.free_energy)(x)) / 64  # noqa: E731
    gradient = quick(eqx.filter_grad(loss))(best)
    assert max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(gradient)) < 1e-6
    if isinstance(model, capabilities.MStep):
        step = lambda m: EM().step(m, x, weights, None, key=jax.random.key(0), since=1)[0]  # noqa: E731
        model = quick(lambda m: jax.lax.fori_loop(0, 300, lambda _, m: step(m), m))(model)
        em = log_likelihood(model, x, weights)
        assert top >= em - 1e-10
        assert em > top - 1e-3  # and EM gets there


# -- starts, bounds, files --------------------------------------------------------------------------


@having(capabilities.Initialised)
def test_the_start_is_finite_for_awkward_data(family):
    estimator, blueprint = tiny(family)
    rows = toy_rows(family.tiny_data, 16)
    constant = rows.copy()
    constant[:, 0] = rows[0, 0]
    for data in (rows, constant, np.repeat(rows[:1], 16, axis=0)):
        model = estimator.build(blueprint, seed=1)
        x = visibles(model, data)
        start = quick(lambda m, x: m.initialise(x, key=jax.random.key(0)))(model, x)
        for leaf in jax.tree.leaves(start):
            assert np.isfinite(leaf).all()
        assert np.isfinite(summed_energies(start, x)).all()
        assert jax.tree.structure(start) == jax.tree.structure(model)


@having(capabilities.Initialised, capabilities.FreeEnergy | capabilities.Clamps, where=has_exact_likelihood)
def test_the_start_explains_the_data_better_than_a_random_model(family):
    estimator, blueprint = tiny(family)
    rows = toy_rows(family.tiny_data)
    blank_model = estimator.build(blueprint, seed=1)
    x = visibles(blank_model, rows)
    start = quick(lambda m, x: m.initialise(x, key=jax.random.key(0)))(blank_model, x)
    exact = [
        estimator.adopt(model, blueprint).log_likelihood(rows, method="exact").estimate
        for model in (start, blank_model)
    ]
    assert exact[0] > exact[1]


@having(capabilities.Starts)
def test_chains_start_spread_out_inside_the_space(family):
    model = random_model(family)
    draw = quick(lambda m: jax.vmap(lambda key: m.start(key=key))(jax.random.split(jax.random.key(0), 500)))
    starts = draw(model)
    for leaf, values in zip(space.leaves(model.x_space), jax.tree.leaves(starts), strict=True):
        assert inside(leaf, values)
        assert np.asarray(values).std(0).min() > 0.01
    assert np.isfinite(free_energies(model, starts)).all()


@having(capabilities.Bounded)
def test_the_margin_is_positive_and_its_message_helps(family):
    model = random_model(family)
    assert float(model.margin()) > 0
    assert len(model.margin_message()) > 40


@having(capabilities.Constrained)
def test_projecting_twice_is_projecting_once(family):
    once = random_model(family).project()
    jax.tree.map(np.testing.assert_array_equal, once.project(), once)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_saving_and_loading_keeps_every_bit(family, tmp_path):
    estimator, blueprint = tiny(family)
    model = random_model(family)
    rows = toy_rows(family.tiny_data, 8)
    estimator.adopt(model, blueprint)
    estimator.save(tmp_path / "model.safetensors")
    loaded = latentia.load(tmp_path / "model.safetensors")
    assert type(loaded) is type(estimator)
    assert loaded.get_params() == estimator.get_params()
    assert jax.tree.structure(loaded.model_) == jax.tree.structure(model)
    for new, old in zip(jax.tree.leaves(loaded.model_), jax.tree.leaves(model), strict=True):
        assert new.dtype == old.dtype
        assert np.asarray(new).tobytes() == np.asarray(old).tobytes()
    results = {}
    for method in ("transform", "free_energy", "score_samples", "reconstruct"):
        try:
            results[method] = getattr(estimator, method)(rows)
        except (CapabilityError, AttributeError) as error:  # the loaded one lacks the same
            with pytest.raises(type(error)):
                getattr(loaded, method)(rows)
    summed = isinstance(model, capabilities.FreeEnergy | capabilities.Clamps)
    assert {"transform", "free_energy"} & set(results) == (
        {"transform", "free_energy"} if summed else {"transform"}
    )
    for method, wanted in results.items():
        assert getattr(loaded, method)(rows).tobytes() == wanted.tobytes()


# -- the whole estimator ----------------------------------------------------------------------------


@having(capabilities.FreeEnergy | capabilities.Clamps, where=has_exact_likelihood)
def test_fitting_raises_the_exact_likelihood(family):
    rows = toy_rows(family.tiny_data, 300)
    estimator = family.estimator()(**family.tiny, random_state=0)
    parameters_known = estimator.get_params()
    if "learning_rate" in parameters_known:  # the default rate is meant for larger data
        estimator.set_params(n_epochs=60, batch_size=30, learning_rate=10 * estimator.learning_rate, monitor=None)
    blueprint = estimator._blueprint(Examples(rows))
    start = estimator.build(blueprint, seed=0)
    if isinstance(start, capabilities.Initialised):
        x = visibles(start, rows)
        start = quick(lambda m, x: m.initialise(x, key=jax.random.key(0)))(start, x)
    before = family.estimator()(**family.tiny).adopt(start, blueprint)
    before = before.log_likelihood(rows, method="exact").estimate
    after = estimator.fit(rows).log_likelihood(rows, method="exact")
    assert after.lower == after.upper == after.estimate
    assert after.estimate > before + 0.05
    score = np.mean(estimator.score_samples(rows))
    if isinstance(start, capabilities.FreeEnergy):
        assert score == pytest.approx(after.estimate, abs=1e-3)
    else:  # a lower bound, and with the few latents of a tiny model not a loose one
        assert after.estimate - 0.3 < score < after.estimate + 1e-3


@having(capabilities.Conditionals | capabilities.ExactSampler)
def test_sampling_has_the_exact_marginals(family):
    model = random_model(family, 13)
    estimator, blueprint = tiny(family)
    estimator.adopt(model, blueprint)
    drawn = estimator.sample(6000, n_steps=60, random_state=0)
    with double():
        exact = jax.tree.map(lambda a: a.astype(np.float64) if eqx.is_inexact_array(a) else a, model)
        x = nodes(exact.x_space, typical(exact)[0], sheared=True)
        p = visible_probabilities(exact, x)
        columns = flat(x.points)
        again = np.asarray(space.decode(model.x_space, x.points), np.float64)
    i, j = np.triu_indices(again.shape[1])
    with_products = lambda a: np.concatenate([a, a[:, i] * a[:, j]], axis=1)  # noqa: E731
    assert worst_score(with_products(drawn.astype(np.float64)), p, with_products(again)) < 5
    if not isinstance(model, capabilities.Decodes):
        with pytest.raises(CapabilityError, match="Decodes"):
            estimator.sample(10, n_steps=2, mean=True)
        return
    drawn_mean = estimator.sample(6000, n_steps=60, random_state=1, mean=True)
    # E[x | z] varies less than x: only the draws know its variance, and the worst score is held against that of x.
    assert worst_score(drawn_mean.astype(np.float64), p, columns) < 5


@having(capabilities.Conditionals)
def test_filling_in_has_the_exact_conditional_mean(family):
    model = random_model(family, 14)
    estimator, blueprint = tiny(family)
    estimator.adopt(model, blueprint)
    with double():
        exact = jax.tree.map(lambda a: a.astype(np.float64) if eqx.is_inexact_array(a) else a, model)
        x = nodes(exact.x_space, typical(exact)[0])
        p = visible_probabilities(exact, x)
        columns = np.asarray(space.decode(model.x_space, x.points), np.float64)
    top = columns[np.argmax(p)]
    same = (columns[:, :2] == top[:2]).all(1)
    given = np.full((1, columns.shape[1]), np.nan)
    given[0, :2] = top[:2]
    drawn = estimator.sample(6000, n_steps=60, given=given, random_state=0).astype(np.float64)
    np.testing.assert_allclose(drawn[:, :2], np.broadcast_to(top[:2], (6000, 2)), rtol=1e-6)
    assert worst_score(drawn[:, 2:], p[same] / p[same].sum(), columns[same][:, 2:]) < 5
