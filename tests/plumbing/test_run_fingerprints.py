"""What a run must share with the run that it goes on with: every fact that steers it, each by a name of its own."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from latentia import RBM
from latentia.core.errors import RunFolderError
from latentia.estimator.fingerprint import fingerprint
from latentia.estimator.rows_to_learn import LearningRows
from latentia.estimator.training import Plan
from latentia.learning.checkpoint import BEFORE

RNG = np.random.default_rng(0)
ROWS = LearningRows(
    RNG.normal(size=(9, 3)), RNG.random(9).astype("f4"), RNG.normal(size=(5, 3)), RNG.random(5).astype("f4")
)
PLAN = Plan(10, 3, 5, validation_fraction=0.4, patience=3)


def nudged(array):
    """The array with its last number changed."""
    other = np.array(array)
    other.flat[-1] += 1
    return other


def names_that_differ(rows=ROWS, plan=PLAN, seed=0, **params) -> set[str]:
    """Between a plain run and one with these changes, but for the one text that earlier releases wrote."""
    one, other = fingerprint(RBM(2), ROWS, PLAN, 0), fingerprint(RBM(2, **params), rows, plan, seed)
    assert set(one) == set(other)
    return {name for name in one if one[name] != other[name]} - {BEFORE}


@pytest.mark.parametrize(
    ("part", "name"),
    [
        ("training", "the training rows"),
        ("weights", "sample_weight"),
        ("held_out", "the held-out rows"),
        ("held_out_weights", "sample_weight of the held-out rows"),
    ],
)
def test_rows_and_weights_are_told_apart(part, name):
    assert names_that_differ() == set()
    for value in (nudged(getattr(ROWS, part)), None if part != "training" else np.asarray(ROWS.training)[::-1]):
        assert names_that_differ(dataclasses.replace(ROWS, **{part: value})) == {name}


def test_rules_parameters_and_seeds_count_and_what_is_shown_does_not():
    for change in ({"patience": 4}, {"tolerance": 0.1}, {"validation_fraction": 0.3}):
        assert names_that_differ(plan=dataclasses.replace(PLAN, **change)) == {"the rules of early stopping"}
    assert names_that_differ(seed=1) == {"random_state"}
    assert names_that_differ(learning_rate=0.3) == {"learning_rate"}
    assert names_that_differ(verbose=2, run_dir="there", resume=True, callbacks=[print]) == set()


def test_a_memory_map_is_looked_at_from_its_first_row_to_its_last(tmp_path):
    X, found = RNG.normal(size=(700, 2)), []
    for number, row in enumerate([None, 0, -1]):
        rows = X.copy()
        rows[[] if row is None else [row]] += 1
        np.save(tmp_path / f"{number}.npy", rows)
        mapped = np.load(tmp_path / f"{number}.npy", mmap_mode="r")
        found.append(fingerprint(RBM(2), LearningRows(mapped), PLAN, 0)["the training rows"])
    assert len(set(found)) == 3


def test_a_run_does_not_go_on_with_other_weights_of_its_held_out_rows(tmp_path):
    X = (RNG.random((20, 4)) < 0.5).astype(float)
    weights = 1 + RNG.random(20)
    options = {"n_epochs": 1, "early_stopping": True, "validation_fraction": 0.25, "random_state": 0}
    options |= {"n_components": 2, "run_dir": tmp_path / "run"}
    RBM(**options).fit(X, sample_weight=weights)
    seed = int(np.random.RandomState(0).randint(2**31 - 1))
    held = np.random.default_rng([seed, 1]).permutation(20)[:5]
    others = weights.copy()
    others[held[0]] += 1
    with pytest.raises(RunFolderError, match=r"What differs: .*sample_weight of the held-out rows\."):
        RBM(**options, resume=True).fit(X, sample_weight=others)
    RBM(**options, resume=True).fit(X, sample_weight=weights)
