"""What an estimator's ``__init__`` takes, read from its source without importing it.

Importing a family means importing JAX, which takes longer than a person waits for help, for a completed word or
for an answer to a mistyped option. The source says the same: names, annotations, defaults and the docstring are
literals there. Where it cannot be read (a package without sources), the estimator is imported after all.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import typing
from pathlib import Path
from typing import Any

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
    """The parameters of an estimator and its docstring."""

    doc: str
    parameters: tuple[Parameter, ...]

    def __contains__(self, name: str) -> bool:
        return any(parameter.name == name for parameter in self.parameters)


def of(estimator: type) -> Signature:
    """The signature of a class that is imported already."""
    hints = typing.get_type_hints(estimator.__init__)
    found = inspect.signature(estimator).parameters
    parameters = (Parameter(name, hints.get(name, Any), each.default) for name, each in found.items())
    return Signature(inspect.getdoc(estimator) or "", tuple(parameters))


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
    module, _, name = target.partition(":")
    source = _Source.open(module)
    owner = next((n for n in source.tree.body if isinstance(n, ast.ClassDef) and n.name == name), None)
    if owner is None:
        raise LookupError(target)
    init = next((n for n in owner.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
    if init is None:
        raise LookupError(f"{target}.__init__")
    taken = init.args
    positional = [*taken.posonlyargs, *taken.args][1:]
    empty: list[ast.expr | None] = [None] * (len(positional) - len(taken.defaults))
    pairs = [*zip(positional, [*empty, *taken.defaults], strict=True)]
    pairs += zip(taken.kwonlyargs, taken.kw_defaults, strict=True)
    parameters = (
        Parameter(
            each.arg,
            Any if each.annotation is None else source.hint(each.annotation),
            inspect.Parameter.empty if default is None else source.default(default),
        )
        for each, default in pairs
    )
    return Signature(ast.get_docstring(owner) or "", tuple(parameters))
