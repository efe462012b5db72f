"""Examples: a pytree of arrays, read alike wherever its parts lie."""

from __future__ import annotations

import jax
import numpy as np
import pytest
import scipy.sparse as sp

from latentia.core.errors import DataError
from latentia.estimator.digests import digest
from latentia.estimator.scoring import Portions
from latentia.ops import examples as module
from latentia.ops.examples import Examples, WithLabels, padded, side_by_side, without_labels

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)).astype(np.float32)
COUNTS = RNG.poisson(0.5, (40, 5)).astype(np.float32)
LABELS = RNG.integers(0, 3, 40).astype(np.float32)


@pytest.fixture
def mapped(tmp_path):
    """X in a file."""
    np.save(tmp_path / "x.npy", X)
    return np.load(tmp_path / "x.npy", mmap_mode="r")


@pytest.fixture(params=["array", "map", "rows of a map", "sparse", "parts", "labels"])
def pair(request, mapped, tmp_path):
    """(examples, the same as a matrix)."""
    longer = np.concatenate([X[:2] + 7, X])
    np.save(tmp_path / "longer.npy", longer)
    in_file = np.load(tmp_path / "longer.npy", mmap_mode="r")
    kinds = {
        "array": (X, X),
        "map": (mapped, X),
        "rows of a map": (Examples(in_file).take(np.arange(2, 42)).parts, X),
        "sparse": (sp.csr_array(COUNTS), COUNTS),
        "parts": ({"a": mapped, "b": sp.csr_array(COUNTS)}, np.column_stack([X, COUNTS])),
        "labels": (WithLabels(X, LABELS), np.column_stack([X, LABELS])),
    }
    parts, matrix = kinds[request.param]
    return Examples(parts), matrix


def test_every_way_of_reading_gives_the_same_numbers(pair):
    found, matrix = pair
    rows = np.array([7, 0, 7, 39])
    assert (found.n, found.n_columns, found.nbytes, found.shape) == (
        40,
        matrix.shape[1],
        matrix.nbytes,
        matrix.shape,
    )
    np.testing.assert_array_equal(side_by_side(found.read(rows)), matrix[rows])
    np.testing.assert_array_equal(side_by_side(found.read_all()), matrix)
    some = np.array([1, 4, 30])
    np.testing.assert_array_equal(side_by_side(found.take(some).read(np.array([2, 0]))), matrix[[30, 1]])
    twice = found.take(np.arange(10, 30)).take(some[:2])
    np.testing.assert_array_equal(side_by_side(twice.read_all()), matrix[[11, 14]])
    many = found.read(np.array([[1, 2], [3, 1]]))
    for leaf, alone in zip(jax.tree.leaves(many), jax.tree.leaves(found.read(np.array([3]))), strict=True):
        assert leaf.dtype == np.float32
        np.testing.assert_array_equal(leaf[1, 0], alone[0])


@pytest.mark.parametrize("n_bytes", [1, 64, 1000, 10**6])
def test_blocks_of_any_size_hold_all_rows_in_their_order(pair, n_bytes):
    found, matrix = pair
    blocks = list(found.blocks(n_bytes))
    np.testing.assert_array_equal(np.concatenate([side_by_side(block) for block in blocks]), matrix)
    assert all(side_by_side(block).nbytes <= max(n_bytes, 4 * found.n_columns) for block in blocks)


def test_a_check_is_told_where_its_block_begins(pair, monkeypatch):
    found, matrix = pair
    seen = []
    monkeypatch.setattr(
        Examples, "blocks", lambda self, n_bytes=0: iter([self.read(np.arange(i, i + 8)) for i in range(0, 40, 8)])
    )
    found.check(lambda block, *, first: seen.append((first, side_by_side(block).copy())))
    assert [first for first, _ in seen] == [(i, 0) for i in range(0, 40, 8)]
    np.testing.assert_array_equal(np.concatenate([block for _, block in seen]), matrix)


def test_parts_in_files_stay_there(mapped):
    found = Examples((mapped, X))
    assert found.in_file
    assert found.take(np.array([1, 2])).in_file
    assert not Examples(X).in_file
    assert not Examples(mapped[3:]).in_file  # a slice of a map has forgotten where it starts
    assert Examples(sp.csr_array(COUNTS)).is_sparse
    assert not found.is_sparse
    assert Examples(X).read_all() is X  # nothing is copied


def test_labels_are_a_part_of_their_own():
    found = Examples(X, (3, 1)).labelled(LABELS)
    assert found.n_columns == 4
    np.testing.assert_array_equal(found.data.parts, X)
    assert found.data.item_shape == (3, 1)
    assert without_labels(found.parts) is X
    assert without_labels(X) is X


@pytest.mark.parametrize("parts", [(X, X[:5]), (), (None, None)])
def test_parts_that_do_not_match_are_refused(parts):
    with pytest.raises(DataError, match="same number of rows"):
        Examples(parts)


def test_a_part_that_was_not_observed_is_none():
    found = Examples((X, None))
    assert found.n_columns == 3
    assert found.read(np.array([0]))[1] is None


def test_a_digest_sees_several_parts_as_the_matrix_that_they_make():
    """So that runs that began with labels glued to the data go on."""
    glued = np.column_stack([X, LABELS])
    assert digest(Examples(X)) == digest(X)
    assert digest(Examples(WithLabels(X, LABELS))) == digest(glued)
    assert digest(Examples(WithLabels(X, LABELS[::-1]))) != digest(glued)


def test_portions_are_converted_once_in_their_order(mapped, monkeypatch):
    """A conversion that goes through random numbers gives the same, however large a portion is."""
    monkeypatch.setattr(module, "PORTION", 7)

    def convert():
        rng = np.random.default_rng(3)
        return lambda rows: rows + rng.normal(size=rows.shape).astype(np.float32)

    whole = Portions(X, convert)
    streamed = Portions(Examples(mapped), convert)
    assert streamed.file is not None
    assert whole.n == streamed.n == 40
    assert len(list(streamed)) == 6
    for _ in range(2):  # each time anew
        np.testing.assert_array_equal(np.concatenate(list(streamed)), whole.parts)


def test_sequences_are_padded_and_keep_their_lengths():
    sequences = [RNG.normal(size=(n, 2)) for n in (3, 1, 4)]
    found = padded(sequences)
    assert found["values"].shape == (3, 4, 2)
    assert found["length"].tolist() == [3, 1, 4]
    for row, sequence in zip(found["values"], sequences, strict=True):
        np.testing.assert_array_equal(row[: len(sequence)], sequence.astype(np.float32))
        assert not row[len(sequence) :].any()


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([], "no sequences"),
        ([np.zeros((0, 2))], "length zero"),
        ([np.zeros((2, 2)), np.zeros((2, 3))], "as many features"),
        ([np.zeros((2, 2, 2))], "matrix"),
        ([np.full((2, 1), np.nan)], "NaN"),
    ],
)
def test_sequences_that_cannot_be_padded_are_refused(sequences, message):
    with pytest.raises(DataError, match=message):
        padded(sequences)
