"""``latentia completion``: scripts that let a shell complete commands, models, options, objectives and names."""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem, get_completion_class

from latentia.commands import signatures
from latentia.commands.console import emit, json_option

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
@json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the script that completes words in a shell.

    It completes commands, models, the options of a chosen model, objectives and other names that an option takes,
    data sets, recipes and files.

    \b
    Examples (put the line into the file, then open a new shell):
      eval "$(latentia completion bash)"     # ~/.bashrc
      eval "$(latentia completion zsh)"      # ~/.zshrc
      latentia completion fish | source      # ~/.config/fish/config.fish
    """
    root = ctx.find_root()
    name = root.info_name or "latentia"
    kind = get_completion_class(shell)
    assert kind is not None
    variable = f"_{name}_COMPLETE".replace("-", "_").replace(".", "_").upper()
    # The template alone: asking click for the source would first start a shell to learn its version.
    maker = kind(root.command, {}, name, variable)
    script = maker.source_template % maker.source_vars()
    emit({"shell": shell, "script": script}, as_json=as_json, text=script)


def complete_data(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Data sets by name; a file where no name begins like this."""
    del ctx, param
    names = signatures.keys("latentia.datasets.loading", "_NAMED")
    return _starting(names, incomplete) or [CompletionItem(incomplete, type="file")]


def complete_recipe(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Recipes by name."""
    del ctx, param
    return _starting(signatures.keys("latentia.recipes", "RECIPES"), incomplete)


def complete_family(ctx: click.Context, param: click.Parameter | None, incomplete: str) -> list[CompletionItem]:
    """Families by name, with what they are."""
    del ctx, param
    from latentia.registry import FAMILIES

    return [CompletionItem(e.name, help=e.title) for e in FAMILIES if e.name.startswith(incomplete)]


def _starting(names: list[str], incomplete: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]
