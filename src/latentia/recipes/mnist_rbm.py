"""RBMs on binarised MNIST, with a two-sided test log-likelihood.

Training digits are binarised anew at every step (each grey value the probability of a one), test digits once,
with ``numpy.random.default_rng(0)``. Centred PCD with thousands of persistent chains, a rate that falls to
zero and averaged weights: the recipe of Melchior, Fischer and Wiskott (2016) with more chains.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from latentia.core.run_folder import RunFolder
from latentia.recipes.base import Recipe

_BINARISATION = "training digits sampled anew at every step; test digits sampled once (default_rng(0))"

_COMMON = {"binarize": "sample", "objective": "pcd", "averaging": 0.9995, "weight_decay": 2e-5}
_QUICK = {
    "fit": {
        **_COMMON,
        "n_components": 32,
        "k": 1,
        "n_chains": 100,
        "batch_size": 200,
        "n_epochs": 1,
        "learning_rate": 0.1,
    },
    "likelihood": {"n_temperatures": 100, "n_chains": 32, "n_burn_in": 20, "n_steps": 20},
}
_SMALL = {
    "full": {
        "fit": {
            **_COMMON,
            "n_components": 500,
            "k": 3,
            "n_chains": 2000,
            "batch_size": 200,
            "n_epochs": 640,
            "learning_rate": 0.5,
        },
        "likelihood": {"n_temperatures": 24_000, "n_chains": 1024},
    },
    "cpu": {
        "fit": {
            **_COMMON,
            "n_components": 500,
            "k": 1,
            "n_chains": 200,
            "batch_size": 200,
            "n_epochs": 60,
            "learning_rate": 0.2,
        },
        "likelihood": {"n_temperatures": 2000, "n_chains": 100, "n_burn_in": 200, "n_steps": 200},
    },
    "quick": _QUICK,
}
_LARGE = {
    "full": {
        "fit": {
            **_COMMON,
            # Wide machines overfit: decay and time count for more than further units and chains.
            "n_components": 2000,
            "k": 3,
            "n_chains": 1000,
            "batch_size": 200,
            "n_epochs": 3000,
            "learning_rate": 0.65,
            "schedule": "warmup",
            "weight_decay": 2e-4,
        },
        "likelihood": {"n_temperatures": 30_000, "n_chains": 2048},
    },
    "cpu": {
        "fit": {
            **_COMMON,
            "n_components": 1000,
            "k": 1,
            "n_chains": 200,
            "batch_size": 200,
            "n_epochs": 60,
            "learning_rate": 0.2,
        },
        "likelihood": {"n_temperatures": 2000, "n_chains": 100, "n_burn_in": 200, "n_steps": 200},
    },
    "quick": _QUICK,
}


def _runner(variants: dict[str, dict[str, Any]]) -> Any:
    def run(out: Path, variant: str, seed: int) -> dict[str, Any]:
        from latentia import RBM, datasets

        begin = time.perf_counter()
        settings = variants[variant]
        data = datasets.load("mnist")
        rbm = RBM(**settings["fit"], random_state=seed, run_dir=out, verbose=1).fit(data.X)
        trained = time.perf_counter()
        result = rbm.log_likelihood(data.X_test, **settings["likelihood"])
        figures = {
            "variant": variant,
            "binarisation": _BINARISATION,
            "settings": settings["fit"],
            "lower": result.lower,
            "upper": result.upper,
            "estimate": result.estimate,
            "width": result.upper - result.lower,
            "stderr": result.stderr,
            "method": result.method,
            "training seconds": trained - begin,
            "compiling seconds (part of training)": rbm.compile_seconds_,
            "evaluation seconds": time.perf_counter() - trained,
            "total seconds": time.perf_counter() - begin,
        }
        RunFolder(out).write_evaluation({"log_likelihood": result.as_dict(), "recipe": figures})
        return figures

    return run


_LITERATURE = {
    "CD-25, 500 units (Salakhutdinov and Murray, 2008)": "-86.34 nats, AIS only, one-sided",
    "centred PCD-1, 500 units, best public figure": "-84.86 by AIS, -96.61 by reverse AIS",
    "ladder VAE (Sønderby et al., 2016)": "-81.74, a lower bound",
}

MNIST_RBM = Recipe(
    "RBM with 500 hidden units on binarised MNIST, two-sided test log-likelihood",
    _LITERATURE,
    _runner(_SMALL),
)
MNIST_RBM_LARGE = Recipe(
    "A large RBM on binarised MNIST, two-sided test log-likelihood", _LITERATURE, _runner(_LARGE)
)
