"""The command line: its guide, its commands, and how errors look.

The commands live in ``latentia.commands``, one file each; sub-commands and options of ``fit`` are generated
from the registry and the estimators' signatures. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import warnings
from typing import Any

import click

from latentia import __version__
from latentia.commands import data, demo, encode, evaluate, fit, models, report, reproduce, sample
from latentia.commands.errors import guarded

GUIDE = """
Latent-variable and energy-based representation learning: one energy, many ways to learn it.

\b
Start here (two minutes, no download, ends with a report to open in a browser):
  latentia demo

\b
Train a model, look at it, use it:
  latentia fit rbm digits --binarize sample --n-components 100 --out runs/digits
  latentia evaluate runs/digits
  latentia sample runs/digits -n 64 --out samples.npy
  latentia encode runs/digits digits --out codes.npy
  latentia report runs/digits

DATA is a name from `latentia datasets`, a .npy, .npz, .safetensors, .csv or .parquet file, or a folder of
pictures. RUN is the folder that `fit` writes: settings, metrics, checkpoints and the model. Most commands
take --json for scripts; every command explains itself with --help.
"""

COMMANDS = (
    demo.demo,
    models.models,
    data.datasets,
    fit.fit,
    evaluate.evaluate,
    sample.sample,
    encode.encode,
    report.report,
    reproduce.reproduce,
)


class Guide(click.Group):
    """The top of the command line: commands in reading order, and one place where errors become messages."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """In the order in which a newcomer meets them."""
        return list(self.commands)

    def main(self, args: Any = None, *rest: Any, standalone_mode: bool = True, **extra: Any) -> Any:
        """Run a command line; with ``standalone_mode`` (the default) every end is an exit code."""
        run = super().main
        if not standalone_mode:
            return run(args, *rest, standalone_mode=False, **extra)
        return guarded(lambda words: run(words, *rest, standalone_mode=False, obj=words, **extra), args)


@click.group(
    cls=Guide,
    help=GUIDE,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="latentia")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Show the guide if there is nothing else to do."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


for command in COMMANDS:
    cli.add_command(command)


def main() -> None:
    """The script ``latentia``."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    cli(prog_name="latentia")
