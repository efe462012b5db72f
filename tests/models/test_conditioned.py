"""Conditional models: p(y | c) by clamping a part of a joint model, by shifting a density, and by a directed model.

Everything is held against enumeration at random parameters; samplers start at exact draws and must stay there.
"""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import at, check_sweep, close, flat, nodes, perturbed, quick, random_model, typical
from layered_machines import machine
from scipy.special import logsumexp

from latentia import likelihood, samplers, units
from latentia.core import conditioning, parameters, space
from latentia.core.algorithms import misfit, require
from latentia.core.capabilities import (
    Clamps,
    Conditional,
    Conditionals,
    ExactPosterior,
    FreeEnergy,
    KnownLogZ,
    Normalised,
    Tempered,
)
from latentia.core.errors import CapabilityError, NotNormalisableError, ParameterError
from latentia.core.space import Space
from latentia.energies.conditioned import Conditioned
from latentia.energies.rbm import RBMModel
from latentia.learning import OBJECTIVES, fitting
from latentia.learning.contrastive import ContrastiveState, cd, pcd, tempering
from latentia.learning.em import EM
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.likelihood import importance
from latentia.likelihood.precision import double, to_double
from latentia.registry import FAMILIES
from latentia.units.joined import Joined

KEY = jax.random.key(0)


@pytest.fixture
def x64():
    with double():
        yield


def joined_rbm(*kinds, seed=0, n_hidden=3, hidden="bernoulli"):
    """An RBM that sees several layers, at random parameters."""
    layers = [units.make(kind, 1 if kind == "categorical" else 2, 3) for kind in kinds]
    rbm = RBMModel.make(Joined(tuple(layers)), units.make(hidden, n_hidden), key=KEY, weight_scale=0.0)
    return perturbed(rbm, seed)


class Plain(FreeEnergy, ExactPosterior, Conditionals):
    """An RBM that cannot restrict itself; its x is a dictionary."""

    rbm: RBMModel

    @property
    def x_space(self):
        return dict(zip("abc", self.rbm.x_space, strict=True))

    @property
    def z_space(self):
        return self.rbm.z_space

    def energy(self, x, z):
        return self.rbm.energy(self.parts(x), z)

    def parts(self, x):
        return tuple(x[name] for name in "abc")

    def free_energy(self, x):
        return self.rbm.free_energy(self.parts(x))

    def posterior(self, x):
        return self.rbm.posterior(self.parts(x))

    def begin(self, x, *, key):
        return self.rbm.begin(self.parts(x), key=key)

    def sweep(self, x, z, *, key, fixed=None):
        x, z = self.rbm.sweep(self.parts(x), z, key=key, fixed=None if fixed is None else self.parts(fixed))
        return dict(zip("abc", x, strict=True)), z


class Pathways(Clamps, Conditionals):
    """A layered machine that cannot restrict itself: what it clamps and samples is all there is."""

    machine: eqx.Module

    @property
    def x_space(self):
        return self.machine.x_space

    @property
    def z_space(self):
        return self.machine.z_space

    def energy(self, x, z):
        return self.machine.energy(x, z)

    def clamped(self, x):
        return self.machine.clamped(x)

    def begin(self, x, *, key):
        return self.machine.begin(x, key=key)

    def sweep(self, x, z, *, key, fixed=None):
        return self.machine.sweep(x, z, key=key, fixed=fixed)


def three():
    return joined_rbm("bernoulli", "categorical", "spin", seed=1)


MODELS = {
    "rbm, y one layer": lambda: Conditioned(three(), (1, 2)),
    "rbm, y two layers": lambda: Conditioned(three(), (1,)),
    "rbm, real context": lambda: Conditioned(joined_rbm("bernoulli", "gaussian", seed=2), (1,)),
    "layered, y the label": lambda: Conditioned(machine((3, 3, 2), n_labels=3, seed=3), (0,)),
    "layered, y the data": lambda: Conditioned(machine((3, 3, 2), n_labels=3, seed=4), (1,)),
    "clamped, one of three": lambda: Conditioned(Plain(three()), ("b",)),
    "clamped, two of three": lambda: Conditioned(Plain(three()), ("a", "c")),
    "clamped, no free energy": lambda: Conditioned(Pathways(machine((3, 3, 2), n_labels=3, seed=5)), (1,)),
}
each_model = pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)


