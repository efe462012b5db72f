"""Gabor functions fitted to small pictures: where a filter looks, which orientation and which frequency it prefers.

    g(r) = a · exp(−½(u²/s_u² + v²/s_v²)) · cos(2πfu + φ),
    u = (x − x₀) cos θ + (y − y₀) sin θ,      v = −(x − x₀) sin θ + (y − y₀) cos θ,

x to the right, y down, in pixels from the middle of the first one. θ ∈ [0, π) is the direction in which the wave
travels, so that stripes stand at right angles to it; f is in cycles per pixel, s_u lies along the wave and s_v
along the stripes. The fit minimises ‖d − g‖² from several starts that the Fourier transform and the envelope
suggest.

The amplitude of its Fourier transform along the wave is

    |G(ν)| ∝ |exp(iφ − 2π²s_u²(ν − f)²) + exp(−iφ − 2π²s_u²(ν + f)²)|.

Its maximum is the preferred frequency: f where several waves fit into the envelope, but not where f s_u is small
(with f → 0 and φ = π/2 the function becomes the derivative of a Gaussian, which prefers 1/2πs_u). The bandwidth is
the distance in octaves between the frequencies of half of the maximum.

References:
    Jones and Palmer (1987), *An evaluation of the two-dimensional Gabor filter model of simple receptive fields in
    cat striate cortex*; van Hateren and van der Schaaf (1998), *Independent component filters of natural images
    compared with simple cells in primary visual cortex*.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
from scipy.optimize import least_squares

from latentia.core.errors import DataError

#: Where spectra are evaluated, in cycles per pixel.
_FREQUENCIES = np.linspace(0, 2, 8001)
#: Envelopes are at least this wide, in pixels: narrower ones fall between two.
_NARROWEST = 0.4


@dataclasses.dataclass(frozen=True)
class Gabors:
    """Gabor functions fitted to n pictures; every attribute is an array of length n.

    Attributes:
        x: centres from left to right, in pixels.
        y: centres from top to bottom, in pixels.
        orientation: θ, the direction in which the wave travels, in radians from 0 (to the right) below π.
        frequency: f, in cycles per pixel.
        phase: φ, in radians in (−π, π].
        along: s_u, width along the wave, in pixels.
        across: s_v, width along the stripes, in pixels.
        amplitude: a, positive.
        explained: 1 − ‖d − g‖²/‖d‖², 1 for a perfect fit.
    """

    x: np.ndarray
    y: np.ndarray
    orientation: np.ndarray
    frequency: np.ndarray
    phase: np.ndarray
    along: np.ndarray
    across: np.ndarray
    amplitude: np.ndarray
    explained: np.ndarray

    @property
    def peak(self) -> np.ndarray:
        """The frequency that a function answers to best, in cycles per pixel."""
        return _FREQUENCIES[np.argmax(self._spectra(), axis=1)]

    @property
    def bandwidth(self) -> np.ndarray:
        """Octaves between the frequencies of half amplitude; infinite where it reaches down to zero frequency."""
        spectra = self._spectra()
        above = spectra >= 0.5 * spectra.max(axis=1, keepdims=True)
        low, high = np.argmax(above, axis=1), above.shape[1] - 1 - np.argmax(above[:, ::-1], axis=1)
        with np.errstate(divide="ignore"):
            return np.log2(_FREQUENCIES[high] / _FREQUENCIES[low])

    def _spectra(self) -> np.ndarray:
        """|G(ν)| of every function, (n, frequencies)."""
        fall = 2 * (math.pi * self.along[:, None]) ** 2
        turn = np.exp(1j * self.phase[:, None])
        ahead = turn * np.exp(-fall * (_FREQUENCIES[None, :] - self.frequency[:, None]) ** 2)
        return np.abs(
            ahead + np.conj(turn) * np.exp(-fall * (_FREQUENCIES[None, :] + self.frequency[:, None]) ** 2)
        )

    @property
    def aspect(self) -> np.ndarray:
        """s_v/s_u: how much longer than wide."""
        return self.across / self.along

    def pictures(self, shape: tuple[int, int]) -> np.ndarray:
        """The functions drawn, (n, height, width)."""
        parts = (self.x, self.y, self.orientation, self.frequency, self.phase, self.along, self.across)
        return np.stack([a * gabor(shape, *values) for a, *values in zip(self.amplitude, *parts, strict=True)])


def gabor(
    shape: tuple[int, int],
    x: float,
    y: float,
    orientation: float,
    frequency: float,
    phase: float,
    along: float,
    across: float,
) -> np.ndarray:
    """One Gabor function of amplitude 1, (height, width); for the arguments see :class:`Gabors`.

    >>> gabor((1, 5), 2.0, 0.0, 0.0, 0.5, 0.0, 100.0, 100.0).round(3)
    array([[ 1., -1.,  1., -1.,  1.]])
    """
    rows, columns = np.mgrid[: shape[0], : shape[1]]
    u = (columns - x) * math.cos(orientation) + (rows - y) * math.sin(orientation)
    v = -(columns - x) * math.sin(orientation) + (rows - y) * math.cos(orientation)
    envelope = np.exp(-0.5 * ((u / along) ** 2 + (v / across) ** 2))
    return envelope * np.cos(2 * math.pi * frequency * u + phase)


def fit_gabors(pictures: np.ndarray, shape: tuple[int, int], *, n_starts: int = 6) -> Gabors:
    """Gabor functions for many pictures.

    Args:
        pictures: one a row, (n, height × width).
        shape: (height, width).
        n_starts: starts of each fit; the best result counts.

    Returns:
        Parameters and how much of each picture its function explains.
    """
    rows = np.asarray(pictures, np.float64)
    if rows.ndim != 2 or rows.shape[1] != shape[0] * shape[1]:
        raise DataError(f"Rows of shape {rows.shape} do not fold into pictures of shape {shape}.")
    if not np.isfinite(rows).all():
        raise DataError("The pictures hold NaN or infinite values.")
    found = np.array([_fit(row.reshape(shape), n_starts) for row in rows]).reshape(len(rows), 9)
    return Gabors(*found.T)


def _fit(picture: np.ndarray, n_starts: int) -> list[float]:
    """[x, y, θ, f, φ, s_u, s_v, a, explained] of one picture."""
    size = float(np.linalg.norm(picture))
    if size == 0:
        raise DataError("A picture is zero everywhere: no Gabor function fits it. Leave it out.")
    scaled = picture / size
    height, width = picture.shape
    rows, columns = np.mgrid[:height, :width].astype(np.float64)
    widest = float(max(height, width))
    low = [-1.0, -1.0, -np.inf, 0.0, _NARROWEST, _NARROWEST, -np.inf, -np.inf]
    high = [width, height, np.inf, 0.6, widest, widest, np.inf, np.inf]
    best, least = np.zeros(8), np.inf
    for start in _starts(scaled, n_starts):
        done = least_squares(
            lambda p: (_wave(p, rows, columns)[0] - scaled).ravel(),
            np.clip(start, low, high),
            jac=lambda p: _slopes(p, rows, columns),  # pyright: ignore[reportArgumentType]
            bounds=(low, high),
            x_scale=[1, 1, 0.3, 0.05, 1, 1, 0.3, 0.3],
            max_nfev=60,
            ftol=1e-7,
            xtol=1e-7,
        )
        if done.cost < least:
            best, least = done.x, float(done.cost)
        if least < 0.5e-3:  # all but a thousandth is explained: no other start can matter
            break
    return [*_standard(best, size), 1 - 2 * least]


def _standard(p: np.ndarray, size: float) -> list[float]:
    """Parameters with θ in [0, π), a > 0 and one phase."""
    x, y, theta, f, along, across, even, odd = (float(value) for value in p)
    turns = math.floor(theta / math.pi)
    if turns % 2:  # half a turn mirrors the wave
        odd = -odd
    phase = math.atan2(-odd, even)  # a cos φ cos(·) − a sin φ sin(·)
    return [x, y, theta - turns * math.pi, f, phase, along, across, size * math.hypot(even, odd)]


def _wave(p: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> tuple[np.ndarray, ...]:
    """(values, and what their slopes need): even and odd parts instead of amplitude and phase are linear."""
    x, y, theta, f, along, across, even, odd = p
    c, s = math.cos(theta), math.sin(theta)
    u, v = (columns - x) * c + (rows - y) * s, -(columns - x) * s + (rows - y) * c
    envelope = np.exp(-0.5 * ((u / along) ** 2 + (v / across) ** 2))
    cos, sin = envelope * np.cos(2 * math.pi * f * u), envelope * np.sin(2 * math.pi * f * u)
    return even * cos + odd * sin, u, v, cos, sin


def _slopes(p: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Derivatives of the values by the parameters, (pixels, 8)."""
    _, _, theta, f, along, across, even, odd = p
    c, s = math.cos(theta), math.sin(theta)
    value, u, v, cos, sin = _wave(p, rows, columns)
    turned = 2 * math.pi * (odd * cos - even * sin)  # by f u
    by_u, by_v = -value * u / along**2 + f * turned, -value * v / across**2
    parts = [-c * by_u + s * by_v, -s * by_u - c * by_v, v * by_u - u * by_v, u * turned]
    parts += [value * u**2 / along**3, value * v**2 / across**3, cos, sin]
    return np.stack([part.ravel() for part in parts], axis=1)


