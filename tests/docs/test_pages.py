"""The documentation: its code runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import shlex
from pathlib import Path

import click
import matplotlib
import pytest

from latentia import learning, likelihood, registry
from latentia.cli import cli
from latentia.core.domains import KINDS

from .pages import DOCS, GENERATED, PAGES, ROOT, code_blocks, name

#: The lectures train for minutes. Building the documentation runs them, in full, and stops at what does not hold.
LECTURES = DOCS / "tutorials"
RUN = [
    page
    for page in PAGES
    if page.name != "CONTRIBUTING.md" and LECTURES not in page.parents and code_blocks(page, "python")
]
EXECUTE = runpy.run_path(str(DOCS / "execute.py"), run_name="execute")
LINK = re.compile(r"(?<!`)\[[^\]\[]*\]\(([^)\s]+)\)")
SMALL = {"n_temperatures": 100, "n_chains": 16, "n_burn_in": 20, "n_steps": 20}


@pytest.fixture
def quick_likelihoods(monkeypatch):
    """Small efforts of annealing, except where a page is about them and names its method."""

    def quickly(thorough):
        def quick(*args, **options):
            named = options.get("method", "auto") != "auto"
            return thorough(*args, **(options if named else {**options, **SMALL}))

        return quick

    for function in ("log_likelihood", "log_z"):
        monkeypatch.setattr(likelihood, function, quickly(getattr(likelihood, function)))


@pytest.mark.parametrize("page", RUN, ids=name)
def test_code_runs(page, tmp_path, monkeypatch, quick_likelihoods):
    """In order and in one namespace; every figure that a block leaves open has its link in the page."""
    matplotlib.use("agg")
    from matplotlib import pyplot

    monkeypatch.chdir(tmp_path)
    namespace = {"__name__": "page"}
    for code, line, names in EXECUTE["blocks"](page.read_text(encoding="utf-8")):
        source = "\n" * (line - 1) + code  # so that a traceback shows the page's line
        exec(compile(source, str(page), "exec"), namespace)
        figures = len(pyplot.get_fignums())
        pyplot.close("all")
        assert figures == len(names), f"line {line} draws {figures} figures, and {len(names)} links follow"


@pytest.mark.parametrize("page", sorted(LECTURES.glob("*.md")), ids=name)
def test_code_of_lectures_is_python_and_its_names_exist(page):
    """What can be told without training: it compiles, and what it imports from the package is there."""
    for code, line, _ in EXECUTE["blocks"](page.read_text(encoding="utf-8")):
        tree = ast.parse("\n" * (line - 1) + code, str(page))
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("latentia"):
                for each in node.names:
                    whole = f"{node.module}.{each.name}"
                    there = hasattr(importlib.import_module(node.module), each.name)
                    assert there or importlib.util.find_spec(whole), f"line {node.lineno}: no {whole}"


def commands(page):
    for block in code_blocks(page, "bash"):
        for line in block.code.splitlines():
            words = shlex.split(line, comments=True)
            if words and words[0] == "latentia":
                yield line, words[1:]


def parse(words):
    """Walk down the groups; then the command must know every option and take as many arguments."""
    command, context = cli, click.Context(cli, info_name="latentia")
    while isinstance(command, click.Group) and words and not words[0].startswith("-"):
        found = command.get_command(context, words[0])
        assert found is not None, f"there is no command {words[0]!r}"
        command, context, words = found, click.Context(found, parent=context, info_name=words[0]), words[1:]
    command.make_parser(context).parse_args(list(words))


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_commands_exist(page, monkeypatch):
    example = registry.Family(
        "bernoulli-mixture", "latentia.models.gaussian_mixture:GaussianMixture", "", "", {}, "binary"
    )
    monkeypatch.setattr(registry, "FAMILIES", (*registry.FAMILIES, example))
    for line, words in commands(page):
        try:
            parse(words)
        except click.UsageError as error:
            pytest.fail(f"{line}: {error.format_message()}")


def test_a_wrong_command_is_noticed():
    with pytest.raises(click.UsageError):
        parse(["evaluate", "runs/a", "--temperature-count", "3"])


def anchors(page):
    titles = re.findall(r"^#+ (.+?)\s*$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    families = {GENERATED / f"{entry.name}.md" for entry in registry.FAMILIES} | {
        GENERATED / f"{n}.md" for n in ("index", "objectives")
    }
    whole = page.read_text(encoding="utf-8")
    drawn = {picture for *_, names in EXECUTE["blocks"](whole) for picture in names}
    text = re.sub(r"^```.*?^```", "", whole, flags=re.MULTILINE | re.DOTALL)
    for link in LINK.findall(text):
        if re.match(r"\w+:", link):
            continue
        if "gallery/" in link:  # drawn when the documentation is built
            assert Path(link).stem in drawn, link
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target in families or target.exists(), link
        if anchor and target not in families:
            assert anchor in anchors(target), link


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_pages_speak_of_the_project_alone(page):
    text = page.read_text(encoding="utf-8")
    assert not re.search(r"/work/|/root/|/tmp/|/home/|TODO|FIXME|pypi|conda-forge", text, re.IGNORECASE)


def test_navigation_is_complete():
    listed = set(re.findall(r": ([\w/.-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    assert listed == {page.relative_to(DOCS).as_posix() for page in PAGES if DOCS in page.parents}


def test_family_pages(tmp_path):
    script = runpy.run_path(str(DOCS / "generate.py"), run_name="generate")
    for entry in registry.FAMILIES:
        text = script["page"](entry)
        assert entry.title in text
        for parameter in entry.estimator()().get_params():
            assert f"| `{parameter}` | `" in text
        assert re.search(r"(E\(x, z\)|F\(x\)|log p\(x\)) =", text), entry.name
        (tmp_path / "page.md").write_text(text, encoding="utf-8")
        for _, words in commands(tmp_path / "page.md"):
            parse(words)
        assert f"({entry.name}.md)" in script["overview"]()
        ((code, _, pictures),) = EXECUTE["blocks"](text)  # one example, which draws one picture
        assert pictures == [f"family-{entry.name}"]
        assert f"model = {entry.class_name}(" in code
        calls = [node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
        call = next(c for c in calls if isinstance(c.func, ast.Name) and c.func.id == entry.class_name)
        given = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        entry.estimator()(**given)


def test_every_how_to_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    wanted = {"choose-a-model", "choose-an-objective", "gpu", "big-data", "your-own-energy", "logging"}
    wanted |= {"ising-and-hopfield"}
    assert {path.stem for path in (DOCS / "how-to").glob("*.md")} == wanted
    section = text[text.index("- How to:") : text.index("- Families:")]
    assert all(f"how-to/{stem}.md" in section for stem in wanted)
    assert "tutorials/likelihood.md" in section


@pytest.mark.parametrize("stem", ["rbm", "deep", "sparse", "autoencoders", "energies", "natural-patches"])
def test_a_lecture_has_all_its_parts(stem):
    text = (DOCS / "tutorials" / f"{stem}.md").read_text(encoding="utf-8")
    assert "$$" in text
    assert "gallery/" in text
    assert "**What to see.**" in text
    assert text.index("## Exercises") < text.index("## References")
    exercises = text[text.index("## Exercises") : text.index("## References")]
    hints = exercises.count('??? tip "Hint"')
    assert 2 <= hints == len(re.findall(r"^\d\. \*\*", exercises, re.MULTILINE))


def test_pictures_have_one_name_each():
    names = [picture for page in PAGES for *_, some in EXECUTE["blocks"](page.read_text()) for picture in some]
    assert len(names) == len(set(names)) > 15


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_formulas_can_be_set(page):
    """All of them become MathML, and none falls back to plain text."""
    converter = pytest.importorskip("latex2mathml.converter")
    text = re.sub(r"^```.*?^```|`[^`]*`", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for formula in re.findall(r"\$\$(.+?)\$\$|(?<![\\$\w])\$(\S(?:[^$\n]|\n(?!\n))*?)\$(?![\w$])", text, re.DOTALL):
        assert "<math" in converter.convert("".join(formula))
        assert "\\" not in re.sub(r"<annotation.*?</annotation>", "", converter.convert("".join(formula)))


def test_public_names_are_in_the_reference():
    import latentia

    reference = "".join(path.read_text(encoding="utf-8") for path in (DOCS / "reference").glob("*.md"))
    families = {entry.class_name for entry in registry.FAMILIES}  # their pages are generated
    for public in {*latentia._MODULES, *latentia._FUNCTIONS} - families:
        assert re.search(rf"latentia\.(\w+\.)*{public}\b", reference), public


def test_the_page_of_what_learns_what():
    script = runpy.run_path(str(DOCS / "generate.py"), run_name="generate")
    text = script["matrix"]()
    table = text[: text.index("## What they are")]
    rows = {line.split("`")[1]: line.split("|")[2:-1] for line in table.splitlines() if line.startswith("| `")}
    assert set(rows) == set(learning.OBJECTIVES)
    column = {entry.name: i for i, entry in enumerate(registry.FAMILIES)}
    marks = {(f, o): rows[o][i].strip() for f, i in column.items() for o in rows}
    assert set(marks.values()) == {"✓", "·"}
    assert marks["rbm", "cd"] == marks["deep-energy", "sliced_score_matching"] == marks["dbm", "vnce"] == "✓"
    assert marks["rbm", "score_matching"] == marks["ica", "vnce"] == marks["ppca", "ratio_matching"] == "·"
    assert "`ratio_matching`: it works on binary or spin data, not on real" in text


def test_the_changelog_names_this_version():
    from latentia import __version__

    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_the_architecture_page_gets_its_tables_from_the_code():
    script = runpy.run_path(str(DOCS / "generate.py"), run_name="generate")
    page = script["on_page_markdown"]((DOCS / "architecture.md").read_text(encoding="utf-8"))
    assert "<!--" not in page
    assert "| `Conditional` | `given` |" in page
    for domain, kind in KINDS.items():
        assert f"| `{domain}` | {kind.values} |" in page
