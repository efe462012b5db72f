"""General Boltzmann machines against enumeration, energies written out in NumPy, and exact results of physics."""

from __future__ import annotations

import functools
import itertools

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import Nodes, check_summed_out, check_sweep, close, nodes, perturbed, quick
from scipy.sparse import csr_array
from scipy.special import logsumexp

import latentia
from latentia import BoltzmannMachine, likelihood, samplers
from latentia.core.errors import CapabilityError, DataError, ParameterError, UnknownNameError
from latentia.energies import boltzmann_machine as bm
from latentia.energies.layered import LayeredPosterior
from latentia.learning import contrastive
from latentia.learning.exact_likelihood import ExactLikelihood
from latentia.likelihood.precision import double
from latentia.ops.couplings import DenseCouplings, SparseCouplings
from latentia.ops.lattice import CRITICAL, grid_edges, ising_correlation, ising_log_z
from latentia.units import Factorial

#: Graphs of six sites: not two-colourable but for the last, which has sites without any edge.
GRAPHS = {
    "dense": None,
    "odd cycle and a tail": [(0, 1), (1, 2), (2, 3), (3, 4), (0, 4), (2, 5)],
    "all pairs": list(itertools.combinations(range(6), 2)),
    "wheel": [(0, i) for i in range(1, 6)] + [(i, i % 5 + 1) for i in range(1, 6)],
    "star": [(0, i) for i in range(1, 5)],
}
KINDS = list(itertools.product(("bernoulli", "spin"), GRAPHS))


@pytest.fixture
def x64():
    with double():
        yield


def machine(units="bernoulli", graph="dense", n_hidden=0, *, n=6, seed=0, gain=1.5):
    """At random parameters; what stands in the unread half of the weights is random too."""
    model = bm.make(units, n - n_hidden, n_hidden, GRAPHS[graph], key=jax.random.key(0), weight_scale=0.0)
    model = perturbed(model, seed)
    louder = lambda c: c.weights  # noqa: E731
    return eqx.tree_at(lambda m: louder(m.couplings), model, gain * model.couplings.weights)


def matrix(model):
    """W, from the parameters alone."""
    w = np.asarray(model.couplings.weights, np.float64)
    if isinstance(model.couplings, DenseCouplings):
        upper = np.triu(w, 1)
    else:
        n = model.units.n_statistics
        upper = np.zeros((n, n))
        for (i, j), value in zip(model.couplings.graph.edges, w, strict=True):
            upper[i, j] = value
    return upper + upper.T


def table(model):
    """(all states of all units, E of each), the energy written out."""
    n = model.units.n_statistics
    s = np.array(list(itertools.product(model.states, repeat=n)))
    bias = np.asarray(model.units.bias, np.float64)
    return s, -0.5 * np.einsum("ni,ij,nj->n", s, matrix(model), s) - s @ bias + float(model.constant)


def all_x(model):
    if isinstance(model, bm.VisibleBoltzmann):
        s = table(model)[0]
        return Nodes(s, np.zeros(len(s)))
    return nodes(model.x_space, np.zeros((1, model.n_visible)))


# -- energies and sweeps -------------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "graph"), KINDS)
@pytest.mark.usefixtures("x64")
def test_energies_products_and_log_z(units, graph):
    model = machine(units, graph)
    s, wanted = table(model)
    w = matrix(model)
    found = quick(lambda m, s: jax.vmap(lambda s: (m.energy(s, ()), m.couplings.product(s)))(s))(model, s)
    close(found[0], wanted, tolerance=1e-10)
    close(found[1], s @ w, tolerance=1e-10)
    close(model.couplings.absolute(), np.abs(w).sum(axis=1), tolerance=1e-12)
    close(likelihood.log_z(model, key=jax.random.key(0)).estimate, logsumexp(-wanted), tolerance=1e-10)


@pytest.mark.parametrize(("units", "graph"), KINDS)
@pytest.mark.usefixtures("x64")
def test_a_sweep_leaves_the_distribution_invariant_on_any_graph(units, graph):
    model = machine(units, graph, seed=1)
    check_sweep(model, all_x(model), key=jax.random.key(1))
    fixed = jnp.array([True, False, False, True, False, False])
    check_sweep(model, all_x(model), key=jax.random.key(2), fixed=fixed)


