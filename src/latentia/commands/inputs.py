"""What commands take: data by name or path with options for its loader, and run folders or model files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from latentia.commands.parameters import Value
from latentia.core.errors import DataError, FileFormatError, RunFolderError

if TYPE_CHECKING:
    import numpy as np

    from latentia.datasets import Dataset

MODEL, CONFIG, EVALUATION = "model.safetensors", "config.json", "evaluation.json"


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
    """Data as loaded, and the name or path to load them again by."""

    dataset: Dataset
    source: str
    options: dict[str, Any]

    def describe(self) -> dict[str, Any]:
        """What a run folder remembers of its data."""
        data = self.dataset
        return {
            "name": self.source,
            "options": self.options,
            "image_shape": None if data.image_shape is None else list(data.image_shape),
            "description": data.description,
            "domain": data.domain,
        }

    def rows(self, split: str | None) -> tuple[np.ndarray, Any, str]:
        """(rows, labels, name) of a split; by default test rows, or training rows if there are none."""
        data = self.dataset
        if split == "train" or (split is None and data.X_test is None):
            return data.X, data.y, "train"
        if data.X_test is None:
            raise DataError(f"The data {data.name!r} have no test rows. Use --split train.")
        return data.X_test, data.y_test, "test"


def load_data(source: str, options: dict[str, Any]) -> Source:
    """Load data by name or path; a path is remembered as an absolute one."""
    from latentia.datasets import available, load

    dataset = load(source, **options)
    named = dataset.name in (info.name for info in available()) and not Path(source).is_file()
    return Source(dataset, dataset.name if named else str(Path(source).expanduser().resolve()), options)


@dataclasses.dataclass(frozen=True)
class Run:
    """A run folder, or a model file on its own."""

    model_path: Path
    folder: Path | None
    config: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """What the run remembers of its data; empty for a model file on its own."""
        return self.config.get("data") or {}

    def estimator(self) -> Any:
        """The fitted estimator."""
        from latentia import load

        return load(self.model_path)

    def load_data(self, source: str | None, options: dict[str, Any]) -> Source:
        """The data named; or those of the run itself, with the options they were loaded with."""
        remembered = self.data.get("name")
        source = source or remembered
        if source is None:
            raise DataError(f"{self.model_path} does not name the data it was trained on. Name some after it.")
        if not options and source == remembered:
            options = dict(self.data.get("options") or {})
        return load_data(source, options)


def open_run(path: Path) -> Run:
    """The run folder or model file at ``path``."""
    if path.is_dir():
        model = path / MODEL
        if not model.is_file():
            unfinished = (path / "checkpoint.safetensors").is_file()
            why = (
                "its training has not finished: go on with fit … --resume" if unfinished else "it is no run folder"
            )
            raise RunFolderError(f"There is no {MODEL} in {path}; {why}.")
        return Run(model, path, read_config(path))
    if not path.exists():
        raise RunFolderError(f"There is no run folder or model file at {path}. Check the path.")
    inside = path.name == MODEL and (path.parent / CONFIG).is_file()
    return Run(path, path.parent if inside else None, read_config(path.parent) if inside else {})


def read_config(folder: Path) -> dict[str, Any]:
    """The settings in a run folder; empty if there are none."""
    path = folder / CONFIG
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FileFormatError(f"{path} is not JSON ({error}). It may be cut off; restore a copy.") from error
    if not isinstance(config, dict):
        raise FileFormatError(f"{path} does not hold settings. Restore a copy.")
    return config


run_argument = click.argument("run", metavar="RUN_OR_MODEL", type=click.Path(path_type=Path))
split_option = click.option(
    "--split", type=click.Choice(["train", "test"]), help="Which rows. [default: test if there are any]"
)
