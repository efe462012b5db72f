"""The parameters of an estimator, read from its source without importing it.

Importing a family means importing JAX, which is too slow for help texts, word completion and
errors about mistyped options. The source has the same information: names, annotations, defaults and the docstring
are literals. If it cannot be read (a package without sources), the estimator is imported.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from latentia.estimator.declared import Parameters, documented

ROOT = Path(__file__).parents[1]
_PLAIN = {"int": int, "float": float, "str": str, "bool": bool, "Any": Any}
#: What reading can stumble over.
_UNREADABLE = (OSError, SyntaxError, ValueError, LookupError)


@dataclasses.dataclass(frozen=True)
class Parameter:
    """A parameter: its name, its annotation (``object`` where no option type follows from it) and its default."""

    name: str
    hint: Any
    default: Any


@dataclasses.dataclass(frozen=True)
class Signature:
    """The parameters of an estimator, its docstring, and present names of parameters by former ones."""

    doc: str
    parameters: tuple[Parameter, ...]
    former: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def __contains__(self, name: str) -> bool:
        return any(parameter.name == name for parameter in self.parameters)


def of(estimator: type) -> Signature:
    """The signature of a class that is imported already."""
    hints = typing.get_type_hints(estimator.__init__)
    found = inspect.signature(estimator).parameters
    parameters = (Parameter(name, hints.get(name, Any), each.default) for name, each in found.items())
    former = estimator.former_names() if issubclass(estimator, Parameters) else {}
    return Signature(inspect.getdoc(estimator) or "", tuple(parameters), former)


@functools.lru_cache
def read(target: str) -> Signature:
    """The signature of ``module:Class``, from the source."""
    try:
        return _from_source(target)
    except _UNREADABLE:
        module, _, name = target.partition(":")
        return of(getattr(importlib.import_module(module), name))


def keys(module: str, name: str) -> list[str]:
    """The keys of a dictionary that is written out in a module: names of objectives, recipes or data sets."""
    try:
        node = _Source.open(module).value(name)
        assert isinstance(node, ast.Dict)
        return [ast.literal_eval(key) for key in node.keys if key is not None]
    except (*_UNREADABLE, AssertionError):
        return list(getattr(importlib.import_module(module), name))


class _Source:
    """A module of the package as a syntax tree."""

    def __init__(self, path: Path):
        self.tree = ast.parse(path.read_text(encoding="utf-8"))

    @staticmethod
    @functools.lru_cache
    def open(module: str) -> _Source:
        """The source of a module by its dotted name."""
        path = ROOT.joinpath(*module.split(".")[1:])
        return _Source(path / "__init__.py" if path.is_dir() else path.with_suffix(".py"))

    def value(self, name: str) -> ast.expr | None:
        """What a name is assigned at the top of the module; looked up where it is imported from."""
        for node in self.tree.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if any(isinstance(target, ast.Name) and target.id == name for target in targets):
                return getattr(node, "value", None)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("latentia."):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return _Source.open(str(node.module)).value(alias.name)
        return None

    def owner(self, name: str) -> tuple[_Source, ast.ClassDef]:
        """The class of that name and the source that it stands in."""
        for node in self.tree.body:
            if isinstance(node, ast.ClassDef) and node.name == name:
                return self, node
        return _Source.open(self._imported(name)).owner(name)

    def has(self, name: str) -> bool:
        """Whether a class of that name is one of this package's."""
        try:
            self.owner(name)
        except LookupError:
            return False
        return True

    def _imported(self, name: str) -> str:
        for node in self.tree.body:
            ours = isinstance(node, ast.ImportFrom) and (node.module or "").startswith("latentia.")
            if isinstance(node, ast.ImportFrom) and ours and any(alias.name == name for alias in node.names):
                return str(node.module)
        raise LookupError(name)

    def hint(self, node: ast.expr | None) -> Any:
        """An annotation as the type that it names; ``object`` for all that no option type follows from."""
        match node:
            case ast.Constant(value=None):
                return None
            case ast.Name(id=name) if name in _PLAIN:
                return _PLAIN[name]
            case ast.Name(id=name):
                return self.hint(self.value(name))
            case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
                found = ast.literal_eval(inner)
                return typing.Literal[found]
            case ast.BinOp(left=left, op=ast.BitOr(), right=right):
                return typing.Union[self.hint(left), self.hint(right)]  # noqa: UP007 - made at run time
        return object

    def default(self, node: ast.expr) -> Any:
        """A default: a literal, or a constant of the package."""
        value = self.value(node.id) if isinstance(node, ast.Name) else node
        if value is None:
            raise ValueError("a default that is no literal")
        return ast.literal_eval(value)


def _from_source(target: str) -> Signature:
    """The signature from the declarations of a class and of its parents; see :mod:`latentia.estimator.declared`."""
    module, _, name = target.partition(":")
    line = _line(_Source.open(module), name)
    functions = (node for _, owner in line for node in owner.body if isinstance(node, ast.FunctionDef))
    if any(function.name == "__init__" for function in functions):
        raise LookupError(f"{target} writes its constructor by hand")
    found: dict[str, dict[str, Any]] = {}
    outwards: list[str] = []
    inwards: dict[str, list[str]] = {}
    for source, owner in reversed(line):
        inwards[owner.name] = []
        for node in owner.body:
            targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
            if isinstance(targets[0], ast.Name):
                _declare(source, node, targets[0].id, found, inwards[owner.name])
        outwards += inwards[owner.name]
    first = [each for each in dict.fromkeys(outwards) if not found[each].get("kw_only", True)]
    rest = [each for _, owner in line for each in inwards[owner.name] if each not in first]
    parameters = (Parameter(each, found[each]["hint"], found[each]["default"]) for each in (*first, *rest))
    former = {found[each]["formerly"]: each for each in (*first, *rest) if found[each].get("formerly")}
    doc = documented(ast.get_docstring(line[0][1]) or "", ((each, found[each]["doc"]) for each in (*first, *rest)))
    return Signature(doc, tuple(parameters), former)


def _declare(
    source: _Source, node: Any, name: str, found: dict[str, dict[str, Any]], introduced: list[str]
) -> None:
    """What a statement in the body of a class declares or changes."""
    value = node.value
    maker = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else None
    if maker == "attribute" or value is None or (maker != "param" and name not in found):
        return
    if maker in ("param", "changed"):
        assert isinstance(value, ast.Call)
        facts = {str(each.arg): source.default(each.value) for each in value.keywords if each.arg != "check"}
    else:
        facts = {"default": source.default(value)}
    if maker == "param":
        facts["hint"] = source.hint(node.annotation)
        if name not in found:
            introduced.append(name)
        found[name] = {}
    found[name] |= facts


def _line(source: _Source, name: str) -> list[tuple[_Source, ast.ClassDef]]:
    """A class and its parents in this package, in the order in which Python looks things up."""
    source, owner = source.owner(name)
    parents = [base.id for base in owner.bases if isinstance(base, ast.Name)]
    known = [parent for parent in parents if source.has(parent)]
    rows = [_line(source, parent) for parent in known]
    return [(source, owner), *_merged([*rows, [row[0] for row in rows]])]


def _merged(rows: list[list[Any]]) -> list[Any]:
    """C3: always the first head that is in no tail."""
    found = []
    while rows := [row for row in rows if row]:
        tails = {each[1] for row in rows for each in row[1:]}
        head = next(row[0] for row in rows if row[0][1] not in tails)
        found.append(head)
        rows = [[each for each in row if each[1] is not head[1]] for row in rows]
    return found
