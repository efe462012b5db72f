"""Fine-tuning a generative model into a classifier: learning, labels, files, resuming, and wrong input."""

from __future__ import annotations

import inspect
import json

import equinox as eqx
import jax
import numpy as np
import pandas as pd
import pytest
from scipy.special import expit, softmax
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.exceptions import DataConversionWarning, NotFittedError
from sklearn.linear_model import LogisticRegression

import latentia
from latentia import RBM, registry
from latentia.abilities import finetuning_run
from latentia.abilities.finetuning import Finetunes
from latentia.abilities.finetuning_run import Lesson
from latentia.core.errors import DataError, DivergenceError, FileFormatError, ParameterError, RunFolderError
from latentia.core.files import read_arrays, write_arrays
from latentia.core.leaves import to_arrays
from latentia.estimator.saving import plain_parameters
from latentia.learning.committee import Separately
from latentia.learning.feed_forward import VARIANCE_FLOOR, FeedForward


class TunedRBM(Finetunes, RBM):
    """An RBM whose network is its one hidden layer."""

    family = "tuned-rbm"

    def _feed_forward(self):
        model = self.model_
        weights = np.asarray(model.weights)
        return [(weights, np.asarray(model.hidden.bias) - np.asarray(model.visible_offset) @ weights)]

    def _network_inputs(self, X):
        return self._visibles(X, purpose="coding")


class LabelRBM(TunedRBM):
    """Pretends to have label units: the first two columns are the labels' odds."""

    def label(self):
        self.classes_ = np.array(["no", "yes"])
        return self

    def _label_probabilities(self, X):
        return softmax(np.asarray(X)[:, :2], axis=1)


SMALL = {"n_components": 6, "batch_size": 20, "n_epochs": 2, "random_state": 0}
QUICK = {"n_epochs": 6, "batch_size": 20, "learning_rate": 0.02, "dropout": 0.2, "input_dropout": 0.1}


@pytest.fixture(scope="module")
def X():
    return (np.random.default_rng(0).random((120, 8)) < 0.4).astype(float)


@pytest.fixture(scope="module")
def y(X):
    return (X[:, 0] + 2 * X[:, 1]).astype(int)  # four classes, two columns


@pytest.fixture(scope="module")
def fitted(X):
    return TunedRBM(**SMALL).fit(X)


@pytest.fixture
def rbm(fitted):
    """A fitted estimator that a test may fine-tune."""
    return clone(fitted).adopt(fitted.model_, fitted.blueprint_)


@pytest.fixture
def registered(monkeypatch):
    entry = registry.Family("tuned-rbm", f"{__name__}:TunedRBM", "for tests", "tests", {}, "binary")
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, entry))


def parameters(rbm) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(rbm.classifier_)])


# -- learning ------------------------------------------------------------------------------------------------


def test_digits_are_told_apart_better_after_fine_tuning():
    digits = load_digits()
    order = np.random.default_rng(0).permutation(len(digits.target))
    X, y = (digits.data / 16).astype(np.float32)[order], digits.target[order]
    rbm = TunedRBM(100, binarize="sample", n_epochs=20, batch_size=50, random_state=0).fit(X[:1200])
    codes, free = rbm.transform(X), rbm.free_energy(X)
    on_top = LogisticRegression(max_iter=1000).fit(codes[:1200], y[:1200]).score(codes[1200:], y[1200:])
    assert rbm.finetune(X[:1200], y[:1200], n_epochs=80, batch_size=50, learning_rate=0.01) is rbm
    assert rbm.accuracy(X[1200:], y[1200:]) > max(on_top + 0.05, 0.95)  # than a classifier of the codes as they are
    assert rbm.accuracy(X[1200:], y[1200:]) == np.mean(rbm.predict(X[1200:]) == y[1200:])
    np.testing.assert_array_equal(rbm.classes_, np.arange(10))
    losses = [row["loss"] for row in rbm.finetune_history_]
    assert losses[-1] < 0.3 * losses[0]
    assert rbm.finetune_history_[-1]["accuracy"] > 0.8
    # The generative model is what it was.
    np.testing.assert_array_equal(rbm.transform(X), codes)
    np.testing.assert_array_equal(rbm.free_energy(X), free)


