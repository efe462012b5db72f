"""Well-known public data sets: MNIST, Fashion-MNIST, Olivetti faces, CIFAR-10, Caltech silhouettes.

Their files come from the folder named by ``LATENTIA_DATA`` or are downloaded once, with a checksum
(see :mod:`latentia.datasets.remote`). The checksums are the publishers': torchvision's for both
MNISTs, the CIFAR page's, scikit-learn's for Olivetti.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Literal

import numpy as np

from latentia.core.errors import ParameterError
from latentia.datasets.base import Dataset
from latentia.datasets.formats import (
    CIFAR_BATCHES,
    damaged,
    read_cifar_binary,
    read_cifar_python,
    read_idx,
    read_mat,
    read_tar,
)
from latentia.datasets.remote import RemoteFile, Source, download, local_folders, locate


def _idx_source(name: str, folders: tuple[str, ...], bases: tuple[str, ...], md5: tuple[str, ...]) -> Source:
    files = (
        "train-images-idx3-ubyte.gz",
        "train-labels-idx1-ubyte.gz",
        "t10k-images-idx3-ubyte.gz",
        "t10k-labels-idx1-ubyte.gz",
    )
    return Source(
        name,
        folders,
        tuple(
            RemoteFile(file, tuple(base + file for base in bases), f"md5:{checksum}")
            for file, checksum in zip(files, md5, strict=True)
        ),
    )


MNIST = _idx_source(
    "mnist",
    ("mnist",),
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    (
        "f68b3c2dcbeaaa9fbdd348bbdeb94873",
        "d53e105ee54ea40749a09fcbcd1e9432",
        "9fb629c4189551a2d022fa330f9573f3",
        "ec29112dd5afa0611ce80d1b7f02629c",
    ),
)
FASHION_MNIST = _idx_source(
    "fashion-mnist",
    ("fashion-mnist", "fashion_mnist"),
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    (
        "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
        "25c81989df183df01b3e8a0aad5dffbe",
        "bef4ecab320f06d8554ea6380940ec79",
        "bb300cfdad3c16e7a12a480ee83cd310",
    ),
)
OLIVETTI = Source(
    "olivetti",
    ("olivetti",),
    (
        RemoteFile(
            "olivettifaces.mat",
            ("https://ndownloader.figshare.com/files/5976027",),
            "sha256:b612fb967f2dc77c9c62d3e1266e0c73d5fca46a4b8906c18e454d41af987794",
        ),
    ),
)
CALTECH = Source(
    "caltech-silhouettes",
    ("caltech_silhouettes", "caltech-silhouettes"),
    (
        RemoteFile(
            "caltech101_silhouettes_28_split1.mat",
            ("https://people.cs.umass.edu/~marlin/data/caltech101_silhouettes_28_split1.mat",),
            "sha256:eb6735e8d84b1850fabc5590124aab1755e90c9fd28123585324398405e1e42a",
        ),
    ),
)
# The binary version: unlike the Python one, it needs no pickle.
CIFAR10 = Source(
    "cifar10",
    ("cifar10", "cifar-10"),
    (
        RemoteFile(
            "cifar-10-binary.tar.gz",
            ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
            "md5:c32a1d4ab5d03f1284b67883e8d87530",
        ),
    ),
    alternative=", or cifar-10-python.tar.gz, or the six batches of either, unpacked",
)


def load_mnist() -> Dataset:
    """Handwritten digits of 28×28 pixels, 60,000 + 10,000, in [0, 1]."""
    return _load_idx(MNIST, "MNIST handwritten digits (LeCun, Cortes and Burges)")


def load_fashion_mnist() -> Dataset:
    """Clothes of 28×28 pixels in ten classes, 60,000 + 10,000, in [0, 1]."""
    return _load_idx(FASHION_MNIST, "Fashion-MNIST articles of clothing (Xiao, Rasul and Vollgraf)")


def _load_idx(source: Source, what: str) -> Dataset:
    paths = locate(source)
    train, train_labels, test, test_labels = (read_idx(path) for path in paths)
    for path, array, axes in zip(paths, (train, train_labels, test, test_labels), (3, 1, 3, 1), strict=True):
        if array.ndim != axes:
            raise damaged(path, f"it holds {array.ndim} axes instead of {axes}")
    for path, images, labels in ((paths[1], train, train_labels), (paths[3], test, test_labels)):
        if len(images) != len(labels):
            raise damaged(path, f"it holds {len(labels)} labels for {len(images)} images")
    return Dataset(
        name=source.dataset,
        X=_unit_rows(train),
        y=train_labels.astype(np.int64),
        X_test=_unit_rows(test),
        y_test=test_labels.astype(np.int64),
        image_shape=train.shape[1:],
        domain="unit",
        description=f"{what}, official split {len(train)}/{len(test)}, grey levels 0–255 scaled to [0, 1].",
    )


def _unit_rows(images: np.ndarray) -> np.ndarray:
    return images.reshape(len(images), -1).astype(np.float32) / np.float32(255)


def load_olivetti() -> Dataset:
    """Ten photographs of each of 40 faces, 64×64 pixels, in [0, 1]; y = person; no split."""
    (path,) = locate(OLIVETTI)
    faces = read_mat(path, ["faces"])["faces"]
    if faces.ndim != 2 or faces.shape[0] != 64 * 64:
        raise damaged(path, f"its matrix 'faces' has shape {faces.shape} instead of (4096, 400)")
    # MATLAB stores a picture column by column: transpose each.
    upright = faces.T.reshape(-1, 64, 64).transpose(0, 2, 1)
    return Dataset(
        name="olivetti",
        X=_unit_rows(upright),
        y=np.arange(len(upright)) // 10,
        image_shape=(64, 64),
        domain="unit",
        description=(
            f"Olivetti faces (AT&T Laboratories Cambridge), {len(upright)} of 64×64, ten per person, no "
            "split, grey levels 0–255 scaled to [0, 1]."
        ),
    )


def load_caltech_silhouettes(*, held_out: Literal["test", "val"] = "test") -> Dataset:
    """Filled outlines of objects of 101 classes, 28×28: 1 is the background, 0 the object, as published.

    ``X`` is the training part of split 1; ``held_out`` chooses which of the other two, ``"test"`` or
    ``"val"``, becomes ``X_test``. Many papers exchange 0 and 1: ``1 - X`` gives white on black.
    """
    if held_out not in ("test", "val"):
        raise ParameterError(f"held_out must be 'test' or 'val', got {held_out!r}.")
    (path,) = locate(CALTECH)
    content = read_mat(path, [f"{part}_{kind}" for part in ("train", held_out) for kind in ("data", "labels")])
    parts = {}
    for part in ("train", held_out):
        rows, labels = content[f"{part}_data"], content[f"{part}_labels"].ravel()
        if rows.ndim != 2 or rows.shape[1] != 28 * 28 or len(labels) != len(rows):
            raise damaged(path, f"its {part} part has shape {rows.shape} with {len(labels)} labels")
        upright = rows.reshape(-1, 28, 28).transpose(0, 2, 1).reshape(len(rows), -1)
        # MATLAB counts classes from 1.
        parts[part] = (upright.astype(np.float32), labels.astype(np.int64) - 1)
    (X, y), (X_test, y_test) = parts["train"], parts[held_out]
    return Dataset(
        name="caltech-silhouettes",
        X=X,
        y=y,
        X_test=X_test,
        y_test=y_test,
        image_shape=(28, 28),
        domain="binary",
        description=(
            f"Caltech 101 Silhouettes (Marlin et al.), 28×28, split 1: train {len(X)}, {held_out} "
            f"{len(X_test)}; 1 = background, 0 = object, as published."
        ),
    )


def load_cifar10() -> Dataset:
    """Colour photographs of 32×32 pixels in ten classes, 50,000 + 10,000, in [0, 1]."""
    batches = _cifar_batches()
    pixels = [images for images, _ in batches]
    labels = [label for _, label in batches]
    return Dataset(
        name="cifar10",
        X=_cifar_rows(np.concatenate(pixels[:-1])),
        y=np.concatenate(labels[:-1]).astype(np.int64),
        X_test=_cifar_rows(pixels[-1]),
        y_test=labels[-1].astype(np.int64),
        image_shape=(32, 32, 3),
        domain="unit",
        description=(
            f"CIFAR-10 (Krizhevsky), official split {sum(map(len, pixels[:-1]))}/{len(pixels[-1])}, RGB "
            "levels 0–255 scaled to [0, 1]."
        ),
    )


def _cifar_rows(planes: np.ndarray) -> np.ndarray:
    """From one plane per colour to one colour per pixel."""
    return _unit_rows(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1))


_Batch = tuple[np.ndarray, np.ndarray]
_BINARY = tuple(f"{name}.bin" for name in CIFAR_BATCHES)


def _cifar_batches() -> list[_Batch]:
    """The six batches from the first place that has them: unpacked, packed, or downloaded."""
    kinds: tuple[tuple[tuple[str, ...], str, str, Callable[[bytes, Path], _Batch]], ...] = (
        (_BINARY, "cifar-10-batches-bin", "cifar-10-binary.tar.gz", read_cifar_binary),
        (CIFAR_BATCHES, "cifar-10-batches-py", "cifar-10-python.tar.gz", read_cifar_python),
    )
    for folder in local_folders(CIFAR10):
        for names, subfolder, archive, read in kinds:
            for place in (folder, folder / subfolder):
                if all((place / name).is_file() for name in names):
                    return [read((place / name).read_bytes(), place / name) for name in names]
            if (folder / archive).is_file():
                return _read_archive(folder / archive, names, read)
    (path,) = download(CIFAR10)
    return _read_archive(path, _BINARY, read_cifar_binary)


def _read_archive(path: Path, names: tuple[str, ...], read: Callable[[bytes, Path], _Batch]) -> list[_Batch]:
    content = read_tar(path, names)
    return [read(content[name], path / name) for name in names]
