"""Grey values as probabilities of bits: data in [0, 1] for models of binary visibles."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from latentia.core.errors import DataError
from latentia.ops.examples import Examples

#: "sample" samples each entry from a Bernoulli distribution, "threshold" cuts at ½, None takes data as they are.
Binarize = Literal["sample", "threshold"] | None


def check(X: Examples, binarize: Binarize, fix: str) -> None:
    """Refuse values outside [0, 1]; ``fix`` says what to use for them instead."""
    for block in X.blocks():
        if block.min() < 0 or block.max() > 1:
            raise DataError(
                f"binarize={binarize!r} needs values from 0 to 1, got {block.min():g} to {block.max():g}. "
                f"Scale the data (divide bytes by 255), or use {fix}."
            )


def converter(binarize: Binarize, purpose: str) -> Callable[[], Callable[[Any], Any]] | None:
    """Makes a function from one portion of the data after another to bits; None if they stay what they are.

    Grey values that are sampled stay grey for training, where they are sampled at every step, and as what a code
    represents. To be scored they are sampled once, always the same way, so that scores can be compared.
    """
    if binarize == "threshold":
        return lambda: lambda X: (np.asarray(X) > 0.5).astype(np.float32)
    if binarize == "sample" and purpose == "scoring":
        return _sampler
    return None


def _sampler() -> Callable[[Any], Any]:
    rng = np.random.default_rng(0)
    return lambda X: (rng.random(X.shape) < X).astype(np.float32)
