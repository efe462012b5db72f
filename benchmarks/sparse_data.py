"""Natural patches and a learned dictionary for the benchmarks of sparse coding."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def patches(n: int, size: int, *, part: str, seed: int = 0) -> Any:
    """n grey patches of the photographs of ``$LATENTIA_DATA``, mean removed, scaled to norm 1; none of them flat.

    Args:
        n: how many.
        size: their side.
        part: "train" (the first half of the photographs) or "test" (the other).
        seed: which ones.
    """
    import numpy as np
    from PIL import Image

    files = sorted((Path(os.environ["LATENTIA_DATA"]) / "natural" / "bsds500_train").rglob("*.jpg"))
    half = len(files) // 2
    files = files[:half] if part == "train" else files[half:]
    rng = np.random.default_rng(seed)
    found = []
    for path in files:
        image = np.asarray(Image.open(path).convert("L"), np.float64) / 255
        windows = np.lib.stride_tricks.sliding_window_view(image, (size, size)).reshape(-1, size, size)
        rows, columns = (rng.integers(0, m - size + 1, 2 * n // len(files) + 1) for m in image.shape)
        found.append(windows[rows * (image.shape[1] - size + 1) + columns].reshape(len(rows), -1))
    x = np.concatenate(found)
    x -= x.mean(axis=1, keepdims=True)
    norms = np.linalg.norm(x, axis=1)
    x = x[norms > 0.1 * size / 12] / norms[norms > 0.1 * size / 12, None]
    return x[rng.permutation(len(x))[:n]]


def dictionary(n_atoms: int, size: int) -> Any:
    """Atoms in rows, of norm 1: SPAMS learns them from 40,000 patches of other photographs, 300 batches of 512."""
    import numpy as np
    import spams

    x = np.asfortranarray(patches(40_000, size, part="train").T)
    options = {"lambda1": 0.15, "batchsize": 512, "iter": 300, "mode": 2, "numThreads": 2, "verbose": False}
    atoms = spams.trainDL(x, K=n_atoms, **options).T
    return np.ascontiguousarray(atoms / np.linalg.norm(atoms, axis=1, keepdims=True))


def in_turns(rivals: dict[str, Callable[[], Any]], repeats: int) -> tuple[dict[str, float], dict[str, Any]]:
    """(best time in seconds, last result) of each, run in turns; a first turn is not counted."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    results: dict[str, Any] = {}
    for turn in range(repeats + 1):
        for name, run in rivals.items():
            begin = time.perf_counter()
            results[name] = run()
            if turn:
                times[name].append(time.perf_counter() - begin)
    return {name: min(t) for name, t in times.items()}, results
