"""Folders that are not as they should be, and pages about several of them."""

from __future__ import annotations

import json
import os
import shutil

import numpy as np
import pytest
from click.testing import CliRunner

from latentia.commands.report import report
from latentia.core.errors import RunFolderError
from latentia.report import build_report, runs
from latentia.report.runs import read_run


def test_an_interrupted_run_shows_its_checkpoint(run, add):
    (run / "model.safetensors").unlink()
    params = json.loads((run / "config.json").read_text())["params"]
    add(run / "config.json", params=params | {"n_epochs": 50})
    found = read_run(run)
    assert "checkpoint after step" in found.problems["model"]
    assert found.estimator is not None
    page = build_report(run).read_text()
    assert "training has not finished" in page
    assert "interrupted after 2" in page
    assert "--resume" in page
    assert page.count('data-widget="explorer"') == 1


def test_the_checkpoint_is_the_model(fitted_run, run):
    from latentia import load

    whole = load(fitted_run / "model.safetensors")
    (run / "model.safetensors").unlink()
    found = read_run(run).estimator
    np.testing.assert_array_equal(found.model_.weights, whole.model_.weights)


def test_a_run_of_another_version(run, add):
    add(run / "config.json", environment={"latentia": "17.3.0"})
    assert "Made with Latentia 17.3.0" in build_report(run).read_text()


@pytest.mark.parametrize("value", [[], "text", 3, {"params": 7, "data": [], "family": 5, "n_rows": "x"}])
def test_a_configuration_of_another_kind(run, value):
    (run / "config.json").write_text(json.dumps(value))
    assert "<h1>" in build_report(run).read_text()


def test_names_with_spaces_and_other_letters(fitted_run, tmp_path):
    folder = shutil.copytree(fitted_run, tmp_path / "mein Läufchen 日本 'q'")
    page = build_report(folder, out=tmp_path / "größe & so.html")
    text = page.read_text(encoding="utf-8")
    assert page.name == "größe & so.html"
    assert "mein Läufchen 日本" in text
    (folder / "evaluation.json").unlink()
    problem = read_run(folder).problems["evaluation"]
    assert problem.endswith("""日本 '"'"'q'"'"''""")  # can be pasted into a shell


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="permissions are another matter here")
def test_no_permission_is_said_before_the_work(run, tmp_path, monkeypatch):
    monkeypatch.setattr("latentia.report.build.os.access", lambda *_: False)  # the tests may run as root
    monkeypatch.setattr("latentia.report.build.read_run", lambda *_: pytest.fail("worked in vain"))
    with pytest.raises(RunFolderError, match="no permission.*--out"):
        build_report(run)


def test_a_place_that_cannot_be_written_is_an_error_in_a_line(run, tmp_path):
    (tmp_path / "file").write_text("")
    result = CliRunner().invoke(report, [str(run), "--out", str(tmp_path / "file" / "page.html")])
    assert isinstance(result.exception, RunFolderError)
    assert "Could not write" in str(result.exception)


def test_several_runs_share_charts_and_stand_side_by_side(fitted_run, run, tmp_path):
    page = build_report([fitted_run, run], out=tmp_path / "both.html").read_text()
    overview = page[page.index('id="comparison"') : page.index('<article id="run-1"')]
    assert "tiny (1)" in overview
    assert "tiny (2)" in overview
    data = json.loads(overview.split('application/json">')[1].split("</script>")[0])
    assert [chart["title"] for chart in data["charts"]] == ["Energy gap", "Gradient norm", "Pseudo likelihood"]
    assert [line["name"] for line in data["charts"][0]["lines"]] == ["tiny (1)", "tiny (2)"]
    assert overview.count("most used filters of") == 2
    assert "Reconstruction error" in overview
    assert len(page) < 5_000_000


@pytest.mark.parametrize("n_rows", [30, 45, 60])
def test_names_stand_beside_their_rows(n_rows, tmp_path, monkeypatch):
    """Of many rows some are shown, evenly spaced, and the first ones are looked through for names."""
    monkeypatch.setattr(runs, "MOST_ROWS", 40)
    monkeypatch.setattr(runs, "MOST_NAMED", 50)
    names = np.array([f"word{i}" for i in range(n_rows)])
    lines = [f"{i},{2 * i},{name}" for i, name in enumerate(names)]
    (tmp_path / "words.csv").write_text("\n".join(["one,two,name", *lines]))
    data = {"source": str(tmp_path / "words.csv"), "options": {"target": "name"}}
    (tmp_path / "config.json").write_text(json.dumps({"family": "rbm", "data": data}))
    run = read_run(tmp_path)
    assert "data" not in run.problems
    for rows, called in ((run.training, run.training_names), (run.rows, run.labels), (run.named_rows, run.names)):
        np.testing.assert_array_equal(names[rows[:, 0].astype(int)], called)
    assert (len(run.rows), len(run.named_rows)) == (min(n_rows, 40), min(n_rows, 50))
