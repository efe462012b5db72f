"""``latentia models``: the families, from the registry."""

from __future__ import annotations

from typing import Any

import click

from latentia.commands.console import emit, json_option, table


@click.command()
@json_option
def models(as_json: bool) -> None:
    """List the families of models.

    Each is a sub-command of `fit`; its options are shown by `latentia fit FAMILY --help`.

    \b
    Example:
      latentia models
    """
    from latentia.registry import FAMILIES

    entries = [_describe(entry) for entry in FAMILIES]
    if as_json:
        emit({"models": entries}, as_json=True)
        return
    rows = [[e["name"], e["title"], e["kind"], ", ".join(e["learning"]), e["class"]] for e in entries]
    table(["name", "what it is", "kind", "learns by", "in Python"], rows)


def _describe(entry: Any) -> dict[str, Any]:
    return {
        "name": entry.name,
        "title": entry.title,
        "kind": entry.kind,
        "learning": learning(entry),
        "class": entry.class_name,
    }


def learning(entry: Any) -> list[str]:
    """The objectives that can train a family, or EM."""
    from latentia.estimator.gradient import GradientEstimator
    from latentia.learning import fitting

    estimator = entry.estimator()
    if not issubclass(estimator, GradientEstimator):
        return ["EM"]
    return fitting(entry.tiny_model())
