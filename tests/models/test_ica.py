"""Independent component analysis against SciPy's densities, quadrature, autodiff, Picard and known mixtures."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import latentia
from latentia import ICA
from latentia.core.algorithms import require
from latentia.core.errors import CapabilityError, DataError, ParameterError, UnknownNameError
from latentia.learning.optimizer import Optimizer
from latentia.learning.relative import NaturalGradient, QuasiNewton, regularised, solved
from latentia.models.ica import ICAModel, OvercompleteICAModel
from latentia.ops import sources

picard = pytest.importorskip("picard").picard

#: Every density, the two of "extended" apart.
DENSITIES = {
    "sech": (sources.Sech(), None),
    "logistic": (sources.Logistic(), stats.logistic),
    "student_t": (sources.StudentT(), stats.t(3)),
    "student_t, 5": (sources.StudentT(5.0), stats.t(5)),
    "laplace": (sources.SmoothLaplace(), stats.genhyperbolic(1.0, 0.1, 0.0, scale=0.1)),
    "super": (sources.Extended(jnp.zeros(1, bool)), None),
    "sub": (sources.Extended(jnp.ones(1, bool)), None),
}


@pytest.fixture
def x64():
    with jax.enable_x64(True):
        yield


def amari(found, mixing):
    """0 if found @ mixing is a scaled permutation, 1 at worst."""
    p = np.abs(found @ mixing)
    n = len(p)
    worst = (p / p.max(1, keepdims=True)).sum() + (p / p.max(0, keepdims=True)).sum() - 2 * n
    return worst / (2 * n * (n - 1))


def log_p(name, u):
    """log p(u) from SciPy, or from the formula that needs nothing of ours."""
    u = np.asarray(u, np.float64)
    log_cosh = np.logaddexp(u, -u) - np.log(2)
    if name == "sub":
        return np.logaddexp(stats.norm(-1).logpdf(u), stats.norm(1).logpdf(u)) - np.log(2)
    if name == "super":
        node = np.linspace(-20, 20, 4001)
        mass = np.sum(np.exp(-0.5 * node**2) / np.cosh(node)) * (node[1] - node[0])
        return -0.5 * u**2 - log_cosh - np.log(mass)
    if name == "sech":  # SciPy's own overflows far from 0
        return -log_cosh - np.log(np.pi)
    return DENSITIES[name][1].logpdf(u)


# -- densities ---------------------------------------------------------------------------------------


@eqx.filter_jit
def all_slopes(density, u):
    """The closed forms, and autodiff."""
    value = lambda u: density.energies(u[None])[0]  # noqa: E731
    derivatives = value, jax.grad(value), jax.grad(jax.grad(value))
    return density.slopes(u), [jax.vmap(f)(u[0]) for f in derivatives]


@pytest.mark.parametrize("name", DENSITIES)
def test_densities_are_those_of_scipy_with_slopes_by_autodiff(name, x64):
    density = DENSITIES[name][0]
    u = jnp.asarray([[-30.0, -3.0, -0.7, -1e-3, 0.0, 0.2, 1.0, 4.0, 25.0]])
    np.testing.assert_allclose(-density.energies(u)[0], log_p(name, u[0]), rtol=1e-9, atol=1e-9)
    if name == "sech":
        np.testing.assert_allclose(stats.hypsecant.logpdf(u[0]), log_p(name, u[0]), rtol=1e-9)
    for own, wanted in zip(*all_slopes(density, u), strict=True):
        np.testing.assert_allclose(own[0], wanted, atol=1e-11)
    far = density.slopes(jnp.asarray([[-1e4, 1e4]], jnp.float32))
    assert all(np.isfinite(part).all() for part in far)
    mass = integrate.quad(lambda t: np.exp(log_p(name, np.tan(t))) / np.cos(t) ** 2, -np.pi / 2, np.pi / 2)[0]
    assert mass == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("name", DENSITIES)
def test_draws_follow_their_density(name):
    density = DENSITIES[name][0]
    draw = jax.jit(jax.vmap(lambda key: density.sample(1, jnp.float32, key=key)))
    drawn = np.asarray(draw(jax.random.split(jax.random.key(1), 4000)))[:, 0].astype(np.float64)
    edge = np.tan(np.linspace(-np.pi / 2, np.pi / 2, 20_001)[1:-1])
    mass = np.exp(log_p(name, edge))
    below = np.concatenate([[0.0], np.cumsum(0.5 * (mass[1:] + mass[:-1]) * np.diff(edge))])
    assert stats.kstest(drawn, lambda u: np.interp(u, edge, below / below[-1])).pvalue > 1e-3


def test_extended_takes_each_source_for_what_it_is():
    rng = np.random.default_rng(0)
    u = np.stack([rng.laplace(size=5000), rng.uniform(-1, 1, 5000), rng.choice([-1.0, 1.0], 5000)])
    u = jnp.asarray(u / u.std(1, keepdims=True), jnp.float32)
    density = sources.make("extended", 3)
    assert density.tuned(u, None).sub.tolist() == [False, True, True]
    first = jnp.asarray(np.where(np.abs(np.asarray(u[1])) < 0.3, 20.0, 0.05), jnp.float32)  # makes a peak of it
    assert density.tuned(u, first / jnp.mean(first)).sub.tolist()[1] is False
    with pytest.raises(UnknownNameError, match="logistic"):
        sources.make("logistc", 3)


# -- models ------------------------------------------------------------------------------------------


def random_model(density, d=3, k=3, seed=0):
    """(model, its square matrix with the rest's rows last, μ), nothing of it trivial."""
    rng = np.random.default_rng(seed)
    weights, whiten = rng.normal(size=(k, d)) + 1.5 * np.eye(d)[:k], rng.normal(size=(d, d)) + 1.5 * np.eye(d)
    shift, centre = rng.normal(size=d), rng.normal(size=d)
    model = ICAModel(*map(jnp.asarray, (weights, shift, centre, whiten)), density)
    return model, np.concatenate([weights, np.eye(d)[k:]]) @ whiten, centre + np.linalg.solve(whiten, shift)


@pytest.mark.parametrize(("k", "name"), [(3, "sech"), (2, "laplace"), (1, "student_t"), (3, "mixed")])
def test_the_free_energy_is_a_change_of_variables(k, name, x64):
    signs = (True, False, True)
    density = sources.Extended(jnp.asarray(signs)) if name == "mixed" else DENSITIES[name][0]
    names = [{True: "sub", False: "super"}[s] for s in signs] if name == "mixed" else [name] * k
    model, square, mean = random_model(density, k=k)
    np.testing.assert_allclose(model.filters(), square[:k], atol=1e-12)
    np.testing.assert_allclose(model.mean(), mean, atol=1e-12)
    x = np.random.default_rng(1).normal(size=(6, 3))
    y = (x - mean) @ square.T
    # Given sources, the rest is independent of them: its mean is where standardised values are their shift.
    wanted = sum(log_p(n, y[:, i]) for i, n in enumerate(names)) + np.log(np.abs(np.linalg.det(square)))
    wanted = wanted + stats.norm.logpdf(y[:, k:]).sum(1)
    np.testing.assert_allclose(-jax.vmap(model.free_energy)(jnp.asarray(x)), wanted, rtol=1e-9)
    np.testing.assert_allclose(jax.vmap(lambda x: model.energy(x, ()))(jnp.asarray(x)), -wanted, rtol=1e-9)
    codes = jax.vmap(model.encode)(jnp.asarray(x))
    np.testing.assert_allclose(codes, y[:, :k], atol=1e-12)
    again = np.pad(y[:, :k], ((0, 0), (0, 3 - k))) @ np.linalg.inv(square).T + mean
    np.testing.assert_allclose(jax.vmap(model.decode)(codes), again, atol=1e-11)
    if k == 2:  # the rest is drawn too: all of the covariance is there
        draw = jax.jit(jax.vmap(lambda key: model.sample(key=key)[0]))
        z = (np.array(draw(jax.random.split(jax.random.key(0), 8000))) - mean) @ square.T
        assert np.abs(z.mean(0)).max() < 0.08
        variances = np.array([*[DENSITIES[name][1].var()] * k, 1.0])
        np.testing.assert_allclose(z.T @ z / 8000, np.diag(variances), atol=0.15)


def test_the_inner_model_is_the_one_of_standardised_data(x64):
    for k, kind in ((2, ICAModel), (5, OvercompleteICAModel)):
        model = random_model(sources.Sech(), k=min(k, 3))[0]
        weights = jnp.asarray(np.random.default_rng(2).normal(size=(k, 3)))
        model = kind(weights, model.shift, model.centre, model.whiten, model.density)
        x = jnp.asarray(np.random.default_rng(1).normal(size=(6, 3)))
        inner = jax.vmap(model.inner().free_energy)(jax.vmap(model.standardise)(x))
        change = np.array(inner) - np.array(jax.vmap(model.free_energy)(x))
        wanted = np.linalg.slogdet(model.whiten)[1] if kind is ICAModel else 0.0
        np.testing.assert_allclose(change, np.full(6, wanted), atol=1e-11)
        y = jax.vmap(model.encode)(x)
        np.testing.assert_allclose(jax.vmap(model.inner().encode)(jax.vmap(model.standardise)(x)), y, atol=1e-12)


def test_the_overcomplete_energy_is_the_same_without_the_volume(x64):
    rng = np.random.default_rng(0)
    parts = rng.normal(size=(5, 2)), rng.normal(size=2), rng.normal(size=2), rng.normal(size=(2, 2))
    model = OvercompleteICAModel(*map(jnp.asarray, parts), sources.Sech())
    x = rng.normal(size=(4, 2))
    y = (x - np.array(model.mean())) @ (parts[0] @ parts[3]).T
    np.testing.assert_allclose(jax.vmap(model.free_energy)(jnp.asarray(x)), -log_p("sech", y).sum(1), rtol=1e-10)
    with pytest.raises(CapabilityError, match=r"Relative \(.*moved.*relative"):
        require(QuasiNewton.make(1, 0.0), model)


# -- relative derivatives ----------------------------------------------------------------------------


@eqx.filter_jit
def relative_facts(model, x, weights):
    """(slopes, then value, gradient and Hessian of −log p by autodiff)."""

    def loss(change):
        energies = jax.vmap(model.moved(change).free_energy)(x)
        return jnp.mean(energies if weights is None else weights * energies)

    still = jnp.zeros((model.weights.shape[0],) * 2)
    return model.relative(x, weights), loss(still), jax.grad(loss)(still), jax.hessian(loss)(still)


@pytest.mark.parametrize(("k", "name"), [(3, "student_t"), (2, "logistic")])
def test_the_relative_gradient_is_that_of_the_likelihood(k, name, x64):
    model = random_model(DENSITIES[name][0], k=k)[0]
    rng = np.random.default_rng(2)
    x, weights = jnp.asarray(rng.normal(size=(40, 3))), jnp.asarray(rng.dirichlet(np.ones(40)) * 40)
    slopes, value, gradient, _ = relative_facts(model, x, weights)
    np.testing.assert_allclose(slopes.gradient - np.eye(k), gradient, atol=1e-12)
    assert float(slopes.value) - float(model.log_volume()) == pytest.approx(float(value), abs=1e-12)
    both, plain = relative_facts(model, x, jnp.ones(40))[0], relative_facts(model, x, None)[0]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-12), plain, both)


