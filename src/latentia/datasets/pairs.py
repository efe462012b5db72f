"""Data of two kinds in pairs: the image–text articles of the Wikipedia cross-modal retrieval collection."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from latentia.datasets.base import Dataset
from latentia.datasets.formats import damaged, read_mat
from latentia.datasets.remote import RemoteFile, Source, locate

#: Columns of the two kinds, in the order in which they stand in a row.
WIKI_COLUMNS = {"image": 128, "text": 10}

# Published as one archive, so that there is nothing to download file by file.
WIKI = Source(
    "wiki",
    ("wiki_imgtext", "wiki"),
    tuple(
        RemoteFile(name, (), "")
        for name in ("raw_features.mat", "trainset_txt_img_cat.list", "testset_txt_img_cat.list")
    ),
)


def load_wiki() -> Dataset:
    """2,866 featured articles: 128 visual words of the picture, 10 topics of the text; y = category (1–10)."""
    features, *lists = locate(WIKI)
    matrices = read_mat(features, ["I_tr", "T_tr", "I_te", "T_te"])
    train, test = (
        np.column_stack([matrices[f"I_{part}"], matrices[f"T_{part}"]]).astype(np.float32) for part in ("tr", "te")
    )
    if train.shape[1] != sum(WIKI_COLUMNS.values()):
        raise damaged(features, f"its rows have {train.shape[1]} columns instead of {sum(WIKI_COLUMNS.values())}")
    y, y_test = (_categories(path, len(rows)) for path, rows in zip(lists, (train, test), strict=True))
    return Dataset(
        name="wiki",
        X=train,
        y=y,
        X_test=test,
        y_test=y_test,
        domain="unit",
        description=(
            f"Wikipedia featured articles (Rasiwasia et al., 2010), {len(train)} + {len(test)} pairs in the "
            "published split: histogram of 128 visual words, then proportions of 10 topics."
        ),
    )


def _categories(path: Path, n: int) -> np.ndarray:
    """The last of the three tab-separated fields of every line."""
    lines = path.read_text().splitlines()
    if len(lines) != n:
        raise damaged(path, f"it has {len(lines)} lines for {n} articles")
    try:
        return np.array([int(line.split("\t")[2]) for line in lines])
    except (IndexError, ValueError) as error:
        raise damaged(path, "a line does not end with the number of a category") from error