def contexts_of(model, n=3):
    """Some contexts, all different."""
    leaf = model.x_space["c"]
    if isinstance(leaf, Space) and leaf.domain == "real":
        return np.random.default_rng(0).normal(size=(n, *leaf.shape))
    every = jax.tree.map(lambda a: np.asarray(a, np.float64), space.enumerate_states(leaf))
    return at(every, np.arange(n))


def table(model, c, y):
    """E((c, y), z) of one context at all y (rows) and z, from the joint model's energy alone."""
    z = jax.tree.map(lambda a: np.asarray(a, np.float64), space.enumerate_states(model.z_space))
    energy = lambda y: jax.vmap(lambda z: model.energy({"y": y, "c": c}, z))(z)  # noqa: E731
    return np.asarray(quick(lambda y: jax.vmap(energy)(y))(y))


def exact(model, contexts):
    """(all y, log p(y | c) with a row for every context)."""
    y = jax.tree.map(lambda a: np.asarray(a, np.float64), space.enumerate_states(model.x_space["y"]))
    found = []
    for i in range(len(flat(contexts))):
        logs = logsumexp(-table(model, at(contexts, i), y), axis=1)
        found.append(logs - logsumexp(logs))
    return y, np.stack(found)


def every_pair(y, contexts):
    """Every y with every context: a batch of examples, context by context."""
    n, m = len(flat(contexts)), len(flat(y))
    return {"c": at(contexts, np.repeat(np.arange(n), m)), "y": at(y, np.tile(np.arange(m), n))}


# -- likelihoods --------------------------------------------------------------------------------------------------


@each_model
@pytest.mark.usefixtures("x64")
def test_log_p_of_y_given_c_is_that_of_enumeration(make):
    model = to_double(make())
    contexts = contexts_of(model)
    y, wanted = exact(model, contexts)
    for i in range(len(wanted)):
        for chosen in (0, len(wanted[0]) - 1):
            row = jax.tree.map(lambda a: a[None], {"c": at(contexts, i), "y": at(y, chosen)})
            found = likelihood.log_likelihood(model, row, key=KEY, method="exact")
            close(found.estimate, wanted[i, chosen], tolerance=1e-9)
            assert found.is_exact
    batch = every_pair(y, contexts)
    weighted = likelihood.log_likelihood(model, batch, key=KEY)
    close(weighted.estimate, wanted.mean(), tolerance=1e-9)
    assert weighted.details["n_examples"] == wanted.size


@each_model
@pytest.mark.usefixtures("x64")
def test_given_and_the_joint_energy_differ_by_a_function_of_c(make):
    model = to_double(make())
    c = at(contexts_of(model), 2)
    given = model.given(c)
    y, z = jax.tree.map(np.asarray, (space.enumerate_states(given.x_space), space.enumerate_states(given.z_space)))
    y, z = jax.tree.map(lambda a: a.astype(np.float64), (y, z))
    own = quick(lambda g: jax.vmap(lambda y: jax.vmap(lambda z: g.energy(y, z))(z))(y))(given)
    gap = np.asarray(own) - table(model, c, y)
    assert np.ptp(gap) < 1e-9
    assert jax.tree.structure(given.x_space) == jax.tree.structure(model.x_space["y"])
    assert jax.tree.leaves(given.x_space) == jax.tree.leaves(model.x_space["y"])


