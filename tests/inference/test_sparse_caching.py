"""Cached machine code is not used any more once a kernel that it has inlined has changed."""

from __future__ import annotations

import importlib
import sys

import pytest

from latentia.inference.sparse import _kernels_cd, _kernels_shared, caching

LOWER = "from latentia.inference.sparse.caching import njit\n\n@njit(cache=True)\ndef f(x):\n    return x + {}\n"
UPPER = (
    "from latentia.inference.sparse.caching import njit\nfrom _kernels_planted_lower import f\n\n"
    "@njit(cache=True)\ndef g(x):\n    return 2 * f(x)\n"
)


@pytest.fixture
def answer(tmp_path, monkeypatch):
    """What the upper of two kernels says and how often it was compiled, in modules that are imported afresh."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # Python's own cache tells edits apart by whole seconds
    (tmp_path / "_kernels_planted_upper.py").write_text(UPPER)

    def ask(number):
        (tmp_path / "_kernels_planted_lower.py").write_text(LOWER.format(number))
        for name in ("_kernels_planted_lower", "_kernels_planted_upper"):
            sys.modules.pop(name, None)
        caching.digest.cache_clear()
        g = importlib.import_module("_kernels_planted_upper").g
        return g(5), sum(g.stats.cache_misses.values())

    yield ask
    for name in ("_kernels_planted_lower", "_kernels_planted_upper"):
        sys.modules.pop(name, None)
    caching.digest.cache_clear()


def test_an_edit_in_another_kernel_file_is_seen(answer):
    assert answer(1) == (12, 1)
    assert answer(1) == (12, 0)  # from the cache
    assert answer(10) == (30, 1)


def test_kernels_carry_the_mark_of_all_kernel_files():
    """This is where a release of Numba would show that keeps its mark elsewhere."""
    folder = caching.Path(_kernels_cd.__file__).parent
    for kernel in (_kernels_cd.solve, _kernels_shared.correlate):
        own, shared = kernel._cache._cache_file._source_stamp
        assert own
        assert shared == caching.digest(folder)
