"""``latentia demo``: one model of each kind on real data, their results, and one report; no download."""

from __future__ import annotations

import dataclasses
import itertools
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from latentia.commands import fit as fitting
from latentia.commands.console import duration, emit, json_option, quiet_option, say, working, wrapped
from latentia.commands.errors import Interrupted, was_interrupted
from latentia.commands.evaluate import evaluation
from latentia.commands.inputs import Source
from latentia.core.errors import RunFolderError
from latentia.core.run_folder import RunFolder

#: (the telling figure in words, the same as numbers by name) of a fitted estimator.
Finding = tuple[list[str], dict[str, float]]


@dataclasses.dataclass(frozen=True)
class Settings:
    """Everything that decides how long the demo takes and how good it looks."""

    boltzmann: dict[str, Any]
    sparse: dict[str, Any]
    energy: dict[str, Any]
    autoencoder: dict[str, Any]
    n_patches: int
    annealing: dict[str, int]  # of the Boltzmann machine
    bounds: dict[str, Any]  # of the autoencoder


FULL = Settings(
    boltzmann={
        "n_components": 100,
        "binarize": "sample",
        "n_epochs": 300,
        "n_chains": 100,
        "learning_rate": 0.1,
    },
    sparse={"n_components": 100, "alpha": 1.2, "n_epochs": 6},
    energy={
        "hidden": (100, 64),
        "sigma": 2.0,
        "activation": "tanh",
        "n_epochs": 60,
        "learning_rate": 0.01,
        "weight_decay": 0.05,
    },
    autoencoder={"n_components": 10, "hidden": (200, 200), "binarize": "sample", "n_epochs": 300},
    n_patches=20_000,
    annealing={"n_temperatures": 2000, "n_chains": 128},
    bounds={"n_samples": 500, "n_temperatures": 60, "n_steps": 60, "n_annealed": 60},
)
QUICK = Settings(
    boltzmann={**FULL.boltzmann, "n_components": 16, "n_epochs": 100},  # few enough to sum over
    sparse={**FULL.sparse, "n_components": 64, "n_epochs": 2},
    energy={**FULL.energy, "n_epochs": 10, "monitor": None},
    autoencoder={**FULL.autoencoder, "hidden": (100,), "n_epochs": 40, "monitor": None},
    n_patches=5_000,
    annealing={},
    bounds={"method": "importance", "n_samples": 100},  # the upper side takes as long as all the rest
)


@dataclasses.dataclass(frozen=True)
class Stop:
    """A stop of the tour.

    Args:
        name: its folder.
        kind: the kind of model, and what it does.
        model: the estimator's name.
        params: its parameters.
        load: the data, given the demo's folder.
        find: the telling figure, from the estimator, training and test rows and the likelihood's interval, if any.
        likelihood: options of the evaluation.
    """

    name: str
    kind: str
    model: str
    params: dict[str, Any]
    load: Callable[[Path], Source]
    find: Callable[[Any, Any, Any, Any], Finding]
    likelihood: dict[str, Any] = dataclasses.field(default_factory=dict)


def tour(settings: Settings) -> list[Stop]:
    """One model of each kind."""
    from latentia.commands import demo_data

    def digits(folder: Path) -> Source:
        from latentia.datasets import load

        return Source(load("digits"), "digits", {})

    def patches(folder: Path) -> Source:
        return demo_data.whitened_patches(folder / "patches.npz", 10, settings.n_patches)

    def noisy(folder: Path) -> Source:
        return demo_data.whitened_patches(folder / "patches-noisy.npz", 8, settings.n_patches, noise=0.4)

    return [
        Stop(
            "boltzmann",
            "Boltzmann machine: an RBM learns handwritten digits, pixels against hidden units.",
            "RBM",
            settings.boltzmann,
            digits,
            _likelihood,
            settings.annealing,
        ),
        Stop(
            "sparse",
            "Sparse coding: a dictionary learns patches of photographs, few atoms for each.",
            "DictionaryLearning",
            settings.sparse,
            patches,
            _sparsity,
        ),
        Stop(
            "deep-energy",
            "Deep energy model: a network learns the energy of patches by score matching, without sampling.",
            "DeepEnergyModel",
            settings.energy,
            noisy,
            _recognition,
        ),
        Stop(
            "autoencoder",
            "Variational autoencoder: two networks learn the digits again, through ten numbers.",
            "VAE",
            settings.autoencoder,
            digits,
            _likelihood,
            settings.bounds,
        ),
    ]


def _likelihood(estimator: Any, train: Any, test: Any, interval: Any) -> Finding:
    from latentia.commands.demo_data import independent_pixels

    baseline = independent_pixels(train, test)
    sides = f"between {interval.lower:.2f} and {interval.upper:.2f}" if interval.upper < 0 else "or more"
    sides = "exactly" if interval.is_exact else sides
    lines = [
        f"log-likelihood of {len(test)} unseen digits: {interval.estimate:.2f} nats, {sides}",
        f"(independent pixels reach {baseline:.2f})",
    ]
    return lines, {"log-likelihood of independent pixels": baseline}


