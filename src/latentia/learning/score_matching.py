"""Score matching: learn an energy from its derivatives, in which log Z does not occur.

With ψ = −∇F the score of the model, the expected squared distance between it and the data's score is, up to a
constant of the data (Hyvärinen, 2005),

    J = E[½‖∇F(x)‖² − tr ∇²F(x)].

The trace is found exactly, axis by axis, or in random directions v with E vvᵀ = I (Hutchinson; "sliced" in Song et
al., 2019): E vᵀ∇²F v = tr ∇²F. Where F is a Gaussian and a function f of projections u = Vx, all of this happens in
the space of u: with r = λx − b and g = ∇f(u),

    ‖∇F‖² = ‖r‖² + 2 (Vr)ᵀg + gᵀVVᵀg,      vᵀ∇²F v = Σλ_i + (Vv)ᵀ ∇²f(u) Vv,

which leaves two products of the size of the batch, Vx and its transpose on the way back.

Denoising score matching (Vincent, 2011) needs no second derivative: it learns the data smoothed by noise of
standard deviation τ, x̃ = x + τε, from J = E ½‖∇F(x̃) − (x̃ − x)/τ²‖².

On the positive half-line the derivation fails at the border; weighting by x corrects this (Hyvärinen, 2007):

    J = E Σ_i [2 x_i ψ_i + x_i² ∂_iψ_i + ½ x_i² ψ_i²].
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float, PRNGKeyArray

from latentia.core.algorithms import AbstractObjective, Metrics, Need
from latentia.core.capabilities import FreeEnergy, Projected
from latentia.core.errors import ParameterError, UnknownNameError
from latentia.core.model import Scalar
from latentia.core.space import Domain
from latentia.ops.arrays import batch_size, weighted_mean
from latentia.ops.derivatives import curvature, laplacian, slope_and_curvature
from latentia.ops.directions import SignDirections

Trace = Literal["exact", "sliced"]


class ScoreMatching(AbstractObjective):
    """E[½‖∇F‖² − tr ∇²F].

    Args:
        trace: "exact", or "sliced": in random directions, whose entries are ±1.
        n_directions: how many directions for each example.

    Reference:
        Hyvärinen (2005), *Estimation of non-normalized statistical models by score matching*; Song, Garg, Shi and
        Ermon (2019), *Sliced score matching*.
    """

    trace: Trace = eqx.field(static=True, default="exact")
    n_directions: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        _check_trace(self.trace, self.n_directions)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The real line: a density must vanish, smoothly, towards its border."""
        return ("real",)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """Directions, if any are needed."""
        del model
        return _directions(x, self.trace, self.n_directions, key)

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """Fresh directions."""
        del state
        return self.init(model, x, key=key)

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """The objective itself."""
        if state is None:
            values = jax.vmap(lambda x: hyvarinen_score(model, x))(x)
        elif isinstance(model, Projected):
            values = _projected_scores(model, x, state)
        else:
            values = jax.vmap(lambda x, v: hyvarinen_score(model, x, v))(x, state.dense())
        value = weighted_mean(values, weights)
        return value, {"score_matching": value}


def sliced(n_directions: int = 1) -> ScoreMatching:
    """Score matching whose trace is taken in random directions.

    >>> sliced(3).n_directions
    3
    """
    return ScoreMatching("sliced", n_directions)


def hyvarinen_score(model: Any, x: Any, directions: Float[Array, "k n"] | None = None) -> Scalar:
    """½‖∇F‖² − tr ∇²F of one example; the trace exactly, or in the given directions."""
    f, flat = _flat(model, x)
    if directions is None:
        slope = jax.grad(f)(flat)
        return 0.5 * slope @ slope - laplacian(f, flat)
    slope, bends = slope_and_curvature(f, flat, directions)
    return 0.5 * slope @ slope - jnp.mean(bends)


def _projected_scores(model: Projected, x: Float[Array, "b n"], directions: Any) -> Float[Array, " b"]:
    """½‖∇F‖² − the mean of vᵀ∇²Fv over directions for a batch, in the space of the projections."""
    precision, bias, matrix = model.projections()
    inputs = x @ matrix.T
    slope_of = lambda u: jax.vmap(jax.grad(model.potential))(u)  # noqa: E731
    moves = directions.products(matrix)
    along = lambda v: jax.jvp(slope_of, (inputs,), (v,))  # noqa: E731
    slope, turns = jax.vmap(along, 1, (None, 1))(moves)
    each = jnp.broadcast_to(precision, bias.shape)
    rest = each[None, :] * x - bias[None, :]
    # With one λ for all entries Vr is known already.
    across = precision * inputs - (matrix @ bias)[None, :] if precision.ndim == 0 else rest @ matrix.T
    square = jnp.sum(rest**2, axis=1) + 2 * jnp.sum(across * slope, axis=1) + _squared_lengths(slope, matrix)
    bends = jnp.sum(each) + jnp.mean(jnp.sum(moves * turns, axis=2), axis=1)
    return 0.5 * square - bends


@jax.custom_jvp
def _squared_lengths(g: Float[Array, "b k"], V: Float[Array, "k n"]) -> Float[Array, " b"]:
    """‖Vᵀg‖² of every g, by VVᵀ. Its derivative is stated so that the symmetric VVᵀ meets one product, not two."""
    return jnp.sum((g @ (V @ V.T)) * g, axis=1)


