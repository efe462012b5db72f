"""ISTA, FISTA, IHT and working sets: optimality of what they return, rates on the way, and other libraries."""

from __future__ import annotations

import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import ElasticNet as SklearnElasticNet

from latentia.core.errors import DataError, ParameterError, UnknownNameError
from latentia.inference.sparse import proximal, sparse_encode, working
from latentia.inference.sparse.proximal import solve
from latentia.ops.penalties import L0, L1, ElasticNet, Group, Lq

K, d, n = 16, 10, 70
WEIGHTS = np.linspace(0.5, 2, K)
GROUPS = tuple(j % 6 for j in range(K))
CONVEX = {
    "l1": L1(0.2),
    "weighted": L1(0.2, weights=WEIGHTS),
    "nonnegative": L1(0.2, nonnegative=True),
    "elastic net": ElasticNet(0.2, 0.7, weights=WEIGHTS),
    "elastic net, nonnegative": ElasticNet(0.2, 0.7, nonnegative=True),
    "group": Group(0.2, GROUPS),
    "group, nonnegative": Group(0.2, GROUPS, weights=np.linspace(0.5, 2, 6), nonnegative=True),
}


def problem(seed: int = 0, n: int = n, dtype=np.float64):
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(K, d))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    X = rng.normal(size=(n, d))
    return X.astype(dtype), D.astype(dtype)


def objective(X, D, z, rule) -> np.ndarray:
    """½‖x − zD‖² + Ω(z), written out."""
    half = 0.5 * ((X - z @ D) ** 2).sum(1)
    if isinstance(rule, Group):
        norms = np.stack(
            [np.linalg.norm(z[:, np.array(rule.groups) == g], axis=1) for g in range(rule.n_groups)], 1
        )
        return half + rule.alpha * norms @ (np.ones(rule.n_groups) if rule.weights is None else rule.weights)
    w = np.ones(z.shape[1]) if rule.weights is None else rule.weights
    ratio = getattr(rule, "ratio", 1.0)
    return half + rule.alpha * (ratio * np.abs(z) + (1 - ratio) / 2 * z**2) @ w


def worst_violation(X, D, z, rule) -> float:
    """How far the optimality conditions are from holding, for every entry (or group) and its sign."""
    c = (X - z @ D) @ D.T
    worst = 0.0
    if isinstance(rule, Group):
        for g in range(rule.n_groups):
            at = np.array(rule.groups) == g
            price = rule.alpha * (1.0 if rule.weights is None else rule.weights[g])
            for code, slope in zip(z[:, at], c[:, at], strict=True):
                size = np.linalg.norm(code)
                if size > 0:
                    gap = slope - price * code / size
                    idle = code == 0
                    gap = np.where(idle, np.maximum(gap, 0), gap) if rule.nonnegative else gap
                    worst = max(worst, np.abs(gap).max())
                else:
                    slope = np.maximum(slope, 0) if rule.nonnegative else slope
                    worst = max(worst, np.linalg.norm(slope) - price)
        return worst
    w = np.ones(K) if rule.weights is None else rule.weights
    ratio = getattr(rule, "ratio", 1.0)
    linear, square = rule.alpha * w * ratio, rule.alpha * w * (1 - ratio)
    used = np.abs(c - square * z - linear * np.sign(z))
    idle = (c if rule.nonnegative else np.abs(c)) - linear
    return float(np.where(z != 0, used, idle).max())


def relative_gap(X, D, z, alpha) -> np.ndarray:
    """(primal − dual)/½‖x‖² of ℓ1 codes at the best multiple of the residual, as a difference of objectives."""
    r = X - z @ D
    best = (X * r).sum(1) / (r**2).sum(1)
    theta = r * np.clip(best, 0, alpha / np.abs(r @ D.T).max(1))[:, None]
    primal = 0.5 * (r**2).sum(1) + alpha * np.abs(z).sum(1)
    dual = 0.5 * (X**2).sum(1) - 0.5 * ((X - theta) ** 2).sum(1)
    return (primal - dual) / (0.5 * (X**2).sum(1))


