"""K-SVD: the update against its definition, an error that never rises, planted atoms, replaced ones, bad input."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment

from latentia.core.errors import DataError, ParameterError
from latentia.learning.dictionary.ksvd import ALIKE, PIECE, ksvd, ksvd_step, ksvd_update, start_dictionary


def problem(*, n=300, d=12, k=20, s=3, dtype=np.float64, seed=0):
    """Signals, codes that do not fit them well yet, and atoms."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, d)).astype(dtype)
    D = rng.normal(size=(k, d))
    D = (D / np.linalg.norm(D, axis=1, keepdims=True)).astype(dtype)
    Z = np.zeros((n, k), dtype)
    for i in range(n):
        Z[i, rng.choice(k, s, replace=False)] = rng.normal(size=s)
    return X, sp.csr_array(Z), D


def error(X, codes, D):
    return float(np.sum((X - codes @ D) ** 2))


def by_definition(X, Z, D, *, exact, weights=None):
    """The pass over the atoms with dense matrices, as the papers write it."""
    Z, D = Z.toarray().astype(np.float64), D.astype(np.float64).copy()
    w = np.ones(len(X)) if weights is None else weights
    for k in range(len(D)):
        users = np.flatnonzero(Z[:, k])
        if not len(users):
            continue
        others = Z[users].copy()
        others[:, k] = 0
        R = X[users] - others @ D
        if exact:
            u = np.linalg.svd(np.sqrt(w[users])[:, None] * R, full_matrices=False)[2][0]
            D[k] = u if u @ D[k] >= 0 else -u
        else:
            d = R.T @ (w[users] * Z[users, k])
            D[k] = d / np.linalg.norm(d)
        Z[users, k] = R @ D[k]
    return D, Z


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_update_is_the_papers(exact, weighted):
    X, Z, D = problem()
    w = np.random.default_rng(1).uniform(0.2, 3, len(X)) if weighted else None
    before = (Z.data.copy(), D.copy())
    found = ksvd_step(X, Z, D, exact=exact, weights=w, replace=False)
    atoms, codes = by_definition(X, Z, D, exact=exact, weights=w)
    np.testing.assert_allclose(found.dictionary, atoms, atol=1e-9)
    np.testing.assert_allclose(found.codes.toarray(), codes, atol=1e-9)
    left = (X - found.codes @ found.dictionary) ** 2
    assert found.error == pytest.approx(np.sum(left if w is None else w[:, None] * left), rel=1e-9)
    assert (Z.data == before[0]).all()  # what was given stays as it was
    assert (before[1] == D).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("exact", [False, True])
def test_the_error_never_rises_and_the_support_stays(dtype, exact):
    X, Z, D = problem(dtype=dtype)
    last = error(X, Z, D)
    support = Z.toarray() != 0
    for _ in range(15):
        D, Z = ksvd_update(X, Z, D, exact=exact, replace=False)
        assert D.dtype == Z.dtype == dtype
        now = error(X, Z, D)
        assert now <= last * (1 + (1e-5 if dtype == np.float32 else 1e-12))
        last = now
        np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1, rtol=1e-5)
        assert not (Z.toarray()[~support] != 0).any()


def test_one_exact_pass_is_at_least_as_good_for_its_first_atom():
    """With one atom the exact update is the best rank-one approximation: the tail of the singular values."""
    X = np.random.default_rng(0).normal(size=(50, 7))
    D = np.eye(7)[:1]
    found = ksvd_step(X, sp.csr_array(np.ones((50, 1))), D, exact=True, replace=False)
    singular = np.linalg.svd(X, compute_uv=False)
    assert found.error == pytest.approx(np.sum(singular[1:] ** 2), rel=1e-9)
    rough = ksvd_step(X, sp.csr_array(np.ones((50, 1))), D, replace=False)
    assert rough.error > found.error
    few = ksvd_step(
        X[:3], sp.csr_array(np.ones((3, 1))), D, exact=True, replace=False
    )  # fewer signals than features
    assert few.error == pytest.approx(np.sum(np.linalg.svd(X[:3], compute_uv=False)[1:] ** 2), rel=1e-9)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_any_number_of_threads_gives_the_same_bits(dtype):
    X, Z, D = problem(n=2 * PIECE + 5, k=8, dtype=dtype)
    one = ksvd_step(X, Z, D, n_threads=1, replace=False)
    two = ksvd_step(X, Z, D, n_threads=2, replace=False)
    assert (one.dictionary == two.dictionary).all()
    assert (one.codes.data == two.codes.data).all()


def test_non_negative_codes_and_atoms_stay_so_and_the_error_falls():
    rng = np.random.default_rng(0)
    X = np.abs(rng.normal(size=(200, 10)))
    D = np.abs(rng.normal(size=(15, 10)))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    Z = sp.csr_array(np.abs(rng.normal(size=(200, 15))) * (rng.random((200, 15)) < 0.2))
    last = error(X, Z, D)
    for _ in range(8):
        D, Z = ksvd_update(X, Z, D, nonnegative_codes=True, nonnegative_dictionary=True, replace=False)
        assert D.min() >= 0
        assert Z.data.min() >= 0
        assert error(X, Z, D) <= last * (1 + 1e-12)
        last = error(X, Z, D)
    free, _ = ksvd_update(X - X.mean(), Z, D, replace=False)
    assert free.min() < 0  # without the constraint they would not be
    with pytest.raises(ParameterError, match="exact"):
        ksvd_update(X, Z, D, exact=True, nonnegative_codes=True)


def planted(*, n=2000, d=20, k=30, s=3, noise=0.01, seed=0):
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(k, d))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    Z = np.zeros((n, k))
    for i in range(n):
        Z[i, rng.choice(k, s, replace=False)] = rng.normal(size=s) + 2 * rng.choice([-1, 1], s)
    return Z @ D + noise * rng.normal(size=(n, d)), D


