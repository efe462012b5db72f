"""The files beside the source: how to cite, how to report a weakness, what a type checker is told, what CI does."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

import latentia
from latentia.registry import FAMILIES

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "latentia"
CI = ROOT / ".ci"
SCRIPTS = sorted(path for path in CI.iterdir() if path.is_file())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


# -- citation ---------------------------------------------------------------------------------------


def citation():
    return yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def released(changelog: str, version: str) -> str | None:
    """The date of a version in the changelog, None while it is not released."""
    (date,) = re.findall(rf"^## {re.escape(version)} \((unreleased|\d{{4}}-\d\d-\d\d)\)$", changelog, re.MULTILINE)
    return None if date == "unreleased" else date


def test_the_citation_is_of_this_version():
    found = citation()
    assert found["version"] == latentia.__version__
    date = released((ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), latentia.__version__)
    assert (str(found["date-released"]) if "date-released" in found else None) == date


def test_dates_come_from_the_changelog():
    assert released("# C\n\n## 1.2.0 (2026-01-31)\n\n## 1.1.0 (unreleased)\n", "1.2.0") == "2026-01-31"
    assert released("## 1.2.0 (unreleased)\n", "1.2.0") is None


def test_the_citation_is_valid():
    """What the Citation File Format 1.2.0 asks of a file like ours: these keys, all text, an author with a name."""
    found = citation()
    assert found.keys() >= {"cff-version", "message", "title", "authors"}
    plain = {"cff-version", "message", "title", "abstract", "type", "version", "license", "date-released", "doi"}
    assert found.keys() - plain == {"authors", "keywords"}
    assert all(isinstance(found[key], str) and found[key] for key in (found.keys() & plain) - {"date-released"})
    assert found["cff-version"] == "1.2.0"
    assert found["type"] == "software"
    assert found["license"] == PROJECT["license"]
    assert found["authors"] == PROJECT["authors"]
    assert len(found["keywords"]) == len(set(found["keywords"]))
    assert all(isinstance(word, str) for word in found["keywords"])


# -- security ---------------------------------------------------------------------------------------


def test_the_security_page_invents_no_address_and_supports_this_version():
    text = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    assert not re.search(r"\S@\S|https?:", text)
    assert "private vulnerability reporting" in text
    assert "the latest release" in text


def dotted(node: ast.AST) -> str:
    """``np.load`` of the expression; "" for what is no name with its dots, "?.load" for ``open(p).load``."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value) or '?'}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unsafe(source: str) -> list[tuple[str, int]]:
    """(what, line) of everything that could execute what a file holds."""
    tree = ast.parse(source)
    found = []
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        wrong = {"pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"} & {n.split(".")[0] for n in names}
        found += [(name, node.lineno) for name in wrong]
        if isinstance(node, ast.Call):
            name = dotted(node.func)
            options = {k.arg: k.value.value for k in node.keywords if isinstance(k.value, ast.Constant)}
            wrong = name in ("eval", "exec", "compile", "yaml.load", "os.system") or options.get("shell") is True
            wrong |= name.endswith((".extractall", ".extract"))
            wrong |= name in ("np.load", "numpy.load") and options.get("allow_pickle") is not False
            found += [(name, node.lineno)] if wrong else []
    return found


def test_nothing_in_the_source_could_execute_a_file():
    sources = {path.relative_to(PACKAGE).as_posix(): path.read_text("utf-8") for path in PACKAGE.rglob("*.py")}
    found = {name: [what for what, _ in wrong] for name, text in sources.items() if (wrong := unsafe(text))}
    assert found == {"datasets/formats.py": ["pickle"]}  # CIFAR's batches, by an unpickler that knows only arrays
    base = re.findall(r"^class (\w+)\(pickle\.Unpickler\)", sources["datasets/formats.py"], re.MULTILINE)
    assert base == ["_ArrayUnpickler"]
    assert not re.search(r"pickle\.(load|loads|Unpickler\()", sources["datasets/formats.py"])


