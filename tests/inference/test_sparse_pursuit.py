"""Orthogonal matching pursuit and orthogonal least squares against plain NumPy and other libraries."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import sparse_encode as sk_sparse_encode
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import orthogonal_mp_gram
from sparse_problems import problem, same

from latentia.core.errors import DataError, ParameterError
from latentia.inference.sparse import encode, sparse_encode

RULES = ("omp", "ols")


def pursue(x, D, rule, most, error=0.0):
    """One signal, by least squares on every candidate set: slow and plain."""
    chosen, z = [], np.zeros(len(D))
    while len(chosen) < most and ((x - z @ D) ** 2).sum() > error:
        residual = x - z @ D
        scores = np.full(len(D), -np.inf)
        for j in set(range(len(D))) - set(chosen):
            if rule == "omp":
                scores[j] = abs(residual @ D[j]) / np.linalg.norm(D[j])
            else:
                fit = np.linalg.lstsq(D[[*chosen, j]].T, x, rcond=None)[0]
                scores[j] = -((x - fit @ D[[*chosen, j]]) ** 2).sum()
        chosen.append(int(np.argmax(scores)))
        z[:] = 0
        z[chosen] = np.linalg.lstsq(D[chosen].T, x, rcond=None)[0]
    return z


# -- truth -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gram", [None, False])
def test_atoms_and_coefficients_are_those_of_plain_least_squares(rule, gram):
    X, D = problem(n=15)
    for most in (1, 5, 9):
        codes = sparse_encode(X, D, method=rule, n_nonzero=most, gram=gram)
        wanted = np.array([pursue(x, D, rule, most) for x in X])
        assert ((codes.toarray() != 0) == (wanted != 0)).all()
        np.testing.assert_allclose(codes.toarray(), wanted, atol=1e-10)
        assert (codes.n_iter == most).all()
        assert codes.converged.all()
        assert np.isnan(codes.gaps).all()


def test_the_two_rules_differ():
    X, D = problem(n=60)
    omp, ols = (sparse_encode(X, D, method=rule, n_nonzero=5) for rule in RULES)
    assert ((omp.toarray() != 0) != (ols.toarray() != 0)).any()
    # The first atom is the same for both, and OLS takes the best second one.
    omp, ols = (sparse_encode(X, D, method=rule, n_nonzero=2).objective(X, D, None) for rule in RULES)
    assert (ols <= omp + 1e-12).all()
    assert (ols < omp - 1e-3).any()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_support_is_that_of_scikit_learn(dtype):
    X, D = problem(n=50, unit=True, dtype=dtype)
    exact = X.astype(float), D.astype(float)
    for most in (3, 10):
        theirs = sk_sparse_encode(*exact, algorithm="omp", n_nonzero_coefs=most)
        ours = sparse_encode(X, D, method="omp", n_nonzero=most)
        assert ours.values.dtype == dtype
        assert ((ours.toarray() != 0) == (theirs != 0)).all()
        np.testing.assert_allclose(ours.toarray(), theirs, atol=1e-10 if dtype == np.float64 else 1e-5)
    X, D = exact
    theirs = orthogonal_mp_gram(D @ D.T, D @ X.T, tol=0.4, norms_squared=(X**2).sum(axis=1)).T
    ours = sparse_encode(X, D, method="omp", error=0.4)
    assert ((ours.toarray() != 0) == (theirs != 0)).all()


def test_the_codes_are_those_of_spams():
    """Its omp judges an atom by what is left of it beside those taken: orthogonal least squares."""
    spams = pytest.importorskip("spams")
    X, D = problem(n=50, unit=True)
    theirs = spams.omp(np.asfortranarray(X.T), np.asfortranarray(D.T), L=6, numThreads=1).T.toarray()
    np.testing.assert_allclose(sparse_encode(X, D, method="ols", n_nonzero=6).toarray(), theirs, atol=1e-9)


@pytest.mark.parametrize("rule", RULES)
def test_residuals_are_orthogonal_to_the_atoms_in_use_and_fall(rule):
    X, D = problem()
    before = (X**2).sum(axis=1)
    for most in range(1, 12):
        Z = sparse_encode(X, D, method=rule, n_nonzero=most).toarray()
        residual = X - Z @ D
        assert np.abs(np.where(Z != 0, residual @ D.T, 0)).max() < 1e-12
        after = (residual**2).sum(axis=1)
        assert (after < before).all()
        before = after


# -- when to stop ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gram", [None, False])
def test_the_error_is_reached_and_not_before(rule, gram):
    X, D = problem()
    errors = np.linspace(0.05, 2.0, len(X))
    for error in (0.3, errors):
        codes = sparse_encode(X, D, method=rule, error=error, gram=gram)
        assert codes.converged.all()
        assert (2 * codes.objective(X, D, None) <= np.broadcast_to(error, len(X)) + 1e-12).all()
        fewer = np.array([pursue(x, D, rule, max(0, n - 1)) for x, n in zip(X, codes.n_iter, strict=True)])
        short = ((X - fewer @ D) ** 2).sum(axis=1)
        assert (short[codes.n_iter > 0] > np.broadcast_to(error, len(X))[codes.n_iter > 0]).all()
    assert len(set(codes.n_iter)) > 3


@pytest.mark.parametrize("gram", [None, False])
def test_with_both_whichever_comes_first(gram):
    X, D = problem()
    by_error = sparse_encode(X, D, method="omp", error=0.5, gram=gram).n_iter
    both = sparse_encode(X, D, method="omp", error=0.5, n_nonzero=4, gram=gram)
    assert (both.n_iter == np.minimum(by_error, 4)).all()
    assert both.converged.all()
    assert by_error.max() > 4


def test_an_error_below_zero_atoms_needs_none():
    X, D = problem()
    codes = sparse_encode(X, D, method="omp", error=1e6)
    assert codes.values.nnz == 0
    assert codes.converged.all()


@pytest.mark.parametrize("gram", [None, False])
def test_an_error_that_cannot_be_reached_is_said(gram):
    X, D = problem(n=10, d=40, K=7)
    with pytest.warns(ConvergenceWarning, match="10 of 10 signals did not reach error"):
        codes = sparse_encode(X, D, method="omp", error=1e-9, gram=gram)
    assert not codes.converged.any()
    assert (codes.n_iter == 7).all()
    wanted = np.linalg.lstsq(D.T, X.T, rcond=None)[0].T
    np.testing.assert_allclose(codes.toarray(), wanted, atol=1e-9)
    assert sparse_encode(X, D, method="omp", n_nonzero=7, gram=gram).converged.all()


# -- the same in every batch, thread and form ----------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gram", [None, False])
def test_codes_do_not_depend_on_batch_or_threads(rule, gram):
    X, D = problem(n=131)
    whole = sparse_encode(X, D, method=rule, n_nonzero=6, gram=gram, n_threads=1)
    assert same(whole, sparse_encode(X, D, method=rule, n_nonzero=6, gram=gram, n_threads=3))
    for size in (1, 10):
        parts = [
            sparse_encode(X[i : i + size], D, method=rule, n_nonzero=6, gram=gram).values
            for i in range(0, len(X), size)
        ]
        assert np.array_equal(sp.vstack(parts).toarray(), whole.toarray())
    assert same(whole, sparse_encode(X, D, method=rule, n_nonzero=6, gram=gram, output="dense"))


def test_sparse_signals_and_a_gram_matrix_that_is_given():
    X, D = problem()
    X[np.random.default_rng(0).random(X.shape) < 0.5] = 0
    dense = sparse_encode(X, D, method="omp", n_nonzero=4).toarray()
    np.testing.assert_allclose(sparse_encode(sp.csr_array(X), D, method="omp", n_nonzero=4).toarray(), dense)
    given = sparse_encode(X, D, method="omp", n_nonzero=4, gram=D @ D.T)
    np.testing.assert_allclose(given.toarray(), dense, atol=1e-12)


def test_a_gram_matrix_too_large_falls_back_and_says_so(monkeypatch):
    X, D = problem()
    wanted = sparse_encode(X, D, method="omp", n_nonzero=4).toarray()
    monkeypatch.setattr(encode, "GRAM_BYTES", 1000)
    with pytest.warns(UserWarning, match="products with D are used instead"):
        codes = sparse_encode(X, D, method="omp", n_nonzero=4)
    np.testing.assert_allclose(codes.toarray(), wanted, atol=1e-12)


# -- degenerate and bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("gram", [None, False])
def test_degenerate_signals_and_dictionaries(rule, gram):
    X, D = problem(n=6)
    zeros = sparse_encode(np.zeros((2, 18)), D, method=rule, n_nonzero=3, gram=gram)
    assert zeros.values.nnz == 0
    assert zeros.converged.all()
    twice = np.vstack([D, D])  # the first of two equal atoms is taken, and never both
    codes = sparse_encode(X, twice, method=rule, n_nonzero=5, gram=gram).toarray()
    np.testing.assert_allclose(codes[:, :30], sparse_encode(X, D, method=rule, n_nonzero=5).toarray(), atol=1e-12)
    assert not codes[:, 30:].any()
    itself = sparse_encode(2 * D[:4], D, method=rule, n_nonzero=5, gram=gram)
    np.testing.assert_allclose(itself.toarray(), 2 * np.eye(30)[:4], atol=1e-12)
    assert (itself.n_iter == 1).all()
    full = sparse_encode(X, D, method=rule, n_nonzero=30, gram=gram)  # 18 atoms span the space
    assert (full.n_iter <= 18).all()
    np.testing.assert_allclose(full.toarray() @ D, X, atol=1e-8)
    one = sparse_encode(X[:1], D[:1], method=rule, n_nonzero=1, gram=gram).toarray()
    np.testing.assert_allclose(one, [[X[0] @ D[0] / (D[0] @ D[0])]])


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({}, ParameterError, "needs a stopping rule"),
        ({"n_nonzero": 31}, ParameterError, r"more than the 30 atoms"),
        ({"n_nonzero": 0}, ParameterError, "positive integer"),
        ({"n_nonzero": 2.5}, ParameterError, "positive integer"),
        ({"error": -1.0}, ParameterError, "not negative"),
        ({"error": np.nan}, ParameterError, "finite"),
        ({"error": np.ones(3)}, DataError, "one number for each of 40 signals"),
        ({"n_nonzero": 3, "penalty": 0.1}, ParameterError, "'omp' counts atoms and has no penalty"),
    ],
)
def test_wrong_use_is_explained(options, error, match):
    X, D = problem()
    with pytest.raises(error, match=match):
        sparse_encode(X, D, method="omp", **options)


def test_bad_numbers_are_refused():
    X, D = problem()
    X[3, 3] = np.nan
    with pytest.raises(DataError, match="Signal 3 holds NaN"):
        sparse_encode(X, D, method="omp", n_nonzero=3)