@pytest.mark.parametrize("graph", ["odd cycle and a tail", "wheel"])
@pytest.mark.usefixtures("x64")
def test_hidden_units_on_a_graph(graph):
    model = machine("spin", graph, 3, seed=2)
    check_sweep(model, all_x(model), key=jax.random.key(1))
    check_summed_out(model, "reduced_energy")
    s, energy = table(model)
    for x in s[:: len(s) // 5, :3]:
        same = (s[:, :3] == x).all(axis=1)
        clamped = model.clamped(x)
        close(table(clamped)[1], energy[same], tolerance=1e-10)


def test_two_colours_on_an_odd_cycle_would_be_noticed(monkeypatch):
    """The check above must be able to fail: the same sweep with two colours where three are needed."""
    with double():
        monkeypatch.setitem(
            GRAPHS, "own", [(0, 1), (1, 2), (0, 2), (3, 4), (4, 5), (3, 5)]
        )  # compiled nowhere else
        model = machine("spin", "own", seed=1)
        joined = model.couplings.graph
        assert len(joined.spans) == 3
        (a, b), (c, _), (_, f) = joined.spans
        monkeypatch.setitem(joined.__dict__, "_layout", (joined.order, [(a, b), (c, f)], [
            joined.pieces[0], joined.pieces[1] + joined.pieces[2]]))  # fmt: skip
        with pytest.raises(AssertionError):
            check_sweep(model, all_x(model), key=jax.random.key(1))


@pytest.mark.parametrize("n", [1, 15, 16, 17, 40])
@pytest.mark.usefixtures("x64")
def test_a_dense_sweep_is_one_site_after_another(n):
    """Blocks are a matter of speed only."""
    rng = np.random.default_rng(n)
    couplings = DenseCouplings(jnp.asarray(rng.normal(size=(n, n))))
    start, bias = rng.normal(size=n), rng.normal(size=n)
    swept = quick(lambda c, s, b: c.sweep(s, lambda f, b: jnp.tanh(f + b), b))(couplings, start, bias)
    w, s, fields = np.asarray(couplings.matrix()), start.copy(), np.zeros(n)
    assert (np.diag(w) == 0).all()
    assert (w == w.T).all()
    for i in range(n):
        fields[i] = w[i] @ s
        s[i] = np.tanh(fields[i] + bias[i])
    close(swept.values, s, tolerance=1e-10)
    close(swept.fields, fields, tolerance=1e-10)


@pytest.mark.parametrize("graph", ["odd cycle and a tail", "wheel", "star"])
@pytest.mark.usefixtures("x64")
def test_a_sweep_along_a_graph_is_that_of_the_matrix_in_its_order(graph):
    model = machine("spin", graph, seed=3)
    w, order = matrix(model), model.couplings.order
    rng = np.random.default_rng(0)
    start, bias = rng.normal(size=6), rng.normal(size=6)
    update = lambda f, b: jnp.tanh(f + b)  # noqa: E731
    swept = quick(lambda c, s, b: c.sweep(s, update, b))(model.couplings, start, bias[order])
    s = start.copy()
    for i in order:
        s[i] = np.tanh(w[i] @ s + bias[i])
    close(swept.values, s, tolerance=1e-10)


@quick
def _many_sweeps(model, x, keys):
    one = lambda model, x, key: model.sweep(x, (), key=key)[0]  # noqa: E731
    alone = jax.lax.map(lambda each: one(model, *each), (x, keys))
    stacked = jax.tree.map(lambda a: jnp.stack([a] * len(keys)) if eqx.is_array(a) else a, model)
    each_its_own = jax.vmap(one, in_axes=(0, 0, 0))
    return alone, jax.vmap(lambda x, k: one(model, x, k))(x, keys), each_its_own(stacked, x, keys)


@pytest.mark.parametrize("n", [2, 9, 32, 70])
def test_many_chains_at_once_are_the_chains_one_by_one(n):
    model = machine("spin", "odd cycle and a tail")
    x = jnp.asarray(np.random.default_rng(0).choice([-1.0, 1.0], (n, 6)).astype(np.float32))
    alone, together, own = _many_sweeps(model, x, jax.random.split(jax.random.key(0), n))
    np.testing.assert_array_equal(alone, together)
    np.testing.assert_array_equal(alone, own)


# -- mean field ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "graph"), KINDS)
@pytest.mark.usefixtures("x64")
def test_unit_by_unit_mean_field_bounds_the_evidence_and_never_rises(units, graph):
    for seed in range(3):
        model = machine(units, graph, 6, seed=seed, gain=4.0)  # everything is hidden
        assert model.x_space == ()
        start = LayeredPosterior((Factorial(model.units, 3 * jax.random.normal(jax.random.key(seed), (6,))),))

        def step(q, _, model=model):
            return model.refine(q), model.variational_energy(q)

        q, path = quick(lambda q, step=step: jax.lax.scan(step, q, None, length=30))(start)
        assert np.diff(path).max() < 1e-11
        s, energy = table(model)
        assert path[-1] > -logsumexp(-energy)
        p = np.exp(np.asarray(jax.vmap(lambda s, q=q: q.log_prob((s,)))(jnp.asarray(s))))
        close(model.variational_energy(q), p @ (energy + np.log(p)), tolerance=1e-8)


def test_all_at_once_mean_field_would_rise():
    """What unit by unit avoids: two units that repel each other swing for ever."""
    w = np.array([[0.0, -8.0], [-8.0, 0.0]])
    m, energies = np.array([0.9, 0.89]), []
    bound = lambda m: -0.5 * m @ w @ m + np.sum(m * np.log(m) + (1 - m) * np.log1p(-m))  # noqa: E731
    for _ in range(4):
        energies.append(bound(m))
        m = 1 / (1 + np.exp(-(w @ m)))
    assert np.diff(energies).max() > 0.1


# -- learning ------------------------------------------------------------------------------------------


def data(units, n=40, d=3, seed=0):
    x = np.random.default_rng(seed).random((n, d)) < 0.6
    x[:, 1] |= x[:, 0]
    return np.where(x, 1.0, -1.0 if units == "spin" else 0.0).astype(np.float32)


def moments_gap(model, x):
    """−∂/∂(W above the diagonal, b) of mean log p(x): E_model[s sᵀ] − E_data[s sᵀ], and likewise of s."""
    s, energy = table(model)
    p = np.exp(-energy - logsumexp(-energy))
    gaps = []
    for row in x:
        same = (s[:, : len(row)] == row).all(axis=1)
        q = np.where(same, p, 0) / p[same].sum()
        gaps.append((np.einsum("n,ni,nj->ij", p - q, s, s), (p - q) @ s))
    return tuple(np.mean(parts, axis=0) for parts in zip(*gaps, strict=True))


@pytest.mark.parametrize("units", ["bernoulli", "spin"])
@pytest.mark.parametrize("n_hidden", [0, 2])
@pytest.mark.usefixtures("x64")
def test_the_exact_objective_has_the_gradient_of_the_likelihood(units, n_hidden):
    model = machine(units, "dense", n_hidden, n=3 + n_hidden, seed=4)
    x = data(units).astype(np.float64)
    value = lambda m: ExactLikelihood().loss(m, x, None, ())[0]  # noqa: E731
    loss, gradient = quick(eqx.filter_value_and_grad(value))(model)
    wanted, wanted_bias = moments_gap(model, x)
    close(gradient.couplings.weights, np.triu(wanted, 1), tolerance=1e-9)
    close(gradient.units.bias, wanted_bias, tolerance=1e-9)
    close(-loss, likelihood.log_likelihood(model, x, key=jax.random.key(0)).estimate, tolerance=1e-9)
    weights = np.random.default_rng(0).integers(0, 3, len(x)).astype(np.float64)
    weighted = ExactLikelihood().loss(model, x, jnp.asarray(weights / weights.mean()), ())[0]
    close(weighted, ExactLikelihood().loss(model, np.repeat(x, weights.astype(int), axis=0), None, ())[0])


@pytest.mark.usefixtures("x64")
def test_the_sampled_positive_phase_has_the_exact_gradient_on_average():
    model = machine("bernoulli", "dense", 3, n=6, seed=5)
    x = np.repeat(data("bernoulli", 2), 4000, axis=0).astype(np.float64)
    objective = contrastive.cd(1, rounds=30, positive="sampled")
    state = objective.init(model, x, key=jax.random.key(0))
    state = quick(lambda m, s: objective.prepare(m, x, s, key=jax.random.key(1)))(model, state)

    def positive(model):
        return jnp.mean(objective._bound(model, x, None, state))

    found = quick(eqx.filter_grad(positive))(model)
    exact = quick(eqx.filter_grad(lambda m: -jnp.mean(_log_sums(m, x[::4000]))))(model)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True):
        np.testing.assert_allclose(a, b, atol=5 * 0.5 / np.sqrt(8000))
    mean_field = contrastive.cd(1, rounds=30)
    biased = quick(eqx.filter_grad(lambda m: jnp.mean(mean_field._bound(m, x[::4000], None, state))))(model)
    gap = jax.tree.map(lambda a, b: np.abs(a - b).max(), biased, exact)
    assert max(jax.tree.leaves(gap)) > 6 * 0.5 / np.sqrt(8000)  # a gradient of the bound, not of the likelihood


