"""Banks of convolutions, for signals on a line, images and volumes."""

from __future__ import annotations

from typing import Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.parameters import weight
from latentia.core.space import Space
from latentia.ops.operators.base import HIGHEST, ROUNDED_UP, LinearOperator, largest_eigenvalue

Border = Literal["circular", "same", "valid", "full"]


class Convolution(LinearOperator):
    """Dz = Σ_m f_m ∗ z_m: every filter at all places, x[i, c] = Σ_{m, a} f_m[a, c] z[i − a + o, m].

    Signals are laid out as images are, channels last: ``(h, w)``, or ``(h, w, c)`` with channels; codes are maps
    ``(p, q, m)``. One and three spatial axes work in the same way.

    Args:
        filters: (m, *taps), or (m, *taps, c) with channels: one filter a row.
        shape: of a signal.
        border: "circular" (a torus) and "same" have maps of the size of the signal, with the filters' centres at
            the places; outside of the signal there is nothing for "same", nor for the next two. "valid": filters
            lie wholly inside, maps are smaller by a − 1. "full": filters may lie partly outside, maps are larger by
            a − 1.
        channels: whether the signal's last axis, and the filters', are channels.

    Example:
        >>> Convolution(jnp.array([[1.0, 2.0]]), shape=(3,), border="valid").synthesise(jnp.array([[1.0], [0.0]]))
        Array([1., 2., 0.], dtype=float32)
    """

    filters: Float[Array, "m ..."] = weight()
    shape: tuple[int, ...] = eqx.field(static=True, converter=lambda s: tuple(int(n) for n in s), kw_only=True)
    border: Border = eqx.field(static=True, default="circular", kw_only=True)
    channels: bool = eqx.field(static=True, default=False, kw_only=True)

    def __check_init__(self):
        if self.border not in get_args(Border):
            raise UnknownNameError("border", self.border, get_args(Border))
        wanted = len(self.shape) + 1
        own = np.shape(self.filters)
        if len(own) != wanted or (self.channels and own[-1] != self.shape[-1]) or not self._taps:
            kind = "(m, *taps, channels)" if self.channels else "(m, *taps)"
            raise ParameterError(
                f"Filters of shape {own} do not fit signals of shape {self.shape}: they must be {kind}, with "
                f"{wanted} axes{' and as many channels' if self.channels else ''}."
            )
        if any(a > n for a, n in zip(self._taps, self._spatial, strict=True)):
            raise ParameterError(f"Filters of {self._taps} taps are larger than the signal, {self._spatial}.")

    @property
    def _spatial(self) -> tuple[int, ...]:
        return self.shape[:-1] if self.channels else self.shape

    @property
    def _taps(self) -> tuple[int, ...]:
        own = np.shape(self.filters)[1:]
        return own[:-1] if self.channels else own

    @property
    def _reach(self) -> tuple[tuple[int, int, int], ...]:
        """(a, o, δ) of every spatial axis: taps, how many lie before the place, how much longer maps are."""
        found = []
        for a in self._taps:
            o = {"valid": 0, "full": a - 1}.get(self.border, (a - 1) // 2)
            found.append((a, o, {"valid": 1 - a, "full": a - 1}.get(self.border, 0)))
        return tuple(found)

    @property
    def code_space(self) -> Space:
        """Maps, (*places, m)."""
        places = tuple(n + longer for n, (_, _, longer) in zip(self._spatial, self._reach, strict=True))
        return Space("real", (*places, np.shape(self.filters)[0]))

    @property
    def signal_space(self) -> Space:
        """Images."""
        return Space("real", self.shape)

    def synthesise(self, z: Float[Array, "..."]) -> Float[Array, "..."]:
        """Σ_m f_m ∗ z_m."""
        pads = [(a - 1 - o, o - longer) for a, o, longer in self._reach]
        n = len(self._taps)
        found = self._slide(z, jnp.flip(self._kernel(), tuple(range(1, n + 1))), pads, (n + 1, 0))
        return found if self.channels else found[..., 0]

    def analyse(self, x: Float[Array, "..."]) -> Float[Array, "..."]:
        """The correlation of x with every filter, at every place."""
        pads = [(o, a - 1 - o + longer) for a, o, longer in self._reach]
        return self._slide(x if self.channels else x[..., None], self._kernel(), pads, (0, len(self._taps) + 1))

    def lipschitz(self) -> Float[Array, ""]:
        """On a torus the Fourier basis splits D into one small matrix a frequency; elsewhere iterated."""
        if self.border != "circular":
            return largest_eigenvalue(self)
        kernel = jax.lax.stop_gradient(self._kernel())
        waves = jnp.fft.fftn(kernel, s=self._spatial, axes=tuple(range(1, len(self._taps) + 1)))
        blocks = jnp.moveaxis(waves, 0, -1)  # (*frequencies, c, m)
        turned = jnp.conj(jnp.swapaxes(blocks, -1, -2))
        wide = blocks.shape[-2] <= blocks.shape[-1]
        small = jnp.matmul(*((blocks, turned) if wide else (turned, blocks)), precision=HIGHEST)
        return jnp.maximum(jnp.max(jnp.linalg.eigvalsh(small)), 0.0) * (1 + ROUNDED_UP)

    def _kernel(self) -> Array:
        filters = jnp.asarray(self.filters)
        return filters if self.channels else filters[..., None]

    def _slide(self, value: Array, kernel: Array, pads: list, axes: tuple[int, int]) -> Array:
        """The correlation of a value (*places, in) with a kernel whose axes of outputs and inputs are given."""
        n = len(self._taps)
        if self.border == "circular":
            value, pads = jnp.pad(value, [*pads, (0, 0)], mode="wrap"), [(0, 0)] * n
        layout = (0, n + 1, *range(1, n + 1))
        numbers = jax.lax.ConvDimensionNumbers(layout, (*axes, *range(1, n + 1)), layout)
        return jax.lax.conv_general_dilated(
            value[None], kernel, (1,) * n, pads, dimension_numbers=numbers, precision=HIGHEST
        )[0]