@pytest.mark.parametrize("name", ["rbm, y two layers", "rbm, real context", "layered, y the data"])
def test_annealing_of_every_context_contains_the_exact_likelihood(name):
    model = MODELS[name]()
    with double():
        y, wanted = exact(to_double(model), contexts_of(model, 2))
    batch = every_pair(y, contexts_of(model, 2))
    some = at(batch, np.r_[0, 1, 2, len(wanted[0]) + 1])  # three rows of the first context, one of the second
    truth = np.mean([*wanted[0, :3], wanted[1, 1]])
    options = {"n_temperatures": 150, "n_chains": 48, "n_replicas": 3, "n_burn_in": 60, "n_steps": 60}
    found = likelihood.log_likelihood(model, some, key=KEY, method="ais", **options)
    assert found.lower <= truth <= found.upper
    assert 0 < found.width < 0.5
    assert abs(found.estimate - truth) < 5 * found.stderr + 0.01
    assert found.details["n_contexts"] == 2
    assert "for each of 2 contexts" in found.method
    shuffled = likelihood.log_likelihood(model, at(some, np.r_[3, 1, 0, 2]), key=KEY, method="ais", **options)
    np.testing.assert_allclose(shuffled.details["log_z"], found.details["log_z"], rtol=1e-12)
    once = likelihood.log_likelihood(model, at(some, np.r_[0, 3]), key=KEY, method="ais", **options)
    shares = 0.75 * 2 * once.details["log_z"]  # the second context weighs a quarter, not a half
    second = likelihood.log_likelihood(model, at(some, np.r_[3]), key=KEY, method="ais", **options)
    np.testing.assert_allclose(found.details["log_z"], shares - 0.5 * second.details["log_z"], rtol=1e-9)


class Shifted(Conditional):
    """A density whose parameters follow from a real context."""

    slope: jax.Array
    density: type = eqx.field(static=True)

    @property
    def x_space(self):
        return {"y": Space("real", (1,)), "c": Space("real", (2,))}

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return self.given(x["c"]).free_energy(x["y"])

    def given(self, context):
        return self.density(jnp.dot(self.slope, context))


class Bell(KnownLogZ):
    """½(y − m)², whose log Z is not zero."""

    mean: jax.Array

    @property
    def x_space(self):
        return Space("real", (1,))

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return 0.5 * jnp.sum((x - self.mean) ** 2) + 3 * self.mean

    def log_z(self):
        return 0.5 * jnp.log(jnp.asarray(2 * np.pi, self.mean.dtype)) - 3 * self.mean


class Normal(Normalised):
    """The same, normalised."""

    mean: jax.Array

    @property
    def x_space(self):
        return Space("real", (1,))

    @property
    def z_space(self):
        return ()

    def energy(self, x, z):
        return self.free_energy(x)

    def free_energy(self, x):
        return 0.5 * jnp.sum((x - self.mean) ** 2) + 0.5 * jnp.log(jnp.asarray(2 * np.pi, self.mean.dtype))


@pytest.mark.parametrize("density", [Bell, Normal])
def test_known_normalisers_are_taken_row_by_row(density):
    rng = np.random.default_rng(0)
    model = Shifted(jnp.asarray([0.5, -1.0]), density)
    batch = {"y": rng.normal(size=(6, 1)), "c": rng.normal(size=(6, 2))}
    found = likelihood.log_likelihood(model, batch, key=KEY)
    error = batch["y"][:, 0] - batch["c"] @ [0.5, -1.0]
    assert found.estimate == pytest.approx(np.mean(-0.5 * error**2 - 0.5 * np.log(2 * np.pi)), abs=1e-9)
    assert found.is_exact
    with pytest.raises(CapabilityError, match="lacks Tempered"):
        likelihood.log_likelihood(model, batch, key=KEY, method="ais")


class ConditionalVAE(Conditional):
    """A directed model whose decoder is shifted by the context."""

    vae: eqx.Module
    weights: jax.Array = parameters.weight()

    @property
    def x_space(self):
        return {"y": self.vae.x_space, "c": Space("real", (2,))}

    @property
    def z_space(self):
        return self.vae.z_space

    def energy(self, x, z):
        return self.given(x["c"]).energy(x["y"], z)

    def given(self, context):
        last = lambda vae: vae.decoder.layers[-1].biases  # noqa: E731
        return eqx.tree_at(last, self.vae, last(self.vae) + self.weights @ context)