def _log_sums(model, x):
    from latentia.inference.enumeration import log_sum

    return jnp.stack([log_sum(model.clamped(row), "joint") for row in x])


@pytest.mark.parametrize(
    "parameters",
    [
        {"objective": "exact"},
        {"objective": "exact", "n_components": 2},
        {"objective": "pcd", "n_sampler_steps": 3},
        {"objective": "cd", "n_components": 2, "positive": "sampled"},
        {"objective": "ratio_matching"},
        {"objective": "nce", "noise_ratio": 5},
        {"objective": "pcd", "units": "spin", "edges": ((0, 1), (1, 2), (0, 2), (2, 3))},
    ],
    ids=str,
)
def test_learning_finds_the_dependences(parameters):
    units = parameters.get("units", "bernoulli")
    x = data(units, 400, 4)
    options = {"n_epochs": 60, "batch_size": 50, "learning_rate": 0.2, "monitor": None, "random_state": 0}
    fitted = BoltzmannMachine(**{**options, **parameters}).fit(x)
    found = fitted.log_likelihood(x).estimate
    p = (x > 0).mean(axis=0)
    independent = float(np.sum(p * np.log(p) + (1 - p) * np.log1p(-p)))
    counts = np.unique(x, axis=0, return_counts=True)[1] / len(x)
    best = float(counts @ np.log(counts))
    assert independent + 0.05 < found < best + 1e-6
    if parameters["objective"] == "exact":
        assert found > best - 0.06


