"""Binary sites with pairwise couplings: models that are quadratic in binary latents, with the data clamped.

    E(z) = c − fᵀz + ½ zᵀJz,      J symmetric with a zero diagonal,

so that the log-odds of site i given the others are f_i − J_iᵀz, and because E is linear in every single site the
best factorial distribution has ẑ_i = σ(f_i − J_iᵀẑ). Updating site after site never raises the variational energy.
"""

from __future__ import annotations

from typing import Any, Self

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.capabilities import BinarySites, Tempered
from latentia.core.model import Scalar
from latentia.core.parameters import bias, buffer, weight
from latentia.core.space import Space
from latentia.inference.posteriors import Coins
from latentia.ops.logistic import softplus

Vector = Float[Array, " k"]


class CoupledSites(BinarySites, Tempered):
    """E(z) = c − fᵀz + ½ zᵀJz; there are no visibles."""

    field: Vector = bias()
    coupling: Float[Array, "k k"] = weight()
    constant: Scalar = buffer()

    @property
    def x_space(self) -> tuple:
        """Nothing."""
        return ()

    @property
    def z_space(self) -> Space:
        """{0, 1}ᵏ."""
        return Space("binary", self.field.shape)

    def energy(self, x: Any, z: Vector) -> Scalar:
        """E(z)."""
        del x
        return self.constant - self.field @ z + 0.5 * (z @ (self.coupling @ z))

    def site_log_odds(self, z: Vector) -> Vector:
        """f − Jz."""
        return self.field - self.coupling @ z

    # -- mean field ----------------------------------------------------------------------------------------

    def guess(self) -> Coins:
        """Every site alone, with the others off."""
        return Coins(self.field)

    def best(self, q: Coins) -> Coins:
        """f − Jẑ, all sites at once."""
        return Coins(self.site_log_odds(q.mean()))

    def refine(self, q: Coins) -> Coins:
        """Site after site at its best for the others."""

        def body(i: Any, carry: tuple[Vector, Vector]) -> tuple[Vector, Vector]:
            log_odds, mean = carry
            here = self.field[i] - self.coupling[i] @ mean
            return log_odds.at[i].set(here), mean.at[i].set(jax.nn.sigmoid(here))

        return Coins(jax.lax.fori_loop(0, self.field.shape[0], body, (q.log_odds, q.mean()))[0])

    def variational_energy(self, q: Coins) -> Scalar:
        """E(ẑ) − H(q): E is linear in every site, so its mean is its value at the means."""
        return self.energy((), q.mean()) - q.entropy()

    def base_at(self, q: Coins) -> Self:
        """The sites under the log-odds of q, without coupling."""
        return type(self)(q.log_odds, jnp.zeros_like(self.coupling), jnp.zeros_like(self.constant))

    # -- sampling ------------------------------------------------------------------------------------------

    def begin(self, x: Any, *, key: PRNGKeyArray) -> Vector:
        """A draw of every site alone."""
        del x
        return self.guess().sample(key=key)

    def sweep(self, x: Any, z: Vector, *, key: PRNGKeyArray, fixed: Any = None) -> tuple[Any, Vector]:
        """Site after site given the others."""
        del fixed
        noise = jax.random.logistic(key, z.shape, z.dtype)

        def body(i: Any, z: Vector) -> Vector:
            log_odds = self.field[i] - self.coupling[i] @ z
            return z.at[i].set((noise[i] < log_odds).astype(z.dtype))

        # The first site is drawn before it is read: whatever it holds, be it not a number, is not looked at.
        return x, jax.lax.fori_loop(0, z.shape[0], body, z.at[0].set(0))

    def base(self, x: Any = None) -> Self:
        """The same fields without coupling."""
        del x
        return type(self)(self.field, jnp.zeros_like(self.coupling), jnp.zeros_like(self.constant))

    def base_log_z(self) -> Scalar:
        """Σ S(f) − c."""
        return jnp.sum(softplus(self.field)) - self.constant

    def reduced_energy(self, x: Any, z: Vector) -> Scalar:
        """The first site, which a sweep draws anew before anything else, summed out."""
        off = z.at[0].set(0)
        return self.energy(x, off) - softplus(self.site_log_odds(off)[0])
