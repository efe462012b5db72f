"""Facts about a family, read from the registry, docstrings and capabilities."""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from typing import Any

from latentia.commands import parameters, signatures
from latentia.registry import Family

#: Parameters that choose how a family learns, besides its objective.
CHOICES = ("solver", "update")
_QUOTED = re.compile(r'"([\w-]+)"')
_BEGINS = {
    "energy": r"[EF]\([^)]*\) =",
    "bound": r"−?ELBO =",
    "conditionals": r"[pq]\([^)]*\|[^)]*\) =",
}
_ROLE = re.compile(r":\w+:`~?([^`]+)`")


def domains(model: Any) -> list[str]:
    """The kinds of data that a model is for."""
    from latentia.core import space

    return sorted({leaf.domain for leaf in space.leaves(model.x_space)})


def learning(entry: Family, model: Any) -> list[str]:
    """The ways in which a family learns: solvers and updates by name, objectives (the default first), learners."""
    signature = signatures.read(entry.target)
    texts = parameters.descriptions(signature.doc)
    ways = [way for choice in CHOICES if choice in signature for way in _QUOTED.findall(texts.get(choice, ""))]
    taken = objectives(entry, model)
    ways = [way for way in ways if not (way == "gradient" and taken)] + taken  # "gradient" is: by an objective
    if not ways and "n_epochs" in signature:
        ways = learners(model)
    return list(dict.fromkeys(ways))


def objectives(entry: Family, model: Any) -> list[str]:
    """The objectives that the family's estimator takes, the default first."""
    from latentia.estimator.gradient import GradientEstimator
    from latentia.learning import OBJECTIVES, fitting

    if not issubclass(entry.estimator(), GradientEstimator):
        return []
    signature = signatures.read(entry.target)
    fit = fitting(model)
    default = next((each.default for each in signature.parameters if each.name == "objective"), None)
    if default is None:
        return fit
    if default not in fit:  # it trains parts of the model, and the description says by what
        text = parameters.descriptions(signature.doc).get("objective", "")
        fit = [name for name in _QUOTED.findall(text) if name in OBJECTIVES]
    return [default, *(name for name in fit if name != default)]


def learners(model: Any) -> list[str]:
    """What else than an objective can train a model."""
    from latentia.core.algorithms import misfit
    from latentia.learning.closed_form import ClosedFormML
    from latentia.learning.em import EM

    return [name for name, learner in (("EM", EM()), ("closed form", ClosedFormML())) if not misfit(learner, model)]


def refused(model: Any, taken: list[str]) -> dict[str, list[str]]:
    """Objectives that are not taken, by the reason."""
    from latentia.core.algorithms import misfit
    from latentia.learning import OBJECTIVES

    reasons: dict[str, list[str]] = {}
    for name, make in OBJECTIVES.items():
        if name not in taken:
            reason = misfit(make(), model) or "it fits the model, but the estimator learns in another way"
            reasons.setdefault(reason, []).append(name)
    return reasons


def capabilities(model: Any) -> list[tuple[str, str]]:
    """(capability, what it means) of everything that a model can do."""
    from latentia.core import capabilities as core

    kinds = [kind for kind in vars(core).values() if inspect.isclass(kind) and issubclass(kind, core.AbstractModel)]
    mine = [kind for kind in kinds if kind is not core.AbstractModel and isinstance(model, kind)]
    return [(kind.__name__, re.sub(r" \([^)]*see [^)]*\)", "", plain(first_line(kind)))) for kind in mine]


def about(entry: Family) -> str:
    """The family's own text: the docstring of its module."""
    module = importlib.import_module(entry.target.partition(":")[0])
    return plain(inspect.getdoc(module) or entry.title)


def formulas(entry: Family, model: Any) -> dict[str, list[str]]:
    """What docstrings write out, nearest first: the "energy", the "bound" that is learned, the "conditionals"."""
    modules = (entry.estimator().__module__, type(model).__module__)
    found: dict[str, list[str]] = {"energy": [], "bound": [], "conditionals": []}
    for item in (*(sys.modules[name] for name in modules), type(model)):
        here: dict[str, list[str]] = {kind: [] for kind in found}
        for line in (inspect.getdoc(item) or "").splitlines():
            for formula in re.split(r"\s{3,}", line.strip()) if line.startswith("    ") else ():
                kind = next((kind for kind, begins in _BEGINS.items() if re.match(begins, formula)), None)
                if kind:
                    here[kind].append(plain(formula.rstrip(",.;")))
        found = {kind: known or here[kind] for kind, known in found.items()}
    return found


def reference(entry: Family) -> str:
    """The literature, from the docstring of the estimator."""
    doc = signatures.read(entry.target).doc
    found = re.search(r"^References?:\n((?:    .*\n?|\n)+)", doc, re.MULTILINE)
    return " ".join(found[1].split()) if found else ""


def first_line(documented: Any) -> str:
    """The first line of a docstring."""
    return (inspect.getdoc(documented) or "").partition("\n")[0]


def plain(text: str) -> str:
    """Without the marks of reStructuredText."""
    return re.sub(r"\*(\w[^*\n]*)\*", r"\1", _ROLE.sub(r"\1", text)).replace("``", "")
