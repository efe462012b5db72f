"""The command line: its guide and its commands.

The commands live in ``latentia.commands``, one file each; sub-commands and options of ``fit`` are generated
from the registry and the estimators' signatures. Nothing heavy is imported before a command needs it.
"""

from __future__ import annotations

import warnings

import click

from latentia import __version__
from latentia.commands import (
    completion,
    data,
    demo,
    encode,
    evaluate,
    explain,
    fit,
    models,
    predict,
    report,
    reproduce,
    sample,
)
from latentia.commands.guide import Guide

GUIDE = """
Latent-variable and energy-based representation learning: one energy, many ways to learn it.

\b
The five-minute path, without a download:
  latentia demo           # four kinds of models, one report for a browser
  latentia models         # what there is
  latentia explain rbm    # one of them: energy, conditionals, objectives

\b
Then train one, look at it, use it:
  latentia fit rbm digits --binarize sample --n-components 100 --n-epochs 400 --out runs/digits
  latentia report runs/digits
  latentia evaluate runs/digits
  latentia sample runs/digits -n 64 --out samples.npy --png samples.png
  latentia encode runs/digits digits --out codes.npy

MODEL is a name from `latentia models`. DATA is a name from `latentia datasets`, a .npy, .npz, .safetensors, .csv
or .parquet file, or a folder of pictures. RUN is the folder that `fit` writes: settings, metrics, checkpoints and
the model.
"""

NEXT = """
\b
Where to go next:
  latentia COMMAND --help     # examples and options of every command
  latentia completion bash    # let your shell complete all of this
  docs/getting-started.md     # the same from Python; tutorials beside it

Every command takes --json and then prints one JSON object and nothing else, for programs. Progress is shown on
terminals only, and not with --quiet.

Exit codes: 0 done, 1 a bug of ours (LATENTIA_DEBUG=1 shows where), 2 a mistake that the message explains, 130
interrupted by Ctrl-C, which saves the run and shows how to continue.
"""


@click.group(
    cls=Guide,
    help=GUIDE,
    epilog=NEXT,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="latentia")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Show the guide if there is nothing else to do."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


cli.add_section("Look around", demo.demo, models.models, explain.explain, data.datasets)
cli.add_section(
    "Train and use a model",
    fit.fit,
    evaluate.evaluate,
    sample.sample,
    encode.encode,
    predict.predict,
    report.report,
)
cli.add_section("More", reproduce.reproduce, completion.completion)


def main() -> None:
    """The script ``latentia``."""
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    cli(prog_name="latentia")
