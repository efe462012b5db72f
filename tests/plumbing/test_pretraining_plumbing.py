"""Training layer by layer: batches, weights and keys of every stage, and what survives an interruption in any."""

from __future__ import annotations

import dataclasses

import jax
import numpy as np
import pytest
from plumbing_tools import Interrupting, bits, through_interruptions, without_seconds

from latentia import DBN, StackedAutoencoder, units
from latentia.core.errors import RunFolderError
from latentia.energies.rbm import RBMModel
from latentia.estimator.training import Encode
from latentia.learning import contrastive, stacking
from latentia.learning.contrastive import Contrastive
from latentia.learning.fit import Settings
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.stacking import Stage, greedy
from latentia.samplers import Gibbs

N, D = 24, 5
#: Every row is its own number in binary.
X = ((np.arange(N)[:, None] >> np.arange(D)) & 1).astype(np.float32)
PLACES = 1 << np.arange(D)
WEIGHTS = (1.0 + np.arange(N)) / (1.0 + np.arange(N)).mean()
WEIGHTS = WEIGHTS.astype(np.float32)


class Watched(Contrastive):
    """Shows every batch with its weights, and the key of every step."""

    seen = []  # noqa: RUF012

    def prepare(self, model, x, state, *, key, weights=None):
        show = lambda *batch: Watched.seen.append(list(map(np.asarray, batch)))  # noqa: E731
        jax.debug.callback(show, x, weights, jax.random.key_data(key))
        return super().prepare(model, x, state, key=key, weights=weights)


def negated(model, rows):
    """A code that still tells which row it is of: its bits the other way round."""
    return 1 - rows


def maker(index, objective=None, encode=negated, **options):
    def make(rows, key):
        layers = units.make("bernoulli", rows.shape[1]), units.make("bernoulli", 3 + index)
        model = RBMModel.make(*layers, key=key)
        chosen = {"learning_rate": 0.2, "n_steps": 12, "momentum": 0.9, "schedule": "cosine"}
        optimizer = Optimizer.make("nesterov", **chosen)
        learner = GradientLearner(objective or contrastive.pcd(), optimizer, averaging=0.8)
        return Stage(f"layer {index}", model, learner, Encode(model.x_space), 12, 6, 4, encode)

    return make


def settings_in(root, **changes):
    def settings(stage, index):
        return dataclasses.replace(
            Settings(n_steps=stage.n_steps, batch_size=stage.batch_size, chunk=stage.chunk, seed=index),
            folder=None if root is None else root / str(index),
            **changes,
        )

    return settings


def test_rows_keep_their_weights_in_every_stage_and_steps_have_keys_of_their_own():
    Watched.seen.clear()
    makers = [maker(i, Watched(Gibbs())) for i in range(2)]
    greedy(X, makers, settings_in(None), key=jax.random.key(0), weights=WEIGHTS)
    jax.effects_barrier()
    batches = Watched.seen
    assert len(batches) == 24
    first, second = batches[:12], batches[12:]
    for stage, batch in ((0, first), (1, second)):
        rows, weights = (np.concatenate([b[i] for b in batch]) for i in range(2))
        numbers = ((rows if stage == 0 else 1 - rows) @ PLACES).astype(int)
        np.testing.assert_allclose(weights, WEIGHTS[numbers], rtol=1e-6)
        assert set(np.bincount(numbers)) == {3}  # three epochs
    orders = [[(b[0] @ PLACES).astype(int).tolist() for b in stage] for stage in (first, second)]
    assert orders[0] != [[N + 7 - n for n in batch] for batch in orders[1]]  # 31 − n: another order in each stage
    assert len({b[2].tobytes() for b in batches}) == 24


