"""Inference as a slot: truncated sets, Gibbs averages, EM and contrastive learning with any of them."""

import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia.core.algorithms import require
from latentia.core.capabilities import MeanField
from latentia.core.errors import CapabilityError, ParameterError
from latentia.core.model import AbstractPosterior
from latentia.energies.binary_sites import CoupledSites
from latentia.energies.binary_sparse_coding import BinarySparseCodingModel
from latentia.energies.rbm import RBMModel
from latentia.inference import (
    Enumeration,
    Exact,
    GibbsInference,
    MeanFieldInference,
    TruncatedInference,
    infer_means,
    inference_of,
    variational_energy,
)
from latentia.inference.states import Draws
from latentia.learning.contrastive import Contrastive
from latentia.learning.em import EM
from latentia.likelihood.precision import double
from latentia.models.gaussian_mixture import MixtureModel
from latentia.models.ppca import PPCAModel
from latentia.samplers import Gibbs
from latentia.units import make

K = 6


@pytest.fixture(autouse=True)
def _strict():
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        yield


@pytest.fixture
def x64():
    with double():
        yield


def coder(seed=0, d=5):
    rng = np.random.default_rng(seed)
    arrays = rng.normal(size=(d, K)), rng.normal(size=K) - 0.5, 0.3 * rng.normal(size=d)
    return BinarySparseCodingModel(*map(jnp.asarray, arrays))


def rows_of(model, n=50):
    return jax.vmap(lambda key: model.sample(key=key)[0])(jax.random.split(jax.random.key(1), n))


def bounds(model, x, inference, seed=0):
    def all_of(model, x):
        q = inference.infer_many(model, x, key=jax.random.key(seed))
        return jax.vmap(lambda x, q: variational_energy(model, x, q))(x, q), q

    found, q = eqx.filter_jit(all_of)(model, x)
    return -np.asarray(found), q


# -- truncated posteriors -------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_the_truncated_bound_grows_with_the_set_and_is_exact_with_all_states():
    model = coder()
    x = rows_of(model)
    exact, whole = bounds(model, x, Enumeration())
    previous = np.full(50, -np.inf)
    for n in (1, 2, 5, 16, 40, 64, 100):
        found, q = bounds(model, x, TruncatedInference(n))
        assert np.all(found <= exact + 1e-10)
        assert q.states.shape == (50, min(n, 64), K)
        distinct = [len(np.unique(states, axis=0)) for states in np.asarray(q.states)]
        assert set(distinct) == {min(n, 64)}
        if n in (
            16,
            64,
        ):  # a larger set that was found need not hold the smaller one
            assert found.mean() > previous.mean()
        previous = found
    np.testing.assert_allclose(found, exact, atol=1e-10)
    for name in ("mean", "entropy"):
        wanted, got = (jax.vmap(lambda q, name=name: getattr(q, name)())(q) for q in (whole, q))
        np.testing.assert_allclose(got, wanted, atol=1e-10)
    weights = jnp.asarray(np.random.default_rng(0).random(50))
    np.testing.assert_allclose(q.second_moment(weights), whole.second_moment(weights), atol=1e-10)


@pytest.mark.usefixtures("x64")
def test_no_generation_lowers_the_truncated_bound_and_the_best_states_are_found():
    model = coder(1)
    x = rows_of(model)
    exact, whole = bounds(model, x, Enumeration())
    path = [bounds(model, x, TruncatedInference(8, rounds, 0))[0] for rounds in (0, 1, 2, 4, 8)]
    assert np.diff(path, axis=0).min() > -1e-12
    assert (path[1] - path[0]).max() > 1e-3
    best = np.sort(np.asarray(whole.log_p), axis=1)[:, ::-1][:, :8]
    ideal = exact + np.log(np.exp(best).sum(1))
    assert np.mean(np.abs(path[-1] - ideal) < 1e-9) > 0.9
    # An earlier set is never left for a worse one, whatever the model was that it came from.
    q = TruncatedInference(8).infer_many(coder(2), x, key=jax.random.key(0))
    start = -np.asarray(jax.vmap(lambda x, s: variational_energy(model, x, s))(x, renormalised(model, x, q)))
    improved = jax.vmap(lambda x, q: TruncatedInference(8, 1).improved(model, x, q))(x, q)
    assert np.all(-np.asarray(jax.vmap(lambda x, q: variational_energy(model, x, q))(x, improved)) >= start - 1e-12)


def renormalised(model, x, q):
    from latentia.inference.truncated import posterior_on

    return jax.vmap(lambda x, states: posterior_on(model.clamped(x), states))(x, q.states)


