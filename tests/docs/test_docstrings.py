"""Examples in docstrings run, in every module of the package."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import latentia

MODULES = [
    module.name
    for module in pkgutil.walk_packages(latentia.__path__, "latentia.")
    if not module.name.endswith("__main__")
]


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
