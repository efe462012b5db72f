"""PCD on two CPU cores against the machine's own matrix products and against scikit-learn.

    python benchmarks/rbm_cpu.py [--threads 2] [--hidden 500] [--batch 100]

A PCD-1 step needs five products of batch × visible × hidden: the Gibbs sweep's two, the field of the data, and the
gradient's two (the samples' field is the sweep's own). The efficiency is the time of these products alone over the
time of a step. The products are timed in the same run, twice: in the shapes that the step has, and as one large
square product, the fastest that the machine does. Run with nothing else running: threaded BLAS slows down many
times under load.
"""

from __future__ import annotations

import argparse

from common import best_of, pin_threads, report


def gemm_rates(visible: int, hidden: int, batch: int) -> tuple[float, float]:
    """FLOP/s of the step's own products and of a large square one, by the better of two BLAS."""
    import jax
    import numpy as np

    rng = np.random.default_rng(0)
    pairs = [((batch, visible), (visible, hidden)), ((batch, hidden), (hidden, visible))]
    pairs += [((batch, visible), (visible, hidden)), *2 * [((visible, batch), (batch, hidden))]]
    arrays = [tuple(rng.normal(size=shape).astype(np.float32) for shape in pair) for pair in pairs]
    flops = sum(2 * a.shape[0] * a.shape[1] * b.shape[1] for a, b in arrays)
    product = jax.jit(lambda a, b: a @ b)
    on_device = [tuple(map(jax.numpy.asarray, pair)) for pair in arrays]

    def with_numpy() -> None:
        for _ in range(20):
            for a, b in arrays:
                a @ b

    def with_jax() -> None:
        for _ in range(20):
            for a, b in on_device:
                product(a, b).block_until_ready()

    own = max(20 * flops / best_of(with_numpy), 20 * flops / best_of(with_jax))
    big = rng.normal(size=(2048, 2048)).astype(np.float32)
    big_device = jax.numpy.asarray(big)
    square = (
        best_of(lambda: big @ big, 5),
        best_of(lambda: product(big_device, big_device).block_until_ready(), 5),
    )
    return own, 2 * 2048**3 / min(square)


def ours(visible: int, hidden: int, batch: int, k: int) -> tuple[float, float]:
    from training import Training

    run = Training(visible, hidden, batch, k, None, chunk=192)
    return best_of(run.advance, 7) / run.chunk, run.compile_seconds


def scikit_learn(visible: int, hidden: int, batch: int) -> float:
    import numpy as np
    from sklearn.neural_network import BernoulliRBM

    X = (np.random.default_rng(0).random((10_000, visible)) < 0.2).astype(np.float32)
    model = BernoulliRBM(n_components=hidden, batch_size=batch, n_iter=1, random_state=0)
    return best_of(lambda: model.fit(X), 5) / (len(X) // batch)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--visible", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--batch", type=int, default=100)
    args = parser.parse_args()
    pin_threads(args.threads)
    sizes = (args.visible, args.hidden, args.batch)
    own, square = gemm_rates(*sizes)
    step, compiling = ours(*sizes, 1)
    step_5, _ = ours(*sizes, 5)
    peer = scikit_learn(*sizes)
    needed = 5 * 2 * args.visible * args.hidden * args.batch
    needed_5 = (5 + 8) * 2 * args.visible * args.hidden * args.batch
    figures = {
        "ours, ms a step": 1e3 * step,
        "compiling, s": compiling,
        "GEMM rate, step's shapes, GFLOP/s": own / 1e9,
        "GEMM rate, 2048x2048, GFLOP/s": square / 1e9,
        "part of the GEMM rate, step's shapes": needed / step / own,
        "part of the GEMM rate, 2048x2048": needed / step / square,
        "scikit-learn BernoulliRBM, ms a step": 1e3 * peer,
        "ratio to scikit-learn": peer / step,
        "PCD-5: ours, ms a step": 1e3 * step_5,
        "PCD-5: part of the GEMM rate, step's shapes": needed_5 / step_5 / own,
        "PCD-5: ratio to scikit-learn's k sweeps (5 x PCD-1)": 5 * peer / step_5,
    }
    title = f"PCD-1, {args.visible}x{args.hidden}, batch {args.batch}, {args.threads} threads"
    report(title, figures, {"scikit-learn BernoulliRBM": peer / step})


if __name__ == "__main__":
    main()
