"""The first part of a page about several runs: a table, curves in one chart, likelihoods, filters side by side."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup

from latentia.report import curves, facts, plots, theme
from latentia.report.runs import Run
from latentia.report.sections import Gallery, Section, between, common_domain, data_spaces, number

#: Filters of each run that stand side by side.
MOST_FILTERS = 36


def likelihood_words(run: Run) -> dict[str, str] | None:
    """The evaluation as text: estimate, interval and bits per feature, where those mean something."""
    result = run.likelihood
    if result is None:
        return None
    _, estimate, _ = plots.interval_ends(result)
    words = {
        "estimate": number(estimate),
        "interval": _interval(result),
        "bits": "",
    }
    leaves = [] if run.estimator is None else data_spaces(run.estimator)
    if leaves and all(leaf.is_discrete for leaf in leaves):
        n_columns = sum(leaf.n_columns for leaf in leaves)
        words["bits"] = f"{-estimate / n_columns / 0.6931471805599453:.3f} bits per feature"
    return words


def _interval(result: dict[str, Any]) -> str:
    lower, _, upper = plots.interval_ends(result)
    ends = "" if lower == upper else between(lower, upper)
    if plots.is_bound(result):
        return f"a lower bound, {ends}" if ends else "a lower bound"
    return ends or "exact"


def compare(runs: list[Run], galleries: list[Gallery]) -> dict[str, Any] | None:
    """What the template needs for the comparison; None for a single run. Galleries have made their sections."""
    if len(runs) < 2:
        return None
    names = _names(runs)
    evaluated = [(run, name) for run, name in zip(runs, names, strict=True) if run.likelihood is not None]
    kinds = {_measured_on(run) for run, _ in evaluated}
    picture = None
    if len(evaluated) > 1 and len(kinds) == 1:
        figure = plots.likelihood([run.likelihood for run, _ in evaluated], [name for _, name in evaluated])
        picture = Markup(theme.svg(figure, "Likelihood intervals of the runs", "r0"))
    lines = [_line(gallery, name, i) for i, (gallery, name) in enumerate(zip(galleries, names, strict=True), 1)]
    return {
        "lines": lines,
        "columns": _columns(lines),
        "picture": picture,
        "mixed": len(kinds) > 1,
        "curves": _curves(runs, names),
        "filters": _filters(galleries, names),
    }


def _names(runs: list[Run]) -> list[str]:
    """The folders' names, with a number if two are the same."""
    names = [run.name for run in runs]
    return [
        name if names.count(name) == 1 else f"{name} ({names[: i + 1].count(name)})" for i, name in enumerate(names)
    ]


#: (key, heading, whether a phone may leave it out) of the columns after the name.
_COLUMNS = (
    ("model", "Model", True),
    ("data", "Data", True),
    ("latents", "Latents", True),
    ("parameters", "Parameters", True),
    ("epochs", "Epochs", True),
    ("error", "Reconstruction error", False),
    ("time", "Training", False),
)


def _columns(lines: list[dict[str, Any]]) -> list[tuple[str, str, bool]]:
    """The columns in which some run has something to say."""
    return [column for column in _COLUMNS if any(line[column[0]] != "–" for line in lines)]


def _line(gallery: Gallery, name: str, index: int) -> dict[str, Any]:
    run = gallery.run
    latents, parameters = facts.n_latents(run), facts.n_parameters(run)
    epochs = run.history[-1].get("epoch") if run.history else None
    return {
        "id": f"run-{index}",
        "name": name,
        "likelihood": likelihood_words(run),
        "model": _brief(run),
        "data": str(run.data.get("name") or "–").rsplit("/", 1)[-1],
        "latents": "–" if latents is None else f"{latents:,}",
        "parameters": "–" if parameters is None else f"{parameters:,}",
        "epochs": "–" if epochs is None else f"{epochs:,.0f}",
        "error": "–" if gallery.error is None else f"{gallery.error:.3g}",
        "time": facts.duration(facts.seconds(run)),
    }


def _brief(run: Run) -> str:
    """The model's name without what stands behind a colon or a comma."""
    return facts.title(run).split(":")[0].split(",")[0]


def _curves(runs: list[Run], names: list[str]) -> Section | None:
    """Metrics that at least two runs have, one chart each."""
    histories = {name: run.history for run, name in zip(runs, names, strict=True) if run.history}
    shared = curves.shared(list(histories.values()))
    if not shared:
        return None
    section = Section("curves", "Training", widget="curves", data=curves.charts(histories, shared))
    if len({facts.title(run) for run in runs}) > 1:
        section.text.append(
            "A metric may have different scales in different families: compare shapes, not heights."
        )
    return section


def _filters(galleries: list[Gallery], names: list[str]) -> list[dict[str, Any]]:
    """(name, picture, what) of the most used filters of each run that has pictures of them."""
    found = []
    for gallery, name in zip(galleries, names, strict=True):
        explorer = gallery.explorer
        if explorer is None or explorer.shape is None:
            continue
        n = min(MOST_FILTERS, len(explorer.rows))
        figure = plots.image_grid(explorer.rows, explorer.shape, n=n, signed=explorer.signed)
        html = Markup(theme.png(figure, f"The {n} most used filters of {name}"))
        found.append({"name": name, "html": html, "model": _brief(gallery.run)})
    return found if len(found) > 1 else []


def _measured_on(run: Run) -> tuple[str, ...]:
    """What two likelihoods must share to be comparable: data and rows, binarisation, probability or density."""
    domain = "" if run.estimator is None else common_domain(run.estimator)
    rows = (run.evaluation.get("data"), run.evaluation.get("split"))
    facts_about = (run.source, run.data.get("options"), run.params.get("binarize"), domain, *rows)
    return tuple(str(fact) for fact in facts_about)
