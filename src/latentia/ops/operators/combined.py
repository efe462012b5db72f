"""Operators made of others: compositions, sums, and masked operators."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from latentia.core import space
from latentia.core.errors import ParameterError
from latentia.ops.operators.base import LinearOperator, largest_eigenvalue


class Composed(LinearOperator):
    """Dz = D_1 D_2 ⋯ D_K z: layers one after the other, the first next to the signal.

    Args:
        layers: operators; the code of each is the signal of the next.
    """

    layers: tuple[LinearOperator, ...] = eqx.field(converter=tuple)

    def __check_init__(self):
        if not self.layers:
            raise ParameterError("Composed needs at least one operator.")
        for i, (outer, inner) in enumerate(zip(self.layers, self.layers[1:], strict=False)):
            if not _same_shapes(outer.code_space, inner.signal_space):
                raise ParameterError(
                    f"The code of layer {i}, {outer.code_space}, is not the signal of layer {i + 1}, "
                    f"{inner.signal_space}: layers must fit, the one next to the signal first."
                )

    @property
    def code_space(self) -> Any:
        """The code of the deepest layer."""
        return self.layers[-1].code_space

    @property
    def signal_space(self) -> Any:
        """The signal of the first layer."""
        return self.layers[0].signal_space

    def synthesise(self, z: Any) -> Any:
        """From the deepest layer to the first."""
        for layer in reversed(self.layers):
            z = layer.synthesise(z)
        return z

    def analyse(self, x: Any) -> Any:
        """From the first layer to the deepest."""
        for layer in self.layers:
            x = layer.analyse(x)
        return x

    def lipschitz(self) -> Float[Array, ""]:
        """By iteration: the product of the layers' own is an upper bound, often far above."""
        return largest_eigenvalue(self)


class Sum(LinearOperator):
    """Dz = Σ_i D_i z_i: parts that are added, such as filters of several sizes. The code is a tuple.

    Args:
        parts: operators with signals of one shape.
    """

    parts: tuple[LinearOperator, ...] = eqx.field(converter=tuple)

    def __check_init__(self):
        if not self.parts:
            raise ParameterError("Sum needs at least one operator.")
        for i, part in enumerate(self.parts):
            if not _same_shapes(part.signal_space, self.parts[0].signal_space):
                raise ParameterError(
                    f"Part {i} makes {part.signal_space}, part 0 makes {self.parts[0].signal_space}: parts that "
                    "are added must have signals of one shape."
                )

    @property
    def code_space(self) -> tuple:
        """The codes of all parts."""
        return tuple(part.code_space for part in self.parts)

    @property
    def signal_space(self) -> Any:
        """That of every part."""
        return self.parts[0].signal_space

    def synthesise(self, z: tuple) -> Any:
        """The parts, added."""
        found = [part.synthesise(each) for part, each in zip(self.parts, z, strict=True)]
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *found)

    def analyse(self, x: Any) -> tuple:
        """Every part's own."""
        return tuple(part.analyse(x) for part in self.parts)

    def lipschitz(self) -> Float[Array, ""]:
        """By iteration: the sum of the parts' own is an upper bound."""
        return largest_eigenvalue(self)


class Masked(LinearOperator):
    """MDz, with M zero at missing entries: ½‖M(x − Dz)‖² then is the error at the entries that are there.

    It has the codes of D restricted to these rows. ``analyse`` takes no notice of what x holds elsewhere, NaN
    included; a residual needs ``keep(x)``, which is zero there.

    Args:
        operator: D.
        mask: true where an entry is there; a pytree like a signal.
    """

    operator: LinearOperator
    mask: Bool[Array, "..."] | Any = eqx.field(converter=lambda mask: jax.tree.map(_truth, mask))

    def __check_init__(self):
        shapes = [np.shape(leaf) for leaf in jax.tree.leaves(self.mask)]
        wanted = [leaf.shape for leaf in space.leaves(self.operator.signal_space)]
        if shapes != wanted:
            raise ParameterError(f"The mask must have the signal's shape, {wanted}, got {shapes}.")

    @property
    def code_space(self) -> Any:
        """That of D."""
        return self.operator.code_space

    @property
    def signal_space(self) -> Any:
        """That of D."""
        return self.operator.signal_space

    def keep(self, x: Any) -> Any:
        """x where it is there, else zero."""
        return jax.tree.map(lambda there, a: jnp.where(there, a, jnp.zeros_like(a)), self.mask, x)

    def synthesise(self, z: Any) -> Any:
        """MDz."""
        return self.keep(self.operator.synthesise(z))

    def analyse(self, x: Any) -> Any:
        """DᵀMx."""
        return self.operator.analyse(self.keep(x))

    def lipschitz(self) -> Float[Array, ""]:
        """By iteration: at most that of D."""
        return largest_eigenvalue(self)


def _same_shapes(a: Any, b: Any) -> bool:
    same = jax.tree.structure(a) == jax.tree.structure(b)
    return same and [leaf.shape for leaf in space.leaves(a)] == [leaf.shape for leaf in space.leaves(b)]


def _truth(mask: Any) -> Any:
    return mask if mask.dtype == bool else mask != 0
