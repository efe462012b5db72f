"""Resident memory while an RBM trains on a 4 GB memory-mapped array.

    python benchmarks/memory.py [--gigabytes 4] [--folder DIR]

Writes the array to a temporary file, trains one epoch's beginning on it, and prints the largest resident set size
(of the whole process: Python, JAX and all).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import threading
import time
from pathlib import Path

from common import report


def resident() -> int:
    """Bytes of this process that are in memory now (file-backed pages included)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


class Watch(threading.Thread):
    """Samples the resident size until told to stop."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.most, self.stopped = 0, False

    def run(self) -> None:
        """Sample every 20 ms."""
        while not self.stopped:
            self.most = max(self.most, resident())
            time.sleep(0.02)


def write(path: Path, n_bytes: int, columns: int) -> None:
    import numpy as np

    rows = n_bytes // (4 * columns)
    out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, columns))
    rng = np.random.default_rng(0)
    for start in range(0, rows, 20_000):
        stop = min(start + 20_000, rows)
        out[start:stop] = rng.integers(0, 2, (stop - start, columns))
    out.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", default=None)
    parser.add_argument("--columns", type=int, default=784)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        path = Path(folder) / "X.npy"
        pid = os.fork()  # the writer's memory must not count
        if pid == 0:
            write(path, int(args.gigabytes * 1e9), args.columns)
            os._exit(0)
        os.waitpid(pid, 0)
        import numpy as np

        from latentia import RBM

        X = np.load(path, mmap_mode="r")
        watch = Watch()
        watch.start()
        begin = time.perf_counter()
        rbm = RBM(n_components=100, batch_size=1000, n_epochs=1, learning_rate=0.01, random_state=0).fit(X)
        watch.stopped = True
        figures = {
            "array, GB": X.nbytes / 1e9,
            "largest resident size, GB": watch.most / 1e9,
            "seconds": time.perf_counter() - begin,
            "steps": rbm.n_steps_,
        }
    report("training on a memory-mapped array", figures)


if __name__ == "__main__":
    main()
