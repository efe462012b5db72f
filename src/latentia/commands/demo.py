"""``latentia demo``: two models on real data, two-sided likelihoods and one report, without a download."""

from __future__ import annotations

import dataclasses
import itertools
import time
from pathlib import Path
from typing import Any

import click

from latentia.commands import fit as fitting
from latentia.commands.console import duration
from latentia.commands.evaluate import evaluation
from latentia.commands.inputs import Source
from latentia.core.errors import RunFolderError


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides how long the demo takes and how good it looks."""

    digits: dict[str, Any]
    patches: dict[str, Any]
    patch_size: int
    n_patches: int
    epsilon: float  # of the whitening
    likelihood: dict[str, int]


FULL = Settings(
    digits={
        "n_components": 100,
        "binarize": "sample",
        "n_epochs": 300,
        "n_chains": 100,
        "learning_rate": 0.1,
        "random_state": 0,
    },
    patches={
        "n_components": 64,
        "n_epochs": 100,
        "n_chains": 100,
        "optimizer": "sgd",
        "learning_rate": 0.3,  # filters stay noise for a long time at a tenth of this
        "momentum": 0.5,
        "random_state": 0,
    },
    patch_size=8,
    n_patches=20_000,
    epsilon=1e-3,
    likelihood={"n_temperatures": 2000, "n_chains": 128},
)
QUICK = Settings(
    digits={**FULL.digits, "n_components": 64, "n_epochs": 30},
    patches={**FULL.patches, "n_components": 32, "n_epochs": 20},
    patch_size=8,
    n_patches=10_000,
    epsilon=FULL.epsilon,
    likelihood={"n_temperatures": 300, "n_chains": 64},
)


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder to write; if it exists, the next free one with a number is taken.",
)
@click.option("--quick", is_flag=True, help="A fifth of the time, rougher models.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
def demo(out: Path, quick: bool, quiet: bool) -> None:
    """Train two models and write a report.

    All data are real and bundled: no download. A restricted Boltzmann machine learns handwritten digits, a
    Gaussian one learns patches of photographs. Both get a two-sided log-likelihood. The last line printed is
    the path of the report, for a browser.

    \b
    Examples:
      latentia demo
      latentia demo --quick --out runs/first
    """
    from latentia.report import build_report

    begin = time.perf_counter()
    settings = QUICK if quick else FULL
    folder = free_folder(out)
    verbose = fitting.verbosity(quiet=quiet, verbose=False)
    runs = [_digits(folder, settings, verbose), _patches(folder, settings, verbose)]
    page = build_report(runs, out=folder / "report.html", title="Latentia: the demo")
    click.echo(f"Done in {duration(time.perf_counter() - begin)}. Open the report in a browser:")
    click.echo(str(page))


def free_folder(out: Path) -> Path:
    """``out``, or ``out-2``, ``out-3`` … if it is taken."""
    for candidate in itertools.chain([out], (out.with_name(f"{out.name}-{i}") for i in itertools.count(2))):
        try:
            candidate.mkdir(parents=True)
        except FileExistsError:
            if candidate.is_dir() and not any(candidate.iterdir()):
                return candidate
            continue
        except OSError as error:
            raise RunFolderError(
                f"Cannot make the folder {candidate}: {error.strerror}. Choose another --out."
            ) from error
        return candidate
    raise AssertionError("counting does not end")


def _digits(folder: Path, settings: Settings, verbose: int) -> Path:
    from latentia import RBM
    from latentia.datasets import load

    run = folder / "digits"
    click.echo("1/2  A restricted Boltzmann machine learns 8×8 handwritten digits.")
    estimator = RBM(**settings.digits, run_dir=str(run), verbose=verbose)
    _run(estimator, Source(load("digits"), "digits", {}), run, settings)
    return run


def _patches(folder: Path, settings: Settings, verbose: int) -> Path:
    from latentia import GaussianRBM

    run = folder / "patches"
    click.echo("2/2  A Gaussian restricted Boltzmann machine learns whitened patches of photographs.")
    estimator = GaussianRBM(**settings.patches, run_dir=str(run), verbose=verbose)
    _run(estimator, whitened_patches(folder / "whitened-patches.npz", settings), run, settings)
    return run


def whitened_patches(path: Path, settings: Settings) -> Source:
    """Whitened natural patches, kept as a file so that `evaluate` and `encode` find the same rows again."""
    from latentia.commands.outputs import write_arrays
    from latentia.datasets import ZCAWhitening, load

    size = settings.patch_size
    patches = load("patches", patch_size=size, n=settings.n_patches).X
    n_train = int(0.9 * len(patches))
    # The mean of each patch stays in: without it one direction has no variance, and likelihoods mean nothing.
    whitening = ZCAWhitening(epsilon=settings.epsilon).fit(patches[:n_train])
    rows = whitening.transform(patches).reshape(-1, size, size)
    write_arrays(path, {"X": rows[:n_train], "X_test": rows[n_train:]})
    dataset = load(path)
    description = f"{len(rows)} grey {size}×{size} patches of photographs, ZCA-whitened."
    return Source(dataclasses.replace(dataset, description=description), str(path.resolve()), {})


def _run(estimator: Any, source: Source, run: Path, settings: Settings) -> None:
    fitting.train(estimator, source, run)
    click.echo(f"     trained in {fitting.times(estimator.fit_seconds_, estimator.compile_seconds_)}")
    rows, _, split = source.rows(None)
    result, interval = evaluation(estimator, source, rows, split, settings.likelihood, run)
    click.echo(f"     log-likelihood of {result['n_examples']} unseen rows: {interval}")
    if interval.warning:
        click.echo(f"     warning: {interval.warning}")
