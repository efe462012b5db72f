"""The deep belief network's estimator: learning, labels, samples, bounds, resuming."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import expit, logsumexp
from sklearn.base import clone

from latentia import DBN
from latentia.core.errors import DataError, ParameterError
from latentia.core.space import enumerate_states
from latentia.energies.belief_net import DBNModel
from latentia.estimator import saving
from latentia.learning import contrastive
from latentia.learning.up_down import up_down
from latentia.likelihood.partly_directed import row_bounds
from latentia.likelihood.precision import batch_to_double, double, to_double

SMALL = {
    "hidden": (5, 4),
    "batch_size": 20,
    "pretraining_epochs": 4,
    "n_epochs": 2,
    "random_state": 0,
}


@pytest.fixture(scope="module")
def data():
    """Noisy copies of four patterns; the label says which pair a row comes from."""
    rng = np.random.default_rng(0)
    patterns = np.array([list(map(int, p)) for p in ("1110000", "1101000", "0000111", "0001011")])
    chosen = rng.integers(0, 4, 200)
    X = np.abs(patterns[chosen] - (rng.random((200, 7)) < 0.03)).astype(float)
    return X, np.where(chosen < 2, "left", "right")


@pytest.fixture(scope="module")
def plain(data):
    return DBN(**SMALL).fit(data[0])


@pytest.fixture(scope="module")
def labelled(data):
    return DBN(**{**SMALL, "pretraining_epochs": 300, "n_epochs": 100}).fit(*data)


def leaves(dbn):
    return [np.asarray(leaf) for leaf in jax.tree.leaves(dbn.model_)]


def exact_log_p(dbn, X):
    """log p(x) by enumerating all latents (and labels)."""
    with double():
        model = to_double(dbn.model_)
        z = batch_to_double(enumerate_states(model.z_space))

        def summed(x):
            return jax.nn.logsumexp(-jax.vmap(lambda *z: model.energy(x, z))(*z))

        def row(x):
            if model.n_labels is None:
                return summed(x)
            return jax.nn.logsumexp(jax.vmap(lambda y: summed((x, y)))(jnp.eye(model.n_labels)[:, None, :]))

        rows = jax.jit(jax.vmap(row))
        states = np.array(list(itertools.product((0.0, 1.0), repeat=X.shape[1])))
        return np.asarray(rows(jnp.asarray(X))) - logsumexp(np.asarray(rows(jnp.asarray(states))))


def test_layers_are_learned_one_after_another_and_then_together(data, plain):
    X, _ = data
    assert isinstance(plain.model_, DBNModel)
    assert [len(h) for h in plain.pretraining_history_] == [4, 4]
    assert {"wake", "sleep", "energy_gap", "reconstruction_error"} <= set(plain.history_[-1])
    assert plain.n_steps_ == 20
    greedy = DBN(**{**SMALL, "n_epochs": 0}).fit(X)
    np.testing.assert_array_equal(greedy.model_.recognition[0].weights, greedy.model_.generative[0].weights.T)
    assert not np.array_equal(plain.model_.recognition[0].weights, plain.model_.generative[0].weights.T)  # untied
    assert greedy.history_ == []
    np.testing.assert_array_equal(leaves(DBN(**SMALL).fit(X))[0], leaves(plain)[0])  # same seed, same bits
    assert not np.array_equal(leaves(DBN(**{**SMALL, "random_state": 1}).fit(X))[0], leaves(plain)[0])
    heavy = DBN(**SMALL).fit(X, sample_weight=1 + 9 * X[:, 0])
    assert heavy.transform(X).mean() != plain.transform(X).mean()


def test_learning_raises_the_exact_likelihood(data, labelled):
    X, y = data
    untrained = clone(labelled).set_params(pretraining_epochs=1, n_epochs=0, learning_rate=1e-6).fit(X, y)
    assert exact_log_p(labelled, X).mean() > exact_log_p(untrained, X).mean() + 0.5


def test_labels_are_learned_and_sampled(data, labelled):
    X, y = data
    assert list(labelled.classes_) == ["left", "right"]
    assert (labelled.predict(X) == y).mean() > 0.95
    p = labelled.predict_proba(X)
    np.testing.assert_allclose(p.sum(1), 1, rtol=1e-12)
    model = labelled.model_
    energies = np.asarray(jax.vmap(lambda x: model.label_energies((x, None)))(jnp.asarray(X[:9], jnp.float32)))
    np.testing.assert_allclose(p[:9, 1] / p[:9, 0], np.exp(energies[:, 0] - energies[:, 1]), rtol=1e-3)
    for label in ("left", "right"):
        drawn = labelled.sample(200, n_steps=100, label=label, random_state=1)
        assert (labelled.predict(drawn) == label).mean() > 0.9
    with pytest.raises(DataError, match="Unknown label"):
        labelled.sample(1, label="middle")


def test_the_discriminative_weight_reaches_the_objective(data):
    X, y = data
    dbn = DBN(**SMALL, discriminative=0.5).fit(X, y)
    assert all(row["label"] > 0 for row in dbn.history_)
    assert "label" not in DBN(**SMALL).fit(X, y).history_[0]
    plain, hybrid = (DBN(**{**SMALL, "n_epochs": 60}, discriminative=d).fit(X, y) for d in (0.0, 5.0))
    chosen = (y[:, None] == hybrid.classes_).astype(float)
    cross = [-np.mean(np.log(np.sum(chosen * dbn.predict_proba(X), axis=1))) for dbn in (plain, hybrid)]
    assert cross[1] < cross[0]


def test_without_labels_nothing_is_predicted(data, plain):
    assert not hasattr(plain, "predict")
    assert not hasattr(DBN(**{**SMALL, "n_epochs": 0}).fit(*data).fit(data[0]), "predict")  # labels are forgotten
    assert not hasattr(DBN(), "predict_proba")
    with pytest.raises(DataError, match="no label units"):
        plain.sample(1, label="left")


def test_codes_are_the_means_of_the_layers(data, plain, labelled):
    X, _ = data
    for dbn in (plain, labelled):
        codes = dbn.transform(X)
        assert codes.shape == (200, 9)
        np.testing.assert_array_equal(codes[:, :5], dbn.transform(X, layer=1))
        np.testing.assert_array_equal(codes[:, 5:], dbn.transform(X, layer=2))
        x = jnp.asarray(X[3], jnp.float32)
        wanted = dbn.model_.means(x if dbn is plain else (x, None))
        np.testing.assert_allclose(codes[3], np.concatenate(wanted), rtol=1e-5)
        assert dbn.reconstruct(X).shape == X.shape
        assert len(dbn.get_feature_names_out()) == 9
    assert np.mean((labelled.reconstruct(X) - X) ** 2) < 0.1
    for layer in (0, 3, "1", 1.0):
        with pytest.raises(ParameterError, match="layer must be an integer from 1 to 2"):
            plain.transform(X, layer=layer)


@pytest.mark.parametrize("visible", ["bernoulli", "gaussian"])
def test_the_way_up_is_a_network_of_sigmoids(data, visible):
    X, y = data
    X = X if visible == "bernoulli" else X + np.random.default_rng(0).normal(size=X.shape)
    parameters = {**SMALL, "visible": visible, "learning_rate": 0.02}
    for dbn in (DBN(**parameters).fit(X), DBN(**parameters).fit(X, y)):
        values = dbn._network_inputs(X)
        found = []
        for weights, biases in dbn._feed_forward():
            values = expit(values @ weights + biases)
            found.append(values)
        np.testing.assert_allclose(found[0], dbn.transform(X, layer=1), rtol=1e-4)
        if not dbn.has_labels:
            np.testing.assert_allclose(found[1], dbn.transform(X, layer=2), rtol=1e-4)
            continue
        at_offset = dbn.model_.top.visible_offset[5:][None, :]
        x = jnp.asarray(X[0], jnp.float32)
        np.testing.assert_allclose(found[1][0], dbn.model_.means((x, at_offset))[1], rtol=1e-4)


def test_fine_tuning_starts_from_the_way_up(data):
    X, y = data
    dbn = DBN(**SMALL).fit(X).finetune(X, y, batch_size=20, dropout=0.0, input_dropout=0.0, learning_rate=0.02)
    assert dbn.accuracy(X, y) > 0.95
    assert dbn.classifier_.weights[0].shape == (7, 5)
    on, off = dbn.latent_switches()
    assert dbn.inverse_transform(on).shape == dbn.inverse_transform(off).shape == (9, 7)


def test_samples_follow_the_exact_marginals(labelled):
    states = np.array(list(itertools.product((0.0, 1.0), repeat=7)))
    p = np.exp(exact_log_p(labelled, states))
    drawn = labelled.sample(4000, random_state=3)
    assert set(np.unique(drawn)) <= {0, 1}
    error = (drawn.mean(0) - p @ states) / np.sqrt(0.25 / 4000)
    assert np.abs(error).max() < 5
    pairs = drawn[:, 0] * drawn[:, 1]
    assert abs(pairs.mean() - p @ (states[:, 0] * states[:, 1])) < 5 * 0.5 / np.sqrt(4000)
    means = labelled.sample(50, n_steps=20, mean=True, random_state=3)
    assert ((means > 0) & (means < 1)).all()
    np.testing.assert_array_equal(
        labelled.sample(5, n_steps=20, random_state=3), labelled.sample(5, n_steps=20, random_state=3)
    )


@pytest.mark.parametrize("which", ["plain", "labelled"])
def test_the_bound_lies_below_the_exact_likelihood_and_reaches_it(which, data, request):
    dbn, X = request.getfixturevalue(which), data[0][:300]
    exact = exact_log_p(dbn, X)
    bounds = {n: dbn.log_likelihood(X, n_samples=n) for n in (2, 400)}
    assert dbn.log_z().is_exact
    for found in bounds.values():
        assert found.lower <= found.estimate <= found.upper
        assert "lower bound" in found.method
    assert bounds[2].estimate < bounds[400].estimate + 5 * bounds[2].stderr
    assert 0 < bounds[400].stderr < bounds[2].stderr < 0.1
    assert abs(bounds[400].estimate - exact.mean()) < 5 * bounds[400].stderr + 0.005
    each = dbn.score_samples(X, n_samples=400)
    np.testing.assert_allclose(each, exact, atol=0.3)
    np.testing.assert_allclose(dbn.score_samples(X[::-1][:7], n_samples=400), each[::-1][:7], rtol=1e-9)
    assert dbn.score(X) == pytest.approx(exact.mean(), abs=0.05)


def test_the_standard_error_of_the_bound_is_that_of_many_runs(plain, data):
    """Equal rows err alike, and that is accounted for."""
    x = jnp.asarray(np.repeat(data[0][:3], [1, 5, 20], axis=0), jnp.float32)
    runs = [row_bounds(plain.model_, x, key=jax.random.key(seed), n_samples=50) for seed in range(60)]
    spread = np.std([bounds.mean() for bounds, _ in runs])
    assert np.mean([stderr for _, stderr in runs]) == pytest.approx(spread, rel=0.35)


def test_a_network_of_one_layer_has_an_exact_bound(data):
    X, y = data
    dbn = DBN(**{**SMALL, "hidden": (4,)}).fit(X, y)
    found = dbn.log_likelihood(X, n_samples=2)
    assert found.estimate == pytest.approx(exact_log_p(dbn, X).mean(), rel=1e-6)
    assert found.stderr == pytest.approx(0, abs=1e-9)
    with pytest.raises(ParameterError, match="n_samples"):
        dbn.log_likelihood(X, n_samples=1)
    assert dbn.sample(3, n_steps=5, label="left").shape == (3, 7)


@pytest.mark.parametrize(
    ("visible", "convert"),
    [
        ("gaussian", lambda X: 3 * X + np.random.default_rng(1).normal(size=X.shape)),
        ("spin", lambda X: 2 * X - 1),
        ("categorical", lambda X: X + (X[:, :1] * X)),
    ],
)
def test_other_visible_units(data, visible, convert):
    X, y = convert(data[0]), data[1]
    dbn = DBN(**{**SMALL, "visible": visible, "learning_rate": 0.02}).fit(X, y)
    assert dbn.transform(X).shape == (200, 9)
    assert dbn.sample(4, n_steps=5).shape == (4, 7)
    assert np.isfinite(dbn.log_likelihood(X[:20], n_samples=5).estimate)
    assert dbn.sample(4, n_steps=5, mean=True).shape == (4, 21 if visible == "categorical" else 7)


def test_grey_values_are_thrown_anew(data):
    X, y = data
    grey = 0.9 * X + 0.05
    with pytest.raises(DataError, match="binarize"):
        DBN(**SMALL).fit(grey)
    dbn = DBN(**SMALL, binarize="sample").fit(grey, y)
    assert dbn.predict(grey).shape == (200,)


@pytest.mark.parametrize("objective", ["cd", "tempering"])
def test_other_objectives(data, objective):
    X, y = data
    dbn = DBN(**SMALL, objective=objective, k=2, n_replicas=3).fit(X, y)
    assert np.isfinite(dbn.transform(X)).all()
    assert dbn._chains() is not None


def test_an_objective_without_chains_is_refused(data):
    with pytest.raises(ParameterError, match="contrastive"):
        DBN(**SMALL, objective=up_down()).fit(data[0])
    with pytest.raises(ParameterError, match="at least 1"):
        DBN(**{**SMALL, "hidden": ()}).fit(data[0])
    dbn = DBN(**SMALL, objective=contrastive.cd(2)).fit(data[0])
    assert dbn.n_steps_ == 20


def test_a_run_resumes_to_the_same_bits(data, labelled, tmp_path):
    X, y = data
    folder = tmp_path / "run"

    def interrupted(event):
        if event.step == 20 and "wake" in event.metrics:
            raise KeyboardInterrupt

    parameters = {**SMALL, "n_epochs": 4}
    with pytest.raises(KeyboardInterrupt):
        DBN(**parameters, run_dir=folder, callbacks=[interrupted]).fit(X, y)
    events = []
    again = DBN(**parameters, run_dir=folder, resume=True, callbacks=[events.append]).fit(X, y)
    assert [event.step for event in events] == [30, 40]
    for a, b in zip(leaves(again), leaves(DBN(**parameters).fit(X, y)), strict=True):
        np.testing.assert_array_equal(a, b)
    assert (folder / "model.safetensors").is_file()
    assert (folder / "pretraining" / "stage-2" / "metrics.jsonl").is_file()


def test_files_bring_back_the_same_network(data, labelled, tmp_path):
    labelled.save(tmp_path / "dbn.safetensors")
    loaded = saving.load(tmp_path / "dbn.safetensors")
    np.testing.assert_array_equal(loaded.transform(data[0]), labelled.transform(data[0]))
    np.testing.assert_array_equal(loaded.predict(data[0]), labelled.predict(data[0]))
    greedy = DBN(**{**SMALL, "n_epochs": 0}, run_dir=tmp_path / "run").fit(*data)
    loaded = saving.load(tmp_path / "run" / "model.safetensors")
    np.testing.assert_array_equal(loaded.transform(data[0]), greedy.transform(data[0]))


def test_more_rows_go_on_from_the_model_so_far(data):
    X, y = data
    dbn = DBN(**SMALL).fit(X, y)
    before = leaves(dbn)
    dbn.partial_fit(X[:40], y[:40])
    assert any(not np.array_equal(a, b) for a, b in zip(before, leaves(dbn), strict=True))
    assert dbn.predict(X).shape == (200,)


def test_early_stopping_keeps_the_best(data):
    X, _ = data
    dbn = DBN(**{**SMALL, "n_epochs": 30, "early_stopping": True, "patience": 2}).fit(X)
    scores = [row["validation_score"] for row in dbn.history_]
    assert len(scores) < 30 or scores[-1] <= max(scores)
