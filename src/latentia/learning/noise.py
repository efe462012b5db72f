"""Noise distributions for noise-contrastive objectives.

Noise contrast needs a distribution with a known density that can be sampled (:class:`AbstractNoise`). It is fitted
to the data once, before training: learning is more efficient if it is similar to them. Conditional noise
contrast needs only a way to disturb an example (:class:`AbstractDisturbance`).
"""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, PRNGKeyArray

from latentia.core.capabilities import ExactSampler, Normalised
from latentia.core.errors import CapabilityError, DataError, ParameterError, UnknownNameError
from latentia.core.model import Scalar
from latentia.core.space import Domain, Space, leaves
from latentia.ops import gaussian
from latentia.ops.arrays import cast, float_type
from latentia.ops.compiling import briefly
from latentia.units import AbstractUnits, make

_UNITS: dict[Domain, str] = {
    "binary": "bernoulli",
    "spin": "spin",
    "categorical": "categorical",
    "real": "gaussian",
    "nonnegative": "rectified",
}


class AbstractNoise(eqx.Module):
    """A normalised distribution of visibles."""

    @abc.abstractmethod
    def fitted(self, x_space: Any, x: Any) -> AbstractNoise:
        """The noise fitted to a batch of visibles from a space."""

    @abc.abstractmethod
    def sample(self, *, key: PRNGKeyArray) -> Any:
        """One draw."""

    @abc.abstractmethod
    def log_prob(self, x: Any) -> Scalar:
        """log p_n(x)."""


class Marginals(AbstractNoise):
    """Independent columns with the data's marginals: Bernoulli, categorical, normal or half-normal."""

    layers: tuple[AbstractUnits, ...] = ()
    structure: Any = eqx.field(static=True, default=None)

    def fitted(self, x_space: Any, x: Any) -> Marginals:
        """One layer of units for every leaf of the space."""
        _only("noise='marginals'", tuple(_UNITS), x_space)
        spaces, values = leaves(x_space), jax.tree.leaves(x)
        layers = []
        for leaf, value in zip(spaces, values, strict=True):
            n, states = (leaf.shape[0], leaf.shape[1]) if leaf.domain == "categorical" else (leaf.n_columns, None)
            rows = value if leaf.domain == "categorical" else value.reshape(len(value), -1)
            units = cast(make(_UNITS[leaf.domain], n, states), rows.dtype)
            layers.append(units.standardised(rows).fitted(rows))
        shapes = tuple(leaf.shape for leaf in spaces)
        return Marginals(tuple(layers), (jax.tree.structure(x_space), shapes))

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """Every unit by itself."""
        treedef, shapes = self.structure
        blank = lambda units: jnp.zeros(units.n_statistics, float_type(units))  # noqa: E731
        keys = jax.random.split(key, len(self.layers))
        draws = [u.sample(blank(u), key=k) for u, k in zip(self.layers, keys, strict=True)]
        return jax.tree.unflatten(treedef, [d.reshape(s) for d, s in zip(draws, shapes, strict=True)])

    def log_prob(self, x: Any) -> Scalar:
        """Σ −E(x) − Γ(0) over the layers."""
        total = jnp.zeros((), float_type(x))
        for units, value in zip(self.layers, jax.tree.leaves(x), strict=True):
            value = value.reshape(units.space.shape)
            total = total - units.energy(value) - units.log_partition(jnp.zeros(units.n_statistics, value.dtype))
        return total


@briefly
def _normal(x: Any, widening: float) -> tuple[Any, Array]:
    """(mean of a batch, factor of the precision that its widened covariance has)."""
    rows = jax.vmap(lambda x: ravel_pytree(x)[0])(x)
    centred = rows - jnp.mean(rows, axis=0)[None, :]
    covariance = centred.T @ centred / len(rows)
    size = jnp.mean(jnp.diagonal(covariance))
    ridge = jnp.where(size > 0, 1e-6 * size, jnp.ones_like(size))
    factor = gaussian.ridge_precision_factor(covariance, ridge) / widening
    return jax.tree.map(lambda a: jnp.mean(a, axis=0), x), factor


class GaussianNoise(AbstractNoise):
    """A normal distribution with the data's mean and covariance, widened by a factor.

    Args:
        widening: multiplies the standard deviation: noise somewhat broader than the data covers their tails.
    """

    widening: float = eqx.field(static=True, default=1.0)
    mean: Any = None
    factor: Any = None  # of the precision matrix: upper triangular, P = F Fᵀ

    def __check_init__(self) -> None:
        if not self.widening > 0:
            raise ParameterError(f"widening must be positive, got {self.widening}.")

    def fitted(self, x_space: Any, x: Any) -> GaussianNoise:
        """Mean and covariance of the batch; a ridge keeps constant columns finite."""
        _only("GaussianNoise", ("real",), x_space)
        mean, factor = _normal(x, self.widening)
        return GaussianNoise(self.widening, mean, factor)

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """μ + F⁻ᵀε."""
        mean, unravel = ravel_pytree(self.mean)
        return unravel(mean + gaussian.colour(jax.random.normal(key, mean.shape, mean.dtype), self.factor))

    def log_prob(self, x: Any) -> Scalar:
        """The normal density."""
        return gaussian.log_density(ravel_pytree(x)[0] - ravel_pytree(self.mean)[0], self.factor)


