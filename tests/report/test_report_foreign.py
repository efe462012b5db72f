"""A run folder from somebody else: what stands in it is shown as text, and none of it becomes part of the page."""

from __future__ import annotations

import json
import re

import pytest

from latentia.report import build_report

EVIL = '</script><script>alert(1)</script><img src=x onerror="alert(2)">'


def poisoned(value):
    """The same structure with the text in front of every string; names stay, so that all of it is found."""
    if isinstance(value, dict):
        return {key: poisoned(each) for key, each in value.items()}
    if isinstance(value, list):
        return [poisoned(each) for each in value]
    return EVIL + value if isinstance(value, str) else value


@pytest.fixture
def foreign(run):
    """The tiny run with the text in every file that is JSON, and in names of its own."""
    config = json.loads((run / "config.json").read_text())
    family, data = config["family"], config["data"]["name"]
    config = poisoned(config) | {"family": family}
    config["params"] |= {EVIL: EVIL, "n_components": 9}
    config["data"] |= {"name": data, EVIL: EVIL}  # the family and the data are found, so that every section is made
    config["environment"] = {EVIL: EVIL}
    (run / "config.json").write_text(json.dumps(config))
    evaluation = poisoned(json.loads((run / "evaluation.json").read_text()))
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    text = "".join(json.dumps(row | {EVIL: 1.0 + i, "stage": EVIL}) + "\n" for i, row in enumerate(rows))
    (run / "metrics.jsonl").write_text(text)
    return run.rename(run.parent / "<script>alert(3)<")


def test_a_report_holds_no_foreign_script(foreign, tmp_path):
    page = build_report(foreign, out=tmp_path / "page.html", title=EVIL).read_text(encoding="utf-8")
    own = re.sub(r"base64,[A-Za-z0-9+/=\s]+", "", page)
    assert "alert(1)" in own  # it is shown …
    assert "<img src=x" not in own  # … as text
    assert not re.search(r"<script[^>]*>\s*alert", own)
    opened = re.findall(r"<script([^>]*)>", own)
    assert len(opened) == own.count("</script>")
    assert {attributes.strip() for attributes in opened} == {"", 'type="application/json"'}
    assert not re.search(r"<[a-z][^<>]*\son\w+=", own)  # no handler in any tag