def test_it_starts_from_the_generative_weights(rbm, X, y):
    rbm.finetune(X, y, n_epochs=1, learning_rate=1e-12)
    (weights, biases), network = rbm._feed_forward()[0], rbm.classifier_
    np.testing.assert_allclose(network.weights[0], weights, atol=1e-6)
    np.testing.assert_allclose(network.biases[0], biases, atol=1e-6)
    hidden = expit(X @ np.asarray(network.weights[0]) + np.asarray(network.biases[0]))
    np.testing.assert_allclose(hidden, rbm.transform(X), atol=1e-5)


def test_nothing_is_dropped_at_prediction(rbm, X, y):
    rbm.finetune(X, y, **QUICK)
    (w1, w2), (b1, b2) = (
        [np.asarray(a, np.float64) for a in part] for part in (rbm.classifier_.weights, rbm.classifier_.biases)
    )
    wanted = softmax(expit(X @ w1 + b1) @ w2 + b2, axis=1)
    found = rbm.predict_proba(X)
    np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.testing.assert_array_equal(found, rbm.predict_proba(X))
    np.testing.assert_allclose(found.sum(1), 1.0, atol=1e-6)
    np.testing.assert_array_equal(rbm.predict(X), np.argmax(wanted, axis=1))


def test_same_seed_same_bits_and_another_seed_others(rbm, X, y):
    first = parameters(rbm.finetune(X, y, **QUICK))
    np.testing.assert_array_equal(parameters(rbm.finetune(X, y, **QUICK)), first)
    np.testing.assert_array_equal(parameters(rbm.finetune(X, y, **QUICK, random_state=0)), first)
    assert not np.array_equal(parameters(rbm.finetune(X, y, **QUICK, random_state=1)), first)


def test_every_option_reaches_the_loop(rbm, X, y, monkeypatch):
    caught = []
    monkeypatch.setattr(finetuning_run.loop, "fit", lambda *run, **more: caught.append((run, more)) or _stop())
    given = {
        "activation": "tanh",
        "n_epochs": 7,
        "batch_size": 30,
        "learning_rate": 0.25,
        "schedule": "cosine",
        "optimizer": "nesterov",
        "momentum": 0.5,
        "dropout": 0.25,
        "input_dropout": 0.125,
        "max_norm": 2,
        "weight_decay": 0.375,
        "averaging": 0.75,
        "label_smoothing": 0.0625,
        "input_noise": 0.5,
        "adversarial": 0.875,
        "virtual_adversarial": 0.625,
    }
    with pytest.raises(StopIteration):
        rbm.finetune(X, y, **given, early_stopping=True, validation_fraction=0.25, patience=3)
    (network, rows, learner, _, settings), more = caught[0]
    optimizer, objective = learner.optimizer, learner.objective
    assert (optimizer.direction, optimizer.momentum, optimizer.schedule) == ("nesterov", 0.5, "cosine")
    assert (float(optimizer.learning_rate), float(optimizer.weight_decay)) == (0.25, 0.375)
    assert float(optimizer.n_steps) == settings.n_steps == 21  # 90 rows are left, three batches seven times
    assert (network.dropout, network.input_dropout, network.max_norm) == (0.25, 0.125, 2.0)
    assert (network.activation, network.normalisation) == ("tanh", None)
    assert (learner.averaging, objective.smoothing) == (0.75, 0.0625)
    assert (objective.noise, objective.adversarial, objective.virtual) == (0.5, 0.875, 0.625)
    assert (settings.batch_size, settings.patience, rows.shape, more["weights"]) == (30, 3, (90, 9), None)


def _stop():
    raise StopIteration


SEVERAL = {"n_networks": 3, "activation": "relu", "normalise": True, "batch_size": 30}


