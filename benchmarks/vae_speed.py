"""One epoch of a variational autoencoder, batch 100, against the same model in eager PyTorch, in one run.

784-200-200-50 and back, tanh, Bernoulli pixels binarised anew at every step, one draw, Adam; both measure whole
epochs over the same rows, data in memory, without validation. Compiling is told apart. Peers that are not installed
are left out. Run:

    PYTHONPATH=src python benchmarks/vae_speed.py --threads 2
"""

from __future__ import annotations

import argparse
import itertools
import time
from typing import Any

from common import best_of, pin_threads, report

BATCH, LATENTS, HIDDEN = 100, 50, 200


def ours(X: Any, repeats: int) -> tuple[float, float]:
    """(seconds of an epoch, seconds of compiling)."""
    from latentia import VAE

    times = []
    compiling = 0.0
    for _ in range(repeats):
        stamps = []
        vae = VAE(
            LATENTS,
            (HIDDEN, HIDDEN),
            binarize="sample",
            batch_size=BATCH,
            n_epochs=4,
            monitor=None,
            random_state=0,
            callbacks=[lambda event, s=stamps: s.append(time.perf_counter())],
        ).fit(X)
        compiling = max(compiling, vae.compile_seconds_)
        times += [b - a for a, b in itertools.pairwise(stamps)]
    return min(times), compiling


def torch_epoch(X: Any, repeats: int, threads: int) -> float | None:
    """Seconds of an epoch in eager PyTorch; None where it is not installed."""
    try:
        import torch
    except ImportError:
        return None
    from torch import nn

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    n = X.shape[1]
    encoder = nn.Sequential(
        nn.Linear(n, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 2 * LATENTS)
    ).to(device)
    decoder = nn.Sequential(
        nn.Linear(LATENTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, n)
    ).to(device)
    optimizer = torch.optim.Adam([*encoder.parameters(), *decoder.parameters()], lr=1e-3)
    rows = torch.tensor(X, device=device)

    def epoch() -> None:
        order = torch.randperm(len(rows), device=device)
        for start in range(0, len(rows), BATCH):
            x = torch.bernoulli(rows[order[start : start + BATCH]])
            mean, log_sigma = encoder(x).chunk(2, dim=1)
            z = mean + torch.exp(log_sigma) * torch.randn_like(mean)
            given = -nn.functional.binary_cross_entropy_with_logits(decoder(z), x, reduction="sum")
            kl = 0.5 * torch.sum(mean**2 + torch.exp(2 * log_sigma) - 1 - 2 * log_sigma)
            loss = (kl - given) / len(x)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if device == "cuda":
            torch.cuda.synchronize()

    return best_of(epoch, repeats)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rows", type=int, default=60_000)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    pin_threads(arguments.threads)

    import numpy as np

    X = np.random.default_rng(0).random((arguments.rows, 784)).astype(np.float32)
    theirs = torch_epoch(X, arguments.repeats, arguments.threads)
    seconds, compiling = ours(X, arguments.repeats)
    figures: dict[str, Any] = {
        "threads": arguments.threads,
        "rows": arguments.rows,
        "latentia: seconds per epoch": seconds,
        "latentia: compiling, once, seconds": compiling,
        "eager PyTorch: seconds per epoch": "not installed" if theirs is None else theirs,
    }
    peers = {} if theirs is None else {"eager PyTorch": theirs / seconds}
    if theirs is not None:
        figures["ratio (PyTorch / latentia)"] = theirs / seconds
    report("VAE 784-200-200-50, batch 100, one epoch", figures, peers)


if __name__ == "__main__":
    main()
