"""Sparse codes for many signals at once: min over z of ½‖x − zD‖² + penalty(z), or the best few atoms.

One function, :func:`sparse_encode`, and many methods:

===========  ==================================================  ===========================================
method       what it solves                                      penalties
===========  ==================================================  ===========================================
``cd``       greedy coordinate descent with an exact finish      L1, ElasticNet, Group (weighted, ≥ 0)
``lars``     the path of solutions from α = ∞ down to α          L1, ElasticNet (weighted, ≥ 0)
``ista``     proximal gradient                                   any
``fista``    the same with momentum and restarts                 any convex one
``working``  working sets, for many signals on an accelerator    L1, ElasticNet (weighted, ≥ 0)
``iht``      iterative hard thresholding                         L0, or ``n_nonzero``
``omp``      orthogonal matching pursuit                         none: ``n_nonzero`` and/or ``error``
``ols``      orthogonal least squares (order-recursive)          none: ``n_nonzero`` and/or ``error``
===========  ==================================================  ===========================================

``cd``, ``lars``, ``omp`` and ``ols`` are compiled for the CPU and run in parallel over the signals; the result for
a signal depends on nothing but this signal, the dictionary and the settings, to the last bit.
"""

from __future__ import annotations

from latentia.inference.sparse.codes import Codes
from latentia.inference.sparse.encode import METHODS, sparse_encode
from latentia.inference.sparse.lars import lars_path

__all__ = ["METHODS", "Codes", "lars_path", "sparse_encode"]
