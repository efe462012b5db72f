"""The losses of encoders of sparse codes: the distance to exact codes, or predictive sparse decomposition.

A supervised encoder f is a model of a signal with its exact code z*, and nothing is latent:

    E((x, z*)) = ‖f(x) − z*‖².

One that learns from signals alone is a model in which the code is the latent variable (Kavukcuoglu et al., 2008):

    E(x, z) = ½‖x − zD‖² + α‖z‖₁ + ½β‖z − f(x)‖².

Either way the loss is the mean energy. Of the second, the codes of a batch come first: proximal steps from
z = f(x), which β keeps near (their Gram matrix is DDᵀ + βI). With these held fixed, the gradient of the energy
teaches f what was found, and moves the dictionary, if it learns too, towards the signals; its atoms then go back to
norm one.
"""

from __future__ import annotations

from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core import space
from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import Constrained
from latentia.core.model import AbstractModel, Scalar
from latentia.core.parameters import buffer, weight
from latentia.core.sharding import split
from latentia.core.space import Space
from latentia.inference.sparse.unrolled import LISTA, PSDEncoder, UnrolledLayer
from latentia.learning.compiled import AbstractPrepare
from latentia.ops.arrays import batch_size, weighted_mean
from latentia.ops.thresholds import soft

#: How often the Gram matrix is squared for the bound of its largest eigenvalue.
SQUARINGS = 3


class Columns(AbstractPrepare):
    """Examples → the variables whose spaces are given, in the order of their parts."""

    spaces: Any = eqx.field(static=True)

    def __call__(self, rows: Any, *, key: PRNGKeyArray) -> Any:
        """Encode a batch."""
        del key
        return space.encode(self.spaces, rows)


class TaughtEncoder(AbstractModel):
    """A LISTA with a teacher: E((x, z*)) = ‖f(x) − z*‖². Its first layers may stand still while the others learn.

    Args:
        still: the arrays of the layers that stand still. They are bare tuples, since the fields of a layer have
            roles of their own, which would hold instead of this one.
        moving: the layers after these, which learn.
        nonnegative: codes are not negative.
    """

    still: tuple[tuple[Any, ...], ...] = buffer()
    moving: tuple[UnrolledLayer, ...] = weight()
    nonnegative: bool = eqx.field(static=True, default=False)

    @classmethod
    def of(cls, encoder: LISTA, n_still: int = 0) -> Self:
        """An encoder whose first ``n_still`` layers stand still."""
        still = tuple((layer.weights, layer.lateral, layer.threshold) for layer in encoder.layers[:n_still])
        return cls(still, encoder.layers[n_still:], encoder.nonnegative)

    @property
    def encoder(self) -> LISTA:
        """f, all of its layers."""
        return LISTA((*(UnrolledLayer(*arrays) for arrays in self.still), *self.moving), self.nonnegative)

    @property
    def x_space(self) -> tuple[Space, Space]:
        """A signal, and its exact code."""
        n_atoms, n_features = self.encoder.shape
        return Space("real", (n_features,)), Space("real", (n_atoms,))

    @property
    def z_space(self) -> tuple[()]:
        """Nothing is latent."""
        return ()

    def energy(self, x: Any, z: Any = ()) -> Scalar:
        """‖f(x) − z*‖²."""
        del z
        signal, code = x
        return jnp.sum((self.encoder(signal) - code) ** 2)


