"""The door: all that may be passed as data becomes the same examples, and everything else one clear error."""

from __future__ import annotations

import sys
import types

import numpy as np
import pandas as pd
import polars
import pytest
import scipy.sparse as sp

from latentia import PPCA, RBM, Autoencoder, DictionaryLearning, FieldsOfExperts, GaussianModel, MultimodalDBM
from latentia.core.errors import DataError, ParameterError
from latentia.estimator import door
from latentia.ops.examples import Examples

RNG = np.random.default_rng(0)
X = RNG.normal(size=(24, 6)).astype(np.float32)
BITS = RNG.integers(0, 2, (24, 6)).astype(np.float32)
PARTS = {"image": X[:, :4], "text": X[:, 4:]}


def fitted(X, **changes):
    return PPCA(**{"n_components": 2, "n_epochs": 2, "random_state": 0, **changes}).fit(X)


class Tensor:
    """As much of a tensor as is needed to become an array."""

    def __init__(self, values, device="cpu"):
        self.values, self.device = values, types.SimpleNamespace(type=device)

    def detach(self):
        return self

    def numpy(self):
        return self.values


Tensor.__module__ = "torch.pretended"


@pytest.mark.parametrize("kind", ["list", "pandas", "polars", "tensor", "map", "float64"])
def test_every_kind_of_rows_teaches_the_same(kind, tmp_path):
    np.save(tmp_path / "x.npy", X)
    made = {
        "list": lambda: X.tolist(),
        "pandas": lambda: pd.DataFrame(X, columns=list("abcdef")),
        "polars": lambda: polars.DataFrame(X, schema=list("abcdef")),
        "tensor": lambda: Tensor(X),
        "map": lambda: np.load(tmp_path / "x.npy", mmap_mode="r"),
        "float64": lambda: X.astype(np.float64),
    }
    rows = made[kind]()
    found, plain = fitted(rows), fitted(X)
    np.testing.assert_array_equal(found.transform(rows), plain.transform(X))
    if kind in ("pandas", "polars"):
        assert found.feature_names_in_.tolist() == list("abcdef")


def test_examples_are_checked_like_anything_else():
    found = fitted(Examples(X))
    assert found.n_features_in_ == 6
    np.testing.assert_array_equal(found.transform(Examples(X)), fitted(X).transform(X))
    with pytest.raises(ValueError, match="NaN"):
        fitted(Examples(np.where(X > 2, np.nan, X)))
    with pytest.raises(ValueError, match="6 features"):
        found.transform(Examples(X[:, :2]))


def test_a_tensor_elsewhere_is_refused():
    with pytest.raises(DataError, match=r"X\.cpu\(\)"):
        fitted(Tensor(X, "cuda"))


def test_a_sparse_matrix_stays_one_where_the_learner_can_use_it():
    options = {"n_components": 3, "n_epochs": 1, "random_state": 0}
    sparse, dense = (DictionaryLearning(**options).fit(each) for each in (sp.csr_array(X), X))
    np.testing.assert_array_equal(sparse.components_, dense.components_)
    assert door.accept(sparse, sp.csr_array(X), reset=False).is_sparse
    with pytest.raises(TypeError, match="[Ss]parse"):
        fitted(sp.csr_array(X))


@pytest.mark.parametrize(
    "make",
    [
        lambda **shape: FieldsOfExperts(n_filters=2, filter_shape=2, n_epochs=1, random_state=0, **shape),
        lambda **shape: Autoencoder(hidden=(2,), n_epochs=1, random_state=0, **shape),
        lambda **shape: GaussianModel("neighbours", random_state=0, **shape),
    ],
)
def test_images_tell_their_shape(make):
    images = X.reshape(24, 2, 3)
    by_images, by_rows = make().fit(images), make(image_shape=(2, 3)).fit(X)
    assert by_images.blueprint_["image_shape"] == [2, 3]
    for rows in (images, X):
        np.testing.assert_array_equal(by_images.transform(rows), by_rows.transform(X))


