"""The interface of recipes."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from latentia.core.errors import ParameterError


@dataclasses.dataclass(frozen=True)
class Recipe:
    """An experiment by name.

    Args:
        description: what it shows, in one line.
        literature: published figures to compare with, by source.
        function: runs it; gets the output folder, the variant and the seed, returns the figures.
        options: further options that the function takes.
    """

    description: str
    literature: dict[str, str]
    function: Callable[..., dict[str, Any]]
    options: tuple[str, ...] = ()

    def run(
        self, out: Path, *, cpu: bool = False, seed: int = 0, quick: bool = False, **options: Any
    ) -> dict[str, Any]:
        """Run a variant and return its figures, the literature's beside them."""
        strange = sorted(set(options) - set(self.options))
        if strange:
            raise ParameterError(f"This recipe has no option {', '.join(strange)}.")
        variant = "quick" if quick else "cpu" if cpu else "full"
        return {**self.function(Path(out), variant, seed, **options), "literature": self.literature}
