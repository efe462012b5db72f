"""Fine-tuning's plumbing: weights, held-out rows, what survives an interruption, what a resumed run must share."""

from __future__ import annotations

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from plumbing_tools import Interrupting, bits, keys_used, through_interruptions, without_seconds
from scipy.special import expit, log_softmax, softmax

from latentia import RBM, registry
from latentia.abilities import finetuning_run
from latentia.abilities.finetuning import Finetunes
from latentia.core.errors import DataError, RunFolderError
from latentia.estimator import rows
from latentia.estimator.digests import digest
from latentia.learning import fit as loop
from latentia.learning import gradient
from latentia.learning.committee import Committee, Separately
from latentia.learning.feed_forward import VARIANCE_FLOOR, FeedForward
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.supervised import CrossEntropy, LabelledRows

N, D = 24, 5
#: Every row is the number of the row in binary: rows tell who they are.
X = ((np.arange(N)[:, None] >> np.arange(D)) & 1).astype(np.float64)
Y = np.arange(N) % 3
RNG = np.random.default_rng(0)
WEIGHTS = 1.0 + np.arange(N)
SOME = np.where(RNG.random(N) < 0.3, 0.0, WEIGHTS)  # some rows have no weight
STILL = {"dropout": 0.0, "input_dropout": 0.0, "schedule": "constant"}
QUICK = {"n_epochs": 2, "batch_size": 4, "learning_rate": 0.05, "dropout": 0.3, "input_dropout": 0.2}
STOPPING = {"early_stopping": True, "validation_fraction": 0.25, "patience": 30}


class TunedRBM(Finetunes, RBM):
    family = "tuned-rbm"

    def _feed_forward(self):
        weights = np.asarray(self.model_.weights)
        return [(weights, np.asarray(self.model_.hidden.bias))]

    def _network_inputs(self, X):
        return self._visibles(X, purpose="coding")


@pytest.fixture(autouse=True, scope="module")
def _registered():
    with pytest.MonkeyPatch.context() as patch:
        entry = registry.Family("tuned-rbm", f"{__name__}:TunedRBM", "for tests", "tests", {}, "binary")
        patch.setattr(registry, "FAMILIES", (*registry.FAMILIES, entry))
        yield


def rbm(**parameters) -> TunedRBM:
    estimator = TunedRBM(4, random_state=0, **parameters)
    model = estimator.build({"n_features": D}, seed=0)
    weights = jnp.asarray(np.random.default_rng(1).normal(size=(D, 4)), jnp.float32)
    return estimator.adopt(eqx.tree_at(lambda m: m.weights, model, weights), {"n_features": D})


@pytest.fixture
def runs(monkeypatch):
    """What every run of the loop got and gave: the network, rows, settings, weights, and the result."""
    found = []
    real = finetuning_run.loop.fit

    def fit(network, rows, learner, prepare, settings, **more):
        found.append({"network": network, "rows": rows, "settings": settings, "weights": more["weights"]})
        found[-1]["result"] = real(network, rows, learner, prepare, settings, **more)
        return found[-1]["result"]

    monkeypatch.setattr(finetuning_run.loop, "fit", fit)
    return found


# -- weights ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{}, {**STOPPING, "normalise": True, "averaging": 0.9}, {"n_networks": 2, "normalise": True}]
)
def test_a_row_of_weight_zero_is_no_row(options):
    """Neither its data nor its label have a say, to the last bit: not in the split, the order, or the moments."""
    kept = SOME > 0
    names = np.array(["ant", "bee", "cow"], object)[Y]
    strange_rows, strange_labels = X.copy(), names.copy()
    strange_rows[~kept] = 1 - strange_rows[~kept]
    strange_labels[~kept] = [None if i % 2 else "none of these" for i in range((~kept).sum())]
    left_out = rbm().finetune(X[kept], names[kept], sample_weight=SOME[kept], **QUICK, **options)
    weightless = rbm().finetune(strange_rows, strange_labels, sample_weight=SOME, **QUICK, **options)
    assert bits(weightless.classifier_) == bits(left_out.classifier_)
    assert weightless.classes_.tolist() == ["ant", "bee", "cow"]
    found, wanted = (without_seconds(e.finetune_history_) for e in (weightless, left_out))
    assert found == wanted


