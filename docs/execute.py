"""Runs the code of the pages when the documentation is built, and shows what it prints and draws.

    python docs/execute.py docs/tutorials/rbm.md      runs one page and says what it made

``mkdocs build`` calls it as a hook. The blocks of a page run in order in one namespace. What a block prints appears
below it. The figures that it leaves open become the pictures whose links follow it, in order, once for the light
and once for the dark theme:

    ![Filters of digits](../gallery/rbm-filters.png)

A link without a figure, a figure without a link, and an error in the code stop the build. What a page made is
kept in ``docs/gallery`` (which git ignores) until its code or the package changes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from html import unescape
from importlib.metadata import version
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import results

DOCS = Path(__file__).resolve().parent
GALLERY = DOCS / "gallery"
KEPT = GALLERY / ".runs"  # names with a dot do not go into the site
SOURCE = DOCS.parent / "src" / "latentia"
#: Two processes, because the pages are many and the machine may be small.
PROCESSES = 2
#: Pictures are this many times denser than they are shown.
DENSITY = 2

_BLOCK = re.compile(r"^```python[^\n]*\n(?P<code>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_PICTURE = re.compile(r"!\[(?P<alt>[^\]]*)\]\((?P<path>[./]*gallery/(?P<name>[\w-]+))\.png\)")


def blocks(text: str) -> list[tuple[str, int, list[str]]]:
    """(code, its first line, names of the pictures that follow it) of every block of a page."""
    found = list(_BLOCK.finditer(text))
    ends = [match.start() for match in found[1:]] + [len(text)]
    return [
        (match["code"], text.count("\n", 0, match.start("code")) + 1, _names(text[match.end() : end]))
        for match, end in zip(found, ends, strict=False)  # without blocks there is an end all the same
    ]


def _names(text: str) -> list[str]:
    return [match["name"] for match in _PICTURE.finditer(text)]


def run(page: Path) -> dict[str, Any]:
    """Execute a page in a folder of its own: what its blocks print, and the sizes of its pictures."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    namespace: dict[str, Any] = {"__name__": "page"}
    made: dict[str, Any] = {"outputs": [], "pictures": {}}
    here = os.getcwd()
    with tempfile.TemporaryDirectory() as folder, matplotlib.rc_context(_style()):
        os.chdir(folder)
        try:
            for code, line, names in blocks(page.read_text(encoding="utf-8")):
                printed = io.StringIO()
                with contextlib.redirect_stdout(printed):
                    exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
                made["outputs"].append(printed.getvalue().rstrip())
                figures = [pyplot.figure(number) for number in pyplot.get_fignums()]
                if len(figures) != len(names):
                    raise SystemExit(
                        f"{page}: the block at line {line} draws {len(figures)} figures, and {len(names)} links to "
                        f"the gallery follow it."
                    )
                made["pictures"] |= {name: _save(*pair) for name, *pair in zip(names, names, figures, strict=True)}
                pyplot.close("all")
        finally:
            os.chdir(here)
    return made


def _style() -> dict[str, Any]:
    """The colours of the package's own pictures, so that a figure drawn by hand looks like them."""
    from cycler import cycler

    from latentia.report.theme import INK, MUTED, RULE, SERIES

    return {
        "figure.figsize": (6.2, 3.2),
        "figure.constrained_layout.use": True,
        "font.size": 10,
        "text.color": INK,
        "axes.titlecolor": INK,
        "axes.titlesize": 11,
        "axes.edgecolor": RULE,
        "axes.labelcolor": MUTED,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.prop_cycle": cycler(color=SERIES),
        "axes.facecolor": "none",
        "xtick.color": MUTED,
        "ytick.color": MUTED,
        "legend.frameon": False,
        "grid.color": RULE,
        "image.cmap": "gray",
        "image.interpolation": "nearest",
    }