def test_directed_models_have_likelihoods_by_importance_for_every_context():
    (vae,) = (f for f in FAMILIES if f.name == "vae")
    vae = random_model(vae)
    n = vae.decoder.layers[-1].biases.shape[0]
    rng = np.random.default_rng(0)
    model = ConditionalVAE(vae, jnp.asarray(rng.normal(size=(n, 2)), jnp.float32))
    y = rng.integers(0, 2, (4, n)).astype(np.float32)
    batch = {"y": y, "c": rng.normal(size=(4, 2)).astype(np.float32)}
    sides = [model.given(jnp.asarray(c)) for c in batch["c"]]
    wanted = np.array([importance.exact_rows(each, row[None])[0] for each, row in zip(sides, y, strict=True)])
    found = likelihood.log_likelihood(model, batch, key=KEY)
    assert found.estimate == pytest.approx(wanted.mean(), abs=1e-5)
    np.testing.assert_allclose(likelihood.log_probabilities(model, batch, key=KEY), wanted, atol=1e-5)
    assert np.ptp(wanted - importance.exact_rows(vae, y)) > 0.1  # contexts matter
    few = {"n_samples": 400, "n_temperatures": 40, "n_steps": 20, "n_chains": 8}
    both = likelihood.log_likelihood(model, batch, key=KEY, method="ais", **few)
    assert both.lower <= wanted.mean() <= both.upper
    assert both.width < 1


def test_what_depends_on_the_context_is_not_given_without_one():
    model = MODELS["rbm, y one layer"]()
    with pytest.raises(CapabilityError, match=r"log Z for every context.*log_z\(model.given\(context\)\)"):
        likelihood.log_z(model, key=KEY)
    with pytest.raises(ParameterError, match=r"no option 'normaliser'.*n_temperatures"):
        zero = likelihood.LogZ(0.0, 0.0, 0.0, 0.0, "")
        likelihood.log_likelihood(model, {}, key=KEY, normaliser=zero)
    unbounded = joined_rbm("gaussian", "bernoulli", hidden="gaussian", seed=1)
    wild = eqx.tree_at(lambda m: m.weights, unbounded, 50 * unbounded.weights)
    wild = Conditioned(wild, (1,))
    batch = {"y": np.zeros((2, 2)), "c": np.zeros((2, 2))}
    with pytest.raises(NotNormalisableError, match="largest singular value"):
        likelihood.log_likelihood(wild, batch, key=KEY)
    assert float(wild.margin()) < 0
    assert float(Conditioned(wild.joint, (0,)).margin()) > 0  # given the real part nothing is unbounded


@pytest.mark.usefixtures("x64")
def test_pseudo_likelihood_is_that_of_given():
    model = to_double(MODELS["clamped, one of three"]())
    contexts = contexts_of(model)
    batch = every_pair(exact(model, contexts)[0], contexts)
    batch = at(batch, np.r_[0, 5, 17, 30])
    for function in (likelihood.pseudo_log_likelihood, likelihood.free_energies):
        wanted = [function(model.given(at(batch["c"], i)), at(batch["y"], np.r_[i]))[0] for i in range(4)]
        np.testing.assert_allclose(function(model, batch), wanted, rtol=1e-9)


# -- sampling -----------------------------------------------------------------------------------------------------


@each_model
@pytest.mark.usefixtures("x64")
def test_a_sweep_leaves_p_of_y_given_c_invariant(make):
    model = to_double(make())
    given = model.given(at(contexts_of(model), 2))
    assert isinstance(given, Conditionals)
    check_sweep(given, nodes(given.x_space, typical(given)[0]), key=KEY, n=20_000)


@pytest.mark.usefixtures("x64")
def test_every_chain_keeps_its_own_context():
    rbm = three()
    rbm = eqx.tree_at(lambda m: m.weights, rbm, 4 * rbm.weights)
    model = to_double(Conditioned(rbm, (1, 2)))
    contexts = at(contexts_of(model, 6), np.r_[0, 5])
    y, wanted = exact(model, contexts)
    rng, n = np.random.default_rng(1), 4000
    drawn = np.concatenate([rng.choice(len(wanted[i]), n, p=np.exp(wanted[i])) for i in (0, 1)])
    start = {"y": at(y, drawn), "c": at(contexts, np.repeat([0, 1], n))}
    draws, _ = samplers.sample(samplers.Gibbs(), model, start, 3, key=KEY, n_warmup=0, thin=3)
    final = flat(at(draws, 0))
    for i in (0, 1):
        mean = np.exp(wanted[i]) @ flat(y)
        error = (final[i * n : (i + 1) * n].mean(0) - mean) / np.sqrt(mean * (1 - mean) / n)
        assert np.abs(error).max() < 4.5
    assert np.abs(np.exp(wanted[0]) @ flat(y) - np.exp(wanted[1]) @ flat(y)).max() > 0.1


# -- learning -----------------------------------------------------------------------------------------------------