def _sparsity(estimator: Any, train: Any, test: Any, interval: Any) -> Finding:
    from latentia.commands import demo_data

    codes = estimator.transform(test)
    used = float((codes != 0).sum(axis=1).mean())
    part = demo_data.explained(test, estimator.inverse_transform(codes))
    components = demo_data.principal_components(train, test, max(1, round(used)))
    lines = [
        f"{used:.1f} of {codes.shape[1]} atoms make an unseen patch and explain {part:.0%} of its variance",
        f"(as many principal components explain {components:.0%})",
    ]
    return lines, {"atoms in use": used, "variance explained": part, "variance explained by PCA": components}


def _recognition(estimator: Any, train: Any, test: Any, interval: Any) -> Finding:
    from latentia.commands.demo_data import recognition

    area = recognition(estimator, train, test)
    lines = [
        f"separates unseen patches from noise of the same covariance with an AUC of {area:.3f}",
        "(a Gaussian model has an AUC of one half)",
    ]
    return lines, {"AUC against Gaussian noise": area}


@click.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("runs/demo"),
    show_default=True,
    help="Folder to write; if it exists, the next free one with a number is taken.",
)
@click.option("--quick", is_flag=True, help="Train for a fifth of the time.")
@click.option("--resume", is_flag=True, help="Go on with an interrupted demo in the folder.")
@quiet_option
@json_option
def demo(out: Path, quick: bool, resume: bool, quiet: bool, as_json: bool) -> None:
    """Train one model of each kind and compare them in a report.

    A restricted Boltzmann machine, a sparse dictionary, a deep energy model and a variational autoencoder learn
    handwritten digits and patches of photographs. All data are real and bundled: no download. Each stop describes
    its task and its result. The last line printed is the path of the report, for a browser.

    \b
    Examples:
      latentia demo
      latentia demo --quick --out runs/first
      latentia demo --out runs/first --resume
    """
    begin = time.perf_counter()
    folder = out if resume else free_folder(out)
    try:
        results = _walk(folder, QUICK if quick else FULL, resume=resume, quiet=quiet, as_json=as_json)
        page = _page(folder, [folder / each["name"] for each in results], quiet)
    except (KeyboardInterrupt, Exception) as error:
        if was_interrupted(error):
            raise Interrupted(_how_to_resume(folder, quick)) from error
        raise
    seconds = time.perf_counter() - begin
    if not as_json:
        say(f"Done in {duration(seconds)}. Open the report in a browser:")
    emit({"report": str(page), "seconds": seconds, "runs": results}, as_json=as_json, text=str(page))


def _page(folder: Path, runs: list[Path], quiet: bool) -> Path:
    with working("writing the report", quiet=quiet):
        from latentia.report import build_report

        return build_report(runs, out=RunFolder(folder).report, title="Latentia: one model of each kind")


def _walk(folder: Path, settings: Settings, *, resume: bool, quiet: bool, as_json: bool) -> list[dict[str, Any]]:
    with working("starting", quiet=quiet):
        import latentia.learning.fit  # noqa: F401 - imports JAX, which takes a moment
    stops, results = tour(settings), []
    for number, stop in enumerate(stops, start=1):
        tell = (lambda text: None) if as_json else say
        tell(f"{number}/{len(stops)}  {stop.kind}")
        result, lines = _visit(stop, folder, resume=resume, quiet=quiet)
        for line in lines:
            tell(wrapped(line, indent="     ") if sys.stdout.isatty() else f"     {line}")
        results.append(result)
    return results


def _visit(stop: Stop, folder: Path, *, resume: bool, quiet: bool) -> tuple[dict[str, Any], list[str]]:
    """(JSON output, text output) of one stop."""
    import latentia

    run = folder / stop.name
    with working("loading the data", quiet=quiet):
        source = stop.load(folder)
    if resume and RunFolder(run).is_complete:
        estimator, lines = latentia.load(RunFolder(run).model), ["trained before"]
    else:
        verbose = fitting.verbosity(quiet=quiet, verbose=False)
        kind = getattr(latentia, stop.model)
        estimator = kind(**stop.params, random_state=0, run_dir=str(run), resume=resume, verbose=verbose)
        fitting.train(estimator, source, run)
        lines = [f"trained in {fitting.times(estimator.fit_seconds_, estimator.compile_seconds_)}"]
    with working("judging it", quiet=quiet):
        rows, _, split = source.rows(None)
        result, interval = evaluation(estimator, source, rows, split, stop.likelihood, run)
        found, numbers = stop.find(estimator, source.dataset.X, rows, interval)
        result = {key: value for key, value in result.items() if key != "written"} | numbers
        RunFolder(run).write_evaluation(result)
    lines += found
    if interval is not None and interval.warning:
        lines.append(f"warning: {interval.warning}")
    return {"name": stop.name, **result, "finding": " ".join(found)}, lines


def _how_to_resume(folder: Path, quick: bool) -> str:
    words = ["latentia", "demo", *(["--quick"] if quick else []), "--out", str(folder), "--resume"]
    return f"Interrupted. The demo so far is in {folder}; continue with:\n  {shlex.join(words)}"


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