def test_patterns_with_hidden_units_are_transformed_and_rebuilt():
    x = data("bernoulli", 60, 5)
    fitted = BoltzmannMachine(3, n_epochs=4, random_state=0).fit(x)
    codes = fitted.transform(x[:7])
    assert codes.shape == (7, 3)
    model = to_numpy(fitted.model_)
    w, b = matrix(model), np.asarray(model.units.bias, np.float64)
    close(codes, 1 / (1 + np.exp(-(x[:7] @ w[:5, 5:] + codes @ w[5:, 5:] + b[5:]))), tolerance=1e-4)
    s = np.concatenate([x[:7], codes], axis=1)
    close(fitted.reconstruct(x[:7]), (1 / (1 + np.exp(-(s @ w + b))))[:, :5], tolerance=1e-4)
    assert "reconstruction_error" in fitted.history_[-1]
    with pytest.raises(CapabilityError, match="inverse_transform"):
        fitted.inverse_transform(codes)
    without = BoltzmannMachine(n_epochs=2, random_state=0).fit(x)
    assert "pseudo_likelihood" in without.history_[-1]
    with pytest.raises(CapabilityError, match="no transform"):
        without.transform(x)


def to_numpy(model):
    return jax.tree.map(lambda a: np.asarray(a, np.float64) if eqx.is_inexact_array(a) else a, model)


# -- likelihoods from both sides -----------------------------------------------------------------------


@functools.cache
def ising(side, coupling):
    i, j = grid_edges((side, side), periodic=True).T
    both = (np.concatenate([i, j]), np.concatenate([j, i]))
    w = csr_array((np.full(2 * len(i), coupling), both), shape=(side**2, side**2))
    return BoltzmannMachine.from_couplings(w, units="spin")


