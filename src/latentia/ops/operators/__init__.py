"""Linear operators D between a code z and a signal x: x ≈ Dz.

Algorithms for codes need three things of D: ``synthesise(z)`` = Dz, ``analyse(x)`` = Dᵀx (the adjoint) and
``lipschitz()`` = λ_max(DᵀD), the largest curvature of ½‖x − Dz‖². With these, penalties, certificates, proximal
steps and dictionary steps are written once.

================ ==================================================== =============================
operator         Dz                                                   λ_max(DᵀD)
================ ==================================================== =============================
``Matrix``       Σ_k z_k d_k, atoms in rows                           exact
``Convolution``  Σ_m f_m ∗ z_m, for every colour channel              exact on a torus, else iterated
``Composed``     D_1 D_2 ⋯ D_K z, layers one after the other          iterated
``Sum``          Σ_i D_i z_i, the code is the tuple of the z_i        iterated
``Masked``       Dz where the mask is true, else 0: missing entries   iterated
``Unpooling``    every entry of z at the place that its switch names  exact
================ ==================================================== =============================

Codes and signals are values of pytrees of :class:`~latentia.core.space.Space`; methods take one example, and
:func:`jax.vmap` makes batches. Solvers work on flat vectors: ``flat_code``, ``unflat_code``, ``flat_signal`` and
``unflat_signal`` go there and back, with any axes in front. All products use the full precision of their arrays (a
GPU would otherwise round factors to ten bits, and no certificate would hold).
"""

from __future__ import annotations

from latentia.ops.operators.base import LinearOperator, Matrix, as_operator, largest_eigenvalue, to_matrix
from latentia.ops.operators.combined import Composed, Masked, Sum
from latentia.ops.operators.convolution import Border, Convolution
from latentia.ops.operators.unpooling import Unpooling

__all__ = [
    "Border",
    "Composed",
    "Convolution",
    "LinearOperator",
    "Masked",
    "Matrix",
    "Sum",
    "Unpooling",
    "as_operator",
    "largest_eigenvalue",
    "to_matrix",
]