@pytest.mark.parametrize("name", CONVEX)
@pytest.mark.parametrize("method", ["ista", "fista"])
def test_the_optimality_conditions_hold(name, method):
    X, D = problem()
    rule = CONVEX[name]
    codes = solve(X, D, penalty=rule, method=method, step="spectral", tol=1e-13, max_iter=20_000)
    assert codes.converged.all()
    assert codes.gaps.max() <= 1e-13
    assert worst_violation(X, D, codes.values, rule) < 1e-5
    assert (codes.values != 0).any(axis=1).all()
    if rule.nonnegative:
        assert codes.values.min() >= 0
    np.testing.assert_allclose(codes.objective(X, D, rule), objective(X, D, codes.values, rule))


@pytest.mark.parametrize("method", ["ista", "fista"])
@pytest.mark.parametrize("step", ["fixed", "backtracking", "spectral"])
def test_every_step_rule_stops_by_a_gap_that_is_true(method, step):
    X, D = problem(1)
    rule = L1(0.3)
    best = objective(X, D, solve(X, D, penalty=rule, tol=1e-14, step="spectral").values, rule)
    codes = solve(X, D, penalty=rule, method=method, step=step, tol=1e-3)
    above = objective(X, D, codes.values, rule) - best
    half = 0.5 * (X**2).sum(1)
    assert codes.gaps.max() <= 1e-3
    np.testing.assert_allclose(codes.gaps, relative_gap(X, D, codes.values, 0.3), rtol=1e-6, atol=1e-12)
    assert np.all(above <= codes.gaps * half + 1e-12)
    assert np.all(above > -1e-12)
    assert codes.gaps.max() > 1e-5  # it did stop there, signal by signal
    assert len(set(codes.n_iter)) > 2


@pytest.mark.parametrize(
    ("rule", "ratio"), [(L1(0.2), 1.0), (L1(0.2, nonnegative=True), 1.0), (ElasticNet(0.2, 0.6), 0.6)]
)
def test_the_objective_is_that_of_scikit_learn(rule, ratio):
    X, D = problem(2, n=20)
    ours = solve(X, D, penalty=rule, tol=1e-9, step="spectral").values
    model = SklearnElasticNet(
        alpha=0.2 / d, l1_ratio=ratio, fit_intercept=False, tol=1e-12, max_iter=100_000, positive=rule.nonnegative
    )
    theirs = np.stack([model.fit(D.T, x).coef_ for x in X])
    a, b = objective(X, D, ours, rule), objective(X, D, theirs, rule)
    np.testing.assert_allclose(a, b, rtol=1e-6)
    np.testing.assert_allclose(ours, theirs, atol=1e-3)


def iterates(X, D, rule, method, n_steps, restart=False):
    """Codes after every step with the fixed step, from zero."""
    with jax.enable_x64(True):
        given = proximal.make_problem(D, rule, X.dtype, method=method, restart=restart)
        x = jnp.asarray(X)
        state = proximal.begin(given, x, jnp.zeros((len(X), len(D))))
        advance = jax.jit(lambda s: proximal.advance(given, x, s))
        found = []
        for _ in range(n_steps):
            state = advance(state)
            found.append(np.asarray(state.z))
        return found, float(given.lipschitz)


@pytest.mark.parametrize(
    ("method", "bound"), [("ista", lambda k: 1 / (2 * k)), ("fista", lambda k: 2 / (k + 1) ** 2)]
)
def test_the_rates_hold_along_the_run(method, bound):
    """L‖z*‖²/2k and 2L‖z*‖²/(k + 1)² for every signal and step, and they are of the right size at some."""
    X, D = problem(3, n=30)
    D[1] = D[0] + 1e-2 * D[1]  # badly conditioned: otherwise the bounds are far away
    rule = L1(0.02)
    best = solve(X, D, penalty=rule, tol=1e-14, step="spectral", max_iter=50_000).values
    least, size = objective(X, D, best, rule), (best**2).sum(1)
    found, L = iterates(X, D, rule, method, 200)
    ratios = [(objective(X, D, z, rule) - least) / (L * size * bound(k)) for k, z in enumerate(found, start=1)]
    assert np.max(ratios) <= 1 + 1e-9
    assert np.max(ratios) > 0.02


def test_fista_is_faster_than_ista_and_restarts_help():
    X, D = problem(4, n=30)
    rule = L1(0.05)
    steps = {
        name: solve(X, D, penalty=rule, tol=1e-8, max_iter=100_000, **options).n_iter.mean()
        for name, options in {
            "ista": {"method": "ista"},
            "plain": {"method": "fista", "restart": False},
            "restart": {"method": "fista"},
            "spectral": {"method": "fista", "step": "spectral"},
        }.items()
    }
    assert steps["restart"] < steps["plain"] < steps["ista"]
    assert steps["spectral"] < steps["restart"]


