"""With ``jax_enable_x64`` everything works, and comes to the same as without it.

Two kinds of tests. Those of the plumbing switch 64-bit types on, as a user's ``JAX_ENABLE_X64=1`` does, and expect
models, states, files and answers of the same types and values as without. Where only types can go wrong, functions
are traced and not compiled. Those of the formulas use models of float64, in which an identity holds to ten digits.
"""

from __future__ import annotations

import functools
import sys
import zlib
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))

from conformance_oracles import all_energies, perturbed, quick, tiny, toy_rows
from scipy.special import logsumexp

import latentia
from latentia import RBM, registry, samplers
from latentia.core import capabilities, space
from latentia.core.algorithms import misfit
from latentia.core.parameters import trainable
from latentia.estimator.fresh import fresh
from latentia.estimator.training import Encode
from latentia.learning import OBJECTIVES, fit
from latentia.learning.em import EM
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.relative import NaturalGradient, QuasiNewton
from latentia.ops.arrays import cast
from latentia.registry import FAMILIES

#: Beside the registry's tiny configurations, one for non-negative data and one with real latents in closed form.
MORE = (
    registry.Family(
        "rectified-rbm", "latentia.models.rbm:RBM", "", "", {"n_components": 2, "visible": "rectified"}, "real"
    ),
    registry.Family("real-vae", "latentia.models.vae:VAE", "", "", {"n_components": 2, "hidden": (3,)}, "real"),
)
EVERY = (*FAMILIES, *MORE)
#: A family for every objective, in whose loss nothing is held fixed: an ordinary function of the parameters.
USED = {
    "cd": "rbm",
    "pcd": "rbm",
    "tempering": "gaussian-rbm",
    "exact": "rbm",
    "hybrid": "product-of-experts",
    "score_matching": "product-of-experts",
    "sliced_score_matching": "product-of-experts",
    "denoising_score_matching": "ica",
    "nonnegative_score_matching": "rectified-rbm",
    "ratio_matching": "rbm",
    "nce": "gaussian-rbm",
    "conditional_nce": "product-of-experts",
    "vnce": "gaussian-rbm",
    "reconstruction": "autoencoder",
    "elbo": "real-vae",
    "iwae": "real-vae",
}
#: Other branches of some: mean field in the positive phase, discrete latents.
ALSO = (
    ("cd", "dbm"),
    ("pcd", "multimodal-dbm"),
    ("elbo", "vae"),
    ("iwae", "vae"),
    ("vnce", "rbm"),
    ("nce", "deep-energy"),
)
#: Families whose fit has no random numbers after the start: with and without 64-bit types they end at one point.
EXACT = {"gaussian-mixture", "ppca", "gaussian", "ica"}


@pytest.fixture
def x64():
    """As ``JAX_ENABLE_X64=1`` has it: for all threads, and not only where a context says so."""
    before = jax.config.read("jax_enable_x64")
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", before)


def rows_of(family, n=32):
    rows = toy_rows(family.tiny_data, n)
    return np.abs(rows) if family.name == "rectified-rbm" else rows


def quick_estimator(family, **options):
    """Few rows, two short chunks, no monitors; its numbers are NumPy's, as a grid search has them."""
    estimator = family.estimator()(**family.tiny, random_state=0)
    known = estimator.get_params()
    wanted = {
        "n_epochs": 2,
        "batch_size": 32,
        "max_iter": 10,
        "monitor": None,
        "averaging": 0.5,
        "pretraining_epochs": 1,
    }
    wanted = {name: value for name, value in {**wanted, **options}.items() if name in known}
    estimator.set_params(**wanted)
    numbers = {n: np.float64(v) for n, v in estimator.get_params().items() if isinstance(v, float)}
    return estimator.set_params(**numbers)


def arrays(tree):
    return [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]


def types(tree):
    return [str(leaf.dtype) for leaf in arrays(tree)]


def assert_single(tree):
    """No leaf is wider than 32 bits."""
    wide = {name for name in types(tree) if name in ("float64", "int64", "uint64")}
    assert not wide, wide


def assert_same(found, wanted, tolerance=1e-5):
    assert types(found) == types(wanted)
    for a, b in zip(arrays(found), arrays(wanted), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=tolerance, atol=tolerance)