def test_several_networks_start_from_the_generative_weights_and_predict_by_their_mean(rbm, X, y):
    rbm.finetune(X, y, **{**QUICK, **SEVERAL})
    committee = rbm.classifier_
    assert (committee.n_members, committee.member(0).activation) == (3, "relu")
    each = []
    for number in range(3):
        rbm.classifier_ = committee.member(number)
        each.append(rbm.predict_proba(X))
    rbm.classifier_ = committee
    np.testing.assert_allclose(rbm.predict_proba(X), np.mean(each, axis=0), atol=1e-6)
    assert np.std(each, axis=0).max() > 1e-4  # they threw their own dice
    assert rbm.finetune_history_[-1]["loss"] < rbm.finetune_history_[0]["loss"]
    rbm.finetune(X, y, n_epochs=1, learning_rate=1e-12, n_networks=2, activation="relu", normalise=True)
    weights, biases = rbm._feed_forward()[0]
    for number in range(2):
        network = rbm.classifier_.member(number)
        np.testing.assert_allclose(network.weights[0], weights, atol=1e-6)
        leaves = network.normalisation.gains[0], *network.normalisation.moments[0], network.biases[0]
        gains, mean, spread, shift = map(np.asarray, leaves)
        field = gains * (X @ np.asarray(network.weights[0]) - mean) / spread + shift
        np.testing.assert_allclose(field, X @ weights + biases, atol=1e-4)  # the model's own
    outputs = rbm.classifier_.members.weights[1]
    assert not np.array_equal(outputs[0], outputs[1])


def test_several_networks_learn_separately_and_are_scored_as_they_would_predict(rbm, X, y, monkeypatch):
    caught = []
    monkeypatch.setattr(finetuning_run.loop, "fit", lambda *run, **more: caught.append(run) or _stop())
    options = {**QUICK, **SEVERAL, "activation": "tanh", "adversarial": 0.5}
    with pytest.raises(StopIteration):
        rbm.finetune(X, y, early_stopping=True, validation_fraction=0.25, **options)
    committee, rows, learner, _, settings = caught[0]
    assert isinstance(learner.objective, Separately)
    assert learner.objective.objective.adversarial == 0.5
    outputs, moments = committee.members.weights[1], committee.members.normalisation.moments
    strange = eqx.tree_at(  # it says something, and its moments are not those of its fields
        lambda m: (m.members.weights[1], m.members.normalisation.moments),
        committee,
        (300 * outputs, jax.tree.map(lambda a: 1 - 2 * a, moments)),
    )
    held = np.setdiff1d(np.arange(len(X)), finetuning_run._split(y.astype(float), 0.25, _seed(0))[0])
    rbm.classifier_, rbm.classes_ = strange.with_moments(rows.data.read_all()), np.unique(y)
    wanted = np.mean(np.log(rbm.predict_proba(X[held])[np.arange(held.size), y[held]]))
    assert settings.score(strange) == pytest.approx(wanted, abs=1e-5)
    rbm.classifier_ = strange
    assert abs(np.mean(np.log(rbm.predict_proba(X[held])[np.arange(held.size), y[held]])) - wanted) > 1e-3


def test_a_normalised_network_is_settled_on_rows_that_have_weight(rbm, X, y):
    weights = np.r_[np.ones(60), np.zeros(len(X) - 60)]
    rbm.finetune(X, y, sample_weight=weights, normalise=True, **QUICK)
    network = rbm.classifier_
    fields = X[:60] @ np.asarray(network.weights[0])
    mean, spread = network.normalisation.moments[0]
    np.testing.assert_allclose(mean, fields.mean(0), atol=1e-5)
    np.testing.assert_allclose(spread, np.sqrt(fields.var(0) + VARIANCE_FLOOR), atol=1e-5)
    assert np.abs((X @ np.asarray(network.weights[0])).mean(0) - mean).max() > 1e-3


