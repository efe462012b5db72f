"""Writes docs/families/: a page for every family of the registry, their overview, and what learns what.

    python docs/generate.py

``mkdocs build`` and ``mkdocs serve`` call it too, as a hook, and it adds the pages to the navigation. Everything on
a page comes from the code: the module's docstring, the estimator's signature and docstring, the capabilities of
its model, and what can learn it.
"""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from docstrings import to_markdown

from latentia.commands.parameters import MANAGED, OBJECTS, descriptions
from latentia.core import capabilities
from latentia.core.algorithms import misfit
from latentia.core.domains import KINDS
from latentia.core.hooks import function_of
from latentia.inference import SparseInference
from latentia.learning import OBJECTIVES, fitting
from latentia.learning.closed_form import ClosedFormML
from latentia.learning.dictionary import Online
from latentia.learning.em import EM
from latentia.registry import FAMILIES, Family

FOLDER = Path(__file__).parent / "families"
#: Where a page wants the table of capabilities, and where that of domains.
MARKER, DOMAINS_MARKER = "<!-- capabilities -->", "<!-- domains -->"
LEARNERS = {"EM": EM, "closed form": ClosedFormML, "dictionary updates": lambda: Online(SparseInference())}


def page(entry: Family) -> str:
    """One family's page."""
    estimator = entry.estimator()
    module = importlib.import_module(estimator.__module__)
    model = entry.tiny_model()
    formula = to_markdown(inspect.getdoc(module) or entry.title)
    return "\n".join(
        [
            f"# {entry.title}",
            "",
            f"*{entry.kind}* · in Python `latentia.{entry.class_name}` · on the command line `{entry.name}` · "
            f"source `{Path(inspect.getfile(estimator)).name}`",
            "",
            formula,
            "",
            "## Example",
            "",
            *_example(entry, estimator, model),
            "",
            "## Parameters",
            "",
            *_parameters(estimator),
            "",
            "## What its model can do",
            "",
            f"`{type(model).__name__}` has these [capabilities](../architecture.md#capabilities):",
            "",
            *_capabilities(model),
            "",
            "## How it learns",
            "",
            _learning(estimator, model),
            "",
            "## On the command line",
            "",
            *_command(entry, estimator),
            "",
            "## In Python",
            "",
            "Details of the common methods are in the [reference](../reference/estimators.md).",
            "",
            *_methods(estimator),
            "",
            *_references(estimator),
        ]
    )


def matrix() -> str:
    """Every family × every objective: fits, or does not and why."""
    models = {e.name: e.tiny_model() for e in FAMILIES}
    reasons = {(f, name): misfit(make(), m) for f, m in models.items() for name, make in OBJECTIVES.items()}
    lines = [
        "# What learns what",
        "",
        "An objective lists the capabilities that it needs and the domains of its data. This table "
        "compares them with the models of the families, with their default units. The tests train every pair that "
        "fits and check that the exact likelihood rises, and that every other pair is refused.",
        "",
        '<div class="upright" markdown="1">',
        "",
        "| objective | " + " | ".join(f"[{e.name}]({e.name}.md)" for e in FAMILIES) + " |",
        "|---|" + ":-:|" * len(FAMILIES),
    ]
    for name in OBJECTIVES:
        marks = " | ".join("·" if reasons[e.name, name] else "✓" for e in FAMILIES)
        lines.append(f"| `{name}` | {marks} |")
    lines += ["", "</div>", "", "## What they are", "", "| objective | |", "|---|---|"]
    lines += [f"| `{name}` | {_cell(_first_line(make))} |" for name, make in OBJECTIVES.items()]
    lines += [
        "",
        "[Choose an objective](../how-to/choose-an-objective.md) helps to choose among those that fit.",
        "",
    ]
    lines += ["## Why not", ""]
    for entry in FAMILIES:
        lines += [f"**{entry.class_name}**", ""]
        why: dict[str, list[str]] = {}
        for name in OBJECTIVES:
            if reasons[entry.name, name]:
                why.setdefault(str(reasons[entry.name, name]), []).append(f"`{name}`")
        lines += [f"- {', '.join(names)}: {_cell(reason)}." for reason, names in why.items()] or ["- nothing"]
        lines.append("")
    lines += [
        "Other units change the domain: an RBM with `visible='gaussian'` can be learned by score matching, one "
        "with `visible='rectified'` by its non-negative variant.",
        "",
    ]
    return "\n".join(lines)