# -- estimators -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES, ids=lambda f: f.name)
def test_a_family_stays_in_single_precision(family, x64, tmp_path):
    rows = rows_of(family)
    estimator = quick_estimator(family).fit(rows.astype(np.float64).tolist())
    assert_single((estimator.model_, getattr(estimator, "_state", None)))
    codes = estimator.transform(rows[:4].astype(np.float64))
    given = {"transform": codes}
    if isinstance(estimator.model_, capabilities.Decodes):
        given["inverse_transform"] = estimator.inverse_transform(codes)
    if isinstance(estimator.model_, capabilities.FreeEnergy | capabilities.Clamps):
        given["free_energy"] = estimator.free_energy(rows[:4])
    if isinstance(estimator.model_, capabilities.Conditionals | capabilities.ExactSampler):
        given["sample"] = estimator.sample(2, n_steps=2)
    assert {name: value.dtype for name, value in given.items()} == dict.fromkeys(given, np.dtype("float32"))
    assert all(np.isfinite(value).all() for value in given.values())
    estimator.save(tmp_path / "model")
    again = latentia.load(tmp_path / "model")
    assert_same(again.model_, estimator.model_, 0)
    jax.config.update("jax_enable_x64", False)
    without = latentia.load(tmp_path / "model")
    assert_same(without.model_, estimator.model_, 0)
    np.testing.assert_allclose(without.transform(rows[:4]), codes, rtol=1e-5, atol=1e-5)
    if family.name in EXACT:
        assert_same(quick_estimator(family).fit(rows).model_, estimator.model_, 1e-4)


@pytest.mark.parametrize("kind", ["float64", "float16", "int8", "bool", "list"])
@pytest.mark.parametrize("wide", [False, True])
def test_any_kind_of_data_is_the_same_data(kind, wide, x64):
    jax.config.update("jax_enable_x64", wide)
    rows = rows_of(registry.family("rbm"))
    given = rows.tolist() if kind == "list" else rows.astype(kind)
    weights = np.ones(len(rows), np.int64)
    found = _rbm().fit(given, sample_weight=weights.tolist() if kind == "list" else weights)
    assert_same(found.model_, _reference(), 1e-6)
    assert found.transform(given).dtype == np.float32


def _rbm(**options):
    return RBM(3, n_epochs=2, batch_size=8, monitor=None, random_state=0, **options)


@functools.cache
def _reference():
    with jax.enable_x64(False):
        rows = rows_of(registry.family("rbm"))
        return _rbm().fit(rows, sample_weight=np.ones(len(rows))).model_


@pytest.mark.parametrize("name", ["rbm", "dictionary", "ica"])
@pytest.mark.parametrize("first", [False, True])
def test_a_run_is_resumed_with_the_other_setting(name, first, x64, tmp_path):
    family = registry.family(name)
    rows, options = rows_of(family), {"n_epochs": 4, "batch_size": 16}

    def stop(event):
        raise KeyboardInterrupt

    jax.config.update("jax_enable_x64", first)
    with pytest.raises(KeyboardInterrupt):
        quick_estimator(family, **options, run_dir=tmp_path / "run", callbacks=[stop]).fit(rows)
    jax.config.update("jax_enable_x64", not first)
    resumed = quick_estimator(family, **options, run_dir=tmp_path / "run", resume=True).fit(rows)
    jax.config.update("jax_enable_x64", False)
    whole = quick_estimator(family, **options).fit(rows)
    assert_same((resumed.model_, resumed._state), (whole.model_, whole._state), 1e-4)


def test_more_rows_and_a_classifier_stay_in_single_precision(x64):
    rows = rows_of(registry.family("rbm"))
    labels = rows[:, 0].astype(int)
    stack = quick_estimator(registry.family("stacked-autoencoder")).fit(rows)
    stack.finetune(rows, labels, n_epochs=1, batch_size=32)
    assert_single(stack.classifier_)
    assert stack.predict_proba(rows[:4]).shape == (4, 2)
    rbm = _rbm(objective="tempering", n_replicas=3).partial_fit(rows).partial_fit(rows)
    assert_single((rbm.model_, rbm._state))


