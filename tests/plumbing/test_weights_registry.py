"""Weights of rows through ``fit``, for every family: zero leaves a row out, two is the row twice."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from latentia import DictionaryLearning, GaussianMixture, GaussianModel, SparseCoder
from latentia.estimator import gradient
from latentia.learning import fit as loop
from latentia.learning import stacking
from latentia.registry import FAMILIES

N_ROWS = 24
#: Fits that compile quickly, as far as a family has these parameters.
SHORT = {
    "n_epochs": 1,
    "n_sampler_steps": 1,
    "rounds": 1,
    "centring": 0.02,
    "monitor": None,
    "batch_size": 8,
    "optimizer": "sgd",
}
SHORT |= {"schedule": "constant", "learning_rate": 0.001, "clip": 0.0, "pretraining_epochs": 1, "center": True}
#: Families that learn in two phases: the first one is enough, where the second has weights like any other's.
OWN = {"dbn": {"n_epochs": 0}, "dbm": {"pretraining_epochs": 0}, "multimodal-dbm": {"pretraining_epochs": 0}}
#: Starts that draw rows have another law for weights than equality: here they are given, or need no draw.
GIVEN = {
    "gaussian-mixture": {"n_components": 1},
    "dictionary": {"dictionary_init": np.eye(3)[:2]},
    "sparse-coder": {"dictionary": np.eye(3)[:2], "n_components": None},
}
BY_NAME = {family.name: family for family in FAMILIES}


def made(name, **changes):
    kind = BY_NAME[name].estimator()
    known = kind().get_params()
    options = {**SHORT, **BY_NAME[name].tiny, **OWN.get(name, {})}
    chosen = {key: value for key, value in options.items() if key in known}
    return kind(**{**chosen, "random_state": 0, **changes})


def rows_of(name, n=N_ROWS):
    rng = np.random.default_rng(3)
    if BY_NAME[name].tiny_data == "binary":
        return rng.integers(0, 2, (n, 5)).astype(float)
    return rng.normal(size=(n, 3)) @ np.array([[1.0, 0.4, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.7]]) + [
        0.5,
        0.0,
        -1.0,
    ]


def leaves(model):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(model) if hasattr(leaf, "dtype")]


def same_bits(one, other):
    """Parameters and metrics, but for the time they took."""
    for a, b in zip(leaves(one.model_), leaves(other.model_), strict=True):
        np.testing.assert_array_equal(a, b)
    plain = [[{k: v for k, v in row.items() if k != "seconds"} for row in each.history_] for each in (one, other)]
    assert plain[0] == plain[1]


@pytest.fixture(scope="module")
def short_chunks():
    """One compiled step serves all numbers of steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gradient, "LONGEST_CHUNK", 1)
        yield


@pytest.fixture(scope="module")
def fitted(short_chunks):
    """Fits that several tests look at, each made once."""
    cache = {}

    def get(name, kind):
        if (name, kind) not in cache:
            weights = {"plain": None, "weighted": unequal()}[kind]
            cache[name, kind] = made(name).fit(rows_of(name), sample_weight=weights)
        return cache[name, kind]

    return get


def unequal():
    return np.random.default_rng(5).uniform(0.5, 2.0, N_ROWS)


NAMES = [family.name for family in FAMILIES]


@pytest.mark.parametrize("name", NAMES)
def test_a_row_without_weight_is_left_out(name, fitted):
    rng = np.random.default_rng(7)
    X, places = rows_of(name), np.sort(np.random.default_rng(8).integers(0, N_ROWS, 6))
    binary = BY_NAME[name].tiny_data == "binary"
    others = rng.integers(0, 2, (6, 5)).astype(float) if binary else 1e4 * rng.normal(size=(6, 3))
    weights = np.insert(unequal(), places, 0.0)
    same_bits(made(name).fit(np.insert(X, places, others, axis=0), sample_weight=weights), fitted(name, "weighted"))


@pytest.mark.parametrize("name", NAMES)
def test_the_scale_of_weights_does_not_matter(name, fitted):
    other = made(name).fit(rows_of(name), sample_weight=8 * unequal())
    same_bits(other, fitted(name, "weighted"))