def exact_chains(model, sampler, rows, y, log_p):
    """(batch, weights, state): each row once for every y, its chains at all of them with weights S p(y | c)."""
    n, m = len(flat(rows["y"])), len(flat(y))
    batch = at(rows, np.repeat(np.arange(n), m))
    values = at(y, np.tile(np.arange(m), n))
    chains = samplers.gibbs.GibbsState(values, np.zeros((n * m, 0)))
    return batch, jnp.asarray(m * np.exp(log_p).reshape(-1)), ContrastiveState(chains, sampler, {})


@pytest.mark.parametrize("name", ["rbm, y two layers", "rbm, real context", "clamped, two of three"])
@pytest.mark.usefixtures("x64")
def test_contrastive_learning_with_exact_samples_descends_minus_log_p_of_y_given_c(name):
    model = to_double(MODELS[name]())
    contexts = contexts_of(model, 2)
    y, log_p = exact(model, contexts)
    rows = {"c": contexts, "y": at(y, np.r_[1, 2])}
    batch, weights, state = exact_chains(model, samplers.Gibbs(), rows, y, log_p)
    batch, state = jax.tree.map(jnp.asarray, (batch, state))
    params, rest = eqx.partition(model, parameters.trainable(model))

    def surrogate(params):
        return cd(1).loss(eqx.combine(params, rest), batch, weights, state)[0]

    def nll(params):
        whole = eqx.combine(params, rest)
        z = space.enumerate_states(model.z_space).astype(np.float64)

        def one(c, mine):
            energy = lambda y: -jax.vmap(lambda z: whole.energy({"y": y, "c": c}, z))(z)  # noqa: E731
            free = lambda y: -jax.nn.logsumexp(energy(y))  # noqa: E731
            return free(mine) + jax.nn.logsumexp(-jax.vmap(free)(y))

        return jnp.mean(jax.vmap(one)(rows["c"], rows["y"]))

    found, wanted = (quick(jax.grad(f))(params) for f in (surrogate, nll))
    sizes = [float(jnp.abs(leaf).max()) for leaf in jax.tree.leaves(wanted)]
    assert max(sizes) > 0.05
    jax.tree.map(lambda a, b: close(a, b, tolerance=1e-9), found, wanted)


@pytest.mark.usefixtures("x64")
def test_the_variational_phase_holds_q_at_the_context():
    model = to_double(MODELS["layered, y the label"]())
    contexts = contexts_of(model)
    rows = {"c": contexts, "y": np.eye(3)[[0, 2, 1]][:, None, :]}
    state = cd(1).init(model, rows, key=KEY)
    loss = float(cd(1).loss(model, rows, None, state)[0])
    chains, given = state.chains, [model.given(at(contexts, i)) for i in range(3)]
    bound = [-likelihood.variational_bounds(given[i], rows["y"][i : i + 1])[0] for i in range(3)]
    below = [float(given[i].energy(at(chains.x, i), at(chains.z, i))) for i in range(3)]
    assert loss == pytest.approx(np.mean(bound) - np.mean(below), abs=1e-4)  # ten rounds against convergence


def test_a_weight_counts_as_so_many_rows_and_its_chains_go_with_it():
    model = MODELS["rbm, y one layer"]()
    contexts, objective = contexts_of(model, 3), cd(2)
    y = exact(model, contexts)[0]
    rows = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), {"c": contexts, "y": at(y, np.r_[0, 1, 3])})
    state = objective.prepare(model, rows, objective.init(model, rows, key=KEY), key=KEY)
    which = np.r_[0, 1, 1, 1]
    twice = eqx.tree_at(lambda s: s.chains, state, at(state.chains, which))
    weighted = objective.loss(model, rows, jnp.asarray([0.75, 2.25, 0.0]), state)[0]
    repeated = objective.loss(model, at(rows, which), None, twice)[0]
    assert float(weighted) == pytest.approx(float(repeated), abs=1e-5)


