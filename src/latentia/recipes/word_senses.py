"""Word senses: a word with several meanings is a sum of a few atoms, one for each (Arora et al., 2018).

Word vectors are coded with 2,000 atoms, five of them in a word, by K-SVD. An atom is described by the words whose
vectors are nearest to it. *tie* is then a sum of a match, of clothes and of quarrels, although the
vector was learned without any information on word senses.

The vectors are GloVe's (Pennington, Socher and Manning, 2014), 50,000 English words in 100 dimensions, scaled to
length one, from ``$LATENTIA_DATA/glove``. The quick variant makes up a small vocabulary instead.

The page ``report.html`` is about words. Beside it ``run`` is an ordinary run folder, with the model, its metrics
and a report of its own, for ``latentia encode``, ``evaluate`` and ``report``.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.errors import DataError
from latentia.core.run_folder import RunFolder
from latentia.recipes.base import Recipe

WORDS = ("tie", "spring")
_SETTINGS: dict[str, dict[str, Any]] = {
    "full": {"n_components": 2000, "n_epochs": 25, "n_words": 50_000},
    "cpu": {"n_components": 2000, "n_epochs": 15, "n_words": 50_000},
    "quick": {"n_components": 20, "n_epochs": 30, "n_words": 0},
}
#: Atoms in a word, and words that an atom is read by.
ACTIVE, NEAREST = 5, 9
#: The run's folder, beside the page.
RUN = "run"
_FILES = ("glove6B_100d_top50k_f16.npz", "glove.6B.100d.txt")
#: The made-up vocabulary: words of one topic each, and two that have two.
TOPICS = {
    "sport": "match goal league striker referee stadium score penalty final draw",
    "clothes": "shirt jacket trousers collar suit scarf sleeve button wool silk",
    "season": "winter summer autumn april rain snow harvest blossom thaw sunshine",
    "metal": "coil wire steel lever hinge bolt piston screw iron gear",
    "water": "river well brook stream lake pond fountain waterfall creek flood",
    "law": "court judge trial verdict lawyer jury appeal witness statute plea",
    "music": "guitar violin drum chord melody opera singer concert piano flute",
    "money": "loan credit debt interest deposit fund cash banker coin savings",
}
AMBIGUOUS = {"tie": ("sport", "clothes"), "spring": ("season", "metal")}


def _run(out: Path, variant: str, seed: int, word: Sequence[str] = ()) -> dict[str, Any]:
    from latentia import DictionaryLearning

    begin = time.perf_counter()
    settings = _SETTINGS[variant]
    out.mkdir(parents=True, exist_ok=True)
    words, vectors, source = made_up(seed) if variant == "quick" else glove(settings["n_words"])
    asked = list(dict.fromkeys([*WORDS, *(each.lower() for each in word)]))
    places = {each: _place(words, each) for each in asked}
    active = 2 if variant == "quick" else ACTIVE
    learning = DictionaryLearning(
        settings["n_components"],
        n_nonzero=active,
        update="ksvd",
        n_epochs=settings["n_epochs"],
        random_state=seed,
        run_dir=out / RUN,
        verbose=int(variant != "quick"),
    ).fit(vectors)
    learning.save(out / "atoms.safetensors")
    atoms, codes = learning.components_, learning.transform(vectors, output="csr")
    readings = read_atoms(atoms, vectors, words)
    lists = {each: senses(codes, place, readings) for each, place in places.items()}
    error = float(np.mean(np.sum((vectors - codes @ atoms) ** 2, axis=1)))
    figures = {
        "variant": variant,
        "vectors": source,
        "atoms": f"{len(atoms):,}, {active} in a word",
        "part of squared lengths explained": 1 - error,
        "cosine among the nearest words of an atom": coherence(readings, vectors),
        "cosine of words at random": float(np.mean(vectors, axis=0) @ np.mean(vectors, axis=0)),
        **{f"atoms of {each}": [_line(*sense) for sense in found] for each, found in lists.items()},
        "seconds of learning": learning.history_[-1]["seconds"],
        "total seconds": time.perf_counter() - begin,
    }
    for folder in (out, out / RUN):
        RunFolder(folder).write_evaluation({"recipe": figures})
    from latentia.recipes.word_senses_page import write_page
    from latentia.report import build_report

    build_report(out / RUN, rows=vectors, title="Atoms of word vectors")
    page = write_page(RunFolder(out).report, figures, lists, learning.history_, codes, readings.named)
    return {**figures, "report": str(page), "run": str(out / RUN)}


def _line(coefficient: float, nearest: list[str]) -> str:
    return f"{coefficient:+.2f}  {' '.join(nearest)}"


class Readings:
    """The words nearest to every atom, and farthest from it: atoms with a negative coefficient are read by those.

    Args:
        near: numbers of the nearest words, (K, n).
        far: numbers of the words nearest to the atom's opposite, (K, n).
        words: the vocabulary.
    """

    def __init__(self, near: np.ndarray, far: np.ndarray, words: np.ndarray):
        self.near, self.far, self.words = near, far, words

    def named(self, atom: int, *, negative: bool = False) -> list[str]:
        """The words that an atom is read by."""
        return [str(w) for w in self.words[(self.far if negative else self.near)[atom]]]


def read_atoms(atoms: np.ndarray, vectors: np.ndarray, words: np.ndarray) -> Readings:
    """Which words are nearest to the atoms, by their cosine; vectors have length one."""
    near = np.empty((len(atoms), min(NEAREST, len(words))), np.int64)
    far = np.empty_like(near)
    for first in range(0, len(atoms), 100):
        cosines = atoms[first : first + 100] @ vectors.T
        for sign, found in ((-1, near), (1, far)):
            top = np.argpartition(sign * cosines, near.shape[1] - 1, axis=1)[:, : near.shape[1]]
            order = np.argsort(sign * np.take_along_axis(cosines, top, axis=1), axis=1)
            found[first : first + 100] = np.take_along_axis(top, order, axis=1)
    return Readings(near, far, words)


def senses(codes: Any, place: int, readings: Readings) -> list[tuple[float, list[str]]]:
    """(coefficient, nearest words) of the atoms of a word, the largest first."""
    row = slice(codes.indptr[place], codes.indptr[place + 1])
    found = sorted(zip(codes.data[row], codes.indices[row], strict=True), key=lambda pair: -abs(pair[0]))
    return [(float(value), readings.named(int(atom), negative=bool(value < 0))) for value, atom in found]


def coherence(readings: Readings, vectors: np.ndarray) -> float:
    """Mean cosine between two different words that the same atom is read by."""
    groups = vectors[readings.near]
    n = groups.shape[1]
    sums = np.sum(np.sum(groups, axis=1) ** 2, axis=1)  # all pairs, each word with itself too
    return float(np.mean((sums - n) / (n * (n - 1))))


def _place(words: np.ndarray, word: str) -> int:
    found = np.flatnonzero(words == word)
    if not len(found):
        near = difflib.get_close_matches(word, words.tolist(), n=3, cutoff=0.75)
        hint = f" Near it: {', '.join(near)}." if near else ""
        raise DataError(f"The word {word!r} is not in the vocabulary of {len(words):,} words.{hint}")
    return int(found[0])


def glove(n_words: int) -> tuple[np.ndarray, np.ndarray, str]:
    """(words, vectors of length one, description) from the data folder: an .npz, or GloVe's own text file."""
    from latentia.datasets.remote import ENVIRONMENT, RemoteFile, Source, local_folders

    source = Source("glove", ("glove",), tuple(RemoteFile(name, (), "") for name in _FILES))
    paths = [folder / name for folder in local_folders(source) for name in _FILES if (folder / name).is_file()]
    if not paths:
        raise DataError(
            f"Word vectors are not at hand. Set {ENVIRONMENT} to a folder in which glove/ holds {_FILES[1]}: it is "
            "in glove.6B.zip on https://nlp.stanford.edu/projects/glove/ (862 MB). --quick makes up a vocabulary."
        )
    if paths[0].suffix == ".npz":
        with np.load(paths[0], allow_pickle=False) as content:
            words, vectors = content["words"][:n_words], content["vectors"][:n_words].astype(np.float32)
    else:
        words, vectors = _read_text(paths[0], n_words)
    if vectors.ndim != 2 or len(words) != len(vectors) or not np.isfinite(vectors).all():
        raise DataError(f"{paths[0]} does not hold one finite vector for every word.")
    what = f"GloVe, {len(words):,} words in {vectors.shape[1]} dimensions ({paths[0].name}), scaled to length one"
    return words, _unit(vectors), what


