"""Dictionary learning: the updates against their formulas, and the host-side loop that steps them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse as sp
from scipy.optimize import linear_sum_assignment
from sklearn.datasets import load_digits

from latentia import DictionaryLearning, load
from latentia.core.algorithms import AbstractLearner
from latentia.core.errors import DivergenceError, ParameterError
from latentia.energies.sparse_coding import SparseCodingModel
from latentia.estimator.training import Encode
from latentia.inference import SparseInference
from latentia.learning import fit as loop
from latentia.learning.batches import RowOrder
from latentia.learning.dictionary import UPDATES
from latentia.learning.dictionary.atoms import idle, pass_over_atoms, project, replace, statistics
from latentia.learning.dictionary.base import penalties
from latentia.ops.penalties import L0, L1, ElasticNet, Group, Lq

SMALL = {"n_components": 12, "alpha": 0.2, "random_state": 0, "batch_size": 50, "n_epochs": 3, "min_gain": 0.0}


def planted(n=3000, d=16, k=24, active=3, noise=0.0, seed=0):
    """(signals, dictionary) of a sparse model with well separated atoms."""
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(k, d))
    D /= np.linalg.norm(D, axis=1, keepdims=True)
    Z = np.zeros((n, k))
    for row in Z:
        used = rng.choice(k, active, replace=False)
        row[used] = rng.choice([-1, 1], active) * rng.uniform(1, 2, active)
    return (Z @ D + noise * rng.normal(size=(n, d))).astype(np.float32), D


def cosines(found, true):
    """|cosine| of every true atom with its partner in the best matching."""
    found = found / np.linalg.norm(found, axis=1, keepdims=True)
    table = np.abs(found @ true.T)
    rows, columns = linear_sum_assignment(-table)
    return table[rows, columns]


@pytest.fixture(scope="module")
def X():
    return planted(600, 8, 12, 2, 0.1, seed=3)[0]


@pytest.fixture
def problem():
    """Codes, signals, weights and a feasible dictionary with more atoms than a block."""
    rng = np.random.default_rng(0)
    Z = (rng.normal(size=(300, 70)) * (rng.random((300, 70)) < 0.1)).astype(np.float32)
    Z[:, 5] = 0  # an atom that nobody uses
    D = rng.normal(size=(70, 9)).astype(np.float32)
    return Z, rng.normal(size=(300, 9)).astype(np.float32), rng.uniform(0, 2, 300).astype(np.float32), D


# -- pieces ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weighted", [False, True])
def test_statistics_are_the_sums(problem, weighted):
    Z, X, w, D = problem
    w = w if weighted else None
    sums = statistics(X, sp.csr_array(Z), w)
    share = np.ones(len(X)) if w is None else w
    np.testing.assert_allclose(sums.second, (Z * share[:, None]).T @ Z, rtol=2e-4, atol=1e-4)
    np.testing.assert_allclose(sums.cross, (Z * share[:, None]).T @ X, rtol=2e-4, atol=1e-4)
    wanted = 0.5 * np.sum(share * np.sum((X.astype(float) - Z @ D) ** 2, axis=1))
    assert sums.error(D) == pytest.approx(wanted, rel=1e-5)


def _pass(D, A, B, sphere, nonnegative):
    """The formula, atom after atom, in float64."""
    D = D.astype(float).copy()
    for j in range(len(D)):
        if A[j, j] > 0:
            u = D[j] + (B[j] - A[j] @ D) / A[j, j]
            u = np.maximum(u, 0) if nonnegative else u
            norm = np.linalg.norm(u)
            if norm > 0:  # else the atom stays
                D[j] = u / norm if sphere or norm > 1 else u
    return D


@pytest.mark.parametrize("constraint", ["ball", "sphere"])
@pytest.mark.parametrize("nonnegative", [False, True])
def test_a_pass_is_the_formula_atom_after_atom_and_never_raises_the_error(problem, constraint, nonnegative):
    Z, X, _, D = problem
    D = project(D, constraint=constraint, nonnegative=nonnegative)
    norms = np.linalg.norm(D, axis=1)
    assert (norms <= 1 + 1e-6).all() if constraint == "ball" else np.allclose(norms, 1, atol=1e-6)
    sums = statistics(X, sp.csr_array(Z), None)
    before, old = sums.error(D), D[5].copy()
    for _ in range(3):
        wanted = _pass(D, sums.second.astype(float), sums.cross, constraint == "sphere", nonnegative)
        pass_over_atoms(D, sums.second, sums.cross, constraint=constraint, nonnegative=nonnegative)
        np.testing.assert_allclose(D, wanted, atol=2e-5)
        assert sums.error(D) < before
        before = sums.error(D)
    np.testing.assert_array_equal(D[5], old)
    assert not nonnegative or D.min() >= 0


def test_unused_and_doubled_atoms_are_found_and_replaced_by_the_worst_signals():
    rng = np.random.default_rng(0)
    D = np.linalg.qr(rng.normal(size=(8, 8)))[0].astype(np.float32)
    D[3], usage = -D[6], np.array([1, 1, 0, 2, 1, 1, 5, 1.0])  # 2 is unused, 3 is 6 again and less used
    np.testing.assert_array_equal(idle(D, usage), [2, 3])
    X = 0.1 * rng.normal(size=(40, 8)).astype(np.float32)
    X[7], X[9], X[11] = 5 * D[0], 3 * (D[0] + D[1]), 2 * (D[0] - D[1] + D[4])  # the first is an atom already
    before = D.copy()
    done = replace(D, np.array([2, 3]), X, sp.csr_array(np.zeros((40, 8), np.float32)), nonnegative=False)
    np.testing.assert_array_equal(done, [2, 3])
    np.testing.assert_allclose(D[2], X[9] / np.linalg.norm(X[9]), rtol=1e-6)
    np.testing.assert_allclose(D[3], X[11] / np.linalg.norm(X[11]), rtol=1e-6)
    kept = [0, 1, 4, 5, 6, 7]
    np.testing.assert_array_equal(D[kept], before[kept])


@pytest.mark.parametrize(
    "penalty",
    [
        L1(0.3),
        ElasticNet(0.3, 0.4),
        L0(0.2),
        Lq(0.5, 0.4),
        Group(0.7, (0, 0, 1, 1, 2)),
        L1(1.0, weights=range(1, 6)),
    ],
)
def test_penalties_of_sparse_codes_are_the_penalty_s_own(penalty):
    rng = np.random.default_rng(1)
    Z = (rng.normal(size=(20, 5)) * (rng.random((20, 5)) < 0.5)).astype(np.float32)
    np.testing.assert_allclose(penalties(sp.csr_array(Z), penalty), penalty.value(jnp.asarray(Z)), rtol=1e-5)


def _step(update, X, model, **options):
    """One step of an update from given atoms: (atoms, metrics)."""
    learner = UPDATES[update](SparseInference(tol=1e-6), reseed=False, **options)
    own = jax.tree.map(np.array, model)
    state = jax.tree.map(np.array, learner.init(model, X, key=jax.random.key(0)))
    _, _, metrics = learner.step(own, X, None, state, key=jax.random.key(0), since=1)
    return own.dictionary, metrics


def _model(D, alpha=0.2, constraint="ball"):
    model = SparseCodingModel.make(
        D.shape[1], len(D), rule={"name": "l1", "alpha": alpha}, constraint=constraint, key=jax.random.key(0)
    )
    return model.with_dictionary(np.asarray(D, np.float32))


def test_the_gradient_step_is_the_slope_of_the_energy_then_norm_one(X):
    model = _model(X[:12] / np.linalg.norm(X[:12], axis=1, keepdims=True), constraint="sphere")
    Z = jnp.asarray(SparseInference(tol=1e-6).encode(model, X).toarray())
    mean = lambda m: jnp.mean(jax.vmap(m.energy)(jnp.asarray(X), Z))  # noqa: E731
    slope = np.asarray(eqx.filter_grad(mean)(model).atoms)
    steepest = np.linalg.eigvalsh(np.asarray(Z.T @ Z, float) / len(X))[-1]
    wanted = np.asarray(model.atoms) - 0.5 / steepest * slope
    found, metrics = _step("gradient", X, model, constraint="sphere", rate=0.5)
    np.testing.assert_allclose(found, wanted / np.linalg.norm(wanted, axis=1, keepdims=True), atol=2e-5)
    assert metrics["objective"] == pytest.approx(float(mean(model)), rel=1e-5)
    assert metrics["nonzeros"] == pytest.approx(float((Z != 0).sum(1).mean()))


def test_optimal_directions_are_least_squares_where_that_is_allowed(X):
    model = _model(X[:12] / np.linalg.norm(X[:12], axis=1, keepdims=True), alpha=0.02)
    Z = SparseInference(tol=1e-6).encode(model, 0.4 * X).toarray()
    wanted = np.linalg.lstsq(Z, 0.4 * X, rcond=None)[0]
    inside = np.linalg.norm(wanted, axis=1).max() < 1
    found, _ = _step("mod", 0.4 * X, model)
    error = lambda D: np.sum((0.4 * X - Z @ D) ** 2)  # noqa: E731
    if inside:
        np.testing.assert_allclose(found, wanted, atol=1e-3)
    else:  # the constrained minimum: no feasible atom is better
        assert np.linalg.norm(found, axis=1).max() <= 1 + 1e-5
        best = found.astype(float)
        for _ in range(300):
            best = _pass(best, (Z.T @ Z).astype(float), Z.T @ (0.4 * X), False, False)
        assert error(found) <= error(best) * (1 + 1e-3)
    assert error(found) < error(np.asarray(model.atoms))


# -- learning ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("update", ["online", "gradient", "mod", "ksvd"])
def test_planted_dictionaries_are_recovered(update):
    """From random atoms; of three starts the one with the best objective, as anybody would choose."""
    signals, D = planted(2000, 20, 24, 2)
    options = {
        "online": {"alpha": 0.3, "n_epochs": 8, "batch_size": 50, "forgetting": 10.0},
        "gradient": {"alpha": 0.3, "n_epochs": 12, "batch_size": 50, "learning_rate": 1.5},
        "mod": {"alpha": 0.4, "n_epochs": 30},
        "ksvd": {"n_nonzero": 2, "n_epochs": 30},
    }[update]
    starts = np.random.default_rng(1).normal(size=(3, 24, 20))
    assert cosines(starts[0], D).max() < 0.9
    make = lambda start: DictionaryLearning(  # noqa: E731
        24, update=update, min_gain=0.0, random_state=1, dictionary_init=start, n_threads=1, **options
    )
    found = max((make(start).fit(signals) for start in starts), key=lambda model: model.score(signals[:500]))
    assert cosines(found.components_, D).min() > 0.99
    assert np.linalg.norm(found.components_, axis=1).max() < 1 + 1e-5


@pytest.mark.parametrize("update", ["mod", "gradient"])
@pytest.mark.parametrize("warm", [True, False])
def test_batch_updates_never_raise_the_objective(X, update, warm):
    options = {**SMALL, "n_epochs": 12, "batch_size": len(X), "tol": 1e-6, "reseed": False, "warm_codes": warm}
    found = DictionaryLearning(**options, update=update).fit(X)
    path = [row["objective"] for row in found.history_]
    assert len(path) == 12
    assert np.diff(path).max() < 1e-6
    assert path[-1] < 0.9 * path[0]
    assert found.objective(X).mean() < path[-1]  # the codes of the atoms that the last step left


def test_warm_codes_lead_to_the_same_place_in_fewer_iterations(X):
    options = {**SMALL, "n_epochs": 6, "update": "mod", "tol": 1e-6}
    warm, cold = (DictionaryLearning(**options, warm_codes=w).fit(X) for w in (True, False))
    np.testing.assert_allclose(warm.components_, cold.components_, atol=2e-3)
    assert warm._state.codes is not None
    np.testing.assert_allclose(
        warm._state.codes, SparseInference(tol=1e-6).encode(_last(X, options), X).toarray(), atol=2e-3
    )


def _last(X, options):
    return DictionaryLearning(**{**options, "n_epochs": options["n_epochs"] - 1}).fit(X).model_


def test_a_pass_of_k_svd_lowers_the_error_of_its_codes():
    signals, _ = planted(800, noise=0.1)
    model = _model(signals[:24] / np.linalg.norm(signals[:24], axis=1, keepdims=True))
    learner = UPDATES["ksvd"](SparseInference("omp", n_nonzero=3), reseed=False)
    model = SparseCodingModel(model.atoms, None, None, "sphere")
    own, state = jax.tree.map(np.array, model), learner.init(model, signals, key=jax.random.key(0))
    codes = SparseInference("omp", n_nonzero=3).encode(model, signals)
    _, _, metrics = learner.step(own, signals, None, state, key=jax.random.key(0), since=1)
    before = codes.objective(signals, np.asarray(model.atoms), None).mean()
    assert metrics["objective"] == pytest.approx(before, rel=1e-4)
    Z = codes.toarray()
    after = 0.5 * np.sum((signals - (Z * 0 + _best_codes(Z, own.dictionary, signals)) @ own.dictionary) ** 2) / 800
    assert after < 0.9 * before


def _best_codes(Z, D, X):
    """Least squares on the support of the codes."""
    out = np.zeros_like(Z)
    for z, x, o in zip(Z, X, out, strict=True):
        used = np.flatnonzero(z)
        o[used] = np.linalg.lstsq(D[used].T, x, rcond=None)[0]
    return out


def test_online_learning_reaches_the_batch_objective():
    rows = load_digits().data.astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(rows))
    train, test = rows[order[:1400]], rows[order[1400:]]
    options = {"n_components": 40, "alpha": 0.4, "min_gain": 0.0, "random_state": 0, "n_threads": 1}
    batch = DictionaryLearning(**options, update="mod", n_epochs=40).fit(train)
    online = DictionaryLearning(**options, n_epochs=10, batch_size=70).fit(train)
    assert online.score(test) > batch.score(test) * 1.01  # scores are negative
    never = DictionaryLearning(**options, n_epochs=10, batch_size=70, forgetting=0.0).fit(train)
    assert online.score(test) > never.score(test)


def test_statistics_forget_and_codes_are_found_ahead_as_the_formulas_say(X):
    rho, D = 1.1, X[:12] / np.linalg.norm(X[:12], axis=1, keepdims=True)
    model = DictionaryLearning(
        **{**SMALL, "n_epochs": 1}, forgetting=rho, reseed=False, dictionary_init=D, tol=1e-6
    )
    atoms, A, B = project(D, constraint="ball", nonnegative=False), np.zeros((12, 12)), np.zeros((12, 8))
    mean, moved = atoms, 0
    for t in range(1, 24):
        rows = X[25 * t : 25 * t + 25]
        model.partial_fit(rows)
        ahead = atoms if t <= 9 else project(2 * atoms - mean, constraint="ball", nonnegative=False)
        moved = max(moved, np.abs(ahead - atoms).max())
        Z = SparseInference(tol=1e-6).encode(_model(ahead), rows).toarray().astype(float)
        kept = (1 - 1 / t) ** min(rho, 1 + t / 15)
        A, B = kept * A + Z.T @ Z, kept * B + Z.T @ rows
        np.testing.assert_allclose(model._state.second, A, atol=1e-3 * A.max())
        atoms = _pass(ahead, A, B, False, False).astype(np.float32)
        mean = mean + min(1, 8 / t) * (atoms - mean)
        np.testing.assert_allclose(model.components_, atoms, atol=5e-4)
    assert moved > 0.01


@pytest.mark.parametrize("update", ["online", "gradient", "mod", "ksvd"])
def test_any_number_of_threads_gives_the_same_bits(X, update):
    one, two = (DictionaryLearning(**SMALL, update=update, n_threads=n).fit(X) for n in (1, 2))
    np.testing.assert_array_equal(one.components_, two.components_)
    assert [row["objective"] for row in one.history_] == [row["objective"] for row in two.history_]


@pytest.mark.parametrize("update", ["online", "gradient"])
def test_partial_fit_is_fit_on_the_same_stream(X, update):
    once = {**SMALL, "n_epochs": 1, "update": update}
    whole = DictionaryLearning(**once).fit(X)
    np.testing.assert_array_equal(DictionaryLearning(**once).partial_fit(X).components_, whole.components_)
    start = X[:12] / np.linalg.norm(X[:12], axis=1, keepdims=True)
    whole = DictionaryLearning(**once, dictionary_init=start).fit(X)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    pieces = DictionaryLearning(**once, dictionary_init=start)
    for rows in RowOrder(len(X), 50, seed).rows(0, 12):
        pieces.partial_fit(X[rows])
    np.testing.assert_allclose(pieces.components_, whole.components_, atol=2e-4)
    with pytest.raises(ParameterError, match="uses all rows at once"):
        DictionaryLearning(**{**once, "update": "mod"}).partial_fit(X)


@pytest.mark.parametrize("update", ["online", "mod"])
def test_memory_maps_and_sparse_matrices_give_the_bits_of_an_array(X, tmp_path, update):
    rows = np.where(np.abs(X) > 0.4, X, 0).astype(np.float32)
    np.save(tmp_path / "X.npy", rows.astype(np.float64))
    wanted = DictionaryLearning(**SMALL, update=update).fit(rows)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    for data in (mapped, sp.csr_matrix(rows), sp.csc_array(rows)):
        found = DictionaryLearning(**SMALL, update=update).fit(data)
        np.testing.assert_array_equal(found.components_, wanted.components_)
        np.testing.assert_allclose(found.transform(data), wanted.transform(rows), atol=1e-5)


@pytest.mark.parametrize("update", ["online", "mod"])
def test_weights_count_rows(X, update):
    """A row of weight two is the row twice, one of weight zero none, where a step sees all rows."""
    options = {
        **SMALL,
        "update": update,
        "batch_size": 2000,
        "dictionary_init": X[:12],
        "warm_codes": False,
        "tol": 1e-6,
    }
    weights = np.arange(len(X)) % 3
    weighted = DictionaryLearning(**options).fit(X, sample_weight=weights)
    repeated = DictionaryLearning(**options).fit(np.repeat(X, weights, axis=0))
    np.testing.assert_allclose(weighted.components_, repeated.components_, atol=5e-3)
    assert weighted.history_[-1]["objective"] == pytest.approx(repeated.history_[-1]["objective"], rel=1e-3)
    assert np.abs(weighted.components_ - DictionaryLearning(**options).fit(X).components_).max() > 0.02


def test_dead_and_doubled_atoms_are_reseeded_and_counted(X):
    start = np.repeat(np.eye(8)[:1], 12, axis=0)
    found = DictionaryLearning(**{**SMALL, "n_epochs": 10}, dictionary_init=start).fit(X)
    table = np.abs(found.components_ @ found.components_.T) - np.eye(12)
    assert table.max() < 0.999
    assert found.history_[-1]["reseeded"] >= 3
    kept = DictionaryLearning(**{**SMALL, "n_epochs": 10}, dictionary_init=start, reseed=False).fit(X)
    assert kept.history_[-1]["reseeded"] == 0
    assert found.score(X) > kept.score(X)


# -- the loop on the host ----------------------------------------------------------------------------


class RunningMean(AbstractLearner):
    """Moves the first atom to the weighted mean of the batch; on the host or compiled, alike."""

    on_host: bool = eqx.field(static=True)
    poison: int = eqx.field(static=True, default=10**9)

    requires = ()
    period = 2

    @property
    def host_side(self):
        return self.on_host

    def init(self, model, x, *, key):
        return jnp.zeros((), jnp.int32)

    def step(self, model, x, weights, state, *, key, since):
        mean = x.mean(0) if weights is None else (x * weights[:, None]).mean(0)
        mean = mean * np.float32(np.nan) if self.on_host and int(state) == self.poison else mean
        atoms = model.atoms + (0.1 * (mean - model.atoms[0]))[None, :]
        if self.on_host:
            assert isinstance(x, np.ndarray)
            model.atoms[...] = atoms  # in place
        else:
            model = model.with_dictionary(atoms)
        return model, state + 1, {"size": jnp.abs(jnp.nan_to_num(atoms)).max()}

    def halve_step(self, state):
        return None

    def final(self, model, state):
        return model


def _run(learner, X, n_steps=12, chunk=5):
    settings = loop.Settings(n_steps, 40, seed=3, chunk=chunk)
    weights = np.linspace(0.5, 1.5, len(X)).astype(np.float32)
    return loop.fit(
        _model(np.eye(8)),
        X,
        learner,
        Encode(_model(np.eye(8)).x_space),
        settings,
        key=jax.random.key(0),
        weights=weights,
    )


def test_the_host_goes_through_the_steps_of_the_compiled_loop(X):
    host, compiled = (
        _run(RunningMean(on_host), X, 3 * loop.SHORT_CHUNK, loop.SHORT_CHUNK) for on_host in (True, False)
    )
    np.testing.assert_allclose(host.model.atoms, compiled.model.atoms, atol=1e-6)
    assert [row["step"] for row in host.history] == [row["step"] for row in compiled.history]
    np.testing.assert_allclose([r["size"] for r in host.history], [r["size"] for r in compiled.history], atol=1e-6)
    assert int(host.state) == int(compiled.state) == host.n_steps
    assert host.compile_seconds == 0


class Counting(RunningMean):
    """Tells how many steps every report stands for."""

    def step(self, model, x, weights, state, *, key, since):
        model, state, _ = super().step(model, x, weights, state, key=key, since=since)
        return model, state, {"since": np.float64(since), "mean": x.mean()}


def test_a_chunk_on_the_host_has_as_many_steps_as_asked_for_and_ends_with_a_report(X):
    result = _run(Counting(True), X, n_steps=5)
    assert result.n_steps == 5
    assert result.history[0]["since"] == pytest.approx((2 + 2 + 1) / 3)


def test_short_chunks_have_full_steps_only_and_long_ones_groups(X):
    short, long = (_run(Counting(False), X, n, n) for n in (loop.SHORT_CHUNK - 1, loop.SHORT_CHUNK))
    assert short.history[0]["since"] == 1
    assert long.history[0]["since"] == 2  # the learner's own period


def test_divergence_on_the_host_keeps_the_last_good_model(X):
    with pytest.raises(DivergenceError, match="non-finite") as caught:
        _run(RunningMean(True, poison=8), X)
    good = caught.value.result
    assert 0 < good.n_steps <= 8
    assert np.isfinite(good.model.atoms).all()
    assert len(good.history) == good.n_steps / good.history[0]["step"]


SCRIPT = """
import os, signal, sys
import numpy as np
from latentia import DictionaryLearning
from latentia.learning import fit
fit.CHECKPOINT_SECONDS = 0.0
X = np.load(sys.argv[1])
stop = lambda event: event.epoch >= 4 and os.kill(os.getpid(), signal.SIGKILL)
DictionaryLearning(12, 0.2, update=sys.argv[3], batch_size=50, n_epochs=9, min_gain=0.0, random_state=0,
                   run_dir=sys.argv[2], callbacks=[stop]).fit(X)