@_squared_lengths.defjvp
def _(primals: Any, tangents: Any) -> tuple[Array, Array]:
    (g, V), (dg, dV) = primals, tangents
    turned = g @ (V @ V.T)
    return jnp.sum(turned * g, axis=1), 2 * jnp.sum(turned * dg, axis=1) + 2 * jnp.sum((g @ (V @ dV.T)) * g, axis=1)


class DenoisingScoreMatching(AbstractObjective):
    """E ½‖∇F(x̃) − (x̃ − x)/τ²‖² with x̃ = x + τε: learns the data smoothed by the noise.

    Args:
        tau: standard deviation of the noise, in units of each column's own standard deviation if ``relative``.
        relative: whether τ is relative.

    Reference:
        Vincent (2011), *A connection between score matching and denoising autoencoders*.
    """

    tau: float = eqx.field(static=True, default=0.1)
    relative: bool = eqx.field(static=True, default=True)
    scale: Any = None  # τ in the data's own units, from a look at the data

    def __check_init__(self) -> None:
        if not self.tau > 0:
            raise ParameterError(f"tau must be positive, got {self.tau}.")

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The real line."""
        return ("real",)

    def surveyed(self, model: Any, look: Any, *, key: PRNGKeyArray) -> DenoisingScoreMatching:
        """Looks at the columns' standard deviations if τ is relative; columns that do not vary get the mean one."""
        del model, key
        if not self.relative:
            return self
        x = look()
        spread = jax.tree.map(lambda a: jnp.std(a, axis=0), x)
        usual = jax.tree.map(lambda s: jnp.where(jnp.max(s) > 0, jnp.mean(s), 1.0), spread)
        scale = jax.tree.map(lambda s, u: self.tau * jnp.where(s > 1e-6 * u, s, u), spread, usual)
        return DenoisingScoreMatching(self.tau, self.relative, scale)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """Standard normal noise."""
        del model
        return jax.random.normal(key, (batch_size(x), _size(x)), jax.tree.leaves(x)[0].dtype)

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """Fresh noise."""
        del state
        return self.init(model, x, key=key)

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """The objective itself."""
        tau = self.tau if self.scale is None else ravel_pytree(self.scale)[0]

        def one(x: Any, noise: Float[Array, " n"]) -> Scalar:
            f, flat = _flat(model, x)
            error = jax.grad(f)(flat + tau * noise) - noise / tau
            return 0.5 * error @ error

        value = weighted_mean(jax.vmap(one)(x, state), weights)
        return value, {"denoising_score_matching": value}


class NonnegativeScoreMatching(AbstractObjective):
    """E Σ_i [2 x_i ψ_i + x_i² ∂_iψ_i + ½ x_i² ψ_i²], ψ = −∇F, for data on the positive half-line.

    Args:
        trace: how Σ x_i² ∂_iψ_i is found, see :class:`ScoreMatching`.
        n_directions: how many directions for each example.

    Reference:
        Hyvärinen (2007), *Some extensions of score matching*.
    """

    trace: Trace = eqx.field(static=True, default="exact")
    n_directions: int = eqx.field(static=True, default=1)

    def __check_init__(self) -> None:
        _check_trace(self.trace, self.n_directions)

    @property
    def requires(self) -> tuple[Need, ...]:
        """``FreeEnergy``."""
        return (FreeEnergy,)

    @property
    def domains(self) -> tuple[Domain, ...]:
        """The positive half-line."""
        return ("nonnegative",)

    def init(self, model: Any, x: Any, *, key: PRNGKeyArray) -> Any:
        """Directions, if any are needed."""
        del model
        return _directions(x, self.trace, self.n_directions, key)

    def prepare(self, model: Any, x: Any, state: Any, *, key: PRNGKeyArray, weights: Any = None) -> Any:
        """Fresh directions."""
        del state
        return self.init(model, x, key=key)

    def loss(self, model: Any, x: Any, weights: Any, state: Any) -> tuple[Scalar, Metrics]:
        """The objective itself."""

        dense = None if state is None else state.dense()

        def one(x: Any, directions: Float[Array, "k n"] | None) -> Scalar:
            f, flat = _flat(model, x)
            push = flat * jax.grad(f)(flat)  # −x ψ
            if directions is None:
                bend = laplacian(f, flat, scale=flat)
            else:
                bend = jnp.mean(jax.vmap(lambda v: curvature(f, flat, flat * v))(directions))
            return -2 * jnp.sum(push) - bend + 0.5 * push @ push

        value = weighted_mean(jax.vmap(one)(x, dense), weights)
        return value, {"nonnegative_score_matching": value}


def _flat(model: Any, x: Any) -> tuple[Any, Float[Array, " n"]]:
    """(F as a function of one flat vector, x as one)."""
    flat, unravel = ravel_pytree(x)
    return lambda v: model.free_energy(unravel(v)), flat


def _size(x: Any) -> int:
    return sum(leaf[0].size for leaf in jax.tree.leaves(x))


def _directions(x: Any, trace: Trace, n: int, key: PRNGKeyArray) -> SignDirections | None:
    if trace == "exact":
        return None
    return SignDirections.draw((batch_size(x), n), _size(x), jax.tree.leaves(x)[0].dtype, key=key)


def _check_trace(trace: str, n_directions: int) -> None:
    if trace not in get_args(Trace):
        raise UnknownNameError("trace", trace, get_args(Trace))
    if n_directions < 1:
        raise ParameterError(f"n_directions must be at least 1, got {n_directions}.")
