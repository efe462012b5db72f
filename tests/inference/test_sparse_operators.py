"""Sparse codes and dictionary steps over linear operators; the operator written as its matrix is the oracle."""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from jax.flatten_util import ravel_pytree

from latentia.core.algorithms import require
from latentia.core.capabilities import Constrained, Decodes, LinearSplit, ProxSplit
from latentia.core.errors import CapabilityError, DataError, ParameterError
from latentia.core.parameters import weight
from latentia.core.space import Space
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator.training import Encode
from latentia.inference import SparseInference, infer_means
from latentia.inference.proximal_split import accelerated, thresholded
from latentia.inference.sparse import proximal, sparse_encode
from latentia.learning import fit as loop
from latentia.learning.dictionary import UPDATES, OperatorGradient
from latentia.learning.dictionary.atoms import project
from latentia.models.ppca import PPCAModel
from latentia.models.sparse_coder import SparseCoder
from latentia.ops.least_squares import duality_gap, objective
from latentia.ops.operators import (
    Composed,
    Convolution,
    LinearOperator,
    Masked,
    Matrix,
    Sum,
    Unpooling,
    as_operator,
    to_matrix,
)
from latentia.ops.penalties import L0, L1, ElasticNet, Group


def filters(seed, *shape):
    found = np.random.default_rng(seed).normal(size=shape)
    norms = np.sqrt(np.sum(found**2, axis=tuple(range(1, len(shape))), keepdims=True))
    return jnp.asarray(found / norms, jnp.float32)


MASK = np.random.default_rng(9).random((6, 5)) < 0.7
OPERATORS = {
    "circular": lambda: Convolution(filters(0, 3, 3, 2), shape=(6, 5)),
    "same": lambda: Convolution(filters(1, 2, 3, 3, 2), shape=(5, 5, 2), border="same", channels=True),
    "valid": lambda: Convolution(filters(2, 4, 2, 3), shape=(6, 6), border="valid"),
    "masked": lambda: Masked(Convolution(filters(0, 3, 3, 2), shape=(6, 5)), MASK),
    "sum": lambda: Sum([Convolution(filters(i, 2, i, i), shape=(6, 5), border="full") for i in (2, 3)]),
    "layers": lambda: Composed(
        [
            Convolution(filters(4, 2, 2, 2), shape=(5, 5), border="valid"),
            Convolution(filters(5, 3, 2, 2, 2), shape=(4, 4, 2), border="same", channels=True),
        ]
    ),
}
EVERY = pytest.mark.parametrize("name", OPERATORS)


def signals(D: LinearOperator, n=5, seed=3):
    """Signals of few atoms each and a little noise, in the operator's own shape."""
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(n, D.n_code)) * (rng.random((n, D.n_code)) < 0.1)
    rows = z @ np.asarray(to_matrix(D)) + 0.05 * rng.normal(size=(n, D.n_signal))
    found = D.unflat_signal(rows.astype(np.float32))
    return np.asarray(jax.vmap(D.keep)(found)) if isinstance(D, Masked) else found


class LinearModel(LinearSplit, Decodes, Constrained):
    """Any operator with any penalty; parts of it with filters or atoms are kept in the ball."""

    own: LinearOperator = weight()
    rule: Any = eqx.field(static=True)
    mean: Any = None

    @property
    def x_space(self) -> Any:
        return self.own.signal_space

    @property
    def z_space(self) -> Any:
        return self.own.code_space

    @property
    def operator(self) -> LinearOperator:
        return self.own

    @property
    def penalty(self) -> Any:
        return None if self.rule is None else L1(self.rule)

    def signal(self, x: Any) -> Any:
        return x

    def with_operator(self, operator: LinearOperator) -> Self:
        return type(self)(operator, self.rule)

    def energy(self, x: Any, z: Any) -> Any:
        return objective(self.own, self.penalty, x, z)

    def decode(self, z: Any) -> Any:
        return self.own.synthesise(z)

    def project(self) -> Self:
        def ball(leaf: Any) -> Any:
            if not eqx.is_inexact_array(leaf):
                return leaf
            rows = project(leaf.reshape(leaf.shape[0], -1), constraint="ball", nonnegative=False, xp=jnp)
            return rows.reshape(leaf.shape)

        return self.with_operator(jax.tree.map(ball, self.own))


