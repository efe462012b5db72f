"""What the tests of models share: the oracles of the conformance suite, and hasty compiling."""

import sys
from pathlib import Path

import jax
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))


@pytest.fixture(scope="module")
def hasty():
    """Compiling is most of the time of a machine of ten units: do not optimise."""
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", False)
