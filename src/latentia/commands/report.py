"""``latentia report``: an HTML page from run folders."""

from __future__ import annotations

from pathlib import Path

import click

from latentia.commands.console import emit, json_option, quiet_option, told, working
from latentia.core.run_folder import REPORT


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help=f"HTML file. [default: {REPORT} in the first run]")
@click.option("--title", help="Heading of the page.")
@quiet_option
@json_option
def report(runs: tuple[Path, ...], out: Path | None, title: str | None, quiet: bool, as_json: bool) -> None:
    """Write one HTML page about one or several runs.

    Curves to zoom, filters to click, samples of chains, reconstructions, likelihoods and warnings in a
    single file that needs no network. Several runs are compared: one table, curves in one chart, filters side by
    side. For an interrupted run, or one with missing files, the page lists what is missing.

    \b
    Examples:
      latentia report runs/digits
      latentia report runs/a runs/b --out compare.html
      latentia report runs/digits --title "Digits, 100 units" --json
    """
    from latentia.report import build_report

    with working("Making the pictures", quiet=quiet or as_json):
        path = build_report(list(runs), out=out, title=title)
    emit({"report": str(path)}, as_json=as_json, text=told(f"{path}"))
