"""Inputs of commands: data by name or path with options of the loader, and run folders or model files."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latentia.commands.console import remark
from latentia.commands.parameters import Value
from latentia.core.errors import DataError, FileFormatError, ParameterError, RunFolderError
from latentia.core.run_folder import CONFIG, MODEL, RunFolder

if TYPE_CHECKING:
    import numpy as np

    from latentia.datasets import Dataset

TABLES = (".csv", ".parquet")
#: The name of labels that data bring beside their rows: data sets by name, arrays in an .npz file.
OWN_LABELS = "y"


class KeyValue(click.ParamType):
    """KEY=VALUE, the value parsed as JSON where it parses."""

    name = "key=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, Any]:
        """(key, value)."""
        if isinstance(value, tuple):
            return value
        key, equals, text = value.partition("=")
        if not key or not equals:
            self.fail(f"{value!r} is not of the form KEY=VALUE, for instance patch_size=8.", param, ctx)
        return key.strip().replace("-", "_"), Value().convert(text, param, ctx)


target_option = click.option(
    "--target",
    type=Value(),
    metavar="COLUMN",
    help="Learn labels too: the column of a table that holds them (name, or number from 0), or y for the labels "
    "contained in other data.",
)
data_option = click.option(
    "--data-option",
    "data_options",
    type=KeyValue(),
    multiple=True,
    metavar="KEY=VALUE",
    help="Option of the data's loader, such as patch_size=8, target=label or allow_nan=true; repeatable.",
)


@dataclasses.dataclass(frozen=True)
class Source:
    """Data as loaded, the name or path to load them again by, and the columns' names in the file's own order.

    ``target`` says that the labels are learned too: the column of a table that holds them, or ``OWN_LABELS``.
    """

    dataset: Dataset
    source: str
    options: dict[str, Any]
    header: tuple[str, ...] | None = None
    target: str | int | None = None

    def describe(self) -> dict[str, Any]:
        """The description of the data in a run folder."""
        data = self.dataset
        return {
            "name": self.source,
            "options": self.options,
            "image_shape": None if data.image_shape is None else list(data.image_shape),
            "description": data.description,
            "domain": data.domain,
            "feature_names": None if data.feature_names is None else list(data.feature_names),
            "target": self.target,
        }

    def rows(self, split: str | None) -> tuple[np.ndarray, Any, str]:
        """(rows, labels, name) of a split; by default test rows, or training rows if there are none."""
        data = self.dataset
        if split == "train" or (split is None and data.X_test is None):
            return data.X, data.y, "train"
        if data.X_test is None:
            raise DataError(f"The data {data.name!r} have no test rows. Use --split train.")
        return data.X_test, data.y_test, "test"


def load_data(source: str, options: dict[str, Any], target: str | int | None = None) -> Source:
    """Load data by name or path; a path is remembered as an absolute one.

    Args:
        source: name or path.
        options: of the loader.
        target: where the labels are that will be learned (see ``target_option``); None learns none.
    """
    from latentia.datasets import available, load

    if target is not None and is_table(Path(source)):
        if options.get("target", target) != target:
            raise ParameterError(
                f"--target {target} and --data-option target={options['target']} name two columns of labels. "
                "Leave one out."
            )
        options = {**options, "target": target}
    dataset = load(source, **options)
    if target is not None:
        _check_labels(dataset, source, target)
    named = dataset.name in (info.name for info in available()) and not Path(source).is_file()
    place = dataset.name if named else str(Path(source).expanduser().resolve())
    return Source(dataset, place, options, target=target)


def is_table(path: Path) -> bool:
    """Whether a path names a table, whose labels are a column."""
    return path.suffix.lower() in TABLES


def _check_labels(dataset: Dataset, source: str, target: str | int) -> None:
    """Refuse to learn labels that are not there, or that go by another name."""
    if dataset.y is None:
        raise DataError(
            f"{source} brings no labels for --target {target}. Use data with labels (`latentia datasets`), a table "
            "with a column of them, or an .npz file with the arrays X and y."
        )
    if not is_table(Path(source)) and target != OWN_LABELS:
        raise ParameterError(
            f"{source} is no table with a column {target!r}; its own labels are --target {OWN_LABELS}."
        )


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder, or a model file on its own."""

    model_path: Path
    folder: Path | None
    config: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """The run's description of its data; empty for a model file without a run folder."""
        data = self.config.get("data") or {}
        sound = isinstance(data, dict) and isinstance(data.get("options") or {}, dict)
        if not sound or not isinstance(data.get("name") or "", str):
            raise FileFormatError(
                f"{self.folder}/{CONFIG} does not name the data that the run was trained on. Restore a copy, "
                "or use the model file on its own."
            )
        return data

    def estimator(self) -> Any:
        """The fitted estimator."""
        from latentia import load

        return load(self.model_path)

    def load_data(
        self, source: str | None, options: dict[str, Any], estimator: Any, names: Sequence[str] | None = None
    ) -> Source:
        """The data named; or those of the run itself, with the options they were loaded with.

        Their columns come in the order in which the estimator learned them: this is where names are compared.

        Args:
            source: name or path; None for the run's own data.
            options: of the loader; the run's own for the run's own data.
            estimator: the fitted estimator.
            names: of the columns, for a file that does not name them.
        """
        from latentia.datasets import columns

        remembered = self.data.get("name")
        source = source or remembered
        if source is None:
            raise DataError(f"{self.model_path} does not name the data it was trained on. Give DATA after it.")
        if not options and remembered in (source, str(Path(source).expanduser().resolve())):
            options = dict(self.data.get("options") or {})
        found = load_data(source, self._with_labels(source, options))
        dataset, wanted = found.dataset, columns.names_of(estimator)
        if dataset.feature_names is None and names is not None and len(names) == dataset.X.shape[1]:
            dataset = dataclasses.replace(dataset, feature_names=tuple(names))
        header = dataset.feature_names
        if header is None and wanted is not None and len(wanted) == dataset.X.shape[1]:
            remark(f"{source} does not name its columns; they are taken in the model's order: {', '.join(wanted)}")
            header = tuple(wanted)
        return dataclasses.replace(found, dataset=columns.arranged(dataset, wanted, source=source), header=header)

    def _with_labels(self, source: str, options: dict[str, Any]) -> dict[str, Any]:
        """The options, with the run's own column of labels where another table has it too."""
        from latentia.datasets import tables

        target, path = (self.data.get("options") or {}).get("target"), Path(source).expanduser()
        if "target" in options or not isinstance(target, str) or not path.is_file():
            return options
        if not is_table(path) or target not in tables.column_names(path):
            return options
        remark(f"the column {target!r} of {source} holds the labels, as in the run's own data")
        return {**options, "target": target}


def open_run(path: Path) -> Run:
    """The run folder or model file at ``path``."""
    if path.is_dir():
        folder = RunFolder(path)
        if not folder.is_complete:
            why = (
                "its training has not finished: continue with fit … --resume"
                if folder.has_checkpoint
                else "it is no run folder"
            )
            raise RunFolderError(f"There is no {MODEL} in {path}; {why}.")
        return Run(folder.model, path, folder.read_config())
    if not path.exists():
        raise RunFolderError(f"There is no run folder or model file at {path}. Check the path.")
    around = RunFolder(path.parent)
    inside = path.name == MODEL and around.config.is_file()
    return Run(path, path.parent if inside else None, around.read_config() if inside else {})


run_argument = click.argument("run", metavar="RUN_OR_MODEL", type=click.Path(path_type=Path))
split_option = click.option(
    "--split", type=click.Choice(["train", "test"]), help="Which rows. [default: test if there are any]"
)