@pytest.mark.parametrize("units", ["bernoulli", "spin"])
def test_annealing_brackets_what_enumeration_says(units):
    model = machine(units, "wheel", 2, seed=6)
    exact = likelihood.log_z(model, key=jax.random.key(0), method="exact").estimate
    options = {"n_temperatures": 100, "n_chains": 200, "n_burn_in": 100, "n_steps": 100}
    found = likelihood.log_z(model, key=jax.random.key(0), method="ais", **options)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 0.2
    assert found.estimate == pytest.approx(exact, abs=0.05)


@pytest.mark.parametrize("coupling", [0.3, 0.44, 0.6])
def test_annealing_brackets_kaufmans_log_z_of_the_ising_model(coupling):
    """Above, near and below the critical temperature, where the two signs of the magnetisation part."""
    exact = ising_log_z((16, 16), coupling)
    options = {"n_temperatures": 200, "n_chains": 32, "n_replicas": 8, "n_burn_in": 60, "n_steps": 40}
    found = ising(16, coupling).log_z(**options)
    assert found.lower <= exact <= found.upper
    assert found.upper - found.lower < 12  # with few steps the interval is wide, and says so
    assert found.upper - found.lower < 1 or "wide" in found.details["warning"]


def test_samples_of_the_ising_model_have_the_exact_energy():
    machine = ising(16, 0.3)
    x = machine.sample(400, n_steps=100, random_state=0)
    i, j = grid_edges((16, 16), periodic=True).T
    agreement = (x[:, i] * x[:, j]).sum(axis=1)
    wanted = ising_correlation((16, 16), 0.3)
    assert abs(agreement.mean() - wanted) < 5 * agreement.std() / 20
    assert abs(x.mean()) < 0.1
    assert CRITICAL > 0.3


# -- recall --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("units", "graph"), KINDS)
def test_sweeps_at_zero_temperature_never_raise_the_energy(units, graph):
    model = machine(units, graph, seed=7)
    s, energy = table(model)
    lookup = {tuple(row): e for row, e in zip(s, energy, strict=True)}
    none = jnp.zeros(6, bool)
    settled = np.asarray(quick(jax.vmap(lambda s: model.settle(s, none)))(jnp.asarray(s, jnp.float32)))
    change = np.array([lookup[tuple(row)] for row in settled]) - energy
    assert change.max() < 1e-5
    assert change.min() < -1
    ends = np.asarray(jax.vmap(lambda s: bm.recall(model, s, none, 100).s)(jnp.asarray(s, jnp.float32)))
    for row in np.unique(ends, axis=0):  # no flip of one unit leads further down
        for i in range(6):
            other = row.copy()
            other[i] = sum(model.states) - row[i]
            assert lookup[tuple(other)] > lookup[tuple(row)] - 1e-5


def patterns(n_patterns, n, seed=0):
    return np.random.default_rng(seed).choice([-1.0, 1.0], (n_patterns, n))


def damaged(stored, share, seed=0):
    flips = np.random.default_rng(seed).random(stored.shape) < share
    return np.where(flips, -stored, stored)


def test_hopfield_recalls_few_patterns_and_forgets_many():
    overlap = {}
    for load in (0.05, 0.1, 0.3):
        stored = patterns(round(load * 200), 200)
        memory = BoltzmannMachine.hopfield(stored)
        overlap[load] = float((memory.recall(damaged(stored, 0.05)) * stored).mean())
    assert overlap[0.05] > 0.99
    assert overlap[0.1] > 0.95
    assert overlap[0.3] < 0.7


def test_hopfield_of_zeros_and_ones_is_that_of_spins():
    stored = patterns(3, 30)
    spin, binary = BoltzmannMachine.hopfield(stored), BoltzmannMachine.hopfield((stored + 1) / 2)
    assert (spin.units, binary.units) == ("spin", "bernoulli")
    w = stored.T @ stored / 30
    close(spin.couplings_, w - np.diag(np.diag(w)), tolerance=1e-6)
    x = damaged(stored, 0.2)
    np.testing.assert_array_equal(2 * binary.recall((x + 1) / 2) - 1, spin.recall(x))
    np.testing.assert_array_equal(spin.recall(x), stored)
    gap = binary.free_energy((patterns(20, 30, 1) + 1) / 2) - spin.free_energy(patterns(20, 30, 1))
    close(gap, np.full_like(gap, gap[0]), tolerance=1e-4)


