"""The wheel: what is in it, and that it works where the source is not."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import latentia

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "latentia"

#: A first use: fit, report, where the package lies, and what its report draws on.
FIRST_USE = """
import json, sys
from importlib.metadata import version
import latentia
from latentia.report import build_report

rows = latentia.datasets.load("digits").X[:60]
rbm = latentia.RBM(n_components=3, binarize="sample", n_epochs=1, batch_size=20, random_state=0, run_dir="run")
rbm.fit(rows)
found = {"report": str(build_report("run")), "file": latentia.__file__, "version": version("latentia")}
print(json.dumps({**found, "path": sys.path}))
"""

#: What a user's type checker must know, and what it must object to.
TYPED = """
import numpy as np

import latentia
from latentia import RBM, datasets, plot

rows = datasets.load("digits").X
reveal_type(rows)
reveal_type(RBM(n_components=3).fit(rows))
reveal_type(RBM(n_components=3).fit(rows).transform(np.zeros((2, 64))))
reveal_type(latentia.VAE)
latentia.RBM(n_component=3)
"""


def run(*command, cwd, **changes):
    """The command's result; what it said, if it failed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | changes
    done = subprocess.run(list(map(str, command)), cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory) -> Path:
    """The source archive, and the wheel that is built from nothing else."""
    for tool in ("build", "hatchling"):
        pytest.importorskip(tool)
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    return folder


@pytest.fixture(scope="module")
def wheel(archives) -> zipfile.ZipFile:
    (path,) = archives.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def python(archives, tmp_path_factory) -> Path:
    """The interpreter of a new environment with the wheel, and these tests' environment for what it depends on.

    Folders that a ``.pth`` file names are searched, but their own ``.pth`` files are not read: so the source, which
    such a file adds to this environment, is out of sight.
    """
    folder = tmp_path_factory.mktemp("environment") / "with a space"
    run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
    places = sysconfig.get_paths(vars={"base": str(folder), "platbase": str(folder)})
    interpreter = Path(places["scripts"]) / Path(sys.executable).name
    options = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check")
    run(
        sys.executable,
        "-m",
        "pip",
        "--python",
        interpreter,
        "install",
        *options,
        *archives.glob("*.whl"),
        cwd=archives,
    )
    dependencies = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(places["purelib"]) / "dependencies.pth").write_text("\n".join(sorted(dependencies)) + "\n")
    return interpreter


def test_the_wheel_holds_the_whole_package_and_nothing_else(wheel):
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    package = {path for path in PACKAGE.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert names == {path.relative_to(PACKAGE.parent).as_posix() for path in package}
    assert {"latentia/py.typed", "latentia/__init__.pyi"} < names
    templates = [name for name in names if "/report/templates/" in name]
    assert {Path(name).suffix for name in templates} == {".jinja", ".js", ".css"}
    assert all(wheel.getinfo(name).file_size > 500 for name in templates)


def test_the_wheels_description(wheel):
    (folder,) = {name.partition("/")[0] for name in wheel.namelist()} - {"latentia"}
    assert folder == f"latentia-{latentia.__version__}.dist-info"
    assert wheel.read(f"{folder}/licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert b"latentia = latentia.cli:main" in wheel.read(f"{folder}/entry_points.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    described = email.message_from_bytes(wheel.read(f"{folder}/METADATA"))
    assert described["License-Expression"] == "Apache-2.0"
    assert described["Requires-Python"] == project["requires-python"]
    assert "Ten lines" in described.get_payload()
    needed = [line for line in described.get_all("Requires-Dist", []) if "extra ==" not in line]
    bare = re.compile(r"[\w.-]+")
    assert {bare.match(line)[0] for line in needed} == {bare.match(line)[0] for line in project["dependencies"]}


def test_the_source_archive_has_what_the_tests_need(archives):
    (path,) = archives.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for wanted in ("Makefile", "CITATION.cff", "SECURITY.md", "LICENSE", ".ci/run", "docs/getting-started.md"):
        assert wanted in names
    for folder in ("src", "tests", "benchmarks"):
        scripts = {path.relative_to(ROOT).as_posix() for path in (ROOT / folder).rglob("*.py")}
        assert scripts <= names
    assert not [name for name in names if re.search(r"__pycache__|\.venv|/gallery/|\.safetensors$", name)]


def test_the_wheel_works_where_the_source_is_not(python, tmp_path):
    found = json.loads(run(python, "-c", FIRST_USE, cwd=tmp_path).splitlines()[-1])
    assert Path(found["file"]).is_relative_to(python.parents[1])
    assert found["version"] == latentia.__version__
    assert str(PACKAGE.parent) not in found["path"]
    page = (tmp_path / found["report"]).read_text(encoding="utf-8")
    for template in ("report.css", "report.js"):
        first = (PACKAGE / "report" / "templates" / template).read_text(encoding="utf-8").strip()
        assert first[-200:] in page
    command = python.parent / "latentia"
    assert latentia.__version__ in run(command, "--version", cwd=tmp_path)


def test_a_users_type_checker_sees_types(python, tmp_path):
    pytest.importorskip("pyright")
    page = tmp_path / "user.py"
    page.write_text(TYPED, encoding="utf-8")
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", str(python), str(page)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        pytest.skip(f"pyright cannot run here: {(done.stderr or done.stdout).strip()[-200:]}")
    said = [(each["severity"], each["message"]) for each in json.loads(done.stdout)["generalDiagnostics"]]
    shown = [message.partition(" is ")[2].strip('"') for severity, message in said if severity == "information"]
    rows, fitted, codes, vae = shown
    assert rows.startswith(("ndarray", "NDArray"))
    assert fitted == "RBM"
    assert codes.startswith("ndarray")
    assert vae == "type[VAE]"
    (error,) = [message for severity, message in said if severity == "error"]
    assert "n_component" in error