def _save(name: str, figure: Any) -> int:
    """Write both pictures; returns the width in which they are shown."""
    GALLERY.mkdir(parents=True, exist_ok=True)
    path = GALLERY / f"{name}.png"
    options = {"dpi": 100 * DENSITY, "transparent": True, "bbox_inches": "tight", "metadata": {"Software": None}}
    figure.savefig(path, **options)
    darken(figure)
    figure.savefig(GALLERY / f"{name}-dark.png", **options)
    return _width(name)


def _width(name: str) -> int:
    """Of a picture as it is shown; a PNG's header has it."""
    return int.from_bytes((GALLERY / f"{name}.png").read_bytes()[16:20], "big") // DENSITY


def darken(figure: Any) -> None:
    """Exchange the theme's inks for those of the dark theme, wherever an artist uses them."""
    from matplotlib.colors import to_hex, to_rgb, to_rgba

    from latentia.report.theme import BLUE, INK, MUTED, PAPER, RULE

    light = "#e6e9ef"
    dark = {INK: light, "#000000": light, MUTED: "#a3adba", RULE: "#454c58", PAPER: "#1e2129", BLUE: "#56b4e9"}
    for artist in figure.findobj():
        for kind in ("color", "edgecolor", "facecolor", "markeredgecolor", "markerfacecolor"):
            if not (hasattr(artist, f"get_{kind}") and hasattr(artist, f"set_{kind}")):
                continue
            with contextlib.suppress(ValueError, TypeError):  # several colours at once stay as they are
                *_, alpha = rgba = to_rgba(getattr(artist, f"get_{kind}")())
                if alpha and to_hex(rgba) in dark:
                    getattr(artist, f"set_{kind}")((*to_rgb(dark[to_hex(rgba)]), alpha))


def digest(page: Path) -> str:
    """Of all that a page's results depend on: its code and links, the package, and this file."""
    parts = [repr(blocks(page.read_text(encoding="utf-8"))), Path(__file__).read_text(encoding="utf-8"), _package()]
    return hashlib.sha256("".join(parts).encode()).hexdigest()


@functools.cache  # once a process: somebody may be editing meanwhile
def _package() -> str:
    known = hashlib.sha256()
    for path in sorted(SOURCE.rglob("*.py")):
        known.update(path.read_bytes())
    return known.hexdigest()


def kept(page: Path) -> dict[str, Any] | None:
    """What the page made when it last ran; None if it never did."""
    file = KEPT / f"{_name(page)}.json"
    made = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {"pictures": ()}
    pictures = [GALLERY / f"{name}{end}.png" for name in made["pictures"] for end in ("", "-dark")]
    return made if "digest" in made and all(path.is_file() for path in pictures) else None


def is_fresh(page: Path) -> bool:
    """Whether what is kept is of the page and the package as they are now."""
    made = kept(page)
    return made is not None and made["digest"] == digest(page)


def _name(page: Path) -> str:
    return "-".join(page.resolve().relative_to(DOCS).with_suffix("").parts)


def run_all(pages: list[Path]) -> None:
    """Run the pages that are not kept, in processes that take one after another."""
    waiting = [page for page in pages if blocks(page.read_text(encoding="utf-8")) and not is_fresh(page)]
    # The longest first, as far as their length tells, so that no process is left with a long one at the end.
    waiting.sort(key=lambda page: len(blocks(page.read_text(encoding="utf-8"))), reverse=True)
    environment = os.environ | {"PYTHONPATH": str(SOURCE.parent), "JAX_PLATFORMS": "cpu", "XLA_FLAGS": _flags()}
    shares = [waiting[i::PROCESSES] for i in range(PROCESSES)]
    command = [sys.executable, str(Path(__file__).resolve())]
    running = [subprocess.Popen([*command, *map(str, share)], env=environment) for share in shares if share]
    if max([process.wait() for process in running], default=0):
        raise SystemExit("The code of a page failed; see above.")


