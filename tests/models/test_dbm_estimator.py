"""The deep Boltzmann machine's estimator: learning, codes, samples, labels, files, resuming, wrong input."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import chi_square
from layered_machines import free, machine, numpy_table, states
from scipy import stats
from scipy.special import logsumexp

import latentia
from latentia import DBM
from latentia.core.errors import DataError, ParameterError, RunFolderError, UnknownNameError
from latentia.inference import infer_means
from latentia.models.dbm import Copies
from latentia.ops.examples import Examples

pytestmark = pytest.mark.usefixtures("hasty")

N = 6
STATES = np.array(list(itertools.product((0.0, 1.0), repeat=N)))
PATTERNS = np.array([list(map(int, p)) for p in ("111000", "110100", "000111", "001011")])
SMALL = {
    "hidden": (4, 3),
    "batch_size": 20,
    "n_epochs": 2,
    "n_sampler_steps": 1,
    "monitor": None,
    "random_state": 0,
}
LONG = {**SMALL, "n_epochs": 150, "learning_rate": 0.3}


@pytest.fixture(scope="module")
def data():
    """Noisy copies of four patterns; the label says which pair a row comes from."""
    rng = np.random.default_rng(0)
    chosen = rng.integers(0, 4, 200)
    X = np.abs(PATTERNS[chosen] - (rng.random((200, N)) < 0.05)).astype(float)
    return X, np.where(chosen < 2, "left", "right")


@pytest.fixture(scope="module")
def plain(data):
    return DBM(**LONG).fit(data[0])


@pytest.fixture(scope="module")
def labelled(data):
    return DBM(**LONG).fit(*data)


def bits(dbm):
    return [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(dbm.model_)]


def exact(dbm, X):
    return dbm.log_likelihood(X, method="exact").estimate


def adopted(sizes=(4, 3, 2), **options):
    """An estimator around a machine at random parameters, labels "a", "b" … if there are any."""
    with jax.enable_x64(False):
        model = machine(sizes, **options)
    blueprint = {"n_features": sizes[0], "n_states": 3 if options.get("visible") == "categorical" else None}
    if options.get("n_labels"):
        blueprint["classes"] = list("abcdefgh")[: options["n_labels"]]
    dbm = DBM(hidden=sizes[1:], visible=options.get("visible", "bernoulli"), random_state=0)
    built = dbm.build(blueprint)
    assert jax.tree.structure(built) == jax.tree.structure(model)  # edges and all
    assert [leaf.shape for leaf in jax.tree.leaves(built)] == [leaf.shape for leaf in jax.tree.leaves(model)]
    return dbm.adopt(model, blueprint)


# -- the network of a classifier -------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize(("sizes", "n_labels"), [((4, 3, 2), None), ((4, 3, 2), 3), ((4, 3, 2, 2), None)])
def test_the_network_before_fine_tuning_is_some_rounds_of_mean_field(sizes, n_labels, rounds):
    dbm = adopted(sizes, n_labels=n_labels, gain=4.0).set_params(finetune_rounds=rounds)
    model, first = dbm.model_, len(dbm.model_.visible)
    offsets, biases = ([np.asarray(a) for a in b] for b in (model.offsets, [h.bias for h in model.hidden]))
    X = np.random.default_rng(0).integers(0, 2, (5, sizes[0])).astype(float)
    means = [X] + [np.broadcast_to(o, (5, o.size)) for o in offsets[1:]]  # what is not known stands at its offset

    def update(layer):
        field = biases[layer - first] + np.zeros((5, 1))
        for weights, (low, high) in zip(model.weights, model.edges, strict=True):
            if high == layer:
                field = field + (means[low] - offsets[low]) @ np.asarray(weights)
            if low == layer:
                field = field + (means[high] - offsets[high]) @ np.asarray(weights).T
        means[layer] = 1 / (1 + np.exp(-field))

    for _ in range(rounds - 1):
        update(first)
        update(first + 1)
    for layer in range(first, first + len(dbm.hidden)):
        # On its last way up, a layer but the lowest hears nothing from above it.
        if layer > first and layer + 1 < len(means):
            means[layer + 1] = np.broadcast_to(offsets[layer + 1], (5, offsets[layer + 1].size))
        update(layer)
    layers = dbm._feed_forward()
    values = inputs = dbm._network_inputs(X)
    np.testing.assert_array_equal(inputs, X)
    for number, (weights, bias) in enumerate(layers):
        values = np.concatenate([inputs, values], axis=1) if 0 < number < 2 * rounds and number % 2 == 0 else values
        values = 1 / (1 + np.exp(-(values @ weights + bias)))
    assert len(layers) == len(dbm.hidden) + 2 * (rounds - 1)
    np.testing.assert_allclose(values, means[-1], atol=1e-5)
    assert np.std(values, axis=0).max() > 0.01


# -- learning --------------------------------------------------------------------------------------------


def independent(X):
    """The mean log-likelihood of the best model without couplings."""
    p = X.mean(0)
    return float(np.sum(p * np.log(p) + (1 - p) * np.log(1 - p)))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"objective": "cd", "n_sampler_steps": 3},
        {"objective": "tempering", "n_replicas": 4, "n_chains": 20},
        {"hidden": (4, 3, 3), "pretraining_epochs": 20, "n_epochs": 100, "learning_rate": 0.1},
        {"centring": 0.0, "n_epochs": 300},
    ],
    ids=lambda options: "-".join(map(str, options)) or "defaults",
)
def test_learning_finds_most_of_the_structure_in_the_data(data, options, request):
    X, _ = data
    rate = np.array([0.95 ** (N - d) * 0.05**d for d in range(N + 1)])
    distance = np.abs(X[:, None] - PATTERNS).sum(-1).astype(int)
    source = float(np.mean(np.log(rate[distance].mean(1))))  # what the data were drawn from
    assert source > independent(X) + 0.8
    dbm = DBM(**{**LONG, **options}).fit(X) if options else request.getfixturevalue("plain")
    assert exact(dbm, X) > 0.3 * independent(X) + 0.7 * source


def test_learning_with_real_and_categorical_data():
    rng = np.random.default_rng(1)
    chosen = PATTERNS[rng.integers(0, 4, 200)][:, :4]
    X = 10.0 + 5.0 * chosen + rng.normal(size=(200, 4))
    before = float(np.sum(-0.5 * np.log(2 * np.pi * np.e * X.var(0))))  # the best independent normal columns
    dbm = DBM(**{**LONG, "visible": "gaussian", "learning_rate": 0.03, "n_epochs": 300}).fit(X)
    assert exact(dbm, X) > before + 1.0
    x = chosen + (rng.random((200, 4)) < 0.2)  # 0, 1 and 2
    p = np.stack([(x == s).mean(0) for s in range(3)])
    dbm = DBM(**{**LONG, "visible": "categorical"}).fit(x)
    assert exact(dbm, x) > float(np.sum(p * np.log(np.maximum(p, 1e-9)))) + 0.5
    assert dbm.blueprint_["n_states"] == 3


def test_labels_are_learned_together_with_the_data(data, labelled):
    X, y = data
    assert labelled.classes_.tolist() == ["left", "right"]
    assert (labelled.predict(X) == y).mean() > 0.95
    assert labelled.accuracy(X, y) == (labelled.predict(X) == y).mean()
    assert exact(labelled, X) > independent(X) + 0.5
    np.testing.assert_allclose(labelled.predict_proba(X).sum(1), 1, rtol=1e-6)
    order = DBM(**SMALL).fit(X, np.where(y == "left", 7, 3)).classes_
    assert order.tolist() == [3, 7]


def test_pretraining_is_a_good_start(data):
    X, _ = data
    short = {**LONG, "n_epochs": 10}
    with_it = DBM(**short, pretraining_epochs=20).fit(X)
    assert exact(with_it, X) > exact(DBM(**short).fit(X), X) + 0.7
    labels = DBM(**short, pretraining_epochs=2).fit(*data)  # labels join after the stages
    assert labels.model_.edges == ((0, 2), (2, 3), (1, 3))


def test_every_stage_has_the_copies_that_its_place_asks_for(data):
    X, _ = data
    dbm = DBM(**{**SMALL, "hidden": (4, 3, 2), "pretraining_epochs": 3})
    model = dbm.build({"n_features": N})
    rows = [X.astype(np.float32), np.full((9, 4), 0.3, np.float32), np.full((9, 3), 0.3, np.float32)]
    stages = [dbm._stage(model, i, None)(rows[i], jax.random.key(0)) for i in range(3)]
    assert [stage.model.copies for stage in stages] == [(2, 1), (2, 2), (1, 2)]
    assert [stage.model.weights.shape for stage in stages] == [(6, 4), (4, 3), (3, 2)]
    assert [stage.n_steps for stage in stages] == [30, 3, 3]
    x = stages[0].prepare(jnp.asarray(rows[0]), key=jax.random.key(1))
    for copy in x:  # data as they are, the same in all copies
        np.testing.assert_array_equal(copy, X)
    thrown = stages[1].prepare(jnp.asarray(np.full((4000, 4), 0.3, np.float32)), key=jax.random.key(1))
    np.testing.assert_array_equal(*thrown)  # activities are thrown, once for both copies
    assert set(np.unique(thrown[0])) == {0.0, 1.0}
    assert abs(np.mean(thrown[0]) - 0.3) < 5 * np.sqrt(0.21 / 16000)
    assert isinstance(stages[2].prepare, Copies)
    assert stages[2].prepare(jnp.asarray(rows[2]), key=jax.random.key(1)).shape == (9, 3)


@pytest.mark.parametrize("objective", ["pcd", "cd", "tempering"])
def test_objectives_by_name_get_the_numbers_of_the_estimator(objective):
    numbers = {"n_sampler_steps": 3, "rounds": 7, "n_replicas": 4, "n_chains": 9}
    dbm = DBM(**{**SMALL, **numbers, "objective": objective})
    found = dbm._learner(dbm._plan(100)).objective
    assert (found.n_steps, found.inference.n_rounds, found.inference.tolerance) == (3, 7, 0.0)
    assert found.n_chains == (None if objective == "cd" else 9)
    assert objective != "tempering" or found.sampler.betas.shape == (4,)


def test_heavy_rows_pull_the_marginals(data):
    X, _ = data
    weights = 1 + 9 * X[:, 0]
    dbm = DBM(**LONG).fit(X, sample_weight=weights)
    log_p = -free(dbm.model_, STATES)
    p = np.exp(log_p - logsumexp(log_p))
    wanted = np.average(X, weights=weights, axis=0)
    assert abs(wanted - X.mean(0)).max() > 0.3
    np.testing.assert_allclose(p @ STATES, wanted, atol=0.08)


def test_partial_fit_goes_on_from_where_it_was(data):
    X, _ = data
    dbm = DBM(**{**SMALL, "learning_rate": 0.3})
    scores = []
    for _ in range(60):
        dbm.partial_fit(X)
        scores.append(dbm.n_steps_)
    assert set(scores) == {10}  # one pass at a time
    assert exact(dbm, X) > exact(DBM(**{**SMALL, "n_epochs": 1}).fit(X), X) + 0.5
    once = DBM(**SMALL).partial_fit(X)
    chains = jax.tree.leaves(once._state.objective.chains)
    again = once.partial_fit(X)
    moved = jax.tree.leaves(again._state.objective.chains)
    assert any(not np.array_equal(a, b) for a, b in zip(chains, moved, strict=True))


def test_partial_fit_knows_labels_by_their_names(data):
    X = data[0][:60]
    y = np.array(list("abc") * 20)
    dbm = DBM(**SMALL).partial_fit(X, y)
    later = y != "a"
    rows = Examples(X[later])
    learned = dbm._to_learn(rows, dbm._more_targets(rows, y[later]), dbm.model_.x_space)
    assert learned.parts.label[:4].tolist() == [1, 2, 1, 2]
    assert dbm._more_targets(Examples(X[:1]), ["c"]).tolist() == [2]  # one class is enough to go on with
    with pytest.raises(DataError, match="'z'"):
        dbm.partial_fit(X, np.where(later, y, "z"))
    with pytest.raises(DataError, match="label"):
        dbm.partial_fit(X)
    with pytest.raises(DataError, match="label"):
        DBM(**SMALL).partial_fit(X).partial_fit(X, y)


def test_the_same_seed_gives_the_same_bits(data):
    X, y = data
    one, other = (DBM(**SMALL, pretraining_epochs=1).fit(X, y) for _ in range(2))
    assert bits(one) == bits(other)
    assert bits(one) != bits(DBM(**{**SMALL, "random_state": 1}, pretraining_epochs=1).fit(X, y))


# -- use -------------------------------------------------------------------------------------------------


def test_codes_are_mean_field_activities_layer_by_layer(data, plain, labelled):
    X, _ = data
    for dbm in (plain, labelled):
        codes = dbm.transform(X)
        assert codes.shape == (200, 7)
        np.testing.assert_array_equal(codes[:, :4], dbm.transform(X, layer=1))
        np.testing.assert_array_equal(codes[:, 4:], dbm.transform(X, layer=np.int64(2)))
        x = jnp.asarray(X[3], jnp.float32)
        wanted = infer_means(dbm.model_, x if dbm is plain else (x, None))
        np.testing.assert_allclose(codes[3], np.concatenate(wanted), atol=1e-5)
        assert len(dbm.get_feature_names_out()) == 7
    deep, x = adopted((3, 2, 2, 2), seed=1), states(adopted((3, 2, 2, 2)).model_.x_space)
    for layer, columns in ((1, slice(0, 2)), (2, slice(2, 4)), (3, slice(4, 6))):
        np.testing.assert_array_equal(deep.transform(x, layer=layer), deep.transform(x)[:, columns])
    assert np.mean((plain.reconstruct(X) - X) ** 2) < 0.5 * np.mean((X.mean(0) - X) ** 2)
    np.testing.assert_allclose(plain.reconstruct(X), plain.inverse_transform(plain.transform(X)))


def visible_table(dbm):
    """All x, and p(x, y) of the estimator's machine with a column per label (one column without labels)."""
    model = dbm.model_
    x = states(model.x_space if not dbm.has_labels else model.x_space[0])
    if not dbm.has_labels:
        log_p = -free(model, x)[:, None]
    else:
        classes = states(model.x_space[1])
        log_p = np.stack([-free(model, (x, np.repeat(c[None], len(x), axis=0))) for c in classes], axis=1)
    return x, np.exp(log_p - logsumexp(log_p))