@pytest.mark.parametrize(
    "options",
    [
        {"normalise": True},
        {"label_smoothing": 0.2, "adversarial": 0.3, "optimizer": "sgd", "momentum": 0.9},
        {"n_networks": 2, "normalise": True, "averaging": 0.7, "weight_decay": 0.01},
    ],
)
def test_a_row_of_weight_two_is_two_rows(options):
    """With all rows in one batch; the moments of normalised fields, at the start and in the end, count too."""
    times = 1 + np.arange(N) % 3
    common = {**STILL, "optimizer": "sgd", "n_epochs": 3, "batch_size": 10 * N, "learning_rate": 0.2, **options}
    weighted = rbm().finetune(X, Y, sample_weight=times, **common)
    again = np.repeat(np.arange(N), times)
    repeated = rbm().finetune(X[again], Y[again], **common)
    assert apart(weighted.classifier_, repeated.classifier_) < 2e-5
    for name in ("loss", "accuracy"):
        found, wanted = ([row[name] for row in e.finetune_history_] for e in (weighted, repeated))
        np.testing.assert_allclose(found, wanted, atol=1e-5)


def apart(one, other) -> float:
    """The largest difference between the arrays of two trees."""
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a) - np.asarray(b)).max()) for a, b in pairs)


def test_only_the_ratios_of_weights_count_however_large_they_are(runs):
    first = rbm().finetune(X, Y, sample_weight=WEIGHTS, **QUICK)
    for factor in (4.0, 2.0**1000, 2.0**-1000):
        again = rbm().finetune(X, Y, sample_weight=factor * WEIGHTS, **QUICK)
        assert bits(again.classifier_) == bits(first.classifier_)
    assert runs[0]["weights"].mean() == pytest.approx(1, abs=1e-6)
    rbm().finetune(X, Y, sample_weight=np.where(np.arange(N) < 5, 0, WEIGHTS), **QUICK, **STOPPING)
    assert runs[-1]["weights"].mean() == pytest.approx(1, abs=1e-6)  # over the rows that are trained on
    given = np.asarray(runs[-1]["rows"])[:, :D] @ (1 << np.arange(D)) + 1
    np.testing.assert_allclose(runs[-1]["weights"], given / given.mean(), rtol=1e-5)