def test_the_rows_that_settle_a_network_are_spread_evenly_and_limited(monkeypatch):
    monkeypatch.setattr(finetuning_run, "MOST_MOMENT_ROWS", 4)
    rows, labels = np.arange(10.0)[:, None], np.zeros(10)
    inputs, weights = Lesson(rows, labels, None, np.arange(2)).few()
    assert (inputs[:, 0].tolist(), inputs.shape[1], weights) == ([0, 3, 6, 9], 1, None)
    inputs, weights = Lesson(rows, labels, np.arange(1.0, 11.0), np.arange(2)).few()
    np.testing.assert_array_equal(inputs[:, 0], [0, 3, 6, 9])
    np.testing.assert_allclose(weights, np.array([1, 4, 7, 10]) / 5.5, rtol=1e-6)


def test_moments_need_a_batch_and_rows(rbm, X, y, tmp_path):
    folder = tmp_path / "run"
    with pytest.raises(ParameterError, match="batch_size of at least 2"):
        rbm.finetune(X, y, run_dir=folder, **{**QUICK, "batch_size": 1, "normalise": True})
    with pytest.raises(DataError, match="at least two classes"):  # one row has weight, and so one class
        rbm.finetune(X, y, sample_weight=np.arange(len(X)) == 3, normalise=True, run_dir=folder, **QUICK)
    three = {"early_stopping": True, "validation_fraction": 0.5, "normalise": True, **QUICK}
    with pytest.raises(DataError, match="one to learn from that has weight"):
        rbm.finetune(X[:3], np.arange(3), run_dir=folder, **three)
    assert not folder.exists()


def test_early_stopping_keeps_the_normalised_network_that_it_scored(rbm, X, y):
    options = {"early_stopping": True, "validation_fraction": 0.25, "patience": 50, "normalise": True}
    rbm.finetune(X, y, **{**QUICK, **options})
    held = finetuning_run._split(y.astype(float), 0.25, _seed(0))[1]
    kept = np.mean(np.log(rbm.predict_proba(X[held])[np.arange(held.size), y[held]]))
    scores = [row["validation_score"] for row in rbm.finetune_history_ if "validation_score" in row]
    assert kept == pytest.approx(max(scores), abs=1e-5)


def test_rows_without_weight_are_not_learned_from(rbm, X, y):
    longer = {**QUICK, "n_epochs": 40}
    wrong = np.concatenate([y, (y + 1) % 4, (y + 1) % 4])  # twice as many rows with the wrong label
    rows, weights = np.concatenate([X, X, X]), np.concatenate([np.ones(len(y)), np.zeros(2 * len(y))])
    assert rbm.finetune(rows, wrong, **longer).accuracy(X, y) < 0.5
    assert rbm.finetune(rows, wrong, sample_weight=weights, **longer).accuracy(X, y) > 0.9


def test_early_stopping_keeps_the_best_network(rbm, X):
    y = np.random.default_rng(1).integers(0, 2, len(X))  # nothing to learn: only memorising
    options = {**QUICK, "n_epochs": 300, "dropout": 0.0, "input_dropout": 0.0, "learning_rate": 0.05}
    rbm.finetune(X, y, early_stopping=True, validation_fraction=0.25, patience=4, **options)
    scores = [row["validation_score"] for row in rbm.finetune_history_]
    assert len(scores) < 300
    assert len(scores) - 1 - int(np.argmax(scores)) == 4
    kept, held = finetuning_run._split(y.astype(float), 0.25, _seed(0))
    assert len(held) == 30
    assert sorted([*kept, *held]) == list(range(120))
    assert abs(y[held].mean() - y.mean()) < 1 / 30  # the classes in proportion
    log_p = np.log(rbm.predict_proba(X)[held, y[held]])
    assert log_p.mean() == pytest.approx(max(scores), abs=1e-5)


def _seed(random_state: int) -> int:
    return int(np.random.RandomState(random_state).randint(2**31 - 1))


def test_a_class_with_one_row_does_not_stop_early_stopping(rbm, X, y):
    labels = np.where(np.arange(len(y)) == 5, 9, y)
    rbm.finetune(X, labels, early_stopping=True, **QUICK)
    np.testing.assert_array_equal(rbm.classes_, [0, 1, 2, 3, 9])