def test_scores_are_bounds_on_the_exact_likelihood(data, plain, labelled):
    X, _ = data
    rows = (X[:20] @ 2 ** np.arange(N)[::-1]).astype(int)
    for dbm in (plain, labelled):
        points, p = visible_table(dbm)
        np.testing.assert_array_equal(points[rows], X[:20])
        wanted = np.log(p.sum(1))[rows]
        each = dbm.score_samples(X[:20])
        assert (each < wanted + 1e-4).all()
        assert (each > wanted - 0.7).all()
        np.testing.assert_allclose(exact(dbm, X[:20]), wanted.mean(), atol=1e-5)
        np.testing.assert_allclose(-dbm.free_energy(X[:20]) - dbm.log_z().estimate, each, atol=1e-4)


def counted(values, points):
    table = {row.tobytes(): i for i, row in enumerate(np.ascontiguousarray(points))}
    found = [table[row.tobytes()] for row in np.ascontiguousarray(values.astype(np.float64))]
    return np.bincount(found, minlength=len(points))


def test_free_samples_follow_the_exact_distribution():
    for dbm in (adopted(seed=1), adopted(n_labels=2, seed=1)):
        x, p = visible_table(dbm)
        drawn = dbm.sample(6000, n_steps=60)
        assert drawn.shape == (6000, 4)
        assert chi_square(counted(drawn, x), p.sum(1)) > 1e-5
        assert chi_square(counted(drawn, x), np.full(16, 1 / 16)) < 1e-5  # the test has the power to fail


