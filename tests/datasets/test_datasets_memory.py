"""Files larger than memory: nothing reads a memory map through its pages, which would count as memory."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from latentia.commands import fit
from latentia.core.errors import DataError
from latentia.datasets import base, files, load, open_memmap
from latentia.learning.batches import is_mapped

ROWS, COLUMNS = 100_000, 200
#: Looking at the header, and at the pages that the kernel maps around it.
FEW = 256 * 1024

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="Linux says what is resident")


def resident(path: Path) -> int:
    """Bytes of a file that count as this process's memory because they are mapped."""
    found, inside = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            inside = line.endswith(str(path))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 MB of bits in bytes; they are written, because pages of a hole would not be mapped as a file's."""
    path = tmp_path_factory.mktemp("big") / "big.npy"
    np.save(path, np.random.default_rng(0).integers(0, 2, (ROWS, COLUMNS), dtype=np.uint8))
    return path


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MMAP_BYTES", 1 << 20)


def test_the_measure_sees_pages_that_are_touched(big: Path) -> None:
    mapped = open_memmap(big)
    assert resident(big) < FEW
    assert mapped.max() == 1
    assert resident(big) > ROWS * COLUMNS / 2


@pytest.mark.parametrize("options", [{}, {"domain": "binary"}, {"domain": "real"}, {"mmap": True}, {"scale": 1}])
def test_loading_keeps_a_large_file_on_the_disk(big: Path, options: dict) -> None:
    data = load(big, **options)
    assert is_mapped(data.X)
    assert data.domain == options.get("domain", "binary")
    assert resident(big) < FEW


def test_pictures_too(tmp_path: Path) -> None:
    path = tmp_path / "pictures.npy"
    np.save(path, np.random.default_rng(0).integers(0, 2, (30_000, 8, 10), dtype=np.uint8))
    data = load(path)
    assert (is_mapped(data.X), data.X.shape, data.image_shape) == (True, (30_000, 80), (8, 10))
    assert resident(path) < FEW
    np.testing.assert_array_equal(data.X[-3:], np.load(path)[-3:].reshape(3, 80))


@pytest.mark.parametrize("chunk", [1, 777, 1 << 22])
def test_what_is_found_does_not_depend_on_the_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(base, "_CHUNK_VALUES", chunk)
    monkeypatch.setattr(files, "MMAP_BYTES", 1)
    rows = np.random.default_rng(0).integers(0, 2, (101, 7)).astype(np.float32)
    path = tmp_path / "x.npy"
    for value, domain in ((0.5, "unit"), (2.0, "real"), (-1.0, "real"), (1.0, "binary")):
        for row in (0, 50, 100):
            changed = rows.copy()
            changed[row, 3] = value
            np.save(path, changed)
            assert load(path).domain == domain
            for bad in (np.nan, np.inf):
                changed[row, 3] = bad
                np.save(path, changed)
                with pytest.raises(DataError, match=f"row {row}, column 3"):
                    load(path)
    changed = rows.copy()
    changed[77, 2] = np.nan
    np.save(path, changed)
    data = load(path, allow_nan=True)
    assert data.domain == "binary"
    np.save(path, np.clip(rows, 0.2, 0.8))
    grey = load(path)
    drawn = grey.binarised("sample", seed=3).X
    np.testing.assert_array_equal(drawn, np.clip(rows, 0.2, 0.8) > np.random.default_rng(3).random(rows.shape))


@pytest.mark.parametrize("shape", [(500_000, 64), (500_000, 8, 8)])
def test_loading_needs_little_memory_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    """Of 32 MB of bytes, 64 kB at a time: what is mapped for a moment counts as much as what is allocated."""
    monkeypatch.setattr(base, "_CHUNK_VALUES", 1 << 16)
    path = tmp_path / "x.npy"
    np.save(path, np.zeros(shape, np.uint8))
    load(path)  # for the first time, with whatever that imports
    before = _most_resident(reset=True)
    assert load(path).domain == "binary"
    assert _most_resident() - before < 8e6


def _most_resident(*, reset: bool = False) -> int:
    """The most bytes that this process has had in memory, since the last reset."""
    if reset:
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            pytest.skip("the most that was resident cannot be reset")
    found = re.search(r"VmHWM:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return 1024 * int(found[1])


def test_fit_from_the_command_line_streams(big: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from click.testing import CliRunner

    from latentia.cli import cli

    seen: list[int] = []
    train = fit.train

    def watched(estimator: object, source: object, out: Path) -> None:
        seen.append(resident(big))
        train(estimator, source, out)
        seen.append(resident(big))

    monkeypatch.setattr(fit, "train", watched)
    words = ["fit", "rbm", str(big), "--n-components", "2", "--n-epochs", "1", "--batch-size", "10000"]
    result = CliRunner().invoke(cli, [*words, "--out", str(tmp_path / "run")])
    assert result.exit_code == 0, result.output
    assert f"{ROWS} × {COLUMNS}" in result.output
    assert len(seen) == 2
    assert max(seen) < FEW