@pytest.mark.parametrize(
    "line",
    [
        "np.load(p)",
        "np.load(p, allow_pickle=True)",
        "import pickle",
        "from joblib import load",
        "eval(text)",
        "archive.extractall(folder)",
        "open_tar(p).extractall(folder)",
        "subprocess.run(text, shell=True)",
    ],
)
def test_what_could_execute_a_file_is_noticed(line):
    assert len(unsafe(line)) == 1
    assert unsafe("np.load(p, allow_pickle=False)\nast.literal_eval(t)\nre.compile(t)") == []


# -- types ------------------------------------------------------------------------------------------


def test_type_checkers_are_told_the_truth():
    """Every name of the stub is the one that the registry gives; what is missing there is Any, not an error."""
    tree = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom) and node.module != "typing"]
    told = {alias.asname: (node.module, alias.name) for node in imports for alias in node.names}
    families = {entry.class_name: tuple(entry.target.split(":")) for entry in FAMILIES}
    others = {name: ("latentia", name) for name in latentia._MODULES}
    others |= {name: (module, name) for name, module in latentia._FUNCTIONS.items()}
    assert told.items() <= (families | others).items()
    assert others.keys() <= told.keys()
    assert len(told.keys() & families.keys()) >= 17
    assert [node.name for node in tree.body if isinstance(node, ast.FunctionDef)] == ["__getattr__"]


# -- continuous integration -------------------------------------------------------------------------


def jobs():
    return yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8"))["jobs"]


def test_every_supported_pair_of_python_and_jax_is_tested():
    specifiers = pytest.importorskip("packaging.specifiers")
    matrix = jobs()["tests"]["strategy"]["matrix"]
    python, jax = matrix["python"], matrix["jax"]
    assert all(isinstance(version, str) for version in python + jax)  # 3.10 as a number would be 3.1
    wanted = specifiers.SpecifierSet(PROJECT["requires-python"])
    assert python == [f"3.{minor}" for minor in range(11, 14)]
    assert [v for v in ("3.9", "3.10", "3.11") if v in wanted] == ["3.11"]
    (bounds,) = (line.removeprefix("jax") for line in PROJECT["dependencies"] if re.match(r"jax\W", line))
    assert jax == [f"0.{minor}" for minor in range(30) if f"0.{minor}.5" in specifiers.SpecifierSet(bounds)]
    assert matrix["exclude"] == [{"python": "3.11", "jax": "0.11"}]  # that JAX needs Python 3.12


def test_every_job_runs_a_script_of_ours_with_the_versions_of_its_matrix():
    for job in jobs().values():
        assert job["timeout-minutes"] <= 90
        assert job["env"]["PIP_ARGS"] == "jax~=${{ matrix.jax }}.0"
        assert job["strategy"]["fail-fast"] is False
        python, script = (step for step in job["steps"] if "checkout" not in step.get("uses", ""))
        assert python["with"]["python-version"] == "${{ matrix.python }}"
        assert ROOT / script["run"] in SCRIPTS
    assert {job["steps"][-1]["run"] for job in jobs().values()} == {".ci/run", ".ci/check-wheel"}
    text = (ROOT / ".github" / "workflows" / "ci.yml").read_text(encoding="utf-8")
    assert not re.search(r"https?:|\bpypi\b|secrets\.", text)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_can_be_run(script):
    assert os.access(script, os.X_OK)
    subprocess.run(["bash", "-n", script], check=True)
    assert "set -" in script.read_text(encoding="utf-8")


