"""What dictionary learning remembers between batches, calls and runs, and what it forgets."""

from __future__ import annotations

import dataclasses
import itertools

import jax
import numpy as np
import pytest

from latentia import DictionaryLearning
from latentia.learning import fit as loop
from latentia.learning.batches import RowOrder
from latentia.learning.dictionary import UPDATES, base

RNG = np.random.default_rng(3)
X = (RNG.laplace(size=(60, 4)) @ RNG.normal(size=(4, 5)) + 1).astype(np.float32)
Y = (RNG.laplace(size=(60, 4)) @ RNG.normal(size=(4, 5))).astype(np.float32)
WEIGHTS = RNG.integers(0, 4, 60).astype(float)
SMALL = {"n_components": 6, "alpha": 0.3, "batch_size": 20, "n_epochs": 6, "min_gain": 0.0, "random_state": 0}
SEED = int(np.random.RandomState(0).randint(2**31 - 1))


def bits(one, other):
    """Atoms, mean, statistics, codes, counters."""
    for a, b in zip(
        jax.tree.leaves((one.model_, one._state)), jax.tree.leaves((other.model_, other._state)), strict=True
    ):
        np.testing.assert_array_equal(a, b)
    assert one.model_.atoms.shape == other.model_.atoms.shape


@pytest.mark.parametrize("update", [*UPDATES])
def test_an_interrupted_run_ends_as_one_that_was_not(update, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 1e9)  # only what is written at the interruption
    monkeypatch.setattr(base, "TRIAL", 11)  # atoms are judged now and then, and not where the run is interrupted
    start = np.eye(6, 5) + 0.5
    start[-1] *= 1e-3  # too short to be used
    options = {**SMALL, "update": update, "center": True, "dictionary_init": start}

    def stop(event):
        if event.epoch >= 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DictionaryLearning(**options, run_dir=tmp_path / update, callbacks=[stop]).fit(X, sample_weight=WEIGHTS)
    options["callbacks"] = [lambda event: False]
    whole = DictionaryLearning(**options).fit(X, sample_weight=WEIGHTS)
    resumed = DictionaryLearning(**options, run_dir=tmp_path / update, resume=True).fit(X, sample_weight=WEIGHTS)
    bits(resumed, whole)
    assert float(whole._state.usage.replaced) > 0
    told = [
        [{k: v for k, v in row.items() if k != "seconds"} for row in each.history_] for each in (resumed, whole)
    ]
    assert told[0] == told[1]