@pytest.mark.parametrize("n_labels", [None, 3])
def test_given_entries_stay_and_the_others_follow_their_conditional(n_labels):
    dbm = adopted(n_labels=n_labels, seed=2)
    x, p = visible_table(dbm)
    given = np.array([[1.0, np.nan, 0.0, np.nan]])
    drawn = dbm.sample(6000, n_steps=60, given=given)
    assert (drawn[:, [0, 2]] == [1, 0]).all()
    same = (x[:, [0, 2]] == [1, 0]).all(1)
    assert chi_square(counted(drawn, x[same]), p[same].sum(1)) > 1e-5
    again = dbm.sample(6000, n_steps=60, given=np.nan_to_num(given), mask=np.array([True, False, True, False]))
    np.testing.assert_array_equal(again, drawn)
    means = dbm.sample(6000, n_steps=60, given=given, mean=True)
    assert (means[:, [0, 2]] == [1, 0]).all()
    wanted = p[same].sum(1) @ x[same] / p[same].sum()
    np.testing.assert_allclose(means.mean(0), wanted, atol=5 * 0.5 / np.sqrt(6000))
    assert len(np.unique(means[:, 1])) > 3  # means, not draws


@pytest.mark.parametrize("sizes", [(4, 3, 2), (3, 2, 2, 2)])
def test_samples_for_a_label_follow_p_of_x_given_the_label(sizes):
    dbm = adopted(sizes, n_labels=3, seed=3, gain=4.0)
    x, p = visible_table(dbm)
    drawn = {label: dbm.sample(6000, n_steps=200, label=label) for label in "abc"}
    for code, label in enumerate("abc"):
        assert drawn[label].shape == (6000, sizes[0])
        assert chi_square(counted(drawn[label], x), p[:, code]) > 1e-5
    assert chi_square(counted(drawn["a"], x), p[:, 1]) < 1e-3  # labels make a difference
    given = np.full((2, sizes[0]), np.nan)
    given[:, 0] = [0.0, 1.0]
    drawn = dbm.sample(3000, n_steps=200, label="b", given=given)  # a label and some of the data
    assert (drawn[:, 0] == np.repeat([0.0, 1.0], 3000)).all()
    for value in (0.0, 1.0):
        same = x[:, 0] == value
        assert chi_square(counted(drawn[drawn[:, 0] == value], x[same]), p[same, 1]) > 1e-5
    masked = dbm.sample(3000, n_steps=200, label="b", given=np.nan_to_num(given), mask=~np.isnan(given))
    np.testing.assert_array_equal(masked, drawn)


