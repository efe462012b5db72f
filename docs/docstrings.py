"""Docstrings → Markdown: the package's docstrings use a little reStructuredText, which Markdown shows as it is.

Used by generate.py, and through griffe_markdown.py by mkdocstrings.
"""

from __future__ import annotations

import re

_ROLE = re.compile(r":\w+:`(~?)([^`<]+)`")
_RULE = re.compile(r"^=+( +=+)+$")


def to_markdown(text: str) -> str:
    """Roles become code, simple tables become tables, and a double colon a single one."""
    text = _ROLE.sub(lambda match: f"`{match[2].rpartition('.')[2] if match[1] else match[2]}`", text)
    text = re.sub(r"::$", ":", text, flags=re.MULTILINE)
    return _tables(text)


def _tables(text: str) -> str:
    """Simple tables: columns are where the rules of equals signs are."""
    lines: list[str] = []
    spans: list[slice] = []
    rules = 0
    for line in text.splitlines():
        if _RULE.match(line.strip()) and line == line.lstrip():
            rules += 1
            if rules == 1:
                starts = [match.start() for match in re.finditer("=+", line)]
                spans = [slice(a, b) for a, b in zip(starts, [*starts[1:], None], strict=True)]
            elif rules == 2:
                lines.append("|---" * len(spans) + "|")
            else:
                rules = 0
        elif rules:
            lines.append("| " + " | ".join(line[span].strip().replace("|", "\\|") for span in spans) + " |")
        else:
            lines.append(line)
    return "\n".join(lines)
