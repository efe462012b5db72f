"""Compiled kernels give the same bits wherever their arrays lie in memory.

Where two arrays lie closer together than a few vector registers, LLVM runs the scalar version of a loop that
stores. If that loop also sums, and sums may be reordered, the scalar version rounds in another order. Such layouts
are rare and cannot be brought about from Python, so the loops themselves are looked at.
"""

from __future__ import annotations

import ast
import inspect
from importlib import import_module
from pathlib import Path

import pytest

import latentia

PACKAGE = Path(latentia.__file__).parent
KERNELS = sorted(PACKAGE.rglob("_kernels_*.py"))


def sums_and_stores(loop: ast.For) -> bool:
    """Whether an innermost loop carries a sum from one turn to the next and also stores into an array."""
    inner = [node for part in loop.body for node in ast.walk(part)]
    if any(isinstance(node, (ast.For, ast.While)) for node in inner):
        return False  # only innermost loops are vectorised
    sums = any(
        isinstance(node, ast.AugAssign) and isinstance(node.op, (ast.Add, ast.Sub)) and not moves(node.target, loop)
        for node in inner
    )
    stores = any(isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Store) for node in inner)
    return sums and stores


def moves(target: ast.expr, loop: ast.For) -> bool:
    """Whether a target is another place in every turn: an entry of an array whose number the loop changes."""
    assigned = {n.id for n in ast.walk(loop) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    used = {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return isinstance(target, ast.Subscript) and bool(assigned & used)


def reordering(module: str) -> list[ast.FunctionDef]:
    """Functions of a module that may reorder sums."""
    found = []
    for value in vars(import_module(module)).values():
        flags = getattr(value, "targetoptions", {}).get("fastmath", False)
        if flags is True or (flags and "reassoc" in getattr(flags, "flags", flags)):
            found.append(ast.parse(inspect.getsource(value.py_func)).body[0])
    return found


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_a_loop_with_a_sum_that_may_be_reordered_stores_nothing(path):
    module = ".".join(("latentia", *path.relative_to(PACKAGE).with_suffix("").parts))
    for function in reordering(module):
        loops = [node for node in ast.walk(function) if isinstance(node, ast.For)]
        assert not [f"{function.name}, line {loop.lineno}" for loop in loops if sums_and_stores(loop)]


def test_the_look_at_loops_sees_what_it_should():
    assert len(reordering("latentia.learning.dictionary._kernels_ksvd")) == 2
    assert len(reordering("latentia.inference.sparse._kernels_masked")) >= 5
    bad = "for a in range(n):\n    new[a] = total[a] / size\n    turned += new[a] * old[a]"
    worse = "for i in range(m):\n    new[i] /= size\n    z[n] += new[i] * left[i]"
    good = "for a in range(n):\n    part[a] += share * row[a]"
    assert [sums_and_stores(ast.parse(text).body[0]) for text in (bad, worse, good)] == [True, True, False]
