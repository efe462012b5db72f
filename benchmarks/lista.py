"""How many steps of FISTA an encoder is worth: LISTA and PSD on natural patches.

    LATENTIA_DATA=… python benchmarks/lista.py [--signals 300000] [--epochs 8] [--layers 1 3] [--threads 2] [--psd]

Signals are 12×12 patches without their mean, of unit norm; the dictionary of 256 atoms is learned from other
patches, and the exact codes (relative gap 1e-6) are the teacher's. The error of an encoder is mean ‖z − z*‖² over
patches that nobody has seen. It reaches the error of k steps of FISTA (step 1/L from zero, no restart) if its own
is no larger than theirs; the largest such k is printed, beside the same for the mean objective above its minimum,
which LISTA does not train for. Also printed: the time per signal of an encoder, and of as many steps of FISTA,
compiled alike.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from common import best_of, pin_threads, report
from sparse_patches import dictionary, patches, photographs


def fista_path(X: Any, D: Any, alpha: float, n_steps: int) -> list[Any]:
    """The codes after 0, 1, …, n_steps steps."""
    import numpy as np

    L = float(np.linalg.eigvalsh(D.T @ D)[-1])
    z = y = np.zeros((len(X), len(D)), X.dtype)
    t, path = 1.0, [z]
    for _ in range(n_steps):
        u = y + (X - y @ D) @ D.T / L
        new = np.sign(u) * np.maximum(np.abs(u) - alpha / L, 0)
        after = (1 + np.sqrt(1 + 4 * t * t)) / 2
        y, z, t = new + (t - 1) / after * (new - z), new, after
        path.append(z)
    return path


def worth(value: float, path: list[float]) -> int:
    """The most steps whose error is still not below ``value``."""
    return max(k for k, error in enumerate(path) if error >= value)


def compiled_fista(D: Any, alpha: float, n_steps: int) -> Any:
    import jax
    import jax.numpy as jnp
    import numpy as np

    L, atoms = float(np.linalg.eigvalsh(D.T @ D)[-1]), jnp.asarray(D)

    @jax.jit
    def run(x: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            z, y, t = carry
            u = y + (x - y @ atoms) @ atoms.T / L
            new = u - jnp.clip(u, -alpha / L, alpha / L)
            after = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
            return new, new + (t - 1) / after * (new - z), after

        zero = jnp.zeros((x.shape[0], len(D)), x.dtype)
        return jax.lax.fori_loop(0, n_steps, step, (zero, zero, jnp.ones((), x.dtype)))[0]

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--signals", type=int, default=300_000)
    parser.add_argument("--atoms", type=int, default=256)
    parser.add_argument("--size", type=int, default=12)
    parser.add_argument("--alpha", type=float, default=0.15)
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 3])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--rate", type=float, default=4e-3)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--psd", action="store_true", help="also PSD, which has no teacher")
    args = parser.parse_args()
    pin_threads(args.threads)
    import jax
    import jax.numpy as jnp
    import numpy as np

    from latentia.inference.sparse import sparse_encode
    from latentia.learning.encoders import encode_with, learn_lista, learn_psd
    from latentia.ops.penalties import L1

    images, source = photographs()
    X, held = patches(images, args.size, args.signals, 1), patches(images, args.size, 5000, 2)
    D = dictionary(patches(images, args.size, 50_000, 3), args.atoms, args.alpha)
    begin = time.perf_counter()
    exact = sparse_encode(X, D, penalty=L1(args.alpha), tol=1e-6, output="dense").values
    teaching = time.perf_counter() - begin
    target = sparse_encode(held, D, penalty=L1(args.alpha), tol=1e-6, output="dense").values
    error = lambda z: float(np.mean(np.sum((z - target) ** 2, axis=1)))  # noqa: E731
    objective = lambda z: float(  # noqa: E731
        np.mean(0.5 * np.sum((held - z @ D) ** 2, axis=1) + args.alpha * np.abs(z).sum(axis=1))
    )
    path = fista_path(held, D, args.alpha, 120)
    errors, values = [error(z) for z in path], [objective(z) for z in path]
    figures: dict[str, Any] = {
        "patches": source,
        "largest eigenvalue of the Gram matrix": float(np.linalg.eigvalsh(D.T @ D)[-1]),
        "atoms a code": float((target != 0).sum(axis=1).mean()),
        "exact codes for the teacher, s": teaching,
        "error of z = 0; 1, 15, 35 steps of FISTA": ", ".join(f"{errors[k]:.4f}" for k in (0, 1, 15, 35)),
    }

    def measure(name: str, encoder: Any, seconds: float) -> None:
        z = encode_with(encoder, held)
        steps = worth(error(z), errors)
        run, x = jax.jit(jax.vmap(encoder)), jnp.asarray(held)
        rival = compiled_fista(D, args.alpha, max(steps, 1))
        figures[f"{name}: training, s"] = seconds
        figures[f"{name}: error"] = error(z)
        figures[f"{name}: steps of FISTA by the error"] = steps
        figures[f"{name}: steps of FISTA by the objective"] = worth(objective(z), values)
        figures[f"{name}: µs a signal"] = 1e6 * best_of(lambda: jax.block_until_ready(run(x))) / len(held)
        figures[f"{name}: µs a signal of those steps"] = (
            1e6 * best_of(lambda: jax.block_until_ready(rival(x)), 3) / len(held)
        )

    for layers in args.layers:
        begin = time.perf_counter()
        encoder = learn_lista(
            X, exact, D, args.alpha, layers, n_epochs=args.epochs, batch_size=args.batch, learning_rate=args.rate
        )
        measure(f"LISTA, {layers} layers", encoder, time.perf_counter() - begin)
    if args.psd:
        begin = time.perf_counter()
        few = X[: min(len(X), 50_000)]
        encoder, _ = learn_psd(few, D, args.alpha, n_epochs=5, learning_rate=args.rate, batch_size=args.batch)
        measure("PSD", encoder, time.perf_counter() - begin)
    report(f"Encoders, {args.signals} patches {args.size}x{args.size}, K={args.atoms}, α={args.alpha:g}", figures)


if __name__ == "__main__":
    main()
