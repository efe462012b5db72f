"""One learning step of a deep Boltzmann machine against its own matrix products, on CPU.

    python benchmarks/dbm_cpu.py [--threads 2] [--hidden 500 1000] [--batch 100] [--rounds 10] [--sweeps 5]

A step runs ``rounds`` rounds of mean field on the batch, ``sweeps`` Gibbs sweeps of as many persistent chains, and
a centred gradient step, all inside one compiled scan. Its products, with B rows: mean field takes the field of the
data once (B×V×H¹) and both directions between the hidden layers in every round, one more in its guess (B×H¹×H²);
a sweep takes both directions of both pairs; the gradient one outer product per pair for data and for samples. They
are timed alone, in their own shapes, in the same run. Run with nothing else running.
"""

from __future__ import annotations

import argparse
from typing import Any

from common import best_of, pin_threads, report


def products(visible: int, hidden: tuple[int, int], batch: int, rounds: int, sweeps: int) -> float:
    """Seconds that the products of one step take alone."""
    import jax
    import numpy as np

    first, second = hidden
    rng = np.random.default_rng(0)
    up, down = ((batch, visible), (visible, first)), ((batch, first), (first, visible))
    above, below = ((batch, first), (first, second)), ((batch, second), (second, first))
    outer = [((visible, batch), (batch, first)), ((first, batch), (batch, second))]
    pairs = [up, above] + rounds * [below, above] + sweeps * [down, above, up, below] + 2 * outer
    arrays = {shape: jax.numpy.asarray(rng.normal(size=shape), "float32") for pair in pairs for shape in pair}
    product = jax.jit(lambda a, b: a @ b)

    def run() -> None:
        for a, b in pairs:
            product(arrays[a], arrays[b]).block_until_ready()

    return best_of(run, 15)


def step(visible: int, hidden: tuple[int, int], batch: int, rounds: int, sweeps: int) -> tuple[float, float]:
    """(seconds a step, seconds of compiling) of the training loop."""
    from training import Training

    from latentia.energies.layered import LayeredModel
    from latentia.learning import objective
    from latentia.ops import random
    from latentia.units import make

    layers = [make("bernoulli", n) for n in hidden]
    machine = LayeredModel.make([make("bernoulli", visible)], layers, [(0, 1), (1, 2)], key=random.key(0))
    surrogate: Any = objective("pcd", n_sampler_steps=sweeps, rounds=rounds)
    run = Training.of(machine, surrogate, visible, batch, chunk=64)
    return best_of(run.advance, 5) / run.chunk, run.compile_seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--visible", type=int, default=784)
    parser.add_argument("--hidden", type=int, nargs=2, default=(500, 1000))
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sweeps", type=int, default=5)
    args = parser.parse_args()
    pin_threads(args.threads)
    sizes = (args.visible, tuple(args.hidden), args.batch, args.rounds, args.sweeps)
    alone = products(*sizes)
    ours, compiling = step(*sizes)
    figures = {
        "ours, ms a step": 1e3 * ours,
        "its products alone, ms": 1e3 * alone,
        "ratio": ours / alone,
        "compiling, s": compiling,
    }
    shape = "-".join(map(str, (args.visible, *args.hidden)))
    title = f"DBM {shape}, batch {args.batch}, {args.rounds} rounds, {args.sweeps} sweeps"
    report(title, figures, {"its products one by one": alone / ours})


if __name__ == "__main__":
    main()
