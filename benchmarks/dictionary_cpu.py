"""Online dictionary learning on natural patches: time to an equal held-out objective, against SPAMS and sklearn.

    LATENTIA_DATA=… python benchmarks/dictionary_cpu.py [--threads 1] [--repeats 3] [--no-sklearn]

Patches (12×12 by default) come from the photographs of ``$LATENTIA_DATA/natural/bsds500_train``, without their
mean, scaled to norm one, flat ones left out; the last twenty photographs give those that are held out. All start
from the same atoms, see the same patches in batches of one size, and minimise ½‖x − zD‖² + α‖z‖₁ under ‖d‖ ≤ 1.
Each point of a curve is a run of its own over a number of patches, timed from the array to the atoms: ours through
``fit`` with everything that it does, SPAMS through ``trainDL`` (its defaults; float64 and float32), scikit-learn
through ``partial_fit`` batch after batch. The objective is the mean over the held-out patches of the exact minimum
(a certified relative gap of 1e-6). Runs take turns and the best of several times counts; ours compiles in a first
run that is not counted, and whose time is shown. Run with nothing else running.
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

BATCH = 512


def patches(n: int, n_test: int, size: int) -> tuple[Any, Any]:
    """(training patches, held-out patches), float32."""
    import numpy as np
    from PIL import Image

    files = sorted((Path(os.environ["LATENTIA_DATA"]) / "natural" / "bsds500_train").rglob("*.jpg"))
    pictures = [np.asarray(Image.open(file).convert("L"), np.float32) / 255 for file in files]
    rng = np.random.default_rng(0)

    def some(chosen: list[Any], n: int) -> Any:
        rows: list[Any] = []
        while len(rows) < n:
            picture = chosen[rng.integers(len(chosen))]
            top, left = (rng.integers(side - size + 1) for side in picture.shape)
            patch = picture[top : top + size, left : left + size].ravel()
            patch = patch - patch.mean()
            norm = np.linalg.norm(patch)
            if norm > 0.1:
                rows.append(patch / norm)
        return np.array(rows, np.float32)

    return some(pictures[:-20], n), some(pictures[-20:], n_test)


def held_out(X: Any, alpha: float) -> Callable[[Any], float]:
    """The mean objective of held-out patches for a dictionary with atoms in rows."""
    import numpy as np

    from latentia.inference.sparse import sparse_encode
    from latentia.ops.penalties import L1

    X = X.astype(np.float64)

    def objective(D: Any) -> float:
        D = np.ascontiguousarray(D, np.float64)
        return float(np.mean(sparse_encode(X, D, penalty=L1(alpha), tol=1e-6).objective(X, D, L1(alpha))))

    return objective


def spams_runner(X: Any, start: Any, alpha: float, threads: int, kind: str) -> Callable[[int], Any]:
    """Number of patches → atoms."""
    import numpy as np
    import spams

    columns, first = (np.asfortranarray(a.T.astype(kind)) for a in (X, start))
    options: Any = {"lambda1": alpha, "K": len(start), "batchsize": BATCH, "numThreads": threads, "verbose": False}

    def run(n: int) -> Any:
        return spams.trainDL(columns, D=first, iter=max(1, round(n / BATCH)), mode=2, **options).T

    return run


def our_runner(X: Any, start: Any, alpha: float, threads: int) -> Callable[[int], Any]:
    """Number of patches → atoms; more than there are means several epochs."""
    from latentia import DictionaryLearning

    def run(n: int) -> Any:
        epochs = max(1, round(n / len(X)))
        learning = DictionaryLearning(
            len(start),
            alpha,
            dictionary_init=start,
            batch_size=BATCH,
            n_epochs=epochs,
            min_gain=0.0,
            n_threads=threads,
            random_state=0,
        )
        return learning.fit(X[:n]).components_

    return run


def sklearn_curve(
    X: Any, start: Any, alpha: float, marks: list[int], score: Any, clock: Any
) -> list[tuple[int, float, float]]:
    """(patches, seconds, objective) along one run."""
    from sklearn.decomposition import MiniBatchDictionaryLearning

    learning = MiniBatchDictionaryLearning(
        len(start), alpha=alpha, batch_size=BATCH, dict_init=start.astype("float64"), random_state=0, n_jobs=1
    )
    rows = X.astype("float64")
    seconds, found, seen = 0.0, [], 0
    for mark in marks:
        begin = clock()
        while seen < mark:
            first = seen % (len(rows) - BATCH + 1)
            learning.partial_fit(rows[first : first + BATCH])
            seen += BATCH
        seconds += clock() - begin
        found.append((seen, seconds, score(learning.components_)))
    return found


def reached(curve: list[tuple[int, float, float]], objective: float) -> float:
    """When a curve reaches an objective, in seconds, along straight lines in log time; nan if it does not."""
    import numpy as np

    best = np.inf
    last: tuple[float, float] | None = None
    for _, seconds, value in curve:
        if value <= objective:
            if last is None or not np.isfinite(best):
                return seconds
            part = (best - objective) / max(best - value, 1e-30)
            return float(np.exp(np.log(last[0]) + part * (np.log(seconds) - np.log(last[0]))))
        best, last = value, (seconds, value)
    return float("nan")


def curves(runners: dict[str, Any], marks: list[int], repeats: int, score: Any, clock: Any) -> dict[str, Any]:
    """name → (patches, best seconds, objective), the runs taking turns."""
    found: dict[str, list[tuple[int, float, float]]] = {name: [] for name in runners}
    for mark in marks:
        times: dict[str, list[float]] = {name: [] for name in runners}
        atoms: dict[str, Any] = {}
        for _ in range(repeats):
            for name, run in runners.items():
                begin = clock()
                atoms[name] = run(mark)
                times[name].append(clock() - begin)
        for name in runners:
            found[name].append((mark, min(times[name]), score(atoms[name])))
            print(
                f"  {name:<16} {mark:>8} patches {found[name][-1][1]:9.3f} s  {found[name][-1][2]:.5f}", flush=True
            )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--signals", type=int, default=100_000)
    parser.add_argument("--longest", type=int, default=400_000, help="most patches that a run sees")
    parser.add_argument("--components", type=int, default=256)
    parser.add_argument("--alpha", type=float, default=0.15)
    parser.add_argument("--size", type=int, default=12)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--clock", choices=["wall", "cpu"], default="wall", help="cpu for a busy machine, one thread"
    )
    parser.add_argument("--sklearn", action=argparse.BooleanOptionalAction, default=True)
    args = parser.parse_args()
    pin_threads(args.threads)
    import numpy as np

    warnings.simplefilter("ignore")
    X, test = patches(args.signals, 4000, args.size)
    start = X[np.random.default_rng(1).choice(len(X), args.components, replace=False)]
    score = held_out(test, args.alpha)
    marks = [m for m in (5120 * 2**i for i in range(12)) if m < args.signals]
    marks += [m for m in (args.signals * 2**i for i in range(6)) if m <= args.longest]
    runners: dict[str, Any] = {"ours": our_runner(X, start, args.alpha, args.threads)}
    for kind in ("float64", "float32"):
        runners[f"spams {kind}"] = spams_runner(X, start, args.alpha, args.threads, kind)
    begin = time.perf_counter()
    runners["ours"](marks[0])
    first = time.perf_counter() - begin
    for mark in marks:
        runners["ours"](mark)  # whatever is compiled for a size
    clock = {"wall": time.perf_counter, "cpu": time.process_time}[args.clock]
    found = curves(runners, marks, args.repeats, score, clock)
    if args.sklearn:
        found["scikit-learn"] = sklearn_curve(X, start, args.alpha, [m for m in marks if m <= 41_000], score, clock)
    figures: dict[str, Any] = {"objective at the start": score(start), "first fit, compiling included, s": first}
    for name, curve in found.items():
        for n, seconds, value in curve:
            figures[f"{name}, {n} patches, s"] = seconds
            figures[f"{name}, {n} patches, objective"] = value
    for name, curve in found.items():
        if name == "ours":
            continue
        ratios = [(n, seconds / reached(found["ours"], value)) for n, seconds, value in curve]
        for n, ratio in ratios:
            figures[f"speed to equal objective, {name} after {n}"] = float(ratio)
        known = [ratio for _, ratio in ratios if np.isfinite(ratio)]
        figures[f"speed to equal objective, {name}, least"] = float(min(known))
        figures[f"speed to equal objective, {name}, median"] = float(np.median(known))
    shape = f"{args.size}x{args.size}, K={args.components}, alpha={args.alpha}"
    peers = {name: figures[f"speed to equal objective, {name}, median"] for name in found if name != "ours"}
    report(f"Online dictionary learning, {shape}, {args.threads} threads", figures, peers)


if __name__ == "__main__":
    main()