def _starts(picture: np.ndarray, n: int) -> list[np.ndarray]:
    """Centres of the energy, peaks of the spectrum, and a few widths."""
    height, width = picture.shape
    rows, columns = np.mgrid[:height, :width]
    energy = picture**2
    x, y = float((energy * columns).sum()), float((energy * rows).sum())
    top = np.unravel_index(int(np.argmax(_smooth(energy))), energy.shape)
    spread = math.sqrt(max(0.5, 0.5 * float((energy * ((columns - x) ** 2 + (rows - y) ** 2)).sum())))
    spread = min(spread, 0.3 * max(height, width))
    side = 4 * max(height, width)
    power = np.abs(np.fft.fft2(picture, (side, side))) ** 2
    fy, fx = np.meshgrid(np.fft.fftfreq(side), np.fft.fftfreq(side), indexing="ij")
    power[(fx < 0) | ((fx == 0) & (fy < 0))] = 0  # a real picture has every wave twice
    starts = []
    for _ in range(2):
        i, j = np.unravel_index(int(np.argmax(power)), power.shape)
        f, theta = math.hypot(fx[i, j], fy[i, j]), math.atan2(fy[i, j], fx[i, j])
        power[np.hypot(fx - fx[i, j], fy - fy[i, j]) < 1.5 / max(height, width)] = 0
        for centre, narrow in (((x, y), 1.0), ((float(top[1]), float(top[0])), 0.6), ((x, y), 0.5)):
            p = np.array([*centre, theta, max(f, 0.02), narrow * spread, narrow * spread, 0.0, 0.0])
            _, _, _, cos, sin = _wave(p, rows.astype(np.float64), columns.astype(np.float64))
            basis = np.stack([cos.ravel(), sin.ravel()], axis=1)
            p[6:] = np.linalg.lstsq(basis, picture.ravel(), rcond=None)[0]
            starts.append(p)
    return starts[:n]


def _smooth(energy: np.ndarray) -> np.ndarray:
    from scipy.ndimage import gaussian_filter

    return gaussian_filter(energy, 1.0, mode="constant")
