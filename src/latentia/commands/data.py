"""``latentia datasets``: the data sets known by name."""

from __future__ import annotations

import dataclasses

import click

from latentia.commands.console import emit, json_option, say, table


@click.command()
@json_option
def datasets(as_json: bool) -> None:
    """List the data sets known by name.

    Bundled ones need no download. Anywhere a name goes, so does the path of a .npy, .npz, .safetensors, .csv
    or .parquet file or of a folder of pictures.

    \b
    Examples:
      latentia datasets
      latentia datasets --json
      latentia fit rbm digits --binarize sample --n-components 100 --n-epochs 400 --out runs/digits
    """
    from latentia.datasets import available

    infos = available()
    if as_json:
        emit({"datasets": [dataclasses.asdict(info) for info in infos]}, as_json=True)
        return
    rows = [[info.name, info.description, "bundled" if info.bundled else "downloaded once"] for info in infos]
    table(["name", "what it is", "where from"], rows)
    say("Next: latentia fit MODEL DATA --out RUN")
