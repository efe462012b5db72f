"""Any joint model as a conditional one: p(y | c), where c is a part of its x and y the rest.

    p(y, z | c) = exp(−E((c, y), z)) / Z(c),      Z(c) = Σ_{y, z} exp(−E((c, y), z)).

Learning minimises −log p(y | c) instead of −log p(c, y), so that c is not modelled (Larochelle and Bengio,
2008; Mnih, Larochelle and Hinton, 2011, for conditional RBMs). A joint model with
:class:`~latentia.core.capabilities.Restricts` becomes a model of its own kind, annealing included. In any other
one the context is clamped: its capabilities are those that follow from the joint model's at (c, y).
"""

from __future__ import annotations

import functools
import math
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import PRNGKeyArray

from latentia.core import space
from latentia.core.capabilities import (
    Bounded,
    Centred,
    Clamps,
    Conditional,
    Conditionals,
    Constrained,
    ExactPosterior,
    FreeEnergy,
    Initialised,
    MeanField,
    Restricts,
)
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractModel, AbstractPosterior, Scalar
from latentia.ops.arrays import float_type

#: Numbers of parts of a tuple, or their names in a dictionary.
Names = tuple[int, ...] | tuple[str, ...]


class Conditioned(Conditional, Centred, Constrained, Bounded, Initialised):
    """p(y | c) of a joint model whose x is a tuple or a dictionary of parts.

    A single part is itself, several are a tuple or a dictionary like x; so are those that are left, y. The
    parameters are those of the joint model, and so are centring, constraints and starting points.

    Args:
        joint: the joint model.
        context: which parts of its x are c.
    """

    joint: AbstractModel
    context: Names = eqx.field(static=True)

    def __check_init__(self) -> None:
        parts = _names(self.joint)
        if len(parts) < 2:
            raise ParameterError(
                f"The visibles of this {type(self.joint).__name__} are one variable; only a model of several (a "
                "tuple or a dictionary) can be conditioned on some of them."
            )
        unknown = [name for name in self.context if name not in parts]
        if unknown or not self.context or len(set(self.context)) == len(parts):
            raise ParameterError(
                f"context must name some parts of x, but not all of them, among {parts}; got {self.context}."
            )
        if not isinstance(self.joint, (Restricts, *_LIFTS)):
            raise CapabilityError(
                f"{type(self.joint).__name__} cannot be conditioned on a part of x: it needs Restricts "
                "(restricted), FreeEnergy (free_energy), Conditionals (begin, sweep) or Clamps (clamped)."
            )

    @property
    def x_space(self) -> dict[str, Any]:
        """The spaces of c and y."""
        return _parted(self.joint.x_space, self.context)

    @property
    def z_space(self) -> Any:
        """The joint model's."""
        return self.joint.z_space

    def energy(self, x: dict[str, Any], z: Any) -> Scalar:
        """E((c, y), z)."""
        return self.joint.energy(self.whole(x), z)

    def whole(self, x: dict[str, Any]) -> Any:
        """The joint model's x from c and y, either of which may be None."""
        return _whole(_names(self.joint), self.context, x)

    def given(self, context: Any) -> Any:
        """The model of y: restricted to it, or with c clamped."""
        if isinstance(self.joint, Restricts):
            return self.joint.restricted(self.whole({"y": None, "c": context}))
        return _clamped_class(type(self.joint))(self.joint, context, self.context)

    def centres(self, x: Any, weights: Any) -> Any:
        """The joint model's; none if it has no offsets."""
        return self.joint.centres(self.whole(x), weights) if isinstance(self.joint, Centred) else ()

    def recentred(self, centres: Any, rate: Any) -> Self:
        """The joint model recentred, which leaves its distribution, and so p(y | c), as it is."""
        return self._with(self.joint.recentred(centres, rate)) if isinstance(self.joint, Centred) else self

    def project(self) -> Self:
        """The joint model in its set."""
        return self._with(self.joint.project()) if isinstance(self.joint, Constrained) else self

    def margin(self) -> Scalar:
        """That of given(c), which no context changes; infinite where nothing bounds it."""
        found = self._at_zero()
        return found.margin() if isinstance(found, Bounded) else jnp.asarray(math.inf, float_type(self))

    def margin_message(self) -> str:
        """That of given(c)."""
        found = self._at_zero()
        return found.margin_message() if isinstance(found, Bounded) else "Nothing bounds this energy."

    def _at_zero(self) -> Any:
        return self.given(space.zeros(self.x_space["c"], float_type(self)))

    def initialise(self, x: Any, *, key: PRNGKeyArray) -> Self:
        """The joint model at its starting point for whole examples."""
        if not isinstance(self.joint, Initialised):
            return self
        return self._with(self.joint.initialise(self.whole(x), key=key))

    def _with(self, joint: Any) -> Self:
        return eqx.tree_at(lambda m: m.joint, self, joint)


