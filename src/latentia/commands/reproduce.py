"""``latentia reproduce``: published results, run again by name."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from latentia.commands.completion import complete_recipe
from latentia.commands.console import emit, json_option, quiet_option, say, table, working, wrapped
from latentia.commands.errors import Interrupted, was_interrupted
from latentia.core.errors import UnknownNameError
from latentia.core.run_folder import RunFolder


@click.command()
@click.argument("name", required=False, shell_complete=complete_recipe)
@click.option("--list", "listing", is_flag=True, help="List the recipes.")
@click.option("--out", type=click.Path(path_type=Path), help="Run folder to write.")
@click.option("--cpu", is_flag=True, help="The variant for a machine without an accelerator.")
@click.option("--quick", is_flag=True, help="A short variant, only to check that it runs.")
@click.option(
    "--images", type=click.Path(path_type=Path), help="Folder of photographs, for recipes that cut patches."
)
@click.option("--word", multiple=True, help="A word to look up, for recipes about words; may be repeated.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), default=0, show_default=True, help="Random seed.")
@quiet_option
@json_option
def reproduce(
    name: str | None,
    listing: bool,
    out: Path | None,
    cpu: bool,
    quick: bool,
    images: Path | None,
    word: tuple[str, ...],
    seed: int,
    quiet: bool,
    as_json: bool,
) -> None:
    """Run a published experiment again.

    Its results are printed next to the published ones.

    \b
    Examples:
      latentia reproduce --list
      latentia reproduce olshausen-field --quick --out runs/edges
      latentia reproduce mnist-rbm --cpu --out runs/mnist
    """
    with working("loading the recipes", quiet=quiet):
        from latentia.learning.progress import HUSHED
        from latentia.recipes import RECIPES

    if listing or name is None:
        _list(RECIPES, as_json)
        return
    if name not in RECIPES:
        raise UnknownNameError("recipe", name, RECIPES)
    if out is None:
        raise click.UsageError("Missing option '--out': the folder to write.")
    options = {name: given for name, given in (("images", images), ("word", word)) if given}
    silent = quiet or not sys.stderr.isatty()
    if not silent:
        click.echo(wrapped(f"{RECIPES[name].description} (Ctrl-C stops it.)"), err=True)
    token = HUSHED.set(silent)
    try:
        result = RECIPES[name].run(out, cpu=cpu, seed=seed, quick=quick, **options)
    except (KeyboardInterrupt, Exception) as error:
        if was_interrupted(error):
            raise Interrupted(_what_is_left(out)) from error
        raise
    finally:
        HUSHED.reset(token)
    if RunFolder(out).config.is_file():
        from latentia.report import build_report

        with working("writing the report", quiet=quiet):
            result["report"] = str(build_report(out, title=RECIPES[name].description))
    emit(result, as_json=as_json, text=_text(name, result, out))


def _what_is_left(out: Path) -> str:
    if not out.is_dir() or not any(out.iterdir()):
        return "Interrupted, and nothing was written. Run the same command to begin anew."
    again = "the same command with another --out begins anew"
    show = f": 'latentia report {shlex.quote(str(out))}' shows it" if RunFolder(out).config.is_file() else ""
    return f"Interrupted. What was learned is in {out}{show}; {again}."


def _list(recipes: Any, as_json: bool) -> None:
    if as_json:
        entries = [{"name": name, "description": recipe.description} for name, recipe in recipes.items()]
        emit({"recipes": entries}, as_json=True)
        return
    table(["name", "what it shows"], [[name, recipe.description] for name, recipe in recipes.items()])
    say("Next: latentia reproduce NAME --out RUN; --cpu for two cores, --quick to see that it runs")


def _text(name: str, result: dict[str, Any], out: Path) -> str:
    lines = [f"{name}:", *(f"  {key}: {_short(value)}" for key, value in result.items()), f"written to {out}"]
    return "\n".join(lines)


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, dict):
        return ", ".join(f"{key} {_short(item)}" for key, item in value.items())
    if isinstance(value, list):
        return "".join(f"\n    {_short(item)}" for item in value)
    return str(value)
