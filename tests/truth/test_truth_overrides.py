"""Abstract methods are implemented, hooks and extensible methods may be replaced, every other method is final.

See :mod:`latentia.core.hooks`.
"""

from __future__ import annotations

import abc
import dataclasses
import functools
import importlib
import inspect
import itertools
import pickle
import pkgutil

import equinox as eqx
import pytest
from sklearn.utils.metaestimators import available_if

import latentia
from latentia.core.algorithms import AbstractSampler
from latentia.core.errors import CapabilityError
from latentia.core.hooks import extensible, freedom, function_of, hook
from latentia.samplers import Gibbs

#: Special methods that Python, Equinox or scikit-learn call along the bases, each one calling the next.
COOPERATIVE = {"__init__", "__check_init__", "__init_subclass__", "__sklearn_tags__"}
#: Special methods that ``dataclasses`` writes for every data class anew, from its own fields.
GENERATED = {"__eq__", "__hash__", "__repr__", "__setattr__", "__delattr__"}

#: (class, method) of replacements that are still to be mended. This list may only shrink.
STILL_REPLACED: set[tuple[str, str]] = set()


@functools.cache
def own_classes():
    found = []
    for info in pkgutil.walk_packages(latentia.__path__, "latentia."):
        if "__main__" in info.name:
            continue
        try:
            module = importlib.import_module(info.name)
        except ImportError:  # an optional package is not there
            continue
        found += [c for c in vars(module).values() if inspect.isclass(c) and c.__module__ == module.__name__]
    return list(dict.fromkeys(found))


def replacements(classes):
    """(replacing class, name, replaced class) of all methods along the bases of the classes."""
    found = set()
    for cls in classes:
        line = [c for c in cls.__mro__ if c.__module__.startswith(("latentia", __name__))]
        for name in {name for c in line for name in vars(c)}:
            owners = [c for c in line if name in vars(c)]
            pairs = itertools.pairwise(owners)
            changed = ((c, b) for c, b in pairs if vars(c)[name] is not vars(b)[name])
            found |= {(c, name, b) for c, b in changed if function_of(vars(b)[name]) is not None}
    return sorted(found, key=lambda each: (each[0].__qualname__, each[1]))


def is_abstract(member):
    return getattr(function_of(member), "__isabstractmethod__", False)


def forbidden(classes):
    """(class, method) of what replaces a final method."""
    return {
        (c.__qualname__, name)
        for c, name, b in replacements(classes)
        if name not in COOPERATIVE
        and not (name in GENERATED and dataclasses.is_dataclass(c))
        and not is_abstract(vars(b)[name])
        and freedom(vars(b)[name]) is None
    }


def test_only_abstract_methods_and_hooks_are_replaced():
    found = forbidden(own_classes())
    assert found - STILL_REPLACED == set(), "final methods are replaced: see latentia.core.hooks"
    assert STILL_REPLACED - found == set(), "these are mended: take them off the list"


def narrower(replacement, original):
    """Parameters of a method that a replacement does not take in the same way, and new ones without a default."""
    new, old = (inspect.signature(function).parameters for function in (replacement, original))
    kinds = {parameter.kind for parameter in new.values()}
    if {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD} <= kinds:
        return []
    lost = [name for name, p in old.items() if name not in new or new[name].kind is not p.kind]
    fixed = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    more = [n for n, p in new.items() if n not in old and p.default is p.empty and p.kind not in fixed]
    return lost + more


def test_extensible_methods_keep_all_their_parameters():
    free = [each for each in replacements(own_classes()) if freedom(vars(each[2])[each[1]]) == "extensible"]
    assert free
    for c, name, b in free:
        assert not narrower(function_of(vars(c)[name]), function_of(vars(b)[name])), f"{c.__name__}.{name}"


# -- the test itself -----------------------------------------------------------------------------------


