"""Weights of rows in dictionary learning: two is the row twice, zero is no row."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning

from latentia import DictionaryLearning, SparseCoder
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator import training
from latentia.inference import SparseInference
from latentia.learning.dictionary import UPDATES, atoms, base
from latentia.learning.dictionary.ksvd import ksvd_step
from latentia.ops import examples

RULE = {"name": "l1", "alpha": 0.3, "nonnegative": False}
COUNTS = np.random.default_rng(5).integers(0, 4, 40)


@pytest.fixture(scope="module")
def X():
    rng = np.random.default_rng(0)
    codes = rng.laplace(size=(40, 6)) * (rng.random((40, 6)) < 0.5)
    return (codes @ rng.normal(size=(6, 5)) + 0.1 * rng.normal(size=(40, 5))).astype(np.float32)


def on_host(tree):
    """As the loop hands things to learners that work on the host: arrays of their own."""
    return jax.tree.map(lambda leaf: np.array(leaf), tree)


def begun(update, X, **options):
    """(learner, model, state) before the first step; the last two atoms are the same, so one must be replaced."""
    model = SparseCodingModel.make(5, 6, rule=RULE, key=jax.random.key(1))
    D = np.array(model.dictionary)
    D[-1] = D[-2]
    learner = UPDATES[update](SparseInference("cd", tol=1e-7), **options)
    state = learner.init(model.with_dictionary(D), X, key=jax.random.key(0))
    return learner, on_host(model.with_dictionary(D)), on_host(state)


def steps(learner, model, state, batches):
    told = []
    for x, weights in batches:
        model, state, metrics = learner.step(model, x, weights, state, key=None, since=1)
        told.append(metrics)
    return model, state, told


@pytest.mark.parametrize("update", [*UPDATES])
def test_a_step_with_whole_weights_is_one_on_repeated_rows(X, update, monkeypatch):
    """Statistics, usage, replaced atoms and metrics included; the row of weight zero is far from all others."""
    monkeypatch.setattr(base, "TRIAL", 8)  # atoms are judged after 48 signals: rows count by their weight
    weights = COUNTS.astype(np.float32)
    wild = np.where(COUNTS[:, None] > 0, X, 100 + 7 * X)
    repeated = np.repeat(X, COUNTS, axis=0)
    assert len(X) < 48 <= len(repeated)
    model, state, told = steps(*begun(update, wild), [(wild, weights)] * 3)
    again, other, heard = steps(*begun(update, repeated), [(repeated, None)] * 3)
    np.testing.assert_allclose(model.dictionary, again.dictionary, atol=2e-4)
    for one, two in zip(jax.tree.leaves(state), jax.tree.leaves(other), strict=True):
        if one.shape == two.shape:
            np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-3)
    assert [row["reseeded"] for row in told] == [row["reseeded"] for row in heard]
    assert told[0]["reseeded"] > 0
    share = len(repeated) / len(X)  # metrics are for weights that average to one
    for row, wanted in zip(told, heard, strict=True):
        for name in ("objective", "squared_error", "nonzeros", "unsolved"):
            assert row[name] / share == pytest.approx(wanted[name], rel=2e-3), name


@pytest.mark.parametrize("reseed", [False, True])
@pytest.mark.parametrize("update", [*UPDATES])
def test_a_batch_without_weight_teaches_nothing(X, update, reseed, monkeypatch):
    monkeypatch.setattr(base, "TRIAL", 1)
    learner, model, state = begun(update, X, reseed=reseed)
    model, state, (before,) = steps(learner, model, state, [(X, None)])
    kept = on_host((model, state))
    model, state, (metrics,) = steps(learner, model, state, [(X[:7], np.zeros(7, np.float32))])
    for one, two in zip(jax.tree.leaves(kept), jax.tree.leaves((model, state)), strict=True):
        np.testing.assert_array_equal(one, two)
    assert metrics.keys() == before.keys()
    assert all(np.isfinite(value) for value in metrics.values())
    assert metrics["objective"] == metrics["nonzeros"] == metrics["unsolved"] == metrics["gap"] == 0.0


def test_a_fit_goes_through_batches_without_weight(X):
    """Handed to the learners as they come: the door of ``fit`` is not the only guard."""
    from latentia.learning.fit import Settings, fit

    for update in ("online", "gradient"):
        learner = UPDATES[update](SparseInference("cd"))
        model = SparseCodingModel.make(5, 6, rule=RULE, key=jax.random.key(1))
        weights = np.zeros(40, np.float32)
        weights[:2] = 20.0
        settings = Settings(n_steps=20, batch_size=4, chunk=10)
        prepare = training.Encode(model.x_space)
        result = fit(model, X, learner, prepare, settings, key=jax.random.key(0), weights=weights)
        assert result.rollbacks == 0
        assert np.isfinite(np.asarray(result.model.dictionary)).all()


def test_metrics_are_the_weighted_means_by_hand(X):
    weights = (COUNTS / COUNTS.mean()).astype(np.float32)
    learner, model, state = begun("gradient", X)
    D = np.array(model.dictionary)
    codes = learner.inference.encode(model, X)
    _, _, (metrics,) = steps(learner, model, state, [(X, weights)])
    Z = codes.toarray().astype(float)
    errors = np.sum((X - Z @ D) ** 2, axis=1)
    mean = lambda values: float(np.sum(weights.astype(float) * values) / len(X))  # noqa: E731
    assert metrics["squared_error"] == pytest.approx(mean(errors), rel=1e-4)
    assert metrics["objective"] == pytest.approx(mean(0.5 * errors + 0.3 * np.abs(Z).sum(axis=1)), rel=1e-4)
    assert metrics["nonzeros"] == pytest.approx(mean(np.count_nonzero(Z, axis=1)), rel=1e-6)
    assert metrics["gap"] == codes.gaps[weights > 0].max()


def test_what_is_unsolved_counts_by_weight(X):
    _, model, state = begun("gradient", X)
    hasty = UPDATES["gradient"](SparseInference("cd", tol=1e-9, max_iter=3))
    with pytest.warns(ConvergenceWarning):
        solved = hasty.inference.encode(model, X).converged
    assert 0 < solved.sum() < len(X)
    for weights, share in (((~solved).astype(np.float32), (~solved).mean()), (solved.astype(np.float32), 0.0)):
        _, _, (metrics,) = steps(hasty, *map(on_host, (model, state)), [(X, weights)])
        assert metrics["unsolved"] == pytest.approx(share)


def test_rows_without_weight_never_become_atoms(X):
    D = np.linalg.qr(np.random.default_rng(2).normal(size=(5, 5)))[0].astype(np.float32)
    outlier = X.copy()
    outlier[7] = 1000 * np.arange(1, 6)
    weights = np.ones(len(X), np.float32)
    weights[7] = 0
    Z = outlier @ D.T
    Z[:, 4] = 0
    Z[7, 4] = 1.0  # used by the row without weight alone
    step = ksvd_step(outlier, sp.csr_array(Z), D, weights=weights)
    assert step.n_replaced == 1
    cosines = outlier @ step.dictionary[4] / np.linalg.norm(outlier, axis=1)
    assert np.argmax(np.abs(cosines)) != 7
    plain = ksvd_step(np.delete(outlier, 7, axis=0), sp.csr_array(np.delete(Z, 7, axis=0)), D)
    np.testing.assert_allclose(step.dictionary, plain.dictionary, atol=1e-5)
    assert step.error == pytest.approx(plain.error, rel=1e-4)


def test_of_two_doubles_the_one_that_less_weight_uses_goes(X):
    """Three rows of weight one against one row of weight five."""
    D = np.array([[1, 0, 0, 0, 0], [1, 1e-3, 0, 0, 0], [0, 1, 0, 0, 0]], np.float32)
    rows = np.array([[1, 0, 0, 0, 0], [1.1, 0, 0, 0, 0], [0.9, 0, 0, 0, 0], [2, 0, 3, 1, 0]], np.float32)
    Z = np.array([[1, 0, 0], [1.1, 0, 0], [0.9, 0, 0], [0, 2, 0]], np.float32)
    weights = np.array([1, 1, 1, 5], np.float32)
    with_weights = ksvd_step(rows, sp.csr_array(Z), D, weights=weights)
    repeated = ksvd_step(np.repeat(rows, [1, 1, 1, 5], axis=0), sp.csr_array(np.repeat(Z, [1, 1, 1, 5], axis=0)), D)
    np.testing.assert_allclose(with_weights.dictionary, repeated.dictionary, atol=1e-5)
    assert with_weights.n_replaced == repeated.n_replaced


def test_idle_atoms_are_told_by_weighted_use(X):
    usage = base.Usage(np.zeros(2, np.float32), np.zeros((), np.float32), np.zeros((), np.int32))
    sums = atoms.statistics(X[:2, :3], sp.csr_array(np.array([[1.0, 0], [0, 2.0]])), np.array([2.0, 0.0]))
    assert usage.judged(2.0, sums) is None
    np.testing.assert_array_equal(usage.recent, [2.0, 0.0])
    assert float(usage.seen) == 2.0


@pytest.mark.parametrize("how", ["dense", "sparse", "map"])
def test_the_mean_that_is_subtracted_is_the_weighted_one(X, how, tmp_path, monkeypatch):
    """Of all rows in blocks, and of nothing but the rows that have a weight."""
    monkeypatch.setattr(examples, "BLOCK_BYTES", 7 * 4 * 5)
    rows = X + np.arange(5, dtype=np.float32)
    given = rows
    if how == "sparse":
        given = sp.csr_array(rows)
    if how == "map":
        given = np.lib.format.open_memmap(tmp_path / "rows.npy", "w+", np.float32, rows.shape)
        given[:] = rows
    wanted = np.average(rows.astype(float), axis=0, weights=COUNTS)
    options = {"alpha": 0.3, "center": True}
    learning = DictionaryLearning(4, n_epochs=1, random_state=0, **options).fit(given, sample_weight=COUNTS)
    coder = SparseCoder(np.eye(5), **options).fit(given, sample_weight=COUNTS)
    pieces = DictionaryLearning(4, random_state=0, **options).partial_fit(given, sample_weight=COUNTS)
    for found in (learning, coder, pieces):
        np.testing.assert_allclose(found.model_.mean, wanted, atol=1e-5)
    np.testing.assert_allclose(
        SparseCoder(np.eye(5), **options).fit(given).model_.mean, rows.mean(axis=0, dtype=float), atol=1e-5
    )


def test_a_coder_takes_no_atoms_from_rows_without_weight(X):
    weights = np.zeros(len(X))
    weights[[3, 9]] = 1.0
    coder = SparseCoder(n_components=2, random_state=0).fit(X, sample_weight=weights)
    wanted = X[[3, 9]] / np.linalg.norm(X[[3, 9]], axis=1, keepdims=True)
    np.testing.assert_allclose(np.sort(np.abs(coder.components_ @ wanted.T).max(axis=0)), 1, atol=1e-5)
