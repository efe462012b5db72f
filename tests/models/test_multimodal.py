"""The multimodal machine: structure, missing modalities against enumeration, retrieval, labels, wrong input."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from conformance_oracles import perturbed
from scipy.special import logsumexp

import latentia
from latentia import MultimodalDBM
from latentia.core.errors import DataError, ParameterError
from latentia.likelihood import log_likelihood
from latentia.likelihood.precision import double, to_double
from latentia.ops.examples import Examples
from latentia.recipes.wiki_multimodal import mean_average_precision

SMALL = {"hidden": (3,), "joint": 2, "visible": "bernoulli", "n_epochs": 2, "random_state": 0}
WIDTHS = {"left": 3, "right": 2}


def pairs(n: int = 200, seed: int = 0) -> dict[str, np.ndarray]:
    """Two kinds of bits that agree about one hidden bit, most of the time."""
    rng = np.random.default_rng(seed)
    hidden = rng.integers(0, 2, (n, 1))
    flip = lambda width: (rng.random((n, width)) < 0.1).astype(int)  # noqa: E731
    return {name: ((hidden + flip(width)) % 2).astype(float) for name, width in WIDTHS.items()}


@pytest.fixture(scope="module")
def machine() -> MultimodalDBM:
    long = {"n_epochs": 500, "optimizer": "sgd", "learning_rate": 0.5, "batch_size": 20, "n_chains": 100}
    return MultimodalDBM(WIDTHS, **{**SMALL, **long}).fit(pairs())


def test_every_pathway_ends_at_the_joint_layer_and_labels_too():
    deep = MultimodalDBM({"a": 4, "b": 3}, hidden=((5, 6), (7,)), joint=8, visible=("gaussian", "bernoulli"))
    facts = deep._blueprint(Examples(np.random.default_rng(0).integers(0, 2, (9, 7)).astype(float)))
    model = deep.build({**facts, "classes": [0, 1, 2]})
    sizes = [layer.n_statistics for layer in model.layers]
    named = {(sizes[i], sizes[j]) for i, j in model.edges}
    assert named == {(4, 5), (5, 6), (6, 8), (3, 7), (7, 8), (3, 8)}
    assert [w.shape for w in model.weights] == [(sizes[i], sizes[j]) for i, j in model.edges]
    first, second = model.blocks()
    assert sorted((*first, *second)) == list(range(len(sizes)))
    assert all((i in first) != (j in first) for i, j in model.edges)


def test_the_likelihood_of_one_modality_sums_the_other_out():
    model = MultimodalDBM(WIDTHS, **SMALL)
    rows = np.column_stack(list(pairs(8).values()))
    net = perturbed(model.build(model._blueprint(Examples(rows))), 1)
    with double():
        exact_net = to_double(net)
        states = [np.array(list(itertools.product((0.0, 1.0), repeat=n))) for n in (3, 2, 3, 3, 2)]
        grid = [s[i] for s, i in zip(states, np.indices([len(s) for s in states]).reshape(5, -1), strict=True)]
        energies = jax.vmap(lambda a, b, *z: exact_net.energy((a, b), z))(*map(jnp.asarray, grid))
        joint = -np.asarray(energies).reshape(8, 4, -1)
    exact = logsumexp(joint, axis=(1, 2)) - logsumexp(joint)
    found = log_likelihood(net, (jnp.asarray(states[0][:5], jnp.float32), None), key=jax.random.key(0))
    assert found.lower == found.upper
    assert found.estimate == pytest.approx(exact[:5].mean(), abs=1e-6)


def test_a_missing_modality_is_filled_in_as_the_data_say(machine):
    data = pairs(seed=1)
    found = machine.impute({"left": data["left"]}, n_draws=50, n_steps=30)["right"]
    evidence = data["left"].sum(1)
    assert found.shape == (200, 2)
    assert found[evidence == 3].min() > 0.7  # three equal bits settle it
    assert found[evidence == 0].max() < 0.3
    drawn = machine.generate({"left": data["left"]}, n_steps=30, random_state=0)
    assert set(drawn) == {"right"}
    assert set(np.unique(drawn["right"])) == {0.0, 1.0}
    agree = (drawn["right"] == (evidence > 1.5)[:, None]).mean()
    assert agree > 0.7


def test_codes_of_either_modality_are_near_those_of_the_same_meaning(machine):
    data = pairs(seed=2)
    similarity = machine.similarity({"left": data["left"]}, {"right": data["right"]})
    left, right = (data[name].mean(1) > 0.5 for name in WIDTHS)
    same = left[:, None] == right[None, :]
    assert similarity[same].mean() > similarity[~same].mean() + 0.5
    nearest = machine.retrieve({"left": data["left"]}, {"right": data["right"]}, n_neighbors=5)
    assert nearest.shape == (200, 5)
    best = np.take_along_axis(similarity, nearest, axis=1)
    assert (np.diff(best, axis=1) <= 0).all()
    assert (best[:, 0] == similarity.max(1)).all()


def test_data_by_name_and_as_a_matrix_are_the_same(machine):
    data = pairs(20)
    matrix = np.column_stack([data["left"], data["right"]])
    np.testing.assert_array_equal(machine.transform(matrix), machine.transform(data))
    np.testing.assert_array_equal(machine.joint_code(matrix), machine.transform(matrix)[:, -2:])
    again = MultimodalDBM(WIDTHS, **SMALL).fit(matrix)
    by_name = MultimodalDBM(WIDTHS, **SMALL).fit(dict(reversed(data.items())))  # the order is that of modalities
    np.testing.assert_array_equal(again.transform(matrix), by_name.transform(matrix))


def test_labels_are_predicted_from_either_modality_and_kept_in_files(tmp_path):
    data = pairs(300)
    y = np.where(data["left"].mean(1) > 0.5, "on", "off")
    long = {"n_epochs": 150, "optimizer": "sgd", "learning_rate": 0.3, "batch_size": 20}
    machine = MultimodalDBM(WIDTHS, **{**SMALL, **long}).fit(data, y)
    test = pairs(seed=3)
    truth = np.where(test["left"].mean(1) > 0.5, "on", "off")
    assert machine.accuracy({"left": test["left"]}, truth) > 0.95
    assert machine.accuracy({"right": test["right"]}, truth) > 0.7
    by_label = machine.similarity({"left": test["left"]}, {"right": test["right"]}, by="labels")
    assert by_label.shape == (200, 200)
    machine.save(tmp_path / "m.safetensors")
    loaded = latentia.load(tmp_path / "m.safetensors")
    np.testing.assert_array_equal(loaded.predict_proba(test), machine.predict_proba(test))
    np.testing.assert_array_equal(loaded.classes_, ["off", "on"])


def test_the_network_before_fine_tuning_is_the_joint_code(machine):
    data = pairs(10)
    ((weights, bias),) = machine._feed_forward()
    field = machine._network_inputs(data) @ weights + bias
    np.testing.assert_allclose(1 / (1 + np.exp(-field)), machine.joint_code(data), atol=1e-4)


def test_a_classifier_on_the_joint_code(machine):
    data = pairs(seed=4)
    y = (data["left"].mean(1) > 0.5).astype(int)
    fresh = latentia.MultimodalDBM(**machine.get_params()).adopt(machine.model_, machine.blueprint_)
    fresh.finetune(data, y, n_epochs=60, learning_rate=0.05, dropout=0.0, input_dropout=0.0)
    assert fresh.accuracy(data, y) > 0.9


@pytest.mark.parametrize(
    ("change", "X", "error", "message"),
    [
        ({"modalities": {"a": 5}}, None, ParameterError, "at least two kinds"),
        ({"modalities": {"a": 3, "b": 0}}, None, ParameterError, "at least two kinds"),
        ({"modalities": {"a": 3, "b": 3}}, None, DataError, "5 columns.*6 together"),
        ({"visible": ("bernoulli",)}, None, ParameterError, "1 unit types for 2 modalities"),
        ({"visible": "rectified"}, None, ValueError, "visible"),
        ({"hidden": ((2,),)}, None, ParameterError, "1 pathways for 2"),
        ({"hidden": (0,)}, None, ParameterError, "positive integers"),
        ({"hidden": ()}, None, ParameterError, "positive integers"),
        ({}, {"left": np.zeros((4, 3))}, DataError, "lack 'right'"),
        ({"modalities": None}, {"left": np.zeros((4, 3))}, ParameterError, "need modalities"),
    ],
)
def test_wrong_structure_is_explained(change, X, error, message):
    X = np.column_stack(list(pairs(20).values())) if X is None else X
    with pytest.raises(error, match=message):
        MultimodalDBM(**{"modalities": WIDTHS, **SMALL, **change}).fit(X)


@pytest.mark.parametrize(
    ("X", "message"),
    [
        ({"middle": np.zeros((2, 3))}, "'left', 'right'"),
        ({}, "parts none"),
        ({"left": np.zeros((2, 4))}, "3 columns"),
        ({"left": np.full((2, 3), np.nan)}, "finite"),
        ({"left": np.full((2, 3), 0.5)}, "binary units"),
        ({"left": np.zeros((2, 3)), "right": np.zeros((3, 2))}, "different numbers of rows"),
    ],
)
def test_wrong_queries_are_explained(machine, X, message):
    with pytest.raises(DataError, match=message):
        machine.joint_code(X)


def test_nothing_to_fill_in_and_no_labels_to_compare_by(machine):
    data = pairs(4)
    with pytest.raises(DataError, match="everything is known"):
        machine.impute(data)
    with pytest.raises(DataError, match="mapping"):
        machine.impute(np.zeros((2, 5)))
    with pytest.raises(ParameterError, match="label units"):
        machine.similarity(data, data, by="labels")


def test_mean_average_precision_by_hand():
    similarity = np.array([[0.9, 0.8, 0.1], [0.2, 0.5, 0.4]])
    # First query: right at ranks 1 and 3: (1 + 2/3) / 2. Second: right at rank 2 only.
    found = mean_average_precision(similarity, np.array([0, 1]), np.array([0, 1, 0]))
    assert found == pytest.approx(((1 + 2 / 3) / 2 + 1.0) / 2)
    assert mean_average_precision(similarity[1:], np.array([1]), np.array([1, 0, 0])) == pytest.approx(1 / 3)
