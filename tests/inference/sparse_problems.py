"""Small sparse-coding problems for the tests, and plain NumPy witnesses of their solutions."""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from latentia.ops.penalties import L1, ElasticNet, Group

WEIGHTS = np.linspace(0.5, 2.0, 30)

#: name → penalty for the 30 atoms of :func:`problem`.
SEPARABLE = {
    "l1": L1(0.3),
    "l1-nonnegative": L1(0.3, nonnegative=True),
    "l1-weighted": L1(0.3, weights=WEIGHTS),
    "l1-weighted-nonnegative": L1(0.2, weights=WEIGHTS, nonnegative=True),
    "elastic-net": ElasticNet(0.3, 0.6),
    "elastic-net-weighted": ElasticNet(0.4, 0.3, weights=WEIGHTS),
    "elastic-net-nonnegative": ElasticNet(0.3, 0.8, nonnegative=True),
}
GROUPS = tuple(np.repeat(np.arange(10), 3).tolist())
GROUPED = {
    "group": Group(0.5, GROUPS),
    "group-weighted": Group(0.4, GROUPS, weights=np.linspace(0.5, 2.0, 10)),
    "group-nonnegative": Group(0.4, GROUPS, nonnegative=True),
}


def problem(n=40, d=18, K=30, *, seed=0, unit=False, dtype=np.float64):
    """(signals, dictionary): atoms of unequal norm, unless ``unit``, and signals that are sparse but for noise."""
    rng = np.random.default_rng(seed)
    D = rng.normal(size=(K, d)) / np.sqrt(d)
    if unit:
        D /= np.linalg.norm(D, axis=1, keepdims=True)
    z = rng.normal(size=(n, K)) * (rng.random((n, K)) < 0.2)
    X = 2 * z @ D + 0.1 * rng.normal(size=(n, d))
    return X.astype(dtype), D.astype(dtype)


def parts(penalty, K):
    """(a, b, non-negative) of Σ a|z| + ½ b z²."""
    w = np.ones(K) if penalty.weights is None else np.asarray(penalty.weights)
    ratio = penalty.ratio if isinstance(penalty, ElasticNet) else 1.0
    return penalty.alpha * ratio * w, penalty.alpha * (1 - ratio) * w, penalty.nonnegative


def objective(X, D, Z, penalty):
    """The objective of every signal, written out."""
    residual = X - Z @ D
    data = 0.5 * (residual**2).sum(axis=1)
    if isinstance(penalty, Group):
        w = np.ones(penalty.n_groups) if penalty.weights is None else np.asarray(penalty.weights)
        norms = [np.linalg.norm(Z[:, np.array(penalty.groups) == g], axis=1) for g in range(penalty.n_groups)]
        return data + penalty.alpha * (w[:, None] * np.array(norms)).sum(axis=0)
    a, b, _ = parts(penalty, len(D))
    return data + np.abs(Z) @ a + 0.5 * Z**2 @ b


def dual_gap(X, D, Z, penalty):
    """Objective less the dual function at the best feasible multiple of the residual, as that difference."""
    X, D, Z = (np.asarray(v, np.longdouble) for v in (X, D, Z))
    if isinstance(penalty, Group):
        w = np.ones(penalty.n_groups) if penalty.weights is None else np.asarray(penalty.weights)
        residual, targets = X - Z @ D, X
        g = residual @ D.T
        g = np.maximum(g, 0) if penalty.nonnegative else g
        norms = [np.sqrt((g[:, np.array(penalty.groups) == k] ** 2).sum(axis=1)) for k in range(penalty.n_groups)]
        most = (np.array(norms) / (penalty.alpha * w)[:, None]).max(axis=0)
    else:
        a, b, nonnegative = parts(penalty, len(D))
        # The ridge as further features: x is followed by zeros, atom j by √b_j in a place of its own.
        residual = np.hstack([X - Z @ D, -Z * np.sqrt(b)])
        targets = np.hstack([X, np.zeros_like(Z)])
        g = residual @ np.hstack([D, np.diag(np.sqrt(b))]).T
        most = ((g if nonnegative else np.abs(g)) / a).max(axis=1)
    best = (targets * residual).sum(axis=1) / (residual**2).sum(axis=1)
    scale = np.minimum(np.maximum(best, 1), 1 / most)
    theta = scale[:, None] * residual
    dual = 0.5 * (targets**2).sum(axis=1) - 0.5 * ((targets - theta) ** 2).sum(axis=1)
    return np.asarray(objective(X, D, Z, penalty) - dual, np.float64)


def kkt(X, D, Z, penalty):
    """The largest violation of the optimality conditions of a separable penalty, over all signals."""
    a, b, nonnegative = parts(penalty, len(D))
    g = (X - Z @ D) @ D.T - b * Z
    at_zero = np.maximum((g if nonnegative else np.abs(g)) - a, 0)
    in_use = np.abs(g - a * np.sign(Z))
    if nonnegative:
        assert (Z >= 0).all()
    return np.where(Z == 0, at_zero, in_use).max()


def group_kkt(X, D, Z, penalty):
    """The same for a group penalty: g_g = a z_g/‖z_g‖ in use, ‖g_g‖ ≤ a at zero."""
    worst = 0.0
    w = np.ones(penalty.n_groups) if penalty.weights is None else np.asarray(penalty.weights)
    g = (X - Z @ D) @ D.T
    for k in range(penalty.n_groups):
        at = np.array(penalty.groups) == k
        z, gk, a = Z[:, at], g[:, at], penalty.alpha * w[k]
        norms = np.linalg.norm(z, axis=1, keepdims=True)
        used = gk - a * z / np.where(norms > 0, norms, 1)
        if penalty.nonnegative:
            assert (z >= 0).all()
            used = np.where(z == 0, np.maximum(used, 0), used)
            gk = np.maximum(gk, 0)
        idle = np.maximum(np.linalg.norm(gk, axis=1) - a, 0)
        worst = max(worst, np.where(norms[:, 0] > 0, np.abs(used).max(axis=1), idle).max())
    return worst


def same(a, b):
    """Whether two results are the same to the last bit."""
    x, y = (c.values.toarray() if sp.issparse(c.values) else c.values for c in (a, b))
    gaps = np.array_equal(a.gaps, b.gaps, equal_nan=True)
    return np.array_equal(x, y) and gaps and np.array_equal(a.n_iter, b.n_iter)