class Base:
    """One method of every kind."""

    @abc.abstractmethod
    def needed(self):
        """To be implemented."""

    @hook
    def free(self):
        """Nothing by default."""

    @property
    @hook
    def constant(self):
        """One."""
        return 1

    @hook
    @property
    def other(self):
        """Two."""
        return 2

    @classmethod
    @hook
    def made(cls):
        """None."""

    @hook
    @available_if(lambda self: self.constant == 1)
    def sometimes(self):
        """Where the constant is one."""
        return "here"

    @extensible
    def use(self, x, *, y=0):
        """Something."""

    def final(self):
        """Not to be replaced."""

    @property
    def fixed(self):
        """Not to be replaced."""


class Good(Base):
    needed = free = use = lambda self: None
    constant = other = property(lambda self: 3)
    made = classmethod(lambda cls: None)


class Bad(Base):
    final = fixed = None


class Mixin:
    def final(self):
        """A class that comes first replaces it too."""


class Mixed(Mixin, Base):
    """Its own methods are none."""


def test_what_replaces_a_final_method_is_found():
    assert forbidden([Good]) == set()
    assert forbidden([Bad]) == {("Bad", "final"), ("Bad", "fixed")}
    assert forbidden([Mixed]) == {("Mixin", "final")}


def test_narrower_methods_are_found():
    assert narrower(lambda self, x, *, y=0, z=1: None, Base.use) == []
    assert narrower(lambda self, x, y=0: None, Base.use) == ["y"]
    assert narrower(lambda self, x, *, y=0, z: None, Base.use) == ["z"]
    assert narrower(lambda self, *, y=0: None, Base.use) == ["x"]


def test_a_mark_changes_nothing_else():
    assert Base.free.__doc__ == "Nothing by default."
    assert Base.constant.__doc__ == "One."
    assert str(inspect.signature(Base.use)) == "(self, x, *, y=0)"
    assert (Good().other, Good.made()) == (3, None)
    assert not hasattr(Good(), "sometimes")
    assert {freedom(vars(Base)[n]) for n in ("free", "constant", "other", "made", "sometimes")} == {"hook"}
    assert freedom(vars(Base)["use"]) == "extensible"
    assert freedom(vars(Base)["final"]) is None
    with pytest.raises(TypeError, match="can be marked"):
        hook(3)


def test_a_mark_survives_equinox_and_pickle():
    assert freedom(vars(AbstractSampler)["adapt"]) == "hook"
    assert freedom(vars(AbstractSampler)["domains"]) == "hook"
    assert freedom(vars(AbstractSampler)["init"]) is None
    sampler = pickle.loads(pickle.dumps(Gibbs()))
    assert eqx.tree_equal(sampler.adapt(None), sampler)


# -- methods that a family lacks -------------------------------------------------------------------------

LIKELIHOOD = ("score_samples", "free_energy", "log_z", "log_likelihood")


@pytest.mark.parametrize(
    ("estimator", "names"),
    [
        (latentia.Autoencoder(), ("sample", *LIKELIHOOD)),
        (latentia.StackedAutoencoder(), ("sample", *LIKELIHOOD)),
        (latentia.DeepEnergyModel(), ("score_samples",)),
        (latentia.SparseCoder(), ("score_samples",)),
        (latentia.GaussianModel(), ("partial_fit",)),
        (latentia.ICA(), ("partial_fit",)),
        (latentia.GaussianModel(solver="gradient"), ()),
        (latentia.RBM(), ()),
    ],
    ids=lambda each: type(each).__name__,
)
def test_methods_that_a_family_lacks_are_absent_and_say_why(estimator, names):
    for name in ("transform", "fit", "score", "sample", "partial_fit", *LIKELIHOOD):
        if name in names:
            assert not hasattr(estimator, name)
            for kind in (AttributeError, CapabilityError):
                with pytest.raises(kind, match=rf"^{type(estimator).__name__} has no {name}: .+ "):
                    getattr(estimator, name)
        else:
            assert hasattr(estimator, name) or name == "partial_fit"
        assert callable(getattr(type(estimator), name, print))  # help and signatures are there in any case