class MixtureNoise(AbstractNoise):
    """A mixture of normal distributions, fitted by scikit-learn.

    Args:
        n_components: how many.
        seed: of the fit's start.
    """

    n_components: int = eqx.field(static=True, default=8)
    seed: int = eqx.field(static=True, default=0)
    shares: Any = None
    means: Any = None
    factors: Any = None
    like: Any = None

    def fitted(self, x_space: Any, x: Any) -> MixtureNoise:
        """EM from k-means."""
        from sklearn.mixture import GaussianMixture as ScikitMixture

        _only("MixtureNoise", ("real",), x_space)
        rows = np.asarray(jax.vmap(lambda x: ravel_pytree(x)[0])(x), np.float64)
        ridge = 1e-6 * float(rows.var(0).mean()) or 1.0
        count = min(self.n_components, len(rows))
        mixture = ScikitMixture(count, reg_covar=ridge, random_state=self.seed).fit(rows)
        parts = (mixture.weights_, mixture.means_, mixture.precisions_cholesky_)
        like = jax.tree.map(lambda a: jnp.zeros_like(a[0]), x)
        dtype = jax.tree.leaves(like)[0].dtype
        shares, means, factors = (jnp.asarray(part, dtype) for part in parts)
        return MixtureNoise(self.n_components, self.seed, shares, means, factors, like)

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """A component, then a normal draw."""
        which_key, draw_key = jax.random.split(key)
        k = jax.random.categorical(which_key, jnp.log(self.shares))
        noise = jax.random.normal(draw_key, self.means.shape[1:], self.means.dtype)
        return ravel_pytree(self.like)[1](self.means[k] + gaussian.colour(noise, self.factors[k]))

    def log_prob(self, x: Any) -> Scalar:
        """log Σ_k π_k N(x; μ_k, Σ_k)."""
        flat = ravel_pytree(x)[0]
        each = jax.vmap(lambda mean, factor: gaussian.log_density(flat - mean, factor))(self.means, self.factors)
        return jax.nn.logsumexp(each + jnp.log(self.shares))


class ModelNoise(AbstractNoise):
    """Any normalised model that can be sampled directly, as it is: a mixture, probabilistic PCA, ICA …

    Args:
        model: the fitted model (``estimator.model_``).
    """

    model: Any

    def __check_init__(self) -> None:
        if not isinstance(self.model, Normalised) or not isinstance(self.model, ExactSampler):
            raise CapabilityError(
                f"{type(self.model).__name__} cannot serve as noise: it must be Normalised (log Z = 0) and have an "
                "ExactSampler (sample)."
            )

    def fitted(self, x_space: Any, x: Any) -> Self:
        """The model is fitted already; its space must be the data's."""
        del x
        if jax.tree.leaves(self.model.x_space) != jax.tree.leaves(x_space):
            raise DataError(f"The noise model's visibles are {self.model.x_space}, the model's are {x_space}.")
        return self

    def sample(self, *, key: PRNGKeyArray) -> Any:
        """A draw of x."""
        return self.model.sample(key=key)[0]

    def log_prob(self, x: Any) -> Scalar:
        """−F(x)."""
        return -self.model.free_energy(x)


class AbstractDisturbance(eqx.Module):
    """Symmetric ways to disturb an example: q(y | x) = q(x | y), so that neither occurs in the comparison."""

    @abc.abstractmethod
    def fitted(self, x_space: Any, x: Any) -> AbstractDisturbance:
        """With its strength set by the data's spread."""

    @abc.abstractmethod
    def disturb(self, x: Any, *, key: PRNGKeyArray) -> Any:
        """One draw of y | x."""


@briefly
def _spreads(x: Any) -> Any:
    """Standard deviations of the columns of a batch; one that does not vary gets the mean of the others."""

    def spread(values: Array) -> Array:
        found = jnp.std(values, axis=0)
        varies = found > 1e-6 * jnp.mean(found)
        usual = jnp.sum(jnp.where(varies, found, 0.0)) / jnp.maximum(jnp.sum(varies, dtype=found.dtype), 1.0)
        return jnp.where(varies, found, jnp.where(usual > 0, usual, 1.0))

    return jax.tree.map(spread, x)