def test_a_class_without_weight_is_none_unless_the_model_knows_it():
    """What is known are the classes of the model's label units, where it has some."""
    weights, estimator = np.where(Y == 1, 0, WEIGHTS), rbm()
    lesson = estimator._lesson(X, Y, weights)
    assert lesson.classes.tolist() == [0, 2]
    np.testing.assert_array_equal(lesson.labels, Y[Y != 1] // 2)
    with pytest.raises(DataError, match="at least two classes"):
        estimator._lesson(X, Y, np.where(Y == 1, 1.0, 0.0))
    estimator.blueprint_ = {**estimator.blueprint_, "classes": [-1, 0, 1, 2]}
    lesson = estimator._lesson(X, Y, weights)
    assert lesson.classes.tolist() == [-1, 0, 1, 2]
    np.testing.assert_array_equal(lesson.labels, Y[Y != 1] + 1)
    assert estimator._lesson(X, Y + 2, None).classes.tolist() == [2, 3, 4]  # 3 and 4 are new: its own, then
    estimator.finetune(X, Y, sample_weight=weights, **QUICK)
    assert estimator.classes_.tolist() == [-1, 0, 1, 2]
    assert estimator.predict_proba(X).shape == (N, 4)


def test_a_label_that_is_missing_is_told_by_its_own_row():
    labels = Y.astype(float)
    labels[[2, 7]] = np.nan  # row 2 has no weight
    with pytest.raises(DataError, match="in 1 rows, first in row 7"):
        rbm().finetune(X, labels, sample_weight=np.where(np.arange(N) < 5, 0, 1), **QUICK)


class Watched(CrossEntropy):
    """Shows every batch that the network learns from."""

    seen = []  # noqa: RUF012

    def loss(self, model, x, weights, state):
        inputs, labels = x
        jax.debug.callback(
            lambda *batch: Watched.seen.append(list(map(np.asarray, batch))), inputs, labels, weights
        )
        return super().loss(model, x, weights, state)


@pytest.mark.parametrize("stopping", [{}, STOPPING])
def test_labels_and_weights_follow_their_rows_through_split_and_shuffles(monkeypatch, stopping, runs):
    monkeypatch.setattr(finetuning_run, "CrossEntropy", Watched)
    Watched.seen.clear()
    order = np.random.default_rng(2).permutation(N)
    rbm().finetune(X[order], Y[order], sample_weight=WEIGHTS[order], **{**QUICK, "batch_size": 3}, **stopping)
    jax.effects_barrier()
    inputs, labels, weights = (np.concatenate(parts) for parts in zip(*Watched.seen, strict=True))
    numbers = (inputs @ (1 << np.arange(D))).astype(int)
    n_training = 18 if stopping else N
    assert len(numbers) == 2 * n_training
    trained, counts = np.unique(numbers, return_counts=True)
    assert len(trained) == n_training
    assert set(counts) == {2}  # each row once in each of two epochs
    np.testing.assert_array_equal(np.argmax(labels.reshape(len(labels), -1), axis=1), Y[numbers])
    np.testing.assert_allclose(weights, WEIGHTS[numbers] / WEIGHTS[trained].mean(), rtol=1e-5)
    if stopping:
        held = np.setdiff1d(np.arange(N), trained)
        kept = finetuning_run._split(Y[order].astype(float), 0.25, _seed())[1]
        assert held.tolist() == sorted(order[kept])  # none of them is trained on


def _seed() -> int:
    return int(np.random.RandomState(0).randint(2**31 - 1))


# -- numbers that people see -----------------------------------------------------------------------------------


def log_probabilities(network: FeedForward, inputs: np.ndarray) -> np.ndarray:
    (w1, w2), (b1, b2) = ([np.asarray(a, float) for a in part] for part in (network.weights, network.biases))
    fields = inputs @ w1
    if network.normalisation is not None:
        mean, spread = (np.asarray(a, float) for a in network.normalisation.moments[0])
        fields = np.asarray(network.normalisation.gains[0], float) * (fields - mean) / spread
    return log_softmax(expit(fields + b1) @ w2 + b2, axis=1)


@pytest.mark.parametrize("normalise", [False, True])
def test_scores_losses_and_moments_are_those_by_hand(runs, normalise):
    options = {**STILL, "n_epochs": 1, "batch_size": 100, "learning_rate": 1.0, "optimizer": "sgd"}
    tuned = rbm().finetune(X, Y, sample_weight=WEIGHTS, normalise=normalise, **STOPPING, **options)
    (row,), run = tuned.finetune_history_, runs[0]
    held = finetuning_run._split(Y.astype(float), 0.25, _seed())[1]
    kept = np.setdiff1d(np.arange(N), held)
    each = log_probabilities(tuned.classifier_, X)[np.arange(N), Y]
    assert row["validation_score"] == pytest.approx(np.average(each[held], weights=WEIGHTS[held]), abs=1e-5)
    assert abs(row["validation_score"] - each[held].mean()) > 1e-4  # the weights matter
    start = log_probabilities(run["network"], X[kept])
    loss = -np.average(start[np.arange(kept.size), Y[kept]], weights=WEIGHTS[kept])
    assert row["loss"] == pytest.approx(loss, abs=1e-5)
    right = np.argmax(start, axis=1) == Y[kept]
    assert row["accuracy"] == pytest.approx(np.average(right, weights=WEIGHTS[kept]), abs=1e-6)
    if normalise:
        fields = X[kept] @ np.asarray(tuned.classifier_.weights[0], float)
        mean = np.average(fields, axis=0, weights=WEIGHTS[kept])
        variance = np.average((fields - mean) ** 2, axis=0, weights=WEIGHTS[kept])
        found = tuned.classifier_.normalisation.moments[0]
        np.testing.assert_allclose(found[0], mean, atol=1e-5)
        np.testing.assert_allclose(found[1], np.sqrt(variance + VARIANCE_FLOOR), atol=1e-5)
    wrong = np.argmax(log_probabilities(tuned.classifier_, X), axis=1) == Y
    assert tuned.accuracy(X, Y) == pytest.approx(wrong.mean())


def test_blocks_make_no_difference_to_predictions(monkeypatch):
    tuned = rbm().finetune(X, Y, n_networks=2, **QUICK)
    whole = tuned.predict_proba(X)
    one_by_one = np.concatenate([tuned.predict_proba(X[i : i + 1]) for i in range(N)])
    monkeypatch.setattr(rows, "BLOCK", 7)
    np.testing.assert_allclose(tuned.predict_proba(X), one_by_one, atol=1e-6)
    np.testing.assert_allclose(whole, one_by_one, atol=1e-6)
    np.testing.assert_array_equal(tuned.predict(X), tuned.classes_[np.argmax(one_by_one, axis=1)])
    np.testing.assert_allclose(softmax(np.log(one_by_one), axis=1), one_by_one, atol=1e-5)


# -- held-out rows ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"averaging": 0.5}, {"n_networks": 2, "normalise": True, "optimizer": "rmsprop"}]
)
def test_held_out_rows_reach_no_parameter(monkeypatch, options, runs):
    held = np.arange(0, N, 4)
    kept = np.setdiff1d(np.arange(N), held)
    monkeypatch.setattr(finetuning_run, "_split", lambda codes, fraction, seed: (kept, held))

    def rising(*arguments):  # so that the last network is the best
        scores = itertools.count()
        return lambda network: float(next(scores))

    monkeypatch.setattr(finetuning_run, "_scorer", rising)
    other_rows, other_labels, other_weights = X.copy(), Y.copy(), WEIGHTS.copy()
    other_rows[held], other_labels[held], other_weights[held] = 1 - X[held], (Y[held] + 1) % 3, 1e3
    first = rbm().finetune(X, Y, sample_weight=WEIGHTS, **QUICK, **STOPPING, **options)
    second = rbm().finetune(other_rows, other_labels, sample_weight=other_weights, **QUICK, **STOPPING, **options)
    assert bits(first.classifier_) == bits(second.classifier_)
    assert bits(runs[0]["result"].state) == bits(runs[1]["result"].state)
    assert bits(runs[0]["network"]) == bits(runs[1]["network"])  # nor the start
    assert without_seconds(first.finetune_history_) == without_seconds(second.finetune_history_)