def test_predicted_probabilities_are_the_exact_ones_up_to_mean_field():
    for seed in (0, 1, 3):
        dbm = adopted((4, 3, 2), n_labels=3, seed=seed, gain=4.0)
        x, p = visible_table(dbm)
        wanted = p / p.sum(1, keepdims=True)
        assert np.ptp(wanted, axis=0).max() > 0.1  # the data matter
        np.testing.assert_allclose(dbm.predict_proba(x), wanted, atol=0.06)
        clear = np.diff(np.sort(wanted, axis=1)[:, -2:])[:, 0] > 0.06
        assert clear.sum() >= 6
        np.testing.assert_array_equal(dbm.predict(x)[clear], dbm.classes_[np.argmax(wanted, axis=1)][clear])
    weak = adopted((4, 3, 2), n_labels=3, seed=4, gain=0.02)
    x, p = visible_table(weak)
    np.testing.assert_allclose(weak.predict_proba(x), p / p.sum(1, keepdims=True), atol=2e-5)


def test_real_visibles_are_filled_in_from_their_conditional():
    """Two real columns, one of them given: the other one's mean and variance by enumerating h."""
    dbm = adopted((2, 3, 2), visible="gaussian", seed=5)
    model = dbm.model_
    drawn = dbm.sample(6000, n_steps=60, given=np.array([[0.7, np.nan]]))
    np.testing.assert_allclose(drawn[:, 0], 0.7, rtol=1e-6)
    line = np.linspace(-15, 15, 3001)
    table = -numpy_table(model, np.stack([np.full_like(line, np.float32(0.7)), line], axis=1))
    p = np.exp(logsumexp(table, axis=1))
    p /= p.sum()
    mean, variance = p @ line, p @ line**2 - (p @ line) ** 2
    assert abs(drawn[:, 1].mean() - mean) < 5 * np.sqrt(variance / 6000)
    assert 0.9 < drawn[:, 1].var() / variance < 1.1
    grid = np.searchsorted(np.cumsum(p), np.linspace(0, 1, 11)[1:-1])
    assert stats.chisquare(np.histogram(drawn[:, 1], [-np.inf, *line[grid], np.inf])[0]).pvalue > 1e-5