def test_truncated_and_other_inferences_refuse_what_they_cannot_do():
    rbm = RBMModel.make(make("bernoulli", 3), make("bernoulli", 2), key=jax.random.key(0))
    with pytest.raises(CapabilityError, match="ClampsToSites"):
        require(TruncatedInference(), rbm)
    with pytest.raises(CapabilityError, match=r"EM cannot .*: it needs ExactPosterior"):
        require(EM(), coder())
    with pytest.raises(ParameterError, match="infinitely many states"):
        Enumeration().infer(PPCAModel.make(3, 2, key=jax.random.key(0)), jnp.zeros(3))
    for make_one in (lambda: TruncatedInference(0), lambda: GibbsInference(0), lambda: GibbsInference(1, -1)):
        with pytest.raises(ParameterError, match="at least"):
            make_one()


# -- Gibbs ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("x64")
def test_averages_of_gibbs_sweeps_are_those_of_the_posterior():
    model = coder(3)
    x = rows_of(model, 6)
    exact, whole = bounds(model, x, Enumeration())
    found, q = bounds(model, x, GibbsInference(4000, 100))
    np.testing.assert_allclose(jax.vmap(lambda q: q.mean())(q), jax.vmap(lambda q: q.mean())(whole), atol=0.06)
    weights = jnp.ones(6)
    np.testing.assert_allclose(q.second_moment(weights), whole.second_moment(weights), atol=0.2)
    assert np.all(found <= exact)
    assert np.all(found > exact - 0.05)  # the frequencies of all states are almost their probabilities
    one = Draws(q.states[0])
    counts = np.unique(np.asarray(one.states), axis=0, return_counts=True)[1] / 4000
    np.testing.assert_allclose(one.entropy(), -(counts * np.log(counts)).sum(), rtol=1e-10)


# -- the slot -------------------------------------------------------------------------------------------


def test_what_a_model_is_inferred_by_follows_from_its_capabilities():
    rbm = RBMModel.make(make("bernoulli", 3), make("bernoulli", 2), key=jax.random.key(0))
    assert inference_of(rbm) == Exact()
    assert inference_of(coder()) == MeanFieldInference()
    chosen = eqx.tree_at(lambda m: m.inference, coder(), TruncatedInference(64), is_leaf=lambda leaf: leaf is None)
    assert inference_of(chosen) == TruncatedInference(64)
    x = rows_of(coder(), 1)[0]
    wanted = Enumeration().infer(coder(), x).mean()
    np.testing.assert_allclose(infer_means(chosen, x), wanted, atol=1e-5)
    np.testing.assert_allclose(infer_means(coder(), x, inference=Enumeration()), wanted, atol=1e-6)
    assert np.abs(np.asarray(infer_means(coder(), x)) - np.asarray(wanted)).max() > 1e-3


@pytest.mark.parametrize("kind", ["mixture", "ppca"])
def test_em_with_draws_comes_near_em_with_the_exact_posterior(kind):
    x = np.random.default_rng(0).normal(size=(200, 3)) * np.array([1.0, 2.0, 0.5])
    x = jnp.asarray(x + 3 * (np.arange(200) % 2)[:, None], jnp.float32)
    key = jax.random.key(2)
    model = MixtureModel.make(3, 2, key=key) if kind == "mixture" else PPCAModel.make(3, 2, key=key)
    model = model.initialise(x, key=key)
    step = lambda learner: eqx.filter_jit(learner.step)(  # noqa: E731
        model, x, None, learner.init(model, x, key=key), key=key, since=1
    )
    exact, _, told = step(EM())
    drawn, _, heard = step(EM(GibbsInference(400, 0)))
    assert told["log_likelihood"] == heard["log_likelihood"]
    for a, b in zip(jax.tree.leaves(exact), jax.tree.leaves(drawn), strict=True):
        np.testing.assert_allclose(a, b, atol=0.08)


def test_contrastive_learning_takes_any_inference():
    """The slope of the positive phase is the mean slope of the energy under q."""
    model = jax.tree.map(lambda a: a.astype(jnp.float32), coder(4))
    x = rows_of(model, 30)
    slopes = {}
    for inference in (Enumeration(), TruncatedInference(64), GibbsInference(300), MeanFieldInference()):
        objective = Contrastive(Gibbs(), 1, False, inference=inference)
        state = objective.init(model, x, key=jax.random.key(0))
        state = objective.prepare(model, x, state, key=jax.random.key(5))
        loss = lambda m, o=objective, s=state: o.loss(m, x, None, s)[0]  # noqa: E731
        slopes[type(inference)] = np.asarray(eqx.filter_jit(eqx.filter_grad(loss))(model).bias)
        assert (state.key is not None) == inference.is_random
    exact = slopes[Enumeration]
    np.testing.assert_allclose(slopes[TruncatedInference], exact, atol=1e-4)
    np.testing.assert_allclose(slopes[GibbsInference], exact, atol=0.05)
    assert np.abs(slopes[MeanFieldInference] - exact).max() > 1e-3
    with pytest.raises(CapabilityError, match="ExactPosterior"):
        Contrastive(Gibbs(), inference=Exact()).init(model, x, key=jax.random.key(0))