def test_the_hessian_at_independent_sources_has_the_blocks(x64):
    """On a product grid sources are independent exactly, so that the approximation must be the Hessian itself."""
    node = np.linspace(-9, 9, 61)
    share = [np.exp(-np.abs(node)), np.exp(-0.5 * node**2)]  # another density than the model's, and two unlike ones
    share = [s / s.sum() for s in share]
    y = np.stack([g.ravel() for g in np.meshgrid(node, node, indexing="ij")], axis=1)
    weights = jnp.asarray(np.outer(*share).ravel() * len(y))
    model, square, mean = random_model(sources.Sech(), d=2, k=2)
    x = jnp.asarray(y @ np.linalg.inv(square).T + mean)
    slopes, _, _, hessian = relative_facts(model, x, weights)
    h, hessian = np.array(slopes.curvature), np.array(hessian)
    eye = np.eye(2)
    wanted = np.einsum("ij,ik,jl->ijkl", h, eye, eye) + np.einsum("il,jk->ijkl", eye, eye)
    np.testing.assert_allclose(hessian, wanted, atol=1e-10)
    g = np.random.default_rng(0).normal(size=(2, 2))
    exact = np.linalg.solve(hessian.reshape(4, 4), g.ravel()).reshape(2, 2)
    np.testing.assert_allclose(solved(jnp.asarray(h), jnp.asarray(g)), exact, atol=1e-10)


