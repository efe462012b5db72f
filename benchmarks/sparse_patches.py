"""Natural patches for the encoders and the GPU, and a dictionary for them that needs nothing but JAX."""

from __future__ import annotations

import importlib.util
import os
import sys
import types
from pathlib import Path
from typing import Any


def photographs(most: int = 120) -> tuple[list[Any], str]:
    """(grey images in [0, 1], where they are from): BSDS500 if there, else bundled ones, else occluding discs."""
    import numpy as np

    if importlib.util.find_spec("PIL") is not None:
        from PIL import Image

        folder = Path(os.environ.get("LATENTIA_DATA", "/nowhere")) / "natural" / "bsds500_train"
        files = [path for path in sorted(folder.glob("*")) if path.suffix.lower() in (".jpg", ".png")][:most]
        if files:
            return [np.asarray(Image.open(path).convert("L"), np.float32) / 255 for path in files], "BSDS500"
        from sklearn.datasets import load_sample_images

        bundled: Any = load_sample_images().images
        return [image.mean(axis=2).astype(np.float32) / 255 for image in bundled], "scikit-learn's photographs"
    return [dead_leaves(seed) for seed in range(24)], "dead leaves (synthetic)"


def dead_leaves(seed: int, size: int = 320, n: int = 1500) -> Any:
    """Discs of random size and shade upon one another: edges, occlusion and scaling like natural images."""
    import numpy as np

    rng = np.random.default_rng(seed)
    image = np.full((size, size), 0.5, np.float32)
    rows, columns = np.mgrid[:size, :size]
    for _ in range(n):
        radius = 3 * rng.random() ** -0.5
        a, b = rng.uniform(0, size, 2)
        slope = rng.normal(size=2) * 0.003
        disc = (rows - a) ** 2 + (columns - b) ** 2 < radius**2
        image[disc] = (rng.random() + slope[0] * (rows - a) + slope[1] * (columns - b))[disc]
    return image + 0.01 * rng.normal(size=image.shape).astype(np.float32)


def patches(images: list[Any], size: int, n: int, seed: int) -> Any:
    """Patches without their means, of unit norm; flat ones (norm below 0.02 a pixel) are drawn again."""
    import numpy as np

    rng = np.random.default_rng(seed)
    found, count, each = [], 0, 128
    while count < n:
        image = images[rng.integers(len(images))]
        views = np.lib.stride_tricks.sliding_window_view(image, (size, size))
        a, b = (rng.integers(0, m, each) for m in views.shape[:2])
        rows = views[a, b].reshape(each, -1).astype(np.float32)
        rows = rows - rows.mean(axis=1, keepdims=True)
        norms = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = (rows / np.maximum(norms, 1e-9))[norms[:, 0] > 0.02 * size]
        found.append(rows)
        count += len(rows)
    out = np.concatenate(found)
    return np.ascontiguousarray(out[rng.permutation(len(out))[:n]])


def dictionary(X: Any, K: int, alpha: float, *, rounds: int = 60, batch: int = 1024, seed: int = 0) -> Any:
    """K atoms by online block coordinate steps on codes of forty proximal steps: quick, good enough to time on."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    @jax.jit
    def codes(x: Any, D: Any, L: Any) -> Any:
        def step(_: Any, carry: Any) -> Any:
            z, y, t = carry
            u = y + (x - y @ D) @ D.T / L
            new = u - jnp.clip(u, -alpha / L, alpha / L)
            after = (1 + jnp.sqrt(1 + 4 * t * t)) / 2
            return new, new + (t - 1) / after * (new - z), after

        zero = jnp.zeros((x.shape[0], D.shape[0]), x.dtype)
        return jax.lax.fori_loop(0, 40, step, (zero, zero, jnp.ones((), x.dtype)))[0]

    rng = np.random.default_rng(seed)
    D = X[rng.permutation(len(X))[:K]].copy()
    A, B = np.zeros((K, K), np.float32), np.zeros((K, X.shape[1]), np.float32)
    for k in range(rounds):
        x = X[rng.integers(0, len(X), batch)]
        L = float(np.linalg.eigvalsh(D.T @ D)[-1])
        z = np.asarray(codes(jnp.asarray(x), jnp.asarray(D), jnp.asarray(L, jnp.float32)))
        keep = k / (k + 2)  # early codes belong to early atoms
        A, B = keep * A + z.T @ z, keep * B + z.T @ x
        for j in range(K):
            if A[j, j] > 1e-6:
                D[j] += (B[j] - A[j] @ D) / A[j, j]
                D[j] /= max(1.0, float(np.linalg.norm(D[j])))
            else:
                D[j] = x[rng.integers(batch)]
    return D / np.linalg.norm(D, axis=1, keepdims=True)


def stand_in_for_numba() -> bool:
    """Let the package be imported where Numba is missing; says whether it is really there."""
    if importlib.util.find_spec("numba") is not None:
        return True

    class Anything(types.ModuleType):
        """A module whose decorators leave functions as they are."""

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            return lambda *args, **_: args[0] if args and callable(args[0]) else (lambda function: function)

    sys.modules["numba"] = Anything("numba")
    return False
