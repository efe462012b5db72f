"""What the levels of ``verbose`` show, on a terminal and without one."""

from __future__ import annotations

import io
import re

import numpy as np
import pytest
from rich.console import Console

from latentia import RBM
from latentia.core.errors import ParameterError
from latentia.learning import progress

X = (np.random.default_rng(0).random((40, 6)) < 0.4).astype(np.float32)
SMALL = {"n_components": 3, "n_epochs": 3, "batch_size": 20, "random_state": 0}


def shown(capsys, verbose):
    RBM(**SMALL, verbose=verbose).fit(X)
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err.splitlines()


def test_levels_without_a_terminal(capsys):
    assert shown(capsys, 0) == []
    (line,) = shown(capsys, 1)
    assert line.startswith("RBM  6/6  in ")
    assert "energy_gap" in line
    assert "gradient_norm" not in line
    *rows, last = shown(capsys, 2)
    assert [row.split()[1] for row in rows] == ["2/6", "4/6", "6/6"]
    assert all("energy_gap" in row for row in rows)
    assert last.startswith("RBM  6/6  in ")
    assert len(shown(capsys, 3)) == 4  # more than 2 is 2


@pytest.mark.parametrize("verbose", [-1, 1.5, "loud", None])
def test_other_levels_are_refused(verbose):
    with pytest.raises(ParameterError, match=r"0 \(silent\), 1 \(progress\) or 2"):
        RBM(**SMALL, verbose=verbose).fit(X)


def terminal(monkeypatch, width):
    """What a terminal of a width gets."""
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, color_system=None)
    monkeypatch.setattr(progress, "_console", lambda: console)
    return out


def run(display):
    display.start(10, 0)
    display.compiling()
    display.update(5, {"loss": 1.25})
    display.say("[rolled back] at 5")
    display.update(10, {"loss": 0.75})
    display.stop()


def test_levels_on_a_terminal(monkeypatch):
    out = terminal(monkeypatch, 120)
    run(progress.display(1, "RBM"))
    text = out.getvalue()
    assert "RBM: compiling" in text
    assert "10/10" in text
    assert "loss 0.75" in text
    assert "RBM   5/10  loss 1.25" not in text
    assert "[rolled back] at 5" in text  # brackets are no markup
    out = terminal(monkeypatch, 120)
    run(progress.display(2, "RBM"))
    assert "RBM   5/10  loss 1.25\n" in out.getvalue()
    assert "RBM  10/10  loss 0.75\n" in out.getvalue()


def test_a_narrow_terminal_gets_a_short_bar(monkeypatch):
    out = terminal(monkeypatch, 40)
    run(progress.display(1, "RBM"))
    last = out.getvalue().replace("\r", "\n").splitlines()
    assert all(len(line) <= 40 + 12 for line in last)  # and a few control characters
    assert re.search(r"RBM 10/10 left \d", out.getvalue())  # nothing is cut or wrapped
    assert "━" not in out.getvalue()


def test_somebody_else_can_hush_it(capsys):
    token = progress.HUSHED.set(True)
    try:
        assert shown(capsys, 2) == []
    finally:
        progress.HUSHED.reset(token)
