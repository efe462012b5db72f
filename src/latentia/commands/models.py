"""``latentia models``: the families, from the registry."""

from __future__ import annotations

from typing import Any

import click

from latentia.commands.console import emit, json_option, quiet_option, say, table, working

HEADERS = ("model", "what it is", "data", "learns by")


@click.command()
@quiet_option
@json_option
def models(quiet: bool, as_json: bool) -> None:
    """List the models by kind, with their data and objectives.

    Each is a sub-command of `fit`; `latentia explain MODEL` says more about one.

    \b
    Examples:
      latentia models
      latentia models --json
      latentia explain rbm
    """
    from latentia.registry import FAMILIES

    with working("reading the capabilities of every model", quiet=quiet):
        entries = [describe(entry) for entry in FAMILIES]
    if as_json:
        emit({"models": entries}, as_json=True)
        return
    for kind in dict.fromkeys(entry["kind"] for entry in entries):
        mine = [entry for entry in entries if entry["kind"] == kind]
        table(HEADERS, [_row(entry) for entry in mine], heading=kind)
        click.echo()
    say("The way that is named first is the default. * Other kinds of data with --visible.")
    say("Next: latentia explain MODEL, latentia fit MODEL --help")


def describe(entry: Any) -> dict[str, Any]:
    """The facts about a family for the list and ``explain``."""
    from latentia.commands import families, signatures

    model = entry.tiny_model()
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "domains": families.domains(model),
        "other_domains": "visible" in signatures.read(entry.target),
        "learning": families.learning(entry, model),
        "objectives": families.objectives(entry, model),
        "class": entry.class_name,
    }


def _row(entry: dict[str, Any]) -> list[str]:
    data = ", ".join(entry["domains"]) + ("*" if entry["other_domains"] else "")
    return [entry["name"], entry["title"], data, ", ".join(entry["learning"]) or "nothing to learn"]
