"""Greedy stacking: each stage is one run of the loop on the encoded rows of the one before, and resumes."""

from __future__ import annotations

import dataclasses

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from latentia import units
from latentia.core.errors import CapabilityError, DivergenceError
from latentia.energies.rbm import RBMModel
from latentia.estimator.training import Encode
from latentia.learning import contrastive, stacking
from latentia.learning.fit import Settings, fit
from latentia.learning.gradient import GradientLearner
from latentia.learning.optimizer import Optimizer
from latentia.learning.stacking import Stage, encoded, greedy
from latentia.models.ppca import PPCAModel

SIZES = (5, 3)
KEY = 7


@pytest.fixture(scope="module")
def X() -> np.ndarray:
    rng = np.random.default_rng(0)
    return ((rng.random((120, 3)) < 0.4).astype(float) @ (rng.random((3, 8)) < 0.5) > 0.5).astype(np.float32)


@eqx.filter_jit
def _codes(model, rows):
    return jax.vmap(lambda x: model.posterior(x).mean())(rows)


def encode(model, rows):
    return np.asarray(_codes(model, jnp.asarray(rows)))


def maker(n_hidden, *, learning_rate=0.1, encode=encode, seen=None):
    """An RBM on whatever rows the stage gets; codes between 0 and 1 are thrown as coins."""

    def make(rows, key):
        if seen is not None:
            seen.append((rows, key))
        layers = units.make("bernoulli", rows.shape[1]), units.make("bernoulli", n_hidden)
        model = RBMModel.make(*layers, key=key)
        optimizer = Optimizer.make("sgd", learning_rate=learning_rate, n_steps=12)
        learner = GradientLearner(contrastive.pcd(), optimizer)
        return Stage(f"layer {n_hidden}", model, learner, Encode(model.x_space, sample=True), 12, 20, 6, encode)

    return make


def run_settings(stage, index, **changes):
    settings = Settings(n_steps=stage.n_steps, batch_size=stage.batch_size, chunk=stage.chunk, seed=index)
    return dataclasses.replace(settings, **changes)


def in_folders(root, **changes):
    def settings(stage, index):
        return run_settings(stage, index, folder=root / f"{index}-{stage.name}", checkpoint_seconds=0.0, **changes)

    return settings


def bits(results):
    return [leaf.tobytes() for r in results for leaf in map(np.asarray, jax.tree.leaves((r.model, r.state)))]


def test_every_stage_is_a_run_of_the_loop_on_the_codes_below(X):
    weights = np.linspace(0.5, 1.5, len(X)).astype(np.float32)
    seen, calls = [], []

    def counting(model, rows):
        calls.append(rows.shape)
        return encode(model, rows)

    makers = [maker(5, seen=seen, encode=counting), maker(3, seen=seen, encode=counting)]
    results = greedy(X, makers, run_settings, key=jax.random.key(KEY), weights=weights)
    assert calls == [(120, 8)]  # and not in the last stage
    assert [r.n_steps for r in results] == [12, 12]
    np.testing.assert_array_equal(seen[0][0], X)
    codes = seen[1][0].parts
    assert codes.dtype == np.float32
    np.testing.assert_allclose(codes, encode(results[0].model, X), rtol=1e-6)
    assert results[1].model.weights.shape == (5, 3)

    # The same by hand, with the keys that a stage derives from its number.
    for index, (rows, n_hidden) in enumerate(((X, 5), (codes, 3))):
        begin, run = jax.random.split(jax.random.fold_in(jax.random.key(KEY), index))
        stage = maker(n_hidden)(rows, begin)
        settings = run_settings(stage, index)
        alone = fit(stage.model, rows, stage.learner, stage.prepare, settings, key=run, weights=weights)
        assert bits([alone]) == bits([results[index]])
    unweighted = greedy(X, [maker(5)], run_settings, key=jax.random.key(KEY))
    assert bits(unweighted) != bits(results[:1])


