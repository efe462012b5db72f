"""Gibbs sampling of general Boltzmann machines: site updates per second on a lattice and on a dense machine.

    python benchmarks/boltzmann_cpu.py [--threads 2] [--side 256] [--units 1000] [--chains 100]

The lattice is a periodic Ising model of 256 × 256 spins at the critical coupling, swept colour by colour; the
machine has 1,000 spins, any two of them coupled, and is swept site by site. Peers do the same work in the same run,
in turns: ``thrml`` and ``hamon`` with two blocks on the lattice and a block for every unit on a dense machine, and
``jaxbm``, which knows dense machines only and picks one unit at random at a time. thrml and hamon write out every
block of a dense machine when they compile, which takes too long at 1,000 units: they are compared at
``--block-units``.

Each figure is the best of several turns after one that is not counted; compiling is not part of it. On a machine
with a GPU everything runs there (``--threads`` is then of no account). ``--peers ""`` leaves the peers out.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from typing import Any

from common import pin_threads, report

Runner = Callable[[], Any]


def ours(couplings: Any, chains: int, n_steps: int) -> Runner:
    """Sweeps of many chains by :class:`latentia.samplers.Gibbs`."""
    import jax
    import numpy as np

    from latentia import BoltzmannMachine, samplers
    from latentia.ops import random

    model = BoltzmannMachine.from_couplings(couplings, units="spin").model_
    gibbs, key = samplers.Gibbs(), random.key(0)
    x = np.random.default_rng(0).choice([-1.0, 1.0], (chains, couplings.shape[0])).astype(np.float32)
    states = samplers.start(gibbs, model, jax.numpy.asarray(x), key=key)
    run = jax.jit(lambda states, key: samplers.run(gibbs, model, states, n_steps, key=key)[1])
    return lambda: jax.block_until_ready(run(states, key))


def blocked(package: str, couplings: Any, blocks: list[Any], chains: int, n_steps: int) -> Runner:
    """The same by thrml, or by hamon, which is derived from it and has the same names."""
    import importlib

    import jax
    import jax.numpy as jnp
    from scipy.sparse import coo_array, triu

    lib, models = importlib.import_module(package), importlib.import_module(f"{package}.models")
    upper = triu(coo_array(couplings), 1).tocoo()
    nodes = [lib.SpinNode() for _ in range(couplings.shape[0])]
    edges = [(nodes[i], nodes[j]) for i, j in zip(upper.row, upper.col, strict=True)]
    weights = jnp.asarray(upper.data, jnp.float32)
    ising = models.IsingEBM(nodes, edges, jnp.zeros(len(nodes)), weights, jnp.array(1.0))
    free = [lib.Block([nodes[i] for i in block]) for block in blocks]
    program = models.IsingSamplingProgram(ising, free, clamped_blocks=[])
    start = models.hinton_init(jax.random.key(0), ising, free, (chains,))
    schedule = lib.SamplingSchedule(n_warmup=n_steps, n_samples=1, steps_per_sample=0)
    options = {"device": None} if package == "hamon" else {}

    def one(key: Any, start: Any) -> Any:
        return lib.sample_states(key, program, schedule, start, [], free, **options)

    keys = jax.random.split(jax.random.key(1), chains)
    run = jax.jit(lambda start: jax.vmap(one)(keys, start))
    return lambda: jax.block_until_ready(run(start))


def one_by_one(couplings: Any, chains: int, n_steps: int) -> Runner:
    """As many updates of single units by jaxbm."""
    import jax
    import jax.numpy as jnp
    import numpy as np
    from jaxbm import BM_chain

    n = couplings.shape[0]
    weights = jnp.asarray(couplings, jnp.float32)
    start = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (chains, n)).astype(np.float32))
    keys = jax.random.split(jax.random.key(1), chains)
    chain = lambda key, x: BM_chain(key, x, weights, None, None, n * n_steps, in_jit=True)  # noqa: E731
    run = jax.jit(lambda start: jax.vmap(chain)(keys, start))
    return lambda: jax.block_until_ready(run(start))


def in_turns(makers: dict[str, Callable[[], Runner]], repeats: int) -> dict[str, float]:
    """The shortest seconds of each, in turns; peers that cannot be made or run are named and left out."""
    runners, best = {}, {}
    for name, make in makers.items():
        try:
            begin = time.perf_counter()
            runners[name] = make()
            runners[name]()
            print(f"  {name}: made and compiled in {time.perf_counter() - begin:.1f} s", flush=True)
        except Exception as error:
            if name == "ours":
                raise
            print(f"  {name} cannot be run: {type(error).__name__}: {str(error).splitlines()[0]}", flush=True)
    for _ in range(repeats):
        for name, run in runners.items():
            begin = time.perf_counter()
            run()
            best[name] = min(best.get(name, math.inf), time.perf_counter() - begin)
    return best


def compare(title: str, n: int, chains: int, makers: dict[str, tuple[int, Any]], repeats: int) -> None:
    """Run, print and keep one comparison of (sweeps, maker), by name."""
    found = in_turns({name: make for name, (_, make) in makers.items()}, repeats)
    seconds = {name: best / makers[name][0] for name, best in found.items()}  # a sweep of all chains
    rate = lambda name: n * chains / seconds[name] / 1e6  # noqa: E731
    figures: dict[str, Any] = {f"{name}, million site updates a second": rate(name) for name in seconds}
    figures["ours, ms a sweep of all chains"] = 1e3 * seconds["ours"]
    peers = {name: seconds[name] / seconds["ours"] for name in seconds if name != "ours"}
    figures |= {f"ratio to {name}": ratio for name, ratio in peers.items()}
    report(title, figures, peers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--lattice-chains", type=int, nargs="+", default=[1, 16])
    parser.add_argument("--units", type=int, default=1000)
    parser.add_argument("--block-units", type=int, default=100)
    parser.add_argument("--chains", type=int, default=100)
    parser.add_argument("--sweeps", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--peers", default="thrml,hamon,jaxbm")
    args = parser.parse_args()
    pin_threads(args.threads)
    import jax
    import numpy as np
    from scipy.sparse import coo_array

    from latentia.ops.lattice import CRITICAL, grid_edges

    peers = [name for name in args.peers.split(",") if name]
    gpu = jax.default_backend() != "cpu"
    where = jax.devices()[0].device_kind if gpu else f"{args.threads} threads"
    side = args.side
    i, j = grid_edges((side, side), periodic=True).T
    both = (np.concatenate([i, j]), np.concatenate([j, i]))
    lattice = coo_array((np.full(2 * len(i), CRITICAL), both), shape=(side**2, side**2)).tocsr()
    row, column = np.divmod(np.arange(side**2), side)
    colours = [np.flatnonzero((row + column) % 2 == shade) for shade in (0, 1)]
    for chains in args.lattice_chains:
        n_steps = max(4, args.sweeps if gpu else args.sweeps // chains)
        makers: dict[str, Any] = {"ours": (n_steps, lambda c=chains, s=n_steps: ours(lattice, c, s))}
        for name in peers:
            if name != "jaxbm":  # a dense matrix of 65,536 squared has 17 GB
                makers[name] = (n_steps, lambda p=name, c=chains, s=n_steps: blocked(p, lattice, colours, c, s))
        title = f"Gibbs sampling, Ising lattice {side}x{side}, {chains} chain{'s'[: chains > 1]}, {where}"
        compare(title, side**2, chains, makers, args.repeats)
    for n, names in ((args.units, ["jaxbm"]), (args.block_units, ["thrml", "hamon"])):
        upper = np.triu(np.random.default_rng(0).normal(size=(n, n)) / np.sqrt(n), 1)
        dense = upper + upper.T
        makers = {"ours": (args.sweeps, lambda d=dense: ours(d, args.chains, args.sweeps))}
        if "jaxbm" in names and "jaxbm" in peers:
            makers["jaxbm"] = (1, lambda d=dense: one_by_one(d, args.chains, 1))
        for name in sorted(set(names) & set(peers) - {"jaxbm"}):
            sites = [[i] for i in range(n)]
            makers[name] = (
                args.sweeps,
                lambda p=name, d=dense, s=sites: blocked(p, d, s, args.chains, args.sweeps),
            )
        title = f"Gibbs sampling, {n} units, all coupled, {args.chains} chains, {where}"
        compare(title, n, args.chains, makers, args.repeats)


if __name__ == "__main__":
    main()
