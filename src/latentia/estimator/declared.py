"""Parameters, each declared once: its name, type, default, check and sentence of documentation in one place.

A class that inherits :class:`Parameters` declares a parameter as an annotated attribute::

    class Optimisation(Parameters):
        learning_rate: float = param(default=0.1, check=checks.number(0, open_low=True), doc="step size.")

To a type checker it is a keyword-only dataclass. The constructor, its signature, the section ``Args:`` of the
docstring, the checks, the options of the command line and the pages of the documentation all come from the
declarations. Groups of parameters are parent classes, shared by all that have them. A child changes a default in
one line, ``learning_rate = 0.003``, and more by ``learning_rate = changed(default=0.003, doc="step size.")``.

Signatures have positional parameters first, then those of the class itself, then those of its parents in the order
of the bases.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import textwrap
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar, Concatenate, Literal, ParamSpec, Self, TypeVar, cast, dataclass_transform

from latentia.core.errors import ParameterError

#: The width of docstrings, to which generated sections are wrapped.
WIDTH = 112
_SECTION = re.compile(r"^(Examples?|References?|Returns|Raises|Notes?):\s*$", re.MULTILINE)
_UNCHANGED: Any = object()

P = ParamSpec("P")
A = TypeVar("A")
B = TypeVar("B")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


@dataclasses.dataclass(frozen=True)
class Declared:
    """A parameter as it was declared.

    Args:
        name: its name.
        hint: its type.
        default: its default.
        doc: what it is, in a sentence.
        check: called with the name and the value; raises where the value does not do.
        formerly: the name that it had in earlier releases, which is still understood.
        positional: whether it can be given without its name.
    """

    name: str
    hint: Any
    default: Any
    doc: str
    check: Callable[[str, Any], None] | None
    formerly: str | None
    positional: bool


def param(
    *,
    default: Any,
    doc: str,
    check: Callable[[str, Any], None] | None = None,
    kw_only: bool = True,
    formerly: str | None = None,
) -> Any:
    """A parameter.

    Args:
        default: its default.
        doc: what it is, in a sentence.
        check: called with the name and the value; raises where the value does not do.
        kw_only: False also allows it to be given without its name.
        formerly: the name that it had in earlier releases.
    """
    return _Entry({"default": default, "doc": doc, "check": check, "formerly": formerly, "positional": not kw_only})


def changed(
    *, default: Any = _UNCHANGED, doc: str = _UNCHANGED, check: Callable[[str, Any], None] = _UNCHANGED
) -> Any:
    """An inherited parameter, with another default, sentence or check."""
    given = {"default": default, "doc": doc, "check": check}
    return _Change({name: value for name, value in given.items() if value is not _UNCHANGED})


def attribute(*, default: Any = _UNCHANGED, init: Literal[False] = False) -> Any:
    """An attribute that is no parameter: what ``fit`` sets, or what some children declare as a parameter.

    Args:
        default: its value in the class; none if it is left out.
        init: for type checkers: it is not in the constructor's signature.
    """
    del init
    return _Attribute(default)


@dataclasses.dataclass(frozen=True)
class _Entry:
    facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Change:
    facts: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class _Attribute:
    value: Any


@dataclass_transform(kw_only_default=True, eq_default=False, field_specifiers=(param, attribute))
class Parameters:
    """Has parameters, declared as the module's docstring says."""

    #: The parameters by name, in the order of the signature.
    declared: ClassVar[Mapping[str, Declared]] = types.MappingProxyType({})
    #: Those that the class itself declares or changes.
    _own: ClassVar[Mapping[str, Declared]] = {}

    def __init_subclass__(cls, **options: Any) -> None:
        """Make the constructor from the declarations; a class that writes its own keeps it."""
        super().__init_subclass__(**options)
        inherited = _inherited(cls)
        introduced = _introduced(cls)
        cls._own = {**introduced, **_changes(cls, inherited)}
        for name, value in list(vars(cls).items()):
            if isinstance(value, _Attribute):
                _set_or_delete(cls, name, value.value)
        cls.declared = types.MappingProxyType(_in_order(cls, {**inherited, **cls._own}))
        for each in cls._own.values():
            setattr(cls, each.name, each.default)  # for what was pickled before there was this parameter
        for each in introduced.values():
            if each.formerly is not None:
                setattr(cls, each.formerly, _Former(each.formerly, each.name))
        if _writes_its_own(cls):
            return
        _construct(cls)
        if cls.__doc__:
            cls.__doc__ = documented(cls.__doc__, ((each.name, each.doc) for each in cls.declared.values()))

    @classmethod
    def current_names(cls, given: Mapping[str, Any], *, warn: bool = False) -> dict[str, Any]:
        """Values by name, those under former names under the present ones.

        Args:
            given: values by name.
            warn: whether a former name is worth a warning: in code it is, in files it is not.
        """
        found = dict(given)
        for old, new in cls.former_names().items():
            if old not in found or old in cls.declared:
                continue
            if new in found:
                raise ParameterError(f"{old} is the former name of {new}: give only {new}.")
            if warn:
                _warn(cls.__name__, old, new, stacklevel=4)
            found[new] = found.pop(old)
        return found

    @classmethod
    def former_names(cls) -> dict[str, str]:
        """Present names of parameters by their former ones."""
        return {each.formerly: each.name for each in cls.declared.values() if each.formerly is not None}

    def set_params(self, **params: Any) -> Self:
        """Set parameters by name."""
        return cast(Any, super()).set_params(**self.current_names(params, warn=True))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the state of a pickle, whose parameters may have former names."""
        cast(Any, super()).__setstate__(self.current_names(state))


class _Former:
    """The attribute under a parameter's former name. Reading it is silent: tools read whatever ``dir`` lists."""

    def __init__(self, old: str, new: str):
        self.old, self.new = old, new

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else getattr(instance, self.new)

    def __set__(self, instance: Any, value: Any) -> None:
        _warn(type(instance).__name__, self.old, self.new, stacklevel=3)
        setattr(instance, self.new, value)


