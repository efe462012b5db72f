"""``latentia encode``: posterior means of the latents, to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from latentia.commands.completion import complete_data
from latentia.commands.console import emit, json_option, quiet_option, told, working
from latentia.commands.inputs import data_option, open_run, run_argument
from latentia.commands.outputs import check_output, write_rows


@click.command()
@run_argument
@click.argument("data", required=False, shell_complete=complete_data)
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write: .npy, .npz or .csv.")
@click.option(
    "--split", type=click.Choice(["train", "test"]), default="train", show_default=True, help="Which rows."
)
@data_option
@quiet_option
@json_option
def encode(
    run: Path, data: str | None, out: Path, split: str, data_options: tuple, quiet: bool, as_json: bool
) -> None:
    """Write the codes of data to a file.

    Codes are posterior means of the latents, one row per example.
    Without DATA, the data that the run was trained on. An .npz file also holds the labels, if there are any.

    \b
    Examples:
      latentia encode runs/digits digits --out codes.npy
      latentia encode runs/digits digits --split test --out codes.csv
      latentia encode runs/mine/model.safetensors more.npy --out codes.npz
    """
    check_output(out)
    found = open_run(run)
    with working("encoding", quiet=quiet):
        estimator = found.estimator()
        rows, labels, name = found.load_data(data, dict(data_options), estimator).rows(split)
        codes = estimator.transform(rows)
    write_rows(out, codes, names=[str(n) for n in estimator.get_feature_names_out()], labels=labels)
    result: dict[str, Any] = {"out": str(out), "shape": list(codes.shape), "split": name}
    text = f"{codes.shape[0]} codes of {codes.shape[1]} numbers ({name} rows) written to {out}"
    emit(result, as_json=as_json, text=told(text))
