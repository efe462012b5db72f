"""The text of a report: the model, the data, the parameters, the times and the command to repeat the run."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import sys
from typing import Any, NamedTuple

import jax
from markupsafe import Markup, escape

from latentia import registry
from latentia.core.errors import UnknownNameError
from latentia.core.parameters import trainable
from latentia.report.runs import Run

#: Commands are broken at about this length.
_LINE = 68
#: Parameters that say how a run was shown or stored, not what was learned.
_HOUSEKEEPING = ("run_dir", "resume", "verbose", "callbacks")
#: What a signature says of a parameter without a default.
_NONE = inspect.Parameter.empty
_BINARISED = {
    "sample": "Grey values are probabilities: each was sampled from a Bernoulli distribution at every step.",
    "threshold": "Grey values were cut at ½.",
}


def family_of(run: Run) -> registry.Family | None:
    """The run's line in the registry; None for a family that this release does not have."""
    try:
        return registry.family(str(run.config["family"]))
    except (KeyError, UnknownNameError):
        return None


def estimator_class(run: Run) -> Any:
    """The estimator's class, or None."""
    entry = family_of(run)
    try:
        return None if entry is None else entry.estimator()
    except (ImportError, AttributeError):
        return None


def title(run: Run) -> str:
    """What the model is, in a few words."""
    entry = family_of(run)
    return entry.title if entry else str(run.config.get("family", "Unknown model"))


def formula(run: Run) -> Markup | None:
    """The energy, from the first formula line of the module's, the estimator's or the model's docstring."""
    cls = estimator_class(run)
    if cls is None:
        return None
    documented = [sys.modules[cls.__module__], cls]
    if run.estimator is not None:
        documented.append(type(run.estimator.model_))
    for item in documented:
        for line in (inspect.getdoc(item) or "").splitlines():
            if re.match(r"\s*E\([^)]*\) = ", line):
                return typeset(re.split(r"\s{3,}", line.strip())[0])
    return None


def typeset(line: str) -> Markup:
    """A formula in plain text as HTML: ``W_ij`` gets a subscript."""
    text = str(escape(line.strip().rstrip(".,;")))
    return Markup(re.sub(r"_([A-Za-z0-9]+)", r"<sub>\1</sub>", text))


class Changed(NamedTuple):
    """A parameter that differs from its default, and both values in words."""

    name: str
    value: str
    default: str


def changed_parameters(run: Run) -> list[Changed]:
    """The parameters that differ from the defaults, in the order of the signature."""
    known, changed = defaults(run), []
    for name, value in run.params.items():
        if name not in _HOUSEKEEPING and not (name in known and _same(value, known[name])):
            default = _plain(known[name]) if known.get(name, _NONE) is not _NONE else ""
            changed.append(Changed(name, _plain(value), default))
    order = list(known)
    return sorted(changed, key=lambda item: order.index(item.name) if item.name in order else len(order))


def _same(value: Any, default: Any) -> bool:
    """Whether a recorded value is the default; JSON only has lists, also where a tuple was given."""
    if isinstance(value, list | tuple) and isinstance(default, list | tuple):
        return len(value) == len(default) and all(map(_same, value, default))
    return isinstance(value, bool) == isinstance(default, bool) and bool(value == default)


def unrecorded(run: Run) -> list[str]:
    """Parameters that were objects, which a configuration cannot hold."""
    if "params" not in run.config:
        return []
    return [name for name in defaults(run) if name not in run.params and name not in _HOUSEKEEPING]


def defaults(run: Run) -> dict[str, Any]:
    """The estimator's parameters at their defaults, in the order of its signature."""
    cls = estimator_class(run)
    if cls is None:
        return {}
    return {p.name: p.default for p in inspect.signature(cls).parameters.values()}


