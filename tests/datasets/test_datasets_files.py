"""A user's own files: every format, every way in which they can be wrong."""

import builtins
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image
from safetensors.numpy import save_file

from latentia.core.errors import DataError, FileFormatError, ParameterError, UnknownNameError
from latentia.datasets import Dataset, available, files, load, open_memmap

ROWS = np.array([[0.5, -2.0, 3.0], [4.0, 5.5, 6.0]], np.float64)


def test_import_is_light():
    heavy = ["jax", "sklearn", "skimage", "pooch", "pandas", "pyarrow", "PIL", "scipy", "safetensors"]
    code = f"import sys, latentia.datasets as d; d.available(); print([m for m in {heavy} if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_unknown_attribute():
    import latentia.datasets as package

    with pytest.raises(AttributeError, match="nothing_such"):
        _ = package.nothing_such


def test_npy_rows(tmp_path):
    np.save(tmp_path / "mine.npy", ROWS)
    data = load(tmp_path / "mine.npy")
    np.testing.assert_array_equal(data.X, ROWS)
    assert (data.X.dtype, data.name, data.domain, data.image_shape) == (np.float32, "mine", "real", None)
    assert not isinstance(data.X, np.memmap)
    assert load(str(tmp_path / "mine.npy")).X.shape == (2, 3)


def test_npy_memory_map(tmp_path, monkeypatch):
    path = tmp_path / "big.npy"
    np.save(path, ROWS.astype(np.float32))
    assert isinstance(load(path, mmap=True).X, np.memmap)
    monkeypatch.setattr(files, "MMAP_BYTES", 8)
    large = load(path)
    assert isinstance(large.X, np.memmap)
    assert "memory-mapped" in large.description
    assert not isinstance(load(path, mmap=False).X, np.memmap)
    np.testing.assert_array_equal(open_memmap(path), ROWS)
    with pytest.raises(ValueError, match="read-only"):
        large.X[0, 0] = 1


def test_npy_pictures_are_scaled_once(tmp_path, monkeypatch):
    pictures = np.array([[[0, 255], [51, 102]]] * 3, np.uint8)
    path = tmp_path / "p.npy"
    np.save(path, pictures)
    monkeypatch.setattr(files, "MMAP_BYTES", 1)  # even a large file must mean the same values
    data = load(path)
    np.testing.assert_allclose(data.X[0], [0, 1, 0.2, 0.4])
    assert (data.image_shape, data.domain) == ((2, 2), "unit")
    assert load(path, scale=1).X.max() == 255
    assert load(path, scale=510.0).X.max() == 0.5
    with pytest.raises(ParameterError, match="mmap=False"):
        load(path, mmap=True)
    assert load(path, mmap=True, scale=1).X.dtype == np.uint8
    np.save(path, pictures[..., None])
    assert load(path).image_shape == (2, 2)
    np.save(path, np.zeros((2, 4, 5, 3), np.float32))
    assert load(path).image_shape == (4, 5, 3)
    np.save(path, (pictures > 60).astype(np.uint8))
    assert load(path).domain == "binary"
    with pytest.raises(ParameterError, match="scale"):
        load(path, scale=0)


@pytest.mark.parametrize(
    ("values", "domain"),
    [
        ([0, 1, 1], "binary"),
        ([0, 0.5, 1], "unit"),
        ([0, 1, 2], "real"),
        ([0, -1, 1], "real"),
        ([True, False], "binary"),
    ],
)
def test_domain_is_found(tmp_path, values, domain):
    np.save(tmp_path / "a.npy", np.array([values]))
    assert load(tmp_path / "a.npy").domain == domain


def test_domain_asked_for(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([[0.0, 2.0]]))
    assert load(path, domain="categorical").domain == "categorical"
    with pytest.raises(DataError, match="'binary' was requested"):
        load(path, domain="binary")
    with pytest.raises(ParameterError, match="domain must be"):
        load(path, domain="boolean")
    np.save(path, np.array([[0.0, 1.0]]))
    assert load(path, domain="real").domain == "real"


def test_domain_found_in_a_late_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("latentia.datasets.base._CHUNK_VALUES", 4)
    values = np.zeros((50, 2))
    values[37, 1] = 0.5
    np.save(tmp_path / "a.npy", values)
    assert load(tmp_path / "a.npy").domain == "unit"
    values[43, 0] = np.nan
    np.save(tmp_path / "a.npy", values)
    with pytest.raises(DataError, match="row 43, column 0"):
        load(tmp_path / "a.npy")


