"""ℓ1 codes with a certified gap on a GPU: ours, a hundred steps of FISTA in eager PyTorch, and the CPU solver.

    LATENTIA_DATA=… python benchmarks/sparse_gpu.py [--signals 65536] [--size 16] [--atoms 1024] [--alpha 0.15]
    python benchmarks/sparse_gpu.py --prepare FILE.npz       # photographs and dictionary, to take along
    python benchmarks/sparse_gpu.py --data FILE.npz
    python benchmarks/sparse_gpu.py --signals 512 --size 8 --atoms 128 --repeats 1      # a try on a CPU

Signals are patches without their mean, of unit norm; the dictionary is learned from other patches. Ours stops
every signal at a relative duality gap of ``--tol``, by working sets; its certificate is computed in float32 with
full products, and checked here in float64 on a sample. FISTA takes a fixed number of steps 1/L, whatever gap that
leaves: it is printed. Both begin and end with arrays on the device. Times are the best of several after a first
run, which is shown apart for ours since it compiles. PyTorch runs with its own default (no TF32), and once more
with TF32. Every part that cannot run here says why and is left out. A table of rounds shows where our time goes.
"""

from __future__ import annotations

import argparse
import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # PyTorch needs memory too

from common import best_of, report
from sparse_patches import dictionary, patches, photographs, stand_in_for_numba


def prepared(args: argparse.Namespace) -> tuple[list[Any], Any, str]:
    """(images, dictionary or None, where they are from)."""
    import numpy as np

    if args.data is None:
        images, source = photographs()
        return images, None, source
    with np.load(args.data) as file:
        images = [image.astype(np.float32) / 255 for image in file["images"]]
        return images, file["D"], str(file["source"])


def gap_of(X: Any, D: Any, Z: Any, alpha: float) -> Any:
    """gap/½‖x‖² in float64, as the difference of the two objectives at a scaled residual."""
    import numpy as np

    X, D, Z = (np.asarray(a, np.float64) for a in (X, D, Z))
    r = X - Z @ D
    c = r @ D.T
    primal = 0.5 * (r**2).sum(1) + alpha * np.abs(Z).sum(1)
    squares = (r**2).sum(1)
    s = np.clip((X * r).sum(1) / squares, 0, alpha / np.abs(c).max(1))
    dual = s * (X * r).sum(1) - 0.5 * s**2 * squares
    return (primal - dual) / (0.5 * (X**2).sum(1))


