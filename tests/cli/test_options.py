"""The options of ``fit`` are the estimators' signatures: generated, not kept by hand."""

from __future__ import annotations

import inspect
from typing import Any, Literal

import click
import pytest

from latentia.commands import parameters
from latentia.commands.fit import RUN_PARAMS, fit_command, run_options
from latentia.registry import FAMILIES, family

from .conftest import Shell


class Example:
    """An estimator.

    Args:
        count: how many,
            over two lines.
        rate: how fast.
        kind: which one.
        limit: at most.
        sizes: of the layers.
        flag: yes or no.
        callbacks: functions.

    Example:
        >>> count: 3
    """

    def __init__(
        self,
        count: int = 3,
        rate: float = 0.5,
        kind: Literal["a", "b"] | None = "a",
        limit: int | None = 7,
        sizes: Any = (2, 3),
        flag: bool = True,
        mixed: float | str = "auto",
        callbacks: Any = None,
        random_state: Any = None,
        verbose: int = 0,
    ): ...


def parsed(*words: str) -> dict[str, Any]:
    found: dict[str, Any] = {}

    @click.pass_context
    def callback(ctx: click.Context, /, **values: Any) -> None:
        found.update(parameters.given(ctx, values))

    click.Command("example", params=[*parameters.options(Example)], callback=callback).main(
        list(words), standalone_mode=False
    )
    return found


@pytest.mark.parametrize("entry", FAMILIES, ids=lambda entry: entry.name)
def test_options_are_the_signature(entry: Any) -> None:
    signature = inspect.signature(entry.estimator()).parameters
    expected = [name for name in signature if name not in parameters.MANAGED + parameters.OBJECTS]
    options = parameters.options(entry.estimator())
    assert [option.name for option in options] == expected
    for option in options:
        assert option.default == signature[option.name].default
        assert option.help, f"{option.name} is not described in the docstring"
        assert option.opts == [f"--{option.name.replace('_', '-')}"]
    assert not set(expected) & set(RUN_PARAMS)


def test_run_options_are_known_to_the_help() -> None:
    assert {param.name for param in run_options()} == set(RUN_PARAMS) - {"help"}


def test_help_shows_types_defaults_and_descriptions(shell: Shell) -> None:
    text = " ".join(shell.ok("fit", "rbm", "--help").split())
    assert "--n-components INTEGER number of hidden units. [default: 256]" in text
    assert "--early-stopping / --no-early-stopping" in text
    assert "--callbacks" not in text
    assert "--run-dir" not in text
    assert fit_command(family("rbm")).name == "rbm"


def test_values_are_typed() -> None:
    assert parsed() == {}
    assert parsed("--count", "4", "--rate", "1e-3") == {"count": 4, "rate": 1e-3}
    assert parsed("--kind", "b", "--limit", "none") == {"kind": "b", "limit": None}
    assert parsed("--kind", "none", "--limit", "9") == {"kind": None, "limit": 9}
    assert parsed("--sizes", "[5, 6]", "--no-flag") == {"sizes": [5, 6], "flag": False}
    assert parsed("--mixed", "0.5") == {"mixed": 0.5}
    assert parsed("--mixed", "fast", "--random-state", "1") == {"mixed": "fast", "random_state": 1}


@pytest.mark.parametrize(
    "words",
    [("--count", "x"), ("--kind", "c"), ("--limit", "1.5"), ("--random-state", "x"), ("--verbose", "1")],
)
def test_wrong_values_are_refused(words: tuple[str, ...]) -> None:
    with pytest.raises(click.UsageError):
        parsed(*words)


def test_descriptions_come_from_the_docstring() -> None:
    texts = parameters.descriptions(Example)
    assert texts["count"] == "how many, over two lines."
    assert list(texts) == ["count", "rate", "kind", "limit", "sizes", "flag", "callbacks"]