def overview() -> str:
    """The list of all families, by kind."""
    lines = ["# Families", "", "`latentia models` prints this list; each family is one file of the package.", ""]
    for kind in dict.fromkeys(entry.kind for entry in FAMILIES):
        lines += [f"## {kind}", "", "| family | in Python | what it is |", "|---|---|---|"]
        lines += [
            f"| [`{e.name}`]({e.name}.md) | `{e.class_name}` | {e.title} |" for e in FAMILIES if e.kind == kind
        ]
        lines.append("")
    return "\n".join(lines)


def _example(entry: Family, estimator: type, model: Any) -> list[str]:
    """Code that fits a model to real data and draws it, made from the signature; execute.py runs it."""
    parameters = inspect.signature(estimator).parameters
    arguments = ", ".join(f"{name}={_literal(value)}" for name, value in _settings(entry, parameters).items())
    if entry.tiny_data == "binary":
        rows = 'load("digits").X' if "binarize" in parameters else '(load("digits").X > 0.5).astype(float)'
    else:
        rows = 'load("patches", patch_size=8, n=3000, images="china,flower").X'
    drawn = isinstance(model, capabilities.ExactSampler | capabilities.Conditionals | capabilities.Starts)
    second = (
        "plot.samples(model, 36, n_steps=200, ax=axes[1])"
        if drawn
        else ("plot.reconstructions(model, X, n=6, ax=axes[1])")
    )
    return [
        "```python",
        "import matplotlib.pyplot as plt",
        f"from latentia import {entry.class_name}, plot",
        "from latentia.datasets import load",
        "",
        f"X = {rows}",
        f"model = {entry.class_name}({arguments}).fit(X)",
        "figure, axes = plt.subplots(1, 2, figsize=(8, 4.2))",
        "plot.filters(model, n=36, ax=axes[0])",
        second,
        "```",
        "",
        f"![What a small {entry.class_name} learned](../gallery/family-{entry.name}.png)",
    ]


def _settings(entry: Family, parameters: Any) -> dict[str, Any]:
    """The tiny configuration, grown to a size at which there is something to see."""
    sizes: dict[str, Any] = {"n_components": 36, "n_filters": 9, "filter_shape": 3, "joint": 32}
    chosen: dict[str, Any] = {}
    for name, value in entry.tiny.items():
        if name == "hidden":
            chosen[name] = (64, 36)[: len(value)]
        elif name in sizes or isinstance(value, str):
            chosen[name] = sizes.get(name, value)
    if entry.tiny_data == "binary":
        chosen["binarize"] = "sample"
    chosen.pop("latents", None)  # binary ones are for enumerating; the default shows more
    wanted = {"pretraining_epochs": 20, "n_epochs": 40, "random_state": 0}
    if "optimizer" in parameters and parameters["optimizer"].default == "sgd":
        wanted["learning_rate"] = 0.5
    return {name: value for name, value in (chosen | wanted).items() if name in parameters}


def _literal(value: Any) -> str:
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _references(estimator: type) -> list[str]:
    """The section of the estimator's docstring, if it has one."""
    _, found, text = (inspect.getdoc(estimator) or "").partition("References:\n")
    lines = [line.strip() for line in text.split("\n\n")[0].splitlines()]
    return ["## References", "", to_markdown(" ".join(lines)), ""] if found else []


def _parameters(estimator: type) -> list[str]:
    texts = descriptions(estimator)
    rows = ["| parameter | default | meaning |", "|---|---|---|"]
    for name, parameter in inspect.signature(estimator).parameters.items():
        default = "required" if parameter.default is parameter.empty else f"`{parameter.default!r}`"
        rows.append(f"| `{name}` | {default} | {_cell(texts.get(name, ''))} |")
    return rows


def _capabilities(model: Any) -> list[str]:
    kinds = [
        kind
        for kind in vars(capabilities).values()
        if inspect.isclass(kind)
        and issubclass(kind, capabilities.AbstractModel)
        and kind is not capabilities.AbstractModel
    ]
    return [f"- `{kind.__name__}`: {_first_line(kind)}" for kind in kinds if isinstance(model, kind)]


