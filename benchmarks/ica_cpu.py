"""Unmixing recordings of speech and music: independent component analysis against Picard and FastICA, on CPU.

    LATENTIA_DATA=… python benchmarks/ica_cpu.py [--threads 2] [--seeds 5] [--tol 1e-5] [--shortest 38000]

The sources are the sound files of ``$LATENTIA_DATA/ica`` that have at least ``--shortest`` samples, cut to the
length of the shortest of them and scaled to unit variance; random square matrices mix them, one a seed. All three
start from whitened data and a random rotation of their own. Picard (``ortho=False``) maximises the same likelihood
as ours, with the same density (tanh score) and the same tolerance; both are timed from the mixed data to the
filters, whitening included. FastICA (log cosh) maximises something else and stands beside them for scale.

The Amari distance is 0 where the product of filters and mixing is a scaled permutation, and 1 at worst. All get the
data in float64; ours computes in float32. Times are the best of several, in turns, after a first run that is not
counted: ours compiles in it, and its time is shown apart. Run with nothing else running.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from common import pin_threads, report


def recordings(shortest: int) -> tuple[Any, list[str]]:
    """(sources, one a row; names of the files)."""
    import numpy as np
    from scipy.io import wavfile

    folder = Path(os.environ["LATENTIA_DATA"]) / "ica"
    found = {path.stem: wavfile.read(path)[1] for path in sorted(folder.rglob("*.wav"))}
    found = {name: wave if wave.ndim == 1 else wave[:, 0] for name, wave in found.items()}
    found = {name: wave for name, wave in found.items() if len(wave) >= shortest}
    length = min(map(len, found.values()))
    waves = np.stack([wave[:length].astype(np.float64) for wave in found.values()])
    waves -= waves.mean(axis=1, keepdims=True)
    return waves / waves.std(axis=1, keepdims=True), list(found)


def amari(filters: Any, mixing: Any) -> float:
    """How far filters @ mixing is from a scaled permutation, from 0 to 1."""
    import numpy as np

    p = np.abs(filters @ mixing)
    n = len(p)
    spread = (p / p.max(axis=1, keepdims=True)).sum() + (p / p.max(axis=0, keepdims=True)).sum() - 2 * n
    return float(spread / (2 * n * (n - 1)))


def competitors(tol: float, compiling: list[float]) -> dict[str, Callable[[Any, int], tuple[Any, int]]]:
    """(rows, seed) → (filters, iterations), by name; ours also says how long it compiled its loop."""
    from picard import picard
    from sklearn.decomposition import FastICA

    from latentia import ICA

    def ours(x: Any, seed: int) -> tuple[Any, int]:
        ica = ICA(tol=tol, random_state=seed).fit(x)
        compiling.append(ica.compile_seconds_)
        return ica.components_, ica.n_iter_

    def picards(x: Any, seed: int) -> tuple[Any, int]:
        options: Any = {"ortho": False, "extended": False, "tol": tol, "random_state": seed}
        whiten, rotate, _, n = cast(Any, picard(x.T, fun="tanh", return_n_iter=True, **options))
        return rotate @ whiten, n

    def fastica(x: Any, seed: int) -> tuple[Any, int]:
        ica = FastICA(whiten="unit-variance", tol=1e-4, max_iter=500, random_state=seed).fit(x)
        return ica.components_, ica.n_iter_

    return {"ours": ours, "picard": picards, "fastica": fastica}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--tol", type=float, default=1e-5)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--shortest", type=int, default=38_000)
    args = parser.parse_args()
    pin_threads(args.threads)
    import numpy as np

    warnings.simplefilter("ignore")  # FastICA and Picard warn where they stop early
    sources, names = recordings(args.shortest)
    compiling: list[float] = []
    rivals = competitors(args.tol, compiling)
    times: dict[str, list[float]] = {name: [] for name in rivals}
    distances: dict[str, list[float]] = {name: [] for name in rivals}
    iterations: dict[str, list[int]] = {name: [] for name in rivals}
    first = 0.0
    for seed in range(args.seeds):
        mixing = np.random.default_rng(seed).normal(size=(len(sources), len(sources)))
        x = np.ascontiguousarray((mixing @ sources).T)
        seconds: dict[str, list[float]] = {name: [] for name in rivals}
        for turn in range(args.repeats + 1):
            for name, solve in rivals.items():
                begin = time.perf_counter()
                filters, n = solve(x, seed)
                took = time.perf_counter() - begin
                if turn:
                    seconds[name].append(took)
                elif name == "ours" and seed == 0:
                    first = took
        for name, solve in rivals.items():
            filters, n = solve(x, seed)
            times[name].append(min(seconds[name]))
            distances[name].append(amari(filters, mixing))
            iterations[name].append(n)
    ratio = lambda by, other: float(np.mean(by["ours"]) / np.mean(by[other]))  # noqa: E731
    figures: dict[str, Any] = {"files": ", ".join(names)}
    for name in rivals:
        figures[f"{name}, Amari distance, mean"] = float(np.mean(distances[name]))
        figures[f"{name}, Amari distance, worst"] = float(np.max(distances[name]))
        figures[f"{name}, ms"] = 1e3 * float(np.mean(times[name]))
        figures[f"{name}, iterations"] = float(np.mean(iterations[name]))
    figures |= {
        "first fit of ours, all compiling included, s": first,
        "compiling of the training loop, s": max(compiling),
        "Picard has numexpr": importlib.util.find_spec("numexpr") is not None,
        "Amari ratio to Picard": ratio(distances, "picard"),
        "time ratio to Picard": ratio(times, "picard"),
        "time ratio to FastICA": ratio(times, "fastica"),
    }
    shape = f"{len(sources)} sources, {sources.shape[1]} samples"
    peers = {"Picard": 1 / ratio(times, "picard"), "scikit-learn FastICA": 1 / ratio(times, "fastica")}
    report(f"ICA, {shape}, {args.seeds} mixings, tol {args.tol:g}, {args.threads} threads", figures, peers)


if __name__ == "__main__":
    main()
