"""The demo: a stop for every kind of model, figures that are what they say, one report, going on after Ctrl-C."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import latentia
from latentia.commands import demo, demo_data
from latentia.commands.demo import free_folder

from .conftest import Shell

TINY = demo.Settings(
    boltzmann={"n_components": 4, "n_epochs": 1, "binarize": "sample"},
    sparse={"n_components": 4, "n_epochs": 1, "alpha": 1.0},
    energy={"hidden": (4, 3), "n_epochs": 1},
    autoencoder={"n_components": 2, "hidden": (4,), "n_epochs": 1, "binarize": "sample"},
    n_patches=400,
    annealing={},
    bounds={"method": "importance", "n_samples": 5},
)


def page_about(runs: list[Path], *, out: Path, title: str) -> Path:
    """Stands for the report, which has tests of its own and takes longer than all the tiny models."""
    out.write_text("\n".join([title, *map(str, runs)]))
    return out


@pytest.fixture(scope="module")
def finished(shell: Shell, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """(folder, lines printed) of a demo beside a folder that was there before."""
    out = tmp_path_factory.mktemp("demo") / "demo"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "QUICK", TINY)
        patch.setattr("latentia.report.build_report", page_about)
        lines = shell.ok("demo", "--quick", "--out", out).splitlines()
    assert (out / "mine.txt").read_text() == "kept"
    return out.with_name("demo-2"), lines


def test_the_last_line_is_the_path_of_one_report_about_all_kinds(finished: tuple[Path, list[str]]) -> None:
    folder, lines = finished
    assert lines[-1] == str(folder / "report.html")
    page = Path(lines[-1]).read_text()
    stops = demo.tour(TINY)
    assert len({stop.model for stop in stops}) == 4
    for number, stop in enumerate(stops, start=1):
        assert f"{number}/4  {stop.kind}" in lines
        assert str(folder / stop.name) in page
        assert (folder / stop.name / "model.safetensors").is_file()


def test_every_stop_tells_a_figure_that_is_kept(finished: tuple[Path, list[str]]) -> None:
    folder, lines = finished
    kept = {stop.name: json.loads((folder / stop.name / "evaluation.json").read_text()) for stop in demo.tour(TINY)}
    for name in ("boltzmann", "autoencoder"):
        said = f"{kept[name]['log_likelihood']['estimate']:.2f} nats"
        assert any(said in line for line in lines)
        assert any(f"reach {kept[name]['log-likelihood of independent pixels']:.2f}" in line for line in lines)
    sparse = kept["sparse"]
    held_out = np.load(folder / "patches.npz")["X_test"].reshape(-1, 100)
    codes = latentia.load(folder / "sparse" / "model.safetensors").transform(held_out)
    assert sparse["atoms in use"] == pytest.approx((codes != 0).sum(axis=1).mean())
    assert any(f"{sparse['atoms in use']:.1f} of 4 atoms" in line for line in lines)
    assert any(f"AUC of {kept['deep-energy']['AUC against Gaussian noise']:.3f}" in line for line in lines)


def test_a_finished_demo_is_gone_through_without_training(
    shell: Shell, finished: tuple[Path, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, _ = finished
    monkeypatch.setattr(demo, "QUICK", TINY)
    monkeypatch.setattr(demo.fitting, "train", _interrupt)
    monkeypatch.setattr("latentia.report.build_report", page_about)
    result = shell.json("demo", "--quick", "--out", folder, "--resume")
    assert result["report"] == str(folder / "report.html")
    assert [run["name"] for run in result["runs"]] == [stop.name for stop in demo.tour(TINY)]


def test_ctrl_c_says_how_to_go_on(shell: Shell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo.fitting, "train", _interrupt)
    result = shell("demo", "--quick", "--quiet", "--out", tmp_path / "my demo")
    assert result.exit_code == 130
    assert f"latentia demo --quick --out '{tmp_path / 'my demo'}' --resume" in result.stderr


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def test_demo_takes_the_next_free_folder(tmp_path: Path) -> None:
    for expected in ("demo", "demo-2", "demo-3"):
        folder = free_folder(tmp_path / "demo")
        assert folder.name == expected
        (folder / "something").touch()


def test_patches_with_noise_are_white_and_the_others_are_not(tmp_path: Path) -> None:
    noisy = demo_data.whitened_patches(tmp_path / "noisy.npz", 4, 2000, noise=0.4).dataset
    np.testing.assert_allclose(np.cov(noisy.X, rowvar=False), np.eye(16), atol=1e-3)
    assert noisy.image_shape == (4, 4)
    assert len(noisy.X_test) == pytest.approx(200, abs=2)
    plain = demo_data.whitened_patches(tmp_path / "plain.npz", 4, 2000).dataset
    assert plain.X.std() == pytest.approx(1, abs=1e-3)
    assert np.linalg.cond(np.cov(plain.X, rowvar=False)) > 5


def test_the_figures_to_compare_with() -> None:
    random = np.random.default_rng(0)
    odds = np.array([0.1, 0.5, 0.8])
    rows = (random.random((4000, 3)) < odds).astype(np.float32)
    entropy = -np.sum(odds * np.log(odds) + (1 - odds) * np.log1p(-odds))
    assert demo_data.independent_pixels(rows[:2000], rows[2000:]) == pytest.approx(-entropy, abs=0.05)
    wide = random.normal(size=(500, 3)) * [10, 1, 0.1]
    assert demo_data.principal_components(wide, wide, 1) == pytest.approx(100 / 101.01, abs=0.01)
    assert demo_data.explained(wide, wide) == 1


def test_recognition_is_one_where_patches_are_all_more_likely() -> None:
    class Norm:
        def free_energy(self, rows: np.ndarray) -> np.ndarray:
            return (rows**2).sum(axis=1)

    rows = np.random.default_rng(0).laplace(size=(300, 5)).astype(np.float32)
    assert demo_data.recognition(Norm(), rows, np.zeros((50, 5), np.float32)) == 1
    assert 0.3 < demo_data.recognition(Norm(), rows, rows) < 0.7