def _flags() -> str:
    """Small models take far longer to compile than to run: do not optimise, as in the tests."""
    flags = ["--xla_backend_optimization_level=0", "--xla_cpu_parallel_codegen_split_count=1"]
    if version("jaxlib").startswith("0.10."):  # later ones do not know the flag, and refuse to start
        flags.append("--xla_cpu_use_fusion_emitters=false")
    return os.environ.get("XLA_FLAGS", " ".join(flags))


def show(text: str, made: dict[str, Any]) -> str:
    """The page's Markdown with what was printed below each block, and both versions of each picture."""
    outputs = iter(made["outputs"])

    def with_output(match: re.Match[str]) -> str:
        printed = next(outputs)
        return f"{match[0]}\n\n``` {{.text .output}}\n{printed}\n```" if printed else match[0]

    def both(match: re.Match[str]) -> str:
        width = made["pictures"][match["name"]]
        versions = (("", "only-light"), ("-dark", "only-dark"))
        return "".join(
            f'![{match["alt"]}]({match["path"]}{end}.png#{theme}){{ width="{width}" loading="lazy" }}'
            for end, theme in versions
        )

    return _PICTURE.sub(both, _BLOCK.sub(with_output, text))


def on_pre_build(config: Any) -> None:
    """MkDocs' hook: run what has changed, and draw the benchmarks."""
    run_all(sorted(Path(config.docs_dir).rglob("*.md")))
    draw_benchmarks()


def draw_benchmarks() -> None:
    """The picture of the page of benchmarks, unless it is there and the results are older."""
    sources = [*results.FOLDER.glob("results/*.json"), Path(results.__file__)]
    target = GALLERY / f"{results.PICTURE}.png"
    if not target.is_file() or target.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        import matplotlib

        matplotlib.use("agg")
        with matplotlib.rc_context(_style()):
            _save(results.PICTURE, results.draw())


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """MkDocs' hook: put the results into the page."""
    if results.MARKER in text:
        text = text.replace(results.MARKER, results.markdown())
        return show(text, {"outputs": [], "pictures": {results.PICTURE: _width(results.PICTURE)}})
    made = kept(Path(page.file.abs_src_path)) if _BLOCK.search(text) else None
    return text if made is None else show(text, made)


def on_page_content(html: str, **_: Any) -> str:
    """MkDocs' hook: formulas become MathML, which browsers draw without a script."""
    return _FORMULA.sub(_typeset, html)


_FORMULA = re.compile(r'<(span|div) class="arithmatex">(?:\\\(|\\\[)(.*?)(?:\\\)|\\\])</\1>', re.DOTALL)


_FUNCTION = re.compile(r"<mi>(?:log|exp|sign|min|max)</mi>(?!\s*<mo)")
_BAR = re.compile(r"<mo(>(?:&#x02016;|&#x0007C;)</mo>)")


def _typeset(match: re.Match[str]) -> str:
    from latex2mathml.converter import convert

    display = "block" if match[1] == "div" else "inline"
    formula = convert(unescape(match[2]).strip(), display=display)
    formula = _FUNCTION.sub(r'\g<0><mspace width="0.17em"/>', formula)  # log p, not logp
    formula = _BAR.sub(r'<mo stretchy="false" lspace="0" rspace="0"\1', formula)  # norms as high as a letter
    return f'<div class="formula">{formula}</div>' if display == "block" else formula


def main(pages: list[str]) -> None:
    """Run the pages and keep what they made."""
    sys.path.insert(0, str(SOURCE.parent))
    for page in (Path(page).resolve() for page in pages):
        begin = time.perf_counter()
        made = {"digest": digest(page), **run(page)}
        KEPT.mkdir(parents=True, exist_ok=True)
        (KEPT / f"{_name(page)}.json").write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")
        seconds = time.perf_counter() - begin
        print(
            f"{_name(page)}: {len(made['outputs'])} blocks, {len(made['pictures'])} pictures, {seconds:.1f} s",
            flush=True,
        )


if __name__ == "__main__":
    main(sys.argv[1:])
