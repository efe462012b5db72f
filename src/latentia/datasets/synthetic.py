"""Synthetic data whose distribution is known exactly: bars and Gaussian mixtures."""

from __future__ import annotations

import math

import numpy as np

from latentia.core.errors import DataError, ParameterError
from latentia.datasets.base import Dataset, check_count


def load_bars(
    *, size: int = 4, p: float | None = None, n: int = 5000, n_test: int = 1000, seed: int = 0
) -> Dataset:
    """Földiák's bars: each of ``size`` rows and ``size`` columns is drawn with probability ``p``.

    A pixel is on when its row or its column is; crossing bars do not add up. The default
    ``p = 1/size`` gives two bars per picture on average, as in the original experiment.

    Reference: P. Földiák, "Forming sparse representations by local anti-Hebbian learning",
    Biological Cybernetics 64 (1990).
    """
    check_count("size", size)
    check_count("n", n)
    check_count("n_test", n_test, least=0)
    p = _bar_probability(size, p)
    rng = np.random.default_rng(seed)
    bars = rng.random((n + n_test, 2, size)) < p
    pictures = (bars[:, 0, :, None] | bars[:, 1, None, :]).reshape(n + n_test, -1).astype(np.float32)
    return Dataset(
        name="bars",
        X=pictures[:n],
        X_test=pictures[n:] if n_test else None,
        image_shape=(size, size),
        domain="binary",
        description=f"Synthetic {size}×{size} bars, each on with probability {p:g}, seed {seed}; 1 = on.",
    )


def bars_log_prob(X: np.ndarray, size: int = 4, p: float | None = None) -> np.ndarray:
    """Exact log probability of each picture under the bars distribution, in nats.

    A picture that is not full has exactly one explanation (its full rows and full columns):
    log p(x) = k log p + (2·size − k) log(1 − p) with k bars. The full picture arises whenever all
    rows or all columns are on: 2pˢ − p²ˢ. A picture that is no union of bars gets −inf.

    Arguments:
        X: pictures of 0 and 1, shape (n, size²).
        size: side of the pictures.
        p: probability of each bar; None means 1/size, as in ``load("bars")``.

    Returns:
        float64 array of shape (n,).
    """
    check_count("size", size)
    p = _bar_probability(size, p)
    X = np.asarray(X)
    if X.ndim != 2 or X.shape[1] != size * size or not np.isin(X, (0, 1)).all():
        raise DataError(
            f"X must hold pictures of 0 and 1 in rows of {size * size} pixels, got an array of shape "
            f"{X.shape}. Check size={size}, and binarise the pictures if they are grey."
        )
    on = X.reshape(-1, size, size).astype(bool)
    rows, columns = np.all(on, axis=2), np.all(on, axis=1)
    count = rows.sum(axis=1) + columns.sum(axis=1)
    log_prob = count * math.log(p) + (2 * size - count) * math.log1p(-p)
    log_prob[(on != (rows[:, :, None] | columns[:, None, :])).any(axis=(1, 2))] = -np.inf
    log_prob[on.all(axis=(1, 2))] = size * math.log(p) + math.log(2 - p**size)
    return log_prob


def _bar_probability(size: int, p: float | None) -> float:
    if p is None:
        p = 1 / size if size > 1 else 0.5
    if isinstance(p, bool) or not isinstance(p, int | float | np.number) or not 0 < p < 1:
        raise ParameterError(f"p, the probability of a bar, must lie strictly between 0 and 1; got {p!r}.")
    return float(p)


def load_mixtures(
    *, n: int = 2000, n_clusters: int = 5, separation: float = 6.0, n_test: int = 500, seed: int = 0
) -> Dataset:
    """Equally likely round Gaussians of unit variance, centred on a circle in the plane.

    ``separation`` is the distance between neighbouring centres, in standard deviations.
    """
    check_count("n", n)
    check_count("n_clusters", n_clusters)
    check_count("n_test", n_test, least=0)
    if not 0 <= separation < math.inf:
        raise ParameterError(f"separation must be a finite number of at least 0, got {separation!r}.")
    radius = 0.0 if n_clusters == 1 else separation / (2 * math.sin(math.pi / n_clusters))
    angles = 2 * np.pi * np.arange(n_clusters) / n_clusters
    centres = radius * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    rng = np.random.default_rng(seed)
    cluster = rng.integers(n_clusters, size=n + n_test)
    points = (centres[cluster] + rng.standard_normal((n + n_test, 2))).astype(np.float32)
    return Dataset(
        name="mixtures",
        X=points[:n],
        y=cluster[:n],
        X_test=points[n:] if n_test else None,
        y_test=cluster[n:] if n_test else None,
        domain="real",
        description=(
            f"Synthetic mixture of {n_clusters} unit Gaussians in the plane, neighbouring centres "
            f"{separation:g} apart, seed {seed}; y = cluster."
        ),
    )
