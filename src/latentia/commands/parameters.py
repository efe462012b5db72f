"""Options from an estimator: names, types and defaults from its signature, help from its docstring."""

from __future__ import annotations

import inspect
import json
import re
import types
import typing
from collections.abc import Callable
from typing import Any

import click
from click.shell_completion import CompletionItem

from latentia.commands import signatures
from latentia.commands.signatures import Signature

#: Set by the command itself: the folder by --out, the others by --resume and --verbose or --quiet.
MANAGED = ("run_dir", "resume", "verbose")
#: Parameters that take only Python objects.
OBJECTS = ("callbacks",)
#: Annotated as Any because scikit-learn also takes generators; on the command line a seed is a number.
_TYPES: dict[str, click.ParamType] = {"random_state": click.INT}
_PLAIN: dict[Any, click.ParamType] = {int: click.INT, float: click.FLOAT, str: click.STRING}


class Value(click.ParamType):
    """JSON where it parses (numbers, lists, true, null), numbers with commas as a list, otherwise text."""

    name = "value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a string; anything else has been parsed already."""
        if not isinstance(value, str):
            return value
        if re.fullmatch(r"\d+(,\d+)*,?", value) and "," in value:  # sizes, without the brackets
            return [int(part) for part in value.split(",") if part]
        try:
            return json.loads(value)
        except json.JSONDecodeError:
            return value


class OrNone(click.ParamType):
    """Another type, or the word ``none``."""

    def __init__(self, inner: click.ParamType):
        self.inner, self.name = inner, inner.name

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """As the inner type shows itself."""
        return self.inner.get_metavar(param, ctx)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """None, or what the inner type makes of it."""
        if value is None or (isinstance(value, str) and value.lower() == "none"):
            return None
        return self.inner.convert(value, param, ctx)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """What the inner type offers."""
        return self.inner.shell_complete(ctx, param, incomplete)


def options(estimator: type | Signature) -> list[click.Option]:
    """One option per parameter of the estimator that a command line can give, in the signature's order."""
    signature = estimator if isinstance(estimator, Signature) else signatures.of(estimator)
    texts = descriptions(signature.doc)
    return [
        _option(each.name, each.hint, each.default, texts.get(each.name, ""))
        for each in signature.parameters
        if each.name not in MANAGED + OBJECTS
    ]


def former_options(signature: Signature) -> list[click.Option]:
    """Options under the names that parameters had in earlier releases: understood, but shown nowhere."""
    present = {each.name: each for each in signature.parameters}
    options = [_option(old, present[new].hint, present[new].default, "") for old, new in signature.former.items()]
    for option in options:
        option.hidden = True
    return options


def _option(name: str, hint: Any, default: Any, text: str) -> click.Option:
    dashed = name.replace("_", "-")
    if hint is bool:
        return click.Option([f"--{dashed}/--no-{dashed}", name], default=default, show_default=True, help=text)
    required = default is inspect.Parameter.empty
    kind = _type(name, hint, None if required else default)
    settled: dict[str, Any] = {"required": True} if required else {"default": default, "show_default": True}
    if isinstance(kind, Value) or kind is click.STRING:
        settled["shell_complete"] = _offer(name, text)
    return click.Option([f"--{dashed}", name], type=kind, help=text, **settled)


def _offer(name: str, text: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes the words that the description quotes; an objective also by the other names that there are."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
        del ctx, param
        known = signatures.keys("latentia.learning", "OBJECTIVES") if name == "objective" else []
        quoted = dict.fromkeys(re.findall(r'"(\w+)"', text))
        for words in ([word for word in quoted if not known or word in known], known):
            found = [word for word in words if word.startswith(incomplete)]
            if found:
                return found
        return []

    return complete


def _type(name: str, hint: Any, default: Any) -> click.ParamType:
    if name in _TYPES:
        return _TYPES[name]
    if hint in _PLAIN:
        return _PLAIN[hint]
    if hint is Any and isinstance(default, str):  # a name or an object: here it can only be a name
        return click.STRING
    if typing.get_origin(hint) is typing.Literal:
        choices = [choice for choice in typing.get_args(hint) if choice is not None]
        if all(isinstance(choice, str) for choice in choices):
            choice = click.Choice(choices)
            return OrNone(choice) if None in typing.get_args(hint) else choice
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return _union(name, typing.get_args(hint), default)
    return Value()


def _union(name: str, members: tuple[Any, ...], default: Any) -> click.ParamType:
    rest = [member for member in members if member is not types.NoneType]
    if len(rest) != 1:
        return Value()
    inner = _type(name, rest[0], default)
    return inner if isinstance(inner, Value) or len(rest) == len(members) else OrNone(inner)


def descriptions(estimator: type | str) -> dict[str, str]:
    """What the ``Args`` section of a class's docstring (or of a docstring) says about each parameter."""
    doc = estimator if isinstance(estimator, str) else inspect.getdoc(estimator) or ""
    lines = doc.splitlines()
    section: dict[str, str] = {}
    name = None
    start = next((i + 1 for i, line in enumerate(lines) if line.strip() in ("Args:", "Arguments:")), len(lines))
    for line in lines[start:]:
        if line.strip() and not line.startswith(" "):
            break
        entry = re.match(r" {4}(\w+): (.*)", line)
        if entry:
            name = entry[1]
            section[name] = entry[2].strip()
        elif name and line.strip():
            section[name] += f" {line.strip()}"
    return section


def given(ctx: click.Context, values: dict[str, Any]) -> dict[str, Any]:
    """Those values that the user gave; the others stay the estimator's own defaults."""
    default = click.core.ParameterSource.DEFAULT
    return {name: value for name, value in values.items() if ctx.get_parameter_source(name) is not default}