def ours(X: Any, D: Any, args: argparse.Namespace, figures: dict[str, Any]) -> float:
    import jax
    import numpy as np

    from latentia.inference.sparse import working
    from latentia.ops.penalties import L1

    rule, x = L1(args.alpha), jax.device_put(X)

    def run() -> Any:
        codes = working.solve(x, D, penalty=rule, tol=args.tol, on_device=True)
        jax.block_until_ready(codes.values)
        return codes

    begin = time.perf_counter()
    codes = run()
    figures["ours, first run (compiles), s"] = time.perf_counter() - begin
    seconds = best_of(run, args.repeats)
    figures["ours, ms"] = 1e3 * seconds
    figures["ours, worst gap"] = float(codes.gaps.max())
    figures["ours, all certified"] = bool(codes.converged.all())
    sample = np.random.default_rng(0).permutation(len(X))[:2000]
    z = np.asarray(codes.values)[sample]
    figures["ours, worst gap of a sample in float64"] = float(gap_of(X[sample], D, z, args.alpha).max())
    figures["ours, atoms a code"] = float((z != 0).sum(1).mean())
    figures["ours, rounds, mean and most"] = f"{codes.n_iter.mean():.2f}, {codes.n_iter.max()}"
    host = best_of(lambda: working.solve(X, D, penalty=rule, tol=args.tol), max(1, args.repeats // 2))
    figures["ours, from NumPy to CSR in the host's memory, ms"] = 1e3 * host
    rounds_of(working, run)
    return seconds


def rounds_of(working: Any, run: Callable[[], Any]) -> None:
    """Print what every round of one run took; the clock waits for the device, so their sum is a little longer."""
    import jax
    import numpy as np

    original, rows = working._rounds, []

    def clocked(problem: Any, gram: Any, at: Any, live: Any, room: int, enter: int) -> Any:
        jax.block_until_ready(at)
        begin = time.perf_counter()
        out = jax.block_until_ready(original(problem, gram, at, live, room, enter))
        ms = 1e3 * (time.perf_counter() - begin)
        # Counted on the host and off the clock: on the device the sum would be compiled anew for every size.
        rows.append((live.shape[0], int(np.asarray(live).sum()), room, ms))
        return out

    working._rounds = clocked
    try:
        begin = time.perf_counter()
        run()
        total = 1e3 * (time.perf_counter() - begin)
    finally:
        working._rounds = original
    print("\nround   batch   live    atoms   ms")
    for k, (size, live, room, ms) in enumerate(rows):
        print(f"{k:5d} {size:7d} {live:7d} {room:6d} {ms:8.2f}")
    print(f"rounds {sum(row[3] for row in rows):.1f} ms of {total:.1f} ms")


def eager_torch(X: Any, D: Any, args: argparse.Namespace, figures: dict[str, Any]) -> float | None:
    import numpy as np

    try:
        import torch
    except ImportError:
        figures["eager PyTorch"] = "not measured (PyTorch is not installed)"
        return None
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    x, atoms = torch.from_numpy(X).to(device), torch.from_numpy(D).to(device)
    L = float(np.linalg.eigvalsh(D.astype(np.float64).T @ D.astype(np.float64))[-1])

    @torch.no_grad()
    def fista() -> Any:
        z = torch.zeros(len(X), len(D), device=device)
        y, t = z, 1.0
        for _ in range(args.steps):
            u = y + (x - y @ atoms) @ atoms.T / L
            new = torch.nn.functional.softshrink(u, args.alpha / L)
            after = (1 + (1 + 4 * t * t) ** 0.5) / 2
            y = new + (t - 1) / after * (new - z)
            z, t = new, after
        if cuda:
            torch.cuda.synchronize()
        return z

    seconds = best_of(fista, args.repeats)
    sample = np.random.default_rng(0).permutation(len(X))[:2000]
    gaps = gap_of(X[sample], D, fista()[torch.from_numpy(sample).to(device)].cpu().numpy(), args.alpha)
    figures[f"eager PyTorch, {args.steps} steps, ms"] = 1e3 * seconds
    figures["eager PyTorch, gap it leaves, median and worst"] = f"{np.median(gaps):.2g}, {gaps.max():.2g}"
    if cuda:
        torch.backends.cuda.matmul.allow_tf32 = True
        figures["eager PyTorch with TF32, ms"] = 1e3 * best_of(fista, args.repeats)
        torch.backends.cuda.matmul.allow_tf32 = False
        torch.cuda.empty_cache()
    return seconds


def cpu_solver(X: Any, D: Any, args: argparse.Namespace, figures: dict[str, Any], numba: bool) -> float | None:
    if not numba:
        figures["CPU solver"] = "not measured (Numba is not installed)"
        return None
    from latentia.inference.sparse import sparse_encode
    from latentia.ops.penalties import L1

    seconds = best_of(lambda: sparse_encode(X, D, penalty=L1(args.alpha), method="cd", tol=args.tol), 2)
    figures[f"CPU solver, {os.cpu_count()} cores, ms"] = 1e3 * seconds
    return seconds


def attempt(what: str, function: Callable[[], Any], figures: dict[str, Any]) -> Any:
    """The result, or None with the reason among the figures: one part's failure must not lose the others."""
    try:
        return function()
    except Exception as error:
        traceback.print_exc()
        figures[what] = f"failed ({type(error).__name__}: {str(error)[:200]})"
        return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=65_536)
    parser.add_argument("--size", type=int, default=16)
    parser.add_argument("--atoms", type=int, default=1024)
    parser.add_argument("--alpha", type=float, default=0.15)
    parser.add_argument("--tol", type=float, default=1e-4)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--rounds", type=int, default=60, help="rounds of dictionary learning")
    parser.add_argument("--data", type=Path, default=None, help="a file that --prepare wrote")
    parser.add_argument("--prepare", type=Path, default=None, help="write photographs and dictionary, then stop")
    args = parser.parse_args()
    numba = stand_in_for_numba()
    import jax
    import numpy as np

    images, D, source = prepared(args)
    if D is None or D.shape != (args.atoms, args.size**2):
        D = dictionary(patches(images, args.size, 50_000, 1), args.atoms, args.alpha, rounds=args.rounds)
    if args.prepare:
        height, width = (min(shape) for shape in zip(*(image.shape for image in images), strict=True))
        grey = np.stack([np.clip(255 * image[:height, :width], 0, 255) for image in images[:40]]).astype(np.uint8)
        np.savez_compressed(args.prepare, images=grey, D=D, source=source)
        print(f"wrote {args.prepare} ({args.prepare.stat().st_size / 2**20:.1f} MiB)")
        return
    X, D = patches(images, args.size, args.signals, 2), np.ascontiguousarray(D, np.float32)
    figures: dict[str, Any] = {"patches": source, "device": str(jax.devices()[0])}
    figures["largest eigenvalue of the Gram matrix"] = float(np.linalg.eigvalsh(D.T @ D)[-1])
    mine = attempt("ours", lambda: ours(X, D, args, figures), figures)
    torchs = attempt("eager PyTorch", lambda: eager_torch(X, D, args, figures), figures)
    host = attempt("CPU solver", lambda: cpu_solver(X, D, args, figures, numba), figures)
    if mine and torchs:
        figures["ratio to eager PyTorch"] = torchs / mine
    if mine and host:
        figures["ratio to the CPU solver"] = host / mine
    shape = f"{args.signals} signals, d={args.size**2}, K={args.atoms}"
    named = {"ratio to eager PyTorch": "eager PyTorch", "ratio to the CPU solver": "the CPU solver"}
    peers = {name: figures[key] for key, name in named.items() if key in figures}
    title = f"Certified ℓ1 codes, {shape}, α={args.alpha:g}, gap {args.tol:g}, {jax.default_backend()}"
    report(title, figures, peers)


if __name__ == "__main__":
    main()
