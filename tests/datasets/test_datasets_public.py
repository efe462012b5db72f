"""Public data sets from tiny files in their published formats, and downloads from a local server."""

import functools
import gzip
import hashlib
import http.server
import io
import pickle
import struct
import tarfile
import threading

import numpy as np
import pytest
import scipy.io

from latentia.core.errors import DataError, FileFormatError, ParameterError
from latentia.datasets import load, public, remote
from latentia.datasets.remote import RemoteFile, Source

RNG = np.random.default_rng(7)
IDX = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


@pytest.fixture
def root(tmp_path, monkeypatch):
    """A data folder, a cache of its own, and no way out to the network."""
    monkeypatch.setenv("LATENTIA_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(remote, "cache_folder", lambda: tmp_path / "cache")
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # nothing listens on the discard port
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def idx_bytes(array):
    header = b"\x00\x00\x08" + bytes([array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.tobytes()


def write_idx(folder, *, packed=True):
    arrays = [
        RNG.integers(0, 256, (6, 4, 5), dtype=np.uint8),
        np.arange(6, dtype=np.uint8),
        RNG.integers(0, 256, (3, 4, 5), dtype=np.uint8),
        np.arange(3, dtype=np.uint8),
    ]
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in zip(IDX, arrays, strict=True):
        data = idx_bytes(array)
        path = folder / (f"{name}.gz" if packed else name)
        path.write_bytes(gzip.compress(data) if packed else data)
    return arrays


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize(("name", "folder"), [("mnist", "mnist"), ("fashion-mnist", "fashion_mnist")])
def test_idx_sets(root, name, folder, packed):
    train, labels, test, test_labels = write_idx(root / folder, packed=packed)
    data = load(name)
    np.testing.assert_allclose(data.X.reshape(6, 4, 5), train / 255, atol=1e-7)
    np.testing.assert_allclose(data.X_test.reshape(3, 4, 5), test / 255, atol=1e-7)
    np.testing.assert_array_equal(data.y, labels)
    np.testing.assert_array_equal(data.y_test, test_labels)
    assert (data.image_shape, data.domain, data.X.dtype, data.name) == ((4, 5), "unit", np.float32, name)
    assert "6/3" in data.description


def _cut(data):
    return data[:-9]


def _cut_inside(data):
    return gzip.compress(gzip.decompress(data)[:-1])


def _too_long(data):
    return gzip.compress(gzip.decompress(data) + b"x")


def _other_kind(data):
    return gzip.compress(b"\x00\x00\x0d" + gzip.decompress(data)[3:])


def _no_gzip(data):
    return b"<html>404</html>"


def _empty(data):
    return b""


def _labels_for_images(data):
    return gzip.compress(idx_bytes(np.arange(6, dtype=np.uint8)))


@pytest.mark.parametrize("harm", [_cut, _cut_inside, _too_long, _other_kind, _no_gzip, _empty, _labels_for_images])
def test_damaged_idx(root, harm):
    write_idx(root / "mnist")
    path = root / "mnist" / f"{IDX[0]}.gz"
    path.write_bytes(harm(path.read_bytes()))
    with pytest.raises(FileFormatError, match=r"train-images-idx3-ubyte\.gz.*get it again"):
        load("mnist")


def test_idx_with_too_few_labels(root):
    write_idx(root / "mnist")
    (root / "mnist" / f"{IDX[1]}.gz").write_bytes(gzip.compress(idx_bytes(np.arange(5, dtype=np.uint8))))
    with pytest.raises(FileFormatError, match="5 labels for 6 images"):
        load("mnist")


def test_olivetti_is_upright(root):
    pictures = RNG.integers(0, 256, (20, 64, 64), dtype=np.uint8)
    columns = np.stack([picture.ravel(order="F") for picture in pictures], axis=1)  # as MATLAB's X(:)
    (root / "olivetti").mkdir()
    scipy.io.savemat(root / "olivetti" / "olivettifaces.mat", {"faces": columns})
    data = load("olivetti")
    np.testing.assert_allclose(data.X.reshape(20, 64, 64) * 255, pictures, atol=1e-4)
    np.testing.assert_array_equal(data.y, [0] * 10 + [1] * 10)
    assert (data.image_shape, data.X_test, data.domain) == ((64, 64), None, "unit")


def test_caltech_is_upright_and_split(root):
    (root / "caltech_silhouettes").mkdir()
    content, pictures = {}, {}
    for part, count in (("train", 5), ("val", 4), ("test", 3)):
        pictures[part] = RNG.integers(0, 2, (count, 28, 28), dtype=np.uint8)
        content[f"{part}_data"] = np.stack([p.ravel(order="F") for p in pictures[part]])
        content[f"{part}_labels"] = np.arange(1, count + 1, dtype=np.uint8)[:, None]
    scipy.io.savemat(root / "caltech_silhouettes" / "caltech101_silhouettes_28_split1.mat", content)
    data = load("caltech-silhouettes")
    np.testing.assert_array_equal(data.X.reshape(5, 28, 28), pictures["train"])
    np.testing.assert_array_equal(data.X_test.reshape(3, 28, 28), pictures["test"])
    np.testing.assert_array_equal(data.y, range(5))
    assert (data.domain, data.image_shape) == ("binary", (28, 28))
    assert "1 = background" in data.description
    np.testing.assert_array_equal(
        load("caltech-silhouettes", held_out="val").X_test.reshape(4, 28, 28), pictures["val"]
    )
    with pytest.raises(ParameterError, match="held_out"):
        load("caltech-silhouettes", held_out="train")


@pytest.mark.parametrize("name", ["olivetti", "caltech-silhouettes"])
def test_damaged_matlab_files(root, name):
    source = {"olivetti": public.OLIVETTI, "caltech-silhouettes": public.CALTECH}[name]
    path = root / source.folders[0] / source.files[0].name
    path.parent.mkdir()
    scipy.io.savemat(path, {"faces": RNG.random((4096, 3))}, do_compression=True)
    whole = path.read_bytes()
    for content in (b"", b"not a mat file at all" * 20, whole[: len(whole) // 2]):
        path.write_bytes(content)
        with pytest.raises(FileFormatError, match=path.name):
            load(name)
    scipy.io.savemat(path, {"other": np.zeros((3, 3))})
    with pytest.raises(FileFormatError, match="lacks"):
        load(name)
    wrong = {"faces": np.zeros((9, 3))} | {
        f"{p}_{k}": np.zeros((9, 3)) for p in ("train", "test") for k in ("data", "labels")
    }
    scipy.io.savemat(path, wrong)
    with pytest.raises(FileFormatError, match="shape"):
        load(name)


def cifar_batches():
    """Pictures and labels per batch, and their binary and pickled forms."""
    names = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]
    pictures = RNG.integers(0, 256, (6, 2, 32, 32, 3), dtype=np.uint8)
    labels = RNG.integers(0, 10, (6, 2))
    binary, python = {}, {}
    for name, batch, label in zip(names, pictures, labels, strict=True):
        planes = batch.transpose(0, 3, 1, 2).reshape(2, -1)
        binary[f"{name}.bin"] = b"".join(bytes([k]) + p.tobytes() for k, p in zip(label, planes, strict=True))
        python[name] = pickle.dumps({b"data": planes, b"labels": label.tolist()}, protocol=2)
    return pictures, labels, binary, python


def tar_bytes(folder, members):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        for name, data in members.items():
            info = tarfile.TarInfo(f"{folder}/{name}")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


@pytest.mark.parametrize("kind", ["binary", "python"])
@pytest.mark.parametrize("place", ["here", "subfolder", "archive"])
def test_cifar10(root, kind, place):
    pictures, labels, binary, python = cifar_batches()
    members, subfolder, archive = (
        (binary, "cifar-10-batches-bin", "cifar-10-binary.tar.gz")
        if kind == "binary"
        else (python, "cifar-10-batches-py", "cifar-10-python.tar.gz")
    )
    folder = root / "cifar10"
    target = folder / subfolder if place == "subfolder" else folder
    target.mkdir(parents=True)
    if place == "archive":
        (folder / archive).write_bytes(tar_bytes(subfolder, members))
    else:
        for name, data in members.items():
            (target / name).write_bytes(data)
    data = load("cifar10")
    np.testing.assert_allclose(data.X.reshape(10, 32, 32, 3) * 255, pictures[:5].reshape(10, 32, 32, 3), atol=1e-4)
    np.testing.assert_allclose(data.X_test.reshape(2, 32, 32, 3) * 255, pictures[5], atol=1e-4)
    np.testing.assert_array_equal(data.y, labels[:5].ravel())
    np.testing.assert_array_equal(data.y_test, labels[5])
    assert (data.image_shape, data.domain) == ((32, 32, 3), "unit")


def test_cifar_pickles_cannot_run_code(root, tmp_path):
    _, _, _, python = cifar_batches()
    folder = root / "cifar10"
    folder.mkdir()
    for name, data in python.items():
        (folder / name).write_bytes(data)
    trap = tmp_path / "trap"
    (folder / "data_batch_3").write_bytes(f"cpathlib\nPath\n(V{trap}\ntR.".encode())
    with pytest.raises(FileFormatError, match=r"data_batch_3.*pathlib\.Path"):
        load("cifar10")
    (folder / "data_batch_3").write_bytes(python["data_batch_3"][:100])
    with pytest.raises(FileFormatError, match="data_batch_3"):
        load("cifar10")
    (folder / "data_batch_3").write_bytes(pickle.dumps({b"data": np.zeros((2, 9), np.uint8), b"labels": [1, 2]}))
    with pytest.raises(FileFormatError, match="shape"):
        load("cifar10")


def test_damaged_cifar(root):
    _, _, binary, _ = cifar_batches()
    folder = root / "cifar10"
    folder.mkdir()
    archive = folder / "cifar-10-binary.tar.gz"
    whole = tar_bytes("cifar-10-batches-bin", binary)
    for content in (whole[: len(whole) // 2], b"nonsense", tar_bytes("x", {"data_batch_1.bin": b"1"})):
        archive.write_bytes(content)
        with pytest.raises(FileFormatError, match="cifar-10-binary"):
            load("cifar10")
    binary["data_batch_2.bin"] = binary["data_batch_2.bin"][:-1]
    archive.write_bytes(tar_bytes("x", binary))
    with pytest.raises(FileFormatError, match=r"data_batch_2\.bin.*3073"):
        load("cifar10")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("fashion-mnist", "fashion-mnist/"),
        ("olivetti", "olivettifaces.mat"),
        ("cifar10", "cifar10/ with cifar-10-binary.tar.gz, or cifar-10-python.tar.gz"),
        ("caltech-silhouettes", "caltech101_silhouettes_28_split1.mat"),
    ],
)
def test_offline_error_helps(root, name, file, monkeypatch):
    with pytest.raises(DataError) as caught:
        load(name)
    message = str(caught.value)
    for part in (name, file, "LATENTIA_DATA", str(root), "http", "digits, patches, bars, mixtures"):
        assert part in message
    monkeypatch.delenv("LATENTIA_DATA")
    with pytest.raises(DataError, match="LATENTIA_DATA is not set"):
        load(name)
    monkeypatch.setenv("LATENTIA_DATA", str(root / "gone"))
    with pytest.raises(DataError, match="is not a folder"):
        load(name)


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A web server on this machine: its folder and its address."""
    folder = tmp_path / "served"
    folder.mkdir()
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        thread = threading.Thread(target=httpd.serve_forever)
        thread.start()
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, "127.0.0.1")
        yield folder, f"http://127.0.0.1:{httpd.server_port}/"
        httpd.shutdown()
        thread.join()


def test_download_is_verified_and_cached(root, server, tmp_path, monkeypatch):
    folder, url = server
    train, *_ = write_idx(folder)
    files = tuple(
        RemoteFile(
            f"{name}.gz",
            (f"{url}missing/{name}.gz", f"{url}{name}.gz"),  # the first mirror is down
            "md5:" + hashlib.md5((folder / f"{name}.gz").read_bytes()).hexdigest(),
        )
        for name in IDX
    )
    monkeypatch.setattr(public, "MNIST", Source("mnist", ("mnist",), files))
    np.testing.assert_allclose(load("mnist").X.reshape(6, 4, 5), train / 255, atol=1e-7)

    cached = tmp_path / "cache" / "mnist" / f"{IDX[0]}.gz"
    good = cached.read_bytes()
    cached.write_bytes(good[:20])  # damaged after the download: fetched again
    load("mnist")
    assert cached.read_bytes() == good

    for name in IDX:  # once cached, no server is needed
        (folder / f"{name}.gz").unlink()
    load("mnist")


def test_a_wrong_download_does_not_stay(root, server, tmp_path, monkeypatch):
    folder, url = server
    (folder / "olivettifaces.mat").write_bytes(b"half of the file")
    source = Source(
        "olivetti",
        ("olivetti",),
        (RemoteFile("olivettifaces.mat", (f"{url}olivettifaces.mat",), "sha256:" + "0" * 64),),
    )
    monkeypatch.setattr(public, "OLIVETTI", source)
    with pytest.raises(DataError, match=r"(?s)Tried: .*hash"):
        load("olivetti")
    assert not [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
