"""``latentia explain``: a family, its energy, its capabilities, and the objectives that fit.

The text is generated from the registry, from docstrings and from the capabilities of a small model.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import click

from latentia.commands import parameters, signatures
from latentia.commands.completion import complete_family
from latentia.commands.console import NARROW, emit, json_option, quiet_option, width, working
from latentia.commands.models import describe
from latentia.core.domains import KINDS
from latentia.registry import Family, family

#: Capabilities that say how latents and data follow from one another.
_GIVEN = ("ExactPosterior", "Amortised", "Encodes", "LinearSplit", "ProxSplit", "Clamps", "Conditionals", "Decodes")
#: Where a long formula may be broken.
_BREAKS = re.compile(r" (?=[=≤+−·] |Σ)")


@click.command()
@click.argument("model", shell_complete=complete_family)
@quiet_option
@json_option
def explain(model: str, quiet: bool, as_json: bool) -> None:
    """Explain a model: energy, conditionals, objectives, literature.

    Also why the other objectives do not fit, and the parameters in short.

    \b
    Examples:
      latentia explain rbm
      latentia explain deep-energy --json
    """
    entry = family(model)
    with working(f"reading the capabilities of {entry.name}", quiet=quiet):
        facts = explanation(entry)
    emit(facts, as_json=as_json, text="" if as_json else _text(facts))


def explanation(entry: Family) -> dict[str, Any]:
    """Everything that is printed, as one JSON object."""
    from latentia.commands import families
    from latentia.learning import OBJECTIVES

    model = entry.tiny_model()
    described = describe(entry)
    taken = described["objectives"]
    signature = signatures.read(entry.target)
    texts = parameters.descriptions(signature.doc)
    return {
        **described,
        **families.formulas(entry, model),
        "about": families.about(entry),
        "capabilities": dict(families.capabilities(model)),
        "objectives": {name: families.plain(families.first_line(OBJECTIVES[name])) for name in taken},
        "refused": families.refused(model, taken),
        "parameters": [
            {
                "name": each.name,
                "default": None if each.default is inspect.Parameter.empty else each.default,
                "about": families.plain(texts.get(each.name, "")),
                "own": each.name not in _shared(),
            }
            for each in signature.parameters
        ],
        "reference": families.plain(families.reference(entry)),
    }


def _shared() -> set[str]:
    """Parameters that mean the same in every family."""
    from latentia.estimator.groups import GENERAL

    return {name for group in GENERAL for name in group.declared}


def _text(facts: dict[str, Any]) -> str:
    """For a person, to the width of the terminal."""
    page = _Page(min(width(), 100))
    page.line(f"{facts['title']} ({facts['kind']})", bold=True)
    page.line(f"latentia fit {facts['name']} DATA --out RUN, or in Python latentia.{facts['class']}")
    page.heading("In words")
    page.prose(facts["about"])
    page.formulas("Energy", facts["energy"])
    page.formulas("Bound", facts["bound"])
    given = [facts["capabilities"][name] for name in _GIVEN if name in facts["capabilities"]]
    page.formulas("Conditionals", facts["conditionals"], given)
    other = " by default; others with --visible" if facts["other_domains"] else ""
    page.heading("Data")
    page.line(f"{' and '.join(f'{name} ({KINDS[name].values})' for name in facts['domains'])}{other}", "  ")
    _ways(page, facts)
    page.heading("What its model can do")
    page.terms([(name, about) for name, about in facts["capabilities"].items() if name not in _GIVEN])
    page.heading("Parameters of its own")
    own = [each for each in facts["parameters"] if each["own"]]
    page.terms([(f"{each['name']} = {_short(each['default'])}", each["about"]) for each in own])
    rest = [f"{each['name']}={_short(each['default'])}" for each in facts["parameters"] if not each["own"]]
    page.heading("Parameters that all models share")
    page.line(", ".join(rest), "  ")
    page.heading("Reference")
    page.line(facts["reference"] or "–", "  ")
    page.line("")
    page.line(f"Next: latentia fit {facts['name']} --help")
    return "\n".join(page.lines)


def _ways(page: _Page, facts: dict[str, Any]) -> None:
    others = [way for way in facts["learning"] if way not in facts["objectives"]]
    if others or not facts["objectives"]:
        page.heading("Learns by")
        page.line(", ".join(others) or "nothing: it has nothing to learn", "  ")
    if facts["objectives"]:
        page.heading("Objectives that fit (the default first)")
        page.terms(list(facts["objectives"].items()))
    page.heading("Objectives that do not, and why")
    page.terms([(", ".join(names), reason) for reason, names in facts["refused"].items()])


def _short(value: Any) -> str:
    text = "none" if value is None else repr(value) if isinstance(value, str) else str(value)
    return text if len(text) < 40 else f"{text[:36]} …"


class _Page:
    """Lines of text, wrapped to a width."""

    def __init__(self, columns: int):
        self.columns, self.lines = columns - 1, list[str]()

    def line(self, text: str, indent: str = "", *, rest: str | None = None, bold: bool = False) -> None:
        """A paragraph."""
        found = textwrap.wrap(
            text, self.columns, initial_indent=indent, subsequent_indent=indent if rest is None else rest,
            break_long_words=False, break_on_hyphens=False,
        )  # fmt: skip
        self.lines += [click.style(each, bold=True) if bold else each for each in found or [""]]

    def heading(self, title: str) -> None:
        """A heading, one line apart from what was before."""
        self.lines.append("")
        self.line(title, bold=True)

    def terms(self, pairs: list[tuple[str, str]]) -> None:
        """Terms with what they mean: beside one another, or below on a narrow terminal."""
        room = min(max((len(term) for term, _ in pairs), default=0), 30) + 4
        for term, text in pairs:
            if self.columns >= NARROW and len(term) + 4 <= room:
                self.line(text, f"  {term}".ljust(room), rest=" " * room)
            else:
                self.line(term, "  ")
                self.line(text, "    " if self.columns < NARROW else " " * room)

    def formulas(self, title: str, formulas: list[str], remarks: list[str] = ()) -> None:  # pyright: ignore
        """Formulas, one a line, and remarks below; nothing where there are none."""
        if formulas or remarks:
            self.heading(title)
        for formula in formulas:
            self._formula(formula)
        for remark in remarks:
            self.line(remark, "  ", rest="    ")

    def _formula(self, formula: str) -> None:
        """A formula, broken before an operator where it is too long."""
        parts, line = _BREAKS.split(formula), "  "
        for part in parts:
            if len(line) + len(part) >= self.columns and line.strip():
                self.lines.append(line.rstrip())
                line = "      "
            line += f"{part} "
        self.lines.append(line.rstrip())

    def prose(self, text: str) -> None:
        """A docstring: paragraphs wrapped, formulas kept."""
        for index, block in enumerate(text.split("\n\n")):
            self.lines += [""] if index else []
            if block.startswith("    "):
                for formula in re.split(r"\s*\n\s*|\s{3,}", block.strip()):
                    self._formula(f"  {formula.strip()}")
            else:
                self.line(" ".join(block.split()), "  ")