def test_known_entries_stay_and_the_rest_is_recalled_or_drawn():
    stored = patterns(2, 40)
    memory = BoltzmannMachine.hopfield(stored)
    half = np.arange(40) < 30
    start = np.where(half, stored[:1], 1.0)
    np.testing.assert_array_equal(memory.recall(start, mask=half), stored[:1])
    wrong = start.copy()
    wrong[0, 0] *= -1
    held = memory.recall(wrong, mask=half)
    assert held[0, 0] == wrong[0, 0]
    assert (held[0, 1:] == stored[0, 1:]).all()
    given = np.where(half, stored[0], np.nan)[None]
    colder = BoltzmannMachine.from_couplings(10 * memory.couplings_, units="spin")
    drawn = colder.sample(20, given=given, n_steps=20, random_state=0)
    assert (drawn == stored[0]).mean() > 0.99
    with pytest.raises(DataError, match="mask"):
        memory.recall(stored, mask=np.ones(7, bool))
    with pytest.raises(DataError, match="spin"):
        memory.recall((stored + 1) / 2)


def test_hidden_units_take_part_in_recall():
    model = to_double_free(machine("spin", "dense", 3, seed=8))
    estimator = BoltzmannMachine(3, units="spin").adopt(model, {"n_features": 3, "edges": None})
    s, energy = table(model)
    x = np.array(list(itertools.product((-1.0, 1.0), repeat=3)))
    found = estimator.recall(x)
    ends = np.asarray(
        jax.vmap(lambda x: bm.recall(model, x, jnp.zeros(3, bool), 99).s)(jnp.asarray(x, jnp.float32))
    )
    np.testing.assert_array_equal(found, ends[:, :3])
    lookup = {tuple(row): e for row, e in zip(s, energy, strict=True)}
    for row in ends:
        for i in range(6):
            other = row.copy()
            other[i] *= -1
            assert lookup[tuple(other)] > lookup[tuple(row)] - 1e-5


def to_double_free(model):
    return jax.tree.map(lambda a: a.astype(jnp.float32) if eqx.is_inexact_array(a) else a, model)


# -- files and wrong input -----------------------------------------------------------------------------


def test_a_machine_with_edges_is_saved_and_resumed(tmp_path):
    x = data("bernoulli", 60, 4)
    options = {"edges": np.array([[0, 1], [1, 2], [0, 2], [3, 4]]), "n_components": 1, "random_state": 0}
    fitted = BoltzmannMachine(n_epochs=4, **options).fit(x)
    fitted.save(tmp_path / "machine.safetensors")
    loaded = latentia.load(tmp_path / "machine.safetensors")
    assert isinstance(loaded.model_.couplings, SparseCouplings)
    np.testing.assert_array_equal(loaded.couplings_.toarray(), fitted.couplings_.toarray())
    np.testing.assert_array_equal(loaded.transform(x), fitted.transform(x))
    options |= {"n_epochs": 4, "run_dir": tmp_path / "run"}

    def press(event):
        if event.step >= 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        BoltzmannMachine(callbacks=[press], **options).fit(x)
    resumed = BoltzmannMachine(resume=True, **options).fit(x)
    np.testing.assert_array_equal(resumed.couplings_.toarray(), fitted.couplings_.toarray())


def test_sparse_and_dense_couplings_make_the_same_machine():
    w = np.array([[0, 1, -2, 0], [1, 0, 0.5, 0], [-2, 0.5, 0, 1], [0, 0, 1, 0]])
    x = np.array(list(itertools.product((0, 1), repeat=4)))
    b = np.arange(4) / 4
    dense, sparse = (BoltzmannMachine.from_couplings(kind(w), b) for kind in (np.array, csr_array))
    assert isinstance(sparse.model_.couplings, SparseCouplings)
    assert len(sparse.edges) == 4
    close(dense.couplings_, sparse.couplings_.toarray(), tolerance=1e-7)
    close(dense.score_samples(x), sparse.score_samples(x), tolerance=1e-6)
    close(dense.bias_, sparse.bias_)
    close(np.exp(dense.score_samples(x)).sum(), 1.0)


