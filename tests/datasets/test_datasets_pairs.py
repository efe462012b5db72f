"""The collection of picture–text pairs, from tiny files in its published format."""

import numpy as np
import pytest
import scipy.io

from latentia.core.errors import DataError, FileFormatError
from latentia.datasets import load
from latentia.datasets.pairs import WIKI_COLUMNS


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("LATENTIA_DATA", str(tmp_path))
    rng = np.random.default_rng(0)
    folder = tmp_path / "wiki_imgtext"
    folder.mkdir()
    matrices = {f"{kind}_{part}": rng.random((n, d)) for part, n in (("tr", 5), ("te", 3)) for kind, d in
                (("I", 128), ("T", 10))}  # fmt: skip
    scipy.io.savemat(folder / "raw_features.mat", matrices)
    (folder / "trainset_txt_img_cat.list").write_text("".join(f"a{i}\tb{i}\t{i % 3 + 1}\n" for i in range(5)))
    (folder / "testset_txt_img_cat.list").write_text("".join(f"c{i}\td{i}\t{i + 1}\n" for i in range(3)))
    return folder, matrices


def test_rows_hold_the_picture_then_the_text(folder):
    _, matrices = folder
    data = load("wiki")
    assert data.X.shape == (5, 138)
    assert data.X_test.shape == (3, 138)
    np.testing.assert_allclose(data.X[:, : WIKI_COLUMNS["image"]], matrices["I_tr"], rtol=1e-6)
    np.testing.assert_allclose(data.X_test[:, WIKI_COLUMNS["image"] :], matrices["T_te"], rtol=1e-6)
    assert data.y.tolist() == [1, 2, 3, 1, 2]
    assert data.y_test.tolist() == [1, 2, 3]


@pytest.mark.parametrize(
    ("text", "message"), [("a\tb\t1\n", "1 lines for 5"), ("a\tb\tx\n" * 5, "number of a category")]
)
def test_damaged_lists_are_explained(folder, text, message):
    (folder[0] / "trainset_txt_img_cat.list").write_text(text)
    with pytest.raises((DataError, FileFormatError), match=message):
        load("wiki")


def test_without_the_folder_the_error_says_what_to_put_where(tmp_path, monkeypatch):
    monkeypatch.setenv("LATENTIA_DATA", str(tmp_path))
    with pytest.raises(DataError, match=r"archive only.*raw_features\.mat"):
        load("wiki")