# -- codes -------------------------------------------------------------------------------------------------------


@EVERY
@pytest.mark.parametrize("step", ["fixed", "spectral"])
def test_codes_over_an_operator_are_those_of_its_matrix(name, step):
    D = OPERATORS[name]()
    X = signals(D)
    A, rows = np.asarray(to_matrix(D), float), np.asarray(D.flat_signal(X), float)
    rule = ElasticNet(0.1, 0.8)  # strongly convex: a small gap means that codes are near
    found = proximal.solve(X.astype(float), D, penalty=rule, tol=1e-12, step=step)
    kept = np.any(A != 0, axis=1)
    wanted = sparse_encode(rows, A[kept], penalty=rule, method="cd", tol=1e-12).toarray()
    assert found.values.dtype == np.float64
    assert (found.values != 0).any()
    np.testing.assert_allclose(found.values[:, kept], wanted, atol=2e-4)
    assert not found.values[:, ~kept].any()
    assert found.converged.all()
    assert ((found.gaps >= 0) & (found.gaps <= 1e-12)).all()


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_the_certificate_falls_to_zero_and_bounds_every_step():
    D = OPERATORS["same"]()
    X, rule = signals(D, n=3).astype(float), L1(0.1)
    best = proximal.solve(X, D, penalty=rule, tol=1e-12).objective(X, D, rule)
    last = np.inf
    for n_steps in (1, 5, 20, 80, 300):
        codes = proximal.solve(X, D, penalty=rule, tol=1e-13, max_iter=n_steps)
        size = 0.5 * np.sum(np.asarray(X).reshape(3, -1) ** 2, axis=1)
        above = codes.objective(X, D, rule) - best
        assert (codes.gaps >= 0).all()
        assert (codes.gaps * size >= above - 1e-9 * size).all()
        with jax.enable_x64(True):
            own = jax.tree.map(lambda leaf: leaf.astype(float), D)
            z = own.unflat_code(jnp.asarray(codes.values[0]))
            gap = duality_gap(own, rule, jnp.asarray(X[0]), z)
        np.testing.assert_allclose(gap, codes.gaps[0] * size[0], rtol=1e-6, atol=1e-9)
        last = codes.gaps.max()
    assert last < 1e-6


@pytest.mark.parametrize("method", ["cd", "lars", "ista", "fista"])
def test_every_method_finds_the_same_objective(method):
    D = OPERATORS["valid"]()
    X, rule = signals(D), L1(0.1)
    codes = sparse_encode(X, D, penalty=rule, method=method, tol=1e-6)
    wanted = proximal.solve(X.astype(float), D, penalty=rule, tol=1e-10)
    np.testing.assert_allclose(codes.objective(X, D, rule), wanted.objective(X, D, rule), rtol=1e-5)
    A = np.asarray(to_matrix(D), float)
    by_matrix = codes.objective(np.asarray(D.flat_signal(X)), A, rule)
    np.testing.assert_allclose(codes.objective(X, D, rule), by_matrix, rtol=1e-6)
    assert sp.issparse(codes.values)


def test_pursuits_and_hard_thresholds_work_over_operators():
    D = OPERATORS["valid"]()
    X = signals(D)
    A, rows = np.asarray(to_matrix(D)), np.asarray(D.flat_signal(X))
    for options in (
        {"method": "omp", "n_nonzero": 3},
        {"method": "iht", "n_nonzero": 3, "tol": 1e-6},
        {"method": "iht", "penalty": L0(0.05), "tol": 1e-6},
    ):
        ours, by_matrix = sparse_encode(X, D, **options), sparse_encode(rows, A, **options)
        np.testing.assert_allclose(ours.toarray(), by_matrix.toarray(), atol=1e-3)


def test_groups_and_weights_go_by_the_flat_code():
    """Weights a map, and groups of all maps at a place."""
    D = OPERATORS["circular"]()
    X = signals(D, n=2).astype(float)
    A, rows = np.asarray(to_matrix(D), float), np.asarray(D.flat_signal(X))
    for rule in (L1(0.1, weights=D.per_code(jnp.array([1.0, 2.0, 3.0]))), Group(0.1, np.repeat(range(30), 3))):
        ours = sparse_encode(X, D, penalty=rule, method="fista", tol=1e-7)
        by_matrix = sparse_encode(rows, A, penalty=rule, method="cd", tol=1e-7)
        np.testing.assert_allclose(ours.objective(X, D, rule), by_matrix.objective(rows, A, rule), rtol=1e-5)


