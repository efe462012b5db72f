"""Memory of one process that fits a thousand models of different shapes, each of which has to be compiled anew.

    python benchmarks/many_shapes.py [--fits 1000] [--optimise]

Prints the resident memory and the number of memory mappings (of which Linux allows a process 65,530) after every
hundred fits, and whether the largest of them stay what they were in the first two hundred. Every model also codes
and scores its data. To finish within minutes, XLA compiles without optimising; ``--optimise`` compiles as users do.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from importlib import metadata
from pathlib import Path
from typing import Any

from common import report

#: How much larger than in the first two hundred fits the largest figures may become.
SLACK = 1.1
QUICK = "--xla_backend_optimization_level=0 --xla_cpu_parallel_codegen_split_count=1"
if metadata.version("jaxlib").startswith("0.10."):  # later ones do not know the flag
    QUICK += " --xla_cpu_use_fusion_emitters=false"


def resident() -> float:
    """Megabytes of this process that are in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def n_mappings() -> int:
    """How many memory mappings this process has."""
    return Path("/proc/self/maps").read_bytes().count(b"\n")


def estimator(index: int) -> tuple[Any, int]:
    """An estimator and the number of features of its data; no two have the same shapes."""
    from latentia import PPCA, RBM, Autoencoder, GaussianMixture

    n_features, n_components = 4 + index % 40, 2 + index // 40
    short = {"n_epochs": 1, "batch_size": 4 + index % 7, "random_state": index}
    plain = {"n_sampler_steps": 1, "centring": 0.0, "monitor": None, "optimizer": "sgd", "schedule": "constant"}
    if index % 10 == 7:
        return GaussianMixture(n_components, n_epochs=2, random_state=index), n_features
    if index % 10 == 8:
        return PPCA(min(n_components, n_features - 1), random_state=index), n_features
    if index % 10 == 9:
        return Autoencoder((n_components,), **short), n_features
    return RBM(n_components, **plain, **short), n_features


def use(index: int) -> None:
    """Fit a model, then code and score some rows with it."""
    import numpy as np

    model, n_features = estimator(index)
    X = (np.random.default_rng(index).random((30, n_features)) < 0.4).astype(float)
    model.fit(X).transform(X[: 1 + index % 24])
    if hasattr(model.model_, "free_energy"):
        model.free_energy(X)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=1000)
    parser.add_argument("--optimise", action="store_true", help="compile as users do, which takes longer")
    args = parser.parse_args()
    if not args.optimise:
        os.environ.setdefault("XLA_FLAGS", QUICK)
    from latentia.ops.compiling import n_live_programs

    begin = time.perf_counter()
    memory, mappings, programs = [], [], []
    print(
        f"{'fits':>6} {'seconds':>8} {'resident MB':>12} {'mappings':>9} {'programs':>9}   (largest of the hundred)"
    )
    for index in range(args.fits):
        use(index)
        memory.append(resident())
        mappings.append(n_mappings())
        programs.append(n_live_programs())
        if (index + 1) % 100 == 0 or index + 1 == args.fits:
            last = slice(index // 100 * 100, index + 1)
            largest = f"{max(memory[last]):12.0f} {max(mappings[last]):9d} {max(programs[last]):9d}"
            print(f"{index + 1:6d} {time.perf_counter() - begin:8.0f} {largest}", flush=True)
    flat = all(max(values) <= SLACK * max(values[:200]) for values in (memory, mappings))
    figures = {
        "largest resident memory, MB": max(memory),
        "of the first two hundred fits, MB": max(memory[:200]),
        "most memory mappings": max(mappings),
        "of the first two hundred fits": max(mappings[:200]),
        "seconds": time.perf_counter() - begin,
        "verdict": "flat" if flat else "GROWING",
    }
    report(f"{args.fits} models of different shapes fitted in one process", figures)
    sys.exit(not flat)


if __name__ == "__main__":
    main()