@pytest.mark.parametrize("name", NAMES)
def test_equal_weights_are_no_weights(name, fitted):
    equal = made(name).fit(rows_of(name), sample_weight=np.full(N_ROWS, 0.25))
    same_bits(equal, fitted(name, "plain"))


class _Begun(Exception):
    """Raised in the place of the first step."""


def start_of(estimator, X, weights, monkeypatch):
    """What the first run of the loop is given: the model, and the objective after its look at the data."""
    seen = []

    def stop(model, X, learner, *rest, **options):
        seen.append((model, getattr(learner, "objective", None)))  # the number of steps is that of the rows
        raise _Begun

    monkeypatch.setattr(loop, "fit", stop)
    monkeypatch.setattr(stacking, "fit", stop)
    try:
        estimator.fit(X, sample_weight=weights)
    except _Begun:
        return seen[0]
    return estimator.model_  # nothing is learned


#: As many rows in all as without weights: programs are compiled for shapes.
WHOLE = np.random.default_rng(9).multinomial(N_ROWS, np.full(N_ROWS, 1 / N_ROWS))


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        *((name, GIVEN.get(name, {})) for name in NAMES),
        *(("gaussian-mixture", {"n_components": 1, "covariance_type": kind}) for kind in ("tied", "diag")),
        ("ppca", {"solver": "em"}),
        ("gaussian", {"precision": "diagonal"}),
        ("gaussian", {"solver": "gradient", "objective": "nce"}),
        ("product-of-experts", {"objective": "nce"}),
    ],
    ids=str,
)
def test_the_start_of_a_row_of_weight_two_is_that_of_the_row_twice(name, changes, monkeypatch):
    X = rows_of(name)
    weighted = start_of(made(name, **changes), X, WHOLE, monkeypatch)
    repeated = start_of(made(name, **changes), np.repeat(X, WHOLE, axis=0), None, monkeypatch)
    plain = start_of(made(name, **changes), X, None, monkeypatch)
    pairs = list(zip(leaves(weighted), leaves(repeated), leaves(plain), strict=True))
    for a, b, _ in pairs:
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)
    if name not in ("dbm", "dbn", "multimodal-dbm"):  # theirs may not look at the data
        assert any(not np.allclose(a, c, rtol=1e-3, atol=1e-3) for a, _, c in pairs)


DETERMINISTIC = [
    *(GaussianMixture(1, covariance_type=kind, reg_covar=0.01) for kind in ("full", "tied")),
    BY_NAME["ppca"].estimator()(2),
    BY_NAME["ppca"].estimator()(2, solver="em", n_epochs=3, tol=0, random_state=0),
    BY_NAME["ica"].estimator()(random_state=0, max_iter=60),
    GaussianModel(),
    GaussianModel("neighbours", image_shape=(1, 3)),
    GaussianModel("neighbours", image_shape=(1, 3), solver="score_matching"),
    GaussianModel("diagonal"),
    SparseCoder(np.eye(3)[:2], alpha=0.3, center=True),
    *(
        DictionaryLearning(
            2, 0.3, update=kind, dictionary_init=np.eye(3)[:2], center=True, n_epochs=4, tol=1e-6, batch_size=1000
        )
        for kind in ("mod", "ksvd", "gradient", "online")
    ),
]


@pytest.mark.parametrize("estimator", DETERMINISTIC, ids=lambda e: " ".join(str(e).split())[:60])
def test_a_row_of_weight_two_is_the_row_twice_after_training(estimator):
    """In single precision, hence the tolerance."""
    rng = np.random.default_rng(1)
    X, counts = rng.laplace(size=(40, 3)) @ rng.normal(size=(3, 3)) + 1, rng.multinomial(40, np.full(40, 1 / 40))
    results = []
    for rows, weights in ((X, 3.0 * counts), (np.repeat(X, counts, axis=0), None), (X, None)):
        estimator.fit(rows, sample_weight=weights)
        results.append(np.column_stack([estimator.transform(X), _scores(estimator, X)]))
    np.testing.assert_allclose(results[0], results[1], rtol=2e-3, atol=2e-3)
    assert np.abs(results[0] - results[2]).max() > 0.01


def _scores(estimator, X):
    return (
        estimator.objective(X)
        if isinstance(estimator, DictionaryLearning | SparseCoder)
        else estimator.score_samples(X)
    )
