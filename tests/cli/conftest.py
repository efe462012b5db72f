"""What the tests of the command line share: how to call it, data files, and one trained run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from latentia.cli import cli

TINY = ("--n-components", "4", "--n-epochs", "2", "--random-state", "0")


class Shell:
    """Calls the command line in this process."""

    def __call__(self, *words: Any) -> Result:
        return CliRunner().invoke(cli, [str(word) for word in words], prog_name="latentia")

    def ok(self, *words: Any) -> str:
        """Standard output of a call that must succeed."""
        result = self(*words)
        assert result.exit_code == 0, result.output
        return result.stdout

    def json(self, *words: Any) -> Any:
        """The one JSON object on standard output."""
        return json.loads(self.ok(*words, "--json"))

    def refused(self, *words: Any, code: int = 2) -> str:
        """The message of a call that must fail, short and without a traceback."""
        result = self(*words)
        assert result.exit_code == code, result.output
        assert result.stdout == ""
        assert "Traceback" not in result.stderr
        assert "error: " in result.stderr.lower()
        return result.stderr


@pytest.fixture(scope="session")
def shell() -> Shell:
    return Shell()


@pytest.fixture(scope="session")
def run(tmp_path_factory: pytest.TempPathFactory, shell: Shell) -> Path:
    """An RBM on bars; tests must not change it."""
    folder = tmp_path_factory.mktemp("shared") / "bars"
    shell.ok("fit", "rbm", "bars", "--data-option", "n=200", *TINY, "--out", folder)
    return folder


@pytest.fixture(scope="session")
def rows() -> np.ndarray:
    """Binary rows with a little structure."""
    random = np.random.default_rng(0)
    return np.repeat(random.integers(0, 2, (60, 3)), 2, axis=1).astype(np.float32)