def test_a_likelihood_does_not_depend_on_the_setting(x64):
    model, rows = perturbed(_reference(), 0), rows_of(registry.family("rbm"))[:8]
    found = []
    for wide in (True, False):
        jax.config.update("jax_enable_x64", wide)
        rbm = _rbm().adopt(model, {"n_features": 5})
        annealed = rbm.log_likelihood(rows, method="ais", n_temperatures=20, n_chains=8)
        exact = rbm.log_likelihood(rows, method="exact")
        found.append([annealed.lower, annealed.upper, exact.estimate, *rbm.sample(3, n_steps=3).ravel()])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-10)


@pytest.mark.parametrize("name", ["vae", "real-vae"])
def test_a_bound_that_is_followed_takes_a_model_of_float64(name, x64):
    rows = rows_of(_family(name))
    vae = quick_estimator(_family(name)).fit(rows)
    single = vae.validation_scorer(rows)(vae.model_)
    vae.model_ = cast(vae.model_, jnp.float64)
    score = vae.validation_scorer(rows)
    assert score(vae.model_) == score(vae.model_)  # with the same draws every time
    assert score(vae.model_) == pytest.approx(single, rel=0.1)


# -- algorithms, traced -----------------------------------------------------------------------------


def _family(name):
    return next(family for family in EVERY if family.name == name)


@functools.cache
def _single_model(name):
    """A family's tiny model in float32, every parameter moved."""
    estimator, blueprint = tiny(_family(name))
    return perturbed(fresh(estimator.build, blueprint, seed=0), zlib.crc32(name.encode()))


def _visibles(family, model, n=16):
    return jax.tree.map(jnp.asarray, space.encode(model.x_space, rows_of(family, n)))


def model_is_real(model):
    return all(leaf.domain == "real" for leaf in space.leaves(model.z_space))


def learner_of(name, model, x):
    optimizer = Optimizer.make(
        "adam", learning_rate=0.01, n_steps=10, schedule="cosine", weight_decay=0.1, clip=1.0
    )
    options = {"gradient": "reparametrised"} if model_is_real(model) and name == "iwae" else {}
    learner = GradientLearner(OBJECTIVES[name](**options), optimizer, averaging=0.9)
    return learner.surveyed(model, lambda: x, key=jax.random.key(0))


def shapes_of_a_step(learner, model, x):
    """(state before, model and state after one full step), traced."""

    def both(model, x, weights):
        state = learner.init(model, x, key=jax.random.key(0))
        new_model, new_state, _ = learner.step(model, x, weights, state, key=jax.random.key(1), since=2)
        return (model, state), (new_model, new_state)

    return eqx.filter_eval_shape(both, model, x, jnp.ones(16, jnp.float32))


@pytest.mark.parametrize(("name", "family"), [*USED.items(), *ALSO], ids=lambda each: each)
def test_a_step_of_every_objective_keeps_all_types(name, family, x64):
    model = _single_model(family)
    x = _visibles(_family(family), model)
    learner = learner_of(name, model, x)
    before, after = shapes_of_a_step(learner, model, x)
    assert types(before) == types(after)
    assert_single(before)


@pytest.mark.parametrize(
    "learner",
    [EM(), QuasiNewton.make(10, 1e-4), NaturalGradient(Optimizer.make("sgd", learning_rate=0.1, n_steps=10))],
    ids=lambda a: a.name,
)
def test_a_step_of_every_other_learner_keeps_all_types(learner, x64):
    for family in EVERY:
        model = _single_model(family.name)
        if misfit(learner, model) is None:
            before, after = shapes_of_a_step(learner, model, _visibles(family, model))
            assert types(before) == types(after)
            assert_single(before)


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (samplers.Gibbs, ["rbm", "dbm", "gaussian-mixture", "ppca", "vae", "gaussian"]),
        (samplers.ParallelTempering.make, ["gaussian-rbm"]),
        *((make, ["product-of-experts"]) for make in samplers.GRADIENT_SAMPLERS.values()),
    ],
)
def test_chains_of_every_sampler_keep_all_types(make, names, x64):
    for name in names:
        model, sampler = _single_model(name), make()
        x = _visibles(_family(name), model)
        fixed = jax.tree.map(lambda a: jnp.ones(a.shape, bool), x)
        run = eqx.filter_eval_shape(
            samplers.chains._sample, sampler, model, x, None, fixed, 1, 2, 1, jax.random.key(0)
        )
        assert_single(run[:3])


