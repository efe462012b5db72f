"""Encoders of sparse codes in the training loop: gradients, stages, folders, resuming, and wrong input."""

from __future__ import annotations

import json

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp

import latentia
from latentia import SparseCoder
from latentia.abilities import imitation
from latentia.core.errors import DataError, DivergenceError, ParameterError, RunFolderError
from latentia.core.parameters import trainable
from latentia.estimator.callbacks import Callback
from latentia.inference.sparse.unrolled import LISTA, PSDEncoder, UnrolledLayer
from latentia.learning import batches, compiled, encoders
from latentia.learning.encoders import Journal, learn_lista, learn_psd
from latentia.learning.prediction import (
    CodeDistance,
    DecompositionState,
    PredictiveDecomposition,
    PredictiveEncoder,
    TaughtEncoder,
    eigenvalue_bound,
    psd_codes,
)
from latentia.ops.examples import Examples

K, D_IN, N = 5, 4, 60
#: Six steps for a layer: of a later one, two alone.
QUICK = {"n_epochs": 2, "batch_size": 20, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def D():
    atoms = np.random.default_rng(0).normal(size=(K, D_IN)).astype(np.float32)
    return atoms / np.linalg.norm(atoms, axis=1, keepdims=True)


@pytest.fixture(scope="module")
def X():
    return np.random.default_rng(1).normal(size=(N, D_IN)).astype(np.float32)


@pytest.fixture(scope="module")
def Z():
    rng = np.random.default_rng(2)
    return (rng.normal(size=(N, K)) * (rng.random((N, K)) < 0.5)).astype(np.float32)


@pytest.fixture
def coder(D, X):
    return SparseCoder(D, alpha=0.2).fit(X)


def arrays(encoder) -> np.ndarray:
    return np.concatenate([np.asarray(leaf).ravel() for leaf in jax.tree.leaves(encoder)])


def without_seconds(history):
    return [{name: value for name, value in row.items() if name != "seconds"} for row in history]


# -- gradients -----------------------------------------------------------------------------------------------


def random_lista(n_layers: int) -> LISTA:
    rng = np.random.default_rng(3)
    draw = lambda *shape: jnp.asarray(rng.normal(size=shape).astype(np.float32))  # noqa: E731
    layers = [UnrolledLayer(draw(K, D_IN), draw(K, K) if i else None, jnp.abs(draw(K))) for i in range(n_layers)]
    return LISTA(tuple(layers))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_distance_to_codes_has_the_gradient_of_its_formula(X, Z, weighted):
    """Of the second of two layers, by hand: u = xWᵀ + z₁Sᵀ, f = soft(u, θ), ∂L/∂f = 2 w (f − z*)/n."""
    encoder = random_lista(2)
    weights = np.random.default_rng(4).random(N).astype(np.float32) * 2 if weighted else np.ones(N, np.float32)
    soft = lambda u, t: np.sign(u) * np.maximum(np.abs(u) - t, 0)  # noqa: E731
    (W1, _, t1), (W2, S2, t2) = (
        [None if a is None else np.asarray(a, float) for a in (layer.weights, layer.lateral, layer.threshold)]
        for layer in encoder.layers
    )
    first = soft(X @ W1.T, t1)
    u = X @ W2.T + first @ S2.T
    f = soft(u, t2)
    up = 2 * weights[:, None] * (f - Z) / N * (np.abs(u) > t2)
    given = jnp.asarray(weights) if weighted else None

    def surrogate(model):
        return CodeDistance().loss(model, (jnp.asarray(X), jnp.asarray(Z)), given, ())[0]

    loss, grads = jax.value_and_grad(surrogate)(TaughtEncoder.of(encoder, 1))
    assert float(loss) == pytest.approx(np.mean(weights * np.sum((f - Z) ** 2, axis=1)), rel=1e-5)
    (layer,) = grads.moving
    np.testing.assert_allclose(layer.weights, up.T @ X, atol=1e-5)
    np.testing.assert_allclose(layer.lateral, up.T @ first, atol=1e-5)
    np.testing.assert_allclose(layer.threshold, -(up * np.sign(u)).sum(0), atol=1e-5)


@pytest.mark.parametrize("learn", [False, True])
def test_predictive_decomposition_has_the_gradient_of_its_formula(D, X, learn):
    """∂/∂D = −zᵀ(x − zD)/n, and of the encoder β(f − z)/n times its own derivative, at codes that stay."""
    alpha, beta = 0.2, 0.6
    encoder = PSDEncoder.make(D, alpha)
    model = PredictiveEncoder.make(encoder, D, alpha=alpha, beta=beta, learn=learn)
    objective, key = PredictiveDecomposition(400), jax.random.key(0)
    weights = np.random.default_rng(4).random(N).astype(np.float32) * 2
    state = objective.init(model, jnp.asarray(X), key=key)
    if learn:  # a dictionary that has moved since needs another bound
        state = DecompositionState(state.codes, state.bound / 100)
    state = objective.prepare(model, jnp.asarray(X), state, key=key)
    z = np.asarray(state.codes, float)
    top = np.linalg.eigvalsh(D @ D.T)[-1]
    exact = psd_codes(encoder, jnp.asarray(D), jnp.asarray(X), alpha, jnp.asarray(beta), top, 2000)
    np.testing.assert_allclose(z, exact, atol=1e-4)

    def surrogate(model):
        return objective.loss(model, jnp.asarray(X), jnp.asarray(weights), state)

    (loss, metrics), grads = jax.value_and_grad(surrogate, has_aux=True)(model)
    W, t = np.asarray(encoder.weights, float), np.asarray(encoder.threshold, float)
    u = X @ W.T
    f = np.sign(u) * np.maximum(np.abs(u) - t, 0)
    parts = [((X - z @ D) ** 2).sum(1) / 2, alpha * np.abs(z).sum(1), ((z - f) ** 2).sum(1)]
    misfit, price, distance = (np.mean(weights * part) for part in parts)
    assert float(loss) == pytest.approx(misfit + price + beta / 2 * distance, rel=1e-5)
    assert float(metrics["reconstruction"]) == pytest.approx(misfit, rel=1e-5)
    assert float(metrics["distance"]) == pytest.approx(distance, rel=1e-5)
    energies = [float(model.energy(jnp.asarray(x), jnp.asarray(c, jnp.float32))) for x, c in zip(X, z, strict=True)]
    assert np.mean(weights * energies) == pytest.approx(float(loss), rel=1e-5)
    up = beta * weights[:, None] * (f - z) / N * (np.abs(u) > t)
    np.testing.assert_allclose(grads.encoder.weights, up.T @ X, atol=1e-5)
    np.testing.assert_allclose(grads.encoder.offset, up.sum(0), atol=1e-5)
    np.testing.assert_allclose(grads.encoder.threshold, -(up * np.sign(u)).sum(0), atol=1e-5)
    atoms = grads.learned if learn else grads.given
    np.testing.assert_allclose(atoms, -(weights[:, None] * z).T @ (X - z @ D) / N, atol=1e-5)
    chosen = trainable(model)
    assert chosen.encoder.weights
    assert (chosen.learned, chosen.given) == ((True, None) if learn else (None, False))
    assert not chosen.alpha
    assert not chosen.beta


@pytest.mark.parametrize("shape", [(30, 12), (7, 25), (1, 6)])
@pytest.mark.parametrize("factor", [1.0, 1e-4, 1e4])
def test_the_bound_of_the_eigenvalues_holds_and_is_near(shape, factor):
    rng = np.random.default_rng(5)
    flat = np.linalg.qr(rng.normal(size=(max(shape), max(shape))))[0][: shape[0], : shape[1]]
    for atoms in (rng.normal(size=shape), rng.normal(size=shape) + 1, flat):
        atoms = (factor * atoms).astype(np.float32)
        top = np.linalg.svd(atoms.astype(float), compute_uv=False)[0] ** 2
        assert (
            top * (1 - 1e-6) <= float(eigenvalue_bound(jnp.asarray(atoms))) <= 1.001 * top * min(shape) ** (1 / 16)
        )


# -- steps and stages ----------------------------------------------------------------------------------------


def test_one_step_of_psd_moves_dictionary_and_encoder_by_their_own_rates(D, X):
    encoder, learned = learn_psd(
        X,
        D,
        0.2,
        beta=0.5,
        update_dictionary=True,
        n_epochs=1,
        batch_size=N,
        learning_rate=0.01,
        dictionary_rate=0.7,
    )
    start = PSDEncoder.make(D, 0.2)
    bound = eigenvalue_bound(jnp.asarray(D))
    z = np.asarray(psd_codes(start, jnp.asarray(D), jnp.asarray(X), 0.2, jnp.asarray(0.5), bound, 30), float)
    moved = D + 0.7 * z.T @ (X - z @ D) / N
    np.testing.assert_allclose(learned, moved / np.linalg.norm(moved, axis=1, keepdims=True), atol=1e-5)
    assert np.abs(learned - D).max() > 0.01
    # The first step of Adam has the length of its rate.
    np.testing.assert_allclose(np.abs(encoder.weights - start.weights), 0.01, rtol=1e-2)
    longer = learn_psd(X, D, 0.2, n_epochs=3, batch_size=N)[1]
    np.testing.assert_array_equal(longer, D)  # a given dictionary stays, to the bit


def test_a_new_layer_learns_alone_for_a_quarter_and_then_with_those_before_it(D, X, Z):
    stages: dict[str, list] = {}

    def watch(event):  # the arrays of an event are given away in the next chunk
        stages.setdefault(event.stage, []).append((event.step, jax.tree.map(np.array, event.model.encoder)))

    journal = Journal(callbacks=(watch,))
    learned = learn_lista(X, Z, D, 0.2, 2, n_epochs=8, batch_size=20, learning_rate=0.01, journal=journal)
    assert list(stages) == ["layer 1", "layer 2 alone", "layer 2"]
    assert [stage[-1][0] for stage in stages.values()] == [24, 6, 18]
    first, alone, both = (stage[-1][1] for stage in stages.values())
    for _, encoder in stages["layer 2 alone"]:
        np.testing.assert_array_equal(arrays(encoder.layers[0]), arrays(first.layers[0]))
    fresh = LISTA.make(D, 0.2, n_layers=2).layers[1]
    for name in ("weights", "lateral", "threshold"):
        assert np.abs(getattr(alone.layers[1], name) - getattr(fresh, name)).min() > 1e-4
        assert np.abs(getattr(both.layers[1], name) - getattr(alone.layers[1], name)).max() > 1e-3
    assert np.abs(both.layers[0].weights - first.layers[0].weights).max() > 1e-3
    np.testing.assert_array_equal(arrays(learned), arrays(both))
    # One history: steps and epochs go on from stage to stage.
    assert [row["layer"] for row in journal.history] == [1] * 8 + [2] * 8
    steps = [row["step"] for row in journal.history]
    assert steps == list(range(3, 49, 3))
    np.testing.assert_allclose([row["epoch"] for row in journal.history], np.array(steps) / 3)
    assert (np.diff([row["seconds"] for row in journal.history]) > 0).all()
    ahead = (LISTA.make(D, 0.2, n_layers=1), first, LISTA((*first.layers, fresh)), alone, both)
    errors = [encoders.distance(encoder, X, Z) for encoder in ahead]
    assert errors[1] < errors[0]
    assert errors[4] < errors[3] < errors[2]


def test_a_second_training_compiles_nothing(D, X, Z):
    def train(learning_rate):
        learn_lista(X, Z, D, 0.2, 2, **{**QUICK, "learning_rate": learning_rate})
        learn_psd(X, D, 0.2, **{**QUICK, "learning_rate": learning_rate})
        learn_psd(X, D, 0.2, update_dictionary=True, **QUICK)

    train(0.01)
    before = list(compiled._CACHE)
    train(0.02)
    assert set(compiled._CACHE) == set(before)


def test_so_few_steps_that_no_layer_learns_alone(D, X, Z):
    journal = Journal()
    assert len(learn_lista(X, Z, D, 0.2, 2, n_epochs=1, batch_size=N, journal=journal).layers) == 2
    assert [row["layer"] for row in journal.history] == [1, 2]


def test_large_sets_are_filled_in_chunk_by_chunk(D, X, Z, monkeypatch):
    sparse = sp.coo_array(Z)
    whole = learn_lista(X, Z, D, 0.2, 2, **QUICK)
    np.testing.assert_array_equal(arrays(learn_lista(X, sparse, D, 0.2, 2, **QUICK)), arrays(whole))
    monkeypatch.setattr(batches, "DEVICE_BYTES", 0)
    monkeypatch.setattr(Examples, "read_all", None)  # nobody asks for all of them
    np.testing.assert_allclose(arrays(learn_lista(X, sparse, D, 0.2, 2, **QUICK)), arrays(whole), atol=1e-6)


# -- the estimator -------------------------------------------------------------------------------------------


class Interrupting:
    """A callback at which the user gives up after a few chunks."""

    def __init__(self, after: int):
        self.left = after

    def __call__(self, event):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


KINDS = {
    "lista": {"kind": "lista", "n_layers": 2, **QUICK, "n_epochs": 8},
    "psd": {"kind": "psd", "n_code_steps": 5, **QUICK},
    "dictionary": {"kind": "psd", "n_code_steps": 5, "update_dictionary": True, **QUICK},
}


@pytest.mark.parametrize(("which", "after"), [("lista", 3), ("lista", 9), ("lista", 13), ("dictionary", 1)])
def test_a_resumed_run_goes_through_the_same_bits(D, X, tmp_path, which, after):
    recipe = KINDS[which]
    name = recipe["kind"] + "_"
    whole = SparseCoder(D, alpha=0.2).fit(X).fit_encoder(X=X, run_dir=tmp_path / "whole", **recipe)
    part = SparseCoder(D, alpha=0.2).fit(X)
    with pytest.raises(KeyboardInterrupt):
        part.fit_encoder(X=X, run_dir=tmp_path / "part", callbacks=[Interrupting(after)], **recipe)
    assert name not in vars(part)
    assert "encoder_history_" not in vars(part)
    assert not (tmp_path / "part" / "model.safetensors").exists()
    seen: list = []
    part.fit_encoder(X=X, run_dir=tmp_path / "part", resume=True, callbacks=[seen.append], **recipe)
    assert len(seen) == len(whole.encoder_history_) - after  # what was done is not done again
    np.testing.assert_array_equal(arrays(getattr(part, name)), arrays(getattr(whole, name)))
    np.testing.assert_array_equal(part.components_, whole.components_)
    assert (np.abs(part.components_ - D).max() > 1e-3) == (which == "dictionary")
    assert without_seconds(part.encoder_history_) == without_seconds(whole.encoder_history_)
    back = latentia.load(tmp_path / "part" / "model.safetensors")
    np.testing.assert_array_equal(back.encode(X, using=recipe["kind"]), whole.encode(X, using=recipe["kind"]))


def test_run_folders_are_described_and_not_mixed_up(coder, D, X, tmp_path):
    folder, recipe = tmp_path / "run", {**KINDS["lista"], "n_epochs": 2}
    coder.fit_encoder(X=X, run_dir=folder, **recipe)
    names = sorted(path.name for path in folder.iterdir())
    ours = ["checkpoint.safetensors", "config.json", "encoder.json", "metrics.jsonl", "model.safetensors"]
    assert names == [*ours, "pretraining"]
    assert sorted(path.name for path in (folder / "pretraining").iterdir()) == ["stage-1", "stage-2"]
    described = json.loads((folder / "encoder.json").read_text())
    assert described == {
        "kind": "lista",
        "n_layers": 2,
        "n_epochs": 2,
        "batch_size": 20,
        "learning_rate": 0.01,
        "random_state": 0,
    }
    with pytest.raises(RunFolderError, match="not empty"):
        coder.fit_encoder(X=X, run_dir=folder, **recipe)
    changes = [{"X": -X}, {"n_layers": 1}, {"random_state": 1}, {"n_epochs": 3}, {"learning_rate": 0.02}]
    for change in changes:
        with pytest.raises(RunFolderError, match="other parameters or other data"):
            coder.fit_encoder(**{"X": X, **recipe, **change}, run_dir=folder, resume=True)
    for other in (SparseCoder(D[::-1].copy(), alpha=0.2), SparseCoder(D, alpha=0.3)):
        with pytest.raises(RunFolderError, match="other parameters or other data"):
            other.fit(X).fit_encoder(X=X, run_dir=folder, resume=True, **recipe)
    assert json.loads((folder / "encoder.json").read_text()) == described
    finished = coder.encode(X, using="lista")
    coder.fit_encoder(X=X, run_dir=folder, resume=True, **recipe)
    np.testing.assert_array_equal(coder.encode(X, using="lista"), finished)


def test_callbacks_progress_and_history(coder, X, monkeypatch):
    titles = []
    real = imitation.display
    monkeypatch.setattr(
        imitation, "display", lambda verbose, title: titles.append((verbose, title)) or real(0, title)
    )
    coder.verbose = 2
    told = []

    class Watching(Callback):
        def begin(self, estimator, *, goes_on=False):
            told.append(("begin", goes_on))

        def __call__(self, event):
            told.append(event.stage)
            return event.stage == "layer 1"  # which ends that stage after its first chunk

        def end(self, estimator, outcome):
            told.append((outcome, "lista_" in vars(estimator)))

    coder.fit_encoder("lista", X, n_layers=2, callbacks=[Watching()], **QUICK)
    assert told == [("begin", False), "layer 1", "layer 2 alone", "layer 2", "layer 2", ("finished", True)]
    assert titles == [(2, f"SparseCoder lista: {stage}") for stage in ("layer 1", "layer 2 alone", "layer 2")]
    assert [row["layer"] for row in coder.encoder_history_] == [1, 2, 2, 2]
    assert {"step", "epoch", "seconds", "loss", "gradient_norm"} < set(coder.encoder_history_[0])
    coder.fit_encoder("psd", X, n_code_steps=5, **QUICK)
    assert titles[-1] == (2, "SparseCoder psd: psd")
    assert len(coder.encoder_history_) == 2
    assert {"loss", "reconstruction", "distance"} < set(coder.encoder_history_[0])
    coder.adopt(coder.model_, coder.blueprint_)
    assert not {"encoder_history_", "lista_", "psd_"} & set(vars(coder))


@pytest.mark.parametrize("which", KINDS)
def test_a_divergence_is_reported_and_the_last_good_encoder_kept(coder, D, X, which):
    recipe = {**KINDS[which], "learning_rate": 1e30}
    ended = []

    class Watching(Callback):
        def __call__(self, event): ...
        def end(self, estimator, outcome):
            ended.append(outcome)

    with pytest.raises(DivergenceError, match="learning_rate") as caught:
        coder.fit_encoder(X=X, callbacks=[Watching()], **recipe)
    assert "while training the encoder" in caught.value.__notes__[0]
    assert ended == ["diverged"]
    kept = getattr(coder, recipe["kind"] + "_").encoder
    start = LISTA.make(D, 0.2, n_layers=1) if which == "lista" else PSDEncoder.make(D, 0.2)
    np.testing.assert_allclose(arrays(kept), arrays(start), atol=1e-6)
    assert coder.encoder_history_ == []
    np.testing.assert_allclose(coder.components_, D, atol=1e-6)


def test_every_option_reaches_the_loop(coder, X, monkeypatch):
    caught: list = []
    monkeypatch.setattr(encoders.loop, "fit", lambda *run, **more: caught.append(run) or _stop())
    shared = {"n_epochs": 7, "batch_size": 30, "learning_rate": 0.25, "random_state": 5}
    own = {"beta": 0.5, "activation": "tanh", "n_code_steps": 9}
    for recipe in ({"kind": "lista", "n_layers": 2}, {"kind": "psd", **own}):
        with pytest.raises(StopIteration):
            coder.fit_encoder(X=X, **shared, **recipe)
        model, rows, learner, _, settings = caught[-1]
        optimizer = learner.optimizer
        assert (optimizer.direction, optimizer.schedule, float(optimizer.learning_rate)) == ("adam", "cosine", 0.25)
        assert float(optimizer.n_steps) == settings.n_steps == 14
        assert (settings.batch_size, settings.seed, settings.chunk) == (30, 5, 2)
        assert rows.shape == ((N, D_IN + K) if recipe["kind"] == "lista" else (N, D_IN))
    assert (model.encoder.activation, float(model.beta), learner.objective.n_code_steps) == ("tanh", 0.5, 9)
    assert float(model.alpha) == pytest.approx(0.2)
    assert float(model.encoder.gain[0]) == pytest.approx(2 * np.std(X @ coder.components_.T), rel=1e-5)


def _stop():
    raise StopIteration


def test_frames_and_sparse_rows_are_taken(D, X):
    frame = pd.DataFrame(X, columns=list("abcd"))
    named = SparseCoder(D, alpha=0.2).fit(frame)
    plain = SparseCoder(D, alpha=0.2).fit(X)
    for recipe in (KINDS["lista"], KINDS["psd"]):
        plain.fit_encoder(X=X, **recipe)
        wanted = plain.encode(X, using=recipe["kind"])
        named.fit_encoder(X=frame, **recipe)
        np.testing.assert_array_equal(named.encode(frame, using=recipe["kind"]), wanted)
        plain.fit_encoder(X=sp.csr_array(X), **recipe)
        np.testing.assert_allclose(plain.encode(X, using=recipe["kind"]), wanted, atol=1e-4)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "list"}, "Did you mean 'lista'"),
        ({"n_layers": 0}, "n_layers must be an integer"),
        ({"n_epochs": 0}, "n_epochs must be an integer"),
        ({"batch_size": 1.5}, "batch_size"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
        ({"random_state": -1}, "random_state"),
        ({"resume": "yes"}, "resume"),
        ({"beta": 0.5}, "beta belongs to kind='psd'"),
        ({"update_dictionary": True}, "update_dictionary belongs to kind='psd'"),
        ({"kind": "psd", "n_layers": 2}, "n_layers belongs to kind='lista'"),
        ({"kind": "psd", "beta": 0.0}, "beta must be a number"),
        ({"kind": "psd", "activation": "relu"}, "activation"),
        ({"kind": "psd", "n_code_steps": 0}, "n_code_steps"),
        ({"kind": "psd", "dictionary_rate": -1.0}, "dictionary_rate"),
        ({"kind": "psd", "update_dictionary": "yes"}, "update_dictionary"),
    ],
)
def test_wrong_numbers_are_refused(coder, X, change, message, tmp_path):
    with pytest.raises(ParameterError, match=message):
        coder.fit_encoder(**{"kind": "lista", "X": X, "run_dir": tmp_path / "run", **change})
    assert not (tmp_path / "run").exists()


def test_the_functions_refuse_wrong_numbers_too(D, X, Z):
    for change in (
        {"n_epochs": True},
        {"batch_size": 2.5},
        {"learning_rate": 0.0},
        {"learning_rate": float("inf")},
    ):
        with pytest.raises(ParameterError, match=next(iter(change))):
            learn_lista(X, Z, D, 0.2, **change)
    for change in ({"n_code_steps": 0}, {"dictionary_rate": 0}, {"beta": float("nan")}, {"random_state": -1}):
        with pytest.raises(ParameterError, match=next(iter(change))):
            learn_psd(X, D, 0.2, **change)
    for codes in (np.where(Z == 0, np.nan, Z), sp.csr_array(np.where(Z == 0, np.inf, Z))):
        with pytest.raises(DataError, match="codes hold NaN"):
            learn_lista(X, codes, D, 0.2)