def test_regularising_lifts_every_block_to_the_smallest_eigenvalue(x64):
    h = np.random.default_rng(0).uniform(-2, 3, (6, 6))
    new = np.asarray(regularised(jnp.asarray(h), 0.05))
    lifted = 0
    for i in range(6):
        assert new[i, i] + 1 >= 0.05 - 1e-12
        for j in range(i):
            block = lambda m, i=i, j=j: np.array([[m[i, j], 1], [1, m[j, i]]])  # noqa: E731
            before, after = np.linalg.eigvalsh(block(h))[0], np.linalg.eigvalsh(block(new))[0]
            assert after == pytest.approx(max(before, 0.05), abs=1e-12)
            lifted += before < 0.05
    assert 0 < lifted < 15


# -- maximum likelihood ------------------------------------------------------------------------------


def mixture(n=1500, kinds=("laplace", "laplace", "logistic", "t"), seed=0):
    """(rows, mixing) of known sources; the rows have a mean."""
    rng = np.random.default_rng(seed)
    draw = {
        "laplace": lambda: rng.laplace(size=n),
        "logistic": lambda: rng.logistic(size=n),
        "t": lambda: rng.standard_t(4, size=n),
        "uniform": lambda: rng.uniform(-1, 1, n),
        "coin": lambda: rng.choice([-1.0, 1.0], n) + 0.3 * rng.normal(size=n),
    }
    s = np.stack([draw[kind]() for kind in kinds], axis=1)
    mixing = rng.normal(size=(len(kinds), len(kinds)))
    return s @ mixing.T + rng.normal(size=len(kinds)), mixing