class CodeDistance(AbstractObjective):
    """mean ‖f(x) − z*‖² over a batch of signals with their exact codes."""

    @property
    def requires(self) -> tuple[Need, ...]:
        """An encoder with a teacher."""
        return (TaughtEncoder,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> tuple[()]:
        """No state."""
        del model, x, key
        return ()

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> tuple[()]:
        """Nothing to prepare."""
        del model, x, state, key, weights
        return ()

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """The mean squared distance."""
        del state
        loss = weighted_mean(jax.vmap(model.energy)(x), weights)
        return loss, {"loss": loss}


class PredictiveEncoder(Constrained):
    """An encoder that agrees with the codes of a dictionary: E(x, z) = ½‖x − zD‖² + α‖z‖₁ + ½β‖z − f(x)‖².

    Build one with :meth:`make`; the dictionary is either ``given`` or ``learned``.
    """

    encoder: PSDEncoder
    given: Float[Array, "k d"] | None = buffer()
    learned: Float[Array, "k d"] | None = weight()
    alpha: Float[Array, ""] = buffer()
    beta: Float[Array, ""] = buffer()

    @classmethod
    def make(cls, encoder: PSDEncoder, dictionary: Any, *, alpha: float, beta: float, learn: bool) -> Self:
        """A model from plain values.

        Args:
            encoder: f.
            dictionary: D, (K, d).
            alpha: strength of the ℓ1 penalty.
            beta: how much codes must agree with the encoder.
            learn: whether the dictionary learns too.
        """
        atoms = jnp.asarray(dictionary)
        numbers = (jnp.asarray(value, atoms.dtype) for value in (alpha, beta))
        return cls(encoder, None if learn else atoms, atoms if learn else None, *numbers)

    @property
    def dictionary(self) -> Float[Array, "k d"]:
        """D."""
        found = self.given if self.learned is None else self.learned
        assert found is not None
        return found

    @property
    def x_space(self) -> Space:
        """A signal."""
        return Space("real", self.dictionary.shape[1:])

    @property
    def z_space(self) -> Space:
        """Its code."""
        return Space("real", self.dictionary.shape[:1])

    def energy(self, x: Float[Array, " d"], z: Float[Array, " k"]) -> Scalar:
        """½‖x − zD‖² + α‖z‖₁ + ½β‖z − f(x)‖²."""
        misfit, price, distance = self.parts(x, z)
        return misfit + price + 0.5 * self.beta * distance

    def parts(self, x: Float[Array, " d"], z: Float[Array, " k"]) -> tuple[Scalar, Scalar, Scalar]:
        """(½‖x − zD‖², α‖z‖₁, ‖z − f(x)‖²)."""
        misfit = 0.5 * jnp.sum((x - z @ self.dictionary) ** 2)
        return misfit, self.alpha * jnp.sum(jnp.abs(z)), jnp.sum((z - self.encoder(x)) ** 2)

    def project(self) -> Self:
        """A dictionary that learns, with its atoms scaled to norm one; a given one stays as it is."""
        if self.learned is None:
            return self
        norms = jnp.sqrt(jnp.sum(self.learned**2, axis=1, keepdims=True))
        scaled = self.learned / jnp.broadcast_to(jnp.maximum(norms, 1e-12), self.learned.shape)
        return eqx.tree_at(lambda m: m.learned, self, scaled)


class DecompositionState(eqx.Module):
    """The codes of the step's batch, and a bound of the eigenvalues of DDᵀ."""

    codes: Float[Array, "n k"]
    bound: Float[Array, ""]


class PredictiveDecomposition(AbstractObjective):
    """mean E(x, z) of a :class:`PredictiveEncoder`, at codes z that nearly minimise it and are held fixed.

    Args:
        n_code_steps: proximal steps for the codes of a batch.
    """

    n_code_steps: int = eqx.field(static=True, default=30)

    @property
    def requires(self) -> tuple[Need, ...]:
        """An encoder with a dictionary."""
        return (PredictiveEncoder,)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> DecompositionState:
        """No codes yet; the bound of the dictionary as it is."""
        del key
        codes = jnp.zeros((batch_size(x), model.dictionary.shape[0]), x.dtype)
        return DecompositionState(split(codes), eigenvalue_bound(model.dictionary))

    def prepare(
        self, model: Any, x: Any, state: DecompositionState, *, key: PRNGKeyArray, weights: Any = None
    ) -> DecompositionState:
        """The codes of the batch."""
        del key, weights
        bound = state.bound if model.learned is None else eigenvalue_bound(model.dictionary)
        found = psd_codes(model.encoder, model.dictionary, x, model.alpha, model.beta, bound, self.n_code_steps)
        return DecompositionState(split(found), bound)

    def loss(self, model: Any, x: Any, weights: Any, state: DecompositionState) -> tuple[Scalar, Metrics]:
        """The mean energy, and its parts."""
        parts = jax.vmap(model.parts)(x, jax.lax.stop_gradient(state.codes))
        misfit, price, distance = (weighted_mean(part, weights) for part in parts)
        loss = misfit + price + 0.5 * model.beta * distance
        return loss, {"loss": loss, "reconstruction": misfit, "distance": distance}


def psd_codes(
    encoder: PSDEncoder, D: Float[Array, "k d"], x: Float[Array, "n d"], alpha: Any, beta: Any, L: Any, n_steps: int
) -> Float[Array, "n k"]:
    """argmin_z ½‖x − zD‖² + α‖z‖₁ + ½β‖z − f(x)‖² by FISTA from z = f(x); L bounds the eigenvalues of DDᵀ."""
    guess = jax.vmap(encoder)(x)
    step = 1 / (L + beta)
    # With strong convexity β the best momentum is constant.
    root = jnp.sqrt(beta * step)
    momentum = (1 - root) / (1 + root)

    def advance(carry: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        z, y = carry
        u = y + step * ((x - y @ D) @ D.T + beta * (guess - y))
        new = jnp.maximum(u - step * alpha, 0.0) if encoder.nonnegative else soft(u, step * alpha)
        return (new, new + momentum * (new - z)), None

    return jax.lax.scan(advance, (guess, guess), None, length=n_steps)[0][0]


def eigenvalue_bound(D: Float[Array, "k d"]) -> Float[Array, ""]:
    """(tr G¹⁶)^(1/16) for G = DDᵀ: the largest eigenvalue, or up to n^(1/16) times as much, where n is G's rank.

    A few products of matrices, which a compiled step can afford for a dictionary that moves.

    >>> eigenvalue_bound(jnp.array([[2.0, 0.0], [0.0, 1.0]])).round(4)
    Array(4., dtype=float32)
    """
    gram = D @ D.T if D.shape[0] <= D.shape[1] else D.T @ D
    # ‖G^(2^m)‖^(1/2^m), Frobenius; scaled to norm one before every squaring, or small powers would vanish.
    logarithm = jnp.zeros((), gram.dtype)
    for m in range(SQUARINGS + 1):
        norm = jnp.maximum(jnp.sqrt(jnp.sum(gram**2)), jnp.finfo(gram.dtype).tiny)
        logarithm = logarithm + jnp.log(norm) / 2**m
        gram = gram / norm
        gram = gram @ gram if m < SQUARINGS else gram
    return jnp.exp(logarithm) * (1 + 1e-5)
