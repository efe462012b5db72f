"""Completion in real shells: the script is sourced, and its function asked what it would offer."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from latentia.cli import cli
from latentia.commands import signatures
from latentia.commands.completion import SHELLS
from latentia.registry import FAMILIES

from .conftest import Shell

BASH = shutil.which("bash")
SOURCE = Path(__file__).parents[2] / "src"


class Bash:
    """A bash with the completion loaded and ``latentia`` on its path."""

    def __init__(self, folder: Path, script: str):
        program = folder / "bin" / "latentia"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m latentia "$@"\n')
        program.chmod(0o755)
        (folder / "completion.bash").write_text(script)
        self.folder = folder
        path = os.pathsep.join([str(program.parent), os.environ["PATH"]])
        python = os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])
        self.environment = {**os.environ, "PATH": path, "PYTHONPATH": python}

    def __call__(self, line: str) -> list[str]:
        """What TAB offers at the end of a line."""
        words = line + ("''" if line.endswith(" ") else "")
        code = (
            "source completion.bash\n"
            f"COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))\n"
            'function compopt { echo "@$2"; }\n'
            '_latentia_completion latentia; printf "%s\\n" "${COMPREPLY[@]}"'
        )
        command = [str(BASH), "--norc", "--noprofile", "-c", code]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=True
        )
        assert done.stderr == ""
        return done.stdout.split()


@pytest.fixture(scope="module")
def bash(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> Bash:
    if BASH is None:
        pytest.skip("no bash here")
    return Bash(tmp_path_factory.mktemp("bash"), shell.ok("completion", "bash"))


def test_commands_and_models(bash: Bash) -> None:
    assert bash("latentia ") == list(cli.commands)
    assert bash("latentia ev") == ["evaluate"]
    assert bash("latentia fit ") == [entry.name for entry in FAMILIES]
    assert bash("latentia explain dee") == ["deep-energy"]


def test_options_of_the_chosen_model(bash: Bash) -> None:
    rbm, mixture = bash("latentia fit rbm digits --"), bash("latentia fit gaussian-mixture digits --")
    assert {"--n-components", "--binarize", "--out", "--resume", "--json"} <= set(rbm)
    assert "--covariance-type" in mixture
    assert "--binarize" not in mixture
    assert bash("latentia fit rbm digits --sch") == ["--schedule"]


def test_values(bash: Bash) -> None:
    assert bash("latentia fit rbm digits --objective ") == ["cd", "pcd", "tempering"]  # those of its description
    assert bash("latentia fit rbm digits --objective nc") == ["nce"]  # any other by its beginning
    assert "denoising_score_matching" in bash("latentia fit deep-energy patches --objective d")
    assert bash("latentia fit rbm digits --schedule c") == ["constant", "cosine"]
    assert bash("latentia fit rbm digits --visible s") == ["spin"]
    assert bash("latentia completion z") == ["zsh"]


def test_data_and_recipes(bash: Bash) -> None:
    from latentia.datasets import available
    from latentia.recipes import RECIPES

    assert bash("latentia fit rbm ") == [info.name for info in available()]
    assert bash("latentia encode run mn") == ["mnist"]
    assert bash("latentia reproduce ") == list(RECIPES)
    assert bash("latentia fit rbm ./mi") == ["@default"]  # no data set: a file, which bash knows how to complete
    assert bash("latentia report ") == ["@default"]


def test_a_completion_is_quick_because_it_imports_nothing_heavy() -> None:
    words = {"COMP_WORDS": "latentia\nfit\nfields-of-experts\ndigits\n--", "COMP_CWORD": "4"}
    code = (
        "import sys\ntry:\n    from latentia.cli import cli; cli(prog_name='latentia')\n"
        "except SystemExit:\n    print('heavy:', {'jax', 'numpy', 'sklearn'} & set(sys.modules) or None)"
    )
    environment = {**os.environ, **words, "_LATENTIA_COMPLETE": "bash_complete"}
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert "plain,--n-filters" in done.stdout
    assert done.stdout.endswith("heavy: None\n")
    assert time.perf_counter() - begin < 5


@pytest.mark.parametrize("name", SHELLS)
def test_every_shell_gets_a_script(shell: Shell, name: str) -> None:
    script = shell.ok("completion", name)
    assert "_LATENTIA_COMPLETE" in script
    assert shell.json("completion", name) == {"shell": name, "script": script.removesuffix("\n")}
    program = shutil.which(name)
    if program:
        subprocess.run([program, "-n"], input=script, text=True, check=True)  # it parses


def test_fish_completes_too(bash: Bash, shell: Shell) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("no fish here")
    (bash.folder / "completion.fish").write_text(shell.ok("completion", "fish"))
    code = 'source completion.fish; complete -C "latentia fit gaussian-m"'
    done = subprocess.run(
        [fish, "--no-config", "-c", code],
        cwd=bash.folder,
        env=bash.environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "gaussian-mixture\tMixture of Gaussians\n"


def test_an_unknown_shell(shell: Shell) -> None:
    assert "'bash', 'zsh', 'fish'" in shell.refused("completion", "csh")


def test_names_come_from_the_source() -> None:
    from latentia.learning import OBJECTIVES

    assert signatures.keys("latentia.learning", "OBJECTIVES") == list(OBJECTIVES)
