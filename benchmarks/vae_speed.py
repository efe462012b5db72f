"""One epoch of a variational autoencoder, batch 100, against eager PyTorch and pythae's trainer, in one run.

784-200-200-50 and back, tanh, Bernoulli pixels binarised anew at every step, one draw, Adam; all measure whole
epochs over the same rows, data in memory, without validation. pythae's trainer takes the same networks; its data
are binarised once, since it does nothing else, and its own bookkeeping is part of its time. Compiling is told
apart. Peers that are not installed are left out. Run:

    PYTHONPATH=src python benchmarks/vae_speed.py --threads 2
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
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


def pythae_epoch(X: Any, repeats: int, threads: int) -> float | None:
    """Seconds of an epoch of pythae's trainer; None where it is not installed."""
    try:
        import torch
        from pythae.data.datasets import BaseDataset
        from pythae.models import VAE, VAEConfig
        from pythae.models.base.base_utils import ModelOutput
        from pythae.models.nn import BaseDecoder, BaseEncoder
        from pythae.trainers import BaseTrainer, BaseTrainerConfig
    except ImportError:
        return None
    from torch import nn

    class Encoder(BaseEncoder):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(X.shape[1], HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh()
            )
            self.mean, self.log_variance = nn.Linear(HIDDEN, LATENTS), nn.Linear(HIDDEN, LATENTS)

        def forward(self, x: Any) -> Any:
            h = self.body(x)
            return ModelOutput(embedding=self.mean(h), log_covariance=self.log_variance(h))

    class Decoder(BaseDecoder):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(LATENTS, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, HIDDEN), nn.Tanh(),
                nn.Linear(HIDDEN, X.shape[1]), nn.Sigmoid(),
            )  # fmt: skip

        def forward(self, z: Any) -> Any:
            return ModelOutput(reconstruction=self.body(z))

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = VAE(VAEConfig((X.shape[1],), LATENTS, reconstruction_loss="bce"), Encoder(), Decoder())
    rows = torch.bernoulli(torch.tensor(X))
    with tempfile.TemporaryDirectory() as folder:
        config = BaseTrainerConfig(folder, num_epochs=1, per_device_train_batch_size=BATCH, learning_rate=1e-3)
        trainer = BaseTrainer(model, BaseDataset(rows, torch.zeros(len(rows))), training_config=config)
        trainer.prepare_training()
        trainer.callback_handler.on_epoch_begin(
            config, epoch=1, train_loader=trainer.train_loader, eval_loader=None
        )
        return best_of(lambda: trainer.train_step(1), repeats)


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
    peers = {"eager PyTorch": torch_epoch, "pythae's trainer": pythae_epoch}
    theirs = {name: epoch(X, arguments.repeats, arguments.threads) for name, epoch in peers.items()}
    seconds, compiling = ours(X, arguments.repeats)
    figures: dict[str, Any] = {
        "threads": arguments.threads,
        "rows": arguments.rows,
        "latentia: seconds per epoch": seconds,
        "latentia: compiling, once, seconds": compiling,
    }
    ratios = {name: other / seconds for name, other in theirs.items() if other is not None}
    for name, other in theirs.items():
        figures[f"{name}: seconds per epoch"] = "not installed" if other is None else other
    figures |= {f"ratio ({name} / latentia)": ratio for name, ratio in ratios.items()}
    report("VAE 784-200-200-50, batch 100, one epoch", figures, ratios)


if __name__ == "__main__":
    main()