# -- files and folders -----------------------------------------------------------------------------------


def test_saved_machines_come_back_bit_for_bit(data, labelled, tmp_path):
    X, _ = data
    labelled.save(tmp_path / "dbm.safetensors")
    back = latentia.load(tmp_path / "dbm.safetensors")
    assert bits(back) == bits(labelled)
    assert back.classes_.tolist() == ["left", "right"]
    assert tuple(back.hidden) == (4, 3)
    for method in ("transform", "predict_proba", "free_energy", "reconstruct", "predict"):
        np.testing.assert_array_equal(getattr(back, method)(X), getattr(labelled, method)(X))
    np.testing.assert_array_equal(
        back.sample(5, n_steps=5, label="left"), labelled.sample(5, n_steps=5, label="left")
    )


class Interrupt:
    """Raises at the n-th look of the host, counted over all stages."""

    def __init__(self, n):
        self.left = n

    def __call__(self, event):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("labels", [False, True])
def test_an_interrupted_run_resumes_to_the_same_bits(data, labels, tmp_path):
    """Three looks in each of two stages and three in the joint training: interrupted in every one of the nine."""
    X, y = data
    settings = {**SMALL, "pretraining_epochs": 3, "n_epochs": 3}
    looks = []
    whole = DBM(**settings, callbacks=[lambda event: looks.append(event.step)]).fit(X, y if labels else None)
    assert looks == [10, 20, 30] * 3
    for n in (1, 3, 5, 8) if labels else (2, 4, 6, 7):
        folder = tmp_path / str(n)
        with pytest.raises(KeyboardInterrupt):
            DBM(**settings, run_dir=folder, callbacks=[Interrupt(n)]).fit(X, y if labels else None)
        said = []
        resumed = DBM(
            **settings, run_dir=folder, resume=True, callbacks=[lambda event, s=said: s.append(event.step)]
        )
        resumed.fit(X, y if labels else None)
        assert bits(resumed) == bits(whole)
        assert said == looks[n:]  # nothing is done twice
        back = latentia.load(folder / "model.safetensors")
        assert bits(back) == bits(whole)


