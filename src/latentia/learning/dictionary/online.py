"""Online dictionary learning (Mairal, Bach, Ponce and Sapiro, 2009 and 2010).

Each batch adds its codes to the statistics

    A ← β_t A + Σ zᵀz,    B ← β_t B + Σ zᵀx,    β_t = (1 − 1/t)^ρ_t,    ρ_t = min(ρ, 1 + t/15),

and one pass of block coordinate descent over the atoms lowers the quadratic function that they stand for. ρ is how
fast the weight of old codes, found with worse atoms, decays: at 0 all count equally, otherwise mostly those of the
last 1/(1 + ρ) of the way. At the start the decay is slow, because there are only a few batches.

Because codes follow atoms and atoms codes, both drift slowly in one direction. Codes are therefore found ahead of
where the atoms are, at Π(2D − D̄) with D̄ a running mean of the last atoms (an eighth of all batches), which takes
fewer signals to an equal objective and, with ρ near 3, stays stable.
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PRNGKeyArray

from latentia.inference.proximal_split import SparseInference
from latentia.learning.dictionary.atoms import Constraint, Statistics, pass_over_atoms, project
from latentia.learning.dictionary.base import DictionaryLearner, Usage

#: Batches in which ρ grows by one, until it is what it should be.
RAMP = 15
#: The running mean of the atoms reaches over one in so many of the batches.
LAG = 8


class OnlineState(eqx.Module):
    """What is known of all signals so far."""

    second: Float[Array, "k k"]
    cross: Float[Array, "k d"]
    mean: Float[Array, "k d"]
    batches: Int[Array, ""]
    usage: Usage


class Online(DictionaryLearner):
    """Block coordinate descent on statistics with forgetting, one pass a batch.

    Args:
        inference: how codes are found.
        constraint: "ball" (‖d‖ ≤ 1) or "sphere" (‖d‖ = 1).
        nonnegative: whether atoms must not have negative entries.
        reseed: whether unused and doubled atoms are replaced by signals that are represented badly.
        forgetting: ρ, at least 0.
    """

    inference: SparseInference
    constraint: Constraint = eqx.field(static=True, default="ball")
    nonnegative: bool = eqx.field(static=True, default=False)
    reseed: bool = eqx.field(static=True, default=True)
    forgetting: float = eqx.field(static=True, default=3.0)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> OnlineState:
        """Nothing is known."""
        del x, key
        k, d = model.dictionary.shape
        atoms = model.dictionary
        second, cross = jnp.zeros((k, k), atoms.dtype), jnp.zeros((k, d), atoms.dtype)
        still = jnp.array(atoms, copy=True)
        return OnlineState(second, cross, still, jnp.zeros((), jnp.int32), Usage.none(atoms))

    def find_codes(self, model: Any, x: np.ndarray, state: OnlineState) -> Any:
        """Codes of atoms moved ahead along their drift; each batch is new, so there is nothing to start from."""
        D = model.dictionary
        if state.batches > LAG:
            ahead = 2 * D - state.mean
            D[...] = project(ahead, constraint=self.constraint, nonnegative=self.nonnegative)
        return self.inference.encode(model, x)

    def update(
        self, D: np.ndarray, X: np.ndarray, codes: Any, weights: Any, sums: Statistics, state: OnlineState
    ) -> OnlineState:
        """Forget, add, and one pass over the atoms."""
        del X, codes, weights
        second: Any = state.second
        cross: Any = state.cross
        batches: Any = state.batches
        batches += 1
        t = int(batches)
        kept = D.dtype.type((1 - 1 / t) ** min(self.forgetting, 1 + t / RAMP))
        second *= kept
        second += sums.second
        cross *= kept
        cross += sums.cross
        pass_over_atoms(D, second, cross, constraint=self.constraint, nonnegative=self.nonnegative)
        mean: Any = state.mean
        mean += D.dtype.type(min(1.0, LAG / t)) * (D - mean)
        return state

    def forget_atoms(self, state: OnlineState, atoms: np.ndarray, D: np.ndarray) -> None:
        """Their rows and columns of the statistics, and where they were."""
        second: Any = state.second
        cross: Any = state.cross
        mean: Any = state.mean
        second[atoms], second[:, atoms], cross[atoms], mean[atoms] = 0, 0, 0, D[atoms]
