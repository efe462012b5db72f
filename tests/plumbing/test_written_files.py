"""Files that the library writes: who may read them, and that nothing else is left in the folder."""

from __future__ import annotations

import os

import numpy as np
import pytest

from latentia.core.files import read_arrays, write_arrays, write_json


@pytest.mark.skipif(os.name != "posix", reason="permissions are a matter of POSIX")
@pytest.mark.parametrize("mask", [0o022, 0o027, 0o077])
def test_files_may_be_read_by_whoever_may_read_new_files(mask, tmp_path):
    """Also one that takes the place of another; and new files of others are as before."""
    before = os.umask(mask)
    try:
        for value in (1.0, 2.0):
            write_json(tmp_path / "new" / "facts.json", {"value": value})
            write_arrays(tmp_path / "new" / "model.safetensors", {"value": np.array(value)}, {})
        left = os.umask(mask)
    finally:
        os.umask(before)
    assert left == mask
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert modes == dict.fromkeys(["facts.json", "model.safetensors"], 0o666 & ~mask)
    assert read_arrays(tmp_path / "new" / "model.safetensors")[0]["value"] == 2.0
