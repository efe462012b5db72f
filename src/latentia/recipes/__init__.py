"""Recipes: published experiments as one command each, ``latentia reproduce NAME``.

A recipe has a configuration for an accelerator, one for two CPU cores and a quick one that only shows that it
runs; it prints its figure beside the literature's and leaves a run folder.
"""

from __future__ import annotations

from latentia.recipes.base import Recipe
from latentia.recipes.mnist_rbm import MNIST_RBM, MNIST_RBM_LARGE

RECIPES: dict[str, Recipe] = {"mnist-rbm": MNIST_RBM, "mnist-rbm-large": MNIST_RBM_LARGE}

__all__ = ["RECIPES", "Recipe"]