# -- what survives an interruption -----------------------------------------------------------------------------

RESUMED = {
    "patience runs out": {**STOPPING, "patience": 3, "n_epochs": 12, "learning_rate": 0.3, "averaging": 0.3},
    "averages and a schedule": {"averaging": 0.9, "schedule": "cosine", "optimizer": "nesterov", "max_norm": 2.0},
    "moments and noise": {"n_networks": 2, "normalise": True, "input_noise": 0.3, "schedule": "warmup", **STOPPING},
    "a rollback": {"optimizer": "rmsprop", "momentum": 0.5, "n_epochs": 4},
}


@pytest.mark.parametrize("which", RESUMED)
def test_a_run_that_is_interrupted_after_every_chunk_goes_through_the_same_bits(which, tmp_path, monkeypatch, runs):
    options = {**QUICK, **RESUMED[which]}
    labels = np.random.default_rng(5).integers(0, 3, N)  # nothing to learn: scores get worse
    if which == "a rollback":
        real = loop._Run._trouble

        def trouble(run, results, metrics):
            return "a fault" if run.step >= 6 and not run.rollbacks else real(run, results, metrics)

        monkeypatch.setattr(loop._Run, "_trouble", trouble)
    whole = rbm().finetune(X, labels, sample_weight=WEIGHTS, **options)
    part = rbm()
    uninterrupted = runs[-1]["result"]
    monkeypatch.setattr(finetuning_run, "display", lambda verbose, title: Interrupting())

    def go_on(resume):
        part.finetune(X, labels, sample_weight=WEIGHTS, run_dir=tmp_path / "run", resume=resume, **options)

    times = through_interruptions(go_on)
    assert times == len(whole.finetune_history_)  # after every chunk, and at last there is nothing left to do
    assert bits(part.classifier_) == bits(whole.classifier_)
    assert without_seconds(part.finetune_history_) == without_seconds(whole.finetune_history_)
    result = runs[-1]["result"]
    assert bits(result.state) == bits(uninterrupted.state)
    assert (result.rollbacks, result.n_steps) == (uninterrupted.rollbacks, uninterrupted.n_steps)
    if which == "patience runs out":
        scores = [row["validation_score"] for row in whole.finetune_history_]
        assert len(scores) - 1 - int(np.argmax(scores)) == 3
        assert 3 < len(scores) < 12
        assert int(np.argmax(scores)) > 0
    if which == "a rollback":
        assert result.rollbacks == 1
        assert float(result.state.slowdown) == 0.5


