"""ℓ1 codes of natural patches, on CPU: coordinate descent against SPAMS (LARS) and scikit-learn (lasso_cd).

    LATENTIA_DATA=… python benchmarks/sparse_codes_cpu.py [--threads 2] [--size 12] [--atoms 256] [--alpha 0.15]

Signals are patches with their mean removed, scaled to norm 1; the dictionary was learned from patches of other
photographs. All solve min ½‖x − zD‖² + α‖z‖₁, with the same number of threads, in turns, best of several.
Objectives are computed in float64 from what each returns, and must agree to 10⁻⁶ relative in the mean; ours is
certified by its duality gap. SPAMS gets the signals in columns, as it wants them. scikit-learn is slow: it gets a
part of the signals, and its time is scaled up. Ours is measured from plain arrays to CSR codes, Gram matrix
included.
"""

from __future__ import annotations

import argparse
import warnings
from typing import Any

from common import pin_threads, report
from sparse_data import dictionary, in_turns, patches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--signals", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=12)
    parser.add_argument("--atoms", type=int, default=256)
    parser.add_argument("--alpha", type=float, default=0.15)
    parser.add_argument("--tol", type=float, default=1e-6)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--slow", type=int, default=400, help="signals for scikit-learn; 0 leaves it out")
    args = parser.parse_args()
    pin_threads(args.threads)
    import time

    import numpy as np
    import spams
    from sklearn.decomposition import sparse_encode as sk_sparse_encode

    from latentia.inference.sparse import Codes, sparse_encode

    X, D = patches(args.signals, args.size, part="test"), dictionary(args.atoms, args.size)
    begin = time.perf_counter()
    sparse_encode(X[:10], D, penalty=args.alpha)
    figures: dict[str, Any] = {"first call of ours, s": time.perf_counter() - begin}
    few, alpha = X[: args.slow], args.alpha
    for dtype in (np.float64, np.float32):
        x, atoms, name = X.astype(dtype), D.astype(dtype), np.dtype(dtype).name
        columns, atoms_in_columns = np.asfortranarray(x.T), np.asfortranarray(atoms.T)
        rivals: dict[str, Any] = {
            "ours": lambda x=x, D=atoms: sparse_encode(x, D, penalty=alpha, tol=args.tol, n_threads=args.threads),
            "SPAMS": lambda x=columns, D=atoms_in_columns: spams.lasso(
                x, D, lambda1=alpha, mode=2, numThreads=args.threads
            ),
        }
        times, results = in_turns(rivals, args.repeats)
        codes = results["ours"]
        theirs = Codes(results["SPAMS"].T.tocsr(), np.empty(0), np.empty(0), np.empty(0))
        wanted = theirs.objective(X, D, alpha).mean()
        figures |= {
            f"{name}: ours, ms": 1e3 * times["ours"],
            f"{name}: SPAMS, ms": 1e3 * times["SPAMS"],
            f"{name}: SPAMS / ours": times["SPAMS"] / times["ours"],
            f"{name}: objective / that of SPAMS − 1": float(codes.objective(X, D, alpha).mean() / wanted - 1),
            f"{name}: largest relative gap": float(codes.gaps.max()),
            f"{name}: signals not solved": int((~codes.converged).sum()),
        }
    figures |= {
        "nonzeros of a code, mean": codes.values.nnz / len(X),
        "atoms put to use and dropped, mean": float(codes.n_iter.mean()),
    }
    if args.slow:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run = lambda: sk_sparse_encode(few, D, algorithm="lasso_cd", alpha=alpha)  # noqa: E731
            times, results = in_turns({"scikit-learn": run}, 3)
        ours = sparse_encode(few, D, penalty=alpha, tol=args.tol)
        theirs = Codes(results["scikit-learn"], np.empty(0), np.empty(0), np.empty(0)).objective(few, D, alpha)
        scaled = times["scikit-learn"] * len(X) / len(few)
        figures |= {
            "scikit-learn, float64, scaled up, ms": 1e3 * scaled,
            "scikit-learn / ours": 1e3 * scaled / figures["float64: ours, ms"],
            "objective / that of scikit-learn − 1": float(ours.objective(few, D, alpha).mean() / theirs.mean() - 1),
        }
    shape = f"{len(X)} patches {args.size}×{args.size}, {args.atoms} atoms, α={alpha}"
    named = {f"{kind}: SPAMS / ours": f"SPAMS, {kind}" for kind in ("float64", "float32")}
    named["scikit-learn / ours"] = "scikit-learn"
    peers = {name: figures[key] for key, name in named.items() if key in figures}
    report(f"ℓ1 codes, {shape}, {args.threads} threads", figures, peers)


if __name__ == "__main__":
    main()
