"""The table of rounds that the benchmark of certified codes prints."""

from __future__ import annotations

import importlib
import types
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.skipif(not BENCHMARKS.is_dir(), reason="benchmarks are not part of what is installed")
def test_the_clock_of_a_round_does_not_wait_for_compiling(monkeypatch, capsys, caplog):
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the benchmark sets it for good
    sparse_gpu = importlib.import_module("sparse_gpu")
    working = types.SimpleNamespace(_rounds=lambda problem, gram, at, live, room, enter: at)
    original, at, live = working._rounds, jnp.asarray(np.ones(3)), jnp.asarray(np.arange(1237) < 5)
    with jax.log_compiles():
        sparse_gpu.rounds_of(working, lambda: working._rounds(None, None, at, live, 16, 8))
    assert "ompil" not in caplog.text
    assert working._rounds is original
    table = capsys.readouterr().out.splitlines()
    assert table[2].split()[:4] == ["0", "1237", "5", "16"]
    assert len(table) == 4