def test_parts_by_name_in_order_or_side_by_side_teach_the_same():
    def learned(rows):
        options = {"hidden": (3,), "joint": 2, "n_epochs": 2, "random_state": 0}
        return MultimodalDBM({"image": 4, "text": 2}, **options).fit(rows)

    plain = learned(X)
    for rows in (PARTS, dict(reversed(PARTS.items())), (PARTS["image"], PARTS["text"])):
        found = learned(rows)
        np.testing.assert_array_equal(found.transform(rows), plain.transform(X))
    np.testing.assert_array_equal(
        plain.joint_code({"text": PARTS["text"]}), learned(PARTS).joint_code({"text": PARTS["text"]})
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ({"image": PARTS["image"]}, "lack 'text'"),
        ({**PARTS, "sound": X}, "sound"),
        ({**PARTS, "text": PARTS["text"][:3]}, "different numbers of rows"),
        ({**PARTS, "text": X[:, :1]}, "Modality 'text' must be a finite matrix of 2 columns"),
        ({**PARTS, "text": np.full((24, 2), np.nan)}, "Modality 'text'.*NaN"),
        ({**PARTS, "text": [["a", "b"]] * 24}, "Modality 'text'"),
        ((PARTS["image"],), "X has 1 parts"),
    ],
)
def test_parts_that_do_not_fit_are_refused(rows, message):
    with pytest.raises(DataError, match=message):
        MultimodalDBM({"image": 4, "text": 2}, hidden=(3,), joint=2).fit(rows)


def test_parts_need_names_and_a_family_that_takes_them():
    with pytest.raises(ParameterError, match="need modalities"):
        MultimodalDBM(hidden=(3,), joint=2).fit(PARTS)
    with pytest.raises(DataError, match="takes one matrix"):
        fitted(PARTS)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 2.0], [1.0]], "unequal lengths"),
        ([np.zeros((4, 4)), np.zeros((4, 5))], "unequal size"),
        (X.reshape(24, 2, 3), r"X\.reshape\(len\(X\), -1\)"),
        (X.reshape(24, 1, 2, 3), "dimensions"),
    ],
)
def test_examples_that_a_family_cannot_take_are_refused(rows, message):
    with pytest.raises(DataError, match=message):
        fitted(rows)


def test_images_of_unequal_size_are_refused_by_families_of_images():
    with pytest.raises(DataError, match="unequal size"):
        Autoencoder(hidden=(2,)).fit([np.zeros((4, 4)), np.zeros((4, 5))])


@pytest.mark.parametrize(
    ("y", "message"),
    [(np.zeros(5), "one label per row"), (np.where(np.arange(24) < 2, np.nan, 1.0), "no label in 2 rows")],
)
def test_labels_that_do_not_fit_are_refused(y, message):
    from latentia import DBM

    with pytest.raises(DataError, match=message):
        DBM(hidden=(3, 2), n_epochs=1).fit(BITS, y)


def test_weights_of_another_length_are_refused():
    with pytest.raises(DataError, match="sample_weight must have one entry per row"):
        PPCA(2).fit(X, sample_weight=np.ones(5))


def test_early_stopping_reads_held_out_rows_of_a_memory_map(tmp_path, monkeypatch):
    """The same rows are held out as of an array, scored alike, and stay in their file."""
    from latentia.ops import examples

    monkeypatch.setattr(examples, "PORTION", 5)
    rows = np.repeat(BITS, 4, axis=0)
    np.save(tmp_path / "x.npy", rows)
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    options = {"n_components": 3, "n_epochs": 3, "batch_size": 16, "early_stopping": True, "random_state": 0}
    options |= {"validation_fraction": 0.25}
    streamed, plain = (RBM(**options).fit(each) for each in (mapped, rows))
    scores = [[row["validation_score"] for row in each.history_] for each in (streamed, plain)]
    np.testing.assert_allclose(scores[0], scores[1], rtol=1e-6)
    assert len(scores[0]) == 3


def test_torch_is_not_imported_to_look_for_its_tensors():
    fitted(X)
    assert "torch" not in sys.modules