def _read_text(path: Path, n_words: int) -> tuple[np.ndarray, np.ndarray]:
    """A word and its numbers in every line, separated by blanks."""
    words, rows = [], []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            word, *numbers = line.rstrip().split(" ")
            words.append(word)
            rows.append(np.array(numbers, np.float32))
            if len(words) == n_words:
                break
    return np.array(words), np.stack(rows)


def made_up(seed: int) -> tuple[np.ndarray, np.ndarray, str]:
    """A vocabulary with topics that are known: what the atoms should find."""
    rng = np.random.default_rng(seed)
    directions = dict(zip(TOPICS, np.linalg.qr(rng.normal(size=(24, 24)))[0], strict=False))
    words, rows = [], []
    for topic, members in TOPICS.items():
        for word in members.split():
            words.append(word)
            rows.append(directions[topic] + 0.07 * rng.normal(size=24))
    for word, topics in AMBIGUOUS.items():
        words.append(word)
        rows.append(sum(directions[t] for t in topics) / len(topics) ** 0.5 + 0.05 * rng.normal(size=24))
    return np.array(words), _unit(np.array(rows, np.float32)), f"a made-up vocabulary of {len(words)} words"


def _unit(rows: np.ndarray) -> np.ndarray:
    sizes = np.linalg.norm(rows, axis=1, keepdims=True)
    return (rows / np.where(sizes > 0, sizes, 1)).astype(np.float32)


WORD_SENSES = Recipe(
    "Word senses: atoms of discourse in word vectors, by K-SVD",
    {"Arora et al. (2018)": "about 2,000 atoms, 5 in a word; tie: clothes, leagues, scores, cables, opera"},
    _run,
    ("word",),
)