def test_signals_flat_or_in_shape_starts_and_blocks_make_no_difference(monkeypatch):
    D = OPERATORS["sum"]()
    X, rule = signals(D, n=9), L1(0.1)
    codes = proximal.solve(X, D, penalty=rule, tol=1e-6)
    flat = proximal.solve(D.flat_signal(X), D, penalty=rule, tol=1e-6)
    np.testing.assert_array_equal(codes.values, flat.values)
    again = proximal.solve(X, D, penalty=rule, tol=2e-6, init=codes.values)
    assert (again.n_iter == 0).all()
    shaped = proximal.solve(X, D, penalty=rule, tol=2e-6, init=D.unflat_code(codes.values))
    np.testing.assert_array_equal(shaped.values, codes.values)
    monkeypatch.setattr(proximal, "BLOCK_ENTRIES", 4 * D.n_code)
    monkeypatch.setattr(proximal, "LEAST_BATCH", 2)
    parts = proximal.solve(X, D, penalty=rule, tol=1e-6)
    np.testing.assert_allclose(parts.values, codes.values, atol=1e-4)
    np.testing.assert_array_equal(parts.converged, codes.converged)


def test_large_codes_are_not_padded_with_many_empty_signals():
    D = Convolution(filters(0, 8, 3, 3), shape=(40, 40))
    assert proximal.least_batch(proximal.make_problem(D, L1(1.0), np.float32, bound=1.0)) == 4
    assert proximal.least_batch(proximal.make_problem(np.eye(3), L1(1.0), np.float32, bound=1.0)) == 64


def test_a_wrapped_matrix_is_the_matrix():
    D = np.random.default_rng(0).normal(size=(12, 7)).astype(np.float32)
    X = np.random.default_rng(1).normal(size=(6, 7)).astype(np.float32)
    for method in ("cd", "fista"):
        one, two = (sparse_encode(X, each, penalty=0.3, method=method) for each in (D, Matrix(D)))
        np.testing.assert_array_equal(one.toarray(), two.toarray())


def test_an_operator_that_is_zero_has_codes_of_zero():
    D = Masked(OPERATORS["circular"](), np.zeros((6, 5), bool))
    codes = proximal.solve(np.ones((2, 6, 5), np.float32), D, penalty=L1(0.1))
    assert not codes.values.any()
    assert codes.converged.all()


def test_what_does_not_fit_is_refused(monkeypatch):
    D = OPERATORS["valid"]()
    with pytest.raises(DataError, match=r"shape \(n, 6, 6\), or \(n, 36\).*got \(3, 6, 5\)"):
        sparse_encode(np.ones((3, 6, 5)), D, penalty=0.1, method="fista")
    with pytest.raises(DataError, match="signals hold NaN"):
        proximal.solve(np.full((3, 6, 6), np.nan), D, penalty=L1(0.1))
    with pytest.raises(DataError, match="parameters hold NaN"):
        proximal.solve(np.ones((3, 6, 6)), Convolution(D.filters * jnp.nan, shape=(6, 6)), penalty=L1(0.1))
    with pytest.raises(DataError, match="init must hold 3"):
        proximal.solve(np.ones((3, 6, 6)), D, penalty=L1(0.1), init=np.ones((3, 5)))
    monkeypatch.setattr("latentia.inference.sparse.checks.MATRIX_ENTRIES", 100)
    with pytest.raises(ParameterError, match=r"'cd' needs the operator's atoms as a matrix.*'fista'"):
        sparse_encode(np.ones((3, 6, 6)), D, penalty=0.1)
    assert sparse_encode(np.ones((3, 6, 6)), D, penalty=0.1, method="fista").converged.all()


# -- inference of models -----------------------------------------------------------------------------------------