def test_missing_values(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.array([[0.0, np.nan]]))
    with pytest.raises(DataError, match=r"row 0, column 1.*allow_nan"):
        load(path)
    data = load(path, allow_nan=True)
    assert np.isnan(data.X[0, 1])
    assert data.domain == "binary"
    np.save(path, np.array([[0.0, 1e300]]))  # too large for float32
    with pytest.raises(DataError, match="inf"):
        load(path, allow_nan=True)


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(3), "shape"),
        (np.zeros((2, 2, 2, 5)), "shape"),
        (np.zeros((0, 3)), "empty"),
        (np.array([["a"]]), "not real numbers"),
        (np.zeros((2, 2), complex), "not real numbers"),
    ],
)
def test_npy_of_the_wrong_shape_or_type(tmp_path, array, message):
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=message):
        load(tmp_path / "a.npy")


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
@pytest.mark.parametrize("content", [b"", b"this is not data at all, not even nearly so"])
def test_files_of_another_kind(tmp_path, suffix, content):
    path = tmp_path / f"bad{suffix}"
    path.write_bytes(content)
    with pytest.raises(FileFormatError, match="bad"):
        load(path)


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".safetensors", ".parquet"])
def test_cut_off_files(tmp_path, suffix):
    path = tmp_path / f"cut{suffix}"
    X = np.random.default_rng(0).random((50, 20)).astype(np.float32)
    if suffix == ".npy":
        np.save(path, X)
    elif suffix == ".npz":
        np.savez(path, X=X)
    elif suffix == ".safetensors":
        save_file({"X": X}, path)
    else:
        pandas = pytest.importorskip("pandas")
        pandas.DataFrame(X, columns=[f"c{i}" for i in range(20)]).to_parquet(path)
    path.write_bytes(path.read_bytes()[:-500])
    with pytest.raises(FileFormatError, match="cut"):
        load(path)


def test_pickles_are_refused(tmp_path):
    ragged = np.array([[1], [2, 3]], dtype=object)
    np.save(tmp_path / "a.npy", ragged)
    np.savez(tmp_path / "a.npz", X=ragged)
    for suffix in (".npy", ".npz"):
        with pytest.raises(FileFormatError, match="execute code"):
            load(tmp_path / f"a{suffix}")


def test_archives_under_the_wrong_name(tmp_path):
    np.savez(tmp_path / "a.npz", X=ROWS)
    (tmp_path / "a.npz").rename(tmp_path / "a.npy")
    with pytest.raises(FileFormatError, match=r"Rename it to \.npz"):
        load(tmp_path / "a.npy")
    np.save(tmp_path / "b.npy", ROWS)
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    with pytest.raises(FileFormatError, match=r"\.npy"):
        load(tmp_path / "b.npz")


def _save(path, arrays):
    save_file(arrays, path) if path.suffix == ".safetensors" else np.savez(path, **arrays)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_archives(tmp_path, suffix):
    path = tmp_path / f"set{suffix}"
    pictures = np.full((4, 2, 3), 255, np.uint8)
    _save(
        path,
        {"x": pictures, "labels": np.arange(4)[:, None], "X_test": pictures[:1], "y_test": np.array([9])},
    )
    data = load(path)
    np.testing.assert_array_equal(data.X, 1)
    np.testing.assert_array_equal(data.X_test, np.ones((1, 6)))
    np.testing.assert_array_equal(data.y, range(4))
    assert (data.image_shape, data.y_test[0]) == ((2, 3), 9)
    _save(path, {"whatever": ROWS})
    np.testing.assert_array_equal(load(path).X, ROWS)
    _save(path, {"a": ROWS, "b": ROWS + 1})
    with pytest.raises(DataError, match="'a', 'b'"):
        load(path)
    np.testing.assert_array_equal(load(path, key="b").X, ROWS + 1)
    with pytest.raises(ParameterError, match="no array 'c'"):
        load(path, key="c")
    _save(path, {"X": np.eye(2), "X_test": np.full((2, 2), 0.5)})
    assert load(path).domain == "unit"  # the test part widens the domain
    _save(path, {"X": np.eye(2), "y": np.arange(3)})
    with pytest.raises(DataError, match="3 labels"):
        load(path)


