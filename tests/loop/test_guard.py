"""Collapse: a machine that saturates with finite numbers is rolled back, and a sound run is left alone."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits

from latentia import DBM, RBM
from latentia.core.errors import DivergenceError
from latentia.estimator import fits, gradient, training
from latentia.estimator.scoring import reconstruction_error
from latentia.learning.guard import FORGOTTEN, LEARNED, WORSE, Guard

SMALL = {"binarize": "sample", "batch_size": 100, "n_epochs": 6, "random_state": 0}
DBMS = {**SMALL, "hidden": (20, 10)}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return load_digits().data[:800] / 16


@pytest.fixture
def said(monkeypatch):
    """What runs say to a person."""
    lines: list[str] = []

    class Display(training.loop.Silent):
        def say(self, message):
            lines.append(message)

    monkeypatch.setattr(fits, "display", lambda verbose, title: Display())
    return lines


def dead(estimator, X) -> float:
    """The part of the units that do not answer to the data."""
    return float(np.mean(estimator.transform(X).std(axis=0) < 1e-3))


def test_a_collapsed_dbm_is_rolled_back_halved_and_learns_after_all(X, said):
    dbm = DBM(**DBMS, learning_rate=8.0).fit(X)
    assert said
    assert all("diverged (collapse: reconstruction_error is" in line and "halved" in line for line in said)
    assert float(dbm._state.slowdown) == 0.5 ** len(said)
    (nothing,) = dbm.watch(dbm.model_, X.astype(np.float32)).independent.values()
    assert dbm.history_[-1]["reconstruction_error"] < 0.9 * nothing
    assert dead(dbm, X) == 0


def test_left_alone_that_dbm_ends_with_dead_units_and_no_complaint(X, said):
    dbm = DBM(**DBMS, learning_rate=8.0, monitor=None).fit(X)
    assert not said
    assert dead(dbm, X) > 0.8


def test_a_collapse_that_halving_does_not_heal_is_an_error_that_tells_what_happened(X, said):
    rbm = RBM(8, **SMALL, learning_rate=1e3)
    with pytest.raises(
        DivergenceError, match=r"collapse: pseudo_likelihood is -.* for independent sites.*learning_rate"
    ):
        rbm.fit(X)
    assert len(said) == 3
    assert rbm.n_steps_ == 0
    assert np.abs(np.asarray(rbm.model_.weights)).max() < 1  # the last good model was kept: the start


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_sound_runs_are_left_alone(X, said, rate):
    noise = (np.random.default_rng(0).random((200, 10)) < 0.3).astype(float)
    for rows, estimator in (
        (X, DBM(**DBMS, learning_rate=rate)),
        (X, RBM(8, **SMALL, learning_rate=rate)),
        (noise, RBM(8, **{**SMALL, "batch_size": 20}, learning_rate=rate)),
    ):
        estimator.fit(rows)
        assert float(estimator._state.slowdown) == 1.0
    assert not said


def test_weights_that_leave_out_rows_are_no_collapse(said):
    """The rows that are followed are not the ones that are learned then."""
    X = np.repeat(np.eye(2), 100, axis=0)[:, [0, 0, 0, 1, 1, 1]]
    weights = np.repeat([1.0, 0.0], 100)
    rbm = RBM(3, n_epochs=20, batch_size=20, learning_rate=1.0, random_state=0).fit(X, sample_weight=weights)
    assert not said
    assert rbm.sample(50, n_steps=20, random_state=0)[:, 0].mean() > 0.9


@pytest.mark.parametrize(
    ("visible", "rows", "name", "value"),
    [
        ("bernoulli", [[0, 1], [1, 1]], "pseudo_likelihood", -np.log(2)),
        ("spin", [[-1, 1], [1, 1]], "pseudo_likelihood", -np.log(2)),
        ("categorical", [[0], [1], [2]], "pseudo_likelihood", -np.log(3)),
        ("gaussian", [[0, 7], [4, 7]], "reconstruction_error", 2.0),
    ],
)
def test_ignorance_is_what_independent_sites_know(visible, rows, name, value):
    many = np.repeat(np.array(rows, np.float32), 192, axis=0)
    blueprint = {"n_features": many.shape[1], "n_states": 3}
    rbm = RBM(2, visible=visible)
    rbm.adopt(rbm.build(blueprint), blueprint)
    assert rbm.watch(rbm.model_, many).independent[name] == pytest.approx(value, rel=1e-2)


@pytest.mark.parametrize(
    ("visible", "rows", "value"),
    [
        ("bernoulli", [[0, 1], [1, 1]], 1 / 8),
        ("spin", [[-1, 1], [1, 1]], 1 / 2),
        ("categorical", [[0], [1], [2]], 2 / 9),
    ],
)
def test_a_mean_misses_discrete_sites_by_their_variance(visible, rows, value):
    """At weights of zero and the data's own biases a machine rebuilds every row as that mean."""
    many = np.repeat(np.array(rows, np.float32), 192, axis=0)
    blueprint = {"n_features": many.shape[1], "n_states": 3}
    rbm = RBM(2, visible=visible)
    rbm.adopt(rbm.build(blueprint), blueprint)
    assert rbm.watch(rbm.model_, many).independent["reconstruction_error"] == pytest.approx(value, rel=2e-2)
    ignorant = RBM(2, visible=visible, weight_scale=1e-6, learning_rate=1e-9, n_epochs=1, batch_size=64, n_states=3)
    ignorant.fit(many if visible != "categorical" else many.astype(int))
    assert reconstruction_error(ignorant.model_, many) == pytest.approx(value, rel=5e-2)


