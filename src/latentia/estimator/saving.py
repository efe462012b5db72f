"""Model files: an estimator's parameters, its model's arrays and those of its further parts, without pickle.

A part is a fitted attribute besides ``model_``: the estimator's class names it in ``parts`` with its own class,
which has a ``blueprint`` (plain facts that JSON can hold) and a ``build`` that makes the structure anew from it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from latentia.core.errors import FileFormatError
from latentia.core.files import read_arrays, write_arrays
from latentia.core.leaves import from_arrays, to_arrays
from latentia.core.run_folder import RunFolder
from latentia.estimator.fresh import outline

#: Between a part's name and its arrays' names; the model's own names, made of fields and dots, never hold it.
_SEPARATOR = ":"


def plain_parameters(estimator: Any) -> dict[str, Any]:
    """The parameters that JSON can hold; objects (an objective, callbacks) are left out."""
    plain = {}
    for name, value in estimator.get_params(deep=False).items():
        value = value.item() if isinstance(value, np.generic) else value
        value = str(value) if isinstance(value, Path) else value
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            continue
        plain[name] = value
    return plain


def save(estimator: Any, path: str | Path) -> None:
    """Write a fitted estimator to ``path`` (safetensors)."""
    write_arrays(path, *_content(estimator))


def save_run(estimator: Any, run_dir: RunFolder | str | Path | None) -> None:
    """Write a fitted estimator into its run folder, if it has one."""
    if run_dir is not None and (folder := RunFolder.of(run_dir)).writes:
        folder.write_model(*_content(estimator))


def _content(estimator: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """(arrays, description) of a model file."""
    description = {
        "kind": "model",
        "family": estimator.family,
        "params": plain_parameters(estimator),
        "blueprint": estimator.blueprint_,
        "feature_names": list(getattr(estimator, "feature_names_in_", [])) or None,
    }
    arrays = to_arrays(estimator.model_)
    parts = {name: vars(estimator)[name] for name in _parts(estimator) if name in vars(estimator)}
    for name, part in parts.items():
        arrays |= to_arrays(part, _prefix(name))
    if parts:
        description["parts"] = {name: part.blueprint for name, part in parts.items()}
    if "classes_" in vars(estimator):
        classes = estimator.classes_
        description["classes"] = {"dtype": str(classes.dtype), "values": classes.tolist()}
    return arrays, description


def load(path: str | Path) -> Any:
    """The estimator that :func:`save` wrote. Nothing in the file is executed."""
    from latentia.registry import family

    arrays, description = read_arrays(path)
    if description.get("kind") != "model":
        raise FileFormatError(f"{path} holds a {description.get('kind', 'file of unknown kind')}, not a model.")
    estimator_class = family(description["family"]).estimator()
    params = estimator_class.current_names(description["params"])
    unknown = sorted(set(params) - set(estimator_class().get_params(deep=False)))
    if unknown:
        raise FileFormatError(
            f"{path} has parameters that this release does not support: {', '.join(unknown)}. Upgrade latentia."
        )
    estimator = estimator_class(**{name: _tuples(value) for name, value in params.items()})
    blueprint = description["blueprint"]
    shape = outline(estimator.build, blueprint)
    own = {name: array for name, array in arrays.items() if _SEPARATOR not in name}
    estimator.adopt(
        from_arrays(shape, own, source=str(path), any_precision=True), blueprint, description.get("feature_names")
    )
    for name, part in _load_parts(estimator, arrays, description, str(path)).items():
        setattr(estimator, name, part)
    if "classes" in description:
        estimator.classes_ = np.array(description["classes"]["values"], dtype=description["classes"]["dtype"])
    return estimator


def _load_parts(estimator: Any, arrays: dict[str, np.ndarray], description: dict, source: str) -> dict[str, Any]:
    blueprints, kinds = description.get("parts", {}), _parts(estimator)
    unknown = sorted(set(blueprints) - set(kinds))
    if unknown:
        raise FileFormatError(
            f"{source} has parts that this release does not support: {', '.join(unknown)}. Upgrade latentia."
        )
    found = {}
    for name, blueprint in blueprints.items():
        shape = outline(kinds[name].build, blueprint)
        found[name] = from_arrays(shape, arrays, _prefix(name), source=source, any_precision=True)
    return found


def _parts(estimator: Any) -> Mapping[str, Any]:
    return getattr(estimator, "parts", {})


def _prefix(name: str) -> str:
    return name + _SEPARATOR


def _tuples(value: Any) -> Any:
    """Sequences as tuples, as they were given: JSON only has lists."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
