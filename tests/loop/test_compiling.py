"""What a fit compiles: one loop for all data that need the same steps, and nothing for copies."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax import monitoring

from latentia import RBM
from latentia.learning import batches, compiled, fit

SMALL = {"n_components": 3, "batch_size": 10, "n_epochs": 2, "random_state": 0}


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    return (np.random.default_rng(0).random((61, 6)) < 0.4).astype(float)


@pytest.fixture
def programs():
    """The names of what is compiled from here on."""
    names: list[str] = []
    heard = [True]

    def hear(event: str, seconds: float, **facts) -> None:
        if heard[0] and "backend_compile" in event:
            names.append(str(facts.get("fun_name")))

    monitoring.register_event_duration_secs_listener(hear)
    yield names
    heard[0] = False


def weights(rbm: RBM) -> np.ndarray:
    return np.asarray(rbm.model_.weights)


def test_the_folds_of_a_cross_validation_share_one_loop(X):
    sample_weight = np.linspace(0.5, 1.5, len(X))
    first = RBM(**SMALL).fit(X[:60], sample_weight=sample_weight[:60])
    n_compiled = len(compiled._CACHE)
    second = RBM(**SMALL).fit(X[:59], sample_weight=sample_weight[:59])
    assert second.n_steps_ == first.n_steps_
    assert len(compiled._CACHE) == n_compiled
    assert second.compile_seconds_ == 0


def test_the_room_after_small_data_changes_no_bit(X, monkeypatch):
    sample_weight = np.linspace(0.5, 1.5, len(X))
    with_room = RBM(**SMALL).fit(X, sample_weight=sample_weight)
    monkeypatch.setattr(batches, "ROOMY_BYTES", 0)
    without = RBM(**SMALL).fit(X, sample_weight=sample_weight)
    np.testing.assert_array_equal(weights(with_room), weights(without))
    assert with_room.history_[-1]["energy_gap"] == without.history_[-1]["energy_gap"]


@pytest.mark.parametrize(("n_rows", "room"), [(2, 256), (256, 256), (257, 512), (1000, 1024)])
def test_small_data_have_room_up_to_a_power_of_two(n_rows, room):
    rows = np.random.default_rng(0).normal(size=(n_rows, 2)).astype(np.float32)
    placed = batches._roomy(rows)
    assert placed.shape == (room, 2)
    assert placed.dtype == rows.dtype
    np.testing.assert_array_equal(placed[:n_rows], rows)
    assert not placed[n_rows:].any()


def test_large_data_are_placed_as_they_are(monkeypatch):
    rows = np.ones((300, 2), np.float32)
    monkeypatch.setattr(batches, "ROOMY_BYTES", rows.nbytes)
    assert batches._roomy(rows).shape == (512, 2)
    monkeypatch.setattr(batches, "ROOMY_BYTES", rows.nbytes - 1)
    assert batches._roomy(rows) is rows


def test_copies_are_arrays_of_their_own_and_compile_nothing(programs):
    tree = (jax.device_put(np.arange(77.0, dtype=np.float32)), jax.random.key(3), "name")
    programs.clear()
    numbers, key, name = fit._copy(tree)
    assert programs == []
    assert numbers.unsafe_buffer_pointer() != tree[0].unsafe_buffer_pointer()
    numbers.delete()  # as a loop that consumes what it is given does
    np.testing.assert_array_equal(tree[0], np.arange(77.0))
    assert jax.random.key_data(key).tolist() == jax.random.key_data(tree[1]).tolist()
    assert name == "name"


def test_data_of_a_new_width_compile_few_programs(X, programs):
    RBM(**SMALL).fit(X)
    programs.clear()
    RBM(**SMALL, monitor=None).fit(X[:, :5])
    assert programs.count("jit(_chunk)") == 1
    assert len(programs) <= 7, programs