def test_a_divergence_is_reported_and_the_last_good_network_kept(rbm, X, y):
    with pytest.raises(DivergenceError, match="learning_rate"):
        rbm.finetune(X, y, **{**QUICK, "learning_rate": 1e30, "schedule": "constant"})
    kept = rbm.predict_proba(X)
    np.testing.assert_allclose(kept.sum(1), 1, rtol=1e-5)
    np.testing.assert_allclose(kept, 0.25, atol=0.2)  # as it started, before any class was learned


def test_progress_says_what_is_going_on(rbm, X, y, monkeypatch):
    titles = []
    real = finetuning_run.display
    monkeypatch.setattr(finetuning_run, "display", lambda verbose, title: titles.append(title) or real(0, title))
    rbm.finetune(X, y, **QUICK)
    assert titles == ["TunedRBM fine-tuning"]


# -- labels --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        np.array(["ant", "bee", "cow", "doe"]),
        np.array(["ant", "bee", "cow", "doe"], dtype=object),
        np.array([-3, 7, 20, 21]),
        np.array([0.0, 1.0, 2.0, 5.0]),
    ],
)
def test_labels_may_be_strings_or_any_numbers(fitted, rbm, X, y, names, registered, tmp_path):
    plain = clone(fitted).adopt(fitted.model_, fitted.blueprint_).finetune(X, y, **QUICK)
    rbm.finetune(X, names[y], **QUICK)
    assert rbm.classes_.tolist() == names.tolist()
    np.testing.assert_array_equal(rbm.predict(X), names[plain.predict(X)])
    np.testing.assert_array_equal(rbm.predict_proba(X), plain.predict_proba(X))
    assert rbm.accuracy(X, names[y]) == plain.accuracy(X, y)
    rbm.save(tmp_path / "tuned.safetensors")
    back = latentia.load(tmp_path / "tuned.safetensors")
    assert back.classes_.dtype == names.dtype
    np.testing.assert_array_equal(back.predict(X), rbm.predict(X))


def test_lists_series_and_frames_are_taken(rbm, X, y):
    wanted = rbm.finetune(X, y, **QUICK).predict_proba(X)
    np.testing.assert_array_equal(rbm.finetune(X.tolist(), y.tolist(), **QUICK).predict_proba(X), wanted)
    frame = pd.DataFrame(X, columns=[f"pixel{i}" for i in range(8)])
    named = TunedRBM(**SMALL).fit(frame)
    named.finetune(frame, pd.Series(y), **QUICK)
    np.testing.assert_array_equal(named.predict_proba(frame), wanted)
    with pytest.raises(ValueError, match="feature names"):
        named.predict(frame[frame.columns[::-1]])
    with pytest.warns(DataConversionWarning, match="column-vector"):
        rbm.finetune(X, y[:, None], **QUICK)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (lambda y: y[:-1], r"one label per row of X \(120\), got 119"),
        (lambda y: np.zeros_like(y), "at least two classes"),
        (lambda y: np.array(["one"] * len(y)), "All labels are.*one"),
        (lambda y: np.where(np.arange(len(y)) == 3, np.nan, y), "no label in 1 rows, first in row 3"),
        (lambda y: np.where(np.arange(len(y)) == 3, None, "a"), "no label in 1 rows"),
        (lambda y: np.where(np.arange(len(y)) == 3, np.inf, y), "infinite"),
        (lambda y: y + 0.5 * np.random.default_rng(0).random(len(y)), "class labels.*continuous"),
        (lambda y: np.array([1, "a"] * 60, dtype=object), "class labels"),
        (lambda y: np.stack([y, y], axis=1), "1d array"),
        (lambda y: None, "pass y"),
    ],
)
def test_labels_that_are_none_are_refused(rbm, X, y, labels, message):
    with pytest.raises(ValueError, match=message):
        rbm.finetune(X, labels(y), **QUICK)
    assert "classifier_" not in vars(rbm)


