"""Deep belief networks and joined units against enumeration, quadrature and formulas written out in NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
from conformance_oracles import (
    N_DRAWS,
    at,
    blank,
    check_latents_summed,
    check_posterior,
    check_sweep,
    chi_square,
    close,
    energies,
    flat,
    nodes,
    perturbed,
    quick,
    typical,
)

from latentia import units
from latentia.core.errors import ParameterError
from latentia.core.space import Space, enumerate_states
from latentia.energies.belief_net import DBNModel, switches, with_label
from latentia.energies.rbm import RBMModel
from latentia.likelihood import enumeration
from latentia.likelihood.precision import double
from latentia.units.gaussian import MIN_SIGMA
from latentia.units.joined import Joined

VISIBLES = ("bernoulli", "spin", "categorical")


@pytest.fixture(autouse=True)
def _x64():
    with double():
        yield


def network(sizes=(3, 2, 2), *, visible="bernoulli", n_labels=None, seed=0) -> DBNModel:
    """A network at random parameters: nothing tied, no bias or offset zero."""
    layers = [units.make(visible, sizes[0], 3), *(units.make("bernoulli", n) for n in sizes[1:])]
    return perturbed(DBNModel.make(layers, key=jax.random.key(0), n_labels=n_labels), seed)


def rbm(visible="bernoulli", hidden="bernoulli", n_visible=3, n_hidden=2, seed=0) -> RBMModel:
    layers = units.make(visible, n_visible, 3), units.make(hidden, n_hidden, 3)
    return perturbed(RBMModel.make(*layers, key=jax.random.key(0)), seed)


def states(space):
    return jax.tree.map(lambda a: np.asarray(a, np.float64), enumerate_states(space))


def arrays(*values):
    return [np.asarray(v, np.float64) for v in values]


@quick
def joint_energies(model, x, z):
    """E of all pairs of visibles and latents."""
    return jax.vmap(lambda x: jax.vmap(lambda z: model.energy(x, z))(z))(x)


@quick
def path_facts(model, x, z):
    """(log p(x, h) + log Z, −log q(h | x)) of all pairs of visibles and directed latents."""

    def one(x, z):
        pixels = x if model.n_labels is None else x[0]
        return model.log_joint(x, z), model.recognition_energy((pixels, *z))

    return jax.vmap(lambda x: jax.vmap(lambda z: one(x, z))(z))(x)


@quick
def draws(model, function, n, key):
    return jax.vmap(lambda key: function(model, key))(jax.random.split(key, n))


def index_of(points, values):
    """Which of the points each value is."""
    table = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(flat(points)))}
    return np.array([table[row.tobytes()] for row in np.ascontiguousarray(flat(values))])


def counts_of(points, values):
    return np.bincount(index_of(points, values), minlength=len(flat(points)))


# -- joined units ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("first", "second"), [("bernoulli", "categorical"), ("categorical", "spin")])
def test_joined_discrete_layers_make_an_rbm(first, second):
    joined = Joined((units.make(first, 2, 3), units.make(second, 2, 2)))
    model = perturbed(RBMModel.make(joined, units.make("bernoulli", 2), key=jax.random.key(0)), 1)
    x = nodes(model.x_space, blank(model.x_space, 1))
    z = states(model.z_space)
    check_posterior(model, at(x.points, 3), key=jax.random.key(1))
    for i in range(len(z)):
        check_latents_summed(model, x, z[i])
    check_sweep(model, x, key=jax.random.key(2))
    fixed = (np.zeros(joined.parts[0].space.shape, bool), np.ones(joined.parts[1].space.shape, bool))
    check_sweep(model, x, key=jax.random.key(3), fixed=fixed)
    wanted = logsumexp(-np.asarray(energies(model, x.points, z)))
    close(enumeration.log_z(model).estimate, wanted)


def test_joined_real_and_discrete_layers_make_an_rbm():
    joined = Joined((units.make("gaussian", 2), units.make("categorical", 1, 3)))
    model = perturbed(RBMModel.make(joined, units.make("bernoulli", 2), key=jax.random.key(0)), 2)
    assert joined.unbounded
    x = nodes(model.x_space, typical(model)[0])
    z = states(model.z_space)
    for i in range(len(z)):
        check_latents_summed(model, x, z[i])
    check_posterior(model, at(x.points, 20), key=jax.random.key(1))


def test_joined_layers_do_what_their_parts_do():
    rng = np.random.default_rng(0)
    parts = perturbed((units.make("gaussian", 3), units.make("categorical", 2, 3)), 3)
    joined = Joined(parts)
    assert joined.space == (Space("real", (3,)), Space("categorical", (2, 3)))
    assert joined.n_statistics == 9
    field = jnp.asarray(rng.normal(size=9))
    ends = (field[:3], field[3:])
    values = (rng.normal(size=(5, 3)), np.eye(3)[rng.integers(0, 3, (5, 2))])
    one = at(values, 0)

    def each(method, arguments):
        return [getattr(part, method)(argument) for part, argument in zip(parts, arguments, strict=True)]

    for method, arguments, value in (
        ("energy", one, one),
        ("mean_energy", ends, field),
        ("log_partition", ends, field),
    ):
        close(getattr(joined, method)(value), sum(map(float, each(method, arguments))), tolerance=1e-12)
    close(joined.statistic(one), np.concatenate(each("statistic", one)), tolerance=1e-12)
    close(joined.mean_statistic(field), np.concatenate(each("mean_statistic", ends)), tolerance=1e-12)
    close(
        joined.stiffness(),
        np.concatenate([part.stiffness() * float(part.unbounded) for part in parts]),
        tolerance=1e-12,
    )
    close(flat([v[None] for v in joined.mean(field)]), flat([v[None] for v in each("mean", ends)]))
    for method, argument, arguments in (
        ("biased", field, ends),
        ("fitted", values, values),
        ("standardised", values, values),
    ):
        found, wanted = jax.tree.leaves(getattr(joined, method)(argument)), jax.tree.leaves(each(method, arguments))
        for a, b in zip(found, wanted, strict=True):
            close(a, b, tolerance=1e-12)
    narrow = eqx.tree_at(lambda j: j.parts[0].log_sigma, joined, jnp.full(3, -99.0))
    close(narrow.projected().parts[0].log_sigma, np.full(3, np.log(MIN_SIGMA)))
    assert not Joined((units.make("spin", 2), units.make("bernoulli", 2))).unbounded


# -- the energy -------------------------------------------------------------------------------------------


def numpy_directed(layer, above):
    """p(layer = 1 | above) of Bernoulli units, rows of states."""
    weights, offset, bias = arrays(layer.weights, layer.offset, layer.units.bias)
    return expit((above - offset) @ weights.T + bias)


def log_bernoulli(x, p):
    return np.sum(x * np.log(p) + (1 - x) * np.log1p(-p), axis=-1)


def numpy_top_energy(top: RBMModel, visible, hidden):
    """E of a Bernoulli RBM whose visibles may carry one label, rows of states."""
    if isinstance(top.visible, Joined):
        bias = np.concatenate([np.asarray(part.bias).reshape(-1) for part in top.visible.parts])
    else:
        bias = np.asarray(top.visible.bias)
    weights, mu, lam, b = arrays(top.weights, top.visible_offset, top.hidden_offset, top.hidden.bias)
    coupling = np.einsum("ni,ij,nj->n", visible - mu, weights, hidden - lam)
    return -(visible @ bias) - hidden @ b - coupling


@pytest.mark.parametrize("n_labels", [None, 3])
def test_energy_written_out(n_labels):
    model = network((3, 2, 3, 2), n_labels=n_labels, seed=1)
    rng = np.random.default_rng(0)
    n = 20
    x, h1, h2, h3 = (rng.integers(0, 2, (n, k)).astype(float) for k in (3, 2, 3, 2))
    label = np.eye(3)[rng.integers(0, 3, n)]
    visible = h2 if n_labels is None else np.concatenate([h2, label], axis=1)
    wanted = numpy_top_energy(model.top, visible, h3)
    wanted -= log_bernoulli(x, numpy_directed(model.generative[0], h1))
    wanted -= log_bernoulli(h1, numpy_directed(model.generative[1], h2))
    full = x if n_labels is None else (x, label[:, None, :])
    found = jax.vmap(model.energy)(full, (h1, h2, h3))
    close(found, wanted, tolerance=1e-12)
    log_q = log_bernoulli(h1, numpy_directed(model.recognition[0], x))
    log_q += log_bernoulli(h2, numpy_directed(model.recognition[1], h1))
    close(-jax.vmap(model.recognition_energy)((x, h1, h2)), log_q, tolerance=1e-12)


def test_spaces_name_the_layers():
    model = network((3, 2, 4), visible="categorical", n_labels=5)
    assert model.x_space == (Space("categorical", (3, 3)), Space("categorical", (1, 5)))
    assert model.z_space == (Space("binary", (2,)), Space("binary", (4,)))
    assert network((3, 2)).x_space == Space("binary", (3,))
    assert network((3, 2)).z_space == (Space("binary", (2,)),)
    assert network().n_labels is None
    assert model.n_labels == 5
    assert model.summit is model.top


@pytest.mark.parametrize(
    ("visible", "sizes", "n_labels"),
    [
        ("bernoulli", (3, 2), 3),
        ("bernoulli", (3, 2, 2), None),
        ("bernoulli", (2, 3, 2, 2), 3),
        ("spin", (2, 2, 2), 3),
        ("categorical", (2, 2), None),
        ("categorical", (2, 2, 2, 2), 3),
    ],
)
def test_log_z_is_that_of_the_rbm_on_top(visible, sizes, n_labels):
    model = network(sizes, visible=visible, n_labels=n_labels, seed=2)
    found = logsumexp(-np.asarray(joint_energies(model, states(model.x_space), states(model.z_space))))
    top = np.asarray(energies(model.top, states(model.top.x_space), states(model.top.z_space)))
    close(found, logsumexp(-top), tolerance=1e-12)


def test_log_z_with_real_visibles_is_that_of_the_rbm_on_top():
    model = network((2, 2, 2), visible="gaussian", n_labels=2, seed=3)
    keys = jax.random.split(jax.random.key(0), 200)
    near = np.asarray(jax.vmap(lambda key: model.generate(jnp.zeros(2), key=key)[0])(keys))
    near = np.concatenate([near - 3 * near.std(0), near + 3 * near.std(0)])
    grid = nodes(model.x_space, (near, np.zeros((1, 1, 2))))
    energy = np.asarray(joint_energies(model, grid.points, states(model.z_space)))
    top = np.asarray(energies(model.top, states(model.top.x_space), states(model.top.z_space)))
    close(logsumexp(-energy + grid.log_weights[:, None]), logsumexp(-top))


@pytest.mark.parametrize("visible", [*VISIBLES, "gaussian"])
@pytest.mark.parametrize("hidden", ["bernoulli", "categorical"])
def test_an_rbm_becomes_a_directed_layer_without_loss(visible, hidden):
    lower = rbm(visible, hidden, seed=4)
    upper = rbm(hidden, "bernoulli", n_visible=2, seed=5)
    model = DBNModel.from_stack([lower, upper])
    rng = np.random.default_rng(0)
    x = 2 * rng.normal(size=(30, 3)) if visible == "gaussian" else rng.choice(states(lower.x_space), 30)
    z = rng.choice(states(lower.z_space), 30)
    log_p = -jax.vmap(lower.energy)(x, z) + jax.vmap(lower.latent_free_energy)(z)
    close(-jax.vmap(lambda x, z: model.generative_energy((x, z)))(x, z), log_p, tolerance=1e-12)
    log_q = jax.vmap(lambda x, z: lower.posterior(x).log_prob(z))(x, z)
    close(-jax.vmap(lambda x, z: model.recognition_energy((x, z)))(x, z), log_q, tolerance=1e-12)
    close(jax.vmap(lambda z: model.decode((z, jnp.zeros(2))))(z), jax.vmap(lower.decode)(z), tolerance=1e-12)
    close(jax.vmap(model.means)(x)[0], jax.vmap(lambda x: lower.posterior(x).mean())(x), tolerance=1e-12)
    assert model.top is upper


# -- bounds -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_labels", [None, 2])
@pytest.mark.parametrize("sizes", [(3, 2, 2), (3, 2, 2, 2)])
def test_bounds_lie_below_the_likelihood_by_the_divergence(sizes, n_labels):
    model = network(sizes, n_labels=n_labels, seed=6)
    x, z = states(model.x_space), states(model.z_space)
    directed = states(model.z_space[:-1])
    log_joint, minus_log_q = map(np.asarray, path_facts(model, x, directed))

    # h^L summed out of the joint energy, then everything: log p(x) + log Z.
    energy = np.asarray(joint_energies(model, x, z))
    group = index_of(directed, z[:-1])
    summed = np.stack([logsumexp(-energy[:, group == i], axis=1) for i in range(len(flat(directed)))], axis=1)
    close(log_joint, summed, tolerance=1e-12)
    log_p = logsumexp(-energy, axis=1)

    q = np.exp(-minus_log_q)
    close(q.sum(1), np.ones(len(q)), tolerance=1e-12)
    elbo = np.sum(q * (log_joint + minus_log_q), axis=1)
    posterior = np.exp(summed - log_p[:, None])
    divergence = np.sum(q * (np.log(q) - np.log(posterior)), axis=1)
    assert (divergence > 1e-3).all()  # else nothing is tested
    close(log_p - elbo, divergence, tolerance=1e-12)

    # Two weights: the expectation over all pairs of paths.
    logs = log_joint + minus_log_q
    pairs = np.logaddexp(logs[:, :, None], logs[:, None, :]) - np.log(2)
    weighted = np.einsum("ni,nj,nij->n", q, q, pairs)
    assert (elbo < weighted).all()
    assert (weighted < log_p).all()

    row = 3
    one = at(x, row)
    found = draws(model, lambda m, key: m.bound(one, key=key, n_samples=2), N_DRAWS, jax.random.key(0))
    for values, exact in ((found.plain, elbo[row]), (found.weighted, weighted[row])):
        values = np.asarray(values)
        assert abs(values.mean() - exact) < 5 * values.std() / np.sqrt(N_DRAWS)
    many = model.log_weights(one, key=jax.random.key(1), n_samples=50)
    assert min(abs(np.asarray(many)[:, None] - logs[row]).min(1)) < 1e-9  # they are weights of paths
    bound = model.bound(one, key=jax.random.key(1), n_samples=50)
    close(bound.plain, np.mean(many), tolerance=1e-12)
    close(bound.weighted, logsumexp(many) - np.log(50), tolerance=1e-12)


def test_an_unknown_label_is_summed_out():
    model = network((3, 2, 2), n_labels=3, seed=7)
    x, _ = states(model.x_space)
    labels, directed = np.eye(3)[:, None, :], states(model.z_space[:-1])
    known = [np.asarray(path_facts(model, (x, np.repeat(y[None], len(x), 0)), directed)[0]) for y in labels]
    unknown = np.asarray(path_facts(model, (x, None), directed)[0])
    close(unknown, logsumexp(known, axis=0), tolerance=1e-12)
    bound = model.bound((x[0], None), key=jax.random.key(0), n_samples=5)
    assert np.isfinite(bound.plain)


@pytest.mark.parametrize("visible", ["bernoulli", "gaussian"])
def test_recognition_draws_follow_q(visible):
    """The two layers are of one size, so that drawing them with one key would make them equal."""
    model = network((3, 3, 3, 2), visible=visible, seed=8)
    x = np.array([1.0, 0.0, 1.0])
    directed = states(model.z_space[:-1])
    _, minus_log_q = path_facts(model, x[None], directed)
    z, log_q = draws(model, lambda m, key: m.recognise(x, key=key), N_DRAWS, jax.random.key(0))
    assert chi_square(counts_of(directed, z), np.exp(-np.asarray(minus_log_q)[0])) > 1e-5
    close(log_q, -np.asarray(minus_log_q)[0][index_of(directed, z)], tolerance=1e-12)


# -- an RBM is an infinite directed net ---------------------------------------------------------------


def flipped(model: RBMModel) -> RBMModel:
    """The same machine, seen from the other side."""
    return RBMModel(model.hidden, model.visible, model.weights.T, model.hidden_offset, model.visible_offset)


def unrolled(model: RBMModel, n_directed: int) -> DBNModel:
    return DBNModel.from_stack([flipped(model) if i % 2 else model for i in range(n_directed + 1)])


@pytest.mark.parametrize("n_directed", [1, 2, 3])
@pytest.mark.parametrize("visible", ["bernoulli", "categorical"])
def test_an_rbm_is_a_tied_directed_net_of_any_depth(visible, n_directed):
    n = {"bernoulli": 3, "categorical": 2}[visible]
    machine = rbm(visible, n_visible=n, seed=9)
    model = unrolled(machine, n_directed)
    x = states(model.x_space)
    free = np.asarray(jax.vmap(machine.free_energy)(x))
    log_p = -free - logsumexp(-free)
    summed = logsumexp(-np.asarray(joint_energies(model, x, states(model.z_space))), axis=1)
    close(summed - logsumexp(summed), log_p, tolerance=1e-12)

    # The recognition net is the posterior, so that every weight is p(x) itself.
    log_joint, minus_log_q = path_facts(model, x, states(model.z_space[:-1]))
    close(log_joint + minus_log_q, np.broadcast_to(-free[:, None], log_joint.shape), tolerance=1e-11)
    bound = model.bound(x[1], key=jax.random.key(0), n_samples=3)
    close([bound.plain, bound.weighted], [-free[1], -free[1]], tolerance=1e-11)


@pytest.mark.parametrize("n_directed", [1, 2, 3])
def test_complementary_priors_make_the_posterior_factorial(n_directed):
    machine = rbm(n_visible=3, n_hidden=3, seed=10)
    model = unrolled(machine, n_directed)
    x, z = states(model.x_space), states(model.z_space)
    joint = np.exp(-np.asarray(joint_energies(model, x, z)))
    posterior = joint / joint.sum(1, keepdims=True)
    first = states(model.z_space[0])
    found = np.stack([posterior[:, index_of(first, z[0]) == i].sum(1) for i in range(len(first))], axis=1)
    weights, mu, bias = arrays(machine.weights, machine.visible_offset, machine.hidden.bias)
    wanted = np.exp(log_bernoulli(first[None], expit((x - mu) @ weights + bias)[:, None, :]))
    close(found, wanted, tolerance=1e-12)
    # Without the ties it is not factorial: the test can fail.
    untied = perturbed(model, 0)
    joint = np.exp(-np.asarray(joint_energies(untied, x, z)))
    other = np.stack([joint[:, index_of(first, z[0]) == i].sum(1) for i in range(len(first))], axis=1)
    other /= other.sum(1, keepdims=True)
    marginals = other @ first
    assert np.abs(np.exp(log_bernoulli(first[None], marginals[:, None, :])) - other).max() > 1e-3


# -- labels ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2), (3, 2, 3, 2)])
def test_labels_are_told_apart_by_exact_free_energies(sizes):
    model = network(sizes, n_labels=3, seed=11)
    x = states(model.layers[0].space)
    mean = x
    for layer in model.recognition:
        mean = numpy_directed(layer, mean)
    hidden = states(model.top.z_space)
    wanted = np.empty((len(x), 3))
    means = np.empty((3, len(x), sizes[-1]))
    for k in range(3):
        for i, value in enumerate(mean):
            visible = np.repeat(np.concatenate([value, np.eye(3)[k]])[None], len(hidden), 0)
            energy = numpy_top_energy(model.top, visible, hidden)
            wanted[i, k] = -logsumexp(-energy)
            means[k, i] = softmax(-energy) @ hidden
    found = np.asarray(jax.vmap(lambda x: model.label_energies((x, None)))(x))
    close(found, wanted, tolerance=1e-12)

    # The uppermost means: given the label, or averaged over what it may be.
    unknown = jax.vmap(lambda x: model.means((x, None)))(x)
    close(unknown[-1], np.einsum("nk,knj->nj", softmax(-wanted, axis=1), means), tolerance=1e-12)
    known = jax.vmap(lambda x: model.means((x, np.eye(3)[1][None])))(x)
    close(known[-1], means[1], tolerance=1e-12)
    if len(sizes) > 2:
        close(unknown[-2], mean, tolerance=1e-12)
        close(unknown[0], numpy_directed(model.recognition[0], x), tolerance=1e-12)


def test_a_network_without_labels_says_so():
    model = network()
    with pytest.raises(ParameterError, match="no label units"):
        model.label_energies(jnp.zeros(3))
    with pytest.raises(ParameterError, match="no label units"):
        model.dream(jnp.zeros(2), key=jax.random.key(0), n_steps=1, label=jnp.ones((1, 2)))


def test_means_are_those_of_the_layers():
    model = network((3, 2, 3, 2), seed=12)
    x = states(model.x_space)
    first, second, third = jax.vmap(model.means)(x)
    close(first, numpy_directed(model.recognition[0], x), tolerance=1e-12)
    close(second, numpy_directed(model.recognition[1], np.asarray(first)), tolerance=1e-12)
    weights, mu, bias = arrays(model.top.weights, model.top.visible_offset, model.top.hidden.bias)
    close(third, expit((np.asarray(second) - mu) @ weights + bias), tolerance=1e-12)


# -- dreams ---------------------------------------------------------------------------------------------


def exact_joint(model):
    """(points, probabilities) of everything: (x, z)."""
    points = states((model.x_space, model.z_space))
    x, z = points
    log_p = -np.asarray(jax.vmap(model.energy)(x, z))
    return points, np.exp(log_p - logsumexp(log_p))


@pytest.mark.parametrize("n_labels", [None, 2])
@pytest.mark.parametrize("sizes", [(3, 2), (2, 2, 2), (2, 2, 2, 2)])
def test_dreams_that_start_at_the_model_stay_there(sizes, n_labels):
    """Layers of one size: a key used twice would tie them together."""
    model = network(sizes, n_labels=n_labels, seed=13)
    model = eqx.tree_at(lambda m: m.top.weights, model, 3 * model.top.weights)  # so that a wrong label shows
    points, p = exact_joint(model)
    x, z = points
    path = (x if n_labels is None else x[0], *z[:-1])
    start = jnp.asarray(path[-1][np.random.default_rng(0).choice(len(p), N_DRAWS, p=p)])

    def one(h, key):
        return model.dream(h, key=key, n_steps=1 if n_labels else 2)

    found = eqx.filter_jit(jax.vmap(one))(start, jax.random.split(jax.random.key(0), N_DRAWS))
    assert chi_square(counts_of(points, found), p) > 1e-5


@pytest.mark.parametrize("sizes", [(3, 2), (2, 2, 2)])
def test_dreams_of_a_label_stay_at_the_label(sizes):
    model = network(sizes, n_labels=3, seed=14)
    points, p = exact_joint(model)
    chosen = 1
    p = p * points[0][1][:, 0, chosen]
    p = p / p.sum()
    (x, _), z = points
    path = (x, *z[:-1])
    start = jnp.asarray(path[-1][np.random.default_rng(0).choice(len(p), N_DRAWS, p=p)])
    label = jnp.eye(3)[chosen][None]

    def one(h, key):
        return model.dream(h, key=key, n_steps=3, label=label)

    found = eqx.filter_jit(jax.vmap(one))(start, jax.random.split(jax.random.key(1), N_DRAWS))
    assert (np.asarray(found[0][1])[:, 0].argmax(1) == chosen).all()
    assert chi_square(counts_of(points, found), p) > 1e-5


@pytest.mark.parametrize("n_labels", [None, 2])
def test_many_sweeps_forget_the_start(n_labels):
    model = network((2, 2, 2), n_labels=n_labels, seed=15)
    points, p = exact_joint(model)
    label = None
    if n_labels:
        label = jnp.array([[0.0, 1.0]])
        p = p * points[0][1][:, 0, 1]

    def dreams(n_steps):
        one = lambda m, key: m.dream(jnp.ones(2), key=key, n_steps=n_steps, label=label)  # noqa: E731
        return counts_of(points, draws(model, one, N_DRAWS, jax.random.key(2)))

    assert chi_square(dreams(60), p / p.sum()) > 1e-5
    assert chi_square(dreams(1), p / p.sum()) < 1e-5


def test_generation_with_real_visibles():
    model = network((2, 3, 2), visible="gaussian", seed=16)
    h = np.array([1.0, 0.0, 1.0])
    x = np.asarray(draws(model, lambda m, key: m.generate(jnp.asarray(h), key=key)[0], N_DRAWS, jax.random.key(0)))
    layer = model.generative[0]
    weights, offset = arrays(layer.weights, layer.offset)
    location, log_sigma, centre, scale = arrays(
        layer.units.location, layer.units.log_sigma, layer.units.data_mean, layer.units.data_scale
    )
    mean = centre + scale * (location + weights @ (h - offset))
    sd = scale * np.exp(log_sigma)
    assert np.abs((x.mean(0) - mean) / (sd / np.sqrt(N_DRAWS))).max() < 5
    assert np.abs(x.std(0) / sd - 1).max() < 0.05
    close(model.decode((h, np.zeros(2))), mean, tolerance=1e-12)


@pytest.mark.parametrize("sizes", [(3, 2), (3, 2, 2)])
def test_decoding_gives_the_means_of_data_and_label(sizes):
    model = network(sizes, n_labels=3, seed=17)
    points, p = exact_joint(model)
    (x, label), z = points
    for latent in (0, 3):
        value = at(states(model.z_space), latent)
        same = p * np.all(z[0] == value[0], axis=1)  # x given h¹
        mean, label_mean = model.decode(value)
        close(mean, same @ x / same.sum(), tolerance=1e-12)
        same = p * np.all(z[-1] == value[-1], axis=1)  # y given h^L
        close(label_mean[0], same @ label[:, 0] / same.sum(), tolerance=1e-12)


@pytest.mark.parametrize("n_labels", [None, 2])
def test_switches_follow_a_unit_down(n_labels):
    model = network((3, 2, 3, 2), n_labels=n_labels, seed=21)
    weights, lam = arrays(model.top.weights, model.top.hidden_offset)
    visible = model.top.visible if n_labels is None else model.top.visible.parts[0]
    (bias,) = arrays(visible.bias)
    first, second = arrays(model.generative[0].offset, model.generative[1].offset)
    for found, value in zip(switches(model), (1.0, 0.0), strict=True):
        assert found.shape == (2 + 3 + 2, 2 + 3 + 2)
        lowest = first.copy()
        lowest[1] = value
        close(found[1], np.concatenate([lowest, second, lam]), tolerance=1e-12)
        middle = second.copy()
        middle[2] = value
        close(found[4], np.concatenate([numpy_directed(model.generative[1], middle), middle, lam]), tolerance=1e-12)
        highest = lam.copy()
        highest[0] = value
        middle = expit(weights[:3] @ (highest - lam) + bias)
        lowest = numpy_directed(model.generative[1], middle)
        close(found[5], np.concatenate([lowest, middle, highest]), tolerance=1e-12)
    one_layer = switches(network((3, 2)))[0]
    close(np.diag(one_layer), np.ones(2))


# -- offsets and scales ---------------------------------------------------------------------------------


@pytest.mark.parametrize("n_labels", [None, 2])
@pytest.mark.parametrize("visible", ["bernoulli", "categorical", "gaussian"])
def test_moving_the_offsets_changes_no_distribution(visible, n_labels):
    model = network((2, 2, 3, 2), visible=visible, n_labels=n_labels, seed=18)
    rng = np.random.default_rng(0)
    n = 12
    x = rng.normal(size=(n, 2)) if visible == "gaussian" else rng.choice(states(model.layers[0].space), n)
    full = x if n_labels is None else (x, np.eye(2)[rng.integers(0, 2, n)][:, None, :])
    weights = rng.dirichlet(np.ones(n)) * n
    centres = model.centres(full, jnp.asarray(weights))
    moved = model.recentred(centres, 0.3)
    z = states(model.z_space)
    before, after = (np.asarray(joint_energies(m, full, z)) for m in (model, moved))
    close(after - before, np.full_like(before, (after - before)[0, 0]), tolerance=1e-10)
    directed = states(model.z_space[:-1])
    close(*(path_facts(m, full, directed)[1] for m in (moved, model)), tolerance=1e-10)

    # At rate one the offsets are the means.
    moved = model.recentred(centres, 1.0)
    statistics = [np.asarray(jax.vmap(model.layers[0].statistic)(x))]
    statistics += [np.asarray(m) for m in jax.vmap(lambda x: model.means(x))(full)[:2]]
    averages = [weights @ s / n for s in statistics]
    for layer, wanted in zip((*moved.recognition, *moved.generative), [*averages[:-1], *averages[1:]], strict=True):
        close(layer.offset, wanted, tolerance=1e-12)
    close(moved.top.visible_offset[:3], averages[-1], tolerance=1e-12)
    if n_labels:
        close(moved.top.visible_offset[3:], weights @ full[1][:, 0] / n, tolerance=1e-12)


def test_scales_stay_in_range_and_the_margin_is_that_of_the_top():
    model = network((2, 2, 2), visible="gaussian", seed=19)
    narrow = eqx.tree_at(lambda m: m.generative[0].units.log_sigma, model, jnp.full(2, -99.0))
    close(narrow.project().generative[0].units.log_sigma, np.full(2, np.log(MIN_SIGMA)))
    close(narrow.project().recognition[0].weights, model.recognition[0].weights)
    assert float(model.margin()) == 1
    top = RBMModel.make(
        units.make("gaussian", 2), units.make("gaussian", 2), key=jax.random.key(0), weight_scale=5.0
    )
    assert float(DBNModel.from_stack([top]).margin()) < 0
    assert "unbounded" in DBNModel.from_stack([top]).margin_message()


def test_making_one_gives_small_weights_and_the_asked_layers():
    layers = [units.make("gaussian", 4), units.make("bernoulli", 3), units.make("bernoulli", 2)]
    model = DBNModel.make(layers, key=jax.random.key(0), n_labels=5, weight_scale=0.02)
    assert model.top.weights.shape == (3 + 5, 2)
    close(model.recognition[0].weights, model.generative[0].weights.T)
    assert 0 < np.abs(model.generative[0].weights).max() < 0.2
    assert not np.allclose(model.top.weights[:2, :2], model.generative[0].weights[:2, :2])
    assert isinstance(with_label(layers[0], 3), Joined)