def test_one_step_of_ista_is_the_rule_of_the_lecture():
    """h ← h − α Dᵀ(Dh − x); entries whose sign a further shift by αλ would change become zero."""
    X, D = problem(5, n=8)
    found, L = iterates(X, D, L1(0.3), "ista", 3)
    h = np.zeros((8, K))
    for z in found:
        u = h - (h @ D - X) @ D.T / L
        shifted = u - 0.3 / L * np.sign(u)
        h = np.where(np.sign(u) != np.sign(shifted), 0.0, shifted)
        np.testing.assert_allclose(z, h, atol=1e-12)
        assert (h == 0).any()
        assert (h != 0).any()


def test_restarted_momentum_is_that_of_beck_and_teboulle():
    """Without restart: t ← (1 + √(1 + 4t²))/2 and y = z + (t_before − 1)/t (z − z_before), in NumPy."""
    X, D = problem(6, n=5)
    found, L = iterates(X, D, L1(0.1), "fista", 12)
    z = y = np.zeros((5, K))
    t = 1.0
    for ours in found:
        u = y + (X - y @ D) @ D.T / L
        new = np.sign(u) * np.maximum(np.abs(u) - 0.1 / L, 0)
        after = (1 + np.sqrt(1 + 4 * t**2)) / 2
        y, z, t = new + (t - 1) / after * (new - z), new, after
        np.testing.assert_allclose(ours, z, atol=1e-12)


@pytest.mark.parametrize("step", ["fixed", "spectral"])
def test_hard_thresholding_ends_at_fixed_points_that_are_local_minima(step):
    X, D = problem(7)
    codes = solve(X, D, penalty=L0(0.3), method="iht", step=step, tol=1e-9, max_iter=20_000)
    assert codes.converged.all()
    assert np.isnan(codes.gaps).all()
    z, L = codes.values, proximal.lipschitz(D)
    c = (X - z @ D) @ D.T
    assert np.abs(c[z != 0]).max() < 1e-6  # least squares on the support
    if step == "fixed":
        assert np.abs(z[z != 0]).min() >= np.sqrt(2 * 0.3 / L) * (1 - 1e-6)  # nothing below the jump
        assert np.abs(c[z == 0]).max() <= L * np.sqrt(2 * 0.3 / L) * (1 + 1e-6)


def test_k_sparse_codes_have_k_atoms_and_recover_planted_ones():
    rng = np.random.default_rng(8)
    D = np.linalg.qr(rng.normal(size=(30, 30)))[0][:, :30] @ np.diag(np.linspace(0.9, 1.1, 30))
    planted = np.zeros((40, 30))
    for row in planted:
        row[rng.choice(30, 3, replace=False)] = rng.choice([-1, 1], 3) * (1 + rng.random(3))
    codes = solve(planted @ D, D, method="iht", n_nonzero=3, tol=1e-10)
    np.testing.assert_allclose(codes.values, planted, atol=1e-6)
    X, D = problem(8)
    found = solve(X, D, method="iht", n_nonzero=4, tol=1e-8, max_iter=50_000).values
    assert set((found != 0).sum(1)) == {4}


def test_lq_descends_and_ends_where_a_step_leaves_it():
    X, D = problem(9)
    for q in (0.5, 0.3):
        rule = Lq(0.4, q)
        codes = solve(X, D, penalty=rule, method="ista", tol=1e-9, max_iter=20_000)
        with jax.enable_x64(True):
            L = proximal.lipschitz(D)
            again = rule.prox(jnp.asarray(codes.values + (X - codes.values @ D) @ D.T / L), 1 / L)
        np.testing.assert_allclose(codes.values, again, atol=1e-7)
        assert np.all(codes.objective(X, D, rule) <= 0.5 * (X**2).sum(1) + 1e-12)  # that of z = 0
        assert 0 < (codes.values != 0).mean() < 0.8


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_batch_size_and_starts(dtype):
    X, D = problem(10, n=150, dtype=dtype)
    rule = L1(0.2)
    whole = solve(X, D, penalty=rule, tol=1e-4)
    assert whole.values.dtype == dtype
    single = np.concatenate([solve(X[i : i + 7], D, penalty=rule, tol=1e-4).values for i in range(0, 150, 7)])
    np.testing.assert_allclose(whole.values, single, atol=1e-5 if dtype == np.float32 else 1e-12)
    warm = solve(X, D, penalty=rule, tol=1e-4, init=whole.values)
    assert warm.n_iter.max() == 0
    np.testing.assert_array_equal(warm.values, whole.values)
    csr = solve(sp.csr_array(X), D, penalty=rule, tol=1e-4, output="csr")
    assert sp.issparse(csr.values)
    np.testing.assert_array_equal(csr.toarray(), whole.values)


