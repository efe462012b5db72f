"""Recipes: published experiments as one command each, ``latentia reproduce NAME``.

A recipe has a configuration for an accelerator, one for two CPU cores and a quick one to check that it
runs. It prints its result next to the published one and writes a run folder.
"""

from __future__ import annotations

from latentia.recipes.autoencoders import MNIST_DEEP_AUTOENCODER, MNIST_SDAE, OLIVETTI_DEEP_AUTOENCODER
from latentia.recipes.base import Recipe
from latentia.recipes.inpainting import OLIVETTI_INPAINTING
from latentia.recipes.mnist_deep import MNIST_DBM, MNIST_DBM_CLASSIFIER, MNIST_DBN
from latentia.recipes.mnist_rbm import MNIST_RBM, MNIST_RBM_LARGE
from latentia.recipes.mnist_vae import MNIST_IWAE, MNIST_LADDER, MNIST_SBN, MNIST_VAE
from latentia.recipes.natural_patches import NATURAL_PATCHES
from latentia.recipes.olshausen_field import OLSHAUSEN_FIELD
from latentia.recipes.wiki_multimodal import WIKI_MULTIMODAL
from latentia.recipes.word_senses import WORD_SENSES

RECIPES: dict[str, Recipe] = {
    "mnist-rbm": MNIST_RBM,
    "mnist-rbm-large": MNIST_RBM_LARGE,
    "mnist-dbm": MNIST_DBM,
    "mnist-dbm-classifier": MNIST_DBM_CLASSIFIER,
    "mnist-dbn": MNIST_DBN,
    "wiki-multimodal": WIKI_MULTIMODAL,
    "olivetti-inpainting": OLIVETTI_INPAINTING,
    "natural-patches": NATURAL_PATCHES,
    "olshausen-field": OLSHAUSEN_FIELD,
    "word-senses": WORD_SENSES,
    "mnist-deep-autoencoder": MNIST_DEEP_AUTOENCODER,
    "olivetti-deep-autoencoder": OLIVETTI_DEEP_AUTOENCODER,
    "mnist-sdae": MNIST_SDAE,
    "mnist-vae": MNIST_VAE,
    "mnist-iwae": MNIST_IWAE,
    "mnist-ladder": MNIST_LADDER,
    "mnist-sbn": MNIST_SBN,
}

__all__ = ["RECIPES", "Recipe"]
