"""Does an energy model know its own data? Deep energy models of digits and of patches, against others.

    python benchmarks/deep_energy_auc.py [--epochs 20]

Two models, 784-64-64, learned by sliced score matching: one of MNIST digits, one of 28×28 patches of
photographs. Each then scores (log p̃ = −F) held-out data of its own kind, samples of a Gaussian with the mean and
covariance of its training data, and held-out data of the other kind. Printed is the AUC of each pair: the chance
that an example of its own kind scores above one of the others. Needs ``$LATENTIA_DATA/mnist``; patches come from
bundled photographs.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import pin_threads, report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--sigma", type=float, default=1.0)
    parser.add_argument("--objective", default="sliced_score_matching")
    arguments = parser.parse_args()
    pin_threads(2)
    import numpy as np
    from sklearn.metrics import roc_auc_score

    from latentia import DeepEnergyModel, datasets
    from latentia.recipes.natural_patches import continuous, cut_patches

    rng = np.random.default_rng(0)
    digits: Any = datasets.load("mnist")
    train = {"digits": continuous(np.asarray(digits.X), rng)}
    test = {"digits": continuous(np.asarray(digits.X_test[:5000]), rng)}
    train["patches"], test["patches"], _ = cut_patches(None, 28, 50_000, 5_000, 0)
    figures: dict[str, Any] = {"model": "784-64-64", "epochs": arguments.epochs}
    for kind, other in (("digits", "patches"), ("patches", "digits")):
        own = train[kind]
        begin = time.perf_counter()
        model = DeepEnergyModel(
            (64, 64),
            sigma=arguments.sigma,
            objective=arguments.objective,
            n_epochs=arguments.epochs,
            monitor=None,
            random_state=0,
        ).fit(own)
        figures[f"{kind}: seconds"] = time.perf_counter() - begin
        gaussian = rng.multivariate_normal(own.mean(0), np.cov(own.T), len(test[kind]), method="eigh")
        others = {"Gaussian samples": gaussian.astype(np.float32), other: test[other]}
        scores = -model.free_energy(test[kind]).astype(np.float64)
        for name, rows in others.items():
            against = -model.free_energy(rows).astype(np.float64)
            truth = np.repeat([1, 0], [len(scores), len(against)])
            figures[f"{kind} told from {name}, AUC"] = float(
                roc_auc_score(truth, np.concatenate([scores, against]))
            )
            figures[f"{kind} / {name}, mean log p̃"] = f"{scores.mean():.1f} / {against.mean():.1f}"
    report("Deep energy models and what they take for their own", figures)


if __name__ == "__main__":
    main()