def test_degenerate_signals():
    X, D = problem(11, n=3)
    X[0] = 0
    D[3] = D[2]  # twice the same atom
    codes = solve(X, D, penalty=L1(0.2), tol=1e-8, step="spectral")
    assert codes.converged.all()
    assert not codes.values[0].any()
    assert codes.gaps[0] == 0
    huge = solve(X, D, penalty=L1(1e3))
    assert not huge.values.any()
    assert huge.n_iter.max() == 0
    np.testing.assert_allclose(huge.gaps, 0, atol=1e-12)
    assert solve(X[:0], D, penalty=L1(0.2)).values.shape == (0, K)


def test_signals_that_do_not_arrive_are_reported():
    X, D = problem(12)
    with pytest.warns(ConvergenceWarning, match=r"signals did not reach tol=1e-12 in 3 steps .*gap is"):
        codes = solve(X, D, penalty=L1(0.01), tol=1e-12, max_iter=3)
    assert not codes.converged.any()
    assert codes.n_iter.max() == 3
    with pytest.warns(ConvergenceWarning, match="still move"):
        solve(X, D, penalty=L0(0.01), method="iht", tol=1e-14, max_iter=2)


def test_mistakes_are_refused():
    X, D = problem(13, n=4)
    with pytest.raises(ParameterError, match="convex penalty"):
        solve(X, D, penalty=L0(0.1), method="fista")
    with pytest.raises(ParameterError, match="L0 or n_nonzero"):
        solve(X, D, penalty=L1(0.1), method="iht")
    with pytest.raises(ParameterError, match="belongs to"):
        solve(X, D, penalty=L1(0.1), n_nonzero=2)
    with pytest.raises(ParameterError, match="16 atoms"):
        solve(X, D, method="iht", n_nonzero=17)
    with pytest.raises(ParameterError, match="needs a penalty"):
        solve(X, D)
    with pytest.raises(ParameterError, match="alpha must be above 0"):
        solve(X, D, penalty=L1(-1.0))
    with pytest.raises(UnknownNameError, match="spectral"):
        solve(X, D, penalty=L1(0.1), step="newton")
    with pytest.raises(UnknownNameError, match="ista"):
        solve(X, D, penalty=L1(0.1), method="istas")
    with pytest.raises(ParameterError, match="tol"):
        solve(X, D, penalty=L1(0.1), tol=0)
    with pytest.raises(DataError, match="NaN"):
        solve(np.full_like(X, np.nan), D, penalty=L1(0.1))
    with pytest.raises(DataError, match="zero norm"):
        solve(X, np.zeros_like(D), penalty=L1(0.1))
    with pytest.raises(DataError, match="atoms in rows"):
        solve(X, D.T, penalty=L1(0.1))
    with pytest.raises(DataError, match="init"):
        solve(X, D, penalty=L1(0.1), init=np.zeros((1, K)))


# -- working sets ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["weighted", "nonnegative", "elastic net, nonnegative"])
def test_working_sets_find_the_same_codes(name, monkeypatch):
    monkeypatch.setattr(working, "GROWTH", 4)
    X, D = problem(14, n=60)
    rule = CONVEX[name]
    ours = working.solve(X, D, penalty=rule, tol=1e-12)
    exact = solve(X, D, penalty=rule, tol=1e-13, step="spectral", max_iter=20_000)
    np.testing.assert_allclose(ours.toarray(), exact.values, atol=1e-5)
    assert worst_violation(X, D, ours.toarray(), rule) < 1e-5
    assert ours.converged.all()
    assert ours.n_iter.max() > 1  # atoms did enter in several rounds


