"""What the training loop gives to a learner (rows, weights, keys), and what it keeps of a run."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from plumbing.recorder import Clock, Noisy, Recorder

from latentia.core.errors import DivergenceError, NotNormalisableError
from latentia.learning import batches, checkpoint, host_loop
from latentia.learning.fit import Settings, fit
from latentia.ops import mapped as mapped_files
from latentia.ops import random

N_ROWS, BATCH, CHUNK = 20, 5, 4
ROWS = np.column_stack([np.arange(1.0, N_ROWS + 1), np.zeros(N_ROWS)]).astype(np.float32)
WEIGHTS = (ROWS[:, 0] / ROWS[:, 0].mean()).astype(np.float32)


def run(
    learner: Any = None, n_steps: int = 16, *, X: Any = ROWS, weights: Any = None, end: float = 1e6, **changes: Any
):
    settings = Settings(n_steps, BATCH, **{"seed": 3, "chunk": CHUNK, "checkpoint_seconds": 0.0, **changes})
    clock = Clock(jnp.zeros((), jnp.float32), end)
    return fit(clock, X, learner or Recorder(), Noisy(), settings, key=random.key(7), weights=weights)


def mapped(folder: Any) -> np.ndarray:
    np.save(folder / "rows.npy", ROWS)
    return np.load(folder / "rows.npy", mmap_mode="r")


@pytest.mark.parametrize("source", ["array", "memory map", "host", "mapped host"])
def test_rows_and_weights_stay_together_and_every_row_comes_once_an_epoch(source, tmp_path):
    X = mapped(tmp_path) if "map" in source else ROWS
    result = run(Recorder(on_host="host" in source), X=X, weights=WEIGHTS)
    rows, weights = np.asarray(result.state.rows)[:16], np.asarray(result.state.weights)[:16]
    np.testing.assert_allclose(weights, WEIGHTS[rows.astype(int) - 1], rtol=1e-6)
    for epoch in rows.reshape(4, N_ROWS):
        assert sorted(epoch) == list(ROWS[:, 0])
    again = np.asarray(run().state.rows)[:16]
    np.testing.assert_array_equal(rows, again)  # wherever the rows come from


@pytest.mark.parametrize("on_host", [False, True])
def test_no_two_steps_share_a_random_number(on_host):
    state = run(Recorder(on_host=on_host)).state
    keys = {tuple(key) for key in np.asarray(state.keys)[:16].tolist()}
    assert len(keys) == 16
    assert len(np.unique(np.asarray(state.noise)[:16])) == 16 * BATCH


def test_keys_of_a_long_chunk_on_the_host_are_drawn_in_blocks_and_all_different():
    keys, n_steps = host_loop._Keys(random.key(5), size=4), 10
    words = [tuple(jax.random.key_data(keys[step, which]).tolist()) for step in range(n_steps) for which in (0, 1)]
    assert len(set(words)) == 2 * n_steps
    again = host_loop._Keys(random.key(5), size=4)
    assert tuple(jax.random.key_data(again[9, 1]).tolist()) == words[-1]  # of the step alone, not of those before


@pytest.mark.parametrize(("chunk", "each"), [(1, 4), (4, 4), (16, 4), (16, 3), (32, 8), (5, 2)])
def test_full_steps_account_for_all_steps_whatever_the_chunk(chunk, each):
    result = run(Recorder(each=each), 32, chunk=chunk)
    since = np.asarray(result.state.since)[: result.n_steps]
    assert since.sum() == result.n_steps
    gaps = np.diff(np.flatnonzero(np.concatenate([[1], since])))
    np.testing.assert_array_equal(gaps, since[since > 0])  # since counts the steps from the last full one
    assert [row["step"] for row in result.history] == list(
        range(chunk_of(result), result.n_steps + 1, chunk_of(result))
    )


def chunk_of(result: Any) -> int:
    return int(result.history[0]["step"])


def test_the_order_of_rows_does_not_depend_on_the_chunk():
    shorter, longer = run(chunk=2).state.rows, run(chunk=8).state.rows
    np.testing.assert_array_equal(shorter, longer)


@pytest.mark.parametrize("source", ["array", "memory map", "host", "mapped host"])
def test_a_retried_chunk_meets_the_same_rows_and_other_random_numbers(source, tmp_path):
    """Also where the chunk after it was read ahead."""
    X, on_host = mapped(tmp_path) if "map" in source else ROWS, "host" in source
    clean, retried = run(Recorder(on_host=on_host), X=X), run(Recorder(breaks=6, on_host=on_host), X=X)
    assert retried.rollbacks == 1
    assert float(retried.state.slow) == 0.5
    np.testing.assert_array_equal(clean.state.rows, retried.state.rows)
    shared = {tuple(k) for k in np.asarray(clean.state.keys)[4:16].tolist()} & {
        tuple(k) for k in np.asarray(retried.state.keys)[4:16].tolist()
    }
    assert not shared
    np.testing.assert_array_equal(clean.state.keys[:4], retried.state.keys[:4])


# -- early stopping ------------------------------------------------------------------------------------------------


def scripted(scores: list[float]) -> dict[str, Any]:
    """Scores by chunk."""
    return {"score": lambda model: scores[int(model.t) // CHUNK - 1], "patience": 2}


@pytest.mark.parametrize(
    ("scores", "tolerance", "stops", "best"),
    [
        ([1, 5, 4, 3, 9, 9], 0.0, 4, 2),
        ([1, 5, 5, 5, 9, 9], 0.0, 4, 2),  # no better is no gain
        ([1, 5, 4, 6, 5, 5], 0.0, 6, 4),  # a better one starts the count anew
        ([1, 2, 3, 4, 5, 6], 0.0, 6, 6),
        ([1, 2, 2.4, 2.4, 9, 9], 0.5, 4, 2),  # too small a gain is none
        ([-9, -8, -8, -8, 0, 0], 0.0, 4, 2),
    ],
)
def test_early_stopping_keeps_the_best_model_and_counts_chunks_without_a_better_one(scores, tolerance, stops, best):
    result = run(n_steps=24, tolerance=tolerance, **scripted(scores))
    assert result.n_steps == stops * CHUNK
    assert float(result.model.t) == best * CHUNK
    assert result.stopped_early == (stops < 6)
    assert [row["validation_score"] for row in result.history] == scores[:stops]


class Finishing(Recorder):
    """A learner that hands over another model than it learns with, as averaging does: its t ends in ¼."""

    def final(self, model, state):
        return dataclasses.replace(model, t=model.t + 0.25)


@pytest.mark.parametrize("patience", [0, 2])
def test_what_is_scored_and_kept_is_the_model_that_the_learner_hands_over(patience):
    scored = []

    def score(model: Any) -> float:
        scored.append(float(model.t))
        return -abs(float(model.t) - 2 * CHUNK)

    result = run(Finishing(), n_steps=24, score=score, patience=patience)
    assert scored == [CHUNK * (i + 1) + 0.25 for i in range(result.n_steps // CHUNK)]
    assert float(result.model.t) == (2 if patience else 6) * CHUNK + 0.25


class Killed(Exception):
    """What ends a run without a last checkpoint."""


def killed_at(chunk: int) -> Any:
    def callback(event: Any) -> None:
        if event.step == chunk * CHUNK:
            raise Killed

    return callback


@pytest.mark.parametrize("kill", [2, 3, 4])
@pytest.mark.parametrize("scores", [[1, 5, 4, 3, 9, 9], [1, 2, 5, 4, 4, 9]])
def test_early_stopping_goes_on_after_a_kill_as_if_nothing_had_happened(kill, scores, tmp_path):
    whole = run(n_steps=24, **scripted(scores))
    options = {"n_steps": 24, "folder": tmp_path, **scripted(scores)}
    with pytest.raises(Killed):
        run(**options, callbacks=[killed_at(kill)])
    resumed = run(**options, resume=True)
    same_run(whole, resumed)
    on_disk = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert without_seconds(on_disk) == without_seconds(whole.history)


def same_run(a: Any, b: Any) -> None:
    for one, other in zip(jax.tree.leaves((a.model, a.state)), jax.tree.leaves((b.model, b.state)), strict=True):
        np.testing.assert_array_equal(one, other)
    assert (a.n_steps, a.rollbacks, a.stopped_early) == (b.n_steps, b.rollbacks, b.stopped_early)
    assert without_seconds(a.history) == without_seconds(b.history)


def without_seconds(history: Any) -> list[dict]:
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


def test_a_stopped_run_that_is_resumed_does_nothing_more(tmp_path):
    options = {"n_steps": 24, "folder": tmp_path, **scripted([1, 5, 4, 3, 9, 9])}
    whole, called = run(**options), []
    again = run(**options, resume=True, callbacks=[called.append])
    same_run(whole, again)
    assert not called


@pytest.mark.parametrize("kill", [2, 3])
def test_rollbacks_are_remembered_after_a_kill(kill, tmp_path):
    learner = Recorder(breaks=6)
    whole = run(learner)
    with pytest.raises(Killed):
        run(learner, folder=tmp_path, callbacks=[killed_at(kill)])
    same_run(whole, run(learner, folder=tmp_path, resume=True))


def test_seconds_add_up_over_a_kill(tmp_path):
    with pytest.raises(Killed):
        run(folder=tmp_path, callbacks=[killed_at(3)])
    before = checkpoint.load(tmp_path, like(), "")[1]["seconds"]
    resumed = run(folder=tmp_path, resume=True)
    seconds = [row["seconds"] for row in resumed.history]
    assert before > 0
    assert seconds == sorted(seconds)
    assert seconds[2] > before
    assert resumed.seconds == seconds[-1]


def like() -> Any:
    from latentia.learning.compiled import Carry

    state = Recorder().init(None, jnp.zeros((BATCH, 2)), key=None)
    return Carry(Clock(jnp.zeros((), jnp.float32)), state), None


# -- ends that are errors ------------------------------------------------------------------------------------------


def test_a_model_without_a_normaliser_leaves_a_checkpoint_of_the_last_good_chunk(tmp_path):
    for resume in (False, True):  # resumed, it goes through the same chunk to the same end
        with pytest.raises(NotNormalisableError, match="At step 12") as caught:
            run(folder=tmp_path, end=9.5, resume=resume)
        left = caught.value.result
        assert (left.n_steps, float(left.model.t), float(left.state.t)) == (8, 8, 8)
        (carry, _), progress = checkpoint.load(tmp_path, (eqx_like(9.5), None), "")
        assert float(carry.model.t) == float(carry.state.t) == progress["step"] == 8
        assert [row["step"] for row in progress["history"]] == [4, 8]
        assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 2


def eqx_like(end: float) -> Any:
    from latentia.learning.compiled import Carry

    state = Recorder().init(None, jnp.zeros((BATCH, 2)), key=None)
    return Carry(Clock(jnp.zeros((), jnp.float32), end), state)


def test_a_run_that_diverged_for_good_diverges_again_when_resumed(tmp_path):
    learner = Recorder(breaks=6, halvings=9)
    for resume in (False, True):
        with pytest.raises(DivergenceError, match="3 rollbacks") as caught:
            run(learner, folder=tmp_path, resume=resume)
        left = caught.value.result
        assert (left.n_steps, float(left.model.t), left.rollbacks) == (4, 4, 3)
        assert float(left.state.slow) == 0.125


# -- streaming -----------------------------------------------------------------------------------------------------


def test_streamed_chunks_are_those_of_an_array_whatever_they_may_take(tmp_path, monkeypatch):
    whole = run(weights=WEIGHTS, chunk=2)
    monkeypatch.setattr(batches, "CHUNK_BYTES", 2 * BATCH * 4 * 2)
    streamed = run(X=mapped(tmp_path), weights=WEIGHTS, chunk=16)
    assert chunk_of(streamed) == 2  # no more steps than fit
    np.testing.assert_array_equal(whole.state.rows, streamed.state.rows)
    np.testing.assert_array_equal(whole.state.weights, streamed.state.weights)


def test_a_selection_of_a_memory_map_reads_its_own_rows(tmp_path):
    kept = np.array([1, 2, 5, 11, 12, 13, 19])
    selection = mapped_files.MappedRows(mapped(tmp_path), kept)
    np.testing.assert_array_equal(np.asarray(selection), ROWS[kept])
    np.testing.assert_array_equal(
        batches.read_rows(selection, np.array([[6, 0], [3, 3]])), ROWS[kept][[[6, 0], [3, 3]]]
    )
    assert (selection.shape, selection.nbytes) == ((7, 2), 56)
