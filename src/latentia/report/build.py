"""``build_report``: one self-contained HTML page about one run or several."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from latentia.core.errors import RunFolderError
from latentia.core.files import write_atomically
from latentia.core.run_folder import RunFolder
from latentia.report import advice, facts
from latentia.report.comparison import compare, likelihood_words
from latentia.report.runs import Run, read_run
from latentia.report.sections import Gallery


def build_report(
    run_dirs: Sequence[str | Path] | str | Path,
    out: str | Path | None = None,
    title: str | None = None,
    *,
    rows: Any = None,
    image_shape: Sequence[int] | None = None,
) -> Path:
    """Write a report about one run folder or several to one HTML file that needs nothing else.

    Several runs are compared first: a table of figures, curves in one chart, filters side by side. A folder from an
    interrupted run, or one that has lost files, gets a page all the same, which says what is missing.

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
    path = _target(folders, out)
    _check_writable(path)
    shape = None if image_shape is None else tuple(image_shape)
    runs = [read_run(folder, rows, shape) for folder in folders]
    page = render(runs, title)
    write_atomically(path, page.encode("utf-8", "replace"))
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

    galleries = [Gallery(run, f"r{index}", 1 / len(runs)) for index, run in enumerate(runs, start=1)]
    views = [_view(gallery, index) for index, gallery in enumerate(galleries, start=1)]
    heading = title or (views[0]["model"] if len(views) == 1 else f"Comparison of {len(views)} runs")
    template = environment.get_template("report.html.jinja")
    return template.render(title=heading, runs=views, comparison=compare(runs, galleries), version=__version__)


def _view(gallery: Gallery, index: int) -> dict[str, Any]:
    run, sections = gallery.run, gallery.sections()
    return {
        "id": f"run-{index}",
        "name": run.name,
        "folder": str(run.folder),
        "model": facts.title(run),
        "formula": facts.formula(run),
        "figures": _key_figures(run),
        "warnings": advice.warnings(run, gallery.codes, gallery.r_hat),
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


def _target(folders: list[Path], out: str | Path | None) -> Path:
    if out is None:
        return RunFolder(folders[0]).report
    path = Path(out)
    return RunFolder(path).report if path.is_dir() else path


def _check_writable(path: Path) -> None:
    """Refuse early what writing would refuse late, after all pictures have been made."""
    folder = next((parent for parent in path.absolute().parents if parent.exists()), Path("/"))
    if not folder.is_dir():
        raise RunFolderError(f"Could not write {path}: {folder} is a file, not a folder. Choose another place.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise RunFolderError(
            f"Could not write {path}: no permission to write in {folder}. Choose another place with out= (--out)."
        )