@pytest.mark.parametrize("name", ["rbm, real context", "layered, y the data"])
def test_training_raises_the_conditional_likelihood(name):
    model = MODELS[name]()
    rng = np.random.default_rng(0)
    if name == "rbm, real context":
        contexts = rng.normal(size=(64, 2))
        y = (contexts + 0.3 * rng.normal(size=(64, 2)) > 0).astype(float)
    else:
        labels = rng.integers(0, 3, 64)
        contexts, y = (
            np.eye(3)[labels][:, None, :],
            (rng.random((64, 3)) < 0.1 + 0.8 * np.eye(3)[labels]).astype(float),
        )
    rows = {"c": jnp.asarray(contexts, jnp.float32), "y": jnp.asarray(y, jnp.float32)}
    learner = GradientLearner(cd(3), Optimizer.make("adam", learning_rate=0.05, n_steps=150))
    require(learner.objective, model)
    before = likelihood.log_likelihood(model, rows, key=KEY, method="exact").estimate
    model = model.initialise(rows, key=KEY)
    state = learner.init(model, rows, key=KEY)
    step = quick(lambda m, s, k: learner.step(m, rows, None, s, key=k, since=1))
    for key in jax.random.split(KEY, 150):
        model, state, metrics = step(model, state, key)
    after = likelihood.log_likelihood(model, rows, key=KEY, method="exact").estimate
    assert after > before + 0.3
    assert np.isfinite(float(metrics["energy_gap"]))


def test_objectives_of_whole_examples_are_refused():
    model = MODELS["rbm, y one layer"]()
    assert fitting(model) == ["cd"]
    require(tempering_cd(), model)
    with pytest.raises(CapabilityError, match="Contrastive cannot be used with Conditioned: it works on p"):
        require(pcd(), model)
    with pytest.raises(CapabilityError, match="with a context for every row"):
        rows = {"c": contexts_of(model), "y": np.zeros((3, 2))}
        pcd().init(model, rows, key=KEY)
    for algorithm in (OBJECTIVES["nce"](), OBJECTIVES["ratio_matching"](), EM()):
        assert "not on p(y | c)" in misfit(algorithm, model)
    bare = Conditioned(Pathways(machine((3, 3, 2), n_labels=3)), (1,))
    assert "Tempered" in misfit(tempering_cd(), bare)  # asked of given(c)
    assert misfit(cd(), bare) is None


def tempering_cd():
    return eqx.tree_at(lambda o: o.sampler, cd(1), tempering(n_replicas=3).sampler)


def test_what_cannot_be_conditioned_says_why():
    with pytest.raises(ParameterError, match="are one variable"):
        Conditioned(machine((3, 3, 2)), (0,))
    for wrong in ((), (5,), (0, 1, 2), ("b",)):
        with pytest.raises(ParameterError, match=r"among \[0, 1, 2\]"):
            Conditioned(three(), wrong)
    with pytest.raises(CapabilityError, match="one layer, with no parts"):
        RBMModel.make(units.make("bernoulli", 2), units.make("bernoulli", 2), key=KEY).restricted(np.zeros(2))


@pytest.mark.usefixtures("x64")
def test_centring_leaves_p_of_y_given_c_as_it_is():
    model = to_double(MODELS["layered, y the data"]())
    contexts = contexts_of(model)
    y, before = exact(model, contexts)
    batch = every_pair(y, contexts)
    moved = model.recentred(model.centres(batch, None), 0.7)
    moves = jax.tree.map(lambda a, b: float(jnp.abs(a - b).max()), moved.joint.offsets, model.joint.offsets)
    assert max(moves) > 0.05
    close(exact(moved, contexts)[1], before, tolerance=1e-9)
    plain = Conditioned(Plain(to_double(three())), ("b",))
    assert plain.recentred(plain.centres(batch, None), 0.5) is plain
    assert plain.project() is plain
    assert plain.initialise(batch, key=KEY) is plain
    assert float(plain.margin()) == np.inf


def test_given_has_what_the_joint_model_has():
    restricted, clamped = (conditioning.kind(MODELS[n]()) for n in ("rbm, y one layer", "clamped, one of three"))
    assert isinstance(restricted, Tempered)
    assert isinstance(clamped, FreeEnergy)
    assert isinstance(clamped, ExactPosterior)
    assert not isinstance(clamped, Clamps | Tempered)
    model = MODELS["clamped, one of three"]()
    x, y, c = {"a": 1, "b": 2, "c": 3}, {"a": 1, "c": 3}, 2
    assert model.whole({"y": y, "c": c}) == x