@pytest.mark.parametrize(
    ("call", "error", "why"),
    [
        (lambda: BoltzmannMachine.from_couplings([[0, 1], [2, 0]]), ParameterError, "symmetric"),
        (lambda: BoltzmannMachine.from_couplings(csr_array([[0, 1], [2, 0]])), ParameterError, "symmetric"),
        (lambda: BoltzmannMachine.from_couplings([[1, 1], [1, 0]]), ParameterError, "zero diagonal"),
        (lambda: BoltzmannMachine.from_couplings([[0, np.nan], [np.nan, 0]]), ParameterError, "NaN"),
        (lambda: BoltzmannMachine.from_couplings(np.zeros((2, 3))), ParameterError, "square"),
        (lambda: BoltzmannMachine.from_couplings(np.zeros((2, 2)), [0.0]), ParameterError, "bias"),
        (lambda: BoltzmannMachine.from_couplings(np.zeros((2, 2)), edges=()), ParameterError, "edges follow"),
        (lambda: BoltzmannMachine.from_couplings(np.zeros((2, 2)), n_components=2), ParameterError, "visible"),
        (lambda: BoltzmannMachine.hopfield([[1, 0.5]]), DataError, "patterns"),
        (lambda: BoltzmannMachine.hopfield([[-1, 0, 1]]), DataError, "patterns"),
        (lambda: BoltzmannMachine.hopfield([[np.nan, 1]]), DataError, "patterns"),
        (lambda: BoltzmannMachine.hopfield([1, -1]), DataError, "matrix"),
        (lambda: BoltzmannMachine.hopfield([[1, -1]], units="spin"), ParameterError, "units"),
        (lambda: BoltzmannMachine(edges=[(0, 0)]).fit(data("bernoulli")), ParameterError, "itself"),
        (lambda: BoltzmannMachine(edges=[(0, 3)]).fit(data("bernoulli")), ParameterError, "from 0 to 2"),
        (lambda: BoltzmannMachine(edges=[(0, 1), (1, 0)]).fit(data("bernoulli")), ParameterError, "more than once"),
        (lambda: BoltzmannMachine(units="gaussian").fit(data("bernoulli")), UnknownNameError, "units"),
        (lambda: BoltzmannMachine(positive="neither").fit(data("bernoulli")), UnknownNameError, "positive"),
        (lambda: BoltzmannMachine(-1).fit(data("bernoulli")), ParameterError, "n_components"),
        (lambda: BoltzmannMachine().fit(data("spin")), DataError, "binary units"),
        (lambda: BoltzmannMachine(2, objective="nce").fit(data("bernoulli")), CapabilityError, "FreeEnergy"),
        (
            lambda: BoltzmannMachine(objective="exact").fit(data("bernoulli", 9, 30)),
            ParameterError,
            "states",
        ),
        (lambda: contrastive.pcd(positive="half"), UnknownNameError, "positive phase"),
    ],
)
def test_wrong_input_is_refused(call, error, why):
    with pytest.raises(error, match=why):
        call()


def test_grey_values_are_sampled_or_cut():
    x = np.random.default_rng(0).random((30, 3))
    for binarize in ("sample", "threshold"):
        BoltzmannMachine(1, binarize=binarize, n_epochs=2, random_state=0).fit(x)
    with pytest.raises(DataError, match="binarize"):
        BoltzmannMachine().fit(x)


def test_parallel_tempering_runs_on_a_graph():
    """Replicas have parameters of their own, so that chains and parameters are batched together."""
    model = machine("spin", "odd cycle and a tail", seed=9)
    s, energy = table(model)
    p = np.exp(-energy - logsumexp(-energy))
    sampler = samplers.ParallelTempering.make(4)
    x = jnp.asarray(s[np.random.default_rng(0).choice(64, 2000, p=p)], jnp.float32)
    states = samplers.start(sampler, model, x, key=jax.random.key(0))
    _, states = samplers.run(sampler, model, states, 5, key=jax.random.key(1))
    found = np.asarray(jax.vmap(sampler.visible)(states))
    assert np.abs(found.mean(axis=0) - p @ s).max() < 5 / np.sqrt(2000)
