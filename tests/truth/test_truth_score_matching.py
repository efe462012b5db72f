"""Score matching against closed forms, whole Hessians, quadrature, and the truth it must find."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import close, perturbed, quick, random_model
from scipy import stats

from latentia import units
from latentia.core.capabilities import FreeEnergy
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.parameters import trainable
from latentia.core.space import Space
from latentia.energies.rbm import RBMModel
from latentia.learning.noise import Disturbance, GaussianNoise, draw_many
from latentia.learning.noise_contrast import NCE, ConditionalNCE, NoiseState
from latentia.learning.score_matching import (
    DenoisingScoreMatching,
    NonnegativeScoreMatching,
    ScoreMatching,
    hyvarinen_score,
)
from latentia.likelihood.precision import double
from latentia.models.deep_energy import DeepEnergy
from latentia.models.product_of_experts import ProductOfExpertsModel
from latentia.models.rbm import RBM
from latentia.ops.derivatives import curvature, laplacian
from latentia.ops.directions import SignDirections
from latentia.registry import family

D = 3
SIGNS = np.array(list(itertools.product((-1.0, 1.0), repeat=D)))


@pytest.fixture
def x64():
    with double():
        yield


class Normal(FreeEnergy):
    """½(x − m)ᵀ P (x − m): score matching's own closed forms are known."""

    location: jax.Array
    precision: jax.Array
    x_space: Space = eqx.field(static=True, default=Space("real", (D,)))
    z_space: tuple = eqx.field(static=True, default=())

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        r = x - self.location
        return 0.5 * r @ self.precision @ r


class Plain(FreeEnergy):
    """Another model's free energy, and nothing else that it can do."""

    model: FreeEnergy

    @property
    def x_space(self):
        return self.model.x_space

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return self.model.free_energy(x)


def normal(seed=0) -> Normal:
    rng = np.random.default_rng(seed)
    a = rng.normal(size=(D, D))
    return Normal(jnp.asarray(rng.normal(size=D)), jnp.asarray(a @ a.T + np.eye(D)))


@quick
def value_and_gradient(objective, model, x, weights, state):
    params, rest = eqx.partition(model, trainable(model))
    return eqx.filter_value_and_grad(lambda p: objective.loss(eqx.combine(p, rest), x, weights, state)[0])(params)


class Given(eqx.Module):
    """Directions that are chosen, not drawn."""

    rows: jax.Array

    def dense(self):
        return self.rows


def largest(tree) -> float:
    return max(float(np.abs(leaf).max()) for leaf in jax.tree.leaves(tree))


@pytest.mark.usefixtures("x64")
def test_curvature_and_laplacian_are_the_hessian_s():
    rng = np.random.default_rng(0)
    n = 7  # not a multiple of the chunk
    first, second = jnp.asarray(rng.normal(size=(5, n))), jnp.asarray(rng.normal(size=(4, 5)))
    f = lambda x: jnp.sum(jax.nn.softplus(second @ jnp.tanh(first @ x)))  # noqa: E731
    x, v = jnp.asarray(rng.normal(size=(2, n)))
    hessian = np.asarray(jax.hessian(f)(x))
    close(curvature(f, x, v), v @ hessian @ v, tolerance=1e-10)
    for chunk in (1, 3, n, 64):
        close(laplacian(f, x, chunk=chunk), np.trace(hessian), tolerance=1e-10)
    close(laplacian(f, x, scale=v, chunk=2), np.asarray(v) ** 2 @ np.diag(hessian), tolerance=1e-10)
    assert abs(np.trace(hessian)) > 0.1


@pytest.mark.usefixtures("x64")
def test_on_a_gaussian_score_matching_is_its_closed_form():
    model, x = normal(), jnp.asarray(np.random.default_rng(1).normal(size=(6, D)))
    weights = jnp.asarray([0.5, 2.0, 1.0, 0.0, 1.5, 1.0])
    residual, P = np.asarray(x) - np.asarray(model.location), np.asarray(model.precision)
    slopes = 0.5 * ((residual @ P) ** 2).sum(1)
    wanted = np.mean(np.asarray(weights) * (slopes - np.trace(P)))  # the trace itself: not divided by D
    close(value_and_gradient(ScoreMatching(), model, x, weights, None)[0], wanted, tolerance=1e-10)
    signs = Given(jnp.broadcast_to(jnp.asarray(SIGNS), (6, *SIGNS.shape)))  # all of them: the mean over v is exact
    close(
        value_and_gradient(ScoreMatching("sliced", len(SIGNS)), model, x, weights, signs)[0],
        wanted,
        tolerance=1e-10,
    )
    one = value_and_gradient(ScoreMatching("sliced", 1), model, x, weights, Given(signs.rows[:, :1]))[0]
    v = SIGNS[0]
    close(one, np.mean(np.asarray(weights) * (slopes - v @ P @ v)), tolerance=1e-10)
    assert abs(one - wanted) > 0.1


