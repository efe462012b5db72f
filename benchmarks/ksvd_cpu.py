"""K-SVD on patches of photographs: time to an equal error, against the packages ``ksvd`` and ``dictlearn``, on CPU.

    LATENTIA_DATA=… python benchmarks/ksvd_cpu.py [--threads 2] [--signals 10000] [--iterations 10] [--dtype
    float64]

Patches of 8×8 pixels of ``$LATENTIA_DATA/natural/bsds500_train``, means taken off; 256 atoms, 6 of them in a code.
All start from the same atoms (patches). Each peer runs ``--iterations`` rounds of approximate K-SVD; its error is
the mean of ‖x − zD‖² with its final atoms, coded by the same pursuit for all. Ours runs until its error is no
larger, at most ten times as many rounds; the ratio of both times is what counts. ``ksvd`` updates an atom by the
signals that use it with a positive sign only, and so ends at a larger error; ``dictlearn`` has compiled loops. Ours
and the peers take turns, the best of ``--repeats`` counts; nobody's compiling is in the times, ours is shown apart.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from common import pin_threads, report


def patches(n: int) -> Any:
    """Patches without their means, float64, in units of 255."""
    import numpy as np
    from PIL import Image

    from latentia.datasets import extract_patches

    files = sorted((Path(os.environ["LATENTIA_DATA"]) / "natural" / "bsds500_train").iterdir())[:40]
    images = [np.asarray(Image.open(f).convert("L"), np.float32) / 255 for f in files]
    rows = extract_patches(images, 8, n, seed=0).astype(np.float64)
    return rows - rows.mean(axis=1, keepdims=True)


def peers(start: Any, n_nonzero: int, iterations: int) -> dict[str, Callable[[Any], Any]]:
    """Signals → atoms, by name."""
    from dictlearn import DictionaryLearning
    from ksvd import ApproximateKSVD

    class Started(ApproximateKSVD):
        def _initialize(self, X: Any) -> Any:
            return start.copy()

    def plain(x: Any) -> Any:
        model = Started(len(start), max_iter=iterations, tol=0, transform_n_nonzero_coefs=n_nonzero)
        return model.fit(x).components_

    def compiled(x: Any) -> Any:
        options: Any = {"fit_algorithm": "aksvd", "n_nonzero_coefs": n_nonzero, "max_iter": iterations}
        return DictionaryLearning(len(start), dict_init=start.copy(), random_state=0, **options).fit(x).components_

    return {"ksvd": plain, "dictlearn": compiled}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--signals", type=int, default=10_000)
    parser.add_argument("--atoms", type=int, default=256)
    parser.add_argument("--nonzeros", type=int, default=6)
    parser.add_argument("--iterations", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--dtype", choices=("float64", "float32"), default="float64")
    args = parser.parse_args()
    pin_threads(args.threads)
    warnings.simplefilter("ignore")  # scikit-learn's pursuit warns of dependent atoms
    import numpy as np

    from latentia.inference.sparse import sparse_encode
    from latentia.learning.dictionary.ksvd import ksvd, start_dictionary

    X = patches(args.signals)
    start = start_dictionary(X, args.atoms, rng=np.random.default_rng(0))
    mine, own_start = X.astype(args.dtype), start.astype(args.dtype)

    def error(atoms: Any) -> float:
        atoms = np.asarray(atoms, np.float64)
        codes = sparse_encode(X, atoms, method="omp", n_nonzero=args.nonzeros)
        return 2 * float(np.mean(codes.objective(X, atoms, None)))

    def ours(rounds: int) -> Any:
        options: Any = {"n_iterations": rounds, "n_nonzero": args.nonzeros, "n_threads": args.threads}
        return ksvd(mine, own_start, **options)

    begin = time.perf_counter()
    ours(1)
    compiling = time.perf_counter() - begin
    rivals = peers(start, args.nonzeros, args.iterations)
    figures: dict[str, Any] = {"compiling and a first round, s": compiling, "error at the start": error(start)}
    for name, learn in rivals.items():
        theirs, mines = [], []
        learn(X[:300])  # compiles
        for repeat in range(args.repeats):
            begin = time.perf_counter()
            atoms = learn(X)
            theirs.append(time.perf_counter() - begin)
            if repeat == 0:
                wanted = error(atoms)
                rounds = next((r for r in range(1, 10 * args.iterations) if error(ours(r)) <= wanted), 0)
            begin = time.perf_counter()
            found = ours(rounds)
            mines.append(time.perf_counter() - begin)
        figures[f"{name}: error after {args.iterations} rounds"] = wanted
        figures[f"{name}: time, s"] = min(theirs)
        figures[f"ours: error after {rounds} rounds"] = error(found)
        figures[f"ours: time to {name}'s error, s"] = min(mines)
        figures[f"times as fast as {name}"] = min(theirs) / min(mines) if rounds else float("nan")
        begin = time.perf_counter()
        ours(args.iterations)
        figures[f"ours: time of {args.iterations} rounds, s"] = time.perf_counter() - begin
    ratios = {name: figures[f"times as fast as {name}"] for name in rivals}
    title = f"K-SVD, {args.signals} patches, {args.atoms} atoms, {args.dtype}, {args.threads} threads"
    report(title, figures, ratios)


if __name__ == "__main__":
    main()
