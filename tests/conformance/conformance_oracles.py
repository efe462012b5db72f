"""Oracles that know nothing of a model but its energy and its spaces.

Discrete variables are enumerated; continuous ones are integrated on a product grid: the trapezoid rule on the
real line (which converges exponentially for smooth densities that vanish at both ends) and Gauss–Legendre on
the half-line. Draws from the model say *where* the grid must lie, nothing more. All of it in float64, so that
identities hold to about 1e-7 and no tolerance hides a dropped term.

The same nodes, drawn in proportion to exp(−F) times their weights, are exact starting points for one sweep: a
kernel that is smooth in its start cannot tell them from draws of p. Sweeps that draw all latents first start with
NaN in their place, which they may not read; other sweeps start with latents drawn from p(z | x) by enumeration.
"""

from __future__ import annotations

import functools
import zlib
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import threadpoolctl
from scipy import stats
from scipy.special import logsumexp

from latentia.core import parameters
from latentia.core.capabilities import (
    Bounded,
    Conditionals,
    Constrained,
    Decodes,
    ExactPosterior,
    ExactSampler,
    FreeEnergy,
    LatentFreeEnergy,
)
from latentia.core.space import Space, encode, leaves
from latentia.ops.arrays import cast_like
from latentia.ops.examples import Examples

#: Grid nodes per continuous dimension, by the number of continuous dimensions.
PER_AXIS = {1: 400, 2: 90, 3: 44}
#: Columns of the real-valued toy data: more than any tiny model has real latents, so that D ≠ K.
N_REAL, N_BINARY = 3, 5
#: Draws in a statistical test; one number for all, because every other batch size would be compiled anew.
N_DRAWS = 20_000


#: Many small products: a second BLAS thread only spins, and on a busy machine it spins for long.
threadpoolctl.threadpool_limits(1, user_api="blas")

#: Compiling is most of these tests' time, running almost none of it: do not optimise.
quick = functools.partial(eqx.filter_jit, compiler_options={"xla_backend_optimization_level": 0})


class Nodes(NamedTuple):
    """Points (a pytree with a leading axis) and their log-weights in a sum or an integral."""

    points: Any
    log_weights: np.ndarray


# -- models at random parameters --------------------------------------------------------------------


def toy_rows(kind: str, n: int = 64) -> np.ndarray:
    """Data with structure for the tiny configurations; real columns have unlike means and scales."""
    rng = np.random.default_rng(7)
    hidden = rng.integers(0, 2, (n, 1))
    if kind == "binary":
        return ((hidden + (rng.random((n, N_BINARY)) < 0.2)) % 2).astype(np.float32)
    assert kind == "real", f"toy_rows knows no data of kind {kind!r}: teach it"
    x = rng.normal(size=(n, N_REAL)) + 3.0 * hidden * np.array([1.0, -1.0, 0.5])
    return (x * np.array([1.0, 2.0, 0.5]) + np.array([0.0, -3.0, 1.0])).astype(np.float32)


def perturbed(model: Any, seed: int) -> Any:
    """The model with every floating-point leaf moved, so that no bias, offset or scale is trivial.

    Scales and buffers move by a factor where they are not zero: standard deviations stay positive.
    """
    rng = np.random.default_rng(seed)

    def move(leaf: Any, role: str) -> Any:
        if not eqx.is_inexact_array(leaf):
            return leaf
        noise = rng.normal(size=leaf.shape)
        old = np.asarray(leaf, np.float64)
        if role in (parameters.WEIGHT, parameters.BIAS):
            new = old + 0.6 * noise
        else:
            new = np.where(old == 0, 0.3 * noise, old * np.exp(0.25 * noise))
        return jnp.asarray(new.astype(leaf.dtype))

    model = jax.tree.map(move, model, parameters.roles(model))
    if isinstance(model, Constrained):
        model = model.project()
    while isinstance(model, Bounded) and float(model.margin()) < 0.3:
        halve = lambda leaf, role: leaf / 2 if role == parameters.WEIGHT else leaf  # noqa: E731
        model = jax.tree.map(halve, model, parameters.roles(model))
    return model


def tiny(family: Any) -> tuple[Any, dict[str, Any]]:
    """(estimator, blueprint) of a family's tiny configuration for the toy data."""
    estimator = family.estimator()(**family.tiny)
    return estimator, estimator._blueprint(Examples(toy_rows(family.tiny_data)))


