"""Sparse coding: the model, its estimators, and what they say to bad input."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from sklearn import decomposition, linear_model

import latentia
from latentia import DictionaryLearning, SparseCoder
from latentia.core.algorithms import require
from latentia.core.capabilities import ProxSplit
from latentia.core.errors import CapabilityError, DataError, LatentiaError, ParameterError
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.inference import SparseInference, code_of
from latentia.models.ppca import PPCAModel
from latentia.ops.penalties import L1, ElasticNet

RULES = {
    "l1": {"name": "l1", "alpha": 0.3},
    "positive": {"name": "l1", "alpha": 0.3, "nonnegative": True},
    "elastic_net": {"name": "elastic_net", "alpha": 0.4, "ratio": 0.6},
    "weighted": {"name": "l1", "alpha": 0.3, "weights": [1.0, 2.0, 0.5, 1.0, 3.0, 0.7, 1.0, 1.0, 1.5]},
}


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    return (0.3 * rng.laplace(size=(80, 9)) @ rng.normal(size=(9, 6))).astype(np.float32)


@pytest.fixture(scope="module")
def D():
    D = np.random.default_rng(1).normal(size=(9, 6))
    return (D / np.linalg.norm(D, axis=1, keepdims=True)).astype(np.float32)


def make(D, rule, **options):
    model = SparseCodingModel.make(D.shape[1], len(D), rule=rule, key=jax.random.key(0), **options)
    return model.with_dictionary(D)


def objective(X, Z, D, rule):
    """By hand."""
    weights = np.asarray(rule.get("weights", np.ones(len(D))))
    part = np.abs(Z) * rule.get("ratio", 1) + 0.5 * (1 - rule.get("ratio", 1)) * Z**2
    return 0.5 * np.sum((X - Z @ D) ** 2, axis=1) + rule["alpha"] * part @ weights


# -- the model ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
@pytest.mark.parametrize("center", [False, True])
def test_the_energy_is_the_objective(X, D, rule, center):
    model = make(D, rule, center=center)
    mean = np.zeros(6) if model.mean is None else np.arange(6.0)
    if center:
        model = SparseCodingModel(model.atoms, jnp.arange(6.0), model.rule)
    Z = np.abs(np.random.default_rng(2).normal(size=(80, 9)))
    found = jax.vmap(model.energy)(jnp.asarray(X), jnp.asarray(Z, jnp.float32))
    np.testing.assert_allclose(found, objective(X - mean, Z, D, rule), rtol=1e-4)
    np.testing.assert_allclose(model.decode(jnp.asarray(Z[0], jnp.float32)), Z[0] @ D + mean, rtol=1e-4, atol=1e-4)
    if rule.get("nonnegative"):
        assert np.isinf(model.energy(jnp.asarray(X[0]), jnp.asarray(-Z[0], jnp.float32)))
        assert model.z_space.domain == "nonnegative"


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_one_example_and_many_have_the_same_codes_and_no_better_one_exists(X, D, rule):
    model = make(D, rule)
    inference = SparseInference(tol=1e-6)
    many = inference.infer_many(model, X).mean()
    one = jax.jit(jax.vmap(lambda x: inference.infer(model, x).mean()))(jnp.asarray(X))
    best = objective(X, many, D, rule)
    np.testing.assert_allclose(objective(X, np.asarray(one), D, rule), best, rtol=3e-5)
    np.testing.assert_allclose(one, many, atol=0.02)
    rng = np.random.default_rng(0)
    for size in (1e-2, 0.3):
        other = many + size * rng.normal(size=many.shape)
        other = np.maximum(other, 0) if rule.get("nonnegative") else other
        assert (objective(X, other, D, rule) > best - 1e-5).all()


def test_codes_agree_with_scikit_learn(X, D):
    wanted = decomposition.sparse_encode(
        X.astype(float), D.astype(float), algorithm="lasso_cd", alpha=0.3, max_iter=5000
    )
    coder = SparseCoder(D, alpha=0.3, tol=1e-7).fit(X)
    np.testing.assert_allclose(coder.transform(X), wanted, atol=2e-3)
    best = objective(X, wanted, D, RULES["l1"])
    np.testing.assert_allclose(coder.objective(X), best, rtol=1e-5)
    assert coder.score(X) == pytest.approx(-best.mean(), rel=1e-5)
    net = linear_model.ElasticNet(alpha=0.4 / 6, l1_ratio=0.6, fit_intercept=False, tol=1e-8, max_iter=10_000)
    found = SparseCoder(D, alpha=0.4, penalty="elastic_net", ratio=0.6, tol=1e-7).fit(X).transform(X[:5])
    for z, x in zip(found, X[:5].astype(float), strict=True):
        np.testing.assert_allclose(z, net.fit(D.T.astype(float), x).coef_, atol=2e-3)


def test_limited_numbers_of_atoms(X, D):
    wanted = linear_model.orthogonal_mp(D.T.astype(float), X.T.astype(float), n_nonzero_coefs=3).T
    coder = SparseCoder(D, n_nonzero=3).fit(X)
    found = coder.transform(X)
    np.testing.assert_allclose(found, wanted, atol=1e-3)
    np.testing.assert_allclose(
        coder.objective(X), 0.5 * np.sum((X - wanted @ D) ** 2, axis=1), rtol=1e-3, atol=1e-4
    )
    close = SparseCoder(D, error=0.5).fit(X)
    assert (2 * close.objective(X) <= 0.5 + 1e-4).all()
    few = SparseCoder(D, n_nonzero=2, inference="iht").fit(X).transform(X)
    assert ((few != 0).sum(1) <= 2).all()
    one = jax.vmap(lambda x: SparseInference(n_nonzero=2).infer(coder.model_, x).mean())(jnp.asarray(X))
    assert (np.asarray(one != 0).sum(1) == 2).all()


@pytest.mark.parametrize(
    ("penalty", "inference"),
    [
        ("l0", "auto"),
        ("l0", "ista"),
        ("lq", "auto"),
        ("group", "auto"),
        ("group", "fista"),
        ("l1", "lars"),
        ("l1", "ista"),
    ],
)
def test_every_penalty_has_an_inference(X, D, penalty, inference):
    groups = (0, 0, 0, 1, 1, 1, 2, 2, 2) if penalty == "group" else None
    coder = SparseCoder(
        D, alpha=0.5, penalty=penalty, inference=inference, groups=groups, max_code_iter=20_000
    ).fit(X)
    Z = coder.transform(X)
    zeros = np.mean(Z == 0)
    assert 0.03 < zeros < 0.97
    nothing = 0.5 * np.sum(X**2, axis=1)
    assert (coder.objective(X) <= nothing * (1 + 1e-5)).all()
    if penalty == "group":
        on = (Z != 0).reshape(80, 3, 3)
        np.testing.assert_array_equal(on.any(2), on.all(2))


def test_the_constraint_holds_after_projecting(D):
    for constraint, nonnegative in (("ball", False), ("sphere", True), ("ball", True)):
        model = make(3 * D, RULES["l1"], constraint=constraint, nonnegative=nonnegative).project()
        norms = np.linalg.norm(model.atoms, axis=1)
        assert (norms < 1 + 1e-6).all()
        assert constraint == "ball" or np.allclose(norms, 1, atol=1e-6)
        assert not nonnegative or np.min(model.atoms) >= 0
    half = make(0.5 * D, RULES["l1"]).project()
    np.testing.assert_array_equal(half.atoms, 0.5 * D)  # inside of the ball nothing moves


def test_atoms_start_as_different_rows(X):
    model = make(np.ones((20, 6), np.float32), RULES["l1"]).initialise(jnp.asarray(X), key=jax.random.key(0))
    units = X / np.linalg.norm(X, axis=1, keepdims=True)
    nearest = np.argmax(np.asarray(model.atoms) @ units.T, axis=1)
    np.testing.assert_allclose(model.atoms, units[nearest], atol=1e-5)
    assert len(set(nearest)) == 20
    few = make(np.eye(20, 6, dtype=np.float32) + 1, RULES["l1"]).initialise(
        jnp.asarray(X[:4]), key=jax.random.key(0)
    )
    assert np.linalg.norm(few.atoms, axis=1) == pytest.approx(np.ones(20), rel=1e-5)


def test_an_inference_that_needs_a_dictionary_says_so():
    with pytest.raises(CapabilityError, match=r"needs ProxSplit \(.*dictionary.*penalty.*signal"):
        require(SparseInference(), PPCAModel.make(3, 2, key=jax.random.key(0)))


# -- estimators --------------------------------------------------------------------------------------


def test_dense_and_sparse_ways_in_and_out_agree(X, D):
    few = np.where(np.abs(X) > 0.3, X, 0)
    coder = SparseCoder(D, alpha=0.3).fit(X)
    dense = coder.transform(few)
    assert dense.dtype == np.float32
    csr = coder.transform(few, output="csr")
    assert sp.issparse(csr)
    np.testing.assert_array_equal(csr.toarray(), dense)
    np.testing.assert_allclose(coder.transform(sp.csr_array(few)), dense, atol=1e-5)
    np.testing.assert_allclose(coder.inverse_transform(csr), dense @ D, atol=1e-5)
    np.testing.assert_allclose(coder.reconstruct(few), dense @ D, atol=1e-5)
    codes = coder.codes(few)
    assert (codes.gaps <= 1e-4).all()
    assert codes.converged.all()
    # The generic way, compiled, finds them too.
    generic = jax.vmap(lambda x: code_of(coder.model_, x))(jnp.asarray(few))
    np.testing.assert_allclose(objective(few, generic, D, RULES["l1"]), coder.objective(few), rtol=1e-3, atol=1e-6)
    assert isinstance(coder.model_, ProxSplit)


def test_means_are_subtracted_and_added_if_asked(X):
    shifted = X + 10
    options = {"n_components": 9, "alpha": 0.3, "n_epochs": 3, "random_state": 0, "update": "mod", "tol": 1e-6}
    centred = DictionaryLearning(**options, center=True).fit(shifted)
    np.testing.assert_allclose(centred.model_.mean, shifted.mean(0), rtol=1e-5)
    plain = DictionaryLearning(**options).fit(X - X.mean(0))
    np.testing.assert_allclose(centred.components_, plain.components_, atol=2e-3)
    np.testing.assert_allclose(centred.transform(shifted), plain.transform(X - X.mean(0)), atol=2e-2)
    assert np.abs(centred.reconstruct(shifted) - shifted).mean() < np.abs(X).mean()
    np.testing.assert_allclose(centred.transform(sp.csr_array(shifted)), centred.transform(shifted), atol=1e-5)


def test_nothing_negative_where_it_is_not_allowed(X):
    rows = np.abs(X)
    for update in ("online", "gradient", "mod", "ksvd"):
        found = DictionaryLearning(
            9, 0.3, update=update, nonnegative_codes=True, nonnegative_dictionary=True, n_epochs=3, random_state=0
        ).fit(rows)
        assert found.components_.min() >= 0
        assert found.transform(rows).min() >= 0
        assert found.score(rows) > -0.5 * np.mean(np.sum(rows**2, axis=1))


def test_the_sphere_is_kept(X):
    for update in ("online", "gradient", "mod", "ksvd"):
        found = DictionaryLearning(9, 0.3, update=update, constraint="sphere", n_epochs=3, random_state=0).fit(X)
        np.testing.assert_allclose(np.linalg.norm(found.components_, axis=1), 1, atol=1e-5)


def test_penalties_may_be_objects_and_survive_files(X, tmp_path):
    weights = np.linspace(0.5, 2, 9)
    for penalty in (L1(0.3, weights=weights), ElasticNet(0.4, 0.7, nonnegative=True)):
        fitted = DictionaryLearning(9, penalty=penalty, n_epochs=2, random_state=0).fit(X)
        assert type(fitted.model_.penalty) is type(penalty)
        assert fitted.model_.penalty.nonnegative == penalty.nonnegative
        fitted.save(tmp_path / "model.safetensors")
        again = latentia.load(tmp_path / "model.safetensors")
        assert again.model_.rule == fitted.model_.rule
        assert again.transform(X).tobytes() == fitted.transform(X).tobytes()


def test_encoders_imitate_the_codes_and_are_saved_along(X, tmp_path):
    rows = np.tile(X, (10, 1)) + 0.1 * np.random.default_rng(0).normal(size=(800, 6)).astype(np.float32)
    fitted = DictionaryLearning(9, 0.3, n_epochs=3, random_state=0).fit(rows)
    with pytest.raises(ParameterError, match="fit_encoder"):
        fitted.encode(X, using="lista")
    fitted.fit_encoder("lista", rows, n_layers=2, n_epochs=20, learning_rate=1e-2)
    fitted.fit_encoder("psd", rows, n_epochs=5)
    exact = fitted.encode(X)
    np.testing.assert_array_equal(exact, fitted.transform(X))
    error = {using: np.mean((fitted.encode(X, using=using) - exact) ** 2) for using in ("lista", "psd")}
    assert error["lista"] < error["psd"] < np.mean(exact**2)
    fitted.save(tmp_path / "model.safetensors")
    again = latentia.load(tmp_path / "model.safetensors")
    for using in ("exact", "psd", "lista"):
        np.testing.assert_array_equal(again.encode(X, using=using), fitted.encode(X, using=using))
    fitted.fit(rows)  # another dictionary: its encoders are gone
    with pytest.raises(ParameterError, match="fit_encoder"):
        fitted.encode(X, using="psd")
    moved = (
        SparseCoder(fitted.components_, alpha=0.3)
        .fit(X)
        .fit_encoder("psd", rows, n_epochs=2, update_dictionary=True)
    )
    assert np.abs(moved.components_ - fitted.components_).max() > 1e-3
    with pytest.raises(CapabilityError, match="ℓ1"):
        SparseCoder(fitted.components_, n_nonzero=2).fit(X).fit_encoder("lista", X)


def test_there_is_no_likelihood_and_it_is_said(X):
    fitted = DictionaryLearning(9, 0.3, n_epochs=1, random_state=0).fit(X)
    with pytest.raises(AttributeError, match="log p\\(x\\) is not known"):
        fitted.score_samples(X)
    for ask in (fitted.free_energy, fitted.log_likelihood):
        with pytest.raises(CapabilityError, match="FreeEnergy"):
            ask(X)
    with pytest.raises(CapabilityError, match="cannot be sampled"):
        fitted.sample(3)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"alpha": 0.0}, "alpha must be"),
        ({"alpha": -1.0}, "alpha must be"),
        ({"alpha": float("nan")}, "alpha must be"),
        ({"penalty": "l2"}, "l1"),
        ({"penalty": "group"}, "needs groups"),
        ({"penalty": "group", "groups": (0, 1)}, "groups"),
        ({"inference": "omp"}, "cannot solve the penalty 'l1'"),
        ({"inference": "cd", "n_nonzero": 2}, "limited number of atoms"),
        ({"inference": "iht", "error": 0.5}, "needs n_nonzero"),
        ({"n_nonzero": 0}, "n_nonzero must be"),
        ({"n_nonzero": 10}, "more than the 9 atoms"),
        ({"n_nonzero": 2, "nonnegative_codes": True}, "non-negative"),
        ({"error": -1.0}, "error must be"),
        ({"tol": 0.0}, "tol must be"),
        ({"n_threads": 0}, "n_threads must be"),
        ({"q": 1.0, "penalty": "lq"}, "q must be"),
    ],
)
def test_bad_parameters_are_refused_by_both(X, D, parameters, message):
    for estimator in (
        SparseCoder(D, **{"alpha": 0.3, **parameters}),
        DictionaryLearning(9, **{"alpha": 0.3, **parameters}),
    ):
        with pytest.raises(LatentiaError, match=message):
            estimator.fit(X)


def test_bad_dictionaries_are_refused(X, D, tmp_path):
    empty, broken = D.copy(), D.copy()
    empty[2], broken[1, 1] = 0, np.nan
    cases = {
        "Atom 2 .* zero": empty,
        "NaN": broken,
        "expected": D[:, :4],
        "one atom per row": D[0],
        "numbers": [["a"]],
    }
    for message, dictionary in cases.items():
        with pytest.raises(DataError, match=message):
            SparseCoder(dictionary).fit(X)
        with pytest.raises(DataError, match=message):
            DictionaryLearning(9, dictionary_init=dictionary).fit(X)
    with pytest.raises(DataError, match="no .npy file"):
        SparseCoder(str(tmp_path / "none.npy")).fit(X)
    np.save(tmp_path / "D.npy", D)
    np.testing.assert_array_equal(SparseCoder(str(tmp_path / "D.npy")).fit(X).components_, D)


def test_bad_data_and_options_are_refused(X, D):
    for update, message in (("sgd", "online"), (3, "online")):
        with pytest.raises(LatentiaError, match=message):
            DictionaryLearning(9, update=update).fit(X)
    coder = SparseCoder(D).fit(X)
    with pytest.raises(DataError, match="9 columns"):
        coder.inverse_transform(X)
    with pytest.raises(ValueError, match="NaN"):
        coder.transform(np.full((2, 6), np.nan))
    with pytest.raises(LatentiaError, match="csr"):
        coder.transform(X, output="coo")
    with pytest.raises(LatentiaError, match="lista"):
        coder.encode(X, using="lstm")


def test_data_of_nothing_and_of_few_rows_do_not_break(X):
    zeros = DictionaryLearning(4, 0.3, n_epochs=2, random_state=0).fit(np.zeros((10, 3)))
    assert np.isfinite(zeros.components_).all()
    assert not zeros.transform(np.zeros((2, 3))).any()
    few = DictionaryLearning(20, 0.3, n_epochs=2, random_state=0).fit(X[:5])
    assert np.isfinite(few.components_).all()
    same = DictionaryLearning(4, 0.3, n_epochs=4, random_state=0).fit(np.repeat(X[:1], 30, axis=0))
    assert same.score(X[:1]) > -0.5 * np.sum(X[0] ** 2)


# -- command line ------------------------------------------------------------------------------------


def test_the_command_line_fits_encodes_and_says_what_is_not_possible(X, D, tmp_path):
    from latentia.cli import cli

    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "D.npy", D)
    run = lambda *words: CliRunner().invoke(cli, [str(w) for w in words], prog_name="latentia")  # noqa: E731
    done = run(
        "fit",
        "dictionary",
        tmp_path / "X.npy",
        "--n-components",
        9,
        "--alpha",
        0.3,
        "--update",
        "mod",
        "--n-epochs",
        2,
        "--out",
        tmp_path / "run",
        "--quiet",
    )
    assert done.exit_code == 0, done.output
    told = run("evaluate", tmp_path / "run", "--json")
    assert told.exit_code == 0, told.output
    fitted = latentia.load(tmp_path / "run" / "model.safetensors")
    assert json.loads(told.output)["objective"] == pytest.approx(-fitted.score(X), rel=1e-4)
    assert "no log-likelihood" in run("evaluate", tmp_path / "run").output
    assert run("encode", tmp_path / "run", "--out", tmp_path / "codes.npy").exit_code == 0
    np.testing.assert_allclose(np.load(tmp_path / "codes.npy"), fitted.transform(X), atol=1e-6)
    refused = run("sample", tmp_path / "run", "--out", tmp_path / "samples.npy")
    assert refused.exit_code != 0
    coded = run(
        "fit", "sparse-coder", tmp_path / "X.npy", "--dictionary", tmp_path / "D.npy", "--out", tmp_path / "coder"
    )
    assert coded.exit_code == 0, coded.output
    np.testing.assert_array_equal(latentia.load(tmp_path / "coder" / "model.safetensors").components_, D)
