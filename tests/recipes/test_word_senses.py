"""Word senses: planted topics are read off ambiguous words; vectors come from the data folder; words are found."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner

import latentia
from latentia.commands.reproduce import _text, reproduce
from latentia.core.errors import DataError, ParameterError
from latentia.recipes import RECIPES, word_senses


@pytest.fixture(scope="module")
def result(tmp_path_factory):
    out = tmp_path_factory.mktemp("senses") / "run"
    return out, RECIPES["word-senses"].run(out, quick=True, word=["Guitar", "tie"])


def topic_of(line):
    """The topic that most of an atom's words belong to."""
    words = set(line.split()[1:])
    return max(word_senses.TOPICS, key=lambda topic: len(words & set(word_senses.TOPICS[topic].split())))


def test_ambiguous_words_are_sums_of_their_topics(result):
    _, figures = result
    for word, topics in word_senses.AMBIGUOUS.items():
        lines = figures[f"atoms of {word}"]
        assert {topic_of(line) for line in lines} == set(topics)
        sizes = [abs(float(line.split()[0])) for line in lines]
        assert sizes == sorted(sizes, reverse=True)
    assert topic_of(figures["atoms of guitar"][0]) == "music"
    assert figures["part of squared lengths explained"] > 0.85
    assert figures["cosine among the nearest words of an atom"] > figures["cosine of words at random"] + 0.3


def test_the_page_and_the_files_tell_the_same(result):
    out, figures = result
    page = (out / "report.html").read_text(encoding="utf-8")
    for title in ("The idea", "“tie”", "“spring”", "“guitar”", "Atoms", "Learning"):
        assert title in page
    assert f"<td>{', '.join(figures['atoms of tie'][0].split()[1:])}</td>" in page  # may take several lines
    saved = json.loads((out / "evaluation.json").read_text())["recipe"]
    assert saved["atoms of spring"] == figures["atoms of spring"]
    assert (out / "atoms.safetensors").is_file()


def test_a_run_folder_lies_beside_the_page(result):
    out, figures = result
    run = out / "run"
    assert figures["run"] == str(run)
    atoms = latentia.load(run / "model.safetensors").components_
    np.testing.assert_array_equal(atoms, latentia.load(out / "atoms.safetensors").components_)
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["squared_error"] < rows[0]["squared_error"]
    assert json.loads((run / "config.json").read_text())["params"]["update"] == "ksvd"
    assert json.loads((run / "evaluation.json").read_text()) == json.loads((out / "evaluation.json").read_text())
    page = (run / "report.html").read_text(encoding="utf-8")
    assert "Squared error" in page
    assert "The idea" not in page  # which is what the page above is about


def test_atoms_are_read_by_cosine_and_negative_ones_by_the_opposite():
    words = np.array(["up", "down", "right", "left"])
    vectors = np.array([[0, 1], [0, -1], [1, 0], [-1, 0]], np.float32)
    readings = word_senses.read_atoms(np.array([[0.1, 0.995]], np.float32), vectors, words)
    assert readings.named(0) == ["up", "right", "left", "down"]
    assert readings.named(0, negative=True) == ["down", "left", "right", "up"]
    codes = sp.csr_array(np.array([[0.5], [-0.7]], np.float32))
    assert word_senses.senses(codes, 1, readings)[0][1][0] == "down"
    pairs = np.array([[0, 2]])  # “up” and “right”
    assert word_senses.coherence(word_senses.Readings(pairs, pairs, words), vectors) == pytest.approx(0)
    same = np.array([[0, 0]])
    assert word_senses.coherence(word_senses.Readings(same, same, words), vectors) == pytest.approx(1)


def test_vectors_come_from_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("LATENTIA_DATA", raising=False)
    with pytest.raises(DataError, match=r"glove\.6B\.zip"):
        word_senses.glove(5)
    folder = tmp_path / "glove"
    folder.mkdir()
    monkeypatch.setenv("LATENTIA_DATA", str(tmp_path))
    (folder / "glove.6B.100d.txt").write_text("the 3 4\nof 0 -2\nto 1 0\n", encoding="utf-8")
    words, vectors, what = word_senses.glove(2)
    assert words.tolist() == ["the", "of"]
    np.testing.assert_allclose(vectors, [[0.6, 0.8], [0, -1]], atol=1e-6)
    assert "2 words in 2 dimensions" in what
    halves = np.array([[0, 5], [1, 1]], np.float16)
    np.savez(folder / "glove6B_100d_top50k_f16.npz", words=np.array(["a", "b"]), vectors=halves)
    words, vectors, _ = word_senses.glove(2)
    assert words.tolist() == ["a", "b"]
    np.testing.assert_allclose(vectors[0], [0, 1])
    assert vectors.dtype == np.float32
    np.savez(folder / "glove6B_100d_top50k_f16.npz", words=np.array(["a"]), vectors=halves)
    with pytest.raises(DataError, match="one finite vector for every word"):
        word_senses.glove(2)


def test_unknown_words_are_explained_before_anything_is_learned(tmp_path):
    with pytest.raises(DataError, match=r"'sprnig' is not in the vocabulary.*spring"):
        RECIPES["word-senses"].run(tmp_path, quick=True, word=["sprnig"])
    asked = ["word-senses", "--quick", "--out", str(tmp_path), "--word", "guitar", "--word", "xyzzy"]
    assert "'xyzzy' is not in the vocabulary" in str(CliRunner().invoke(reproduce, asked).exception)
    with pytest.raises(ParameterError, match="no option word"):
        RECIPES["mnist-rbm"].run(tmp_path, quick=True, word=["tie"])


def test_the_command_prints_one_line_for_an_atom():
    text = _text("x", {"atoms of tie": ["+0.9  a b", "-0.1  c"], "n": 2.0}, "out")
    assert "  atoms of tie: \n    +0.9  a b\n    -0.1  c\n" in text
