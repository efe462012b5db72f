"""``latentia predict``: the most probable label of every row, to the terminal or to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from latentia.commands.completion import complete_data
from latentia.commands.console import emit, json_option, quiet_option, told, working
from latentia.commands.evaluate import accuracy
from latentia.commands.inputs import data_option, open_run, run_argument, split_option
from latentia.commands.outputs import check_output, write_labels
from latentia.core.errors import CapabilityError


@click.command()
@run_argument
@click.argument("data", required=False, shell_complete=complete_data)
@split_option
@click.option(
    "--out", type=click.Path(path_type=Path), help="File to write: .csv, .npy or .npz. [default: the terminal]"
)
@click.option("--proba", is_flag=True, help="Also write the probability of every label.")
@data_option
@quiet_option
@json_option
def predict(
    run: Path,
    data: str | None,
    split: str | None,
    out: Path | None,
    proba: bool,
    data_options: tuple,
    quiet: bool,
    as_json: bool,
) -> None:
    """Predict the labels of data.

    For models that have learned labels: fitted with --target, or fine-tuned in Python. One label per row, in the
    order of the rows. If the data are labelled, the accuracy is reported too. A mixture predicts the number of the
    component, from 0. Without DATA, the data that the run was trained on.

    \b
    Examples:
      latentia predict runs/labelled more.csv > labels.txt
      latentia predict runs/labelled more.csv --proba --out labels.csv
      latentia predict runs/labelled --split test --json
    """
    import numpy as np

    if out is not None:
        check_output(out)
    found = open_run(run)
    with working("predicting", quiet=quiet):
        estimator = found.estimator()
        _check_predicts(estimator)
        rows, labels, name = found.load_data(data, dict(data_options), estimator).rows(split)
        probabilities = estimator.predict_proba(rows)
    named = hasattr(estimator, "classes_")
    classes = estimator.classes_ if named else np.arange(probabilities.shape[1])
    predicted = classes[probabilities.argmax(axis=1)]
    result: dict[str, Any] = {"split": name, "n_rows": int(rows.shape[0]), "classes": classes.tolist()}
    if labels is not None and named:
        result |= accuracy(predicted, labels)
    if out is not None:
        write_labels(out, predicted, classes, probabilities if proba else None)
        result["out"] = str(out)
    else:
        result["labels"] = predicted.tolist()
        if proba:
            result["probabilities"] = probabilities.tolist()
    if not as_json and out is None:
        _tell_rows(predicted, probabilities if proba else None)
        click.echo(_summary(result), err=True)
        return
    emit(result, as_json=as_json, text=told(_summary(result)))


def _check_predicts(estimator: Any) -> None:
    if not hasattr(estimator, "predict"):
        raise CapabilityError(
            f"This {estimator.family} has learned no labels, so it cannot predict any. Train a family with label "
            "units on them (latentia fit dbm DATA --target COLUMN), or fine-tune in Python: finetune(X, y)."
        )


def _tell_rows(predicted: Any, probabilities: Any) -> None:
    for index, label in enumerate(predicted.tolist()):
        more = "" if probabilities is None else "".join(f"\t{p:.6g}" for p in probabilities[index])
        click.echo(f"{label}{more}")


def _summary(result: dict[str, Any]) -> str:
    where = f" written to {result['out']}" if "out" in result else ""
    right = f"; accuracy {result['accuracy']:.4g}" if "accuracy" in result else ""
    return f"labels of {result['n_rows']} {result['split']} rows{where}{right}"
