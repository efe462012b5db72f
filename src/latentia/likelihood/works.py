"""From the log-weights of forward and reverse annealing to log Z: averages, their errors, Bennett's estimate.

Write a_i for the log-weights of forward annealing and b_j for those of reverse annealing *in the forward
sense* (so that both estimate ℓ = log Z₁/Z₀). Then E exp(a) = exp(ℓ) and E exp(−b) = exp(−ℓ), and where the
kernels are reversible the densities obey P_F(w) exp(w) = P_R(w) exp(ℓ) (Crooks, 1999).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import expit


def logsumexp(values: np.ndarray) -> float:
    """log Σ exp(v_i)."""
    top = values.max()
    return float(top + np.log(np.sum(np.exp(values - top))))


def log_mean_exp(log_weights: np.ndarray) -> float:
    """log (1/n) Σ exp(a_i)."""
    return float(logsumexp(log_weights) - np.log(log_weights.size))


def log_mean_exp_stderr(log_weights: np.ndarray) -> float:
    """Standard error of :func:`log_mean_exp`: the larger of the delta method's and the jackknife's.

    The delta method gives std(w)/(mean(w) √n), which can never exceed about 1 however bad the weights. The
    jackknife, √((n−1)/n Σ (ℓ₋ᵢ − ℓ̄)²) over the estimates ℓ₋ᵢ that leave one weight out, measures how far the
    estimate falls without its largest weight, and so stays honest when few weights dominate.
    """
    n = log_weights.size
    shares = np.exp(log_weights - logsumexp(log_weights))
    delta = np.sqrt(max(np.sum(shares**2) - 1 / n, 0.0) * n / (n - 1))
    top = int(np.argmax(shares))
    others = np.log1p(-np.minimum(shares, 0.999999))
    others[top] = logsumexp(np.delete(log_weights, top)) - logsumexp(log_weights)
    jackknife = np.sqrt((n - 1) / n * np.sum((others - others.mean()) ** 2))
    return float(max(delta, jackknife))


def effective_size(log_weights: np.ndarray) -> float:
    """(Σ w)² / Σ w²: how many equal weights would be worth as much."""
    return float(np.exp(2 * logsumexp(log_weights) - logsumexp(2 * log_weights)))


def bennett(forward: np.ndarray, reverse: np.ndarray) -> tuple[float, float, float]:
    """Bennett's acceptance ratio: (ℓ, its standard error, overlap).

    ℓ solves Σ_i σ(a_i − ℓ + M) = Σ_j σ(ℓ − b_j − M) with M = log(n_R/n_F), the maximum-likelihood estimate
    given both sets of works. The overlap, the mean of σ(a − ℓ + M) at the solution, tends to ½ for perfect
    and to 0 for no overlap of the two distributions of works. References: Bennett (1976), eqs. 10 to 12;
    Shirts et al. (2003).
    """
    shift = np.log(reverse.size / forward.size)

    def accepted(ell: float) -> tuple[np.ndarray, np.ndarray]:
        return expit(forward - ell + shift), expit(ell - reverse - shift)

    def imbalance(ell: float) -> float:
        # In logarithms, so that the root stays sharp where both sums underflow.
        return float(_log_sum_expit(forward - ell + shift) - _log_sum_expit(ell - reverse - shift))

    low = min(forward.min(), reverse.min()) - abs(shift) - 1
    high = max(forward.max(), reverse.max()) + abs(shift) + 1
    ell = _root(imbalance, float(low), float(high))
    here, there = accepted(ell)
    variance = _relative_variance(here) / forward.size + _relative_variance(there) / reverse.size
    return ell, float(np.sqrt(variance)), float(here.mean())


def _log_sum_expit(values: np.ndarray) -> float:
    return logsumexp(-np.logaddexp(0.0, -values))


def _root(falling: Callable[[float], float], low: float, high: float) -> float:
    """Where a falling function crosses zero, by bisection down to the spacing of floats."""
    for _ in range(100):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if falling(middle) > 0 else (low, middle)
    return 0.5 * (low + high)


def _relative_variance(values: np.ndarray) -> float:
    mean = float(values.mean())
    return float(values.var()) / mean**2 if mean > 0 else 0.0