@EVERY
def test_models_with_an_operator_are_inferred_one_by_one_and_together(name):
    D = OPERATORS[name]()
    model, X = LinearModel(D, 0.1), signals(D)
    together = SparseInference("fista", tol=1e-6).infer_many(model, X).mean()
    assert jax.tree.map(np.shape, together) == jax.tree.map(lambda leaf: (5, *leaf.shape), D.code_space)
    alone = jax.vmap(lambda x: infer_means(model, x))(jnp.asarray(X))
    energies = [jax.vmap(model.energy)(jnp.asarray(X), jax.tree.map(jnp.asarray, z)) for z in (together, alone)]
    np.testing.assert_allclose(*energies, rtol=2e-4)
    wanted = proximal.solve(X.astype(float), D, penalty=L1(0.1), tol=1e-9).objective(X, D, L1(0.1))
    np.testing.assert_allclose(energies[0], wanted, rtol=1e-5)


def test_every_signal_may_have_its_own_mask():
    D = OPERATORS["circular"]()
    masks = np.random.default_rng(4).random((4, 6, 5)) < 0.7
    X = np.where(masks, signals(D, n=4), 0)
    found = jax.vmap(lambda m, x: accelerated(Masked(D, m), L1(0.1), x, tol=1e-5))(
        jnp.asarray(masks), jnp.asarray(X)
    )
    for i in range(4):
        own = Masked(D, masks[i])
        best = proximal.solve(X[i : i + 1].astype(float), own, penalty=L1(0.1), tol=1e-9)
        best = best.objective(X[i : i + 1], own, L1(0.1))[0]
        assert float(objective(own, L1(0.1), X[i], found[i])) == pytest.approx(best, rel=1e-4)


def test_every_signal_may_have_its_own_switches():
    """Pooled maps of one filter bank: with the switches fixed the operator is linear."""
    bank = Convolution(filters(6, 2, 2, 2), shape=(5, 5), border="valid")
    X = np.asarray(jax.random.normal(jax.random.key(0), (3, 5, 5), jnp.float32))

    def code(x):
        _, places = Unpooling.of_largest(bank.analyse(x), (2, 2, 1))
        D = Composed([bank, places])
        return places, accelerated(D, L1(0.1), x, tol=1e-6)

    places, found = jax.vmap(code)(jnp.asarray(X))
    for i in range(3):
        D = Composed([bank, jax.tree.map(lambda leaf, i=i: leaf[i], places)])
        wanted = sparse_encode(X[i].reshape(1, -1), np.asarray(to_matrix(D)), penalty=0.1, tol=1e-8).toarray()[0]
        np.testing.assert_allclose(np.ravel(found[i]), wanted, atol=1e-3)


def test_hard_thresholds_in_compiled_code_keep_the_largest_few():
    D, X = OPERATORS["valid"](), signals(OPERATORS["valid"]())
    z = thresholded(D, None, jnp.asarray(X[0]), n_nonzero=3)
    assert z.shape == D.code_space.shape
    assert int(jnp.sum(z != 0)) == 3
    at = proximal.solve(X[:1], D, method="iht", n_nonzero=3, max_iter=200, tol=1e-6)
    np.testing.assert_allclose(np.ravel(z), at.values[0], atol=1e-3)


def test_a_dictionary_is_an_operator_and_the_other_way_it_is_explained():
    model = SparseCodingModel.make(4, 6, rule={"name": "l1", "alpha": 0.1}, key=jax.random.key(0))
    assert isinstance(model, ProxSplit)
    assert isinstance(model, LinearSplit)
    assert as_operator(model.operator).atoms is model.dictionary
    twice = model.with_operator(Matrix(2 * model.dictionary))
    np.testing.assert_array_equal(twice.dictionary, 2 * model.dictionary)
    np.testing.assert_array_equal(model.with_operator(model.operator).dictionary, model.dictionary)
    require(SparseInference(), LinearModel(OPERATORS["valid"](), 0.1))
    with pytest.raises(CapabilityError, match=r"ProxSplit \(dictionary.*or LinearSplit \(operator"):
        require(SparseInference(), PPCAModel.make(3, 2, key=jax.random.key(0)))
    with pytest.raises(CapabilityError, match="Online cannot be used with LinearModel: it needs ProxSplit"):
        require(UPDATES["online"](SparseInference()), LinearModel(OPERATORS["valid"](), 0.1))