@pytest.mark.parametrize(
    "text",
    [
        "0.5,-2,3\n4,5.5,6\n",
        "a,b,c\n0.5,-2,3\n4,5.5,6",
        "a;b;c\n0.5;-2;3\n4;5.5;6\n",
        "\n\na\tb\tc\n0.5\t-2\t3\n\n4\t5.5\t6\n",
    ],
)
def test_csv(tmp_path, text):
    (tmp_path / "t.csv").write_text(text)
    np.testing.assert_array_equal(load(tmp_path / "t.csv").X, ROWS)


def test_tables_keep_the_names_of_their_features(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('a,"b, c",kind\n1,2,x\n3,4,y\n')
    assert load(path, target="kind").feature_names == ("a", "b, c")
    assert load(path, target=2).feature_names == ("a", "b, c")
    path.write_text("1,2\n3,4\n")
    assert load(path).feature_names is None
    with pytest.raises(DataError, match="1 names"):
        Dataset("x", np.zeros((2, 2)), feature_names=("a",))


@pytest.mark.parametrize("target", range(-3, 3))
def test_the_target_is_no_feature_from_whichever_end_it_is_counted(tmp_path, target):
    path = tmp_path / "t.csv"
    columns = np.array([[1, 20, 300], [4, 50, 600]])
    np.savetxt(path, columns, delimiter=",", fmt="%d", header="a,b,c", comments="")
    data = load(path, target=target)
    np.testing.assert_array_equal(data.y, columns[:, target])
    np.testing.assert_array_equal(data.X, np.delete(columns, target, axis=1))
    assert data.feature_names == tuple(np.delete(["a", "b", "c"], target))


def test_csv_target(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('\ufeff"a","kind, really",b\n1,"cat, big",2\n3,dog,4\n', encoding="utf-8")
    data = load(path, target="kind, really")
    np.testing.assert_array_equal(data.X, [[1, 2], [3, 4]])
    assert list(data.y) == ["cat, big", "dog"]
    assert list(load(path, target=1).y) == ["cat, big", "dog"]
    with pytest.raises(FileFormatError, match="target="):
        load(path)
    with pytest.raises(ParameterError, match="no column 'c'"):
        load(path, target="c")
    with pytest.raises(ParameterError, match="3 columns"):
        load(path, target=3)
    path.write_text("1,2,7\n3,4,8\n")
    assert list(load(path, target=-1).y) == [7, 8]
    assert load(path, target=-1).y.dtype == np.int64
    with pytest.raises(ParameterError, match="no header"):
        load(path, target="a")
    path.write_text("only\n1\n")
    with pytest.raises(DataError, match="no features"):
        load(path, target="only")


def test_csv_wrong(tmp_path):
    path = tmp_path / "t.csv"
    for text, error in [
        ("", DataError),
        ("a,b\n", DataError),
        ("1,2\n3\n", FileFormatError),
        ("1,2\nx,3\n", FileFormatError),
        ("1,2\n3,4,5\n", FileFormatError),
        ("a,b\n1,2\n3,4,5\n", FileFormatError),
        ("a,b\n1,2\n3\n", FileFormatError),
        ("a,a\n1,2\n", DataError),
        ("a,\n1,2\n", DataError),
    ]:
        path.write_text(text)
        with pytest.raises(error, match=r"t\.csv"):
            load(path)
    path.write_text("1,2\n3,\n")
    with pytest.raises(FileFormatError, match="allow_nan"):
        load(path)
    assert np.isnan(load(path, allow_nan=True).X[1, 1])
    path.write_bytes(b"\xff\xfe\x00\x01" * 9)
    with pytest.raises(FileFormatError, match="UTF-8"):
        load(path)
    with pytest.raises(ParameterError, match="delimiter"):
        load(path, delimiter="::")


def test_parquet(tmp_path):
    pandas = pytest.importorskip("pandas")
    path = tmp_path / "t.parquet"
    pandas.DataFrame({"a": [1.5, 2.5], "kind": ["x", "y"], "flag": [True, False], "n": [3, 4]}).to_parquet(path)
    data = load(path, target="kind")
    np.testing.assert_array_equal(data.X, [[1.5, 1, 3], [2.5, 0, 4]])
    assert data.feature_names == ("a", "flag", "n")
    assert list(data.y) == ["x", "y"]
    with pytest.raises(FileFormatError, match="'kind'"):
        load(path)
    with pytest.raises(ParameterError, match="no column"):
        load(path, target="b")
    pandas.DataFrame({"a": [1.0, None]}).to_parquet(path)
    with pytest.raises(DataError, match="row 1"):
        load(path)
    assert np.isnan(load(path, allow_nan=True).X[1, 0])


def test_parquet_without_pyarrow(tmp_path, monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    (tmp_path / "t.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match="pip install pyarrow"):
        load(tmp_path / "t.parquet")


def test_image_folder(tmp_path):
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (3, 4, 5, 3), dtype=np.uint8)
    for name, picture in zip(["b.png", "a.png", "c.PNG"], pictures, strict=True):
        Image.fromarray(picture).save(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a picture")
    data = load(tmp_path, color=True)
    assert (data.image_shape, data.domain) == ((4, 5, 3), "unit")
    np.testing.assert_allclose(data.X.reshape(3, 4, 5, 3) * 255, pictures[[1, 0, 2]], atol=1e-4)
    grey = load(tmp_path)
    assert grey.image_shape == (4, 5)
    luma = pictures[[1, 0, 2]] @ [0.299, 0.587, 0.114]
    np.testing.assert_allclose(grey.X.reshape(3, 4, 5) * 255, luma, atol=0.51)
    Image.fromarray(pictures[0][:, :4]).save(tmp_path / "d.png")
    with pytest.raises(DataError, match=r"a\.png is 5×4 but d\.png is 4×4"):
        load(tmp_path)


def test_sixteen_bit_pictures(tmp_path):
    levels = np.array([[0, 300], [32768, 65535]], np.uint16)
    Image.fromarray(levels).save(tmp_path / "deep.png")
    np.testing.assert_allclose(load(tmp_path).X[0], levels.ravel() / 65535, atol=1e-6)
    assert load(tmp_path, color=True).image_shape == (2, 2, 3)


def test_image_folder_wrong(tmp_path):
    with pytest.raises(DataError, match="no pictures"):
        load(tmp_path)
    (tmp_path / "inner").mkdir()
    with pytest.raises(DataError, match="subfolders"):
        load(tmp_path)
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 40), dtype=np.uint8)).save(tmp_path / "a.png")
    whole = (tmp_path / "a.png").read_bytes()
    (tmp_path / "a.png").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileFormatError, match=r"a\.png"):
        load(tmp_path)
    (tmp_path / "a.png").write_bytes(b"nonsense")
    with pytest.raises(FileFormatError, match=r"a\.png"):
        load(tmp_path)


