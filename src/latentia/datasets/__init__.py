"""Data sets: bundled, public, or the user's own files; patches and whitening.

>>> from latentia.datasets import load
>>> load("bars", n=100).X.shape
(100, 16)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from latentia.datasets.base import Dataset, DatasetInfo
from latentia.datasets.files import open_memmap
from latentia.datasets.loading import available, load
from latentia.datasets.patches import extract_patches
from latentia.datasets.synthetic import bars_log_prob

if TYPE_CHECKING:
    from latentia.datasets.whitening import PCAWhitening, ZCAWhitening

__all__ = [
    "Dataset",
    "DatasetInfo",
    "PCAWhitening",
    "ZCAWhitening",
    "available",
    "bars_log_prob",
    "extract_patches",
    "load",
    "open_memmap",
]


def __getattr__(name: str) -> Any:
    # The transformers derive from scikit-learn's classes, whose import takes most of a second.
    if name in ("PCAWhitening", "ZCAWhitening"):
        from latentia.datasets import whitening

        return getattr(whitening, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