def _learning(estimator: type, model: Any) -> str:
    learners = [name for name, learner in LEARNERS.items() if misfit(learner(), model) is None]
    names = [f"`{name}`" for name in fitting(model)] + learners
    text = f"Objectives that fit its model: {', '.join(names)}."
    parameters = inspect.signature(estimator).parameters
    if "objective" in parameters:
        return f"{text} The estimator takes `objective`, by default `{parameters['objective'].default!r}`."
    if "update" in parameters:
        return f"{text} The estimator takes `update`, by default `{parameters['update'].default!r}`."
    if "n_epochs" not in parameters:
        return f"{text} The estimator itself learns nothing."
    return f"{text} The estimator uses {' or '.join(learners)}."


def _command(entry: Family, estimator: type) -> list[str]:
    data = "bars" if entry.tiny_data == "binary" else "patches --data-option patch_size=8"
    taken = [name for name in inspect.signature(estimator).parameters if name not in MANAGED + OBJECTS]
    size = f" --n-components {entry.tiny['n_components']}" if "n_components" in entry.tiny else ""
    if "hidden" in entry.tiny:
        size = " --hidden " + "".join(f"{n}," for n in entry.tiny["hidden"])
    options = ", ".join(f"`--{name.replace('_', '-')}`" for name in taken)
    return [
        "```bash",
        f"latentia fit {entry.name} {data}{size} --out runs/{entry.name}",
        f"latentia evaluate runs/{entry.name}",
        f"latentia report runs/{entry.name}",
        "```",
        "",
        f"Options: {options}.",
    ]


def _methods(estimator: type) -> list[str]:
    """Public methods and properties that are ours, the family's own first."""
    rows = ["| method | what it does |", "|---|---|"]
    seen: set[str] = set()
    lacks = estimator()._lacks
    for owner in estimator.__mro__:
        for name, member in vars(owner).items() if owner.__module__.startswith("latentia.") else ():
            function = None if isinstance(member, classmethod) else function_of(member)
            if function is not None and not name.startswith("_") and name not in seen:
                seen.add(name)
                call = name if isinstance(member, property) else f"{name}({', '.join(_arguments(function))})"
                why = lacks(name)
                rows.append(
                    f"| `{call}` | {_cell(_first_line(function)) if why is None else f'Absent: {_cell(why)}'} |"
                )
    return rows


def _arguments(method: Any) -> list[str]:
    return [name for name in inspect.signature(method).parameters if name != "self"]


def _first_line(documented: Any) -> str:
    return to_markdown((inspect.getdoc(documented) or "").partition("\n")[0])


def _cell(text: str) -> str:
    return to_markdown(text).replace("|", "\\|")


def write() -> list[Path]:
    """Write all pages (only what changed, so that `mkdocs serve` does not go round in circles)."""
    FOLDER.mkdir(exist_ok=True)
    wanted = {FOLDER / "index.md": overview(), FOLDER / "objectives.md": matrix()}
    wanted |= {FOLDER / f"{e.name}.md": page(e) for e in FAMILIES}
    for old in set(FOLDER.glob("*.md")) - set(wanted):
        old.unlink()
    for path, text in wanted.items():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    return list(wanted)


def capability_table() -> str:
    """What a model may be able to do: what it inherits, writes and gets, from the classes themselves."""
    rows = ["| inherit | write | get |", "|---|---|---|"]
    for capability, methods, gives in capabilities.table():
        rows.append(f"| `{capability.__name__}` | {', '.join(f'`{name}`' for name in methods)} | {gives} |")
    return "\n".join(rows)


def domain_table() -> str:
    """The kinds of data, from the one list of them."""
    rows = [f"| `{domain}` | {kind.values} |" for domain, kind in KINDS.items()]
    return "\n".join(["| domain | values |", "|---|---|", *rows])


def on_page_markdown(text: str, **_: Any) -> str:
    """MkDocs' hook: put the tables of capabilities and of domains into their page."""
    for marker, table in ((MARKER, capability_table), (DOMAINS_MARKER, domain_table)):
        text = text.replace(marker, table()) if marker in text else text
    return text


def on_config(config: Any) -> Any:
    """MkDocs' hook: write the pages and list them in the navigation."""
    write()
    first = [{"Overview": "families/index.md"}, {"What learns what": "families/objectives.md"}]
    pages = [*first, *({e.class_name: f"families/{e.name}.md"} for e in FAMILIES)]
    config.nav = [{"Families": pages} if "Families" in item else item for item in config.nav]
    return config


if __name__ == "__main__":
    for path in write():
        print(path)