def random_model(family: Any, seed: int = 0) -> Any:
    """A family's tiny model at random parameters, in the precision in force."""
    estimator, blueprint = tiny(family)
    return perturbed(estimator.build(blueprint), zlib.crc32(family.name.encode()) + seed)


def visibles(model: Any, rows: np.ndarray) -> Any:
    """Rows as a batch of the model's visibles, in its type."""
    return cast_like(jax.tree.map(jnp.asarray, encode(model.x_space, rows)), model)


# -- nodes ------------------------------------------------------------------------------------------


#: Nodes and weights on [−1, 1]: an eigenvalue problem, worth solving once.
legendre = functools.cache(np.polynomial.legendre.leggauss)


def _axis(domain: str, draws: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    mean, sd = draws.mean(), draws.std()
    if domain == "nonnegative":
        node, weight = legendre(n)
        half = 0.5 * (mean + 16 * sd)
        return half * (node + 1), np.log(half * weight)
    node = np.linspace(mean - 8 * sd, mean + 8 * sd, n)
    return node, np.full(n, np.log(node[1] - node[0]))


def _uncorrelated(columns: np.ndarray) -> tuple[np.ndarray, Any]:
    """(each column less its regression on those before it, the way back).

    A grid of the former that is sheared into place is as fine as a narrow ridge across the axes needs it, and no
    volume changes.
    """
    tilde = columns - columns.mean(0)
    covariance = tilde.T @ tilde / len(tilde) + 1e-12 * np.eye(columns.shape[1])
    factor = np.linalg.cholesky(covariance)
    unit = factor / np.diagonal(factor)  # ones on the diagonal
    n = columns.shape[1]
    back = lambda grid: np.stack([sum(unit[i, j] * grid[:, j] for j in range(i + 1)) for i in range(n)], axis=1)  # noqa: E731
    return columns @ np.linalg.inv(unit).T, back


def nodes(space: Any, draws: Any, *, sheared: bool = False) -> Nodes:
    """Nodes for sums and integrals over a pytree of spaces, placed where ``draws`` are.

    The grid of a real space is a product of its axes, or ``sheared`` along the draws' correlations.
    """
    parts, treedef = jax.tree.flatten(space)
    if not parts:  # no variables: one value, the empty one
        return Nodes(space, np.zeros(1))
    values = [np.asarray(d, np.float64) for d in jax.tree.leaves(draws)]
    n_continuous = sum(part.n_columns for part in parts if not part.is_discrete)
    assert n_continuous <= max(PER_AXIS), f"{n_continuous} continuous dimensions are too many for a grid"
    each = []
    for part, value in zip(parts, values, strict=True):
        if part.is_discrete:
            points = part.enumerate().astype(np.float64)
            each.append((points, np.zeros(len(points))))
            continue
        columns = value.reshape(len(value), -1)
        if sheared and part.domain == "real":
            columns, shear = _uncorrelated(columns)
        axes = [_axis(part.domain, column, PER_AXIS[n_continuous]) for column in columns.T]
        grid = np.stack([g.ravel() for g in np.meshgrid(*[a[0] for a in axes], indexing="ij")], axis=1)
        weight = sum(g.ravel() for g in np.meshgrid(*[a[1] for a in axes], indexing="ij"))
        if sheared and part.domain == "real":
            grid = shear(grid)
        each.append((grid.reshape(-1, *part.shape), weight))
    index = [g.ravel() for g in np.meshgrid(*[np.arange(len(e[0])) for e in each], indexing="ij")]
    log_weights = sum(e[1][i] for e, i in zip(each, index, strict=True))
    picked = [e[0][i] for e, i in zip(each, index, strict=True)]
    return Nodes(jax.tree.unflatten(treedef, picked), np.asarray(log_weights))


def inside(space: Space, value: Any) -> bool:
    """Whether all values of a batch lie in a space."""
    value = np.asarray(value)
    if value.shape[1:] != space.shape or not np.isfinite(value).all():
        return False
    if not space.is_discrete:
        return space.domain == "real" or bool((value >= 0).all())
    known = {row.tobytes() for row in space.enumerate().astype(value.dtype).reshape(-1, value[0].size)}
    return all(row.tobytes() in known for row in np.ascontiguousarray(value.reshape(len(value), -1)))


def is_discrete(space: Any) -> bool:
    return all(leaf.is_discrete for leaf in leaves(space))


def blank(space: Any, n: int) -> Any:
    """A batch of placeholders that no algorithm may read: NaN."""
    return jax.tree.map(lambda s: np.full((n, *s.shape), np.nan), space)


def at(tree: Any, index: Any) -> Any:
    return jax.tree.map(lambda a: a[index], tree)


def repeated(tree: Any, n: int) -> Any:
    """``n`` times the first value of a batch."""
    return jax.tree.map(lambda a: np.repeat(np.asarray(a[:1]), n, axis=0), tree)


def flat(tree: Any) -> np.ndarray:
    """A batch of values as a matrix."""
    parts = [np.asarray(leaf, np.float64) for leaf in jax.tree.leaves(tree)]
    return np.concatenate([p.reshape(len(p), -1) for p in parts], axis=1)


# -- the model's functions, batched; at module level so that compiling is shared --------------------


@quick
def free_energies(model: Any, x: Any) -> Any:
    return jax.vmap(model.free_energy)(x)


def all_energies(model: Any, x: Any, z: Any) -> Any:
    """E of all pairs; of each x with the one empty z, if there are no latents."""
    if not jax.tree.leaves(z):
        return jax.vmap(lambda x: model.energy(x, z)[None])(x)
    return jax.vmap(lambda x: jax.vmap(lambda z: model.energy(x, z))(z))(x)


energies = quick(all_energies)


@quick
def _posterior_facts(model: Any, x: Any, z: Any) -> tuple[Any, ...]:
    """(E and log q at every z, mean, entropy, F) for one x."""
    q = model.posterior(x)
    energy = jax.vmap(lambda z: model.energy(x, z))(z)
    free = model.free_energy(x) if isinstance(model, FreeEnergy) else jnp.nan
    return energy, jax.vmap(q.log_prob)(z), q.mean(), q.entropy(), free


@quick
def _latent_facts(model: Any, x: Any, z: Any) -> tuple[Any, ...]:
    """(E at every x, F*, E[x | z]) for one z."""
    energy = jax.vmap(lambda x: model.energy(x, z))(x)
    free = model.latent_free_energy(z) if isinstance(model, LatentFreeEnergy) else None
    return energy, free, model.decode(z) if isinstance(model, Decodes) else None


@quick
def posterior_means(model: Any, x: Any) -> Any:
    return jax.vmap(lambda x: model.posterior(x).mean())(x)


@quick
def posterior_draws(model: Any, x: Any, n: int, key: Any) -> Any:
    return jax.vmap(lambda k: model.posterior(x).sample(key=k))(jax.random.split(key, n))


def _sweeps(model: Any, x: Any, z: Any, key: Any, fixed: Any = None) -> Any:
    keys = jax.random.split(key, jax.tree.leaves(x)[0].shape[0])
    return jax.vmap(lambda x, z, k: model.sweep(x, z, key=k, fixed=fixed))(x, z, keys)


sweeps = quick(_sweeps)


@quick
def begins(model: Any, x: Any, key: Any) -> Any:
    """The latents with which chains at a batch of points start."""
    keys = jax.random.split(key, jax.tree.leaves(x)[0].shape[0])
    return jax.vmap(lambda x, k: model.begin(x, key=k))(x, keys)


def draws_latents_first(model: Any, x: Any) -> bool:
    """Whether a chain starts with placeholders, zeros wherever it is, because its sweep draws all latents first."""
    if not leaves(model.z_space):  # there are none to read
        return True
    few = at(x, np.arange(64) % len(flat(x)))
    return not flat(begins(model, few, jax.random.key(1))).any()


@quick
def exact_draws(model: Any, n: int, key: Any) -> Any:
    return jax.vmap(lambda k: model.sample(key=k))(jax.random.split(key, n))


def typical(model: Any, n: int = N_DRAWS, seed: int = 3) -> tuple[Any, Any]:
    """(x, z) somewhere near where the model's mass is; only the grids depend on them."""
    key = jax.random.key(seed)
    dtype = jnp.result_type(float)
    if is_discrete((model.x_space, model.z_space)):  # any states will do
        pick = lambda s: np.random.default_rng(seed).choice(s.enumerate().astype(dtype), n)  # noqa: E731
        return jax.tree.map(pick, (model.x_space, model.z_space))
    if isinstance(model, ExactSampler):
        drawn = exact_draws(model, n, key)
    elif isinstance(model, Conditionals):
        x, z = jax.tree.map(lambda s: np.zeros((n, *s.shape), dtype), (model.x_space, model.z_space))
        drawn = x, z
        for each in jax.random.split(key, 5):
            drawn = jax.tree.map(np.asarray, sweeps(model, *drawn, each, None))
    else:
        draw = lambda s: np.random.default_rng(seed).normal(size=(n, *s.shape))  # noqa: E731
        drawn = jax.tree.map(draw, (model.x_space, model.z_space))
    return jax.tree.map(np.asarray, drawn)


def summed_energies(model: Any, x: Any) -> np.ndarray:
    """F at a batch of points: by enumerating z where that is possible, else the model's own (tested apart).

    Where there is none either, a coarse grid over z: good to a few hundredths, for likelihoods that must rise.
    """
    if not is_discrete(model.z_space):
        return np.asarray(free_energies(model, x)) if isinstance(model, FreeEnergy) else _coarse(model, x)
    z = nodes(model.z_space, blank(model.z_space, 1))
    return -logsumexp(-np.asarray(energies(model, x, z.points)), axis=1)


def _coarse(model: Any, x: Any, half: float = 14.0, n: int = 40, rows: int = 2048) -> np.ndarray:
    axis = np.linspace(-half, half, n, dtype=np.asarray(jax.tree.leaves(x)[0]).dtype)
    (width,) = model.z_space.shape
    z = np.stack([g.ravel() for g in np.meshgrid(*[axis] * width, indexing="ij")], axis=1)
    count = len(flat(x))
    padded = at(x, np.arange(-(-count // rows) * rows) % count)
    blocks = range(0, len(flat(padded)), rows)
    found = [_log_sum_exp(-np.asarray(energies(model, at(padded, slice(i, i + rows)), z))) for i in blocks]
    return -np.concatenate(found)[:count] - width * np.log(axis[1] - axis[0])


def _log_sum_exp(rows: np.ndarray) -> np.ndarray:
    """SciPy's, which makes several copies, takes three times as long; ``rows`` are overwritten."""
    top = rows.max(axis=1)
    rows -= top[:, None]
    np.exp(rows, out=rows)
    return top + np.log(rows.sum(axis=1))


# -- checks -----------------------------------------------------------------------------------------


def close(found: Any, wanted: Any, *, tolerance: float = 2e-6) -> None:
    """Equal to a tolerance that quadrature reaches and no dropped term does."""
    np.testing.assert_allclose(np.asarray(found), np.asarray(wanted), rtol=tolerance, atol=tolerance)


def worst_score(draws: np.ndarray, p: np.ndarray, values: np.ndarray) -> float:
    """The largest number of standard errors by which a column's mean over draws misses its exact mean under p.

    The variance is the larger of the exact one (a state too rare to be drawn has none in the draws) and that of
    the draws (where the values are conditional means, whose variance is too small).
    """
    mean = p @ values
    variance = np.maximum(p @ (values - mean) ** 2, draws.var(0))
    floor = 1e-8 * (1 + np.abs(mean))  # columns that do not vary must be exact up to rounding
    return float(np.max(np.abs(draws.mean(0) - mean) / (np.sqrt(variance / len(draws)) + floor)))


def chi_square(counts: np.ndarray, probabilities: np.ndarray) -> float:
    """The p-value of counts under probabilities; cells that expect fewer than five are pooled."""
    expected = probabilities * counts.sum() / probabilities.sum()
    rare = expected < 5
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    filled = expected > 0
    assert observed[~filled].sum() == 0, "an impossible state was drawn"
    observed, expected = observed[filled], expected[filled]
    return float(stats.chi2.sf(np.sum((observed - expected) ** 2 / expected), len(expected) - 1))


def check_posterior(model: Any, x: Any, *, key: Any = None, near: Any = None) -> None:
    """Everything a posterior says, and F, from E alone; also its draws, unless they are only to lie ``near``."""
    draws = posterior_draws(model, x, 4000, key) if near is None else near
    z = nodes(model.z_space, draws)
    energy, log_q, mean, entropy, found = map(np.asarray, _posterior_facts(model, x, z.points))
    free = -logsumexp(-energy + z.log_weights)
    if isinstance(model, FreeEnergy):
        close(found, free)
        close(energy + log_q, np.full_like(energy, found), tolerance=1e-8)  # at every z: no error of quadrature
    exact = np.exp(free - energy + z.log_weights)
    close(np.sum(np.exp(log_q + z.log_weights)), 1.0)
    moments = flat(z.points)
    close(mean.reshape(-1), exact @ moments)
    close(entropy, -np.sum(exact * np.where(exact > 0, free - energy, 0.0)))
    with_squares = lambda a: np.concatenate([a, a**2], axis=1)  # noqa: E731
    if near is None:
        assert worst_score(with_squares(flat(draws)), exact, with_squares(moments)) < 5


def check_latents_summed(model: Any, x: Nodes, z: Any) -> None:
    """latent_free_energy and decode, from E alone, at one z."""
    energy, found, mean = _latent_facts(model, x.points, z)
    energy = np.asarray(energy)
    free = -logsumexp(-energy + x.log_weights)
    if found is not None:
        close(found, free)
    if mean is not None:
        exact = np.exp(free - energy + x.log_weights)
        close(flat(jax.tree.map(lambda a: a[None], mean))[0], exact @ flat(x.points))


def visible_probabilities(model: Any, x: Nodes) -> np.ndarray:
    log_p = x.log_weights - summed_energies(model, x.points)
    return np.exp(log_p - logsumexp(log_p))


def statistics(x: Any, z_mean: Any) -> np.ndarray:
    """x, all products of two entries of x, the latents' means and their products with x."""
    x = flat(x)
    z = flat(z_mean) if jax.tree.leaves(z_mean) else np.zeros((len(x), 0))
    i, j = np.triu_indices(x.shape[1])
    products = (x[:, :, None] * z[:, None, :]).reshape(len(x), -1)
    return np.concatenate([x, x[:, i] * x[:, j], z, products], axis=1)


def latent_means(model: Any, x: Any) -> Any:
    """E[z | x] for a batch, by enumeration where that is possible."""
    if not is_discrete(model.z_space):
        return posterior_means(model, x) if isinstance(model, ExactPosterior) else np.zeros((len(flat(x)), 1))
    if not leaves(model.z_space):
        return ()
    z = nodes(model.z_space, blank(model.z_space, 1))
    log_q = -np.asarray(energies(model, x, z.points))
    return np.exp(log_q - logsumexp(log_q, axis=1, keepdims=True)) @ flat(z.points)


def exact_latents(model: Any, points: Any, chosen: np.ndarray, *, seed: int = 6) -> Any:
    """One z from p(z | x) for each of the chosen points: placeholders where a sweep draws all latents first."""
    if draws_latents_first(model, points):
        return blank(model.z_space, len(chosen))
    z = nodes(model.z_space, blank(model.z_space, 1))
    log_p = -np.asarray(energies(model, points, z.points))
    below = np.cumsum(np.exp(log_p - logsumexp(log_p, axis=1, keepdims=True)), axis=1)
    u = np.random.default_rng(seed).random(len(chosen))
    return at(z.points, np.minimum((u[:, None] > below[chosen]).sum(1), below.shape[1] - 1))


def unread(model: Any, energy: str, parts: list[Any]) -> list[np.ndarray]:
    """The sites of every leaf of (x, z) that an energy does not read, all or none where a leaf is not binary.

    ``parts`` is a batch of two unlike values per leaf.
    """
    treedef = jax.tree.structure((model.x_space, model.z_space))
    function = quick(lambda model, parts: getattr(model, energy)(*jax.tree.unflatten(treedef, parts)))
    point = [part[0] for part in parts]
    here = float(function(model, point))
    found = []
    for i, (space, part) in enumerate(zip(leaves((model.x_space, model.z_space)), parts, strict=True)):
        one_by_one = space.domain in ("binary", "spin")
        sites = np.eye(part[0].size, dtype=bool) if one_by_one else np.ones((1, part[0].size), bool)
        sites = sites.reshape(-1, *part[0].shape)
        others = ([*point[:i], np.where(site, part[1], part[0]), *point[i + 1 :]] for site in sites)
        free = [float(function(model, other)) == here for other in others]
        found.append(np.any(sites[np.array(free)], axis=0) if any(free) else np.zeros(part[0].shape, bool))
    return found


def unlike(model: Any) -> list[np.ndarray]:
    """Two values of every leaf of (x, z) that differ in every site."""
    values = jax.tree.leaves(typical(model))
    spaces = leaves((model.x_space, model.z_space))
    pairs = []
    for space, value in zip(spaces, values, strict=True):
        value = np.asarray(value)
        sites = lambda a, s=space: a.any(-1) if s.domain == "categorical" else a.reshape(-1)  # noqa: E731
        other = next(v for v in value if sites(v != value[0]).all())
        pairs.append(np.stack([value[0], other]))
    return pairs


def check_summed_out(model: Any, energy: str) -> list[np.ndarray]:
    """An energy is −log Σ exp(−E) over the sites of (x, z) that it does not read; returns which, leaf by leaf."""
    parts = unlike(model)
    free = unread(model, energy, parts)
    assert any(mask.any() for mask in free), f"{energy} reads everything, so it sums out nothing"
    treedef = jax.tree.structure((model.x_space, model.z_space))
    spaces, values = leaves((model.x_space, model.z_space)), jax.tree.leaves(typical(model))
    which = [i for i, mask in enumerate(free) if mask.any()]
    some = lambda i: Space(spaces[i].domain, (int(free[i].sum()),))  # noqa: E731
    part = {i: (spaces[i], values[i]) if free[i].all() else (some(i), values[i][:, free[i]]) for i in which}
    summed = nodes(tuple(part[i][0] for i in which), tuple(part[i][1] for i in which))

    @quick
    def facts(model: Any, point: Any, summed: Any) -> tuple[Any, Any]:
        def whole(parts: Any) -> Any:
            full = list(point)
            for i, new in zip(which, parts, strict=True):
                full[i] = jnp.asarray(full[i]).at[np.nonzero(free[i])].set(jnp.ravel(new))
            return model.energy(*jax.tree.unflatten(treedef, full))

        return getattr(model, energy)(*jax.tree.unflatten(treedef, point)), jax.vmap(whole)(summed)

    for turn in range(2):
        found, each = facts(model, [part[turn] for part in parts], summed.points)
        close(found, -logsumexp(summed.log_weights - np.asarray(each)))
    return free


def whole_leaves(masks: list[np.ndarray]) -> list[int]:
    """The leaves that masks cover; they must cover each as a whole or not at all."""
    assert all(mask.all() or not mask.any() for mask in masks)
    return [i for i, mask in enumerate(masks) if mask.all()]


def check_sweep(model: Any, x: Nodes, *, key: Any, fixed: Any = None, n: int = N_DRAWS) -> None:
    """One sweep from exactly p (given the fixed entries) ends exactly in p: no drift, whatever the mixing time."""
    p = visible_probabilities(model, x)
    points = x.points
    if fixed is not None:
        held = np.concatenate([np.asarray(f).reshape(-1) for f in jax.tree.leaves(fixed)])
        matrix = flat(points)
        same = (matrix[:, held] == matrix[np.argmax(p)][held]).all(1)
        points, p = at(points, np.flatnonzero(same)), p[same] / p[same].sum()
        assert len(p) > 1, "nothing is left to move"
    chosen = np.random.default_rng(5).choice(len(p), n, p=p)
    start = at(points, chosen)
    new_x, new_z = sweeps(model, start, exact_latents(model, points, chosen), key, fixed)
    if fixed is not None:
        np.testing.assert_array_equal(flat(new_x)[:, held], flat(start)[:, held])
    known = is_discrete(model.z_space) or isinstance(model, ExactPosterior)
    drawn = statistics(new_x, new_z if known else np.zeros((n, 1)))
    assert worst_score(drawn, p, statistics(points, latent_means(model, points))) < 5
    if is_discrete(model.x_space) and is_discrete(model.z_space) and leaves(model.z_space):
        z = nodes(model.z_space, blank(model.z_space, 1)).points
        joint = -np.asarray(energies(model, points, z))
        joint = np.exp(joint - logsumexp(joint)).ravel()
        counts = np.bincount(index_of(points, new_x) * len(flat(z)) + index_of(z, new_z), minlength=joint.size)
        assert chi_square(counts, joint) > 1e-5
    elif is_discrete(model.x_space):
        assert chi_square(np.bincount(index_of(points, new_x), minlength=len(p)), p) > 1e-5


def index_of(points: Any, values: Any) -> np.ndarray:
    """Which of the (all different) points each value is."""
    table = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(flat(points)))}
    return np.array([table[row.tobytes()] for row in np.ascontiguousarray(flat(values))])