@pytest.mark.parametrize("name", ["rbm", "gaussian-mixture"])
def test_a_model_of_float64_is_trained_in_float64(name, x64):
    family = registry.family(name)
    model = cast(_single_model(name), jnp.float64)
    learner = learner_of("pcd", model, None) if name == "rbm" else EM()
    settings = fit.Settings(n_steps=2, batch_size=32, chunk=1)
    rows = rows_of(family)
    result = fit.fit(
        model, rows, learner, Encode(model.x_space), settings, key=jax.random.key(0), weights=np.ones(32)
    )
    assert set(types(result.model)) == {"float64"}
    assert result.history[-1]["step"] == 2
    drawn, _ = samplers.sample(samplers.Gibbs(), model, _visibles(family, model), 2, key=jax.random.key(0))
    assert set(types(drawn)) == {"float64"}


# -- formulas, at random parameters of float64 ------------------------------------------------------


def having(need, also=lambda model: True):
    models = [(family, _single_model(family.name)) for family in EVERY]
    able = [family for family, model in models if isinstance(model, need) and also(model)]
    return pytest.mark.parametrize("family", able, ids=lambda f: f.name)


def wide_model(family):
    return cast(_single_model(family.name), jnp.float64)


@quick
def _identity(model, x, keys):
    """(E + log q − F, F) at a draw of z for every x."""

    def one(x, key):
        q, free = model.posterior(x), model.free_energy(x)
        z = q.sample(key=key)
        return model.energy(x, z) + q.log_prob(z) - free, free

    return jax.vmap(one)(x, keys)


@having(capabilities.ExactPosterior)
def test_energy_and_posterior_make_the_free_energy(family, x64):
    model = wide_model(family)
    difference, free = _identity(
        model, cast(_visibles(family, model), jnp.float64), jax.random.split(jax.random.key(0), 16)
    )
    assert difference.dtype == np.float64
    assert np.abs(difference).max() < 1e-10 * (1 + np.abs(free).max())


@quick
def _both_free_energies(model, x, z):
    return jax.vmap(model.free_energy)(x), all_energies(model, x, z)


def _latents_can_be_enumerated(model):
    found = space.leaves(model.z_space)
    return bool(found) and all(leaf.is_discrete for leaf in found)


@having(capabilities.FreeEnergy, also=_latents_can_be_enumerated)
def test_the_free_energy_sums_over_all_latents(family, x64):
    model = wide_model(family)
    z = jax.tree.map(lambda a: a.astype(np.float64), space.enumerate_states(model.z_space))
    free, energies = _both_free_energies(model, cast(_visibles(family, model), jnp.float64), z)
    np.testing.assert_allclose(free, -logsumexp(-np.asarray(energies), axis=1), rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("name", OBJECTIVES)
def test_gradients_are_finite_differences(name, x64):
    family = _family(USED[name])
    model = wide_model(family)
    x = cast(_visibles(family, model), jnp.float64)
    learner = learner_of(name, model, x)
    weights = jnp.asarray(np.random.default_rng(0).uniform(0.5, 1.5, 16))

    @quick
    def slopes(model, x, weights):
        """The derivative along a direction, by the gradient and by differences at two distances."""
        keys = jax.random.split(jax.random.key(0), 2)
        state = learner.objective.prepare(model, x, learner.objective.init(model, x, key=keys[0]), key=keys[1])
        chosen, rest = eqx.partition(model, trainable(model))
        flat, unravel = jax.flatten_util.ravel_pytree(chosen)
        loss = lambda v: learner.objective.loss(eqx.combine(unravel(v), rest), x, weights, state)[0]  # noqa: E731
        way = jnp.cos(jnp.arange(flat.size, dtype=flat.dtype))
        steps = jnp.asarray([1e-4, -1e-4, 2e-4, -2e-4])
        ends = jax.lax.map(lambda step: loss(flat + step * way), steps)
        near, far = (ends[0] - ends[1]) / 2e-4, (ends[2] - ends[3]) / 4e-4
        return jax.grad(loss)(flat) @ way, (4 * near - far) / 3  # without the error of second order

    by_gradient, by_difference = slopes(model, x, weights)
    assert by_gradient.dtype == np.float64
    assert abs(by_gradient) > 1e-3
    np.testing.assert_allclose(by_gradient, by_difference, rtol=1e-8)