def test_a_finished_run_that_is_resumed_is_the_same(data, tmp_path):
    X, _ = data
    settings = {**SMALL, "pretraining_epochs": 1, "run_dir": tmp_path / "run"}
    done = DBM(**settings).fit(X)
    assert bits(DBM(**settings, resume=True).fit(X)) == bits(done)
    with pytest.raises(RunFolderError, match="resume=True"):
        DBM(**settings).fit(X)


@pytest.mark.parametrize("pretraining_epochs", [0, 1])
def test_a_run_of_another_shape_is_not_resumed(data, pretraining_epochs, tmp_path):
    X, y = data
    settings = {**SMALL, "pretraining_epochs": pretraining_epochs, "run_dir": tmp_path / "run"}
    DBM(**settings).fit(X)
    for other in ({"hidden": (4, 2)}, {"hidden": (4, 3, 2)}, {"random_state": 1}, {"learning_rate": 0.2}):
        with pytest.raises(RunFolderError, match="other parameters or other data"):
            DBM(**{**settings, **other}, resume=True).fit(X)
    with pytest.raises(RunFolderError, match="other parameters or other data"):
        DBM(**settings, resume=True).fit(1 - X)
    with pytest.raises(RunFolderError, match="other parameters or other data"):
        DBM(**settings, resume=True).fit(X, y)


# -- wrong input -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("hidden", [(5,), 5, "ab", (0, 3), (), (2.5, 3), (True, 3), None])
def test_wrong_sizes_are_explained(data, hidden):
    with pytest.raises(ParameterError, match="hidden must be a tuple of at least 2 positive integers, got"):
        DBM(**{**SMALL, "hidden": hidden}).fit(data[0])


