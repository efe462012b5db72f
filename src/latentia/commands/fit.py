"""``latentia fit FAMILY DATA``: one sub-command per family, its options generated from the estimator."""

from __future__ import annotations

import contextlib
import inspect
import secrets
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

from latentia.commands import parameters, signatures
from latentia.commands.completion import complete_data, complete_family
from latentia.commands.console import duration, emit, json_option, remark, told, working
from latentia.commands.errors import Interrupted, was_interrupted
from latentia.commands.guide import Reading
from latentia.commands.inputs import Source, data_option, load_data, target_option
from latentia.core.errors import (
    CapabilityError,
    DataError,
    FileFormatError,
    LatentiaError,
    ParameterError,
    RunFolderError,
    UnknownNameError,
)
from latentia.core.run_folder import RunFolder
from latentia.registry import FAMILIES, Family, family


class Families(click.Group):
    """Sub-commands from the registry, built on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The registry's order."""
        return [entry.name for entry in FAMILIES]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """A family's command; an unknown name is answered with the nearest ones."""
        try:
            return fit_command(family(cmd_name))
        except UnknownNameError:
            if ctx.resilient_parsing:
                return None
            raise

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The registry's titles, by kind: the guide needs no estimator."""
        for kind in dict.fromkeys(entry.kind for entry in FAMILIES):
            with formatter.section(kind):
                formatter.write_dl([(entry.name, entry.title) for entry in FAMILIES if entry.kind == kind])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The registry's names, without building their commands."""
        return [*complete_family(ctx, None, incomplete), *click.Command.shell_complete(self, ctx, incomplete)]


