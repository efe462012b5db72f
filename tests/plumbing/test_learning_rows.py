"""Which rows a fit learns from: weights, validation splits, and what is looked at before training."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix

from latentia import RBM, VAE, Autoencoder, GaussianRBM, ProductOfExperts
from latentia.core.errors import DataError
from latentia.estimator import rows_to_learn as learning
from latentia.estimator import scoring, training
from latentia.estimator.gradient import monitored

RNG = np.random.default_rng(0)
X = (RNG.normal(size=(40, 4)) * [1, 2, 3, 4] + [5, 0, -3, 1]).astype(np.float32)
BITS = (X.mean(axis=0) < X).astype(np.float32)
COUNTS = RNG.integers(1, 4, len(X))
SHORT = {"n_epochs": 2, "batch_size": 10, "random_state": 0}


# -- weights -------------------------------------------------------------------------------------------------------


def test_rows_without_weight_are_left_out_and_the_others_average_to_one():
    weights = np.array([0, 2.0, 0, 1.0, 3.0])
    labels = ["a", "b", "c", "d", "e"]
    for y in (labels, np.array(labels), pd.Series(labels, index=[9, 8, 7, 6, 5])):
        rows, kept, found = learning.weighted(X[:5], y, weights)
        np.testing.assert_array_equal(rows, X[[1, 3, 4]])
        assert list(kept) == ["b", "d", "e"]
        np.testing.assert_allclose(found, [1.0, 0.5, 1.5])
    sparse, _, _ = learning.weighted(csr_matrix(X[:5]), None, weights)
    np.testing.assert_array_equal(sparse.toarray(), X[[1, 3, 4]])


def test_weights_that_are_all_alike_are_none():
    for weights in (None, 3.0, np.full(40, 0.2), np.where(np.arange(40) % 2, 7.0, 0.0)):
        assert learning.weighted(X, None, weights)[2] is None


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1e30])
def test_the_scale_of_weights_does_not_matter(scale):
    expected = learning.weighted(X, None, COUNTS)[2]
    np.testing.assert_allclose(learning.weighted(X, None, COUNTS * scale)[2], expected, rtol=1e-6)
    assert expected.mean(dtype=np.float64) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    "weights", [np.zeros(40), -np.ones(40), np.full(40, np.nan), np.ones(39), np.ones((40, 1))]
)
def test_weights_that_are_none_are_refused(weights):
    with pytest.raises(DataError, match="sample_weight"):
        RBM(2, **SHORT).fit(BITS, sample_weight=weights)


def test_one_row_with_a_weight_is_too_few_to_fit_and_enough_to_go_on_with():
    weights = np.eye(1, 40)[0]
    with pytest.raises(DataError, match="Only 1 of the 40 rows"):
        RBM(2, **SHORT).fit(BITS, sample_weight=weights)
    RBM(2, **SHORT).fit(BITS).partial_fit(BITS, sample_weight=weights)


def test_labels_of_another_length_are_refused_with_weights_too():
    with pytest.raises(ValueError, match="inconsistent"):
        learning.weighted(X, [0, 1], np.arange(40))


def test_rows_for_starting_values_come_as_often_as_their_weights_say():
    weights = learning.normalised_weights(COUNTS, len(X))
    np.testing.assert_array_equal(learning.some_rows(X, 0, weights), np.repeat(X, COUNTS, axis=0))
    uneven = learning.normalised_weights(RNG.random(len(X)) + 0.05, len(X))
    found = learning.some_rows(X, 0, uneven)
    np.testing.assert_allclose(found.mean(axis=0), np.average(X, axis=0, weights=uneven), atol=2e-3)
    counts = np.array([(found == row).all(axis=1).sum() for row in X])
    np.testing.assert_allclose(counts / counts.mean(), uneven, atol=0.01)


def test_rows_for_starting_values_are_no_more_than_asked_for():
    weights = learning.normalised_weights(COUNTS, len(X))
    assert len(learning.some_rows(X, 0, weights, most=50)) == 50
    assert len(learning.some_rows(X, 0, None, most=30)) == 30
    assert len(np.unique(learning.some_rows(X, 0, None, most=30), axis=0)) == 30
    np.testing.assert_array_equal(learning.some_rows(X, 0), X)


def test_monitored_rows_are_spread_as_the_weights_are():
    rows = np.arange(200.0)[:, None]
    np.testing.assert_array_equal(monitored(rows)[:, 0], np.linspace(0, 199, 64).astype(int))
    np.testing.assert_array_equal(monitored(rows, np.ones(200)), monitored(rows))
    weights = np.where(np.arange(200) < 100, 3.0, 1.0)
    assert np.mean(monitored(rows, weights / weights.mean()) < 100) == pytest.approx(0.75, abs=0.02)


def begun(estimator: Any, X: np.ndarray, weights: Any = None) -> list[np.ndarray]:
    rows, _, weights = learning.weighted(estimator._accept(X, reset=True), None, weights)
    return jax.tree.leaves(estimator._begin(rows, 0, None, weights)[0])


@pytest.mark.parametrize(
    "estimator",
    [
        GaussianRBM(3),
        ProductOfExperts(4),
        VAE(2, hidden=(3,)),
        Autoencoder(hidden=(3,), code_activation="linear"),
        RBM(3, visible="gaussian"),
    ],
)
def test_starting_values_take_a_weight_of_two_as_the_row_twice(estimator):
    for one, other in zip(begun(estimator, X, COUNTS), begun(estimator, np.repeat(X, COUNTS, axis=0)), strict=True):
        np.testing.assert_array_equal(one, other)
    unweighted = begun(estimator, X)
    assert any(
        not np.allclose(one, other) for one, other in zip(begun(estimator, X, COUNTS), unweighted, strict=True)
    )


def test_surveys_see_rows_as_often_as_their_weights_say():
    seen = []

    class Prepare:
        def __call__(self, rows: Any, *, key: Any) -> Any:
            seen.append(np.asarray(rows))

    training.survey(X, learning.normalised_weights(COUNTS, len(X)), Prepare(), 0)
    np.testing.assert_array_equal(seen[0], np.repeat(X, COUNTS, axis=0))


# -- validation ----------------------------------------------------------------------------------------------------


def test_a_split_is_disjoint_complete_and_keeps_weights_with_their_rows():
    weights = learning.normalised_weights(np.arange(1, 41), 40)
    rows = np.arange(1.0, 41)[:, None]
    parts = learning.split(rows, weights, 0.3, 5)
    assert (len(parts.training), len(parts.held_out)) == (28, 12)
    training, held_out = np.asarray(parts.training), np.asarray(parts.held_out)
    assert sorted([*training[:, 0], *held_out[:, 0]]) == list(range(1, 41))
    for part, their in ((training, parts.weights), (held_out, parts.held_out_weights)):
        assert their.mean() == pytest.approx(1, rel=1e-6)
        np.testing.assert_allclose(their / their[0], part[:, 0] / part[0, 0], rtol=1e-5)
    other = learning.split(rows, weights, 0.3, 6)
    assert not np.array_equal(held_out, np.asarray(other.held_out))
    assert learning.split(rows, weights, 0.0, 5).held_out is None


def spied(monkeypatch: Any) -> dict[str, list]:
    """What the loop trains on, and what the scorer is made of."""
    seen: dict[str, list] = {"training": [], "held out": []}
    real = training.loop.fit

    def fit(model: Any, rows: Any, *args: Any, **options: Any) -> Any:
        seen["training"].append((np.asarray(rows), options["weights"]))
        return real(model, rows, *args, **options)

    monkeypatch.setattr(training.loop, "fit", fit)
    return seen


@pytest.mark.parametrize("weights", [None, COUNTS])
def test_the_loop_never_sees_a_held_out_row(weights, monkeypatch):
    seen = spied(monkeypatch)
    numbered = np.column_stack([np.arange(40), RNG.normal(size=(40, 2))])
    held = []
    real = GaussianRBM.validation_scorer

    def scorer(self: Any, rows: Any, weights: Any = None) -> Any:
        held.append((np.asarray(rows), weights))
        return real(self, rows, weights)

    monkeypatch.setattr(GaussianRBM, "validation_scorer", scorer)
    options = {**SHORT, "early_stopping": True, "validation_fraction": 0.25, "monitor": None}
    GaussianRBM(2, **options).fit(numbered, sample_weight=weights)
    ((rows, its_weights),) = seen["training"]
    held_rows, held_weights = next((r, w) for r, w in held if len(r) == 10)
    assert sorted([*rows[:, 0], *held_rows[:, 0]]) == list(range(40))
    if weights is not None:
        for part, their in ((rows, its_weights), (held_rows, held_weights)):
            own = weights[part[:, 0].astype(int)]
            np.testing.assert_allclose(their, own / own.mean(), rtol=1e-6)


@pytest.mark.parametrize("estimator", [GaussianRBM, ProductOfExperts, VAE, Autoencoder])
def test_held_out_rows_reach_no_parameter(estimator, monkeypatch):
    """Other values in the held-out rows, and a score that does not look at them: the same model to the bit."""
    monkeypatch.setattr(estimator, "validation_scorer", lambda self, rows, weights=None: lambda model: 0.0)
    options = {**SHORT, "early_stopping": True, "validation_fraction": 0.25, "patience": 9}
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    held = np.sort(np.random.default_rng([seed, 1]).permutation(40)[:10])
    changed = X.copy()
    changed[held] = 100 * RNG.normal(size=(10, 4)) + 50
    models = [estimator(**options).fit(rows)._state for rows in (X, changed)]
    for one, other in zip(*map(jax.tree.leaves, models), strict=True):
        np.testing.assert_array_equal(one, other)


def test_held_out_scores_are_weighted_means(monkeypatch):
    weights = RNG.random(40) + 0.1
    rbm = RBM(3, **SHORT).fit(BITS)
    one_by_one = np.array([rbm.validation_scorer(BITS[i : i + 1])(rbm.model_) for i in range(12)])
    found = rbm.validation_scorer(BITS[:12], weights[:12])(rbm.model_)
    assert found == pytest.approx(np.average(one_by_one, weights=weights[:12]), rel=1e-5)
    monkeypatch.setattr(scoring, "VALIDATION_ROWS", 6)
    few = one_by_one[[0, 2, 4, 6, 8, 11]]  # spread over all of them, not the first ones
    assert rbm.validation_scorer(BITS[:12])(rbm.model_) == pytest.approx(few.mean(), rel=1e-5)
    # Of many weighted rows some are taken in proportion to their weights, which then count no more.
    two = np.repeat(BITS[[0, 1]], 6, axis=0)
    assert one_by_one[0] != pytest.approx(one_by_one[1], rel=1e-2)
    found = rbm.validation_scorer(two, np.repeat([4.0, 2.0], 6))(rbm.model_)
    assert found == pytest.approx((2 * one_by_one[0] + one_by_one[1]) / 3, rel=1e-5)


@pytest.mark.parametrize(
    "estimator", [GaussianRBM(3), VAE(2, hidden=(3,)), Autoencoder(hidden=(3,)), ProductOfExperts(4)]
)
def test_scores_of_families_follow_the_weights(estimator):
    fitted = estimator.set_params(n_epochs=1, batch_size=20, random_state=0).fit(X)
    one_by_one = [fitted.validation_scorer(X[i : i + 1])(fitted.model_) for i in range(5)]
    repeated = fitted.validation_scorer(np.repeat(X[:5], COUNTS[:5], axis=0))(fitted.model_)
    weighted = fitted.validation_scorer(X[:5], COUNTS[:5])(fitted.model_)
    if not isinstance(estimator, VAE):  # whose draws depend on the row's place
        assert weighted == pytest.approx(repeated, rel=1e-4)
        assert weighted == pytest.approx(np.average(one_by_one, weights=COUNTS[:5]), rel=1e-4)
    assert weighted != pytest.approx(np.mean(one_by_one), rel=1e-6)


def test_more_held_out_rows_than_there_are_is_refused():
    with pytest.raises(DataError, match="leaves none to train on"):
        learning.split(X[:2], None, 0.9, 0)
