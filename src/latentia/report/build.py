"""``build_report``: one self-contained HTML page about one run or several."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from latentia.core.errors import RunFolderError
from latentia.core.files import write_atomically
from latentia.report import advice, facts, plots, theme
from latentia.report.runs import Run, read_run
from latentia.report.sections import Gallery, between, common_domain, data_spaces, number


def build_report(
    run_dirs: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    title: str | None = None,
    *,
    rows: Any = None,
    image_shape: Sequence[int] | None = None,
) -> Path:
    """Write a report about one run folder or several to one HTML file that needs nothing else.

    Args:
        run_dirs: a run folder, or a list of them; each may be incomplete.
        out: the file to write (or a folder to write ``report.html`` in). By default in the (first)
            run's own folder.
        title: heading of the page.
        rows: data to encode and reconstruct, where the run folder does not name data to load.
        image_shape: how a row folds into a picture, where the run folder does not say.

    Returns:
        The path of the file.

    Example:
        >>> from latentia.report import build_report
        >>> build_report("runs/rbm")  # doctest: +SKIP
        PosixPath('runs/rbm/report.html')
    """
    folders = [Path(run_dirs)] if isinstance(run_dirs, str | Path) else [Path(folder) for folder in run_dirs]
    if not folders:
        raise RunFolderError("A report needs at least one run folder.")
    shape = None if image_shape is None else tuple(image_shape)
    runs = [read_run(folder, rows, shape) for folder in folders]
    page = render(runs, title)
    path = _target(folders, out)
    write_atomically(path, page.encode())
    return path


def render(runs: list[Run], title: str | None = None) -> str:
    """The page as text."""
    environment = Environment(
        loader=PackageLoader("latentia.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    from latentia import __version__

    views = [_view(run, index) for index, run in enumerate(runs, start=1)]
    heading = title or (views[0]["model"] if len(views) == 1 else f"Comparison of {len(views)} runs")
    template = environment.get_template("report.html.jinja")
    return template.render(title=heading, runs=views, comparison=_comparison(runs), version=__version__)


def _view(run: Run, index: int) -> dict[str, Any]:
    gallery = Gallery(run, f"r{index}")
    sections = gallery.sections()
    return {
        "id": f"run-{index}",
        "name": run.name,
        "folder": str(run.folder),
        "model": facts.title(run),
        "formula": facts.formula(run),
        "figures": _key_figures(run),
        "warnings": advice.warnings(run, gallery.codes),
        "data": facts.data_lines(run),
        "parameters": facts.changed_parameters(run),
        "environment": facts.environment(run),
        "command": facts.command(run),
        "python": facts.python(run),
        "likelihood": likelihood_words(run),
        "sections": sections,
    }


def _key_figures(run: Run) -> list[tuple[str, str]]:
    """(value, what it is), the most telling numbers of a run."""
    latents, parameters = facts.n_latents(run), facts.n_parameters(run)
    epochs = run.history[-1].get("epoch") if run.history else None
    figures = [
        (None if latents is None else f"{latents:,}", "latents"),
        (None if parameters is None else f"{parameters:,}", "parameters"),
        (None if epochs is None else f"{epochs:,.4g}" if epochs < 1000 else f"{epochs:,.0f}", "epochs"),
        (facts.duration(facts.seconds(run)), "training"),
        (facts.duration(facts.compile_seconds(run)), "compiling"),
    ]
    return [(value, name) for value, name in figures if value not in (None, "–")]


def likelihood_words(run: Run) -> dict[str, str] | None:
    """The evaluation as text: estimate, interval and bits per feature, where those mean something."""
    result = run.likelihood
    if result is None:
        return None
    lower, estimate, upper = plots.interval_ends(result)
    exact = lower == upper
    words = {
        "estimate": number(estimate),
        "interval": "exact" if exact else between(lower, upper),
        "bits": "",
    }
    leaves = [] if run.estimator is None else data_spaces(run.estimator)
    if leaves and all(leaf.is_discrete for leaf in leaves):
        n_columns = sum(leaf.n_columns for leaf in leaves)
        words["bits"] = f"{-estimate / n_columns / 0.6931471805599453:.3f} bits per feature"
    return words


def _comparison(runs: list[Run]) -> dict[str, Any] | None:
    if len(runs) < 2:
        return None
    lines = []
    for index, run in enumerate(runs, start=1):
        latents = facts.n_latents(run)
        lines.append(
            {
                "id": f"run-{index}",
                "name": run.name,
                "model": facts.title(run),
                "data": str(run.data.get("name") or "–"),
                "latents": "–" if latents is None else f"{latents:,}",
                "likelihood": likelihood_words(run),
                "time": facts.duration(facts.seconds(run)),
            }
        )
    evaluated = [run for run in runs if run.likelihood is not None]
    kinds = {_measured_on(run) for run in evaluated}
    picture = None
    if len(evaluated) > 1 and len(kinds) == 1:
        figure = plots.likelihood([run.likelihood for run in evaluated], [run.name for run in evaluated])
        picture = Markup(theme.svg(figure, "Likelihood intervals of the runs", "r0"))
    return {"lines": lines, "picture": picture, "mixed": len(kinds) > 1}


def _measured_on(run: Run) -> tuple[str, ...]:
    """What two likelihoods must share to be comparable: data, binarisation, and probability or density."""
    domain = "" if run.estimator is None else common_domain(run.estimator)
    facts_about = (run.source, run.data.get("options"), run.params.get("binarize"), domain)
    return tuple(str(fact) for fact in facts_about)


def _target(folders: list[Path], out: str | Path | None) -> Path:
    if out is None:
        return folders[0] / "report.html"
    path = Path(out)
    return path / "report.html" if path.is_dir() else path