@pytest.mark.parametrize("exact", [False, True])
def test_planted_atoms_are_found(exact):
    X, truth = planted()
    start = start_dictionary(X, len(truth), rng=np.random.default_rng(1))
    errors = []
    watch = lambda done, mse: errors.append(mse)  # noqa: E731
    D = ksvd(X, start, n_iterations=60, n_nonzero=3, exact=exact, watch=watch)
    cosines = np.abs(D @ truth.T)
    rows, columns = linear_sum_assignment(-cosines)
    matched = cosines[rows, columns]
    assert matched.min() > 0.99
    assert len(errors) == 60
    assert errors[-1] < 0.2 * errors[0]


def test_an_error_to_stop_at_gives_fewer_atoms_to_easy_signals():
    X, truth = planted(noise=0.0)
    from latentia.inference.sparse import sparse_encode

    D = ksvd(X, truth, n_iterations=2, error=1e-8)
    codes = sparse_encode(X, D, method="omp", error=1e-8, n_nonzero=20)
    np.testing.assert_allclose(np.abs(np.sum(D * truth, axis=1)), 1, atol=1e-6)  # the truth stays the truth
    assert np.median(codes.n_iter) == 3


def test_unused_atoms_become_the_worst_signals():
    X, Z, D = problem(k=6, s=2)
    dense = Z.toarray()
    dense[:, 4] = 0
    X[7] *= 30  # represented worst by far
    found = ksvd_step(X, sp.csr_array(dense), D)
    assert found.n_replaced == 1
    np.testing.assert_allclose(found.dictionary[4], X[7] / np.linalg.norm(X[7]))
    assert not found.codes.toarray()[:, 4].any()
    kept = ksvd_step(X, sp.csr_array(dense), D, replace=False)
    assert kept.n_replaced == 0
    np.testing.assert_allclose(kept.dictionary[4], D[4])


@pytest.mark.parametrize("sign", [1, -1])
def test_doubled_atoms_are_merged_and_replaced(sign):
    """Two atoms that point the same way: the less used one goes, its coefficients move to the other."""
    rng = np.random.default_rng(0)
    a, b = np.eye(6)[0], np.eye(6)[1]
    X = np.concatenate(
        [3 * a + rng.normal(size=(60, 1)) * a, 2 * sign * a + np.zeros((20, 6)), 2 * b + np.zeros((10, 6))]
    )
    X[-1] = 9 * np.eye(6)[5]  # nobody's
    Z = np.zeros((90, 3))
    Z[:60, 0], Z[60:80, 1], Z[80:90, 2] = 3, 2, 2
    Z[60:65, 0] = 0.5  # some use both
    D = np.stack([a, sign * a, b])
    found = ksvd_step(X, sp.csr_array(Z), D)
    assert found.n_replaced == 1
    assert np.abs(np.triu(found.dictionary @ found.dictionary.T, 1)).max() < ALIKE
    np.testing.assert_allclose(found.dictionary[1], np.eye(6)[5], atol=1e-6)
    assert not found.codes.toarray()[:, 1].any()
    np.testing.assert_allclose((found.codes @ found.dictionary)[:80], X[:80], atol=1e-6)


def test_nothing_is_replaced_where_everything_fits():
    D = np.eye(4)
    X = 2 * np.eye(4)[[0, 1, 0, 1]]
    found = ksvd_step(X, sp.csr_array(X[:, :4]), D)
    assert found.error == pytest.approx(0, abs=1e-20)
    assert found.n_replaced == 0  # atoms 2 and 3 are unused, but no signal asks for another


def test_atoms_of_any_length_and_codes_without_entries():
    X, Z, D = problem()
    scales = np.linspace(0.5, 4, len(D))
    scaled = sp.csr_array(Z.toarray() / scales)
    one, two = ksvd_step(X, Z, D, replace=False), ksvd_step(X, scaled, D * scales[:, None], replace=False)
    np.testing.assert_allclose(one.dictionary, two.dictionary, atol=1e-9)
    empty = ksvd_step(X, sp.csr_array(Z.shape), D, replace=False)
    np.testing.assert_array_equal(empty.dictionary, D)
    assert empty.error == pytest.approx(np.sum(X**2))


def test_start_dictionary_takes_different_signals():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(30, 5))
    X[3] = 0
    D = start_dictionary(X, 29, rng=np.random.default_rng(1))
    np.testing.assert_allclose(np.linalg.norm(D, axis=1), 1)
    assert np.abs(np.triu(D @ D.T, 1)).max() < 1 - 1e-9
    more = start_dictionary(X, 60, rng=np.random.default_rng(1))
    assert more.shape == (60, 5)
    assert np.abs(np.triu(more @ more.T, 1)).max() < 1 - 1e-9
    with pytest.raises(DataError, match="zero"):
        start_dictionary(np.zeros((4, 3)), 2, rng=rng)


def test_bad_input_is_explained():
    X, Z, D = problem()
    with pytest.raises(DataError, match="do not fit together"):
        ksvd_update(X[:5], Z, D)
    with pytest.raises(DataError, match="do not fit together"):
        ksvd_update(X, Z, D[:, :4])
    broken = X.copy()
    broken[0, 0] = np.nan
    with pytest.raises(DataError, match="X holds NaN"):
        ksvd_update(broken, Z, D)
    zero = D.copy()
    zero[3] = 0
    with pytest.raises(DataError, match="Atom 3 is zero"):
        ksvd_update(X, Z, zero)
    with pytest.raises(ParameterError, match="n_threads"):
        ksvd_update(X, Z, D, n_threads=0)
