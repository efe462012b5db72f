"""How the command line reads: the guide, help at any width, lists, explanations and answers to mistyped names."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from latentia.cli import cli
from latentia.commands import console, families, parameters, signatures
from latentia.commands.explain import explanation
from latentia.commands.guide import SYNONYMS
from latentia.learning import OBJECTIVES
from latentia.registry import FAMILIES, Family, family

from .conftest import Shell

EVERY = pytest.mark.parametrize("entry", FAMILIES, ids=lambda entry: entry.name)
PAGES = [[], *([name] for name in cli.commands), *(["fit", entry.name] for entry in FAMILIES)]


def test_the_guide_shows_every_command_with_an_example(shell: Shell) -> None:
    guide = shell.ok("--help")
    assert guide == shell.ok()
    for name in cli.commands:
        assert re.search(rf"^  {name}  +[A-Z]", guide, re.MULTILINE), name
        assert re.search(rf"^ +latentia {name}|latentia {name} ", shell.ok(name, "--help"), re.MULTILINE)
    for words in ("The five-minute path", "Where to go next", "Exit codes: 0 done", "Train and use a model:"):
        assert words in guide


def test_the_guide_is_quick_because_it_imports_nothing_heavy() -> None:
    for words in (["--help"], ["fit", "vae", "--help"], ["fit", "rbm", "bars", "--n-component", "3"]):
        code = (
            f"import sys; sys.argv = ['latentia', *{words}]\n"
            "try:\n    from latentia.cli import main; main()\n"
            "except SystemExit:\n    heavy = {'jax', 'sklearn', 'matplotlib', 'numpy'} & set(sys.modules)\n"
            "    print('heavy:', heavy or None)"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout.rstrip().endswith("heavy: None")


@pytest.mark.parametrize("columns", [40, 80])
def test_help_fits_the_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in PAGES:
        lines = shell.ok(*words, "--help").splitlines()
        assert max(len(line.rstrip()) for line in lines) <= columns, words  # click ends some lines with a space


def test_a_long_example_is_broken_where_a_shell_allows(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = shell.ok("fit", "--help")
    joined = re.sub(r" \\\n +", " ", text)
    assert "  latentia fit rbm mine.npy --n-epochs 50 --out runs/mine --resume\n" in joined
    assert not re.search(r"--[a-z-]+ \\$", shell.ok(), re.MULTILINE)  # an option stays with its value


@EVERY
def test_options_read_from_the_source_are_those_of_the_signature(entry: Family) -> None:
    read = parameters.options(signatures._from_source(entry.target))
    real = parameters.options(entry.estimator())
    assert [option.to_info_dict() for option in read] == [option.to_info_dict() for option in real]
    ours, true = signatures.read(entry.target), signatures.of(entry.estimator())
    assert ours.doc == true.doc
    assert [(p.name, p.default) for p in ours.parameters] == [(p.name, p.default) for p in true.parameters]


def test_without_sources_the_estimator_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signatures, "ROOT", Path("/nowhere"))
    monkeypatch.setattr(signatures._Source, "open", signatures._Source.open.__wrapped__)
    found = signatures.read.__wrapped__("latentia.models.ppca:PPCA")
    assert "n_components" in found
    assert signatures.keys("latentia.learning", "OBJECTIVES") == list(OBJECTIVES)


def test_models_lists_the_registry_with_data_and_objectives(shell: Shell) -> None:
    entries = shell.json("models")["models"]
    assert [entry["name"] for entry in entries] == [entry.name for entry in FAMILIES]
    found = {entry["name"]: entry for entry in entries}
    assert found["rbm"]["learning"][0] == "pcd"  # the default
    assert found["rbm"]["domains"] == ["binary"]
    assert found["gaussian-rbm"]["domains"] == ["real"]
    assert found["gaussian-mixture"]["learning"] == ["EM"]
    assert found["dictionary"]["learning"] == ["online", "gradient", "mod", "ksvd"]
    assert found["sparse-coder"]["learning"] == []
    assert set(found["dbn"]["objectives"]) == {"cd", "pcd", "tempering"}
    text = shell.ok("models")
    for entry in FAMILIES:
        assert entry.title in text
        assert f"{entry.kind}\n" in text


@EVERY
def test_explain_tells_energy_conditionals_objectives_and_reference(entry: Family) -> None:
    facts = explanation(entry)
    assert facts["energy"], "no formula of the energy in the docstrings"
    assert facts["conditionals"] or set(facts["capabilities"]) & {
        "Encodes",
        "ProxSplit",
        "Amortised",
        "Conditionals",
    }
    assert re.search(r"\d{4}", facts["reference"]), "no reference in the estimator's docstring"
    refused = [name for names in facts["refused"].values() for name in names]
    assert sorted([*facts["objectives"], *refused]) == sorted(OBJECTIVES)
    assert all(facts["objectives"].values())
    assert {each["name"] for each in facts["parameters"]} == {
        p.name for p in signatures.read(entry.target).parameters
    }
    assert not any(mark in facts["about"] for mark in (":mod:", "``"))


@pytest.mark.parametrize("columns", [40, 80])
def test_an_explanation_fits_the_terminal(shell: Shell, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    for name in ("rbm", "vae", "dictionary"):
        text = shell.ok("explain", name)
        assert max(map(len, text.splitlines())) <= columns, name
        for heading in ("Energy", "Conditionals", "Objectives that do not, and why", "Reference"):
            assert f"\n{heading}\n" in text


def test_explain_says_why_an_objective_does_not_fit(shell: Shell) -> None:
    text = " ".join(shell.ok("explain", "rbm").split())
    assert "score_matching, sliced_score_matching, denoising_score_matching it works on real data" in text
    assert "E(x, z) = E_v(x) + E_h(z) − (s(x) − μ)ᵀ W (t(z) − λ)" in text
    assert "Smolensky (1986)" in text
    assert shell.json("explain", "RBM")["name"] == "rbm"  # as it is called in Python


def test_only_a_default_that_fits_the_parts_makes_the_description_count() -> None:
    entry = family("dbn")
    assert families.objectives(entry, entry.tiny_model()) == ["pcd", "cd", "tempering"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["fitt"], "Did you mean 'fit'?"),
        (["train"], "Did you mean 'fit'?"),
        (["RBM"], "latentia explain rbm"),
        (["explain", "rmb"], "Did you mean 'rbm'"),
        (["fit", "rbm", "bars", "--n-component", "3", "--out", "x"], "--n-components"),
        (["fit", "rbm"], "Help: latentia fit rbm --help"),
    ],
)
def test_mistyped_names_are_answered(shell: Shell, words: list[str], expected: str) -> None:
    message = shell.refused(*words)
    assert expected in message
    assert len(message.strip().splitlines()) <= 2


def test_synonyms_lead_to_commands() -> None:
    assert set(SYNONYMS.values()) <= {*cli.commands, "--help"}
    assert not set(SYNONYMS) & set(cli.commands)


def test_every_command_takes_json_except_those_that_write_scripts(shell: Shell) -> None:
    for words in PAGES[1:]:
        if words != ["fit"]:
            assert "--json" in shell.ok(*words, "--help"), words


def test_tables_for_pipes_terminals_and_narrow_ones(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [["rbm", "Restricted Boltzmann machine", "pcd, cd, tempering, ratio_matching, nce"]]
    headers = ["model", "what it is", "learns by"]
    console.table(headers, rows)
    assert capsys.readouterr().out.splitlines()[1].split("  ")[-1] == rows[0][-1]  # one line: grep finds it
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    for columns in (40, 80):
        monkeypatch.setenv("COLUMNS", str(columns))
        console.table(headers, rows)
        lines = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
        assert max(len(line) for line in lines) <= columns
        assert ("learns by: pcd, cd, tempering," in " ".join(lines)) is (columns == 40)
        assert "ratio_matching" in " ".join(lines)


def test_errors_are_broken_between_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    text = console.wrapped(
        "error: Interrupted. What was learned is in a folder; go on with:\n  latentia fit " + "x" * 60
    )
    *message, command = text.splitlines()
    assert max(map(len, message)) <= 40
    assert command == "  latentia fit " + "x" * 60  # to be copied


def test_nothing_is_shown_without_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    with console.working("something long"):
        pass
    assert capfd.readouterr() == ("", "")


@pytest.mark.skipif(os.name != "posix", reason="pseudo-terminals of POSIX")
@pytest.mark.parametrize("quiet", [False, True])
def test_progress_on_a_real_terminal_and_none_with_quiet(quiet: bool) -> None:
    code = (
        "import time\nfrom latentia.commands.console import working\n"
        f"with working('long', quiet={quiet}):\n    time.sleep(0.3)"
    )
    shown = _on_a_terminal([sys.executable, "-c", code])
    assert ("long" in shown) is not quiet


def _on_a_terminal(command: list[str]) -> str:
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"})
    os.close(theirs)
    process.wait(timeout=60)
    read: list[Any] = []
    try:
        while chunk := os.read(ours, 65536):
            read.append(chunk)
    except OSError:
        pass  # the other end is closed: all was read
    os.close(ours)
    return b"".join(read).decode()


def test_a_reader_that_has_enough_is_no_error() -> None:
    command = f"set -o pipefail; '{sys.executable}' -m latentia datasets --json | true; echo $?"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
    assert done.stderr == ""