"""


@pytest.mark.parametrize("update", ["online", "mod"])
def test_killed_runs_resume_to_the_same_bits(X, tmp_path, update):
    np.save(tmp_path / "X.npy", X)
    script = tmp_path / "train.py"
    script.write_text(textwrap.dedent(SCRIPT))
    done = subprocess.run(
        [sys.executable, script, tmp_path / "X.npy", tmp_path / "run", update],
        timeout=120,
        check=False,
        env=dict(os.environ),
    )
    assert done.returncode == -signal.SIGKILL
    assert not (tmp_path / "run" / "model.safetensors").exists()
    before = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    options = {**SMALL, "n_epochs": 9, "update": update, "callbacks": [lambda event: False]}
    resumed = DictionaryLearning(**options, run_dir=tmp_path / "run", resume=True).fit(X)
    assert resumed.n_steps_ == DictionaryLearning(**options).fit(X).n_steps_
    whole = DictionaryLearning(**options, run_dir=tmp_path / "whole").fit(X)
    np.testing.assert_array_equal(resumed.components_, whole.components_)
    assert [r["objective"] for r in resumed.history_] == [r["objective"] for r in whole.history_]
    np.testing.assert_array_equal(load(tmp_path / "run" / "model.safetensors").components_, whole.components_)
    assert resumed.history_[:2] == before[:2]  # with its seconds: the run was gone on with


def test_early_stopping_and_a_small_gain_end_the_training(X):
    stopped = DictionaryLearning(**{**SMALL, "n_epochs": 200, "min_gain": 1e-2, "batch_size": 600}).fit(X)
    path = np.array([row["objective"] for row in stopped.history_])
    gains = -np.diff(path) / path[:-1]
    assert 3 < len(path) < 50
    assert (gains[:-1] >= 1e-2).all()
    assert gains[-1] < 1e-2
    early = {"early_stopping": True, "patience": 2, "validation_fraction": 0.5}
    held = DictionaryLearning(**{**SMALL, "n_epochs": 200, "batch_size": 10}, **early).fit(X[:40])
    scores = np.array([row["validation_score"] for row in held.history_])
    assert len(scores) < 200
    assert np.argmax(scores) == len(scores) - 3
    assert scores.max() < 0  # minus an objective
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    apart = np.sort(np.random.default_rng([seed, 1]).permutation(40)[:20])
    assert held.score(X[apart]) == pytest.approx(scores.max(), rel=1e-5)  # the best model was kept
