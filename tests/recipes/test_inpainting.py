"""In-painting: what is compared with what."""

from __future__ import annotations

import numpy as np
import pytest

from latentia.datasets.base import Dataset
from latentia.recipes import RECIPES
from latentia.recipes.inpainting import LOWER_HALF, inpainting


class Oracle:
    """Returns the truth where nothing is known, plus a constant error."""

    def __init__(self, truth: np.ndarray, error: float):
        self.truth, self.error, self.asked = truth, error, {}

    def sample(self, n, *, given, mask, **options):
        self.asked = {"mask": mask, **options}
        np.testing.assert_array_equal(given[:, mask], self.truth[:, mask])
        return np.repeat(np.where(mask, given, self.truth + self.error), n, axis=0)


def test_errors_are_those_of_the_missing_half(tmp_path):
    rng = np.random.default_rng(0)
    train, test = rng.random((30, 16)).astype(np.float32), rng.random((5, 16)).astype(np.float32)
    data = Dataset("toy", train, X_test=test, image_shape=(4, 4), domain="unit")
    machine = Oracle(test.astype(float), 0.25)
    found = inpainting(machine, data, (4, 4), LOWER_HALF, tmp_path / "pictures" / "p.png", n_draws=3)
    assert machine.asked["mask"].tolist() == [True] * 8 + [False] * 8
    assert machine.asked["mean"] is True
    assert found["machine"] == pytest.approx(0.25**2, rel=1e-5)
    missing = test[:, 8:].astype(float)
    assert found["mean of every pixel"] == pytest.approx(np.mean((train.mean(0)[8:] - missing) ** 2), rel=1e-5)
    nearest = [np.argmin(((train[:, :8] - row[:8]) ** 2).sum(1)) for row in test]
    assert found["nearest neighbour"] == pytest.approx(np.mean((train[nearest, 8:] - missing) ** 2), rel=1e-5)
    assert (tmp_path / "pictures" / "p.png").stat().st_size > 1000


def test_every_recipe_says_what_it_shows():
    assert all(len(recipe.description) > 20 for recipe in RECIPES.values())
    assert {"mnist-dbm", "mnist-dbm-classifier", "mnist-dbn", "wiki-multimodal"} <= set(RECIPES)