def test_accuracy_refuses_labels_that_were_never_learned(rbm, X, y):
    rbm.finetune(X, y, **QUICK)
    with pytest.raises(DataError, match=r"not learned: 7, 9\. Known: 0, 1, 2, 3"):
        rbm.accuracy(X, np.where(np.arange(len(y)) == 0, 9, np.where(y == 3, 7, y)))
    with pytest.raises(DataError, match="not learned: '0'"):
        rbm.accuracy(X, y.astype(str))  # "0" is not 0
    with pytest.raises(DataError, match="not learned: nan"):
        rbm.accuracy(X, np.where(np.arange(len(y)) == 3, np.nan, y))
    with pytest.raises(DataError, match=r"\(120\), got 5"):
        rbm.accuracy(X, y[:5])
    with pytest.raises(DataError, match="pass y"):
        rbm.accuracy(X, None)


# -- before and after ----------------------------------------------------------------------------------------


def test_too_early_is_explained(fitted, X, y):
    fresh = TunedRBM(**SMALL)
    with pytest.raises(NotFittedError, match=r"finetune starts from what fit\(X\) learned"):
        fresh.finetune(X, y)
    for method in (lambda e: e.predict(X), lambda e: e.predict_proba(X), lambda e: e.accuracy(X, y)):
        with pytest.raises(NotFittedError, match=r"call fit\(X\), then finetune"):
            method(fresh)
        with pytest.raises(NotFittedError, match=r"Call finetune\(X, y\) first, or fit with labels"):
            method(fitted)
    assert not hasattr(fitted, "predict")
    assert list(inspect.signature(TunedRBM.predict).parameters) == ["self", "X"]
    assert TunedRBM.predict.__doc__.startswith("The most probable label")


def test_learning_the_model_anew_forgets_the_classifier(X, y):
    rbm = TunedRBM(**SMALL).fit(X).finetune(X, y, **QUICK)
    assert hasattr(rbm, "predict")
    rbm.partial_fit(X)
    for name in ("classifier_", "classes_", "finetune_history_", "predict"):
        assert not hasattr(rbm, name)


def test_a_failed_fine_tuning_leaves_the_last_classifier(rbm, X, y):
    before = rbm.finetune(X, y, **QUICK).predict_proba(X)
    with pytest.raises(DataError):
        rbm.finetune(X, np.zeros(len(y)))
    np.testing.assert_array_equal(rbm.predict_proba(X), before)


def test_label_units_predict_until_there_is_a_classifier(fitted, X, y):
    rbm = LabelRBM(**SMALL).adopt(fitted.model_, fitted.blueprint_)
    with pytest.raises(NotFittedError, match="label units"):
        rbm.predict(X)
    rbm.label()
    np.testing.assert_array_equal(rbm.predict_proba(X), softmax(X[:, :2], axis=1))
    np.testing.assert_array_equal(rbm.predict(X), np.where(X[:, 1] > X[:, 0], "yes", "no"))
    assert rbm.accuracy(X, np.where(X[:, 1] > X[:, 0], "yes", "no")) == 1.0
    rbm.finetune(X, y, **QUICK)
    assert rbm.predict_proba(X).shape == (120, 4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_networks": 0}, "n_networks must be an integer"),
        ({"activation": "rely"}, "activation"),
        ({"normalise": "yes"}, "normalise"),
        ({"n_epochs": 0}, "n_epochs must be an integer"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"schedule": "steps"}, "schedule"),
        ({"optimizer": "adm"}, "Did you mean 'adam'"),
        ({"momentum": 1.0}, "momentum"),
        ({"dropout": 1.0}, r"dropout must be a number in \[0, 1\)"),
        ({"input_dropout": -0.1}, "input_dropout"),
        ({"max_norm": -1}, "max_norm"),
        ({"weight_decay": float("nan")}, "weight_decay"),
        ({"averaging": 1.0}, "averaging"),
        ({"label_smoothing": 1.0}, "label_smoothing"),
        ({"input_noise": -1.0}, "input_noise"),
        ({"adversarial": -1.0}, "adversarial"),
        ({"virtual_adversarial": "far"}, "virtual_adversarial"),
        ({"early_stopping": "yes"}, "early_stopping"),
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"patience": 0}, "patience"),
        ({"resume": "yes"}, "resume"),
    ],
)
def test_wrong_numbers_are_refused(rbm, X, y, change, message):
    with pytest.raises(ParameterError, match=message):
        rbm.finetune(X, y, **{**QUICK, **change})