def test_a_machine_too_large_for_its_pseudo_likelihood_is_guarded_by_what_it_rebuilds(X, said, monkeypatch):
    """As a large machine on a GPU would be: the cheap metric is followed, and tells a collapse."""
    monkeypatch.setattr(gradient, "MONITOR_COST", 0.0)
    rbm = RBM(20, **{**SMALL, "n_epochs": 30}, learning_rate=0.5).fit(X)
    assert not said
    assert 0 < rbm.history_[-1]["reconstruction_error"] < rbm.history_[0]["reconstruction_error"]
    assert "pseudo_likelihood" not in rbm.history_[-1]
    assert "pseudo_likelihood" in RBM(20, **SMALL, monitor="always").fit(X).history_[-1]
    with pytest.raises(DivergenceError, match=r"collapse: reconstruction_error is .* for independent sites"):
        RBM(8, **SMALL, learning_rate=1e3).fit(X)
    assert len(said) == 3


def test_a_start_that_is_worse_than_ignorance_is_allowed_and_names_that_are_not_known_are_not_judged():
    guard = Guard({"error": 1.0}, {"error": 3.0})
    assert guard.collapsed({"error": 3.0 * WORSE, "other": 1e9}) is None
    assert "error is 3.2" in (guard.collapsed({"error": 3.2}) or "")
    assert Guard({"score": -10.0}, {"score": -9.0}).collapsed({"score": -10.6})
    assert Guard({}, {}).collapsed({"error": 1e9}) is None


def test_forgetting_most_of_what_was_known_is_a_collapse():
    """A deep machine that loses its upper layers may still be no worse than ignorant."""
    guard = Guard({"score": -10.0}, {"score": -10.5})
    assert guard.collapsed({"score": -10.4}) is None  # it has learned nothing yet
    for value in (-8.0, -6.0, -7.0):
        guard.keep({"score": value, "other": 0.0})
    limit = -6.0 - FORGOTTEN * 4.0  # the best was -6
    assert guard.collapsed({"score": limit + 0.01}) is None
    assert "score is -9.1 after -6," in (guard.collapsed({"score": -9.1}) or "")


def test_who_has_learned_little_has_little_to_forget():
    guard = Guard({"error": 1.0}, {"error": 1.0})
    guard.keep({"error": 1.01 - LEARNED})
    assert guard.collapsed({"error": 1.0}) is None
    guard.keep({"error": 0.99 - LEARNED})
    assert guard.collapsed({"error": 1.0}) is not None


def test_a_resumed_run_remembers_what_was_known(X, tmp_path, monkeypatch):
    best, collapsed = [], Guard.collapsed

    def spied(self, metrics):
        best.append(dict(self.best))
        return collapsed(self, metrics)

    def broken(event):
        if event.epoch >= 3:
            raise RuntimeError("power cut")

    monkeypatch.setattr(Guard, "collapsed", spied)
    monkeypatch.setattr(training.loop, "CHECKPOINT_SECONDS", 0.0)
    run = {**SMALL, "learning_rate": 2.0, "run_dir": tmp_path / "run"}
    with pytest.raises(RuntimeError, match="power cut"):
        RBM(8, **run, callbacks=[broken]).fit(X)
    best.clear()
    RBM(8, **run, resume=True).fit(X)
    resumed = best.copy()
    best.clear()
    RBM(8, **{**run, "run_dir": tmp_path / "whole"}).fit(X)
    assert 0 < len(resumed) < len(best)
    assert resumed == best[-len(resumed) :]
    assert best[-1] != best[0]