def test_unknown_and_unfit_visibles_are_explained(data):
    X, _ = data
    with pytest.raises(UnknownNameError, match="Unknown visible 'rectified'.*Known: bernoulli, categorical"):
        DBM(**SMALL, visible="rectified").fit(X)
    with pytest.raises(DataError, match="not 0 or 1.*binarize"):
        DBM(**SMALL).fit(X + 0.5)
    with pytest.raises(DataError, match=r"-1 or \+1"):
        DBM(**SMALL, visible="spin").fit(X)
    for name, value in (("rounds", 0), ("pretraining_epochs", -1), ("weight_scale", -1.0), ("n_sampler_steps", 0)):
        with pytest.raises(ParameterError, match=name):
            DBM(**{**SMALL, name: value}).fit(X)


@pytest.mark.parametrize(
    ("y", "message"),
    [
        (np.zeros(3), r"one label per row of X \(200\), got 3"),
        (np.zeros(200), "two classes"),
        (np.where(np.arange(200) % 7 == 3, np.nan, np.arange(200) % 2), "no label in 29 rows, first in row 3"),
        (np.array([None, "a"] * 100, object), "no label in 100 rows, first in row 0"),
        (np.random.default_rng(0).normal(size=200), "class labels.*continuous"),
        (np.zeros((200, 2)), "1d|shape"),
    ],
)
def test_wrong_labels_are_explained(data, y, message):
    with pytest.raises(ValueError, match=message):
        DBM(**SMALL).fit(data[0], y)


def test_wrong_uses_are_explained(data, plain, labelled):
    X, _ = data
    for layer in (0, 3, "a", 1.0, -1, True):
        with pytest.raises(ParameterError, match="layer must be an integer from 1 to 2, got"):
            plain.transform(X, layer=layer)
    for use in ("transform", "reconstruct", "score_samples", "free_energy"):
        with pytest.raises(ValueError, match="not fitted"):
            getattr(DBM(), use)(X)
        with pytest.raises(ValueError, match="5 features.*expecting 6"):
            getattr(plain, use)(X[:, :5])
    with pytest.raises(ValueError, match="not fitted"):
        DBM().transform(X, layer=1)
    with pytest.raises(ValueError, match="not fitted"):
        DBM().sample(1)
    with pytest.raises(DataError, match="no label units.*label='left'.*fit\\(X, y\\)"):
        plain.sample(1, label="left")
    with pytest.raises(DataError, match="Unknown label 'middle'.*'left', 'right'"):
        labelled.sample(1, label="middle")
    assert not hasattr(plain, "predict")
    with pytest.raises(AttributeError, match="cannot predict labels yet.*finetune"):
        plain.predict(X)


@pytest.mark.parametrize("label", [None, "left"])
@pytest.mark.parametrize(
    ("given", "mask", "message"),
    [
        (np.zeros((2, 5)), None, "6 columns"),
        (np.zeros(6), None, "6 columns"),
        (np.zeros((0, 6)), None, "at least one row"),
        (np.zeros((2, 6)), np.ones((3, 6), bool), "mask must have shape"),
        (np.zeros((2, 6)), np.ones(5, bool), "mask must have shape"),
        (np.zeros((2, 6)), np.ones((2, 6)), "boolean"),
        (np.full((2, 6), np.nan), np.ones((2, 6), bool), "NaN or infinity"),
        (np.full((2, 6), 0.5), np.arange(6) < 3, "binary units"),
        (None, np.ones((2, 6), bool), "pass given too"),
        (np.zeros((2, 6)), np.ones((2, 6), bool), "everything is known"),
    ],
)
def test_wrong_masks_are_explained(labelled, label, given, mask, message):
    with pytest.raises(DataError, match=message):
        labelled.sample(1, given=given, mask=mask, label=label, n_steps=1)


def test_a_mask_that_knows_nothing_needs_a_label(labelled):
    nothing = {"given": np.zeros((1, N)), "mask": np.zeros(N, bool), "n_steps": 1}
    with pytest.raises(DataError, match="nothing is known"):
        labelled.sample(1, **nothing)
    np.testing.assert_array_equal(
        labelled.sample(9, **nothing, label="left"), labelled.sample(9, n_steps=1, label="left")
    )