def test_wrong_data_are_refused(rbm, X, y):
    with pytest.raises(ValueError, match="7 features.*expecting 8"):
        rbm.finetune(X[:, :7], y)
    with pytest.raises(ValueError, match="NaN"):
        rbm.finetune(np.where(X == 1, np.nan, X), y)
    with pytest.raises(DataError, match="one entry per row"):
        rbm.finetune(X, y, sample_weight=np.ones(3))
    with pytest.raises(DataError, match="non-negative"):
        rbm.finetune(X, y, sample_weight=-np.ones(120))
    with pytest.raises(DataError, match="leaves none"):
        rbm.finetune(X[:2], [0, 1], early_stopping=True, validation_fraction=0.9)
    rbm.finetune(X, y, **QUICK)
    with pytest.raises(ValueError, match="7 features.*expecting 8"):
        rbm.predict(X[:, :7])


# -- files ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize("more", [{"max_norm": 3.0}, SEVERAL])
def test_a_saved_classifier_predicts_the_same_bits(rbm, X, y, tmp_path, more):
    path = tmp_path / "tuned.safetensors"
    rbm.finetune(X, y, **{**QUICK, **more}).save(path)
    back = latentia.load(path)
    assert type(back) is TunedRBM
    np.testing.assert_array_equal(back.predict_proba(X), rbm.predict_proba(X))
    np.testing.assert_array_equal(back.transform(X), rbm.transform(X))
    assert jax.tree.structure(back.classifier_) == jax.tree.structure(rbm.classifier_)
    assert back.classes_.dtype == rbm.classes_.dtype
    back.save(tmp_path / "again.safetensors")
    same_content(tmp_path / "again.safetensors", path)


@pytest.mark.usefixtures("registered")
def test_files_without_parts_load_as_before(fitted, X, tmp_path):
    """What was written before there were parts, and what is written when there are none, is one and the same."""
    description = {
        "kind": "model",
        "family": "tuned-rbm",
        "params": plain_parameters(fitted),
        "blueprint": fitted.blueprint_,
        "feature_names": None,
    }
    write_arrays(tmp_path / "old.safetensors", to_arrays(fitted.model_), description)
    old = latentia.load(tmp_path / "old.safetensors")
    np.testing.assert_array_equal(old.transform(X), fitted.transform(X))
    assert not hasattr(old, "predict")
    fitted.save(tmp_path / "new.safetensors")
    same_content(tmp_path / "new.safetensors", tmp_path / "old.safetensors")


def same_content(first, second) -> None:
    (arrays, description), (other_arrays, other_description) = read_arrays(first), read_arrays(second)
    assert description == other_description
    assert sorted(arrays) == sorted(other_arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, other_arrays[name])


@pytest.mark.usefixtures("registered")
def test_damaged_files_are_refused(rbm, X, y, tmp_path):
    path = tmp_path / "tuned.safetensors"
    rbm.finetune(X, y, **QUICK).save(path)
    good = path.read_bytes()
    flipped = bytearray(good)
    flipped[-3] ^= 1
    for content, message in ((good[:-10], "not a complete"), (bytes(flipped), "checksum"), (b"", "not a complete")):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=message):
            latentia.load(path)
    path.write_bytes(good)
    arrays, description = read_arrays(path)
    shorter = {name: a for name, a in arrays.items() if name != "classifier_:biases.1"}
    write_arrays(path, shorter, description)
    with pytest.raises(FileFormatError, match="classifier_:biases.1"):
        latentia.load(path)
    write_arrays(path, arrays, {**description, "parts": {"oracle_": {}}})
    with pytest.raises(FileFormatError, match="parts that this release does not support: oracle_"):
        latentia.load(path)
    sizes = {**description["parts"]["classifier_"], "sizes": [8, 6, 3]}
    write_arrays(path, arrays, {**description, "parts": {"classifier_": sizes}})
    with pytest.raises(FileFormatError, match="expected float32"):
        latentia.load(path)