def command(run: Run) -> str | None:
    """The shell command that would do it again; None where the data are not known by name."""
    if run.source is None or "family" not in run.config:
        return None
    groups = [["latentia", "fit", str(run.config["family"]), run.source]]
    target = run.data.get("target")
    if target is not None:
        groups.append(["--target", str(target)])
    for key, value in (run.data.get("options") or {}).items():
        if key == "target" and value == target:  # said already, and learned rather than left out
            continue
        groups.append(["--data-option", f"{key}={value if isinstance(value, str) else json.dumps(value)}"])
    groups += [_option(key.replace("_", "-"), run.params[key]) for key, *_ in changed_parameters(run)]
    return _wrapped([shlex.join(group) for group in [*groups, ["--out", f"{run.folder}-again"]]])


def _wrapped(words: list[str]) -> str:
    """One command over several lines, broken between options as a shell allows."""
    lines = [words[0]]
    for word in words[1:]:
        if len(lines[-1]) + len(word) < _LINE:
            lines[-1] += f" {word}"
        else:
            lines.append(f"  {word}")
    return " \\\n".join(lines)


def python(run: Run) -> str | None:
    """The same in Python, for data that came from an array."""
    entry = family_of(run)
    if entry is None:
        return None
    arguments = ", ".join(f"{key}={run.params[key]!r}" for key, *_ in changed_parameters(run))
    data = "X, y" if learned_labels(run) else "X"
    return f"from latentia import {entry.class_name}\n{entry.class_name}({arguments}).fit({data})"


def learned_labels(run: Run) -> bool:
    """Whether the model has learned labels along with the rows."""
    blueprint = run.config.get("blueprint")
    return isinstance(blueprint, dict) and "classes" in blueprint


def _option(name: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    text = value if isinstance(value, str) else "none" if value is None else json.dumps(value, default=str)
    return [f"--{name}", text]


def _plain(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "none" if value is None else str(list(value) if isinstance(value, tuple) else value)


def data_lines(run: Run) -> list[str]:
    """The data in words, with what was done to them."""
    lines = []
    name, options = run.data.get("name"), run.data.get("options") or {}
    if name:
        lines.append(
            str(name) + (f" ({', '.join(f'{k} = {_plain(v)}' for k, v in options.items())})" if options else "")
        )
    if run.description:
        lines.append(run.description)
    if isinstance(run.config.get("n_rows"), int):
        blueprint = run.config.get("blueprint")
        features = blueprint.get("n_features") if isinstance(blueprint, dict) else None
        lines.append(
            f"{run.config['n_rows']:,} training rows" + (f" of {features:,} features." if features else ".")
        )
    binarised = _BINARISED.get(str(run.params.get("binarize")))
    return [*lines, binarised] if binarised else lines


def seconds(run: Run) -> float | None:
    """Training time without compiling."""
    value = run.config.get("seconds")
    if value is None and run.history:
        value = run.history[-1].get("seconds")
    return float(value) if isinstance(value, int | float) else None


def compile_seconds(run: Run) -> float | None:
    """Compile time."""
    value = run.config.get("compile_seconds")
    return float(value) if isinstance(value, int | float) else None


def duration(value: float | None) -> str:
    """75.2 → "1 min 15 s"."""
    if value is None:
        return "–"
    if value < 59.5:
        return f"{value:.1f} s" if value < 9.95 else f"{value:.0f} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def environment(run: Run) -> str:
    """Versions and device, as recorded when the run was made."""
    recorded = run.config.get("environment")
    if not isinstance(recorded, dict) or not recorded:
        return ""
    places = ("device", "devices", "platform")
    named = {
        "latentia": "Latentia",
        "jax": "JAX",
        "python": "Python",
        "numpy": "NumPy",
        "equinox": "Equinox",
        "optax": "Optax",
    }
    versions = [f"{named.get(key, key)} {value}" for key, value in recorded.items() if key not in places]
    return " · ".join([*versions, *(str(recorded[key]) for key in places if key in recorded)])


def n_parameters(run: Run) -> int | None:
    """How many numbers the model learned."""
    if run.estimator is None:
        return None
    model = run.estimator.model_
    chosen = zip(jax.tree.leaves(model), jax.tree.leaves(trainable(model)), strict=True)
    return sum(int(leaf.size) for leaf, learned in chosen if learned)


def n_latents(run: Run) -> int | None:
    """How many columns a code has."""
    return None if run.estimator is None else len(run.estimator.get_feature_names_out())
