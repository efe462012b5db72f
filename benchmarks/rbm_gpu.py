"""One PCD-1 step of a 784×500 RBM, batch 100, on a GPU: ours, eager PyTorch, and the package ``rbms``.

    python benchmarks/rbm_gpu.py [--hidden 500] [--batch 100] [--k 1]

All three do the same work: hidden means of the data, one Gibbs sweep of persistent chains, a centred gradient
step. Times are per step, best of several runs of a thousand steps; compiling is printed apart.
"""

from __future__ import annotations

import argparse

from common import best_of, report


def ours(visible: int, hidden: int, batch: int, k: int) -> tuple[float, float]:
    from training import Training

    run = Training(visible, hidden, batch, k, None, chunk=2048)
    seconds = best_of(run.advance)
    return seconds / run.chunk, run.compile_seconds


def eager_torch(visible: int, hidden: int, batch: int, k: int, n_steps: int = 1000) -> float:
    import torch

    device = torch.device("cuda")
    X = (torch.rand(10_000, visible, device=device) < 0.2).float()
    W = 0.01 * torch.randn(visible, hidden, device=device)
    a, b = torch.zeros(visible, device=device), torch.zeros(hidden, device=device)
    mu, lam = X.mean(0), torch.full((hidden,), 0.5, device=device)
    chains = X[:batch].clone()
    rate, slide = 0.01, 0.01

    @torch.no_grad()
    def train() -> None:
        nonlocal chains, mu, lam
        order = torch.randperm(len(X), device=device)
        for i in range(n_steps):
            start = (i * batch) % (len(X) - batch + 1)
            x = X[order[start : start + batch]]
            h = torch.sigmoid((x - mu) @ W + b)
            for _ in range(k):
                hidden_chain = torch.bernoulli(torch.sigmoid((chains - mu) @ W + b))
                chains = torch.bernoulli(torch.sigmoid((hidden_chain - lam) @ W.T + a))
            hc = torch.sigmoid((chains - mu) @ W + b)
            dW = ((x - mu).T @ (h - lam)) / batch - ((chains - mu).T @ (hc - lam)) / batch
            W.add_(rate * dW)
            a.add_(rate * (x.mean(0) - chains.mean(0)))
            b.add_(rate * (h.mean(0) - hc.mean(0)))
            dmu, dlam = slide * (x.mean(0) - mu), slide * (h.mean(0) - lam)
            a.add_(W @ dlam)
            b.add_(dmu @ W)
            mu, lam = mu + dmu, lam + dlam
        torch.cuda.synchronize()

    return best_of(train, 5) / n_steps


def package_rbms(visible: int, hidden: int, batch: int, k: int, n_steps: int = 1000) -> float | str:
    try:
        import torch
        from rbms.bernoulli_bernoulli.classes import BBRBM
        from rbms.training.pcd import fit_batch_pcd
    except ImportError as error:
        return f"not measured ({error})"
    device = torch.device("cuda")
    X = (torch.rand(10_000, visible, device=device) < 0.2).float()
    weights = torch.ones(len(X), 1, device=device)
    zeros = [torch.zeros(n, device=device) for n in (visible, hidden)]
    params = BBRBM(0.01 * torch.randn(visible, hidden, device=device), *zeros)
    params.init_grad()
    optimizer = torch.optim.SGD(params.parameters(), lr=0.01, maximize=True)
    chains = params.init_chains(num_samples=batch)

    @torch.no_grad()
    def train() -> None:
        nonlocal chains
        for _ in range(n_steps):
            rows = torch.randperm(len(X))[:batch]
            optimizer.zero_grad(set_to_none=False)
            chains, _ = fit_batch_pcd((X[rows], weights[rows]), chains, params, k, 1.0)
            optimizer.step()
        torch.cuda.synchronize()

    return best_of(train, 3) / n_steps


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--visible", type=int, default=784)
    parser.add_argument("--hidden", type=int, default=500)
    parser.add_argument("--batch", type=int, default=100)
    parser.add_argument("--k", type=int, default=1)
    parser.add_argument("--ours-only", action="store_true")
    args = parser.parse_args()
    sizes = (args.visible, args.hidden, args.batch, args.k)
    step, compiling = ours(*sizes)
    figures: dict[str, object] = {"ours, µs a step": 1e6 * step, "compiling, s": compiling}
    peers: dict[str, float] = {}
    if not args.ours_only:
        torch_step, rbms_step = eager_torch(*sizes), package_rbms(*sizes)
        figures |= {"eager PyTorch, µs a step": 1e6 * torch_step, "ratio to eager PyTorch": torch_step / step}
        peers["eager PyTorch"] = torch_step / step
        if isinstance(rbms_step, float):
            figures |= {"rbms, µs a step": 1e6 * rbms_step, "ratio to rbms": rbms_step / step}
            peers["rbms"] = rbms_step / step
        else:
            figures["rbms"] = rbms_step
    report(f"PCD-{args.k}, {args.visible}x{args.hidden}, batch {args.batch}, GPU", figures, peers)


if __name__ == "__main__":
    main()
