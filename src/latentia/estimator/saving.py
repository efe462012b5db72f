"""Model files: an estimator's parameters and its model's arrays, without pickle."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import equinox as eqx
import numpy as np

from latentia.core.errors import FileFormatError
from latentia.core.files import read_arrays, write_arrays
from latentia.core.leaves import from_arrays, to_arrays


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
    description = {
        "kind": "model",
        "family": estimator.family,
        "params": plain_parameters(estimator),
        "blueprint": estimator.blueprint_,
        "feature_names": list(getattr(estimator, "feature_names_in_", [])) or None,
    }
    write_arrays(path, to_arrays(estimator.model_), description)


def load(path: str | Path) -> Any:
    """The estimator that :func:`save` wrote. Nothing in the file is executed."""
    from latentia.registry import family

    arrays, description = read_arrays(path)
    if description.get("kind") != "model":
        raise FileFormatError(f"{path} holds a {description.get('kind', 'file of unknown kind')}, not a model.")
    estimator_class = family(description["family"]).estimator()
    known = set(estimator_class().get_params(deep=False))
    unknown = sorted(set(description["params"]) - known)
    if unknown:
        raise FileFormatError(
            f"{path} has parameters that this release does not know: {', '.join(unknown)}. Upgrade latentia."
        )
    estimator = estimator_class(**description["params"])
    blueprint = description["blueprint"]
    shape = eqx.filter_eval_shape(lambda: estimator.build(blueprint))
    estimator.adopt(from_arrays(shape, arrays, source=str(path)), blueprint, description.get("feature_names"))
    return estimator