class FitCommand(click.Command):
    """Shows the options of the run apart from the parameters of the model."""

    context_class = Reading

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Two sections."""
        shown = [
            (param, param.get_help_record(ctx)) for param in self.get_params(ctx) if isinstance(param, click.Option)
        ]
        for title, mine in (("Run", True), ("Model and training", False)):
            records = [record for param, record in shown if record and (param.name in RUN_PARAMS) is mine]
            with formatter.section(title):
                formatter.write_dl(records)


@click.group(cls=Families, subcommand_metavar="MODEL DATA --out RUN [OPTIONS]")
def fit() -> None:
    """Train a model on data and save it in a run folder.

    Every model has its own options: see `latentia fit MODEL --help`. Ctrl-C saves what was learned so far, and the
    message shows how to continue.

    \b
    Examples:
      latentia fit rbm digits --binarize sample --n-components 100 --n-epochs 400 --out runs/digits
      latentia fit gaussian-rbm patches --data-option patch_size=8 --out runs/patches
      latentia fit rbm mine.npy --n-epochs 50 --out runs/mine
      latentia fit rbm mine.npy --n-epochs 50 --out runs/mine --resume
      latentia fit dbn table.csv --target label --out runs/labelled
    """


def run_options() -> list[click.Parameter]:
    """What every family's command takes besides the model's parameters."""

    @click.argument("data", shell_complete=complete_data)
    @click.option("--out", type=click.Path(path_type=Path), required=True, help="Run folder to write.")
    @click.option("--resume", is_flag=True, help="Go on with the run in the folder, or begin it.")
    @target_option
    @data_option
    @click.option(
        "--log",
        "logs",
        multiple=True,
        type=click.Choice(["tensorboard", "mlflow", "wandb"]),
        help="Log the run to this service too; may be given several times.",
    )
    @click.option("--quiet", is_flag=True, help="No progress bar.")
    @click.option("--verbose", is_flag=True, help="Show a progress bar even if standard error is not a terminal.")
    @json_option
    def carrier() -> None:
        """Carry the parameters that the decorators attach."""

    return list(reversed(carrier.__click_params__))  # pyright: ignore[reportFunctionMemberAccess]


#: A size to show in the example, by the parameter that a family has for it.
_SIZES = {"n_components": "--n-components 64 ", "hidden": "--hidden 200,100 "}
RUN_PARAMS = ("data", "out", "resume", "target", "data_options", "logs", "quiet", "verbose", "as_json", "help")


def fit_command(entry: Family) -> click.Command:
    """The command of a family; its estimator is imported only when it runs."""
    signature = signatures.read(entry.target)

    @click.pass_context
    def callback(ctx: click.Context, /, **values: Any) -> None:
        run = {name: values.pop(name) for name in RUN_PARAMS if name in values}
        _fit(ctx, entry, parameters.given(ctx, values), **run)

    about = (signature.doc or entry.title).split("\n\n")[0]
    sizes = next((text for name, text in _SIZES.items() if name in signature), "")
    data = "bars" if entry.tiny_data == "binary" else "patches --data-option patch_size=8"
    examples = (
        f"\b\nExamples:\n  latentia fit {entry.name} {data} {sizes}--out runs/{entry.name}"
        f"\n  latentia fit {entry.name} mine.npy {sizes}--out runs/mine"
        f"\n  latentia explain {entry.name}"
    )
    return FitCommand(
        entry.name,
        params=[*run_options(), *parameters.options(signature), *parameters.former_options(signature)],
        callback=callback,
        help=f"{about}\n\nDATA is a name from `latentia datasets` or a path. In Python: "
        f"latentia.{entry.class_name}.\n\n{examples}",
    )


def _fit(
    ctx: click.Context,
    entry: Family,
    params: dict[str, Any],
    *,
    data: str,
    out: Path,
    resume: bool,
    target: Any,
    data_options: tuple[tuple[str, Any], ...],
    logs: tuple[str, ...],
    quiet: bool,
    verbose: bool,
    as_json: bool,
) -> None:
    managed: dict[str, Any] = {
        "run_dir": str(out),
        "resume": resume,
        "verbose": verbosity(quiet=quiet, verbose=verbose),
    }
    RunFolder(out).refuse(resume=resume, option="--out", resuming="--resume")
    if logs:
        from latentia.callbacks import by_name

        managed["callbacks"] = [by_name(name, out) for name in logs]
    with working("starting", quiet=quiet):
        from latentia.estimator.checks import check_parameters

        known = inspect.signature(entry.estimator()).parameters
        if logs and "callbacks" not in known:
            raise ParameterError(f"{entry.name} has no steps to log: leave out --log.")
        params = {**_settled(entry, out, resume), **_current(entry, params), **managed}
        estimator = entry.estimator()(**{name: value for name, value in params.items() if name in known})
        check_parameters(estimator)  # before data are loaded or folders made
        if target is None and resume:
            target = (RunFolder(out).read_config().get("data") or {}).get("target")
        check_target(entry, target)
        source = load_data(data, dict(data_options), target)
    try:
        train(estimator, source, out)
    except (KeyboardInterrupt, Exception) as error:
        if was_interrupted(error):
            raise Interrupted(_how_to_resume(ctx, out)) from error
        raise
    summary = summarise(estimator, source, out)
    emit(summary, as_json=as_json, text=told(_text(summary)))


def _settled(entry: Family, out: Path, resume: bool) -> dict[str, Any]:
    """What holds unless the user says otherwise: a resumed run's own parameters; for a new run a seed.

    A run can be resumed only with its original seed, so a seed is always drawn and recorded.
    """
    config = RunFolder(out).read_config() if resume else {}
    if not config:
        return {"random_state": secrets.randbelow(2**31)}
    if config.get("family") != entry.name:
        raise RunFolderError(f"The run in {out} trains {config.get('family')}, not {entry.name}.")
    return entry.estimator().current_names(config.get("params") or {})


def _current(entry: Family, params: dict[str, Any]) -> dict[str, Any]:
    """Options under their current names; a former name causes a remark."""
    found = entry.estimator().current_names(params)
    dashed = lambda names: ", ".join(f"--{name.replace('_', '-')}" for name in names)  # noqa: E731
    if former := sorted(set(params) - set(found)):
        remark(f"{dashed(former)}: a former name, now {dashed(sorted(set(found) - set(params)))}")
    return found


def check_target(entry: Family, target: Any) -> None:
    """Refuse labels for a family that does not learn them."""
    from latentia.abilities.label_units import Labelled

    if target is None or issubclass(entry.estimator(), Labelled):
        return
    able = [each.name for each in FAMILIES if issubclass(each.estimator(), Labelled)]
    raise ParameterError(
        f"{entry.name} learns from the rows alone, not from labels. Families that learn labels: {', '.join(able)}. "
        f"To leave the column of labels out of the rows, pass --data-option target={target} instead."
    )


def verbosity(*, quiet: bool, verbose: bool) -> int:
    """Whether to show a progress bar: on a terminal, or on request."""
    return int(not quiet and (verbose or sys.stderr.isatty()))


def train(estimator: Any, source: Source, out: Path) -> None:
    """Fit, and add to the folder what only the command has: the data, the time, the machine."""
    folder = RunFolder(out)
    with folder.held():
        _train(estimator, source, folder)


def _train(estimator: Any, source: Source, folder: RunFolder) -> None:
    from latentia.estimator.saving import save_run

    before, fresh = folder.read_config(), folder.is_empty
    try:
        labels = None if source.target is None else source.dataset.y
        estimator.fit(source.dataset.X, labels)
    except (RunFolderError, FileFormatError):
        if before:  # refused: the run in the folder stays what it was
            folder.write_config(before)
        raise
    except (ParameterError, DataError, CapabilityError):
        if fresh and not folder.is_begun:
            folder.remove_description()  # so that the corrected command does not stumble over the folder
        raise
    except BaseException:
        with contextlib.suppress(LatentiaError, OSError):  # the first error is the one to report
            _describe(estimator, source, folder)
        raise
    names = source.dataset.feature_names
    if names is not None and len(names) == estimator.n_features_in_:
        import numpy as np

        estimator.feature_names_in_ = np.asarray(names, dtype=object)
    if names is not None or not folder.is_complete:
        save_run(estimator, folder)
    _describe(estimator, source, folder)


def _describe(estimator: Any, source: Source, folder: RunFolder) -> None:
    config = folder.read_config()
    if not config and not folder.is_complete:
        return  # nothing was begun: leave no folder behind
    known = {"family": estimator.family, "n_rows": int(source.dataset.X.shape[0])}
    times = {
        "seconds": getattr(estimator, "fit_seconds_", None),
        "compile_seconds": getattr(estimator, "compile_seconds_", None),
    }
    found = {"data": source.describe(), **times, "environment": environment()}
    folder.write_config({**known, **config, **found})


def environment() -> dict[str, Any]:
    """Versions and device, to repeat the run."""
    import platform
    from importlib.metadata import version

    import jax

    from latentia import __version__

    devices = jax.devices()
    return {
        "latentia": __version__,
        "python": platform.python_version(),
        **{name: version(name) for name in ("jax", "jaxlib", "equinox", "optax", "numpy", "scikit-learn")},
        "platform": platform.platform(),
        "device": f"{len(devices)} × {devices[0].device_kind} ({devices[0].platform})",
    }


def summarise(estimator: Any, source: Source, out: Path) -> dict[str, Any]:
    """The message of a finished run."""
    history = getattr(estimator, "history_", [])
    return {
        "run": str(out),
        "family": estimator.family,
        "data": source.dataset.name,
        "n_rows": int(source.dataset.X.shape[0]),
        "n_features": int(source.dataset.X.shape[1]),
        "n_steps": getattr(estimator, "n_steps_", None),
        "seconds": getattr(estimator, "fit_seconds_", None),
        "compile_seconds": getattr(estimator, "compile_seconds_", None),
        "metrics": dict(history[-1]) if history else {},
        "files": {path.stem: str(path) for path in sorted(out.iterdir()) if path.is_file()},
    }


def times(seconds: float, compile_seconds: float | None) -> str:
    """Learning and compiling apart: the second is paid once."""
    return f"{duration(seconds)} and {duration(compile_seconds or 0)} of compiling"


def _text(summary: dict[str, Any]) -> str:
    took = ""
    if summary["seconds"] is not None:
        took = f" in {times(summary['seconds'], summary['compile_seconds'])}"
    steps = f", {summary['n_steps']} steps" if summary["n_steps"] else ""
    size = f"{summary['n_rows']} × {summary['n_features']}"
    run = shlex.quote(summary["run"])
    return (
        f"Trained {summary['family']} on {summary['data']} ({size}){took}{steps}.\n"
        f"  model  {summary['files'].get('model')}\n"
        f"  run    {summary['run']}\n"
        f"Next: latentia evaluate {run}, latentia report {run}"
    )


def _how_to_resume(ctx: click.Context, out: Path) -> str:
    words = list(ctx.find_root().obj or [])
    words += [] if "--resume" in words else ["--resume"]
    if not RunFolder(out).is_begun:
        return "Interrupted before anything was saved. Run the same command to begin anew."
    return f"Interrupted. The run so far is in {out}; continue with:\n  latentia {shlex.join(words)}"