# -- coordinate ascent over groups of other kinds -------------------------------------------------------


class Blocks(AbstractPosterior):
    """Normal groups with given means and precisions."""

    means: tuple
    precisions: tuple

    def mean(self):
        return self.means

    def sample(self, *, key):
        raise NotImplementedError

    def log_prob(self, z):
        raise NotImplementedError

    def entropy(self):
        return sum(0.5 * (len(p) * jnp.log(2 * jnp.pi * jnp.e) - jnp.linalg.slogdet(p)[1]) for p in self.precisions)


class GaussianGroups(MeanField):
    """½ zᵀPz − fᵀz with z in groups of some sizes: the best q of a group is normal with its block of P."""

    precision: jax.Array
    field: jax.Array
    sizes: tuple = eqx.field(static=True)

    @property
    def x_space(self):
        return ()

    @property
    def z_space(self):
        return None

    def ends(self):
        return np.cumsum([0, *self.sizes])

    def energy(self, x, z):
        z = jnp.concatenate(z)
        return 0.5 * z @ self.precision @ z - self.field @ z

    def guess(self):
        ends = self.ends()
        blocks = tuple(self.precision[a:b, a:b] for a, b in itertools.pairwise(ends))
        return Blocks(tuple(jnp.zeros(n) for n in self.sizes), blocks)

    def refine(self, q):
        means, ends = list(q.means), self.ends()
        for i, (a, b) in enumerate(itertools.pairwise(ends)):
            z = jnp.concatenate([*means[:i], jnp.zeros(self.sizes[i]), *means[i + 1 :]])
            means[i] = jnp.linalg.solve(self.precision[a:b, a:b], self.field[a:b] - self.precision[a:b] @ z)
        return Blocks(tuple(means), q.precisions)

    def variational_energy(self, q):
        ends = self.ends()
        spread = sum(
            0.5 * jnp.trace(self.precision[a:b, a:b] @ jnp.linalg.inv(p))
            for a, b, p in zip(ends, ends[1:], q.precisions, strict=False)
        )
        return self.energy((), q.means) + spread - q.entropy()

    def base_at(self, q):
        raise NotImplementedError


class Given(eqx.Module):
    """Clamps to groups."""

    groups: GaussianGroups

    def clamped(self, x):
        del x
        return self.groups


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("sizes", [(5,), (2, 3), (1, 1, 1, 1, 1)], ids=str)
def test_mean_field_of_a_gaussian_is_exact_in_the_mean_and_in_all_with_one_group(sizes):
    rng = np.random.default_rng(5)
    a = rng.normal(size=(5, 5))
    precision, field = jnp.asarray(a @ a.T + np.eye(5)), jnp.asarray(rng.normal(size=5))
    model = Given(GaussianGroups(precision, field, sizes))
    q = MeanFieldInference(5000, 1e-13).infer(model, None)
    np.testing.assert_allclose(np.concatenate(q.mean()), np.linalg.solve(precision, field), atol=1e-9)
    free = (
        -0.5 * (field @ np.linalg.solve(precision, field) + 5 * np.log(2 * np.pi))
        + 0.5 * np.linalg.slogdet(precision)[1]
    )
    gap = float(model.groups.variational_energy(q)) - free
    assert abs(gap) < 1e-9 if len(sizes) == 1 else gap > 1e-3
    path = [model.groups.variational_energy(MeanFieldInference(n, 0.0).infer(model, None)) for n in (1, 2, 3, 5)]
    assert np.diff(path).max() < 1e-12


@pytest.mark.usefixtures("x64")
def test_a_sweep_of_sites_draws_the_first_before_it_reads_it():
    rng = np.random.default_rng(0)
    J = rng.normal(size=(3, 3))
    sites = CoupledSites(
        jnp.asarray(rng.normal(size=3)), jnp.asarray(np.triu(J, 1) + np.triu(J, 1).T), jnp.zeros(())
    )
    drawn = sites.sweep((), jnp.asarray([jnp.nan, 1.0, 0.0]), key=jax.random.key(0))[1]
    np.testing.assert_array_equal(drawn, sites.sweep((), jnp.asarray([1.0, 1.0, 0.0]), key=jax.random.key(0))[1])
    energy = lambda z: sites.energy((), jnp.asarray(z))  # noqa: E731
    both = -np.logaddexp(-energy([0.0, 1.0, 0.0]), -energy([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(sites.reduced_energy((), jnp.asarray([1.0, 1.0, 0.0])), both, rtol=1e-12)