def test_what_differs_from_the_run_to_resume_is_named(tmp_path):
    folder = tmp_path / "run"
    given = {**QUICK, **STOPPING, "optimizer": optax.sgd(0.1, momentum=0.9), "sample_weight": WEIGHTS}
    before = rbm().finetune(X, Y, run_dir=folder, **given)
    more_weight, one_label, one_number = WEIGHTS.copy(), Y.copy(), X.copy()
    more_weight[17], one_label[17], one_number[17, 2] = 5.0, (Y[17] + 1) % 3, 1 - X[17, 2]
    changes = [
        ("sample_weight", X, Y, {"sample_weight": more_weight}),
        ("sample_weight", X, Y, {"sample_weight": None}),
        ("the labels", X, one_label, {}),
        ("the labels", X, Y + 10, {}),
        ("the data", one_number, Y, {}),
        ("validation_fraction", X, Y, {"validation_fraction": 0.5}),
        ("patience", X, Y, {"patience": 2}),
        ("early_stopping", X, Y, {"early_stopping": False}),
        ("dropout", X, Y, {"dropout": 0.25}),
        ("averaging", X, Y, {"averaging": 0.5}),
        ("virtual_adversarial", X, Y, {"virtual_adversarial": 0.5}),
        ("n_epochs", X, Y, {"n_epochs": 3}),
        ("optimizer", X, Y, {"optimizer": optax.sgd(0.1, momentum=0.8)}),
        ("optimizer", X, Y, {"optimizer": "sgd"}),
        ("random_state", X, Y, {"random_state": 1}),
    ]
    for name, data, labels, change in changes:
        with pytest.raises(RunFolderError, match=f"other parameters or other data.*differs: .*{name}"):
            rbm().finetune(data, labels, run_dir=folder, resume=True, **{**given, **change})
    again = rbm()  # the same, in other objects; of weights the ratios
    same = {
        **given,
        "optimizer": optax.sgd(0.1, momentum=0.9),
        "sample_weight": 4 * WEIGHTS,
        "n_epochs": np.int64(2),
    }
    again.finetune(X.tolist(), Y.tolist(), run_dir=folder, resume=True, **same)
    assert bits(again.classifier_) == bits(before.classifier_)


def test_digests_look_into_objects_and_are_the_same_for_the_same():
    cosine = optax.cosine_decay_schedule
    same = [
        (lambda: optax.adam(0.1), lambda: optax.adam(0.2)),
        (lambda: optax.adam(cosine(0.1, 10)), lambda: optax.adam(cosine(0.1, 11))),
        (lambda: CrossEntropy(noise=0.1), lambda: CrossEntropy(virtual=0.1)),
        (lambda: np.arange(4.0), lambda: np.arange(4)),
        (lambda: np.zeros((2, 3)), lambda: np.zeros((3, 2))),
        (lambda: [1, [2]], lambda: [[1], 2]),
        (lambda: {"a": 1, "b": 2}, lambda: {"a": 2, "b": 1}),
        (lambda: "1", lambda: 1),
        (lambda: lambda x: 0.1 * x, lambda: lambda x: 0.2 * x),
    ]
    for one, other in same:
        assert digest(one()) == digest(one()) != digest(other())
    assert digest(1) == digest(1.0) == digest(np.float32(1))


# -- once more -------------------------------------------------------------------------------------------------


def test_a_second_fine_tuning_is_a_first_one(tmp_path):
    fresh = rbm().finetune(X, Y, sample_weight=WEIGHTS, averaging=0.5, **QUICK, **STOPPING)
    again = rbm().finetune(1 - X, Y + 5, n_networks=2, normalise=True, activation="tanh", **QUICK)
    assert isinstance(again.classifier_, Committee)
    again.finetune(X, Y, sample_weight=WEIGHTS, averaging=0.5, **QUICK, **STOPPING)
    assert bits(again.classifier_) == bits(fresh.classifier_)
    assert again.classes_.tolist() == [0, 1, 2]
    assert without_seconds(again.finetune_history_) == without_seconds(fresh.finetune_history_)
    other = rbm()
    again.adopt(other.model_, other.blueprint_)  # another model: its classifier is still to come
    for name in ("classifier_", "classes_", "finetune_history_", "predict"):
        assert not hasattr(again, name)


# -- the loop's steps ------------------------------------------------------------------------------------------