@eqx.filter_jit
def one_step(learner, model, x, weights, state):
    return learner.step(model, x, weights, state, key=jax.random.key(0), since=1)


def learned(model, x, weights=None, n=60, **options):
    """(model, likelihoods after every iteration, gradients) of the quasi-Newton learner."""
    learner = QuasiNewton.make(1000, 1e-9, per_step=1, **options)
    state = learner.init(model, x, key=jax.random.key(0))
    values, norms = [], []
    for _ in range(n):
        model, state, metrics = one_step(learner, model, x, weights, state)
        values.append(float(metrics["log_likelihood"]))
        norms.append(float(metrics["gradient_norm"]))
        if metrics["converged"]:
            break
    return model, np.array(values), np.array(norms)


def start(x, density, seed=0):
    model = ICAModel.make(x.shape[1], x.shape[1], density, key=jax.random.key(seed))
    return model.initialise(x, key=jax.random.key(seed))


def picards(x, extended=False):
    """Picard's filters."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whiten, w, _ = picard(
            x.T, fun="tanh", ortho=False, extended=extended, random_state=0, tol=1e-10, max_iter=1000
        )
    return w @ whiten


def test_quasi_newton_climbs_to_the_maximum_that_picard_finds(x64):
    x, mixing = mixture()
    model, values, norms = learned(start(jnp.asarray(x), sources.Sech()), jnp.asarray(x))
    assert np.diff(values).min() > -1e-12
    assert norms[-1] < 1e-9
    assert len(values) < 40
    other = picards(x)
    y = (x - x.mean(0)) @ other.T
    peer = log_p("sech", y).sum(1).mean() + np.log(np.abs(np.linalg.det(other)))
    assert values[-1] == pytest.approx(peer, abs=1e-9)
    assert amari(np.array(model.filters()), np.linalg.inv(other)) < 1e-6
    assert amari(np.array(model.filters()), mixing) < 0.04
    exact = -float(jnp.mean(jax.vmap(model.free_energy)(jnp.asarray(x))))
    assert values[-1] == pytest.approx(exact, abs=1e-10)


def test_quasi_newton_goes_the_way_that_picard_goes(x64):
    """From the same start the paths agree: preconditioner, memory and search are all in it."""
    x = mixture(seed=3)[0]
    model = start(jnp.asarray(x), sources.Sech(), seed=3)
    y = (x - x.mean(0)) @ np.array(model.filters()).T
    n = 12
    mine = learned(model, jnp.asarray(x), n=n)[0].weights @ jnp.linalg.inv(model.weights)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _, other, _ = picard(y.T, ortho=False, whiten=False, w_init=np.eye(4), tol=1e-12, max_iter=n)
    np.testing.assert_allclose(mine, other, atol=1e-8)
    assert np.abs(other - np.eye(4)).max() > 0.3


def test_whole_weights_are_repetitions(x64):
    x = mixture()[0]
    counts = np.random.default_rng(4).multinomial(1500, np.full(1500, 1 / 1500))
    repeated = jnp.asarray(np.repeat(x, counts, axis=0))
    begin = start(jnp.asarray(x), sources.Sech())
    weighted = learned(begin, jnp.asarray(x), jnp.asarray(counts, jnp.float64))[1][-1]
    assert weighted == pytest.approx(learned(begin, repeated)[1][-1], abs=1e-10)
    assert abs(weighted - learned(begin, jnp.asarray(x))[1][-1]) > 1e-4


def test_extended_separates_both_kinds_as_picard_does(x64):
    x, mixing = mixture(kinds=("laplace", "uniform", "coin", "t"))
    model, values, norms = learned(start(jnp.asarray(x), sources.make("extended", 4)), jnp.asarray(x), n=200)
    assert norms[-1] < 1e-9
    assert amari(np.array(model.filters()), mixing) < 0.03
    strongest = np.argmax(np.abs(np.array(model.filters()) @ mixing), axis=1)
    assert np.asarray(model.density.sub).tolist() == np.isin(strongest, (1, 2)).tolist()
    other = picards(x, extended=True)
    assert amari(np.array(model.filters()), np.linalg.inv(other)) < 1e-5
    filters = np.array(model.filters())
    y = (x - x.mean(0)) @ filters.T
    names = ["sub" if s else "super" for s in np.asarray(model.density.sub)]
    wanted = sum(log_p(n, y[:, i]).mean() for i, n in enumerate(names)) + np.linalg.slogdet(filters)[1]
    assert values[-1] == pytest.approx(wanted, abs=1e-9)


# -- the estimator -----------------------------------------------------------------------------------


def fitted(x, **options):
    return ICA(random_state=0, **options).fit(x)


def test_the_estimator_finds_the_same_maximum_in_single_precision():
    x, mixing = mixture()
    ica = fitted(x)
    other = picards(x)
    y = (x - x.mean(0)) @ other.T
    peer = log_p("sech", y).sum(1).mean() + np.log(np.abs(np.linalg.det(other)))
    assert ica.score(x) == pytest.approx(peer, abs=1e-4)
    assert ica.history_[-1]["log_likelihood"] == pytest.approx(peer, abs=1e-4)
    assert ica.history_[-1]["gradient_norm"] < 1e-5
    assert 3 < ica.n_iter_ < 40
    assert amari(ica.components_, mixing) < 0.04
    np.testing.assert_allclose(ica.mean_, x.mean(0), atol=1e-5)
    np.testing.assert_allclose(ica.components_ @ ica.mixing_, np.eye(4), atol=1e-4)
    np.testing.assert_allclose(ica.inverse_transform(ica.transform(x)), x, atol=1e-3)
    drawn = ica.sample(1500)
    assert abs(ica.score(drawn) - ica.score(x)) < 0.4
    # The same data, mixed once more: the same sources, and a likelihood that differs by the volume alone.
    more = np.random.default_rng(5).normal(size=(4, 4)) + np.diag([30.0, 1.0, 1.0, 0.1])
    again = fitted(x @ more.T)
    assert amari(again.components_ @ more, np.linalg.inv(ica.components_)) < 1e-4
    assert again.score(x @ more.T) == pytest.approx(ica.score(x) - np.log(np.abs(np.linalg.det(more))), abs=1e-3)


def test_sample_weights_move_the_mean_and_the_maximum():
    x = mixture()[0]
    counts = np.random.default_rng(4).multinomial(1500, np.full(1500, 1 / 1500))
    weighted = ICA(random_state=0).fit(x, sample_weight=counts)
    repeated = fitted(np.repeat(x, counts, axis=0))
    np.testing.assert_allclose(weighted.mean_, repeated.mean_, atol=1e-5)
    assert amari(weighted.components_, repeated.mixing_) < 1e-3
    assert amari(weighted.components_, fitted(x).mixing_) > 1e-3


def test_fewer_components_than_features_are_found_among_the_principal_ones(tmp_path):
    rng = np.random.default_rng(0)
    s, noise = rng.laplace(size=(1500, 2)), 0.05 * rng.normal(size=(1500, 2))
    mixing = rng.normal(size=(4, 2))
    x = s @ mixing.T + noise @ rng.normal(size=(2, 4))
    ica = fitted(x, n_components=2)
    assert ica.transform(x).shape == (1500, 2)
    assert amari(ica.components_, mixing) < 0.05
    assert np.abs(ica.reconstruct(x) - x).max() < 0.6  # the noise is what is lost
    axes = np.linalg.svd(x - x.mean(0), full_matrices=False)[2]
    np.testing.assert_allclose(ica.components_ @ axes[2:].T, 0, atol=1e-3)
    rest = np.asarray(ica.model_.whiten)[2:]
    y = ica.transform(x).astype(np.float64)
    r = (x - x.mean(0)) @ rest.T
    np.testing.assert_allclose(r.T @ r / 1500, np.eye(2), atol=1e-3)
    volume = np.log(np.abs(np.linalg.det(np.concatenate([ica.components_, rest]))))
    wanted = log_p("sech", y).sum(1) + stats.norm.logpdf(r).sum(1) + volume
    np.testing.assert_allclose(ica.score_samples(x), wanted, rtol=1e-4, atol=1e-3)
    ica.save(tmp_path / "ica.safetensors")
    np.testing.assert_array_equal(latentia.load(tmp_path / "ica.safetensors").transform(x), ica.transform(x))


SHORT = {"batch_size": 50, "monitor": None}


def test_natural_gradient_and_score_matching_separate_too():
    x, mixing = mixture()
    best = fitted(x)
    natural = fitted(x, solver="natural_gradient", n_epochs=15, **SHORT)
    assert amari(natural.components_, best.mixing_) < 0.02
    assert natural.score(x) == pytest.approx(best.score(x), abs=0.005)
    matched = fitted(x, solver="gradient", objective="score_matching", n_epochs=15, **SHORT)
    assert amari(matched.components_, mixing) < 0.06
    scaled = fitted(1e4 * x, solver="gradient", objective="score_matching", n_epochs=15, **SHORT)
    np.testing.assert_allclose(1e4 * scaled.components_, matched.components_, rtol=0.02, atol=0.02)
    with pytest.raises(AttributeError, match="partial_fit"):
        best.partial_fit(x)
    moved = natural.partial_fit(x[:500]).components_
    assert amari(moved, best.mixing_) < 0.1


def test_one_natural_step_is_the_published_rule():
    x = jnp.asarray(mixture(n=100)[0], jnp.float32)
    model = start(x, sources.Logistic())
    learner = NaturalGradient(Optimizer.make("sgd", learning_rate=0.1, n_steps=10))
    state = learner.init(model, x, key=jax.random.key(0))
    moved = learner.step(model, x, None, state, key=jax.random.key(0), since=1)[0]
    w = np.asarray(model.weights)
    y = (np.asarray(x) - np.asarray(model.mean())) @ np.asarray(model.filters()).T
    wanted = w + 0.1 * (np.eye(4) - np.tanh(y / 2).T @ y / 100) @ w
    np.testing.assert_allclose(moved.weights, wanted, atol=1e-5)
    slower = learner.step(model, x, None, learner.halve_step(state), key=jax.random.key(0), since=1)[0]
    np.testing.assert_allclose(2 * (slower.weights - w), moved.weights - w, atol=1e-5)


def test_score_matching_raises_the_likelihood_of_an_overcomplete_model():
    """The normaliser of two features is a sum over a grid."""
    rng = np.random.default_rng(0)
    angles = np.array([0.2, 1.2, 2.3])
    axes = np.stack([np.cos(angles), np.sin(angles)])
    x = (rng.laplace(size=(1500, 3)) @ axes.T).astype(np.float32)
    options = {"n_components": 3, "solver": "gradient", "batch_size": 50, "monitor": None}
    node = np.linspace(-25, 25, 301)
    grid = np.stack([g.ravel() for g in np.meshgrid(node, node, indexing="ij")], axis=1)

    def likelihood(ica):
        log_z = np.logaddexp.reduce(-ica.free_energy(grid).astype(np.float64)) + 2 * np.log(node[1] - node[0])
        return -ica.free_energy(x).mean() - log_z

    begin = fitted(x, n_epochs=1, learning_rate=1e-7, **options)
    end = fitted(x, n_epochs=30, **options)
    assert likelihood(end) > likelihood(begin) + 0.02
    assert likelihood(end) > likelihood(fitted(x)) - 0.02
    assert end.transform(x).shape == (1500, 3)
    with pytest.raises(CapabilityError, match="Decodes"):
        end.inverse_transform(end.transform(x))


def test_mistakes_are_named():
    x = mixture(n=60)[0]
    with pytest.raises(ParameterError, match=r"n_components=6 is more than the 4 features.*solver='gradient'"):
        fitted(x, n_components=6)
    with pytest.raises(ParameterError, match="extended"):
        fitted(x, density="extended", solver="gradient")
    with pytest.raises(UnknownNameError, match="logistic"):
        fitted(x, density="tanh")
    with pytest.raises(UnknownNameError, match="quasi_newton"):
        fitted(x, solver="newton")
    for flat in (np.column_stack([x, x[:, 0] + x[:, 1]]), np.column_stack([x, np.ones(60)]), x[:3]):
        with pytest.raises(DataError, match=r"linearly dependent.*PCA"):
            fitted(flat)