def _warn(owner: str, old: str, new: str, *, stacklevel: int) -> None:
    warnings.warn(
        f"The parameter {old} of {owner} is {new} now; the old name will go.",
        DeprecationWarning,
        stacklevel=stacklevel,
    )


def _inherited(cls: type) -> dict[str, Declared]:
    """The parents' parameters; of one that several of them have, the nearest declaration or change."""
    found: dict[str, Declared] = {}
    for owner in reversed(cls.__mro__[1:]):
        found |= vars(owner).get("_own", {})
    return found


def _introduced(cls: type) -> dict[str, Declared]:
    entries = {name: value for name, value in vars(cls).items() if isinstance(value, _Entry)}
    hints = vars(cls).get("__annotations__", {})
    for name in entries:
        if name not in hints:
            raise TypeError(f"{cls.__name__}.{name} is declared by param(), but has no annotation.")
    return {name: Declared(name, _hint(cls, hints[name]), **entry.facts) for name, entry in entries.items()}


def _changes(cls: type, inherited: Mapping[str, Declared]) -> dict[str, Declared]:
    found = {}
    for name, value in vars(cls).items():
        if isinstance(value, _Change) and name not in inherited:
            raise TypeError(f"{cls.__name__}.{name} changes a parameter that no parent declares.")
        if name in inherited and not isinstance(value, _Entry | _Attribute | property | types.FunctionType):
            facts = value.facts if isinstance(value, _Change) else {"default": value}
            found[name] = dataclasses.replace(inherited[name], **facts)
    return found


def _hint(cls: type, annotation: Any) -> Any:
    """An annotation as a type; it may name what only the class's own module imports."""
    if not isinstance(annotation, str):
        return annotation
    holder = type(cls.__name__, (), {"__annotations__": {"value": annotation}, "__module__": cls.__module__})
    return typing.get_type_hints(holder, include_extras=True)["value"]


def _set_or_delete(cls: type, name: str, value: Any) -> None:
    if value is _UNCHANGED:
        delattr(cls, name)
    else:
        setattr(cls, name, value)


def _in_order(cls: type, known: Mapping[str, Declared]) -> dict[str, Declared]:
    """Positional parameters, the parents' first, as a type checker has them; then the others, the class's first."""
    names = [list(vars(owner).get("__annotations__", {})) for owner in cls.__mro__]
    outwards = dict.fromkeys(name for own in reversed(names) for name in own)
    inwards = dict.fromkeys(name for name in _places(cls))
    first = [name for name in outwards if name in known and known[name].positional]
    rest = [name for name in inwards if name not in first]
    return {name: known[name] for name in (*first, *rest)}


