"""The families: one line each. Everything else (exports, command line, docs, tests, report) reads this list."""

from __future__ import annotations

import dataclasses
import importlib
from typing import Any

from latentia.core.errors import UnknownNameError


@dataclasses.dataclass(frozen=True)
class Family:
    """A family of models.

    Args:
        name: its name on the command line and in files.
        target: module and class of its estimator.
        title: a short description.
        kind: its group in the overview.
        tiny: parameters of a configuration small enough to enumerate, for the conformance tests.
        tiny_data: the data of the tiny configuration: "binary" or "real".
    """

    name: str
    target: str
    title: str
    kind: str
    tiny: dict[str, Any]
    tiny_data: str

    def estimator(self) -> Any:
        """The estimator's class (imported on first use)."""
        module, _, attribute = self.target.partition(":")
        return getattr(importlib.import_module(module), attribute)

    def tiny_model(self) -> Any:
        """A fresh model of the tiny configuration, to read its capabilities."""
        import numpy as np

        from latentia.ops.examples import Examples

        rng = np.random.default_rng(0)
        rows = rng.integers(0, 2, (20, 5)) if self.tiny_data == "binary" else rng.normal(size=(20, 3))
        estimator = self.estimator()(**self.tiny)
        return estimator.build(estimator._blueprint(Examples(rows.astype(np.float32))))

    @property
    def class_name(self) -> str:
        """The estimator's name."""
        return self.target.partition(":")[2]


FAMILIES = (
    Family(
        "rbm",
        "latentia.models.rbm:RBM",
        "Restricted Boltzmann machine, any unit types",
        "Boltzmann machines",
        {"n_components": 4},
        "binary",
    ),
    Family(
        "gaussian-rbm",
        "latentia.models.gaussian_rbm:GaussianRBM",
        "Restricted Boltzmann machine for real data",
        "Boltzmann machines",
        {"n_components": 4},
        "real",
    ),
    Family(
        "boltzmann-machine",
        "latentia.models.boltzmann_machine:BoltzmannMachine",
        "General Boltzmann machine, Ising model and Hopfield network",
        "Boltzmann machines",
        {"n_components": 3},
        "binary",
    ),
    Family(
        "dbm",
        "latentia.models.dbm:DBM",
        "Deep Boltzmann machine",
        "Deep Boltzmann machines and belief nets",
        {"hidden": (3, 2)},
        "binary",
    ),
    Family(
        "dbn",
        "latentia.models.dbn:DBN",
        "Deep belief net",
        "Deep Boltzmann machines and belief nets",
        {"hidden": (3, 2), "pretraining_epochs": 2},
        "binary",
    ),
    Family(
        "multimodal-dbm",
        "latentia.models.multimodal_dbm:MultimodalDBM",
        "Deep Boltzmann machine over several kinds of data",
        "Deep Boltzmann machines and belief nets",
        {"hidden": (2,), "joint": 2, "visible": "bernoulli"},
        "binary",
    ),
    Family(
        "gaussian-mixture",
        "latentia.models.gaussian_mixture:GaussianMixture",
        "Mixture of Gaussians",
        "Mixtures and linear models",
        {"n_components": 3},
        "real",
    ),
    Family(
        "ppca",
        "latentia.models.ppca:PPCA",
        "Probabilistic principal components",
        "Mixtures and linear models",
        {"n_components": 2},
        "real",
    ),
    Family(
        "dictionary",
        "latentia.models.sparse_coding:DictionaryLearning",
        "Dictionary learning: every signal is a sum of a few atoms",
        "Sparse coding",
        {"n_components": 2, "alpha": 0.5},
        "real",
    ),
    Family(
        "sparse-coder",
        "latentia.models.sparse_coder:SparseCoder",
        "Sparse codes over a given dictionary",
        "Sparse coding",
        {"n_components": 2, "alpha": 0.5},
        "real",
    ),
    Family(
        "binary-sparse-coding",
        "latentia.models.binary_sparse_coding:BinarySparseCoding",
        "Binary sparse coding: sums of atoms that are on or off, in noise",
        "Sparse coding",
        {"n_components": 4, "inference": "truncated", "n_best_states": 8},
        "real",
    ),
    Family(
        "autoencoder",
        "latentia.models.autoencoder:Autoencoder",
        "Autoencoder: deep, denoising, sparse, contractive, convolutional",
        "Autoencoders",
        {"hidden": (3, 2), "activation": "tanh"},
        "real",
    ),
    Family(
        "stacked-autoencoder",
        "latentia.models.stacked_autoencoder:StackedAutoencoder",
        "Stacked autoencoder, learned layer by layer and then as a whole",
        "Autoencoders",
        {"hidden": (3, 2), "pretraining_epochs": 1},
        "binary",
    ),
    Family(
        "ica",
        "latentia.models.ica:ICA",
        "Independent components, complete or overcomplete",
        "Energies, experts and ICA",
        {"density": "logistic"},
        "real",
    ),
    Family(
        "gaussian",
        "latentia.models.gaussian:GaussianModel",
        "Gaussian whose precision has given zeros",
        "Energies, experts and ICA",
        {"precision": "full"},
        "real",
    ),
    Family(
        "deep-energy",
        "latentia.models.deep_energy:DeepEnergyModel",
        "Deep energy model: experts on top of a network",
        "Energies, experts and ICA",
        {"hidden": (4, 3)},
        "real",
    ),
    Family(
        "product-of-experts",
        "latentia.models.product_of_experts:ProductOfExperts",
        "Product of experts: heavy-tailed functions of filters",
        "Energies, experts and ICA",
        {"n_components": 4},
        "real",
    ),
    Family(
        "fields-of-experts",
        "latentia.models.fields_of_experts:FieldsOfExperts",
        "Field of experts: the same filters at every position",
        "Energies, experts and ICA",
        {"n_filters": 2, "filter_shape": (1, 2), "expert": "log_cosh", "ridge": 0.3},
        "real",
    ),
    Family(
        "vae",
        "latentia.models.vae:VAE",
        "Variational autoencoder, real or binary latents, one layer or several",
        "Autoencoders",
        {"n_components": 3, "hidden": (4,), "latents": "bernoulli"},
        "binary",
    ),
)


def family(name: str) -> Family:
    """A family by name; the error suggests the nearest ones."""
    for entry in FAMILIES:
        if name in (entry.name, entry.class_name):
            return entry
    raise UnknownNameError("model", name, [entry.name for entry in FAMILIES])
