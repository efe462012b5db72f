"""What score matching costs: a step against a pass through the energy, on CPU.

    python benchmarks/score_matching_cpu.py [--threads 2] [--visible 784] [--hidden 64 64] [--batch 100 500]

Three times, of compiled functions in one process, taken in turns so that whatever else runs disturbs them alike,
the best of many: (a) the energy F of a batch; (b) a step of sliced score matching, its loss and the gradient with
respect to all parameters, fresh directions included; (c) the same with the exact trace.

(b) has two products of the size of the first layer's, Vx and its transpose on the way back, of which (a) is one:
all else happens behind the first layer, and the directions' own products are a fast transform of V. (An energy that
does not say what it projects on takes seven: Vx, Vv and Vᵀδ on the way to ∇F and vᵀ∇²Fv, V∇F on the way back, and
three outer products, with x, v and ∇F.) With (c) there is no v, but the Gram matrix VVᵀ and small products for each
of the 64 axes behind the first layer. The memory shown is what the compiled step allocates besides its arguments
and results; a matrix of D×D numbers for every example is shown beside it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import pin_threads, report


def compiled(function: Any, *args: Any) -> tuple[Any, float]:
    """(compiled function, seconds of compiling)."""
    import jax

    begin = time.perf_counter()
    done = jax.jit(function).lower(*args).compile()
    return done, time.perf_counter() - begin


def in_turns(functions: dict[str, tuple[Any, tuple]], rounds: int) -> dict[str, float]:
    """The shortest time of each function, in seconds; short ones run several times in a row."""
    import jax

    best = dict.fromkeys(functions, float("inf"))
    for run in range(rounds + 1):
        for name, (function, args) in functions.items():
            repeats = 1 if best[name] > 0.02 else 5
            begin = time.perf_counter()
            for _ in range(repeats):
                out = function(*args)
            jax.block_until_ready(out)
            if run:  # the first round is cold
                best[name] = min(best[name], (time.perf_counter() - begin) / repeats)
    return best


def measure(visible: int, hidden: tuple[int, ...], batch: int, rounds: int) -> dict[str, Any]:
    """All figures of one batch size."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    from latentia.learning import objective
    from latentia.models.deep_energy import DeepEnergy
    from latentia.ops import random

    model = DeepEnergy.make(visible, hidden, key=random.key(0))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(batch, visible)), jnp.float32)

    def step(surrogate: Any) -> Any:
        def run(model: Any, x: Any, key: Any) -> Any:
            state = surrogate.prepare(model, x, None, key=key)
            return jax.value_and_grad(lambda m: surrogate.loss(m, x, None, state)[0])(model)

        return run

    key = random.key(1)
    forward, _ = compiled(lambda model, x: jax.vmap(model.free_energy)(x), model, x)
    sliced, sliced_seconds = compiled(step(objective("sliced_score_matching")), model, x, key)
    exact, exact_seconds = compiled(step(objective("score_matching")), model, x, key)
    product, _ = compiled(lambda model, x: x @ model.layers[0].weights.T, model, x)
    functions = {
        "a": (forward, (model, x)),
        "product": (product, (model, x)),
        "b": (sliced, (model, x, key)),
        "c": (exact, (model, x, key)),
    }
    best = in_turns(functions, rounds)
    return {
        "(a) energy, ms": 1e3 * best["a"],
        "    its first product alone, ms": 1e3 * best["product"],
        "(b) sliced step, ms": 1e3 * best["b"],
        "(c) exact step, ms": 1e3 * best["c"],
        "(b) / (a)": best["b"] / best["a"],
        "(c) / (b)": best["c"] / best["b"],
        "compiling (b), s": sliced_seconds,
        "compiling (c), s": exact_seconds,
        "memory of (b), MB": sliced.memory_analysis().temp_size_in_bytes / 1e6,
        "memory of (c), MB": exact.memory_analysis().temp_size_in_bytes / 1e6,
        "a D×D matrix per example, MB": batch * visible**2 * 4 / 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--visible", type=int, default=784)
    parser.add_argument("--hidden", type=int, nargs="+", default=(64, 64))
    parser.add_argument("--batch", type=int, nargs="+", default=(100, 500))
    parser.add_argument("--rounds", type=int, default=60)
    args = parser.parse_args()
    pin_threads(args.threads)
    shape = "-".join(map(str, (args.visible, *args.hidden)))
    for batch in args.batch:
        figures = measure(args.visible, tuple(args.hidden), batch, args.rounds)
        report(f"score matching, {shape}, batch {batch}, {args.threads} threads", figures)


if __name__ == "__main__":
    main()