def by_definition(estimator, calls):
    """(model, state) after passes over rows with weights, step by step, by the learner alone."""
    plan = estimator._plan(60).one_pass(60)
    learner = estimator._learner(plan)
    rule = {"name": "l1", "alpha": 0.3, "nonnegative": False}
    begin = estimator.build({"n_features": 5, "penalty": rule})
    begin = begin.with_dictionary(np.asarray(estimator.dictionary_init, np.float32)).project()
    seed, model, state = SEED, None, None
    for rows, weights in calls:
        kept = np.flatnonzero(np.ones(len(rows)) if weights is None else weights)
        rows, weights = rows[kept], None if weights is None else (weights[kept] / weights[kept].mean()).astype("f4")
        if model is None:
            model = jax.tree.map(np.array, begin)
            state = jax.tree.map(np.array, learner.init(begin, rows[:20], key=jax.random.key(0)))
        n_steps = -(-len(rows) // 20)
        for batch in RowOrder(len(rows), 20, seed).rows(0, n_steps):
            batch = np.arange(20) if len(rows) == 20 else batch
            shares = None if weights is None else weights[batch]
            model, state, _ = learner.step(model, rows[batch], shares, state, key=None, since=1)
        seed += 1
    return model, state


@pytest.mark.parametrize("update", ["online", "gradient"])
def test_calls_of_partial_fit_go_on_as_the_definition_says(update):
    """Statistics, usage and counters go on, the rows' order changes, and each call's weights average to one."""
    options = {**SMALL, "update": update, "dictionary_init": np.eye(6, 5) + 0.2, "random_state": 0}
    calls = [(X, None), (Y, WEIGHTS), (X[:20], 5 * np.ones(20))]
    estimator = DictionaryLearning(**options)
    for rows, weights in calls:
        estimator.partial_fit(rows, sample_weight=weights)
    model, state = by_definition(DictionaryLearning(**options), calls)
    np.testing.assert_allclose(estimator.components_, model.dictionary, atol=1e-5)
    for a, b in zip(jax.tree.leaves(estimator._state), jax.tree.leaves(state), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)


def test_codes_of_one_call_are_no_start_for_the_rows_of_the_next():
    """A penalty that is not convex ends where it began: other rows' codes would show."""
    options = {**SMALL, "update": "gradient", "penalty": "lq", "batch_size": 60}
    warm, cold = (DictionaryLearning(**options, warm_codes=w).partial_fit(X).partial_fit(Y) for w in (True, False))
    np.testing.assert_array_equal(warm.components_, cold.components_)
    fitted = [
        DictionaryLearning(**{**options, "n_epochs": 1}, warm_codes=w).fit(X).partial_fit(Y) for w in (True, False)
    ]
    np.testing.assert_array_equal(fitted[0].components_, fitted[1].components_)


def test_warm_codes_are_those_of_the_same_rows(monkeypatch):
    """Of a batch of all rows, in their order, from step to step."""
    from latentia.inference import SparseInference

    starts, plain = [], SparseInference.encode

    def encode(self, model, rows, **options):
        codes = plain(self, model, rows, **options)
        if "init" in options:
            starts.append((options["init"], rows.copy(), codes.toarray()))
        return codes

    monkeypatch.setattr(SparseInference, "encode", encode)
    DictionaryLearning(**{**SMALL, "update": "mod", "n_epochs": 4, "reseed": False}).fit(X)
    assert starts[0][0] is None
    assert len(starts) == 4
    for (_, rows, _), (_, again, _) in itertools.pairwise(starts):
        np.testing.assert_array_equal(rows, again)
    # The array of kept codes is written anew at every step: it holds the last step's codes while they are in use.
    np.testing.assert_array_equal(starts[-1][0], starts[-1][2])


@pytest.mark.parametrize("update", ["online", "gradient"])
def test_a_second_fit_is_a_fresh_one(update):
    options = {**SMALL, "update": update, "center": True}
    used = DictionaryLearning(**options).partial_fit(Y).partial_fit(X).fit(X)
    fresh = DictionaryLearning(**options).fit(X)
    bits(used, fresh)
    used.partial_fit(Y)
    bits(used, fresh.partial_fit(Y))
    bits(used.fit(Y), DictionaryLearning(**options).fit(Y))


def test_training_stops_by_the_means_of_whole_epochs():
    """The rule by hand, from the run's own history: 8 batches an epoch, told one by one."""
    fitted = DictionaryLearning(**{**SMALL, "batch_size": 7, "n_epochs": 60, "min_gain": 0.01}).fit(X)
    epochs = np.array([row["epoch"] for row in fitted.history_])
    told = np.array([row["objective"] for row in fitted.history_])
    for i, now in enumerate(epochs):
        last, before = told[(epochs > now - 1) & (epochs <= now)], told[(epochs > now - 2) & (epochs <= now - 1)]
        settled = now >= 2 and before.size and before.mean() - last.mean() < 0.01 * before.mean()
        assert bool(settled) == (i == len(epochs) - 1)
    assert epochs[-1] < 60


@pytest.mark.parametrize("update", [*UPDATES])
def test_of_an_atom_that_was_replaced_no_more_is_known_than_of_a_first_one(update):
    """Sums, codes and where atoms have been: anew in its places, and as before in all others."""
    estimator = DictionaryLearning(**{**SMALL, "update": update, "batch_size": 60, "n_epochs": 1}).fit(X)
    learner = estimator._learner(estimator._plan(60))
    atoms = RNG.normal(size=(6, 5)).astype(np.float32)
    first = learner.init(estimator.model_.with_dictionary(atoms), X, key=None)
    known = {name: value for name, value in vars(first).items() if name != "usage" and np.ndim(value)}
    before = {name: RNG.normal(size=value.shape).astype(np.float32) for name, value in known.items()}
    state = dataclasses.replace(first, **{name: value.copy() for name, value in before.items()})
    replaced = np.array([1, 4])
    learner.forget_atoms(state, replaced, atoms)
    assert known
    for name, value in before.items():
        axes = zip(np.indices(value.shape), value.shape, strict=True)
        gone = np.any([np.isin(index, replaced) for index, n in axes if n == 6], axis=0)
        assert 0 < gone.sum() < gone.size
        np.testing.assert_array_equal(getattr(state, name), np.where(gone, known[name], value), err_msg=name)
