"""Coordinate descent: optimality, certificates, other libraries, bits, bad input, and what few signals need."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.decomposition import sparse_encode as sk_sparse_encode
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet as SkElasticNet
from sparse_problems import GROUPED, SEPARABLE, dual_gap, group_kkt, kkt, objective, problem, same

from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.inference.sparse import METHODS, Codes, encode, sparse_encode
from latentia.ops.penalties import L0, L1, ElasticNet, Group, Lq

PENALTIES = SEPARABLE | GROUPED


# -- truth -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SEPARABLE)
@pytest.mark.parametrize(("dtype", "within"), [(np.float64, 1e-10), (np.float32, 3e-6)])
def test_conditions_of_optimality_hold(name, dtype, within):
    X, D = problem(dtype=dtype)
    codes = sparse_encode(X, D, penalty=SEPARABLE[name], tol=1e-9)
    assert codes.converged.all()
    assert codes.values.dtype == dtype
    assert 0 < codes.values.nnz < X.shape[0] * len(D) * 0.8
    assert kkt(X.astype(float), D.astype(float), codes.toarray().astype(float), SEPARABLE[name]) < within


@pytest.mark.parametrize("name", GROUPED)
def test_conditions_of_optimality_hold_for_groups(name):
    X, D = problem()
    codes = sparse_encode(X, D, penalty=GROUPED[name], tol=1e-11)
    assert codes.converged.all()
    assert group_kkt(X, D, codes.toarray(), GROUPED[name]) < 1e-4  # the gap is of second order in it
    used = codes.toarray().reshape(len(X), 10, 3) != 0
    assert 0 < used.any(axis=2).mean() < 0.9
    if not GROUPED[name].nonnegative:
        assert (used.any(axis=2) == used.all(axis=2)).all()


@pytest.mark.parametrize("name", PENALTIES)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_gap_is_that_of_the_codes_and_bounds_their_distance_from_the_optimum(name, dtype):
    penalty = PENALTIES[name]
    X, D = problem(dtype=dtype)
    exact = X.astype(float), D.astype(float)
    best = sparse_encode(*exact, penalty=penalty, tol=1e-11)
    least = objective(*exact, best.toarray(), penalty)
    half = 0.5 * (exact[0] ** 2).sum(axis=1)
    for tol in (1e-1, 1e-3, 1e-5):
        codes = sparse_encode(X, D, penalty=penalty, tol=tol, max_iter=100_000)
        Z = codes.toarray().astype(float)
        assert codes.converged.all()
        assert (codes.gaps <= tol).all()
        assert (codes.gaps * half >= objective(*exact, Z, penalty) - least - 1e-13).all()
        np.testing.assert_allclose(
            codes.gaps, dual_gap(*exact, Z, penalty) / half, atol=1e-10 if dtype == np.float64 else 1e-5
        )


def test_a_certificate_counts_rounding_in():
    """It bounds, in extended precision, what the codes miss by, even where nothing but rounding is left."""
    X, D = problem(n=200, d=64, K=100, seed=3)
    codes = sparse_encode(X, D, penalty=0.3, tol=1e-11)
    half = 0.5 * (X**2).sum(axis=1)
    missed = dual_gap(X, D, codes.toarray(), L1(0.3)) / half
    assert (codes.gaps > 0).all()
    assert (codes.gaps >= missed).all()
    assert codes.gaps.max() < 1e-11


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_objective_is_that_of_scikit_learn(dtype):
    X, D = problem(unit=True, dtype=dtype)
    exact = X.astype(float), D.astype(float)
    for alpha in (0.05, 0.3):
        theirs = sk_sparse_encode(*exact, algorithm="lasso_cd", alpha=alpha, max_iter=100_000)
        ours = sparse_encode(X, D, penalty=alpha, tol=1e-7)
        wanted = objective(*exact, theirs, L1(alpha))
        np.testing.assert_allclose(ours.objective(*exact, alpha), wanted, rtol=1e-6)
        np.testing.assert_allclose(objective(*exact, ours.toarray(), L1(alpha)), wanted, rtol=1e-6)


def test_the_elastic_net_is_that_of_scikit_learn():
    X, D = problem()
    theirs = SkElasticNet(alpha=0.3 / 18, l1_ratio=0.6, fit_intercept=False, tol=1e-12, max_iter=100_000)
    ours = sparse_encode(X, D, penalty=ElasticNet(0.3, 0.6), tol=1e-10).toarray()
    np.testing.assert_allclose(ours, theirs.fit(D.T, X.T).coef_, atol=1e-7)


def test_the_objective_is_that_of_spams():
    spams = pytest.importorskip("spams")
    X, D = problem(n=100, unit=True)
    theirs = spams.lasso(np.asfortranarray(X.T), np.asfortranarray(D.T), lambda1=0.3, mode=2, numThreads=1)
    ours = sparse_encode(X, D, penalty=0.3, tol=1e-8)
    wanted = objective(X, D, theirs.T.toarray(), L1(0.3))
    np.testing.assert_allclose(ours.objective(X, D, 0.3), wanted, rtol=1e-6)


def test_an_orthogonal_dictionary_has_the_soft_threshold_for_its_codes():
    rng = np.random.default_rng(0)
    D = np.linalg.qr(rng.normal(size=(12, 12)))[0]
    X = rng.normal(size=(20, 12))
    u = X @ D.T
    wanted = np.sign(u) * np.maximum(np.abs(u) - 0.4, 0)
    np.testing.assert_allclose(sparse_encode(X, D, penalty=0.4).toarray(), wanted, atol=1e-14)
    positive = sparse_encode(X, D, penalty=L1(0.4, nonnegative=True)).toarray()
    np.testing.assert_allclose(positive, np.maximum(u - 0.4, 0), atol=1e-14)
    norms = np.linalg.norm(u.reshape(20, 4, 3), axis=2)
    wanted = u * np.repeat(np.maximum(1 - 0.4 / norms, 0), 3, axis=1)
    grouped = sparse_encode(X, D, penalty=Group(0.4, np.repeat(np.arange(4), 3)), tol=1e-12)
    np.testing.assert_allclose(grouped.toarray(), wanted, atol=1e-10)


def test_groups_of_one_atom_are_the_weighted_l1():
    X, D = problem()
    weights = np.linspace(0.5, 2.0, 30)
    one = sparse_encode(X, D, penalty=Group(0.3, range(30), weights=weights), tol=1e-12).toarray()
    np.testing.assert_allclose(
        one, sparse_encode(X, D, penalty=L1(0.3, weights=weights), tol=1e-12).toarray(), atol=1e-6
    )


# -- the same in every batch, thread and form -----------------------------------------------------------


@pytest.mark.parametrize("name", ["l1", "elastic-net-weighted", "group"])
def test_codes_do_not_depend_on_batch_or_threads(name):
    X, D = problem(n=203)
    penalty = PENALTIES[name]
    whole = sparse_encode(X, D, penalty=penalty, tol=1e-6, n_threads=1)
    assert same(whole, sparse_encode(X, D, penalty=penalty, tol=1e-6, n_threads=3))
    for size in (1, 7, 64):
        pieces = [sparse_encode(X[i : i + size], D, penalty=penalty, tol=1e-6) for i in range(0, len(X), size)]
        joined = Codes(
            sp.vstack([p.values for p in pieces]),
            np.concatenate([p.gaps for p in pieces]),
            np.concatenate([p.n_iter for p in pieces]),
            np.concatenate([p.converged for p in pieces]),
        )
        assert same(whole, joined)


def test_the_order_of_signals_and_the_form_of_the_output_do_not_matter():
    X, D = problem(n=150, d=17, K=29)
    order = np.random.default_rng(1).permutation(len(X))
    plain, shuffled = sparse_encode(X, D, penalty=0.3), sparse_encode(X[order], D, penalty=0.3)
    assert np.array_equal(plain.toarray()[order], shuffled.toarray())
    dense = sparse_encode(X, D, penalty=0.3, output="dense")
    assert isinstance(dense.values, np.ndarray)
    assert isinstance(plain.values, sp.csr_array)
    assert plain.values.has_sorted_indices
    assert same(plain, dense)
    for other in (np.asfortranarray(X), np.repeat(X, 2, axis=0)[::2], X.tolist()):
        assert same(plain, sparse_encode(other, D, penalty=0.3))


def test_a_memory_map_is_read_as_it_is(tmp_path):
    X, D = problem(n=700)
    np.save(tmp_path / "x.npy", X)
    held = np.load(tmp_path / "x.npy", mmap_mode="r")
    assert same(sparse_encode(X, D, penalty=0.3), sparse_encode(held, D, penalty=0.3))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_sparse_signals_have_the_codes_of_dense_ones(dtype):
    X, D = problem(n=90, dtype=dtype)
    X[np.random.default_rng(0).random(X.shape) < 0.7] = 0
    dense = sparse_encode(X, D, penalty=0.2, tol=1e-8)
    for form in (sp.csr_array, sp.csc_matrix, sp.coo_array):
        codes = sparse_encode(form(X), D, penalty=0.2, tol=1e-8)
        np.testing.assert_allclose(codes.toarray(), dense.toarray(), atol=1e-6 if dtype == np.float32 else 1e-12)
        np.testing.assert_allclose(codes.objective(form(X), D, 0.2), dense.objective(X, D, 0.2), rtol=1e-6)


def test_a_gram_matrix_that_is_given_is_used():
    X, D = problem(d=40, K=12)
    given = sparse_encode(X, D, penalty=0.3, gram=D @ D.T).toarray()
    np.testing.assert_allclose(given, sparse_encode(X, D, penalty=0.3).toarray(), atol=1e-12)
    X, D = problem()
    np.testing.assert_allclose(
        sparse_encode(X, D, penalty=0.3, gram=D @ D.T).toarray(),
        sparse_encode(X, D, penalty=0.3).toarray(),
        atol=1e-12,
    )
    X, D = problem(d=40, K=12)
    other = D * np.where(np.arange(12) < 6, -1.0, 1.0)[:, None]
    wrong = sparse_encode(X, D, penalty=0.1, gram=other @ other.T, tol=100.0).toarray()
    assert np.abs(wrong - sparse_encode(X, D, penalty=0.1).toarray()).max() > 1e-3  # it is not computed again
    with pytest.raises(DataError, match="gram is not DDᵀ of this dictionary"):
        sparse_encode(X, D, penalty=0.3, gram=4 * D @ D.T)


# -- starting points -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PENALTIES)
def test_starting_points_help_and_do_not_change_the_end(name):
    X, D = problem()
    penalty = PENALTIES[name]
    cold = sparse_encode(X, D, penalty=penalty, tol=1e-11)
    for init in (cold.values, cold.toarray()):
        warm = sparse_encode(X, D, penalty=penalty, tol=1e-9, init=init)
        assert warm.n_iter.max() <= 1
        np.testing.assert_allclose(warm.toarray(), cold.toarray(), atol=1e-6)
    rng = np.random.default_rng(2)
    wild = rng.normal(size=cold.values.shape) * (rng.random(cold.values.shape) < 0.9)
    other = sparse_encode(X, D, penalty=penalty, tol=1e-11, init=wild)
    assert other.converged.all()
    np.testing.assert_allclose(other.toarray(), cold.toarray(), atol=1e-5)


# -- the paths that few signals take ------------------------------------------------------------------


def test_more_atoms_in_use_than_float32_or_the_factor_can_settle():
    """A tiny α on an overcomplete, nearly dependent dictionary: sweeps take over, and the certificate stands."""
    rng = np.random.default_rng(0)
    base = rng.normal(size=(6, 8))
    D = np.vstack([base, base + 1e-7 * rng.normal(size=base.shape), rng.normal(size=(40, 8))])
    X = rng.normal(size=(30, 8))
    for alpha, tol in ((1e-3, 1e-7), (1e-4, 1e-6)):
        codes = sparse_encode(X, D, penalty=alpha, tol=tol, max_iter=1_000_000)
        assert codes.converged.all()
        half = 0.5 * (X**2).sum(axis=1)
        assert (dual_gap(X, D, codes.toarray(), L1(alpha)) <= 1.01 * tol * half).all()


def test_signals_of_any_scale():
    X, D = problem()
    plain = sparse_encode(X, D, penalty=0.3, tol=1e-9).toarray()
    for scale in (1e-30, 1e-10, 1e10, 1e30, 1e100):
        codes = sparse_encode(scale * X, D, penalty=0.3 * scale, tol=1e-9)
        assert codes.converged.all()
        np.testing.assert_allclose(codes.toarray() / scale, plain, atol=1e-8)


def test_sweeps_alone_solve_all_of_it(monkeypatch):
    """The fallback is right on its own: with no room for any atom in the factor, every signal takes it."""
    from latentia.inference.sparse import coordinate

    X, D = problem()
    for name, penalty in SEPARABLE.items():
        wanted = sparse_encode(X, D, penalty=penalty, tol=1e-11).toarray()
        plain = coordinate.solver

        def cramped(problem, *, n_free, plain=plain, **options):
            return plain(problem, n_free=1, **options)

        with monkeypatch.context() as patch:
            patch.setattr(coordinate, "solver", cramped)
            codes = sparse_encode(X, D, penalty=penalty, tol=1e-11, max_iter=1_000_000)
        assert codes.converged.all(), name
        assert (codes.n_iter >= 10).any(), name
        np.testing.assert_allclose(codes.toarray(), wanted, atol=1e-5, err_msg=name)


# -- degenerate input ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PENALTIES)
def test_zero_signals_and_alphas_above_all_correlations_give_zero(name):
    X, D = problem(n=5)
    zeros = sparse_encode(np.zeros((3, 18)), D, penalty=PENALTIES[name])
    assert zeros.values.nnz == 0
    assert zeros.converged.all()
    assert (zeros.gaps == 0).all()
    high = type(PENALTIES[name])
    options = {"nonnegative": PENALTIES[name].nonnegative}
    if high is Group:
        options["groups"] = PENALTIES[name].groups
    codes = sparse_encode(X, D, penalty=high(100.0, **options))
    assert codes.values.nnz == 0
    assert (codes.gaps == 0).all()


def test_one_signal_one_atom_and_no_signal():
    X, D = problem(n=1)
    assert sparse_encode(X, D, penalty=0.3).values.shape == (1, 30)
    one = sparse_encode(np.array([[3.0]]), np.array([[2.0]]), penalty=1.0)
    np.testing.assert_allclose(one.toarray(), [[(6.0 - 1.0) / 4.0]])
    none = sparse_encode(np.empty((0, 18)), D, penalty=0.3)
    assert none.values.shape == (0, 30)
    assert none.gaps.shape == (0,)


def test_duplicate_atoms_share_one_solution():
    X, D = problem()
    twice = np.vstack([D, D, -D])
    codes = sparse_encode(X, twice, penalty=0.3, tol=1e-9)
    assert codes.converged.all()
    Z = codes.toarray()
    merged = Z[:, :30] + Z[:, 30:60] - Z[:, 60:]
    np.testing.assert_allclose(merged, sparse_encode(X, D, penalty=0.3, tol=1e-9).toarray(), atol=1e-7)


def test_fewer_atoms_than_features():
    X, D = problem(d=40, K=7)
    codes = sparse_encode(X, D, penalty=0.1, tol=1e-9)
    assert kkt(X, D, codes.toarray(), L1(0.1)) < 1e-10


# -- without a Gram matrix --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PENALTIES)
def test_a_gram_matrix_too_large_falls_back_and_says_so(name, monkeypatch):
    X, D = problem(n=25)
    penalty = PENALTIES[name]
    wanted = sparse_encode(X, D, penalty=penalty, tol=1e-9)
    monkeypatch.setattr(encode, "GRAM_BYTES", 1000)
    monkeypatch.setattr("latentia.inference.sparse.products.FIRST", 4)
    with pytest.warns(UserWarning, match="Gram matrix of 30 atoms would take"):
        codes = sparse_encode(X, D, penalty=penalty, tol=1e-9, max_iter=100_000)
    assert codes.converged.all()
    np.testing.assert_allclose(codes.toarray(), wanted.toarray(), atol=1e-4 if name in GROUPED else 1e-7)
    half = 0.5 * (X**2).sum(axis=1)
    if name not in GROUPED:
        np.testing.assert_allclose(codes.gaps, dual_gap(X, D, codes.toarray(), penalty) / half, atol=1e-11)
        warm = sparse_encode(X, D, penalty=penalty, tol=1e-8, init=wanted.values, gram=False)
        np.testing.assert_allclose(warm.toarray(), wanted.toarray(), atol=1e-7)
        assert warm.n_iter.max() <= 1


def test_the_fallback_does_not_depend_on_batch_or_threads():
    X, D = problem(n=70)
    whole = sparse_encode(X, D, penalty=0.3, gram=False, n_threads=1)
    assert same(whole, sparse_encode(X, D, penalty=0.3, gram=False, n_threads=2))
    single = [sparse_encode(x[None], D, penalty=0.3, gram=False).toarray() for x in X[:10]]
    assert np.array_equal(np.vstack(single), whole.toarray()[:10])
    sparse = sparse_encode(sp.csr_array(X), D, penalty=0.3, gram=False)
    np.testing.assert_allclose(sparse.toarray(), whole.toarray(), atol=1e-10)


# -- bad input -----------------------------------------------------------------------------------------


def test_what_is_not_solved_is_said_once():
    X, D = problem(n=30)
    said = r"30 of 30 signals did not reach tol=1e-09 .*gap is .*: 0, 1, 2"
    with pytest.warns(ConvergenceWarning, match=said) as w:
        codes = sparse_encode(X, D, penalty=0.05, tol=1e-9, max_iter=1)
    assert len(w) == 1
    assert not codes.converged.any()
    assert (codes.gaps > 1e-9).all()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        beyond = sparse_encode(X, D, penalty=0.3, tol=1e-18)  # below rounding: ends, and does not claim it
    assert not beyond.converged.any()
    assert (beyond.gaps < 1e-11).all()


@pytest.mark.parametrize("bad", [0.0, -1.0, np.nan, np.inf, L1(0.0), L1(-0.1)])
def test_alpha_must_be_positive(bad):
    X, D = problem()
    with pytest.raises(ParameterError, match="alpha must be a positive number"):
        sparse_encode(X, D, penalty=bad)


def test_bad_numbers_are_refused():
    X, D = problem()
    for value in (np.nan, np.inf, 1e300):
        spoilt = X.copy()
        spoilt[7, 3] = value
        with pytest.raises(DataError, match="Signal 7 holds NaN"):
            sparse_encode(spoilt, D, penalty=0.3)
        with pytest.raises(DataError, match="Signal 7 holds NaN"):
            sparse_encode(sp.csr_array(spoilt), D, penalty=0.3)
    for value, match in ((np.nan, "NaN"), (0.0, r"1 of 30 atoms are zero everywhere \(the first is atom 4\)")):
        spoilt = D.copy()
        spoilt[4] = value
        with pytest.raises(DataError, match=match):
            sparse_encode(X, spoilt, penalty=0.3)
    with pytest.raises(DataError, match="init holds NaN"):
        sparse_encode(X, D, penalty=0.3, init=np.full((40, 30), np.nan))
    with pytest.raises(DataError, match="gram holds NaN"):
        sparse_encode(X, D, penalty=0.3, gram=np.full((30, 30), np.nan))


@pytest.mark.parametrize(
    ("change", "error", "match"),
    [
        ({"X": np.ones(18)}, DataError, "one signal per row"),
        ({"X": np.ones((3, 4, 5))}, DataError, "one signal per row"),
        ({"X": np.array([["a", "b"]])}, DataError, "must be numbers"),
        ({"X": np.ones((3, 17))}, DataError, "17 features and atoms 18"),
        ({"D": np.ones(18)}, DataError, "one atom per row"),
        ({"D": np.empty((0, 18))}, DataError, "one atom per row"),
        ({"penalty": None}, ParameterError, "'cd' needs a penalty"),
        ({"penalty": "l1"}, ParameterError, "penalty must be a number"),
        ({"penalty": L1(0.3, weights=np.ones(4))}, ParameterError, "one number per atom, 30 in all"),
        ({"penalty": Group(0.3, (0, 1))}, ParameterError, "group of each of the 30 atoms"),
        ({"penalty": ElasticNet(0.3, 0.0)}, ParameterError, "ratio above 0"),
        (
            {"penalty": L0(0.1)},
            ParameterError,
            "takes L1, ElasticNet, Group, not L0. Methods for L0: 'ista', 'iht'",
        ),
        ({"penalty": Lq(0.1)}, ParameterError, "not Lq. Methods for Lq: 'ista'"),
        ({"method": "nope"}, UnknownNameError, "Unknown method 'nope'"),
        ({"method": "lars", "penalty": Group(0.3, range(30))}, ParameterError, "not Group"),
        ({"n_nonzero": 3}, ParameterError, "n_nonzero belong to the pursuits"),
        ({"error": 3.0}, ParameterError, "error belong to the pursuits"),
        ({"tol": 0.0}, ParameterError, "tol must be a positive number"),
        ({"max_iter": 0}, ParameterError, "max_iter must be a positive integer"),
        ({"output": "list"}, ParameterError, "'csr' or 'dense'"),
        ({"n_threads": 0}, ParameterError, "n_threads must be a positive integer"),
        ({"init": np.ones((2, 2))}, DataError, "init must hold a code of 30 atoms for each of 40"),
        ({"gram": np.ones((2, 2))}, DataError, "30 by 30"),
    ],
)
def test_wrong_use_is_explained(change, error, match):
    X, D = problem()
    given = {"X": X, "D": D, "penalty": 0.3} | change
    with pytest.raises(error, match=match):
        sparse_encode(given.pop("X"), given.pop("D"), **given)


def test_proximal_methods_are_handed_on(monkeypatch):
    from latentia.inference.sparse import proximal

    X, D = problem(n=3)
    seen = []

    def solve(x, atoms, **options):
        seen.append(options)
        return Codes(np.zeros((3, 30)), np.zeros(3), np.ones(3, int), np.ones(3, bool))

    monkeypatch.setattr(proximal, "solve", solve)
    for method, given in (("ista", L1(0.3)), ("fista", 0.3), ("ista", Lq(0.2)), ("iht", L0(0.1)), ("iht", None)):
        n_nonzero = 4 if given is None else None
        sparse_encode(X, D, method=method, penalty=given, n_nonzero=n_nonzero, tol=1e-3, output="dense")
        options = seen.pop()
        assert options["method"] == method
        assert (options["tol"], options["n_nonzero"], options["output"]) == (1e-3, n_nonzero, "dense")
        assert options["penalty"] is given or options["penalty"].alpha == 0.3
    assert {m for m, takes in METHODS.items() if not takes} == {"omp", "ols"}
