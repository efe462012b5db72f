"""The bars test of binary sparse coding: how many of ten random starts find all ten bars.

    python benchmarks/binary_bars.py [--starts 10] [--first 1000] [--inference auto] [--threads 2]

1,000 images of 5×5 pixels, each the sum of horizontal and vertical bars that are there with probability 1/5, in
normal noise of variance 1. A bar has the value 5, so that its signal-to-noise ratio is that of bars of value 10 in
noise with a standard deviation of 2. All settings are the defaults; every start has data of its own. A bar is found
if an atom of its own is within a quarter of its value (root mean square over the pixels).
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import pin_threads, report

SIDE, VALUE, N_ROWS, RATE = 5, 5.0, 1000, 0.2


def bars() -> Any:
    """All bars, one a row."""
    import numpy as np

    lines = np.eye(SIDE)
    rows, columns = np.repeat(lines[:, :, None], SIDE, axis=2), np.repeat(lines[:, None, :], SIDE, axis=1)
    return VALUE * np.concatenate([rows, columns]).reshape(2 * SIDE, SIDE**2)


def images(seed: int) -> Any:
    """Sums of bars in noise."""
    import numpy as np

    rng = np.random.default_rng(seed)
    on = rng.random((N_ROWS, 2 * SIDE)) < RATE
    return (on @ bars() + rng.normal(size=(N_ROWS, SIDE**2))).astype(np.float32)


def n_found(atoms: Any) -> int:
    """Bars with an atom of their own."""
    import numpy as np
    from scipy.optimize import linear_sum_assignment

    distance = np.sqrt(((atoms[:, None] - bars()[None]) ** 2).mean(-1))
    return int((distance[linear_sum_assignment(distance)] < VALUE / 4).sum())


def main() -> None:
    """Print what every start found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--starts", type=int, default=10)
    parser.add_argument("--first", type=int, default=1000, help="seed of the first start and its data")
    parser.add_argument("--inference", default="auto")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    pin_threads(args.threads)
    from latentia import BinarySparseCoding

    found, began = [], time.perf_counter()
    for seed in range(args.first, args.first + args.starts):
        coder = BinarySparseCoding(2 * SIDE, inference=args.inference, random_state=seed).fit(images(seed))
        found.append(n_found(coder.components_))
        print(f"start {seed}: {found[-1]} of 10 bars, noise {float(coder.noise_variance_[0]):.3f}", flush=True)
    seconds = time.perf_counter() - began
    complete = sum(n == 2 * SIDE for n in found)
    figures = {"starts": len(found), "all bars found": complete, "seconds a start": seconds / len(found)}
    report("Bars test of binary sparse coding", figures)


if __name__ == "__main__":
    main()
