"""Convergence of chains (R̂) and their effective sample size (ESS).

Both follow Vehtari, Gelman, Simpson, Carpenter and Bürkner (2021), on chains split in half and draws
replaced by normal scores of their ranks, Φ⁻¹((r − 3/8)/(S + 1/4)), which makes them good for heavy tails too:

- R̂ = √(var⁺/W), with W the mean variance within chains and var⁺ = (n − 1)/n W + B/n, B/n the variance of the
  chains' means; the larger of that of the draws (bulk) and of |draw − median| (tails). Above 1.01 chains have not
  mixed.
- ESS = S/τ with τ = 1 + 2 Σ_t ρ_t, the autocorrelations ρ_t = 1 − (W − autocovariance_t)/var⁺ summed in pairs by
  Geyer's initial monotone sequence (1992). An AR(1) process with coefficient ρ has S (1 − ρ)/(1 + ρ).

Written here in NumPy rather than taken from BlackJAX, whose functions compile for every shape of draws; the tests
compare the two.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
from scipy.fft import next_fast_len
from scipy.special import ndtri
from scipy.stats import rankdata

from latentia.core.errors import DataError

#: Entries of x that are looked at in one go: a matter of memory.
_BLOCK = 2_000_000


def r_hat(draws: Any) -> np.ndarray:
    """The rank-normalised split R̂ of every entry of x; NaN where an entry never changes.

    Args:
        draws: ``(n_draws, n_chains, …)`` with at least 4 draws.

    Example:
        >>> still = np.random.default_rng(0).normal(size=(1000, 4))
        >>> bool(r_hat(still) < 1.01), bool(r_hat(still + np.arange(4)) > 1.1)
        (True, True)
    """
    return _each(draws, lambda x: np.maximum(_bare_r_hat(_scores(x)), _bare_r_hat(_scores(_folded(x)))))


def effective_sample_size(draws: Any) -> np.ndarray:
    """The effective sample size for the bulk of every entry of x; NaN if the entry never changes.

    Args:
        draws: ``(n_draws, n_chains, …)`` with at least 4 draws.

    Example:
        >>> still = np.random.default_rng(0).normal(size=(1000, 4))
        >>> bool(3000 < effective_sample_size(still) < 5000)
        True
    """
    return _each(draws, lambda x: _bare_ess(_scores(x)))


def diagnose(draws: Any) -> dict[str, float]:
    """The largest R̂ and the smallest ESS over all entries of a pytree of draws; NaN for fewer than 4 draws."""
    leaves = [np.asarray(leaf) for leaf in jax.tree.leaves(draws)]
    if leaves[0].shape[0] < 4:
        return {"r_hat": float("nan"), "ess": float("nan")}
    worst = {"r_hat": _extreme(leaves, r_hat, np.max), "ess": _extreme(leaves, effective_sample_size, np.min)}
    return {name: float(value) for name, value in worst.items()}


def _extreme(leaves: list[np.ndarray], measure: Any, pick: Any) -> float:
    """Over the entries that change: fixed ones say nothing. NaN if draws are not finite, or nothing moves."""
    if not all(np.isfinite(leaf).all() for leaf in leaves):
        return float("nan")
    moving = [np.any(leaf != leaf[:1], axis=(0, 1)) for leaf in leaves]
    found = np.concatenate([measure(leaf)[m].ravel() for leaf, m in zip(leaves, moving, strict=True)])
    return pick(found) if found.size else float("nan")


def _each(draws: Any, measure: Any) -> np.ndarray:
    """A measure of every entry, from ``(n, chains, entries)`` in blocks, chains split in half."""
    draws = np.asarray(draws)
    if draws.ndim < 2 or draws.shape[0] < 4:
        raise DataError(f"draws must be (n_draws, n_chains, …) with at least 4 draws, got shape {draws.shape}.")
    n, chains = draws.shape[0] // 2, draws.shape[1]
    flat = draws.reshape(draws.shape[0], chains, -1)
    width = max(1, _BLOCK // (draws.shape[0] * chains))
    found = []
    for begin in range(0, flat.shape[2], width):
        x = flat[:, :, begin : begin + width].astype(np.float64)
        found.append(measure(np.concatenate([x[:n], x[-n:]], axis=1)))
    return np.concatenate(found).reshape(draws.shape[2:])


def _folded(x: np.ndarray) -> np.ndarray:
    return np.abs(x - np.median(x, axis=(0, 1)))


def _scores(x: np.ndarray) -> np.ndarray:
    """Normal scores of the ranks among all chains' draws."""
    pooled = x.reshape(-1, x.shape[2])
    return ndtri((rankdata(pooled, axis=0) - 0.375) / (len(pooled) + 0.25)).reshape(x.shape)


def _variances(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(W, var⁺)."""
    n = x.shape[0]
    within = x.var(axis=0, ddof=1).mean(axis=0)
    return within, (n - 1) / n * within + x.mean(axis=0).var(axis=0, ddof=1)


def _bare_r_hat(x: np.ndarray) -> np.ndarray:
    within, total = _variances(x)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.sqrt(total / within)


def _bare_ess(x: np.ndarray) -> np.ndarray:
    n, chains = x.shape[:2]
    within, total = _variances(x)
    size = next_fast_len(2 * n, real=True)
    spectrum = np.abs(np.fft.rfft(x - x.mean(axis=0), size, axis=0)) ** 2
    covariance = np.fft.irfft(spectrum, size, axis=0)[:n].mean(axis=1) / n  # mean over chains
    with np.errstate(divide="ignore", invalid="ignore"):
        correlation = 1 - (within - covariance) / total
        correlation[0] = 1.0
        pairs = correlation[: n - n % 2].reshape(n // 2, 2, -1).sum(axis=1)
        # The sequence of pairs ends where one is negative, and must fall until there.
        going = np.cumprod(pairs > 0, axis=0).astype(bool)
        falling = np.minimum.accumulate(np.where(going, pairs, 0.0), axis=0)
        tau = -1 + 2 * falling.sum(axis=0)
        tau = np.maximum(tau, 1 / np.log10(n * chains))  # antithetic chains: no boundless claims
        return np.where(total > 0, n * chains / tau, np.nan)