def test_working_sets_give_a_true_gap_and_drop_signals_that_are_done(monkeypatch):
    monkeypatch.setattr(working, "GRAM_BYTES", 1 << 18)  # in parts
    monkeypatch.setattr(working, "GROWTH", 4)
    monkeypatch.setattr(working, "BLOCKS", 24)  # 120 atoms in blocks of five
    rng = np.random.default_rng(15)
    D = rng.normal(size=(120, 40)).astype(np.float32)
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    X = rng.normal(size=(140, 40)).astype(np.float32)
    X[:80] = 3 * D[:80]  # one atom each: done when the others have many still to come
    X[5] = 0
    rule = L1(0.6)
    dense = working.solve(X, D, penalty=rule, on_device=True)
    codes = working.solve(X, D, penalty=rule)
    z = codes.toarray()
    np.testing.assert_array_equal(z, np.asarray(dense.values))
    assert z.dtype == np.float32
    assert codes.gaps.max() <= 1e-4
    assert codes.n_iter[80:].min() > codes.n_iter[6:80].max()  # the batch shrank in between
    x, a, z = X.astype(float), D.astype(float), z.astype(float)
    some = np.arange(len(x)) != 5  # the one that is zero
    true = relative_gap(x[some], a, z[some], 0.6)
    np.testing.assert_allclose(codes.gaps[some], true, rtol=0.05, atol=3e-6)  # in float64, of what float32 found
    assert codes.gaps[5] == 0
    best = solve(X[-60:].astype(float), D.astype(float), penalty=rule, tol=1e-9, step="spectral")
    above = objective(x[-60:], a, z[-60:], rule) - best.objective(x[-60:], a, rule)
    assert np.all(above / (0.5 * (x[-60:] ** 2).sum(1)) <= codes.gaps[-60:] + 1e-6)


def test_a_dense_code_that_is_done_stays_whole_while_sparser_ones_go_on(monkeypatch):
    monkeypatch.setattr(working, "GROWTH", 8)
    monkeypatch.setattr(working, "STRIDE", 1)  # no room to spare
    rng = np.random.default_rng(18)
    D = np.zeros((20, 14))
    D[:8, :8] = np.eye(8)
    D[8:, 8:] = rng.normal(size=(12, 6)) + 1.5
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    X = np.concatenate([np.zeros((5, 8)), 0.3 * rng.normal(size=(5, 6)) + 0.5], axis=1)
    X[0] = np.concatenate([np.linspace(2, 3, 8), np.zeros(6)])  # eight atoms, found at once
    codes = working.solve(X, D, penalty=L1(0.01), tol=1e-10)
    np.testing.assert_allclose(codes.toarray()[0, :8], X[0, :8] - 0.01, atol=1e-6)
    assert codes.n_iter[0] == 1
    assert codes.n_iter[1:].max() > 2
    assert (codes.toarray()[1:] != 0).sum(axis=1).max() < 8


def test_large_entries_come_from_different_blocks(monkeypatch):
    monkeypatch.setattr(working, "BLOCKS", 4)
    values = jnp.asarray(np.random.default_rng(17).permutation(3 * 18).reshape(3, 18).astype(np.float32))
    found, places = working._largest(values, 3)
    tops = np.stack([np.asarray(values)[:, b::4].max(axis=1) for b in range(4)], axis=1)
    np.testing.assert_array_equal(found, -np.sort(-tops, axis=1)[:, :3])
    np.testing.assert_array_equal(np.take_along_axis(np.asarray(values), np.asarray(places), axis=1), found)


def test_working_sets_know_their_limits():
    X, D = problem(16, n=5)
    with pytest.raises(ParameterError, match="not Group"):
        working.solve(X, D, penalty=CONVEX["group"])
    with pytest.warns(ConvergenceWarning, match="1 rounds"):
        working.solve(X, D, penalty=L1(0.001), tol=1e-14, max_iter=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert working.solve(X, D, penalty=L1(1e3)).values.nnz == 0
        assert working.solve(X, D, penalty=L1(1e-3), tol=1e-8).values.shape == (5, K)


def test_one_interface_reaches_the_working_sets():
    X, D = problem(n=20)
    ours = sparse_encode(X, D, penalty=0.2, method="working", tol=1e-10, output="dense")
    exact = sparse_encode(X, D, penalty=0.2, tol=1e-12, output="dense")
    assert isinstance(ours.values, np.ndarray)
    np.testing.assert_allclose(ours.values, exact.values, atol=1e-6)
    with pytest.raises(ParameterError, match="leave init out"):
        sparse_encode(X, D, penalty=0.2, method="working", init=exact.values)
