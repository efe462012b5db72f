"""Variational autoencoders on MNIST: one and two layers, importance-weighted, a ladder, binary latents.

Training digits are binarised anew at every step (each grey value the probability of a one) and test digits once,
with ``numpy.random.default_rng(0)``; all 60,000 training digits are used. The figure is the importance-weighted
bound on the test digits with 5,000 draws each, in float64, as in the literature; a part of them also gets the upper
side, by annealing in latent space.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from latentia.core.run_folder import RunFolder
from latentia.recipes.base import Recipe

_BINARISATION = "training digits sampled anew at every step; test digits sampled once (default_rng(0))"
_COMMON: dict[str, Any] = {"binarize": "sample", "batch_size": 100, "monitor": None}
_LONG: dict[str, Any] = {**_COMMON, "learning_rate": 0.001, "schedule": "cosine", "averaging": 0.9995}
_BOUND: dict[str, Any] = {"full": 5000, "cpu": 500, "quick": 20}
_BOTH: dict[str, Any] = {
    "full": {"n_temperatures": 500, "n_steps": 300, "n_annealed": 200},
    "cpu": {"n_temperatures": 100, "n_steps": 100, "n_annealed": 50},
    "quick": {"n_temperatures": 5, "n_steps": 5, "n_annealed": 4},
}
_TESTED = {"full": None, "cpu": 1000, "quick": 50}

_TWO = {"latent": (100, 50), "hidden": ((400, 400), (200, 200))}
_VAE = {
    "full": {**_LONG, "n_components": 50, "hidden": (500, 500), "n_epochs": 1000},
    "cpu": {**_LONG, "n_components": 50, "hidden": (200, 200), "n_epochs": 20},
    "quick": {**_COMMON, "n_components": 2, "hidden": (8,), "n_epochs": 1, "batch_size": 500},
}
_IWAE = {
    "one layer": {
        "full": {**_VAE["full"], "objective": "iwae", "k": 50, "n_epochs": 400},
        "cpu": {**_VAE["cpu"], "objective": "iwae", "k": 5, "n_epochs": 5},
        "quick": {**_VAE["quick"], "objective": "iwae", "k": 2},
    },
    "two layers": {
        "full": {**_LONG, **_TWO, "objective": "iwae", "k": 50, "n_epochs": 300},
        "cpu": {**_LONG, **_TWO, "objective": "iwae", "k": 5, "n_epochs": 5},
        "quick": {**_VAE["quick"], "latent": (3, 2), "objective": "iwae", "k": 2},
    },
}
_LADDER = {
    "full": {
        **_LONG,
        "latent": (40, 40),
        "hidden": ((300, 300), (300, 300)),
        "activation": "gated",
        "prior": "vamp",
        "ladder": True,
        "warmup": 60,
        "n_epochs": 400,
        "learning_rate": 5e-4,
        "weight_decay": 0.1,
        "clip": 20.0,
    },
    "cpu": {
        **_LONG,
        "latent": (64, 32),
        "hidden": ((200, 200), (100, 100)),
        "activation": "gated",
        "ladder": True,
        "warmup": 5,
        "n_epochs": 15,
    },
    "quick": {**_VAE["quick"], "latent": (3, 2), "ladder": True, "warmup": 1},
}
_SBN = {
    "full": {
        **_LONG,
        "latents": "bernoulli",
        "n_components": 200,
        "hidden": (200, 200),
        "gradient": "rloo",
        "k": 8,
        "n_epochs": 250,
    },
    "cpu": {
        **_LONG,
        "latents": "bernoulli",
        "n_components": 200,
        "hidden": (200, 200),
        "gradient": "rloo",
        "k": 4,
        "n_epochs": 20,
    },
    "quick": {**_VAE["quick"], "latents": "bernoulli", "n_components": 4, "gradient": "rloo", "k": 2},
}


def _measured(out: Path, variant: str, seed: int, settings: dict[str, Any], data: Any) -> dict[str, Any]:
    """Train one model and bound the test digits' likelihood."""
    from latentia import VAE

    begin = time.perf_counter()
    tested = data.X_test[: _TESTED[variant]]
    vae = VAE(**settings, random_state=seed, run_dir=out, verbose=1).fit(data.X)
    trained = time.perf_counter()
    bound = vae.log_likelihood(tested, method="importance", n_samples=_BOUND[variant])
    both_options = {"n_samples": _BOUND[variant], "method": "ais", **_BOTH[variant]}
    few = tested[: 2 * _BOTH[variant]["n_annealed"]]
    both = vae.log_likelihood(few, **both_options)
    evaluated = time.perf_counter()
    return {
        "settings": settings,
        "test digits": len(tested),
        "bound, nats": bound.estimate,
        "bound's standard error": bound.stderr,
        "draws for each digit": _BOUND[variant],
        "elbo": bound.details["elbo"],
        f"two-sided, first {len(few)} test digits": both.as_dict(),
        "training seconds": trained - begin,
        "compiling seconds (part of training)": vae.compile_seconds_,
        "evaluation seconds": evaluated - trained,
    }


def _recipe(models: dict[str, dict[str, Any]]) -> Any:
    """A function that runs one or several named settings."""

    def run(out: Path, variant: str, seed: int) -> dict[str, Any]:
        from latentia import datasets

        begin = time.perf_counter()
        data: Any = datasets.load("mnist")
        figures: dict[str, Any] = {"variant": variant, "binarisation": _BINARISATION}
        for name, settings in models.items():
            folder = out if len(models) == 1 else out / name.replace(" ", "-")
            found = _measured(folder, variant, seed, settings[variant], data)
            figures |= found if len(models) == 1 else {name: found}
        figures["total seconds"] = time.perf_counter() - begin
        RunFolder(out).write_evaluation({"recipe": figures})
        return figures

    return run


MNIST_VAE = Recipe(
    "Variational autoencoder with 50 latents on binarised MNIST, 5,000-draw bound on the test digits",
    {"Burda, Grosse and Salakhutdinov (2016), k = 1": "-86.76 nats", "best public reproduction": "-86.35"},
    _recipe({"vae": _VAE}),
)
MNIST_IWAE = Recipe(
    "Importance-weighted autoencoders (k = 50) with one and two layers of latents on binarised MNIST",
    {"Burda, Grosse and Salakhutdinov (2016), one layer": "-84.78 nats", "two layers": "-82.90 nats"},
    _recipe(_IWAE),
)
MNIST_LADDER = Recipe(
    "Ladder variational autoencoder with gates and a learned prior on binarised MNIST",
    {"Sønderby et al. (2016), five layers, 5,000 draws": "-81.74 nats"},
    _recipe({"ladder": _LADDER}),
)
MNIST_SBN = Recipe(
    "Variational autoencoder with 200 binary latents, learned by leave-one-out scores, on binarised MNIST",
    {"one layer of 200 binary latents, bounds in the literature": "-113.1 to -107.2 nats"},
    _recipe({"sbn": _SBN}),
)