class Interrupting:
    """A display at which the user gives up after a few chunks."""

    def __init__(self, after: int):
        self.left = after

    def start(self, n_steps, done): ...
    def compiling(self): ...
    def say(self, message): ...
    def stop(self): ...
    def update(self, done, metrics):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    "more",
    [
        {},
        {"early_stopping": True, "patience": 50, "averaging": 0.9},
        {"early_stopping": True, "patience": 50, **SEVERAL},
    ],
)
def test_a_resumed_run_goes_through_the_same_bits(rbm, X, y, tmp_path, monkeypatch, more):
    options = {**QUICK, **more}
    whole = parameters(rbm.finetune(X, y, run_dir=tmp_path / "whole", **options))
    history = [{k: v for k, v in row.items() if k != "seconds"} for row in rbm.finetune_history_]
    with monkeypatch.context() as patch:
        patch.setattr(finetuning_run, "display", lambda verbose, title: Interrupting(3))
        with pytest.raises(KeyboardInterrupt):
            rbm.finetune(X, y, run_dir=tmp_path / "part", **options)
    assert len((tmp_path / "part" / "metrics.jsonl").read_text().splitlines()) == 3
    resumed = parameters(rbm.finetune(X, y, run_dir=tmp_path / "part", resume=True, **options))
    np.testing.assert_array_equal(resumed, whole)
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in rbm.finetune_history_] == history
    back = latentia.load(tmp_path / "part" / "model.safetensors")
    np.testing.assert_array_equal(back.predict_proba(X), rbm.predict_proba(X))


@pytest.mark.usefixtures("registered")
def test_run_folders_are_described_and_not_mixed_up(rbm, X, y, tmp_path):
    folder = tmp_path / "run"
    rbm.finetune(X, y, run_dir=folder, **QUICK)
    names = sorted(p.name for p in folder.iterdir())
    assert names == [
        "checkpoint.safetensors",
        "config.json",
        "finetuning.json",
        "metrics.jsonl",
        "model.safetensors",
    ]
    described = json.loads((folder / "finetuning.json").read_text())
    assert described["dropout"] == 0.2
    assert described["optimizer"] == "adam"
    with pytest.raises(RunFolderError, match="not empty"):
        rbm.finetune(X, y, run_dir=folder, **QUICK)
    others = [
        (X, y, {**QUICK, "dropout": 0.3}),
        (X, y, {**QUICK, "n_networks": 2}),
        (X, y, {**QUICK, "activation": "relu"}),
        (X, y, {**QUICK, "normalise": True}),
        (X, (y + 1) % 4, QUICK),
        (1 - X, y, QUICK),
        (X, y, {**QUICK, "random_state": 3}),
        (X, y, {**QUICK, "sample_weight": np.arange(120)}),
    ]
    for other_X, other_y, options in others:
        with pytest.raises(RunFolderError, match="other parameters or other data"):
            rbm.finetune(other_X, other_y, run_dir=folder, resume=True, **options)
    elsewhere = TunedRBM(**{**SMALL, "n_epochs": 3}).fit(X)
    with pytest.raises(RunFolderError, match="other parameters or other data"):
        elsewhere.finetune(X, y, run_dir=folder, resume=True, **QUICK)
    assert json.loads((folder / "finetuning.json").read_text()) == described
    finished = rbm.predict_proba(X)
    np.testing.assert_array_equal(
        rbm.finetune(X, y, run_dir=folder, resume=True, **QUICK).predict_proba(X), finished
    )


def test_the_network_is_a_model_of_its_own(rbm, X, y):
    rbm.finetune(X, y, **QUICK)
    assert isinstance(rbm.classifier_, FeedForward)
    label = np.eye(4, dtype=np.float32)[y[0]][None]
    energy = rbm.classifier_.energy((np.asarray(X[0], np.float32), label), ())
    assert float(energy) == pytest.approx(-np.log(rbm.predict_proba(X[:1])[0, y[0]]), abs=1e-5)
