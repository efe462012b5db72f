"""``latentia evaluate``: the two-sided log-likelihood of data."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from latentia.commands.completion import complete_data
from latentia.commands.console import duration, emit, json_option, quiet_option, remark, told, working
from latentia.commands.inputs import Source, data_option, open_run, run_argument, split_option
from latentia.core.atomic import write_json
from latentia.core.run_folder import EVALUATION, RunFolder

METHODS = ("auto", "exact", "ais")


@click.command()
@run_argument
@click.argument("data", required=False, shell_complete=complete_data)
@split_option
@click.option("--method", type=click.Choice(METHODS), default="auto", show_default=True, help="Method for log Z.")
@click.option("--temperatures", type=click.IntRange(2), help="Steps of the annealing. [default: 2000]")
@click.option("--chains", type=click.IntRange(2), help="Annealing runs in each direction. [default: 256]")
@click.option("--out", type=click.Path(path_type=Path), help=f"JSON file. [default: {EVALUATION} in the run]")
@data_option
@quiet_option
@json_option
def evaluate(
    run: Path,
    data: str | None,
    split: str | None,
    method: str,
    temperatures: int | None,
    chains: int | None,
    out: Path | None,
    data_options: tuple,
    quiet: bool,
    as_json: bool,
) -> None:
    """Report a lower and an upper bound on the log-likelihood of data.

    The mean over the rows, in nats.
    Exact where the normaliser can be computed; otherwise annealed importance sampling forward and backward,
    which bound it from below and above. Families without a known normaliser are evaluated by the
    score-matching objective instead, sparse codes by their objective, autoencoders by their loss. A model that has
    learned labels also gets its accuracy on labelled data. Without DATA, the data that the run was trained on. The
    result is also written to evaluation.json in the run folder.

    \b
    Examples:
      latentia evaluate runs/digits
      latentia evaluate runs/digits digits --split train --json
      latentia evaluate runs/digits --method ais --temperatures 10000 --chains 512
    """
    found = open_run(run)
    with working("loading", quiet=quiet):
        estimator = found.estimator()
        source = found.load_data(data, dict(data_options), estimator)
    rows, _, name = source.rows(split)
    numbers = {"method": method, "n_temperatures": temperatures, "n_chains": chains}
    options = {key: value for key, value in numbers.items() if value is not None}
    with working(f"judging {rows.shape[0]} rows", quiet=quiet):
        result, interval = evaluation(estimator, source, rows, name, options, found.folder, out)
    if interval is None and (len(options) > 1 or method != "auto"):
        remark(f"{estimator.family} has no log-likelihood: --method, --temperatures and --chains change nothing")
    emit(result, as_json=as_json, text=told(_text(result, interval)))


def evaluation(
    estimator: Any,
    source: Source,
    rows: Any,
    split: str,
    options: dict[str, Any],
    folder: Path | None,
    out: Path | None = None,
) -> tuple[dict[str, Any], Any]:
    """(what evaluation.json holds, the interval); written to ``out``, or into the run folder.

    Families whose log Z is not known have no interval (None); they are judged by score matching, those with sparse
    codes by their objective and autoencoders by their loss.
    """
    from latentia.abilities.sparse_codes import SparseEstimator
    from latentia.estimator.energy import UnnormalisedEstimator
    from latentia.estimator.reconstructing import ReconstructionEstimator

    begin = time.perf_counter()
    labels = source.rows(split)[1]
    predict = estimator.predict if hasattr(estimator, "classes_") else None  # a mixture's components have no names
    result: dict[str, Any] = {
        "family": estimator.family,
        "data": source.dataset.name,
        "split": split,
        "n_examples": int(rows.shape[0]),
    }
    interval = None
    if isinstance(estimator, UnnormalisedEstimator):
        result["score_matching"] = -estimator.score(rows)
    elif isinstance(estimator, SparseEstimator):
        result["objective"] = -estimator.score(rows)
    elif isinstance(estimator, ReconstructionEstimator):
        result["reconstruction_loss"] = -estimator.score(rows)
    else:
        interval = estimator.log_likelihood(rows, **options)
        result["log_likelihood"] = interval.as_dict()
    if labels is not None and predict is not None:
        result |= accuracy(predict(rows), labels)
    result["seconds"] = time.perf_counter() - begin
    if out is not None:
        write_json(out, result)
        result["written"] = str(out)
    elif folder is not None:
        RunFolder(folder).write_evaluation(result)
        result["written"] = str(RunFolder(folder).evaluation)
    return result, interval


def accuracy(predicted: Any, labels: Any) -> dict[str, float]:
    """The part of the labels that were predicted, by its name in results; empty where no row has a label.

    A label that the model has never seen counts as wrong, a missing one not at all.
    """
    from latentia.abilities.labels import missing

    there = ~missing(labels)
    pairs = zip(predicted[there].tolist(), labels[there].tolist(), strict=True)
    right = [found == wanted for found, wanted in pairs]
    return {"accuracy": sum(right) / len(right)} if right else {}


def _instead(result: dict[str, Any]) -> str:
    """The message if there is no log-likelihood, with the reason."""
    if "objective" in result:
        return (
            f"objective per example, squared error/2 + penalty: {result['objective']:.4g} (lower is better; codes "
            "are found by a search and not summed out, so there is no log-likelihood)"
        )
    if "reconstruction_loss" in result:
        return (
            f"reconstruction loss per example: {result['reconstruction_loss']:.4g} (lower is better; it is an "
            "energy without a known log Z, so there is no log-likelihood)"
        )
    return (
        f"score-matching objective: {result['score_matching']:.4g} (lower is better; log Z is not known, so "
        "there is no log-likelihood)"
    )


def _text(result: dict[str, Any], interval: Any) -> str:
    lines = [
        f"{result['family']} on {result['data']}, {result['n_examples']} {result['split']} rows, "
        f"{duration(result['seconds'])}",
        f"log-likelihood per example: {interval}" if interval is not None else _instead(result),
    ]
    if interval is not None and interval.warning:
        lines.append(f"warning: {interval.warning}")
    if "accuracy" in result:
        lines.append(f"accuracy: {result['accuracy']:.4g} of the labels are predicted")
    if "written" in result:
        lines.append(f"written to {result['written']}")
    return "\n".join(lines)
