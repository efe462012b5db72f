"""Threads of the linear algebra under NumPy."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from typing import Any


def one_blas_thread() -> AbstractContextManager[Any]:
    """While it lasts, NumPy's matrix products take one thread.

    For many small products between calls of threads of our own: those of the BLAS would keep waiting in a busy loop
    for the next product, on the cores that ours need, and their number would change the last bits.

    >>> import numpy as np
    >>> with one_blas_thread():
    ...     np.ones((2, 3)) @ np.ones(3)
    array([3., 3.])
    """
    return _controller().limit(limits=1, user_api="blas")


@functools.cache
def _controller() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()  # looks at all loaded libraries, which takes a while
