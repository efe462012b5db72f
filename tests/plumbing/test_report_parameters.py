"""Which parameters a report lists as changed: none of a run with defaults, and others with both values."""

from __future__ import annotations

import inspect
import json
import shlex
from pathlib import Path

import pytest

from latentia.estimator.saving import plain_parameters
from latentia.registry import FAMILIES
from latentia.report import facts
from latentia.report.runs import Run


def recorded(family, **changes) -> Run:
    """What is read of a folder whose configuration went through JSON."""
    params = {**plain_parameters(family.estimator()()), **changes}
    return Run(Path("run"), config=json.loads(json.dumps({"family": family.name, "params": params})))


def listed(run: Run) -> dict[str, tuple[str, str]]:
    found = facts.changed_parameters(run)
    assert len({each.name for each in found}) == len(found)
    return {each.name: (each.value, each.default) for each in found}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_defaults_are_not_listed_and_changes_are_with_both_values(family):
    assert listed(recorded(family)) == {}
    housekeeping = {"run_dir": "there", "resume": True, "verbose": 2}
    assert listed(recorded(family, **housekeeping)) == {}
    known = inspect.signature(family.estimator()).parameters
    for name, parameter in known.items():
        default = parameter.default
        if name in (*housekeeping, "callbacks"):
            continue
        for value in _others(default):
            said, before = listed(recorded(family, **{name: value})).pop(name)
            assert said == _said(value)
            assert before == _said(default)


def _others(default):
    """Values of many kinds, none of them the default."""
    near = {bool: [not default] if isinstance(default, bool) else [], tuple: []}.get(type(default), [])
    if isinstance(default, int | float) and not isinstance(default, bool):
        near = [default + 1, -default - 0.5]
    if isinstance(default, tuple):
        near = [(*default, 3), list(default[:-1]), [*default[:-1], 7], [default]]
    kinds = [(3, 2), [4], "else", None, 17.5]
    return near + [value for value in kinds if value != default and not isinstance(value, type(default))]


def _said(value):
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(json.loads(json.dumps(value)))


@pytest.mark.parametrize(
    ("value", "default", "same"),
    [
        ([3, [2, 1]], (3, (2, 1)), True),
        ([3, [2, 2]], (3, (2, 1)), False),
        ([3], (3, 3), False),
        ([], (), True),
        (1, True, False),
        (1.0, 1, True),
        ("3", 3, False),
        (None, 0, False),
        (None, (), False),
    ],
)
def test_a_list_is_the_tuple_that_it_was(value, default, same):
    assert facts._same(value, default) is same


def test_a_stack_of_layers_is_shown_and_typed_as_it_was_given():
    family = next(family for family in FAMILIES if family.name == "dbm")
    run = recorded(family, hidden=(30, 20))
    run.config["data"] = {"name": "bars"}
    default = inspect.signature(family.estimator()).parameters["hidden"].default
    assert listed(run) == {"hidden": ("[30, 20]", str(list(default)))}
    assert "'[30, 20]'" in str(facts.command(run))
    assert "--hidden" not in str(facts.command(recorded(family)))
    assert facts.python(run).endswith("DBM(hidden=[30, 20]).fit(X)")


def test_labels_that_were_learned_are_part_of_the_call_in_python():
    family = next(family for family in FAMILIES if family.name == "dbm")
    run = recorded(family)
    run.config["blueprint"] = {"n_features": 4, "classes": [0, 1]}
    assert facts.python(run).endswith("DBM().fit(X, y)")


@pytest.mark.parametrize("target", [0, 2, "kind"])
def test_the_column_of_labels_is_part_of_the_command_whichever_it_is(target):
    family = next(family for family in FAMILIES if family.name == "dbm")
    run = recorded(family)
    run.config["data"] = {"name": "trees.csv", "target": target, "options": {"target": target}}
    words = shlex.split(str(facts.command(run)).replace("\\\n", " "))
    assert words[:6] == ["latentia", "fit", "dbm", "trees.csv", "--target", str(target)]
    assert "--data-option" not in words
