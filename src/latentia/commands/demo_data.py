"""The data of the demo: patches of bundled photographs, whitened; and baselines for the models."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from latentia.commands.inputs import Source

if TYPE_CHECKING:
    import numpy as np

#: Photographs that every installation has: the demo shows the same everywhere.
PHOTOGRAPHS = ("china", "flower")
#: The part of the patches, the flattest ones, that is left out.
FLAT = 0.3


def whitened_patches(path: Path, size: int, n: int, noise: float = 0.0) -> Source:
    """Patches of photographs whitened as the retina does it, from strips of their own for training and testing.

    They are kept as a file, so that `evaluate` and `encode` find the same rows again. With ``noise`` (in units of
    a pixel's standard deviation) the patches are also decorrelated: no direction is left without variance then, as
    models of a density need it.

    Args:
        path: the .npz file to write.
        size: width and height in pixels.
        n: training patches; a tenth as many are held out.
        noise: standard deviation of the noise that is added; 0 for none.
    """
    import numpy as np

    from latentia.commands.outputs import write_arrays
    from latentia.datasets import ZCAWhitening, extract_patches, load
    from latentia.datasets.bundled import photographs
    from latentia.recipes.olshausen_field import whitened

    rng = np.random.default_rng(0)
    pictures = [whitened(picture) for picture in photographs(PHOTOGRAPHS).values()]
    cuts = [picture.shape[1] // 10 for picture in pictures]
    strips = [picture[:, :cut] for picture, cut in zip(pictures, cuts, strict=True)]
    rest = [picture[:, cut:] for picture, cut in zip(pictures, cuts, strict=True)]
    train = _structured(extract_patches(rest, size, int(n / (1 - FLAT)), seed=rng))
    test = _structured(extract_patches(strips, size, int(n / (1 - FLAT)) // 10, seed=rng))
    scale = train.std()
    parts = [(rows / scale + noise * rng.normal(size=rows.shape)).astype(np.float32) for rows in (train, test)]
    if noise:
        whitening = ZCAWhitening(epsilon=0.0).fit(parts[0])
        parts = [whitening.transform(rows) for rows in parts]
    write_arrays(
        path, {name: rows.reshape(-1, size, size) for name, rows in zip(("X", "X_test"), parts, strict=True)}
    )
    dataset = load(path)
    added = " with a little noise" if noise else ""
    description = f"{len(parts[0]):,} patches of {size}×{size} pixels of photographs, whitened{added}."
    return Source(dataclasses.replace(dataset, description=description), str(path.resolve()), {})


def _structured(rows: np.ndarray) -> np.ndarray:
    import numpy as np

    contrast = rows.std(axis=1)
    return rows[contrast > np.quantile(contrast, FLAT)]


def independent_pixels(train: np.ndarray, test: np.ndarray) -> float:
    """Mean log-likelihood, in nats, of independent pixels: the baseline for any model of binary data."""
    import numpy as np

    odds = np.clip(train.mean(axis=0, dtype=np.float64), 1e-3, 1 - 1e-3)
    return float(np.mean(np.sum(test * np.log(odds) + (1 - test) * np.log1p(-odds), axis=1)))


def explained(rows: np.ndarray, rebuilt: np.ndarray) -> float:
    """The part of the variance of ``rows`` that ``rebuilt`` explains."""
    import numpy as np

    return 1 - float(np.mean((rows - rebuilt) ** 2) / np.mean((rows - rows.mean(axis=0)) ** 2))


def principal_components(train: np.ndarray, test: np.ndarray, n: int) -> float:
    """The part of the variance that so many principal components explain."""
    from sklearn.decomposition import PCA

    found = PCA(n).fit(train)
    return explained(test, found.inverse_transform(found.transform(test)))


def recognition(estimator: Any, train: np.ndarray, test: np.ndarray) -> float:
    """How often a patch has a lower energy than a Gaussian sample of the same mean and covariance (the AUC)."""
    import numpy as np
    from sklearn.metrics import roc_auc_score

    rng = np.random.default_rng(0)
    covariance = np.cov(train, rowvar=False)
    fakes = rng.multivariate_normal(train.mean(axis=0), covariance, len(test), method="cholesky").astype(np.float32)
    energies = np.concatenate([estimator.free_energy(test), estimator.free_energy(fakes)])
    return float(roc_auc_score(np.repeat([1, 0], len(test)), -energies))