def test_an_estimator_codes_with_an_operator():
    """transform, objective, score and inverse_transform ask the operator, not a dictionary."""
    D = OPERATORS["valid"]()
    X = signals(D)
    rows = np.asarray(D.flat_signal(X))
    coder = SparseCoder(np.eye(36), alpha=0.1, inference="fista", tol=1e-6).fit(rows)
    coder.model_ = LinearModel(D, 0.1)
    codes = proximal.solve(X, D, penalty=L1(0.1), tol=1e-6)
    found = coder.transform(rows)
    np.testing.assert_allclose(found, codes.values, atol=1e-5)
    np.testing.assert_allclose(coder.objective(rows), codes.objective(X, D, L1(0.1)), rtol=1e-5)
    assert coder.score(rows) == pytest.approx(-np.mean(codes.objective(X, D, L1(0.1))), rel=1e-5)
    coder._n_features_out = D.n_code
    rebuilt = found @ np.asarray(to_matrix(D))
    np.testing.assert_allclose(coder.inverse_transform(found), rebuilt, atol=1e-4)
    np.testing.assert_allclose(coder.inverse_transform(sp.csr_array(found)), rebuilt, atol=1e-4)


# -- dictionary steps --------------------------------------------------------------------------------------------


def stepped(model, X, weights=None, rate=1.0, **inference):
    learner = OperatorGradient(SparseInference(**({"method": "fista", "tol": 1e-6} | inference)), rate=rate)
    require(learner, model)
    state = jax.tree.map(np.array, learner.init(model, X, key=jax.random.key(0)))
    own = jax.tree.map(np.array, model)
    moved, _, metrics = learner.step(own, X, weights, state, key=jax.random.key(0), since=1)
    return moved, metrics


def matrix_problem(seed=0, constraint="ball"):
    X = np.random.default_rng(seed).normal(size=(40, 7)).astype(np.float32)
    D = np.random.default_rng(seed + 1).normal(size=(9, 7)).astype(np.float32)
    model = SparseCodingModel.make(
        7, 9, rule={"name": "l1", "alpha": 0.2}, constraint=constraint, key=jax.random.key(0)
    )
    return X, model.with_dictionary(D / np.linalg.norm(D, axis=1, keepdims=True))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("constraint", ["ball", "sphere"])
def test_the_step_for_a_matrix_is_the_gradient_update(constraint, weighted):
    X, model = matrix_problem(constraint=constraint)
    weights = np.random.default_rng(2).gamma(2.0, size=40).astype(np.float32) if weighted else None
    weights = weights if weights is None else weights / weights.mean()
    learner = UPDATES["gradient"](SparseInference("fista", tol=1e-6), constraint=constraint, reseed=False, rate=0.9)
    own = jax.tree.map(np.array, model)
    state = jax.tree.map(np.array, learner.init(model, X, key=jax.random.key(0)))
    _, _, wanted = learner.step(own, X, weights, state, key=jax.random.key(0), since=1)
    found, metrics = stepped(model, X, weights, rate=0.9)
    assert np.abs(own.atoms - np.asarray(model.atoms)).max() > 1e-2
    np.testing.assert_allclose(found.atoms, own.atoms, atol=1e-4)
    for name in ("objective", "squared_error", "nonzeros", "gap", "unsolved"):
        np.testing.assert_allclose(metrics[name], wanted[name], rtol=1e-3, atol=2e-6, err_msg=name)


@EVERY
def test_a_step_over_an_operator_lowers_the_error(name):
    D = OPERATORS[name]()
    model, X = LinearModel(D, 0.05).project(), signals(D, n=8, seed=7)
    z = SparseInference("fista", tol=1e-6).infer_many(model, X).mean()

    def error(own):
        made = jax.vmap(own.synthesise)(jax.tree.map(jnp.asarray, z))
        return 0.5 * jnp.sum((jnp.asarray(X) - made) ** 2)

    full, metrics = stepped(model, X)
    assert float(error(full.own)) < float(error(model.own)) * 0.999
    assert metrics["objective"] == pytest.approx(
        float(np.mean(jax.vmap(model.energy)(jnp.asarray(X), jax.tree.map(jnp.asarray, z)))), rel=1e-4
    )
    assert jax.tree.structure(full) == jax.tree.structure(model)


