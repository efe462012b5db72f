"""The page of the word-senses experiment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from latentia.report import plots
from latentia.report.article import Section, pictures, table, text, write_article

#: Atoms that the page shows by default.
SHOWN = 40


def write_page(
    path: Path,
    figures: dict[str, Any],
    senses: dict[str, list[tuple[float, list[str]]]],
    history: Any,
    codes: Any,
    named: Callable[[int], list[str]],
) -> Path:
    """Everything that the experiment found, to be read from top to bottom."""
    sections = [
        _idea(figures),
        *(_word(word, found) for word, found in senses.items()),
        _atoms(codes, named),
        _learning(figures, history, codes),
    ]
    return write_article(path, "Word senses as sums of atoms", sections)


def _idea(figures: dict[str, Any]) -> Section:
    return Section(
        "The idea",
        [
            text(
                "A word vector x is written as a sum of few atoms, x ≈ Σ_k z_k d_k, and atoms are learned so that "
                "the squared error over all words is least (K-SVD: orthogonal matching pursuit, then every atom "
                "together with its coefficients). An atom is read by the words nearest to it. A word that means "
                "several things is then a sum of atoms that mean one thing each."
            ),
            table(
                ["what", "value"],
                [
                    ["vectors", figures["vectors"]],
                    ["atoms", figures["atoms"]],
                    ["squared length explained", f"{100 * figures['part of squared lengths explained']:.1f} %"],
                    [
                        "cosine between words that read the same atom",
                        f"{figures['cosine among the nearest words of an atom']:.2f}",
                    ],
                    ["cosine between words at random", f"{figures['cosine of words at random']:.2f}"],
                ],
                words=True,
            ),
        ],
    )


def _word(word: str, found: list[tuple[float, list[str]]]) -> Section:
    rows = [[f"{value:+.2f}", ", ".join(nearest)] for value, nearest in found]
    caption = "Atoms with a negative coefficient are read by the words nearest to their opposite."
    return Section(f"“{word}”", [table(["coefficient", "nearest words"], rows, caption, words=True)])


def _atoms(codes: Any, named: Callable[[int], list[str]]) -> Section:
    uses = np.bincount(codes.indices, minlength=codes.shape[1])
    order = np.argsort(-uses, kind="stable")
    chosen = order[np.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().astype(int)]
    rows = [[str(k), str(uses[k]), ", ".join(named(int(k)))] for k in chosen]
    return Section(
        "Atoms",
        [
            text("From the most used atom to the least used one, evenly spread:"),
            table(["atom", "words that use it", "nearest words"], rows, words=True),
        ],
    )


def _learning(figures: dict[str, Any], history: Any, codes: Any) -> Section:
    uses = np.bincount(codes.indices, minlength=codes.shape[1])
    drawings = [
        (plots.curves(history, ["squared_error"]), "Mean squared error over the rounds of K-SVD"),
        (
            plots.histogram(uses, label="words that use an atom", count="share of atoms"),
            "How many words use an atom",
        ),
    ]
    return Section(
        "Learning",
        [
            pictures(*drawings),
            text(f"The whole experiment took {figures['total seconds']:.0f} seconds."),
        ],
    )
