"""Arrays to files: .npy, .npz or .csv by the file's ending, written atomically."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from latentia.core.errors import FileFormatError, RunFolderError

SUFFIXES = (".npy", ".npz", ".csv")


def check_output(path: Path, suffixes: tuple[str, ...] = SUFFIXES) -> None:
    """Refuse a file that could not be written, before any work is done."""
    if path.suffix.lower() not in suffixes:
        raise FileFormatError(
            f"The name {path.name!r} has no supported ending. Let it end in {' or '.join(suffixes)}."
        )
    if path.is_dir():
        raise RunFolderError(f"{path} is a folder, not a file. Choose another --out.")


def write_rows(path: Path, rows: Any, *, names: list[str] | None = None, labels: Any = None) -> None:
    """Write a matrix; ``names`` head the columns of a .csv, ``labels`` go into an .npz."""
    import numpy as np

    from latentia.core.files import write_atomically

    kind = path.suffix.lower()
    if kind == ".npz":
        write_arrays(path, {"X": rows} if labels is None else {"X": rows, "y": labels})
        return
    buffer = io.BytesIO()
    if kind == ".npy":
        np.save(buffer, rows)
    else:
        if names is None or len(names) != rows.shape[1]:  # means of categorical sites have a column per state
            names = [f"x{i}" for i in range(rows.shape[1])]
        header = io.StringIO()
        csv.writer(header, lineterminator="").writerow(names)
        text = io.TextIOWrapper(buffer, encoding="utf-8", write_through=True)
        np.savetxt(text, rows, fmt="%.9g", delimiter=",", header=header.getvalue(), comments="")
        text.detach()
    write_atomically(path, buffer.getvalue())


def write_labels(path: Path, labels: Any, classes: Any, probabilities: Any = None) -> None:
    """Write predicted labels, and the probabilities of all ``classes`` if they are given.

    A .csv has a column ``label`` and one ``p(CLASS)`` for each class; an .npz has ``y``, ``classes`` and ``P``; an
    .npy holds the labels, or the matrix of probabilities.
    """
    import numpy as np

    from latentia.core.files import write_atomically

    kind = path.suffix.lower()
    if kind == ".npz":
        more = {} if probabilities is None else {"P": probabilities}
        write_arrays(path, {"y": labels, "classes": classes, **more})
    elif kind == ".npy":
        buffer = io.BytesIO()
        np.save(buffer, labels if probabilities is None else probabilities, allow_pickle=False)
        write_atomically(path, buffer.getvalue())
    else:
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["label", *([] if probabilities is None else [f"p({c})" for c in classes.tolist()])])
        for index, label in enumerate(labels.tolist()):
            writer.writerow([label, *([] if probabilities is None else [f"{p:.9g}" for p in probabilities[index]])])
        write_atomically(path, text.getvalue().encode("utf-8"))


def write_arrays(path: Path, arrays: dict[str, Any]) -> None:
    """Write named arrays to an .npz."""
    import numpy as np

    from latentia.core.files import write_atomically

    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **{name: np.asarray(array) for name, array in arrays.items()})
    write_atomically(path, buffer.getvalue())
