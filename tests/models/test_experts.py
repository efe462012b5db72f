"""Products and fields of experts against closed forms, quadrature, other libraries and explicit linear systems."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import optimize, stats

from latentia import FieldsOfExperts, ProductOfExperts
from latentia.core.errors import DataError, NotNormalisableError, ParameterError
from latentia.likelihood.precision import double
from latentia.models.fields_of_experts import FieldsOfExpertsModel
from latentia.models.product_of_experts import ProductOfExpertsModel
from latentia.ops import experts, restoration
from latentia.ops.convolution import correlate, spread_back

PLAIN = ("student_t", "log_cosh", "charbonnier", "gaussian")


@pytest.fixture
def x64():
    with double():
        yield


def random_field(expert="gsm", n_filters=3, filter_shape=(2, 3), image_shape=(6, 7), seed=0, dtype=np.float64):
    """A field of experts in which no parameter is trivial."""
    rng = np.random.default_rng(seed)
    arrays = {
        "filters": rng.normal(size=(n_filters, *filter_shape)),
        "log_powers": 0.5 * rng.normal(size=n_filters),
        "log_ridge": np.log(0.3),
        "mean": 1.5,
        "spread": 2.5,
    }
    model = FieldsOfExpertsModel.make(image_shape, n_filters, filter_shape, expert, key=jax.random.key(0))
    if expert == "gsm":
        logits = rng.normal(size=model.experts.logits.shape)
        model = eqx.tree_at(lambda m: m.experts.logits, model, jnp.asarray(logits, dtype))
    values = [jnp.asarray(a, dtype) for a in arrays.values()]
    return eqx.tree_at(lambda m: [getattr(m, name) for name in arrays], model, values)


def adopted(model):
    """A fitted estimator around a field."""
    shape = model.image_shape
    kind = {v: k for k, v in experts._PLAIN.items()}.get(type(model.experts), "gsm")
    estimator = FieldsOfExperts(
        model.filters.shape[0], filter_shape=model.filters.shape[1:], image_shape=shape, expert=kind
    )
    return estimator.adopt(model, {"n_features": shape[0] * shape[1], "image_shape": list(shape)})


# -- experts ----------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_a_scale_mixture_is_a_mixture_of_normals():
    rng = np.random.default_rng(0)
    mixture = experts.make("gsm", 2)
    mixture = eqx.tree_at(lambda m: m.logits, mixture, jnp.asarray(2 * rng.normal(size=mixture.logits.shape)))
    u = np.stack([np.linspace(-40, 40, 101), np.linspace(0, 1e-3, 101)])
    shares = np.exp(mixture.logits) / np.exp(mixture.logits).sum(1, keepdims=True)
    density = np.sum(shares[:, None] * stats.norm.pdf(u[..., None], scale=np.asarray(mixture.scales)), axis=-1)
    np.testing.assert_allclose(mixture.energies(jnp.asarray(u)), -np.log(density), rtol=1e-10)
    v = np.linspace(-100, 100, 40_001)  # a sixth of the narrowest scale apart
    inside = np.exp(-np.asarray(mixture.energies(jnp.asarray(np.stack([v, v])))))
    np.testing.assert_allclose(np.trapezoid(inside, v, axis=1), 1, rtol=1e-7)


def test_a_scale_mixture_does_not_overflow_far_out():
    mixture = experts.make("gsm", 1)
    u = jnp.array([[1e3, 1e8, -1e15]])
    np.testing.assert_allclose(mixture.energies(u)[0], 0.5 * (u[0] / 8) ** 2, rtol=1e-2)
    slope = jax.vmap(jax.grad(lambda v: mixture.energies(v[None, None])[0, 0]))(u[0])
    np.testing.assert_allclose(slope, u[0] / 64, rtol=1e-4)


@pytest.mark.parametrize("name", [*PLAIN, "logistic"])
@pytest.mark.usefixtures("x64")
def test_plain_experts_are_their_formulas(name):
    u = np.linspace(-5, 5, 41)
    wanted = {
        "student_t": np.log(1 + u**2 / 2),
        "log_cosh": 2 * np.log(np.cosh(u / 2)),
        "charbonnier": np.sqrt(1 + u**2),
        "gaussian": u**2 / 2,
        "logistic": stats.logistic.logpdf(0) - stats.logistic.logpdf(u),
    }
    found = experts.make(name, 1).energies(jnp.asarray(u)[None, :])[0]
    np.testing.assert_allclose(found, wanted[name], rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("name", experts.EXPERTS)
@pytest.mark.usefixtures("x64")
def test_the_pull_is_the_slope_over_the_response_and_its_quadratic_lies_above(name):
    made = experts.make(name, 2)
    if name == "gsm":
        made = eqx.tree_at(lambda m: m.logits, made, jnp.asarray(np.random.default_rng(1).normal(size=(2, 9))))
    one = lambda u: made.energies(jnp.full((2, 1), u))[:, 0]  # noqa: E731
    pull = lambda u: np.asarray(made.pull(jnp.full((2, 1), u)))[:, 0]  # noqa: E731
    np.testing.assert_allclose(pull(0.0), jax.jacfwd(jax.jacfwd(one))(0.0), rtol=1e-5)
    grid = np.linspace(-9, 9, 181)
    above = np.asarray(made.energies(jnp.asarray(np.stack([grid, grid]))))
    for v in (0.01, 0.4, 3.0):
        np.testing.assert_allclose(pull(v), jax.jacfwd(one)(v) / v, rtol=1e-9)
        quadratic = np.asarray(one(v))[:, None] + 0.5 * pull(v)[:, None] * (grid**2 - v**2)[None, :]
        assert (quadratic - above).min() > -1e-10


# -- products of experts ----------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_one_student_expert_is_a_student_density():
    # (1 + w²(x−m)²/2)^−α is Student's t with ν = 2α − 1 degrees of freedom and scale √(2/ν)/w.
    alpha, slope, location, spread, centre = 1.9, 0.7, 3.0, 2.0, 0.4
    model = ProductOfExpertsModel.make(1, 1, "student_t", key=jax.random.key(0), ridge=0.0, power=alpha)
    values = [jnp.array(a) for a in ([[slope]], [centre], [location], [spread])]
    model = eqx.tree_at(lambda m: (m.weights, m.centre, m.location, m.spread), model, values)
    nu = 2 * alpha - 1
    middle, width = location + spread * centre, spread * np.sqrt(2 / nu) / slope
    density = stats.t(nu, middle, width)
    log_z = -density.logpdf(middle)
    x = np.linspace(-30, 30, 25)
    found = jax.vmap(model.free_energy)(jnp.asarray(x)[:, None])
    np.testing.assert_allclose(-found - log_z, density.logpdf(x), rtol=1e-9)
    t = np.linspace(-12, 12, 4001)  # x = m + sinh t: the trapezoid rule converges quickly
    free = jax.vmap(model.free_energy)(jnp.asarray(middle + np.sinh(t))[:, None])
    assert np.log(np.trapezoid(np.exp(-np.asarray(free)) * np.cosh(t), t)) == pytest.approx(log_z, rel=1e-7)


@pytest.mark.usefixtures("x64")
def test_a_product_is_the_sum_over_its_experts_and_the_ridge():
    rng = np.random.default_rng(3)
    model = ProductOfExpertsModel.make(4, 6, "log_cosh", key=jax.random.key(1), ridge=0.3)
    powers, centre = 0.4 * rng.normal(size=6), rng.normal(size=4)
    location, spread = rng.normal(size=4), np.exp(rng.normal(size=4))
    values = [jnp.asarray(a) for a in (powers, centre, location, spread)]
    model = eqx.tree_at(lambda m: (m.log_powers, m.centre, m.location, m.spread), model, values)
    x = rng.normal(size=4)
    offset = (x - location) / spread - centre
    u = np.asarray(model.weights) @ offset
    wanted = np.exp(powers) @ (2 * np.log(np.cosh(u / 2))) + 0.5 * 0.3 * offset @ offset
    assert float(model.free_energy(jnp.asarray(x))) == pytest.approx(wanted, rel=1e-10)
    assert float(model.energy(jnp.asarray(x), ())) == pytest.approx(wanted, rel=1e-10)
    np.testing.assert_allclose(model.encode(jnp.asarray(x)), u, rtol=1e-10)


def test_score_matching_recovers_a_student_density():
    nu, width = 4.0, 3.0
    X = stats.t(nu, loc=5.0, scale=width).rvs((20_000, 1), random_state=0)

    def objective(parameters):  # E[½F′² − F″] for F = α log(1 + w²r²/2), r = x − m
        alpha, slope = np.exp(parameters[:2])
        r = X[:, 0] - parameters[2]
        below = 1 + 0.5 * (slope * r) ** 2
        first = alpha * slope**2 * r / below
        return np.mean(0.5 * first**2 - alpha * slope**2 / below + first**2 / alpha)

    best = optimize.minimize(objective, np.zeros(3)).x
    assert 2 * np.exp(best[0]) - 1 == pytest.approx(nu, rel=0.15)  # the data hold that much
    short = {"n_epochs": 40, "batch_size": 1000, "learning_rate": 0.03, "monitor": None, "random_state": 0}
    model = ProductOfExperts(1, ridge=0.0, objective="score_matching", **short).fit(X)
    assert model.powers_[0] == pytest.approx(np.exp(best[0]), rel=0.03)
    assert abs(model.components_[0, 0]) == pytest.approx(np.exp(best[1]), rel=0.03)
    assert model.mean_[0] == pytest.approx(best[2], abs=0.03)
    np.testing.assert_allclose(
        model.transform(X[:5]), (X[:5] - model.mean_) @ model.components_.T, rtol=1e-3, atol=1e-4
    )


def test_filters_find_independent_components():
    rng = np.random.default_rng(0)
    mixing = rng.normal(size=(3, 3))
    X = 40 + 10 * rng.laplace(size=(4000, 3)) @ mixing.T
    options = {"learning_rate": 0.01, "monitor": None, "random_state": 0, "n_epochs": 25, "batch_size": 100}
    model = ProductOfExperts(3, objective="score_matching", **options).fit(X)
    product = np.abs(model.components_ @ mixing)
    assert (np.sort(product, axis=1)[:, -2] < 0.12 * product.max(axis=1)).all()


def test_products_without_a_ridge_are_refused_where_they_have_no_normaliser():
    X = np.random.default_rng(0).normal(size=(40, 3))
    short = {"n_epochs": 1, "monitor": None, "random_state": 0}
    with pytest.raises(NotNormalisableError, match="at least as many experts as features \\(2 and 3 here"):
        ProductOfExperts(2, ridge=0.0, **short).fit(X)
    model = ProductOfExpertsModel.make(2, 2, "student_t", key=jax.random.key(0), ridge=0.0, power=0.5)
    assert float(model.margin()) == 0
    heavier = eqx.tree_at(lambda m: m.log_powers, model, jnp.log(jnp.array([0.8, 0.4])))
    assert float(heavier.margin()) == 0
    enough = eqx.tree_at(lambda m: m.log_powers, model, jnp.log(jnp.array([3.0, 1.0])))
    least = np.linalg.svd(np.asarray(model.weights))[1][-1]
    assert float(enough.margin()) == pytest.approx(least, rel=1e-5)
    assert float(ProductOfExpertsModel.make(3, 1, "gsm", key=jax.random.key(0)).margin()) == 1
    log_cosh = ProductOfExpertsModel.make(2, 2, "log_cosh", key=jax.random.key(0), ridge=0.0, power=0.5)
    assert float(log_cosh.margin()) > 0  # linear tails: any power will do


# -- the field --------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_transpose_of_the_filters_is_their_transpose():
    rng = np.random.default_rng(0)
    x, kernels, y = rng.normal(size=(5, 6)), rng.normal(size=(2, 2, 3)), rng.normal(size=(2, 4, 4))
    x, kernels, y = map(jnp.asarray, (x, kernels, y))
    forwards, backwards = correlate(x, kernels), spread_back(y, kernels, x.shape)
    assert float(jnp.sum(forwards * y)) == pytest.approx(float(jnp.sum(backwards * x)), rel=1e-10)


def test_filters_are_laid_on_the_image_as_they_are_seen():
    dot = np.zeros((5, 6), np.float32)
    dot[2, 3] = 1.0
    kernel = np.arange(6, dtype=np.float32).reshape(1, 2, 3)
    maps = np.asarray(correlate(jnp.asarray(dot), jnp.asarray(kernel)))[0]
    wanted = np.zeros((4, 4), np.float32)
    for a in range(2):
        for b in range(3):
            wanted[2 - a, 3 - b] = kernel[0, a, b]
    np.testing.assert_array_equal(maps, wanted)


@pytest.mark.parametrize("expert", ["gsm", "student_t"])
@pytest.mark.usefixtures("x64")
def test_a_field_is_a_product_of_experts_over_all_windows(expert):
    model = random_field(expert)
    x = np.random.default_rng(1).normal(size=(6, 7)) * 2 + 1
    scaled = (x - 1.5) / 2.5
    kernels = np.asarray(model.filters) - np.asarray(model.filters).mean((1, 2), keepdims=True)
    assert np.abs(kernels.sum((1, 2))).max() < 1e-12
    product = ProductOfExpertsModel(
        model.experts,
        jnp.asarray(kernels.reshape(3, -1)),
        model.log_powers,
        jnp.zeros(6),
        None,
        jnp.zeros(6),
        jnp.ones(6),
    )
    windows = np.stack([scaled[i : i + 2, j : j + 3].ravel() for i in range(5) for j in range(5)])
    wanted = float(jnp.sum(jax.vmap(product.free_energy)(jnp.asarray(windows)))) + 0.5 * 0.3 * np.sum(scaled**2)
    assert float(model.free_energy(jnp.asarray(x))) == pytest.approx(wanted, rel=1e-10)
    codes = jax.vmap(product.encode)(jnp.asarray(windows))
    np.testing.assert_allclose(model.encode(jnp.asarray(x)).reshape(3, -1), codes.T, rtol=1e-8, atol=1e-12)
    assert model.code_space.shape == (3, 5, 5)


@pytest.mark.usefixtures("x64")
def test_a_field_does_not_care_where_something_is():
    model = random_field()
    small = np.random.default_rng(2).normal(size=(4, 4))
    placed = []
    for i, j in ((3, 3), (4, 6), (7, 5)):
        image = np.full((14, 15), 1.5)
        image[i : i + 4, j : j + 4] += small
        placed.append(float(model.free_energy(jnp.asarray(image))))
    assert np.ptp(placed) < 1e-9
    bare = eqx.tree_at(lambda m: m.log_ridge, model, jnp.array(-jnp.inf))  # brightness is the ridge's alone
    image = jnp.asarray(image)
    assert float(bare.free_energy(image + 17.0)) == pytest.approx(float(bare.free_energy(image)), rel=1e-10)
    assert float(model.free_energy(image + 17.0)) > float(model.free_energy(image)) + 1


@pytest.mark.usefixtures("x64")
def test_filters_start_with_uncorrelated_responses_of_variance_one():
    rng = np.random.default_rng(0)
    x = 90 + 25 * rng.normal(size=(300, 8, 8)).cumsum(2).cumsum(1)
    model = FieldsOfExpertsModel.make((8, 8), 7, (2, 3), "gsm", key=jax.random.key(0))
    model = model.initialise(jnp.asarray(x), key=jax.random.key(1))
    assert float(model.mean) == pytest.approx(x.mean())
    assert float(model.spread) == pytest.approx(x.std())
    maps = np.asarray(jax.vmap(model.encode)(jnp.asarray(x)))
    maps = maps.transpose(1, 0, 2, 3).reshape(7, -1)
    second = maps @ maps.T / maps.shape[1]
    np.testing.assert_allclose(second[:5, :5], np.eye(5), atol=1e-8)  # the five directions that are not constant
    np.testing.assert_allclose(np.diagonal(second), 1, rtol=1e-8)


# -- restoration ------------------------------------------------------------------------------------


def linear_operator(model, shape):
    """The matrix of ∇²F for Gaussian experts on images of a shape, written out window by window."""
    kernels = np.asarray(model.kernels(), np.float64) / float(model.spread)
    n, (height, width) = shape[0] * shape[1], shape
    matrix = np.exp(float(model.log_ridge)) / float(model.spread) ** 2 * np.eye(n)
    for kernel, power in zip(kernels, np.exp(np.asarray(model.log_powers, np.float64)), strict=True):
        for i in range(height - kernel.shape[0] + 1):
            for j in range(width - kernel.shape[1] + 1):
                row = np.zeros(shape)
                row[i : i + kernel.shape[0], j : j + kernel.shape[1]] = kernel
                matrix += power * np.outer(row.ravel(), row.ravel())
    return matrix


def test_denoising_with_gaussian_experts_is_the_linear_filter():
    model = random_field("gaussian", dtype=np.float32)
    rng = np.random.default_rng(4)
    for shape in ((6, 7), (9, 5)):
        noisy = 3 * rng.normal(size=shape) + 2
        precision = linear_operator(model, shape)
        sigma, weight, mean = 1.7, 0.6, float(model.mean)
        wanted = np.linalg.solve(
            np.eye(noisy.size) / sigma**2 + weight * precision,
            noisy.ravel() / sigma**2 + weight * precision @ np.full(noisy.size, mean),
        )
        # The filters have mean zero, so the second term is the ridge's alone.
        for blur in (0.0, 0.5):  # which does nothing to a parabola
            found = adopted(model).denoise(noisy, sigma, weight=weight, blur=blur, tol=1e-6)
            np.testing.assert_allclose(found.ravel(), wanted, rtol=2e-4, atol=2e-4)


def test_inpainting_with_gaussian_experts_is_the_linear_interpolation():
    model = random_field("gaussian", dtype=np.float32)
    rng = np.random.default_rng(5)
    image, known = 3 * rng.normal(size=(6, 7)) + 2, rng.random((6, 7)) < 0.6
    precision, flat = linear_operator(model, (6, 7)), known.ravel()
    offset = image.ravel() - float(model.mean)
    wanted = np.linalg.solve(precision[~flat][:, ~flat], -precision[~flat][:, flat] @ offset[flat]) + float(
        model.mean
    )
    found = adopted(model).inpaint(image, known, tol=1e-6).ravel()
    np.testing.assert_allclose(found[~flat], wanted, rtol=3e-4, atol=3e-4)


@pytest.mark.parametrize("expert", ["gsm", "student_t"])
@pytest.mark.usefixtures("x64")
def test_no_reweighting_raises_the_objective_and_the_end_is_a_minimum(expert):
    model = random_field(expert)
    rng = np.random.default_rng(6)
    shape = (6, 7)
    image, free = jnp.asarray(2 * rng.normal(size=shape)), jnp.asarray(rng.random(shape) < 0.7)
    numbers = [jnp.asarray(v) for v in (0.8, 1.3, 0.2)]
    task = restoration.Task(image, free, *numbers)
    field = model.field()
    value = eqx.filter_jit(restoration.objective)
    step = eqx.filter_jit(lambda x, n: restoration.settled(field, task, x, max_steps=n, tol=1e-9))
    path, x = [float(value(field, task, image))], image
    for _ in range(12):
        x = step(x, 1)[0]
        path.append(float(value(field, task, x)))
    assert np.diff(path).max() < 1e-9
    assert path[0] - path[-1] > 0.5
    x, change, n = step(x, 2000)
    assert float(change) <= 1e-9
    assert int(n) < 2000
    slope = np.asarray(jax.grad(lambda x: restoration.objective(field, task, x))(x))
    assert np.abs(slope[np.asarray(free)]).max() < 1e-6
    np.testing.assert_array_equal(np.asarray(x)[~np.asarray(free)], np.asarray(image)[~np.asarray(free)])


@pytest.mark.usefixtures("x64")
def test_the_objective_without_blur_is_the_posterior_energy():
    model = random_field()
    rng = np.random.default_rng(7)
    noisy, x = rng.normal(size=(2, 6, 7))
    sigma, weight = 1.3, 0.7
    task = restoration.Task(
        model.standardised(jnp.asarray(noisy)), jnp.ones((6, 7), bool), (2.5 / sigma) ** 2 * jnp.ones(()),
        jnp.asarray(weight), jnp.asarray(0.0),
    )  # fmt: skip
    found = restoration.objective(model.field(), task, model.standardised(jnp.asarray(x)))
    wanted = np.sum((x - noisy) ** 2) / (2 * sigma**2) + weight * float(model.free_energy(jnp.asarray(x)))
    assert float(found) == pytest.approx(wanted, rel=1e-10)
    # A blur ν is what independent noise adds to a response's second moment.
    blurred = eqx.tree_at(lambda t: t.blur, task, jnp.asarray(0.4))
    noise = 0.4 * rng.normal(size=(20_000, 6, 7))
    maps = np.asarray(jax.vmap(lambda e: correlate(jnp.asarray(x) + e, model.kernels()))(jnp.asarray(noise)))
    moments = np.asarray(restoration._blurred(model.field(), blurred, jnp.asarray(x))) ** 2
    np.testing.assert_allclose((maps**2).mean(0), moments, rtol=0.08)


def test_inpainting_keeps_known_pixels_and_minimises_over_the_rest():
    model = random_field("student_t", dtype=np.float32)
    field = adopted(model)
    rng = np.random.default_rng(8)
    images = [rng.normal(size=shape) * 3 for shape in ((6, 7), (11, 5), (6, 7))]
    masks = [rng.random(image.shape) < 0.6 for image in images]
    holes = [np.where(mask, image, np.nan) for image, mask in zip(images, masks, strict=True)]
    found = field.inpaint(holes, tol=1e-6)
    for x, image, mask in zip(found, images, masks, strict=True):
        assert x.dtype == image.dtype
        np.testing.assert_array_equal(x[mask], image[mask])
        slope = np.asarray(jax.grad(model.free_energy)(jnp.asarray(x, jnp.float32)))
        assert np.abs(slope[~mask]).max() < 2e-3 < 0.05 < np.abs(slope[mask]).max()
    again = field.inpaint(images, masks, tol=1e-6)  # what lies under a mask does not matter
    for x, y in zip(found, again, strict=True):
        np.testing.assert_array_equal(x, y)


def test_images_come_back_as_they_were_given():
    field = adopted(random_field("student_t", dtype=np.float32))
    rng = np.random.default_rng(9)
    stack = rng.normal(size=(3, 6, 7))
    found = field.denoise(stack, 0.5)
    assert isinstance(found, np.ndarray)
    assert found.shape == (3, 6, 7)
    mixed = field.denoise([stack[0], rng.normal(size=(9, 4)), stack[2]], 0.5)
    assert [x.shape for x in mixed] == [(6, 7), (9, 4), (6, 7)]
    for single, whole in ((mixed[0], found[0]), (mixed[2], found[2]), (field.denoise(stack[1], 0.5), found[1])):
        np.testing.assert_allclose(single, whole, rtol=1e-3, atol=1e-3)
    whole_numbers = field.denoise((10 * stack[0]).astype(np.uint8), 0.5)
    assert whole_numbers.dtype == np.float32


def test_a_field_learned_from_patches_takes_noise_off_other_images():
    rng = np.random.default_rng(10)

    def blocks(n, size):
        """Images of flat pieces, 100 grey levels apart."""
        coarse = 100 * rng.integers(0, 3, (n, size // 4 + 2, size // 4 + 2)).astype(float)
        image = np.kron(coarse, np.ones((1, 4, 4)))
        return np.stack(
            [im[i : i + size, j : j + size] for im, i, j in zip(image, *rng.integers(0, 4, (2, n)), strict=True)]
        )

    field = FieldsOfExperts(4, filter_shape=2, n_epochs=12, batch_size=20, monitor=None, random_state=0)
    field.fit(blocks(400, 12).reshape(400, -1))
    assert np.abs(field.filters_.sum((1, 2))).max() < 1e-4
    clean = blocks(2, 24)
    noisy = clean + 15 * rng.normal(size=clean.shape)
    found = field.denoise(noisy, 15.0)
    assert np.mean((found - clean) ** 2) < 0.5 * np.mean((noisy - clean) ** 2)


# -- mistakes ---------------------------------------------------------------------------------------


def test_mistakes_with_images_are_explained():
    field = adopted(random_field(dtype=np.float32))
    image = np.zeros((6, 7))
    some = np.ones((6, 7), bool)
    some[0, 0] = False
    for sigma in (0.0, -1.0, np.nan):
        with pytest.raises(ParameterError, match="sigma must be a number in \\(0"):
            field.denoise(image, sigma)
    with pytest.raises(DataError, match="NaN or infinite"):
        field.denoise(np.where(some, image, np.nan), 1.0)
    with pytest.raises(DataError, match="shape \\(2, 3, 6, 7\\)"):
        field.denoise(np.zeros((2, 3, 6, 7)), 1.0)
    with pytest.raises(DataError, match="Image 1 has shape \\(6, 7, 3\\)"):
        field.denoise([image, np.zeros((6, 7, 3))], 1.0)
    with pytest.raises(DataError, match="smaller than the filters"):
        field.denoise(np.zeros((6, 2)), 1.0)
    with pytest.raises(DataError, match="no images"):
        field.denoise([], 1.0)
    for mask, why in ((~some | some, "nothing to fill in"), (some & False, "at least one must be known")):
        with pytest.raises(DataError, match=why):
            field.inpaint(image, mask)
    with pytest.raises(DataError, match="Mask 0 has shape \\(3, 3\\)"):
        field.inpaint(image, np.ones((3, 3), bool))
    with pytest.raises(DataError, match="2 masks for 1 images"):
        field.inpaint(image, np.stack([some, some]))
    with pytest.raises(DataError, match="where the mask says that it is known"):
        field.inpaint(np.full((6, 7), np.nan), some)


def test_mistakes_with_patches_are_explained():
    X = np.random.default_rng(0).normal(size=(20, 12))
    with pytest.raises(DataError, match="5×5 do not fit into patches of 1×12 \\(n_features=12\\)"):
        FieldsOfExperts().fit(X)  # no square, so one row
    with pytest.raises(DataError, match="has 10 pixels, but rows of X have 12"):
        FieldsOfExperts(image_shape=(2, 5)).fit(X)
    with pytest.raises(DataError, match="do not fit into patches of 3×4 .*give image_shape"):
        FieldsOfExperts(image_shape=(3, 4)).fit(X)
    with pytest.raises(ParameterError, match="at least two pixels"):
        FieldsOfExperts(image_shape=(3, 4), filter_shape=1).fit(X)
    with pytest.raises(ParameterError, match="ridge"):
        FieldsOfExperts(image_shape=(3, 4), filter_shape=2, ridge=0.0).fit(X)
    with pytest.raises(ParameterError, match="Did you mean 'student_t'"):
        ProductOfExperts(expert="student").fit(X)
