"""Every registered family × every capability its model has, at random parameters, against independent oracles.

A new family is covered as soon as it stands in the registry.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import (
    N_DRAWS,
    all_energies,
    at,
    blank,
    check_latents_summed,
    check_posterior,
    check_sweep,
    chi_square,
    close,
    energies,
    exact_draws,
    flat,
    free_energies,
    is_discrete,
    latent_means,
    nodes,
    quick,
    random_model,
    statistics,
    sweeps,
    tiny,
    toy_rows,
    typical,
    visible_probabilities,
    worst_score,
)
from scipy.special import logsumexp

import latentia
from latentia.core import model as capabilities
from latentia.core import parameters, tempering
from latentia.inference import Exact
from latentia.learning.closed_form import ClosedFormML
from latentia.learning.em import EM
from latentia.likelihood import can_enumerate
from latentia.likelihood.precision import batch_to_double, double
from latentia.registry import FAMILIES

MODELS = {family.name: random_model(family) for family in FAMILIES}


def having(*needed):
    """The families whose model has all these capabilities."""
    able = [f for f in FAMILIES if all(isinstance(MODELS[f.name], need) for need in needed)]
    return pytest.mark.parametrize("family", able, ids=[f.name for f in able])


@pytest.fixture
def x64():
    with double():
        yield


def rows_of(family, model, n=64):
    return batch_to_double(model.x_space.encode(toy_rows(family.tiny_data, n)))


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
    x = nodes(model.x_space, typical(model)[0])
    close(logsumexp(x.log_weights - np.asarray(free_energies(model, x.points))), 0.0)


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
    check_latents_summed(model, nodes(model.x_space, x), at(z, 5))


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
    start = at(x.points, np.arange(10))  # nothing may move, and the latents still follow their posterior
    moved, _ = sweeps(model, start, blank(model.z_space, 10), jax.random.key(0), fixed)
    np.testing.assert_array_equal(flat(moved), flat(start))


@having(capabilities.ExactSampler)
@pytest.mark.usefixtures("x64")
def test_exact_samples_have_the_exact_moments(family):
    model = random_model(family, 4)
    x, z = exact_draws(model, N_DRAWS, jax.random.key(11))
    points = nodes(model.x_space, typical(model)[0])
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
    start = jax.tree.map(lambda a: np.repeat(a[:1], N_DRAWS, axis=0), x_nodes.points)
    drawn, latents = sweeps(base, start, blank(base.z_space, N_DRAWS), jax.random.key(2))
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
    model = random_model(family, 7)
    x, z = typical(model)
    values, treedef = jax.tree.flatten((x, z))
    spaces = jax.tree.leaves((model.x_space, model.z_space))
    point = [value[0] for value in values]

    def reduced(parts):
        return float(model.reduced_energy(*jax.tree.unflatten(treedef, parts)))

    def reads(i):
        others = (next(v for v in values[i] if not np.array_equal(v, point[i])),)
        return any(reduced([*point[:i], other, *point[i + 1 :]]) != reduced(point) for other in others)

    free = [i for i in range(len(point)) if not reads(i)]
    assert free, "a reduced energy that reads everything reduces nothing"
    summed = nodes(tuple(spaces[i] for i in free), tuple(values[i] for i in free))

    def energy(parts):
        full = list(point)
        for i, part in zip(free, parts, strict=True):
            full[i] = part
        return model.energy(*jax.tree.unflatten(treedef, full))

    wanted = -logsumexp(summed.log_weights - np.asarray(quick(jax.vmap(energy))(summed.points)))
    close(reduced(point), wanted)


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


@having(capabilities.MStep)
@pytest.mark.usefixtures("x64")
def test_the_m_step_is_a_stationary_point_of_the_expected_energy(family):
    old = random_model(family, 11)
    x = rows_of(family, old, 16)
    weights = jnp.asarray(np.random.default_rng(0).dirichlet(np.full(16, 3.0)) * 16)
    draw = quick(jax.vmap(lambda x, k: old.posterior(x).sample(key=k)))
    draws = draw(np.repeat(x, 100, axis=0), jax.random.split(jax.random.key(0), 1600))
    z = nodes(old.z_space, draws)
    log_q = np.asarray(quick(jax.vmap(lambda x: jax.vmap(old.posterior(x).log_prob)(z.points)))(x))
    q = jnp.asarray(np.exp(log_q + z.log_weights))
    close(q.sum(1), np.ones(16))
    new = quick(lambda m: m.m_step(x, jax.vmap(m.posterior)(x), weights))(old)

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
        x = jnp.asarray(model.x_space.encode(data))
        start = quick(lambda m, x: m.initialise(x, key=jax.random.key(0)))(model, x)
        for leaf in jax.tree.leaves(start):
            assert np.isfinite(leaf).all()
        assert np.isfinite(free_energies(start, x)).all()
        assert jax.tree.structure(start) == jax.tree.structure(model)


@having(capabilities.Initialised, capabilities.FreeEnergy)
def test_the_start_explains_the_data_better_than_a_random_model(family):
    estimator, blueprint = tiny(family)
    if not (isinstance(MODELS[family.name], capabilities.Normalised) or can_enumerate(MODELS[family.name])):
        pytest.skip("no exact likelihood")
    rows = toy_rows(family.tiny_data)
    blank_model = estimator.build(blueprint, seed=1)
    x = jnp.asarray(blank_model.x_space.encode(rows))
    start = quick(lambda m, x: m.initialise(x, key=jax.random.key(0)))(blank_model, x)
    exact = [
        estimator.adopt(model, blueprint).log_likelihood(rows, method="exact").estimate
        for model in (start, blank_model)
    ]
    assert exact[0] > exact[1]


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
    for method in ("transform", "free_energy", "reconstruct"):
        found, wanted = getattr(loaded, method)(rows), getattr(estimator, method)(rows)
        assert found.tobytes() == wanted.tobytes()


# -- the whole estimator ----------------------------------------------------------------------------


@having(capabilities.FreeEnergy)
def test_fitting_raises_the_exact_likelihood(family):
    if not (isinstance(MODELS[family.name], capabilities.Normalised) or can_enumerate(MODELS[family.name])):
        pytest.skip("no exact likelihood")
    rows = toy_rows(family.tiny_data, 300)
    estimator = family.estimator()(**family.tiny, random_state=0)
    parameters_known = estimator.get_params()
    if "learning_rate" in parameters_known:  # the default rate is meant for larger data
        estimator.set_params(n_epochs=60, batch_size=30, learning_rate=10 * estimator.learning_rate)
    blueprint = estimator._blueprint(rows)
    start = estimator.build(blueprint, seed=0)
    if isinstance(start, capabilities.Initialised):
        x = jnp.asarray(start.x_space.encode(rows))
        start = quick(lambda m, x: m.initialise(x, key=jax.random.key(0)))(start, x)
    before = family.estimator()(**family.tiny).adopt(start, blueprint)
    before = before.log_likelihood(rows, method="exact").estimate
    after = estimator.fit(rows).log_likelihood(rows, method="exact")
    assert after.lower == after.upper == after.estimate
    assert after.estimate > before + 0.1
    assert np.mean(estimator.score_samples(rows)) == pytest.approx(after.estimate, abs=1e-3)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_sampling_has_the_exact_marginals(family):
    model = random_model(family, 13)
    if not isinstance(model, capabilities.Conditionals | capabilities.ExactSampler):
        pytest.skip("cannot be sampled")
    estimator, blueprint = tiny(family)
    estimator.adopt(model, blueprint)
    drawn = estimator.sample(6000, n_steps=60, random_state=0)
    drawn_mean = estimator.sample(6000, n_steps=60, random_state=1, mean=True)
    with double():
        exact = jax.tree.map(lambda a: a.astype(np.float64) if eqx.is_inexact_array(a) else a, model)
        x = nodes(exact.x_space, typical(exact)[0])
        p = visible_probabilities(exact, x)
        columns = flat(x.points)
        again = np.asarray(model.x_space.decode(x.points), np.float64)
    i, j = np.triu_indices(again.shape[1])
    with_products = lambda a: np.concatenate([a, a[:, i] * a[:, j]], axis=1)  # noqa: E731
    assert worst_score(with_products(drawn.astype(np.float64)), p, with_products(again)) < 5
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
        columns = np.asarray(model.x_space.decode(x.points), np.float64)
    top = columns[np.argmax(p)]
    same = (columns[:, :2] == top[:2]).all(1)
    given = np.full((1, columns.shape[1]), np.nan)
    given[0, :2] = top[:2]
    drawn = estimator.sample(6000, n_steps=60, given=given, random_state=0).astype(np.float64)
    np.testing.assert_allclose(drawn[:, :2], np.broadcast_to(top[:2], (6000, 2)), rtol=1e-6)
    assert worst_score(drawn[:, 2:], p[same] / p[same].sum(), columns[same][:, 2:]) < 5