class Machine:
    """A machine with these programs only; those that are ours say that they were called."""

    def __init__(self, folder: Path):
        self.folder, self.log = folder, folder / "calls.log"
        for name in ("bash", "env", "id", "mktemp", "tail", "rm", "timeout", "touch", "true"):
            (folder / name).symlink_to(shutil.which(name) or pytest.skip(f"there is no {name}"))

    def add(self, name: str, code: str = "") -> None:
        path = self.folder / name
        path.unlink(missing_ok=True)
        path.write_text(f'#!/bin/sh\necho "{name} $*" >> "{self.log}"\n{code}\n')
        path.chmod(0o755)

    def install(self) -> tuple[list[str], str]:
        """What was called, and what was said, by a script that must not fail."""
        environment = {"PATH": str(self.folder), "TMPDIR": str(self.folder)}
        done = subprocess.run([CI / "install-tools"], env=environment, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr
        assert done.stdout == ""
        return self.log.read_text().splitlines() if self.log.exists() else [], done.stderr


@pytest.fixture
def machine(tmp_path):
    machine = Machine(tmp_path)
    machine.add("id", "echo 0")
    return machine


def test_tools_that_are_there_are_left_alone(machine):
    for name in ("google-chrome", "zsh", "fish", "apt-get"):
        machine.add(name)
    assert machine.install() == ([], "")


#: An apt-get that installs a program of the package's name, or fails for one of them.
APT = """for word in "$@"; do last=$word; done
if [ "$last" = zsh ]; then echo 'E: Unable to locate package zsh'; exit 100; fi
touch "$(dirname "$0")/$last"; /bin/chmod +x "$(dirname "$0")/$last\""""


def test_what_is_missing_is_installed_and_what_fails_is_named(machine):
    machine.add("google-chrome")
    machine.add("apt-get", APT.replace("$(dirname", "$(/usr/bin/dirname"))
    called, said = machine.install()
    installed = [line.split()[-1] for line in called if " install " in line]
    assert installed == ["zsh", "fish"]
    assert said == "Not installed: zsh (E: Unable to locate package zsh). Tests that need it are skipped.\n"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (("id", "echo 1000"), "neither root nor sudo without a password"),
        (("sudo", "exit 1"), "there is no apt-get"),
    ],
)
def test_a_machine_without_means_is_no_failure(machine, change, reason):
    machine.add(*change)
    called, said = machine.install()
    assert f"chromium zsh fish ({reason})" in said
    assert said.count("\n") == 1
    assert not [line for line in called if "install" in line]


def test_sudo_never_asks_for_a_password(machine):
    machine.add("id", "echo 1000")
    machine.add("sudo", 'shift; exec "$@"')
    machine.add("apt-get", "exit 100")
    called, said = machine.install()
    assert all(line.startswith("sudo -n ") for line in called if line.startswith("sudo"))
    assert len([line for line in called if line.startswith("sudo -n env") and " install " in line]) == 3
    assert said.count("Not installed") == 3


# -- make -------------------------------------------------------------------------------------------


def test_make_installs_once_and_anew_when_something_changes(tmp_path):
    make = shutil.which("make") or pytest.skip("there is no make")
    for name in ("Makefile", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    log = tmp_path / "pip.log"
    stub = f'#!/bin/sh\ncase "$*" in *pip*install*) echo "$*" >> "{log}";; esac\n'
    python = tmp_path / "python"  # makes an environment with a Python that only writes down what pip was told
    python.write_text('#!/bin/sh\ncase "$*" in *venv*) mkdir -p .venv/bin; cp stub .venv/bin/python;; esac\n')
    (tmp_path / "stub").write_text(stub)
    for path in (python, tmp_path / "stub"):
        path.chmod(0o755)

    def installs(*arguments, changed=None):
        """What pip was told this time."""
        for path in tmp_path.rglob("*"):  # all that was there is older than what comes, however coarse the clock
            os.utime(path, ns=(path.stat().st_mtime_ns - 10**9,) * 2)
        if changed:
            os.utime(tmp_path / changed)
        log.write_text("")
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "PIP_"))}
        command = [make, f"PYTHON={python}", ".venv/.installed-test", *arguments]
        subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
        return log.read_text().splitlines()

    (first,) = installs()
    assert first.endswith("--editable .[test]")
    assert installs() == []
    assert installs(changed="pyproject.toml") == [first]
    assert installs() == []
    (pinned,) = installs("PIP_ARGS=jax~=0.11.0")
    assert pinned.split()[-3:] == ["jax~=0.11.0", "--editable", ".[test]"]
    assert installs("PIP_ARGS=jax~=0.11.0") == []
    assert installs() == []
    assert len(installs("PIP_ARGS=jax~=0.10.0")) == 1
