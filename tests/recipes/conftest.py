"""Data sets in place of those that recipes load."""

from __future__ import annotations

import numpy as np
import pytest

from latentia.datasets import Dataset


def _digits(n, rng):
    """Blobs whose place is their label."""
    y = rng.integers(0, 10, n)
    i, j = np.mgrid[:28, :28]
    away = (i - 14) ** 2 + (j - 2 - 2.6 * y[:, None, None]) ** 2
    return np.exp(-away / 20).reshape(n, 784).astype(np.float32), y


def _offline(name, **options):
    rng = np.random.default_rng(0)
    if name == "mnist":
        (X, y), (X_test, y_test) = _digits(400, rng), _digits(60, rng)
        return Dataset("mnist", X, y, X_test, y_test, (28, 28), "unit")
    assert name == "olivetti"
    faces = rng.random((400, 8, 8)).repeat(8, axis=1).repeat(8, axis=2)
    return Dataset("olivetti", faces.reshape(400, 4096).astype(np.float32), np.arange(400) // 10, domain="unit")


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr("latentia.datasets.load", _offline)