@pytest.mark.parametrize("name", ["same", "masked", "layers"])
def test_inside_the_ball_the_step_is_the_slope_over_its_curvature(name):
    """θ − η Jᵀ(Dz − x)/‖J‖², with J written out; through a mask, and for layers, all filters together."""
    D = jax.tree.map(lambda leaf: 0.5 * leaf if eqx.is_inexact_array(leaf) else leaf, OPERATORS[name]())
    model, X = LinearModel(D, 0.01), signals(OPERATORS[name](), n=3)
    z = jax.tree.map(jnp.asarray, SparseInference("fista", tol=1e-6).infer_many(model, X).mean())
    parameters, fixed = eqx.partition(D, eqx.is_inexact_array)
    theta, restored = ravel_pytree(parameters)
    rows = lambda t: jnp.ravel(jax.vmap(eqx.combine(restored(t), fixed).synthesise)(z))  # noqa: E731
    J = np.asarray(jax.jacobian(rows)(theta), float)
    slope = J.T @ (np.asarray(rows(theta), float) - np.ravel(X))
    wanted = -0.2 * slope / np.linalg.norm(J, 2) ** 2
    found, _ = stepped(model, X, rate=0.2)
    moved = ravel_pytree(eqx.filter(found.own, eqx.is_inexact_array))[0] - theta
    np.testing.assert_allclose(moved, wanted, atol=5e-3 * np.abs(wanted).max())


def test_weights_are_repetitions_and_rows_without_weight_are_not_there():
    D = OPERATORS["valid"]()
    model, X = LinearModel(D, 0.05).project(), signals(D, n=6)
    counts = np.array([2, 1, 0, 1, 0, 2], np.float32)
    weighted, told = stepped(model, X, counts)
    repeated, _ = stepped(model, np.repeat(X, counts.astype(int), axis=0))
    np.testing.assert_allclose(weighted.own.filters, repeated.own.filters, atol=1e-4)
    nothing, _ = stepped(model, X, np.zeros(6, np.float32))
    np.testing.assert_array_equal(nothing.own.filters, model.own.filters)
    assert np.isfinite(told["objective"])


def test_steps_that_are_too_long_are_halved_and_a_divergence_halves_the_rate():
    X, model = matrix_problem()
    Z = SparseInference("fista", tol=1e-6).encode(model, X, output="dense").toarray()
    error = lambda m: float(np.sum((X - Z @ np.asarray(m.atoms)) ** 2))  # noqa: E731
    far, _ = stepped(model, X, rate=1e4)
    assert error(far) <= error(model) * (1 + 1e-5)
    learner = OperatorGradient(SparseInference("fista"))
    assert float(learner.halve_step(learner.init(model, X, key=jax.random.key(0))).rate) == 0.5


def test_filters_are_learned_again():
    """From other filters the objective comes down most of the way to that of the true ones."""
    true = Convolution(filters(11, 2, 3, 3), shape=(8, 8), border="valid")
    X = signals(true, n=24, seed=12)
    model = LinearModel(Convolution(filters(13, 2, 3, 3), shape=(8, 8), border="valid"), 0.05)
    first = None
    for _ in range(15):
        model, metrics = stepped(model, X, tol=1e-4)
        first = metrics["objective"] if first is None else first
    best = stepped(LinearModel(true, 0.05), X)[1]["objective"]
    assert metrics["objective"] < first - 0.5 * (first - best)


def test_the_loop_trains_a_model_with_an_operator():
    D = OPERATORS["valid"]()
    model, X = LinearModel(D, 0.05).project(), signals(D, n=24)
    learner, rows = OperatorGradient(SparseInference("fista")), np.asarray(D.flat_signal(X))
    run = loop.Settings(6, 12, seed=0)
    result = loop.fit(model, rows, learner, Encode(model.x_space), run, key=jax.random.key(0))
    assert result.model.x_space == Space("real", (6, 6))
    assert np.linalg.norm(np.asarray(result.model.own.filters).reshape(4, -1), axis=1).max() <= 1 + 1e-5
    assert np.abs(np.asarray(result.model.own.filters) - np.asarray(model.own.filters)).max() > 1e-3
