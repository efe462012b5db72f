"""Unit types, and RBMs over every pair of them, against sums, quadrature and autodiff."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import (
    N_DRAWS,
    at,
    blank,
    check_latents_summed,
    check_posterior,
    check_sweep,
    close,
    energies,
    flat,
    latent_means,
    legendre,
    nodes,
    perturbed,
    quick,
    statistics,
    sweeps,
    typical,
    visible_probabilities,
    worst_score,
)
from scipy import stats
from scipy.special import logsumexp

from latentia import units
from latentia.energies.rbm import RBMModel
from latentia.likelihood.precision import double
from latentia.ops import truncated
from latentia.units import UNITS, Factorial
from latentia.units.gaussian import SCALE_FLOOR

CONTINUOUS = ("gaussian", "rectified")
PAIRS = [pytest.param(v, h, id=f"{v}-{h}") for v, h in itertools.product(UNITS, UNITS)]


@pytest.fixture
def x64():
    with double():
        yield


def layer(name: str, n: int = 2, seed: int = 0):
    return perturbed(units.make(name, n, 3), seed + 100)


def field_for(u, seed: int = 0, size: float = 0.8):
    return size * np.random.default_rng(seed).normal(size=u.n_statistics)


def machine(visible: str, hidden: str, seed: int = 0) -> RBMModel:
    """A 3×2 RBM with nothing trivial: biases, scales, standardisation and offsets are all random."""
    parts = units.make(visible, 3, 3), units.make(hidden, 2, 3)
    return perturbed(RBMModel.make(*parts, key=jax.random.key(0)), seed)


@quick
def facts(u, field, points):
    """What a layer says about itself under a field, and its energies and statistics at points."""
    q = Factorial(u, field)
    own = {
        "log_partition": u.log_partition(field),
        "gradient": jax.grad(u.log_partition)(field),
        "mean": u.mean(field),
        "mean_statistic": u.mean_statistic(field),
        "mean_energy": u.mean_energy(field),
        "entropy": q.entropy(),
    }
    return own, jax.vmap(u.energy)(points), jax.vmap(u.statistic)(points), jax.vmap(q.log_prob)(points)


@quick
def draws_of(u, field, n):
    return jax.vmap(lambda k: u.sample(field, key=k))(jax.random.split(jax.random.key(1), n))


# -- one layer --------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", UNITS)
@pytest.mark.usefixtures("x64")
def test_a_layer_follows_from_its_energy_and_statistic(name, seed):
    u = layer(name, seed=seed)
    field = field_for(u, seed)
    drawn = draws_of(u, field, N_DRAWS)
    grid = nodes(u.space, drawn)
    own, energy, statistic, log_q = facts(u, field, grid.points)
    log_p = -np.asarray(energy) + np.asarray(statistic) @ field
    partition = logsumexp(log_p + grid.log_weights)
    p = np.exp(log_p - partition + grid.log_weights)
    close(own["log_partition"], partition)
    close(log_q, log_p - partition)
    close(np.asarray(own["mean"]).reshape(-1), p @ flat(grid.points))
    close(own["mean_statistic"], p @ np.asarray(statistic))
    close(own["mean_statistic"], own["gradient"], tolerance=1e-9)
    close(own["mean_energy"], p @ np.asarray(energy))
    close(own["entropy"], -p @ (log_p - partition))
    assert statistic.shape[1] == u.n_statistics
    with_squares = lambda a: np.concatenate([a, a**2], axis=1)  # noqa: E731
    assert worst_score(with_squares(flat(drawn)), p, with_squares(flat(grid.points))) < 5


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.usefixtures("x64")
def test_biased_takes_a_field_into_the_layer(name):
    u = layer(name)
    field, other = field_for(u, 1), field_for(u, 2)
    biased = u.biased(jnp.asarray(field))
    points = nodes(u.space, draws_of(u, field, N_DRAWS)).points
    points = at(points, np.linspace(0, len(flat(points)) - 1, 9).astype(int))
    _, energy, statistic, _ = facts(u, other, points)
    own, new_energy, new_statistic, _ = facts(biased, other, points)
    shift = np.asarray(new_energy) - (np.asarray(energy) - np.asarray(statistic) @ field)
    close(shift, np.full(9, shift[0]), tolerance=1e-9)
    close(new_statistic, statistic, tolerance=1e-12)
    both, *_ = facts(u, field + other, points)
    close(own["log_partition"], float(both["log_partition"]) - shift[0], tolerance=1e-9)
    close(own["mean"], both["mean"], tolerance=1e-9)


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.usefixtures("x64")
def test_fitted_reproduces_the_marginals(name):
    u = layer(name)
    rng = np.random.default_rng(3)
    n = 500
    x = {
        "bernoulli": lambda: (rng.random((n, 2)) < [0.2, 0.9]).astype(float),
        "spin": lambda: np.where(rng.random((n, 2)) < [0.2, 0.9], 1.0, -1.0),
        "categorical": lambda: np.eye(3)[rng.choice(3, (n, 2), p=[0.2, 0.5, 0.3])],
        "gaussian": lambda: rng.normal([3.0, -2.0], [0.5, 4.0], (n, 2)),
        "rectified": lambda: np.abs(rng.normal([0.0, 0.0], [0.5, 4.0], (n, 2))),
    }[name]()
    x[:, 1] = x[0, 1] if name != "gaussian" else x[:, 1]  # a constant column must stay finite
    fitted = u.fitted(jnp.asarray(x))
    silence = np.zeros(u.n_statistics)
    drawn = draws_of(fitted, silence, N_DRAWS)
    assert np.isfinite(flat(drawn)).all()
    grid = nodes(fitted.space, drawn)
    own, energy, *_ = facts(fitted, silence, grid.points)
    p = np.exp(-np.asarray(energy) + grid.log_weights - float(own["log_partition"]))
    if name == "gaussian":
        close(p @ flat(grid.points), x.mean(0))
        close(p @ flat(grid.points) ** 2, (x**2).mean(0))
    elif name == "rectified":
        close((p @ flat(grid.points) ** 2), (x**2).mean(0), tolerance=1e-5)
    else:  # the counts are smoothed by one observation in all, spread over the states
        off = np.abs(np.asarray(own["mean"]).reshape(-1) - flat(x).mean(0))
        assert off.max() <= 1.0 / (n + 1) + 1e-12
        assert off.max() > 0  # without smoothing a constant column has an infinite bias


@pytest.mark.parametrize("name", CONTINUOUS)
@pytest.mark.usefixtures("x64")
def test_standardisation_leaves_log_z_in_raw_units(name):
    u = layer(name)
    plain = eqx.tree_at(lambda u: u.data_scale, u, jnp.ones(2))
    if name == "gaussian":
        plain = eqx.tree_at(lambda u: u.data_mean, plain, jnp.zeros(2))
    wide = eqx.tree_at(lambda u: u.data_scale, u, jnp.array([37.0, 0.02]))
    field = field_for(u)
    partitions = []
    for each in (plain, u, wide):  # integrated over raw x, in which the densities differ by the Jacobian
        grid = nodes(each.space, draws_of(each, field, N_DRAWS))
        own, energy, statistic, _ = facts(each, field, grid.points)
        partitions.append(logsumexp(-np.asarray(energy) + np.asarray(statistic) @ field + grid.log_weights))
        close(own["log_partition"], partitions[-1])
    close(partitions, [partitions[0]] * 3)


@pytest.mark.usefixtures("x64")
def test_standardised_reads_mean_and_scale_off_the_data():
    x = np.random.default_rng(0).normal([5.0, -1.0, 2.0], [2.0, 1.0, 0.0], (400, 3))
    u = units.make("gaussian", 3).standardised(jnp.asarray(x))
    spread = x.std(0)
    close(u.data_mean, x.mean(0), tolerance=1e-12)
    close(u.data_scale, [spread[0], spread[1], SCALE_FLOOR * np.sqrt(np.mean(spread**2))], tolerance=1e-12)
    positive = np.abs(x) + 0.5
    r = units.make("rectified", 3).standardised(jnp.asarray(positive))
    close(r.data_scale, np.sqrt(np.mean(positive**2, axis=0)), tolerance=1e-12)
    for name in ("bernoulli", "spin"):
        plain = units.make(name, 3)
        assert plain.standardised(jnp.asarray(x)) is plain


# -- the cut-off normal, in single precision and far out --------------------------------------------

ALPHAS = np.array([-30.0, -20.0, -12.0, -8.5, -7.9, -5.0, -3.1, -2.9, -1.0, 0.0, 2.0, 8.0], np.float32)


def cut_off_moments(alpha):
    """E[t], E[t²] for t ~ N(α, 1) given t ≥ 0, by quadrature of exp(−t²/2 + αt): nothing cancels."""
    half = 0.5 * (alpha + 12 if alpha >= 0 else min(12.0, 40 / -alpha))
    node, weight = legendre(200)
    t = half * (node + 1)
    w = weight * np.exp(-0.5 * t**2 + alpha * t - max(alpha, 0.0) ** 2 / 2)
    return (w @ t) / w.sum(), (w @ t**2) / w.sum()


def test_cut_off_normal_moments_far_in_the_tail():
    first, second = np.array([cut_off_moments(float(a)) for a in ALPHAS]).T
    sigma = np.float32(1.7)
    mean, variance = quick(truncated.mean_and_variance)(sigma * ALPHAS, np.full(ALPHAS.shape, sigma))
    # Single precision loses a few digits to cancellation just above α = −3, where the continued fraction ends.
    np.testing.assert_allclose(mean, sigma * first, rtol=5e-5)
    np.testing.assert_allclose(variance, sigma**2 * (second - first**2), rtol=1e-3)
    assert (np.asarray(variance) > 0).all()
    tail = units.make("rectified", len(ALPHAS))
    tail = eqx.tree_at(lambda u: u.location, tail, jnp.asarray(ALPHAS, tail.location.dtype))
    gradient = quick(lambda f: jax.grad(tail.log_partition)(f))(jnp.zeros_like(tail.location))
    # Autodiff of Γ is α + r(α), whose cancellation leaves the rounding error of |α| = 30 times that of exp(450).
    np.testing.assert_allclose(gradient, first, rtol=1e-3, atol=2e-3)


def test_cut_off_normal_draws_far_in_the_tail():
    n = 20_000
    keys = jax.random.split(jax.random.key(0), n)
    draw = jax.vmap(lambda k: truncated.sample(jnp.asarray(ALPHAS), jnp.ones(len(ALPHAS), jnp.float32), key=k))
    drawn = np.asarray(quick(draw)(keys), np.float64)
    assert np.isfinite(drawn).all()
    assert (drawn >= 0).all()
    for column, alpha in zip(drawn.T, ALPHAS, strict=True):
        first, second = cut_off_moments(float(alpha))
        score = (column.mean() - first) / np.sqrt((second - first**2) / n)
        assert abs(score) < 5, alpha
        # The whole distribution: P(t > s) = Φ(α − s)/Φ(α).
        cdf = lambda s, a=float(alpha): 1 - np.exp(stats.norm.logcdf(a - s) - stats.norm.logcdf(a))  # noqa: E731
        # In the tail a float32 x = m + σt is rounded to about |m| ε = 2e-6 of a scale 1/30: invisible here.
        assert stats.kstest(column, cdf, method="asymp").pvalue > 1e-5, alpha


# -- every pair of layers ---------------------------------------------------------------------------


@pytest.mark.parametrize(("visible", "hidden"), PAIRS)
@pytest.mark.usefixtures("x64")
def test_pair_sums_posterior_and_sweep(visible, hidden):
    model = machine(visible, hidden)
    x, z = typical(model)
    grid = nodes(model.x_space, x)
    check_posterior(model, at(x, 0), near=z)
    check_latents_summed(model, grid, at(z, 0))
    check_sweep(model, grid, key=jax.random.key(1))


@pytest.mark.parametrize(
    ("visible", "hidden"), [("rectified", "spin"), ("categorical", "gaussian"), ("gaussian", "categorical")]
)
@pytest.mark.usefixtures("x64")
def test_pair_clamped_sweep(visible, hidden):
    model = machine(visible, hidden, seed=1)
    fixed = np.zeros(model.x_space.shape, bool)
    fixed[1] = True
    check_sweep(model, nodes(model.x_space, typical(model)[0]), key=jax.random.key(1), fixed=fixed)


@pytest.mark.parametrize("name", UNITS)
@pytest.mark.usefixtures("x64")
def test_base_log_z_recentring_and_centres_of_every_layer(name):
    other = list(UNITS)[list(UNITS).index(name) - 1]  # every type is met once on each side
    model = machine(name, other, seed=2)
    x, z = typical(model)
    base = model.base()
    x_grid, z_grid = nodes(model.x_space, x), nodes(model.z_space, z)
    over_x = np.asarray(energies(base, x_grid.points, at(z, slice(1))))[:, 0]
    over_z = np.asarray(energies(base, at(x, slice(1)), z_grid.points))[0]
    corner = float(energies(base, at(x, slice(1)), at(z, slice(1)))[0, 0])
    log_z = logsumexp(x_grid.log_weights - over_x) + logsumexp(z_grid.log_weights - over_z) + corner
    close(quick(lambda m: m.base_log_z())(base), log_z)
    # Centres: the mean statistic of x, and of z with its posterior summed over.
    x, z = at(x, slice(6)), at(z, slice(6))
    centres = quick(lambda m, x: m.centres(x, None))(model, x)
    close(centres[0], np.mean(jax.vmap(model.visible.statistic)(x), axis=0))
    log_q = z_grid.log_weights - np.asarray(energies(model, x, z_grid.points))
    q = np.exp(log_q - logsumexp(log_q, axis=1, keepdims=True))
    t = np.asarray(jax.vmap(model.hidden.statistic)(z_grid.points))
    close(centres[1], np.mean(q @ t, axis=0))
    moved = quick(lambda m, c: m.recentred(c, 0.7))(model, centres)
    change = np.asarray(energies(moved, x, z)) - np.asarray(energies(model, x, z))
    close(change, np.full_like(change, change[0, 0]), tolerance=1e-9)
    close(moved.visible_offset, 0.3 * model.visible_offset + 0.7 * centres[0], tolerance=1e-12)
    close(moved.hidden_offset, 0.3 * model.hidden_offset + 0.7 * centres[1], tolerance=1e-12)


# -- normalisability --------------------------------------------------------------------------------


def test_the_margin_of_two_gaussian_layers_is_positive_definiteness():
    rng = np.random.default_rng(0)
    hessian = quick(lambda m: jax.hessian(lambda v: m.energy(v[:3], v[3:]))(jnp.zeros(5)))
    signs = []
    start = machine("gaussian", "gaussian")
    for _ in range(20):
        model = eqx.tree_at(
            lambda m: m.weights, start, jnp.asarray(rng.normal(size=(3, 2)) * 0.7, start.weights.dtype)
        )
        scale = np.concatenate([model.visible.data_scale, model.hidden.data_scale])
        curvature = np.asarray(hessian(model)) * np.outer(scale, scale)
        definite = np.linalg.eigvalsh(curvature).min() > 0
        assert (float(model.margin()) > 0) == definite
        signs.append(definite)
    assert 0 < sum(signs) < 20  # both cases were met


@pytest.mark.parametrize(("visible", "hidden"), PAIRS)
def test_only_two_unbounded_layers_can_fail_to_be_normalisable(visible, hidden):
    model = machine(visible, hidden)
    huge = eqx.tree_at(lambda m: m.weights, model, 100 * jnp.abs(model.weights))
    both = visible in CONTINUOUS and hidden in CONTINUOUS
    assert (float(huge.margin()) > 0) == (not both)
    if visible == hidden == "rectified":  # negative couplings between non-negative units are always safe
        assert float(eqx.tree_at(lambda m: m.weights, model, -huge.weights).margin()) > 0


@pytest.mark.usefixtures("x64")
def test_one_sweep_of_the_base_of_a_machine_with_a_fitted_layer_samples_it():
    model = machine("categorical", "gaussian", seed=4)
    rows = np.eye(3)[np.random.default_rng(0).choice(3, (200, 3), p=[0.6, 0.3, 0.1])]
    base = model.base(jnp.asarray(rows))
    grid = nodes(model.x_space, rows)
    drawn, latents = sweeps(
        base, np.repeat(rows[:1], N_DRAWS, axis=0), blank(model.z_space, N_DRAWS), jax.random.key(0)
    )
    p = visible_probabilities(base, grid)
    close(p @ flat(grid.points), flat(rows).mean(0), tolerance=5e-3)  # smoothing: one observation in 201
    values = statistics(grid.points, latent_means(base, grid.points))
    assert worst_score(statistics(drawn, latents), p, values) < 5