def _names(joint: AbstractModel) -> list[Any]:
    parts = joint.x_space
    if isinstance(parts, dict):
        return sorted(parts)
    return list(range(len(parts))) if isinstance(parts, tuple | list) else []


def _parted(whole: Any, context: Names) -> dict[str, Any]:
    """{"y": …, "c": …} from what has the structure of the joint model's x."""
    names = sorted(whole) if isinstance(whole, dict) else range(len(whole))

    def packed(chosen: list[Any]) -> Any:
        if len(chosen) == 1:
            return whole[chosen[0]]
        return {n: whole[n] for n in chosen} if isinstance(whole, dict) else tuple(whole[n] for n in chosen)

    return {"y": packed([n for n in names if n not in context]), "c": packed([n for n in names if n in context])}


def _whole(names: list[Any], context: Names, x: dict[str, Any]) -> Any:
    found: dict[Any, Any] = {}
    for part, chosen in (("c", [n for n in names if n in context]), ("y", [n for n in names if n not in context])):
        value = x[part]
        if value is None or len(chosen) == 1:
            found |= dict.fromkeys(chosen, value)
        else:
            found |= {n: value[n if isinstance(value, dict) else place] for place, n in enumerate(chosen)}
    return found if isinstance(names[0], str) else tuple(found[n] for n in names)


class _Clamped(AbstractModel):
    """A joint model with a part of its x held at a context."""

    joint: Any
    value: Any
    context: Names = eqx.field(static=True)

    @property
    def x_space(self) -> Any:
        """What is left of x."""
        return _parted(self.joint.x_space, self.context)["y"]

    @property
    def z_space(self) -> Any:
        """The joint model's."""
        return self.joint.z_space

    def energy(self, x: Any, z: Any) -> Scalar:
        """E((c, y), z)."""
        return self.joint.energy(self._whole(x), z)

    def _whole(self, y: Any) -> Any:
        return _whole(_names(self.joint), self.context, {"y": y, "c": self.value})


class _ClampedFreeEnergy(_Clamped, FreeEnergy):
    """F((c, y))."""

    def free_energy(self, x: Any) -> Scalar:
        """F((c, y))."""
        return self.joint.free_energy(self._whole(x))


class _ClampedPosterior(_Clamped, ExactPosterior):
    """p(z | c, y)."""

    def posterior(self, x: Any) -> AbstractPosterior:
        """p(z | c, y)."""
        return self.joint.posterior(self._whole(x))


class _ClampedClamps(_Clamped, Clamps):
    """The model of z given c and y."""

    def clamped(self, x: Any) -> MeanField:
        """The joint model's at (c, y)."""
        return self.joint.clamped(self._whole(x))


class _ClampedConditionals(_Clamped, Conditionals):
    """Sweeps of the joint model that leave c where it is."""

    def begin(self, x: Any, *, key: PRNGKeyArray) -> Any:
        """The joint model's at (c, y)."""
        return self.joint.begin(self._whole(x), key=key)

    def sweep(self, x: Any, z: Any, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Any]:
        """The joint model's with all of c fixed."""
        whole = self._whole(x)
        parts = _parted(whole, self.context)
        held = {
            "c": jax.tree.map(lambda a: jnp.ones(a.shape, bool), parts["c"]),
            "y": jax.tree.map(lambda a: jnp.zeros(a.shape, bool), parts["y"]) if fixed is None else fixed,
        }
        whole, z = self.joint.sweep(whole, z, key=key, fixed=_whole(_names(self.joint), self.context, held))
        return _parted(whole, self.context)["y"], z


_LIFTS: dict[type[AbstractModel], type[_Clamped]] = {
    FreeEnergy: _ClampedFreeEnergy,
    ExactPosterior: _ClampedPosterior,
    Clamps: _ClampedClamps,
    Conditionals: _ClampedConditionals,
}


@functools.cache
def _clamped_class(joint: type[AbstractModel]) -> Any:
    """The class with all capabilities that follow from those of the joint model."""
    bases = tuple(lift for need, lift in _LIFTS.items() if issubclass(joint, need))
    return type(f"Clamped{joint.__name__}", bases, {"__doc__": f"{joint.__name__} with a part of x clamped."})
