"""What a recipe is."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An experiment by name.

    Args:
        description: what it shows, in one line.
        literature: published figures to compare with, by source.
        function: runs it; gets the output folder, the variant and the seed, returns the figures.
    """

    description: str
    literature: dict[str, str]
    function: Callable[..., dict[str, Any]]

    def run(self, out: Path, *, cpu: bool = False, seed: int = 0, quick: bool = False) -> dict[str, Any]:
        """Run a variant and return its figures, the literature's beside them."""
        variant = "quick" if quick else "cpu" if cpu else "full"
        return {**self.function(Path(out), variant, seed), "literature": self.literature}