@pytest.mark.usefixtures("x64")
def test_directions_are_fresh_signs_for_every_step():
    objective, x = ScoreMatching("sliced", 2), jnp.zeros((50, D))
    drawn = [np.asarray(objective.prepare(None, x, None, key=jax.random.key(k)).dense()) for k in range(20)]
    assert drawn[0].shape == (50, 2, D)
    assert set(np.unique(drawn)) == {-1.0, 1.0}
    assert len({rows.tobytes() for rows in drawn}) > 4  # of the eight that there are


@pytest.mark.parametrize(("rows", "n"), [((1, 1), 5), ((3, 2), 5), ((7, 1), 12), ((4, 5), 8), ((40, 1), 6)])
@pytest.mark.usefixtures("x64")
def test_every_direction_is_independent_signs_and_products_are_products(rows, n):
    """Over all 2ⁿ vectors s each direction runs through all sign vectors once: it is uniform on them."""
    every = jnp.asarray(2.0 * ((np.arange(2**n)[:, None] >> np.arange(n)) & 1) - 1)
    dense = np.asarray(jax.jit(jax.vmap(lambda s: SignDirections(s, rows).dense()))(every))
    assert dense.shape == (2**n, *rows, n)
    for direction in dense.reshape(2**n, -1, n).transpose(1, 0, 2):
        assert len(np.unique(direction, axis=0)) == 2**n
    some, matrix = SignDirections(every[3], rows), jnp.asarray(np.random.default_rng(0).normal(size=(3, n)))
    close(some.products(matrix), dense[3] @ np.asarray(matrix).T, tolerance=1e-12)


def test_directions_of_a_batch_are_orthogonal():
    """As many as there are entries, a power of two: their mean is the trace exactly, whatever the signs."""
    v = SignDirections.draw((8, 2), 16, jnp.float32, key=jax.random.key(0)).dense().reshape(16, 16)
    assert (v @ v.T == 16 * jnp.eye(16, dtype=jnp.float32)).all()


PROJECTED = {
    "experts alone": lambda key: DeepEnergy.make(6, (4,), key=key, sigma=0.7),
    "deep": lambda key: DeepEnergy.make(6, (5, 4, 3), key=key, sigma=0.7, learn_sigma=True, activation="tanh"),
    "filters with a ridge": lambda key: ProductOfExpertsModel.make(6, 8, "student_t", key=key, ridge=0.3),
    "filters": lambda key: ProductOfExpertsModel.make(6, 8, "student_t", key=key, ridge=0.0),
}