def test_stages_start_with_keys_of_their_own(X):
    seen = []
    greedy(X, [maker(8, seen=seen), maker(8, seen=seen)], run_settings, key=jax.random.key(KEY))
    first, second = (np.asarray(jax.random.key_data(key)) for _, key in seen)
    assert not np.array_equal(first, second)
    run_keys = [jax.random.split(jax.random.fold_in(jax.random.key(KEY), i))[1] for i in range(2)]
    assert len({np.asarray(jax.random.key_data(k)).tobytes() for k in [*run_keys, *(k for _, k in seen)]}) == 4


def test_a_finished_stack_resumes_to_the_same_bits_without_a_step(X, tmp_path):
    def stack(**changes):
        return greedy(X, [maker(n) for n in SIZES], in_folders(tmp_path, **changes), key=jax.random.key(KEY))

    first = stack()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["0-layer 5", "1-layer 3"]
    events = []
    again = stack(resume=True, callbacks=[events.append])
    assert events == []
    assert [r.n_steps for r in again] == [12, 12]
    assert bits(again) == bits(first)
    assert again[1].history == first[1].history
    without = greedy(X, [maker(n) for n in SIZES], run_settings, key=jax.random.key(KEY))
    assert bits(without) == bits(first)


@pytest.mark.parametrize("stop_at", [(0, 6), (1, 6)])
def test_an_interrupted_stack_goes_on_inside_its_stage(X, tmp_path, stop_at):
    stage_number, step = stop_at

    def interrupting(stage, index):
        def stop(event):
            if (index, event.step) == (stage_number, step):
                raise KeyboardInterrupt

        return in_folders(tmp_path, callbacks=[stop])(stage, index)

    makers = [maker(n) for n in SIZES]
    with pytest.raises(KeyboardInterrupt):
        greedy(X, makers, interrupting, key=jax.random.key(KEY))
    steps = []

    def watched(stage, index):
        watch = [lambda event: steps.append((index, event.step))]
        return in_folders(tmp_path, resume=True, callbacks=watch)(stage, index)

    resumed = greedy(X, makers, watched, key=jax.random.key(KEY))
    everything = [(0, 6), (0, 12), (1, 6), (1, 12)]
    assert steps == everything[everything.index(stop_at) + 1 :]
    assert bits(resumed) == bits(greedy(X, makers, run_settings, key=jax.random.key(KEY)))


def test_rows_are_encoded_in_blocks_of_one_shape(X, tmp_path, monkeypatch):
    model = maker(4)(X, jax.random.key(0)).model
    whole = encode(model, X)
    monkeypatch.setattr(stacking, "BLOCK", 50)
    shapes = []

    def watched(model, rows):
        shapes.append(rows.shape)
        return encode(model, rows).astype(np.float64)

    np.testing.assert_allclose(encoded(watched, model, X), whole, rtol=1e-6)
    assert shapes == [(50, 8)] * 3
    assert encoded(watched, model, X).dtype == np.float32
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    np.testing.assert_allclose(encoded(encode, model, mapped), whole, rtol=1e-6)
    np.testing.assert_allclose(encoded(encode, model, X[:7]), whole[:7], rtol=1e-6)


def test_a_stage_that_diverges_is_named_and_its_model_is_not_the_stacks(X):
    makers = [maker(5), maker(3, learning_rate=1e30)]
    with pytest.raises(DivergenceError) as caught:
        greedy(X, makers, run_settings, key=jax.random.key(KEY))
    assert caught.value.result is None
    assert caught.value.__notes__ == ["This happened while training layer 3."]


def test_a_stage_whose_learner_does_not_fit_is_refused(X):
    def make(rows, key):
        learner = GradientLearner(contrastive.tempering(), Optimizer.make("sgd", learning_rate=0.1, n_steps=1))
        model = PPCAModel.make(rows.shape[1], 2, key=key)
        return Stage("ppca", model, learner, Encode(model.x_space), 1, 10, 1, encode)

    with pytest.raises(CapabilityError, match="Tempered"):
        greedy(X, [make], run_settings, key=jax.random.key(KEY))
