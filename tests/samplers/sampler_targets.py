"""Energies over real x whose distributions are known in closed form or by quadrature, and exact draws of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy.special import logsumexp

from latentia.core.capabilities import FreeEnergy, Starts
from latentia.core.space import Space


class Normal(FreeEnergy):
    """F(x) = ½ (x − μ)ᵀ Λ (x − μ)."""

    mean: Array
    precision: Array

    @property
    def x_space(self) -> Space:
        return Space("real", self.mean.shape)

    @property
    def z_space(self) -> Any:
        return ()

    def energy(self, x: Any, z: Any) -> Any:
        del z
        return self.free_energy(x)

    def free_energy(self, x: Any) -> Any:
        d = x - self.mean
        return 0.5 * d @ self.precision @ d


class Wells(FreeEnergy):
    """F(x, y) = c (x² − b)²/4 + (y − k x²)²/2s: two bent wells in a dictionary of arrays."""

    theta: Array  # b, c, k, log s

    @property
    def x_space(self) -> Any:
        return {"x": Space("real", (1, 1)), "y": Space("real", (1,))}

    @property
    def z_space(self) -> Any:
        return ()

    def energy(self, x: Any, z: Any) -> Any:
        del z
        return self.free_energy(x)

    def free_energy(self, x: Any) -> Any:
        a, y = x["x"][0, 0], x["y"][0]
        b, c, k, log_s = self.theta
        return 0.25 * c * (a**2 - b) ** 2 + 0.5 * (y - k * a**2) ** 2 * jnp.exp(-log_s)


class Apart(Normal, Starts):
    """F of |x| in place of x: two wells that no chain can leave, far from the origin."""

    def free_energy(self, x: Any) -> Any:
        return super().free_energy(jnp.abs(x))

    def start(self, *, key: Any) -> Any:
        return jax.random.rademacher(key, (), jnp.float32) * self.mean


def normal(mean: Any, covariance: Any, kind: type[Normal] = Normal) -> Normal:
    mean, precision = np.asarray(mean, float), np.linalg.inv(np.asarray(covariance, float))
    return kind(jnp.asarray(mean, jnp.result_type(float)), jnp.asarray(precision, jnp.result_type(float)))


def wells() -> Wells:
    return Wells(jnp.asarray([1.3, 0.9, 0.5, -0.7], jnp.result_type(float)))


class Grid:
    """The wells on a fine grid: exact expectations, and draws of nodes in proportion to exp(−F)."""

    def __init__(self, n: int = 400):
        a, y = np.meshgrid(np.linspace(-4.0, 4.0, n), np.linspace(-4.0, 9.0, n), indexing="ij")
        self.a, self.y = a.ravel(), y.ravel()
        self.log_cell = np.log(8.0 / (n - 1)) + np.log(13.0 / (n - 1))
        b, c, k, log_s = np.array([1.3, 0.9, 0.5, -0.7])
        self.energy = 0.25 * c * (self.a**2 - b) ** 2 + 0.5 * (self.y - k * self.a**2) ** 2 * np.exp(-log_s)
        self.log_z = logsumexp(-self.energy) + self.log_cell
        self.p = np.exp(-self.energy + self.log_cell - self.log_z)

    def draw(self, n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        i = np.random.default_rng(seed).choice(len(self.p), n, p=self.p / self.p.sum())
        return self.a[i], self.y[i]

    def score_derivatives(self) -> np.ndarray:
        """E ∂F/∂θ, by hand: what the gradient of −log Z must be."""
        b, c, k, log_s = np.array([1.3, 0.9, 0.5, -0.7])
        q, r = self.a**2 - b, self.y - k * self.a**2
        each = [-0.5 * c * q, 0.25 * q**2, -r * self.a**2 * np.exp(-log_s), -0.5 * r**2 * np.exp(-log_s)]
        return np.array([self.p @ e for e in each])


def as_x(a: np.ndarray, y: np.ndarray) -> dict[str, Any]:
    dtype = np.dtype(jnp.result_type(float))
    return {"x": jnp.asarray(a.reshape(-1, 1, 1).astype(dtype)), "y": jnp.asarray(y.reshape(-1, 1).astype(dtype))}


def from_x(x: Any) -> tuple[np.ndarray, np.ndarray]:
    return np.asarray(x["x"], np.float64).reshape(-1), np.asarray(x["y"], np.float64).reshape(-1)


def z_score(values: np.ndarray, wanted: float) -> float:
    """Standard errors between the mean of independent values and what it should be."""
    return float((values.mean() - wanted) / (values.std() / np.sqrt(len(values)) + 1e-12))