class Disturbance(AbstractDisturbance):
    """Every column disturbed in the manner of its domain.

    Real columns get normal noise of ``strength`` standard deviations of their own, non-negative ones the same and
    then their absolute value (q stays symmetric), binary and spin ones flip and categorical ones are drawn anew
    with probability ``rate``. Counts go up or down by one with probability ``rate``. Of a site on the simplex two
    entries exchange a normal amount. What would leave the domain stays where it is, which keeps q symmetric.

    Args:
        strength: of the normal noise.
        rate: of the flips; None flips about one site of each example, and at least one in twenty.
    """

    strength: float = eqx.field(static=True, default=0.5)
    rate: float | None = eqx.field(static=True, default=None)
    #: The leaves' spaces, once it is fitted; a run's fingerprint knows the field by this name.
    domains: tuple[Space, ...] = eqx.field(static=True, default=())
    spread: Any = None

    def __check_init__(self) -> None:
        if not self.strength > 0:
            raise ParameterError(f"strength must be positive, got {self.strength}.")
        if self.rate is not None and not 0 < self.rate < 1:
            raise ParameterError(f"rate must lie between 0 and 1, got {self.rate}.")

    def fitted(self, x_space: Any, x: Any) -> Disturbance:
        """Spreads of the columns; one that does not vary gets the mean of the others."""
        return Disturbance(self.strength, self.rate, tuple(leaves(x_space)), _spreads(x))

    def disturb(self, x: Any, *, key: PRNGKeyArray) -> Any:
        """Leaf by leaf."""
        flat, treedef = jax.tree.flatten(x)
        keys = jax.random.split(key, len(flat))
        parts = zip(flat, jax.tree.leaves(self.spread), self.domains, keys, strict=True)
        return jax.tree.unflatten(treedef, [self._leaf(*part) for part in parts])

    def _leaf(self, x: Array, spread: Array, space: Space, key: PRNGKeyArray) -> Array:
        domain = space.domain
        if domain == "simplex":
            return _exchanged(x, self.strength * jnp.mean(spread), key=key)
        if domain in ("real", "nonnegative"):
            moved = x + self.strength * spread * jax.random.normal(key, x.shape, x.dtype)
            return moved if domain == "real" else jnp.abs(moved)
        sites = x.shape[0] if domain == "categorical" else x.size
        rate = jnp.asarray(max(0.05, 1 / (sites + 1)) if self.rate is None else self.rate, x.dtype)
        which_key, draw_key = jax.random.split(key)
        if domain == "categorical":
            hit = jax.random.bernoulli(which_key, rate, (sites,))
            states = jax.random.randint(draw_key, (sites,), 0, x.shape[1], jnp.int32)
            drawn = jax.nn.one_hot(states, x.shape[1], dtype=x.dtype)
            return jnp.where(hit[:, None], drawn, x)
        hit = jax.random.bernoulli(which_key, rate, x.shape)
        if domain == "count":
            up = jax.random.bernoulli(draw_key, jnp.asarray(0.5, x.dtype), x.shape)
            moved = jnp.where(up, x + 1, x - 1)
            inside = (moved >= space.bounds[0]) & (moved <= space.bounds[1])
            return jnp.where(hit & inside, moved, x)
        return jnp.where(hit, 1 - x if domain == "binary" else -x, x)


def _exchanged(x: Array, scale: Array, *, key: PRNGKeyArray) -> Array:
    """Shares of which two, of every site, have exchanged an amount that is as often positive as negative."""
    k = x.shape[-1]

    def one(shares: Array, key: PRNGKeyArray) -> Array:
        pair_key, amount_key = jax.random.split(key)
        first, second = jax.random.choice(pair_key, k, (2,), replace=False)
        amount = scale * jax.random.normal(amount_key, (), x.dtype)
        moved = shares.at[first].add(amount).at[second].add(-amount)
        return jnp.where(jnp.all(moved >= 0), moved, shares)

    rows = x.reshape(-1, k)
    return jax.vmap(one)(rows, jax.random.split(key, rows.shape[0])).reshape(x.shape)


NOISES: dict[str, Callable[[], AbstractNoise]] = {
    "marginals": Marginals,
    "gaussian": GaussianNoise,
    "mixture": MixtureNoise,
}


def noise(name_or_object: str | AbstractNoise, x_space: Any) -> AbstractNoise:
    """Noise by name; "auto" is a normal distribution for real data and independent columns otherwise."""
    if isinstance(name_or_object, AbstractNoise):
        return name_or_object
    if name_or_object == "auto":
        real = all(leaf.domain == "real" for leaf in leaves(x_space))
        return GaussianNoise() if real else Marginals()
    if name_or_object not in NOISES:
        raise UnknownNameError("noise", name_or_object, ["auto", *NOISES])
    return NOISES[name_or_object]()


def draw_many(distribution: AbstractNoise, n: int, *, key: PRNGKeyArray) -> Any:
    """n draws, with a leading axis."""
    return jax.vmap(lambda key: distribution.sample(key=key))(jax.random.split(key, n))


def _only(name: str, domains: tuple[Domain, ...], x_space: Any) -> None:
    strange = sorted({leaf.domain for leaf in leaves(x_space)} - set(domains))
    if strange:
        hint = "" if set(strange) - set(_UNITS) else "; use 'marginals'"
        raise DataError(f"{name} is for {', '.join(domains)} data, not for {', '.join(strange)}{hint}.")