def _places(cls: type) -> Iterable[str]:
    """Names of parameters, at the place of the class that first declares them: a change moves nothing."""
    for place, owner in enumerate(cls.__mro__):
        for name in vars(owner).get("_own", {}):
            if not any(name in vars(parent).get("_own", {}) for parent in cls.__mro__[place + 1 :]):
                yield name


def _writes_its_own(cls: type) -> bool:
    """Whether the constructor, its own or its parent's, was written by hand."""
    for owner in cls.__mro__:
        if "__init__" in vars(owner):
            return issubclass(owner, Parameters) and not hasattr(vars(owner)["__init__"], "_generated")
    return False


def _construct(cls: Any) -> None:
    """Give a class its constructor."""
    kinds = {True: inspect.Parameter.POSITIONAL_OR_KEYWORD, False: inspect.Parameter.KEYWORD_ONLY}
    listed = [
        inspect.Parameter(each.name, kinds[each.positional], default=each.default, annotation=each.hint)
        for each in cls.declared.values()
    ]
    taken = inspect.Signature(listed)
    name = f"{cls.__qualname__}.__init__"

    def __init__(self: Any, *arguments: Any, **given: Any) -> None:
        try:
            bound = taken.bind(*arguments, **self.current_names(given, warn=True))
        except TypeError as error:
            raise TypeError(f"{name}() {error}") from None
        bound.apply_defaults()
        for each, value in bound.arguments.items():
            setattr(self, each, value)

    written: Any = __init__
    written.__qualname__, written.__module__ = name, cls.__module__
    written.__doc__ = "Keep the parameters; they are checked when they are used."
    head = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    written.__signature__ = inspect.Signature([head, *listed], return_annotation=None)
    written.__annotations__ = {**{each.name: each.hint for each in cls.declared.values()}, "return": None}
    written._generated = True
    cls.__init__ = written


def documented(doc: str, texts: Iterable[tuple[str, str]]) -> str:
    """A docstring whose section ``Args:``, before its examples and references, also has these names and texts.

    >>> print(documented("What it is.\\n\\nReferences:\\n    Somebody (2001).", [("rate", "how fast.")]))
    What it is.
    <BLANKLINE>
    Args:
        rate: how fast.
    <BLANKLINE>
    References:
        Somebody (2001).
    """
    doc = inspect.cleandoc(doc)
    lines = [
        textwrap.fill(
            f"{name}: {text}",
            WIDTH,
            initial_indent="    ",
            subsequent_indent="        ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for name, text in texts
        if not re.search(rf"^    {name}: ", doc, re.MULTILINE)
    ]
    if not lines:
        return doc
    found = _SECTION.search(doc)
    before, after = (doc, "") if found is None else (doc[: found.start()], doc[found.start() :])
    begun = re.search(r"^Args:\n(    .*\n?)+\s*\Z", before, re.MULTILINE)
    section = "\n".join(lines if begun else ["\nArgs:", *lines])
    return f"{before.rstrip()}\n{section}\n\n{after}".rstrip()


def takes(recipe: Callable[P, R]) -> Callable[[Callable[[S, A, B, R], T]], Callable[Concatenate[S, A, B, P], T]]:
    """A decorator for methods: the declared parameters of ``recipe`` are keyword arguments of the method.

    The method itself has ``self``, two arguments of its own, and one for the recipe made of what was given.
    """
    declared = cast(type[Parameters], recipe).declared

    def decorate(method: Callable[[S, A, B, R], T]) -> Callable[Concatenate[S, A, B, P], T]:
        known = inspect.signature(method)
        own = list(known.parameters.values())[:-1]
        listed = [
            inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.hint)
            for each in declared.values()
        ]

        @functools.wraps(method)
        def call(self: Any, *arguments: Any, **given: Any) -> T:
            mine = {name: given.pop(name) for name in [each.name for each in own[1:]] if name in given}
            made: Any = recipe
            return method(self, *arguments, **mine, **{parameter: made(**given)})

        parameter = list(known.parameters)[-1]
        written: Any = call
        written.__signature__ = known.replace(parameters=[*own, *listed])
        written.__doc__ = documented(method.__doc__ or "", ((each.name, each.doc) for each in declared.values()))
        return written

    return decorate