def test_a_stack_that_is_interrupted_after_every_chunk_goes_through_the_same_bits(tmp_path):
    """Momentum, averages, the schedule, chains and keys, in the first stage and in later ones."""
    makers = [maker(i) for i in range(2)]
    whole = greedy(X, makers, settings_in(None), key=jax.random.key(0), weights=WEIGHTS)
    found = []

    def go_on(resume):
        settings = settings_in(tmp_path, resume=resume, callbacks=[Interrupting()])
        found[:] = greedy(X, makers, settings, key=jax.random.key(0), weights=WEIGHTS)

    assert through_interruptions(go_on) == 6
    assert bits([(r.model, r.state) for r in found]) == bits([(r.model, r.state) for r in whole])
    for part, one in zip(found, whole, strict=True):
        assert without_seconds(part.history) == without_seconds(one.history)


def test_a_later_stage_of_another_run_is_refused(tmp_path):
    makers = [maker(i) for i in range(2)]
    greedy(X, makers, settings_in(tmp_path, fingerprint={"n": "1"}), key=jax.random.key(0))
    (tmp_path / "0" / "checkpoint.safetensors").unlink()  # only the second stage is left
    with pytest.raises(RunFolderError, match="other parameters or other data"):
        greedy(X, makers, settings_in(tmp_path, fingerprint={"n": "2"}, resume=True), key=jax.random.key(0))


def test_codes_do_not_depend_on_the_blocks_that_they_are_made_in(monkeypatch):
    whole = stacking.encoded(lambda model, rows: np.cumsum(rows, axis=1), None, X)
    for size in (5, 23, 24):
        monkeypatch.setattr(stacking, "BLOCK", size)
        found = stacking.encoded(lambda model, rows: np.cumsum(rows, axis=1), None, X)
        np.testing.assert_array_equal(found, whole)


COMMON = {"random_state": 0, "batch_size": 8, "n_epochs": 2, "pretraining_epochs": 1, "momentum": 0.5}
STACKS = {
    "belief net": lambda **more: DBN((4, 3), averaging=0.8, learning_rate=0.1, schedule="linear", **COMMON, **more),
    "autoencoder": lambda **more: StackedAutoencoder(
        (4, 3), loss="cross_entropy", early_stopping=True, validation_fraction=0.25, patience=9, **COMMON, **more
    ),
}


@pytest.mark.parametrize("which", STACKS)
def test_an_estimator_that_is_interrupted_in_every_stage_learns_the_same(which, tmp_path):
    make = STACKS[which]
    whole = make().fit(X, sample_weight=WEIGHTS)
    part = make(run_dir=tmp_path / "run", callbacks=[Interrupting()])

    def go_on(resume):
        part.set_params(resume=resume).fit(X, sample_weight=WEIGHTS)

    chunks = sum(map(len, whole.pretraining_history_)) + len(whole.history_)
    assert through_interruptions(go_on) == chunks > 3
    assert bits(part.model_) == bits(whole.model_)
    assert bits(part._state) == bits(whole._state)
    assert without_seconds(part.history_) == without_seconds(whole.history_)
    for found, wanted in zip(part.pretraining_history_, whole.pretraining_history_, strict=True):
        assert without_seconds(found) == without_seconds(wanted)
    again = whole.fit(1 - X).fit(X, sample_weight=WEIGHTS)  # a later fit is a first one
    assert bits(again.model_) == bits(part.model_)
    assert bits(again._state) == bits(part._state)


@pytest.mark.parametrize("n_chunks", [1, 2, 3])
def test_a_run_keeps_its_own_description_when_it_is_resumed_or_refused(n_chunks, tmp_path):
    """Interrupted in the first stage, in the second or in the training proper."""
    told, options = [], {**COMMON, "run_dir": tmp_path / "run"}

    def press(event):
        told.append(event.stage)
        if len(told) == n_chunks:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        DBN((4, 3), **options, callbacks=[press]).fit(X)
    assert told[-1] == ["layer 1 of 2", "layer 2 of 2", ""][n_chunks - 1]
    written = (tmp_path / "run" / "config.json").read_bytes()
    with pytest.raises(RunFolderError, match="other parameters"):
        DBN((4, 3), **{**options, "momentum": 0.9}, resume=True).fit(X)
    assert (tmp_path / "run" / "config.json").read_bytes() == written
    DBN((4, 3), **options, resume=True).fit(X)
    assert (tmp_path / "run" / "config.json").read_bytes() == written