def test_names_and_paths(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UnknownNameError, match="Did you mean 'mnist'"):
        load("mnsit")
    for missing in ("nothing.npy", "some/where", tmp_path / "gone", ""):
        with pytest.raises(DataError, match="no file or folder") if missing else pytest.raises(DataError):
            load(missing)
    (tmp_path / "a.xlsx").write_text("x")
    with pytest.raises(FileFormatError, match=r"\.parquet"):
        load("a.xlsx")
    with pytest.raises(ParameterError, match="name or a path"):
        load(ROWS)
    (tmp_path / "bars").mkdir()
    assert load("bars", n=3).X.shape == (3, 16)  # a name wins over a folder
    with pytest.raises(DataError, match="no pictures"):
        load("./bars")
    assert load("Bars", n=3).name == "bars"


def test_unknown_options_name_the_valid_ones(tmp_path):
    with pytest.raises(ParameterError, match=r"'patchsize'.*patch_size, n, seed, images"):
        load("patches", patchsize=3)
    with pytest.raises(ParameterError, match="no options"):
        load("digits", n=3)
    np.save(tmp_path / "a.npy", ROWS)
    with pytest.raises(ParameterError, match=r"A \.npy file has no option 'target'.*mmap"):
        load(tmp_path / "a.npy", target="y")


def test_available_lists_everything():
    infos = available()
    assert len({info.name for info in infos}) == len(infos) == 10
    assert all(info.description for info in infos)
