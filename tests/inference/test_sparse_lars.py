"""The path of ℓ1 solutions: corners, the line between them, scikit-learn's path, and codes at one α."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import lars_path as sk_lars_path
from sparse_problems import SEPARABLE, dual_gap, kkt, problem, same

from latentia.core.errors import DataError, ParameterError
from latentia.inference.sparse import lars_path, sparse_encode
from latentia.ops.penalties import L1


def at(alpha, alphas, codes):
    """The solution at α: on the line between two corners."""
    k = int(np.searchsorted(-alphas, -alpha, side="right"))
    if k == 0:
        return codes[0]
    if k == len(alphas):
        return codes[-1]
    part = (alphas[k - 1] - alpha) / (alphas[k - 1] - alphas[k])
    return (1 - part) * codes[k - 1] + part * codes[k]


# -- the path ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nonnegative", [False, True])
@pytest.mark.parametrize("K", [10, 30])
def test_the_path_is_that_of_scikit_learn(nonnegative, K):
    X, D = problem(n=12, K=K)
    for x in X:
        alphas, codes = lars_path(x, D, nonnegative=nonnegative)
        theirs, _, coefficients = sk_lars_path(D.T, x, method="lasso", positive=nonnegative)
        theirs = theirs * D.shape[1]
        # With a sign constraint theirs is documented to hold down to its last positive α only.
        least = theirs[theirs > 0].min() if nonnegative else 0.0
        compared = [alpha for alpha in np.linspace(0.02, 1.1, 25) * alphas[0] if alpha >= least]
        assert len(compared) > 3
        for alpha in compared:
            wanted = at(alpha, theirs, coefficients.T)
            np.testing.assert_allclose(at(alpha, alphas, codes), wanted, atol=1e-8)


@pytest.mark.parametrize("nonnegative", [False, True])
def test_every_point_of_the_path_is_optimal(nonnegative):
    X, D = problem(n=10)
    weights = np.linspace(0.5, 2.0, 30)
    for x in X:
        alphas, codes = lars_path(x, D, nonnegative=nonnegative, weights=weights)
        for alpha in np.concatenate([alphas[:-1], 0.5 * (alphas[1:] + alphas[:-1])]):
            penalty = L1(alpha, weights=weights, nonnegative=nonnegative)
            z = at(alpha, alphas, codes)
            z[np.abs(z) < 1e-13] = 0
            assert kkt(x[None], D, z[None], penalty) < 1e-9


def test_the_path_begins_at_the_largest_correlation_and_ends_at_least_squares():
    X, D = problem(n=6, d=40, K=7)
    for x in X:
        alphas, codes = lars_path(x, D)
        assert alphas[0] == pytest.approx(np.abs(D @ x).max())
        assert not codes[0].any()
        assert (np.diff(alphas) < 0).all()
        assert alphas[-1] == 0
        np.testing.assert_allclose(codes[-1], np.linalg.lstsq(D.T, x, rcond=None)[0], atol=1e-10)
        objective = [0.5 * ((x - z @ D) ** 2).sum() for z in codes]
        assert (np.diff(objective) < 0).all()  # the fit gets better …
        assert (np.diff(np.abs(codes).sum(axis=1)) > 0).all()  # … and the norm grows


def test_atoms_leave_on_the_way():
    """The change that makes least-angle regression the lasso: without it these paths would be wrong."""
    X, D = problem(n=40)
    left = 0
    for x in X:
        _, codes = lars_path(x, D)
        used = codes != 0
        left += int((used[:-1] & ~used[1:]).any())
    assert left > 5


def test_the_path_stops_where_it_is_told():
    X, D = problem(n=3)
    whole = lars_path(X[0], D)
    part = lars_path(X[0], D, alpha_min=0.3)
    assert part[0][-1] == 0.3
    np.testing.assert_allclose(part[1][-1], at(0.3, *whole), atol=1e-12)
    short = lars_path(X[0], D, max_iter=3)
    assert len(short[0]) <= 4
    above = lars_path(X[0], D, alpha_min=100.0)
    assert not above[1].any()


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"x": np.ones(17)}, DataError, "one signal of 18 features"),
        ({"x": np.full(18, np.nan)}, DataError, "NaN"),
        ({"D": np.zeros((3, 18))}, DataError, "zero everywhere"),
        ({"alpha_min": -1.0}, ParameterError, "alpha_min"),
        ({"weights": np.zeros(30)}, ParameterError, "weights must be positive"),
        ({"max_iter": 0}, ParameterError, "max_iter"),
    ],
)
def test_wrong_use_is_explained(change, error, match):
    X, D = problem(n=1)
    given = {"x": X[0], "D": D} | change
    with pytest.raises(error, match=match):
        lars_path(given.pop("x"), given.pop("D"), **given)


# -- codes at one α ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEPARABLE)
@pytest.mark.parametrize(("dtype", "within"), [(np.float64, 1e-10), (np.float32, 3e-6)])
def test_conditions_of_optimality_hold(name, dtype, within):
    X, D = problem(dtype=dtype)
    exact = X.astype(float), D.astype(float)
    codes = sparse_encode(X, D, penalty=SEPARABLE[name], method="lars", tol=1e-9)
    Z = codes.toarray().astype(float)
    assert codes.converged.all()
    assert kkt(*exact, Z, SEPARABLE[name]) < within
    half = 0.5 * (exact[0] ** 2).sum(axis=1)
    gaps = dual_gap(*exact, Z, SEPARABLE[name]) / half
    np.testing.assert_allclose(codes.gaps, gaps, atol=1e-11 if dtype == np.float64 else 1e-5)
    other = sparse_encode(X, D, penalty=SEPARABLE[name], tol=1e-9).toarray()
    np.testing.assert_allclose(Z, other, atol=1e-8 if dtype == np.float64 else 1e-5)


def test_codes_lie_on_the_path():
    X, D = problem(n=10)
    codes = sparse_encode(X, D, penalty=0.25, method="lars").toarray()
    for x, z in zip(X, codes, strict=True):
        np.testing.assert_allclose(z, at(0.25, *lars_path(x, D)), atol=1e-10)


def test_codes_do_not_depend_on_batch_threads_or_form():
    X, D = problem(n=90)
    whole = sparse_encode(X, D, penalty=0.3, method="lars", n_threads=1)
    assert same(whole, sparse_encode(X, D, penalty=0.3, method="lars", n_threads=3, output="dense"))
    single = [sparse_encode(x[None], D, penalty=0.3, method="lars").toarray() for x in X[:20]]
    assert np.array_equal(np.vstack(single), whole.toarray()[:20])
    sparse = sparse_encode(sp.csr_array(X), D, penalty=0.3, method="lars").toarray()
    np.testing.assert_allclose(sparse, whole.toarray(), atol=1e-12)


def test_degenerate_input():
    X, D = problem(n=20)
    zeros = sparse_encode(np.zeros((2, 18)), D, penalty=0.3, method="lars")
    assert zeros.values.nnz == 0
    assert (zeros.gaps == 0).all()
    high = sparse_encode(X, D, penalty=100.0, method="lars")
    assert high.values.nnz == 0
    assert (high.gaps == 0).all()
    twice = sparse_encode(X, np.vstack([D, -D, D]), penalty=0.3, method="lars", tol=1e-9)
    assert twice.converged.all()
    Z = twice.toarray()
    merged = Z[:, :30] - Z[:, 30:60] + Z[:, 60:]
    np.testing.assert_allclose(merged, sparse_encode(X, D, penalty=0.3).toarray(), atol=1e-7)
    ties = sparse_encode(np.ones((1, 4)), np.eye(4), penalty=0.25, method="lars", tol=1e-9)
    np.testing.assert_allclose(ties.toarray(), [[0.75] * 4])
    few = sparse_encode(X, D, penalty=1e-3, method="lars", tol=1e-8)  # as many atoms in use as dimensions
    assert few.converged.all()
    assert (dual_gap(X, D, few.toarray(), L1(1e-3)) <= 1e-8 * 0.5 * (X**2).sum(axis=1)).all()


def test_a_path_that_is_cut_short_is_said():
    X, D = problem(n=8)
    with pytest.warns(ConvergenceWarning, match="8 of 8 signals did not reach tol=0.0001"):
        codes = sparse_encode(X, D, penalty=0.05, method="lars", max_iter=2)
    assert (codes.n_iter == 2).all()
    assert (codes.gaps > 1e-4).all()
