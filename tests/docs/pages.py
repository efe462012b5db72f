"""Reading the documentation: its pages, their code blocks and their links."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
#: Written by docs/generate.py when the documentation is built.
GENERATED = DOCS / "families"
PAGES = sorted([*ROOT.glob("*.md"), *(page for page in DOCS.rglob("*.md") if GENERATED not in page.parents)])

_BLOCK = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block of code and the number of its first line."""

    code: str
    line: int


def code_blocks(page: Path, language: str) -> list[Block]:
    """The blocks of a page in one language, in order."""
    text = page.read_text(encoding="utf-8")
    found = [match for match in _BLOCK.finditer(text) if match[1] == language]
    return [Block(match[2], text.count("\n", 0, match.start(2)) + 1) for match in found]


def name(page: Path) -> str:
    """A page's name for test reports."""
    return page.relative_to(ROOT).as_posix()
