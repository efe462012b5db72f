"""Pursuits of natural patches, on CPU: ours against SPAMS and scikit-learn, float64.

    LATENTIA_DATA=… python benchmarks/omp_cpu.py [--threads 2] [--size 12] [--atoms 256] [--nonzero 10]

Signals and dictionary as in ``sparse_codes_cpu.py``. What SPAMS calls omp takes the atom that lowers the error
most, orthogonal least squares, our "ols", and its codes are ours to rounding. scikit-learn's omp is our "omp". Both
of ours are measured against SPAMS. All have the same number of threads, run in turns, best of several; scikit-learn
gets a part of the signals, and its time is scaled up. (SPAMS in float32 can return empty codes, and is left out.)
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import pin_threads, report
from sparse_data import dictionary, in_turns, patches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--signals", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=12)
    parser.add_argument("--atoms", type=int, default=256)
    parser.add_argument("--nonzero", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--slow", type=int, default=1000, help="signals for scikit-learn; 0 leaves it out")
    args = parser.parse_args()
    pin_threads(args.threads)
    import numpy as np
    import spams
    from sklearn.decomposition import sparse_encode as sk_sparse_encode

    from latentia.inference.sparse import sparse_encode

    X, D = patches(args.signals, args.size, part="test"), dictionary(args.atoms, args.size)
    begin = time.perf_counter()
    sparse_encode(X[:10], D, method="omp", n_nonzero=args.nonzero)
    figures: dict[str, Any] = {"first call of ours, s": time.perf_counter() - begin}
    few, columns, atoms = X[: args.slow], np.asfortranarray(X.T), np.asfortranarray(D.T)
    pursue = lambda method: sparse_encode(X, D, method=method, n_nonzero=args.nonzero, n_threads=args.threads)  # noqa: E731
    rivals: dict[str, Any] = {
        "omp": lambda: pursue("omp"),
        "ols": lambda: pursue("ols"),
        "SPAMS": lambda: spams.omp(columns, atoms, L=args.nonzero, numThreads=args.threads),
    }
    times, results = in_turns(rivals, args.repeats)
    figures |= {f"{name}, ms": 1e3 * seconds for name, seconds in times.items()}
    figures |= {
        "SPAMS / omp": times["SPAMS"] / times["omp"],
        "SPAMS / ols": times["SPAMS"] / times["ols"],
        "ols, largest difference from SPAMS": float(abs(results["ols"].values - results["SPAMS"].T.tocsr()).max()),
        "omp, half squared error, mean": float(results["omp"].objective(X, D, None).mean()),
        "ols, half squared error, mean": float(results["ols"].objective(X, D, None).mean()),
    }
    if args.slow:
        run = lambda: sk_sparse_encode(few, D, algorithm="omp", n_nonzero_coefs=args.nonzero)  # noqa: E731
        slow, other = in_turns({"scikit-learn": run}, 3)
        scaled = slow["scikit-learn"] * len(X) / len(few)
        difference = abs(results["omp"].values[: len(few)].toarray() - other["scikit-learn"]).max()
        figures |= {
            "scikit-learn, scaled up, ms": 1e3 * scaled,
            "scikit-learn / omp": scaled / times["omp"],
            "omp, largest difference from scikit-learn": float(difference),
        }
    shape = f"{len(X)} patches {args.size}×{args.size}, {args.atoms} atoms, {args.nonzero} taken"
    named = {"SPAMS / omp": "SPAMS", "scikit-learn / omp": "scikit-learn"}
    peers = {name: figures[key] for key, name in named.items() if key in figures}
    report(f"Pursuits, {shape}, {args.threads} threads", figures, peers)


if __name__ == "__main__":
    main()
