"""Examples in docstrings run, in every module of the package."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import latentia

SOURCE = Path(latentia.__file__).parent
MODULES = sorted(
    ".".join(path.relative_to(SOURCE.parent).with_suffix("").parts).removesuffix(".__init__")
    for path in SOURCE.rglob("*.py")
    if path.name != "__main__.py"
)


@pytest.mark.parametrize("module", MODULES)
def test_examples_run(module):
    results = doctest.testmod(
        importlib.import_module(module), optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    )
    assert results.failed == 0


@pytest.mark.parametrize("module", MODULES)
def test_modules_say_what_they_are_for(module):
    assert (importlib.import_module(module).__doc__ or "").strip()


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    examples = [
        test for module in MODULES for test in finder.find(importlib.import_module(module)) if test.examples
    ]
    assert len(examples) > 5
