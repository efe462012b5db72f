"""``latentia report``: an HTML page from run folders."""

from __future__ import annotations

from pathlib import Path

import click

from latentia.commands.console import emit, json_option


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN...", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="HTML file. [default: report.html in the first run]")
@click.option("--title", help="Heading of the page.")
@json_option
def report(runs: tuple[Path, ...], out: Path | None, title: str | None, as_json: bool) -> None:
    """Write one HTML page about one or several runs.

    Curves, filters, samples and likelihoods in a single file that needs no network.

    \b
    Examples:
      latentia report runs/digits
      latentia report runs/a runs/b --out compare.html
    """
    from latentia.report import build_report

    path = build_report(list(runs), out=out, title=title)
    emit({"report": str(path)}, as_json=as_json, text=str(path))