def trained(chunk: int, averaging: float, *, n_steps: int = 8, callbacks=(), **options):
    """A run of the loop itself, without dice."""
    layers = [(np.random.default_rng(1).normal(size=(D, 4)), np.zeros(4))]
    network = FeedForward.from_layers(layers, 3, key=jax.random.key(0))
    chosen = {"learning_rate": 0.1, "n_steps": n_steps, "momentum": 0.9, "schedule": "cosine", **options}
    learner = GradientLearner(CrossEntropy(), Optimizer.make("sgd", **chosen), averaging)
    settings = loop.Settings(n_steps=n_steps, batch_size=6, chunk=chunk, callbacks=callbacks)
    data = np.column_stack([X, Y]).astype(np.float32)
    weights = (WEIGHTS / WEIGHTS.mean()).astype(np.float32)
    prepare = LabelledRows(network.x_space)
    return network, loop.fit(network, data, learner, prepare, settings, key=jax.random.key(1), weights=weights)


def test_a_chunk_of_any_length_gives_the_same_and_averages_decay_with_every_step():
    models = []
    start, single = trained(1, 0.6, callbacks=[lambda event: models.append(jax.device_get(event.model))])
    wanted = [np.asarray(leaf, float) for leaf in jax.tree.leaves(start)]
    for step, model in enumerate(models):
        decay = min(0.6, (1 + step) / (10 + step))
        new = [np.asarray(leaf, float) for leaf in jax.tree.leaves(model)]
        wanted = [decay * a + (1 - decay) * b for a, b in zip(wanted, new, strict=True)]
    for found, average in zip(jax.tree.leaves(single.model), wanted, strict=True):
        np.testing.assert_allclose(found, average, atol=1e-6)
    for chunk in (2, 8):
        _, other = trained(chunk, 0.6)
        for a, b in zip(jax.tree.leaves(other.model), jax.tree.leaves(single.model), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
        assert float(other.state.step) == 8


def test_in_a_chunk_with_light_steps_averages_decay_by_all_steps_since_the_last(monkeypatch):
    monkeypatch.setattr(loop, "SHORT_CHUNK", 1)
    monkeypatch.setattr(gradient, "PERIOD", 4)
    models = []
    start, result = trained(8, 0.6, schedule="constant")
    for n_steps in (4, 8):
        models.append(trained(1, 0.0, n_steps=n_steps, schedule="constant")[1].model)
    average = [np.asarray(leaf, float) for leaf in jax.tree.leaves(start)]
    for step, model in zip((0, 4), models, strict=True):
        decay = min(0.6, (1 + step) / (10 + step)) ** 4
        new = [np.asarray(leaf, float) for leaf in jax.tree.leaves(model)]
        average = [decay * a + (1 - decay) * b for a, b in zip(average, new, strict=True)]
    for found, wanted in zip(jax.tree.leaves(result.model), average, strict=True):
        np.testing.assert_allclose(found, wanted, atol=1e-6)


def test_no_two_draws_of_two_steps_share_a_key(monkeypatch):
    """Members, examples, layers, noise and directions: everything throws dice of its own."""
    layers = [(np.ones((D, 4)), np.zeros(4)), (np.ones((4, 3)), np.zeros(3))]
    keys = jax.random.split(jax.random.key(0), 2)
    options = {"dropout": 0.3, "input_dropout": 0.2}
    committee = Committee.of([FeedForward.from_layers(layers, 3, key=key, **options) for key in keys])
    objective = Separately(CrossEntropy(noise=0.1, adversarial=0.1, virtual=0.1))
    learner = GradientLearner(objective, Optimizer.make("sgd", learning_rate=0.1, n_steps=2))
    x = LabelledRows(committee.x_space)(jnp.asarray(np.column_stack([X, Y])[:3], jnp.float32), key=keys[0])

    def two_steps(model, key):
        def step(carry, key):
            model, state, _ = learner.step(carry[0], x, None, carry[1], key=key, since=1)
            return (model, state), None

        state = learner.init(model, x, key=jax.random.fold_in(key, 9))
        return jax.lax.scan(step, (model, state), jax.random.split(key))[0]

    with keys_used(monkeypatch) as used:
        jax.block_until_ready(jax.tree.leaves(jax.jit(two_steps)(committee, jax.random.key(3))))
    # Two steps of two members with three examples: masks of three layers, noise, and a direction.
    assert len(used) == 2 * 2 * 3 * 5
    assert len(set(used)) == len(used)
