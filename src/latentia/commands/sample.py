"""``latentia sample``: draws from a model, free or with some entries given."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click

from latentia.commands.console import emit, json_option, quiet_option, told, working
from latentia.commands.inputs import Run, Source, open_run, run_argument
from latentia.commands.outputs import check_output, write_rows
from latentia.core.errors import DataError


@click.command()
@run_argument
@click.option(
    "-n", "--n-samples", type=click.IntRange(1), help="Samples to draw. [default: 64; 1 per row with --given]"
)
@click.option("--steps", type=click.IntRange(1), default=1000, show_default=True, help="Sweeps of the chains.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="File to write: .npy, .npz or .csv.")
@click.option("--png", type=click.Path(path_type=Path), help="Also draw the samples as a grid of pictures.")
@click.option("--given", type=click.Path(), help="File of rows with known entries, NaN where unknown.")
@click.option("--mask", type=click.Path(), help="File of 0 and 1: 1 where --given is known.")
@click.option("--mean", is_flag=True, help="Mean given the last latents instead of a draw: smoother pictures.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Random seed. [default: the model's own]")
@quiet_option
@json_option
def sample(
    run: Path,
    n_samples: int | None,
    steps: int,
    out: Path,
    png: Path | None,
    given: str | None,
    mask: str | None,
    mean: bool,
    seed: int | None,
    quiet: bool,
    as_json: bool,
) -> None:
    """Draw samples from a model, or fill in unknown entries.

    \b
    Examples:
      latentia sample runs/digits -n 100 --out samples.npy --png samples.png
      latentia sample runs/digits --given half.npy --mask known.npy --mean --out filled.npy
    """
    check_output(out)
    found = open_run(run)
    if png is not None:
        check_output(png, (".png",))
        _image_shape(found)
    if mask is not None and given is None:
        raise click.UsageError("--mask marks the known entries of --given; pass --given too.")
    from latentia.datasets.columns import names_of

    with working(f"drawing, {steps} sweeps", quiet=quiet):
        estimator = found.estimator()
        known = None if given is None else _read_given(found, given, estimator)
        rows = estimator.sample(
            n_samples or (64 if given is None else 1),
            n_steps=steps,
            given=None if known is None else known.dataset.X,
            mask=None if mask is None else _read_mask(found, mask, estimator, known),
            mean=mean,
            random_state=seed,
        )
    write_rows(out, rows, names=names_of(estimator))
    result: dict[str, Any] = {"out": str(out), "shape": list(rows.shape)}
    text = f"{rows.shape[0]} samples of {rows.shape[1]} numbers written to {out}"
    if png is not None:
        _draw(png, rows, _image_shape(found))
        result["png"] = str(png)
        text += f", drawn in {png}"
    emit(result, as_json=as_json, text=told(text))


def _read_given(run: Run, path: str, estimator: Any) -> Source:
    options = {"allow_nan": True} if Path(path).is_file() else {}  # a missing file is the loader's to explain
    return run.load_data(path, options, estimator)


def _read_mask(run: Run, path: str, estimator: Any, given: Source | None) -> Any:
    """True where known; a mask without names has its columns in the order of the file that it is for."""
    header = None if given is None else given.header
    values = run.load_data(path, {}, estimator, header).dataset.X
    if not ((values == 0) | (values == 1)).all():
        raise DataError(f"{path} must hold only 0 (unknown) and 1 (known).")
    return values[0] == 1 if values.shape[0] == 1 else values == 1


def _draw(path: Path, rows: Any, shape: tuple[int, ...]) -> None:
    from latentia.core.files import write_atomically
    from latentia.report import plots

    buffer = io.BytesIO()
    plots.image_grid(rows, shape, n=len(rows)).savefig(buffer, format="png")
    write_atomically(path, buffer.getvalue())


def _image_shape(run: Run) -> tuple[int, ...]:
    shape = run.data.get("image_shape")
    if not shape:
        raise DataError(f"{run.model_path} does not say that its rows are pictures, so --png cannot draw them.")
    return tuple(shape)
