"""Growth with the number of signals: time of sparse coding and memory, streamed from a file on disk.

    LATENTIA_DATA=… python benchmarks/sparse_growth.py [--threads 2] [--most 1000000] [--size 8] [--atoms 128]

Patches are written to a memory map in a temporary folder, 10⁴ different ones repeated with noise, and coded from
there in one call each for 10⁴, 10⁵ and 10⁶ signals. Printed are the time per signal, the size of the codes that the
call returns, and how far resident memory rose meanwhile, codes included. Pages of the file that the system keeps in
its cache are not counted, since it takes them back whenever it likes.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from common import pin_threads, report
from sparse_data import dictionary, patches


class Peak:
    """The most anonymous memory (without pages of files) that this process held meanwhile, in MiB."""

    def __init__(self) -> None:
        self.begin = self.most = self._now()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _now(self) -> float:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))

    def _watch(self) -> None:
        while not self._over.wait(0.02):
            self.most = max(self.most, self._now())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()


def write(path: Path, n: int, size: int) -> None:
    """n signals, float32."""
    import numpy as np

    base = patches(10_000, size, part="test").astype(np.float32)
    rng = np.random.default_rng(0)
    out = np.lib.format.open_memmap(path, "w+", np.float32, (n, base.shape[1]))
    for start in range(0, n, len(base)):
        rows = base[: n - start]
        out[start : start + len(rows)] = rows + rng.normal(scale=0.01, size=rows.shape).astype(np.float32)
    out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--most", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--atoms", type=int, default=128)
    parser.add_argument("--alpha", type=float, default=0.15)
    args = parser.parse_args()
    pin_threads(args.threads)
    import numpy as np

    from latentia.inference.sparse import sparse_encode

    D = dictionary(args.atoms, args.size).astype(np.float32)
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "signals.npy"
        write(path, args.most, args.size)
        sparse_encode(np.load(path, mmap_mode="r")[:1000], D, penalty=args.alpha)
        for n in (args.most // 100, args.most // 10, args.most):
            held = np.load(path, mmap_mode="r")[:n]
            with Peak() as peak:
                begin = time.perf_counter()
                codes = sparse_encode(held, D, penalty=args.alpha, n_threads=args.threads)
                took = time.perf_counter() - begin
            z = codes.values
            result = sum(part.nbytes for part in (z.data, z.indices, z.indptr, codes.gaps, codes.n_iter)) / 2**20
            figures |= {
                f"{n} signals, s": took,
                f"{n} signals, µs each": 1e6 * took / n,
                f"{n} signals, codes returned, MiB": result,
                f"{n} signals, memory at most, MiB": peak.most - peak.begin,
                f"{n} signals, solved": bool(codes.converged.all()),
            }
            del codes, z
    each = [figures[f"{n} signals, µs each"] for n in (args.most // 100, args.most // 10, args.most)]
    figures["time per signal, most over least"] = max(each) / min(each)
    report(f"Growth, {args.size}×{args.size} patches, {args.atoms} atoms, {args.threads} threads", figures)


if __name__ == "__main__":
    main()