@pytest.mark.parametrize("name", PROJECTED)
@pytest.mark.usefixtures("x64")
def test_through_projections_the_score_is_the_same(name):
    rng = np.random.default_rng(0)
    model, x = PROJECTED[name](jax.random.key(0)), jnp.asarray(rng.normal(size=(7, 6)))
    model = model.initialise(1.5 * x + 0.3, key=jax.random.key(1))
    model = jax.tree.map(lambda a: a + 0.2 * jnp.asarray(rng.normal(size=a.shape)), model)
    at, b, V = model.projections()
    whole = jax.vmap(lambda x: 0.5 * jnp.sum(at * x**2) - b @ x + model.potential(V @ x) - model.free_energy(x))(x)
    close(whole, jnp.full(7, whole[0]), tolerance=1e-10)
    weights = jnp.asarray(rng.uniform(0.1, 2, 7))
    directions = SignDirections.draw((7, 2), 6, x.dtype, key=jax.random.key(2))
    quickly = value_and_gradient(ScoreMatching("sliced", 2), model, x, weights, directions)
    plainly = value_and_gradient(ScoreMatching("sliced", 2), Plain(model), x, weights, directions)
    close(quickly[0], plainly[0], tolerance=1e-10)
    for new, old in zip(jax.tree.leaves(quickly[1]), jax.tree.leaves(plainly[1]), strict=True):
        close(new, old, tolerance=1e-9)
    assert largest(quickly[1]) > 0.1


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.usefixtures("x64")
def test_denoising_learns_the_smoothed_gaussian(relative):
    """E ½‖P(x̃ − m) − ε/τ‖² is least at the normal distribution with covariance C + T², T = diag τ."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(40, D)) * [1.0, 3.0, 0.3]
    centred = rows - rows.mean(0)
    tau = 0.4 * rows.std(0) if relative else np.full(D, 0.4)
    objective = DenoisingScoreMatching(0.4, relative).surveyed(None, lambda: jnp.asarray(rows), key=None)
    smooth = Normal(
        jnp.asarray(rows.mean(0)), jnp.asarray(np.linalg.inv(centred.T @ centred / 40 + np.diag(tau**2)))
    )
    # Noise with exactly the moments of ε: ±√3 and 0 on every axis; every row meets every noise.
    points = np.array(list(itertools.product((-np.sqrt(3.0), 0.0, np.sqrt(3.0)), repeat=D)))
    mass = np.array([np.prod(p) for p in itertools.product((1 / 6, 2 / 3, 1 / 6), repeat=D)])
    x = jnp.asarray(np.repeat(rows, len(points), axis=0))
    noise, weights = jnp.asarray(np.tile(points, (40, 1))), jnp.asarray(np.tile(mass * len(points), 40))
    value, gradient = value_and_gradient(objective, smooth, x, weights, noise)
    assert largest(gradient) < 1e-9
    P = np.asarray(smooth.precision)
    closed = 0.5 * np.trace(P @ np.linalg.inv(P) @ P) - np.trace(P) + 0.5 * np.sum(tau**-2.0)
    close(value, closed, tolerance=1e-9)
    assert largest(value_and_gradient(objective, normal(), x, weights, noise)[1]) > 0.1


@pytest.mark.usefixtures("x64")
def test_the_gaussian_rbm_s_score_matching_is_the_corrected_formula():
    """With σ = 1: ½‖x − a − Ws‖² + Σ_k ‖w_k‖² s'(·) up to a constant; the trace's coefficient is 1, not ½."""
    rng = np.random.default_rng(0)
    machine = RBMModel.make(units.make("gaussian", D), units.make("bernoulli", 4), key=jax.random.key(0))
    W, a, b = rng.normal(size=(D, 4)), rng.normal(size=D), rng.normal(size=4)
    machine = eqx.tree_at(
        lambda m: (m.weights, m.visible.location, m.hidden.bias), machine, tuple(map(jnp.asarray, (W, a, b)))
    )
    x = rng.normal(size=(5, D))
    s = 1 / (1 + np.exp(-(x @ W + b)))
    wanted = 0.5 * ((x - a - s @ W.T) ** 2).sum(1) + (s * (1 - s)) @ (W**2).sum(0) - D
    close(quick(jax.vmap(lambda x: hyvarinen_score(machine, x)))(jnp.asarray(x)), wanted, tolerance=1e-9)


@pytest.mark.parametrize("name", ["gaussian-rbm", "gaussian-mixture", "ppca"])
@pytest.mark.usefixtures("x64")
def test_every_real_family_is_stationary_at_its_own_distribution(name):
    """Data from the model itself, by quadrature: the gradient of J vanishes (integration by parts, no noise)."""
    model = random_model(family(name), 2)
    nodes, log_mass = quadrature(model)
    energies = np.asarray(quick(lambda x: jax.vmap(model.free_energy)(x))(nodes))
    p = np.exp(log_mass - energies - np.max(log_mass - energies))
    weights = jnp.asarray(p / p.mean())
    here, there = (
        value_and_gradient(ScoreMatching(), m, nodes, weights, None)[1] for m in (model, perturbed(model, 5))
    )
    assert largest(there) > 0.1
    assert largest(here) < 1e-4 * largest(there)  # as well as the grid integrates a narrow component


def quadrature(model):
    from conformance_oracles import nodes, typical

    found = nodes(model.x_space, typical(model)[0])
    return jnp.asarray(found.points), np.asarray(found.log_weights)


class HalfLine(FreeEnergy):
    """λ·x + ½ Σ p x² on the positive half-line: exponential and cut-off normal."""

    rate: jax.Array
    bend: jax.Array
    x_space: Space = eqx.field(static=True, default=Space("nonnegative", (1,)))
    z_space: tuple = eqx.field(static=True, default=())

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return self.rate @ x + 0.5 * self.bend @ x**2


@pytest.mark.parametrize(
    ("rate", "bend", "truth"),
    [
        (1.7, 0.0, stats.expon(scale=1 / 1.7)),
        (-2.0, 1.5, stats.truncnorm(-2 / 1.5**0.5, np.inf, 2 / 1.5, 1.5**-0.5)),
    ],
    ids=["exponential", "cut-off normal"],
)
@pytest.mark.usefixtures("x64")
def test_nonnegative_score_matching_recovers_distributions_that_end_at_zero(rate, bend, truth):
    nodes, mass = np.polynomial.legendre.leggauss(200)
    x = (nodes + 1) * 15 / 2
    weights = jnp.asarray(truth.pdf(x) * mass / np.mean(truth.pdf(x) * mass))
    points = jnp.asarray(x[:, None])
    # J is quadratic in the parameters: one Newton step from anywhere is its minimum.
    loss = lambda p, objective, state: objective.loss(HalfLine(p[:1], p[1:]), points, weights, state)[0]  # noqa: E731
    signs = Given(jnp.ones((200, 1, 1)))
    for objective, state in ((NonnegativeScoreMatching(), None), (NonnegativeScoreMatching("sliced"), signs)):
        start = jnp.array([0.3, 0.7])
        slope = quick(jax.grad(loss))(start, objective, state)
        hessian = quick(jax.hessian(loss))(start, objective, state)
        close(start - jnp.linalg.solve(hessian, slope), [rate, bend], tolerance=1e-6)


@pytest.mark.usefixtures("x64")
def test_nonnegative_score_matching_is_stationary_for_rectified_machines():
    machine = RBMModel.make(units.make("rectified", 1), units.make("bernoulli", 3), key=jax.random.key(0))
    model = perturbed(machine, 1)
    nodes, mass = np.polynomial.legendre.leggauss(400)
    x = jnp.asarray((nodes[:, None] + 1) * 15)
    weights = np.exp(-np.asarray(quick(lambda x: jax.vmap(model.free_energy)(x))(x))) * mass
    weights = jnp.asarray(weights / weights.mean())
    assert largest(value_and_gradient(NonnegativeScoreMatching(), model, x, weights, None)[1]) < 1e-8
    assert largest(value_and_gradient(NonnegativeScoreMatching(), perturbed(model, 2), x, weights, None)[1]) > 1e-2


def test_wrong_numbers_and_domains_are_refused():
    for call in (
        lambda: ScoreMatching("other"),
        lambda: ScoreMatching("sliced", 0),
        lambda: NonnegativeScoreMatching("other"),
        lambda: DenoisingScoreMatching(0.0),
    ):
        with pytest.raises(ParameterError):
            call()
    X = np.random.default_rng(0).integers(0, 2, (20, 4))
    with pytest.raises(CapabilityError, match=r"works on real data, not on binary.*Objectives that fit: cd, pcd"):
        RBM(2, objective="score_matching").fit(X)


def upper(theta):
    """(mean, symmetric matrix) from its upper triangle: every parameter is identified."""
    rows, columns = np.triu_indices(2)
    matrix = jnp.zeros((2, 2)).at[rows, columns].set(theta[2:5])
    return theta[:2], matrix + matrix.T - jnp.diag(jnp.diagonal(matrix))


@pytest.mark.usefixtures("x64")
def test_on_a_gaussian_every_way_comes_to_the_answer_of_maximum_likelihood():
    """Score matching to solver precision; noise contrast as its noise becomes plentiful, with c = log Z."""
    rng = np.random.default_rng(3)
    x = jnp.asarray(rng.normal(size=(3000, 2)) @ [[1.0, 0.6], [0.0, 0.7]] + [0.5, -1.0])
    centred = np.asarray(x) - np.asarray(x).mean(0)
    covariance = centred.T @ centred / len(x)
    best = np.concatenate([np.asarray(x).mean(0), np.linalg.inv(covariance)[np.triu_indices(2)]])
    log_z = np.log(2 * np.pi) + 0.5 * np.linalg.slogdet(covariance)[1]
    space = Space("real", (2,))
    noise = GaussianNoise(1.3).fitted(space, x)
    contrast = NCE(100, noise)
    samples = draw_many(noise, 300_000, key=jax.random.key(0))
    nearby = ConditionalNCE(50, Disturbance(1.0).fitted(space, x))
    copies = nearby.init(None, x, key=jax.random.key(1))
    model = lambda t: Normal(*upper(t), x_space=space)  # noqa: E731
    ways = {
        "score matching": (lambda t: ScoreMatching().loss(model(t), x, None, None)[0], best, 1e-8),
        "noise contrast": (
            lambda t: contrast.loss(model(t[:5]), x, None, NoiseState(samples, t[5], jnp.zeros(())))[0],
            np.append(best, log_z),
            0.02,
        ),
        "conditional": (lambda t: nearby.loss(model(t), x, None, copies)[0], best, 0.1),
    }
    for name, (loss, wanted, tolerance) in ways.items():
        slope, bend = quick(jax.grad(loss)), quick(jax.hessian(loss))
        theta = jnp.asarray(wanted) + 0.03 * jnp.asarray(rng.normal(size=len(wanted)))
        for _ in range(12):
            theta = theta - jnp.linalg.solve(bend(theta), slope(theta))
        assert float(jnp.abs(slope(theta)).max()) < 1e-8, name
        np.testing.assert_allclose(theta, wanted, atol=tolerance, err_msg=name)
