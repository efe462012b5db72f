"""What a fit compiles: one loop for all data that need the same steps, and nothing for copies."""

from __future__ import annotations

import functools
import weakref

import jax
import numpy as np
import pytest
from jax import monitoring

from latentia import RBM
from latentia.estimator import rows
from latentia.learning import batches, compiled, fit
from latentia.ops import compiling

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


@pytest.fixture
def few_kept(monkeypatch):
    """No loops but those of the test, which then go."""
    compiled.forget()
    yield monkeypatch
    compiled.forget()


def loops(widths: tuple[int, ...], X: np.ndarray) -> list[weakref.ref]:
    """What each of some fits compiled, as far as it is still alive."""
    made = []
    for n_components in widths:
        RBM(
            n_components, n_sampler_steps=1, centring=0.0, monitor=None, batch_size=10, n_epochs=1, random_state=0
        ).fit(X)
        made.append(weakref.ref(next(reversed(compiled._CACHE.values())).run))
    return made


def alive(made: list[weakref.ref]) -> list[bool]:
    return [one() is not None for one in made]


def test_the_loops_used_last_are_kept_by_number(X, few_kept):
    few_kept.setattr(compiled, "MOST_LOOPS", 2)
    made = loops((3, 4, 3, 5), X)
    assert made[0]() is made[2]()  # used again, and so newer than the second
    assert alive(made) == [True, False, True, True]


def test_the_loops_used_last_are_kept_by_size(X, few_kept):
    made = loops((3, 4), X)
    sizes = [loop.size for loop in compiled._CACHE.values()]
    assert min(sizes) > 1000
    few_kept.setattr(compiled, "MOST_BYTES", int(1.25 * sum(sizes)))  # two of three
    made += loops((3, 5), X)
    assert alive(made)[:2] == [True, False]
    few_kept.setattr(compiled, "MOST_BYTES", 1)
    assert alive(loops((4,), X)) == [True]  # the newest is kept, however large
    assert len(compiled._CACHE) == 1


def test_forgotten_loops_leave_the_process(X, few_kept):
    made = loops((3, 4), X)
    before = compiling.n_live_programs()
    compiled.forget()
    assert alive(made) == [False, False]
    assert compiling.n_live_programs() == before - 2


@jax.jit
def users_own(x):
    return x + 1


def kept_by_jax() -> int:
    return users_own._cache_size()


def test_too_many_programs_of_ours_go_and_the_users_own_stay(few_kept, X):
    jax.clear_caches()
    users_own(np.float32(1))
    few_kept.setattr(compiling, "MOST_PROGRAMS", 4096)
    for n in range(8):
        rows.apply_rows(_doubled, n, X[:5])
    before = compiling.n_live_programs()
    few_kept.setattr(compiling, "MOST_PROGRAMS", before)
    compiling.make_room()
    assert compiling.n_live_programs() == before  # as many as are allowed
    few_kept.setattr(compiling, "MOST_PROGRAMS", before - 1)
    few_kept.setattr(compiling, "_crowded", functools.partial(_only_at_first, compiling._crowded))
    compiling.make_room()
    assert compiling.n_live_programs() <= before - 8
    assert kept_by_jax() == 1


def _doubled(factor, x):
    return factor * x


def _only_at_first(crowded, share):
    return share == 1.0 and crowded(share)


def test_too_many_programs_of_others_go_as_well(few_kept):
    users_own(np.float32(1))
    few_kept.setattr(compiling, "MOST_PROGRAMS", 1)
    many = [jax.jit(lambda x, n=n: x + n) for n in range(3)]
    for one in many:
        one(np.float32(1))
    compiling.make_room()
    assert kept_by_jax() == 0
    assert users_own(np.float32(1)) == 2


def test_too_many_mappings_are_too_many_programs(few_kept):
    users_own(np.float32(1))
    few_kept.setattr(compiling, "MOST_PROGRAMS", 8 * (compiling.n_live_programs() - 1))
    few_kept.setattr(compiling, "_n_mappings", lambda: compiling.MOST_MAPPINGS)
    compiling.make_room()
    assert kept_by_jax() == 1
    few_kept.setattr(compiling, "_n_mappings", lambda: compiling.MOST_MAPPINGS + 1)
    compiling.make_room()
    assert kept_by_jax() == 0
